//! `writecache`: a write-back cache. Writes go to a fast device and are destaged to a slower one in flush
//! order. Role and terms are dm-writecache's.
//!
//! Promises: those of the Device contract. Writes are appended to a ring of records on the cache device, many
//! in one, and written back to the origin from its oldest end. **In order**: everything before a flush (or a
//! FUA write) reaches the origin before anything after it. Of versions of a block that a flush separates,
//! each one is written, so that the origin alone is always in a state that an earlier power cut could have
//! left. `order=none` drops this order for fewer writes. Reads of cached blocks are checked against the
//! checksums of their writes; all other blocks are read from the origin. Reads aren't cached.
//!
//! When the ring is full, writers are throttled to the rate at which the origin takes the write-back. A cache
//! device that fails takes no more writes, and its blocks are still read and written back. Write-back to an
//! origin that fails is repeated, and its error is returned to the writers that wait for free space.
//!
//! A request that either device doesn't answer within `timeout` fails, and so do all further ones until those
//! in flight have ended: no request and no close waits longer.
//!
//! Differences from the kernel's: no write goes around a full cache (it would overtake cached ones),
//! write-back is ordered by flush epochs unless `order=none`, reads are checked, and there is no
//! `metadata_only`: no client of a served stack can mark a write as metadata. Left to other layers: caching
//! reads (`cache`), a second copy of the blocks that only the cache has (`mirror`).
//!
//! **Structure.** `core` composes the parts: each has a file, private state, and its invariants in the
//! module's head.
//! - The ring: `ring` (layout), `format` and `scan` (bytes), `log` (positions), `superblock`, `recovery`
//!   (opening), `index`.
//! - Writes: `change` (clients' calls), `queue`, `append` (lanes), `records` (in flight), `epoch` (flush
//!   epochs), `autocommit` and `commit` (flushes of the cache device), `space` and `throttle` (a nearly full
//!   ring).
//! - Write-back: `demand` (when), `pieces` and `batch` (reading and sorting), `destage` (writing),
//!   `writeback` (the order of all).
//! - Reads: `read`, `grace` (reuse of space). The mode `cleaner`: `cleaner`, `around`. The rest: `origin`,
//!   `health`, `damage`, `counters`, `settings`, `message`, `device` (part and handles).
#![doc = include_str!("../DESIGN.md")]

mod append;
mod around;
mod autocommit;
mod batch;
mod change;
mod cleaner;
mod commit;
mod core;
mod counters;
mod damage;
mod demand;
mod destage;
mod device;
mod epoch;
pub mod format;
mod grace;
mod health;
mod index;
mod log;
mod message;
mod origin;
mod pieces;
mod queue;
mod read;
mod records;
mod recovery;
mod ring;
mod scan;
mod settings;
mod space;
mod superblock;
mod throttle;
mod writeback;

pub use device::WriteCachePart;
pub use message::Message;
pub use settings::{Options, Order, Settings};

use block::{BlockSize, Call, Result};
use stack::{
    Arguments, Built, Contract, Key, Kind, Message as _, Metric, Shape, ValueKind, format_duration,
    format_size,
};
use std::sync::Arc;
use std::time::Duration;

const ORDERS: [&str; 2] = ["flushes", "none"];

