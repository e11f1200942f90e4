//! The cache in simulated worlds: small caches in all modes, clients, an operator who keeps changing the
//! mode, faults on either device, power cuts at any time, the fast device lost or its table damaged; checked
//! against a model. `worlds` explains seeds.

use block::{DevicePart, Error, Part, Result};
use cache::{CachePart, Mode, Options};
use runtime::Random;
use siltstone_tests::worlds::{
    self, Change, Disks, File, Finds, Life, Loss, Stop, Subject, cache_options, keeps_its_promises, pick,
    try_seed,
};
use std::sync::Arc;
use std::time::Duration;

/// As many as take less than twenty seconds on two busy cores.
const USUAL_SEEDS: u64 = 300;
/// Positions in the list of files.
const SLOW: usize = 0;
const FAST: usize = 1;
/// Modes that an operator sets.
const MODES: [Mode; 4] = [Mode::Writeback, Mode::Writeback, Mode::Writethrough, Mode::Passthrough];

type World = worlds::World<Setup>;

/// Setup of a cache, constant over all lives of a seed.
#[derive(Debug, Clone)]
struct Setup {
    slow_bytes: u64,
    fast_bytes: u64,
    slow_block: u64,
    fast_block: u64,
    cache_block: u64,
    shards: usize,
    /// Whether the cache never has data that the origin lacks.
    writes_through: bool,
    /// Whether messages are sent meanwhile.
    is_operated: bool,
}

impl Setup {
    /// Options, which differ from life to life.
    fn options(&self, life: &Life) -> Options {
        cache_options(life, if self.writes_through { &MODES[2..] } else { &MODES }, self.cache_block)
    }

    /// State of the origin alone after such a stop.
    fn without_cache(&self, stop: Stop) -> Stop {
        if self.writes_through { stop } else { Stop::Mixed }
    }

    /// Two superblocks and the journal. The bytes after them can be data as well, for which no loss is
    /// modelled.
    fn table_bytes(&self) -> u64 {
        18 * self.fast_block.max(self.slow_block).max(4096)
    }
}

impl Subject for Setup {
    type Part = CachePart;
    type Memory = ();

    fn draw(random: &mut Random) -> Self {
        Setup {
            slow_bytes: pick(random, &[256 << 10, 512 << 10, (640 << 10) + 4096]),
            fast_bytes: pick(random, &[224 << 10, 256 << 10, 448 << 10, 1 << 20]),
            slow_block: pick(random, &[512, 4096]),
            fast_block: pick(random, &[512, 4096]),
            cache_block: pick(random, &[32 << 10, 32 << 10, 64 << 10, 96 << 10]),
            shards: pick(random, &[1, 1, 2]),
            writes_through: random.chance(0.3),
            is_operated: random.chance(0.4),
        }
    }

    fn files(&self) -> Vec<File> {
        vec![
            File { path: "/slow", bytes: self.slow_bytes, sector: self.slow_block },
            File { path: "/fast", bytes: self.fast_bytes, sector: self.fast_block },
        ]
    }

    fn shards(&self) -> usize {
        self.shards
    }

    async fn open(&self, disks: &Disks, life: &Life) -> Result<Arc<CachePart>> {
        let (slow, fast) = (disks.open(SLOW).await?, disks.open(FAST).await?);
        let mut options = self.options(life);
        // If nothing was lost with the device, an empty one replaces it.
        options.format |= life.lost.is_some_and(|loss| loss.finds == Finds::Everything);
        Ok(Arc::new(CachePart::open(slow, fast, "slow", &options).await?))
    }

    fn describe(&self, life: &Life) -> String {
        format!("; {:?}", self.options(life))
    }

    fn format_leaves(&self) -> Option<Stop> {
        Some(self.without_cache(Stop::Orderly))
    }

    fn closes_durably(&self) -> bool {
        true
    }

    fn survives_kill(&self, _life: &Life) -> bool {
        // The table of blocks that only the cache has is updated lazily.
        self.writes_through
    }

    fn longest(&self) -> u64 {
        (200 << 10) / self.slow_block.max(self.fast_block)
    }

    fn more_reads(&self) -> u64 {
        20
    }

    fn losses(&self, (): &()) -> Vec<Loss> {
        let fast = |change, finds| Loss { file: FAST, change, finds };
        let rots = |places| {
            let change = Change::Rots { places, below: self.table_bytes() };
            fast(change, Finds::ErrorOrTruth(self.without_cache(Stop::PowerCut)))
        };
        let mut losses = vec![
            fast(Change::Zeros, Finds::Nothing("expected the cache of \"slow\"")),
            fast(Change::Gone, Finds::Nothing("/fast")),
            fast(Change::Fails, Finds::Nothing("the fast device")),
            rots(1),
            rots(4),
            rots(64),
        ];
        if self.writes_through {
            losses.extend([fast(Change::Zeros, Finds::Everything); 4]);
        }
        losses
    }

