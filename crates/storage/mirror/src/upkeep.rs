//! The background tasks of a mirror: when they wake, the scrub in progress, and their end.

use block::{Error, Result};
use runtime::JoinHandle;
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// A comparison of all legs that an operator started.
#[derive(Debug, Clone)]
pub struct Scrub {
    /// Whether differing data is overwritten with the source's.
    pub repairs: bool,
    /// The next block.
    pub at: u64,
}

impl Scrub {
    /// Returns md's name of the scrub.
    pub fn word(&self) -> &'static str {
        if self.repairs { "repair" } else { "check" }
    }
}

/// Signals of the background tasks.
pub struct Upkeep {
    work: Notify,
    scrub: RefCell<Option<Scrub>>,
    is_closing: Cell<bool>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

impl Upkeep {
    /// Creates the signals, without tasks.
    pub fn new() -> Self {
        Upkeep {
            work: Notify::new(),
            scrub: RefCell::default(),
            is_closing: Cell::new(false),
            tasks: RefCell::default(),
        }
    }

    /// Wakes the tasks.
    pub fn wake(&self) {
        self.work.notify_all();
    }

    /// Waits until there may be work.
    pub async fn woken(&self) {
        self.work.notified().await;
    }

    /// Sleeps for `time`, or until there is work.
    pub async fn rest(&self, time: Duration) {
        // No await between this check and the wait, or a notification would be missed.
        if !self.is_closing.get() {
            let _ = runtime::timeout(time, self.work.notified()).await;
        }
    }

    /// Whether the tasks are to end.
    pub fn is_closing(&self) -> bool {
        self.is_closing.get()
    }

    /// Starts a task.
    pub fn start(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.borrow_mut().push(runtime::spawn(task));
    }

    /// Ends the tasks, and waits for their end.
    pub async fn stop(&self) {
        self.is_closing.set(true);
        self.wake();
        let tasks = self.tasks.take();
        runtime::join_all(tasks).await;
    }

    /// Scrub in progress.
    pub fn scrub(&self) -> Option<Scrub> {
        self.scrub.borrow().clone()
    }

    /// Begins a scrub.
    ///
    /// # Errors
    /// [`Error::Busy`] if one is running.
    pub fn begin_scrub(&self, repairs: bool) -> Result<()> {
        if let Some(scrub) = self.scrub() {
            return Err(Error::busy(format!(
                "a {} is in progress; end it with \"idle\" first",
                scrub.word()
            )));
        }
        self.scrub.replace(Some(Scrub { repairs, at: 0 }));
        self.wake();
        Ok(())
    }

    /// Continues the scrub at this block, if it hasn't been ended meanwhile.
    pub fn move_scrub(&self, at: u64) {
        if let Some(scrub) = &mut *self.scrub.borrow_mut() {
            scrub.at = at;
        }
    }

    /// Ends the scrub. Returns it.
    pub fn end_scrub(&self) -> Option<Scrub> {
        self.scrub.take()
    }
}
