//! Log lines of failures that repeat: one line when they begin and one when they have ended, with their number.

use std::cell::Cell;
use std::fmt::Display;

/// Failures of one kind in a row. Belongs to one shard.
#[derive(Debug, Default)]
pub struct FailureRun(Cell<u64>);

impl FailureRun {
    /// Notes a failure, and logs it as a warning if it is the first in a row.
    pub fn failed(&self, what: impl Display) {
        if self.0.replace(self.0.get() + 1) == 0 {
            tracing::warn!("{what}; further failures are counted");
        }
    }

    /// Notes a success, and logs the number of failures before it if there were any.
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
