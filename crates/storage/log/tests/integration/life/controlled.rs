//! A disk that counts its operations and stops answering at a test's request, until the test lets it answer
//! again.

use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Extent, Part,
    Payload, ReadOutcome, Result, ZeroMode,
};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Duration of an operation.
pub const LATENCY: Duration = Duration::from_micros(50);
/// Interval at which an unanswered operation checks whether it may be answered.
const LOOK: Duration = Duration::from_millis(10);

/// Counters and switches for a test.
#[derive(Debug)]
pub struct Controls {
    /// Operations that have begun: all of them, and those that change the disk or make it durable.
    begun: AtomicU64,
    changes: AtomicU64,
    /// Number of the first operation that isn't answered.
    silent_from: AtomicU64,
    is_silent: AtomicBool,
}

impl Default for Controls {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Controls {
            begun: zero(),
            changes: zero(),
            silent_from: AtomicU64::new(u64::MAX),
            is_silent: AtomicBool::new(false),
        }
    }
}

impl Controls {
    /// Number of operations that have begun.
    pub fn begun(&self) -> u64 {
        self.begun.load(Relaxed)
    }

    /// Number of writes, discards and flushes that have begun.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }

    /// Stops answering after `operations` further operations.
    pub fn silence_after(&self, operations: u64) {
        self.silent_from.store(self.begun().saturating_add(operations), Relaxed);
    }

    /// Whether an operation waits for an answer.
    pub fn is_silent(&self) -> bool {
        self.is_silent.load(Relaxed)
    }

    /// Answers again, including the operations that wait.
    pub fn answer(&self) {
        self.silent_from.store(u64::MAX, Relaxed);
        self.is_silent.store(false, Relaxed);
    }

    async fn operation(&self, changes: bool) {
        let number = self.begun.fetch_add(1, Relaxed);
        self.changes.fetch_add(changes.into(), Relaxed);
        while number >= self.silent_from.load(Relaxed) {
            self.is_silent.store(true, Relaxed);
            runtime::sleep(LOOK).await;
        }
        runtime::sleep(LATENCY).await;
    }
}

/// The controlled disk.
pub struct ControlledDisk {
    inner: Arc<dyn DevicePart>,
    controls: Arc<Controls>,
}

impl ControlledDisk {
    /// Creates a disk on top of another one.
    pub fn over(inner: Arc<dyn DevicePart>) -> (Arc<dyn DevicePart>, Arc<Controls>) {
        let controls = Arc::new(Controls::default());
        (Arc::new(ControlledDisk { inner, controls: controls.clone() }), controls)
    }
}

impl Part for ControlledDisk {
    fn kind(&self) -> &'static str {
        "controlled"
    }
}

impl DevicePart for ControlledDisk {
    fn geometry(&self) -> &DeviceGeometry {
        self.inner.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let device = self.inner.open().await?;
            Ok(Rc::new(Handle { device, controls: self.controls.clone() }) as Rc<dyn Device>)
        })
    }
}

struct Handle {
    device: Rc<dyn Device>,
    controls: Arc<Controls>,
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        self.device.geometry()
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            self.controls.operation(false).await;
            self.device.read(at, buffer).await
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.controls.operation(true).await;
            self.device.write(at, payload, durability).await
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.controls.operation(true).await;
            self.device.flush().await
        })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.controls.operation(true).await;
            self.device.discard(range).await
        })
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        Call::new(async move {
            self.controls.operation(true).await;
            self.device.write_zeroes(range, mode, durability).await
        })
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        self.device.extents(range)
    }
}
