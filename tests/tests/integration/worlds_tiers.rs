//! Three tiers in simulated worlds: a write cache above a cache above a slow device; clients, faults on any
//! of them, power cuts at any time, either cache lost; checked against a model. `worlds` explains seeds.

use block::{DevicePart, Result};
use cache::{CachePart, Mode, Options};
use runtime::Random;
use siltstone_tests::stacked::Stacked;
use siltstone_tests::worlds::{
    Change, Disks, File, Finds, Life, Loss, Stop, Subject, cache_options, keeps_its_promises, pick,
    write_cache_options,
};
use std::sync::Arc;
use writecache::{Order, WriteCachePart};

/// As many as take less than twenty seconds on two busy cores.
const USUAL_SEEDS: u64 = 150;
/// Positions in the list of files.
const SLOW: usize = 0;
const FAST: usize = 1;
const FIRST: usize = 2;

/// Setup of a stack, constant over all lives of a seed.
#[derive(Debug, Clone)]
struct Tiers {
    slow_bytes: u64,
    fast_bytes: u64,
    first_bytes: u64,
    /// Sector sizes of the devices, in bytes.
    sectors: [u64; 3],
    shards: usize,
    order: Order,
    /// Whether the cache in the middle never has data that the slow device lacks.
    writes_through: bool,
}

impl Tiers {
    /// Options of the cache in the middle, which differ from life to life.
    fn middle(&self, life: &Life) -> Options {
        let modes: &[Mode] = match self.writes_through {
            true => &[Mode::Writethrough, Mode::Writethrough, Mode::Passthrough],
            false => &[Mode::Writeback, Mode::Writeback, Mode::Writethrough],
        };
        cache_options(life, modes, 32 << 10)
    }

    /// State of the tiers below the write cache, alone.
    fn behind(&self) -> Stop {
        match self.order {
            Order::Flushes => Stop::Older,
            Order::None => Stop::Mixed,
        }
    }

    /// State of the slow device alone.
    fn on_slow(&self) -> Stop {
        if self.writes_through { self.behind() } else { Stop::Mixed }
    }

    async fn open_middle(&self, disks: &Disks, options: &Options) -> Result<Arc<CachePart>> {
        let (slow, fast) = (disks.open(SLOW).await?, disks.open(FAST).await?);
        Ok(Arc::new(CachePart::open(slow, fast, "slow", options).await?))
    }
}

impl Subject for Tiers {
    type Part = Stacked;
    type Memory = ();

    fn draw(random: &mut Random) -> Self {
        let sectors =
            [pick(random, &[512, 4096]), pick(random, &[512, 4096]), pick(random, &[512, 512, 4096])];
        let block = sectors.iter().copied().max().unwrap_or(4096);
        Tiers {
            slow_bytes: pick(random, &[256 << 10, 512 << 10]),
            fast_bytes: pick(random, &[224 << 10, 256 << 10, 448 << 10]),
            first_bytes: (66 + random.below(400)) * block,
            sectors,
            shards: pick(random, &[1, 1, 2]),
            order: if random.chance(0.2) { Order::None } else { Order::Flushes },
            writes_through: random.chance(0.4),
        }
    }

    fn files(&self) -> Vec<File> {
        vec![
            File { path: "/slow", bytes: self.slow_bytes, sector: self.sectors[SLOW] },
            File { path: "/fast", bytes: self.fast_bytes, sector: self.sectors[FAST] },
            File { path: "/first", bytes: self.first_bytes, sector: self.sectors[FIRST] },
        ]
    }

    fn shards(&self) -> usize {
        self.shards
    }

    async fn open(&self, disks: &Disks, life: &Life) -> Result<Arc<Stacked>> {
        let mut options = self.middle(life);
        // If nothing was lost with the device, an empty one replaces it.
        options.format |= matches!(life.lost, Some(Loss { file: FAST, finds: Finds::Everything, .. }));
        let middle = self.open_middle(disks, &options).await?;
        let first = disks.open(FIRST).await?;
        let cache =
            WriteCachePart::open(middle.clone(), first, write_cache_options(life, self.order)).await?;
        Ok(Arc::new(Stacked::new(Arc::new(cache), vec![middle])))
    }

    fn describe(&self, life: &Life) -> String {
        format!("; {:?}; {:?}", self.middle(life), write_cache_options(life, self.order))
    }

    fn format_leaves(&self) -> Option<Stop> {
        Some(self.on_slow())
    }

    fn closes_durably(&self) -> bool {
        true
    }

    fn is_ordered(&self, life: &Life) -> bool {
        !write_cache_options(life, self.order).cleaner
    }

    /// Writes in the write cache survive. Writes that were written back, or that `cleaner` passed through,
    /// survive in a write-back cache only if they were flushed.
    fn survives_kill(&self, life: &Life) -> bool {
        self.writes_through || !write_cache_options(life, self.order).cleaner
    }

    fn losses(&self, (): &()) -> Vec<Loss> {
        let mut losses = vec![
            Loss {
                file: FIRST,
                change: Change::Zeros,
                finds: Finds::Nothing("no write cache begins here; the origin alone may be an older"),
            },
            Loss { file: FIRST, change: Change::Gone, finds: Finds::Nothing("/first") },
            Loss { file: FAST, change: Change::Gone, finds: Finds::Nothing("/fast") },
        ];
        let finds = match self.writes_through {
            true => Finds::Everything,
            false => Finds::Nothing("expected the cache of \"slow\""),
        };
        losses.extend([Loss { file: FAST, change: Change::Zeros, finds }; 2]);
        losses
    }

    async fn survivors(
        &self,
        disks: &Disks,
        loss: &Loss,
        _stop: Stop,
    ) -> Result<(Arc<dyn DevicePart>, Stop)> {
        if loss.file == FAST {
            return Ok((disks.open(SLOW).await?, self.on_slow()));
        }
        let middle = self.open_middle(disks, &Options::default()).await?;
        Ok((middle, self.behind()))
    }
}

#[test]
fn three_tiers_keep_their_promises_in_simulated_worlds() {
    keeps_its_promises::<Tiers>(4, USUAL_SEEDS);
}
