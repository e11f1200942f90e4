//! Shards for programs that aren't built on this runtime: a service runs on shards of its own threads, and
//! any thread or executor calls it.
//!
//! [`start`] starts the threads and opens a service on them, such as a store; the [`Embedded`] handle is
//! `Send + Sync + Clone`. [`Embedded::call`] runs a closure on a shard and returns a [`Pending`], a `Send`
//! future for any executor, which a thread can also wait for ([`Pending::blocking`]).
//!
//! # Promises
//! - Every call returns. If a shard panics, all shards end, and every call, begun or not, fails with an error
//!   that has the panic's text.
//! - At most [`MAX_IN_FLIGHT`] calls are in flight on a shard; further ones wait, in order. A call that was
//!   polled once runs without further polls, so others never wait for its caller.
//! - A sleeping shard is woken by one write to its eventfd; a running one costs no system call.
//! - The service is closed by [`Embedded::close`], or when the last handle is dropped; both wait for the
//!   calls in flight, and until all threads have ended. Later calls fail with [`Error::Closed`].
//! - A call whose future is dropped after its first poll runs to its end, unless it still waits because of
//!   that limit.
//!
//! A caller with a single call in flight spins up to 10 µs for the answer if the shard is awake, earlier
//! answers came in that time, and the process has more processors than shards. Two wake-ups of threads would
//! take 40 to 80 µs on a virtual machine.
//! A shard that runs on the processor of a caller that spun in vain moves to another one.

mod gate;
mod pending;

pub use gate::MAX_IN_FLIGHT;
pub use pending::Pending;

use crate::config::{Config, ShardIndex};
use crate::mailbox::{Letter, Mailbox, lock};
use crate::remote::{Answering, answer, spawn_on};
use crate::shard::with_current;
use block::{Error, Result};
use gate::Gate;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Waker};

/// Handle of a service on shards of its own. Clones refer to the same service; dropping the last one closes
/// it, and waits for that.
pub struct Embedded<S> {
    /// The shards own the service, so that nothing of it is left after its end.
    service: Weak<S>,
    owner: Arc<Owner>,
}

impl<S> Clone for Embedded<S> {
    fn clone(&self) -> Self {
        Embedded { service: self.service.clone(), owner: self.owner.clone() }
    }
}

impl<S> std::fmt::Debug for Embedded<S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Embedded({} shards)", self.shards())
    }
}

/// State that callers and shards share.
struct Link {
    mailboxes: Arc<[Arc<Mailbox>]>,
    gates: Box<[Gate]>,
    /// Whether callers may spin.
    spins: bool,
    /// Signal to close the service; `None` once it is given.
    end: Mutex<Option<Answering<()>>>,
    outcome: Mutex<Outcome>,
}

/// Result of the service's end, and the callers that wait for it.
#[derive(Default)]
struct Outcome {
    result: Option<Result<()>>,
    wakers: Vec<Waker>,
}

impl Link {
    fn gate(&self, shard: ShardIndex) -> &Gate {
        &self.gates[shard.0]
    }

    fn mailbox(&self, shard: ShardIndex) -> &Mailbox {
        &self.mailboxes[shard.0]
    }

    fn refuse(&self, reason: &Error) {
        self.gates.iter().for_each(|gate| gate.refuse(reason));
    }

    /// Refuses further calls, and begins to close the service.
    fn begin_end(&self) {
        self.refuse(&Error::closed("it was closed by this program; open it again"));
        let end = lock(&self.end).take();
        if let Some(end) = end {
            end.give(());
        }
    }

