//! Answer to a request for counts, and the difference of two of them. Nothing here waits.
//!
//! The answer comes from another process: a field that is missing counts as zero, and an answer of another
//! form is an error.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Answer of a server.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Clock of the server.
    pub nanoseconds: u64,
    /// Calls to each part, from the bottom up, each followed by those of doors.
    pub parts: Vec<PartCalls>,
    /// Status of the whole stack.
    pub status: Map<String, Value>,
}

/// Calls to a part, from all users or from one door.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PartCalls {
    /// Name of the part.
    pub part: String,
    /// Door whose calls these are; `None` for the calls of all users.
    pub door: Option<String>,
    /// Kind of the part, or of the door.
    pub kind: String,
    /// Names of the parts directly below.
    pub below: Vec<String>,
    /// Counts by the kind of call.
    pub calls: BTreeMap<String, Counts>,
}

/// Counts of one kind of call.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Successful calls.
    pub operations: u64,
    /// Bytes of the successful calls.
    pub bytes: u64,
    /// Failed calls.
    pub errors: u64,
    /// Calls that haven't ended.
    pub in_flight: u64,
    /// Sum of the latencies of successful calls.
    pub latency_sum_ns: u64,
    /// Middle and number of calls of each bucket of latency, in ascending order.
    pub latency_ns: Vec<(u64, u64)>,
}

impl Sample {
    /// Reads an answer.
    ///
    /// # Errors
    /// The answer has another form.
    pub fn parse(answer: Value) -> Result<Sample, String> {
        serde_json::from_value(answer).map_err(|error| {
            format!("the answer of its server isn't understood ({error}); use the program that it was started with")
        })
    }

    /// Returns a property of the server, such as `process`.
    pub fn server(&self, key: &str) -> Option<&Value> {
        self.status.get("server")?.get(key)
    }

    /// Whether this can be compared with an earlier sample: the same process, at a later time.
    pub fn continues(&self, before: &Sample) -> bool {
        self.nanoseconds > before.nanoseconds && self.server("process") == before.server("process")
    }

    /// Counts of a part by the kind of call, or of a door, over all parts below it.
    pub fn calls(&self, name: &str, is_door: bool) -> BTreeMap<String, Counts> {
        let is_wanted = |calls: &&PartCalls| match &calls.door {
            Some(door) => is_door && door == name,
            None => !is_door && calls.part == name,
        };
        let mut sum = BTreeMap::<String, Counts>::new();
        for (call, counts) in self.parts.iter().filter(is_wanted).flat_map(|part| &part.calls) {
            match sum.get_mut(call) {
                Some(sum) => sum.add(counts),
                None => drop(sum.insert(call.clone(), counts.clone())),
            }
        }
        sum
    }
}

impl Counts {
    /// Adds other counts.
    pub fn add(&mut self, other: &Counts) {
        self.operations = self.operations.saturating_add(other.operations);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.errors = self.errors.saturating_add(other.errors);
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.latency_sum_ns = self.latency_sum_ns.saturating_add(other.latency_sum_ns);
        let mut buckets: BTreeMap<u64, u64> = self.latency_ns.iter().copied().collect();
        for (middle, count) in &other.latency_ns {
            let sum = buckets.entry(*middle).or_default();
            *sum = sum.saturating_add(*count);
        }
        self.latency_ns = buckets.into_iter().collect();
    }

    /// Returns the growth since `before`, with the present calls in flight; `None` if a counter went
    /// backwards.
    pub fn since(&self, before: &Counts) -> Option<Counts> {
        let mut buckets: BTreeMap<u64, u64> = self.latency_ns.iter().copied().collect();
        for (middle, count) in &before.latency_ns {
            let now = buckets.get_mut(middle)?;
            *now = now.checked_sub(*count)?;
        }
        buckets.retain(|_, count| *count > 0);
        Some(Counts {
            operations: self.operations.checked_sub(before.operations)?,
            bytes: self.bytes.checked_sub(before.bytes)?,
            errors: self.errors.checked_sub(before.errors)?,
            in_flight: self.in_flight,
            latency_sum_ns: self.latency_sum_ns.checked_sub(before.latency_sum_ns)?,
            latency_ns: buckets.into_iter().collect(),
        })
    }

    /// Latency that a share of the calls, from 0 to 1, doesn't exceed (nearest rank), in nanoseconds; `None`
    /// without calls.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let all: u64 = self.latency_ns.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count));
        let rank = ((share * all as f64).ceil() as u64).max(1);
        let mut seen: u64 = 0;
        let found = self.latency_ns.iter().find(|(_, count)| {
            seen = seen.saturating_add(*count);
            seen >= rank
        });
        found.map(|(middle, _)| *middle)
    }
}

/// Returns the growth of all kinds of call; `None` if a counter went backwards.
pub fn growth(
    before: &BTreeMap<String, Counts>,
    after: &BTreeMap<String, Counts>,
) -> Option<BTreeMap<String, Counts>> {
    if before.keys().any(|call| !after.contains_key(call)) {
        return None;
    }
    let none = Counts::default();
    let since = |(call, counts): (&String, &Counts)| {
        Some((call.clone(), counts.since(before.get(call).unwrap_or(&none))?))
    };
    after.iter().map(since).collect()
}
