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
pub const BOUNDS: [u64; 13] = {
    let mut bounds = [1 << 10; 13];
    let mut index = 1;
    while index < bounds.len() {
        bounds[index] = bounds[index - 1] << 2;
        index += 1;
    }
    bounds
};

/// Returns the number of calls below each of [`BOUNDS`].
pub fn up_to_bounds(filled: &[(u64, u64)]) -> [u64; BOUNDS.len()] {
    let (mut below, mut left) = (0, filled);
    BOUNDS.map(|bound| {
        while let [(middle, count), rest @ ..] = left
            && *middle < bound
        {
            (below, left) = (below + count, rest);
        }
        below
    })
}

/// Calls of one series: the middles of the filled buckets in nanoseconds, ascending, and the calls in each.
pub type Filled = Vec<(u64, u64)>;

/// Returns the filled buckets of a histogram.
pub fn filled(counts: &CallCounts) -> Filled {
    counts.latency.middles().collect()
}

/// Returns the latencies in nanoseconds of [`SHARES`] of the calls since `before` (nearest rank); `None`
/// without a call.
pub fn quantiles(now: &[(u64, u64)], before: &[(u64, u64)]) -> Option<[u64; SHARES.len()]> {
    let mut old = before.iter().peekable();
    let since = |(middle, count): &(u64, u64)| {
        while old.next_if(|(other, _)| other < middle).is_some() {}
        let counted = old.next_if(|(other, _)| other == middle).map_or(0, |(_, counted)| *counted);
        // Less than before: the part was built again.
        (*middle, count.checked_sub(counted).unwrap_or(*count))
    };
    let since: Filled = now.iter().map(since).collect();
    let all: u64 = since.iter().map(|(_, count)| count).sum();
    // The shares ascend, so one pass finds all of them.
    let (mut seen, mut last, mut left) = (0, 0, since.iter());
    let quantile = |share: f64| {
        let rank = ((share * all as f64).ceil() as u64).max(1);
        while seen < rank {
            let Some((middle, count)) = left.next() else { break };
            (seen, last) = (seen + count, *middle);
        }
        last
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
    fn each_call_is_below_the_bounds_above_its_latency() {
        assert_eq!((BOUNDS[0], BOUNDS[12]), (1024, 17_179_869_184));
        let filled = filled(&counts(&[0, 1000, 1024, 4095, 4096, 20_000_000_000, u64::MAX]));
        assert_eq!(up_to_bounds(&filled), [2, 4, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5]);
        assert_eq!(up_to_bounds(&[]), [0; 13]);
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
                let (found, expected) = (found as f64, bench.quantile(*share) as f64);
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
        let all = |found: Option<[u64; 4]>, expected: u64| {
            let found = found.unwrap();
            assert!(found.iter().all(|found| found.abs_diff(expected) < expected / 50), "{found:?}");
        };
        all(quantiles(&now, &before), 1000);
        all(quantiles(&before, &[]), 1_000_000);
        assert_eq!(quantiles(&now, &now), None);
        // A part that was built again has fewer calls than at the mark.
        all(quantiles(&filled(&counts(&[1_000_000])), &before), 1_000_000);
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
