//! State that the shards of one log share, and events by which their tasks wake each other.
//!
//! Each shard has `Notifications`. An [`Event`] is notified on its own shard like a [`Notify`], and added to
//! the notifications of the other shards. A listener task on each shard ([`shards`](crate::shards)) waits for
//! them and wakes the waiters there. It never runs within a turn of a waiting task, so a task that finds no
//! zone and then registers with the event misses no notification.

use crate::device_space::SharedSpace;
use crate::pool::ZonePool;
use crate::pool::budget::Budget;
use crate::readers::Readers;
use crate::stream::Streams;
use block::Error;
use runtime::sync::Notify;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A zone was freed, or none can be freed.
pub(crate) const FREED: u8 = 1;
/// The cleaner may have something to do.
pub(crate) const CLEANER: u8 = 2;
/// The log has failed.
pub(crate) const FAILED: u8 = 4;
/// A joint record has become the next one in all its streams.
pub(crate) const JOINT: u8 = 8;
/// A record waits for space of the device below.
pub(crate) const SHORT: u8 = 16;
/// The shard leaves the log.
pub(crate) const LEFT: u8 = 32;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notifications from other shards that the listener of this shard hasn't passed on.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    pending: AtomicU8,
    listener: Mutex<Option<Waker>>,
}

impl Notifications {
    fn notify(&self, events: u8) {
        self.pending.fetch_or(events, Ordering::AcqRel);
        let listener = lock(&self.listener).take();
        if let Some(listener) = listener {
            listener.wake();
        }
    }

    /// Waits for an event, then returns and clears the events.
    pub(crate) async fn next(&self) -> u8 {
        std::future::poll_fn(|context| {
            // Registered first, so that any later notification wakes the listener.
            *lock(&self.listener) = Some(context.waker().clone());
            match self.pending.swap(0, Ordering::AcqRel) {
                0 => Poll::Pending,
                events => Poll::Ready(events),
            }
        })
        .await
    }
}

/// An error that all shards see; testing for it takes no lock.
#[derive(Debug, Default)]
pub(crate) struct SharedError {
    is_set: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl SharedError {
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    pub(crate) fn get(&self) -> Option<Error> {
        self.is_set().then(|| lock(&self.error).clone()).flatten()
    }

    pub(crate) fn set(&self, error: Option<Error>) {
        let mut place = lock(&self.error);
        self.is_set.store(error.is_some(), Ordering::Release);
        *place = error;
    }

    /// Sets the error unless one is set.
    pub(crate) fn set_first(&self, error: &Error) {
        let mut place = lock(&self.error);
        place.get_or_insert_with(|| error.clone());
        self.is_set.store(true, Ordering::Release);
    }
}

/// Statistics since the log was opened.
#[derive(Debug, Default)]
pub struct Counters {
    /// Data blocks that users wrote.
    pub user_blocks: AtomicU64,
    /// Data blocks that the cleaner moved.
    pub moved_blocks: AtomicU64,
    /// Blocks of headers, summaries, checkpoints and roots.
    pub overhead_blocks: AtomicU64,
    /// Blocks of checkpoints, which are part of the overhead.
    pub checkpoint_blocks: AtomicU64,
    /// Records of users' writes.
    pub user_records: AtomicU64,
    /// Zones that were cleaned.
    pub cleaned_zones: AtomicU64,
    /// Zones that were reset.
    pub reset_zones: AtomicU64,
    /// Checkpoints.
    pub checkpoints: AtomicU64,
    /// Number of times that users' writes waited for the cleaner to free a zone.
    pub zone_waits: AtomicU64,
}

/// Adds to a counter.
#[inline]
pub fn count(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

/// State of a log that all its shards share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pool: Arc<ZonePool>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) counters: Arc<Counters>,
    /// Number of data blocks that users have written.
    pub(crate) clock: AtomicU64,
    /// Number of blocks that were appended since the last checkpoint began.
    pub(crate) since_checkpoint: AtomicU64,
    /// Total of user blocks at which the cleaner wakes.
    pub(crate) cleaner_wakes_at: AtomicU64,
    /// Reason why the cleaner can't free any zone.
    pub(crate) stuck: SharedError,
    /// Error of a log that has failed.
    pub(crate) failed: SharedError,
    /// Space of the device below.
    pub(crate) space: Arc<SharedSpace>,
    members: Mutex<Vec<Arc<Notifications>>>,
    has_others: AtomicBool,
}

impl Shared {
    pub(crate) fn new(pool: Arc<ZonePool>, streams: Arc<Streams>, clock: u64) -> Arc<Self> {
        Arc::new(Shared {
            pool,
            budget: Arc::default(),
            streams,
            readers: Arc::default(),
            counters: Arc::default(),
            clock: AtomicU64::new(clock),
            since_checkpoint: AtomicU64::new(0),
            cleaner_wakes_at: AtomicU64::new(u64::MAX),
            stuck: SharedError::default(),
            failed: SharedError::default(),
            space: Arc::default(),
            members: Mutex::default(),
            has_others: AtomicBool::new(false),
        })
    }

