//! A mirror whose slow leg is behind a write cache on the fast device (`examples/mirror-behind-log.toml`), in
//! simulated worlds: clients, slow disks, power cuts at any time, either device lost; checked against a
//! model. `worlds` explains seeds.
//!
//! ```text
//!            ┌ leg ───────────┐
//! mirror ────┤                ├ the fast device, in two parts
//!            └ writecache ─┬──┘
//!                          └ the slow device
//! ```
//! Without the slow device nothing is lost. Without the fast one, writes that the slow one lacks are lost,
//! and the rest is a state that an earlier power cut could have left, with two exceptions. The slow device is
//! a whole leg only once all initial contents of the mirror have been written back to it; before the first
//! write-back it has its old contents, and holds no mirror. And while the legs may differ after a stop, the
//! slow one is being resynced, and the mirror needs both.
#![allow(clippy::unwrap_used)] // What fails here is the test.

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, DeviceGeometry, DevicePart, Durability, Part,
    Result,
};
use layers::linear::part_of;
use layers::record::replay::ImageDisk;
use mirror::{MirrorPart, Permissions, Plan, Settings};
use runtime::{Random, SimulatedFaults};
use siltstone_tests::stacked::Stacked;
use siltstone_tests::worlds::{
    self, Change, Disks, File, Finds, Life, Loss, Stop, Subject, keeps_its_promises, pick, try_seed,
    write_cache_options,
};
use std::sync::Arc;
use std::time::Duration;
use writecache::{Options, Order, WriteCachePart};

/// As many as take less than twenty seconds on two busy cores.
const USUAL_SEEDS: u64 = 200;
/// Positions in the list of files.
const FAST: usize = 0;
const SLOW: usize = 1;
/// Superblocks and bitmap of a leg, in blocks of 4096 bytes.
const OWN: u64 = 3;

type World<const ORDERED: bool> = worlds::World<Setup<ORDERED>>;

/// Setup, constant over all lives of a seed. Without order it is broken on purpose.
#[derive(Debug, Clone)]
struct Setup<const ORDERED: bool> {
    /// Sizes of the device that clients see, and of the log, in blocks of 4096 bytes.
    blocks: u64,
    log: u64,
    /// Sector size of the slow device, in bytes.
    sector: u64,
    shards: usize,
    chunk: u64,
    bitmap_delay: Duration,
    is_avoided: bool,
    /// Whether the write cache writes everything back at once.
    follows: bool,
}

/// Facts about the legs at the end of a life.
#[derive(Debug, Default)]
struct Legs {
    /// Whether the slow device has had all initial contents of the mirror.
    is_whole: bool,
    /// Whether the legs were equal at some time since the last stop, so that each can be used alone.
    are_equal: bool,
}

impl<const ORDERED: bool> Setup<ORDERED> {
    fn leg(&self) -> u64 {
        self.blocks + OWN
    }

    async fn mirror(&self, legs: Vec<(&str, Arc<dyn DevicePart>)>, format: bool) -> Result<MirrorPart> {
        let settings = Settings {
            write_mostly: if self.is_avoided && legs.len() == 2 { 0b10 } else { 0 },
            write_behind: 0,
            behind_bytes: 1 << 20,
            fast_flush: false,
            bitmap_delay: self.bitmap_delay,
            sync_speed_max: 0,
            first_leg: false,
            timeout: Duration::from_secs(30),
        };
        let plan = Plan {
            settings,
            permissions: Permissions { degraded: legs.len() == 1, rebuild: 0 },
            format,
            bitmap_chunk: format.then_some(self.chunk),
            legs: legs.into_iter().map(|(name, leg)| (name.to_owned(), leg)).collect(),
        };
        MirrorPart::open(plan).await
    }

    fn options(&self, life: &Life) -> Options {
        let order = if ORDERED { Order::Flushes } else { Order::None };
        let mut options = write_cache_options(life, order);
        options.cleaner = false;
        if self.follows {
            (options.high_watermark, options.low_watermark) = (0, 0);
        }
        options
    }

