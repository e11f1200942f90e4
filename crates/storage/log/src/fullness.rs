//! Warnings of a log that fills up, similar to dm-thin's low-water mark: one when the threshold is crossed,
//! one when a write is refused. Further warnings follow only after the use was below the threshold by a
//! margin.

use std::cell::Cell;

/// Percentage points by which the use must fall below the threshold before the next crossing warns again.
const MARGIN: u64 = 5;

/// State of a log's capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fullness {
    /// Less than the threshold is used.
    Ok,
    /// At least the threshold is used.
    Low,
    /// A write was refused.
    Full,
}

impl Fullness {
    /// Returns the word of the status.
    pub fn word(self) -> &'static str {
        match self {
            Fullness::Ok => "ok",
            Fullness::Low => "low",
            Fullness::Full => "full",
        }
    }
}

/// Decides when a warning is due.
#[derive(Debug)]
pub struct SpaceWarning {
    /// Threshold as a percentage of the capacity; with 100 only refused writes warn.
    threshold: u64,
    warned: Cell<Fullness>,
}

impl SpaceWarning {
    /// Creates a warning for this threshold, a percentage of the capacity.
    pub fn new(threshold: u64) -> Self {
        SpaceWarning { threshold, warned: Cell::new(Fullness::Ok) }
    }

    /// The threshold in percent.
    pub fn threshold(&self) -> u64 {
        self.threshold
    }

    /// State with this many of `capacity` blocks used.
    pub fn state(&self, used: u64, capacity: u64) -> Fullness {
        match () {
            () if self.warned.get() == Fullness::Full && !is_at(used, capacity, self.rearm()) => Fullness::Ok,
            () if self.warned.get() == Fullness::Full => Fullness::Full,
            () if self.threshold < 100 && is_at(used, capacity, self.threshold) => Fullness::Low,
            () => Fullness::Ok,
        }
    }

    fn rearm(&self) -> u64 {
        self.threshold.saturating_sub(MARGIN)
    }

    /// Notes the used blocks; `refused` is whether a write was refused. Returns the warning that is due, if
    /// any.
    pub fn note(&self, used: u64, capacity: u64, refused: bool) -> Option<Fullness> {
        if !refused && !is_at(used, capacity, self.rearm()) {
            self.warned.set(Fullness::Ok);
            return None;
        }
        let now = match () {
            () if refused => Fullness::Full,
            () if self.threshold < 100 && is_at(used, capacity, self.threshold) => Fullness::Low,
            () => return None,
        };
        (now > self.warned.replace(now.max(self.warned.get()))).then_some(now)
    }
}

fn is_at(used: u64, capacity: u64, percent: u64) -> bool {
    u128::from(used) * 100 >= u128::from(capacity) * u128::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crossing_warns_once() {
        use Fullness::{Full, Low, Ok};
        let warning = SpaceWarning::new(90);
        let note = |used, refused| (warning.note(used, 1000, refused), warning.state(used, 1000));
        assert_eq!(note(899, false), (None, Ok));
        assert_eq!(note(900, false), (Some(Low), Low));
        assert_eq!(note(950, false), (None, Low));
        // The use varies around the threshold.
        assert_eq!(note(880, false), (None, Ok));
        assert_eq!(note(905, false), (None, Low));
        assert_eq!(note(1000, true), (Some(Full), Full));
        assert_eq!(note(1000, true), (None, Full));
        assert_eq!(note(990, false), (None, Full));
        assert_eq!(note(849, false), (None, Ok));
        assert_eq!(note(901, false), (Some(Low), Low));
        let only_full = SpaceWarning::new(100);
        assert_eq!((only_full.note(999, 1000, false), only_full.state(1000, 1000)), (None, Ok));
        assert_eq!(only_full.note(1000, 1000, true), Some(Full));
    }
}
