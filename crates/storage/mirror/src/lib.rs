//! `mirror`: the same data on several devices, its *legs*, which may differ in speed; as md's RAID1.
//!
//! # Promises
//! Those of the Device contract, while any legs are lost, report unreadable blocks, or lag, as long as one
//! active leg has all data:
//!
//! - An acknowledged change is on all legs, except on lagging ones (`write_behind`). A lagging leg receives
//!   overlapping changes in the order in which they were submitted. The number and bytes of its outstanding
//!   writes are bounded.
//! - A flush makes data durable on all legs (`flush = "all"`), or on all legs that don't lag (`"fast"`). With
//!   `"fast"`, losing these legs loses flushed data.
//! - A leg that fails a change becomes *faulty*. This is durable on the other legs before that change or any
//!   later one is acknowledged. A faulty leg joins again only on an operator's request, and receives the
//!   missing data first.
//! - Once acknowledged changes may be missing on all active legs (the last one failed an outstanding write,
//!   or all failed a flush), flushes and the close fail, and no bit is cleared, until the mirror is opened
//!   again. Chunks that may differ are resynced.
//! - A leg that doesn't answer a request within `timeout` also becomes faulty: no request and no close of the
//!   mirror waits longer for it. If it is the last leg, its requests fail until those in flight have ended.
//! - After an unclean stop legs may differ in chunks whose bit is set. There only one leg, the source, is
//!   read, and data that was read is copied to the others. So data that was read once doesn't change when the
//!   source is lost later. An exception is the loss of the source together with power while such a copy is in
//!   flight.
//!
//! If legs differ and none reports an error, the mirror doesn't know which one is right: a scrub counts the
//! mismatch, and `repair` copies the source's data.
//!
//! # Structure
//! `core` is the state on the home shard, composed of parts that have a file each; its folder has the
//! changes, flushes and reads, `membership` (superblocks), `bitmap` and `keeper` (resync, scrubs). `assembly`
//! decides at opening which legs are used; [`format`](mod@format) is the encoding on the legs.
//! Payloads are not copied for lagging legs: [`block::Data`] is immutable.
//!
//! Outstanding writes of lagging legs are in memory and end with the process; the source has their data, and
//! a restart resyncs the chunks from it. To keep them over a restart, put a write cache on the fast device in
//! front of the leg (`examples/mirror-behind-log.toml`).
#![doc = include_str!("../DESIGN.md")]

mod assembly;
mod balance;
mod behind;
mod chunks;
mod copies;
mod core;
mod examine;
pub mod format;
mod layout;
mod leg;
mod loss;
mod members;
mod message;
mod missing;
mod open;
mod part;
mod settings;
mod shared;
mod superblocks;
mod upkeep;

pub use assembly::Permissions;
pub use leg::Mask;
pub use message::Message;
pub use missing::MissingLeg;
pub use open::Plan;
pub use part::MirrorPart;
pub use settings::Settings;

use block::{BlockSize, Call, Result};
use layout::{Layout, USUAL_CHUNK};
use stack::{Arguments, Built, Contract, Key, Kind, Message as _, Metric, Shape, ValueKind, format_duration};
use std::sync::Arc;
use std::time::Duration;

/// Smallest `bitmap_delay`. Each pass over the bitmap that has bits to clear flushes all legs.
const MIN_DELAY: Duration = Duration::from_millis(1);

