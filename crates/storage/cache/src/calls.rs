//! Requests of clients and operators: what they wait for, what a close waits for, and the data that they have
//! in flight between the two devices.

use block::{Error, Result};
use runtime::TaskGroup;
use runtime::range_lock::RangeLock;
use runtime::sync::Notify;
use std::cell::Cell;

/// Requests in flight.
#[derive(Debug)]
pub(crate) struct Calls {
    /// All changes, and the reads of other shards. A close doesn't wait for reads through a handle of the
    /// home shard.
    group: TaskGroup,
    /// Byte ranges of the origin with a write, discard or zeroing in flight, on either device.
    ranges: RangeLock,
    changed: Notify,
    /// Number of clients' requests, by which the cleaner detects idleness.
    count: Cell<u64>,
    /// Bytes of promotions in flight between the two devices.
    migrating: Cell<u64>,
    is_closed: Cell<bool>,
}

impl Calls {
    pub fn new() -> Self {
        Calls {
            group: TaskGroup::default(),
            ranges: RangeLock::default(),
            changed: Notify::new(),
            count: Cell::new(0),
            migrating: Cell::new(0),
            is_closed: Cell::new(false),
        }
    }

    /// Requests that a close waits for.
    pub fn group(&self) -> &TaskGroup {
        &self.group
    }

    /// Byte ranges of the origin with a change in flight.
    pub fn ranges(&self) -> &RangeLock {
        &self.ranges
    }

    /// Counts a request of a client.
    ///
    /// # Errors
    /// [`Error::Closed`] after the close.
    #[inline]
    pub fn begin(&self) -> Result<()> {
        self.count.set(self.count.get() + 1);
        self.check_open()
    }

    /// Number of requests of clients so far.
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// Refuses requests after the close.
    ///
    /// # Errors
    /// [`Error::Closed`] after the close.
    pub fn check_open(&self) -> Result<()> {
        match self.is_closed.get() {
            false => Ok(()),
            true => Err(Error::closed("cache: it is closed; open it again")),
        }
    }

    /// Wakes requests that wait for a slot or a commit.
    #[inline]
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    /// Waits until a slot or a commit has changed, or the cache is closed.
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.changed.notified()
    }

    /// Whether this many bytes more may be in flight between the devices. One request is always allowed.
    pub fn may_migrate(&self, bytes: u64, limit: u64) -> bool {
        let moving = self.migrating.get();
        moving == 0 || moving + bytes <= limit
    }

    /// Adds bytes to those in flight between the devices.
    pub fn begin_migration(&self, bytes: u64) {
        self.migrating.set(self.migrating.get() + bytes);
    }

    /// Removes bytes from those in flight.
    pub fn end_migration(&self, bytes: u64) {
        self.migrating.set(self.migrating.get() - bytes);
    }

    /// Refuses further requests, and waits for those in flight, also for those whose future was dropped.
    pub async fn close(&self) {
        self.is_closed.set(true);
        self.wake();
        self.group.ended().await;
    }
}
