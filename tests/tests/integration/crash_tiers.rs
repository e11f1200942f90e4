//! The crash oracle on three tiers, and on RAID10 below the same two caches: power cuts of all devices at
//! once, also with devices lost in the cut. All devices are parts of one disk, so that every cut is a cut of
//! all of them.
//!
//! ```text
//! writecache ─┬ first
//!             └ cache ─┬ fast
//!                      └ slow: a disk, or a stripe of two mirrors
//! ```
//! Tests the promises in the head of `examples/raid10.toml`: without `fast`, nothing is lost if the cache
//! writes through; without `first`, writes that were not written back are lost, and the rest is an older
//! state; without one leg of each mirror, nothing is lost.

use block::{BlockCount, BlockRange, BlockSize, DeviceGeometry, DevicePart, Part, Result, Status};
use cache::{self, CachePart, Mode};
use layers::linear::part_of;
use layers::record::replay::ImageDisk;
use layers::record::replay::Search;
use layers::stripe::stripe;
use mirror::{MirrorPart, Permissions, Plan, Settings};
use siltstone_tests::oracle::{Opening, Oracle, Report, Violation, in_simulation, seed};
use siltstone_tests::stacked::Stacked;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use writecache::{self, Order, WriteCachePart};

/// Blocks of the slow disk, or of the stripe over the mirrors.
const SLOW: u64 = 32;
/// Blocks of a leg: two superblocks, a page of the bitmap, and its half of the data.
const LEG: u64 = 3 + SLOW / 2;
/// Blocks of the cache's device: superblocks and journal, the head of a chunk, and 16 blocks of data.
const FAST: u64 = 24 + 8 + 16;
/// Blocks of the write cache's device.
const FIRST: u64 = 66;

/// Device below both caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slow {
    Disk,
    Raid10,
}

/// Devices that are lost in the cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    Nothing,
    /// The write cache's device: the cache below is read without it.
    First,
    /// The device of the cache in the middle; a new one takes its place.
    Fast,
    /// The device of the cache in the middle; the stack continues without that cache.
    FastForGood,
    /// The devices of both caches: the slow disk is read alone.
    Both,
    /// These legs, one of each mirror.
    Legs([usize; 2]),
}

#[derive(Debug, Clone)]
struct Setup {
    slow: Slow,
    mode: Mode,
    order: Order,
    lost: Lost,
}

impl Setup {
    fn blocks(&self) -> u64 {
        FAST + FIRST
            + match self.slow {
                Slow::Disk => SLOW,
                Slow::Raid10 => 4 * LEG,
            }
    }
}

/// The disk, from which one device after the other is cut off.
struct Whole {
    disk: Arc<dyn DevicePart>,
    used: u64,
}

impl Whole {
    fn part(&mut self, blocks: u64) -> Result<Arc<dyn DevicePart>> {
        let range = BlockRange::new(self.used, blocks);
        self.used += blocks;
        Ok(Arc::new(part_of(self.disk.clone(), range)?))
    }
}

/// An empty device, as the replacement for a lost one.
fn new_one(blocks: u64) -> Arc<dyn DevicePart> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(blocks),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }))
}

/// Two mirrors of two legs each. Returns the stripe, and the mirrors that must be closed.
async fn raid10(
    whole: &mut Whole,
    format: bool,
    lost: Lost,
) -> Result<(Arc<dyn DevicePart>, Vec<Arc<dyn Part>>)> {
    let mut mirrors: Vec<Arc<dyn DevicePart>> = Vec::new();
    for mirror in 0..2 {
        let mut legs = Vec::new();
        for number in 0..2 {
            let leg = whole.part(LEG)?;
            if !matches!(lost, Lost::Legs(lost) if lost[mirror] == number) {
                legs.push((format!("leg {number}"), leg));
            }
        }
        let settings = Settings {
            write_mostly: 0,
            write_behind: 0,
            behind_bytes: 1 << 20,
            fast_flush: false,
            bitmap_delay: Duration::from_millis(2),
            sync_speed_max: 0,
            first_leg: false,
            timeout: Duration::from_secs(30),
        };
        let permissions = Permissions { degraded: legs.len() < 2, rebuild: 0 };
        let plan = Plan { legs, settings, permissions, format, bitmap_chunk: format.then_some(16 << 10) };
        mirrors.push(Arc::new(MirrorPart::open(plan).await?));
    }
    let below = mirrors.iter().map(|mirror| mirror.clone() as Arc<dyn Part>).collect();
    Ok((Arc::new(stripe(mirrors, 16 << 10)?), below))
}

