//! `writecache`: a fast device that takes all writes, and gives them to a slower one when there is time; dm-writecache's role
//! and words.
//!
//! Promises: those of the Device contract. Writes are appended to a ring of records on the cache device, many in one, and
//! written back to the origin from its oldest end. **In order**: everything before a flush (or a FUA write) reaches the origin
//! before anything after it, of several versions of a block each that a flush separates, so that the origin alone is at every
//! moment a state that an earlier power cut could have left. `order=none` gives that up for fewer writes. Reads are checked
//! against the checksums that were taken when the data came, and what isn't cached is read from the origin; nothing that is
//! read is kept.
//!
//! When the ring is full, writers wait and go on at the speed at which the origin takes what is written back. A cache device
//! that fails takes no more writes, and what it holds is still read and written back; an origin that fails is tried again,
//! and its error is returned to the writers that wait for free space.
//!
//! Where it differs from the kernel's: nothing goes around a full cache (it would overtake what is cached), write-back is
//! ordered by flush epochs unless `order=none`, reads are checked, and there is no `metadata_only`: no client of a served stack can mark a
//! write as metadata. Left to others: keeping what is read (`cache`), a second copy of what only the cache has (`mirror`).
//!
//! **Structure.** `core` composes the parts: each has a file, private state, and its invariants in the module's head.
//! - The ring: `ring` (layout), `format` and `scan` (bytes), `log` (positions), `superblock`, `recovery` (opening), `index`.
//! - Writes: `change` (clients' calls), `queue`, `append` (lanes), `records` (in flight), `epoch` (flush epochs), `commit`
//!   (flushes of the cache device), `space` and `throttle` (a nearly full ring).
//! - Write-back: `demand` (when), `pieces` and `batch` (reading and sorting), `destage` (writing), `writeback` (the order of all).
//! - Reads: `read`, `grace` (reuse of space). The mode `cleaner`: `cleaner`, `around`. The rest: `origin`, `health`, `damage`,
//!   `counters`, `settings`, `message`, `device` (part and handles).

mod append;
mod around;
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
    Arguments, Built, Contract, Key, Kind, Message as _, Shape, ValueKind, format_duration, format_size,
};
use std::sync::Arc;
use std::time::Duration;

const ORDERS: [&str; 2] = ["flushes", "none"];

/// `writecache(file(disk.img), file(fast.img))`.
pub const KIND: Kind = Kind {
    name: "writecache",
    contract: Contract::Device,
    summary: "a fast device takes the writes and gives them to a slow one, in order, when there is time",
    keys: &[
        Key::required("on", ValueKind::Device, "the origin: the slow device that is cached").positional(),
        Key::required("cache", ValueKind::Device, "the fast device that takes the writes").positional(),
        Key::optional(
            "high_watermark",
            ValueKind::Integer { min: 0, max: 100 },
            "write-back begins when so many percent of the cache are used",
        )
        .as_in("dm-writecache")
        .or("50"),
        Key::optional(
            "low_watermark",
            ValueKind::Integer { min: 0, max: 100 },
            "write-back ends when fewer percent are used; at most high_watermark",
        )
        .as_in("dm-writecache")
        .or("45"),
        Key::optional(
            "writeback_jobs",
            ValueKind::Integer { min: 1, max: 4096 },
            "how many writes to the origin are on their way at a time; fewer disturb reads less",
        )
        .or("64"),
        Key::optional(
            "writeback_batch",
            ValueKind::Size,
            "how much is sorted and written back at a time, in memory; at most an eighth of the cache",
        )
        .or("64MiB"),
        Key::optional(
            "autocommit_blocks",
            ValueKind::Integer { min: 1, max: u32::MAX as u64 },
            "the cache device is flushed after so many blocks without a flush",
        )
        .or("65536"),
        Key::optional(
            "autocommit_time",
            ValueKind::Duration,
            "the cache device is flushed after this time without a flush; from 1ms to 1h",
        )
        .or("1s"),
        Key::optional(
            "pause_writeback",
            ValueKind::Duration,
            "write-back waits until clients haven't used the origin for so long (read from it, or written around the cache), while \
             there is room; up to 60s",
        )
        .or("0s"),
        Key::optional("max_age", ValueKind::Duration, "what is older is written back; from 1ms to 24h"),
        Key::optional("cleaner", ValueKind::Bool, "write back what is cached, and cache nothing new").or("false"),
        Key::optional("fua", ValueKind::Bool, "write back with FUA instead of a flush for each batch").or("false"),
        Key::optional("nofua", ValueKind::Bool, "dm-writecache's word for fua=false").or("false"),
        Key::optional(
            "order",
            ValueKind::Choice(&ORDERS),
            "flushes: the origin alone is always a state that an earlier power cut could have left; none: it isn't, and \
             fewer versions are written",
        )
        .or("flushes"),
        Key::optional("dirty", ValueKind::Size, "how much may wait in memory to be written to the cache").or("64MiB"),
    ],
    messages: Message::FORMS,
    shareable: false,
    example: "writecache(ram(256MiB), ram(64MiB))",
    plan: |arguments| {
        options(arguments)?;
        let (origin, fast) = (arguments.shape("on")?, arguments.shape("cache")?);
        let block_size = origin.block_size.zip(fast.block_size).map(|(one, other)| one.max(other));
        let (Some(bytes), Some(block_size)) = (origin.bytes, block_size) else {
            return Ok(Shape { block_size, ..Shape::default() });
        };
        if let Some(cache) = fast.bytes {
            let device = block::DeviceGeometry {
                block_size: BlockSize::new(u64::from(block_size))?,
                blocks: block::BlockCount(cache / u64::from(block_size)),
                atomic_write: 512,
                volatile_cache: true,
                read_only: false,
            };
            ring::Ring::for_device(&device, device.block_size)
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

/// A span of time from a key. What is most is dm-writecache's limit; the least, where it isn't nothing, is our own.
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
    let text = format!("{key} {time}: expected {least} to {most}; dm-writecache takes no more, either");
    Err(arguments.refuse(key, text))
}

fn options(arguments: &Arguments) -> Result<Options> {
    let (high_watermark, low_watermark) =
        (arguments.integer("high_watermark")?, arguments.integer("low_watermark")?);
    if low_watermark > high_watermark {
        let given = if arguments.given("low_watermark") { "" } else { " where none is given" };
        let text = format!(
            "low_watermark {low_watermark}{given}: expected at most high_watermark, {high_watermark}"
        );
        return Err(arguments.refuse("low_watermark", text));
    }
    if arguments.boolean("fua")? && arguments.boolean("nofua")? {
        return Err(arguments.refuse("nofua", "nofua: fua is given, too; expected one of them"));
    }
    let order = if arguments.choice("order")? == ORDERS[0] { Order::Flushes } else { Order::None };
    let batch = arguments.size("writeback_batch")?;
    if batch == 0 {
        let text = "writeback_batch 0: expected some bytes to be written back at a time; 64MiB where nothing is said";
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
