//! How fast write-back gets on: how fast writers go on once the ring is nearly full, and how large the next batch may be.
//!
//! Promises: writers slow down to the speed at which room is freed before there is none left, and keep to it evenly, although
//! room comes a batch at a time, which may be seconds apart. While there is room enough nothing is computed, and no clock read.
//!
//! From when less than [`BEGIN`] is free, writers get room at the speed at which the last batches freed it, times the share of
//! [`AIM`] that is free or, by that speed, already done: so a wrong speed is made good by itself, and what is free settles at the
//! aim (as in the kernel's `balance_dirty_pages`, mm/page-writeback.c, whose setpoint this is). If a batch takes longer than it
//! should, they slow down further and never come to a stop. Once twice the aim is free, they go as they like again.
//!
//! **Batches** are what the origin takes in [`MOST`], and each at most twice the one before, so that the first ones soon tell of
//! its speed. On a disk with an arm the longer ones pay: sorted, they are written with short seeks. There they don't overlap,
//! because such a disk has its own order: what is left of one batch would wait for the next ones, and its flush with it.

use std::cell::Cell;
use std::time::Duration;

/// So long a batch is meant to take at most.
const MOST: Duration = Duration::from_secs(5);
/// However slow the origin seems to be, a batch has so many blocks, where there are so many: one that pays for its flush.
const FEWEST: u64 = 512;
/// Where the largest batch takes less than this, a flush may take a good part of it: halves of it overlap.
const SHORT: Duration = Duration::from_millis(500);
/// Blocks per second of an origin of which nothing is known yet: what a disk with an arm does.
const BELIEF: f64 = 300.0;
/// How much of what was known of the speed still counts after another batch.
const KEPT: f64 = 0.5;

/// Writers are held back from when so much is free, in largest batches. More than what is aimed at: as long as batches are
/// small, the origin is slower than it will be.
const BEGIN: f64 = 1.75;
/// So much is to be free, in largest batches: one that is being written, and some for when it takes longer.
const AIM: f64 = 1.25;
/// Below this share of the aim writers slow down whatever is said to be done.
const SCARCE: f64 = 1.0 / 8.0;

/// How far write-back is. Amounts are blocks of the ring, headers included.
#[derive(Debug)]
pub struct Progress {
    /// How many blocks a batch has at most.
    batch: u64,
    /// How much room may be saved up by writers that don't take it at once.
    saved: u64,
    /// What was freed lately, and how many seconds it took.
    freed: Cell<(f64, f64)>,
    /// What is being written back.
    on_the_way: Cell<u64>,
    /// When room was freed last, or when something was written back again; none while nothing is.
    since: Cell<Option<runtime::Instant>>,
    /// What the batch frees that began last.
    last: Cell<u64>,
    /// While writers are held back.
    held: Cell<Option<Held>>,
}

/// What writers that are held back may take.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// How many blocks, less than none if they have taken more.
    room: f64,
    /// As of when, and where the next one lay then.
    at: runtime::Instant,
    head: u64,
}

impl Progress {
    /// Batches of at most so many blocks; a record and what is left out before it take at most `longest`.
    pub fn new(batch: u64, longest: u64) -> Self {
        // It counts for almost nothing once something is known.
        let belief = (BELIEF / 1000.0, 1.0 / 1000.0);
        Progress {
            batch,
            saved: longest,
            freed: Cell::new(belief),
            on_the_way: Cell::new(0),
            since: Cell::new(None),
            last: Cell::new(0),
            held: Cell::new(None),
        }
    }

    /// A batch is being written, which frees so many blocks.
    pub fn begin(&self, frees: u64) {
        if self.since.get().is_none() {
            self.since.set(Some(runtime::now()));
        }
        self.on_the_way.set(self.on_the_way.get() + frees);
        self.last.set(frees);
    }

    /// It is durable there, and its room is free.
    pub fn freed(&self, blocks: u64) {
        let now = runtime::now();
        let took = now - self.since.get().unwrap_or(now);
        let (before, seconds) = self.freed.get();
        self.freed.set((before * KEPT + blocks as f64, seconds * KEPT + took.as_secs_f64().max(1e-6)));
        let left = self.on_the_way.get().saturating_sub(blocks);
        self.on_the_way.set(left);
        self.since.set((left > 0).then_some(now));
    }

    /// What was being written back has to be written again. Nobody gets room before.
    pub fn fail(&self) {
        self.on_the_way.set(0);
        self.since.set(None);
        self.held.set(None);
    }

    /// Blocks per second.
    fn speed(&self) -> f64 {
        let (blocks, seconds) = self.freed.get();
        blocks / seconds
    }

    /// How much of what is being written back is probably done.
    pub fn done(&self) -> u64 {
        let Some(since) = self.since.get() else { return 0 };
        ((self.speed() * since.elapsed().as_secs_f64()) as u64).min(self.on_the_way.get())
    }

    /// Blocks per second for writers, if so many are free.
    fn pace(&self, free: u64) -> f64 {
        let (aim, done) = (self.batch as f64 * AIM, self.done() as f64);
        let free = free as f64;
        self.speed() * ((free + done) / aim).min(free / (aim * SCARCE))
    }

    /// How many blocks writers may take now, if so many are free and the next one lies there.
    pub fn room(&self, head: u64, free: u64) -> u64 {
        let Some(held) = self.held.get() else {
            return free.saturating_sub((self.batch as f64 * BEGIN) as u64);
        };
        if free as f64 >= 2.0 * self.batch as f64 * AIM {
            self.held.set(None);
            return self.room(head, free);
        }
        let at = runtime::now();
        let more = self.pace(free) * (at - held.at).as_secs_f64() - (head - held.head) as f64;
        let room = (held.room + more).min(self.saved as f64);
        self.held.set(Some(Held { room, at, head }));
        (room.max(0.0) as u64).min(free)
    }

    /// So many blocks are missing, if so many are free and the next one lies there: writers are held back from now on. Returns
    /// when to look again.
    pub fn hold(&self, head: u64, free: u64, missing: u64) -> Duration {
        const LOOK_AGAIN: (f64, f64) = (20e-6, 50e-3);
        if self.held.get().is_none() {
            self.held.set(Some(Held { room: 0.0, at: runtime::now(), head }));
        }
        let wait = missing as f64 / self.pace(free).max(1.0);
        Duration::from_secs_f64(wait.clamp(LOOK_AGAIN.0, LOOK_AGAIN.1))
    }

    /// How many blocks the next batch may have.
    pub fn next_batch(&self) -> u64 {
        let most = if self.overlaps() { self.batch.div_ceil(2) } else { self.batch };
        ((self.speed() * MOST.as_secs_f64()) as u64).min(2 * self.last.get()).max(FEWEST).min(most)
    }

    /// Whether a batch is written while the one before it is made durable.
    pub fn overlaps(&self) -> bool {
        self.speed() * SHORT.as_secs_f64() > self.batch as f64
    }
}