/// Opens the devices that are left. Also returns the cache in the middle, if there is one.
async fn open(
    disk: Arc<dyn DevicePart>,
    opening: Opening,
    setup: &Setup,
) -> Result<(Arc<dyn DevicePart>, Option<Arc<CachePart>>)> {
    let format = opening == Opening::Format;
    let lost = if format { Lost::Nothing } else { setup.lost };
    let whole = &mut Whole { disk, used: 0 };
    let (slow, mut below) = match setup.slow {
        Slow::Disk => (whole.part(SLOW)?, Vec::new()),
        Slow::Raid10 => raid10(whole, format, lost).await?,
    };
    let (fast, first) = (whole.part(FAST)?, whole.part(FIRST)?);
    let mut top = slow.clone();
    let mut middle = None;
    if !matches!(lost, Lost::FastForGood | Lost::Both) {
        let is_new = format || lost == Lost::Fast;
        let options = cache::Options {
            format: is_new,
            mode: setup.mode,
            block_size: 32 << 10,
            settle_every: Duration::from_micros(300),
            checks_origin: false,
            ..cache::Options::default()
        };
        let fast = if lost == Lost::Fast { new_one(FAST) } else { fast };
        let cache = Arc::new(CachePart::open(slow, fast, "slow", &options).await?);
        top = cache.clone();
        middle = Some(cache);
    }
    if !matches!(lost, Lost::First | Lost::Both) {
        let mut options = writecache::Options {
            format,
            high_watermark: 40,
            low_watermark: 20,
            batch: 32 << 10,
            ..writecache::Options::default()
        };
        options.settings.order = setup.order;
        top = Arc::new(WriteCachePart::open(top, first, options).await?);
        below.splice(0..0, middle.iter().map(|cache| cache.clone() as Arc<dyn Part>));
    }
    Ok((Arc::new(Stacked::new(top, below)), middle))
}

/// Promotes blocks into the cache in the middle, and evicts blocks, until it is closed.
fn warm(part: &Arc<CachePart>) {
    let part = Arc::downgrade(part);
    runtime::spawn(async move {
        let mut random = runtime::Random::new(77);
        loop {
            runtime::sleep(Duration::from_micros(random.below(600))).await;
            let Some(part) = part.upgrade() else { return };
            let verb = ["fetch main/1/0", "fetch small/1/0", "evict"][random.below(3) as usize];
            let from = random.below(SLOW * 4096);
            let message = format!("warm {verb} {from}+{}", 1 + random.below(SLOW * 4096 - from));
            if part.message(&message).await.is_err() {
                return;
            }
        }
    })
    .detach();
}

fn run(
    name: &str,
    usual_seed: u64,
    setup: &Setup,
    change: impl FnOnce(&mut Oracle),
) -> (Result<Report, Box<Violation>>, Status) {
    let mut oracle = Oracle::new(seed(name, usual_seed));
    oracle.disk.blocks = BlockCount(setup.blocks());
    change(&mut oracle);
    let setup = setup.clone();
    let seed = oracle.seed;
    let main = move || async move {
        let middle: RefCell<Option<Arc<CachePart>>> = RefCell::default();
        let opening = async |disk, opening| {
            let (top, cache) = open(disk, opening, &setup).await?;
            if opening == Opening::Format {
                cache.iter().for_each(warm);
                *middle.borrow_mut() = cache;
            }
            Ok(top)
        };
        let report = oracle.run(opening).await;
        let status = match middle.take() {
            Some(part) => part.status().await,
            None => Status::default(),
        };
        (report, status)
    };
    in_simulation(seed, main)
}

fn holds(name: &str, usual_seed: u64, setup: Setup, change: impl FnOnce(&mut Oracle)) -> Report {
    let (report, status) = run(name, usual_seed, &setup, |oracle| {
        change(oracle);
        oracle.limit(1);
    });
    let report = report.unwrap_or_else(|violation| panic!("{name}, {setup:?}: {violation}"));
    let count = |name: &str| status[name].as_u64().expect("it is a number");
    let (brought_in, write_backs) = (count("prefetched_bytes"), count("write_backs"));
    println!("{name}: {report:?}; {brought_in} bytes brought in, {write_backs} blocks written back");
    assert!(report.states > 700, "{name}: only {} states", report.states);
    assert!(brought_in > 0, "{name}: the cache in the middle never held anything: {status:?}");
    assert!(setup.mode != Mode::Writeback || write_backs > 0, "{name}: nothing was dirty there: {status:?}");
    report
}

fn is_caught(name: &str, usual_seed: u64, setup: Setup, change: impl FnOnce(&mut Oracle)) {
    let (report, _) = run(name, usual_seed, &setup, |oracle| {
        oracle.search = Search::brief(oracle.seed);
        change(oracle);
    });
    println!("{name}: {}", report.expect_err("a loss is noticed"));
}

fn tiers(mode: Mode, lost: Lost) -> Setup {
    Setup { slow: Slow::Disk, mode, order: Order::Flushes, lost }
}

/// A run on RAID10 takes longer because of its four disks, so it has fewer operations.
fn raid(mode: Mode, lost: Lost) -> (Setup, fn(&mut Oracle)) {
    let setup = Setup { slow: Slow::Raid10, ..tiers(mode, lost) };
    (setup, |oracle| {
        oracle.workload.operations = 50;
        (oracle.search.single, oracle.search.subsets) = (2, 1);
        (oracle.search.torn, oracle.search.scattered) = (1, 1);
    })
}