/// `writecache(file(disk.img), file(fast.img))`.
pub const KIND: Kind = Kind {
    name: "writecache",
    contract: Contract::Device,
    summary: "write-back cache: writes go to a fast device and are destaged to a slow one in flush order",
    keys: &[
        Key::required("on", ValueKind::Device, "origin: the slow device").positional().holds_contents(),
        Key::required("cache", ValueKind::Device, "cache device: the fast device that takes the writes")
            .positional()
            .holds_contents(),
        Key::optional(
            "high_watermark",
            ValueKind::Integer { min: 0, max: 100 },
            "begin write-back at this used percentage of the cache",
        )
        .as_in("dm-writecache")
        .or("50"),
        Key::optional(
            "low_watermark",
            ValueKind::Integer { min: 0, max: 100 },
            "end write-back below this used percentage; at most high_watermark",
        )
        .as_in("dm-writecache")
        .or("45"),
        Key::optional(
            "writeback_jobs",
            ValueKind::Integer { min: 1, max: 4096 },
            "limit of writes in flight to the origin; fewer of them delay reads less",
        )
        .or("64"),
        Key::optional(
            "writeback_batch",
            ValueKind::Size,
            "limit of a batch of write-back, which is sorted in memory; at most an eighth of the cache",
        )
        .or("64MiB"),
        Key::optional(
            "autocommit_blocks",
            ValueKind::Integer { min: 1, max: u32::MAX as u64 },
            "flush the cache device after this many blocks without a flush",
        )
        .or("65536"),
        Key::optional(
            "autocommit_time",
            ValueKind::Duration,
            "flush the cache device after this time without a flush; 1ms to 1h",
        )
        .or("1s"),
        Key::optional(
            "pause_writeback",
            ValueKind::Duration,
            "pause write-back until clients haven't used the origin for this long (read from it, or written around the cache), \
             while there is free space; up to 60s",
        )
        .or("0s"),
        Key::optional("max_age", ValueKind::Duration, "write back writes that are older than this; 1ms to 24h"),
        Key::optional("cleaner", ValueKind::Bool, "write back all cached blocks, and cache nothing new").or("false"),
        Key::optional("fua", ValueKind::Bool, "write back with FUA instead of a flush per batch").or("false"),
        Key::optional("nofua", ValueKind::Bool, "dm-writecache's name for fua=false").or("false"),
        Key::optional(
            "order",
            ValueKind::Choice(&ORDERS),
            "flushes: keep the origin alone in a state that an earlier power cut could have left; none: write fewer versions, \
             without that promise",
        )
        .or("flushes"),
        Key::time_limit(
            "time limit of a request to the origin or the cache device; after it requests fail; 10ms to 24h",
            "120s",
        ),
        Key::optional("dirty", ValueKind::Size, "limit of the memory of writes that wait for the cache device").or("64MiB"),
        stack::WARN_AT,
    ],
    messages: Message::FORMS,
    metrics: &[METRICS],
    shareable: false,
    example: "writecache(ram(256MiB), ram(64MiB))",
    plan: |arguments| {
        options(arguments)?;
        let (origin, fast) = (arguments.shape("on")?, arguments.shape("cache")?);
        let block_size = Shape::largest_block(&[origin.clone(), fast.clone()]);
        let (Some(bytes), Some(block_size)) = (origin.bytes, block_size) else {
            return Ok(Shape { block_size, ..Shape::default() });
        };
        if let Some(device) = fast.device()? {
            ring::Ring::for_device(&device, BlockSize::new(block_size.into())?)
                .map_err(|error| arguments.refuse("cache", error.detail().to_owned()))?;
        }
        Ok(Shape::new(bytes / u64::from(block_size) * u64::from(block_size), block_size))
    },
    build: |arguments| {
        Call::new(async move {
            let options = options(&arguments)?;
            let (origin, fast) = (arguments.device("on")?, arguments.device("cache")?);
            Ok(Built::Device(Arc::new(WriteCachePart::open(origin, fast, options).await?)))
        })
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("block_size", "writecache_block_bytes", "Size of a block of the write cache"),
    Metric::gauge("blocks", "writecache_blocks", "Blocks of the write cache"),
    Metric::gauge("free_blocks", "writecache_free_blocks", "Blocks of the write cache without data"),
    Metric::gauge("cached_blocks", "writecache_cached_blocks", "Blocks with data in the write cache"),
    Metric::gauge(
        "only_in_cache_bytes",
        "writecache_only_in_cache_bytes",
        "Data that the origin lacks: its lag",
    ),
    Metric::gauge("index_bytes", "writecache_index_bytes", "Memory of the index"),
    Metric::counter("read_blocks", "writecache_read_blocks", "Blocks that were read"),
    Metric::counter("read_hits", "writecache_read_hits", "Blocks that were read from the write cache"),
    Metric::counter("write_blocks", "writecache_written_blocks", "Blocks that were written"),
    Metric::counter(
        "write_hits",
        "writecache_write_hits",
        "Blocks that were written again in the write cache",
    ),
    Metric::counter("writes_around", "writecache_writes_around", "Writes that went to the origin directly"),
    Metric::counter("writes_blocked", "writecache_blocked_writes", "Writes that waited for free blocks"),
    Metric::counter("records", "writecache_records", "Records of the write cache"),
    Metric::counter("written_back", "writecache_written_back_blocks", "Blocks that were destaged"),
    Metric::counter(
        "superseded",
        "writecache_superseded_blocks",
        "Blocks that were overwritten before they were destaged",
    ),
    Metric::counter("batches", "writecache_batches", "Batches that were destaged"),
    Metric::counter("origin_flushes", "writecache_origin_flushes", "Flushes of the origin"),
    Metric::gauge("lost_blocks", "writecache_lost_blocks", "Blocks that the write cache lost"),
    Metric::counter("writeback_errors", "writecache_errors", "Failed writes to the origin"),
];

/// Time from a key, within these limits. The upper limit is dm-writecache's; a lower limit above zero is our
/// own.
fn time(
    arguments: &Arguments,
    key: &'static str,
    least: Duration,
    most: Duration,
) -> Result<Option<Duration>> {
    let Some(time) = arguments.optional_duration(key)? else { return Ok(None) };
    if (least..=most).contains(&time) {
        return Ok(Some(time));
    }
    let [time, least, most] = [time, least, most].map(format_duration);
    let text = format!("{key} {time}: expected {least} to {most}, as in dm-writecache");
    Err(arguments.refuse(key, text))
}

fn options(arguments: &Arguments) -> Result<Options> {
    let (high_watermark, low_watermark) =
        (arguments.integer("high_watermark")?, arguments.integer("low_watermark")?);
    if low_watermark > high_watermark {
        let given = if arguments.given("low_watermark") { "" } else { " by default" };
        let text = format!(
            "low_watermark {low_watermark}{given}: expected at most high_watermark, {high_watermark}"
        );
        return Err(arguments.refuse("low_watermark", text));
    }
    if arguments.boolean("fua")? && arguments.boolean("nofua")? {
        return Err(arguments.refuse("nofua", "nofua: fua is set, too; expected one of them"));
    }
    let order = if arguments.choice("order")? == ORDERS[0] { Order::Flushes } else { Order::None };
    let batch = arguments.size("writeback_batch")?;
    if batch == 0 {
        let text = "writeback_batch 0: expected at least 1 byte; the default is 64MiB";
        return Err(arguments.refuse("writeback_batch", text));
    }
    let dirty = arguments.size("dirty")?;
    if !(1 << 20..=1 << 40).contains(&dirty) {
        let text = format!("dirty {}: expected 1MiB to 1TiB", format_size(dirty));
        return Err(arguments.refuse("dirty", text));
    }
    let millisecond = Duration::from_millis(1);
    let hour = Duration::from_secs(3600);
    let second = Duration::from_secs(1);
    Ok(Options {
        format: arguments.format(),
        high_watermark,
        low_watermark,
        cleaner: arguments.boolean("cleaner")?,
        batch,
        timeout: arguments.time_limit()?,
        settings: Settings {
            jobs: arguments.integer("writeback_jobs")? as usize,
            autocommit_blocks: arguments.integer("autocommit_blocks")?,
            autocommit_time: time(arguments, "autocommit_time", millisecond, hour)?.unwrap_or(second),
            pause: time(arguments, "pause_writeback", Duration::ZERO, 60 * second)?.unwrap_or_default(),
            max_age: time(arguments, "max_age", millisecond, 24 * hour)?,
            fua: arguments.boolean("fua")?,
            order,
            dirty: dirty as usize,
        },
    })
}
