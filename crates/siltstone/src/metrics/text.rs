//! The text of all metrics, by the encoder of `prometheus-client`.
//!
//! Names begin with `siltstone_` and end with their unit. Labels: `part` and `kind`; `door` for the calls of
//! one door to a part, without which they are those of all users; `client` for those of one client of a door,
//! under names of their own; `call`; and those that kinds declare. The metrics of kinds are read from the
//! status by their declarations.

use super::LOOK_TIME;
use super::latency::{self, Filled, Marks, SHARES, Series};
use crate::kinds::registry;
use block::{Error, Result};
use layers::observation::{Observation, ObservedCalls};
use layers::stats::CallCounts;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    self, DescriptorEncoder, EncodeLabel, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use runtime::Instant;
use serde_json::Value;
use stack::{Metric, Number};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The Prometheus text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Value of the header `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => encoding::prometheus_text::CONTENT_TYPE,
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Maker of the texts of one stack. Clones share the marks since which calls are recent.
#[derive(Debug, Clone, Default)]
pub struct Scraper(Arc<Mutex<Marks>>);

impl Scraper {
    /// Returns the text of a stack with this status. Calls are counted from now on.
    ///
    /// # Errors
    /// Errors of the encoder.
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
            .await?
    }

    fn snapshot(&self, observation: Option<&Observation>, status: &Value, now: Instant) -> Snapshot {
        let parts = observation.map(Observation::parts).unwrap_or_default();
        // Nothing panics while the lock is held.
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut calls = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let of_part = call_labels(part, None);
            for (call, counts) in part.counts() {
                let mut calls_of_kind = Calls::new((&of_part, call), &counts);
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
            clients.extend(client.counts.iter().map(|(call, counts)| Calls::new((&of_client, call), counts)));
        }
        let (up, families) = families(status);
        Snapshot { process: status.get("server").map(Process::of), up, families, calls, clients }
    }
}

/// Labels of a series. All but the value of the last one are a text, which is escaped once for a part.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    before: Arc<str>,
    last: Cow<'static, str>,
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        // The encoder writes keys as they are.
        (&*self.before, &*self.last).encode(encoder.encode_label())
    }
}

/// Appends a label to the text of labels: the key after a comma, and the value if there is one.
fn append_label(labels: &mut String, key: &str, value: Option<&str>) {
    if !labels.is_empty() {
        labels.push(',');
    }
    labels.push_str(key);
    let Some(value) = value else { return };
    labels.push_str("=\"");
    for letter in value.chars() {
        match letter {
            '\\' => labels.push_str("\\\\"),
            '"' => labels.push_str("\\\""),
            '\n' => labels.push_str("\\n"),
            letter => labels.push(letter),
        }
    }
    labels.push('"');
}

/// Labels of calls up to the key `call`.
fn call_labels(part: &ObservedCalls, client: Option<&str>) -> Arc<str> {
    let mut labels = String::new();
    append_label(&mut labels, "part", Some(&part.part));
    append_label(&mut labels, "kind", Some(part.kind));
    if let Some(door) = &part.door {
        append_label(&mut labels, "door", Some(door));
    }
    if let Some(client) = client {
        append_label(&mut labels, "client", Some(client));
    }
    append_label(&mut labels, "call", None);
    labels.into()
}

/// All values at one time.
#[derive(Debug)]
struct Snapshot {
    /// Process of the server; `None` if the stack isn't served.
    process: Option<Process>,
    /// Parts, and whether each could be built.
    up: Vec<(Labels, bool)>,
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
    seen: BTreeSet<Labels>,
    series: Vec<(Labels, Number)>,
}

/// Calls of one kind to one part.
#[derive(Debug)]
struct Calls {
    labels: Labels,
    series: Series,
    ended: u64,
    errors: u64,
    bytes: u64,
    in_flight: u64,
    /// Successful calls.
    successful: u64,
    /// Sum of their latencies in seconds.
    seconds: f64,
    filled: Filled,
    /// Latencies of recent calls in seconds; `None` without a recent call.
    quantiles: Option<[f64; SHARES.len()]>,
}

impl Calls {
    fn new((before, call): (&Arc<str>, &'static str), counts: &CallCounts) -> Calls {
        Calls {
            labels: Labels { before: before.clone(), last: call.into() },
            series: Series::default(),
            ended: counts.latency.count() + counts.errors,
            errors: counts.errors,
            bytes: counts.bytes,
            in_flight: counts.in_flight,
            successful: counts.latency.count(),
            seconds: counts.latency.sum() as f64 / 1e9,
            filled: latency::filled(counts),
            quantiles: None,
        }
    }
}

/// Reads the metrics that the kinds declare from a status.
fn families(status: &Value) -> (Vec<(Labels, bool)>, BTreeMap<&'static str, Family>) {
    let registry = registry();
    let (mut up, mut families) = (Vec::new(), BTreeMap::new());
    for section in ["devices", "zones", "doors"] {
        for (name, part) in status.get(section).and_then(Value::as_object).into_iter().flatten() {
            let Some(part) = part.as_object() else { continue };
            let kind = part.get("kind").and_then(Value::as_str).unwrap_or_default();
            let known = registry.kind(kind);
            let mut text = String::new();
            append_label(&mut text, "part", Some(name));
            let last = known.map_or_else(|| Cow::Owned(kind.to_owned()), |kind| kind.name.into());
            let labels = Labels { before: format!("{text},kind").into(), last };
            append_label(&mut text, "kind", Some(kind));
            up.push((labels.clone(), !part.contains_key("missing")));
            for metric in known.into_iter().flat_map(|kind| kind.all_metrics()) {
                let new = || Family { metric, seen: BTreeSet::new(), series: Vec::new() };
                let family = families.entry(metric.name).or_insert_with(new);
                for (element, number) in metric.read(part) {
                    let constant = metric.label.map(|(key, value)| (key, Cow::Borrowed(value)));
                    let of_element = metric.of_each.zip(element).map(|((key, _), value)| (key, value.into()));
                    let own = [constant, of_element];
                    let labels = if own == [None, None] { labels.clone() } else { labels_with(&text, own) };
                    // Two legs may have the same name.
                    if metric.of_each.is_none() || family.seen.insert(labels.clone()) {
                        family.series.push((labels, number));
                    }
                }
            }
        }
    }
    (up, families)
}

/// Labels after those of a text.
fn labels_with(text: &str, own: [Option<(&'static str, Cow<'static, str>)>; 2]) -> Labels {
    let mut labels = Labels { before: text.into(), last: Cow::Borrowed("") };
    let mut text = text.to_owned();
    for (key, value) in own.into_iter().flatten() {
        append_label(&mut text, key, None);
        labels.before = text.as_str().into();
        text.truncate(text.len() - key.len() - 1);
        append_label(&mut text, key, Some(&value));
        labels.last = value;
    }
    labels
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
    fn encoded(self, format: Format) -> Result<String> {
        let mut registry = Registry::with_prefix("siltstone");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        match format {
            Format::Prometheus => encoding::prometheus_text::encode(&mut text, &registry),
            Format::OpenMetrics => encoding::text::encode(&mut text, &registry),
        }
        .map_err(|_| Error::invalid("the metrics can't be encoded"))?;
        Ok(text)
    }

    fn encode_process(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        describe(encoder, "build", "Version of the program", MetricType::Info, |mut metric| {
            metric.encode_info(&version)
        })?;
        let Some(process) = &self.process else { return Ok(()) };
        let gauge = |encoder: &mut DescriptorEncoder<'_>, name, help, value: u64| {
            describe(encoder, name, help, MetricType::Gauge, |mut metric| metric.encode_gauge(&value))
        };
        gauge(encoder, "up_seconds", "Time since the stack was opened", process.up_seconds)?;
        gauge(encoder, "shards", "Threads that serve", process.shards)?;
        if let Some(resident) = process.resident {
            gauge(encoder, "resident_memory_bytes", "Resident memory of the server", resident)?;
        }
        let (seconds, help) = (process.processor.as_secs_f64(), "Processor time of the server");
        describe(encoder, "cpu_seconds", help, MetricType::Counter, |mut metric| {
            metric.encode_counter::<NoLabelSet, _, f64>(&seconds, None)
        })
    }

    fn encode_parts(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "1 for a part that is open, 0 for one that is missing";
        describe(encoder, "part_up", help, MetricType::Gauge, |mut metric| {
            self.up.iter().try_for_each(|(labels, is_up)| {
                metric.encode_family(labels)?.encode_gauge(&u64::from(*is_up))
            })
        })?;
        for Family { metric, series, .. } in self.families.values().filter(|it| !it.series.is_empty()) {
            let metric_type = match metric.metric_type {
                stack::MetricType::Counter => MetricType::Counter,
                stack::MetricType::Gauge => MetricType::Gauge,
            };
            describe(encoder, metric.name, metric.help, metric_type, |mut encoder| {
                series.iter().try_for_each(|(labels, number)| {
                    let mut series = encoder.encode_family(labels)?;
                    match (metric_type, number) {
                        (MetricType::Counter, Number::Whole(number)) => {
                            series.encode_counter::<NoLabelSet, _, f64>(number, None)
                        }
                        (MetricType::Counter, Number::Real(number)) => {
                            series.encode_counter::<NoLabelSet, _, f64>(number, None)
                        }
                        (_, Number::Whole(number)) => series.encode_gauge(number),
                        (_, Number::Real(number)) => series.encode_gauge(number),
                    }
                })
            })?;
        }
        Ok(())
    }

    fn encode_calls(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        encode_counts(encoder, "", &self.calls)?;
        encode_counts(encoder, "client_", &self.clients)?;
        if self.calls.is_empty() {
            return Ok(());
        }
        let help = "Calls that haven't ended";
        describe(encoder, "calls_in_flight", help, MetricType::Gauge, |mut metric| {
            self.calls
                .iter()
                .try_for_each(|calls| metric.encode_family(&calls.labels)?.encode_gauge(&calls.in_flight))
        })?;
        let help = "Latency that a share of the recent calls doesn't exceed, within 1.6 %";
        describe(encoder, "recent_call_seconds", help, MetricType::Gauge, |mut metric| {
            self.calls.iter().try_for_each(|Calls { labels, quantiles, .. }| {
                SHARES.iter().zip(quantiles.iter().flatten()).try_for_each(|(share, seconds)| {
                    let labels = (labels.clone(), [("share", *share)]);
                    metric.encode_family(&labels)?.encode_gauge(seconds)
                })
            })
        })
    }
}

/// Encodes counters and histograms of calls, whose names have a prefix.
fn encode_counts(encoder: &mut DescriptorEncoder<'_>, prefix: &str, all: &[Calls]) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    let of = if prefix.is_empty() { "" } else { " of one client" };
    let mut counter = |name: &str, help: &str, of_calls: fn(&Calls) -> u64| {
        let (name, help) = (format!("{prefix}{name}"), format!("{help}{of}"));
        describe(encoder, &name, &help, MetricType::Counter, |mut metric| {
            all.iter().try_for_each(|calls| {
                let number = of_calls(calls);
                metric.encode_family(&calls.labels)?.encode_counter::<NoLabelSet, _, f64>(&number, None)
            })
        })
    };
    counter("calls", "Calls that ended", |calls| calls.ended)?;
    counter("call_errors", "Calls that failed", |calls| calls.errors)?;
    counter("call_bytes", "Bytes of successful calls", |calls| calls.bytes)?;
    let (name, help) = (format!("{prefix}call_seconds"), format!("Latency of successful calls{of}"));
    describe(encoder, &name, &help, MetricType::Histogram, |mut metric| {
        all.iter().try_for_each(|Calls { labels, successful, seconds, filled, .. }| {
            let buckets = latency::buckets(filled);
            metric.encode_family(labels)?.encode_histogram::<NoLabelSet>(
                *seconds,
                *successful,
                &buckets,
                None,
            )
        })
    })
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_process(&mut encoder)?;
        self.encode_parts(&mut encoder)?;
        self.encode_calls(&mut encoder)
    }
}

/// Encodes the description of a metric, whose unit is the end of its name, and its series.
fn describe(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric_type: MetricType,
    series: impl FnOnce(MetricEncoder<'_>) -> fmt::Result,
) -> fmt::Result {
    let units = [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)];
    let of_name = units.iter().find_map(|(ending, unit)| Some((name.strip_suffix(ending)?, unit)));
    let (name, unit) = of_name.map_or((name, None), |(name, unit)| (name, Some(unit)));
    series(encoder.encode_descriptor(name, help, unit, metric_type)?)
}

#[cfg(test)]
mod tests;
