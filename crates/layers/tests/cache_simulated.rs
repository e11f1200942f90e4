//! The whole cache in simulated worlds: several clients on two shards, faults of both devices, power cuts at any time (also
//! while it is opened, formatted or closed), modes that change, the loss of the fast device; checked against a model of
//! each sector.
//!
//! A seed decides everything. `SILTSTONE_SEED=7` begins there, `SILTSTONE_SEEDS=10000` tries so many; a failure names its
//! seed, which repeats exactly: `SILTSTONE_SEED=7 SILTSTONE_SEEDS=1`.
#![allow(clippy::unwrap_used)] // What fails here is the test.

use block::{BlockIndex, BlockRange, Buffer, Data, Device, DevicePart, Durability, Error, Part, ZeroMode};
use layers::cache::{CachePart, Mode, Options};
use layers::fault::{FaultDevicePart, parse_rules};
use runtime::{Random, ShardIndex, SimulatedFaults, Simulation};
use stack::{Registry, Stack};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// As many as take less than a minute on two quiet cores.
const USUAL_SEEDS: u64 = 400;
const SECTOR: usize = 512;

type Files = Vec<(PathBuf, Vec<u8>)>;
/// The number of the write that a sector came with; 0 is zeros.
type Version = u64;

fn stamp(sector: u64, version: Version, bytes: &mut [u8]) {
    for word in bytes.as_chunks_mut::<16>().0 {
        word[..8].copy_from_slice(&(sector ^ 0x5117).to_le_bytes());
        word[8..].copy_from_slice(&version.to_le_bytes());
    }
}

fn stamped(sectors: std::ops::Range<u64>, version: Version) -> Data {
    let mut buffer = Buffer::zeroed((sectors.end - sectors.start) as usize * SECTOR);
    for (bytes, sector) in buffer.filled_mut().chunks_exact_mut(SECTOR).zip(sectors) {
        stamp(sector, version, bytes);
    }
    buffer.freeze()
}

fn version_of(sector: u64, bytes: &[u8]) -> Result<Version, String> {
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    let mut expected = vec![0; SECTOR];
    if version != 0 {
        stamp(sector, version, &mut expected);
    }
    match bytes == expected {
        true => Ok(version),
        false => Err(format!("sector {sector} is damaged, or another one's: {:?}", &bytes[..16])),
    }
}

#[derive(Debug, Clone)]
struct Operation {
    version: Version,
    submitted: u64,
    completed: Option<u64>,
    /// It survives a power cut.
    certain: bool,
}

/// What each sector may hold. Of two operations, the one that had completed before the other was submitted is older; else
/// either may be the last.
#[derive(Debug)]
struct Model {
    time: u64,
    versions: Version,
    operations: Vec<Operation>,
    /// By sector, in the order of submissions.
    sectors: Vec<Vec<usize>>,
}

impl Model {
    fn new(sectors: u64) -> Self {
        let mut model = Model { time: 0, versions: 0, operations: Vec::new(), sectors: Vec::new() };
        model.restart(&vec![0; sectors as usize]);
        model
    }

    fn restart(&mut self, found: &[Version]) {
        let known = |version: &Version| Operation {
            version: *version,
            submitted: 0,
            completed: Some(0),
            certain: true,
        };
        self.operations = found.iter().map(known).collect();
        self.sectors = (0..found.len()).map(|number| vec![number]).collect();
        self.time = 0;
    }

    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    fn submit(&mut self, sectors: std::ops::Range<u64>, is_zero: bool) -> (usize, Version) {
        let submitted = self.tick();
        self.versions += 1;
        let version = if is_zero { 0 } else { self.versions };
        self.operations.push(Operation { version, submitted, completed: None, certain: false });
        let number = self.operations.len() - 1;
        sectors.for_each(|sector| self.sectors[sector as usize].push(number));
        (number, version)
    }

