//! I/O classes with shares. Where classes compete, a request waits for the turn of its class, so that, for
//! example, the reads of a compaction don't delay a commit log.
//!
//! Reads, writes and syncs of files take a [`Turn`] first, and keep it until they have ended. On each shard,
//! [`fair_queue`] decides which class gets the next turn. Operations on names and attributes, checkpoints,
//! and the reads of a partial-block write take no turn.
//!
//! # Progress
//! A write that waits for a zone, and so for the cleaner, holds a turn. Hence nothing that a write waits for
//! depends on a turn: the cleaner waits for turns only while users find zones; a read takes its turn before
//! it keeps zones from being reset; an operation never takes a second turn.
//!
//! # Bounds
//! A waiting request is a future of its caller, which owns the data. So the callers bound the number of
//! waiting requests: a program by its own requests, a mount by the requests that the kernel sends.

pub mod fair_queue;

use block::{Error, Result};
use fair_queue::{BACKGROUND, ClassNumber, DEFAULT, FairQueue, MAX_SHARES};
use runtime::histogram::Histogram;
use runtime::now;
use runtime::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Most classes of a file system.
pub const MAX_CLASSES: usize = 32;
/// Shares of requests that name no class.
pub const DEFAULT_SHARES: u32 = 100;
/// Shares of the cleaner, scrub and defragmentation.
pub const BACKGROUND_SHARES: u32 = 20;
/// Cost of a request in addition to its bytes. A request of 4 KiB takes about as long as 16 KiB within a
/// large request: 17 µs at 1.5 GB/s on a virtual disk, 2.5 µs at 7 GB/s in memory.
pub const REQUEST_COST: u64 = 16 << 10;
/// Most cost of requests in flight on a shard where classes compete. This is the smallest bound at which
/// reads of 256 KiB (four in flight) and of 4 KiB (52) are as fast as without a bound, on a virtual disk
/// and in memory. Requests in flight delay a new request of any class.
pub const IO_DEPTH: u64 = 1 << 20;
/// Longest name of a class in bytes.
const MAX_NAME: usize = 64;

/// An I/O class of a file system, for the files that [use it](crate::File::in_class).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    pub(crate) number: ClassNumber,
    name: Arc<str>,
}

impl Class {
    pub(crate) fn new(number: ClassNumber, name: Arc<str>) -> Self {
        Class { number, name }
    }

    /// Name of the class.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Counters of a class since the file system was opened, on all shards.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassStatistics {
    /// Name of the class.
    pub name: Arc<str>,
    /// Shares of the class.
    pub shares: u32,
    /// Number of reads, writes and syncs.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes: u64,
    /// Waiting times in nanoseconds, of requests that had to wait for their turn.
    waits: Histogram<5>,
}

impl ClassStatistics {
    /// Adds the counters of another shard.
    pub fn add(&mut self, other: &ClassStatistics) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.waits.merge(&other.waits);
    }

    /// Number of requests that had to wait for their turn.
    pub fn waited(&self) -> u64 {
        self.waits.count()
    }

    /// Mean time that requests waited for their turn; requests that didn't wait count as 0.
    pub fn mean_wait(&self) -> Duration {
        Duration::from_nanos((self.waits.mean() * self.waited() as f64 / self.requests.max(1) as f64) as u64)
    }

    /// Returns the quantile `share` (0 to 1) of the time that requests waited for their turn.
    pub fn wait_quantile(&self, share: f64) -> Duration {
        let (all, waited) = (self.requests.max(1) as f64, self.waited() as f64);
        match share * all - (all - waited) {
            rank if rank > 0.0 => Duration::from_nanos(self.waits.quantile(rank / waited)),
            _ => Duration::ZERO,
        }
    }
}

#[derive(Debug)]
struct State {
    queue: FairQueue<Option<Waker>>,
    done: Vec<ClassStatistics>,
}

/// I/O classes of a shard.
#[derive(Debug)]
pub struct Classes {
    state: RefCell<State>,
    /// Number of classes.
    count: Cell<usize>,
    /// Held while a class is made or changed on all shards; used on the home only.
    pub(crate) changing: Rc<Semaphore>,
}

impl Classes {
    /// Returns the classes `default` and `background`, which each file system has. `depth` bounds the cost of
    /// requests in flight.
    pub fn new(depth: u64, background_shares: u32) -> Rc<Self> {
        let state = State { queue: FairQueue::new(depth), done: Vec::new() };
        let (state, count) = (RefCell::new(state), Cell::new(0));
        let classes = Rc::new(Classes { state, count, changing: Semaphore::new(1) });
        classes.set(DEFAULT, &"default".into(), DEFAULT_SHARES);
        classes.set(BACKGROUND, &"background".into(), background_shares);
        classes
    }

