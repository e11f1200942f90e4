//! The text of all metrics, by the encoder of `prometheus-client`.
//!
//! Names begin with `siltstone_` and end with their unit. Labels: `part` and `kind`; `door` for the calls of
//! one door to a part, without which they are those of all users; `call`; and those that kinds declare. The
//! metrics of kinds are read from the status by their declarations.

use super::LOOK_TIME;
use super::latency::{self, Marks, SHARES};
use crate::kinds::registry;
use block::{Error, Result};
use layers::observation::{Observation, ObservedCalls};
use layers::stats::CallCounts;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{self, DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use runtime::Instant;
use serde_json::Value;
use stack::{Metric, Number};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

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
        let mut filled = Vec::new();
        let mut calls = Vec::new();
        for part in &parts {
            for (call, counts) in part.counts() {
                let series = (part.part.clone(), part.door.clone(), call);
                let now = latency::filled(&counts);
                let quantiles = latency::quantiles(&now, marks.before(&series));
                filled.push((series, now));
                calls.push(Calls { labels: labels_of(part, call), counts, quantiles });
            }
        }
        marks.set(now, filled.into_iter());
        drop(marks);
        let (up, families) = families(status);
        Snapshot { process: status.get("server").map(Process::of), up, families, calls }
    }
}

/// Names and values of labels.
type Labels = Vec<(&'static str, String)>;

fn labels_of(part: &ObservedCalls, call: &'static str) -> Labels {
    let mut labels = vec![("part", part.part.clone()), ("kind", part.kind.to_owned())];
    labels.extend(part.door.iter().map(|door| ("door", door.clone())));
    labels.push(("call", call.to_owned()));
    labels
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
    counts: CallCounts,
    /// Latencies of recent calls in seconds; `None` without a recent call.
    quantiles: Option<[f64; SHARES.len()]>,
}

/// Reads the metrics that the kinds declare from a status.
fn families(status: &Value) -> (Vec<(Labels, bool)>, BTreeMap<&'static str, Family>) {
    let registry = registry();
    let (mut up, mut families) = (Vec::new(), BTreeMap::new());
    for section in ["devices", "zones", "doors"] {
        for (name, part) in status.get(section).and_then(Value::as_object).into_iter().flatten() {
            let Some(part) = part.as_object() else { continue };
            let kind = part.get("kind").and_then(Value::as_str).unwrap_or_default();
            let labels = || vec![("part", name.clone()), ("kind", kind.to_owned())];
            up.push((labels(), !part.contains_key("missing")));
            for metric in registry.kind(kind).into_iter().flat_map(|kind| kind.all_metrics()) {
                let new = || Family { metric, seen: BTreeSet::new(), series: Vec::new() };
                let family = families.entry(metric.name).or_insert_with(new);
                for (element, number) in metric.read(part) {
                    let mut labels = labels();
                    labels.extend(metric.label.map(|(label, value)| (label, value.to_owned())));
                    labels.extend(metric.of_each.zip(element).map(|((label, _), value)| (label, value)));
                    // Two legs may have the same name.
                    if family.seen.insert(labels.clone()) {
                        family.series.push((labels, number));
                    }
                }
            }
        }
    }
    (up, families)
}

/// Numbers of the server's process.
#[derive(Debug)]
struct Process {
    up_seconds: u64,
    shards: u64,
    /// Resident memory in bytes, and processor time in seconds; `None` without `/proc`.
    resident: Option<u64>,
    processor: Option<f64>,
}

impl Process {
    fn of(server: &Value) -> Process {
        let number = |key: &str| server.get(key).and_then(Value::as_u64).unwrap_or(0);
        let memory = std::fs::read_to_string("/proc/self/statm").ok();
        let pages = memory.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
        // proc(5): the name of the program, in parentheses, may have blanks. User and system time are the
        // twelfth and thirteenth fields after it, in ticks.
        let times = std::fs::read_to_string("/proc/self/stat").ok();
        let ticks = times.and_then(|text| {
            let mut fields = text.rsplit(')').next()?.split_whitespace().skip(11);
            Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
        });
        Process {
            up_seconds: number("up_seconds"),
            shards: number("shards"),
            resident: pages.map(|pages| pages * rustix::param::page_size() as u64),
            processor: ticks.map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64),
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
        if let Some(seconds) = process.processor {
            describe(
                encoder,
                "cpu_seconds",
                "Processor time of the server",
                MetricType::Counter,
                |mut metric| metric.encode_counter::<NoLabelSet, _, f64>(&seconds, None),
            )?;
        }
        Ok(())
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
        if self.calls.is_empty() {
            return Ok(());
        }
        let counter = |encoder: &mut DescriptorEncoder<'_>, name, help, of: fn(&CallCounts) -> u64| {
            describe(encoder, name, help, MetricType::Counter, |mut metric| {
                self.calls.iter().try_for_each(|Calls { labels, counts, .. }| {
                    metric.encode_family(labels)?.encode_counter::<NoLabelSet, _, f64>(&of(counts), None)
                })
            })
        };
        counter(encoder, "calls", "Calls that ended", |counts| counts.latency.count() + counts.errors)?;
        counter(encoder, "call_errors", "Calls that failed", |counts| counts.errors)?;
        counter(encoder, "call_bytes", "Bytes of successful calls", |counts| counts.bytes)?;
        let help = "Calls that haven't ended";
        describe(encoder, "calls_in_flight", help, MetricType::Gauge, |mut metric| {
            self.calls.iter().try_for_each(|Calls { labels, counts, .. }| {
                metric.encode_family(labels)?.encode_gauge(&counts.in_flight)
            })
        })?;
        let help = "Latency of successful calls";
        describe(encoder, "call_seconds", help, MetricType::Histogram, |mut metric| {
            self.calls.iter().try_for_each(|Calls { labels, counts, .. }| {
                let sum = counts.latency.sum() as f64 / 1e9;
                let (count, buckets) = (counts.latency.count(), latency::buckets(counts));
                metric.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
            })
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
