//! When nobody reads what was forgotten any more.
//!
//! A read that has looked into the index counts itself in the present generation until it has its data. Whoever wants
//! to use places again begins a new generation and waits until the old one is empty: who comes later finds nothing there.

use runtime::sync::Notify;
use std::cell::Cell;

/// Reads of the cache device that are on their way.
#[derive(Debug, Default)]
pub struct Readers {
    generation: Cell<usize>,
    counts: [Cell<usize>; 2],
    ended: Notify,
}

/// A read on its way.
pub struct Reading<'a> {
    readers: &'a Readers,
    generation: usize,
}

impl Readers {
    /// A read begins: it has looked, or will look without waiting in between.
    pub fn begin(&self) -> Reading<'_> {
        let generation = self.generation.get();
        self.counts[generation].set(self.counts[generation].get() + 1);
        Reading { readers: self, generation }
    }

    /// Waits for all reads that have begun. One caller at a time.
    pub async fn grace(&self) {
        let old = self.generation.get();
        self.generation.set(1 - old);
        while self.counts[old].get() > 0 {
            self.ended.notified().await;
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let count = &self.readers.counts[self.generation];
        count.set(count.get() - 1);
        if count.get() == 0 && self.generation != self.readers.generation.get() {
            self.readers.ended.notify_all();
        }
    }
}
