//! Observation of the parts of a stack: counters, latencies and single calls, on demand.
//!
//! # Promises
//! - Each device and each set of zones is observed for all of its users together, and once more for each door
//!   above it, also for each client of the door (`clients.rs`). Calls pass through unchanged.
//! - While there is no reader, a call costs one load and a branch for each part that it passes.
//! - While there is one, it costs what `stats` costs; single calls are kept only for a [`Trace`], with the
//!   client that the door named ([`runtime::requester()`]). Of each part at most [`MAX_EVENTS`] calls wait
//!   for it; further ones are counted as lost.
//! - Counters begin with the first reader. They stop without one, and continue with the next.
//!
//! Sockets, files and output are left to the program that serves the stack.

mod clients;

pub use clients::{ClientCalls, MAX_CLIENTS};

use crate::stats::counters::{CallsMade, Counting, PartCounters, Running};
use crate::stats::{Counted, counter_of, zones_counter_of};
use block::layer::{DeviceCall, ObserveHandles, ObservedPart, Observer, Position, ZonesCall};
use block::{DevicePart, Error, Result, ZonesPart};
use clients::{Clients, HandleClients};
use runtime::{Instant, Requester};
use stack::{Built, Contract, Stack, User};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Limit of the calls of one part that wait for a trace.
pub const MAX_EVENTS: usize = 8192;

/// Observation of the parts of one stack. Clones are the same observation.
#[derive(Debug, Clone, Default)]
pub struct Observation(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    is_traced: AtomicBool,
    /// Time until which calls are counted at least, in nanoseconds; 0 if they aren't.
    until: AtomicU64,
    holds: AtomicUsize,
    /// Calls that took less aren't traced, in nanoseconds.
    least: AtomicU64,
    /// In the order of building.
    parts: Mutex<Vec<Arc<ObservedCalls>>>,
    clients: Clients,
}

/// Calls to a part, from all users or from one door.
pub struct ObservedCalls {
    /// Name of the part.
    pub part: String,
    /// Door whose calls these are; `None` for the calls of all users.
    pub door: Option<String>,
    /// Kind of the part, or of the door.
    pub kind: &'static str,
    /// Contract of the part.
    pub contract: Contract,
    /// Names of the parts directly below it.
    pub below: Vec<String>,
    counters: Arc<PartCounters>,
    /// Whether a trace wants calls of this part.
    is_traced: AtomicBool,
    events: Mutex<Events>,
}

impl fmt::Debug for ObservedCalls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ObservedCalls({} \"{}\")", self.kind, self.part)
    }
}

impl ObservedCalls {
    /// Counts of each kind of call, without those that have never been made.
    pub fn counts(&self) -> CallsMade {
        self.counters.counts_of_made()
    }

    fn names(&self) -> &'static [&'static str] {
        self.counters.names()
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        // Nothing panics while the lock is held.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Events {
    waiting: VecDeque<Event>,
    lost: u64,
    /// Filter of the trace; `None` without a trace of this part.
    filter: Option<Arc<Filter>>,
}

/// Calls that a trace keeps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// Calls that took at least this time.
    pub least: Duration,
    /// Only calls that failed.
    pub errors: bool,
    /// Names of the kinds of calls, as in the counters; none for all kinds.
    pub calls: Vec<String>,
}

impl Filter {
    fn wants(&self, event: &Event) -> bool {
        let is_kind = self.calls.is_empty() || self.calls.iter().any(|call| call == event.call);
        is_kind && !(self.errors && event.errno == 0) && event.took >= self.least
    }
}

/// A call that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Start.
    pub begun: Instant,
    /// Time from the start to the end.
    pub took: Duration,
    /// Name of the kind of call, as in the counters.
    pub call: &'static str,
    /// Position in the part.
    pub at: Position,
    /// Bytes that were read, written, discarded or zeroed.
    pub bytes: u64,
    /// Error number; 0 for a call that succeeded.
    pub errno: i32,
    /// Client for which the call was made.
    pub requester: Requester,
}

