//! A shard: one thread, one ring, one run queue; and [`run`], which starts and ends them.

use crate::clock::{self, now};
use crate::operation::{Descriptor, Operation};
use crate::polling::EndedBy;
use crate::random::Random;
use crate::remote::{Mailbox, lock};
use crate::ring::Ring;
use crate::simulated::World;
use crate::slots::{Key, Slot, Slots};
use crate::task::{Runnable, TaskFuture};
use crate::timer::Timers;
use block::{Error, Result};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

/// Settings of the shards of [`run`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Number of shards, 1 to 256.
    pub shards: usize,
    /// Whether shard n is pinned to the n-th processor that the process may use (modulo their number).
    pub pin: bool,
    /// Submission entries per ring, a power of two.
    pub ring_entries: u32,
    /// Bytes of buffers that each shard tries to register with its ring; fewer, or none, if the kernel's
    /// limit on locked memory is lower.
    pub registered_bytes: usize,
    /// Whether a shard polls its ring for up to 50 µs before it sleeps, if its waits are that short and there
    /// are more processors than shards. This saves clients with one request at a time the wake-up of a
    /// thread.
    pub poll: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config { shards: 1, pin: false, ring_entries: 256, registered_bytes: 4 << 20, poll: false }
    }
}

impl Config {
    /// Sets the number of shards.
    pub fn with_shards(mut self, shards: usize) -> Self {
        self.shards = shards;
        self
    }

    /// Lets shards poll before they sleep.
    pub fn polling(mut self) -> Self {
        self.poll = true;
        self
    }

    /// Pins shards to processors.
    pub fn pinned(mut self) -> Self {
        self.pin = true;
        self
    }
}

/// Number of a shard, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardIndex(pub usize);

impl fmt::Display for ShardIndex {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Backend that carries out operations.
pub(crate) enum Driver {
    Ring(RefCell<Option<Box<Ring>>>),
    Simulated(Rc<World>),
}

/// Remains of an abandoned operation: its buffers and the descriptor that it returned. Must be dropped while
/// no state of the shard is borrowed.
pub(crate) struct Discarded {
    _operation: Operation,
    _returned: Option<Descriptor>,
}

/// State of one shard, reached through the thread-local by its tasks.
pub(crate) struct Shard {
    pub(crate) index: ShardIndex,
    pub(crate) driver: Driver,
    pub(crate) slots: RefCell<Slots>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) queue: RefCell<VecDeque<Runnable>>,
    /// Writes that the kernel cut short while the ring was in use.
    pub(crate) cut_short: RefCell<Vec<Key>>,
    pub(crate) tasks: RefCell<Slab<Option<Waker>>>,
    pub(crate) random: RefCell<Random>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) all: Arc<[Arc<Mailbox>]>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Shard>>> = const { RefCell::new(None) };
    /// Mailbox of the current shard, for comparisons; never dereferenced.
    static CURRENT_MAILBOX: Cell<*const Mailbox> = const { Cell::new(std::ptr::null()) };
}

/// Makes a shard the current one of this thread, and returns the previous one.
pub(crate) fn set_current(shard: Option<Rc<Shard>>) -> Option<Rc<Shard>> {
    CURRENT_MAILBOX.set(shard.as_ref().map_or(std::ptr::null(), |shard| Arc::as_ptr(&shard.mailbox)));
    CURRENT.with(|current| current.replace(shard))
}

pub(crate) fn is_current(mailbox: &Mailbox) -> bool {
    CURRENT_MAILBOX.get() == std::ptr::from_ref(mailbox)
}

#[inline]
pub(crate) fn with_current<T>(use_shard: impl FnOnce(&Rc<Shard>) -> T) -> T {
    CURRENT.with(|current| {
        let current = current.borrow();
        use_shard(current.as_ref().expect("called outside of runtime::run or runtime::simulate"))
    })
}

pub(crate) fn try_with_current<T>(use_shard: impl FnOnce(&Rc<Shard>) -> T) -> Option<T> {
    CURRENT.try_with(|current| current.borrow().as_ref().map(use_shard)).ok().flatten()
}

/// Returns the current shard.
pub fn current_shard() -> ShardIndex {
    with_current(|shard| shard.index)
}

