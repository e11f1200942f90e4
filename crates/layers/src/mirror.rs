//! `mirror`: the same data on several devices, its *legs*; md's RAID1, with unlike legs.
//!
//! # Promises
//! Those of the Device contract, with any leg lost, rotted (where the leg says so) or lagging at any time, as long as one is left
//! that has everything:
//!
//! - An acknowledged change is on all legs, but for those that may lag (`write_behind`): there it arrives in the order in
//!   which changes that overlap were given, and at most so many writes and bytes are behind.
//! - What a flush made durable is so on all legs (`flush = "all"`), or at least on those that don't lag (`"fast"`): then losing
//!   these loses it.
//! - A leg that failed a change is left behind, and the others durably know it before the change, or any later one, is
//!   acknowledged; it never counts again without being told, and without what it lacks.
//! - Once acknowledged changes may be on no active leg (the last one failed a change that was behind, or all failed a flush), no
//!   flush and no close succeeds, and no bit is cleared, until the mirror is opened again. What may differ is made equal.
//! - After a stop in the middle legs differ in chunks whose bit is set. There only one of them, the source, is read; what was
//!   read is copied to the others, so what was read once stays so when the source is lost. One thing isn't covered: a source
//!   that is lost together with the power, while copying is on its way.
//!
//! Which of two differing legs is right where none of them says that it is rotten is not known: a scrub counts it, and `repair`
//! takes the source's.
//!
//! # How
//! `core` is the home, with `membership` (superblocks), `bitmap` and `keeper` (copying, scrubs); `assembly` decides at
//! opening; [`format`](mod@format) is what lies on the legs. Payloads are not copied for legs that lag: [`block::Data`] doesn't change.
//!
//! What is behind is lost with the process, and the source has it. A log of it, with which a restart goes on, is a layer of its
//! own: a write cache on the fast device in front of the leg (`examples/mirror-behind-log.toml`).

mod assembly;
mod behind;
mod bitmap;
mod chunks;
mod core;
pub mod format;
mod keeper;
mod layout;
mod leg;
mod membership;
mod message;
mod missing;
mod open;
mod part;
mod read;
mod shared;

pub use self::core::Settings;
pub use assembly::Wishes;
pub use leg::Mask;
pub use message::Message;
pub use missing::MissingLeg;
pub use open::Plan;
pub use part::MirrorPart;

use block::{BlockSize, Call, Result};
use layout::{Layout, USUAL_CHUNK};
use stack::{Arguments, Built, Contract, Key, Kind, Message as _, Shape, ValueKind, format_duration};
use std::sync::Arc;
use std::time::Duration;

/// The shortest that a chunk may have to be quiet; each look at the bitmap flushes all legs if there is something to clear.
const LEAST_DELAY: Duration = Duration::from_millis(1);