/// `mirror(file(fast.img), file(slow.img), write_mostly=[1], write_behind=256)`.
pub const KIND: Kind = Kind {
    name: "mirror",
    contract: Contract::Device,
    summary: "the same data on several devices, which may differ in speed (RAID1)",
    keys: &[
        Key::required("on", ValueKind::Devices, "the legs, in any order; two to 16 with --format")
            .positional()
            .may_be_missing()
            .holds_contents(),
        Key::optional("write_mostly", ValueKind::Texts, "legs that reads avoid: names or numbers; the first leg is 0"),
        Key::optional(
            "write_behind",
            ValueKind::Integer { min: 1, max: 16383 },
            "limit of acknowledged writes that write-mostly legs may lag, in memory; needs write_mostly; unset: no lag. To log \
             them on the fast device, put a writecache in front of the leg instead",
        )
        .as_in("md"),
        Key::optional("behind_bytes", ValueKind::Size, "limit of the bytes of writes that lag, in memory").or("64MiB"),
        Key::optional(
            "flush",
            ValueKind::Choice(&["all", "fast"]),
            "legs on which a flush makes data durable: all, or only those that don't lag",
        )
        .or("all"),
        Key::optional(
            "bitmap_chunk",
            ValueKind::Size,
            "size of the chunk that one bit of the write-intent bitmap covers, set by --format; default 64MiB",
        ),
        Key::optional(
            "bitmap_delay",
            ValueKind::Duration,
            "time without writes after which a chunk's bit is cleared; at least 1ms",
        )
        .or("5s"),
        Key::optional("read_policy", ValueKind::Choice(&["latency", "first"]), "choice of the leg for a read")
            .or("latency"),
        Key::optional(
            "sync_speed_max",
            ValueKind::Size,
            "limit of resync and scrub, in bytes per second; 0: no limit",
        )
        .or("200MiB"),
        Key::time_limit(
            "time limit of a request to a leg; after it the leg is faulty and the others continue; 10ms to 24h",
            "30s",
        ),
        Key::optional("degraded", ValueKind::Bool, "start without legs that are missing").or("false"),
        Key::optional("rebuild", ValueKind::Texts, "legs that are overwritten if they don't belong to the mirror"),
    ],
    messages: Message::FORMS,
    metrics: &[METRICS],
    shareable: false,
    example: "mirror(file(fast.img, size=64MiB), file(slow.img, size=64MiB), write_mostly=[1], write_behind=256)",
    plan,
    build: |arguments| {
        Call::new(async move {
            let names = arguments.child_names("on")?;
            let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            let plan = Plan {
                settings: settings(&arguments, &names)?,
                permissions: Permissions {
                    degraded: arguments.boolean("degraded")?,
                    rebuild: legs(&arguments, "rebuild", &names)?,
                },
                format: arguments.format(),
                bitmap_chunk: arguments.optional_size("bitmap_chunk")?,
                legs: names
                    .into_iter()
                    .zip(arguments.devices_or_errors("on")?)
                    .map(|(name, leg)| (name, leg.unwrap_or_else(|error| Arc::new(MissingLeg::new(error)))))
                    .collect(),
            };
            Ok(Built::Device(Arc::new(MirrorPart::open(plan).await?)))
        })
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("bytes", "device_bytes", "Capacity of the device"),
    Metric::gauge("behind_writes", "mirror_behind_writes", "Writes that a write-mostly leg lacks"),
    Metric::gauge("behind_bytes", "mirror_behind_bytes", "Data of writes that a write-mostly leg lacks"),
    Metric::gauge("one_copy_bytes", "mirror_one_copy_bytes", "Data that may be on one leg only"),
    Metric::gauge("dirty_chunks", "mirror_dirty_chunks", "Chunks that the bitmap marks"),
    Metric::gauge("chunks_to_copy", "mirror_copy_chunks", "Chunks that resync or recovery has to copy"),
    Metric::counter("copied_bytes", "mirror_copied_bytes", "Bytes that resync and recovery copied"),
    Metric::gauge("scrubbed_bytes", "mirror_scrubbed_bytes", "Bytes that the scrub has compared"),
    Metric::gauge("mismatch_sectors", "mirror_mismatch_sectors", "Sectors that the scrub found to differ"),
    Metric::gauge("legs.*.state", "mirror_leg_active", "1 while the leg is active")
        .of_each("leg", "leg")
        .if_word("active"),
    Metric::gauge(
        "legs.*.read_latency_ns",
        "mirror_leg_read_latency_seconds",
        "Smoothed latency of reads of the leg",
    )
    .of_each("leg", "leg")
    .times(1e-9),
    Metric::counter("legs.*.reads", "mirror_leg_reads", "Reads of the leg").of_each("leg", "leg"),
    Metric::counter("legs.*.writes", "mirror_leg_writes", "Writes to the leg").of_each("leg", "leg"),
    Metric::counter("legs.*.read_errors", "mirror_leg_read_errors", "Failed reads of the leg")
        .of_each("leg", "leg"),
    Metric::counter(
        "legs.*.corrected",
        "mirror_leg_corrections",
        "Reads of the leg that were corrected from another one",
    )
    .of_each("leg", "leg"),
];

/// Returns the legs that a key names.
fn legs(arguments: &Arguments, key: &'static str, names: &[String]) -> Result<Mask> {
    let mut mask = 0;
    for wanted in arguments.texts(key)? {
        let found = message::number_of(names.iter().map(String::as_str), &wanted);
        mask |= 1 << found.map_err(|error| arguments.refuse(key, format!("{key}: {}", error.detail())))?;
    }
    Ok(mask)
}

fn settings(arguments: &Arguments, names: &[String]) -> Result<Settings> {
    if names.len() > format::MAX_LEGS {
        let text = format!("on: {} legs; expected at most {}", names.len(), format::MAX_LEGS);
        return Err(arguments.refuse("on", text));
    }
    let write_mostly = legs(arguments, "write_mostly", names)?;
    let write_behind = arguments.optional_integer("write_behind")?;
    if let Some(writes) = write_behind {
        if write_mostly == 0 {
            let text = format!(
                "write_behind {writes}: only write-mostly legs lag, and there are none; name one in write_mostly"
            );
            return Err(arguments.refuse("write_behind", text));
        }
        if arguments.format() && write_mostly.count_ones() as usize == names.len() {
            let text = format!(
                "write_behind {writes}: all legs are write-mostly; leave at least one out of write_mostly"
            );
            return Err(arguments.refuse("write_behind", text));
        }
    }
    // With the smallest block size; `plan` checks again once the block size is known.
    check_behind_bytes(arguments, BlockSize::SMALLEST)?;
    let bitmap_delay = arguments.duration("bitmap_delay")?;
    if bitmap_delay < MIN_DELAY {
        let text = format!(
            "bitmap_delay {}: expected {} or more (md's --delay is in whole seconds, with a default of 5)",
            format_duration(bitmap_delay),
            format_duration(MIN_DELAY)
        );
        return Err(arguments.refuse("bitmap_delay", text));
    }
    let fast_flush = arguments.choice("flush")? == "fast";
    if fast_flush && write_behind.is_none() {
        return Err(arguments.refuse(
            "flush",
            "flush \"fast\": no leg lags without write_behind; set it, or leave flush out",
        ));
    }
    Ok(Settings {
        write_mostly,
        write_behind: write_behind.unwrap_or(0),
        behind_bytes: arguments.size("behind_bytes")?,
        fast_flush,
        bitmap_delay,
        sync_speed_max: arguments.size("sync_speed_max")?,
        first_leg: arguments.choice("read_policy")? == "first",
        timeout: arguments.time_limit()?,
    })
}

/// Refuses a bound below one block.
fn check_behind_bytes(arguments: &Arguments, block_size: u32) -> Result<()> {
    let bytes = arguments.size("behind_bytes")?;
    if bytes >= u64::from(block_size) {
        return Ok(());
    }
    let text = format!(
        "behind_bytes {bytes}: smaller than one block; expected {block_size} or more, default 64MiB; for legs that don't lag, \
         leave out write_behind"
    );
    Err(arguments.refuse("behind_bytes", text))
}

/// Returns the shape with `--format`; without it, the size is known only from the legs' superblocks.
fn plan(arguments: &Arguments) -> Result<Shape> {
    let names: Vec<String> = arguments.child_names("on")?.into_iter().map(str::to_owned).collect();
    settings(arguments, &names)?;
    legs(arguments, "rebuild", &names)?;
    let shapes = arguments.shapes("on")?;
    if arguments.format() && names.len() < 2 {
        return Err(arguments.refuse("on", "on: one leg; expected two or more"));
    }
    let block_size = Shape::largest_block(&shapes);
    if let Some(block_size) = block_size {
        check_behind_bytes(arguments, block_size)?;
    }
    let chunk = arguments.optional_size("bitmap_chunk")?;
    let bytes: Option<Vec<u64>> = shapes.iter().map(|leg| leg.bytes).collect();
    let (Some(block_size), Some(bytes)) = (block_size, bytes) else { return Ok(Shape::default()) };
    let least = bytes.into_iter().min().unwrap_or(0);
    let size = BlockSize::new(u64::from(block_size))?;
    let layout = Layout::new(least, size, chunk.unwrap_or(USUAL_CHUNK)).map_err(|error| {
        let key = if chunk.is_some() { "bitmap_chunk" } else { "on" };
        arguments.refuse(key, error.detail().to_owned())
    });
    match arguments.format() {
        true => layout.map(|layout| Shape::new(layout.data_bytes, block_size)),
        false => layout.map(|_| Shape::default()),
    }
}
