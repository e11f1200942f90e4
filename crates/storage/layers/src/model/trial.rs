//! Performance of a profile under a load with constant queue depth, computed from the profile alone, without
//! a device, a clock or a task.

use super::disk::{DiskServer, Wait};
use super::profile::Profile;
use super::solid::SolidServer;
use runtime::{Instant, Random};
use std::time::Duration;

/// A load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Whether the operations are writes rather than reads.
    pub is_write: bool,
    /// Share of the device, from its beginning, in which random offsets are drawn; `None`: sequential.
    pub span: Option<f64>,
    /// Bytes of an operation.
    pub bytes: u64,
    /// Number of operations in flight.
    pub depth: usize,
}

/// Result of a trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Operations per second.
    pub iops: f64,
    /// Median latency.
    pub median: Duration,
}

/// Offsets of a trial's operations.
struct Offsets {
    load: Load,
    random: Random,
    count: u64,
    next: u64,
}

impl Offsets {
    fn next(&mut self) -> u64 {
        let index = match self.load.span {
            Some(_) => self.random.below(self.count),
            None => {
                self.next = (self.next + 1) % self.count;
                self.next
            }
        };
        index * self.load.bytes
    }
}

/// Carries out a load of `operations` operations on a device of `capacity` bytes; the first fifth isn't
/// counted.
pub fn trial(profile: &Profile, capacity: u64, load: Load, operations: usize) -> Outcome {
    let reached = (capacity as f64 * load.span.unwrap_or(1.0)) as u64;
    let count = (reached / load.bytes.max(1)).max(1);
    let offsets = Offsets { load, random: Random::new(1), count, next: 0 };
    let depth = load.depth.max(1);
    // Begin and end of each operation, in the order of their ends.
    let mut done: Vec<(u64, u64)> = match profile {
        Profile::SolidState(profile) => {
            solid(SolidServer::new(profile.clone(), 1), offsets, depth, operations)
        }
        Profile::Disk(profile) => {
            disk(DiskServer::new(profile.clone(), capacity), offsets, depth, operations)
        }
    };
    done.drain(..done.len() / 5);
    let (begin, end) = (done.first().map_or(0, |it| it.1), done.last().map_or(0, |it| it.1));
    let mut latencies: Vec<u64> = done.iter().map(|(from, to)| to - from).collect();
    latencies.sort_unstable();
    Outcome {
        iops: (done.len().saturating_sub(1)) as f64 * 1e9 / (end - begin).max(1) as f64,
        median: Duration::from_nanos(latencies.get(latencies.len() / 2).copied().unwrap_or(0)),
    }
}

fn solid(mut server: SolidServer, offsets: Offsets, depth: usize, operations: usize) -> Vec<(u64, u64)> {
    let load = offsets.load;
    let mut begin = |now: u64| {
        let now = Instant::from_nanoseconds(now);
        match load.is_write {
            true => server.write(now, load.bytes),
            false => server.read(now, load.bytes),
        }
    };
    // (end, begin) of the operations in flight.
    let mut in_flight: Vec<(u64, u64)> = (0..depth).map(|_| (begin(0).nanoseconds(), 0)).collect();
    let mut done = Vec::with_capacity(operations);
    while done.len() < operations {
        let Some(first) = in_flight.iter_mut().min() else { break };
        let (end, from) = *first;
        done.push((from, end));
        *first = (begin(end).nanoseconds(), end);
    }
    done
}

fn disk(mut server: DiskServer, mut offsets: Offsets, depth: usize, operations: usize) -> Vec<(u64, u64)> {
    let load = offsets.load;
    let mut arrive = |server: &mut DiskServer, now: u64| {
        (server.arrive(Instant::from_nanoseconds(now), offsets.next(), load.bytes, load.is_write), now)
    };
    let mut in_flight: Vec<_> = (0..depth).map(|_| arrive(&mut server, 0)).collect();
    let mut done = Vec::with_capacity(operations);
    let mut now = 0;
    while done.len() < operations {
        let mut next = u64::MAX;
        for one in &mut in_flight {
            match server.wait(Instant::from_nanoseconds(now), one.0) {
                Wait::LookAgain(at) => next = next.min(at.nanoseconds()),
                Wait::Until(at) => {
                    // The next operation is submitted when this one has completed.
                    done.push((one.1, at.nanoseconds()));
                    *one = arrive(&mut server, at.nanoseconds().max(now));
                    next = next.min(at.nanoseconds());
                }
            }
        }
        now = now.max(next);
    }
    done
}
