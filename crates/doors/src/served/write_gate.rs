//! Exclusion of writes to partial blocks, across all connections and exports of a device and all shards. Writes of
//! whole blocks cost two uncontended atomic additions while there are no partial ones.
//!
//! A write of part of a block reads the block, changes it and writes it back. Another acknowledged write to that block
//! between its read and its write would be lost. So such a write (*exclusive*) must not run while another write to any
//! of its blocks does, be it of whole blocks or exclusive itself. Reads take no part.
//!
//! # Algorithm and proof
//! A write of whole blocks first counts itself in its shard's counter and then looks whether any exclusive write is
//! announced. If none is, it runs, with nothing but that count. If one is, it takes its count back and asks the
//! device's range lock for its blocks instead. An exclusive write announces itself first, then waits until every shard's
//! counter has been seen at zero, and then asks the range lock.
//!
//! All operations on counters and announcements are sequentially consistent, so of a write that counts itself and an
//! exclusive one that announces itself at least one sees the other. Either the counted one sees the announcement and goes
//! to the range lock, or its count was there before the announcement, and then the exclusive one waits for it. Since after
//! an announcement no write passes with a count alone, seeing each counter at zero once, at whatever moments,
//! is enough: those that passed before have ended, and the counters can't keep the exclusive one waiting for ever.
//! Whichever write brings a counter to zero wakes the exclusive ones that wait, if any is announced; one of them that
//! found the counter above zero has left its waker before it looked again, so it isn't missed.
//!
//! From then on all writes that could conflict are in the range lock, which grants overlapping ranges one at a time in
//! order of arrival. No write holds one range and waits for another, so there is no deadlock, and none is overtaken, so
//! there is no starvation. Writes of whole blocks that overlap wait for each other there, too, which the contract of a device
//! permits and a client that doesn't race with itself never meets. An announcement ends after its range is released;
//! writes that are still in the range lock by then stay there until they have ended, and the next exclusive write meets
//! them there.
//!
//! The range lock is shared by all shards. Its mutex is taken by exclusive writes, and by others only while one of these is
//! announced; it is held for as long as one request or release takes.
//!
//! Not covered: writes that reach the device in another way than through a door of this process.

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
    /// Gate for writes from this many shards.
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

    /// Lets a write of whole blocks of this shard pass if no exclusive one is announced; else it has to
    /// [`queue`](Self::queue).
    #[inline]
    pub fn pass(&self, shard: usize) -> Option<Counted<'_>> {
        // A gate may outlive the runtime that it was made for.
        let shard = shard % self.counted.len();
        self.counted[shard].0.fetch_add(1, Ordering::SeqCst);
        // Dropping it takes the count back and wakes the writes that may have seen it.
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
                    // Look again after the registration: a write that ended in between saw no waker.
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
