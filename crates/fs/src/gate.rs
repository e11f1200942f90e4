//! Gate of a core: while it is shut, no operation begins, and no operation on several cores is in progress.
//!
//! A snapshot that shows an operation also shows all operations that had ended before it began. So the gates of all cores are shut before the first
//! core clones its trees, until the last one has.

use runtime::sync::Notify;
use std::cell::Cell;

/// The gate of a core.
#[derive(Debug, Default)]
pub struct Gate {
    is_shut: Cell<bool>,
    /// Number of operations on several cores in progress.
    inside: Cell<u64>,
    changed: Notify,
}

/// An operation on several cores in progress, until this is dropped.
#[derive(Debug)]
pub struct Inside<'a>(&'a Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.set(self.0.inside.get() - 1);
        self.0.changed.notify_all();
    }
}

impl Gate {
    /// Waits until the gate is open.
    #[inline]
    pub async fn pass(&self) {
        while self.is_shut.get() {
            self.changed.notified().await;
        }
    }

    /// Waits until the gate is open, and counts an operation on several cores as in progress.
    pub async fn enter(&self) -> Inside<'_> {
        self.pass().await;
        self.inside.set(self.inside.get() + 1);
        Inside(self)
    }

    /// Shuts the gate, and waits until the operations on several cores that have entered it have ended.
    pub async fn shut(&self) {
        self.is_shut.set(true);
        while self.inside.get() > 0 {
            self.changed.notified().await;
        }
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.is_shut.set(false);
        self.changed.notify_all();
    }
}
