//! Limits of open and active zones.

use block::{Error, Result, ZoneState};
use std::sync::{Mutex, PoisonError};

/// Counts open and active zones against `max_open` and `max_active`. The lock is held for a few additions
/// when a zone changes its state; appends to an open zone don't take it.
#[derive(Debug)]
pub struct Limits {
    max_open: u32,
    max_active: u32,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    open: u32,
    active: u32,
}

fn counts_of(state: ZoneState) -> (u32, u32) {
    (state.is_open().into(), state.is_active().into())
}

impl Limits {
    /// Creates limits of open and active zones; 0 is no limit.
    pub fn new(max_open: u32, max_active: u32) -> Self {
        Limits { max_open, max_active, counts: Mutex::default() }
    }

    /// Counts a zone in state `from`, empty or closed, as open.
    ///
    /// # Errors
    /// [`Error::Busy`] names a limit that is reached.
    pub fn open_one(&self, from: ZoneState) -> Result<()> {
        let (_, active) = counts_of(from);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if self.max_open != 0 && counts.open >= self.max_open {
            return Err(Error::busy(format!(
                "{} zones are open, the limit max_open: close, finish or reset one",
                counts.open
            )));
        }
        if self.max_active != 0 && active == 0 && counts.active >= self.max_active {
            return Err(Error::busy(format!(
                "{} zones are active, the limit max_active: finish or reset one",
                counts.active
            )));
        }
        counts.open += 1;
        counts.active += 1 - active;
        Ok(())
    }

    /// Counts a change of a zone's state. Never refused: a zone that became interrupted by a failure, or was
    /// found interrupted, may exceed the limits.
    pub fn moved(&self, from: ZoneState, to: ZoneState) {
        let ((open_before, active_before), (open, active)) = (counts_of(from), counts_of(to));
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.open = counts.open + open - open_before;
        counts.active = counts.active + active - active_before;
    }
}
