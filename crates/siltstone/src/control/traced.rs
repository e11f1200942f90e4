//! A client's trace: single calls to the parts of a stack, as JSON, in answers that the client asks for one
//! after the other.
//!
//! ```json
//! {"events": [{"time_ns": 1795234546000000000, "door": "vol", "client": "process 4711 (qemu)",
//!              "part": "disk", "call": "read", "block": 12, "bytes": 4096, "took_ns": 81000, "errno": 0}],
//!  "lost": 0}
//! ```
//!
//! # Promises
//! - An answer has at most [`MAX_EVENTS`] calls, in the order of their ends, and is given after [`WAIT`] at
//!   the latest, without calls if there were none. Making it takes time for these calls only, however many
//!   wait.
//! - Calls that the client doesn't fetch in time are lost, and counted. At most the calls that the
//!   observation keeps, and as many again, wait for the client.
//!
//! `door` is absent for the calls of all users to a part, `client` for calls whose client isn't known: the
//! work of the stack itself, and calls of several clients that a part has merged.

use super::protocol::{Refusal, TraceRequest};
use block::layer::Position;
use block::{DevicePart, Error, ZonesPart};
use layers::observation::{Event, Filter, Observation, ObservedCalls, Trace};
use layers::stats::Counted;
use runtime::sync::StopToken;
use runtime::{Instant, Requester};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Most calls of an answer.
pub const MAX_EVENTS: usize = 1024;
/// Longest time until an answer.
pub const WAIT: Duration = Duration::from_secs(1);
/// Time after which the disconnection of a client is noticed at the latest, and its trace has ended.
const END_LIMIT: Duration = Duration::from_secs(WAIT.as_secs() + 1);
/// Interval of checking for calls.
const PAUSE: Duration = Duration::from_millis(20);
/// Most processes whose names are remembered.
const MAX_NAMES: usize = 1024;

/// Trace of one client. Ends when it is dropped.
pub struct Tracing {
    trace: Trace,
    /// Calls that wait for the client, of each part in the order of their ends.
    pending: Vec<(Arc<ObservedCalls>, VecDeque<Event>)>,
    /// End of the first call of each part that has any, and the part's position, with the earliest on top.
    heads: BinaryHeap<Reverse<(Instant, usize)>>,
    lost: u64,
    /// Processes of requests that came without a name, by their numbers.
    named: BTreeMap<u32, Requester>,
}

impl Tracing {
    /// Begins a trace. Waits for the end of one whose client has just disconnected.
    ///
    /// # Errors
    /// An unknown part, door or kind of call; [`Error::Busy`] while another client traces.
    pub async fn begin(observation: &Observation, asked: &TraceRequest) -> Result<Tracing, Refusal> {
        let parts = observation.parts();
        if let Some(part) = &asked.part {
            check("part", part, parts.iter().map(|calls| calls.part.as_str()))?;
        }
        if let Some(door) = &asked.door {
            check("door", door, parts.iter().filter_map(|calls| calls.door.as_deref()))?;
        }
        let kinds = [<dyn DevicePart>::NAMES, <dyn ZonesPart>::NAMES].concat();
        asked.calls.iter().try_for_each(|call| check("call", call, kinds.iter().copied()))?;
        let filter = Filter { least: asked.slow, errors: asked.errors, calls: asked.calls.clone() };
        let begin = async || observation.trace(filter.clone(), |calls| is_wanted(asked, calls));
        let trace = runtime::retry_while_busy(END_LIMIT, begin).await?;
        Ok(Tracing { trace, pending: Vec::new(), heads: BinaryHeap::new(), lost: 0, named: BTreeMap::new() })
    }

    /// Waits for calls, and returns those that have ended.
    pub async fn next(&mut self, stop: &StopToken) -> Value {
        let deadline = runtime::now() + WAIT;
        loop {
            if self.heads.is_empty() {
                self.take();
            }
            if !self.heads.is_empty() || self.lost > 0 || stop.is_stopped() || runtime::now() >= deadline {
                return self.answer();
            }
            stop.unless_stopped(runtime::sleep(PAUSE)).await;
        }
    }