/// Whether this thread is a shard, where tasks can be started.
pub fn is_on_shard() -> bool {
    try_with_current(|_| ()).is_some()
}

/// Whether the current shard runs under [`simulate`](crate::simulate).
pub fn is_simulated() -> bool {
    try_with_current(|shard| shard.world().is_some()).unwrap_or(false)
}

/// Number of shards.
pub fn shard_count() -> usize {
    with_current(|shard| shard.all.len())
}

/// Submits the started operations of this shard to the kernel now, without waiting for a full batch. Only for
/// operations that must begin at once: batching is faster.
pub fn submit_now() {
    with_current(|shard| {
        if let Driver::Ring(ring) = &shard.driver
            && let Some(ring) = ring.borrow_mut().as_mut()
        {
            ring.submit_now();
        }
    });
}

/// Returns a registered slot to the ring of this thread.
pub(crate) fn release_file_slot(slot: u32) {
    try_with_current(|shard| {
        if let Driver::Ring(ring) = &shard.driver
            && let Some(ring) = ring.borrow_mut().as_mut()
        {
            ring.release_file_slot(slot);
        }
    });
}

impl Shard {
    #[inline]
    pub(crate) fn start(&self, key: Key, slot: &mut Slot) -> Option<i32> {
        match &self.driver {
            Driver::Ring(ring) => match ring.borrow_mut().as_mut() {
                Some(ring) => ring.start(key, slot),
                None => Some(-libc::ECANCELED),
            },
            Driver::Simulated(world) => world.start(self.index, key, slot),
        }
    }

    pub(crate) fn cancel(&self, key: Key) {
        match &self.driver {
            Driver::Ring(ring) => {
                if let Some(ring) = ring.borrow_mut().as_mut() {
                    ring.cancel(key);
                }
            }
            Driver::Simulated(world) => world.cancel(self.index, key),
        }
    }

    /// Takes ownership of a descriptor of the kernel.
    pub(crate) fn adopt(&self, fd: OwnedFd) -> Descriptor {
        match &self.driver {
            Driver::Ring(ring) => match ring.borrow_mut().as_mut() {
                Some(ring) => ring.register_file(fd),
                None => Descriptor::Kernel { fd, slot: None },
            },
            Driver::Simulated(_) => Descriptor::Kernel { fd, slot: None },
        }
    }

    pub(crate) fn world(&self) -> Option<&Rc<World>> {
        match &self.driver {
            Driver::Ring(_) => None,
            Driver::Simulated(world) => Some(world),
        }
    }

    /// Ends an operation: wakes its waiter, or drops an abandoned operation.
    #[inline]
    pub(crate) fn complete(&self, key: Key, result: i32) {
        if self.slots.borrow_mut().goes_on(key, result) {
            return self.start_again(key);
        }
        let (waker, abandoned) = self.slots.borrow_mut().complete(key, result);
        drop(abandoned.map(|operation| self.discarded(operation, result)));
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wraps a completed operation whose future was dropped. Dropping the result drops its buffers and closes
    /// the descriptor that it returned.
    pub(crate) fn discarded(&self, operation: Operation, result: i32) -> Discarded {
        let returned = match &self.driver {
            _ if !operation.returns_a_descriptor() => None,
            Driver::Ring(_) => crate::ring::returned_descriptor(result),
            Driver::Simulated(_) => (result >= 0).then_some(Descriptor::Simulated(result as u64)),
        };
        Discarded { _operation: operation, _returned: returned }
    }

    /// Restarts the rest of an operation.
    #[cold]
    fn start_again(&self, key: Key) {
        let immediate = {
            let mut slots = self.slots.borrow_mut();
            self.start(key, slots.slot(key.index))
        };
        if let Some(result) = immediate {
            self.complete(key, result);
        }
    }

    /// Runs the ready tasks; tasks that become ready meanwhile wait for the next turn.
    #[inline]
    fn run_ready(&self) {
        let ready = self.queue.borrow().len();
        for _ in 0..ready {
            let Some(runnable) = self.queue.borrow_mut().pop_front() else { break };
            runnable.run();
        }
    }

    pub(crate) fn expire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = now();
        loop {
            let due = self.timers.borrow_mut().pop_due(now);
            match due {
                Some(waker) => waker.wake(),
                None => return,
            }
        }
    }

