//! Latencies of calls: the buckets of their histogram, and the quantiles of recent calls.
//!
//! The histogram has few buckets, so that a store of time series can afford it: it shows the shape of a
//! distribution, and adds up over parts and machines. Its quantiles are as coarse as its buckets. So
//! quantiles are computed here as well, from the fine histograms of the counters, within 1.6 %. They are of
//! the calls since a mark that is one or two [`WINDOW`]s old, or older if metrics are requested less often:
//! quantiles over all time would hide what happens now.

use layers::stats::CallCounts;
use runtime::Instant;
use std::collections::BTreeMap;
use std::time::Duration;

/// Shares of the calls that take at most as long as a quantile.
pub const SHARES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// Time after which a new mark is set.
pub const WINDOW: Duration = Duration::from_secs(60);

/// Upper bounds of the buckets in nanoseconds, from 1.024 µs by factors of four to 17 s. They are powers of
/// two, as the bounds of the fine histogram are, so that no fine bucket is in two of them.
const BOUNDS: [u64; 13] = {
    let mut bounds = [1 << 10; 13];
    let mut index = 1;
    while index < bounds.len() {
        bounds[index] = bounds[index - 1] << 2;
        index += 1;
    }
    bounds
};

/// Returns the buckets of a histogram: upper bounds in seconds, the last one infinite, and the calls in each.
pub fn buckets(filled: &[(u64, u64)]) -> Vec<(f64, u64)> {
    let mut buckets: Vec<(f64, u64)> = BOUNDS.iter().map(|bound| (*bound as f64 / 1e9, 0)).collect();
    buckets.push((f64::INFINITY, 0));
    for (middle, count) in filled {
        buckets[BOUNDS.partition_point(|bound| bound <= middle)].1 += count;
    }
    buckets
}

/// Calls of one series: the middles of the filled buckets in nanoseconds, ascending, and the calls in each.
pub type Filled = Vec<(u64, u64)>;

/// Returns the filled buckets of a histogram.
pub fn filled(counts: &CallCounts) -> Filled {
    counts.latency.middles().collect()
}

/// Returns the latencies in seconds of [`SHARES`] of the calls since `before` (nearest rank); `None` without
/// a call.
pub fn quantiles(now: &[(u64, u64)], before: &[(u64, u64)]) -> Option<[f64; SHARES.len()]> {
    let mut old = before.iter().peekable();
    let since = |(middle, count): &(u64, u64)| {
        while old.next_if(|(other, _)| other < middle).is_some() {}
        let counted = old.next_if(|(other, _)| other == middle).map_or(0, |(_, counted)| *counted);
        // Less than before: the part was built again.
        (*middle, count.checked_sub(counted).unwrap_or(*count))
    };
    let since: Filled = now.iter().map(since).collect();
    let all: u64 = since.iter().map(|(_, count)| count).sum();
    let quantile = |share: f64| {
        let rank = ((share * all as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let reached = |(_, count): &&(u64, u64)| {
            seen += count;
            seen >= rank
        };
        since.iter().find(reached).map_or(0.0, |(middle, _)| *middle as f64 / 1e9)
    };
    (all > 0).then(|| SHARES.map(quantile))
}

/// Identity of a series: the number of the part and the door among the observed ones, and the call.
pub type Series = (usize, &'static str);

/// Filled buckets of all series at one time.
#[derive(Debug, Default)]
struct Mark {
    at: Option<Instant>,
    series: BTreeMap<Series, Filled>,
}

/// Marks since which recent calls are counted.
#[derive(Debug, Default)]
pub struct Marks {
    older: Mark,
    newer: Mark,
}

impl Marks {
    /// Filled buckets of a series at the mark since which calls are recent; empty before the first one.
    pub fn before(&self, series: Series) -> &[(u64, u64)] {
        self.older.series.get(&series).map_or(&[], Vec::as_slice)
    }

    /// Sets a mark if the newer one is old enough.
    pub fn set(&mut self, now: Instant, series: impl FnOnce() -> BTreeMap<Series, Filled>) {
        if self.newer.at.is_some_and(|at| now - at < WINDOW) {
            return;
        }
        let newer = Mark { at: Some(now), series: series() };
        self.older = std::mem::replace(&mut self.newer, newer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::histogram::Histogram;

    /// Counts of calls with these latencies in nanoseconds.
    fn counts(latencies: &[u64]) -> CallCounts {
        let mut counts = CallCounts::default();
        latencies.iter().for_each(|latency| counts.latency.record(*latency));
        counts
    }

    #[test]
    fn each_call_is_in_the_bucket_of_its_latency() {
        let bounds = buckets(&[]);
        assert_eq!((bounds[0].0, bounds[12].0, bounds.len()), (1.024e-6, 17.179869184, 14));
        let buckets = buckets(&filled(&counts(&[0, 1000, 1024, 4095, 4096, 20_000_000_000, u64::MAX])));
        let filled: Vec<_> = buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(filled, [2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    }

    /// The benchmark's histograms are four times finer, and its quantiles the reference.
    #[test]
    fn quantiles_are_those_of_the_benchmark_within_3_percent() {
        let mut random = runtime::Random::new(5);
        for round in 0..50 {
            let (mut bench, mut latencies) = (Histogram::<7>::new(), Vec::new());
            for _ in 0..1 + random.below(3000) {
                let magnitude = 3 + random.below(30);
                let latency = 1 + random.below(1 << magnitude);
                bench.record(latency);
                latencies.push(latency);
            }
            let found = quantiles(&filled(&counts(&latencies)), &[]).unwrap();
            for (share, found) in SHARES.iter().zip(found) {
                let (found, expected) = (found * 1e9, bench.quantile(*share) as f64);
                assert!(
                    (found - expected).abs() <= expected * 0.03 + 1.0,
                    "round {round}, {share}: {found}, {expected}"
                );
            }
        }
    }

    #[test]
    fn quantiles_are_of_the_calls_since_the_mark() {
        let slow = [1_000_000; 100];
        let fast = [1_000; 10];
        let before = filled(&counts(&slow));
        let now = filled(&counts(&[&slow[..], &fast[..]].concat()));
        let all = |found: Option<[f64; 4]>, expected: f64| {
            let found = found.unwrap();
            assert!(found.iter().all(|found| (found / expected - 1.0).abs() < 0.02), "{found:?}");
        };
        all(quantiles(&now, &before), 1e-6);
        all(quantiles(&before, &[]), 1e-3);
        assert_eq!(quantiles(&now, &now), None);
        // A part that was built again has fewer calls than at the mark.
        all(quantiles(&filled(&counts(&[1_000_000])), &before), 1e-3);
    }

    #[test]
    fn calls_are_recent_for_one_window_at_least() {
        let series = (0, "read");
        let at = |seconds| Instant::from_nanoseconds(seconds * 1_000_000_000);
        let mut marks = Marks::default();
        let mut set = |seconds: u64| {
            marks.set(at(seconds), || BTreeMap::from([(series, vec![(1, seconds)])]));
            marks.before(series).first().map(|(_, seconds)| *seconds)
        };
        let older = [100, 130, 161, 190, 222, 1000].map(&mut set);
        assert_eq!(older, [None, None, Some(100), Some(100), Some(161), Some(222)]);
    }
}
