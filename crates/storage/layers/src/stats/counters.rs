//! Counters of one part: one set per shard handle, written by that shard alone and read from all.
//!
//! Counting costs two clock reads and a few loads and stores, and no atomic read-modify-write. A clear raises
//! a number that each writer compares with its own before it counts. A set that hasn't caught up yet reads as
//! empty, so the status never shows counts from before a clear.
//!
//! The memory is bounded by the handles that are open: the counts of a closed handle are added to one set for
//! all of them, and a kind of call has a histogram only after its first call.

use block::Status;
use runtime::Instant;
use runtime::histogram::{Histogram, SharedHistogram, add};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Precision of the latencies: quantiles within 1.6 %.
pub const PRECISION: u32 = 5;

/// Counters of one kind of call.
#[derive(Debug, Default)]
pub(crate) struct KindCounters {
    /// Successful calls and their latency in nanoseconds.
    latency: OnceLock<SharedHistogram<PRECISION>>,
    bytes: AtomicU64,
    errors: AtomicU64,
    in_flight: AtomicU64,
}

impl KindCounters {
    /// Counts a call that has ended. Called by one thread only.
    #[inline]
    pub(crate) fn count(&self, took: u64, bytes: u64, succeeded: bool) {
        if succeeded {
            self.latency.get_or_init(SharedHistogram::default).record(took);
            add(&self.bytes, bytes);
        } else {
            add(&self.errors, 1);
        }
    }

    /// Whether no call has ended or is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.latency.get().is_none()
            && self.errors.load(Ordering::Relaxed) == 0
            && self.in_flight.load(Ordering::Relaxed) == 0
    }
}

/// Counts of one kind of call, over all handles of a part.
#[derive(Debug, Clone, Default)]
pub struct CallCounts {
    /// Successful calls and their latency in nanoseconds.
    pub latency: Histogram<PRECISION>,
    /// Bytes of the successful calls.
    pub bytes: u64,
    /// Failed calls.
    pub errors: u64,
    /// Calls that haven't ended.
    pub in_flight: u64,
}

impl CallCounts {
    /// Adds the counts of a handle.
    pub(crate) fn add(&mut self, counters: &KindCounters) {
        if let Some(latency) = counters.latency.get() {
            latency.add_to(&mut self.latency);
        }
        self.bytes += counters.bytes.load(Ordering::Relaxed);
        self.errors += counters.errors.load(Ordering::Relaxed);
    }

    /// Whether there was no call.
    pub fn is_empty(&self) -> bool {
        self.latency.count() == 0 && self.errors == 0 && self.in_flight == 0
    }
}

/// Counters of one shard handle.
#[derive(Debug)]
pub struct ShardCounters {
    part: Arc<PartCounters>,
    /// Number of clears that this set has applied.
    clearings: AtomicU64,
    kinds: Box<[KindCounters]>,
}

/// Observer of the calls through one shard handle, until it is dropped.
#[derive(Debug)]
pub struct Counting(Arc<ShardCounters>);

impl Counting {
    /// Begins a call of this kind.
    #[inline]
    pub fn begin(&self, kind: usize) -> Running<'_> {
        self.0.begin(kind)
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let part = &self.0.part;
        let mut handles = part.handles();
        handles.open.retain(|other| !Arc::ptr_eq(other, &self.0));
        let clearings = part.clearings.load(Ordering::Acquire);
        if handles.closed_clearings != clearings {
            handles.closed.clear();
            handles.closed_clearings = clearings;
        }
        if self.0.clearings.load(Ordering::Relaxed) == clearings {
            handles.closed.resize_with(part.names.len(), CallCounts::default);
            handles.closed.iter_mut().zip(&self.0.kinds).for_each(|(closed, counters)| closed.add(counters));
        }
    }
}

/// Counters of a part, over all of its handles.
#[derive(Debug)]
pub struct PartCounters {
    names: &'static [&'static str],
    clearings: AtomicU64,
    handles: Mutex<Handles>,
}

#[derive(Debug, Default)]
struct Handles {
    open: Vec<Arc<ShardCounters>>,
    /// Counts of closed handles by the kind of call, since the last clear; empty if there are none.
    closed: Vec<CallCounts>,
    /// Number of clears that `closed` has applied.
    closed_clearings: u64,
}

