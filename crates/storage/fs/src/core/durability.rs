//! Durability of operations: their numbers, the requests that wait for them, and how far they are written and
//! flushed.

use crate::core::entry::{EntrySource, FsEntry};
use crate::core::tickets::Tickets;
use crate::metadata::change::Changes;
use block::{Payload, Result};
use logkit::{Appender, Kit};
use runtime::Requests;
use std::cell::{Cell, RefCell};

/// Operations of a shard, from their submission until they are durable.
pub(crate) struct Durability {
    appender: Appender<FsEntry>,
    requests: Requests,
    /// The only class of zones for users' records: records are written in the order of their numbers.
    class: u8,
    tickets: RefCell<Tickets>,
    /// Number of changes that took effect on submission and whose records haven't committed.
    shown: Cell<u64>,
    /// Number of the operation up to which all operations are durable.
    durable: Cell<u64>,
}

impl Durability {
    /// Returns the state without operations; `class` is the class of zones for users' records.
    pub fn new(appender: Appender<FsEntry>, class: u8) -> Self {
        Durability {
            appender,
            requests: Requests::default(),
            class,
            tickets: RefCell::default(),
            shown: Cell::new(0),
            durable: Cell::new(0),
        }
    }

    /// Queue of log entries for records.
    #[inline]
    pub fn appender(&self) -> &Appender<FsEntry> {
        &self.appender
    }

    /// Requests in progress.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Class of zones for users' records.
    pub fn class(&self) -> u8 {
        self.class
    }

    /// Returns a log entry with the number of a new operation. Changes that took effect on submission are
    /// counted until its record commits.
    pub fn number(&self, changes: Changes, data: Payload, source: EntrySource) -> FsEntry {
        if let EntrySource::Submitted { count, .. } = &source {
            self.shown.set(self.shown.get() + u64::from(*count));
        }
        let ticket = self.tickets.borrow_mut().issue();
        FsEntry { changes, data, source, ticket }
    }

    /// Number of the last operation.
    pub fn issued(&self) -> u64 {
        self.tickets.borrow().issued()
    }

    /// Number of the operation up to which all operations have ended.
    pub fn done(&self) -> u64 {
        self.tickets.borrow().done()
    }

    /// Number of changes that a checkpoint would include now and whose records would follow it.
    pub fn shown(&self) -> u64 {
        self.shown.get()
    }

    /// Whether the operations up to this one are durable.
    pub fn is_durable(&self, ticket: u64) -> bool {
        self.durable.get() >= ticket
    }

    /// Notes that the operations up to this one are durable.
    pub fn note_durable(&self, ticket: u64) {
        self.durable.set(self.durable.get().max(ticket));
    }

    /// Ends a log entry that has taken effect, or failed, and completes its request.
    pub fn end(&self, entry: &FsEntry, outcome: &Result<()>) {
        match &entry.source {
            EntrySource::Submitted { count, .. } => self.shown.set(self.shown.get() - u64::from(*count)),
            EntrySource::Write { request, .. } | EntrySource::Joint { request, .. } => {
                self.requests.item_ended(*request, outcome);
            }
            EntrySource::Shared | EntrySource::Move | EntrySource::Answered { .. } => {}
        }
        self.tickets.borrow_mut().end(entry.ticket);
    }

    /// Waits until the operations up to this one have ended, or `go_on` returns an error. Returns the number
    /// of the last operation that has ended.
    ///
    /// # Errors
    /// The failure of the log; errors of `go_on`.
    pub async fn wait_until_done(
        &self,
        kit: &Kit,
        ticket: u64,
        go_on: impl Fn() -> Result<()>,
    ) -> Result<u64> {
        loop {
            let committed = kit.events.committed.notified();
            if let Some(error) = kit.failure() {
                return Err(error);
            }
            let done = self.done();
            if done >= ticket {
                return Ok(done);
            }
            go_on()?;
            committed.await;
        }
    }
}
