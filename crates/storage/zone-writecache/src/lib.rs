//! `zone-writecache`: a write cache of zones. Appends go to a fast device and are uploaded to slow zones, in
//! the order of their flushes.
//!
//! # Promises
//! Those of the contract `Zones`. Appends, finishes and resets are written to a log on the fast
//! device, many in one record. A flush returns once the log is durable there. **In order**: the origin alone,
//! without the fast device, always has a state that a power cut of zones without a cache could have left. The
//! lag of the origin, in bytes and in time, has a limit at which appends wait. An origin that fails, is full
//! or doesn't answer makes appends wait at that limit and nothing else. After a crash everything that was
//! flushed is uploaded from the log. Data that isn't at the origin is read from the log; data that was
//! uploaded is read from there until the ring needs its space.
//!
//! Reads of the origin are cached on the fast device as well, and sequential ones fetch ahead.
//!
//! An origin must be durable on flush and continue zones after an unclean stop
//! ([`ZonesPart::can_rewind`](block::ZonesPart::can_rewind)). A second copy of the data that only the fast
//! device has is left to a `mirror` below it.
#![doc = include_str!("../DESIGN.md")]

mod cached_reads;
mod checkpoint;
mod close;
mod core;
mod counters;
mod format;
mod index;
mod layout;
mod log;
mod message;
mod opening;
mod part;
mod pending;
mod queue;
mod read_cache;
mod readers;
mod reconcile;
mod recovery;
mod sending;
mod settings;
mod state;
mod superblock;
mod table;
mod upload;
mod upload_progress;
mod waiting;
mod writer;

pub use message::Message;
pub use part::ZoneWriteCachePart;
pub use settings::{Ack, MaxLag, Options};

use block::{Call, Result};
use stack::{Arguments, Built, Contract, Key, Kind, Message as _, Metric, Shape, ValueKind};
use std::sync::Arc;

