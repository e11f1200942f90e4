//! Time series: number of operations that end in each interval of a run, and their latencies.
//!
//! A [`Recorder`] counts during a run: per interval the operations, the longest latency, and a histogram with
//! 16 buckets per doubling, so that recorders of several clones can be merged before rounding. It has at most
//! [`LIMIT`] intervals, for any length of the run: 2.6 MB, of which only used parts are touched. Recording is
//! two additions and a maximum in memory that the operation before has used. A [`Series`] is its summary for
//! results: medians and 99th percentiles to within 3 %.

use runtime::histogram::{LARGEST, bucket_of, buckets, quantile};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Most intervals: if one more is needed, all become twice as long.
pub const LIMIT: usize = 1024;

/// Precision of an interval's latencies: quantiles within 3 %.
const PRECISION: u32 = 4;
const WIDTH: usize = buckets(PRECISION);

/// Counts operations over time.
#[derive(Clone)]
pub struct Recorder {
    interval_ns: u64,
    /// Current interval: its number, start and end.
    current: usize,
    begin_ns: u64,
    end_ns: u64,
    operations: Vec<u64>,
    highest: Vec<u64>,
    /// Per interval, [`WIDTH`] buckets of latencies.
    counts: Vec<u32>,
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder::new(Duration::from_millis(100))
    }
}

impl Recorder {
    /// Empty recorder with intervals of this length (at least 1 ns).
    pub fn new(interval: Duration) -> Self {
        Recorder {
            interval_ns: (interval.as_nanos() as u64).max(1),
            current: 0,
            begin_ns: 0,
            end_ns: 0,
            operations: Vec::with_capacity(LIMIT),
            highest: Vec::with_capacity(LIMIT),
            counts: Vec::with_capacity(LIMIT * WIDTH),
        }
    }

    /// Records an operation that ended this many nanoseconds after the start, with this latency. Allocates
    /// nothing.
    #[inline]
    pub fn record(&mut self, since_start_ns: u64, latency_ns: u64) {
        if since_start_ns < self.begin_ns || since_start_ns >= self.end_ns {
            self.go_to(since_start_ns);
        }
        let latency = latency_ns.min(LARGEST);
        self.operations[self.current] += 1;
        self.highest[self.current] = self.highest[self.current].max(latency);
        self.counts[self.current * WIDTH + bucket_of::<PRECISION>(latency)] += 1;
    }

    /// Moves to the interval of this time.
    #[cold]
    fn go_to(&mut self, since_start_ns: u64) {
        while since_start_ns / self.interval_ns >= LIMIT as u64 {
            self.halve();
        }
        self.current = (since_start_ns / self.interval_ns) as usize;
        self.begin_ns = self.current as u64 * self.interval_ns;
        self.end_ns = self.begin_ns.saturating_add(self.interval_ns);
        self.grow(self.current + 1);
    }

    fn grow(&mut self, intervals: usize) {
        if self.operations.len() < intervals {
            self.operations.resize(intervals, 0);
            self.highest.resize(intervals, 0);
            self.counts.resize(intervals * WIDTH, 0);
        }
    }

    /// Merges the intervals in pairs.
    fn halve(&mut self) {
        let intervals = self.operations.len();
        for from in 0..intervals {
            let into = from / 2;
            let (operations, highest) = (self.operations[from], self.highest[from]);
            let is_first = from % 2 == 0;
            self.operations[into] = if is_first { operations } else { self.operations[into] + operations };
            self.highest[into] = if is_first { highest } else { self.highest[into].max(highest) };
            for index in 0..WIDTH {
                let count = self.counts[from * WIDTH + index];
                let into = &mut self.counts[into * WIDTH + index];
                *into = if is_first { count } else { into.saturating_add(count) };
            }
        }
        let left = intervals.div_ceil(2);
        self.operations.truncate(left);
        self.highest.truncate(left);
        self.counts.truncate(left * WIDTH);
        self.interval_ns = self.interval_ns.saturating_mul(2);
        (self.begin_ns, self.end_ns) = (0, 0);
    }

    /// Adds another recorder whose intervals began at the same time with the same length.
    pub fn merge(&mut self, mut other: Recorder) {
        while self.interval_ns < other.interval_ns {
            self.halve();
        }
        while other.interval_ns < self.interval_ns {
            other.halve();
        }
        self.grow(other.operations.len());
        for (mine, theirs) in self.operations.iter_mut().zip(&other.operations) {
            *mine += theirs;
        }
        for (mine, theirs) in self.highest.iter_mut().zip(&other.highest) {
            *mine = (*mine).max(*theirs);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    /// Summary of the recorder.
    pub fn series(&self) -> Series {
        let at = |share: f64| -> Vec<u64> {
            let intervals = self.counts.chunks_exact(WIDTH).zip(&self.highest);
            let of = |(counts, highest): (&[u32], &u64)| {
                let found = quantile::<PRECISION>(counts.iter().map(|count| u64::from(*count)), share);
                found.map_or(0, |latency| latency.min(*highest))
            };
            intervals.map(of).collect()
        };
        Series {
            interval_ns: self.interval_ns,
            operations: self.operations.clone(),
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            max_ns: self.highest.clone(),
        }
    }
}

/// Operations over time, and their latencies, in intervals of equal length. The number of intervals is
/// bounded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series {
    /// Length of an interval, in nanoseconds.
    interval_ns: u64,
    /// Number of operations that ended in each interval, in order.
    operations: Vec<u64>,
    /// Median of their latencies in nanoseconds; 0 in intervals without operations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    p50_ns: Vec<u64>,
    /// 99th percentile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    p99_ns: Vec<u64>,
    /// Longest latency.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    max_ns: Vec<u64>,
}

/// Latencies of the operations that ended in one interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// Middle of the interval, in seconds after the start.
    pub seconds: f64,
    /// Median, in nanoseconds.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Longest latency.
    pub max: u64,
}

