//! Synchronization between tasks of one shard, without atomics; and a stop signal that reaches all shards.

use crate::mailbox::lock;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// Waiters in order of arrival, each with its ticket. Tickets increase, so a waiter is found by binary
/// search.
#[derive(Default)]
struct Waiters {
    list: RefCell<VecDeque<(u64, Option<Waker>)>>,
    arrivals: Cell<u64>,
}

impl Waiters {
    fn arrive(&self) -> u64 {
        let ticket = self.arrivals.get() + 1;
        self.arrivals.set(ticket);
        self.list.borrow_mut().push_back((ticket, None));
        ticket
    }

    fn is_waiting(&self, ticket: u64) -> bool {
        self.list.borrow().binary_search_by_key(&ticket, |entry| entry.0).is_ok()
    }

    fn is_first(&self, ticket: u64) -> bool {
        self.list.borrow().front().is_some_and(|entry| entry.0 == ticket)
    }

    fn set_waker(&self, ticket: u64, context: &Context<'_>) {
        let mut list = self.list.borrow_mut();
        if let Ok(position) = list.binary_search_by_key(&ticket, |entry| entry.0) {
            let waker = list[position].1.replace(context.waker().clone());
            drop(list);
            drop(waker);
        }
    }

    fn leave(&self, ticket: u64) {
        let mut list = self.list.borrow_mut();
        if let Ok(position) = list.binary_search_by_key(&ticket, |entry| entry.0) {
            let entry = list.remove(position);
            drop(list);
            drop(entry);
        }
    }

    /// Removes the first waiter, wakes it, and returns its ticket.
    fn release_first(&self) -> Option<u64> {
        let (ticket, waker) = self.list.borrow_mut().pop_front()?;
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(ticket)
    }

    fn wake_first(&self) {
        let waker = self.list.borrow().front().and_then(|entry| entry.1.clone());
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Wakes the tasks that are waiting now. Notifications aren't stored: later waiters wait for the next one, so
/// check the condition before waiting.
#[derive(Default)]
pub struct Notify {
    waiters: Waiters,
    /// Tickets that [`notify_one`](Self::notify_one) has released and whose waiters haven't run since.
    released: RefCell<VecDeque<u64>>,
}

impl Notify {
    /// A `Notify` without waiters.
    pub fn new() -> Self {
        Notify::default()
    }

    /// Wakes the waiter that has waited longest. If its future is dropped before it is polled, the next
    /// waiter is woken instead.
    pub fn notify_one(&self) {
        if let Some(ticket) = self.waiters.release_first() {
            // Tickets are released in increasing order, so the list remains sorted.
            self.released.borrow_mut().push_back(ticket);
        }
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        while self.waiters.release_first().is_some() {}
    }

    /// Returns a waiter that is registered by this call, before its first poll.
    pub fn notified(&self) -> impl Future<Output = ()> + '_ {
        Notified { notify: self, ticket: self.waiters.arrive() }
    }

    /// Removes a ticket from those that were released one by one. Returns false if it isn't one of them.
    fn take_released(&self, ticket: u64) -> bool {
        let mut released = self.released.borrow_mut();
        let position = released.binary_search(&ticket);
        position.is_ok_and(|position| released.remove(position).is_some())
    }
}

/// Waiter of a [`Notify`].
struct Notified<'a> {
    notify: &'a Notify,
    ticket: u64,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.notify.waiters.is_waiting(self.ticket) {
            self.notify.waiters.set_waker(self.ticket, context);
            return Poll::Pending;
        }
        self.notify.take_released(self.ticket);
        Poll::Ready(())
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        self.notify.waiters.leave(self.ticket);
        if self.notify.take_released(self.ticket) {
            // The waiter was notified but dropped before it ran: passes the notification on.
            self.notify.notify_one();
        }
    }
}

/// Semaphore of a shard: permits are granted in order of arrival, so small requests don't overtake a large
/// one.
pub struct Semaphore {
    available: Cell<usize>,
    waiters: Waiters,
}

