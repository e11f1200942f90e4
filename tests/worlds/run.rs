//! Running worlds: life after life, for many seeds.

use super::client::{client, read_all, unit_of, units_per_block, versions};
use super::life::{Disks, End, Files, Life};
use super::loss::{Change, Finds, Loss};
use super::model::{Model, Stop, Version};
use super::{Subject, World};
use block::{BlockIndex, Buffer, Device, DevicePart, Error, Part};
use conformance::budget::Budget;
use runtime::{Random, ShardIndex, Simulation};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Probability of a loss after a life, where losses are possible.
const LOSSES: f64 = 0.35;

/// Runs a life to its end, unless the power is cut before. Returns whether the stack was closed.
async fn live<S: Subject>(world: Arc<World<S>>, disks: Disks) -> Result<bool, String> {
    let part = match world.subject.open(&disks, &world.life).await {
        Ok(part) => part,
        Err(error) => return world.judge("opening", error, false).map(|()| false),
    };
    let device = part.open().await.map_err(|error| error.to_string())?;
    let (blocks, per_block) = (device.geometry().blocks.0, units_per_block(device.geometry()));
    let units = blocks * per_block;
    let known = super::locked(&world.model).as_ref().map(|model| model.len() / per_block);
    S::check_size(&world, blocks, known)?;
    let is_ordered = world.subject.is_ordered(&world.life);
    let leaves = match world.life.format {
        true => world.subject.format_leaves().map(|leaves| leaves.max(world.stop)),
        false => Some(world.stop),
    };
    {
        let mut model = super::locked(&world.model);
        match (&mut *model, leaves) {
            (Some(_), Some(_)) => {}
            (Some(model), None) if model.len() == units => model.begin_anew(&vec![0; units as usize]),
            (other, _) => *other = Some(Model::new(units, is_ordered)),
        }
    }
    let broken = |broken| format!("after {:?}: {broken}", world.stop);
    S::opened(&world, &part).await.map_err(broken)?;
    let found = match read_all(&*device).await {
        Ok(found) => found,
        Err(Ok(error)) => return world.judge("reading all of it", error, false).map(|()| false),
        Err(Err(torn)) => return Err(broken(torn)),
    };
    world.model(|model| {
        model.grow(units);
        model.check_stopped(&found, leaves.unwrap_or(Stop::Orderly))?;
        model.set_ordered(is_ordered);
        // Contents that a recovery found are durable: the next one must find no less.
        match leaves {
            Some(Stop::Older | Stop::Mixed | Stop::Unknown) | None => model.begin_anew(&found),
            Some(_) => model.restart(&found),
        }
        Ok::<(), String>(())
    })?;
    world.opened.store(1, Ordering::Relaxed);
    drop(device);
    S::was_read(&world, &part).await?;
    let operating =
        world.subject.is_operated().then(|| runtime::spawn(S::meanwhile(world.clone(), part.clone())));
    let clients = (0..world.life.depth).map(|number| {
        let (world, part) = (world.clone(), part.clone());
        runtime::spawn_on(ShardIndex(number as usize % runtime::shard_count()), move || async move {
            let device = part.open().await.map_err(|error| error.to_string())?;
            client(world, device, number).await
        })
    });
    for outcome in runtime::join_all(clients).await {
        let outcome = outcome.map_err(|error| error.to_string())?;
        if let Err(broken) = outcome {
            return Err(format!("{broken}; the stack: {:?}", part.status().await));
        }
    }
    if let Some(operating) = operating {
        operating.await?;
    }
    S::ended(&world, &part).await?;
    if world.life.end != End::Closed {
        return Ok(false);
    }
    match part.close().await {
        Ok(()) => {
            S::closed(&world, &part).await;
            Ok(true)
        }
        Err(error) => {
            let status = part.status().await;
            let judged = world.judge("closing", error, false);
            judged.map(|()| false).map_err(|broken| format!("{broken}; {status:?}"))
        }
    }
}

/// State that is passed from one life to the next.
struct Left<S: Subject> {
    files: Files,
    stop: Stop,
    is_closed: bool,
    model: Option<Model>,
    memory: S::Memory,
}

