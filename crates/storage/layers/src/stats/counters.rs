//! Counters of one part: one set per shard handle, written by that shard alone and read from all.
//!
//! Counting costs two clock reads and a few loads and stores, and no atomic read-modify-write. A clear raises
//! a number that each writer compares with its own before it counts. A set that hasn't caught up yet reads as
//! empty, so the status never shows counts from before a clear.

use block::Status;
use runtime::Instant;
use runtime::histogram::{Histogram, SharedHistogram, add};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Precision of the latencies: quantiles within 1.6 %.
const PRECISION: u32 = 5;

/// Counters of one kind of call.
#[derive(Debug, Default)]
struct KindCounters {
    /// Successful calls and their latency in nanoseconds.
    latency: SharedHistogram<PRECISION>,
    bytes: AtomicU64,
    errors: AtomicU64,
    in_flight: AtomicU64,
}

/// Counters of one shard handle.
#[derive(Debug)]
pub struct ShardCounters {
    part: Arc<PartCounters>,
    /// Number of clears that this set has applied.
    clearings: AtomicU64,
    kinds: Box<[KindCounters]>,
}

/// Observer of the calls through one shard handle.
pub struct Counting(pub Arc<ShardCounters>);

/// Counters of a part, over all of its handles.
#[derive(Debug)]
pub struct PartCounters {
    names: &'static [&'static str],
    clearings: AtomicU64,
    shards: Mutex<Vec<Arc<ShardCounters>>>,
}

impl PartCounters {
    /// Creates counters for these kinds of call.
    pub fn new(names: &'static [&'static str]) -> Arc<Self> {
        Arc::new(PartCounters { names, clearings: AtomicU64::new(0), shards: Mutex::new(Vec::new()) })
    }

    /// Creates the set of another shard handle.
    pub fn open(self: &Arc<Self>) -> Arc<ShardCounters> {
        let counters = Arc::new(ShardCounters {
            part: self.clone(),
            clearings: AtomicU64::new(self.clearings.load(Ordering::Acquire)),
            kinds: self.names.iter().map(|_| KindCounters::default()).collect(),
        });
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).push(counters.clone());
        counters
    }

    /// Resets all counters except the calls in flight.
    pub fn clear(&self) {
        self.clearings.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns per kind of call: successful `operations`, their `bytes` and `latency_ns`, `errors`,
    /// `in_flight`.
    pub fn status(&self) -> Status {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        let clearings = self.clearings.load(Ordering::Acquire);
        let mut status = Status::new();
        for (kind, name) in self.names.iter().enumerate() {
            let (mut latency, mut bytes, mut errors, mut in_flight) =
                (Histogram::<PRECISION>::new(), 0, 0, 0);
            for shard in shards.iter() {
                let counters = &shard.kinds[kind];
                in_flight += counters.in_flight.load(Ordering::Relaxed);
                if shard.clearings.load(Ordering::Acquire) == clearings {
                    latency.merge(&counters.latency.snapshot());
                    bytes += counters.bytes.load(Ordering::Relaxed);
                    errors += counters.errors.load(Ordering::Relaxed);
                }
            }
            let mut entry = Status::new();
            entry.insert("operations".into(), latency.count().into());
            entry.insert("bytes".into(), bytes.into());
            entry.insert("errors".into(), errors.into());
            entry.insert("in_flight".into(), in_flight.into());
            if latency.count() > 0 {
                entry.insert("latency_ns".into(), summary(&latency));
            }
            status.insert((*name).into(), entry.into());
        }
        status
    }
}

/// Returns `{min, mean, p50, p90, p99, p99_9, max}` in whole nanoseconds.
fn summary(latency: &Histogram<PRECISION>) -> serde_json::Value {
    serde_json::json!({
        "min": latency.smallest(),
        "mean": latency.mean().round() as u64,
        "p50": latency.quantile(0.5),
        "p90": latency.quantile(0.9),
        "p99": latency.quantile(0.99),
        "p99_9": latency.quantile(0.999),
        "max": latency.largest(),
    })
}

impl ShardCounters {
    /// Begins a call of this kind.
    #[inline]
    pub fn begin(&self, kind: usize) -> Running<'_> {
        let counters = &self.kinds[kind];
        add(&counters.in_flight, 1);
        Running { shard: self, counters, started: runtime::now() }
    }

    /// Applies a clear that another shard may have requested: only this shard writes the set.
    #[inline]
    fn catch_up(&self) {
        let clearings = self.part.clearings.load(Ordering::Relaxed);
        if clearings != self.clearings.load(Ordering::Relaxed) {
            self.forget(clearings);
        }
    }

    #[cold]
    fn forget(&self, clearings: u64) {
        for counters in &self.kinds {
            counters.latency.clear();
            counters.bytes.store(0, Ordering::Relaxed);
            counters.errors.store(0, Ordering::Relaxed);
        }
        // Release: a reader that sees this number also sees the zeros above.
        self.clearings.store(clearings, Ordering::Release);
    }
}

/// A call in flight. Dropping it without [`end`](Self::end) only ends its time in flight: the outcome of a
/// call whose future is dropped isn't counted.
pub struct Running<'a> {
    shard: &'a ShardCounters,
    counters: &'a KindCounters,
    started: Instant,
}

impl Running<'_> {
    /// Ends the call: counts `bytes` and the latency if it succeeded, otherwise an error.
    #[inline]
    pub fn end(self, bytes: u64, succeeded: bool) {
        self.shard.catch_up();
        if succeeded {
            let took = runtime::now().nanoseconds().saturating_sub(self.started.nanoseconds());
            self.counters.latency.record(took);
            add(&self.counters.bytes, bytes);
        } else {
            add(&self.counters.errors, 1);
        }
    }
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        add(&self.counters.in_flight, u64::MAX);
    }
}