impl Handles {
    /// Sums up one kind of call since clear number `clearings`; `None` if no handle has counted any.
    fn counts_of(&self, kind: usize, clearings: u64) -> Option<CallCounts> {
        let closed = self.closed.get(kind).filter(|_| self.closed_clearings == clearings);
        let mut counts = closed.filter(|closed| !closed.is_empty()).cloned();
        for handle in &self.open {
            let counters = &handle.kinds[kind];
            if counters.is_empty() {
                continue;
            }
            let counts = counts.get_or_insert_default();
            counts.in_flight += counters.in_flight.load(Ordering::Relaxed);
            if handle.clearings.load(Ordering::Acquire) == clearings {
                counts.add(counters);
            }
        }
        counts
    }
}

/// Counts of the kinds of call that have been made, in the order of the names.
pub type CallsMade = Vec<(&'static str, CallCounts)>;

impl PartCounters {
    /// Creates counters for these kinds of call.
    pub fn new(names: &'static [&'static str]) -> Arc<Self> {
        Arc::new(PartCounters { names, clearings: AtomicU64::new(0), handles: Mutex::default() })
    }

    /// Names of the kinds of call.
    pub fn names(&self) -> &'static [&'static str] {
        self.names
    }

    fn handles(&self) -> MutexGuard<'_, Handles> {
        // Nothing panics while the lock is held.
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the observer of another shard handle.
    pub fn open(self: &Arc<Self>) -> Counting {
        let counters = Arc::new(ShardCounters {
            part: self.clone(),
            clearings: AtomicU64::new(self.clearings.load(Ordering::Acquire)),
            kinds: self.names.iter().map(|_| KindCounters::default()).collect(),
        });
        self.handles().open.push(counters.clone());
        Counting(counters)
    }

    /// Number of open handles.
    pub fn open_handles(&self) -> usize {
        self.handles().open.len()
    }

    /// Resets all counters except the calls in flight.
    pub fn clear(&self) {
        self.clearings.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the counts of the kinds of call that have been made, in the order of the names. Others take
    /// neither time nor memory.
    pub fn counts_of_made(&self) -> CallsMade {
        let handles = self.handles();
        let clearings = self.clearings.load(Ordering::Acquire);
        let of = |(kind, name): (usize, &&'static str)| {
            let counts = handles.counts_of(kind, clearings)?;
            (!counts.is_empty()).then_some((*name, counts))
        };
        self.names.iter().enumerate().filter_map(of).collect()
    }

    /// Returns per kind of call: successful `operations`, their `bytes` and `latency_ns`, `errors`,
    /// `in_flight`.
    pub fn status(&self) -> Status {
        let mut made = self.counts_of_made().into_iter().peekable();
        let entry = |name: &&'static str| {
            let counts = made.next_if(|(other, _)| other == name).map(|(_, counts)| counts);
            let number = |of: fn(&CallCounts) -> u64| counts.as_ref().map_or(0, of).into();
            let mut entry = Status::new();
            entry.insert("operations".into(), number(|counts| counts.latency.count()));
            entry.insert("bytes".into(), number(|counts| counts.bytes));
            entry.insert("errors".into(), number(|counts| counts.errors));
            entry.insert("in_flight".into(), number(|counts| counts.in_flight));
            if let Some(counts) = counts.filter(|counts| counts.latency.count() > 0) {
                entry.insert("latency_ns".into(), summary(&counts.latency));
            }
            ((*name).to_owned(), entry.into())
        };
        self.names.iter().map(entry).collect()
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
    fn begin(&self, kind: usize) -> Running<'_> {
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
            if let Some(latency) = counters.latency.get() {
                latency.clear();
            }
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
    /// Ends the call: counts `bytes` and the latency if it succeeded, otherwise an error. Returns the time of
    /// the start, and the latency in nanoseconds.
    #[inline]
    pub fn end(self, bytes: u64, succeeded: bool) -> (Instant, u64) {
        self.shard.catch_up();
        let took = runtime::now().nanoseconds().saturating_sub(self.started.nanoseconds());
        self.counters.count(took, bytes, succeeded);
        (self.started, took)
    }
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        add(&self.counters.in_flight, u64::MAX);
    }
}
