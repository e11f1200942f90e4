//! The metrics of a stack at one time, and their order in the text.
//!
//! Names begin with `siltstone_` and end with their unit. Labels: `part` and `kind`; `door` for the calls of
//! one door to a part, without which they are those of all users; `client` for those of one client of a door,
//! under names of their own; `call`; and those that kinds declare. The metrics of kinds are read from the
//! status by their declarations.

use super::LOOK_TIME;
use super::encoder::{Encoder, Format, MetricType, SampleValue, append_label, append_value};
use super::latency::{self, Filled, Marks, SHARES, Series};
use crate::kinds::registry;
use block::Result;
use layers::observation::{Observation, ObservedCalls};
use layers::stats::CallCounts;
use runtime::Instant;
use serde_json::Value;
use stack::{Metric, Number};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maker of the texts of one stack. Clones share the marks since which calls are recent.
#[derive(Debug, Clone, Default)]
pub struct Scraper(Arc<Mutex<Marks>>);

impl Scraper {
    /// Returns the text of a stack with this status. Calls are counted from now on.
    ///
    /// # Errors
    /// [`Error::Os`](block::Error::Os) if the system can't start a thread for it.
    pub async fn text(
        &self,
        observation: Option<&Observation>,
        status: Value,
        format: Format,
    ) -> Result<String> {
        if let Some(observation) = observation {
            observation.count_for(LOOK_TIME);
        }
        let (scraper, observation, now) = (self.clone(), observation.cloned(), runtime::now());
        runtime::try_blocking(move || scraper.snapshot(observation.as_ref(), &status, now).encoded(format))
            .await
    }

    fn snapshot(&self, observation: Option<&Observation>, status: &Value, now: Instant) -> Snapshot {
        let parts = observation.map(Observation::parts).unwrap_or_default();
        // Nothing panics while the lock is held.
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut calls = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let of_part = call_labels(part, None);
            for (call, counts) in part.counts() {
                let mut calls_of_kind = Calls::new(&of_part, call, &counts);
                calls_of_kind.quantiles =
                    latency::quantiles(&calls_of_kind.filled, marks.before((number, call)));
                calls_of_kind.series = (number, call);
                calls.push(calls_of_kind);
            }
        }
        marks.set(now, || calls.iter().map(|calls| (calls.series, calls.filled.clone())).collect());
        drop(marks);
        let mut clients = Vec::new();
        for client in observation.map(|it| it.clients(LOOK_TIME)).unwrap_or_default() {
            let of_client = call_labels(&client.calls, Some(&client.client));
            clients.extend(client.counts.iter().map(|(call, counts)| Calls::new(&of_client, call, counts)));
        }
        let (up, families) = families(status);
        Snapshot { process: status.get("server").map(Process::of), up, families, calls, clients }
    }
}

/// Labels of the calls to a part, without the kind of call.
fn call_labels(part: &ObservedCalls, client: Option<&str>) -> String {
    let mut labels = String::new();
    append_label(&mut labels, "part", &part.part);
    append_label(&mut labels, "kind", part.kind);
    for (key, value) in [("door", part.door.as_deref()), ("client", client)] {
        value.iter().for_each(|value| append_label(&mut labels, key, value));
    }
    labels
}

/// All values at one time.
#[derive(Debug)]
struct Snapshot {
    /// Process of the server; `None` if the stack isn't served.
    process: Option<Process>,
    /// Parts, and whether each could be built.
    up: Vec<(String, bool)>,
    /// Metrics of kinds, by name.
    families: BTreeMap<&'static str, Family>,
    calls: Vec<Calls>,
    /// Calls of clients.
    clients: Vec<Calls>,
}

/// Series of one metric of kinds.
#[derive(Debug)]
struct Family {
    metric: &'static Metric,
    /// Each series once.
    seen: BTreeSet<String>,
    series: Vec<(String, Number)>,
}