    /// Number of shards of the log.
    pub(crate) fn members(&self) -> u32 {
        lock(&self.members).len() as u32
    }

    /// Whether the log has more than one shard.
    #[inline]
    pub(crate) fn has_others(&self) -> bool {
        self.has_others.load(Ordering::Acquire)
    }
}

/// Membership of a shard in a log; ends when dropped.
#[derive(Debug)]
pub(crate) struct Member {
    shared: Arc<Shared>,
    pub(crate) notifications: Arc<Notifications>,
}

impl Member {
    pub(crate) fn new(shared: Arc<Shared>) -> Rc<Self> {
        let notifications: Arc<Notifications> = Arc::default();
        let mut members = lock(&shared.members);
        members.push(notifications.clone());
        shared.has_others.store(members.len() > 1, Ordering::Release);
        drop(members);
        Rc::new(Member { shared, notifications })
    }

    /// Notifies all other shards.
    #[inline]
    pub(crate) fn notify_others(&self, events: u8) {
        if self.shared.has_others() {
            self.ring_others(events);
        }
    }

    fn ring_others(&self, events: u8) {
        let members = lock(&self.shared.members);
        members
            .iter()
            .filter(|notifications| !Arc::ptr_eq(notifications, &self.notifications))
            .for_each(|notifications| notifications.notify(events));
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        lock(&self.shared.members).retain(|notifications| !Arc::ptr_eq(notifications, &self.notifications));
        self.notifications.notify(LEFT);
        // Ends the tasks that answer requests to seal.
        self.shared.budget.ask_all();
    }
}

/// An event for which tasks of all shards wait.
#[derive(Debug)]
pub struct Event {
    pub(crate) here: Notify,
    member: Rc<Member>,
    bit: u8,
}

impl Event {
    pub(crate) fn new(member: &Rc<Member>, bit: u8) -> Self {
        Event { here: Notify::new(), member: member.clone(), bit }
    }

    /// Wakes all waiting tasks, on all shards.
    pub fn notify_all(&self) {
        self.here.notify_all();
        self.member.notify_others(self.bit);
    }

    /// Waits for a notification after this call (not after the first poll).
    pub fn notified(&self) -> impl Future<Output = ()> + '_ {
        self.here.notified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Sequences;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn a_ring_reaches_the_listeners_of_all_other_shards_and_is_kept_until_they_listen() {
        let none = Sequences::default();
        let streams = Arc::new(Streams::new(&none, &none));
        let shared = Shared::new(Arc::new(ZonePool::new(1)), streams, 0);
        let home = Member::new(shared.clone());
        home.notify_others(FREED);
        assert_eq!(home.notifications.pending.load(Ordering::Relaxed), 0);
        let other = Member::new(shared.clone());
        let notifications = other.notifications.clone();
        let mut context = Context::from_waker(Waker::noop());
        let mut pending = pin!(notifications.next());
        assert_eq!(pending.as_mut().poll(&mut context), Poll::Pending);
        Event::new(&home, FREED).notify_all();
        Event::new(&home, CLEANER).notify_all();
        assert_eq!(pending.poll(&mut context), Poll::Ready(FREED | CLEANER));
        assert_eq!(home.notifications.pending.load(Ordering::Relaxed), 0, "it has notified its own waiters");
        drop(other);
        assert_eq!(pin!(notifications.next()).poll(&mut context), Poll::Ready(LEFT));
        assert_eq!(lock(&shared.members).len(), 1);
    }

    #[test]
    fn the_first_error_stays() {
        let errors = SharedError::default();
        assert_eq!(errors.get(), None);
        errors.set_first(&Error::io("first"));
        errors.set_first(&Error::io("second"));
        assert_eq!(errors.get(), Some(Error::io("first")));
        errors.set(None);
        assert!(!errors.is_set() && errors.get().is_none());
    }
}
