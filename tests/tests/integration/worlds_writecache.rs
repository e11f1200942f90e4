//! The write cache in simulated worlds: small caches of all kinds, clients, messages, faults on either
//! device, power cuts at any time, the cache lost or damaged; checked against a model. `worlds` explains
//! seeds.

use block::{BlockRange, Device, DevicePart, Error, ExtentState, Part, Result};
use runtime::Random;
use siltstone_tests::worlds::{
    self, Change, Disks, File, Finds, Life, Loss, Model, Stop, Subject, keeps_its_promises, pick,
    units_per_block, write_cache_options,
};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use writecache::{Options, Order, WriteCachePart};

/// As many as take less than half a minute on two quiet cores.
const USUAL_SEEDS: u64 = 500;
/// Positions in the list of files.
const ORIGIN: usize = 0;
const CACHE: usize = 1;

type World = worlds::World<Setup>;

/// Setup of a cache, constant over all lives of a seed.
#[derive(Debug, Clone)]
struct Setup {
    origin_bytes: u64,
    cache_bytes: u64,
    origin_sector: u64,
    cache_sector: u64,
    shards: usize,
    order: Order,
    /// Whether messages are sent meanwhile.
    is_operated: bool,
}

/// Facts about an open cache.
#[derive(Debug, Default)]
struct Asked {
    /// Whether everything is written back before it is closed.
    flushes_on_suspend: bool,
}

impl Setup {
    /// State of the origin alone.
    fn behind(&self) -> Stop {
        match self.order {
            Order::Flushes => Stop::Older,
            Order::None => Stop::Mixed,
        }
    }

    /// Options, which differ from life to life.
    fn options(&self, life: &Life) -> Options {
        write_cache_options(life, self.order)
    }
}

impl Subject for Setup {
    type Part = WriteCachePart;
    type Memory = Asked;

    fn draw(random: &mut Random) -> Self {
        let (origin_sector, cache_sector) = (pick(random, &[512, 4096]), pick(random, &[512, 512, 4096]));
        let block = origin_sector.max(cache_sector);
        let most = pick(random, &[4, 100, 400]);
        let order = if random.chance(0.3) { Order::None } else { Order::Flushes };
        Setup {
            origin_bytes: (8 + random.below(100)) * 4096,
            cache_bytes: (66 + random.below(most)) * block,
            origin_sector,
            cache_sector,
            shards: pick(random, &[1, 1, 2]),
            order,
            is_operated: random.chance(0.4),
        }
    }

    fn files(&self) -> Vec<File> {
        vec![
            File { path: "/origin", bytes: self.origin_bytes, sector: self.origin_sector },
            File { path: "/cache", bytes: self.cache_bytes, sector: self.cache_sector },
        ]
    }

    fn shards(&self) -> usize {
        self.shards
    }

    async fn open(&self, disks: &Disks, life: &Life) -> Result<Arc<WriteCachePart>> {
        let (origin, cache) = (disks.open(ORIGIN).await?, disks.open(CACHE).await?);
        Ok(Arc::new(WriteCachePart::open(origin, cache, self.options(life)).await?))
    }

    fn describe(&self, life: &Life) -> String {
        format!("; {:?}", self.options(life))
    }

    fn format_leaves(&self) -> Option<Stop> {
        Some(self.behind())
    }

    fn closes_durably(&self) -> bool {
        true
    }

    fn is_ordered(&self, life: &Life) -> bool {
        !self.options(life).cleaner
    }

    fn losses(&self, _memory: &Asked) -> Vec<Loss> {
        let cache = |change, finds| Loss { file: CACHE, change, finds };
        let rots =
            |places| cache(Change::Rots { places, below: u64::MAX }, Finds::ErrorOrTruth(self.behind()));
        vec![
            cache(
                Change::Zeros,
                Finds::Nothing("no write cache begins here; the origin alone may be an older"),
            ),
            cache(Change::Gone, Finds::Nothing("/cache")),
            cache(Change::Fails, Finds::Nothing("write cache")),
            rots(1),
            rots(4),
            rots(64),
        ]
    }

    async fn survivors(
        &self,
        disks: &Disks,
        _loss: &Loss,
        _stop: Stop,
    ) -> Result<(Arc<dyn DevicePart>, Stop)> {
        Ok((disks.open(ORIGIN).await?, self.behind()))
    }