/// Limit of events in a life, far above that of any life that makes progress.
const MAX_EVENTS: u64 = 3_000_000;

fn simulation(life: &Life, shards: usize, files: Files) -> Simulation {
    let simulation = Simulation { most_events: MAX_EVENTS, trace_lines: 0, ..Simulation::new(life.seed) };
    simulation.with_shards(shards).with_faults(life.faults).with_files(files)
}

/// Runs one life. Returns the state after it, and whether the stack had been opened.
fn one_life<S: Subject>(subject: &S, life: &Life, left: Left<S>) -> Result<(Left<S>, bool), String> {
    let world = Arc::new(World {
        subject: subject.clone(),
        life: life.clone(),
        stop: left.stop,
        model: Mutex::new(left.model),
        memory: Mutex::new(left.memory),
        started: AtomicU64::new(0),
        opened: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    });
    let shared = world.clone();
    let all = subject.files();
    let mut present = left.files;
    let away = life.lost.and_then(|loss| loss.hide(&mut present, &all));
    let disks = Disks { files: all, life: life.clone() };
    let simulated = runtime::simulate(simulation(life, subject.shards(), present), move || async move {
        let lived = match shared.life.cut_after {
            Some(limit) => runtime::timeout(limit, live(shared.clone(), disks)).await.ok(),
            None => Some(live(shared.clone(), disks).await),
        };
        let is_closed = match lived {
            None => false,
            Some(Ok(is_closed)) => is_closed && shared.subject.closes_durably(),
            Some(Err(broken)) => return Err(broken),
        };
        let is_killed = shared.life.end == End::Killed;
        let is_kept = is_killed && shared.subject.survives_kill(&shared.life);
        let stop = if is_closed || is_kept { Stop::Orderly } else { Stop::PowerCut };
        Ok((stop, is_closed, (!is_killed).then(runtime::power_cut)))
    });
    let simulated = simulated.map_err(|error| error.to_string())?;
    let (stop, is_closed, files) = simulated.value?;
    let world = Arc::into_inner(world);
    // Tasks that were dropped with the simulation may still hold the world if a part keeps them alive; none
    // does.
    let world = world.ok_or("something still holds the world of a simulation that has ended")?;
    let is_opened = world.opened.into_inner() == 1;
    let gone = "the first panic has ended the world";
    let mut memory = world.memory.into_inner().expect(gone);
    S::stopped(&mut memory, stop);
    // A stack that was not opened has the contents of the stop before, or less.
    let leaves = if life.format { subject.format_leaves().unwrap_or(Stop::Orderly) } else { Stop::Orderly };
    let stop = if is_opened { stop } else { left.stop.max(stop).max(leaves) };
    let mut files = files.unwrap_or(simulated.files);
    files.extend(away);
    let model = world.model.into_inner().expect(gone);
    Ok((Left { files, stop, is_closed, model, memory }, is_opened))
}

/// Reads all of a device, unit by unit, with the versions of readable units and one of the errors.
async fn read_what_is_there(device: &dyn Device) -> Result<(Vec<Option<Version>>, Option<Error>), String> {
    let (geometry, mut found, mut failed) = (device.geometry(), Vec::new(), None);
    let per_block = units_per_block(geometry);
    for block in 0..geometry.blocks.0 {
        let buffer = Buffer::new(geometry.block_size.bytes() as usize);
        let (outcome, buffer) = device.read(BlockIndex(block), buffer).await;
        match outcome {
            Ok(()) => {
                let read = versions(unit_of(geometry), block * per_block, buffer.filled())?;
                found.extend(read.into_iter().map(Some));
            }
            Err(error) => {
                failed.get_or_insert(error);
                found.extend((0..per_block).map(|_| None));
            }
        }
    }
    Ok((found, failed))
}