impl Shared {
    fn parts(&self) -> MutexGuard<'_, Vec<Arc<ObservedCalls>>> {
        // Nothing panics while the lock is held.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether calls are counted.
    #[inline]
    fn is_on(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Counts calls until this time at least.
    fn count_until(&self, time: Instant) {
        self.until.fetch_max(time.nanoseconds().max(1), Ordering::SeqCst);
    }

    /// Ends counting if its time is over, unless a reader has extended it meanwhile.
    #[inline]
    fn end_if_over(&self, now: u64) {
        let until = self.until.load(Ordering::SeqCst);
        if now > until && until != 0 && self.holds.load(Ordering::SeqCst) == 0 {
            let _extended = self.until.compare_exchange(until, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

impl Observation {
    /// Observes a part of a stack that is being built, for [`Plan::build_observed`](stack::Plan). Building a
    /// stack once more replaces the parts of the same names.
    pub fn of_part(&self, stack: &Stack, user: User<'_>, part: Built) -> Built {
        let name = |part: &stack::Part| part.name().to_owned();
        match user {
            User::All(user) => {
                let below = stack.below(user).map(str::to_owned).collect();
                self.observe(name(user), None, user.kind().name, below, part)
            }
            User::Door { door, part: below } => {
                self.observe(name(below), Some(name(door)), door.kind().name, vec![name(below)], part)
            }
        }
    }

    /// Observes the calls of a door that isn't part of the stack to one of its parts.
    pub fn of_door(&self, door: &str, kind: &'static str, name: &str, part: Built) -> Built {
        self.observe(name.to_owned(), Some(door.to_owned()), kind, vec![name.to_owned()], part)
    }

    fn observe(
        &self,
        part: String,
        door: Option<String>,
        kind: &'static str,
        below: Vec<String>,
        built: Built,
    ) -> Built {
        let names = match &built {
            Built::Device(_) => <dyn DevicePart>::NAMES,
            Built::Zones(_) => <dyn ZonesPart>::NAMES,
            Built::Door(_) => return built,
        };
        let contract = built.contract();
        let counters = PartCounters::new(names);
        let calls = ObservedCalls {
            part,
            door,
            kind,
            contract,
            below,
            counters,
            is_traced: AtomicBool::new(false),
            events: Mutex::default(),
        };
        let calls = Arc::new(calls);
        let mut parts = self.0.parts();
        let is_same = |other: &Arc<ObservedCalls>| other.part == calls.part && other.door == calls.door;
        match parts.iter().position(is_same) {
            Some(position) => parts[position] = calls.clone(),
            None => parts.push(calls.clone()),
        }
        drop(parts);
        let handles = Handles { shared: self.0.clone(), calls };
        match built {
            Built::Device(device) => Built::Device(Arc::new(ObservedPart::new(device, handles))),
            Built::Zones(zones) => Built::Zones(Arc::new(ObservedPart::new(zones, handles))),
            door @ Built::Door(_) => door,
        }
    }

    /// Calls to all parts, from the bottom up, each followed by those of doors.
    pub fn parts(&self) -> Vec<Arc<ObservedCalls>> {
        self.0.parts().clone()
    }

    /// Counts of each client of each door, of those that have made a call within this time.
    pub fn clients(&self, within: Duration) -> Vec<ClientCalls> {
        self.0.clients.counts(runtime::now().nanoseconds(), within)
    }

    /// Counts calls for this time at least.
    pub fn count_for(&self, time: Duration) {
        self.0.count_until(runtime::now() + time);
    }

    /// Counts calls until the result is dropped.
    pub fn hold(&self) -> Hold {
        self.0.holds.fetch_add(1, Ordering::SeqCst);
        // Later than any time at which another shard has ended counting.
        self.0.count_until(runtime::now() + Duration::from_nanos(1));
        Hold(self.0.clone())
    }

    /// Keeps each call of the parts `of` that passes the filter, from now on.
    ///
    /// # Errors
    /// [`Error::Busy`] while there is another trace.
    pub fn trace(&self, filter: Filter, of: impl Fn(&ObservedCalls) -> bool) -> Result<Trace> {
        if self.0.is_traced.swap(true, Ordering::AcqRel) {
            return Err(Error::busy("these parts are traced already; expected one trace at a time"));
        }
        let least = u64::try_from(filter.least.as_nanos()).unwrap_or(u64::MAX);
        self.0.least.store(least, Ordering::Relaxed);
        let filter = Arc::new(filter);
        let parts: Vec<_> = self.parts().into_iter().filter(|calls| of(calls)).collect();
        for calls in &parts {
            *calls.events() = Events { filter: Some(filter.clone()), ..Events::default() };
            calls.is_traced.store(true, Ordering::Relaxed);
        }
        Ok(Trace { hold: self.hold(), parts })
    }
}

/// Counts calls until it is dropped.
#[derive(Debug)]
pub struct Hold(Arc<Shared>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::SeqCst);
        self.0.end_if_over(runtime::now().nanoseconds());
    }
}

/// Calls that are kept until they are taken. Ends when it is dropped.
#[derive(Debug)]
pub struct Trace {
    hold: Hold,
    parts: Vec<Arc<ObservedCalls>>,
}

/// Events of one part.
#[derive(Debug)]
pub struct Traced {
    /// The part, or the part and the door.
    pub calls: Arc<ObservedCalls>,
    /// Calls in the order of their ends.
    pub events: VecDeque<Event>,
    /// Number of calls that ended while there was no space for them.
    pub lost: u64,
}

impl Trace {
    /// Takes the calls that have ended since the last time, of each part that has any.
    pub fn take(&self) -> Vec<Traced> {
        let take = |calls: &Arc<ObservedCalls>| {
            let mut kept = calls.events();
            let (events, lost) = (std::mem::take(&mut kept.waiting), std::mem::take(&mut kept.lost));
            (!events.is_empty() || lost > 0).then(|| Traced { calls: calls.clone(), events, lost })
        };
        self.parts.iter().filter_map(take).collect()
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        for calls in &self.parts {
            calls.is_traced.store(false, Ordering::Relaxed);
            // A call that ends meanwhile finds no filter.
            drop(std::mem::take(&mut *calls.events()));
        }
        self.hold.0.is_traced.store(false, Ordering::Release);
    }
}

/// Observer of the handles of one part.
struct Handles {
    shared: Arc<Shared>,
    calls: Arc<ObservedCalls>,
}

impl ObserveHandles for Handles {
    type Observer = HandleObserver;

    fn observer(&self) -> HandleObserver {
        let counting = self.calls.counters.open();
        let clients = self.calls.door.is_some().then(HandleClients::default);
        HandleObserver { shared: self.shared.clone(), calls: self.calls.clone(), counting, clients }
    }
}

/// Observer of one handle.
#[derive(Debug)]
pub struct HandleObserver {
    shared: Arc<Shared>,
    calls: Arc<ObservedCalls>,
    counting: Counting,
    /// Clients of this handle, if it is that of a door.
    clients: Option<HandleClients>,
}

/// An observed call in flight.
pub struct InFlight<'a> {
    running: Running<'a>,
    counter: usize,
    call: &'static str,
    at: Position,
    requester: Requester,
}

impl HandleObserver {
    #[inline]
    fn begin(&self, counter: usize, names: &[&'static str], at: Position) -> InFlight<'_> {
        let wants_client = self.clients.is_some() || self.calls.is_traced.load(Ordering::Relaxed);
        let requester = if wants_client { runtime::requester() } else { Requester::Nobody };
        InFlight { running: self.counting.begin(counter), counter, call: names[counter], at, requester }
    }

    #[inline]
    fn end(&self, call: InFlight<'_>, bytes: u64, error: Option<&Error>) {
        let InFlight { running, counter, call, at, requester } = call;
        let (begun, took) = running.end(bytes, error.is_none());
        self.shared.end_if_over(begun.nanoseconds());
        if let Some(clients) = &self.clients
            && requester != Requester::Nobody
        {
            let ended = (begun.nanoseconds() + took, (took, bytes, error.is_none()));
            clients.count(requester, (&self.calls, &self.shared.clients), counter, ended);
        }
        if self.calls.is_traced.load(Ordering::Relaxed) && took >= self.shared.least.load(Ordering::Relaxed) {
            let (took, errno) = (Duration::from_nanos(took), error.map_or(0, Error::errno));
            self.trace(Event { begun, took, call, at, bytes, errno, requester });
        }
    }

    #[cold]
    fn trace(&self, event: Event) {
        let mut events = self.calls.events();
        if !events.filter.as_ref().is_some_and(|filter| filter.wants(&event)) {
            return;
        }
        if events.waiting.len() < MAX_EVENTS {
            events.waiting.push_back(event);
        } else {
            events.lost += 1;
        }
    }
}

impl Observer<DeviceCall> for HandleObserver {
    type InFlight<'a> = InFlight<'a>;

    #[inline]
    fn is_on(&self) -> bool {
        self.shared.is_on()
    }

    #[inline]
    fn begin(&self, call: DeviceCall, at: Position) -> InFlight<'_> {
        self.begin(counter_of(call), <dyn DevicePart>::NAMES, at)
    }

    #[inline]
    fn end(&self, call: InFlight<'_>, bytes: u64, error: Option<&Error>) {
        self.end(call, bytes, error);
    }
}

impl Observer<ZonesCall> for HandleObserver {
    /// `None` for a reservation.
    type InFlight<'a> = Option<InFlight<'a>>;

    #[inline]
    fn is_on(&self) -> bool {
        self.shared.is_on()
    }

    #[inline]
    fn begin(&self, call: ZonesCall, at: Position) -> Option<InFlight<'_>> {
        zones_counter_of(call).map(|counter| self.begin(counter, <dyn ZonesPart>::NAMES, at))
    }

    #[inline]
    fn end(&self, call: Option<InFlight<'_>>, bytes: u64, error: Option<&Error>) {
        if let Some(call) = call {
            self.end(call, bytes, error);
        }
    }
}