    async fn survivors(
        &self,
        disks: &Disks,
        _loss: &Loss,
        stop: Stop,
    ) -> Result<(Arc<dyn DevicePart>, Stop)> {
        Ok((disks.open(SLOW).await?, self.without_cache(stop)))
    }

    fn is_operated(&self) -> bool {
        true
    }

    async fn meanwhile(world: Arc<World>, part: Arc<CachePart>) -> Result<(), String> {
        let warms = world.life.seed.is_multiple_of(2);
        let warming = warms.then(|| runtime::spawn(warm(world.clone(), part.clone())));
        if world.subject.is_operated {
            operate(world, part).await?;
        }
        match warming {
            Some(warming) => warming.await,
            None => Ok(()),
        }
    }
}

/// Promotes and evicts blocks all the time.
async fn warm(world: Arc<World>, part: Arc<CachePart>) -> Result<(), String> {
    let mut random = Random::new(world.life.seed ^ 0x3A3A);
    let bytes = part.status().await["bytes"].as_u64().unwrap();
    for _ in 0..20 {
        runtime::sleep(Duration::from_nanos(random.below(400_000))).await;
        let verb = pick(&mut random, &["fetch", "fetch", "fetch", "heat", "evict"]);
        let mut message = format!("warm {verb}");
        let mut wanted = 0;
        for _ in 0..1 + random.below(4) {
            if verb != "evict" {
                let queue = if random.chance(0.5) { "main" } else { "small" };
                message.push_str(&format!(" {queue}/{}/{}", random.below(4), random.below(33)));
            }
            let length = 1 + random.below(bytes / 2);
            message.push_str(&format!(" {}+{length}", random.below(bytes + 1000)));
            wanted += length;
        }
        let answer = match part.message(&message).await {
            Ok(answer) => answer,
            // The cache may be detached, or in passthrough, at the moment.
            Err(Error::Invalid(text)) if text.contains("the cache admits no blocks") => continue,
            Err(error) => {
                world.judge(&message, error, false)?;
                continue;
            }
        };
        let answer: serde_json::Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
        let is_known = answer["failed"].as_u64().is_none_or(|failed| failed == 0) || world.life.may_fail();
        // The origin is so small that one step covers all of it.
        if answer["done"] != wanted || !is_known {
            return Err(format!("{message}: {answer}"));
        }
        let listed = part.message("warm list 0 1000").await.map_err(|error| error.to_string())?;
        serde_json::from_str::<serde_json::Value>(&listed).map_err(|error| format!("{listed}: {error}"))?;
    }
    Ok(())
}

/// Sends messages until the clients have begun all their operations.
async fn operate(world: Arc<World>, part: Arc<CachePart>) -> Result<(), String> {
    let mut random = Random::new(world.life.seed ^ 0xABCD);
    let slots = part.status().await["total_blocks"].as_u64().unwrap();
    while !world.is_over() {
        let longest = 1 << (15 + random.below(7));
        runtime::sleep(Duration::from_nanos(random.below(longest))).await;
        let message = match random.below(7) {
            0 => "detach".to_owned(),
            1 | 2 => "cancel".to_owned(),
            3 => {
                let modes = if world.subject.writes_through { &MODES[2..] } else { &MODES };
                format!("mode {}", pick(&mut random, modes).name())
            }
            4 => format!("invalidate {}", random.below(slots)),
            5 => format!("sequential_threshold {}", pick(&mut random, &[0, 16 << 10, 4 << 20])),
            _ => format!("migration_threshold {}", random.below(1000)),
        };
        if let Err(error) = part.message(&message).await {
            world.judge(&message, error, false)?;
        }
    }
    part.message("cancel").await.map_err(|error| error.to_string()).map(drop)
}

/// The table has failed, and the mode is writeback for a while and then another: a flush covers data that
/// only the cache has.
#[test]
fn what_was_written_to_a_cache_that_failed_is_no_durable_write() {
    try_seed::<Setup>(564, false).unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn a_cache_keeps_its_promises_in_simulated_worlds() {
    keeps_its_promises::<Setup>(4, USUAL_SEEDS);
}

/// The newer superblock is damaged, and the older one differs: blocks would be read as others, or as older
/// versions.
#[test]
fn an_older_superblock_is_not_taken_for_the_newest() {
    for seed in [1229, 1593, 1598] {
        try_seed::<Setup>(seed, false).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

/// Two writes to different bytes of one part: one fails, and the other one is acknowledged.
#[test]
fn a_write_that_fails_takes_no_other_with_it() {
    try_seed::<Setup>(14848, false).unwrap_or_else(|broken| panic!("{broken}"));
}
