//! The whole log in simulated worlds: several clients, cleaning, checkpoints, faults, power cuts at any time (also while it
//! is opened, formatted or closed), checked against a model.
//!
//! A seed decides everything. `SILTSTONE_SEED=7` begins there, `SILTSTONE_SEEDS=10000` tries so many; a failure names its
//! seed, which repeats exactly: `SILTSTONE_SEED=7 SILTSTONE_SEEDS=1`.
#![allow(clippy::unwrap_used)] // What fails here is the test.

#[path = "simulated/model.rs"]
mod model;
#[path = "simulated/operator.rs"]
mod operator;

use block::{BlockIndex, BlockRange, Buffer, Data, Device, DevicePart, Durability, Error, Part, ZeroMode};
use layers::fault::{FaultDevicePart, parse_rules};
use log::core::Acknowledge;
use log::kind::{Options, open};
use model::{Model, Stop, Version};
use operator::{Operated, check_versions, operate};
use runtime::{Random, ShardIndex, SimulatedFaults, Simulation};
use stack::{Registry, Stack};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// As many as take about a minute on two quiet cores.
const USUAL_SEEDS: u64 = 1500;
const BLOCK: usize = 4096;
/// The class of zones with checkpoints, whose blocks no map has.
const CHECKPOINT_CLASS: u8 = 0xFF;

type Files = Vec<(PathBuf, Vec<u8>)>;

/// A block's contents: which block it is and which write made it, all over.
fn stamp(block: u64, version: Version, bytes: &mut [u8]) {
    for word in bytes.as_chunks_mut::<16>().0 {
        word[..8].copy_from_slice(&(block ^ 0x5117).to_le_bytes());
        word[8..].copy_from_slice(&version.to_le_bytes());
    }
}

fn stamped(block: u64, count: u64, version: Version) -> Data {
    let mut buffer = Buffer::zeroed(count as usize * BLOCK);
    for (bytes, block) in buffer.filled_mut().chunks_exact_mut(BLOCK).zip(block..) {
        stamp(block, version, bytes);
    }
    buffer.freeze()
}

fn version_of(block: u64, bytes: &[u8]) -> Result<Version, String> {
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    let mut expected = vec![0; BLOCK];
    if version != 0 {
        stamp(block, version, &mut expected);
    }
    match bytes == expected {
        true => Ok(version),
        false => Err(format!("block {block} is torn, damaged, or another block's: {:?}", &bytes[..16])),
    }
}

/// What stays the same over all lives of a log.
#[derive(Debug, Clone)]
struct Setup {
    disk_bytes: u64,
    sector: u64,
    options: Options,
    shards: usize,
    is_thin: bool,
    /// Snapshots and clones are made, written and deleted meanwhile, and the volume grows.
    is_operated: bool,
}