impl Semaphore {
    /// Semaphore with this many permits.
    pub fn new(permits: usize) -> Rc<Self> {
        Rc::new(Semaphore { available: Cell::new(permits), waiters: Waiters::default() })
    }

    /// Number of free permits.
    pub fn available(&self) -> usize {
        self.available.get()
    }

    /// Takes permits if they are free and no task is waiting.
    pub fn try_acquire(self: &Rc<Self>, permits: usize) -> Option<Permit> {
        let nobody_waits = self.waiters.list.borrow().is_empty();
        (nobody_waits && self.available.get() >= permits).then(|| self.take(permits))
    }

    fn take(self: &Rc<Self>, permits: usize) -> Permit {
        self.available.set(self.available.get() - permits);
        Permit { semaphore: self.clone(), permits }
    }

    /// Waits for permits. A request for more than the total waits forever.
    pub async fn acquire(self: &Rc<Self>, permits: usize) -> Permit {
        if let Some(permit) = self.try_acquire(permits) {
            return permit;
        }
        let place = PermitPlace { semaphore: self, ticket: self.waiters.arrive() };
        poll_fn(|context| {
            if self.waiters.is_first(place.ticket) && self.available.get() >= permits {
                return Poll::Ready(());
            }
            self.waiters.set_waker(place.ticket, context);
            Poll::Pending
        })
        .await;
        let permit = self.take(permits);
        drop(place);
        permit
    }
}

/// Place in a semaphore's queue, left when dropped. Permits that are then free may be enough for the new
/// first waiter, whether this one took its own or was dropped.
struct PermitPlace<'a> {
    semaphore: &'a Semaphore,
    ticket: u64,
}

impl Drop for PermitPlace<'_> {
    fn drop(&mut self) {
        let waiters = &self.semaphore.waiters;
        let was_first = waiters.is_first(self.ticket);
        waiters.leave(self.ticket);
        if was_first {
            waiters.wake_first();
        }
    }
}

/// Permits that are returned when dropped.
pub struct Permit {
    semaphore: Rc<Semaphore>,
    permits: usize,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.semaphore.available.set(self.semaphore.available.get() + self.permits);
        self.semaphore.waiters.wake_first();
    }
}

struct Channel<T> {
    queue: RefCell<VecDeque<T>>,
    capacity: usize,
    senders: Cell<usize>,
    receiver_alive: Cell<bool>,
    receiver: RefCell<Option<Waker>>,
    /// Notified once for each value that is removed.
    room: Notify,
}

impl<T> Channel<T> {
    fn wake_receiver(&self) {
        let waker = self.receiver.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Returns the two sides of a queue of at most `capacity` values (at least 1), from many tasks of a shard to
/// one.
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let channel = Rc::new(Channel {
        queue: RefCell::new(VecDeque::with_capacity(capacity.min(1024))),
        capacity: capacity.max(1),
        senders: Cell::new(1),
        receiver_alive: Cell::new(true),
        receiver: RefCell::default(),
        room: Notify::new(),
    });
    (Sender(channel.clone()), Receiver(channel))
}

impl std::fmt::Debug for Notify {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Notify")
    }
}

impl std::fmt::Debug for Semaphore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Semaphore({} free)", self.available.get())
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Permit({})", self.permits)
    }
}

/// Sending side of a [`channel`].
pub struct Sender<T>(Rc<Channel<T>>);

impl<T> Sender<T> {
    /// Sends; returns the value if the queue is full or the receiver is dropped.
    pub fn try_send(&self, value: T) -> Result<(), T> {
        if !self.0.receiver_alive.get() || self.0.queue.borrow().len() >= self.0.capacity {
            return Err(value);
        }
        self.0.queue.borrow_mut().push_back(value);
        self.0.wake_receiver();
        Ok(())
    }

