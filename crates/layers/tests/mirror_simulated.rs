//! A mirror in simulated worlds: several clients, legs that fail, lag, are away for a life and come back, power cuts at any time
//! (also while it is made, opened or closed), checked against a model of what a device may hold.
//!
//! A seed decides everything. `SILTSTONE_SEED=7` begins there, `SILTSTONE_SEEDS=10000` tries so many; a failure names its
//! seed, which repeats exactly: `SILTSTONE_SEED=7 SILTSTONE_SEEDS=1`.
#![allow(clippy::unwrap_used)] // What fails here is the test.

use block::{BlockIndex, BlockRange, Buffer, Data, Device, DevicePart, Durability, Error, Part, ZeroMode};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::mirror::{MirrorPart, Plan, Settings, Wishes};
use runtime::{Random, ShardIndex, SimulatedFaults, Simulation};
use stack::{Registry, Stack};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// As many as take about half a minute on two quiet cores.
const USUAL_SEEDS: u64 = 400;
const BLOCK: usize = 4096;
const NAMES: [&str; 2] = ["a", "b"];

type Files = Vec<(PathBuf, Vec<u8>)>;

/// A block's contents: which block it is and which write made it, all over.
fn stamp(block: u64, version: u64, bytes: &mut [u8]) {
    for word in bytes.as_chunks_mut::<16>().0 {
        word[..8].copy_from_slice(&(block ^ 0x5117).to_le_bytes());
        word[8..].copy_from_slice(&version.to_le_bytes());
    }
}

fn stamped(block: u64, count: u64, version: u64) -> Data {
    let mut buffer = Buffer::zeroed(count as usize * BLOCK);
    for (bytes, block) in buffer.filled_mut().chunks_exact_mut(BLOCK).zip(block..) {
        stamp(block, version, bytes);
    }
    buffer.freeze()
}

/// The versions of a block's sectors: a power cut may tear a block between them.
fn versions_of(block: u64, bytes: &[u8]) -> Result<Vec<u64>, String> {
    let mut versions = Vec::with_capacity(8);
    for sector in bytes.chunks_exact(512) {
        let version = u64::from_le_bytes(sector[8..16].try_into().unwrap());
        let mut expected = [0; 512];
        if version != 0 {
            stamp(block, version, &mut expected);
        }
        if sector != expected {
            return Err(format!("block {block} is damaged, or another block's: {:?}", &sector[..16]));
        }
        versions.push(version);
    }
    Ok(versions)
}

#[derive(Debug, Clone)]
struct Operation {
    version: u64,
    submitted: u64,
    completed: Option<u64>,
    certain: bool,
}

/// What each sector may hold. Of two operations on a block, the one that had completed before the other was submitted is older.
#[derive(Debug, Default)]
struct Model {
    time: u64,
    version: u64,
    operations: Vec<Operation>,
    /// By sector, in the order of their submissions.
    sectors: Vec<Vec<usize>>,
}

impl Model {
    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    fn restart(&mut self, found: &[u64]) {
        let done =
            |version: &u64| Operation { version: *version, submitted: 0, completed: Some(0), certain: true };
        self.operations = found.iter().map(done).collect();
        self.sectors = (0..found.len()).map(|number| vec![number]).collect();
    }

    fn submit(&mut self, blocks: &BlockRange, is_zeros: bool) -> (usize, u64) {
        let submitted = self.tick();
        self.version += 1;
        let version = if is_zeros { 0 } else { self.version };
        self.operations.push(Operation { version, submitted, completed: None, certain: false });
        let number = self.operations.len() - 1;
        for sector in blocks.start.0 * 8..blocks.end().0 * 8 {
            self.sectors[sector as usize].push(number);
        }
        (number, version)
    }

    fn completed(&mut self, number: usize, is_durable: bool) {
        let time = self.tick();
        self.operations[number].completed = Some(time);
        self.operations[number].certain |= is_durable;
    }

    fn flushed(&mut self, began: u64) {
        for operation in &mut self.operations {
            operation.certain |= operation.completed.is_some_and(|time| time < began);
        }
    }

