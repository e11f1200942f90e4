//! Counters of a cache's status. Written on the home shard only, read on all.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counter that one shard writes.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub fn add(&self, more: u64) {
        // With one writer no atomic addition is needed.
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one cache.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub read_hits: Count,
    pub read_misses: Count,
    pub write_hits: Count,
    pub write_misses: Count,
    pub promotions: Count,
    pub demotions: Count,
    pub prefetched_bytes: Count,
    pub write_backs: Count,
    pub written_back_bytes: Count,
    pub bypassed: Count,
    pub marks: Count,
    pub commits: Count,
    pub cache_errors: Count,
    pub origin_errors: Count,
    pub dirty: Count,
    /// Dirty parts.
    pub dirty_parts: Count,
    pub used: Count,
    pub journal_records: Count,
    pub table_pages: Count,
    pub journal_used: Count,
    /// Error after which the table is not written any more.
    pub failure: OnceLock<String>,
}