/// `mirror(file(fast.img), file(slow.img), write_mostly=[1], write_behind=256)`.
pub const KIND: Kind = Kind {
    name: "mirror",
    contract: Contract::Device,
    summary: "the same data on several devices, which may be unlike (RAID1)",
    keys: &[
        Key::required("on", ValueKind::Devices, "the legs, in any order; two to 16 when it is made")
            .positional()
            .may_be_missing(),
        Key::optional("write_mostly", ValueKind::Texts, "legs that reads avoid: names, or numbers from 0 on"),
        Key::optional(
            "write_behind",
            ValueKind::Integer { min: 1, max: 16383 },
            "how many writes the write-mostly legs may lag, in memory; needs some. Without it they don't lag. For a log of \
             them on the fast device put a writecache in front of the leg instead",
        )
        .as_in("md"),
        Key::optional("behind_bytes", ValueKind::Size, "how much memory what is behind may take").or("64MiB"),
        Key::optional(
            "flush",
            ValueKind::Choice(&["all", "fast"]),
            "which legs have what was flushed: all, or those that don't lag",
        )
        .or("all"),
        Key::optional(
            "bitmap_chunk",
            ValueKind::Size,
            "what one bit of the write-intent bitmap stands for; 64MiB where none is there yet",
        ),
        Key::optional(
            "bitmap_delay",
            ValueKind::Duration,
            "how long a chunk is quiet before its bit is cleared; 1ms or more",
        )
        .or("5s"),
        Key::optional("read_policy", ValueKind::Choice(&["latency", "first"]), "which leg a read goes to")
            .or("latency"),
        Key::optional(
            "sync_speed_max",
            ValueKind::Size,
            "how much is copied or compared in a second; 0 is without a limit",
        )
        .or("200MiB"),
        Key::optional("degraded", ValueKind::Bool, "go on without legs that are missing").or("false"),
        Key::optional("rebuild", ValueKind::Texts, "legs that may be overwritten where they don't belong"),
    ],
    messages: Message::FORMS,
    shareable: false,
    example: "mirror(file(fast.img, size=64MiB), file(slow.img, size=64MiB), write_mostly=[1], write_behind=256)",
    plan,
    build: |arguments| {
        Call::new(async move {
            let names = arguments.child_names("on")?;
            let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            let plan = Plan {
                settings: settings(&arguments, &names)?,
                wishes: Wishes {
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

/// The legs that a key names.
fn legs(arguments: &Arguments, key: &'static str, names: &[String]) -> Result<Mask> {
    let mut mask = 0;
    for wanted in arguments.texts(key)? {
        let found = message::number_of(names.iter().map(String::as_str), &wanted);
        mask |= 1 << found.map_err(|error| arguments.refuse(key, format!("{key}: {}", error.detail())))?;
    }
    Ok(mask)
}

fn settings(arguments: &Arguments, names: &[String]) -> Result<Settings> {
    if names.len() > format::MOST_LEGS {
        let text = format!("on: {} legs, expected at most {}", names.len(), format::MOST_LEGS);
        return Err(arguments.refuse("on", text));
    }
    let write_mostly = legs(arguments, "write_mostly", names)?;
    let write_behind = arguments.optional_integer("write_behind")?;
    if let Some(writes) = write_behind {
        if write_mostly == 0 {
            let text = format!("write_behind {writes}: only write-mostly legs lag: name one in write_mostly");
            return Err(arguments.refuse("write_behind", text));
        }
        if arguments.format() && write_mostly.count_ones() as usize == names.len() {
            let text = format!("write_behind {writes}: all legs are write-mostly; one must not lag");
            return Err(arguments.refuse("write_behind", text));
        }
    }
    // A block has so many bytes at least; once it is known how many, `plan` asks again.
    check_behind_bytes(arguments, BlockSize::SMALLEST)?;
    let bitmap_delay = arguments.duration("bitmap_delay")?;
    if bitmap_delay < LEAST_DELAY {
        let text = format!(
            "bitmap_delay {}: expected {} or more (md's --delay is in whole seconds, and 5 where none is given)",
            format_duration(bitmap_delay),
            format_duration(LEAST_DELAY)
        );
        return Err(arguments.refuse("bitmap_delay", text));
    }
    let fast_flush = arguments.choice("flush")? == "fast";
    if fast_flush && write_behind.is_none() {
        return Err(arguments.refuse("flush", "flush \"fast\": no leg lags without write_behind"));
    }
    Ok(Settings {
        write_mostly,
        write_behind: write_behind.unwrap_or(0),
        behind_bytes: arguments.size("behind_bytes")?,
        fast_flush,
        bitmap_delay,
        sync_speed_max: arguments.size("sync_speed_max")?,
        first_leg: arguments.choice("read_policy")? == "first",
    })
}

/// Refuses a bound in which not even one block of this size has room.
fn check_behind_bytes(arguments: &Arguments, block_size: u32) -> Result<()> {
    let bytes = arguments.size("behind_bytes")?;
    if bytes >= u64::from(block_size) {
        return Ok(());
    }
    let text = format!(
        "behind_bytes {bytes}: not even a write of one block has room, so nothing would lag: expected {block_size} or more, \
         64MiB where nothing is said; to have no leg lag, leave out write_behind"
    );
    Err(arguments.refuse("behind_bytes", text))
}

/// Without a format, only the medium knows how large the mirror is.
fn plan(arguments: &Arguments) -> Result<Shape> {
    let names: Vec<String> = arguments.child_names("on")?.into_iter().map(str::to_owned).collect();
    settings(arguments, &names)?;
    legs(arguments, "rebuild", &names)?;
    let shapes = arguments.shapes("on")?;
    if arguments.format() && names.len() < 2 {
        return Err(arguments.refuse("on", "on: expected two devices or more; one is no mirror"));
    }
    let block_size = crate::spread::block_size_of(&shapes);
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
