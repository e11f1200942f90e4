//! The end of a server: it waits for its storage as long as that completes requests.
//!
//! [`Wait`] decides when the server ends without its storage. The waiting is a task of shard 0; if that shard
//! hangs in a call to the kernel, a timer of the kernel ends the process ([`HangLimits`]).

pub mod watch;

use crate::log_target;
use crate::output::say;
use crate::service;
use block::{Call, Result};
use runtime::{HangLimits, StopSignals};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use watch::{Progress, Watch};

/// Seconds for which the storage may complete none of its requests while the server ends, and for which one
/// request may be in flight: longer than a flush of much data to a slow device.
const STOP_PATIENCE: u64 = 600;
/// The same for requests in flight after a further signal, counted from that signal.
const SIGNALLED_PATIENCE: u64 = 10;
/// Seconds without a completed request, in flight or not, after which two further signals end the server:
/// longer than users of a mount have to close their files.
const IDLE_PATIENCE: u64 = 30;
/// Seconds for which one request may be in flight after two further signals, also if others complete: as long
/// as Linux waits for a command of a disk.
const OLDEST_PATIENCE: u64 = 30;
/// A turn of the watch.
const TURN: Duration = Duration::from_secs(1);
/// Turns after which users are told that the server hasn't ended yet.
const TOLD_AFTER: u64 = 10;
/// Time limit for aborting the connections of mounts.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// Effect of a second signal of the same kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Further {
    /// The process ends at once, also if the runtime doesn't run.
    EndsProcess,
    /// A mount or a node would be left without a server: the patience becomes shorter.
    ShortensPatience,
}

/// Served parts, while their server ends.
pub trait Served {
    /// Whether closing waits for space.
    fn is_waiting_for_space(&self) -> bool {
        false
    }

    /// Aborts the connections of mounts, for a server that ends without its storage.
    fn abort(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }
}

/// Nothing that needs an end of its own.
impl Served for () {}

/// The end of a server. If the storage doesn't complete the requests ([`Wait`]), the connections of mounts
/// are aborted and the process ends, as its threads may wait in the kernel for ever.
pub struct Stop {
    name: String,
    loss: String,
    further: Further,
    watch: Watch,
    caught: Rc<StopSignals>,
    signals: Signals<Box<NextSignal>>,
    /// Turns of all waits.
    turns: Cell<u64>,
}

type NextSignal = dyn Fn() -> Pin<Box<dyn Future<Output = Result<()>>>>;

/// Counted signals. One future waits for the next of them all the time: dropping it could lose a signal that
/// it has received.
struct Signals<N> {
    next: N,
    pending: RefCell<Pin<Box<dyn Future<Output = Result<()>>>>>,
    count: Cell<u32>,
}

impl<N: Fn() -> Pin<Box<dyn Future<Output = Result<()>>>>> Signals<N> {
    fn new(next: N) -> Self {
        let pending = RefCell::new(next());
        Signals { next, pending, count: Cell::new(0) }
    }

    /// Counts the next signal once there is one.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let outcome = std::task::ready!(self.pending.borrow_mut().as_mut().poll(context));
        *self.pending.borrow_mut() = (self.next)();
        self.count.set(self.count.get() + u32::from(outcome.is_ok()));
        Poll::Ready(outcome)
    }
}

/// Observations of one turn of a wait.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    requests: Progress,
    waits_for_space: bool,
    /// Signals since the server began: the first one asks for an orderly end.
    signals: u32,
}

/// Reason for which a server ends without its storage, with the time in seconds.
#[derive(Debug, PartialEq, Eq)]
enum Reason {
    Unanswered(u64),
    NoSpace(u64),
    NoProgress(u64),
    /// A request is older.
    Oldest(u64),
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Unanswered(time) => {
                write!(formatter, "the storage hasn't answered a request for {time} s")
            }
            Reason::NoSpace(time) => write!(formatter, "the storage has had no space for {time} s"),
            Reason::NoProgress(time) => {
                write!(formatter, "no request to the storage has completed for {time} s")
            }
            Reason::Oldest(time) => {
                write!(formatter, "a request to the storage has been in flight for more than {time} s")
            }
        }
    }
}

/// A wait, in turns of a second. Any successful I/O of the storage is progress. The server ends without its
/// storage:
/// - when nothing completes for [`STOP_PATIENCE`], unless closing waits for space, or a request in flight is
///   older than that: requests to other devices may complete meanwhile, for example of a layer that probes
///   them.
/// - after the second signal, when requests are in flight and none completes for [`SIGNALLED_PATIENCE`].
/// - after the third signal, also when closing waits for space for [`SIGNALLED_PATIENCE`], or nothing
///   completes for [`IDLE_PATIENCE`], or a request in flight is older than [`OLDEST_PATIENCE`].
#[derive(Debug, Default)]
struct Wait {
    completed: u64,
    unanswered: u64,
    without_space: u64,
    without_progress: u64,
    generation: u64,
    /// Turns in the same generation of requests: a request in flight is older.
    oldest: u64,
    signals: u32,
}