/// Opens the stack after a loss. Returns its contents, or the error that says what is wrong.
async fn inquire<S: Subject>(
    subject: &S,
    disks: &Disks,
    model: &Model,
    stop: Stop,
    loss: Loss,
) -> Result<Result<Vec<Version>, Error>, String> {
    let named = |error: Error, words: &str| match error.to_string().contains(words) {
        true => Ok(Err(error)),
        false => Err(format!("the error doesn't say \"{words}\": {error}")),
    };
    let part = match (subject.open(disks, &disks.life).await, loss.finds) {
        (Ok(_), Finds::Nothing(_)) => return Err("it could be opened".to_owned()),
        (Ok(part), _) => part,
        (Err(error), Finds::Nothing(words)) => return named(error, words),
        (
            Err(error @ (Error::Corrupt(_) | Error::Protocol(_) | Error::NotFound(_))),
            Finds::ErrorOrTruth(_),
        ) => {
            return Ok(Err(error));
        }
        (Err(error), _) => return Err(format!("opening: {error}")),
    };
    let device = part.open().await.map_err(|error| error.to_string())?;
    let (found, failed) = read_what_is_there(&*device).await?;
    model.check_found(&found, stop)?;
    drop(device);
    let searched = S::search(&part).await;
    let closed = part.close().await;
    match failed.or(searched.err()).or(closed.err()) {
        Some(error @ Error::Corrupt(_)) => Ok(Err(error)),
        Some(error) => Err(format!("rot is to be called so: {error}")),
        None => Ok(Ok(found.into_iter().flatten().collect())),
    }
}

/// Checks the contents after a loss, and notes them. Returns whether the stack is lost for good.
fn inquest<S: Subject>(
    subject: &S,
    loss: Loss,
    left: &mut Left<S>,
    seed: u64,
    verbose: bool,
) -> Result<bool, String> {
    let Some(mut model) = left.model.take() else { return Ok(false) };
    let mut life = Life::inquest(seed, subject.files().len(), loss);
    if loss.change == Change::Fails {
        life.rules[loss.file].push("any error=EIO".to_owned());
    }
    let disks = Disks { files: subject.files(), life: life.clone() };
    let stop = match loss.finds {
        Finds::ErrorOrTruth(unless_closed) if !left.is_closed => left.stop.max(unless_closed),
        _ => left.stop,
    };
    let shared = subject.clone();
    let simulation = simulation(&life, subject.shards(), std::mem::take(&mut left.files));
    let was = left.stop;
    let simulated = runtime::simulate(simulation, move || async move {
        let error = match inquire(&shared, &disks, &model, stop, loss).await? {
            Err(error) => error,
            Ok(found) => {
                model.restart(&found);
                return Ok((model, None));
            }
        };
        let broken = |broken: String| format!("{broken}; after {error}");
        let survivors = shared.survivors(&disks, &loss, was).await;
        let (part, stop) = survivors.map_err(|error| broken(error.to_string()))?;
        let device = part.open().await.map_err(|error| broken(error.to_string()))?;
        let found = read_all(&*device).await;
        let found =
            found.map_err(|failed| broken(failed.map_or_else(|torn| torn, |error| error.to_string())))?;
        model.check_stopped(&found, stop).map_err(|text| broken(format!("what is left: {text}")))?;
        Ok::<_, String>((model, Some((stop, error.to_string()))))
    });
    let simulated = simulated.map_err(|error| error.to_string())?;
    let (model, lost) = simulated.value?;
    if verbose {
        println!("{loss:?}: {}", lost.as_ref().map_or("nothing is wrong", |(_, error)| error));
    }
    left.stop = lost.as_ref().map_or(Stop::Orderly, |(stop, _)| *stop);
    (left.files, left.model, left.is_closed) = (simulated.files, Some(model), lost.is_none());
    Ok(lost.is_some())
}

