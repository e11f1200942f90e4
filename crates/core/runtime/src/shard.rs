//! State of one shard, and the shard of the current thread.

use crate::clock::now;
use crate::config::ShardIndex;
use crate::mailbox::{Mailbox, Runnable};
use crate::operation::{Descriptor, Operation};
use crate::random::Random;
use crate::ring::Ring;
use crate::slots::{Key, Slot, Slots};
use crate::timers::Timers;
use crate::world::World;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

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

#[inline]
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

/// Whether the current shard may poll for any event before it sleeps.
pub(crate) fn may_poll() -> bool {
    with_current(|shard| shard.may_poll())
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

/// Returns 64 random bits from the shard's generator, which is seeded by the kernel, or by the simulation's
/// seed.
pub fn random_u64() -> u64 {
    with_current(|shard| shard.random.borrow_mut().next_u64())
}

/// Fills the bytes with random ones for keys, from the kernel. Under simulation they come from the shard's
/// generator, so that a seed repeats them.
pub fn fill_secret(bytes: &mut [u8]) {
    with_current(|shard| match shard.world() {
        Some(_) => shard.random.borrow_mut().fill(bytes),
        None => crate::locked_memory::fill_random(bytes),
    });
}

/// World of the simulation on this thread; `None` without one.
pub(crate) fn current_world() -> Option<Rc<World>> {
    try_with_current(|shard| shard.world().cloned()).flatten()
}

pub(crate) fn with_world<T>(use_world: impl FnOnce(&World) -> T) -> T {
    use_world(&current_world().expect("a simulated file is used inside its simulation"))
}

/// Closes the last descriptor of a simulated file or socket.
pub(crate) fn close_simulated(handle: u64) {
    if let Some(world) = current_world() {
        world.close(handle);
    }
}

/// Returns another descriptor for a simulated file or socket.
pub(crate) fn share_simulated(handle: u64) -> u64 {
    with_world(|world| world.share(handle))
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

    /// Lets the shard poll before its next wait, where that is allowed: a client has got a reply.
    pub(crate) fn expect_request(&self) {
        if let Driver::Ring(ring) = &self.driver
            && let Some(ring) = ring.borrow_mut().as_mut()
        {
            ring.polling().expect_request();
        }
    }

    fn may_poll(&self) -> bool {
        match &self.driver {
            Driver::Ring(ring) => {
                ring.borrow_mut().as_mut().is_some_and(|ring| ring.polling().is_allowed_for_any())
            }
            Driver::Simulated(_) => false,
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
    pub(crate) fn start_again(&self, key: Key) {
        let immediate = {
            let mut slots = self.slots.borrow_mut();
            self.start(key, slots.slot(key.index))
        };
        if let Some(result) = immediate {
            self.complete(key, result);
        }
    }

    /// Does what other threads have left for this shard.
    #[inline]
    pub(crate) fn deliver(&self) {
        self.mailbox.deliver(|runnable| self.queue.borrow_mut().push_back(runnable));
    }

    #[inline]
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
