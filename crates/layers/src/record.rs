//! `record`: writes down what happens on a stack, on either contract, so that every state in which a power
//! cut could have left it can be made again.
//!
//! Every submission and completion of whatever changes data or makes it durable goes to a timeline, data
//! included; at the top of a stack (role `client`) completions are what the stack has promised, at its
//! bottom (role `disk`) submissions are what a disk may hold. All layers that name the same file, on
//! whichever shard, share one [`Recorder`] and so one order: if one event has the smaller number, it did not
//! happen after the other. Calls pass through unchanged; where the timeline can't be written, they fail.
//! A device's reads are written down, too, where `reads` asks for it, and data is left out with `data=false`: for traces of
//! a load, which need nothing of what was written.
//!
//! [`timeline`] reads the file, [`replay`] makes the states; [`format`](mod@format) has its bytes. What a state is worth,
//! whether promises were kept, is left to whoever checks it.

mod device;
pub mod format;
mod recorder;
pub mod replay;
pub mod timeline;
mod zones;

pub use device::{RecordDevicePart, Takes};
pub use format::Role;
pub use recorder::{DEFAULT_LIMIT, Recorder};
pub use timeline::Timeline;
pub use zones::RecordZonesPart;

use block::{Call, Result};
use stack::{Arguments, Built, Contract, Key, Kind, ValueKind};
use std::sync::Arc;

const TIMELINE: Key =
    Key::required("timeline", ValueKind::Path, "the file; layers that name the same file share it")
        .positional();
const ROLE: Key = Key::optional(
    "role",
    ValueKind::Choice(&["disk", "client"]),
    "disk at the bottom of a stack; client at its top, where completions are promises",
)
.or("disk");
const OVERWRITE: Key =
    Key::optional("overwrite", ValueKind::Bool, "whether an older timeline of this name may be lost")
        .or("false");
const BUFFER: Key =
    Key::optional("buffer", ValueKind::Size, "how much may wait to be written before calls wait").or("64MiB");
const READS: Key =
    Key::optional("reads", ValueKind::Bool, "whether it is written down where something was read, too")
        .or("false");
const DATA: Key = Key::optional(
    "data",
    ValueKind::Bool,
    "whether what was written is kept; without it zeros stand for it, enough for a trace",
)
.or("true");

/// `record` on a device.
pub const KIND: Kind = Kind {
    name: "record",
    contract: Contract::Device,
    summary: "writes down what changes the device, to replay every state that a power cut could leave",
    keys: &[
        Key::required("on", ValueKind::Device, "the device that is recorded").positional(),
        TIMELINE,
        ROLE,
        OVERWRITE,
        BUFFER,
        READS,
        DATA,
    ],
    messages: &[],
    shareable: false,
    example: "record(ram(size=64MiB), run.timeline, role=disk)",
    plan: |arguments| arguments.shape("on"),
    build: |arguments| {
        Call::new(async move {
            let (recorder, role) = recorder(&arguments).await?;
            let takes = Takes { reads: arguments.boolean("reads")?, data: arguments.boolean("data")? };
            let part = RecordDevicePart::new(arguments.device("on")?, recorder, arguments.name(), role)?;
            Ok(Built::Device(Arc::new(part.taking(takes))))
        })
    },
};

/// `record` on zones.
pub const ZONES_KIND: Kind = Kind {
    name: ZONES_NAME,
    contract: Contract::Zones,
    summary: "writes down what changes the zones",
    keys: &[
        Key::required("on", ValueKind::Zones, "the zones that are recorded").positional(),
        TIMELINE,
        ROLE,
        OVERWRITE,
        BUFFER,
    ],
    messages: &[],
    shareable: false,
    example: "zone-record(zones(ram(size=64MiB), zone_size=1MiB), run.timeline)",
    plan: |arguments| arguments.shape("on"),
    build: |arguments| {
        Call::new(async move {
            let (recorder, role) = recorder(&arguments).await?;
            let part = RecordZonesPart::new(arguments.zones("on")?, recorder, arguments.name(), role)?;
            Ok(Built::Zones(Arc::new(part)))
        })
    },
};

async fn recorder(arguments: &Arguments) -> Result<(Arc<Recorder>, Role)> {
    let role = if arguments.choice("role")? == "client" { Role::Client } else { Role::Disk };
    let limit = usize::try_from(arguments.size("buffer")?).unwrap_or(usize::MAX);
    let path = arguments.path("timeline")?;
    Ok((Recorder::open(&path, arguments.boolean("overwrite")?, limit).await?, role))
}

/// What the Zones form of the layer is called in a stack.
const ZONES_NAME: &str = "zone-record";