    fn take(&mut self) {
        self.pending.clear();
        for part in self.trace.take() {
            self.lost += part.lost;
            self.pending.push((part.calls, part.events));
        }
        let end = |events: &VecDeque<Event>| events.front().map(|event| event.begun + event.took);
        let ends = self.pending.iter().map(|(_, events)| end(events)).enumerate();
        self.heads.extend(ends.filter_map(|(part, end)| Some(Reverse((end?, part)))));
    }

    /// Removes the call that ended first.
    fn pop(&mut self) -> Option<(Arc<ObservedCalls>, Event)> {
        let Reverse((_, part)) = self.heads.pop()?;
        let (calls, events) = &mut self.pending[part];
        let event = events.pop_front()?;
        self.heads.extend(events.front().map(|next| Reverse((next.begun + next.took, part))));
        Some((calls.clone(), event))
    }

    fn answer(&mut self) -> Value {
        let (now, wall_clock) = (runtime::now(), runtime::wall_clock());
        let answered: Vec<_> = std::iter::from_fn(|| self.pop()).take(MAX_EVENTS).collect();
        let events = answered.iter().map(|(calls, event)| {
            let mut object = Map::new();
            let time = wall_clock.saturating_sub(now - event.begun);
            object.insert("time_ns".into(), u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).into());
            if let Some(door) = &calls.door {
                object.insert("door".into(), door.as_str().into());
            }
            if let Some(client) = self.client(event.requester) {
                object.insert("client".into(), client.into());
            }
            object.insert("part".into(), calls.part.as_str().into());
            object.insert("call".into(), event.call.into());
            insert_position(&mut object, event.at);
            object.insert("bytes".into(), event.bytes.into());
            let took = u64::try_from(event.took.as_nanos()).unwrap_or(u64::MAX);
            object.insert("took_ns".into(), took.into());
            object.insert("errno".into(), event.errno.into());
            Value::Object(object)
        });
        let events: Vec<Value> = events.collect();
        json!({ "events": events, "lost": std::mem::take(&mut self.lost) })
    }

    /// Returns the name of a client.
    fn client(&mut self, requester: Requester) -> Option<String> {
        let number = match requester {
            Requester::Nobody => return None,
            Requester::Process(number, name) if name.is_empty() => number,
            Requester::Peer(..) | Requester::Process(..) => return Some(requester.to_string()),
        };
        if self.named.len() >= MAX_NAMES {
            self.named.clear();
        }
        Some(self.named.entry(number).or_insert_with(|| requester.named()).to_string())
    }
}

/// Whether a trace has the calls to this part. Without a choice, these are the calls of all doors.
fn is_wanted(asked: &TraceRequest, calls: &ObservedCalls) -> bool {
    let is_part = asked.part.as_ref().is_none_or(|part| *part == calls.part);
    match (&calls.door, &asked.door) {
        (Some(door), Some(asked)) => door == asked && is_part,
        (None, Some(_)) => false,
        (Some(_), None) => asked.part.is_none(),
        (None, None) => is_part && (asked.part.is_some() || asked.parts),
    }
}

fn check<'a>(what: &str, word: &str, known: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
    let mut known: Vec<&str> = known.collect();
    if known.contains(&word) {
        return Ok(());
    }
    known.sort_unstable();
    known.dedup();
    let near = stack::did_you_mean(word, known.iter().copied());
    let end = if near.is_empty() { ";" } else { "" };
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let word = super::protocol::excerpt(word);
    Err(Refusal::wrongly_asked(Error::not_found(format!(
        "there is no {what} \"{word}\" to trace{near}{end} expected one of: {known}"
    ))))
}

fn insert_position(object: &mut Map<String, Value>, at: Position) {
    match at {
        Position::Whole => {}
        Position::Block(block) => drop(object.insert("block".into(), block.0.into())),
        Position::Zone(zone) => drop(object.insert("zone".into(), zone.0.into())),
        Position::Address(address) => {
            object.insert("zone".into(), address.zone.0.into());
            object.insert("offset".into(), address.offset.0.into());
        }
    }
}
