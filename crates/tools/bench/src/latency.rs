//! Figures of latencies: the usual percentiles and the curve for the report.

use serde::{Deserialize, Serialize};

/// Latencies in nanoseconds, to within 0.4 %.
pub type Histogram = runtime::histogram::Histogram<7>;

/// Percentiles of a curve; at most 20, the limit of fio's `percentile_list`.
pub const CURVE: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9, 99.95,
    99.99, 99.999,
];

/// Usual figures of a distribution of latencies, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Lowest latency.
    pub min: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90 % of the latencies don't exceed it.
    pub p90: u64,
    /// 95 % of the latencies don't exceed it.
    pub p95: u64,
    /// 99 % of the latencies don't exceed it.
    pub p99: u64,
    /// 99.9 % of the latencies don't exceed it.
    pub p99_9: u64,
    /// 99.99 % of the latencies don't exceed it.
    pub p99_99: u64,
    /// Highest latency.
    pub max: u64,
}

/// A point of a percentile curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Percentage of the latencies that don't exceed `ns`: above 0, below 100.
    pub percent: f64,
    /// Latency in nanoseconds.
    pub ns: u64,
}

impl Latency {
    /// Figures of a histogram; `None` if it is empty.
    pub fn of(histogram: &Histogram) -> Option<Latency> {
        let percentile = |percent: f64| histogram.quantile(percent / 100.0);
        (histogram.count() > 0).then(|| Latency {
            min: histogram.smallest(),
            mean: histogram.mean(),
            p50: percentile(50.0),
            p90: percentile(90.0),
            p95: percentile(95.0),
            p99: percentile(99.0),
            p99_9: percentile(99.9),
            p99_99: percentile(99.99),
            max: histogram.largest(),
        })
    }
}

/// Points of [`CURVE`] with enough values in the histogram: at least one value is above each.
pub fn curve(histogram: &Histogram) -> Vec<CurvePoint> {
    let supported = |percent: &&f64| histogram.count() as f64 * (100.0 - **percent) >= 99.9;
    let point = |percent: &f64| CurvePoint { percent: *percent, ns: histogram.quantile(percent / 100.0) };
    CURVE.iter().filter(supported).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_shows_only_what_the_values_support() {
        let mut histogram = Histogram::new();
        assert!(Latency::of(&histogram).is_none() && curve(&histogram).is_empty());
        (0..1000).for_each(|value| histogram.record(value));
        assert_eq!(curve(&histogram).last().map(|point| point.percent), Some(99.9));
        let figures = Latency::of(&histogram).expect("it has values");
        assert_eq!((figures.min, figures.p50, figures.max), (0, 498, 999));
    }
}