    fn completed(&mut self, number: usize, is_durable: bool) {
        let time = self.tick();
        let operation = &mut self.operations[number];
        operation.completed = Some(time);
        operation.certain |= is_durable;
    }

    fn flushed(&mut self, began: u64) {
        let done = |operation: &&mut Operation| operation.completed.is_some_and(|time| time < began);
        self.operations.iter_mut().filter(done).for_each(|operation| operation.certain = true);
    }

    fn check(&self, sector: u64, found: Version, counts: impl Fn(&Operation) -> bool) -> Result<(), String> {
        let history: Vec<&Operation> =
            self.sectors[sector as usize].iter().map(|number| &self.operations[*number]).collect();
        let is_gone = |older: &Operation| {
            history
                .iter()
                .any(|later| counts(later) && older.completed.is_some_and(|time| time < later.submitted))
        };
        let is_legal = history.iter().any(|it| it.version == found && !is_gone(it));
        match is_legal {
            true => Ok(()),
            false => Err(format!("sector {sector} holds version {found}; what happened to it: {history:?}")),
        }
    }
}

#[derive(Debug, Clone)]
struct Setup {
    slow_bytes: u64,
    fast_bytes: u64,
    slow_block: u64,
    fast_block: u64,
    cache_block: u64,
    shards: usize,
}

