//! Overlapping requests in flight, above a device that mixes them by bytes.

use block::layer::DeviceLayer;
use block::{
    BlockIndex, BlockRange, BlockSize, Buffer, Call, Data, Device, DeviceGeometry, DevicePart, Durability,
    Part, Payload, ReadOutcome, Result, ZeroMode,
};
use crypt::device::{CryptPart, Segment};
use crypt::secret;
use disks::ram::RamPart;
use runtime::ShardIndex;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const BLOCK: usize = 512;
const BLOCKS: usize = 16;

/// Memory that is copied in pieces of a few bytes, between which other requests run: what the contract of a
/// device permits, and memory and the page cache do.
struct Mixing {
    below: Arc<dyn DevicePart>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Part for Mixing {
    fn kind(&self) -> &'static str {
        "mixing"
    }
}

impl DeviceLayer for Mixing {
    fn below(&self) -> &Arc<dyn DevicePart> {
        &self.below
    }

    fn handle(&self, below: Rc<dyn Device>) -> Rc<dyn Device> {
        let random = Rc::new(RefCell::new(runtime::Random::new(5)));
        Rc::new(MixingDevice { below, bytes: self.bytes.clone(), random })
    }
}

struct MixingDevice {
    below: Rc<dyn Device>,
    bytes: Arc<Mutex<Vec<u8>>>,
    random: Rc<RefCell<runtime::Random>>,
}

async fn perhaps_yield(random: &RefCell<runtime::Random>) {
    let times = random.borrow_mut().next_u64() % 3;
    for _ in 0..times {
        runtime::yield_now().await;
    }
}

impl Device for MixingDevice {
    fn geometry(&self) -> &DeviceGeometry {
        self.below.geometry()
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            let mut from = at.0 as usize * BLOCK;
            while buffer.missing() > 0 {
                let length = buffer.missing().min(9);
                let piece = self.bytes.lock().unwrap()[from..from + length].to_vec();
                buffer.append(&piece);
                from += length;
                perhaps_yield(&self.random).await;
            }
            (Ok(()), buffer)
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, _: Durability) -> Call<'_, Result<()>> {
        let (bytes, random) = (self.bytes.clone(), self.random.clone());
        // Carried on when it is dropped, as by any device.
        runtime::carry(async move {
            let data = payload.to_data();
            for (number, piece) in data.chunks(9).enumerate() {
                let from = at.0 as usize * BLOCK + number * 9;
                bytes.lock().unwrap()[from..from + piece.len()].copy_from_slice(piece);
                perhaps_yield(&random).await;
            }
            Ok(())
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.write_zeroes(range, ZeroMode::MayDeallocate, Durability::Visible)
    }

    fn write_zeroes(&self, range: BlockRange, _: ZeroMode, durability: Durability) -> Call<'_, Result<()>> {
        self.write(range.start, Buffer::zeroed(range.count.0 as usize * BLOCK).into(), durability)
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<block::Extent>>> {
        self.below.extents(range)
    }
}

fn part(discards: bool) -> Arc<dyn DevicePart> {
    let size = BlockSize::new(BLOCK as u64).unwrap();
    let below = Arc::new(RamPart::new((BLOCKS * BLOCK) as u64, size).unwrap());
    let bytes = Arc::new(Mutex::new(vec![0; BLOCKS * BLOCK]));
    let segment = Segment { offset: 0, bytes: None, tweak: 0, sector_size: 512 };
    let cipher = secret::expand(&[7; 64]).unwrap();
    Arc::new(CryptPart::new(Arc::new(Mixing { below, bytes }), cipher, segment, discards).unwrap())
}

/// Bytes of the device, each of which must be one of those that were written.
async fn versions(device: &dyn Device, least: u8, most: u8) {
    let (read, buffer) = device.read(BlockIndex(0), Buffer::new(BLOCKS * BLOCK)).await;
    read.unwrap();
    let wrong = buffer.filled().iter().position(|byte| !(least..=most).contains(byte));
    assert_eq!(wrong, None, "a byte that nobody wrote");
}

/// One of several requests: writes of a byte, zeros, discards and reads of random ranges.
async fn request(device: Rc<dyn Device>, seed: u64) {
    let mut random = runtime::Random::new(seed);
    for byte in 1..=8 {
        let first = random.next_u64() % 8;
        let range = BlockRange::new(first, 1 + random.next_u64() % (BLOCKS as u64 - first));
        let bytes = vec![byte; range.count.0 as usize * BLOCK];
        match random.next_u64() % 6 {
            0 => device.discard(range).await.unwrap(),
            1 => device.write_zeroes(range, ZeroMode::MayDeallocate, Durability::Visible).await.unwrap(),
            2 | 3 => versions(&*device, 0, 8).await,
            4 => {
                // Begun and dropped: it continues.
                let mut call = device.write(range.start, Data::copy_of(&bytes).into(), Durability::Visible);
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                let _ = std::pin::Pin::new(&mut call).poll(&mut context);
            }
            _ => device.write(range.start, Data::copy_of(&bytes).into(), Durability::Visible).await.unwrap(),
        }
    }
}

/// Requests of four tasks of this shard at the same time.
async fn all(part: Arc<dyn DevicePart>, seed: u64) {
    let device = part.open().await.unwrap();
    let tasks: Vec<_> = (0..4).map(|task| runtime::spawn(request(device.clone(), seed + task))).collect();
    for task in tasks {
        task.await;
    }
}

#[test]
fn overlapping_requests_leave_and_return_bytes_of_one_of_them() {
    for (seed, discards) in [(1, false), (2, true), (3, false), (4, true)] {
        let simulation = runtime::Simulation::new(seed).with_shards(2);
        let run = runtime::simulate(simulation, async move || {
            let part = part(discards);
            let device = part.open().await.unwrap();
            let zeros = BlockRange::new(0, BLOCKS as u64);
            device.write_zeroes(zeros, ZeroMode::MayDeallocate, Durability::Visible).await.unwrap();
            let there = part.clone();
            let remote = runtime::spawn_on(ShardIndex(1), async move || all(there, seed * 100).await);
            all(part.clone(), seed * 100 + 50).await;
            remote.await.unwrap();
            versions(&*device, 0, 8).await;
        });
        run.expect("it ends");
    }
}