    /// Waits for free space and sends; returns the value if the receiver is dropped.
    pub async fn send(&self, value: T) -> Result<(), T> {
        let mut value = value;
        loop {
            value = match self.try_send(value) {
                Ok(()) => return Ok(()),
                Err(value) => value,
            };
            if !self.0.receiver_alive.get() {
                return Err(value);
            }
            self.0.room.notified().await;
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.set(self.0.senders.get() + 1);
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.senders.set(self.0.senders.get() - 1);
        if self.0.senders.get() == 0 {
            self.0.wake_receiver();
        }
    }
}

/// Receiving side of a [`channel`].
pub struct Receiver<T>(Rc<Channel<T>>);

impl<T> Receiver<T> {
    /// Returns the next value; `None` if the queue is empty.
    pub fn try_receive(&mut self) -> Option<T> {
        let value = self.0.queue.borrow_mut().pop_front();
        if value.is_some() {
            self.0.room.notify_one();
        }
        value
    }

    /// Waits for the next value; `None` once all senders are dropped and all values were received.
    pub async fn receive(&mut self) -> Option<T> {
        poll_fn(|context| {
            if let Some(value) = self.try_receive() {
                return Poll::Ready(Some(value));
            }
            if self.0.senders.get() == 0 {
                return Poll::Ready(None);
            }
            *self.0.receiver.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.receiver_alive.set(false);
        let left = std::mem::take(&mut *self.0.queue.borrow_mut());
        drop(left);
        self.0.room.notify_all();
    }
}

/// Returns the two sides of a channel for one value. The receiver returns `None` if the sender is dropped
/// without sending.
pub fn oneshot<T>() -> (OneshotSender<T>, Receiver<T>) {
    let (sender, receiver) = channel(1);
    (OneshotSender(sender), receiver)
}

/// Sending side of a [`oneshot`].
pub struct OneshotSender<T>(Sender<T>);

impl<T> OneshotSender<T> {
    /// Sends; returns the value if the receiver is dropped.
    pub fn send(self, value: T) -> Result<(), T> {
        self.0.try_send(value)
    }
}

#[derive(Default)]
struct Stop {
    stopped: AtomicBool,
    waiting: Mutex<Vec<(u64, Waker)>>,
    arrivals: std::sync::atomic::AtomicU64,
}

/// Stop signal for all shards, raised once.
#[derive(Clone, Default)]
pub struct StopSource(Arc<Stop>);

impl StopSource {
    /// A signal that isn't raised.
    pub fn new() -> Self {
        StopSource::default()
    }

    /// Raises the signal. A second call does nothing.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::SeqCst);
        let waiting = std::mem::take(&mut *lock(&self.0.waiting));
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Returns a token to check and to wait for the signal.
    pub fn token(&self) -> StopToken {
        StopToken(self.0.clone())
    }
}

/// Receiver of a [`StopSource`]'s signal.
#[derive(Clone)]
pub struct StopToken(Arc<Stop>);

impl StopToken {
    /// Whether the signal was raised.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Relaxed)
    }

    /// Waits until the signal is raised.
    pub async fn stopped(&self) {
        struct Entry<'a>(&'a Stop, u64);
        impl Drop for Entry<'_> {
            fn drop(&mut self) {
                let mut waiting = lock(&self.0.waiting);
                let position = waiting.iter().position(|entry| entry.0 == self.1);
                let removed = position.map(|position| waiting.swap_remove(position));
                drop(waiting);
                drop(removed);
            }
        }
        let entry = Entry(&self.0, self.0.arrivals.fetch_add(1, Ordering::Relaxed));
        poll_fn(|context| {
            let mut waiting = lock(&self.0.waiting);
            // Checked under the lock: a later stop finds the waiter in the list.
            if self.0.stopped.load(Ordering::SeqCst) {
                return Poll::Ready(());
            }
            waiting.retain(|other| other.0 != entry.1);
            waiting.push((entry.1, context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Waits for a future until the signal is raised; `None` if it is, also if both are ready.
    pub async fn unless_stopped<F: Future>(&self, future: F) -> Option<F::Output> {
        let (mut stopped, mut future) = (pin!(self.stopped()), pin!(future));
        poll_fn(|context| match stopped.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => future.as_mut().poll(context).map(Some),
        })
        .await
    }
}
