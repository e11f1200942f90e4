//! Fetches in flight: each is one request to the origin for consecutive chunks of one zone. A chunk is part
//! of at most one of them. The bytes of all are limited, and counted until their chunks are in the cache.

use super::ZoneEnd;
use super::region::Region;
use super::slots::ChunkKey;
use block::{Data, Result, ZoneAddress, ZoneIndex};
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Inverse of the share of the limit that requests ahead of reads leave to reads.
const SHARE_OF_READS: u64 = 4;

/// A fetch.
#[derive(Debug)]
pub struct Fetch {
    /// Address of the first byte.
    pub at: ZoneAddress,
    /// Number of bytes.
    pub length: u64,
    /// Generation of the zone.
    pub generation: u64,
    /// Whether the fetch is ahead of a sequential read.
    pub is_ahead: bool,
    /// Chunks that were read, one bit each: a request has at most 64 chunks.
    used: Cell<u64>,
    outcome: RefCell<Option<Result<Data>>>,
    finished: Notify,
}

impl Fetch {
    fn end(&self) -> u64 {
        self.at.offset.0 + self.length
    }

    /// Whether the bytes before this end are fetched.
    pub fn covers(&self, end: u64) -> bool {
        end <= self.end()
    }

    fn bit(&self, start: u64, chunk: u64) -> u64 {
        1 << ((start - self.at.offset.0) / chunk).min(63)
    }

    /// Notes that the chunk with this start is read. Returns whether it is the first read of a chunk that is
    /// fetched ahead.
    pub fn use_chunk(&self, start: u64, chunk: u64) -> bool {
        let bit = self.bit(start, chunk);
        let before = self.used.replace(self.used.get() | bit);
        self.is_ahead && before & bit == 0
    }

    /// Whether the chunk with this start is fetched ahead and wasn't read.
    pub fn is_unused_ahead(&self, start: u64, chunk: u64) -> bool {
        self.is_ahead && self.used.get() & self.bit(start, chunk) == 0
    }

    /// Sets the outcome, and wakes the reads that wait for it.
    pub fn finish(&self, outcome: Result<Data>) {
        self.outcome.replace(Some(outcome));
        self.finished.notify_all();
    }

    /// Waits for the outcome.
    pub async fn outcome(&self) -> Result<Data> {
        loop {
            if let Some(outcome) = &*self.outcome.borrow() {
                return outcome.clone();
            }
            self.finished.notified().await;
        }
    }
}

/// All fetches in flight.
#[derive(Debug)]
pub struct Fetches {
    by_chunk: BTreeMap<ChunkKey, Rc<Fetch>>,
    bytes: u64,
    limit: u64,
}

impl Fetches {
    /// Creates an empty set with a limit of its bytes.
    pub fn new(limit: u64) -> Self {
        Fetches { by_chunk: BTreeMap::new(), bytes: 0, limit }
    }

    /// Bytes of all fetches.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the fetch of a chunk.
    pub fn find(&self, key: ChunkKey) -> Option<Rc<Fetch>> {
        self.by_chunk.get(&key).cloned()
    }

    /// Whether a zone has a fetch.
    pub fn has_zone(&self, zone: ZoneIndex) -> bool {
        self.by_chunk.range(ChunkKey::of_zone(zone)).next().is_some()
    }

    /// Begins a fetch of chunks that aren't being fetched; `None` at the limit of the bytes.
    pub fn begin(
        &mut self,
        region: &Region,
        zone: ZoneEnd,
        bytes: Range<u64>,
        is_ahead: bool,
    ) -> Option<Rc<Fetch>> {
        let length = bytes.end - bytes.start;
        let limit = if is_ahead { self.limit - self.limit / SHARE_OF_READS } else { self.limit };
        if self.bytes > 0 && self.bytes + length > limit {
            return None;
        }
        let fetch = Rc::new(Fetch {
            at: ZoneAddress::new(zone.zone.0, bytes.start),
            length,
            generation: zone.generation,
            is_ahead,
            used: Cell::new(0),
            outcome: RefCell::new(None),
            finished: Notify::new(),
        });
        for key in keys(region, &fetch) {
            self.by_chunk.insert(key, fetch.clone());
        }
        self.bytes += length;
        Some(fetch)
    }

    /// Ends a fetch.
    pub fn end(&mut self, region: &Region, fetch: &Rc<Fetch>) {
        for key in keys(region, fetch) {
            self.by_chunk.remove(&key);
        }
        self.bytes -= fetch.length;
    }
}

fn keys(region: &Region, fetch: &Fetch) -> impl Iterator<Item = ChunkKey> {
    let (zone, generation) = (fetch.at.zone, fetch.generation);
    let chunks = fetch.at.offset.0 / region.chunk..fetch.end().div_ceil(region.chunk);
    chunks.map(move |chunk| ChunkKey::new(zone, generation, chunk))
}