impl Series {
    /// Length of an interval, in seconds.
    pub fn interval(&self) -> f64 {
        self.interval_ns as f64 / 1e9
    }

    /// Number of whole intervals. The last interval rarely is one, and is excluded unless it is the only one.
    fn whole(&self) -> usize {
        self.operations.len().saturating_sub(1).max(1).min(self.operations.len())
    }

    fn middle(&self, index: usize) -> f64 {
        (index as f64 + 0.5) * self.interval()
    }

    /// Middle of each whole interval in seconds after the start, and its operations per second.
    pub fn rates(&self) -> Vec<(f64, f64)> {
        let points = self.operations[..self.whole()].iter().enumerate();
        points.map(|(index, count)| (self.middle(index), *count as f64 / self.interval())).collect()
    }

    /// Latencies of each whole interval in which an operation ended.
    pub fn moments(&self) -> Vec<Moment> {
        let figures = self.p50_ns.iter().zip(&self.p99_ns).zip(&self.max_ns).enumerate();
        let moments = figures.take(self.whole()).map(|(index, ((p50, p99), max))| Moment {
            seconds: self.middle(index),
            p50: *p50,
            p99: *p99,
            max: *max,
        });
        moments.filter(|moment| moment.max > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Histogram;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn it_stays_bounded_and_loses_nothing() {
        let mut recorder = Recorder::default();
        for second in 0..1000 {
            (0..7).for_each(|_| recorder.record(second * SECOND, 1000 + second));
        }
        let series = recorder.series();
        assert!(series.operations.len() <= LIMIT && series.interval() > 0.9, "{}", series.interval());
        assert_eq!(series.operations.iter().sum::<u64>(), 7000);
        assert_eq!(series.max_ns.iter().max(), Some(&1999));
        assert_eq!(recorder.counts.iter().sum::<u32>(), 7000);
        let mut short = Recorder::default();
        (0..10).for_each(|_| short.record(250_000_000, 5));
        (0..10).for_each(|_| short.record(350_000_000, 900));
        assert_eq!(short.series().rates()[2], (0.25, 100.0));
        recorder.merge(short);
        assert_eq!(recorder.series().operations.iter().sum::<u64>(), 7020);
        recorder.record(u64::MAX, 1);
        assert_eq!(recorder.series().operations.iter().sum::<u64>(), 7021);
    }

    #[test]
    fn a_quiet_time_has_no_latency() {
        let mut recorder = Recorder::default();
        recorder.record(50_000_000, 1_000_000);
        recorder.record(950_000_000, 9_000_000);
        recorder.record(1_010_000_000, 5);
        let series = recorder.series();
        assert_eq!((series.rates().len(), series.rates()[5].1), (10, 0.0));
        let moments = series.moments();
        assert_eq!(moments.iter().map(|moment| moment.max).collect::<Vec<_>>(), [1_000_000, 9_000_000]);
        assert!((moments[1].seconds - 0.95).abs() < 1e-9);
        assert!(Recorder::default().series().moments().is_empty());
    }

    #[test]
    fn results_from_before_there_were_latencies_are_read() {
        let series: Series =
            serde_json::from_str("{\"interval_ns\": 100000000, \"operations\": [3, 4]}").expect("it is one");
        assert_eq!((series.rates().len(), series.moments().len()), (1, 0));
    }

    proptest! {
        /// Compares with the histogram of the whole run, for any order and merging of the values.
        #[test]
        fn percentiles_are_those_of_the_histogram(
            values in prop::collection::vec(prop_oneof![1..1000u64, 1000..10_000_000u64, 1..LARGEST], 1..200),
            cut in 0..200usize,
        ) {
            let (mut first, mut second) = (Recorder::default(), Recorder::default());
            let mut histogram = Histogram::new();
            for (index, value) in values.iter().enumerate() {
                histogram.record(*value);
                let recorder = if index < cut { &mut first } else { &mut second };
                recorder.record(index as u64, *value);
            }
            first.merge(second);
            let moment = first.series().moments()[0];
            prop_assert_eq!(moment.max, *values.iter().max().unwrap());
            for (found, share) in [(moment.p50, 0.5), (moment.p99, 0.99)] {
                let expected = histogram.quantile(share) as f64;
                prop_assert!((found as f64 - expected).abs() <= expected * 0.04 + 4.0, "{} {}", found, expected);
            }
        }
    }
}