/// Calls of one kind to one part.
#[derive(Debug)]
struct Calls {
    labels: String,
    series: Series,
    ended: u64,
    errors: u64,
    bytes: u64,
    in_flight: u64,
    /// Successful calls.
    successful: u64,
    /// Sum of their latencies.
    nanoseconds: u128,
    filled: Filled,
    /// Latencies of recent calls in nanoseconds; `None` without a recent call.
    quantiles: Option<[u64; SHARES.len()]>,
}

impl Calls {
    fn new(of_part: &str, call: &str, counts: &CallCounts) -> Calls {
        let mut labels = of_part.to_owned();
        append_label(&mut labels, "call", call);
        Calls {
            labels,
            series: Series::default(),
            ended: counts.latency.count() + counts.errors,
            errors: counts.errors,
            bytes: counts.bytes,
            in_flight: counts.in_flight,
            successful: counts.latency.count(),
            nanoseconds: counts.latency.sum(),
            filled: latency::filled(counts),
            quantiles: None,
        }
    }
}

/// Reads the metrics that the kinds declare from a status.
fn families(status: &Value) -> (Vec<(String, bool)>, BTreeMap<&'static str, Family>) {
    let registry = registry();
    let (mut up, mut families) = (Vec::new(), BTreeMap::new());
    for section in ["devices", "zones", "doors"] {
        for (name, part) in status.get(section).and_then(Value::as_object).into_iter().flatten() {
            let Some(part) = part.as_object() else { continue };
            let kind = part.get("kind").and_then(Value::as_str).unwrap_or_default();
            let mut of_part = String::new();
            append_label(&mut of_part, "part", name);
            append_label(&mut of_part, "kind", kind);
            for metric in registry.kind(kind).into_iter().flat_map(|kind| kind.all_metrics()) {
                let new = || Family { metric, seen: BTreeSet::new(), series: Vec::new() };
                let family = families.entry(metric.name).or_insert_with(new);
                for (element, number) in metric.read(part) {
                    let mut labels = of_part.clone();
                    let of_element = metric.of_each.zip(element.as_deref());
                    let own = [metric.label, of_element.map(|((key, _), value)| (key, value))];
                    own.iter().flatten().for_each(|(key, value)| append_label(&mut labels, key, value));
                    // Two legs may have the same name.
                    if metric.of_each.is_none() || family.seen.insert(labels.clone()) {
                        family.series.push((labels, number));
                    }
                }
            }
            up.push((of_part, !part.contains_key("missing")));
        }
    }
    (up, families)
}

/// Numbers of the server's process.
#[derive(Debug)]
struct Process {
    up_seconds: u64,
    shards: u64,
    /// Resident memory in bytes; `None` without `/proc`.
    resident: Option<u64>,
    /// Processor time.
    processor: Duration,
}

impl Process {
    fn of(server: &Value) -> Process {
        let number = |key: &str| server.get(key).and_then(Value::as_u64).unwrap_or(0);
        // proc(5): the line is "VmRSS:", a number, and "kB".
        let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        Process {
            up_seconds: number("up_seconds"),
            shards: number("shards"),
            resident: kibibytes.map(|kibibytes| kibibytes << 10),
            processor: runtime::process_cpu_time(),
        }
    }
}

impl Snapshot {
    fn encoded(&self, format: Format) -> String {
        let mut encoder = Encoder::new(format);
        self.encode_process(&mut encoder);
        self.encode_parts(&mut encoder);
        self.encode_calls(&mut encoder);
        encoder.finish()
    }

    fn encode_process(&self, encoder: &mut Encoder) {
        encoder.describe("build", "Version of the program", MetricType::Info);
        encoder.series(concat!("version=\"", env!("CARGO_PKG_VERSION"), "\""), 1);
        let Some(process) = &self.process else { return };
        let resident = process.resident.map(SampleValue::from);
        for (name, help, metric_type, value) in [
            (
                "up_seconds",
                "Time since the stack was opened",
                MetricType::Gauge,
                Some(process.up_seconds.into()),
            ),
            ("shards", "Threads that serve", MetricType::Gauge, Some(process.shards.into())),
            ("resident_memory_bytes", "Resident memory of the server", MetricType::Gauge, resident),
            (
                "cpu_seconds",
                "Processor time of the server",
                MetricType::Counter,
                Some(process.processor.into()),
            ),
        ] {
            if let Some(value) = value {
                encoder.describe(name, help, metric_type);
                encoder.series("", value);
            }
        }
    }

