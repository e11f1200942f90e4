//! The background tasks of a cache, the evictor and the cleaner: when they wake, and their end.

use runtime::TaskGroup;
use runtime::sync::Notify;
use std::cell::Cell;

/// Signals of the evictor and the cleaner.
#[derive(Debug)]
pub(crate) struct Upkeep {
    due: Notify,
    ends: Cell<bool>,
    wants_clean: Cell<bool>,
    tasks: TaskGroup,
}

impl Upkeep {
    pub fn new() -> Self {
        Upkeep {
            due: Notify::new(),
            ends: Cell::new(false),
            wants_clean: Cell::new(false),
            tasks: TaskGroup::default(),
        }
    }

    /// Wakes both tasks.
    #[inline]
    pub fn wake(&self) {
        self.due.notify_all();
    }

    /// Waits until there may be work, or the tasks are to end.
    pub fn woken(&self) -> impl Future<Output = ()> + '_ {
        self.due.notified()
    }

    /// Whether the tasks are to end.
    pub fn is_ending(&self) -> bool {
        self.ends.get()
    }

    /// Waits until the tasks are to end.
    pub async fn ending(&self) {
        while !self.is_ending() {
            self.woken().await;
        }
    }

    /// Whether the evictor lacks clean slots.
    pub fn wants_clean(&self) -> bool {
        self.wants_clean.get()
    }

    /// Sets whether the evictor lacks clean slots.
    pub fn set_wants_clean(&self, wants: bool) {
        self.wants_clean.set(wants);
    }

    /// Starts one of the tasks.
    pub fn start(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.spawn(task).detach();
    }

    /// Ends the tasks, and waits for them.
    pub async fn stop(&self) {
        self.ends.set(true);
        self.wake();
        self.tasks.ended().await;
    }
}
