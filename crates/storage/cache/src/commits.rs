//! Requests to commit changes of the table, and the failure after which nothing is committed any more.
//!
//! A request gets a ticket. The committer takes all tickets that were drawn, commits, and notes them as done:
//! so requests that come meanwhile are part of the next commit.

use block::{Error, Result};
use runtime::TaskGroup;
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};

/// Changes that a commit covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Marks, evictions, and the slots of the cleaner's next batch.
    Marks,
    /// All changes that a flush has to make durable, after the cache's data.
    All,
}

/// Number of the last commit that was requested, and of the last one that is done.
#[derive(Debug, Default)]
struct Tickets {
    asked: Cell<u64>,
    done: Cell<u64>,
}

impl Tickets {
    fn is_open(&self) -> bool {
        self.asked.get() > self.done.get()
    }
}

/// Tickets that a commit covers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    marks: u64,
    all: u64,
    /// Whether it covers [`Level::All`].
    pub wants_all: bool,
}

/// Commits of the table.
#[derive(Debug)]
pub(crate) struct Commits {
    marks: Tickets,
    all: Tickets,
    /// Number of slots whose discarded parts are still dirty in the table, because the origin hasn't been
    /// flushed since.
    undurable_discards: Cell<usize>,
    is_committing: Cell<bool>,
    /// Error that made the table read-only.
    failure: RefCell<Option<Error>>,
    /// Whether the table recorded, or may have recorded, a dirty part when it failed.
    had_dirty_parts: Cell<bool>,
    work: Notify,
    ends: Cell<bool>,
    committer: TaskGroup,
}

impl Commits {
    /// Creates the account, without requests.
    pub fn new() -> Self {
        Commits {
            marks: Tickets::default(),
            all: Tickets::default(),
            undurable_discards: Cell::new(0),
            is_committing: Cell::new(false),
            failure: RefCell::default(),
            had_dirty_parts: Cell::new(false),
            work: Notify::new(),
            ends: Cell::new(false),
            committer: TaskGroup::default(),
        }
    }

    fn tickets(&self, level: Level) -> &Tickets {
        match level {
            Level::Marks => &self.marks,
            Level::All => &self.all,
        }
    }

    /// Requests a commit, and wakes the committer. Returns the ticket.
    pub fn request(&self, level: Level) -> u64 {
        let asked = &self.tickets(level).asked;
        asked.set(asked.get() + 1);
        self.work.notify_all();
        asked.get()
    }

    /// Whether a commit is done. The caller waits for a change of the cache otherwise.
    ///
    /// # Errors
    /// The failure of the table.
    pub fn is_done(&self, level: Level, ticket: u64) -> Result<bool> {
        self.check()?;
        Ok(self.tickets(level).done.get() >= ticket)
    }

    /// Waits until a commit is requested. Returns false if the committer is to end instead.
    pub async fn requested(&self) -> bool {
        while !self.marks.is_open() && !self.all.is_open() {
            if self.ends.get() {
                return false;
            }
            self.work.notified().await;
        }
        true
    }

    /// Begins a commit of all requests so far.
    pub fn begin(&self) -> Round {
        self.is_committing.set(true);
        Round { marks: self.marks.asked.get(), all: self.all.asked.get(), wants_all: self.all.is_open() }
    }

    /// Notes the end of a commit.
    pub fn end(&self, round: Round) {
        self.is_committing.set(false);
        self.marks.done.set(round.marks);
        if round.wants_all {
            self.all.done.set(round.all);
        }
    }

    /// Whether a commit is in progress.
    pub fn is_committing(&self) -> bool {
        self.is_committing.get()
    }

    /// Whether all discards that a commit has seen are durable or recorded.
    pub fn has_undurable_discards(&self) -> bool {
        self.undurable_discards.get() > 0
    }

    /// Sets the number of slots whose discarded parts are still dirty in the table.
    pub fn set_undurable_discards(&self, slots: usize) {
        self.undurable_discards.set(slots);
    }

    /// Makes the table read-only. Nothing is committed after the first failure.
    pub fn fail(&self, error: Error) {
        *self.failure.borrow_mut() = Some(error);
    }

    /// Whether the table is read-only.
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Checks that the table can be changed.
    ///
    /// # Errors
    /// The failure of the table.
    pub fn check(&self) -> Result<()> {
        self.failure.borrow().clone().map_or(Ok(()), Err)
    }

    /// Notes that the table may have recorded a dirty part when it failed.
    pub fn note_dirty_parts(&self, had: bool) {
        self.had_dirty_parts.set(self.had_dirty_parts.get() || had);
    }

    /// Whether the table may have recorded a dirty part when it failed.
    pub fn had_dirty_parts(&self) -> bool {
        self.had_dirty_parts.get()
    }

    /// Starts the committer.
    pub fn start(&self, committer: impl Future<Output = ()> + 'static) {
        self.committer.spawn(committer).detach();
    }

    /// Ends the committer once no request is left, and waits for it.
    pub async fn stop(&self) {
        self.ends.set(true);
        self.work.notify_all();
        self.committer.ended().await;
    }
}