    fn encode_parts(&self, encoder: &mut Encoder) {
        encoder.describe(
            "part_up",
            "1 for a part that is open, 0 for one that is missing",
            MetricType::Gauge,
        );
        self.up.iter().for_each(|(labels, is_up)| encoder.series(labels, u64::from(*is_up)));
        for Family { metric, series, .. } in self.families.values().filter(|it| !it.series.is_empty()) {
            let metric_type = match metric.metric_type {
                stack::MetricType::Counter => MetricType::Counter,
                stack::MetricType::Gauge => MetricType::Gauge,
            };
            encoder.describe(metric.name, metric.help, metric_type);
            series.iter().for_each(|(labels, number)| encoder.series(labels, SampleValue::Number(*number)));
        }
    }

    fn encode_calls(&self, encoder: &mut Encoder) {
        encode_counts(encoder, "", &self.calls);
        encode_counts(encoder, "client_", &self.clients);
        if self.calls.is_empty() {
            return;
        }
        encoder.describe("calls_in_flight", "Calls that haven't ended", MetricType::Gauge);
        self.calls.iter().for_each(|calls| encoder.series(&calls.labels, calls.in_flight));
        let help = "Latency that a share of the recent calls doesn't exceed, within 1.6 %";
        encoder.describe("recent_call_seconds", help, MetricType::Gauge);
        let shares = SHARES.map(|share| format!(",share=\"{share}\""));
        for Calls { labels, quantiles, .. } in &self.calls {
            for (share, latency) in shares.iter().zip(quantiles.iter().flatten()) {
                encoder.series_with("", (labels, share), SampleValue::Nanoseconds((*latency).into()));
            }
        }
    }
}

/// Encodes counters and histograms of calls, whose names have a prefix.
fn encode_counts(encoder: &mut Encoder, prefix: &str, all: &[Calls]) {
    if all.is_empty() {
        return;
    }
    let of = if prefix.is_empty() { "" } else { " of one client" };
    let describe = |encoder: &mut Encoder, name: &str, help: &str, metric_type| {
        encoder.describe(&format!("{prefix}{name}"), &format!("{help}{of}"), metric_type);
    };
    let counter = |encoder: &mut Encoder, name, help, of_calls: fn(&Calls) -> u64| {
        describe(encoder, name, help, MetricType::Counter);
        all.iter().for_each(|calls| encoder.series(&calls.labels, of_calls(calls)));
    };
    counter(encoder, "calls", "Calls that ended", |calls| calls.ended);
    counter(encoder, "call_errors", "Calls that failed", |calls| calls.errors);
    counter(encoder, "call_bytes", "Bytes of successful calls", |calls| calls.bytes);
    describe(encoder, "call_seconds", "Latency of successful calls", MetricType::Histogram);
    let bounds = latency::BOUNDS.map(|bound| {
        let mut label = ",le=\"".to_owned();
        append_value(&mut label, SampleValue::Nanoseconds(bound.into()));
        label + "\""
    });
    for Calls { labels, successful, nanoseconds, filled, .. } in all {
        for (bound, count) in bounds.iter().zip(latency::up_to_bounds(filled)) {
            encoder.series_with("_bucket", (labels, bound), count.into());
        }
        encoder.series_with("_bucket", (labels, ",le=\"+Inf\""), (*successful).into());
        encoder.series_with("_sum", (labels, ""), SampleValue::Nanoseconds(*nanoseconds));
        encoder.series_with("_count", (labels, ""), (*successful).into());
    }
}

#[cfg(test)]
mod tests;
