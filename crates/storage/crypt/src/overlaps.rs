//! Order of overlapping requests, across all handles and shards of a part.
//!
//! The device below may leave any mixture of the bytes of two overlapping requests. A cipher block with bytes
//! of two versions decrypts to neither. So of two requests that overlap and of which one writes only one is
//! in flight below at a time.
//!
//! # Algorithm and proof
//! A write holds its range in a lock that all shards share. While it holds it, it is counted in the slots of
//! its regions of 64 KiB: each slot has the number of writes that were ever counted, and of those in
//! flight. Regions share slots, which at worst causes needless waiting.
//!
//! A read looks at its slots before and after the read below. If no write is counted before, and no more were
//! ever counted after, none was in flight at any moment in between: one that was counted before the first
//! look and not after it had ended, and any later one has changed a slot. Such a read changes nothing that
//! another shard looks at. Otherwise it holds its range as a write does, and reads again. It does so at most
//! once, and then waits in the queue of the lock: writes can't delay it forever.
//!
//! A request waits only while it holds nothing, so there is no deadlock.

use block::BlockRange;
use runtime::range_lock::{SharedRangeGuard, SharedRangeLock};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Number of slots: a power of two.
const SLOTS: u64 = 4096;
/// Binary logarithm of the bytes of a region.
const REGION: u32 = 16;
/// Added to a slot for a write: one that was ever counted, and one that is. The upper half may wrap.
const NEW: u64 = 1 << 32 | 1;

/// Requests in flight of one part.
pub struct Overlaps {
    ranges: SharedRangeLock,
    slots: Box<[AtomicU64]>,
    /// Binary logarithm of the bytes of a block.
    shift: u32,
}

/// A write that is in flight.
#[must_use = "the range is held as long as this lives"]
pub struct Writing<'o> {
    overlaps: &'o Overlaps,
    regions: Range<u64>,
    // Dropped after the count was taken back.
    _held: SharedRangeGuard,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        for slot in self.overlaps.slots(&self.regions) {
            slot.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// State of the slots of a range in which no write was in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quiet(u64);

impl Overlaps {
    /// Creates the order of a part with blocks of `1 << shift` bytes.
    pub fn new(shift: u32) -> Overlaps {
        let slots = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        Overlaps { ranges: SharedRangeLock::default(), slots, shift }
    }

    /// Regions of a range that isn't empty; at most as many as there are slots.
    fn regions(&self, range: BlockRange) -> Range<u64> {
        let first = (range.start.0 << self.shift) >> REGION;
        let last = ((range.end().0 << self.shift) - 1) >> REGION;
        first..(last + 1).min(first + SLOTS)
    }

    fn slots(&self, regions: &Range<u64>) -> impl Iterator<Item = &AtomicU64> {
        regions.clone().map(|region| &self.slots[(region % SLOTS) as usize])
    }

    /// Waits until no other request that holds its range overlaps this one, and holds it.
    pub async fn hold(&self, range: BlockRange) -> SharedRangeGuard {
        self.ranges.ask(range.start.0..range.end().0).await
    }

    /// Waits until this is the only request in the range, which isn't empty. No read finds it quiet until the
    /// write is dropped.
    pub async fn write(&self, range: BlockRange) -> Writing<'_> {
        let held = self.hold(range).await;
        let regions = self.regions(range);
        for slot in self.slots(&regions) {
            slot.fetch_add(NEW, Ordering::SeqCst);
        }
        // The count is seen before any byte of the write.
        fence(Ordering::SeqCst);
        Writing { overlaps: self, regions, _held: held }
    }

    /// State of a range that isn't empty; `None` if a write may be in flight there. If it is the same before
    /// and after a read, no write was in flight meanwhile.
    pub fn quiet(&self, range: BlockRange) -> Option<Quiet> {
        // Whatever was read before has been read.
        fence(Ordering::SeqCst);
        // Counts only grow, so an equal sum means that none has changed.
        self.slots(&self.regions(range)).try_fold(Quiet(0), |Quiet(sum), slot| {
            let state = slot.load(Ordering::SeqCst);
            (state as u32 == 0).then(|| Quiet(sum.wrapping_add(state)))
        })
    }
}
