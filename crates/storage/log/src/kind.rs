//! The kind `log` of a stack.

mod following;
mod opening;
mod options;

pub use opening::{home_files, open, open_on_zones, open_with};
pub use options::{MapPlace, Options};

use crate::core::Acknowledge;
use crate::layout::{BLOCK, Layout};
use crate::snapshot::Message;
use block::{BlockCount, BlockSize, Call, DeviceGeometry, Result, ZoneGeometry};
use runtime::file::SharedFile;
use stack::{Arguments, Built, Contract, Key, Kind, Message as _, Metric, Shape, ValueKind};
use std::path::Path;
use std::sync::Arc;
use zones::on_device::defaults;

/// `log(file(disk.img, size=4GiB), size=3GiB, map=radix)`.
pub const KIND: Kind = Kind {
    name: "log",
    contract: Contract::Device,
    summary: "a log-structured volume: every write is an append, a map says where each block is",
    keys: &[
        Key::required(
            "on",
            ValueKind::DeviceOrZones,
            "the storage of the log: a device, which it divides into zones, or zones, which it uses as they are",
        )
        .positional()
        .holds_contents(),
        Key::optional(
            "size",
            ValueKind::Size,
            "the volume's size; by default 90 % of the capacity at creation. A volume larger than the disk is thin",
        ),
        Key::optional("map", ValueKind::Choice(&crate::map::NAMES), "the structure of the map").or("radix"),
        Key::optional(
            "map_home",
            ValueKind::Text,
            "the location of the map: memory, with checkpoints on the disk; or pmem:PATH, a mapped file, best in \
             non-volatile memory (DAX), so that opening reads no log",
        )
        .or("memory"),
        Key::optional(
            "zone_size",
            ValueKind::Size,
            "the size of a zone, for a log on a device; by default 1/256 of the disk, 64KiB to 64MiB",
        ),
        Key::optional("cleaning", ValueKind::Choice(&logkit::cleaning::NAMES), "the cleaning policy")
            .or(logkit::cleaning::DEFAULT),
        Key::optional(
            "appends_in_flight",
            ValueKind::Integer { min: 1, max: 16 },
            "limit of the records in flight; later writes are batched meanwhile",
        )
        .or("2"),
        Key::optional(
            "ack",
            ValueKind::Choice(&["log", "buffer"]),
            "when a write is acknowledged: log, once its record is on the disk; buffer, from memory, a volatile cache",
        )
        .or("log"),
        Key::optional(
            "dirty",
            ValueKind::Size,
            "limit of written data that waits in memory; writes wait above it",
        )
        .or("64MiB"),
        Key::optional(
            "checkpoint_after",
            ValueKind::Size,
            "least data written between two checkpoints; more while a checkpoint would be large",
        )
        .or("64MiB"),
        stack::WARN_AT,
        Key::optional(
            "high_watermark",
            ValueKind::Float { min: 0.0, max: 50.0 },
            "percentage of free zones below which cleaning is paced to writes; at least two zones above the low watermark",
        )
        .or("1"),
        Key::optional(
            "low_watermark",
            ValueKind::Float { min: 0.0, max: 50.0 },
            "percentage of free zones below which cleaning outpaces writes; at least what the cleaner needs",
        )
        .or("0"),
        Key::optional(
            "shards",
            ValueKind::Integer { min: 1, max: crate::stripes::MAX_SHARDS as u64 },
            "the number of shards that write to a new log, each the blocks of its own stripes of 4 MiB; an existing log has \
             the number that it was made with",
        ),
        Key::optional(
            "salvage",
            ValueKind::Bool,
            "open a damaged log to copy what can be read: nothing is written to its storage, and writes are refused",
        )
        .or("false"),
    ],
    messages: Message::FORMS,
    metrics: &[METRICS],
    shareable: true,
    example: "log(ram(256MiB), size=192MiB, map=radix)",
    plan,
    build: |arguments| {
        Call::new(async move {
            let options = Options::new(&arguments)?;
            let home = arguments.locked::<SharedFile>("map_home");
            let part = match arguments.contract("on")? {
                Some(Contract::Zones) => {
                    let zones = arguments.zones("on")?;
                    if let Some(view) = zones.view().await? {
                        let part = following::FollowingLog::open(zones, view, &options).await?;
                        return Ok(Built::Device(Arc::new(part)));
                    }
                    opening::on_zones(zones, &options, home.as_ref()).await?.on_lent_zones()
                }
                _ => opening::on_device(arguments.device("on")?, &options, home.as_ref()).await?,
            };
            Ok(Built::Device(Arc::new(part)))
        })
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("capacity_blocks", "log_capacity_blocks", "Blocks that the log holds at most"),
    Metric::gauge("live_blocks", "log_live_blocks", "Blocks with data"),
    Metric::gauge("zones.total", "log_zones", "Zones of the log"),
    Metric::gauge("zones.free", "log_free_zones", "Zones that can be written"),
    Metric::gauge("zones.damaged", "log_damaged_zones", "Zones that can't be read, written or reset"),
    Metric::gauge("zones.size", "log_zone_bytes", "Size of a zone"),
    Metric::counter("cleaning.zone_waits", "log_zone_waits", "Writes that waited for a free zone"),
    Metric::counter("user_blocks", "log_user_blocks", "Blocks that users wrote"),
    Metric::counter("moved_blocks", "log_moved_blocks", "Blocks that the cleaner moved"),
    Metric::counter(
        "metadata_blocks",
        "log_metadata_blocks",
        "Blocks of headers, checkpoints and other metadata",
    ),
    Metric::counter("checkpoint_blocks", "log_checkpoint_blocks", "Blocks of checkpoints"),
    Metric::counter("user_records", "log_user_records", "Records of users' writes"),
    Metric::counter("cleaned_zones", "log_cleaned_zones", "Zones that the cleaner emptied"),
    Metric::counter("reset_zones", "log_reset_zones", "Zones that were reset"),
    Metric::counter("checkpoints", "log_checkpoints", "Checkpoints"),
    Metric::gauge(
        "checkpoint_lag_blocks",
        "log_checkpoint_lag_blocks",
        "Blocks since the last checkpoint, which a replay would read",
    ),
    Metric::gauge("dirty_pages", "log_dirty_pages", "Pages of the map that no checkpoint has"),
    Metric::gauge("map_bytes", "log_map_bytes", "Memory of the map"),
];

/// Smallest default size of a zone, in bytes.
const MIN_ZONE: u64 = 64 << 10;

impl Options {
    fn new(arguments: &Arguments) -> Result<Self> {
        Ok(Options {
            format: arguments.format(),
            size: arguments.optional_size("size")?,
            disk: arguments.shape("on")?.bytes,
            map: arguments.choice("map")?.to_owned(),
            map_home: map_place(arguments)?,
            zone_size: arguments.optional_size("zone_size")?,
            cleaning: arguments.choice("cleaning")?.to_owned(),
            appends_in_flight: arguments.integer("appends_in_flight")? as u32,
            acknowledge: match arguments.choice("ack")? {
                "buffer" => Acknowledge::Buffer,
                _ => Acknowledge::Log,
            },
            dirty: arguments.size("dirty")?,
            checkpoint_after: arguments.size("checkpoint_after")?,
            high_watermark: arguments.float("high_watermark")?,
            low_watermark: arguments.float("low_watermark")?,
            shards: shards(arguments)?,
            stripe_blocks: crate::stripes::STRIPE_BLOCKS,
            salvage: arguments.salvage()?,
            blocks_at_once: options::BLOCKS_AT_ONCE,
        })
    }
}

/// Returns the number of shards that a stack names.
fn shards(arguments: &Arguments) -> Result<Option<u32>> {
    let shards = arguments.optional_integer("shards")?.map(|shards| shards as u32);
    match (map_place(arguments)?, shards) {
        (MapPlace::Pmem(_), Some(shards)) if shards > 1 => Err(arguments.refuse(
            "shards",
            format!("shards={shards}: a log with a map in a file of its own has one shard; leave out shards or map_home"),
        )),
        _ => Ok(shards),
    }
}

/// Returns the file that a value of the key `map_home` names; `None` if it names none.
pub fn file_of_home(said: &str) -> Option<&str> {
    said.strip_prefix("pmem:").filter(|path| !path.is_empty())
}

/// Returns the location of the map that a stack names.
fn map_place(arguments: &Arguments) -> Result<MapPlace> {
    let said = arguments.text("map_home")?;
    let wrong = |what: String| Err(arguments.refuse("map_home", what));
    let path = match file_of_home(&said) {
        Some(path) => path,
        None if said == "memory" => return Ok(MapPlace::Memory),
        None => return wrong(format!("\"{said}\": expected memory, or pmem:PATH")),
    };
    if let Err(error) = home_files() {
        return wrong(error.detail().to_owned());
    }
    let (map, radix) = (arguments.choice("map")?, crate::map::NAMES[0]);
    if map != radix {
        return wrong(format!("map \"{map}\" can't be kept in a file of its own; expected \"{radix}\""));
    }
    Ok(MapPlace::Pmem(arguments.absolute(Path::new(path))?))
}

/// Returns the shape that is known without opening any part: the volume's size, if the stack names one.
fn plan(arguments: &Arguments) -> Result<Shape> {
    if let MapPlace::Pmem(path) = map_place(arguments)? {
        arguments.claim("map_home", &path, true, home_files()?.lock);
    }
    let on = arguments.shape("on")?;
    if let Some(block_size) = on.block_size
        && u64::from(block_size) > BLOCK
    {
        return Err(arguments.refuse(
            "on",
            format!("its block size is {block_size} bytes; expected at most {BLOCK}, the log's"),
        ));
    }
    let options = Options::new(arguments)?;
    if let Some((zones, key)) = planned_zones(arguments, &options, on)? {
        let layout =
            options.layout_on(&zones).map_err(|error| arguments.refuse(key, error.detail().to_owned()))?;
        if options.format {
            check_size(arguments, &options, &layout)?;
        }
    }
    Ok(Shape { bytes: options.size, block_size: Some(BLOCK as u32), zones: None })
}

/// Returns the zones that the log will have, if known, and the key to report if they don't fit.
fn planned_zones(
    arguments: &Arguments,
    options: &Options,
    on: Shape,
) -> Result<Option<(ZoneGeometry, &'static str)>> {
    if arguments.contract("on")? == Some(Contract::Zones) {
        if options.zone_size.is_some() {
            return Err(arguments.refuse(
                "zone_size",
                "zone_size: set for a log on zones; expected only for a log on a device; leave it out, or set it where the \
                 zones are created",
            ));
        }
        return Ok(on.zones.map(|zones| (zones, "on")));
    }
    let (true, Some(disk)) = (options.format, on.bytes) else { return Ok(None) };
    let geometry = DeviceGeometry {
        block_size: BlockSize::new(512)?,
        blocks: BlockCount(disk / 512),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    };
    let zones = defaults::new_zones(&geometry, options.zone_size, MIN_ZONE)
        .map_err(|error| arguments.refuse("zone_size", error.detail().to_owned()))?;
    Ok(Some((zones, "zone_size")))
}

fn check_size(arguments: &Arguments, options: &Options, layout: &Layout) -> Result<()> {
    let policy = options.policy(layout.zones)?;
    let blocks = options.blocks_to_make(layout, &*policy);
    let key = if options.size.is_some() { "size" } else { "on" };
    blocks.map(drop).map_err(|error| arguments.refuse(key, error.detail().to_owned()))
}
