//! Copies from leg to leg: those in flight, and whether a flush has covered all.

use std::cell::Cell;

/// Copies from leg to leg.
#[derive(Debug, Default)]
pub struct Copies {
    in_flight: Cell<u64>,
    unflushed: Cell<bool>,
}

impl Copies {
    /// Begins a copy.
    pub fn begin(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// Ends a copy. Returns whether it was the last one in flight.
    pub fn end(&self) -> bool {
        self.in_flight.set(self.in_flight.get() - 1);
        !self.are_in_flight()
    }

    /// Whether a copy is in flight.
    pub fn are_in_flight(&self) -> bool {
        self.in_flight.get() > 0
    }

    /// Notes a copy that no flush covers.
    pub fn note_unflushed(&self) {
        self.unflushed.set(true);
    }

    /// Returns whether a copy isn't covered by a flush yet; the caller flushes, or notes it again.
    pub fn take_unflushed(&self) -> bool {
        self.unflushed.take()
    }
}
