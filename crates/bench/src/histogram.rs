//! Latencies as HDR histograms.
//!
//! [`Histogram`] has a bucket for every value below 128 ns and 128 equal ones for each power of two above, so
//! that any value up to [`HIGHEST`] is kept to within 0.8 %, minimum, maximum and mean exactly. Recording is a
//! shift, an addition and an increment without a branch that can be foreseen wrongly; each task or shard keeps
//! its own and they are merged at the end. The layout is that of HdrHistogram (Gil Tene, hdrhistogram.org);
//! the tests hold it against that crate.

use serde::{Deserialize, Serialize};

/// The power of two of buckets per doubling.
pub(crate) const SUB_BITS: u32 = 7;
/// The power of two that the highest value is below.
const TOP_BITS: u32 = 42;
pub(crate) const BUCKETS: usize = ((TOP_BITS - SUB_BITS + 1) << SUB_BITS) as usize;

/// The highest latency that is told apart, in nanoseconds (73 minutes); a higher one counts as this one.
pub const HIGHEST: u64 = (1 << TOP_BITS) - 1;

/// The distribution of latencies in nanoseconds.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Histogram({} values, {}..={} ns)", self.count, self.min, self.max)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: Box::new([0; BUCKETS]), count: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

/// The bucket of a value that is at most [`HIGHEST`].
#[inline]
pub(crate) fn bucket(value: u64) -> usize {
    // With at least the sub-bucket bits, small values need no branch: their shift is 0.
    let shift = (63 - (value | (1 << SUB_BITS)).leading_zeros()) - SUB_BITS;
    ((u64::from(shift) << SUB_BITS) + (value >> shift)) as usize
}

/// The smallest value of a bucket, and how many values share it.
pub(crate) fn values(bucket: usize) -> (u64, u64) {
    let bucket = bucket as u64;
    let shift = (bucket >> SUB_BITS).saturating_sub(1);
    ((bucket - (shift << SUB_BITS)) << shift, 1 << shift)
}

impl Histogram {
    /// An empty one. Allocates 36 KiB, the only allocation of its life.
    pub fn new() -> Self {
        Histogram::default()
    }

    /// Counts one latency, in nanoseconds.
    #[inline]
    pub fn record(&mut self, nanoseconds: u64) {
        let value = nanoseconds.min(HIGHEST);
        self.counts[bucket(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds the counts of another one.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts.iter()) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Forgets everything, as at the end of a ramp.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.count, self.sum, self.min, self.max) = (0, 0, u64::MAX, 0);
    }

    /// How many latencies were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The value that `percent` percent of the values don't exceed, to within 0.8 %; 0 if there are none.
    pub fn percentile(&self, percent: f64) -> u64 {
        let wanted = (percent / 100.0 * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                let (first, width) = values(bucket);
                return (first + (width - 1) / 2).clamp(self.min, self.max);
            }
        }
        self.max
    }

    /// The usual figures, or None if there are no values.
    pub fn summary(&self) -> Option<Latency> {
        (self.count > 0).then(|| Latency {
            min: self.min,
            mean: self.sum as f64 / self.count as f64,
            p50: self.percentile(50.0),
            p90: self.percentile(90.0),
            p95: self.percentile(95.0),
            p99: self.percentile(99.0),
            p99_9: self.percentile(99.9),
            p99_99: self.percentile(99.99),
            max: self.max,
        })
    }

    /// The percentile curve for the report: the percentiles of [`CURVE`] that the number of values supports.
    pub fn curve(&self) -> Vec<CurvePoint> {
        let supported = |percent: &&f64| self.count as f64 * (100.0 - **percent) >= 99.9;
        let points = CURVE.iter().filter(supported);
        points.map(|percent| CurvePoint { percent: *percent, ns: self.percentile(*percent) }).collect()
    }
}

/// The percentiles of a curve. Twenty at most: that is how many fio can be asked for.
pub const CURVE: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 99.95,
    99.99, 99.999,
];

/// The usual figures of a distribution of latencies, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The lowest.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// 90 % don't exceed it.
    pub p90: u64,
    /// 95 % don't exceed it.
    pub p95: u64,
    /// 99 % don't exceed it.
    pub p99: u64,
    /// 99.9 % don't exceed it.
    pub p99_9: u64,
    /// 99.99 % don't exceed it.
    pub p99_99: u64,
    /// The highest.
    pub max: u64,
}

/// A point of a percentile curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Above 0, below 100.
    pub percent: f64,
    /// That many percent of the latencies don't exceed this, in nanoseconds.
    pub ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        let edges = (0..TOP_BITS).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for value in (0..1000).chain(edges).chain([HIGHEST]) {
            let (first, width) = values(bucket(value));
            assert!((first..first + width).contains(&value), "{value}: {first}+{width}");
            assert!(bucket(value) < BUCKETS);
        }
        let firsts: Vec<u64> = (0..BUCKETS).map(|bucket| values(bucket).0).collect();
        assert!(firsts.is_sorted_by(|a, b| a < b), "no gap, no overlap");
    }

    #[test]
    fn nothing_recorded() {
        let histogram = Histogram::new();
        assert!(histogram.summary().is_none() && histogram.curve().is_empty());
        assert_eq!(histogram.percentile(50.0), 0);
    }

    #[test]
    fn a_curve_shows_only_what_the_values_support() {
        let mut histogram = Histogram::new();
        (0..1000).for_each(|value| histogram.record(value));
        assert_eq!(histogram.curve().last().unwrap().percent, 99.9);
        histogram.clear();
        assert_eq!(histogram.count(), 0);
    }

    proptest! {
        /// Against the reference implementation, to the resolution of both.
        #[test]
        fn percentiles_are_those_of_hdrhistogram(
            values in prop::collection::vec(prop_oneof![0..1000u64, 1000..10_000_000u64, 0..HIGHEST], 1..300),
            cut in 0..300usize,
        ) {
            let mut reference = hdrhistogram::Histogram::<u64>::new_with_bounds(1, HIGHEST + 1, 3).unwrap();
            let (mut first, mut second) = (Histogram::new(), Histogram::new());
            for (index, value) in values.iter().enumerate() {
                reference.record(*value).unwrap();
                if index < cut { first.record(*value) } else { second.record(*value) }
            }
            first.merge(&second);
            for percent in CURVE {
                let (ours, theirs) = (first.percentile(*percent) as f64, reference.value_at_percentile(*percent) as f64);
                prop_assert!((ours - theirs).abs() <= theirs * 0.01 + 1.0, "p{}: {} and {}", percent, ours, theirs);
            }
            let summary = first.summary().unwrap();
            prop_assert_eq!(summary.min, *values.iter().min().unwrap());
            prop_assert_eq!(summary.max, *values.iter().max().unwrap());
            prop_assert!(summary.p50 <= summary.p99 && summary.p99 <= summary.max);
        }
    }
}
