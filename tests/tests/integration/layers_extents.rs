//! Extents through layers: complete and correct, with few requests to a device below that knows its holes.

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Extent, ExtentState, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use conformance::requests::{full, geometry, write};
use layers::record::replay::ImageDisk;
use layers::stripe;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks that were written, and the number of requests for extents.
#[derive(Default)]
struct Known {
    written: Mutex<Vec<bool>>,
    asked: AtomicU64,
}

/// A disk that knows its holes.
struct Sparse {
    disk: Arc<dyn DevicePart>,
    known: Arc<Known>,
}

struct SparseDevice {
    disk: Rc<dyn Device>,
    known: Arc<Known>,
}

fn sparse(bytes: u64, block_size: u64) -> (Arc<dyn DevicePart>, Arc<Known>) {
    let block_size = BlockSize::new(block_size).unwrap();
    let blocks = BlockCount(bytes >> block_size.shift());
    let known =
        Arc::new(Known { written: Mutex::new(vec![false; blocks.0 as usize]), asked: AtomicU64::new(0) });
    let disk = Arc::new(ImageDisk::empty(DeviceGeometry { block_size, blocks, ..geometry() }));
    (Arc::new(Sparse { disk, known: known.clone() }), known)
}

impl Part for Sparse {
    fn kind(&self) -> &'static str {
        "sparse"
    }
}

impl DevicePart for Sparse {
    fn geometry(&self) -> &DeviceGeometry {
        self.disk.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let disk = self.disk.open().await?;
            Ok(Rc::new(SparseDevice { disk, known: self.known.clone() }) as Rc<dyn Device>)
        })
    }
}

impl SparseDevice {
    fn note(&self, from: u64, count: u64, is_written: bool) {
        self.known.written.lock().unwrap()[from as usize..(from + count) as usize].fill(is_written);
    }
}

impl Device for SparseDevice {
    fn geometry(&self) -> &DeviceGeometry {
        self.disk.geometry()
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.disk.read(at, buffer)
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        self.note(at.0, payload.len() as u64 >> self.geometry().block_size.shift(), true);
        self.disk.write(at, payload, durability)
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        self.disk.flush()
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.note(range.start.0, range.count.0, false);
        self.disk.discard(range)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.note(range.start.0, range.count.0, mode == ZeroMode::KeepAllocated);
        self.disk.write_zeroes(range, mode, durability)
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        self.known.asked.fetch_add(1, Ordering::Relaxed);
        let written = self.known.written.lock().unwrap();
        let mut extents: Vec<Extent> = Vec::new();
        for block in range.start.0..range.end().0 {
            let state = if written[block as usize] { ExtentState::Data } else { ExtentState::Hole };
            match extents.last_mut() {
                Some(last) if last.state == state => last.range.count.0 += 1,
                _ => extents.push(Extent { range: BlockRange::new(block, 1), state }),
            }
        }
        Call::ready(Ok(extents))
    }
}

/// All extents of a device as (start, count, state), and the number of answers.
async fn all(device: &dyn Device) -> (Vec<(u64, u64, ExtentState)>, usize) {
    let blocks = device.geometry().blocks.0;
    let (mut at, mut answers, mut found) = (0, 0, Vec::<(u64, u64, ExtentState)>::new());
    while at < blocks {
        answers += 1;
        for extent in device.extents(BlockRange::new(at, blocks - at)).await.unwrap() {
            assert_eq!(extent.range.start.0, at, "in order, without a gap");
            at = extent.range.end().0;
            match found.last_mut() {
                Some(last) if last.2 == extent.state => last.1 += extent.range.count.0,
                _ => found.push((extent.range.start.0, extent.range.count.0, extent.state)),
            }
        }
    }
    (found, answers)
}

fn simulated<Fut: Future<Output = ()> + 'static>(main: impl FnOnce() -> Fut + Send) {
    runtime::simulate(runtime::Simulation::new(1), main).unwrap();
}

use ExtentState::{Data, Hole};

