//! Model of a solid-state device: an operation takes one of a limited number of servers, the link that all
//! bytes pass, and space in the write buffer. Its completion time is known when it arrives.

use super::profile::{Service, SolidState};
use runtime::{Instant, Random};
use std::time::Duration;

/// State of the servers, the link and the buffer. All times are nanoseconds of the runtime's clock.
#[derive(Debug)]
pub(super) struct SolidServer {
    profile: SolidState,
    read: Lanes,
    write: Lanes,
    link_free: u64,
    /// Time at which the write buffer will be empty.
    buffer_empty: u64,
    random: Random,
}

/// Servers of one kind of operation: the time at which each is free.
#[derive(Debug)]
struct Lanes(Vec<u64>);

impl Lanes {
    fn new(profile: &SolidState, service: &Service) -> Self {
        Lanes(vec![0; service.parallelism.unwrap_or(profile.parallelism) as usize])
    }

    /// Takes the server that is free first for `service` nanoseconds, beginning at `now` or later. Returns
    /// the end.
    fn take(&mut self, now: u64, service: u64) -> u64 {
        let free = self.0.iter_mut().min().expect("a profile has a server at least");
        *free = now.max(*free) + service;
        *free
    }
}

impl SolidServer {
    pub fn new(profile: SolidState, seed: u64) -> Self {
        let (read, write) = (Lanes::new(&profile, &profile.read), Lanes::new(&profile, &profile.write));
        SolidServer { profile, read, write, link_free: 0, buffer_empty: 0, random: Random::new(seed) }
    }

    /// Returns the completion time of a read that arrives now.
    pub fn read(&mut self, now: Instant, bytes: u64) -> Instant {
        let now = now.nanoseconds();
        let took = self.latency(self.profile.read.latency);
        let served = self.read.take(now, took);
        Instant::from_nanoseconds(served.max(self.pass(now, bytes, self.profile.read.bandwidth)))
    }

    /// Returns the completion time of a write that arrives now.
    pub fn write(&mut self, now: Instant, bytes: u64) -> Instant {
        let now = now.nanoseconds();
        let begin = self.buffer(now, bytes);
        let took = self.latency(self.profile.write.latency);
        let served = self.write.take(begin, took);
        Instant::from_nanoseconds(served.max(self.pass(begin, bytes, self.profile.write.bandwidth)))
    }

    /// Returns the completion time of a flush that arrives now: after all earlier writes.
    pub fn flush(&mut self, now: Instant) -> Instant {
        let written = self.write.0.iter().copied().max().unwrap_or(0).max(now.nanoseconds());
        Instant::from_nanoseconds(written + nanoseconds(self.profile.flush))
    }

    /// Returns the time at which these bytes have passed the link.
    fn pass(&mut self, now: u64, bytes: u64, bandwidth: u64) -> u64 {
        self.link_free = self.link_free.max(now) + time_of(bytes, bandwidth);
        self.link_free
    }

    /// Adds bytes to the write buffer. Returns the time at which they fit.
    fn buffer(&mut self, now: u64, bytes: u64) -> u64 {
        let Some(buffer) = &self.profile.write_buffer else { return now };
        let holds = time_of(buffer.size, buffer.drain);
        self.buffer_empty = self.buffer_empty.max(now) + time_of(bytes, buffer.drain);
        now.max(self.buffer_empty.saturating_sub(holds))
    }

    /// Draws a latency with this mean: a constant plus an exponential part whose standard deviation is the
    /// spread. So few operations are much slower than the mean, and none much faster.
    fn latency(&mut self, mean: Duration) -> u64 {
        let mean = nanoseconds(mean) as f64;
        let rest = mean * self.profile.spread.min(1.0);
        let drawn =
            -(1.0 - self.random.next_u64() as f64 / (u64::MAX as f64 + 1.0)).max(f64::MIN_POSITIVE).ln();
        (mean - rest + rest * drawn) as u64
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

/// Nanoseconds that `bytes` take at `bandwidth` bytes per second.
pub(super) fn time_of(bytes: u64, bandwidth: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth)) as u64
}
