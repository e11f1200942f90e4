//! Configuration of a write cache: settings from a stack's line, and thresholds that follow from the size of
//! the ring.

use crate::ring::Ring;
use std::time::Duration;

/// Order in which blocks are destaged to the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Everything before a client's flush reaches the origin before anything after it.
    Flushes,
    /// Any order.
    None,
}

/// Settings that hold for a ring of any size.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Limit to the writes to the origin in flight.
    pub jobs: usize,
    /// Blocks written since the last flush of the cache device after which it is flushed, if it has a
    /// volatile cache.
    pub autocommit_blocks: u64,
    /// Time after which a cache device with unflushed writes is flushed.
    pub autocommit_time: Duration,
    /// Write-back pauses while a client has used the origin within this time.
    pub pause: Duration,
    /// Age from which a write is destaged; `None` for no limit.
    pub max_age: Option<Duration>,
    /// Write to the origin with FUA instead of flushing it.
    pub fua: bool,
    /// Order of write-back.
    pub order: Order,
    /// Limit to the bytes of queued writes and of writes in flight to the cache device.
    pub dirty: usize,
}

/// Options of opening a cache.
#[derive(Debug, Clone)]
pub struct Options {
    /// Create the cache from scratch; its former contents are lost.
    pub format: bool,
    /// Used percentage of the ring at which write-back begins.
    pub high_watermark: u64,
    /// Used percentage of the ring below which write-back ends.
    pub low_watermark: u64,
    /// Destage cached blocks, and cache no new ones: the mode `cleaner`.
    pub cleaner: bool,
    /// Limit to a batch of write-back, in bytes.
    pub batch: u64,
    /// Time within which either device has to answer a request.
    pub timeout: Duration,
    /// Settings that hold for a ring of any size.
    pub settings: Settings,
}

impl Default for Options {
    /// The defaults of the stack's keys.
    fn default() -> Self {
        Options {
            format: false,
            high_watermark: 50,
            low_watermark: 45,
            cleaner: false,
            batch: 64 << 20,
            timeout: Duration::from_secs(120),
            settings: Settings {
                jobs: 64,
                autocommit_blocks: 65536,
                autocommit_time: Duration::from_secs(1),
                pause: Duration::ZERO,
                max_age: None,
                fua: false,
                order: Order::Flushes,
                dirty: 64 << 20,
            },
        }
    }
}

/// Thresholds of a ring, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// Write-back begins when this many blocks are used.
    pub high: u64,
    /// Write-back ends when fewer blocks are used.
    pub low: u64,
    /// Limit to a batch of write-back; at most an eighth of the ring.
    pub batch: u64,
}

impl Thresholds {
    /// The thresholds that the options give for this ring.
    pub fn new(options: &Options, ring: &Ring) -> Self {
        let percent = |percent: u64| (u128::from(ring.blocks()) * u128::from(percent) / 100) as u64;
        Thresholds {
            high: percent(options.high_watermark),
            low: percent(options.low_watermark),
            batch: (options.batch / ring.block_size.bytes()).clamp(1, ring.blocks() / 8),
        }
    }
}
