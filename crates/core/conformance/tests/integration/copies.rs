//! The suite accepts a device with two copies, where a dropped write may be visible in one copy before the
//! other one.

use block::{
    BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Part,
    Payload, ReadOutcome, Result, ZeroMode,
};
use conformance::device::{Options, VolatileDisk, run};
use runtime::range_lock::SharedRangeLock;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time between a change of the first copy and of the second one.
const BETWEEN_COPIES: Duration = Duration::from_millis(2);
const BLOCKS: u64 = 256;

/// A device with two copies. Overlapping changes reach both copies in the same order, and reads alternate
/// between them.
#[derive(Clone)]
struct Copies {
    disks: [VolatileDisk; 2],
    changing: SharedRangeLock,
    reads: Arc<AtomicU64>,
    /// Number of changes in flight, for which a close waits.
    in_flight: Arc<AtomicU64>,
    /// Whether a dropped change still reaches the second copy.
    carries: bool,
}

impl Part for Copies {
    fn kind(&self) -> &'static str {
        "copies"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            while self.in_flight.load(Ordering::Relaxed) > 0 {
                runtime::sleep(BETWEEN_COPIES).await;
            }
            Ok(())
        })
    }
}

impl DevicePart for Copies {
    fn geometry(&self) -> &DeviceGeometry {
        DevicePart::geometry(&self.disks[0])
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let handles = [self.disks[0].open().await?, self.disks[1].open().await?];
            Ok(Rc::new(Handle { part: self.clone(), handles }) as Rc<dyn Device>)
        })
    }
}

struct Handle {
    part: Copies,
    handles: [Rc<dyn Device>; 2],
}

impl Handle {
    /// Changes the first copy and later the second one. An invalid range is refused by the first copy.
    fn change(
        &self,
        range: Result<BlockRange>,
        change: impl AsyncFn(&dyn Device) -> Result<()> + 'static,
    ) -> Call<'_, Result<()>> {
        let range = range.map_or(0..0, |range| range.start.0..range.end().0);
        let (part, [one, other]) = (self.part.clone(), self.handles.clone());
        let carries = part.carries;
        let changed = async move {
            part.in_flight.fetch_add(1, Ordering::Relaxed);
            let changed = async {
                let _held = part.changing.ask(range).await;
                change(&*one).await?;
                runtime::sleep(BETWEEN_COPIES).await;
                change(&*other).await
            };
            let outcome = changed.await;
            part.in_flight.fetch_sub(1, Ordering::Relaxed);
            outcome
        };
        match carries {
            true => runtime::carry(changed),
            false => Call::new(changed),
        }
    }
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        DevicePart::geometry(&self.part)
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        let copy = self.part.reads.fetch_add(1, Ordering::Relaxed) % 2;
        self.handles[copy as usize].read(at, buffer)
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        let range = self.geometry().range(at, payload.len());
        self.change(range, async move |disk| disk.write(at, payload.clone(), durability).await)
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        self.change(Ok(BlockRange::new(0, 0)), async |disk| disk.flush().await)
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.change(Ok(range), async move |disk| disk.discard(range).await)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.change(Ok(range), async move |disk| disk.write_zeroes(range, mode, durability).await)
    }
}

fn judge(carries: bool, seed: u64) -> std::result::Result<(), String> {
    let main = move || async move {
        let disk = || VolatileDisk::new(BLOCKS, BlockSize::default());
        let part = Copies {
            disks: [disk(), disk()],
            changing: SharedRangeLock::default(),
            reads: Arc::default(),
            in_flight: Arc::default(),
            carries,
        };
        let make = async || Arc::new(part.clone()) as Arc<dyn DevicePart>;
        let options = Options { seed: Some(seed), operations: 500, persistent: true, ..Options::default() };
        run(make, options).await
    };
    runtime::simulate(runtime::Simulation::new(seed), main).map_err(|error| error.to_string())?.value
}

#[test]
fn a_dropped_write_that_is_seen_in_one_copy_first_is_permitted() {
    for seed in 1..=5 {
        judge(true, seed).expect("the device keeps its promises");
    }
}

#[test]
fn a_dropped_write_that_reaches_only_one_copy_is_caught() {
    for seed in 1..=5 {
        let broken = judge(false, seed).expect_err("must be caught");
        assert!(broken.contains("dropped calls: "), "{broken}");
        assert!(broken.contains("never took effect"), "{broken}");
    }
}