    /// One turn of the loop: tasks, messages, timers, the kernel.
    fn turn(&self, ring: &RefCell<Option<Box<Ring>>>) {
        self.run_ready();
        self.mailbox.deliver(self);
        self.expire_timers();
        let is_idle = self.queue.borrow().is_empty();
        let deadline = self.timers.borrow().next_deadline().filter(|_| is_idle);
        let limit = || deadline.map(|deadline| deadline - now());
        {
            let mut ring = ring.borrow_mut();
            let ring = ring.as_mut().expect("a shard that turns has its ring");
            let idle_since = (is_idle && ring.polling().is_allowed()).then(now);
            let wait = is_idle
                && !ring.poll(limit, || self.mailbox.has_letters() || self.mailbox.is_stopped())
                && self.mailbox.fall_asleep();
            ring.turn(wait, limit());
            if wait {
                self.mailbox.wake_up();
            }
            if let Some(since) = idle_since {
                let by = if self.mailbox.has_letters() { EndedBy::Message } else { EndedBy::Other };
                ring.polling().waited(now() - since, by);
            }
            ring.reap(|key, result| self.complete_inside_turn(key, result));
        }
        self.start_cut_short();
    }

    /// Restarts the operations that [`complete_inside_turn`](Self::complete_inside_turn) set aside.
    #[inline]
    fn start_cut_short(&self) {
        loop {
            let Some(key) = self.cut_short.borrow_mut().pop() else { return };
            self.start_again(key);
        }
    }

    /// As [`complete`](Self::complete). Dropping an operation may release a file's slot, which needs the ring
    /// that is borrowed here, so an abandoned operation is dropped by a task of its own.
    #[inline]
    fn complete_inside_turn(&self, key: Key, result: i32) {
        if self.slots.borrow_mut().goes_on(key, result) {
            return self.cut_short.borrow_mut().push(key);
        }
        let (waker, abandoned) = self.slots.borrow_mut().complete(key, result);
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(operation) = abandoned {
            crate::task::drop_later(self, self.discarded(operation, result));
        }
    }

    /// Drops every task with its data, and waits for the operations of the kernel to end.
    fn end(self: &Rc<Self>, ring: &RefCell<Option<Box<Ring>>>) {
        self.drop_tasks();
        let deadline = now() + Duration::from_secs(30);
        while self.slots.borrow().using_memory() > 0 && now() < deadline {
            if let Some(ring) = ring.borrow_mut().as_mut() {
                ring.cancel_all();
                ring.turn(true, Some(Duration::from_millis(20)));
                ring.reap(|key, result| self.complete_inside_turn(key, result));
            }
            self.start_cut_short();
            self.drop_tasks();
        }
        let ring = ring.borrow_mut().take();
        if self.slots.borrow().using_memory() > 0 {
            tracing::error!("shard {}: operations did not end in 30 s; their memory is leaked", self.index);
            std::mem::forget(self.slots.take());
        }
        if let Some(ring) = ring {
            ring.close();
        }
    }

    /// Cancels all tasks: a task that is woken after its handles were dropped is dropped when it is taken out
    /// of the queue, and doesn't run.
    pub(crate) fn drop_tasks(self: &Rc<Self>) {
        loop {
            let wakers: Vec<Waker> = self.tasks.borrow_mut().drain().flatten().collect();
            wakers.into_iter().for_each(Waker::wake);
            let runnables: Vec<Runnable> = self.queue.borrow_mut().drain(..).collect();
            let letters = self.mailbox.discard();
            if runnables.is_empty() && !letters {
                return;
            }
            drop(runnables);
        }
    }
}

/// Runs `main` on shard 0, and returns its result once all shards have ended.
///
/// # Errors
/// [`Error::Invalid`] for a number of shards out of range; the kernel's error if it can't create a ring.
///
/// # Panics
/// With the panic of any task.
pub fn run<T, F, Fut>(config: Config, main: F) -> Result<T>
where
    F: FnOnce() -> Fut + Send,
    Fut: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let output = Arc::new(Mutex::new(None));
    let slot = output.clone();
    run_boxed(
        &config,
        Box::new(move || {
            // Called on shard 0, so that what it makes is made there.
            let main = main();
            Box::pin(async move {
                let value = main.await;
                *lock(&slot) = Some(value);
            })
        }),
    )?;
    let value = lock(&output).take();
    Ok(value.expect("the main task has returned"))
}