    /// Older versions are written back to the origin before newer ones.
    async fn search(part: &WriteCachePart) -> Result<()> {
        part.message("flush").await.map(drop)
    }

    fn is_operated(&self) -> bool {
        self.is_operated
    }

    async fn opened(world: &World, _part: &WriteCachePart) -> Result<(), String> {
        *world.memory() = Asked::default();
        Ok(())
    }

    fn meanwhile(
        world: Arc<World>,
        part: Arc<WriteCachePart>,
    ) -> impl Future<Output = Result<(), String>> + 'static {
        operate(world, part)
    }

    async fn closed(world: &World, _part: &WriteCachePart) {
        if world.memory().flushes_on_suspend {
            world.model(|model| {
                let now = model.begin();
                model.arrived(now);
            });
        }
    }
}

/// Sends messages until the clients have begun all their operations.
async fn operate(world: Arc<World>, part: Arc<WriteCachePart>) -> Result<(), String> {
    let mut random = Random::new(world.life.seed ^ 0x0B5E);
    let device = part.open().await.map_err(|error| error.to_string())?;
    while !world.is_over() {
        let longest = 1 << (15 + random.below(7));
        runtime::sleep(Duration::from_nanos(random.below(longest))).await;
        match random.below(100) {
            0..50 => flush(&world, &part, &mut random).await?,
            50..70 => check_extents(&world, &*device, &mut random).await?,
            70..76 => {
                part.message("flush_on_suspend").await.map_err(|error| error.to_string())?;
                world.memory().flushes_on_suspend = true;
            }
            76..80 => {
                // Writes that bypass the cache have no order.
                world.model(|model| model.set_ordered(false));
                part.message("cleaner").await.map_err(|error| error.to_string())?;
            }
            80..90 => match part.message("flood").await {
                Err(Error::Unsupported(_)) => {}
                other => return Err(format!("a message that it can't know: {other:?}")),
            },
            _ => {
                part.message("clear_stats").await.map_err(|error| error.to_string())?;
                let status = part.status().await;
                let (free, all) = (status["free_blocks"].as_u64(), status["blocks"].as_u64());
                if free > all || status["cached_blocks"].as_u64() > all {
                    return Err(format!("it says more than can be: {status:?}"));
                }
            }
        }
    }
    Ok(())
}

async fn flush(world: &World, part: &WriteCachePart, random: &mut Random) -> Result<(), String> {
    let began = world.model(Model::begin);
    let patience = random.below(3_000_000) + if random.chance(0.8) { 1 << 40 } else { 0 };
    match runtime::timeout(Duration::from_nanos(patience), part.message("flush")).await {
        Ok(Ok(_)) => world.model(|model| {
            model.flushed(began);
            model.arrived(began);
            Ok(())
        }),
        Ok(Err(error)) => world.judge("the message flush", error, false),
        Err(_) => Ok(()),
    }
}

/// Checks that extents which are reported as zeros read as zeros.
async fn check_extents(world: &World, device: &dyn Device, random: &mut Random) -> Result<(), String> {
    let (blocks, per_block) = (device.geometry().blocks.0, units_per_block(device.geometry()));
    let start = random.below(blocks);
    let range = BlockRange::new(start, blocks - start);
    let began = world.model(Model::begin);
    let extents = match device.extents(range).await {
        Ok(extents) => extents,
        Err(error) => return world.judge("extents", error, false),
    };
    let mut next = start;
    for extent in extents {
        if extent.range.start.0 != next || extent.range.is_empty() {
            return Err(format!("an extent at {:?}, expected at {next}", extent.range));
        }
        next += extent.range.count.0;
        if extent.state == ExtentState::Data {
            continue;
        }
        for unit in extent.range.start.0 * per_block..next * per_block {
            world
                .model(|model| model.check_read(unit, 0, began))
                .map_err(|broken| format!("it is said to be zeros: {broken}"))?;
        }
    }
    if next == start { Err("no extents at all".to_owned()) } else { Ok(()) }
}

#[test]
fn a_write_cache_keeps_its_promises_in_simulated_worlds() {
    keeps_its_promises::<Setup>(4, USUAL_SEEDS);
}
