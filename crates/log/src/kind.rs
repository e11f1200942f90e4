//! The kind `log` of a stack.

use crate::capacity::Images;
use crate::core::{Acknowledge, Settings};
use crate::device::{self, LogPart};
use crate::format::{CLEANER, USER};
use crate::home::FileMedium;
use crate::layout::{Layout, MAX_SHARE, Reserve, capacity};
use crate::recovery::BLOCK;
use crate::snapshot::Message;
use block::{
    BlockCount, BlockSize, Call, DeviceGeometry, DevicePart, Error, Result, ZoneGeometry, ZonesPart,
};
use logkit::cleaning::Policy;
use logkit::layout::ROOT_ZONES;
use runtime::file::SharedFile;
use stack::{Arguments, Built, Contract, Key, Kind, Message as _, Shape, ValueKind, format_size};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zones::on_device;

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
        Key::optional(
            "space_warning",
            ValueKind::Integer { min: 1, max: 100 },
            "used percentage of the capacity at which a log that can become full warns, as dm-thin's low_water_mark; 100: when it is full",
        )
        .or("90"),
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
            "salvage",
            ValueKind::Bool,
            "open a damaged log to copy what can be read: nothing is written to its storage, and writes are refused",
        )
        .or("false"),
    ],
    messages: Message::FORMS,
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
                    device::open_with_file(zones, &options, home.as_ref()).await?.on_lent_zones()
                }
                _ => open_with_file(arguments.device("on")?, &options, home.as_ref()).await?,
            };
            Ok(Built::Device(Arc::new(part)))
        })
    },
};

/// The largest record, in bytes.
pub const MAX_APPEND: u64 = 2 << 20;
const MAX_ZONE: u64 = 64 << 20;
const MIN_ZONE: u64 = 64 << 10;
/// Numbers of zones that are tried to find the smallest one that works; more than any number of reserved
/// zones.
const MIN_ZONES_SEARCHED: usize = 4096;
/// Default size of a volume in percent of the capacity.
const USUAL_SHARE: u64 = 90;

/// Location of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapPlace {
    /// In memory; checkpoints on the log's disk.
    Memory,
    /// In this file, memory-mapped.
    Pmem(PathBuf),
}

/// Options of a log in a stack.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether to create the log from scratch.
    pub format: bool,
    /// Size of the volume in bytes; `None` for the default.
    pub size: Option<u64>,
    /// Size of the disk in bytes, if known; a larger volume is thin.
    pub disk: Option<u64>,
    /// Name of the map's structure.
    pub map: String,
    /// Location of the map.
    pub map_home: MapPlace,
    /// Distance between the starts of zones in bytes; `None` for the default.
    pub zone_size: Option<u64>,
    /// Name of the cleaning policy.
    pub cleaning: String,
    /// Number of records of user data in flight at a time.
    pub appends_in_flight: u32,
    /// Point at which a write is acknowledged.
    pub acknowledge: Acknowledge,
    /// Most bytes of written data in memory; further writers wait.
    pub dirty: u64,
    /// Least number of bytes written between two checkpoints.
    pub checkpoint_after: u64,
    /// Percentage of the capacity at or above which the log warns.
    pub space_warning: u64,
    /// Percentage of free zones below which cleaning is paced to writes.
    pub high_watermark: f64,
    /// Percentage of free zones below which cleaning is faster than writes.
    pub low_watermark: f64,
    /// Whether to open the log read-only, to copy its readable data.
    pub salvage: bool,
    /// Number of blocks that are discarded, or released after a deletion, between two yields to other tasks.
    /// Not a key: the right value depends on the processor, not on the log.
    pub blocks_at_once: u64,
}

/// Number of blocks that the slowest map unmaps in a few milliseconds.
const BLOCKS_AT_ONCE: u64 = 1 << 14;

impl Default for Options {
    /// Returns the options of a stack without any key.
    fn default() -> Self {
        Options {
            format: false,
            size: None,
            disk: None,
            map: "radix".to_owned(),
            map_home: MapPlace::Memory,
            zone_size: None,
            cleaning: logkit::cleaning::DEFAULT.to_owned(),
            appends_in_flight: 2,
            acknowledge: Acknowledge::Log,
            dirty: 64 << 20,
            checkpoint_after: 64 << 20,
            space_warning: 90,
            high_watermark: 1.0,
            low_watermark: 0.0,
            salvage: false,
            blocks_at_once: BLOCKS_AT_ONCE,
        }
    }
}

/// Opens the log on a device, or creates it there.
///
/// # Errors
/// Errors of the zones, of recovery, formatting and writes.
pub async fn open(device: Arc<dyn DevicePart>, options: &Options) -> Result<LogPart> {
    open_with_file(device, options, None).await
}

