//! Throttle of writers in a nearly full ring, and the size of the next batch.
//!
//! Promises: writers slow down to the rate at which write-back frees space before none is left, and keep to
//! it evenly, although space is freed a batch at a time, which may be seconds apart. While there is enough
//! space nothing is computed, and no clock read.
//!
//! **Space**: when less than [`BEGIN`] is free, writers get space at the rate at which the last batches freed
//! it, times the share of the setpoint [`AIM`] that is free or, by that rate, already destaged. A wrong rate
//! corrects itself, and the free space settles at the setpoint (as in the kernel's `balance_dirty_pages`,
//! mm/page-writeback.c). If a batch takes longer than expected, writers slow down further and never stop.
//! Once twice the setpoint is free, they aren't throttled any more.
//!
//! **Batches** are as large as the origin takes in [`BATCH_TIME`], and each at most twice the one before, so
//! that the first ones soon measure its rate. On a disk with an arm longer ones pay: sorted, they are written
//! with short seeks. There batches don't overlap, because such a disk reorders its queue: the rest of one
//! batch would wait for the next ones, and so would its flush.
//!
//! Amounts are blocks of the ring, headers included.

use std::cell::Cell;
use std::time::Duration;

/// Intended time of a batch.
const BATCH_TIME: Duration = Duration::from_secs(5);
/// Smallest limit to a batch, however slow the origin seems to be: a batch that pays for its flush.
const MIN_BATCH: u64 = 512;
/// Below this time of the largest batch, its flush may take a large part of the time: halves of it overlap.
const SHORT: Duration = Duration::from_millis(500);
/// Assumed rate of an unknown origin, in blocks per second: that of a disk with an arm.
const DEFAULT_RATE: f64 = 300.0;
/// Weight of the former batches in the rate after another one.
const DECAY: f64 = 0.5;

/// Free space below which writers are throttled, in largest batches. More than the setpoint: as long as
/// batches are small, the origin is slower than it will be.
const BEGIN: f64 = 1.75;
/// Setpoint of the free space, in largest batches: one that is being written, and some for when it takes
/// longer.
const AIM: f64 = 1.25;
/// Below this share of the setpoint writers slow down regardless of the estimate of destaged blocks.
const SCARCE: f64 = 1.0 / 8.0;

/// Progress of write-back, and the space that it leaves to writers.
#[derive(Debug)]
pub struct Throttle {
    /// Limit to a batch.
    batch: u64,
    /// Limit to the space that idle writers accumulate.
    burst: u64,
    /// Decayed sums over the last batches: blocks, and seconds that they took.
    freed: Cell<(f64, f64)>,
    /// Blocks of the batches in flight.
    in_flight: Cell<u64>,
    /// Time when space was last freed, or when the first of the batches in flight began; `None` without any.
    since: Cell<Option<runtime::Instant>>,
    /// Blocks of the batch that began last.
    last: Cell<u64>,
    /// State of the throttle; `None` while writers aren't throttled.
    throttled: Cell<Option<Throttled>>,
}

/// Space of throttled writers.
#[derive(Debug, Clone, Copy)]
struct Throttled {
    /// Blocks that writers may use; negative if they have used more.
    space: f64,
    /// Time at which that was computed.
    at: runtime::Instant,
    /// Head of the log at that time.
    head: u64,
}

impl Throttle {
    /// Creates the throttle for batches up to this limit. One record moves the head by at most `max_step`.
    pub fn new(batch: u64, max_step: u64) -> Self {
        // A weight of 1 ms: the default hardly matters once a batch was measured.
        let default = (DEFAULT_RATE / 1000.0, 1.0 / 1000.0);
        Throttle {
            batch,
            burst: max_step,
            freed: Cell::new(default),
            in_flight: Cell::new(0),
            since: Cell::new(None),
            last: Cell::new(0),
            throttled: Cell::new(None),
        }
    }

    /// Notes that a batch of this many blocks has begun.
    pub fn begin(&self, blocks: u64) {
        if self.since.get().is_none() {
            self.since.set(Some(runtime::now()));
        }
        self.in_flight.set(self.in_flight.get() + blocks);
        self.last.set(blocks);
    }