    /// Opens the leg and the log on the fast device.
    async fn fast(&self, disks: &Disks) -> Result<(Arc<dyn DevicePart>, Arc<dyn DevicePart>)> {
        let disk = disks.open(FAST).await?;
        let log = part_of(disk.clone(), BlockRange::new(self.leg() * 8, self.log * 8))?;
        let leg = part_of(disk, BlockRange::new(0, self.leg() * 8))?;
        Ok((Arc::new(leg), Arc::new(log)))
    }
}

impl<const ORDERED: bool> Subject for Setup<ORDERED> {
    type Part = Stacked;
    type Memory = Legs;

    fn draw(random: &mut Random) -> Self {
        Setup {
            blocks: pick(random, &[8, 40, 100]),
            log: 20 + random.below(100) + pick(random, &[50, 400]),
            sector: pick(random, &[512, 4096]),
            shards: pick(random, &[1, 1, 2]),
            chunk: pick(random, &[4096, 16 << 10, 64 << 20]),
            bitmap_delay: Duration::from_micros(pick(random, &[50, 500, 5000])),
            is_avoided: random.chance(0.6),
            follows: random.chance(0.5),
        }
    }

    fn files(&self) -> Vec<File> {
        vec![
            File { path: "/fast", bytes: (self.leg() + self.log) * 4096, sector: 512 },
            File { path: "/slow", bytes: self.leg() * 4096, sector: self.sector },
        ]
    }

    fn shards(&self) -> usize {
        self.shards
    }

    async fn open(&self, disks: &Disks, life: &Life) -> Result<Arc<Stacked>> {
        let (fast, log) = self.fast(disks).await?;
        let slow = disks.open(SLOW).await?;
        let behind = Arc::new(WriteCachePart::open(slow, log, self.options(life)).await?);
        let mirror = self.mirror(vec![("fast", fast), ("behind", behind.clone())], life.format).await?;
        Ok(Arc::new(Stacked::new(Arc::new(mirror), vec![behind])))
    }

    fn describe(&self, life: &Life) -> String {
        format!("; {:?}", self.options(life))
    }

    /// A mirror that is formatted takes the contents of one of its legs, which are arbitrary.
    fn format_leaves(&self) -> Option<Stop> {
        Some(Stop::Unknown)
    }

    fn closes_durably(&self) -> bool {
        true
    }

    /// Disks are slow, and don't fail: `worlds_mirror` tests a mirror with failing disks.
    fn prepare(&self, memory: &mut Legs, life: &mut Life) {
        let random = &mut Random::new(life.seed ^ 0x1E65);
        memory.are_equal = false;
        memory.is_whole &= !life.format;
        life.faults = SimulatedFaults {
            slow: life.faults.slow,
            short: life.faults.short,
            ..SimulatedFaults::default()
        };
        life.rules.iter_mut().for_each(Vec::clear);
        if random.chance(0.5) {
            life.rules[SLOW] = vec!["any delay=0us..2ms probability=0.5".to_owned()];
        }
    }

    fn may_fail(_world: &World<ORDERED>) -> bool {
        false
    }

    fn losses(&self, memory: &Legs) -> Vec<Loss> {
        let mut losses = vec![Loss { file: SLOW, change: Change::Gone, finds: Finds::Nothing("/slow") }];
        if memory.are_equal {
            losses.extend([
                Loss { file: FAST, change: Change::Gone, finds: Finds::Nothing("/fast") },
                Loss {
                    file: FAST,
                    change: Change::Zeros,
                    finds: Finds::Nothing("no write cache begins here; the origin alone may be an older"),
                },
            ]);
        }
        losses
    }

    async fn survivors(&self, disks: &Disks, loss: &Loss, stop: Stop) -> Result<(Arc<dyn DevicePart>, Stop)> {
        let (leg, stop) = match loss.file {
            FAST => (("behind", disks.open(SLOW).await?), Stop::Older),
            _ => (("fast", self.fast(disks).await?.0), stop),
        };
        Ok((Arc::new(self.mirror(vec![leg], false).await?), stop))
    }

