//! Communication between threads: wake-ups and messages from one shard to another, and blocking calls.
//!
//! A mailbox has one lock, held for a push or a swap of two vectors and taken only when a message crosses; a
//! running shard checks one flag per turn.
#![allow(unsafe_code)] // eventfd.

use crate::shard::{self, Shard, ShardIndex};
use crate::task::Runnable;
use block::{Error, Result};
use std::future::Future;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

type Work = Box<dyn FnOnce() + Send>;

enum Letter {
    Run(Runnable),
    Do(Work),
}

/// Work that other threads sent to a shard.
pub(crate) struct Mailbox {
    letters: Mutex<Vec<Letter>>,
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
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(Error::from_io(&std::io::Error::last_os_error(), "creating an eventfd"));
        }
        Ok(Arc::new(Mailbox {
            letters: Mutex::default(),
            has_letters: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            failure: Mutex::default(),
            // SAFETY: the descriptor was just created and has no other owner.
            wake: unsafe { OwnedFd::from_raw_fd(fd) },
        }))
    }

    pub(crate) fn wake_descriptor(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// Puts a woken task into its shard's queue, from any thread.
    #[inline]
    pub(crate) fn schedule(runnable: Runnable) {
        if shard::is_current(runnable.metadata()) {
            shard::with_current(|shard| shard.queue.borrow_mut().push_back(runnable));
        } else {
            // The task may run and free its metadata before the shard is woken, so the mailbox is cloned.
            let mailbox = runnable.metadata().clone();
            mailbox.post(Letter::Run(runnable));
        }
    }

    fn post(&self, letter: Letter) {
        lock(&self.letters).push(letter);
        self.has_letters.store(true, Ordering::SeqCst);
        self.ring_the_bell();
    }

    fn ring_the_bell(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            let one = 1_u64;
            // SAFETY: eight bytes are read from `one`. The write fails only on overflow, when the event is
            // signalled already.
            unsafe { libc::write(self.wake.as_raw_fd(), std::ptr::from_ref(&one).cast(), 8) };
        }
    }

    /// Announces that the shard is about to wait. Returns false if work has arrived.
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

    pub(crate) fn wake_up(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Hands arrived work to the mailbox's shard.
    #[inline]
    pub(crate) fn deliver(&self, shard: &Shard) {
        if self.has_letters.load(Ordering::Relaxed) {
            self.has_letters.store(false, Ordering::SeqCst);
            let letters = std::mem::take(&mut *lock(&self.letters));
            for letter in letters {
                match letter {
                    Letter::Run(runnable) => shard.queue.borrow_mut().push_back(runnable),
                    Letter::Do(work) => work(),
                }
            }
        }
    }

    /// Discards arrived work; returns whether there was any.
    pub(crate) fn discard(&self) -> bool {
        let letters = std::mem::take(&mut *lock(&self.letters));
        !letters.is_empty()
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.ring_the_bell();
    }

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

struct Answer<T> {
    state: Mutex<AnswerState<T>>,
}

struct AnswerState<T> {
    value: Option<T>,
    waker: Option<Waker>,
    closed: bool,
}

impl<T> Answer<T> {
    fn settle(&self, value: Option<T>) {
        let waker = {
            let mut state = lock(&self.state);
            state.closed = true;
            if value.is_some() {
                state.value = value;
            }
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Sending side of an answer. If it is dropped without an answer, the receiver gets an error.
pub struct Answering<T>(Arc<Answer<T>>);

impl<T> Answering<T> {
    /// Sends the answer, from any thread.
    pub fn give(self, value: T) {
        self.0.settle(Some(value));
    }
}

impl<T> Drop for Answering<T> {
    fn drop(&mut self) {
        self.0.settle(None);
    }
}

/// Creates the two sides of an answer from another thread.
pub fn answer<T>() -> (Answering<T>, RemoteHandle<T>) {
    let state = Mutex::new(AnswerState { value: None, waker: None, closed: false });
    let answer = Arc::new(Answer { state });
    (Answering(answer.clone()), RemoteHandle(answer))
}

/// Handle of a task on another shard. Awaiting it returns the task's result; dropping it detaches the task.
#[must_use = "a task on another shard goes on by itself; await it or drop it knowingly"]
pub struct RemoteHandle<T>(Arc<Answer<T>>);

impl<T> RemoteHandle<T> {
    /// Detaches the task, which continues.
    pub fn detach(self) {}
}

impl<T> Future for RemoteHandle<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let mut state = lock(&self.0.state);
        if let Some(value) = state.value.take() {
            return Poll::Ready(Ok(value));
        }
        if state.closed {
            return Poll::Ready(Err(Error::cancelled("the task's shard ended before it returned")));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Starts a task on any shard: `make` is sent there and creates the future.
///
/// # Panics
/// If the shard doesn't exist.
pub fn spawn_on<T, Fut>(shard: ShardIndex, make: impl FnOnce() -> Fut + Send + 'static) -> RemoteHandle<T>
where
    T: Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    let (answering, handle) = answer();
    let work = move || {
        crate::task::spawn(async move {
            let value = make().await;
            answering.0.settle(Some(value));
        })
        .detach();
    };
    let target = shard::with_current(|current| {
        assert!(shard.0 < current.all.len(), "shard {shard} out of range 0..{}", current.all.len());
        current.all[shard.0].clone()
    });
    target.post(Letter::Do(Box::new(work)));
    handle
}

/// Runs a blocking call (a program, a resolver) on a thread of its own, and waits for it. A panic in it is
/// propagated. Under simulation the call runs at once, on this thread.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if shard::with_current(|shard| shard.world().is_some()) {
        crate::task::yield_now().await;
        return work();
    }
    let (answering, handle) = answer();
    let spawned = std::thread::Builder::new().name("blocking".into()).spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        answering.0.settle(Some(result));
    });
    spawned.expect("the system can start a thread");
    match handle.await.expect("the thread always answers") {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