impl Wait {
    fn turn(&mut self, seen: Seen) -> Option<Reason> {
        let Progress { completed, in_flight, generation } = seen.requests;
        let has_progress = self.completed != completed;
        let longer = |counts: bool, time: u64| if counts { time + 1 } else { 0 };
        let is_signalled = std::mem::replace(&mut self.signals, seen.signals) < seen.signals;
        self.completed = completed;
        // A signal shortens the patience from now on: a request may have taken longer before.
        self.unanswered = longer(in_flight && !has_progress && !is_signalled, self.unanswered);
        self.oldest = longer(self.generation == generation, self.oldest);
        self.generation = generation;
        self.without_space = longer(seen.waits_for_space, self.without_space);
        self.without_progress = longer(!has_progress && !seen.waits_for_space, self.without_progress);
        let patience = if seen.signals < 2 { STOP_PATIENCE } else { SIGNALLED_PATIENCE };
        if self.unanswered > patience {
            return Some(Reason::Unanswered(self.unanswered));
        }
        if seen.signals > 2 && self.without_space > SIGNALLED_PATIENCE {
            return Some(Reason::NoSpace(self.without_space));
        }
        let idle_patience = if seen.signals > 2 { IDLE_PATIENCE } else { STOP_PATIENCE };
        if self.without_progress > idle_patience {
            return Some(Reason::NoProgress(self.without_progress));
        }
        let oldest_patience = if seen.signals > 2 { OLDEST_PATIENCE } else { STOP_PATIENCE };
        (self.oldest > oldest_patience).then_some(Reason::Oldest(self.oldest))
    }
}

impl Stop {
    /// Installs the handler of signals. `loss` is the end of the message of a server that ends without its
    /// storage: the lost changes, and the remedy.
    ///
    /// # Errors
    /// Errors of [`StopSignals::catch`].
    pub fn new(name: &str, loss: String, further: Further, watch: &Watch) -> Result<Stop> {
        let caught = Rc::new(match further {
            Further::EndsProcess => StopSignals::catch_first()?,
            Further::ShortensPatience => StopSignals::catch()?,
        });
        let message =
            format!("{name}: the server hangs in a call to the kernel; it ends without its storage: {loss}");
        caught.limit_hangs(HangLimits {
            first: STOP_PATIENCE as u32,
            further: SIGNALLED_PATIENCE as u32,
            log: log_target::last_message(&message),
            message: message + "\n",
        })?;
        let signalled = caught.clone();
        let next: Box<NextSignal> = Box::new(move || {
            let signalled = signalled.clone();
            Box::pin(async move { signalled.next().await })
        });
        let (name, watch, signals) = (name.to_owned(), watch.clone(), Signals::new(next));
        Ok(Stop { name, loss, further, watch, caught, signals, turns: Cell::new(0) })
    }

    /// Waits for a signal.
    ///
    /// # Errors
    /// Errors of [`StopSignals::next`].
    pub async fn signal(&self) -> Result<()> {
        std::future::poll_fn(|context| self.signals.poll(context)).await
    }

    /// Carries out a part of the end.
    pub async fn wait<T>(&self, served: &dyn Served, ending: impl Future<Output = T>) -> T {
        service::stopping();
        match self.carry_out(served, ending).await {
            Ok(outcome) => outcome,
            Err(reason) => self.give_up(&reason, served).await,
        }
    }

    /// Carries out a part of the end, or returns the reason to end without the storage.
    async fn carry_out<T>(
        &self,
        served: &dyn Served,
        ending: impl Future<Output = T>,
    ) -> std::result::Result<T, Reason> {
        let (mut ending, mut wait) = (pin!(ending), Wait::default());
        loop {
            let mut turn = pin!(runtime::sleep(TURN));
            let ended = std::future::poll_fn(|context| {
                if let Poll::Ready(outcome) = ending.as_mut().poll(context) {
                    return Poll::Ready(Some(outcome));
                }
                // Without signals the storage alone decides.
                while matches!(self.signals.poll(context), Poll::Ready(Ok(()))) {}
                turn.as_mut().poll(context).map(|()| None)
            });
            if let Some(outcome) = ended.await {
                return Ok(outcome);
            }
            self.caught.still_ending();
            let (requests, waits_for_space) = (self.watch.observe(), served.is_waiting_for_space());
            let signals = self.signals.count.get();
            if let Some(reason) = wait.turn(Seen { requests, waits_for_space, signals }) {
                return Err(reason);
            }
            self.turns.set(self.turns.get() + 1);
            if self.turns.get() == TOLD_AFTER && signals < 2 {
                self.tell();
            }
        }
    }

    /// Tells users that the server hasn't ended yet.
    fn tell(&self) {
        let further = match self.further {
            Further::EndsProcess => "ends it at once".to_owned(),
            Further::ShortensPatience => format!("shortens that to {SIGNALLED_PATIENCE} s"),
        };
        say(&format!(
            "{}: the server has been closing its storage for {TOLD_AFTER} s; it gives up when no request completes for {STOP_PATIENCE} s; a \
             second SIGTERM or Ctrl-C {further}: then changes that aren't durable are lost",
            self.name
        ));
    }

    /// Ends the process without its storage.
    async fn give_up(&self, reason: &Reason, served: &dyn Served) -> ! {
        match runtime::timeout(ABORT_LIMIT, served.abort()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => say(&format!("{}: {error}", self.name)),
            Err(_) => say(&format!(
                "{}: aborting the connection of the mount takes longer than {ABORT_LIMIT:?}",
                self.name
            )),
        }
        say(&format!("{}: {reason}; the server ends without it: {}", self.name, self.loss));
        // An orderly end would wait for requests in flight.
        log_target::exit(1);
    }
}

#[cfg(test)]
mod tests;
