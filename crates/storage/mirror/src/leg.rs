//! One leg: its device, addressed in the mirror's blocks, and its counters.

use crate::format::MAX_LEGS;
use crate::layout::Layout;
use block::{
    BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, Durability, Error, Extent, Payload, ReadOutcome,
    Result, ZeroMode,
};
use runtime::LimitedPart;
use runtime::range_lock::RangeLock;
use std::cell::Cell;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::Poll;

/// Set of legs: bit n for leg n.
pub type Mask = u32;

/// Returns the legs of a mask, in order.
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

/// Begins a call on each of these legs, and waits for all. Allocates only if a leg fails.
pub async fn on_legs<'a>(
    legs: Mask,
    mut begin: impl FnMut(usize) -> Call<'a, Result<()>>,
) -> (Mask, Vec<(usize, Error)>) {
    let mut calls: [Option<Call<'a, Result<()>>>; MAX_LEGS] = [const { None }; _];
    let (mut waiting, mut done, mut failed) = (0, 0, Vec::new());
    for leg in each(legs) {
        calls[leg] = Some(begin(leg));
        waiting |= 1 << leg;
    }
    poll_fn(|context| {
        for leg in each(waiting) {
            let Some(call) = &mut calls[leg] else { continue };
            if let Poll::Ready(outcome) = Pin::new(call).poll(context) {
                waiting &= !(1 << leg);
                calls[leg] = None;
                match outcome {
                    Ok(()) => done |= 1 << leg,
                    Err(error) => failed.push((leg, error)),
                }
            }
        }
        if waiting == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (done, failed)
}

/// Change of blocks on every leg.
#[derive(Debug, Clone)]
pub enum Change {
    /// Writes these bytes, which are shared, not copied: [`block::Data`] is immutable.
    Write(Payload),
    /// Writes zeros.
    Zeroes(ZeroMode),
    /// Discards the blocks.
    Discard,
}

impl Change {
    /// Number of bytes of memory that the change holds.
    pub fn bytes(&self) -> u64 {
        match self {
            Change::Write(payload) => payload.len() as u64,
            Change::Zeroes(_) | Change::Discard => 0,
        }
    }
}

/// One shard's handle of a leg's device.
pub struct LegDevice {
    device: Rc<dyn Device>,
    /// Binary logarithm of the number of the leg's blocks per block of the mirror.
    shift: u32,
    block_size: BlockSize,
    /// Offset of the data, in the mirror's blocks.
    data: u64,
}

impl LegDevice {
    /// Wraps the handle of a leg of a mirror with this block size; the offset is 0 until the superblocks have
    /// been read.
    pub fn new(device: Rc<dyn Device>, block_size: BlockSize, data_offset: u64) -> Self {
        let shift = block_size.shift() - device.geometry().block_size.shift();
        LegDevice { device, shift, block_size, data: data_offset >> block_size.shift() }
    }

    /// Returns the same device with another block size and the offset 0.
    pub fn with_blocks_of(self, block_size: BlockSize) -> Self {
        LegDevice::new(self.device, block_size, 0)
    }

    /// Returns the same device with this layout.
    pub fn placed(self, layout: &Layout) -> Self {
        LegDevice::new(self.device, layout.block_size, layout.data_offset)
    }

    /// Binary logarithm of the number of the leg's blocks per block of the mirror.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    fn on_leg(&self, blocks: &Range<u64>) -> BlockRange {
        let start = (self.data + blocks.start) << self.shift;
        BlockRange::new(start, (blocks.end - blocks.start) << self.shift)
    }

    /// Reads data, beginning at block `at`.
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

    /// Flushes the leg.
    pub fn flush(&self) -> Call<'_, Result<()>> {
        self.device.flush()
    }

    /// Returns the extents of data, in the leg's blocks.
    pub fn extents(&self, blocks: &Range<u64>) -> Call<'_, Result<Vec<Extent>>> {
        self.device.extents(self.on_leg(blocks))
    }

    /// Converts the extents of a non-empty range to the mirror's blocks. A block with several extents of the
    /// leg becomes data.
    pub fn in_own_blocks(&self, range: BlockRange, found: &[Extent]) -> Vec<Extent> {
        let begin = self.on_leg(&(range.start.0..range.start.0)).start.0;
        block::extents::in_blocks(range, begin, self.shift, found)
    }

    fn block_at(&self, offset: u64) -> BlockIndex {
        BlockIndex(offset >> self.block_size.shift() << self.shift)
    }

    /// Zeroes both copies of the superblock, so that an old one is never used.
    ///
    /// # Errors
    /// Errors of the leg.
    pub async fn wipe(&self) -> Result<()> {
        for copy in 0..2 {
            let zeros = Buffer::zeroed(Layout::page(self.block_size) as usize).into();
            self.write_own(Layout::superblock(self.block_size, copy), zeros).await?;
        }
        Ok(())
    }

    /// Reads metadata at a byte offset.
    pub async fn read_own(&self, offset: u64, bytes: u64) -> Result<Buffer> {
        let (outcome, buffer) = self.device.read(self.block_at(offset), Buffer::new(bytes as usize)).await;
        outcome.map(|()| buffer)
    }

    /// Durably writes metadata at a byte offset.
    pub fn write_own(&self, offset: u64, payload: Payload) -> Call<'_, Result<()>> {
        self.device.write(self.block_at(offset), payload, Durability::Durable)
    }
}

/// A leg on the home shard.
pub struct Leg {
    /// Name in the stack.
    pub name: String,
    /// Device.
    pub device: LegDevice,
    /// Time limit of its requests.
    pub limited: Arc<LimitedPart>,
    /// Size in bytes.
    pub bytes: u64,
    /// Slot in the mirror; `None` for a leg without one.
    pub slot: Cell<Option<usize>>,
    /// Queue of writes of a lagging leg: each waits for earlier ones that it overlaps.
    pub lane: RangeLock,
    /// Error by which the leg couldn't be opened. A missing leg stays missing until the mirror is opened
    /// again.
    pub missing: Option<Error>,
}

/// Counters of a leg, which all shards write and read.
#[derive(Debug, Default)]
pub struct LegCounters {
    /// Read latency in nanoseconds: exponentially weighted moving average with weight 1/8.
    pub latency: AtomicU64,
    /// Number of reads in flight.
    pub in_flight: AtomicU32,
    /// Block after the end of the last read that began.
    pub next: AtomicU64,
    /// Number of successful reads.
    pub reads: AtomicU64,
    /// Number of changes.
    pub writes: AtomicU64,
    /// Number of failed reads.
    pub read_errors: AtomicU64,
    /// Number of unreadable blocks that were rewritten with another leg's data.
    pub corrected: AtomicU64,
}

impl LegCounters {
    /// Adds the latency of a read to the average.
    pub fn took(&self, nanoseconds: u64) {
        let before = self.latency.load(Ordering::Relaxed);
        // Of two concurrent updates one may be lost, which does no harm.
        let after = if before == 0 { nanoseconds } else { before - before / 8 + nanoseconds / 8 };
        self.latency.store(after.max(1), Ordering::Relaxed);
    }

    /// Expected latency of one more read, in nanoseconds: the average times the length of the queue.
    pub fn expected(&self) -> u64 {
        let queue = u64::from(self.in_flight.load(Ordering::Relaxed)) + 1;
        self.latency.load(Ordering::Relaxed).saturating_mul(queue)
    }
}
