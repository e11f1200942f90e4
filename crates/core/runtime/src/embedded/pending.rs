//! Futures of calls from outside threads: for any executor, or to be waited for by a thread.

use super::{Link, Owner};
use crate::clock::now;
use crate::config::ShardIndex;
use crate::embedded::gate::{Counted, Entry, Ticket, Work};
use crate::mailbox::{Letter, lock};
use crate::signal::{current_processor, leave_processor};
use block::{Error, Result};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// Longest time that a caller spins for its answer. The wake-up of a sleeping thread takes longer.
const SPIN_LIMIT: Duration = Duration::from_micros(10);

/// A call, which begins when it is first polled or when a thread waits for it
/// ([`blocking`](Self::blocking)). Dropping it afterwards ends the waiting, not the call: a write that has
/// begun takes effect. Polled again after it has returned its result, it fails with [`Error::Invalid`].
#[must_use = "a call does nothing until it is awaited, or waited for with `blocking`"]
pub struct Pending<T>(State<T>);

enum State<T> {
    Call(Call<T>),
    Other(Pin<Box<dyn Future<Output = Result<T>> + Send>>),
    Failed(Error),
    /// The result was taken.
    Ended,
}

/// A call of one shard. It keeps the service open.
struct Call<T> {
    owner: Arc<Owner>,
    shard: ShardIndex,
    /// Place in the queue of the gate, if the call had to wait there.
    ticket: Option<Ticket>,
    /// Message to the shard; `None` once it is sent, or in the queue of the gate.
    work: Option<Work>,
    answer: Arc<Answer<T>>,
}

/// Answer of a call, shared by its two sides.
struct Answer<T> {
    state: Mutex<AnswerState<T>>,
    is_settled: AtomicBool,
    /// Whether the call is counted by its gate.
    has_entered: AtomicBool,
}

impl<T: Send> Counted for Answer<T> {
    fn set_entered(&self) {
        self.has_entered.store(true, Ordering::Relaxed);
    }
}

struct AnswerState<T> {
    value: Option<Result<T>>,
    waker: Option<Waker>,
}

/// Shard's side of a call. Dropping it, also with the tasks of a shard that ends, tells the caller.
struct Running<T> {
    answer: Arc<Answer<T>>,
    link: Arc<Link>,
    shard: ShardIndex,
    value: Option<Result<T>>,
}

impl<T> Running<T> {
    /// Gives the answer.
    fn finish(mut self, value: Result<T>) {
        self.value = Some(value);
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        if self.answer.has_entered.load(Ordering::Relaxed) {
            // Before the answer: a caller that calls again at once finds no call in flight.
            let gate = self.link.gate(self.shard);
            if let Some(next) = gate.leave()
                && let Some(refused) = self.link.mailbox(self.shard).try_post(next)
            {
                // The shard has ended. All at once, since each that is dropped would drop the next one.
                gate.drop_waiting();
                drop(refused);
            }
        }
        let waker = {
            let mut state = lock(&self.answer.state);
            state.value = self.value.take();
            self.answer.is_settled.store(true, Ordering::Release);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pending").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Pending<T> {
    /// Returns a call that runs a future.
    pub fn of(future: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Pending(State::Other(Box::pin(future)))
    }

    /// Returns a call that fails.
    pub fn failed(error: Error) -> Self {
        Pending(State::Failed(error))
    }

    pub(super) fn call<Fut>(
        owner: Arc<Owner>,
        shard: ShardIndex,
        make: impl FnOnce() -> Fut + Send + 'static,
    ) -> Self
    where
        Fut: Future<Output = Result<T>> + 'static,
    {
        let answer = Arc::new(Answer {
            state: Mutex::new(AnswerState { value: None, waker: None }),
            is_settled: AtomicBool::new(false),
            has_entered: AtomicBool::new(false),
        });
        let running = Running { answer: answer.clone(), link: owner.link.clone(), shard, value: None };
        let work = move || {
            let task = async move {
                let link = running.link.clone();
                running.finish(make().await);
                if let Some(processor) = link.gate(shard).take_vain_processor() {
                    leave_processor(processor);
                }
            };
            crate::task::spawn(task).detach();
        };
        Pending(State::Call(Call { owner, shard, ticket: None, work: Some(Box::new(work)), answer }))
    }

    /// Makes this thread wait for the result.
    ///
    /// # Errors
    /// Errors of the call; [`Error::Invalid`] on a shard, which would wait for itself.
    pub fn blocking(self) -> Result<T> {
        if crate::is_on_shard() {
            return Err(Error::invalid(
                "a blocking call on a shard, which would wait for itself; expected another thread; await the call instead",
            ));
        }
        block_on(self)
    }
}

impl<T: Send + 'static> Call<T> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T>> {
        let link = &self.owner.link;
        let gate = link.gate(self.shard);
        if let Some(work) = self.work.take() {
            match gate.enter(work, || self.answer.clone()) {
                Entry::Entered { work, is_alone } => {
                    self.answer.set_entered();
                    let is_awake = link.mailbox(self.shard).post(Letter::Do(work));
                    if is_awake && is_alone && link.spins && gate.should_spin() {
                        gate.spun(self.answer.spin(), current_processor);
                    }
                }
                Entry::Waiting(ticket) => self.ticket = Some(ticket),
                Entry::Refused(refusal) => return Poll::Ready(Err(refusal)),
            }
        }
        let answered = {
            let mut state = lock(&self.answer.state);
            if !self.answer.is_settled.load(Ordering::Acquire) {
                match &mut state.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
            state.value.take()
        };
        match answered {
            Some(value) => Poll::Ready(value),
            None if !self.answer.has_entered.load(Ordering::Relaxed)
                && let Some(refusal) = gate.refusal() =>
            {
                Poll::Ready(Err(refusal))
            }
            // The shard has ended. Its reason is known once all shards have ended.
            None => link.poll_outcome(context).map(|outcome| {
                Err(outcome.err().unwrap_or_else(|| Error::cancelled("the shard ended before the call")))
            }),
        }
    }
}

impl<T> Answer<T> {
    /// Waits a short time without sleeping; returns whether the answer has arrived.
    fn spin(&self) -> bool {
        let deadline = now() + SPIN_LIMIT;
        loop {
            for _ in 0..16 {
                if self.is_settled.load(Ordering::Acquire) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if now() >= deadline {
                return false;
            }
        }
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.owner.link.gate(self.shard).abandon(ticket);
        }
    }
}

impl<T: Send + 'static> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let state = &mut self.get_mut().0;
        let result = match state {
            State::Call(call) => call.poll(context),
            State::Other(future) => future.as_mut().poll(context),
            State::Failed(error) => Poll::Ready(Err(error.clone())),
            State::Ended => Poll::Ready(Err(Error::invalid(
                "a call that has returned its result was polled again; expected one use of its result; make another call",
            ))),
        };
        // A call whose answer was taken looks like one whose shard has ended, which waits for the reason.
        if result.is_ready() {
            *state = State::Ended;
        }
        result
    }
}

/// Wakes a thread that waits in [`block_on`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
}

/// Polls a future on this thread, which sleeps in between.
pub(super) fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    // Destructors of other thread-locals may call when this one has been destroyed.
    let waker = UNPARK
        .try_with(Waker::clone)
        .unwrap_or_else(|_| Waker::from(Arc::new(Unpark(std::thread::current()))));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}