    /// Returns the number of the class with this name, or the number of the next new class if there is none.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name, shares or a number of classes out of range.
    pub fn number_for(&self, name: &str, shares: u32) -> Result<ClassNumber> {
        if !(1..=MAX_SHARES).contains(&shares) {
            return Err(Error::invalid(format!(
                "class \"{name}\": {shares} shares; expected 1 to {MAX_SHARES}"
            )));
        }
        if !(1..=MAX_NAME).contains(&name.len()) {
            return Err(Error::invalid(format!(
                "class \"{name}\": name of {} bytes; expected 1 to {MAX_NAME}",
                name.len()
            )));
        }
        let done = &self.state.borrow().done;
        match done.iter().position(|class| &*class.name == name) {
            Some(number) => Ok(number),
            None if done.len() < MAX_CLASSES => Ok(done.len()),
            None => Err(Error::invalid(format!(
                "class \"{name}\": too many classes: the file system has {MAX_CLASSES} already; expected at most {MAX_CLASSES}; use one of them"
            ))),
        }
    }

    /// Makes a class, or changes its shares.
    pub fn set(&self, number: ClassNumber, name: &Arc<str>, shares: u32) {
        let mut state = self.state.borrow_mut();
        state.queue.set(number, shares);
        while state.done.len() <= number {
            let name = name.clone();
            state.done.push(ClassStatistics { name, shares, requests: 0, bytes: 0, waits: Histogram::new() });
        }
        (state.done[number].name, state.done[number].shares) = (name.clone(), shares);
        self.count.set(state.done.len());
    }

    /// Returns the counters of the classes on this shard.
    pub fn statistics(&self) -> Vec<ClassStatistics> {
        self.state.borrow().done.clone()
    }

    /// Takes a turn for a request if it needn't wait.
    #[inline]
    fn try_take(self: &Rc<Self>, class: ClassNumber, bytes: u64) -> Option<Turn> {
        let mut state = self.state.borrow_mut();
        state.queue.try_start(class, REQUEST_COST + bytes).then(|| self.started(&mut state, class, bytes))
    }

    /// Takes a turn without waiting, outside of the shares of the class.
    pub fn take_now(self: &Rc<Self>, class: ClassNumber, bytes: u64) -> Turn {
        let mut state = self.state.borrow_mut();
        state.queue.start_now(class, REQUEST_COST + bytes);
        self.started(&mut state, class, bytes)
    }

    #[inline]
    fn started(self: &Rc<Self>, state: &mut State, class: ClassNumber, bytes: u64) -> Turn {
        let done = &mut state.done[class];
        done.requests += 1;
        done.bytes += bytes;
        Turn { classes: self.clone(), class, cost: REQUEST_COST + bytes }
    }

    /// Waits for the turn of the class, and takes it. A class number that this file system doesn't have is
    /// replaced by the default class.
    #[inline]
    pub async fn take(self: &Rc<Self>, class: ClassNumber, bytes: u64) -> Turn {
        let class = if class < self.count.get() { class } else { DEFAULT };
        match self.try_take(class, bytes) {
            Some(turn) => turn,
            None => self.wait(class, bytes).await,
        }
    }

    async fn wait(self: &Rc<Self>, class: ClassNumber, bytes: u64) -> Turn {
        let (begun, cost) = (now(), REQUEST_COST + bytes);
        let number = self.state.borrow_mut().queue.wait(class, cost, None);
        let mut place = WaitingRequest { classes: self, class, number, cost, has_turn: false };
        poll_fn(|context| place.poll(context)).await;
        place.has_turn = true;
        let mut state = self.state.borrow_mut();
        state.done[class].waits.record((now() - begun).as_nanos() as u64);
        self.started(&mut state, class, bytes)
    }

    /// Starts the requests that may be started.
    fn start_waiting(&self) {
        loop {
            let Some(waker) = self.state.borrow_mut().queue.start_next() else { return };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn ended(&self, class: ClassNumber, cost: u64) {
        let mut state = self.state.borrow_mut();
        state.queue.ended(class, cost);
        if state.queue.waiting() > 0 {
            drop(state);
            self.start_waiting();
        }
    }
}

/// A waiting request. Dropping it removes the request from the queue, or ends its turn if it has been started
/// meanwhile.
struct WaitingRequest<'a> {
    classes: &'a Classes,
    class: ClassNumber,
    number: u64,
    cost: u64,
    /// Whether the caller has taken the turn.
    has_turn: bool,
}

impl WaitingRequest<'_> {
    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.classes.state.borrow_mut();
        let Some(waker) = state.queue.waiter(self.class, self.number) else { return Poll::Ready(()) };
        let before = waker.replace(context.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        if self.has_turn {
            return;
        }
        let left = self.classes.state.borrow_mut().queue.leave(self.class, self.number);
        if left.is_none() {
            self.classes.ended(self.class, self.cost);
        }
    }
}

/// A turn of a class; dropping it ends the turn.
#[derive(Debug)]
pub struct Turn {
    classes: Rc<Classes>,
    class: ClassNumber,
    cost: u64,
}

impl Drop for Turn {
    #[inline]
    fn drop(&mut self) {
        self.classes.ended(self.class, self.cost);
    }
}