fn usual(oracle: &mut Oracle) {
    oracle.workload.operations = 70;
}

#[test]
fn all_three_tiers_are_there() {
    for (number, mode) in [Mode::Writeback, Mode::Writethrough].into_iter().enumerate() {
        holds(&format!("tiers, {mode:?}"), 501 + number as u64, tiers(mode, Lost::Nothing), |oracle| {
            usual(oracle);
            oracle.prefix = true;
            oracle.workload.discards_all = number == 1;
        });
    }
}

/// Recoveries that are cut in turn.
#[test]
fn cuts_during_a_recovery_of_three_tiers() {
    for (number, mode) in [Mode::Writeback, Mode::Writethrough].into_iter().enumerate() {
        let name = format!("tiers, recoveries, {mode:?}");
        let report = holds(&name, 505 + number as u64, tiers(mode, Lost::Nothing), |oracle| {
            oracle.workload.operations = 50;
            oracle.prefix = true;
            oracle.again_every = 199;
        });
        assert!(
            report.recoveries > 150 || !report.is_whole(),
            "only {} states of recoveries were tried",
            report.recoveries
        );
    }
}

/// Writes that were not written back are lost, and the rest is a state that an earlier power cut could have
/// left: on the two devices that are left, and on the slow disk alone if the cache in the middle writes
/// through.
#[test]
fn without_the_write_cache_it_is_an_older_state() {
    let cases = [
        (Mode::Writeback, Lost::First, 4),
        (Mode::Writethrough, Lost::First, 1),
        (Mode::Writethrough, Lost::Both, 4),
        (Mode::Writethrough, Lost::Both, 16),
    ];
    for (number, (mode, lost, depth)) in cases.into_iter().enumerate() {
        let name = format!("tiers, {mode:?}, {lost:?} lost, {depth} in flight");
        holds(&name, 510 + number as u64, tiers(mode, lost), |oracle| {
            usual(oracle);
            oracle.older = true;
            oracle.workload.queue_depth = depth;
        });
    }
}

/// Nothing is lost with a cache that writes through.
#[test]
fn without_the_cache_in_the_middle_nothing_is_lost() {
    for (number, lost) in [Lost::Fast, Lost::FastForGood].into_iter().enumerate() {
        let name = format!("tiers, {lost:?} lost");
        holds(&name, 520 + number as u64, tiers(Mode::Writethrough, lost), |oracle| {
            usual(oracle);
            oracle.prefix = true;
        });
    }
}

#[test]
fn raid10_under_two_caches() {
    for (number, mode) in [Mode::Writeback, Mode::Writethrough].into_iter().enumerate() {
        let (setup, change) = raid(mode, Lost::Nothing);
        holds(&format!("RAID10, {mode:?}"), 530 + number as u64, setup, |oracle| {
            change(oracle);
            oracle.prefix = true;
        });
    }
}

#[test]
fn raid10_without_a_leg_of_each_mirror() {
    for (number, legs) in [[0, 1], [1, 0]].into_iter().enumerate() {
        let (setup, change) = raid(Mode::Writethrough, Lost::Legs(legs));
        holds(&format!("RAID10, legs {legs:?} lost"), 540 + number as u64, setup, |oracle| {
            change(oracle);
            oracle.prefix = true;
        });
    }
}

#[test]
fn raid10_without_a_cache() {
    let cases = [(Lost::Fast, false), (Lost::First, true), (Lost::Both, true)];
    for (number, (lost, is_older)) in cases.into_iter().enumerate() {
        let (setup, change) = raid(Mode::Writethrough, lost);
        holds(&format!("RAID10, {lost:?} lost"), 550 + number as u64, setup, |oracle| {
            change(oracle);
            (oracle.prefix, oracle.older) = (!is_older, is_older);
        });
    }
}

/// Proof that the check can fail: a write-back cache loses its dirty blocks as well.
#[test]
fn a_cache_that_is_not_written_through_is_missed() {
    is_caught("tiers, fast lost", 560, tiers(Mode::Writeback, Lost::Fast), |_| {});
    is_caught("tiers, fast lost for good", 561, tiers(Mode::Writeback, Lost::FastForGood), |_| {});
    is_caught("tiers, both lost", 562, tiers(Mode::Writeback, Lost::Both), |oracle| oracle.older = true);
    let (setup, _) = raid(Mode::Writeback, Lost::Fast);
    is_caught("RAID10, fast lost", 563, setup, |_| {});
}

/// Without order, the rest isn't an older state.
#[test]
fn without_order_it_is_no_older_state() {
    let setup = Setup { order: Order::None, ..tiers(Mode::Writethrough, Lost::First) };
    is_caught("tiers without order", 570, setup, |oracle| oracle.older = true);
    let (setup, _) = raid(Mode::Writethrough, Lost::Both);
    let setup = Setup { order: Order::None, ..setup };
    is_caught("RAID10 without order", 571, setup, |oracle| oracle.older = true);
}
