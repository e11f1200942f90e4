//! Measured lifetimes of tables.

use crate::key_version::Timestamp;

/// Number of lifetimes that are kept per level.
const KEPT: usize = 64;
/// Minimum number of lifetimes for statistics.
const ENOUGH: usize = 8;
/// Maximum number of levels.
const LEVELS: usize = 16;

/// Lifetimes of the last replaced tables, by the level that they were written to.
///
/// The lifetime of a table is from its write to the job that replaces it. A trivial move doesn't end it: the
/// table's zone was chosen at its write.
#[derive(Debug, Clone, Default)]
pub struct Lifetimes {
    levels: Vec<Recent>,
}

/// The last [`KEPT`] lifetimes, in milliseconds; the oldest is replaced next.
#[derive(Debug, Clone, Default)]
struct Recent {
    lifetimes: Vec<u64>,
    next: usize,
}

impl Lifetimes {
    /// Notes the end of a table that was written to `level`; levels beyond the maximum are ignored.
    pub fn died(&mut self, level: usize, created: Timestamp, now: Timestamp) {
        if level >= LEVELS {
            return;
        }
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Recent::default);
        }
        let Recent { lifetimes, next } = &mut self.levels[level];
        let life = now.saturating_sub(created);
        if lifetimes.len() < KEPT {
            lifetimes.push(life);
        } else {
            lifetimes[*next] = life;
            *next = (*next + 1) % KEPT;
        }
    }

    /// Returns the mean lifetime of tables of a level in milliseconds; `None` if too few have ended.
    pub fn mean(&self, level: usize) -> Option<u64> {
        let lifetimes = self.lifetimes(level)?;
        let sum: u128 = lifetimes.iter().copied().map(u128::from).sum();
        u64::try_from(sum / lifetimes.len() as u128).ok()
    }

    /// Returns a percentile of the lifetimes of a level's tables in milliseconds, for a share from 0 to 1
    /// (nearest rank); `None` if too few have ended.
    pub fn percentile(&self, level: usize, share: f64) -> Option<u64> {
        let mut lifetimes = self.lifetimes(level)?.to_vec();
        lifetimes.sort_unstable();
        let rank = (share.clamp(0.0, 1.0) * lifetimes.len() as f64).ceil() as usize;
        Some(lifetimes[rank.clamp(1, lifetimes.len()) - 1])
    }

    fn lifetimes(&self, level: usize) -> Option<&[u64]> {
        let lifetimes = self.levels.get(level)?.lifetimes.as_slice();
        (lifetimes.len() >= ENOUGH).then_some(lifetimes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_need_enough_lifetimes_and_are_those_of_the_level() {
        let mut lifetimes = Lifetimes::default();
        for life in 1..ENOUGH as u64 {
            lifetimes.died(1, 1000, 1000 + life);
        }
        assert_eq!((lifetimes.mean(1), lifetimes.percentile(1, 0.75)), (None, None));
        lifetimes.died(1, 1000, 1000 + ENOUGH as u64);
        assert_eq!(lifetimes.mean(1), Some(4), "of 1 to 8: 4.5, rounded down");
        assert_eq!(lifetimes.percentile(1, 0.75), Some(6));
        assert_eq!((lifetimes.percentile(1, 0.0), lifetimes.percentile(1, 1.0)), (Some(1), Some(8)));
        assert_eq!((lifetimes.mean(0), lifetimes.mean(2), lifetimes.mean(99)), (None, None, None));
    }

    #[test]
    fn only_the_last_lifetimes_count() {
        let mut lifetimes = Lifetimes::default();
        for life in 0..1000 + KEPT as u64 {
            lifetimes.died(3, 0, life);
        }
        assert_eq!(lifetimes.percentile(3, 0.0), Some(1000));
        assert_eq!(lifetimes.mean(3), Some(1000 + (KEPT as u64 - 1) / 2));
        lifetimes.died(3, 50, 10);
        assert_eq!(lifetimes.percentile(3, 0.0), Some(0), "a clock that went back is a lifetime of 0");
        lifetimes.died(usize::MAX, 0, 1);
        assert_eq!(lifetimes.levels.len(), 4, "levels are bounded");
    }
}