    fn check(&self, sector: u64, found: u64, counts: impl Fn(&Operation) -> bool) -> Result<(), String> {
        let all: Vec<&Operation> =
            self.sectors[sector as usize].iter().map(|number| &self.operations[*number]).collect();
        let is_gone = |operation: &Operation| {
            all.iter()
                .any(|later| counts(later) && operation.completed.is_some_and(|time| time < later.submitted))
        };
        match all.iter().any(|operation| operation.version == found && !is_gone(operation)) {
            true => Ok(()),
            false => Err(format!("sector {sector} holds version {found}; what happened to it: {all:?}")),
        }
    }
}

#[derive(Debug, Clone)]
struct Setup {
    blocks: u64,
    sectors: [u64; 2],
    shards: usize,
    settings: Settings,
    chunk: u64,
}

impl Setup {
    fn draw(random: &mut Random) -> Setup {
        let mut pick = |from: &[u64]| from[random.below(from.len() as u64) as usize];
        let write_behind = pick(&[0, 0, 1, 4, 100]);
        let is_avoided = write_behind > 0 || pick(&[0, 0, 1]) == 1;
        Setup {
            blocks: pick(&[8, 40, 200]),
            sectors: [pick(&[512, 4096]), pick(&[512, 4096])],
            shards: pick(&[1, 1, 2]) as usize,
            settings: Settings {
                write_mostly: if is_avoided { 0b10 } else { 0 },
                write_behind,
                behind_bytes: pick(&[64 << 10, 1 << 20]),
                fast_flush: false,
                bitmap_delay: Duration::from_micros(pick(&[50, 500, 5000])),
                sync_speed_max: pick(&[0, 0, 20 << 20]),
                first_leg: pick(&[0, 0, 1]) == 1,
            },
            chunk: pick(&[4096, 16 << 10, 64 << 20]),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Cut,
    Killed,
}

#[derive(Debug, Clone)]
struct Life {
    seed: u64,
    format: bool,
    /// The one leg that is there, if the other is away.
    only: Option<usize>,
    /// What goes wrong with which leg.
    rule: Option<(usize, String)>,
    /// The leg that was left behind is told to come back.
    comes_back: bool,
    operations: u64,
    depth: u64,
    end: End,
    cut_after: Option<Duration>,
    faults: SimulatedFaults,
}

impl Life {
    fn draw(random: &mut Random, format: bool, may_be_alone: bool) -> Life {
        let mut fault = |probability: f64| if random.chance(0.4) { probability } else { 0.0 };
        let faults = SimulatedFaults { slow: fault(0.02), short: fault(0.05), ..SimulatedFaults::default() };
        let rules = [
            "write error=EIO probability=0.02",
            "write torn error=EIO probability=0.02",
            "flush error=EIO probability=0.1",
            "read error=EIO probability=0.1",
            "any error=EIO after=60",
            "any delay=0us..2ms probability=0.5",
            "discard write_zeroes error=EIO probability=0.1",
        ];
        let only = (may_be_alone && random.chance(0.3)).then(|| random.below(2) as usize);
        let rule = (!format && only.is_none() && random.chance(0.4))
            .then(|| (random.below(2) as usize, rules[random.below(7) as usize].to_owned()));
        let shift = 17 + random.below(9);
        Life {
            seed: random.next_u64(),
            format,
            only,
            rule,
            comes_back: random.chance(0.6),
            operations: 20 + random.below(200),
            depth: [1, 2, 4, 16][random.below(4) as usize],
            end: [End::Closed, End::Closed, End::Cut, End::Killed][random.below(4) as usize],
            cut_after: random.chance(0.5).then(|| Duration::from_nanos(random.below(1 << shift))),
            faults,
        }
    }
}

#[derive(Debug)]
struct World {
    setup: Setup,
    life: Life,
    model: Mutex<Model>,
    /// Nothing that was acknowledged may be missing at the beginning.
    is_whole: bool,
    started: AtomicU64,
    opened: AtomicBool,
    /// The leg that goes wrong may be the last one.
    may_fail: AtomicBool,
    /// Both legs had everything when it was closed.
    both: AtomicBool,
}

impl World {
    fn model<T>(&self, work: impl FnOnce(&mut Model) -> T) -> T {
        work(&mut self.model.lock().unwrap())
    }

    /// An error of the last leg ends a client; one of another leg breaks a promise.
    fn judge(&self, what: &str, error: impl std::fmt::Display) -> Result<(), String> {
        match self.may_fail.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(format!("{what}: {error}")),
        }
    }
}

async fn leg(setup: &Setup, life: &Life, number: usize) -> block::Result<Arc<dyn DevicePart>> {
    let line = format!("file(/{}, block_size={})", NAMES[number], setup.sectors[number]);
    let wrong = |error: stack::Problems| Error::invalid(error.to_string());
    let registry = Registry::new(vec![&disks::file::KIND]);
    let stack = Stack::from_line("test", &line, &registry).map_err(wrong)?;
    let file = stack.check(false).map_err(wrong)?.build().await?.top()?;
    let rules: Vec<String> =
        life.rule.iter().filter(|(leg, _)| *leg == number).map(|(_, rule)| rule.clone()).collect();
    Ok(Arc::new(FaultDevicePart::new(file, parse_rules(&rules, stack::Contract::Device)?, life.seed)?))
}

async fn open(setup: &Setup, life: &Life) -> block::Result<Arc<MirrorPart>> {
    let there: Vec<usize> = life.only.map_or(vec![0, 1], |only| vec![only]);
    let mut settings = setup.settings.clone();
    if life.only == Some(0) || settings.write_mostly == 0 {
        (settings.write_mostly, settings.write_behind) = (0, 0);
    } else if life.only == Some(1) {
        settings.write_mostly = 1;
    }
    let mut legs = Vec::new();
    for number in there {
        legs.push((NAMES[number].to_owned(), leg(setup, life, number).await?));
    }
    let plan = Plan {
        legs,
        settings,
        wishes: Wishes { degraded: life.only.is_some(), rebuild: 0 },
        format: life.format,
        bitmap_chunk: life.format.then_some(setup.chunk),
    };
    Ok(Arc::new(MirrorPart::open(plan).await?))
}

async fn read_all(device: &dyn Device) -> Result<Vec<u64>, String> {
    let blocks = device.geometry().bytes() / BLOCK as u64;
    let shift = device.geometry().block_size.bytes();
    let mut found = Vec::new();
    for block in 0..blocks {
        let at = BlockIndex(block * BLOCK as u64 / shift);
        let (outcome, buffer) = device.read(at, Buffer::new(BLOCK)).await;
        outcome.map_err(|error| format!("reading all of it: {error}"))?;
        found.extend(versions_of(block, buffer.filled())?);
    }
    Ok(found)
}

async fn client(world: Arc<World>, device: Rc<dyn Device>, number: u64) -> Result<(), String> {
    let mut random = Random::new(world.life.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let per_block = BLOCK as u64 / device.geometry().block_size.bytes();
    let blocks = device.geometry().blocks.0 / per_block;
    let in_own = |range: &BlockRange| BlockRange::new(range.start.0 * per_block, range.count.0 * per_block);
    while world.started.fetch_add(1, Ordering::Relaxed) < world.life.operations {
        let longest = if random.chance(0.1) { 40 } else { 4 };
        let count = 1 + random.below(blocks.min(longest));
        // Half of it goes to a quarter of the device.
        let room = (blocks - count + 1).div_ceil(if random.chance(0.5) { 4 } else { 1 });
        let range = BlockRange::new(random.below(room), count);
        let own = in_own(&range);
        let durability = if random.chance(0.1) { Durability::Durable } else { Durability::Visible };
        let is_durable = durability == Durability::Durable;
        match random.below(100) {
            0..55 => {
                let (operation, version) = world.model(|model| model.submit(&range, false));
                let data = stamped(range.start.0, count, version);
                let patience = if random.chance(0.03) { random.below(200_000) } else { 3_600_000_000_000 };
                let write = device.write(own.start, data.into(), durability);
                match runtime::timeout(Duration::from_nanos(patience), write).await {
                    Ok(Ok(())) => world.model(|model| model.completed(operation, is_durable)),
                    Ok(Err(error)) => return world.judge("a write", error),
                    // Nobody knows whether it happens.
                    Err(_) => {}
                }
            }
            55..65 => {
                let began = world.model(Model::tick);
                if let Err(error) = device.flush().await {
                    return world.judge("a flush", error);
                }
                world.model(|model| model.flushed(began));
            }
            65..80 => {
                let (operation, _) = world.model(|model| model.submit(&range, true));
                let is_discard = random.chance(0.5);
                let done = match is_discard {
                    true => device.discard(own).await,
                    false => device.write_zeroes(own, ZeroMode::default(), durability).await,
                };
                if let Err(error) = done {
                    return world.judge("a discard", error);
                }
                world.model(|model| model.completed(operation, is_durable && !is_discard));
            }
            _ => {
                let began = world.model(Model::tick);
                let (outcome, buffer) = device.read(own.start, Buffer::new(count as usize * BLOCK)).await;
                if let Err(error) = outcome {
                    return world.judge("a read", error);
                }
                for (bytes, block) in buffer.filled().chunks_exact(BLOCK).zip(range.start.0..) {
                    for (version, sector) in versions_of(block, bytes)?.into_iter().zip(block * 8..) {
                        let counts = |later: &Operation| later.completed.is_some_and(|time| time < began);
                        world.model(|model| model.check(sector, version, counts))?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// The leg that was left behind, if there is one.
fn faulty(part: &MirrorPart) -> Option<String> {
    let status = part.status();
    let legs = status["legs"].as_array().unwrap();
    let leg = legs.iter().find(|leg| leg["state"] == "faulty")?;
    Some(leg["leg"].as_str().unwrap().to_owned())
}

/// Everything up to the end of the life, if the power isn't cut before. Whether it was closed.
async fn live(world: Arc<World>) -> Result<bool, String> {
    let (setup, life) = (&world.setup, &world.life);
    let part = match open(setup, life).await {
        Ok(part) => part,
        // A superblock that can't be read, or written where it is the last one.
        Err(_) if life.rule.is_some() => return Ok(false),
        Err(error) => return Err(format!("opening: {error}")),
    };
    let device = part.open().await.map_err(|error| error.to_string())?;
    let is_degraded = part.status()["state"].as_str().unwrap().starts_with("degraded");
    world.may_fail.store(is_degraded && life.rule.is_some(), Ordering::Relaxed);
    let found = match read_all(&*device).await {
        Ok(found) => found,
        Err(error) if error.starts_with("reading") => {
            return world.judge("at the beginning", error).map(|()| false);
        }
        Err(broken) => return Err(broken),
    };
    if !life.format {
        world.model(|model| {
            let whole = world.is_whole;
            let counts = |operation: &Operation| match whole {
                true => operation.completed.is_some(),
                false => operation.certain,
            };
            if model.sectors.len() != found.len() {
                return Err(format!("{} sectors, not {}", found.len(), model.sectors.len()));
            }
            (0..).zip(&found).try_for_each(|(sector, version)| model.check(sector, *version, counts))
        })?;
    }
    // What a recovery found is durable: the next one must find no less.
    world.model(|model| model.restart(&found));
    world.opened.store(true, Ordering::Relaxed);
    let clients = (0..life.depth).map(|number| {
        let (world, part) = (world.clone(), part.clone());
        runtime::spawn_on(ShardIndex(number as usize % runtime::shard_count()), move || async move {
            let device = part.open().await.map_err(|error| error.to_string())?;
            client(world, device, number).await
        })
    });
    let clients: Vec<_> = clients.collect();
    if life.comes_back
        && let Some(leg) = faulty(&part).filter(|_| life.only.is_none())
    {
        runtime::sleep(Duration::from_micros(life.seed % 300)).await;
        match part.message(&format!("re-add {leg}")).await {
            Ok(_) => {}
            Err(error) if life.rule.is_some() => drop(error),
            Err(error) => return Err(format!("re-add: {error}")),
        }
    }
    for outcome in runtime::join_all(clients).await {
        let outcome = outcome.map_err(|error| error.to_string())?;
        outcome.map_err(|broken| format!("{broken}; {:?}", part.status()))?;
    }
    // It is as it was, also when a leg is lost now.
    if life.rule.is_none() && life.only.is_none() && life.seed.is_multiple_of(3) && faulty(&part).is_none() {
        for _ in 0..5000 {
            if part.status()["chunks_to_copy"] == 0 && part.status()["state"] == "clean" {
                break;
            }
            runtime::sleep(Duration::from_micros(100)).await;
        }
        let before = read_all(&*device).await?;
        part.message("fail a").await.map_err(|error| format!("{error}; {:?}", part.status()))?;
        if before != read_all(&*device).await? {
            return Err("the legs were not the same".to_owned());
        }
    }
    drop(device);
    if life.end != End::Closed {
        return Ok(false);
    }
    if let Err(error) = part.close().await {
        return world.judge("closing", error).map(|()| false);
    }
    world.both.store(part.status()["state"] == "clean", Ordering::Relaxed);
    Ok(true)
}

struct Left {
    files: Files,
    model: Model,
    opened: bool,
    is_whole: bool,
    both: bool,
}

fn one_life(setup: &Setup, life: &Life, model: Model, is_whole: bool, files: Files) -> Result<Left, String> {
    let simulation = Simulation { most_events: 3_000_000, trace_lines: 0, ..Simulation::new(life.seed) };
    let simulation = simulation.with_shards(setup.shards).with_faults(life.faults).with_files(files);
    let world = Arc::new(World {
        setup: setup.clone(),
        life: life.clone(),
        model: Mutex::new(model),
        is_whole,
        started: AtomicU64::new(0),
        opened: AtomicBool::new(false),
        may_fail: AtomicBool::new(false),
        both: AtomicBool::new(false),
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
        // What only a leg had that failed, and what was behind then, is gone with the process.
        let is_kept = is_killed && shared.life.rule.is_none() && shared.life.only.is_none();
        let is_kept = is_kept && !shared.life.seed.is_multiple_of(3);
        Ok((is_closed || is_kept, (!is_killed).then(runtime::power_cut)))
    });
    let simulated = simulated.map_err(|error| error.to_string())?;
    let (is_whole, files) = simulated.value?;
    let world =
        Arc::into_inner(world).ok_or("something still holds the world of a simulation that has ended")?;
    Ok(Left {
        files: files.unwrap_or(simulated.files),
        model: world.model.into_inner().unwrap(),
        opened: world.opened.load(Ordering::Relaxed),
        is_whole,
        both: world.both.load(Ordering::Relaxed),
    })
}

fn run_seed(seed: u64, verbose: bool) -> Result<(), String> {
    let mut random = Random::new(seed);
    let setup = Setup::draw(&mut random);
    if verbose {
        println!("seed {seed}: {setup:?}");
    }
    let file = |name: &str| (PathBuf::from(format!("/{name}")), vec![0; (setup.blocks as usize + 3) * BLOCK]);
    let mut files: Files = NAMES.into_iter().map(file).collect();
    let (mut model, mut is_whole) = (Model::default(), true);
    let (mut is_made, mut both) = (false, false);
    for number in 0..3 + random.below(7) {
        let life = Life::draw(&mut random, !is_made, both);
        if verbose {
            println!("life {number}, whole: {is_whole}: {life:?}");
        }
        let left = one_life(&setup, &life, model, is_whole, files)
            .map_err(|broken| format!("life {number}, {life:?}: {broken}"))?;
        (files, model) = (left.files, left.model);
        is_made |= left.opened;
        if left.opened || !left.is_whole {
            is_whole = left.is_whole;
        }
        both = left.both && life.only.is_none();
    }
    Ok(())
}

fn from_environment(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.trim().parse().expect("a whole number"))
}

#[test]
fn the_mirror_keeps_its_promises_in_simulated_worlds() {
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
                    if seed >= first + count || failures.lock().unwrap().len() >= 8 {
                        break;
                    }
                    // A thread of its own: a mirror that was stopped in the middle leaves its core in a thread-local.
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