impl Setup {
    fn draw(random: &mut Random) -> Self {
        let mut pick = |from: &[u64]| from[random.below(from.len() as u64) as usize];
        Setup {
            slow_bytes: pick(&[256 << 10, 512 << 10, (640 << 10) + 4096]),
            fast_bytes: pick(&[224 << 10, 256 << 10, 448 << 10, 1 << 20]),
            slow_block: pick(&[512, 4096]),
            fast_block: pick(&[512, 4096]),
            cache_block: pick(&[32 << 10, 32 << 10, 64 << 10, 96 << 10]),
            shards: pick(&[1, 1, 2]) as usize,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    /// The power is cut when all clients have ended.
    Cut,
    /// The process is killed then: the kernel loses nothing.
    Killed,
}

#[derive(Debug, Clone)]
struct Life {
    seed: u64,
    format: bool,
    mode: Mode,
    operations: u64,
    depth: u64,
    end: End,
    cut_after: Option<Duration>,
    faults: SimulatedFaults,
    /// Of the layer `fault`, for the fast device.
    rules: Vec<String>,
    settle_every: Duration,
    sequential_threshold: u64,
    migration_threshold: u64,
    messages: bool,
}

impl Life {
    fn draw(random: &mut Random, format: bool, mode: Option<Mode>) -> Self {
        let is_faulty = random.chance(0.2);
        let mut fault = |probability: f64| if random.chance(0.4) { probability } else { 0.0 };
        let mut faults =
            SimulatedFaults { slow: fault(0.02), short: fault(0.05), ..SimulatedFaults::default() };
        if is_faulty {
            faults.read_error = fault(0.01);
            faults.sync_error = fault(0.005);
            faults.write_error = fault(0.005);
        }
        let rules = ["write torn error=EIO probability=0.02", "read error=EIO probability=0.05"];
        let rules =
            rules.iter().filter(|_| is_faulty && random.chance(0.3)).map(|it| (*it).to_owned()).collect();
        let modes = [Mode::Writeback, Mode::Writeback, Mode::Writethrough, Mode::Passthrough];
        let mut pick = |from: &[u64]| from[random.below(from.len() as u64) as usize];
        let mode = mode.unwrap_or(modes[pick(&[0, 1, 2, 2, 3]) as usize]);
        Life {
            mode,
            format,
            operations: 20 + pick(&[10, 100, 300]),
            depth: pick(&[1, 2, 4, 8, 24]),
            end: [End::Closed, End::Cut, End::Cut, End::Killed][pick(&[0, 1, 2, 3]) as usize],
            settle_every: Duration::from_micros(pick(&[1000, 5000, 1_000_000])),
            sequential_threshold: pick(&[0, 16 << 10, 4 << 20]),
            migration_threshold: pick(&[0, 128, 2048]),
            messages: pick(&[0, 0, 1]) == 1,
            cut_after: random
                .chance(0.6)
                .then(|| Duration::from_nanos(random.next_u64() >> (36 + random.below(12)))),
            seed: random.next_u64(),
            faults,
            rules,
        }
    }

    fn may_fail(&self) -> bool {
        let faults = &self.faults;
        faults.read_error + faults.sync_error + faults.write_error > 0.0 || !self.rules.is_empty()
    }
}

struct World {
    setup: Setup,
    life: Life,
    model: Mutex<Model>,
    was_orderly: bool,
    started: Mutex<u64>,
    opened: Mutex<bool>,
}

impl World {
    fn model<T>(&self, work: impl FnOnce(&mut Model) -> T) -> T {
        work(&mut self.model.lock().unwrap())
    }

    fn judge(&self, what: &str, error: &Error) -> Result<(), String> {
        match error {
            Error::Corrupt(_) => Err(format!("{what}: {error}")),
            _ if self.life.may_fail() => Ok(()),
            _ => Err(format!("{what}: {error}")),
        }
    }
}

async fn file(path: &str, block_size: u64) -> block::Result<Arc<dyn DevicePart>> {
    let line = format!("file({path}, block_size={block_size})");
    let registry = Registry::new(vec![&disks::file::KIND]);
    let invalid = |error: String| Error::invalid(error);
    let stack = Stack::from_line("test", &line, &registry).map_err(|error| invalid(error.to_string()))?;
    let plan = stack.check(false).map_err(|error| invalid(error.to_string()))?;
    plan.build().await?.top()
}

async fn open(world: &World) -> block::Result<Arc<CachePart>> {
    let (setup, life) = (&world.setup, &world.life);
    let slow = file("/slow", setup.slow_block).await?;
    let rules = parse_rules(&life.rules, stack::Contract::Device)?;
    let fast = Arc::new(FaultDevicePart::new(file("/fast", setup.fast_block).await?, rules, life.seed)?);
    let options = Options {
        format: life.format,
        mode: life.mode,
        block_size: setup.cache_block,
        settle_every: life.settle_every,
        sequential_threshold: life.sequential_threshold,
        migration_threshold: life.migration_threshold,
        ..Options::default()
    };
    Ok(Arc::new(CachePart::open(slow, fast, "slow", &options).await?))
}

fn sectors_of(device: &dyn Device, range: BlockRange) -> std::ops::Range<u64> {
    let per_block = device.geometry().block_size.bytes() / SECTOR as u64;
    range.start.0 * per_block..range.end().0 * per_block
}

async fn read_all(device: &dyn Device) -> Result<Vec<Version>, Result<Error, String>> {
    let (blocks, size) = (device.geometry().blocks.0, device.geometry().block_size.bytes());
    let step = (128 << 10) / size;
    let mut found = Vec::new();
    let mut at = 0;
    while at < blocks {
        let count = step.min(blocks - at);
        let (outcome, buffer) = device.read(BlockIndex(at), Buffer::new((count * size) as usize)).await;
        outcome.map_err(Ok)?;
        for bytes in buffer.filled().chunks_exact(SECTOR) {
            found.push(version_of(found.len() as u64, bytes).map_err(Err)?);
        }
        at += count;
    }
    Ok(found)
}

async fn client(world: Arc<World>, device: Rc<dyn Device>, number: u64) -> Result<(), String> {
    let mut random = Random::new(world.life.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let (blocks, size) = (device.geometry().blocks.0, device.geometry().block_size.bytes());
    loop {
        {
            let mut started = world.started.lock().unwrap();
            *started += 1;
            if *started > world.life.operations {
                return Ok(());
            }
        }
        let longest = if random.chance(0.1) { (200 << 10) / size } else { (16 << 10) / size };
        let count = 1 + random.below(blocks.min(longest));
        // Half of it goes to an eighth of the device.
        let room = (blocks - count + 1).div_ceil(if random.chance(0.5) { 8 } else { 1 });
        let range = BlockRange::new(random.below(room), count);
        let sectors = sectors_of(&*device, range);
        let is_durable = random.chance(0.1);
        let durability = if is_durable { Durability::Durable } else { Durability::Visible };
        match random.below(100) {
            0..50 => {
                let (operation, version) = world.model(|model| model.submit(sectors.clone(), false));
                let write = device.write(range.start, stamped(sectors, version).into(), durability);
                let patience = match random.chance(0.03) {
                    true => Duration::from_nanos(random.below(200_000)),
                    false => Duration::from_secs(3600),
                };
                match runtime::timeout(patience, write).await {
                    Ok(Ok(())) => world.model(|model| model.completed(operation, is_durable)),
                    Ok(Err(error)) => world.judge("a write", &error)?,
                    Err(_) => {}
                }
            }
            50..60 => {
                let began = world.model(Model::tick);
                match device.flush().await {
                    Ok(()) => world.model(|model| model.flushed(began)),
                    Err(error) => world.judge("a flush", &error)?,
                }
            }
            60..70 => {
                let (operation, _) = world.model(|model| model.submit(sectors, true));
                let zeroes = random.chance(0.5);
                let outcome = match zeroes {
                    true => device.write_zeroes(range, ZeroMode::default(), durability).await,
                    false => device.discard(range).await,
                };
                match outcome {
                    Ok(()) => world.model(|model| model.completed(operation, zeroes && is_durable)),
                    Err(error) => world.judge("a discard", &error)?,
                }
            }
            70..72 => runtime::sleep(Duration::from_micros(random.below(4_000))).await,
            _ => {
                let began = world.model(Model::tick);
                let buffer = Buffer::new((count * size) as usize);
                let (outcome, buffer) = device.read(range.start, buffer).await;
                if let Err(error) = outcome {
                    world.judge("a read", &error)?;
                    continue;
                }
                for (bytes, sector) in buffer.filled().chunks_exact(SECTOR).zip(sectors) {
                    let found = version_of(sector, bytes)?;
                    let is_done = |it: &Operation| it.completed.is_some_and(|time| time < began);
                    world.model(|model| model.check(sector, found, is_done))?;
                }
            }
        }
    }
}

/// An operator who can't decide.
async fn operate(world: Arc<World>, part: Arc<CachePart>) -> Result<(), String> {
    let mut random = Random::new(world.life.seed ^ 0xABCD);
    let slots = part.status()["total_blocks"].as_u64().unwrap();
    for _ in 0..8 {
        runtime::sleep(Duration::from_micros(random.below(2_000))).await;
        let modes = if world.life.mode == Mode::Writeback { 3 } else { 1 };
        let message = match random.below(6) {
            0 => "detach".to_owned(),
            1 | 2 => "cancel".to_owned(),
            3 => {
                format!("mode {}", ["writethrough", "writeback", "passthrough"][random.below(modes) as usize])
            }
            4 => format!("invalidate {}", random.below(slots)),
            _ => format!("migration_threshold {}", random.below(1000)),
        };
        if let Err(error) = part.message(&message).await {
            world.judge(&message, &error)?;
        }
    }
    let _ = part.message("cancel").await;
    Ok(())
}

/// Somebody who warms and cools it all the time.
async fn warm(world: Arc<World>, part: Arc<CachePart>) -> Result<(), String> {
    let mut random = Random::new(world.life.seed ^ 0x3A3A);
    let bytes = part.status()["bytes"].as_u64().unwrap();
    for _ in 0..20 {
        runtime::sleep(Duration::from_nanos(random.below(400_000))).await;
        let verb = ["fetch", "fetch", "fetch", "heat", "evict"][random.below(5) as usize];
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
        let answered = runtime::timeout(Duration::from_secs(100), part.message(&message)).await;
        let answer = match answered {
            Ok(Ok(answer)) => answer,
            // It may be detached, or in passthrough, at the moment.
            Ok(Err(Error::Invalid(text))) if text.contains("nothing comes into this cache") => continue,
            Ok(Err(error)) => {
                world.judge(&message, &error)?;
                continue;
            }
            Err(_) => return Err(format!("{message} waits for ever; the cache: {:?}", part.status())),
        };
        let answer: serde_json::Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
        let is_known = !answer["failed"].as_u64().is_some_and(|failed| failed > 0) || world.life.may_fail();
        // The origin is so small that one step is all of it.
        if answer["done"] != wanted || !is_known {
            return Err(format!("{message}: {answer}"));
        }
        let listed = part.message("warm list 0 1000").await.map_err(|error| error.to_string())?;
        serde_json::from_str::<serde_json::Value>(&listed).map_err(|error| format!("{listed}: {error}"))?;
    }
    Ok(())
}

/// Everything up to the end of the life, if the power isn't cut before. Returns whether the cache had been closed.
async fn live(world: Arc<World>) -> Result<bool, String> {
    let part = match open(&world).await {
        Ok(part) => part,
        Err(error) => return world.judge("opening", &error).map(|()| false),
    };
    let device = part.open().await.map_err(|error| error.to_string())?;
    let found = match read_all(&*device).await {
        Ok(found) => found,
        Err(Ok(error)) => return world.judge("reading all of it", &error).map(|()| false),
        Err(Err(broken)) => return Err(broken),
    };
    world.model(|model| {
        for (sector, version) in found.iter().enumerate() {
            model.check(sector as u64, *version, |it| match world.was_orderly {
                true => it.completed.is_some(),
                false => it.certain,
            })?;
        }
        // What was found once stays.
        model.restart(&found);
        Ok::<_, String>(())
    })?;
    *world.opened.lock().unwrap() = true;
    drop(device);
    let operating = world.life.messages.then(|| runtime::spawn(operate(world.clone(), part.clone())));
    let warming =
        world.life.seed.is_multiple_of(2).then(|| runtime::spawn(warm(world.clone(), part.clone())));
    let clients = (0..world.life.depth).map(|number| {
        let (world, part) = (world.clone(), part.clone());
        runtime::spawn_on(ShardIndex(number as usize % runtime::shard_count()), move || async move {
            let device = part.open().await.map_err(|error| error.to_string())?;
            client(world, device, number).await
        })
    });
    let all = runtime::timeout(Duration::from_secs(100), runtime::join_all(clients)).await;
    let Ok(all) = all else {
        return Err(format!("clients wait for ever; the cache: {:?}", part.status()));
    };
    for outcome in all {
        let outcome = outcome.map_err(|error| error.to_string())?;
        outcome.map_err(|broken| format!("{broken}; the cache: {:?}", part.status()))?;
    }
    if let Some(operating) = operating {
        operating.await?;
    }
    if let Some(warming) = warming {
        warming.await?;
    }
    if world.life.end != End::Closed {
        return Ok(false);
    }
    let closed = runtime::timeout(Duration::from_secs(100), part.close()).await;
    let Ok(closed) = closed else {
        return Err(format!("the close waits for ever; the cache: {:?}", part.status()));
    };
    match closed {
        Ok(()) => Ok(true),
        Err(error) => world.judge("closing", &error).map(|()| false),
    }
}

struct Left {
    files: Files,
    was_orderly: bool,
    opened: bool,
    model: Model,
}

fn one_life(
    setup: &Setup,
    life: &Life,
    model: Model,
    was_orderly: bool,
    files: Files,
) -> Result<Left, String> {
    let simulation = Simulation { most_events: 3_000_000, trace_lines: 0, ..Simulation::new(life.seed) };
    let simulation = simulation.with_shards(setup.shards).with_faults(life.faults).with_files(files);
    let world = Arc::new(World {
        setup: setup.clone(),
        life: life.clone(),
        model: Mutex::new(model),
        was_orderly,
        started: Mutex::new(0),
        opened: Mutex::new(false),
    });
    let shared = world.clone();
    let simulated = runtime::simulate(simulation, move || async move {
        let lived = match shared.life.cut_after {
            Some(limit) => runtime::timeout(limit, live(shared.clone())).await.ok(),
            None => Some(live(shared.clone()).await),
        };
        let was_closed = match lived {
            None => false,
            Some(Ok(was_closed)) => was_closed,
            Some(Err(broken)) => return Err(broken),
        };
        let is_killed = shared.life.end == End::Killed;
        Ok((was_closed, (!is_killed).then(runtime::power_cut)))
    });
    let simulated = simulated.map_err(|error| error.to_string())?;
    let (was_orderly, files) = simulated.value?;
    let world = Arc::into_inner(world).ok_or("something holds the world of a simulation that has ended")?;
    Ok(Left {
        files: files.unwrap_or(simulated.files),
        was_orderly,
        opened: world.opened.into_inner().unwrap(),
        model: world.model.into_inner().unwrap(),
    })
}

fn run_seed(seed: u64, verbose: bool) -> Result<(), String> {
    let mut random = Random::new(seed);
    let setup = Setup::draw(&mut random);
    if verbose {
        println!("seed {seed}: {setup:?}");
    }
    let zeros = |bytes: u64| vec![0; bytes as usize];
    let mut files: Files = vec![
        (PathBuf::from("/slow"), zeros(setup.slow_bytes)),
        (PathBuf::from("/fast"), zeros(setup.fast_bytes)),
    ];
    let size = setup.slow_block.max(setup.fast_block);
    let mut model = Model::new(setup.slow_bytes / size * (size / SECTOR as u64));
    let (mut was_orderly, mut is_made) = (true, false);
    // Whether the cache has ever held what the origin hadn't.
    let mut may_be_lost = true;
    for number in 0..3 + random.below(5) {
        let is_lost = is_made && may_be_lost && random.chance(0.3);
        if is_lost {
            files.retain(|(path, _)| path != &PathBuf::from("/fast"));
            files.push((PathBuf::from("/fast"), zeros(setup.fast_bytes)));
        }
        let only = seed.is_multiple_of(4).then_some(Mode::Writethrough);
        let life = Life::draw(&mut random, !is_made || is_lost, only);
        if verbose {
            println!("life {number}, lost {is_lost}, orderly {was_orderly}: {life:?}");
        }
        may_be_lost &= life.mode != Mode::Writeback;
        let left = one_life(&setup, &life, model, was_orderly, files).map_err(|broken| {
            format!("life {number}, lost {is_lost}, after orderly {was_orderly}, {life:?}: {broken}")
        })?;
        // What was never opened has left the origin as it was.
        was_orderly = left.was_orderly || was_orderly && !left.opened;
        is_made = left.opened || is_made && !life.format;
        (files, model) = (left.files, left.model);
    }
    Ok(())
}

#[test]
fn worlds() {
    let number = |name: &str, usual: u64| {
        std::env::var(name).ok().map_or(usual, |text| text.trim().parse().expect("a whole number"))
    };
    let (first, count) = (number("SILTSTONE_SEED", 1), number("SILTSTONE_SEEDS", USUAL_SEEDS));
    println!("worlds of a cache: SILTSTONE_SEED={first} SILTSTONE_SEEDS={count}");
    for seed in first..first + count {
        run_seed(seed, count == 1)
            .unwrap_or_else(|broken| panic!("SILTSTONE_SEED={seed} SILTSTONE_SEEDS=1: {broken}"));
    }
}
