//! Memory for the data of open requests: one budget for all connections of a server, on all shards.
//!
//! # Promises
//! - A connection has [`OWN_BYTES`] of its own, which need neither an atomic operation nor a lock. Further
//!   bytes are taken from the server's budget, which is never exceeded.
//! - If too few bytes are free, connections wait in order of arrival; small claims don't overtake a large
//!   one. A waiting connection still returns its bytes: its open requests end, and their replies are sent or
//!   the connection is ended. So every claim is met.
//! - A share that is dropped returns its bytes and leaves the queue.
//!
//! The connection computes the bytes of a request. The server ends connections whose client receives nothing,
//! or too slowly while others wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

/// Bytes that each connection may hold without taking any from the budget: 128 requests of 4 KiB.
pub(super) const OWN_BYTES: u64 = 512 << 10;

/// Bytes that all connections of a server share.
pub(super) struct Budget {
    bytes: u64,
    free: AtomicU64,
    /// Length of `line`, readable without its lock.
    waiting: AtomicUsize,
    line: Mutex<Line>,
}

/// Queue of the waiting connections, in order of arrival.
#[derive(Default)]
struct Line {
    /// Number of connections that have ever joined the queue; the ticket of the last one.
    arrivals: u64,
    waiting: VecDeque<(u64, Waker)>,
}

impl Budget {
    pub(super) fn new(bytes: u64) -> Budget {
        Budget { bytes, free: AtomicU64::new(bytes), waiting: AtomicUsize::new(0), line: Mutex::default() }
    }

    /// Number of bytes in the budget.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of bytes that connections hold beyond their own.
    pub(super) fn taken(&self) -> u64 {
        self.bytes - self.free.load(Ordering::Relaxed)
    }

    /// Number of waiting connections.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        // Nothing panics while the lock is held.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes if they are free.
    fn try_take(&self, bytes: u64) -> bool {
        let take = |free: u64| free.checked_sub(bytes);
        self.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.free.fetch_add(bytes, Ordering::SeqCst);
        // A connection that joins the line reads `free` after it has raised `waiting`: either it finds these
        // bytes, or its wait is found here.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.wake_first(self.line());
        }
    }

    fn wake_first(&self, line: MutexGuard<'_, Line>) {
        let first = line.waiting.front().map(|(_, waker)| waker.clone());
        drop(line);
        if let Some(waker) = first {
            waker.wake();
        }
    }
}

/// Bytes that one connection holds.
pub(super) struct Share {
    budget: Arc<Budget>,
    /// Bytes taken from the budget.
    taken: u64,
    /// Ticket in the queue; `None` while the connection doesn't wait.
    ticket: Option<u64>,
}

impl Share {
    pub(super) fn new(budget: Arc<Budget>) -> Share {
        Share { budget, taken: 0, ticket: None }
    }

    /// Makes the share cover `bytes`; more than the whole budget is covered by all of it. Returns false if
    /// too few bytes are free: the share is then in the queue, and the task is woken when it is the first
    /// there and bytes have become free.
    #[inline]
    pub(super) fn cover(&mut self, bytes: u64, context: &Context<'_>) -> bool {
        if bytes <= OWN_BYTES + self.taken {
            if self.ticket.is_some() {
                self.leave();
            }
            return true;
        }
        self.take(bytes - OWN_BYTES - self.taken, context)
    }

    #[inline(never)]
    fn take(&mut self, bytes: u64, context: &Context<'_>) -> bool {
        let budget = &self.budget;
        let bytes = bytes.min(budget.bytes - self.taken);
        if self.ticket.is_none() && budget.waiting.load(Ordering::SeqCst) == 0 && budget.try_take(bytes) {
            self.taken += bytes;
            return true;
        }
        let mut line = budget.line();
        let ticket = match self.ticket {
            Some(ticket) => ticket,
            None => {
                line.arrivals += 1;
                let ticket = line.arrivals;
                line.waiting.push_back((ticket, context.waker().clone()));
                self.ticket = Some(ticket);
                budget.waiting.store(line.waiting.len(), Ordering::SeqCst);
                ticket
            }
        };
        let is_first = line.waiting.front().is_some_and(|first| first.0 == ticket);
        if is_first && budget.try_take(bytes) {
            drop(line);
            self.taken += bytes;
            // The free bytes may also suffice for the next one.
            self.leave();
            return true;
        }
        if let Some((_, waker)) = line.waiting.iter_mut().find(|waiting| waiting.0 == ticket) {
            waker.clone_from(context.waker());
        }
        false
    }

    /// Returns the bytes that aren't needed to cover `bytes`.
    #[inline]
    pub(super) fn shrink_to(&mut self, bytes: u64) {
        if self.taken > 0 {
            let excess = self.taken.saturating_sub(bytes.saturating_sub(OWN_BYTES));
            if excess > 0 {
                self.taken -= excess;
                self.budget.give_back(excess);
            }
        }
    }

