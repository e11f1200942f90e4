//! Messages from one shard to another with their answers, and blocking calls.

use crate::config::ShardIndex;
use crate::mailbox::{Letter, lock};
use crate::requester::Requester;
use crate::shard;
use block::{Error, Result};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

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
#[must_use = "a task on another shard continues by itself; await it or drop it knowingly"]
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

/// Starts a task on any shard: `make` is sent there and creates the future. The task has the
/// [requester](crate::requester()) of the caller.
///
/// # Panics
/// If the shard doesn't exist.
pub fn spawn_on<T, Fut>(shard: ShardIndex, make: impl FnOnce() -> Fut + Send + 'static) -> RemoteHandle<T>
where
    T: Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    spawn_on_for(crate::requester(), shard, make)
}

/// As [`spawn_on`], for a client.
pub(crate) fn spawn_on_for<T, Fut>(
    requester: Requester,
    shard: ShardIndex,
    make: impl FnOnce() -> Fut + Send + 'static,
) -> RemoteHandle<T>
where
    T: Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    let (answering, handle) = answer();
    let work = move || {
        crate::task::spawn(async move {
            let value = crate::attributed(requester, make()).await;
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
    try_blocking(work).await.expect("the system can start a thread")
}

/// As [`blocking`], for work that the program can do without.
///
/// # Errors
/// [`Error::Os`](block::Error::Os) if the system can't start another thread.
pub async fn try_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    if shard::with_current(|shard| shard.world().is_some()) {
        crate::task::yield_now().await;
        return Ok(work());
    }
    let (answering, handle) = answer();
    let spawned = std::thread::Builder::new().name("blocking".into()).spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        answering.0.settle(Some(result));
    });
    spawned.map_err(|error| Error::from_io(&error, "starting a thread"))?;
    match handle.await.expect("the thread always answers") {
        Ok(value) => Ok(value),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
