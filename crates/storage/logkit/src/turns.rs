//! Mutual exclusion of moves and checkpoints, for owners that need it.

use runtime::sync::Notify;
use std::cell::Cell;

/// Excludes moves during a checkpoint.
#[derive(Debug, Default)]
pub struct Turns {
    is_checkpointing: Cell<bool>,
    is_moving: Cell<bool>,
    changed: Notify,
}

/// Guard of a record of moves in flight.
#[derive(Debug)]
pub(crate) struct Moving<'a>(&'a Turns);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.is_moving.set(false);
        self.0.changed.notify_all();
    }
}

impl Turns {
    /// Notes that a checkpoint begins to be written.
    pub fn begin_checkpoint(&self) {
        self.is_checkpointing.set(true);
    }

    /// Notes that a checkpoint has ended, with or without success.
    pub fn end_checkpoint(&self) {
        self.is_checkpointing.set(false);
        self.changed.notify_all();
    }

    /// Whether a checkpoint is being written.
    pub(crate) fn is_checkpointing(&self) -> bool {
        self.is_checkpointing.get()
    }

    /// Whether a record of moves is in flight.
    pub(crate) fn is_moving(&self) -> bool {
        self.is_moving.get()
    }

    /// Notes that a record of moves is in flight, until the guard is dropped.
    pub(crate) fn begin_moves(&self) -> Moving<'_> {
        self.is_moving.set(true);
        Moving(self)
    }

    /// Waits for the end of a checkpoint or of a record of moves.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