#[test]
fn a_stripe_answers_all_its_chunks_at_once() {
    simulated(|| async {
        // Legs with different block sizes: extents of 512 bytes become blocks of 4 KiB.
        let legs = [sparse(64 << 20, 4096), sparse(64 << 20, 512), sparse(64 << 20, 4096)];
        let parts = legs.iter().map(|(part, _)| part.clone()).collect();
        let part = stripe::stripe(parts, 16 << 10).unwrap();
        let device = part.open().await.unwrap();
        let blocks = device.geometry().blocks.0;
        assert_eq!(all(&*device).await, (vec![(0, blocks, Hole)], 1));
        device.write(BlockIndex(10), full(7, 30), Durability::Visible).await.unwrap();
        write(&*device, 1000, 7).await.unwrap();
        let expected = vec![
            (0, 10, Hole),
            (10, 30, Data),
            (40, 960, Hole),
            (1000, 1, Data),
            (1001, blocks - 1001, Hole),
        ];
        assert_eq!(all(&*device).await, (expected, 1));
        let asked: Vec<u64> = legs.iter().map(|(_, known)| known.asked.load(Ordering::Relaxed)).collect();
        assert_eq!(asked, [2, 2, 2], "once for each answer");
    });
}

#[test]
fn a_write_cache_knows_what_it_has_and_asks_the_origin_for_the_rest() {
    simulated(|| async {
        for block_size in [4096, 512] {
            let (origin, _) = sparse(16 << 20, block_size);
            let (fast, _) = sparse(4 << 20, 4096);
            let options = writecache::Options {
                format: true,
                high_watermark: 100,
                low_watermark: 100,
                ..writecache::Options::default()
            };
            let part = writecache::WriteCachePart::open(origin, fast, options).await.unwrap();
            let device = part.open().await.unwrap();
            assert_eq!(all(&*device).await, (vec![(0, 4096, Hole)], 1));
            device.write(BlockIndex(100), full(7, 20), Durability::Visible).await.unwrap();
            part.message("flush").await.unwrap();
            write(&*device, 300, 1).await.unwrap();
            device.discard(BlockRange::new(105, 5)).await.unwrap();
            let expected = vec![
                (0, 100, Hole),
                (100, 5, Data),
                (105, 5, Hole),
                (110, 10, Data),
                (120, 180, Hole),
                (300, 1, Data),
                (301, 3795, Hole),
            ];
            assert_eq!(all(&*device).await, (expected.clone(), 1), "{block_size}");
            part.message("flush").await.unwrap();
            assert_eq!(all(&*device).await.0, expected, "{block_size}, written back");
            drop(device);
            part.close().await.unwrap();
        }
    });
}

#[test]
fn a_cache_reports_dirty_parts_and_asks_the_origin_for_the_rest() {
    simulated(|| async {
        for mode in [cache::Mode::Writeback, cache::Mode::Writethrough] {
            let (slow, known) = sparse(16 << 20, 4096);
            let (fast, _) = sparse(16 << 20, 4096);
            let options =
                cache::Options { format: true, mode, block_size: 64 << 10, ..cache::Options::default() };
            let part = cache::CachePart::open(slow, fast, "slow", &options).await.unwrap();
            let device = part.open().await.unwrap();
            let blocks = device.geometry().blocks.0;
            assert_eq!(all(&*device).await.0, [(0, blocks, Hole)]);
            // Read often enough to be promoted: clean parts of a hole are a hole.
            for _ in 0..4 {
                device.read(BlockIndex(64), Buffer::new(4096)).await.0.unwrap();
            }
            assert_eq!(all(&*device).await.0, [(0, blocks, Hole)]);
            device.write(BlockIndex(66), full(7, 3), Durability::Visible).await.unwrap();
            write(&*device, 1000, 7).await.unwrap();
            let expected = vec![
                (0, 66, Hole),
                (66, 3, Data),
                (69, 931, Hole),
                (1000, 1, Data),
                (1001, blocks - 1001, Hole),
            ];
            let before = known.asked.load(Ordering::Relaxed);
            assert_eq!(all(&*device).await, (expected.clone(), 1), "{mode:?}");
            assert!(known.asked.load(Ordering::Relaxed) - before <= 3);
            device.flush().await.unwrap();
            runtime::sleep(std::time::Duration::from_secs(60)).await;
            assert_eq!(all(&*device).await.0, expected, "{mode:?}, written back");
            drop(device);
            part.close().await.unwrap();
        }
    });
}
