//! Exclusion of writes to partial blocks, across all connections and exports of a device and all shards.
//! Writes of whole blocks cost two uncontended atomic additions while no partial write is in progress.
//!
//! A write of part of a block reads the block, changes it and writes it back. Another acknowledged write to
//! that block between its read and its write would be lost. Such a write (*exclusive*) must therefore not
//! overlap another write to any of its blocks, exclusive or of whole blocks. Reads aren't affected.
//!
//! # Algorithm and proof
//! A write of whole blocks first counts itself in its shard's counter and then checks whether an exclusive
//! write is announced. If none is, it runs, with only that count. If one is, it takes its count back and asks
//! the device's range lock for its blocks instead. An exclusive write announces itself first, then waits
//! until every shard's counter has been seen at zero, and then asks the range lock.
//!
//! All operations on counters and announcements are sequentially consistent, so of a write that counts itself
//! and an exclusive one that announces itself at least one sees the other. Either the counted one sees the
//! announcement and uses the range lock, or its count preceded the announcement, and then the exclusive one
//! waits for it. After an announcement no write passes with a count alone, so it suffices to see each counter
//! at zero once, at any time: writes that passed before have ended, and the counters can't delay the
//! exclusive one forever. A write that brings a counter to zero wakes the waiting exclusive ones, if any is
//! announced. An exclusive write that found the counter above zero registers its waker and checks again, so
//! it doesn't miss the wake-up.
//!
//! Afterwards all writes that could conflict are in the range lock, which grants overlapping ranges one at a
//! time in order of arrival. Each write holds at most one range and doesn't wait while it holds it, so there
//! is no deadlock, and none is overtaken, so there is no starvation. Overlapping writes of whole blocks also
//! wait for each other there; the contract of a device permits that, and only clients with racing writes
//! notice. An announcement ends after its range is released. Writes that are still in the range lock remain
//! there until they have ended, and the next exclusive write meets them there.
//!
//! All shards share the range lock. Its mutex is taken by exclusive writes, and by others only while an
//! exclusive write is announced; it is held for one request or release.
//!
//! Not covered: writes that don't reach the device through a door of this process.

use block::BlockRange;
use runtime::range_lock::{SharedRangeGuard, SharedRangeLock};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// On a cache line of its own, against false sharing between shards.
#[repr(align(128))]
#[derive(Default)]
struct Padded<T>(T);

/// Gate of one device.
pub struct WriteGate {
    /// Number of exclusive writes that are announced.
    announced: Padded<AtomicU32>,
    /// Number of writes per shard that run with a count alone.
    counted: Box<[Padded<AtomicU64>]>,
    /// Exclusive writes that wait for the counters.
    draining: Mutex<Vec<Waker>>,
    ranges: SharedRangeLock,
}

/// A write of whole blocks that runs with a count alone.
#[must_use = "the write is counted as long as this lives"]
pub struct Counted<'g> {
    gate: &'g WriteGate,
    shard: usize,
}

impl Drop for Counted<'_> {
    #[inline]
    fn drop(&mut self) {
        let was_last = self.gate.counted[self.shard].0.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.gate.announced.0.load(Ordering::SeqCst) != 0 {
            self.gate.wake_draining();
        }
    }
}

/// Range of blocks in which no other write runs, except counted ones.
#[must_use = "the range is held as long as this lives"]
pub struct Held<'g> {
    // In this order: the range is released before the announcement ends.
    _range: SharedRangeGuard,
    /// Announcement of an exclusive write.
    _announced: Option<Announced<'g>>,
}

/// Announcement of an exclusive write.
struct Announced<'g>(&'g WriteGate);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.announced.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl WriteGate {
    /// Creates a gate for writes from `shards` shards.
    pub fn new(shards: usize) -> Self {
        WriteGate {
            announced: Padded::default(),
            counted: (0..shards.max(1)).map(|_| Padded::default()).collect(),
            draining: Mutex::default(),
            ranges: SharedRangeLock::default(),
        }
    }

    fn draining(&self) -> MutexGuard<'_, Vec<Waker>> {
        // Nothing panics while the lock is held.
        self.draining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a write of whole blocks of this shard pass if no exclusive write is announced; otherwise the
    /// write has to [`queue`](Self::queue).
    #[inline]
    pub fn pass(&self, shard: usize) -> Option<Counted<'_>> {
        // A gate may outlive its runtime, so the next one may have more shards.
        let shard = shard % self.counted.len();
        self.counted[shard].0.fetch_add(1, Ordering::SeqCst);
        // Dropping it takes the count back and wakes the exclusive writes that may have seen it.
        let counted = Counted { gate: self, shard };
        (self.announced.0.load(Ordering::SeqCst) == 0).then_some(counted)
    }

    /// Waits for the blocks of a write of whole blocks that could not [`pass`](Self::pass).
    pub async fn queue(&self, range: BlockRange) -> Held<'_> {
        Held { _range: self.enter(range).await, _announced: None }
    }

    /// Waits until this is the only write in the range.
    pub async fn exclude(&self, range: BlockRange) -> Held<'_> {
        self.announced.0.fetch_add(1, Ordering::SeqCst);
        let announced = Announced(self);
        self.drained().await;
        Held { _range: self.enter(range).await, _announced: Some(announced) }
    }

    fn enter(&self, range: BlockRange) -> impl Future<Output = SharedRangeGuard> {
        self.ranges.ask(range.start.0..range.end().0)
    }

    /// Waits until every shard's counter has been seen at zero since the call.
    async fn drained(&self) {
        let mut next = 0;
        std::future::poll_fn(|context| {
            let mut registered = false;
            while let Some(counter) = self.counted.get(next) {
                if counter.0.load(Ordering::SeqCst) == 0 {
                    next += 1;
                } else if !registered {
                    // Check again after the registration: a write that ended in between found no waker.
                    self.draining().push(context.waker().clone());
                    registered = true;
                } else {
                    return Poll::Pending;
                }
            }
            Poll::Ready(())
        })
        .await;
    }

    #[cold]
    fn wake_draining(&self) {
        let wakers = std::mem::take(&mut *self.draining());
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
#[path = "write_gate_tests.rs"]
mod tests;
