//! State of a mirror that all shards read: legs that may be read without the home shard, and the status.

use crate::leg::{LegCounters, Mask, each};
use block::{DeviceGeometry, Status};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Status field of a leg: bytes that are only in a cache ([`block::DevicePart::only_in_cache`]).
const ONLY_IN_CACHE: &str = "only_in_cache_bytes";

/// State of a mirror that all shards read.
#[derive(Debug)]
pub struct Shared {
    /// Geometry of the mirror.
    pub geometry: DeviceGeometry,
    /// Legs that any shard may read directly; none if reads have to go to the home shard.
    pub readable: AtomicU32,
    /// Counters by leg.
    pub legs: Vec<LegCounters>,
    /// Number of direct reads, by which probes are chosen.
    pub reads: AtomicU64,
    /// Outstanding write-behind writes and their bytes: a [`Lag`] in one word, so that both values are
    /// consistent.
    pub behind: AtomicU64,
    /// Bytes that were copied from leg to leg.
    pub copied_bytes: AtomicU64,
    /// Bytes that the last scrub has compared.
    pub scrubbed_bytes: AtomicU64,
    /// Sectors of 512 bytes that differed in the last scrub.
    pub mismatches: AtomicU64,
    /// State that changes rarely.
    pub summary: Mutex<Summary>,
}

/// Outstanding write-behind writes and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lag {
    /// At most 16383.
    pub writes: u64,
    pub bytes: u64,
}

/// Number of bits of the bytes: more than the memory of any machine.
const BYTES_BITS: u32 = 48;

impl Lag {
    pub fn to_word(self) -> u64 {
        self.writes << BYTES_BITS | self.bytes.min((1 << BYTES_BITS) - 1)
    }

    fn from_word(word: u64) -> Self {
        Lag { writes: word >> BYTES_BITS, bytes: word & ((1 << BYTES_BITS) - 1) }
    }
}

/// State of the status that changes rarely.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    pub array: String,
    pub legs: Vec<LegSummary>,
    pub places: usize,
    pub active: Mask,
    pub rebuilding: Mask,
    pub events: u64,
    pub source: usize,
    pub chunk: u64,
    pub chunks: u64,
    pub dirty: u64,
    pub differ: u64,
    pub lacking: u64,
    pub fast_flush: bool,
    /// `check` or `repair`, while one is in progress.
    pub scrub: Option<&'static str>,
}

/// State of one leg.
#[derive(Debug, Clone)]
pub struct LegSummary {
    pub name: String,
    pub state: &'static str,
    pub write_mostly: bool,
    /// Error by which the leg couldn't be opened.
    pub error: Option<String>,
}

impl Shared {
    /// Creates the state for this number of legs.
    pub fn new(geometry: DeviceGeometry, legs: usize) -> Self {
        Shared {
            geometry,
            readable: AtomicU32::new(0),
            legs: (0..legs).map(|_| LegCounters::default()).collect(),
            reads: AtomicU64::new(0),
            behind: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            scrubbed_bytes: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
            summary: Mutex::default(),
        }
    }

    /// Legs that are active or being rebuilt.
    pub fn used(&self) -> Mask {
        let summary = self.summary.lock().unwrap_or_else(PoisonError::into_inner);
        summary.active | summary.rebuilding
    }

    /// Returns the status; `only_in_cache` has the bytes of each leg that are only in a cache.
    pub fn status(&self, only_in_cache: &[Option<u64>]) -> Status {
        let summary = self.summary.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut status = Status::new();
        let number = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let Lag { writes, bytes: behind } = Lag::from_word(number(&self.behind));
        let one_copy = summary.one_copy(behind, only_in_cache).min(self.geometry.bytes());
        let sync_action = summary.sync_action();
        status.insert("array".into(), summary.array.into());
        status.insert("bytes".into(), self.geometry.bytes().into());
        let is_whole = summary.active.count_ones() as usize == summary.places;
        let state = match () {
            () if !is_whole && summary.lacking > 0 => "degraded, rebuilding",
            () if !is_whole => "degraded",
            () if summary.differ > 0 => "resyncing",
            () => "clean",
        };
        status.insert("state".into(), state.into());
        status.insert("behind_writes".into(), writes.into());
        status.insert("behind_bytes".into(), behind.into());
        status.insert("one_copy_bytes".into(), one_copy.into());
        status.insert("flush".into(), if summary.fast_flush { "fast" } else { "all" }.into());
        status.insert("events".into(), summary.events.into());
        status.insert("bitmap_chunk".into(), summary.chunk.into());
        status.insert("dirty_chunks".into(), summary.dirty.into());
        status.insert("chunks".into(), summary.chunks.into());
        status.insert("chunks_to_copy".into(), summary.differ.max(summary.lacking).into());
        status.insert("copied_bytes".into(), number(&self.copied_bytes).into());
        status.insert("sync_action".into(), sync_action.into());
        status.insert("scrubbed_bytes".into(), number(&self.scrubbed_bytes).into());
        status.insert("mismatch_sectors".into(), number(&self.mismatches).into());
        let source = summary.source;
        let legs = summary.legs.into_iter().enumerate().map(|(index, leg)| {
            let mut status = Status::new();
            status.insert("leg".into(), leg.name.into());
            status.insert("state".into(), leg.state.into());
            leg.error.into_iter().for_each(|error| drop(status.insert("error".into(), error.into())));
            status.insert("write_mostly".into(), leg.write_mostly.into());
            // A slot without a leg has no counters.
            if let Some(counters) = self.legs.get(index) {
                status.insert("source".into(), (index == source).into());
                status.insert("read_latency_ns".into(), number(&counters.latency).into());
                status.insert("reads".into(), number(&counters.reads).into());
                status.insert("writes".into(), number(&counters.writes).into());
                status.insert("read_errors".into(), number(&counters.read_errors).into());
                status.insert("corrected".into(), number(&counters.corrected).into());
            }
            if let Some(bytes) = only_in_cache.get(index).copied().flatten() {
                status.insert(ONLY_IN_CACHE.into(), bytes.into());
            }
            serde_json::Value::Object(status)
        });
        status.insert("legs".into(), legs.collect::<Vec<_>>().into());
        status
    }
}

