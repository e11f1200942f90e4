//! The end of a server: it waits for its storage as long as that completes requests.

pub mod watch;

use crate::output::say;
use crate::service;
use block::{Call, Result};
use runtime::StopSignals;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use watch::{Progress, Watch};

/// Seconds for which the storage may complete none of its requests while the server ends: longer than a flush
/// of much data to a slow device.
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

/// A wait, in turns of a second. Any completion of a request to the storage is progress. The server ends
/// without its storage:
/// - when nothing completes for [`STOP_PATIENCE`], unless closing waits for space.
/// - after the second signal, when requests are in flight and none completes for [`SIGNALLED_PATIENCE`].
/// - after the third signal, also when closing waits for space for [`SIGNALLED_PATIENCE`], or nothing
///   completes for [`IDLE_PATIENCE`], or a request in flight is older than [`OLDEST_PATIENCE`]: requests to
///   other devices may complete meanwhile.
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
        (seen.signals > 2 && self.oldest > OLDEST_PATIENCE).then_some(Reason::Oldest(self.oldest))
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
        let next: Box<NextSignal> = Box::new(move || {
            let caught = caught.clone();
            Box::pin(async move { caught.next().await })
        });
        let (name, watch, signals) = (name.to_owned(), watch.clone(), Signals::new(next));
        Ok(Stop { name, loss, further, watch, signals, turns: Cell::new(0) })
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
                return outcome;
            }
            let (requests, waits_for_space) = (self.watch.observe(), served.is_waiting_for_space());
            let signals = self.signals.count.get();
            if let Some(reason) = wait.turn(Seen { requests, waits_for_space, signals }) {
                self.give_up(&reason, served).await;
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
        std::process::exit(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// Turns until the server ends without its storage, at most 2000; `seen` has the observations of a turn.
    fn given_up(seen: impl Fn(u64) -> Seen) -> Option<(u64, Reason)> {
        let mut wait = Wait::default();
        (0..2000).find_map(|turn| wait.turn(seen(turn)).map(|reason| (turn, reason)))
    }

    /// Requests in turn `turn` after `completed` completions. No request is old.
    fn young(turn: u64, completed: u64, in_flight: bool) -> Progress {
        Progress { completed, in_flight, generation: turn + 1 }
    }

    #[test]
    fn a_storage_that_completes_requests_is_waited_for() {
        for signals in 0..5 {
            // Each request takes 4 s, one after another.
            let requests = |turn: u64| Progress { generation: turn / 4, ..young(turn, turn / 4, true) };
            let slow = |turn| Seen { requests: requests(turn), signals, ..Seen::default() };
            assert_eq!(given_up(slow), None, "after {signals} signals");
        }
    }

    /// A flush that hangs in one device, while another one completes work.
    #[test]
    fn a_request_that_hangs_among_others_that_complete_ends_the_server_after_two_further_signals() {
        let hung = |signals| {
            given_up(|turn| Seen {
                requests: Progress { generation: 7, ..young(turn, turn, true) },
                signals,
                ..Seen::default()
            })
        };
        for signals in 0..3 {
            assert_eq!(hung(signals), None, "after {signals} signals");
        }
        assert_eq!(hung(3), Some((31, Reason::Oldest(31))));
    }

    #[test]
    fn an_unanswered_request_ends_the_server_sooner_after_a_further_signal() {
        let stuck = |signals| {
            let requests = Progress { completed: 7, in_flight: true, generation: 1 };
            given_up(|_| Seen { requests, signals, ..Seen::default() })
        };
        for signals in [0, 1] {
            // The first turn sees progress.
            assert_eq!(stuck(signals), Some((601, Reason::Unanswered(601))), "after {signals} signals");
        }
        for signals in [2, 3] {
            assert_eq!(stuck(signals), Some((11, Reason::Unanswered(11))), "after {signals} signals");
        }
        // A flush of a slow device.
        let flush = |turn| Seen {
            requests: Progress { generation: turn / 500, ..young(turn, turn / 500, true) },
            signals: 1,
            ..Seen::default()
        };
        assert_eq!(given_up(flush), None);
    }

    #[test]
    fn a_further_signal_gives_a_request_in_flight_the_shorter_time_from_then_on() {
        let requests = Progress { completed: 7, in_flight: true, generation: 1 };
        let flush = |turn| Seen { requests, signals: 1 + u32::from(turn >= 60), ..Seen::default() };
        assert_eq!(given_up(flush), Some((71, Reason::Unanswered(11))));
    }

    #[test]
    fn the_wait_for_space_is_no_time_without_progress() {
        let space_at_last = |turn| Seen {
            requests: young(turn, turn.saturating_sub(705), false),
            waits_for_space: turn < 700,
            signals: 1,
        };
        assert_eq!(given_up(space_at_last), None);
    }

    #[test]
    fn two_further_signals_end_a_server_that_waits_for_space_or_for_nothing() {
        let full = |signals| {
            given_up(|turn| Seen { requests: young(turn, turn, false), signals, waits_for_space: true })
        };
        let idle =
            |signals| given_up(|turn| Seen { requests: young(turn, 0, false), signals, ..Seen::default() });
        for signals in 0..3 {
            assert_eq!(full(signals), None, "after {signals} signals");
            assert_eq!(idle(signals), Some((600, Reason::NoProgress(601))), "after {signals} signals");
        }
        assert_eq!(full(3), Some((10, Reason::NoSpace(11))));
        assert_eq!(idle(3), Some((30, Reason::NoProgress(31))));
        let soon =
            |turn| Seen { requests: young(turn, turn, false), signals: 3, waits_for_space: turn % 5 > 0 };
        assert_eq!(given_up(soon), None, "there is space from time to time");
    }

    #[test]
    fn no_signal_is_lost_between_two_waits() {
        // Each future takes a signal when it is first polled, and tells of it at the second poll.
        let next = || {
            let mut is_taken = false;
            let taking = std::future::poll_fn(move |_| match std::mem::replace(&mut is_taken, true) {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            });
            Box::pin(taking) as Pin<Box<dyn Future<Output = Result<()>>>>
        };
        let signals = Signals::new(next);
        let mut context = Context::from_waker(Waker::noop());
        for count in 1..4 {
            assert!(signals.poll(&mut context).is_pending());
            assert!(matches!(signals.poll(&mut context), Poll::Ready(Ok(()))));
            assert_eq!(signals.count.get(), count);
        }
    }
}
