//! Keeps writes that aren't whole blocks from losing other writes to the same blocks, across all connections and exports
//! of a device and all shards, while writes of whole blocks cost two uncontended atomic additions as long as there are
//! no others.
//!
//! A write of part of a block reads the block, changes it and writes it back. Whatever else was written to that
//! block between its read and its write would be lost, though it was acknowledged. So such a write (*exclusive*)
//! must not run while another write to any of its blocks does, be it of whole blocks (*shared*: these may overlap
//! each other, the contract of a device allows any order) or exclusive itself. Reads take no part.
//!
//! # How, and why it is right
//! A shared write first counts itself in its shard's counter and then looks whether any exclusive write is
//! announced. If none is, it runs, with nothing but that count. If one is, it takes its count back and enters the
//! table of ranges instead. An exclusive write announces itself first, then waits until every shard's counter has
//! been seen at zero, and then enters the table.
//!
//! All these operations are sequentially consistent, so of a shared write that counts itself and an exclusive one
//! that announces itself at least one sees the other. Either the shared one sees the announcement and goes to the
//! table, or its count was there before the announcement, and then the exclusive one waits for it. Since after an
//! announcement no shared write passes with a count alone, seeing each counter at zero once, at whatever moments,
//! is enough: those that passed before have ended, and the counters can't keep the exclusive one waiting for ever.
//! From then on everybody who could conflict is in the table, which grants ranges in order of arrival: an entry
//! waits for every earlier entry that overlaps it unless both are shared. Nobody holds one range and waits for
//! another, so there is no deadlock, and nobody is overtaken, so there is no starvation. An announcement ends after
//! its range is released; writes that are still in the table by then stay there until they have ended, and the next
//! exclusive write meets them there.
//!
//! What is left to others: writes that reach the device by another way than an NBD server of this process.

use block::BlockRange;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// On a cache line of its own, so that shards don't disturb each other.
#[repr(align(128))]
#[derive(Default)]
struct Padded<T>(T);

/// The gate of one device.
pub struct WriteGate {
    /// How many exclusive writes are announced.
    announced: Padded<AtomicU32>,
    /// How many shared writes run with a count alone, per shard.
    counted: Box<[Padded<AtomicU64>]>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// In order of arrival.
    entries: Vec<Entry>,
    next_ticket: u64,
    /// Exclusive writes that wait for the counters.
    draining: Vec<Waker>,
}

struct Entry {
    ticket: u64,
    range: BlockRange,
    exclusive: bool,
    granted: bool,
    waker: Option<Waker>,
}

impl Table {
    /// Grants what can be granted now; the wakers of those who got it are put behind `wake`.
    fn grant(&mut self, wake: &mut Vec<Waker>) {
        for index in 0..self.entries.len() {
            let (earlier, rest) = self.entries.split_at_mut(index);
            let entry = &mut rest[0];
            let conflict =
                |other: &Entry| (other.exclusive || entry.exclusive) && other.range.overlaps(&entry.range);
            if !entry.granted && !earlier.iter().any(conflict) {
                entry.granted = true;
                wake.extend(entry.waker.take());
            }
        }
    }
}

/// A shared write that runs with a count alone.
#[must_use = "the write is counted as long as this lives"]
pub struct Counted<'g> {
    gate: &'g WriteGate,
    shard: usize,
}

impl Drop for Counted<'_> {
    #[inline]
    fn drop(&mut self) {
        self.gate.counted[self.shard].0.fetch_sub(1, Ordering::SeqCst);
        if self.gate.announced.0.load(Ordering::SeqCst) != 0 {
            self.gate.wake_draining();
        }
    }
}

/// A range of the table, waited for or granted.
#[must_use = "the range is held as long as this lives"]
pub struct Held<'g> {
    gate: &'g WriteGate,
    ticket: u64,
    /// Whether an announcement ends with it.
    announced: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut wake = Vec::new();
        {
            let mut table = self.gate.lock();
            table.entries.retain(|entry| entry.ticket != self.ticket);
            table.grant(&mut wake);
        }
        if self.announced {
            self.gate.announced.0.fetch_sub(1, Ordering::SeqCst);
        }
        wake.into_iter().for_each(Waker::wake);
    }
}

/// An announcement that has no range yet.
struct Announced<'g>(&'g WriteGate);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.announced.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl WriteGate {
    /// For writes from so many shards.
    pub fn new(shards: usize) -> Self {
        WriteGate {
            announced: Padded::default(),
            counted: (0..shards.max(1)).map(|_| Padded::default()).collect(),
            table: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing panics while the lock is held.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a shared write of this shard pass if no exclusive one is announced; else it has to
    /// [`share`](Self::share).
    #[inline]
    pub fn pass(&self, shard: usize) -> Option<Counted<'_>> {
        // A gate may outlive the runtime that it was made for.
        let shard = shard % self.counted.len();
        self.counted[shard].0.fetch_add(1, Ordering::SeqCst);
        // Dropping it takes the count back and wakes those who may have seen it.
        let counted = Counted { gate: self, shard };
        (self.announced.0.load(Ordering::SeqCst) == 0).then_some(counted)
    }

    /// Waits for a range, shared with other shared writes.
    pub async fn share(&self, range: BlockRange) -> Held<'_> {
        self.enter(range, false).await
    }

    /// Waits until this is the only write in the range.
    pub async fn exclude(&self, range: BlockRange) -> Held<'_> {
        self.announced.0.fetch_add(1, Ordering::SeqCst);
        let announced = Announced(self);
        self.drained().await;
        let mut held = self.enter(range, true).await;
        std::mem::forget(announced);
        held.announced = true;
        held
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
                    // Look again behind the registration: a write that ended in between saw no one to wake.
                    self.lock().draining.push(context.waker().clone());
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
        let wakers = std::mem::take(&mut self.lock().draining);
        wakers.into_iter().for_each(Waker::wake);
    }

    async fn enter(&self, range: BlockRange, exclusive: bool) -> Held<'_> {
        let ticket = {
            let mut table = self.lock();
            table.next_ticket += 1;
            let ticket = table.next_ticket;
            table.entries.push(Entry { ticket, range, exclusive, granted: false, waker: None });
            table.grant(&mut Vec::new());
            ticket
        };
        let held = Held { gate: self, ticket, announced: false };
        std::future::poll_fn(|context| {
            let mut table = self.lock();
            let entry = table.entries.iter_mut().find(|entry| entry.ticket == ticket);
            let entry = entry.expect("an entry stays until its guard is dropped");
            if entry.granted {
                return Poll::Ready(());
            }
            entry.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        held
    }
}

#[cfg(test)]
#[path = "write_gate_tests.rs"]
mod tests;