    /// The whole device was read, so the slow leg has the same contents, or will have them before anything
    /// else is written. The slow device has older contents, from before the mirror was formatted, until all
    /// of that has been written back once, possibly in a later life than the one that formatted the mirror.
    async fn was_read(world: &World<ORDERED>, part: &Stacked) -> Result<(), String> {
        while part.status().await["chunks_to_copy"] != 0 {
            runtime::sleep(Duration::from_micros(100)).await;
        }
        if !world.memory().is_whole {
            part.below()[0].message("flush").await.map_err(|error| error.to_string())?;
        }
        (world.memory().is_whole, world.memory().are_equal) = (true, true);
        Ok(())
    }
}

#[test]
fn a_mirror_behind_a_log_keeps_its_promises_in_simulated_worlds() {
    keeps_its_promises::<Setup<true>>(3, USUAL_SEEDS);
}

/// Proof that the check can fail: the slow device of a log without order isn't an older state.
#[test]
fn a_log_without_order_is_found_out() {
    let found = (1..=300).find_map(|seed| Some((seed, try_seed::<Setup<false>>(seed, false).err()?)));
    let (seed, broken) = found.expect("a defect that no seed of 300 finds");
    println!("seed {seed}: {broken}");
    assert!(broken.contains("Older"), "{broken}");
}

/// The first life ends before anything is written back, and the fast device is lost after the second one.
#[test]
fn a_mirror_whose_first_life_was_cut_short_is_written_back_in_the_next() {
    try_seed::<Setup<true>>(20144, false).unwrap_or_else(|broken| panic!("{broken}"));
}

/// Waits until all legs are equal.
async fn copied(part: &MirrorPart) {
    while part.status().await["chunks_to_copy"] != 0 {
        runtime::sleep(Duration::from_millis(1)).await;
    }
}

/// After the first write-back it holds the mirror, with all data that was flushed before.
#[test]
fn the_slow_device_is_as_it_was_until_the_first_write_back() {
    let main = || async {
        let random = &mut Random::new(1);
        let setup = Setup::<true> { blocks: 40, chunk: 4096, is_avoided: true, ..Setup::draw(random) };
        let disk = |blocks| {
            Arc::new(ImageDisk::empty(DeviceGeometry {
                block_size: BlockSize::default(),
                blocks: BlockCount(blocks),
                atomic_write: 512,
                volatile_cache: true,
                read_only: false,
            }))
        };
        let (fast, log, slow) = (disk(setup.leg()), disk(400), disk(setup.leg()));
        // Nothing is written back before the cache is full or flushed by a message.
        let options = Options { format: true, high_watermark: 100, low_watermark: 100, ..Options::default() };
        let behind = Arc::new(WriteCachePart::open(slow.clone(), log, options).await.unwrap());
        let part = setup.mirror(vec![("fast", fast), ("behind", behind.clone())], true).await.unwrap();
        copied(&part).await;
        let device = part.open().await.unwrap();
        for block in 0..setup.blocks {
            let data = Buffer::copy_of(&[1 + block as u8; 4096]);
            device.write(BlockIndex(block), data.into(), Durability::Visible).await.unwrap();
        }
        device.flush().await.unwrap();
        let contents = async |part: &dyn DevicePart, blocks: u64| {
            let device = part.open().await.unwrap();
            let (outcome, buffer) = device.read(BlockIndex(0), Buffer::new(blocks as usize * 4096)).await;
            outcome.map(|()| buffer.filled().to_vec()).unwrap()
        };
        assert!(contents(&*slow, setup.leg()).await.iter().all(|byte| *byte == 0), "it is as it was");
        let alone = setup.mirror(vec![("behind", slow.clone())], false).await.err().unwrap();
        assert!(alone.to_string().contains("holds nothing but zeros"), "{alone}");
        behind.message("flush").await.unwrap();
        let alone = setup.mirror(vec![("behind", slow)], false).await.unwrap();
        assert!(contents(&alone, setup.blocks).await == contents(&part, setup.blocks).await);
    };
    runtime::simulate(runtime::Simulation::new(1), main).unwrap();
}
