//! `record`: records the operations on a stack, on either contract, so that every state in which a power cut
//! could have left it can be constructed.
//!
//! Every submission and completion of an operation that changes data or makes it durable goes to a timeline,
//! with its data. At the top of a stack (role `client`) completions are promises of the stack; at its bottom
//! (role `disk`) submissions are data that a disk may hold. All layers that name the same file, on any shard,
//! share one [`Recorder`] and one total order: an event with a smaller number didn't happen after one with a
//! larger number. Calls pass through unchanged; if the timeline can't be written, they fail. With `reads` a
//! device's reads are also recorded. With `data=false` data is left out, for traces of a load.
//!
//! [`timeline`] parses the file, [`replay`] constructs the states, and [`format`](mod@format) is the
//! encoding. Checking whether a state keeps the promises is left to the caller.

mod device;
pub mod format;
mod recorder;
pub mod replay;
pub mod timeline;
mod zones;

pub use device::{Contents, RecordDevicePart};
pub use format::Role;
pub use recorder::{DEFAULT_LIMIT, Recorder};
pub use timeline::Timeline;
pub use zones::RecordZonesPart;

use block::{Call, Result};
use stack::{Arguments, Built, Contract, Key, Kind, Metric, ValueKind};
use std::sync::Arc;

const TIMELINE: Key = Key::required(
    "timeline",
    ValueKind::Path,
    "the file to record to; layers that name the same file share it",
)
.positional();
const ROLE: Key = Key::optional(
    "role",
    ValueKind::Choice(&["disk", "client"]),
    "disk at the bottom of a stack; client at its top, where completions are promises",
)
.or("disk");
const OVERWRITE: Key =
    Key::optional("overwrite", ValueKind::Bool, "overwrite an existing timeline").or("false");
const BUFFER: Key =
    Key::optional("buffer", ValueKind::Size, "limit of unwritten events in memory; calls wait above it")
        .or("64MiB");
const READS: Key = Key::optional("reads", ValueKind::Bool, "also record the ranges of reads").or("false");
const DATA: Key = Key::optional(
    "data",
    ValueKind::Bool,
    "record written data; false: zeros in its place, enough for a trace",
)
.or("true");

/// `record` on a device.
pub const KIND: Kind = Kind {
    name: "record",
    contract: Contract::Device,
    summary: "records changes of a device, to replay every state that a power cut could leave",
    keys: &[
        Key::required("on", ValueKind::Device, "the device to record").positional(),
        TIMELINE,
        ROLE,
        OVERWRITE,
        BUFFER,
        READS,
        DATA,
    ],
    messages: &[],
    metrics: &[METRICS],
    shareable: false,
    example: "record(ram(size=64MiB), run.timeline, role=disk)",
    plan: |arguments| arguments.shape("on"),
    build: |arguments| {
        Call::new(async move {
            let (recorder, role) = recorder(&arguments).await?;
            let contents = Contents { reads: arguments.boolean("reads")?, data: arguments.boolean("data")? };
            let part = RecordDevicePart::new(arguments.device("on")?, recorder, arguments.name(), role)?;
            Ok(Built::Device(Arc::new(part.with_contents(contents))))
        })
    },
};

/// `record` on zones.
pub const ZONES_KIND: Kind = Kind {
    name: ZONES_NAME,
    contract: Contract::Zones,
    summary: "records changes of zones",
    keys: &[
        Key::required("on", ValueKind::Zones, "the zones to record").positional(),
        TIMELINE,
        ROLE,
        OVERWRITE,
        BUFFER,
    ],
    messages: &[],
    metrics: &[METRICS],
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

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::counter("events", "record_events", "Events in the timeline"),
    Metric::counter("written_bytes", "record_written_bytes", "Bytes that were written to the timeline"),
    Metric::gauge("buffered_bytes", "record_buffered_bytes", "Bytes of the timeline that aren't written"),
    Metric::counter("waits_for_room", "record_waits", "Operations that waited for the timeline"),
];

async fn recorder(arguments: &Arguments) -> Result<(Arc<Recorder>, Role)> {
    let role = if arguments.choice("role")? == "client" { Role::Client } else { Role::Disk };
    let limit = usize::try_from(arguments.size("buffer")?).unwrap_or(usize::MAX);
    let path = arguments.path("timeline")?;
    Ok((Recorder::open(&path, arguments.boolean("overwrite")?, limit).await?, role))
}

/// Kind of the layer on zones.
const ZONES_NAME: &str = "zone-record";
