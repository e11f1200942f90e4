//! Many calls in progress, driven by one task: a bounded set of slots, each with a waker of its own.
//!
//! Only a woken call is polled; a call that ends at its first poll takes no slot; in steady state nothing is
//! allocated (a slot's waker is created at the slot's first use and serves all its later calls). A waker that
//! outlives its call causes at worst one superfluous poll of a later call of the same slot. Wakers may be
//! used from any thread. The caller bounds the number of calls, to at most [`SLOTS`].

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Largest number of calls in flight.
pub const SLOTS: usize = 128;
const WORDS: usize = SLOTS / 64;

/// Wake-ups that wakers have recorded.
#[derive(Default)]
struct Hub {
    /// A bit per slot that was woken.
    woken: [AtomicU64; WORDS],
    /// Whether the task was woken and has not polled since.
    told: AtomicBool,
    task: Mutex<Option<Waker>>,
}

struct SlotWaker {
    hub: Arc<Hub>,
    slot: usize,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let hub = &self.hub;
        hub.woken[self.slot / 64].fetch_or(1 << (self.slot % 64), Ordering::SeqCst);
        // Only the first waker wakes the task, which reads all bits after it has cleared `told`.
        if !hub.told.swap(true, Ordering::SeqCst) {
            let task = hub.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(task) = task {
                task.wake();
            }
        }
    }
}

struct Slot<F> {
    waker: Waker,
    call: Option<F>,
}

/// Calls in progress.
pub struct InFlight<F> {
    hub: Arc<Hub>,
    slots: Vec<Slot<F>>,
    free: Vec<usize>,
    /// The task's waker as registered with the hub.
    registered: Option<Waker>,
    count: usize,
}

impl<F: Future + Unpin> InFlight<F> {
    /// An empty set.
    pub fn new() -> Self {
        InFlight { hub: Arc::default(), slots: Vec::new(), free: Vec::new(), registered: None, count: 0 }
    }

    /// Number of calls in progress.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no call is in progress.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Registers the task to wake. Must be called at the beginning of each of its polls.
    #[inline]
    pub fn register(&mut self, task: &Waker) {
        if !self.registered.as_ref().is_some_and(|known| known.will_wake(task)) {
            self.registered = Some(task.clone());
            *self.hub.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.clone());
        }
    }

    /// Starts a call. Returns its result if it has ended already; otherwise the call is kept.
    ///
    /// # Panics
    /// If [`SLOTS`] calls are in progress.
    #[inline]
    pub fn start(&mut self, mut call: F) -> Option<F::Output> {
        let index = self.free.pop().unwrap_or_else(|| self.add_slot());
        let slot = &mut self.slots[index];
        match Pin::new(&mut call).poll(&mut Context::from_waker(&slot.waker)) {
            Poll::Ready(output) => {
                self.free.push(index);
                Some(output)
            }
            Poll::Pending => {
                slot.call = Some(call);
                self.count += 1;
                None
            }
        }
    }

    #[cold]
    fn add_slot(&mut self) -> usize {
        let index = self.slots.len();
        assert!(index < SLOTS, "more than {SLOTS} calls in flight");
        let waker = Waker::from(Arc::new(SlotWaker { hub: self.hub.clone(), slot: index }));
        self.slots.push(Slot { waker, call: None });
        index
    }

    /// Polls the woken calls, and passes the results of those that have ended to `ended`.
    #[inline]
    pub fn collect(&mut self, mut ended: impl FnMut(F::Output)) {
        if !self.hub.told.swap(false, Ordering::SeqCst) {
            return;
        }
        for word in 0..WORDS {
            let mut bits = self.hub.woken[word].swap(0, Ordering::SeqCst);
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let slot = &mut self.slots[index];
                let Some(call) = &mut slot.call else { continue };
                if let Poll::Ready(output) = Pin::new(call).poll(&mut Context::from_waker(&slot.waker)) {
                    slot.call = None;
                    self.free.push(index);
                    self.count -= 1;
                    ended(output);
                }
            }
        }
    }
}

