//! Gate of a shard: while it is shut, no operation begins, and operations on several shards aren't in
//! progress.
//!
//! A snapshot that includes an operation also includes all operations that ended before that one began. So
//! the gates of all shards are shut before the first shard clones its trees, and opened after the last one
//! has.

use block::Result;
use runtime::sync::Notify;
use std::cell::Cell;

/// Gate of a shard.
#[derive(Debug, Default)]
pub struct Gate {
    is_shut: Cell<bool>,
    /// Number of operations on several shards in progress.
    inside: Cell<u64>,
    changed: Notify,
}

/// An operation on several shards in progress; dropping it ends the operation.
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

    /// Waits until the gate is open, and counts an operation on several shards as in progress.
    pub async fn enter(&self) -> Inside<'_> {
        self.pass().await;
        self.inside.set(self.inside.get() + 1);
        Inside(self)
    }

    /// Shuts the gate, and waits until the operations on several shards that have entered it have ended.
    /// `may_wait` is called again after each [`look_again`](Self::look_again), because an operation inside
    /// may wait for space that only operations outside of the gate can free.
    ///
    /// # Errors
    /// Errors of `may_wait`; the gate stays shut.
    pub async fn shut(&self, may_wait: impl Fn() -> Result<()>) -> Result<()> {
        self.is_shut.set(true);
        while self.inside.get() > 0 {
            may_wait()?;
            self.changed.notified().await;
        }
        Ok(())
    }

    /// Lets [`shut`](Self::shut) call `may_wait` again.
    pub fn look_again(&self) {
        self.changed.notify_all();
    }

    /// Opens the gate.
    pub fn open(&self) {
        self.is_shut.set(false);
        self.changed.notify_all();
    }
}
