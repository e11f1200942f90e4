//! One leg: its device, in the mirror's own blocks, and what all shards know of it.

use super::layout::Layout;
use block::{
    BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, Durability, Error, Extent, ExtentState, Payload,
    ReadOutcome, Result, ZeroMode,
};
use runtime::range_lock::RangeLock;
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Legs, by their numbers.
pub type Mask = u32;

/// The legs of a mask, in order.
pub fn each(mask: Mask) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        (rest != 0).then(|| {
            let leg = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            leg
        })
    })
}

/// What is to be done to blocks of every leg.
#[derive(Debug, Clone)]
pub enum Change {
    /// These bytes. They are shared, not copied: [`block::Data`] doesn't change while it lives.
    Write(Payload),
    /// Zeros.
    Zeroes(ZeroMode),
    /// No longer needed.
    Discard,
}

impl Change {
    /// How many bytes of memory it holds.
    pub fn bytes(&self) -> u64 {
        match self {
            Change::Write(payload) => payload.len() as u64,
            Change::Zeroes(_) | Change::Discard => 0,
        }
    }
}

/// A leg's device as one shard has it.
pub struct LegDevice {
    device: Rc<dyn Device>,
    /// How many of its blocks one of the mirror's is, as a power of two.
    shift: u32,
    block_size: BlockSize,
    /// Where the data begins, in the mirror's blocks.
    data: u64,
}

impl LegDevice {
    /// The device of a leg of a mirror with these blocks; `layout` is known once its superblocks are.
    pub fn new(device: Rc<dyn Device>, block_size: BlockSize, data_offset: u64) -> Self {
        let shift = block_size.shift() - device.geometry().block_size.shift();
        LegDevice { device, shift, block_size, data: data_offset >> block_size.shift() }
    }

    /// The same device, in other blocks; where the data is isn't known.
    pub fn with_blocks_of(self, block_size: BlockSize) -> Self {
        LegDevice::new(self.device, block_size, 0)
    }

    /// The same device, with the data where this layout says.
    pub fn placed(self, layout: &Layout) -> Self {
        LegDevice::new(self.device, layout.block_size, layout.data_offset)
    }

    /// How many of the leg's blocks one of the mirror's is, as a power of two.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    fn on_leg(&self, blocks: &Range<u64>) -> BlockRange {
        let start = (self.data + blocks.start) << self.shift;
        BlockRange::new(start, (blocks.end - blocks.start) << self.shift)
    }

    /// Reads data from block `at` on.
    pub fn read(&self, at: u64, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.device.read(self.on_leg(&(at..at)).start, buffer)
    }

    /// Changes data.
    pub fn change(
        &self,
        blocks: &Range<u64>,
        change: &Change,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        let range = self.on_leg(blocks);
        match change {
            Change::Write(payload) => self.device.write(range.start, payload.clone(), durability),
            Change::Zeroes(mode) => self.device.write_zeroes(range, *mode, durability),
            Change::Discard => self.device.discard(range),
        }
    }

    /// Makes everything durable.
    pub fn flush(&self) -> Call<'_, Result<()>> {
        self.device.flush()
    }

    /// What is known about data without reading it, in the leg's blocks.
    pub fn extents(&self, blocks: &Range<u64>) -> Call<'_, Result<Vec<Extent>>> {
        self.device.extents(self.on_leg(blocks))
    }

    /// The same in the mirror's blocks, of a range of them that isn't empty. A block inside of which the leg's extents change may
    /// be anything.
    pub fn in_own_blocks(&self, range: BlockRange, found: &[Extent]) -> Vec<Extent> {
        let begin = self.on_leg(&(range.start.0..range.start.0)).start.0;
        let mut extents = Vec::with_capacity(found.len());
        let mut known = 0;
        let mut push = |from: u64, to: u64, state| {
            if from < to {
                extents.push(Extent { range: BlockRange::new(range.start.0 + from, to - from), state });
            }
        };
        for extent in found {
            let (from, end) = (extent.range.start.0 - begin, (extent.range.end().0 - begin) >> self.shift);
            if end > known && from > known << self.shift {
                push(known, known + 1, ExtentState::Data);
                known += 1;
            }
            push(known, end, extent.state);
            known = end.max(known);
        }
        if known == 0 {
            push(0, 1, ExtentState::Data);
        }
        extents
    }

    fn block_at(&self, offset: u64) -> BlockIndex {
        BlockIndex(offset >> self.block_size.shift() << self.shift)
    }

    /// Reads what isn't data, at a byte offset.
    pub async fn read_own(&self, offset: u64, bytes: u64) -> Result<Buffer> {
        let (outcome, buffer) = self.device.read(self.block_at(offset), Buffer::new(bytes as usize)).await;
        outcome.map(|()| buffer)
    }

    /// Writes what isn't data, at a byte offset, durably.
    pub fn write_own(&self, offset: u64, payload: Payload) -> Call<'_, Result<()>> {
        self.device.write(self.block_at(offset), payload, Durability::Durable)
    }
}

/// A leg on the home shard.
pub struct Leg {
    /// Its name in the stack.
    pub name: String,
    /// Its device.
    pub device: LegDevice,
    /// Its size.
    pub bytes: u64,
    /// Its place in the mirror; none for one that has none.
    pub slot: Cell<Option<usize>>,
    /// Where writes that may lag stand in line, each behind those that it overlaps.
    pub lane: RangeLock,
    /// Why it couldn't be opened; none of a leg that is there. It stays away until the mirror is opened again.
    pub missing: Option<Error>,
}

/// What all shards know of a leg, and tell of it.
#[derive(Debug, Default)]
pub struct LegCounters {
    /// How long a read takes, in nanoseconds: the mean, each weighed an eighth less than the one after it.
    pub latency: AtomicU64,
    /// Reads that are on their way.
    pub in_flight: AtomicU32,
    /// The block behind the last read that was begun.
    pub next: AtomicU64,
    /// Reads that it answered.
    pub reads: AtomicU64,
    /// Changes that it took.
    pub writes: AtomicU64,
    /// Reads that it failed.
    pub read_errors: AtomicU64,
    /// Ranges that it could not read and that were written anew, from another leg.
    pub corrected: AtomicU64,
}

impl LegCounters {
    /// A read took so long.
    pub fn took(&self, nanoseconds: u64) {
        let before = self.latency.load(Ordering::Relaxed);
        // Two at the same time lose one of them, which does no harm.
        let after = if before == 0 { nanoseconds } else { before - before / 8 + nanoseconds / 8 };
        self.latency.store(after.max(1), Ordering::Relaxed);
    }

    /// How long one more read would take.
    pub fn expected(&self) -> u64 {
        let queue = u64::from(self.in_flight.load(Ordering::Relaxed)) + 1;
        self.latency.load(Ordering::Relaxed).saturating_mul(queue)
    }
}