/// Makes the main task of a shard on its thread.
type MakeMain<'a> = Box<dyn FnOnce() -> TaskFuture<()> + Send + 'a>;

/// Part of [`run`] that doesn't depend on the types of `main`. Returns once `main` has.
fn run_boxed(config: &Config, main: MakeMain<'_>) -> Result<()> {
    if !(1..=256).contains(&config.shards) {
        return Err(Error::invalid(format!("{} shards: expected 1 to 256", config.shards)));
    }
    // Measured once, before any latency is.
    now();
    let mailboxes = (0..config.shards).map(|_| Mailbox::new()).collect::<Result<Arc<[_]>>>()?;
    let processors = &crate::signal::allowed_processors();
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..config.shards)
            .map(|index| {
                let mailboxes = mailboxes.clone();
                scope.spawn(move || {
                    let forever: MakeMain<'_> = Box::new(|| Box::pin(std::future::pending()));
                    let ended = run_shard(ShardIndex(index), mailboxes.clone(), config, processors, forever);
                    if let Err(error) = ended {
                        stop_all(&mailboxes, Some(error));
                    }
                })
            })
            .collect();
        let first = {
            let mailboxes = mailboxes.clone();
            scope.spawn(move || run_shard(ShardIndex(0), mailboxes, config, processors, main))
        };
        let result = first.join();
        stop_all(&mailboxes, None);
        for thread in others {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        let failure = mailboxes[0].failure();
        match result {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => {
                Err(failure.unwrap_or_else(|| Error::cancelled("another shard ended with a panic")))
            }
            Ok(Err(error)) => Err(error),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

pub(crate) fn stop_all(mailboxes: &[Arc<Mailbox>], failure: Option<Error>) {
    if let Some(failure) = failure {
        mailboxes[0].fail(failure);
    }
    mailboxes.iter().for_each(|mailbox| mailbox.stop());
}

/// Runs one shard until its main task has returned or the shard is stopped. Returns whether the task has
/// returned.
fn run_shard(
    index: ShardIndex,
    all: Arc<[Arc<Mailbox>]>,
    config: &Config,
    processors: &[usize],
    main: MakeMain<'_>,
) -> Result<bool> {
    crate::signal::prepare_thread(config.pin.then(|| processors[index.0 % processors.len()]));
    let mailbox = all[index.0].clone();
    let ring = Ring::new(config, mailbox.wake_descriptor(), processors.len())?;
    let shard = Rc::new(Shard {
        index,
        driver: Driver::Ring(RefCell::new(Some(Box::new(ring)))),
        slots: RefCell::default(),
        timers: RefCell::default(),
        queue: RefCell::default(),
        cut_short: RefCell::default(),
        tasks: RefCell::default(),
        random: RefCell::new(Random::new(crate::signal::kernel_random())),
        mailbox,
        all,
    });
    let Driver::Ring(ring) = &shard.driver else { unreachable!("made above") };
    // Ends the shard in every case, also after a panic in a task: memory that the kernel may still write to
    // must live.
    let _end = EndGuard(&shard);
    set_current(Some(shard.clone()));
    let has_returned = Rc::new(Cell::new(false));
    let returned = has_returned.clone();
    let main = main();
    let own_mailbox = shard.mailbox.clone();
    let main = async move {
        main.await;
        returned.set(true);
        // So that this turn doesn't wait for the kernel any more.
        own_mailbox.stop();
    };
    crate::task::spawn_in(&shard, Box::pin(main)).detach();
    while !has_returned.get() && !shard.mailbox.is_stopped() {
        shard.turn(ring);
    }
    Ok(has_returned.get())
}

struct EndGuard<'a>(&'a Rc<Shard>);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        let Driver::Ring(ring) = &self.0.driver else { return };
        if std::thread::panicking() {
            // The other shards must not wait for this one.
            stop_all(&self.0.all, None);
        }
        self.0.end(ring);
        set_current(None);
        clock::set_virtual(None);
    }
}
