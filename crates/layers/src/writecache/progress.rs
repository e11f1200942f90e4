//! How fast write-back gets on: how much of what is being written back writers may use already, and how large the next batch
//! may be.
//!
//! An origin with a volatile cache acknowledges a whole batch at once and takes its real time for the flush. If writers got
//! the room by what is acknowledged alone, they would use it up at once and then wait for all of the flush. So they get it at
//! the rate at which the last batches were really done with; and a batch is no larger than the origin takes in about two
//! seconds, so that a wrong guess is soon made good.

use std::cell::Cell;
use std::time::Duration;

/// So long a batch is meant to take at most.
const MOST: Duration = Duration::from_secs(2);
/// However slow the origin seems to be, a batch has so many blocks, where there are so many: one that pays for its flush. As
/// long as nothing is known, the origin is believed to take so many per second.
const FEWEST: u64 = 256;

/// What was so long ago counts a third for the rate. Batches that overlap end together, and then nothing for a while, so it
/// takes several of them to know it.
const MEMORY: Duration = Duration::from_secs(10);
/// What is believed of the origin at first counts as much as so many seconds of knowledge.
const BELIEF: f64 = 0.1;

/// How far write-back is. Amounts are blocks of the ring, headers included.
#[derive(Debug)]
pub struct Progress {
    /// What the batches free that the origin has acknowledged whole, and that aren't durable yet.
    acknowledged: Cell<u64>,
    /// The batch that is being written.
    batch: Cell<Option<Running>>,
    /// How much of these probably is durable, and as of when. None while nothing is written back.
    done: Cell<Option<(f64, runtime::Instant)>>,
    /// When room was freed last, or when something was written back again.
    since: Cell<runtime::Instant>,
    /// What was freed, and how many seconds it took.
    freed: Cell<(f64, f64)>,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    /// How many blocks of the ring it frees.
    frees: u64,
    /// How many writes of blocks it takes, and how many of them the origin has acknowledged.
    writes: u64,
    written: u64,
}

impl Default for Progress {
    fn default() -> Self {
        Progress {
            acknowledged: Cell::new(0),
            batch: Cell::new(None),
            done: Cell::new(None),
            since: Cell::new(runtime::now()),
            freed: Cell::new((FEWEST as f64 * BELIEF, BELIEF)),
        }
    }
}

impl Progress {
    /// A batch of `writes` blocks is being written, which frees so many blocks of the ring.
    pub fn begin(&self, frees: u64, writes: u64) {
        if self.done.get().is_none() {
            let now = runtime::now();
            self.since.set(now);
            self.done.set(Some((0.0, now)));
        }
        self.batch.set(Some(Running { frees, writes, written: 0 }));
    }

    /// The origin has acknowledged so many more of its blocks.
    pub fn wrote(&self, blocks: u64) {
        if let Some(mut batch) = self.batch.get() {
            batch.written += blocks;
            self.batch.set(Some(batch));
        }
    }

    /// The origin has acknowledged all of it.
    pub fn end(&self) {
        if let Some(batch) = self.batch.take() {
            self.acknowledged.set(self.acknowledged.get() + batch.frees);
        }
    }

    /// It is durable there, and its room is free.
    pub fn freed(&self, blocks: u64) {
        let credit = self.credit();
        self.acknowledged.set(self.acknowledged.get().saturating_sub(blocks));
        let (now, before) = (runtime::now(), self.freed.get());
        let took = (now - self.since.get()).as_secs_f64().max(1e-6);
        let kept = (-took / MEMORY.as_secs_f64()).exp();
        self.freed.set((before.0 * kept + blocks as f64, before.1 * kept + took));
        self.since.set(now);
        let is_busy = self.batch.get().is_some() || self.acknowledged.get() > 0;
        self.done.set(is_busy.then_some((credit.saturating_sub(blocks) as f64, now)));
    }

    /// What was being written back has to be written again.
    pub fn fail(&self) {
        self.batch.set(None);
        self.acknowledged.set(0);
        self.done.set(None);
    }

    /// Blocks per second.
    fn rate(&self) -> f64 {
        let (blocks, seconds) = self.freed.get();
        blocks / seconds
    }

    /// How many blocks of the ring writers may take ahead of what is free.
    pub fn credit(&self) -> u64 {
        let Some((done, at)) = self.done.get() else { return 0 };
        let written = match self.batch.get() {
            None | Some(Running { writes: 0, .. }) => 0,
            Some(Running { frees, writes, written }) => frees * written / writes,
        };
        let now = runtime::now();
        let most = (self.acknowledged.get() + written) as f64;
        let done = (done + self.rate() * (now - at).as_secs_f64()).min(most);
        self.done.set(Some((done, now)));
        done as u64
    }

    /// How many blocks the next batch may have.
    pub fn next_batch(&self, most: u64) -> u64 {
        ((self.rate() * MOST.as_secs_f64()) as u64).max(FEWEST).min(most)
    }
}
