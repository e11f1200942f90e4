//! The whole log in simulated worlds: several clients, an operator, cleaning, checkpoints, faults, power cuts
//! at any time (also while it is opened, formatted or closed), checked against a model. `worlds` explains
//! seeds.

mod operator;

use block::{Error, Result};
use log::core::{Acknowledge, Core};
use log::kind::{Options, open};
use log::map::Physical;
use logkit::Owner;
use operator::{Operated, check_versions, operate};
use runtime::Random;
use siltstone_tests::worlds::{Disks, File, Life, Stop, Subject, World, keeps_its_promises};
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

/// As many as take about a minute on two quiet cores.
const USUAL_SEEDS: u64 = 1500;
const BLOCK: usize = 4096;
/// Class of zones with checkpoints, whose blocks are in no map.
const CHECKPOINT_CLASS: u8 = 0xFF;

/// Setup of a log, constant over all lives of a seed.
#[derive(Debug, Clone)]
struct Setup {
    disk_bytes: u64,
    sector: u64,
    options: Options,
    shards: usize,
    is_thin: bool,
    /// Whether an operator creates, writes and deletes snapshots and clones meanwhile, and grows the volume.
    is_operated: bool,
}

impl Subject for Setup {
    type Part = log::LogPart;
    type Memory = Operated;

    fn draw(random: &mut Random) -> Self {
        let mut pick = |from: &[u64]| from[random.below(from.len() as u64) as usize];
        let disk_bytes = pick(&[1 << 20, 3 << 20 >> 1, 2 << 20, 3 << 20]);
        let is_thin = pick(&[0, 0, 0, 1]) == 1;
        let size = match is_thin {
            true => Some(2 * disk_bytes),
            // A part of the disk. Without a size the volume is as large as possible.
            false => Some(disk_bytes / pick(&[4, 8, 16, 1 << 40]) / BLOCK as u64 * BLOCK as u64),
        };
        let cleaning =
            logkit::cleaning::NAMES[pick(&[0, 1, 2, 3, 4]) as usize % logkit::cleaning::NAMES.len()];
        let map = log::map::NAMES[pick(&[0, 0, 0, 1, 2, 3, 4]) as usize % log::map::NAMES.len()];
        let options = Options {
            size: size.filter(|size| *size > 0),
            map: map.to_owned(),
            // A disk of 1 MiB would have too few of the larger zones.
            zone_size: Some(pick(if disk_bytes < 2 << 20 {
                &[32 << 10]
            } else {
                &[32 << 10, 32 << 10, 48 << 10, 64 << 10]
            })),
            cleaning: cleaning.to_owned(),
            acknowledge: [Acknowledge::Log, Acknowledge::Buffer][pick(&[0, 0, 1]) as usize],
            appends_in_flight: pick(&[1, 2, 2, 3, 4]) as u32,
            dirty: pick(&[4 << 10, 64 << 10, 1 << 20, 64 << 20]),
            checkpoint_after: pick(&[16 << 10, 64 << 10, 256 << 10, 64 << 20]),
            ..Options::default()
        };
        let mut setup = Setup {
            disk_bytes,
            sector: pick(&[512, 4096]),
            options,
            shards: pick(&[1, 1, 2]) as usize,
            is_thin,
            is_operated: pick(&[0, 0, 1]) == 1,
        };
        setup.options.blocks_at_once = pick(&[1, 7, 64, 1 << 14]);
        setup.options.high_watermark = pick(&[0, 1, 10, 30]) as f64;
        setup.options.low_watermark = pick(&[0, 0, 5, 40]) as f64;
        let home_shards = pick(&[1, 1, 1, 2, 3, 8]);
        setup.options.shards = Some(home_shards as u32);
        setup.options.stripe_blocks = pick(&[1, 8, 64]) as u32;
        // Each has open zones of its own, and a reserve: up to 19 zones of 64 KiB.
        setup.disk_bytes += (home_shards - 1) * (5 << 18);
        setup
    }

    fn files(&self) -> Vec<File> {
        vec![File { path: "/disk", bytes: self.disk_bytes, sector: self.sector }]
    }

    fn shards(&self) -> usize {
        self.shards
    }