    /// Notes that the oldest batch, of this many blocks, is durable on the origin and its space is free.
    pub fn complete(&self, blocks: u64) {
        let now = runtime::now();
        let took = now - self.since.get().unwrap_or(now);
        let (before, seconds) = self.freed.get();
        self.freed.set((before * DECAY + blocks as f64, seconds * DECAY + took.as_secs_f64().max(1e-6)));
        let left = self.in_flight.get().saturating_sub(blocks);
        self.in_flight.set(left);
        self.since.set((left > 0).then_some(now));
    }

    /// Notes that the batches in flight failed and will be written again. Writers get no space before that.
    pub fn fail(&self) {
        self.in_flight.set(0);
        self.since.set(None);
        self.throttled.set(None);
    }

    /// Blocks per second.
    fn rate(&self) -> f64 {
        let (blocks, seconds) = self.freed.get();
        blocks / seconds
    }

    /// Estimated number of destaged blocks of the batches in flight.
    pub fn done(&self) -> u64 {
        let Some(since) = self.since.get() else { return 0 };
        ((self.rate() * since.elapsed().as_secs_f64()) as u64).min(self.in_flight.get())
    }

    /// Rate of throttled writers with this many free blocks, in blocks per second.
    fn writers_rate(&self, free: u64) -> f64 {
        let (aim, done) = (self.batch as f64 * AIM, self.done() as f64);
        let free = free as f64;
        self.rate() * ((free + done) / aim).min(free / (aim * SCARCE))
    }

    /// Number of blocks that writers may use now, with this head of the log and this many free blocks.
    pub fn space(&self, head: u64, free: u64) -> u64 {
        let Some(throttled) = self.throttled.get() else {
            return free.saturating_sub((self.batch as f64 * BEGIN) as u64);
        };
        if free as f64 >= 2.0 * self.batch as f64 * AIM {
            self.throttled.set(None);
            return self.space(head, free);
        }
        let at = runtime::now();
        let elapsed = (at - throttled.at).as_secs_f64();
        let more = self.writers_rate(free) * elapsed - (head - throttled.head) as f64;
        let space = (throttled.space + more).min(self.burst as f64);
        self.throttled.set(Some(Throttled { space, at, head }));
        (space.max(0.0) as u64).min(free)
    }

    /// Throttles writers, which need `missing` more blocks than [`space`](Self::space) returned. Returns the
    /// time after which to call again.
    pub fn hold(&self, head: u64, free: u64, missing: u64) -> Duration {
        const WAIT: (f64, f64) = (20e-6, 50e-3);
        if self.throttled.get().is_none() {
            self.throttled.set(Some(Throttled { space: 0.0, at: runtime::now(), head }));
        }
        let wait = missing as f64 / self.writers_rate(free).max(1.0);
        Duration::from_secs_f64(wait.clamp(WAIT.0, WAIT.1))
    }

    /// Limit to the next batch.
    pub fn next_batch(&self) -> u64 {
        let most = if self.overlaps() { self.batch.div_ceil(2) } else { self.batch };
        let by_time = (self.rate() * BATCH_TIME.as_secs_f64()) as u64;
        by_time.min(2 * self.last.get()).max(MIN_BATCH).min(most)
    }

    /// Whether a batch is written while the one before it is made durable.
    pub fn overlaps(&self) -> bool {
        self.rate() * SHORT.as_secs_f64() > self.batch as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_double_up_to_the_limit_and_writers_keep_clear_of_the_last_space() {
        let simulation = runtime::Simulation { trace_lines: 0, ..runtime::Simulation::new(1) };
        let outcome = runtime::simulate(simulation, || async {
            let throttle = Throttle::new(4096, 100);
            assert_eq!(throttle.next_batch(), MIN_BATCH);
            assert_eq!((throttle.space(0, 10_000), throttle.space(0, 7_000)), (2_832, 0));
            // A batch a second: 512, 1024, 2048 and 4096 blocks.
            for expected in [1024, 2048, 4096, 4096] {
                throttle.begin(throttle.next_batch());
                runtime::sleep(Duration::from_secs(1)).await;
                throttle.complete(throttle.in_flight.get());
                assert_eq!(throttle.next_batch(), expected);
            }
            let wait = throttle.hold(0, 7_000, 10);
            runtime::sleep(2 * wait).await;
            assert!((10..=100).contains(&throttle.space(0, 7_000)), "throttled writers get space with time");
            assert_eq!(throttle.space(10, 20_480), 20_480 - 7_168, "and aren't throttled any more");
        });
        outcome.expect("the simulation ends");
    }
}
