//! Flushes of the cache device without a client's flush (`autocommit_blocks`, `autocommit_time`). They bound
//! the loss of a power cut.

use runtime::sync::Notify;
use std::cell::Cell;
use std::time::Duration;

/// Blocks written to the cache device since its last flush, and their limits.
#[derive(Debug)]
pub struct Autocommit {
    /// Unflushed blocks at which a flush is due.
    limit: u64,
    /// Longest time between two flushes while there are unflushed blocks.
    interval: Duration,
    unflushed: Cell<u64>,
    due: Notify,
}

impl Autocommit {
    /// Creates the account, with nothing unflushed.
    pub fn new(limit: u64, interval: Duration) -> Self {
        Autocommit { limit, interval, unflushed: Cell::new(0), due: Notify::new() }
    }

    /// Adds blocks that were written.
    pub fn add(&self, blocks: u64) {
        self.unflushed.set(self.unflushed.get() + blocks);
    }

    /// Notes that a flush has begun.
    pub fn begin_flush(&self) {
        self.unflushed.set(0);
    }

    /// Wakes the committer if a flush is due.
    #[inline]
    pub fn wake_if_due(&self) {
        if self.unflushed.get() >= self.limit {
            self.due.notify_all();
        }
    }

    /// Wakes the committer.
    pub fn wake(&self) {
        self.due.notify_all();
    }

    /// Waits until a flush is due by number or time. Returns whether there is anything to flush.
    pub async fn wait(&self) -> bool {
        let _ = runtime::timeout(self.interval, self.due.notified()).await;
        self.unflushed.get() > 0
    }
}
