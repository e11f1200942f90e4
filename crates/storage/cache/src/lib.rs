//! `cache`: a fast device as the cache of a slow one, the *origin*. Modes, messages and status follow
//! dm-cache.
//!
//! Promises: those of the Device contract, with a volatile cache. With `writethrough` and `passthrough` no
//! data depends on the fast device. With `writeback`, losing the fast device loses the dirty data, and
//! opening without it is refused with that warning. The dirty state is durable: after a crash only dirty data
//! is written back.
//!
//! A request that either device doesn't answer within `timeout` fails, and so do all further ones until those
//! in flight have ended: no request and no close waits longer.
//!
//! The fast device is divided into *slots* of one cache block each. A persistent `table` maps slots to blocks
//! of the origin. A block has at most 64 *parts*. The table's entry gives each part one of three states,
//! which determine the *authoritative* side, from which recovery takes the data:
//!
//! | state of the part in the table | authoritative side |
//! |---|---|
//! | not valid | the origin |
//! | valid and dirty | the cache |
//! | valid and clean | either: both sides are equal |
//!
//! # Crash consistency
//!
//! 1. While a part is *clean* in the table, neither side is changed. A write to such a part first waits until
//!    the table durably names one authoritative side (a *mark*): the cache with writeback, the origin in the
//!    other modes. A mark holds for the whole slot, so one mark serves many writes.
//! 2. The other side of an authoritative one may contain anything. Therefore both the origin and the cache
//!    are changed only under parts that are dirty or not valid in the table. A slot gets another block only
//!    when its entry is durably free.
//! 3. A part becomes *dirty* in the table only when the cache's data is durable. It becomes *clean* only
//!    when, in addition, the origin was flushed after it received the same data. It stops being dirty (after
//!    a discard) only when the origin was flushed after the discard.
//!
//! After a power cut each part therefore has one authoritative side, which contains the last durable version
//! or a later submitted one. The other side is read only once both are equal. So data that was read once
//! doesn't change afterwards.
//!
//! The state in memory is ahead of the table: parts become dirty when they are written and clean when they
//! are written back. The table is updated by flushes of clients, by marks and evictions, and in the
//! background. Only `Core::target` decides which state the table may record.
//!
//! Overlapping writes are serialised, also with fills of a slot and discards: a device doesn't define the
//! result of overlapping requests, so the two sides could end up different. Reads aren't serialised with
//! writes: while a write to both sides is in flight, a read may see the origin's new data and a later read
//! the cache's old data. Both sides are equal when the write is acknowledged.
#![doc = include_str!("../DESIGN.md")]

mod calls;
mod commits;
mod control;
mod core;
mod counters;
mod device;
mod grown;
mod message;
mod mode;
mod origin;
mod ranges;
mod sequential;
mod shape;
mod side;
mod state;
mod status;
mod table;
mod upkeep;

pub use device::CachePart;
pub use eviction::Heat;
pub use message::{CacheBlocks, Message};
pub use mode::Mode;
pub use ranges::{ByteRange, WarmRange, WarmRanges};

use block::{Call, Error, Result};
use stack::{Arguments, Built, Contract, Key, Kind, Message as _, Metric, Shape, ValueKind, format_size};
use std::sync::Arc;
use std::time::Duration;

