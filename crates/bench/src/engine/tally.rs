//! Counters of a clone, and their conversion to a measurement.

use crate::latency::{Histogram, Latency, curve};
use crate::results::Measurement;
use crate::series::Recorder;
use runtime::Instant;

/// Counters of one clone, or of several merged.
pub(super) struct Tally {
    pub(super) latency: Histogram,
    pub(super) series: Recorder,
    pub(super) operations: u64,
    pub(super) bytes: u64,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    /// Start of the measurement, and end of the last operation.
    pub(super) begin: Instant,
    pub(super) end: Instant,
}

impl Tally {
    pub(super) fn new() -> Tally {
        Tally {
            latency: Histogram::new(),
            series: Recorder::default(),
            operations: 0,
            bytes: 0,
            errors: 0,
            first_error: None,
            begin: Instant::from_nanoseconds(u64::MAX),
            end: Instant::default(),
        }
    }

    #[inline]
    pub(super) fn record(&mut self, started: Instant, ended: Instant, bytes: u64) {
        let latency = ended.nanoseconds().saturating_sub(started.nanoseconds());
        self.latency.record(latency);
        self.series.record(ended.nanoseconds() - self.begin.nanoseconds(), latency);
        self.operations += 1;
        self.bytes += bytes;
        self.end = ended;
    }

    #[cold]
    pub(super) fn fail(&mut self, error: String) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }

    pub(super) fn merge(&mut self, other: Tally) {
        self.latency.merge(&other.latency);
        self.series.merge(other.series);
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.begin = self.begin.min(other.begin);
        self.end = self.end.max(other.end);
    }

    pub(super) fn into_measurement(self, cpu_seconds: f64) -> Measurement {
        let seconds = (self.end - self.begin).as_secs_f64();
        let rate = |amount: u64| if seconds > 0.0 { amount as f64 / seconds } else { 0.0 };
        Measurement {
            operations: self.operations,
            bytes: self.bytes,
            seconds,
            iops: rate(self.operations),
            bandwidth: rate(self.bytes),
            latency_ns: Latency::of(&self.latency),
            cpu_seconds,
            errors: self.errors,
            first_error: self.first_error,
            curve: curve(&self.latency),
            series: (self.operations > 0).then(|| self.series.series()),
            ..Measurement::default()
        }
    }
}