fn run_seed<S: Subject>(seed: u64, verbose: bool) -> Result<(), String> {
    let mut random = Random::new(seed);
    let subject = S::draw(&mut random);
    if verbose {
        println!("seed {seed}: {subject:?}");
    }
    let all = subject.files();
    let files = all.iter().map(|file| (file.path.into(), vec![0; file.bytes as usize])).collect();
    let mut left =
        Left { files, stop: Stop::Orderly, is_closed: false, model: None, memory: S::Memory::default() };
    let (mut is_made, mut earlier, mut lost) = (false, Vec::new(), None::<Loss>);
    for number in 0..3 + random.below(6) {
        let again = random.chance(0.04);
        let mut life = Life::draw(&mut random, !is_made || again, all.len());
        if life.format
            && let Some(loss) = lost.take()
        {
            loss.replace(&mut left.files, &all);
        }
        life.lost = lost;
        subject.prepare(&mut left.memory, &mut life);
        if let Some(Loss { change: Change::Fails, file, .. }) = life.lost {
            life.rules[file] = vec!["any error=EIO".to_owned()];
        }
        let stop = left.stop;
        let name = |life: &Life| format!("life {number}, after {stop:?}, {life:?}");
        if verbose {
            println!("{}{}", name(&life), subject.describe(&life));
        }
        let (next, is_opened) =
            one_life(&subject, &life, left).map_err(|broken| format!("{}: {broken}", name(&life)))?;
        left = next;
        is_made = is_opened || is_made && !life.format;
        // A stack that was opened without the lost file has noted its loss.
        if let Some(loss) = lost.take_if(|_| is_opened || !is_made) {
            loss.replace(&mut left.files, &all);
        }
        if life.format {
            earlier.clear();
        }
        let losses = if is_made && lost.is_none() { subject.losses(&left.memory) } else { Vec::new() };
        if losses.is_empty() {
            continue;
        }
        earlier.push(left.files.clone());
        if !random.chance(LOSSES) {
            continue;
        }
        let loss = losses[random.below(losses.len() as u64) as usize];
        loss.happen(&mut left.files, &all, &earlier, &mut random);
        if let Finds::Everything | Finds::Less(_) = loss.finds {
            if let Finds::Less(stop) = loss.finds {
                left.stop = left.stop.max(stop);
            }
            lost = Some(loss);
            continue;
        }
        let found = inquest(&subject, loss, &mut left, random.next_u64(), verbose);
        let found = found.map_err(|broken| format!("{} and then {loss:?}: {broken}", name(&life)))?;
        if found {
            loss.replace(&mut left.files, &all);
            is_made = false;
        }
    }
    Ok(())
}

/// Tries one seed, on a thread of its own, because a part that is stopped in the middle leaves its core in a
/// thread-local.
///
/// # Errors
/// A description of the promise that was broken.
pub fn try_seed<S: Subject>(seed: u64, verbose: bool) -> Result<(), String> {
    let outcome = std::thread::scope(|scope| scope.spawn(|| run_seed::<S>(seed, verbose)).join());
    outcome.unwrap_or_else(|_| Err("a panic, see above".to_owned()))
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.trim().parse().expect("a whole number"))
}

/// Tries seeds in order on one thread, as many as fit into this number of shares of the budget and at most
/// `most`. Seeds that the environment names are tried on two threads, without a limit of time.
///
/// # Panics
/// If a seed fails, after printing which and why.
pub fn keeps_its_promises<S: Subject>(shares: u32, most: u64) {
    let first = from_environment("SILTSTONE_SEED").unwrap_or(1);
    let asked = from_environment("SILTSTONE_SEEDS");
    let (count, budget) = match asked {
        Some(count) => (count, Budget::unlimited()),
        None => (most, Budget::of(shares)),
    };
    println!("SILTSTONE_SEED={first}, {count} seeds at most");
    let next = AtomicU64::new(first);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..if asked.is_some() { 2 } else { 1 } {
            scope.spawn(|| {
                while super::locked(&failures).len() < 20 && budget.allows_more(count) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let Err(broken) = try_seed::<S>(seed, count == 1) else { continue };
                    println!("SILTSTONE_SEED={seed} SILTSTONE_SEEDS=1: {broken}");
                    super::locked(&failures).push(seed);
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap_or_default();
    failures.sort_unstable();
    assert!(failures.is_empty(), "{} seeds failed: {failures:?}", failures.len());
}