/// `zone-writecache(file(fast.img), zones(file(disk.img)))`.
pub const KIND: Kind = Kind {
    name: "zone-writecache",
    contract: Contract::Zones,
    summary: "write cache of zones: appends go to a fast device and are uploaded to slow zones in flush order",
    keys: &[
        Key::required("fast", ValueKind::Device, "fast device that takes the appends").positional().holds_contents(),
        Key::required("origin", ValueKind::Zones, "slow zones").positional().holds_contents(),
        Key::optional(
            "max_lag",
            ValueKind::Text,
            "limit of what the origin lacks, in bytes and in time: appends wait there; 1MiB to 1TiB, 10ms to 24h",
        )
        .or("64MiB or 5s"),
        Key::optional(
            "new_fast",
            ValueKind::Bool,
            "accept an empty fast device after the loss of the last one: the state is the origin's",
        )
        .or("false"),
        Key::optional(
            "read_cache",
            ValueKind::Size,
            "space of the fast device for data read from the origin; 0, or 1MiB to 64GiB; fixed when it is formatted; default: \
             half of what the log doesn't need",
        ),
        Key::optional(
            "ack",
            ValueKind::Choice(&Ack::WORDS),
            "when a flush, a finish and a reset return: fast, once everything before is durable on the fast device; origin, once the \
             origin has it as well",
        )
        .or("fast"),
        Key::optional(
            "take_over",
            ValueKind::Integer { min: 1, max: u64::MAX },
            "number of another writer's claim, as the refusal names it: claim the origin from that writer, and discard what only the fast device has",
        ),
        Key::time_limit("time limit of a request to the fast device; after it requests fail; 10ms to 24h", "120s"),
        stack::WARN_AT,
    ],
    messages: Message::FORMS,
    metrics: &[METRICS, read_cache::METRICS],
    shareable: false,
    example: "zone-writecache(ram(256MiB), zones(ram(256MiB), zone_size=16MiB))",
    plan: |arguments| {
        let options = options(arguments)?;
        let Some(origin) = arguments.shape("origin")?.zones else { return Ok(Shape::default()) };
        part::check_origin(&origin).map_err(|error| arguments.refuse("origin", error.detail().to_owned()))?;
        if let Some(device) = arguments.shape("fast")?.device()? {
            layout::Layout::for_device(&device, &origin, options.max_lag.bytes, options.read_cache)
                .map_err(|error| arguments.refuse("fast", error.detail().to_owned()))?;
        }
        Ok(Shape::of_zones(part::geometry(&origin)))
    },
    build: |arguments| {
        Call::new(async move {
            let options = options(&arguments)?;
            let (fast, origin) = (arguments.device("fast")?, arguments.zones("origin")?);
            Ok(Built::Zones(Arc::new(ZoneWriteCachePart::open(fast, origin, options).await?)))
        })
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge(
        "state",
        "zone_writecache_is_ended",
        "Whether uploads have ended, as another writer has the origin",
    )
    .if_word(state::ENDED),
    Metric::gauge("state", "zone_writecache_origin_is_awaited", "Whether the origin doesn't take uploads")
        .if_word(state::AWAITED),
    Metric::gauge(
        "awaited_seconds",
        "zone_writecache_awaited_seconds",
        "Time since the beginning of the upload that isn't durable yet",
    ),
    Metric::gauge(
        "unflushed_bytes",
        "zone_writecache_unflushed_bytes",
        "Appended bytes that aren't durable on the fast device",
    ),
    Metric::gauge(
        "waiting_flushes",
        "zone_writecache_waiting_flushes",
        "Flushes that wait for the origin, by ack = origin",
    ),
    Metric::gauge("lag_bytes", "zone_writecache_lag_bytes", "Data that the origin lacks"),
    Metric::gauge(
        "lag_seconds",
        "zone_writecache_lag_seconds",
        "Age of the oldest operation that the origin lacks",
    ),
    Metric::gauge("max_lag_bytes", "zone_writecache_max_lag_bytes", "Limit of the lag in bytes"),
    Metric::gauge("max_lag_seconds", "zone_writecache_max_lag_seconds", "Limit of the lag in time"),
    Metric::gauge(
        "waiting_appends",
        "zone_writecache_waiting_appends",
        "Appends that wait at the limit of the lag",
    ),
    Metric::gauge("ring_bytes", "zone_writecache_ring_bytes", "Size of the log on the fast device"),
    Metric::gauge("used_ring_bytes", "zone_writecache_used_ring_bytes", "Log that a crash would replay"),
    Metric::counter("records", "zone_writecache_records", "Records written to the fast device"),
    Metric::counter("appends", "zone_writecache_appends", "Appends written to the fast device"),
    Metric::counter("appended_bytes", "zone_writecache_appended_bytes", "Data written to the fast device"),
    Metric::counter("flushes", "zone_writecache_flushes", "Flushes by users, with finishes and resets"),
    Metric::counter("fast_flushes", "zone_writecache_fast_flushes", "Flushes of the fast device"),
    Metric::counter("waits", "zone_writecache_waits", "Appends that waited at the limit of the lag"),
    Metric::counter("origin_appends", "zone_writecache_origin_appends", "Appends to the origin"),
    Metric::counter("uploaded_bytes", "zone_writecache_uploaded_bytes", "Data appended to the origin"),
    Metric::counter("origin_flushes", "zone_writecache_origin_flushes", "Flushes of the origin"),
    Metric::counter(
        "origin_changes",
        "zone_writecache_origin_changes",
        "Finishes and resets of zones at the origin",
    ),
    Metric::counter("origin_errors", "zone_writecache_origin_errors", "Failed attempts at the origin"),
    Metric::counter("log_reads", "zone_writecache_log_reads", "Reads of the log on the fast device"),
    Metric::counter("origin_reads", "zone_writecache_origin_reads", "Reads of the origin"),
];

fn options(arguments: &Arguments) -> Result<Options> {
    let max_lag = MaxLag::parse(&arguments.text("max_lag")?)
        .map_err(|error| arguments.refuse("max_lag", error.detail().to_owned()))?;
    let read_cache = arguments.optional_size("read_cache")?;
    if let Some(bytes) = read_cache {
        let checked = read_cache::check_size(bytes);
        checked.map_err(|error| arguments.refuse("read_cache", error.detail().to_owned()))?;
    }
    Ok(Options {
        format: arguments.format(),
        new_fast: arguments.boolean("new_fast")?,
        take_over: arguments.optional_integer("take_over")?,
        ack: Ack::of_word(arguments.choice("ack")?),
        max_lag,
        read_cache,
        timeout: arguments.time_limit()?,
    })
}