    /// Records the result of the end, after all shards have ended.
    fn settle(&self, result: Result<()>) {
        let reason = result.clone().err().unwrap_or_else(|| Error::closed("its shards have ended"));
        self.refuse(&reason);
        let wakers = {
            let mut outcome = lock(&self.outcome);
            outcome.result = Some(result);
            std::mem::take(&mut outcome.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    fn poll_outcome(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut outcome = lock(&self.outcome);
        if let Some(result) = &outcome.result {
            return Poll::Ready(result.clone());
        }
        if !outcome.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            outcome.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// Closes the service when it is dropped.
struct Owner {
    link: Arc<Link>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.link.begin_end();
        // A shard can't wait for its own end.
        if crate::is_on_shard() {
            return;
        }
        if let Err(error) = pending::block_on(poll_fn(|context| self.link.poll_outcome(context))) {
            tracing::error!("closing after the last handle was dropped: {error}");
        }
    }
}

/// Starts shards on threads of their own, and opens a service there: `open` runs on shard 0, and `close` runs
/// there before the shards end. If the returned call is dropped, the service is closed again.
///
/// # Errors
/// Errors of `open`; [`Error::Invalid`] for a number of shards out of range; the kernel's error if it creates
/// no ring or thread.
pub fn start<S, Opening, Closing>(
    config: Config,
    open: impl FnOnce() -> Opening + Send + 'static,
    close: impl FnOnce(Arc<S>) -> Closing + Send + 'static,
) -> Pending<Embedded<S>>
where
    S: Send + Sync + 'static,
    Opening: Future<Output = Result<S>> + 'static,
    Closing: Future<Output = Result<()>> + 'static,
{
    Pending::of(async move {
        let (opened, opening) = answer();
        let (ended, end) = answer();
        let work = move || supervise(config, opened, ended, open, close);
        std::thread::Builder::new()
            .name("siltstone".to_owned())
            .spawn(work)
            .map_err(|error| Error::from_io(&error, "starting a thread"))?;
        match opening.await {
            Ok(embedded) => Ok(embedded),
            Err(_) => match end.await? {
                Ok(()) => Err(Error::cancelled("the shards ended before the service was open")),
                Err(error) => Err(error),
            },
        }
    })
}

/// Runs the shards until the service has ended. A thread that waits costs little, and the shards are joined
/// in one place.
fn supervise<S, Opening, Closing>(
    config: Config,
    opened: Answering<Embedded<S>>,
    ended: Answering<Result<()>>,
    open: impl FnOnce() -> Opening + Send,
    close: impl FnOnce(Arc<S>) -> Closing + Send + 'static,
) where
    S: Send + Sync + 'static,
    Opening: Future<Output = Result<S>> + 'static,
    Closing: Future<Output = Result<()>> + 'static,
{
    let found: Arc<OnceLock<Arc<Link>>> = Arc::default();
    let slot = found.clone();
    let main = move || {
        let opening = open();
        async move {
            // A shard without a ring ends the program's attempt here, not its first call.
            for shard in 1..crate::shard_count() {
                spawn_on(ShardIndex(shard), || async {}).await?;
            }
            let service = Arc::new(opening.await?);
            let (end, is_ending) = answer();
            let link = with_current(|shard| Link {
                gates: shard.all.iter().map(|_| Gate::default()).collect(),
                mailboxes: shard.all.clone(),
                spins: crate::signal::allowed_processors().len() > shard.all.len(),
                end: Mutex::new(Some(end)),
                outcome: Mutex::default(),
            });
            let link = Arc::new(link);
            // Set once, here.
            let _ = slot.set(link.clone());
            let owner = Arc::new(Owner { link: link.clone() });
            opened.give(Embedded { service: Arc::downgrade(&service), owner });
            // An error would also be the end.
            let _ = is_ending.await;
            for gate in &link.gates {
                poll_fn(|context| gate.poll_drained(context)).await;
            }
            close(service).await
        }
    };
    let outcome = match std::panic::catch_unwind(AssertUnwindSafe(|| crate::run(config, main))) {
        Ok(returned) => returned.flatten(),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(Error::cancelled(format!(
                "a shard ended with a panic ({}); open it again, which recovers what was acknowledged",
                text.unwrap_or("without a text")
            )))
        }
    };
    match found.get() {
        Some(link) => link.settle(outcome),
        None => ended.give(outcome),
    }
}

impl<S> Embedded<S> {
    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.owner.link.gates.len()
    }

    /// Returns a call that runs the future of `make` on a shard, with the service.
    ///
    /// # Errors
    /// Errors of the future; [`Error::Closed`] after the end of the service; [`Error::Cancelled`] with the
    /// panic's text if a shard ended with a panic.
    ///
    /// # Panics
    /// If the shard doesn't exist.
    pub fn call<T, Fut>(
        &self,
        shard: ShardIndex,
        make: impl FnOnce(Arc<S>) -> Fut + Send + 'static,
    ) -> Pending<T>
    where
        S: Send + Sync + 'static,
        T: Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        assert!(shard.0 < self.shards(), "shard {shard} out of range 0..{}", self.shards());
        let service = self.service.clone();
        let make = move || async move {
            match service.upgrade() {
                Some(service) => make(service).await,
                None => Err(Error::closed("it was closed by this program; open it again")),
            }
        };
        Pending::call(self.owner.clone(), shard, make)
    }

    /// Runs `work` on a shard without waiting for it, unless the service has ended: for the release of state
    /// that belongs to the shards.
    ///
    /// # Panics
    /// If the shard doesn't exist.
    pub fn send(&self, shard: ShardIndex, work: impl FnOnce() + Send + 'static) {
        self.owner.link.mailbox(shard).post(Letter::Do(Box::new(work)));
    }

    /// Closes the service for all handles, and waits until its threads have ended. Calls in flight end first.
    /// Further calls of `close` return the same result.
    ///
    /// # Errors
    /// Errors of closing the service; [`Error::Cancelled`] if a shard ended with a panic.
    pub fn close(&self) -> Pending<()> {
        let owner = self.owner.clone();
        Pending::of(async move {
            owner.link.begin_end();
            poll_fn(|context| owner.link.poll_outcome(context)).await
        })
    }
}
