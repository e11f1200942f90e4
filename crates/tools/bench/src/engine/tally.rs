//! Counters of a clone, and their conversion to a measurement.

use super::addresses::Direction;
use crate::latency::{Histogram, Latency, curve};
use crate::results::{DirectionFigures, Measurement};
use crate::series::Recorder;
use runtime::Instant;

/// Counters of the operations of one direction.
#[derive(Default)]
struct Counters {
    latency: Histogram,
    operations: u64,
    bytes: u64,
}

impl Counters {
    fn merge(&mut self, other: &Counters) {
        self.latency.merge(&other.latency);
        self.operations += other.operations;
        self.bytes += other.bytes;
    }
}

/// Counters of one clone, or of several merged.
pub(super) struct Tally {
    /// Counters of reads, writes and discards; `None` without any.
    directions: [Option<Box<Counters>>; 3],
    pub(super) series: Recorder,
    pub(super) operations: u64,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    /// Start of the measurement, and end of the last operation.
    pub(super) begin: Instant,
    pub(super) end: Instant,
}

impl Tally {
    pub(super) fn new() -> Tally {
        Tally {
            directions: [None, None, None],
            series: Recorder::default(),
            operations: 0,
            errors: 0,
            first_error: None,
            begin: Instant::from_nanoseconds(u64::MAX),
            end: Instant::default(),
        }
    }

    #[inline]
    pub(super) fn record(&mut self, direction: Direction, started: Instant, ended: Instant, bytes: u64) {
        let latency = ended.nanoseconds().saturating_sub(started.nanoseconds());
        let counters = self.directions[direction as usize].get_or_insert_default();
        counters.latency.record(latency);
        counters.operations += 1;
        counters.bytes += bytes;
        self.series.record(ended.nanoseconds() - self.begin.nanoseconds(), latency);
        self.operations += 1;
        self.end = ended;
    }

    #[cold]
    pub(super) fn fail(&mut self, error: String) {
        self.errors += 1;
        self.first_error.get_or_insert(error);
    }

    pub(super) fn merge(&mut self, other: Tally) {
        for (own, other) in self.directions.iter_mut().zip(&other.directions) {
            if let Some(other) = other {
                own.get_or_insert_default().merge(other);
            }
        }
        self.series.merge(other.series);
        self.operations += other.operations;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.begin = self.begin.min(other.begin);
        self.end = self.end.max(other.end);
    }

    pub(super) fn into_measurement(self, cpu_seconds: f64) -> Measurement {
        let seconds = (self.end - self.begin).as_secs_f64();
        let rate = |amount: u64| if seconds > 0.0 { amount as f64 / seconds } else { 0.0 };
        let mut all = Counters::default();
        self.directions.iter().flatten().for_each(|counters| all.merge(counters));
        let is_mixed = self.directions.iter().flatten().count() > 1;
        let apart = |direction: Direction| {
            self.directions[direction as usize].as_ref().filter(|_| is_mixed).map(|counters| {
                DirectionFigures {
                    operations: counters.operations,
                    bytes: counters.bytes,
                    iops: rate(counters.operations),
                    bandwidth: rate(counters.bytes),
                    latency_ns: Latency::of(&counters.latency),
                }
            })
        };
        Measurement {
            operations: self.operations,
            bytes: all.bytes,
            seconds,
            iops: rate(self.operations),
            bandwidth: rate(all.bytes),
            latency_ns: Latency::of(&all.latency),
            reads: apart(Direction::Read),
            writes: apart(Direction::Write),
            cpu_seconds,
            errors: self.errors,
            first_error: self.first_error,
            curve: curve(&all.latency),
            series: (self.operations > 0).then(|| self.series.series()),
            ..Measurement::default()
        }
    }
}
