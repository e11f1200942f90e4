//! Log lines of repeated failures: one line at the first failure, and one with their number after the last.

use std::cell::Cell;
use std::fmt::Display;

/// Consecutive failures of one kind, on one shard.
#[derive(Debug, Default)]
pub struct FailureRun(Cell<u64>);

impl FailureRun {
    /// Counts a failure, and logs it as a warning if it is the first in a row.
    pub fn failed(&self, what: impl Display) {
        if self.0.replace(self.0.get() + 1) == 0 {
            tracing::warn!("{what}; further failures are counted");
        }
    }

    /// Counts a success, and logs the number of failures before it if there were any.
    pub fn ended(&self, what: impl Display) {
        match self.0.replace(0) {
            0 => {}
            count => tracing::warn!("{what} succeeds again, after {count} failures"),
        }
    }

    /// Number of failures since the last success.
    pub fn count(&self) -> u64 {
        self.0.get()
    }
}
