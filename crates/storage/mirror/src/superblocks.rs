//! Contents of the superblocks that count: event counts, and whether the superblocks contain the state in
//! memory.

use runtime::sync::{Permit, Semaphore};
use std::cell::Cell;
use std::rc::Rc;

/// Event counts and pending changes of the superblocks.
pub struct Superblocks {
    events: Cell<u64>,
    cleared_events: Cell<u64>,
    raise_cleared: Cell<bool>,
    /// Number of changes of the contents in memory.
    changes: Cell<u64>,
    /// Number of these changes that are durable.
    written: Cell<u64>,
    writer: Rc<Semaphore>,
}

impl Superblocks {
    /// Continues from these counts, with a change that isn't written.
    pub fn new(events: u64, cleared_events: u64) -> Self {
        Superblocks {
            events: Cell::new(events),
            cleared_events: Cell::new(cleared_events),
            raise_cleared: Cell::new(false),
            changes: Cell::new(1),
            written: Cell::new(0),
            writer: Semaphore::new(1),
        }
    }

    /// [`Superblock::events`](crate::format::Superblock::events).
    pub fn events(&self) -> u64 {
        self.events.get()
    }

    /// [`Superblock::cleared_events`](crate::format::Superblock::cleared_events).
    pub fn cleared_events(&self) -> u64 {
        self.cleared_events.get()
    }

    /// Whether the superblocks durably contain the current state.
    #[inline]
    pub fn are_current(&self) -> bool {
        self.written.get() == self.changes.get()
    }

    /// Notes a change of the contents in memory.
    pub fn change(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// Number of changes in memory: pass it to [`note_written`](Self::note_written) after a write.
    pub fn changes(&self) -> u64 {
        self.changes.get()
    }

    /// Notes that this many changes are durable, unless there are more by now.
    pub fn note_written(&self, changes: u64) {
        if self.changes.get() == changes {
            self.written.set(changes);
        }
    }

    /// Waits for the right to write the superblocks.
    pub async fn writer(&self) -> Permit {
        self.writer.acquire(1).await
    }

    /// Begins an update: raises the event count, and with it `cleared_events` if that was requested and the
    /// mirror is whole.
    pub fn raise(&self, is_whole: bool) {
        if self.raise_cleared.replace(false) && is_whole {
            self.cleared_events.set(self.events());
        }
        self.events.set(self.events() + 1);
    }

    /// Requests that the next update raises `cleared_events`.
    pub fn request_cleared(&self) {
        self.raise_cleared.set(true);
        self.change();
    }

    /// Whether the last update allows clearing bits.
    pub fn allow_clearing(&self) -> bool {
        self.cleared_events() + 1 == self.events()
    }
}