    async fn open(&self, disks: &Disks, life: &Life) -> Result<Arc<log::LogPart>> {
        let disk = disks.open(0).await?;
        if !life.format {
            let options = Options { zone_size: None, size: None, shards: None, ..self.options.clone() };
            return Ok(Arc::new(open(disk, &options).await?));
        }
        let options = Options { format: true, ..self.options.clone() };
        match open(disk.clone(), &options).await {
            // The reserve is large on such a small disk.
            Err(Error::Invalid(_)) if options.size.is_some() => {
                Ok(Arc::new(open(disk, &Options { size: None, ..options }).await?))
            }
            other => Ok(Arc::new(other?)),
        }
    }

    fn closes_durably(&self) -> bool {
        true
    }

    fn is_ordered(&self, _life: &Life) -> bool {
        // Several home shards have a prefix each.
        self.options.shards == Some(1)
    }

    fn survives_kill(&self, _life: &Life) -> bool {
        // Writes that are acknowledged from memory are lost with the process.
        self.options.acknowledge == Acknowledge::Log
    }

    fn may_refuse(&self, error: &Error, is_write: bool) -> bool {
        // Blocks that only snapshots hold take space beyond the volume's own, and so do blocks by which it
        // has grown.
        matches!(error, Error::NoSpace(_)) && (self.is_thin || self.is_operated) && is_write
    }

    fn stopped(operated: &mut Operated, stop: Stop) {
        operated.stopped(stop);
    }

    fn check_size(world: &World<Self>, blocks: u64, _known: Option<u64>) -> Result<(), String> {
        world.memory().check_size(blocks, world.life.format)
    }

    async fn opened(world: &World<Self>, part: &log::LogPart) -> Result<(), String> {
        check_counts(part)
            .map_err(|broken| format!("after {:?}: {broken}, {:?}", world.stop, part.recovered()))
    }

    async fn was_read(world: &World<Self>, part: &log::LogPart) -> Result<(), String> {
        check_versions(world, part, true).await
    }

    fn is_operated(&self) -> bool {
        self.is_operated
    }

    fn meanwhile(
        world: Arc<World<Self>>,
        part: Arc<log::LogPart>,
    ) -> impl Future<Output = Result<(), String>> + 'static {
        operate(world, part)
    }

    async fn ended(world: &World<Self>, part: &log::LogPart) -> Result<(), String> {
        check_versions(world, part, false).await?;
        check_counts(part)
    }
}

/// Locations of the blocks of all versions of a home shard.
fn places(core: &Core) -> Vec<Physical> {
    let versions = core.versions.borrow();
    let list = versions.list.iter().map(|version| (&version.map, 0..version.blocks));
    let dying = versions.dying.iter().map(|dying| (&dying.map, dying.released..dying.blocks));
    let places = list.chain(dying).flat_map(|(map, blocks)| blocks.map(|block| map.lookup(block)));
    places.filter(|place| place.is_mapped()).collect()
}

/// Counts the live blocks of each zone, and compares them with the log's running count, by which it resets
/// zones. All home shards have to be here.
fn check_counts(part: &log::LogPart) -> Result<(), String> {
    let Ok(core) = part.home.get() else { return Ok(()) };
    let mut live = BTreeSet::new();
    for home in &**core.peers.homes() {
        // Home shards on other threads may commit meanwhile.
        let Ok(core) = home.get() else { return Ok(()) };
        live.extend(places(&core));
    }
    let mut by_zone = vec![0_u32; core.layout.zones as usize];
    live.iter().for_each(|place| by_zone[core.layout.place(*place).zone.0 as usize] += 1);
    for (number, zone) in core.kit().pool.list() {
        let counted = by_zone[number as usize];
        if zone.class != CHECKPOINT_CLASS && zone.live != counted {
            return Err(format!("zone {number} has {counted} live blocks, and the log counts {zone:?}"));
        }
    }
    match core.kit().pool.live_data() == live.len() as u64 {
        true => Ok(()),
        false => {
            Err(format!("{} blocks are live, and the log counts {}", live.len(), core.kit().pool.live_data()))
        }
    }
}

#[test]
fn the_log_keeps_its_promises_in_simulated_worlds() {
    keeps_its_promises::<Setup>(6, USUAL_SEEDS);
}
