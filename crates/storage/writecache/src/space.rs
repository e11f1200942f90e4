//! Waiting for free space in the ring.
//!
//! A waiter checks its condition again after each wake-up: waiters are woken when space is freed, and when an
//! error keeps space from being freed.

use runtime::sync::Notify;
use std::cell::Cell;
use std::time::Duration;

/// Tasks that wait for free space.
#[derive(Debug, Default)]
pub struct SpaceWaiters {
    /// Waiting lanes: write-back is urgent as long as there is one.
    lanes: Cell<usize>,
    changed: Notify,
}

impl SpaceWaiters {
    /// Whether a record waits for space.
    pub fn has_lanes(&self) -> bool {
        self.lanes.get() > 0
    }

    /// Counts a lane as waiting, until the guard is dropped.
    pub fn enter_lane(&self) -> WaitingLane<'_> {
        self.lanes.set(self.lanes.get() + 1);
        WaitingLane(self)
    }

    /// Waits until space is freed or can't be. Notifications count from this call, before the first poll.
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.changed.notified()
    }

    /// Wakes all waiters.
    pub fn notify(&self) {
        self.changed.notify_all();
    }
}

/// A lane that waits for space.
pub struct WaitingLane<'a>(&'a SpaceWaiters);

impl WaitingLane<'_> {
    /// Waits until space is freed or can't be, at most this long.
    pub async fn changed(&self, limit: Duration) {
        let _ = runtime::timeout(limit, self.0.changed()).await;
    }
}

impl Drop for WaitingLane<'_> {
    fn drop(&mut self) {
        self.0.lanes.set(self.0.lanes.get() - 1);
    }
}
