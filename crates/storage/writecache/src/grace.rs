//! Grace periods: space of the ring is reused once no operation that found it is in flight, as in RCU.
//!
//! An operation enters the present generation before it looks into the index, and leaves when it has its
//! data. A grace period begins a new generation and waits until the old one is empty: later operations find
//! nothing there.

use runtime::sync::Notify;
use std::cell::Cell;

/// Operations in flight, by generation.
#[derive(Debug, Default)]
pub struct GracePeriods {
    generation: Cell<usize>,
    counts: [Cell<usize>; 2],
    left: Notify,
}

/// An operation in flight, until it is dropped.
pub struct InFlight<'a> {
    periods: &'a GracePeriods,
    generation: usize,
}

impl GracePeriods {
    /// Enters the present generation. The operation looks into the index afterwards, without waiting in
    /// between.
    pub fn enter(&self) -> InFlight<'_> {
        let generation = self.generation.get();
        self.counts[generation].set(self.counts[generation].get() + 1);
        InFlight { periods: self, generation }
    }

    /// Waits for all operations that have entered. One caller at a time.
    pub async fn wait(&self) {
        let old = self.generation.get();
        self.generation.set(1 - old);
        while self.counts[old].get() > 0 {
            self.left.notified().await;
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let count = &self.periods.counts[self.generation];
        count.set(count.get() - 1);
        if count.get() == 0 && self.generation != self.periods.generation.get() {
            self.periods.left.notify_all();
        }
    }
}
