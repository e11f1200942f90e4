//! File systems in simulated worlds: the disk, and functions to open and check file systems.

use block::{Error, Result, ZonesPart};
use fs::{FileSystem, Properties, Settings};
use runtime::Random;
use stack::{Registry, Stack};
use std::path::PathBuf;
use std::sync::Arc;

pub const DISK: &str = "/disk";
/// Number of inode groups of the file systems: few, so that several inodes are in one inode group.
pub const INODE_GROUPS: u32 = 4;

pub type Files = Vec<(PathBuf, Vec<u8>)>;

/// Returns an empty disk.
pub fn empty(bytes: u64) -> Files {
    vec![(DISK.into(), vec![0; bytes as usize])]
}

/// Opens the zones on the disk of the world; with a size, creates them.
pub async fn zones(zone_size: Option<u64>) -> Result<Arc<zones::OnDevice>> {
    zones_with(zones::on_device::Options { format: zone_size.is_some(), zone_size, ..Default::default() })
        .await
}

/// Zones on the disk of the world, opened with these options.
pub async fn zones_with(options: zones::on_device::Options) -> Result<Arc<zones::OnDevice>> {
    let registry = Registry::new(vec![&disks::file::KIND]);
    let stack = Stack::from_line("test", &format!("file({DISK}, block_size=4096)"), &registry);
    let stack = stack.map_err(|error| Error::invalid(error.to_string()))?;
    let plan = stack.check(false).map_err(|error| Error::invalid(error.to_string()))?;
    let file = plan.build().await?.top()?;
    Ok(Arc::new(zones::OnDevice::open(file, options).await?))
}

/// Returns the report of the checker for the disk, with all data.
pub async fn checked(zones: &Arc<zones::OnDevice>) -> Result<fs::check::Report> {
    let handle = zones.open().await?;
    fs::check(&*handle, fs::check::Options { data: true, ..Default::default() }).await
}

/// Parameters that all epochs of a file system share.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub disk: u64,
    pub zone: u64,
    pub block_size: u64,
    pub checkpoint_after: u64,
    /// Approximate number of blocks of files.
    pub blocks: u64,
    pub clients: u64,
    /// Share of operations during which a checkpoint is written, and share of requests of the medium that are
    /// slow.
    pub checkpoints: f64,
    pub slow: f64,
    /// Share of operations that come in bursts of operations on names.
    pub bursts: f64,
    /// Share of operations during which a snapshot is taken, deleted or read.
    pub snapshots: f64,
    /// Number of shards in the next epoch.
    pub shards: u32,
    /// Number of names above which a directory is striped.
    pub stripe_above: u64,
    /// Whether all epochs end with a clean close.
    pub is_closed: bool,
}

/// A small disk without faults, with one shard and without striped directories. Setups of tests differ from
/// it in a few fields.
pub const BASE: Setup = Setup {
    disk: 8 << 20,
    zone: 128 << 10,
    block_size: 4096,
    checkpoint_after: 64 << 20,
    blocks: 8,
    clients: 1,
    checkpoints: 0.0,
    slow: 0.0,
    bursts: 0.0,
    snapshots: 0.0,
    shards: 1,
    stripe_above: 1000,
    is_closed: false,
};

impl Setup {
    /// A disk with space for all files.
    pub fn draw(random: &mut Random) -> Self {
        let of = |random: &mut Random, list: &[u64]| list[random.below(list.len() as u64) as usize];
        Setup {
            disk: of(random, &[8 << 20, 12 << 20]),
            zone: of(random, &[128 << 10, 256 << 10]),
            block_size: of(random, &[4096, 4096, 8192, 65536]),
            checkpoint_after: of(random, &[64 << 10, 256 << 10, 64 << 20]),
            stripe_above: u64::MAX,
            ..BASE
        }
    }

    /// A disk that files fill, with several clients.
    pub fn draw_full(random: &mut Random) -> Self {
        let of = |random: &mut Random, list: &[u64]| list[random.below(list.len() as u64) as usize];
        Setup {
            disk: of(random, &[4 << 20, 5 << 20, 8 << 20]),
            zone: of(random, &[128 << 10, 128 << 10, 256 << 10]),
            block_size: of(random, &[4096, 4096, 4096, 16384]),
            checkpoint_after: of(random, &[64 << 10, 256 << 10, 64 << 20]),
            blocks: 48,
            clients: 1 + random.below(4),
            stripe_above: u64::MAX,
            ..BASE
        }
    }

    /// Many checkpoints, with many unwritten operations when they begin.
    pub fn draw_busy(random: &mut Random) -> Self {
        let setup = match random.chance(0.3) {
            true => Setup::draw(random),
            false => Setup::draw_full(random),
        };
        Setup { checkpoints: 0.03, slow: 0.1, bursts: 0.1, clients: 1 + random.below(2), ..setup }
    }

    /// Several shards, with enough zones for them.
    pub fn draw_shards(random: &mut Random) -> Self {
        let setup = Setup::draw_busy(random);
        Setup { disk: 24 << 20, zone: 128 << 10, clients: 1 + random.below(4), shards: 2, ..setup }
    }

    /// Snapshots, on a disk that files fill or with several shards.
    pub fn draw_snapshots(random: &mut Random) -> Self {
        let setup = match random.below(3) {
            0 => Setup { clients: 1 + random.below(3), ..Setup::draw(random) },
            1 => Setup { checkpoints: 0.01, slow: 0.05, bursts: 0.02, ..Setup::draw_full(random) },
            _ => Setup { blocks: 24, ..Setup::draw_shards(random) },
        };
        Setup { snapshots: 0.05, ..setup }
    }

    /// Directories that are striped when they have a few names, on one shard: its operations take effect in
    /// order.
    pub fn draw_striped(random: &mut Random) -> Self {
        let setup = match random.below(3) {
            0 => Setup { clients: 1 + random.below(3), ..Setup::draw(random) },
            1 => Setup::draw_busy(random),
            _ => Setup { snapshots: 0.05, ..Setup::draw_busy(random) },
        };
        Setup { stripe_above: random.below(4), ..setup }
    }

    /// Striped directories on several shards, which all end with a clean close: a power cut could leave a
    /// different prefix of the operations of each shard.
    pub fn draw_striped_shards(random: &mut Random) -> Self {
        let setup = Setup { stripe_above: random.below(4), is_closed: true, ..Setup::draw_shards(random) };
        Setup { snapshots: if random.chance(0.5) { 0.05 } else { 0.0 }, ..setup }
    }

    pub fn settings(&self) -> Settings {
        // Few checksums in memory, so that some are read from the zones.
        Settings {
            checkpoint_after: self.checkpoint_after,
            sums_bytes: 1,
            shards: Some(self.shards),
            stripe_above: Some(self.stripe_above),
            ..Settings::default()
        }
    }

    pub async fn format(&self) -> Result<FileSystem> {
        let properties = Properties { block_size: self.block_size, inode_groups: INODE_GROUPS };
        FileSystem::format(zones(Some(self.zone)).await?, properties, &self.settings()).await
    }

    pub async fn open(&self) -> Result<FileSystem> {
        FileSystem::open(zones(None).await?, &self.settings()).await
    }
}
