//! Start times of operations: a fixed rate, where each operation has its own time; late operations start at
//! once.

use super::addresses::Direction;
use crate::job::Job;
use runtime::Instant;

/// Schedule of one clone.
pub struct Pace {
    /// Nanoseconds between two starts, per direction; 0 is as fast as possible.
    intervals: [f64; 3],
    started: [f64; 3],
    begin: Instant,
}

impl Pace {
    /// Creates a schedule that starts at `begin`.
    pub fn new(job: &Job, begin: Instant) -> Pace {
        let rate = &job.rate_iops;
        let interval =
            |rate: Option<u64>| rate.filter(|rate| *rate > 0).map_or(0.0, |rate| 1e9 / rate as f64);
        Pace { intervals: [rate.read, rate.write, rate.trim].map(interval), started: [0.0; 3], begin }
    }

    /// Start time of the next operation; `None` is at once. A delay of more than a second is dropped, so that
    /// a stalled device isn't hit with all missed operations.
    #[inline]
    pub fn next(&mut self, direction: Direction, now: impl FnOnce() -> Instant) -> Option<Instant> {
        const MAX_LATE: f64 = 1e9;
        let interval = self.intervals[direction as usize];
        if interval == 0.0 {
            return None;
        }
        let started = &mut self.started[direction as usize];
        let late = now().nanoseconds() as f64 - (self.begin.nanoseconds() as f64 + *started * interval);
        if late > MAX_LATE {
            *started += ((late - MAX_LATE) / interval).ceil();
        }
        let due = Instant::from_nanoseconds(self.begin.nanoseconds() + (*started * interval) as u64);
        *started += 1.0;
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_evenly_spaced_and_a_standstill_is_forgotten() {
        let mut job = Job::new("x");
        job.rate_iops.read = Some(1000);
        let mut pace = Pace::new(&job, Instant::from_nanoseconds(5));
        let at = |pace: &mut Pace, now: u64| {
            let due = pace.next(Direction::Read, || Instant::from_nanoseconds(now));
            due.expect("there is a rate").nanoseconds()
        };
        assert_eq!([at(&mut pace, 5), at(&mut pace, 5), at(&mut pace, 5)], [5, 1_000_005, 2_000_005]);
        let much_later = at(&mut pace, 10_000_000_005);
        assert!((8_999_000_000..=9_001_000_005).contains(&much_later), "{much_later}");
        assert!(pace.next(Direction::Write, || Instant::from_nanoseconds(0)).is_none());
    }
}
