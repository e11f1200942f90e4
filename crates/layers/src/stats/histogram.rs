//! A histogram of latencies with a fixed shape: powers of two, each cut into 32 equal buckets.
//!
//! Two forms share the buckets: [`Histogram`], owned by one and used for merging and reporting, and
//! [`SharedHistogram`], which one thread writes with plain loads and stores while any thread takes a
//! [`snapshot`](SharedHistogram::snapshot). Neither allocates after it has been made. A quantile is off by
//! at most half a bucket, 1.6 %; smallest, largest and mean are exact. What the values mean, nanoseconds
//! or anything else, is left to the caller.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits of a value that are kept behind its leading one.
const PRECISION: u32 = 5;
/// Values have at most this many bits (in nanoseconds: 73 minutes); larger ones count as the largest.
const BITS: u32 = 42;
/// How many buckets there are.
pub const BUCKETS: usize = ((BITS - PRECISION + 1) as usize) << PRECISION;
/// The largest value with a bucket of its own.
pub const LARGEST: u64 = (1 << BITS) - 1;

/// The bucket of a value. Below 64 every value has its own.
#[inline]
pub fn bucket_of(value: u64) -> usize {
    let value = value.min(LARGEST);
    let exponent = u64::BITS - 1 - (value | (1 << PRECISION)).leading_zeros();
    let shift = exponent - PRECISION;
    ((shift as usize) << PRECISION) + (value >> shift) as usize
}

/// The smallest value of a bucket, and how many values it holds.
pub fn values_of(bucket: usize) -> (u64, u64) {
    let shift = (bucket >> PRECISION).saturating_sub(1);
    (((bucket - (shift << PRECISION)) as u64) << shift, 1 << shift)
}

/// A histogram of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum: u128,
    smallest: u64,
    largest: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram::new()
    }
}

impl Histogram {
    /// An empty one. Allocates about 10 KiB, once.
    pub fn new() -> Self {
        let counts = vec![0; BUCKETS].into_boxed_slice();
        Histogram { counts, count: 0, sum: 0, smallest: u64::MAX, largest: 0 }
    }

    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.counts[bucket_of(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.smallest = self.smallest.min(value);
        self.largest = self.largest.max(value);
    }

    /// Adds everything that the other one has counted.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.smallest = self.smallest.min(other.smallest);
        self.largest = self.largest.max(other.largest);
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The smallest value; 0 if there is none.
    pub fn smallest(&self) -> u64 {
        if self.count == 0 { 0 } else { self.smallest }
    }

    /// The largest value; 0 if there is none.
    pub fn largest(&self) -> u64 {
        self.largest
    }

    /// The arithmetic mean; 0 if there is no value.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The value that a share of all values, from 0 to 1, doesn't exceed (nearest rank): the middle of its
    /// bucket, never outside of what was counted; 0 if there is no value.
    pub fn quantile(&self, share: f64) -> u64 {
        let rank = ((share.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                let (start, width) = values_of(bucket);
                return (start + width / 2).clamp(self.smallest, self.largest);
            }
        }
        0
    }

    /// `{min, mean, p50, p90, p99, p99_9, max}`, whole numbers in the unit of the values.
    pub fn summary(&self) -> serde_json::Value {
        serde_json::json!({
            "min": self.smallest(),
            "mean": self.mean().round() as u64,
            "p50": self.quantile(0.5),
            "p90": self.quantile(0.9),
            "p99": self.quantile(0.99),
            "p99_9": self.quantile(0.999),
            "max": self.largest(),
        })
    }
}

/// A histogram that one thread writes and any thread reads. No locked instruction: the writer's loads and
/// stores are relaxed, and a reader sees each number as it was at some moment close to the others'.
#[derive(Debug)]
pub struct SharedHistogram {
    counts: Box<[AtomicU64; BUCKETS]>,
    sum: AtomicU64,
    smallest: AtomicU64,
    largest: AtomicU64,
}

impl Default for SharedHistogram {
    fn default() -> Self {
        let counts: Box<[AtomicU64]> = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        SharedHistogram {
            counts: counts.try_into().expect("exactly BUCKETS counters were collected"),
            sum: AtomicU64::new(0),
            smallest: AtomicU64::new(u64::MAX),
            largest: AtomicU64::new(0),
        }
    }
}

/// Adds to a counter that only the calling thread writes.
#[inline]
pub(super) fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
}

impl SharedHistogram {
    /// Counts one value. Only ever called by one thread.
    #[inline]
    pub fn record(&self, value: u64) {
        add(&self.counts[bucket_of(value)], 1);
        add(&self.sum, value);
        if value < self.smallest.load(Relaxed) {
            self.smallest.store(value, Relaxed);
        }
        if value > self.largest.load(Relaxed) {
            self.largest.store(value, Relaxed);
        }
    }

    /// Forgets everything. Only ever called by the thread that writes.
    pub fn clear(&self) {
        self.counts.iter().for_each(|count| count.store(0, Relaxed));
        self.sum.store(0, Relaxed);
        self.smallest.store(u64::MAX, Relaxed);
        self.largest.store(0, Relaxed);
    }

    /// What has been counted until now.
    pub fn snapshot(&self) -> Histogram {
        let counts: Box<[u64]> = self.counts.iter().map(|count| count.load(Relaxed)).collect();
        let count = counts.iter().sum();
        let sum = u128::from(self.sum.load(Relaxed));
        let (smallest, largest) = (self.smallest.load(Relaxed), self.largest.load(Relaxed));
        // A value may have been put into its bucket and not yet compared with the smallest.
        Histogram { counts, count, sum, smallest: smallest.min(largest), largest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_follow_each_other_without_gap() {
        let mut expected = 0;
        for bucket in 0..BUCKETS {
            let (start, width) = values_of(bucket);
            assert_eq!(start, expected);
            assert_eq!(bucket_of(start), bucket);
            assert_eq!(bucket_of(start + width - 1), bucket);
            assert!(width == 1 || (width as f64) / (start as f64) <= 1.0 / 32.0);
            expected = start + width;
        }
        assert_eq!(expected, LARGEST + 1);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn an_empty_one_is_all_zeros() {
        let histogram = SharedHistogram::default().snapshot();
        assert_eq!((histogram.count(), histogram.largest(), histogram.quantile(0.5)), (0, 0, 0));
        assert_eq!(histogram.mean(), 0.0);
        assert_eq!(Histogram::new().smallest(), 0);
    }

    proptest! {
        #[test]
        fn quantiles_are_near_the_sorted_values(
            mut values in prop::collection::vec(0..1_u64 << 41, 1..300),
            share in 0.0..=1.0_f64,
        ) {
            let shared = SharedHistogram::default();
            let (mut first, mut second) = (Histogram::new(), Histogram::new());
            for (index, value) in values.iter().enumerate() {
                shared.record(*value);
                if index % 2 == 0 { first.record(*value) } else { second.record(*value) }
            }
            first.merge(&second);
            prop_assert_eq!(&first, &shared.snapshot());
            values.sort_unstable();
            let rank = ((share * values.len() as f64).ceil() as usize).max(1);
            let exact = values[rank - 1];
            let near = first.quantile(share);
            prop_assert!(near.abs_diff(exact) as f64 <= exact as f64 / 64.0 + 1.0, "{} for {}", near, exact);
            prop_assert_eq!(first.largest(), values[values.len() - 1]);
            prop_assert_eq!(first.smallest(), values[0]);
            shared.clear();
            prop_assert_eq!(shared.snapshot().count(), 0);
        }
    }
}
