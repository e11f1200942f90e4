//! What a profile comes to under a load that keeps so many operations in flight: computed from the profile alone, without a
//! device, a clock or a task.

use super::disk::{DiskServer, Wait};
use super::profile::Profile;
use super::solid::SolidServer;
use runtime::{Instant, Random};
use std::time::Duration;

/// A load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Writes, or reads.
    pub is_write: bool,
    /// In which share of the device, from its beginning, places are drawn; none: in order.
    pub span: Option<f64>,
    /// Bytes of an operation.
    pub bytes: u64,
    /// How many are in flight at a time.
    pub depth: usize,
}

/// What it came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Operations a second.
    pub iops: f64,
    /// The latency in the middle.
    pub median: Duration,
}

/// Where a trial's operations go.
struct Places {
    load: Load,
    random: Random,
    count: u64,
    next: u64,
}

impl Places {
    fn next(&mut self) -> u64 {
        let place = match self.load.span {
            Some(_) => self.random.below(self.count),
            None => {
                self.next = (self.next + 1) % self.count;
                self.next
            }
        };
        place * self.load.bytes
    }
}

/// Carries a load out on a device of so many bytes, for so many operations, of which the first fifth isn't counted.
pub fn trial(profile: &Profile, capacity: u64, load: Load, operations: usize) -> Outcome {
    let reached = (capacity as f64 * load.span.unwrap_or(1.0)) as u64;
    let count = (reached / load.bytes.max(1)).max(1);
    let places = Places { load, random: Random::new(1), count, next: 0 };
    let depth = load.depth.max(1);
    // From when to when each lasted, in the order in which they ended.
    let mut done: Vec<(u64, u64)> = match profile {
        Profile::SolidState(profile) => {
            solid(SolidServer::new(profile.clone(), 1), places, depth, operations)
        }
        Profile::Disk(profile) => disk(DiskServer::new(profile.clone(), capacity), places, depth, operations),
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

fn solid(mut server: SolidServer, places: Places, depth: usize, operations: usize) -> Vec<(u64, u64)> {
    let load = places.load;
    let mut begin = |now: u64| {
        let now = Instant::from_nanoseconds(now);
        match load.is_write {
            true => server.write(now, load.bytes),
            false => server.read(now, load.bytes),
        }
    };
    // (end, begin) of what is in flight.
    let mut flying: Vec<(u64, u64)> = (0..depth).map(|_| (begin(0).nanoseconds(), 0)).collect();
    let mut done = Vec::with_capacity(operations);
    while done.len() < operations {
        let Some(first) = flying.iter_mut().min() else { break };
        let (end, from) = *first;
        done.push((from, end));
        *first = (begin(end).nanoseconds(), end);
    }
    done
}

fn disk(mut server: DiskServer, mut places: Places, depth: usize, operations: usize) -> Vec<(u64, u64)> {
    let load = places.load;
    let mut arrive = |server: &mut DiskServer, now: u64| {
        (server.arrive(Instant::from_nanoseconds(now), places.next(), load.bytes, load.is_write), now)
    };
    let mut flying: Vec<_> = (0..depth).map(|_| arrive(&mut server, 0)).collect();
    let mut done = Vec::with_capacity(operations);
    let mut now = 0;
    while done.len() < operations {
        let mut next = u64::MAX;
        for one in &mut flying {
            match server.wait(Instant::from_nanoseconds(now), one.0) {
                Wait::LookAgain(at) => next = next.min(at.nanoseconds()),
                Wait::Until(at) => {
                    // The next one is sent when this one has been answered.
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