    /// Whether bytes of the budget are taken.
    pub(super) fn holds(&self) -> bool {
        self.taken > 0
    }

    /// Whether the share is in the queue.
    pub(super) fn waits(&self) -> bool {
        self.ticket.is_some()
    }

    /// Leaves the queue.
    #[cold]
    pub(super) fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let mut line = self.budget.line();
        let position = line.waiting.iter().position(|waiting| waiting.0 == ticket);
        let left = position.and_then(|position| line.waiting.remove(position));
        self.budget.waiting.store(line.waiting.len(), Ordering::SeqCst);
        self.budget.wake_first(line);
        drop(left);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink_to(0);
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    struct Task {
        woken: Arc<Flag>,
        waker: Waker,
        share: Share,
    }

    impl Task {
        fn new(budget: &Arc<Budget>) -> Task {
            let woken = Arc::new(Flag::default());
            Task { waker: Waker::from(woken.clone()), woken, share: Share::new(budget.clone()) }
        }

        fn cover(&mut self, bytes: u64) -> bool {
            self.share.cover(bytes, &Context::from_waker(&self.waker))
        }

        fn was_woken(&self) -> bool {
            self.woken.0.swap(false, Ordering::SeqCst)
        }
    }

    #[test]
    fn the_first_bytes_are_free_and_the_rest_is_shared() {
        let budget = Arc::new(Budget::new(1000));
        let (mut one, mut other) = (Task::new(&budget), Task::new(&budget));
        assert!(one.cover(OWN_BYTES) && other.cover(OWN_BYTES));
        assert_eq!(budget.taken(), 0);
        assert!(one.cover(OWN_BYTES + 600));
        assert_eq!(budget.taken(), 600);
        assert!(!other.cover(OWN_BYTES + 500));
        assert_eq!((budget.taken(), budget.waiting()), (600, 1));
        assert!(!one.cover(OWN_BYTES + 700), "the other one came first");
        one.share.shrink_to(OWN_BYTES + 500);
        assert!(other.was_woken() && other.cover(OWN_BYTES + 500));
        assert_eq!((budget.taken(), budget.waiting()), (1000, 1));
        assert!(one.cover(OWN_BYTES + 500), "it needs no more than it has, and leaves the line");
        assert_eq!(budget.waiting(), 0);
        drop((one, other));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn claims_are_met_in_order_and_a_dropped_one_holds_nobody_up() {
        let budget = Arc::new(Budget::new(100));
        let mut tasks: Vec<Task> = (0..4).map(|_| Task::new(&budget)).collect();
        assert!(tasks[0].cover(OWN_BYTES + 90));
        for (task, bytes) in [(1, 100), (2, 80), (3, 10)] {
            assert!(!tasks[task].cover(OWN_BYTES + bytes));
        }
        assert_eq!(budget.waiting(), 3);
        drop(tasks.remove(1));
        assert!(tasks[1].was_woken(), "it is the first now");
        assert!(!tasks[1].cover(OWN_BYTES + 80));
        assert!(!tasks[2].cover(OWN_BYTES + 10), "in order, though it would fit");
        tasks[0].share.shrink_to(0);
        assert!(tasks[1].was_woken() && tasks[1].cover(OWN_BYTES + 80));
        assert!(tasks[2].was_woken() && tasks[2].cover(OWN_BYTES + 10));
        assert_eq!((budget.taken(), budget.waiting()), (90, 0));
    }

    #[test]
    fn a_claim_above_the_whole_budget_is_met_by_all_of_it() {
        let budget = Arc::new(Budget::new(100));
        let mut task = Task::new(&budget);
        assert!(task.cover(OWN_BYTES + 5000));
        assert_eq!(budget.taken(), 100);
        task.share.shrink_to(0);
        assert_eq!(budget.taken(), 0);
    }

    /// Threads take and return more bytes in total than the budget has; each one waits for its wake-up.
    #[test]
    fn no_wake_up_is_lost_between_threads() {
        struct Unpark(std::thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let budget = Arc::new(Budget::new(100));
        let work = |budget: Arc<Budget>, number: u64| {
            move || {
                let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
                let mut share = Share::new(budget);
                for round in 0..3000 {
                    let bytes = OWN_BYTES + 1 + (number * 31 + round * 7) % 100;
                    while !share.cover(bytes, &Context::from_waker(&waker)) {
                        std::thread::park();
                    }
                    share.shrink_to(if round % 3 == 0 { OWN_BYTES } else { 0 });
                }
            }
        };
        let threads = (0..4).map(|number| {
            std::thread::Builder::new().spawn(work(budget.clone(), number)).expect("a thread starts")
        });
        for thread in threads.collect::<Vec<_>>() {
            thread.join().expect("it ends");
        }
        assert_eq!((budget.taken(), budget.waiting()), (0, 0));
    }
}
