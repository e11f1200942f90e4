//! Options of a log, and the sizes and reserves that follow from them.

use crate::capacity::{Images, MAX_SHARE, Reserve, capacity};
use crate::core::{Acknowledge, Settings};
use crate::layout::{BLOCK, Layout};
use crate::stripes::{STRIPE_BLOCKS, Stripes, cleaner_stream, user_stream};
use block::{BlockSize, Error, Result, ZoneGeometry};
use logkit::cleaning::Policy;
use logkit::layout::ROOT_ZONES;
use stack::format_size;
use std::path::PathBuf;

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
    /// Percentage of free zones below which cleaning is paced to writes.
    pub high_watermark: f64,
    /// Percentage of free zones below which cleaning is faster than writes.
    pub low_watermark: f64,
    /// Number of home shards; `None` for one in a new log, and for any in an existing one.
    pub shards: Option<u32>,
    /// Number of blocks of a stripe of a new log with several home shards. Not a key: a page of the map is
    /// right for any use but small tests.
    pub stripe_blocks: u32,
    /// Whether to open the log read-only, to copy its readable data.
    pub salvage: bool,
    /// Number of blocks that are discarded, or released after a deletion, between two yields to other tasks.
    /// Not a key: the right value depends on the processor, not on the log.
    pub blocks_at_once: u64,
}

/// Number of blocks that the slowest map unmaps in a few milliseconds.
pub(super) const BLOCKS_AT_ONCE: u64 = 1 << 14;

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
            high_watermark: 1.0,
            low_watermark: 0.0,
            shards: None,
            stripe_blocks: STRIPE_BLOCKS,
            salvage: false,
            blocks_at_once: BLOCKS_AT_ONCE,
        }
    }
}

impl Options {
    /// Returns the cleaning policy for this number of zones.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown name.
    pub fn policy(&self, zones: u32) -> Result<Box<dyn Policy>> {
        logkit::cleaning::make(&self.cleaning, logkit::cleaning::Parameters::for_zones(zones))
    }

    /// Open zones of a log with `shards` shards: of each, one per lane and class of users, one per class of
    /// the cleaner, and those that are being sealed (`Core::seal`).
    fn open_zones(&self, policy: &dyn Policy, shards: u32) -> u32 {
        let users = (0..policy.classes()).filter(|class| policy.is_users(*class)).count() as u32;
        let movers = u32::from(policy.classes()) - users;
        shards * (users * self.appends_in_flight + movers + self.appends_in_flight)
    }

    /// Returns the division of these zones into blocks, and of a new log's volume among shards.
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
        let shards = if self.format { self.shards.unwrap_or(1) } else { 1 };
        let layout = Layout::new(zones, BlockSize::new(BLOCK)?)?;
        let layout = layout.with_stripes(Stripes::new(shards, self.stripe_blocks)?);
        self.check_open_zones(zones, &layout)?;
        Ok(layout)
    }

    /// Checks that zones permit as many open ones as the log has.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the numbers.
    pub fn check_open_zones(&self, zones: &ZoneGeometry, layout: &Layout) -> Result<()> {
        let (policy, shards) = (self.policy(zones.zones)?, layout.stripes.shards());
        // In addition to the data zones, one for a checkpoint and the root zones: the next root zone may be
        // opened while the other is written.
        let needed = |shards| self.open_zones(&*policy, shards) + 1 + ROOT_ZONES;
        for (name, limit) in [("max_open", zones.max_open), ("max_active", zones.max_active)] {
            if limit == 0 || limit >= needed(shards) {
                continue;
            }
            let fewer = (1..shards).rev().find(|shards| needed(*shards) <= limit);
            let advice = fewer.map_or(String::new(), |fewer| format!("; take shards={fewer} or fewer"));
            let of_shards = if shards > 1 { format!(", shards={shards}") } else { String::new() };
            return Err(Error::invalid(format!(
                "its zones have {name}={limit}; expected 0 (no limit) or at least {}, the log's open zones with \
                 appends_in_flight={}{of_shards} and cleaning={}{advice}",
                needed(shards),
                self.appends_in_flight,
                self.cleaning
            )));
        }
        Ok(())
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
                .map(|one| one.with_stripes(layout.stripes))
                .is_ok_and(|layout| self.largest_volume(&layout, open) * USUAL_SHARE / MAX_SHARE > 0)
        };
        (layout.zones..u32::MAX).take(MIN_ZONES_SEARCHED).find(fits).unwrap_or(u32::MAX)
    }

    /// Returns the size in blocks of a volume to create.
    ///
    /// # Errors
    /// [`Error::Invalid`], with a size that works, if the size leaves the cleaner too little free space.
    pub fn blocks_to_make(&self, layout: &Layout, policy: &dyn Policy) -> Result<u64> {
        let open = self.open_zones(policy, layout.stripes.shards());
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

    /// Checks that a number of shards, if given, is that of the existing log.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the existing log's number.
    pub fn check_shards(&self, stripes: Stripes) -> Result<()> {
        match self.shards {
            Some(shards) if shards != stripes.shards() => Err(Error::invalid(format!(
                "shards {shards}: expected {}, the number of the existing log; leave the key out, or format the log anew",
                stripes.shards()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the settings of a shard of the log device and of the kit.
    pub fn settings(
        &self,
        layout: &Layout,
        blocks: u64,
        policy: &dyn Policy,
        shard: u32,
    ) -> (Settings, logkit::Settings) {
        let (disk_blocks, shards) = (layout.blocks(), layout.stripes.shards());
        let reserve = self.reserve(layout, blocks.min(disk_blocks), self.open_zones(policy, shards));
        let settings = Settings {
            acknowledge: self.acknowledge,
            dirty_blocks: (self.dirty / layout.block_size.bytes() / u64::from(shards)).max(1),
            capacity: capacity(layout, &reserve) * MAX_SHARE / 100,
            reserved_zones: Images::of_volume(layout, blocks.min(disk_blocks)).zones(layout, 0),
            blocks_at_once: self.blocks_at_once.max(1),
        };
        let kit = logkit::Settings {
            user_stream: user_stream(shard),
            cleaner_stream: cleaner_stream(shard),
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