impl Setup {
    fn draw(random: &mut Random) -> Setup {
        let mut pick = |from: &[u64]| from[random.below(from.len() as u64) as usize];
        let disk_bytes = pick(&[1 << 20, 3 << 20 >> 1, 2 << 20, 3 << 20]);
        let is_thin = pick(&[0, 0, 0, 1]) == 1;
        let size = match is_thin {
            true => Some(2 * disk_bytes),
            // Of the disk; without a size, as large as it can be.
            false => Some(disk_bytes / pick(&[4, 8, 16, 1 << 40]) / BLOCK as u64 * BLOCK as u64),
        };
        let cleaning = zones::cleaning::NAMES[pick(&[0, 1, 2, 3, 4]) as usize % zones::cleaning::NAMES.len()];
        let map = log::map::NAMES[pick(&[0, 0, 0, 1, 2, 3, 4]) as usize % log::map::NAMES.len()];
        let options = Options {
            size: size.filter(|size| *size > 0),
            map: map.to_owned(),
            // On 1 MiB there would be too few of the larger ones.
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
        setup
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// All clients end, the log is closed, and then the power is cut.
    Closed,
    /// All clients end, then the power is cut.
    Cut,
    /// All clients end, then the process is killed: nothing that the kernel has is lost.
    Killed,
}

/// From an opening to a stop.
#[derive(Debug, Clone)]
struct Life {
    seed: u64,
    format: bool,
    operations: u64,
    depth: u64,
    end: End,
    /// The power is cut at this time, if it isn't over by then.
    cut_after: Option<Duration>,
    faults: SimulatedFaults,
    /// Of the layer `fault`.
    rules: Vec<String>,
}

impl Life {
    fn draw(random: &mut Random, format: bool) -> Life {
        let is_faulty = random.chance(0.15);
        let mut fault = |probability: f64| if random.chance(0.4) { probability } else { 0.0 };
        let mut faults =
            SimulatedFaults { slow: fault(0.02), short: fault(0.05), ..SimulatedFaults::default() };
        if is_faulty {
            faults.read_error = fault(0.01);
            faults.sync_error = fault(0.005);
            faults.write_error = fault(0.005);
        }
        // A write that fails leaves part of itself, in whole sectors: the simulated world would tear those, too.
        let rules = [
            "write torn error=EIO probability=0.01",
            "write error=EIO probability=0.02",
            "flush error=EIO probability=0.02",
        ];
        let rules =
            rules.iter().filter(|_| is_faulty && random.chance(0.4)).map(|rule| (*rule).to_owned()).collect();
        let shift = 17 + random.below(11);
        Life {
            seed: random.next_u64(),
            format,
            operations: 20 + random.below(300),
            depth: [1, 1, 2, 4, 8, 32][random.below(6) as usize],
            end: [End::Closed, End::Cut, End::Cut, End::Killed][random.below(4) as usize],
            cut_after: random.chance(0.6).then(|| Duration::from_nanos(random.below(1 << shift))),
            faults,
            rules,
        }
    }

    fn may_fail(&self) -> bool {
        self.faults.read_error + self.faults.sync_error + self.faults.write_error > 0.0
            || !self.rules.is_empty()
    }
}

/// What all tasks of a life share.
#[derive(Debug)]
struct World {
    setup: Setup,
    life: Life,
    /// None before the volume has been made.
    model: Mutex<Option<Model>>,
    /// Snapshots, clones, and the size.
    operated: Mutex<Operated>,
    stop: Stop,
    started: AtomicU64,
    /// The log has opened.
    opened: AtomicU64,
    refused: AtomicU64,
}

impl World {
    fn model<T>(&self, work: impl FnOnce(&mut Model) -> T) -> T {
        work(self.model.lock().unwrap().as_mut().expect("the volume has been made"))
    }

    /// An error that mustn't be in this life breaks it.
    fn judge(&self, what: &str, error: Error, is_write: bool) -> Result<(), String> {
        let is_allowed = match &error {
            // What only snapshots have takes room beyond the volume's own, and so does what it has grown by.
            Error::NoSpace(_) => {
                (self.setup.is_thin || self.setup.is_operated) && is_write || self.life.may_fail()
            }
            Error::Corrupt(_) => false,
            _ => self.life.may_fail(),
        };
        self.refused.fetch_add(1, Ordering::Relaxed);
        if is_allowed { Ok(()) } else { Err(format!("{what}: {error}")) }
    }
}

async fn disk(setup: &Setup, life: &Life) -> block::Result<Arc<dyn DevicePart>> {
    let line = format!("file(/disk, block_size={})", setup.sector);
    let registry = Registry::new(vec![&disks::file::KIND]);
    let stack =
        Stack::from_line("test", &line, &registry).map_err(|error| Error::invalid(error.to_string()))?;
    let plan = stack.check(false).map_err(|error| Error::invalid(error.to_string()))?;
    let rules = parse_rules(&life.rules, stack::Contract::Device)?;
    Ok(Arc::new(FaultDevicePart::new(plan.build().await?.top()?, rules, life.seed)?))
}

async fn open_log(setup: &Setup, life: &Life) -> block::Result<Arc<log::LogPart>> {
    let disk = disk(setup, life).await?;
    if !life.format {
        let options = Options { zone_size: None, size: None, ..setup.options.clone() };
        return Ok(Arc::new(open(disk, &options).await?));
    }
    let options = Options { format: true, ..setup.options.clone() };
    match open(disk.clone(), &options).await {
        // The reserve is large on so small a disk.
        Err(Error::Invalid(_)) if options.size.is_some() => {
            Ok(Arc::new(open(disk, &Options { size: None, ..options }).await?))
        }
        other => Ok(Arc::new(other?)),
    }
}

async fn read_all(device: &dyn Device) -> Result<Vec<Version>, Result<Error, String>> {
    let blocks = device.geometry().blocks.0;
    let mut found = Vec::with_capacity(blocks as usize);
    while (found.len() as u64) < blocks {
        let at = found.len() as u64;
        let count = 16.min(blocks - at);
        let (outcome, buffer) = device.read(BlockIndex(at), Buffer::new(count as usize * BLOCK)).await;
        outcome.map_err(Ok)?;
        for (bytes, block) in buffer.filled().chunks_exact(BLOCK).zip(at..) {
            found.push(version_of(block, bytes).map_err(Err)?);
        }
    }
    Ok(found)
}

/// One client's operations, one after the other.
async fn client(world: Arc<World>, device: Rc<dyn Device>, number: u64) -> Result<(), String> {
    let mut random = Random::new(world.life.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let blocks = device.geometry().blocks.0;
    while world.started.fetch_add(1, Ordering::Relaxed) < world.life.operations {
        let longest = if random.chance(0.05) { 64 } else { 4 };
        let count = 1 + random.below(blocks.min(longest));
        // Half of it goes to an eighth of the volume.
        let room = (blocks - count + 1).div_ceil(if random.chance(0.5) { 8 } else { 1 });
        let block = random.below(room);
        let range = BlockRange::new(block, count);
        let is_durable = random.chance(0.1);
        let durability = if is_durable { Durability::Durable } else { Durability::Visible };
        match random.below(100) {
            0..62 => {
                let (version, operation) = world.model(|model| {
                    let version = model.draw_version();
                    (version, model.submit(block, count, version))
                });
                let write =
                    device.write(BlockIndex(block), stamped(block, count, version).into(), durability);
                let patience = match random.chance(0.03) {
                    true => Duration::from_nanos(random.below(200_000)),
                    false => Duration::from_secs(3600),
                };
                match runtime::timeout(patience, write).await {
                    Ok(Ok(())) => world.model(|model| model.completed(operation, is_durable)),
                    Ok(Err(error)) => world.judge("a write", error, true)?,
                    // Nobody knows whether it happens.
                    Err(_) => {}
                }
            }
            62..72 => {
                let began = world.model(Model::begin);
                match device.flush().await {
                    Ok(()) => world.model(|model| model.flushed(began)),
                    Err(error) => world.judge("a flush", error, false)?,
                }
            }
            72..86 => {
                let operation = world.model(|model| model.submit(block, count, 0));
                let zeroes = random.chance(0.5);
                let outcome = match zeroes {
                    true => device.write_zeroes(range, ZeroMode::default(), durability).await,
                    false => device.discard(range).await,
                };
                match outcome {
                    Ok(()) => world.model(|model| model.completed(operation, zeroes && is_durable)),
                    Err(error) => world.judge("a discard", error, false)?,
                }
            }
            _ => {
                let began = world.model(Model::begin);
                let (outcome, buffer) =
                    device.read(BlockIndex(block), Buffer::new(count as usize * BLOCK)).await;
                if let Err(error) = outcome {
                    world.judge("a read", error, false)?;
                    continue;
                }
                for (bytes, block) in buffer.filled().chunks_exact(BLOCK).zip(block..) {
                    let found = version_of(block, bytes)?;
                    world.model(|model| model.check_read(block, found, began))?;
                }
            }
        }
    }
    Ok(())
}

/// Counts what is live in each zone, and compares it with what the log counts as it goes: it resets zones by that.
fn check_counts(part: &log::LogPart) -> Result<(), String> {
    let Ok(core) = part.home.get() else { return Ok(()) };
    let mut live = BTreeSet::new();
    let versions = core.versions.borrow();
    for version in &versions.list {
        let places = (0..version.blocks).map(|block| version.map.lookup(block));
        live.extend(places.filter(|place| place.is_mapped()));
    }
    for dying in &versions.dying {
        let places = (dying.given_up..dying.blocks).map(|block| dying.map.lookup(block));
        live.extend(places.filter(|place| place.is_mapped()));
    }
    let mut by_zone = vec![0_u32; core.layout.zones as usize];
    live.iter().for_each(|place| by_zone[core.layout.place(*place).0 as usize] += 1);
    for (number, zone) in core.table.list() {
        let counted = by_zone[number as usize];
        if zone.class != CHECKPOINT_CLASS && zone.live != counted {
            return Err(format!("zone {number} has {counted} live blocks, and the log counts {zone:?}"));
        }
    }
    match core.table.live_data() == live.len() as u64 {
        true => Ok(()),
        false => {
            Err(format!("{} blocks are live, and the log counts {}", live.len(), core.table.live_data()))
        }
    }
}

/// Everything up to the end of the life, if the power isn't cut before. Returns whether the log had been closed.
async fn live(world: Arc<World>) -> Result<bool, String> {
    let part = match open_log(&world.setup, &world.life).await {
        Ok(part) => part,
        Err(error) => return world.judge("opening", error, false).map(|()| false),
    };
    let device = part.open().await.map_err(|error| error.to_string())?;
    let blocks = device.geometry().blocks.0;
    world.operated.lock().unwrap().check_size(blocks, world.life.format)?;
    if world.life.format {
        let mut model = world.model.lock().unwrap();
        match &mut *model {
            Some(model) if model.len() == blocks => model.restart(&vec![0; blocks as usize]),
            other => *other = Some(Model::new(blocks)),
        }
    }
    check_counts(&part)
        .map_err(|broken| format!("after {:?}: {broken}, {:?}", world.stop, part.recovered()))?;
    let found = match read_all(&*device).await {
        Ok(found) => found,
        Err(Ok(error)) => return world.judge("reading all of it", error, false).map(|()| false),
        Err(Err(broken)) => return Err(format!("after {:?}: {broken}", world.stop)),
    };
    world.model(|model| {
        model.grow(blocks);
        model.check_stopped(&found, if world.life.format { Stop::Orderly } else { world.stop })
    })?;
    // What a recovery found is durable: the next one must find no less.
    world.model(|model| model.restart(&found));
    world.opened.store(1, Ordering::Relaxed);
    drop(device);
    check_versions(&world, &part, true).await?;
    let operating = world.setup.is_operated.then(|| runtime::spawn(operate(world.clone(), part.clone())));
    let clients = (0..world.life.depth).map(|number| {
        let (world, part) = (world.clone(), part.clone());
        runtime::spawn_on(ShardIndex(number as usize % runtime::shard_count()), move || async move {
            let device = part.open().await.map_err(|error| error.to_string())?;
            client(world, device, number).await
        })
    });
    for outcome in runtime::join_all(clients).await {
        let outcome = outcome.map_err(|error| error.to_string())?;
        outcome.map_err(|broken| format!("{broken}; the log: {:?}", part.status()))?;
    }
    if let Some(operating) = operating {
        operating.await?;
    }
    check_versions(&world, &part, false).await?;
    check_counts(&part)?;
    if world.life.end != End::Closed {
        return Ok(false);
    }
    match part.close().await {
        Ok(()) => Ok(true),
        Err(error) => {
            let status = part.status();
            world
                .judge("closing", error, false)
                .map(|()| false)
                .map_err(|broken| format!("{broken}; {status:?}"))
        }
    }
}

/// What one life left.
struct Left {
    files: Files,
    stop: Stop,
    opened: bool,
    model: Option<Model>,
    operated: Operated,
}

fn one_life(
    setup: &Setup,
    life: &Life,
    model: Option<Model>,
    (stop, operated): (Stop, Operated),
    files: Files,
) -> Result<Left, String> {
    let simulation = Simulation { most_events: 3_000_000, trace_lines: 0, ..Simulation::new(life.seed) };
    let simulation = simulation.with_shards(setup.shards).with_faults(life.faults).with_files(files);
    let world = Arc::new(World {
        setup: setup.clone(),
        life: life.clone(),
        model: Mutex::new(model),
        operated: Mutex::new(operated),
        stop,
        started: AtomicU64::new(0),
        opened: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    });
    let shared = world.clone();
    let simulated = runtime::simulate(simulation, move || async move {
        let lived = match shared.life.cut_after {
            Some(limit) => runtime::timeout(limit, live(shared.clone())).await.ok(),
            None => Some(live(shared.clone()).await),
        };
        let is_closed = match lived {
            None => false,
            Some(Ok(is_closed)) => is_closed,
            Some(Err(broken)) => return Err(broken),
        };
        let is_killed = shared.life.end == End::Killed;
        // What is acknowledged from memory dies with the process.
        let is_kept = is_killed && shared.setup.options.acknowledge == Acknowledge::Log;
        let stop = if is_closed || is_kept { Stop::Orderly } else { Stop::PowerCut };
        Ok((stop, (!is_killed).then(runtime::power_cut)))
    });
    let simulated = simulated.map_err(|error| error.to_string())?;
    let (stop, files) = simulated.value?;
    let world = Arc::into_inner(world);
    // Tasks that were dropped with the simulation may hold it still where a log keeps them alive: there is none.
    let world = world.ok_or("something still holds the world of a simulation that has ended")?;
    Ok(Left {
        files: files.unwrap_or(simulated.files),
        stop,
        opened: world.opened.load(Ordering::Relaxed) == 1,
        model: world.model.into_inner().unwrap(),
        operated: world.operated.into_inner().unwrap(),
    })
}

fn run_seed(seed: u64, verbose: bool) -> Result<(), String> {
    let mut random = Random::new(seed);
    let setup = Setup::draw(&mut random);
    if verbose {
        println!("seed {seed}: {setup:?}");
    }
    let mut files: Files = vec![(PathBuf::from("/disk"), vec![0; setup.disk_bytes as usize])];
    let (mut model, mut stop) = (None, Stop::Orderly);
    let mut operated = Operated::default();
    let mut is_made = false;
    for number in 0..3 + random.below(6) {
        let again = random.chance(0.04);
        let life = Life::draw(&mut random, !is_made || again);
        if verbose {
            println!("life {number}, after {stop:?}: {life:?}");
        }
        let left = one_life(&setup, &life, model.take(), (stop, operated), files)
            .map_err(|broken| format!("life {number}, after {stop:?}, {life:?}: {broken}"))?;
        (files, model, operated) = (left.files, left.model, left.operated);
        operated.stopped(left.stop);
        is_made = left.opened || is_made && !life.format;
        // What was not opened is as it was stopped before, or worse.
        if left.opened || left.stop == Stop::PowerCut {
            stop = left.stop;
        }
    }
    Ok(())
}

fn from_environment(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.trim().parse().expect("a whole number"))
}

#[test]
fn the_log_keeps_its_promises_in_simulated_worlds() {
    let first = from_environment("SILTSTONE_SEED", 1);
    let count = from_environment("SILTSTONE_SEEDS", USUAL_SEEDS);
    println!("SILTSTONE_SEED={first} SILTSTONE_SEEDS={count}");
    let next = AtomicU64::new(first);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || failures.lock().unwrap().len() >= 20 {
                        break;
                    }
                    // A thread of its own: a log that was stopped in the middle leaves its core in a thread-local.
                    let outcome =
                        std::thread::scope(|scope| scope.spawn(|| run_seed(seed, count == 1)).join());
                    let broken = match outcome {
                        Ok(Ok(())) => continue,
                        Ok(Err(broken)) => broken,
                        Err(_) => "a panic, see above".to_owned(),
                    };
                    println!("SILTSTONE_SEED={seed} SILTSTONE_SEEDS=1: {broken}");
                    failures.lock().unwrap().push(seed);
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort_unstable();
    assert!(failures.is_empty(), "{} of {count} seeds failed: {failures:?}", failures.len());
}