/// `cache(file(slow.img), file(fast.img), mode=writeback)`.
pub const KIND: Kind = Kind {
    name: "cache",
    contract: Contract::Device,
    summary: "a fast device as the cache of a slow one (dm-cache)",
    keys: &[
        Key::required("on", ValueKind::Device, "the slow device, the origin, whose blocks are cached")
            .positional()
            .holds_contents(),
        Key::required("cache", ValueKind::Device, "the fast device, which holds the cache")
            .positional()
            .holds_contents(),
        Key::optional(
            "mode",
            ValueKind::Choice(&Mode::NAMES),
            "destination of writes: both devices, the cache and later the origin, or only the origin",
        )
        .or("writethrough"),
        Key::optional(
            "block_size",
            ValueKind::Size,
            "size of a cache block, set by --format: a multiple of 32KiB from 32KiB to 1GiB; default 64KiB",
        )
        .known_as(&["chunksize", "chunk_size"]),
        Key::optional(
            "migration_threshold",
            ValueKind::Integer { min: 0, max: 1 << 40 },
            "limit of data in flight between the devices, in sectors of 512 bytes; one block, or one read's promotion, always fits",
        )
        .or("2048"),
        Key::time_limit(
            "time limit of a request to either device; after it requests fail; 10ms to 24h",
            "120s",
        ),
        Key::optional(
            "sequential_threshold",
            ValueKind::Size,
            "length from which sequential runs bypass the cache; 0: never",
        )
        .or("4MiB"),
        stack::WARN_AT,
    ],
    messages: Message::FORMS,
    metrics: &[METRICS],
    shareable: false,
    example: "cache(ram(1GiB), ram(64MiB), mode=writeback)",
    plan,
    build: |arguments| {
        Call::new(async move {
            let options = Options::new(&arguments)?;
            let (slow, fast) = (arguments.device("on")?, arguments.device("cache")?);
            let name = arguments.child_names("on")?.first().map_or("", |name| *name).to_owned();
            Ok(Built::Device(Arc::new(CachePart::open(slow, fast, &name, &options).await?)))
        })
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("bytes", "device_bytes", "Capacity of the device"),
    Metric::gauge("block_size", "cache_block_bytes", "Size of a block of the cache"),
    Metric::gauge("total_blocks", "cache_blocks", "Blocks of the cache"),
    Metric::gauge("used_blocks", "cache_used_blocks", "Blocks of the cache with data"),
    Metric::gauge(
        "dirty_blocks",
        "cache_dirty_blocks",
        "Blocks of the cache with data that the origin lacks",
    ),
    Metric::counter("read_hits", "cache_hits", "Requests that the cache served")
        .with_label("request", "read"),
    Metric::counter("write_hits", "cache_hits", "Requests that the cache served")
        .with_label("request", "write"),
    Metric::counter("read_misses", "cache_misses", "Requests to blocks that weren't in the cache")
        .with_label("request", "read"),
    Metric::counter("write_misses", "cache_misses", "Requests to blocks that weren't in the cache")
        .with_label("request", "write"),
    Metric::counter("promotions", "cache_promotions", "Blocks that were copied to the cache"),
    Metric::counter("demotions", "cache_demotions", "Blocks that left the cache"),
    Metric::counter("prefetched_bytes", "cache_prefetched_bytes", "Bytes that were read ahead of requests"),
    Metric::counter("write_backs", "cache_write_backs", "Dirty blocks that were written to the origin"),
    Metric::counter(
        "written_back_bytes",
        "cache_written_back_bytes",
        "Bytes that were written back to the origin",
    ),
    Metric::counter("bypassed", "cache_bypassed_requests", "Requests that went to the origin directly"),
    Metric::counter("cache_errors", "cache_errors", "Failed operations").with_label("device", "cache"),
    Metric::counter("origin_errors", "cache_errors", "Failed operations").with_label("device", "origin"),
    Metric::gauge("metadata_bytes", "cache_metadata_bytes", "Size of the table on the device of the cache"),
];

/// dm-cache's limits of a block, in bytes.
const MIN_BLOCK: u64 = 32 << 10;
const MAX_BLOCK: u64 = 1 << 30;
const USUAL_BLOCK: u64 = 64 << 10;

/// Settings of a cache, from the stack.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether to create the cache from scratch; an existing cache's contents are lost.
    pub format: bool,
    /// The mode.
    pub mode: Mode,
    /// Size of a cache block in bytes, for formatting.
    pub block_size: u64,
    /// Whether the stack sets `block_size`: an existing cache with another block size is refused then.
    pub block_size_given: bool,
    /// Limit of data in flight between the devices, in sectors of 512 bytes.
    pub migration_threshold: u64,
    /// Length in bytes from which sequential runs bypass the cache; 0: never.
    pub sequential_threshold: u64,
    /// Time within which either device has to answer a request.
    pub timeout: Duration,
    /// Interval at which the table learns in the background which parts are clean.
    pub settle_every: Duration,
    /// Whether opening refuses an origin whose contents differ from those at the last close. The replay of
    /// timelines turns this off: it may apply overlapping writes in another order.
    pub checks_origin: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            format: false,
            mode: Mode::Writethrough,
            block_size: USUAL_BLOCK,
            block_size_given: false,
            migration_threshold: 2048,
            sequential_threshold: 4 << 20,
            timeout: Duration::from_secs(120),
            settle_every: Duration::from_secs(1),
            checks_origin: true,
        }
    }
}

impl Options {
    fn new(arguments: &Arguments) -> Result<Self> {
        let block_size = arguments.optional_size("block_size")?;
        if let Some(bytes) = block_size
            && (!(MIN_BLOCK..=MAX_BLOCK).contains(&bytes) || !bytes.is_multiple_of(MIN_BLOCK))
        {
            let text = format!(
                "block_size {}: expected a multiple of 32KiB from 32KiB to 1GiB, the limits of dm-cache",
                format_size(bytes)
            );
            return Err(arguments.refuse("block_size", text));
        }
        let mode = arguments.choice("mode")?;
        Ok(Options {
            format: arguments.format(),
            mode: Mode::from_name(mode).ok_or_else(|| {
                let names = Mode::NAMES.join(", ");
                Error::invalid(format!("mode \"{mode}\": expected one of {names}"))
            })?,
            block_size: block_size.unwrap_or(USUAL_BLOCK),
            block_size_given: block_size.is_some(),
            migration_threshold: arguments.integer("migration_threshold")?,
            sequential_threshold: arguments.size("sequential_threshold")?,
            timeout: arguments.time_limit()?,
            ..Options::default()
        })
    }
}

fn plan(arguments: &Arguments) -> Result<Shape> {
    let options = Options::new(arguments)?;
    let (slow, fast) = (arguments.shape("on")?, arguments.shape("cache")?);
    let Some(size) = Shape::largest_block(&[slow.clone(), fast.clone()]) else { return Ok(Shape::default()) };
    let largest = u64::from(size);
    if options.block_size < largest || !options.block_size.is_multiple_of(largest) {
        let text = format!(
            "block_size {}: expected a multiple of {size}, the larger block size of the two devices",
            format_size(options.block_size)
        );
        return Err(arguments.refuse("block_size", text));
    }
    if options.format
        && let Some(fast) = fast.device()?
    {
        table::Layout::new(&fast, options.block_size)
            .map_err(|error| arguments.refuse("cache", format!("cache: {}", error.detail())))?;
    }
    let bytes = slow.bytes.map(|bytes| bytes / largest * largest);
    if bytes == Some(0) {
        return Err(
            arguments.refuse("on", "on: the origin is smaller than one block; expected a larger device")
        );
    }
    Ok(Shape { bytes, block_size: Some(size), ..Shape::default() })
}
