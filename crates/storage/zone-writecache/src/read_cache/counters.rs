//! Counters of the read cache, and its numbers for monitoring systems.

use crate::counters::{count, counters};
use stack::Metric;
use std::cell::Cell;

counters! {
    /// Chunks, and parts of chunks, that were read from the cache.
    read_cache_hits,
    /// Bytes of these parts.
    read_cache_hit_bytes,
    /// Chunks, and parts of chunks, that were missing, including those that were being fetched.
    read_cache_misses,
    /// Bytes of these parts.
    read_cache_missed_bytes,
    /// Chunks written to the cache.
    read_cache_fills,
    /// Bytes of these chunks.
    read_cache_filled_bytes,
    /// Chunks that the fast device failed to write or to read, or whose checksum was wrong.
    read_cache_errors,
    /// Requests to the origin ahead of sequential reads.
    read_ahead_requests,
    /// Bytes of these requests.
    read_ahead_bytes,
    /// Bytes of chunks fetched ahead that were read.
    read_ahead_used_bytes,
    /// Bytes of chunks fetched ahead that were evicted, or not admitted, before they were read.
    read_ahead_wasted_bytes,
}

impl Counters {
    /// Notes a hit; `ahead` are the bytes of a chunk that was fetched ahead and is read for the first time.
    pub fn hit(&self, bytes: u64, ahead: Option<u64>) {
        count(&self.read_cache_hits, 1);
        count(&self.read_cache_hit_bytes, bytes);
        count(&self.read_ahead_used_bytes, ahead.unwrap_or(0));
    }
}

/// Numbers of the status for monitoring systems.
pub const METRICS: &[Metric] = &[
    Metric::gauge("read_cache_bytes", "zone_writecache_read_cache_bytes", "Size of the read cache"),
    Metric::gauge(
        "read_cache_used_bytes",
        "zone_writecache_read_cache_used_bytes",
        "Space of the read cache that holds chunks",
    ),
    Metric::gauge(
        "read_cache_lost_bytes",
        "zone_writecache_read_cache_lost_bytes",
        "Space of the read cache that isn't used after errors",
    ),
    Metric::gauge(
        "read_cache_fetching_bytes",
        "zone_writecache_read_cache_fetching_bytes",
        "Data that is being fetched for the read cache",
    ),
    Metric::counter("read_cache_hits", "zone_writecache_read_cache_hits", "Chunks read from the read cache"),
    Metric::counter(
        "read_cache_hit_bytes",
        "zone_writecache_read_cache_hit_bytes",
        "Data read from the read cache",
    ),
    Metric::counter(
        "read_cache_misses",
        "zone_writecache_read_cache_misses",
        "Chunks that the read cache didn't have",
    ),
    Metric::counter(
        "read_cache_missed_bytes",
        "zone_writecache_read_cache_missed_bytes",
        "Data that the read cache didn't have",
    ),
    Metric::counter(
        "read_cache_fills",
        "zone_writecache_read_cache_fills",
        "Chunks written to the read cache",
    ),
    Metric::counter(
        "read_cache_filled_bytes",
        "zone_writecache_read_cache_filled_bytes",
        "Data written to the read cache",
    ),
    Metric::counter(
        "read_cache_errors",
        "zone_writecache_read_cache_errors",
        "Chunks lost to errors of the fast device or wrong checksums",
    ),
    Metric::counter(
        "read_ahead_requests",
        "zone_writecache_read_ahead_requests",
        "Requests to the origin ahead of sequential reads",
    ),
    Metric::counter(
        "read_ahead_bytes",
        "zone_writecache_read_ahead_bytes",
        "Data requested ahead of sequential reads",
    ),
    Metric::counter(
        "read_ahead_used_bytes",
        "zone_writecache_read_ahead_used_bytes",
        "Data fetched ahead that was read",
    ),
    Metric::counter(
        "read_ahead_wasted_bytes",
        "zone_writecache_read_ahead_wasted_bytes",
        "Data fetched ahead that was dropped unread",
    ),
];
