//! Mailbox of a shard: wake-ups and messages from other threads.
//!
//! A mailbox has one lock, held for a push or a swap of two vectors and taken only when a message crosses; a
//! running shard checks one flag per turn.

use block::{Error, Result};
use rustix::event::EventfdFlags;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A task that is ready to run, with the mailbox of its shard.
pub(crate) type Runnable = async_task::Runnable<Arc<Mailbox>>;

type Work = Box<dyn FnOnce() + Send>;

/// Work for a shard.
pub(crate) enum Letter {
    Run(Runnable),
    Do(Work),
}

#[derive(Default)]
struct Letters {
    all: Vec<Letter>,
    /// Whether the shard has ended: it delivers nothing anymore.
    is_closed: bool,
}

/// Work that other threads sent to a shard.
pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
    has_letters: AtomicBool,
    sleeping: AtomicBool,
    stopped: AtomicBool,
    failure: Mutex<Option<Error>>,
    wake: OwnedFd,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Code under these locks doesn't panic, so poisoning is ignored.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailbox {
    pub(crate) fn new() -> Result<Arc<Mailbox>> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|error| Error::from_io(&error.into(), "creating an eventfd"))?;
        Ok(Arc::new(Mailbox {
            letters: Mutex::default(),
            has_letters: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            failure: Mutex::default(),
            wake,
        }))
    }

    pub(crate) fn wake_descriptor(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// Leaves work for the shard, and wakes it. Returns whether it was awake. Work for a shard that has ended
    /// is dropped, so that its sender isn't left waiting for an answer.
    #[inline]
    pub(crate) fn post(&self, letter: Letter) -> bool {
        let refused = {
            let mut letters = lock(&self.letters);
            match letter {
                Letter::Do(work) if letters.is_closed => Some(work),
                letter => {
                    letters.all.push(letter);
                    None
                }
            }
        };
        if refused.is_some() {
            // Dropped outside of the lock: this may wake a task, which sends a message.
            return true;
        }
        self.has_letters.store(true, Ordering::SeqCst);
        self.ring_the_bell()
    }

    /// Leaves work for the shard, and wakes it. Returns the work if the shard has ended.
    pub(crate) fn try_post(&self, work: Work) -> Option<Work> {
        {
            let mut letters = lock(&self.letters);
            if letters.is_closed {
                return Some(work);
            }
            letters.all.push(Letter::Do(work));
        }
        self.has_letters.store(true, Ordering::SeqCst);
        self.ring_the_bell();
        None
    }

    /// Wakes the shard if it sleeps; returns whether it was awake.
    fn ring_the_bell(&self) -> bool {
        let is_asleep = self.sleeping.swap(false, Ordering::SeqCst);
        if is_asleep {
            // The write fails only on overflow, when the event is signalled already.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
        !is_asleep
    }

    /// Announces that the shard is about to wait. Returns false if work has arrived.
    #[inline]
    pub(crate) fn fall_asleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.has_letters.load(Ordering::SeqCst) || self.stopped.load(Ordering::SeqCst) {
            self.wake_up();
            return false;
        }
        true
    }

    /// Whether work has arrived.
    #[inline]
    pub(crate) fn has_letters(&self) -> bool {
        self.has_letters.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn wake_up(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Does arrived work; passes tasks that are ready to `ready`.
    #[inline]
    pub(crate) fn deliver(&self, mut ready: impl FnMut(Runnable)) {
        if self.has_letters.load(Ordering::Relaxed) {
            self.has_letters.store(false, Ordering::SeqCst);
            let letters = std::mem::take(&mut lock(&self.letters).all);
            for letter in letters {
                match letter {
                    Letter::Run(runnable) => ready(runnable),
                    Letter::Do(work) => work(),
                }
            }
        }
    }

    /// Discards arrived work; returns whether there was any.
    pub(crate) fn discard(&self) -> bool {
        let letters = std::mem::take(&mut lock(&self.letters).all);
        !letters.is_empty()
    }

    /// Refuses further work: the shard ends.
    pub(crate) fn close(&self) {
        lock(&self.letters).is_closed = true;
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.ring_the_bell();
    }

    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn fail(&self, error: Error) {
        lock(&self.failure).get_or_insert(error);
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        lock(&self.failure).take()
    }
}