/// Opens or creates the log as [`open`] does; `home` is the map's file if the stack has opened and locked it.
async fn open_with_file(
    device: Arc<dyn DevicePart>,
    options: &Options,
    home: Option<&SharedFile>,
) -> Result<LogPart> {
    if options.salvage {
        return device::open_with_file(crate::check::open_zones(device).await?, options, home).await;
    }
    let zone_size = match (options.format, options.zone_size) {
        (true, None) => Some(default_zone_size(device.geometry().bytes())),
        (_, given) => given,
    };
    let on_device = on_device::Options {
        format: options.format,
        zone_size,
        max_append: Some(MAX_APPEND),
        ..on_device::Options::default()
    };
    let zones = Arc::new(zones::OnDevice::open(device, on_device).await?);
    device::open_with_file(zones, options, home).await
}

/// Opens the log on zones, or creates it there. The zones stay open when the log is closed.
///
/// # Errors
/// [`Error::Invalid`] and [`Error::Unsupported`] for zones that can't hold a log; errors of recovery,
/// formatting and writes.
pub async fn open_on_zones(zones: Arc<dyn ZonesPart>, options: &Options) -> Result<LogPart> {
    Ok(device::open(zones, options).await?.on_lent_zones())
}

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
            space_warning: arguments.integer("space_warning")?,
            high_watermark: arguments.float("high_watermark")?,
            low_watermark: arguments.float("low_watermark")?,
            salvage: arguments.salvage()?,
            blocks_at_once: BLOCKS_AT_ONCE,
        })
    }

    /// Returns the cleaning policy for this number of zones.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown name.
    pub fn policy(&self, zones: u32) -> Result<Box<dyn Policy>> {
        logkit::cleaning::make(&self.cleaning, logkit::cleaning::Parameters::for_zones(zones))
    }

    fn open_zones(&self, policy: &dyn Policy) -> u32 {
        let users = (0..policy.classes()).filter(|class| policy.is_users(*class)).count() as u32;
        let movers = u32::from(policy.classes()) - users;
        // One per lane and class, one per class of the cleaner, and the zones that are being sealed
        // (`Core::seal`).
        users * self.appends_in_flight + movers + self.appends_in_flight
    }

    /// Returns the division of these zones into blocks.
    ///
    /// # Errors
    /// [`Error::Unsupported`] and [`Error::Invalid`], with the requirement, for zones that can't hold a log
    /// with these options.
    pub fn layout_on(&self, zones: &ZoneGeometry) -> Result<Layout> {
        let unit = u64::from(zones.append_granularity.max(zones.read_granularity));
        if !BLOCK.is_multiple_of(unit) {
            return Err(Error::invalid(format!(
                "its zones take appends and reads of multiples of {unit} bytes; expected a divisor of {BLOCK}, the log's block \
                 size"
            )));
        }
        let layout = Layout::new(zones, BlockSize::new(BLOCK)?)?;
        // In addition to the data zones, one for a checkpoint and the root zones: the next root zone may be
        // opened while the other is written.
        let most = self.open_zones(&*self.policy(zones.zones)?) + 1 + ROOT_ZONES;
        for (name, limit) in [("max_open", zones.max_open), ("max_active", zones.max_active)] {
            if limit != 0 && limit < most {
                return Err(Error::invalid(format!(
                    "its zones have {name}={limit}; expected 0 (no limit) or at least {most}, the log's open zones with \
                     appends_in_flight={} and cleaning={}",
                    self.appends_in_flight, self.cleaning
                )));
            }
        }
        Ok(layout)
    }

    /// Returns the zones that the log reserves for a volume of `blocks` blocks, with `open` open zones.
    fn reserve(&self, layout: &Layout, blocks: u64, open: u32) -> Reserve {
        let reserve = Reserve::new(layout, blocks, open);
        match self.map_home {
            MapPlace::Memory => reserve,
            // A log with a map home writes no checkpoint.
            MapPlace::Pmem(_) => Reserve { checkpoints: 0, ..reserve },
        }
    }

    /// Returns the capacity of a log on these zones in blocks, less the cleaner's share.
    fn largest_volume(&self, layout: &Layout, open: u32) -> u64 {
        // The map of a volume that fills the disk bounds the reserve.
        let reserve = self.reserve(layout, layout.blocks(), open);
        capacity(layout, &reserve) * MAX_SHARE / 100
    }

    /// Returns the smallest number of zones, each as large as these, that hold a volume of the default size.
    fn fewest_zones(&self, layout: &Layout, open: u32) -> u32 {
        let fits = |zones: &u32| {
            Layout::of(logkit::Layout { zones: *zones, ..**layout })
                .is_ok_and(|layout| self.largest_volume(&layout, open) * USUAL_SHARE / MAX_SHARE > 0)
        };
        (layout.zones..u32::MAX).take(MIN_ZONES_SEARCHED).find(fits).unwrap_or(u32::MAX)
    }

    /// Returns the size in blocks of a volume to create.
    ///
    /// # Errors
    /// [`Error::Invalid`], with a size that works, if the size leaves the cleaner too little free space.
    pub fn blocks_to_make(&self, layout: &Layout, policy: &dyn Policy) -> Result<u64> {
        let open = self.open_zones(policy);
        let disk_blocks = layout.blocks();
        let most = self.largest_volume(layout, open);
        let block = layout.block_size.bytes();
        let least_disk = |blocks: u64| {
            let share = blocks as f64 * 100.0 / MAX_SHARE as f64 / f64::from(layout.data_blocks());
            let reserve = self.reserve(layout, blocks, open).zones();
            ((share.ceil() + f64::from(reserve) + 1.0) * f64::from(layout.zone_blocks + 1)) as u64 * block
                + (2 << 20)
        };
        let Some(size) = self.size else {
            let blocks = most * USUAL_SHARE / MAX_SHARE;
            if blocks == 0 {
                return Err(Error::invalid(format!(
                    "{} zones of {} blocks are too few for a log, which reserves {} zones; expected at least {} zones of this \
                     size; take a larger disk or smaller zones (zone_size)",
                    layout.zones,
                    layout.zone_blocks,
                    self.reserve(layout, disk_blocks, open).zones(),
                    self.fewest_zones(layout, open)
                )));
            }
            return Ok(blocks);
        };
        if size == 0 || !size.is_multiple_of(block) || size / block >= u64::from(u32::MAX) {
            return Err(Error::invalid(format!(
                "size {size}: expected a multiple of {block} bytes, above 0 and below 16TiB"
            )));
        }
        let blocks = size / block;
        let is_thin = self.disk.unwrap_or(disk_blocks * block) < size;
        if blocks > most && (!is_thin || most == 0) {
            return Err(Error::invalid(format!(
                "size {}: expected at most {}, the capacity of a log on this disk without the cleaner's reserve; take that, or \
                 a disk of at least {}; a volume larger than its disk becomes thin",
                format_size(size),
                format_size(most * block),
                format_size(least_disk(blocks)),
            )));
        }
        Ok(blocks)
    }

    /// Checks that a size, if given, is that of the existing volume.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the existing volume's size.
    pub fn check_existing(&self, blocks: u64) -> Result<()> {
        match self.size {
            Some(size) if size != blocks * BLOCK => Err(Error::invalid(format!(
                "size {}: expected {}, the size of the existing volume; leave the key out, or `siltstone resize` it first",
                format_size(size),
                format_size(blocks * BLOCK)
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the settings of the log device and of the kit.
    pub fn settings(
        &self,
        layout: &Layout,
        blocks: u64,
        policy: &dyn Policy,
    ) -> (Settings, logkit::Settings) {
        let disk_blocks = layout.blocks();
        let reserve = self.reserve(layout, blocks.min(disk_blocks), self.open_zones(policy));
        let settings = Settings {
            acknowledge: self.acknowledge,
            dirty_blocks: (self.dirty / layout.block_size.bytes()).max(1),
            capacity: capacity(layout, &reserve) * MAX_SHARE / 100,
            reserved_zones: Images::of_volume(layout, blocks.min(disk_blocks)).zones(layout, 0),
            space_warning: self.space_warning,
            blocks_at_once: self.blocks_at_once.max(1),
        };
        let kit = logkit::Settings {
            user_stream: USER,
            cleaner_stream: CLEANER,
            appends_in_flight: self.appends_in_flight,
            data_blocks: layout.data_blocks(),
            record_blocks: layout.single_blocks(),
            cleaner_reserve: reserve.cleaner,
            checkpoint_blocks: layout.blocks_in(self.checkpoint_after),
            low_watermark: self.low_watermark / 100.0,
            high_watermark: self.high_watermark / 100.0,
            most_steps: self.blocks_at_once.max(1),
            read_request_bytes: logkit::READ_REQUEST_BYTES,
            prepare_zones: false,
        };
        (settings, kit)
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
    let (map, radix) = (arguments.choice("map")?, crate::map::NAMES[0]);
    if map != radix {
        return wrong(format!("map \"{map}\" can't be kept in a file of its own; expected \"{radix}\""));
    }
    Ok(MapPlace::Pmem(arguments.absolute(Path::new(path))?))
}

/// Returns 1/256 of the disk, rounded down to a power of two and clamped to 64 KiB..=64 MiB.
pub fn default_zone_size(disk: u64) -> u64 {
    let share = disk / 256;
    let power = if share == 0 { 0 } else { 1 << share.ilog2() };
    power.clamp(MIN_ZONE, MAX_ZONE)
}

/// Returns the shape that is known without opening any part: the volume's size, if the stack names one.
fn plan(arguments: &Arguments) -> Result<Shape> {
    if let MapPlace::Pmem(path) = map_place(arguments)? {
        arguments.claim("map_home", &path, true, FileMedium::lock_for_stack);
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
    let zone_size = options.zone_size.unwrap_or_else(|| default_zone_size(disk));
    let zones = on_device::geometry(&geometry, zone_size, MAX_APPEND)
        .map_err(|error| arguments.refuse("zone_size", error.detail().to_owned()))?;
    Ok(Some((zones, "zone_size")))
}

fn check_size(arguments: &Arguments, options: &Options, layout: &Layout) -> Result<()> {
    let policy = options.policy(layout.zones)?;
    let blocks = options.blocks_to_make(layout, &*policy);
    let key = if options.size.is_some() { "size" } else { "on" };
    blocks.map(drop).map_err(|error| arguments.refuse(key, error.detail().to_owned()))
}