impl Summary {
    /// Returns md's name of the background operation. As in md, a rebuild takes precedence, and a scrub
    /// begins when no copy is left.
    fn sync_action(&self) -> &'static str {
        match () {
            () if self.rebuilding != 0 => "recover",
            () if self.differ > 0 => "resync",
            () => self.scrub.unwrap_or("idle"),
        }
    }

    /// Upper bound of the bytes that are on one leg only, with `behind` bytes outstanding.
    fn one_copy(&self, behind: u64, only_in_cache: &[Option<u64>]) -> u64 {
        if self.active.count_ones() == 1 {
            return u64::MAX;
        }
        let (late, prompt): (Vec<usize>, Vec<usize>) =
            each(self.active).partition(|leg| self.legs.get(*leg).is_some_and(|leg| leg.write_mostly));
        // Data in a cache of a write-mostly leg is no second copy: the cache may be on the fast device. The
        // bytes that all write-mostly legs have only in caches are at most those of the leg with the least.
        let cached = late.iter().map(|leg| only_in_cache.get(*leg).copied().flatten().unwrap_or(0));
        let lagging = behind.saturating_add(cached.min().unwrap_or(0));
        // Chunks that may differ are complete on the source alone. Outstanding writes are on all legs that
        // don't lag.
        let differing = self.differ.saturating_mul(self.chunk);
        differing.saturating_add(if prompt.len() > 1 { 0 } else { lagging })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_one_copy_only() {
        let leg =
            |write_mostly| LegSummary { name: String::new(), state: "active", write_mostly, error: None };
        let summary = |legs: &[bool], active: Mask, differ: u64| Summary {
            legs: legs.iter().copied().map(leg).collect(),
            active,
            differ,
            chunk: 100,
            ..Summary::default()
        };
        let pair = summary(&[false, true], 0b11, 0);
        assert_eq!(pair.one_copy(0, &[None, None]), 0);
        assert_eq!(pair.one_copy(3, &[None, Some(40)]), 43);
        // Data of a leg that isn't write-mostly is a copy, also in a cache.
        assert_eq!(pair.one_copy(3, &[Some(40), None]), 3);
        assert_eq!(summary(&[false, true], 0b11, 2).one_copy(3, &[None, Some(40)]), 243);
        assert_eq!(summary(&[false, true], 0b01, 0).one_copy(0, &[None, None]), u64::MAX);
        // One of two slow legs may have the data outside its cache; two fast legs have two copies.
        let slow = summary(&[false, true, true], 0b111, 0);
        assert_eq!(slow.one_copy(0, &[None, Some(40), Some(7)]), 7);
        assert_eq!(slow.one_copy(0, &[None, Some(40), None]), 0);
        assert_eq!(summary(&[false, true, true], 0b011, 0).one_copy(0, &[None, Some(40), None]), 40);
        assert_eq!(summary(&[false, false, true], 0b111, 1).one_copy(9, &[None, None, Some(40)]), 100);
    }

    #[test]
    fn what_is_behind_fits_a_word() {
        for (writes, bytes) in [(0, 0), (2, 0), (16383, 64 << 20), (1, (1 << 48) - 1)] {
            let lag = Lag { writes, bytes };
            assert_eq!(Lag::from_word(lag.to_word()), lag);
        }
        let more = Lag { writes: 5, bytes: u64::MAX };
        assert_eq!(Lag::from_word(more.to_word()), Lag { writes: 5, bytes: (1 << 48) - 1 });
    }
}
