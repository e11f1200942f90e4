//! Watch over the requests to the leaves of a stack: whether some are in flight, whether any completes, and
//! whether the oldest ones do. The end of a server depends on it.
//!
//! Requests are watched at the bottom of the stack: one call of a layer above may be many requests to its
//! devices, and a cache answers without them.
//!
//! Only successful I/O is progress. Opening and closing a leaf, messages, failed and cancelled requests are
//! watched while they are in flight, but a lost node that is connected again and again makes no progress.
//!
//! # Age
//! A request costs three changes of counters of its handle, which only one shard writes, and no look at a
//! clock: it belongs to the generation in which it begins. There are counters for two generations, the
//! current one and the one before. An [observation](Watch::observe) starts a new generation if no request of
//! the one before is in flight. So if observations see the same generation for a time, a request has been in
//! flight for longer. A request that hangs stops the generations after at most one more, however many others
//! complete.

use block::layer::{ObserveHandles, ObservedPart, Observer, Position};
use block::{Call, Error};
use stack::Built;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Requests that have begun and ended. Clones are the same watch.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<Requests>);

#[derive(Debug, Default)]
struct Requests {
    /// Number of the current generation.
    generation: AtomicU64,
    users: Mutex<Users>,
}

#[derive(Debug, Default)]
struct Users {
    counts: Vec<Arc<Counts>>,
    /// Completed I/O of the users that have ended.
    completed: u64,
}

/// Requests of one user, by the lowest bit of their generation. In cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counts([Count; 2]);

#[derive(Debug, Default)]
struct Count {
    begun: AtomicU64,
    /// Requests that have succeeded, failed or were cancelled.
    ended: AtomicU64,
    /// I/O requests that have succeeded.
    completed: AtomicU64,
}

impl Count {
    /// Returns how many I/O requests have succeeded, and whether requests are in flight.
    fn progress(&self) -> (u64, bool) {
        // In this order a request that begins meanwhile isn't taken for one that has ended.
        let ended = self.ended.load(Ordering::Acquire);
        (self.completed.load(Ordering::Relaxed), self.begun.load(Ordering::Relaxed) != ended)
    }
}

impl Counts {
    #[inline]
    fn of(&self, generation: u64) -> &Count {
        &self.0[(generation % 2) as usize]
    }
}

/// Observation of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Number of I/O requests that have succeeded.
    pub completed: u64,
    /// Whether requests are in flight.
    pub in_flight: bool,
    /// Number of the generation. It stays the same while a request that had begun before the generation is in
    /// flight.
    pub generation: u64,
}

/// A request in flight; dropping it ends the request.
#[derive(Debug)]
pub struct Watched<'a>(&'a Count);

impl Drop for Watched<'_> {
    #[inline]
    fn drop(&mut self) {
        increment(&self.0.ended, Ordering::Release);
    }
}

/// Increments a counter that only the calling thread writes.
#[inline]
fn increment(counter: &AtomicU64, order: Ordering) {
    counter.store(counter.load(Ordering::Relaxed) + 1, order);
}

impl Watch {
    /// Watches the requests to a device or zones. Other parts are returned as they are.
    pub fn over(&self, part: Built) -> Built {
        match part {
            Built::Device(device) => Built::Device(Arc::new(ObservedPart::new(device, self.clone()))),
            Built::Zones(zones) => Built::Zones(Arc::new(ObservedPart::new(zones, self.clone()))),
            door @ Built::Door(_) => door,
        }
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        // Nothing panics while the lock is held.
        self.0.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn user(&self) -> User {
        let counts: Arc<Counts> = Arc::default();
        self.users().counts.push(counts.clone());
        User { watch: self.clone(), counts, thread: PhantomData }
    }

    /// Observes the requests, and starts a new generation if none of the one before is in flight. One task at
    /// a time calls it.
    pub fn observe(&self) -> Progress {
        let generation = self.0.generation.load(Ordering::Relaxed);
        let users = self.users();
        let of = |generation| {
            users
                .counts
                .iter()
                .map(|counts| counts.of(generation).progress())
                .fold((0, false), |(completed, is_any), (more, is_in_flight)| {
                    (completed + more, is_any | is_in_flight)
                })
        };
        let (before, is_before_in_flight) = of(generation + 1);
        let (current, is_current_in_flight) = of(generation);
        let generation = generation + u64::from(!is_before_in_flight);
        self.0.generation.store(generation, Ordering::Relaxed);
        Progress {
            completed: users.completed + before + current,
            in_flight: is_before_in_flight || is_current_in_flight,
            generation,
        }
    }
}

/// A handle, or a call to a part, on one thread.
#[derive(Debug)]
pub struct User {
    watch: Watch,
    counts: Arc<Counts>,
    /// Isn't sent to another thread: [`increment`].
    thread: PhantomData<Rc<()>>,
}

impl User {
    #[inline]
    fn request(&self) -> Watched<'_> {
        let count = self.counts.of(self.watch.0.generation.load(Ordering::Relaxed));
        increment(&count.begun, Ordering::Relaxed);
        Watched(count)
    }

    #[inline]
    fn watched<'a, T: 'a>(&'a self, request: Call<'a, T>) -> Call<'a, T> {
        Call::new(async move {
            let _watched = self.request();
            request.await
        })
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut users = self.watch.users();
        users.completed += self.counts.0.iter().map(|count| count.progress().0).sum::<u64>();
        users.counts.retain(|other| !Arc::ptr_eq(other, &self.counts));
    }
}

impl ObserveHandles for Watch {
    type Observer = User;

    fn observer(&self) -> User {
        self.user()
    }

    fn call<'a, T: 'a>(&'a self, call: Call<'a, T>) -> Call<'a, T> {
        Call::new(async move {
            let user = self.user();
            user.watched(call).await
        })
    }
}

impl<C> Observer<C> for User {
    type InFlight<'a> = Watched<'a>;

    #[inline]
    fn begin(&self, _: C, _: Position) -> Watched<'_> {
        self.request()
    }

    #[inline]
    fn end(&self, request: Watched<'_>, _: u64, error: Option<&Error>) {
        if error.is_none() {
            increment(&request.0.completed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