impl<F: Future + Unpin> Default for InFlight<F> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    /// Ends once it is open; counts its polls.
    struct Gate {
        open: Rc<Cell<bool>>,
        polls: Rc<Cell<u32>>,
        wakers: Rc<RefCell<Vec<Waker>>>,
        value: u32,
    }

    impl Future for Gate {
        type Output = u32;
        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u32> {
            self.polls.set(self.polls.get() + 1);
            if self.open.get() {
                return Poll::Ready(self.value);
            }
            self.wakers.borrow_mut().push(context.waker().clone());
            Poll::Pending
        }
    }

    #[derive(Default)]
    struct Count(AtomicU64);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn collected(in_flight: &mut InFlight<Gate>) -> Vec<u32> {
        let mut values = Vec::new();
        in_flight.collect(|value| values.push(value));
        values
    }

    #[test]
    fn only_woken_calls_are_polled_and_the_task_is_woken_once() {
        let wakes = Arc::new(Count::default());
        let task = Waker::from(wakes.clone());
        let mut in_flight = InFlight::new();
        in_flight.register(&task);
        let gates: Vec<_> = (0..SLOTS as u32)
            .map(|value| {
                let (open, polls, wakers) = (Rc::<Cell<bool>>::default(), Rc::default(), Rc::default());
                let gate = Gate {
                    open: Rc::clone(&open),
                    polls: Rc::clone(&polls),
                    wakers: Rc::clone(&wakers),
                    value,
                };
                assert!(in_flight.start(gate).is_none());
                (open, polls, wakers)
            })
            .collect();
        assert_eq!(in_flight.len(), SLOTS);
        for chosen in [3, 64, 127] {
            gates[chosen].0.set(true);
            gates[chosen].2.borrow()[0].wake_by_ref();
        }
        gates[5].2.borrow()[0].wake_by_ref();
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "one wake-up per poll");
        assert_eq!(collected(&mut in_flight), [3, 64, 127]);
        assert_eq!(gates[5].1.get(), 2, "woken without having ended");
        assert_eq!(gates[6].1.get(), 1, "never woken");
        // A waker that outlives its call only causes a poll of the slot's next call.
        let (open, polls, wakers) = (Rc::<Cell<bool>>::default(), Rc::<Cell<u32>>::default(), Rc::default());
        let late = Gate { open: open.clone(), polls: polls.clone(), wakers, value: 999 };
        assert!(in_flight.start(late).is_none());
        for chosen in [3, 64, 127] {
            gates[chosen].2.borrow()[0].wake_by_ref();
        }
        assert_eq!(wakes.0.load(Ordering::SeqCst), 2);
        assert!(collected(&mut in_flight).is_empty());
        assert_eq!(polls.get(), 2);
        open.set(true);
        assert_eq!(in_flight.len(), SLOTS - 2);
    }

    #[test]
    fn a_call_that_ends_at_once_takes_no_slot() {
        let mut in_flight = InFlight::new();
        for value in 0..1000 {
            assert_eq!(in_flight.start(std::future::ready(value)), Some(value));
        }
        assert!(in_flight.is_empty());
        assert_eq!(in_flight.slots.len(), 1);
    }

    #[test]
    fn wakes_from_other_threads_are_never_lost() {
        let seed_rounds = 2000;
        let mut in_flight: InFlight<Pin<Box<dyn Future<Output = u32>>>> = InFlight::new();
        let wakes = Arc::new(Count::default());
        in_flight.register(&Waker::from(wakes));
        let (wake_sender, wake_receiver) = std::sync::mpsc::channel::<(Waker, Arc<AtomicBool>)>();
        let builder = std::thread::Builder::new();
        let thread = builder.spawn(move || {
            for (waker, done) in wake_receiver {
                done.store(true, Ordering::SeqCst);
                waker.wake();
            }
        });
        let mut ended = 0;
        for round in 0..seed_rounds {
            while in_flight.len() >= SLOTS {
                in_flight.collect(|_| ended += 1);
            }
            let done = Arc::new(AtomicBool::new(false));
            let sender = wake_sender.clone();
            let mut sent = false;
            let call = std::future::poll_fn(move |context| {
                if done.load(Ordering::SeqCst) {
                    return Poll::Ready(round);
                }
                if !std::mem::replace(&mut sent, true) {
                    sender.send((context.waker().clone(), done.clone())).expect("the thread receives");
                }
                Poll::Pending
            });
            ended += u32::from(in_flight.start(Box::pin(call)).is_some());
        }
        while !in_flight.is_empty() {
            in_flight.collect(|_| ended += 1);
        }
        assert_eq!(ended, seed_rounds);
        drop(wake_sender);
        thread.expect("a thread starts").join().expect("the thread ends");
    }
}
