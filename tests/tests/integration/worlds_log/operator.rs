//! An operator who works while clients write: snapshots, clones that are written to, and a larger volume.
//! Checks after each stop which of these must be there.

use super::{BLOCK, Setup, check_counts};
use block::{BlockIndex, BlockRange, Buffer, Device, DevicePart, Durability, Error, Part, ZeroMode};
use runtime::Random;
use siltstone_tests::worlds::{self, Model, Stop, Subject, Version, read_all, stamped, versions};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Limits on the number of snapshots and clones, and on the size of the volume in blocks.
const MAX_SNAPSHOTS: usize = 4;
const MAX_CLONES: usize = 3;
const MAX_BLOCKS: u64 = 3000;

/// Facts about a snapshot.
#[derive(Debug, Default)]
struct Snapshot {
    /// Contents once they were read; they never change.
    contents: Option<Vec<Version>>,
    /// Whether its creation was acknowledged, and whether its deletion was requested.
    is_made: bool,
    is_deleted: bool,
}

/// Facts about a clone.
#[derive(Debug)]
struct CloneState {
    model: Model,
    is_made: bool,
    is_deleted: bool,
    /// The worst stop since its contents were last checked.
    stop: Stop,
    is_checked: bool,
}

/// State of an operator's work, over all lives.
#[derive(Debug, Default)]
pub struct Operated {
    snapshots: BTreeMap<String, Snapshot>,
    clones: BTreeMap<String, CloneState>,
    /// Promised size of the volume in blocks, and other sizes that it may have.
    blocks: u64,
    asked: Vec<u64>,
}

impl Operated {
    /// Checks the size that an opening found; a new volume has no snapshots and clones.
    pub fn check_size(&mut self, blocks: u64, is_new: bool) -> Result<(), String> {
        if is_new {
            *self = Operated::default();
        } else if blocks != self.blocks && !self.asked.contains(&blocks) {
            return Err(format!("it has {blocks} blocks, not {}, nor any of {:?}", self.blocks, self.asked));
        }
        self.blocks = blocks;
        self.asked.clear();
        Ok(())
    }

    /// Notes how a life has ended.
    pub fn stopped(&mut self, stop: Stop) {
        for clone in self.clones.values_mut() {
            if clone.is_checked || stop == Stop::PowerCut {
                clone.stop = stop;
            }
            clone.is_checked = false;
        }
    }
}

type World = worlds::World<Setup>;

fn with_clone<T>(world: &World, name: &str, work: impl FnOnce(&mut Model) -> T) -> T {
    work(&mut world.memory().clones.get_mut(name).expect("only the operator deletes it").model)
}

/// A snapshot or clone as a device, and its part, which must live as long as the device is open.
type Opened = (Rc<dyn Device>, Arc<dyn DevicePart>);

/// Opens a version; `None` if no version has this name.
async fn open_version(part: &log::LogPart, name: &str) -> Result<Option<Opened>, Error> {
    match part.version(name).await {
        Ok(version) => Ok(Some((version.open().await?, version))),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads all of a version; `None` if there is none, or if reading may fail in this life.
async fn read_version(
    world: &World,
    part: &log::LogPart,
    name: &str,
) -> Result<Option<Option<Vec<Version>>>, String> {
    let found = match open_version(part, name).await {
        Ok(None) => return Ok(Some(None)),
        Ok(Some((device, _part))) => read_all(&*device).await,
        Err(error) => Err(Ok(error)),
    };
    match found {
        Ok(found) => Ok(Some(Some(found))),
        Err(Ok(error)) => world.judge("reading a version", error, false).map(|()| None),
        Err(Err(broken)) => Err(format!("{name}: {broken}")),
    }
}

/// Compares all snapshots and clones with their legal contents.
pub async fn check_versions(world: &World, part: &log::LogPart, is_opening: bool) -> Result<(), String> {
    let names: Vec<String> = world.memory().snapshots.keys().cloned().collect();
    for name in names {
        let Some(found) = read_version(world, part, &name).await? else { continue };
        check_snapshot(world, &name, found, is_opening)?;
    }
    let names: Vec<String> = world.memory().clones.keys().cloned().collect();
    for name in names {
        let Some(found) = read_version(world, part, &name).await? else { continue };
        check_clone(world, &name, found, is_opening)?;
    }
    Ok(())
}

fn check_snapshot(
    world: &World,
    name: &str,
    found: Option<Vec<Version>>,
    is_opening: bool,
) -> Result<(), String> {
    let snapshots = &mut world.memory().snapshots;
    let known = snapshots.get_mut(name).unwrap();
    match (found, &known.contents) {
        (None, _) if known.is_made && !known.is_deleted => Err(format!("snapshot {name} is gone")),
        (None, _) => {
            snapshots.remove(name);
            Ok(())
        }
        (Some(found), Some(contents)) if found != *contents => {
            Err(format!("snapshot {name} holds {found:?}, not {contents:?}"))
        }
        // An opening decides what is there, whatever was requested before.
        (Some(found), _) if is_opening => {
            *known = Snapshot { contents: Some(found), is_made: true, is_deleted: false };
            Ok(())
        }
        (Some(found), _) => {
            known.contents = Some(found);
            Ok(())
        }
    }
}

fn check_clone(
    world: &World,
    name: &str,
    found: Option<Vec<Version>>,
    is_opening: bool,
) -> Result<(), String> {
    let clones = &mut world.memory().clones;
    let known = clones.get_mut(name).unwrap();
    let Some(found) = found else {
        let is_gone = known.is_made && !known.is_deleted;
        clones.remove(name);
        return if is_gone { Err(format!("clone {name} is gone")) } else { Ok(()) };
    };
    let broken = |broken| format!("clone {name}: {broken}");
    if is_opening {
        known.model.check_stopped(&found, known.stop).map_err(broken)?;
        known.model.restart(&found);
        (known.is_made, known.is_deleted, known.is_checked) = (true, false, true);
        return Ok(());
    }
    let began = known.model.begin();
    (0..)
        .zip(found)
        .try_for_each(|(block, found)| known.model.check_read(block, found, began))
        .map_err(broken)
}

/// Works until the clients have begun all their operations.
pub async fn operate(world: Arc<World>, part: Arc<log::LogPart>) -> Result<(), String> {
    let mut random = Random::new(world.life.seed ^ 0x0B5E);
    let mut number = 0;
    while !world.is_over() {
        let longest = 1 << (15 + random.below(7));
        runtime::sleep(Duration::from_nanos(random.below(longest))).await;
        number += 1;
        let name = format!("{}-{number}", world.life.seed);
        match random.below(100) {
            0..20 => create(&world, &part, name).await?,
            20..34 => delete(&world, &part, &mut random).await?,
            34..46 => make_clone(&world, &part, name, number << 40, &mut random).await?,
            46..85 => write_clone(&world, &part, &mut random).await?,
            85..88 => grow(&world, &part, &mut random).await?,
            _ => check_versions(&world, &part, false).await?,
        }
    }
    Ok(())
}

async fn create(world: &World, part: &log::LogPart, name: String) -> Result<(), String> {
    {
        let snapshots = &mut world.memory().snapshots;
        if snapshots.len() >= MAX_SNAPSHOTS {
            return Ok(());
        }
        snapshots.insert(name.clone(), Snapshot::default());
    }
    let began = world.model(Model::begin);
    if let Err(error) = part.message(&format!("snapshot create {name}")).await {
        return world.judge("making a snapshot", error, true);
    }
    world.memory().snapshots.get_mut(&name).unwrap().is_made = true;
    let Some(found) = read_version(world, part, &name).await? else { return Ok(()) };
    check_snapshot(world, &name, found.clone(), false)?;
    for (found, block) in found.iter().flatten().zip(0..) {
        // The volume may have grown; its clients see that only after it is opened again.
        match block < world.model(|model| model.len()) {
            true => world.model(|model| model.check_read(block, *found, began)),
            false if *found == 0 => Ok(()),
            false => Err(format!("block {block}, where nothing was written, holds {found}")),
        }
        .map_err(|broken| format!("in snapshot {name}: {broken}"))?;
    }
    Ok(())
}

async fn delete(world: &World, part: &log::LogPart, random: &mut Random) -> Result<(), String> {
    let name = {
        let operated = &mut world.memory();
        let names: Vec<String> = operated.snapshots.keys().chain(operated.clones.keys()).cloned().collect();
        if names.is_empty() {
            return Ok(());
        }
        let name = names[random.below(names.len() as u64) as usize].clone();
        if let Some(snapshot) = operated.snapshots.get_mut(&name) {
            snapshot.is_deleted = true;
        }
        if let Some(clone) = operated.clones.get_mut(&name) {
            clone.is_deleted = true;
        }
        name
    };
    // An operator who doesn't wait for the end of a deletion may find it half done at the next message.
    let patience = random.below(3_000_000) + if random.chance(0.5) { 1 << 40 } else { 0 };
    let message = format!("snapshot delete {name}");
    let Ok(outcome) = runtime::timeout(Duration::from_nanos(patience), part.message(&message)).await else {
        return check_counts(part);
    };
    match outcome {
        Ok(_) => {
            let operated = &mut world.memory();
            operated.snapshots.remove(&name);
            operated.clones.remove(&name);
        }
        Err(Error::NotFound(_)) => {}
        Err(error) => world.judge("deleting a version", error, false)?,
    }
    Ok(())
}

async fn make_clone(
    world: &World,
    part: &log::LogPart,
    name: String,
    versions: Version,
    random: &mut Random,
) -> Result<(), String> {
    let of = {
        let operated = &mut world.memory();
        let is_known = |snapshot: &Snapshot| snapshot.is_made && !snapshot.is_deleted;
        let known = operated.snapshots.iter().filter(|(_, snapshot)| is_known(snapshot));
        let known: Vec<(String, Vec<Version>)> =
            known.filter_map(|(name, snapshot)| Some((name.clone(), snapshot.contents.clone()?))).collect();
        if known.is_empty() || operated.clones.len() >= MAX_CLONES {
            return Ok(());
        }
        let (of, contents) = &known[random.below(known.len() as u64) as usize];
        let mut model = Model::new(contents.len() as u64, world.subject.is_ordered(&world.life));
        model.restart(contents);
        model.number_from(versions + 1);
        let clone =
            CloneState { model, is_made: false, is_deleted: false, stop: Stop::Orderly, is_checked: true };
        operated.clones.insert(name.clone(), clone);
        of.clone()
    };
    match part.message(&format!("snapshot clone {of} {name}")).await {
        Ok(_) => {
            world.memory().clones.get_mut(&name).unwrap().is_made = true;
            Ok(())
        }
        Err(error) => world.judge("making a clone", error, true),
    }
}

/// A few operations on a clone, one after the other.
async fn write_clone(world: &World, part: &log::LogPart, random: &mut Random) -> Result<(), String> {
    let name = {
        let clones = &world.memory().clones;
        let made: Vec<&String> = clones
            .iter()
            .filter(|(_, clone)| clone.is_made && !clone.is_deleted)
            .map(|(name, _)| name)
            .collect();
        match made.is_empty() {
            true => return Ok(()),
            false => made[random.below(made.len() as u64) as usize].clone(),
        }
    };
    let device = match open_version(part, &name).await {
        Ok(Some((device, _))) => device,
        Ok(None) => return Err(format!("clone {name} is gone")),
        Err(error) => return world.judge("opening a clone", error, false),
    };
    for _ in 0..1 + random.below(8) {
        one_operation(world, &name, &*device, random)
            .await
            .map_err(|broken| format!("clone {name}: {broken}"))?;
    }
    Ok(())
}

async fn one_operation(
    world: &World,
    name: &str,
    device: &dyn Device,
    random: &mut Random,
) -> Result<(), String> {
    let blocks = device.geometry().blocks.0;
    let count = 1 + random.below(blocks.min(8));
    let block = random.below(blocks - count + 1);
    let is_durable = random.chance(0.1);
    let durability = if is_durable { Durability::Durable } else { Durability::Visible };
    match random.below(10) {
        0..6 => {
            let (version, operation) = with_clone(world, name, |model| {
                let version = model.draw_version();
                (version, model.submit(block, count, version))
            });
            let write =
                device.write(BlockIndex(block), stamped(BLOCK, block, count, version).into(), durability);
            match write.await {
                Ok(()) => with_clone(world, name, |model| model.completed(operation, is_durable)),
                Err(error) => world.judge("a write", error, true)?,
            }
        }
        6 => {
            let operation = with_clone(world, name, |model| model.submit(block, count, 0));
            let range = BlockRange::new(block, count);
            match device.write_zeroes(range, ZeroMode::default(), durability).await {
                Ok(()) => with_clone(world, name, |model| model.completed(operation, is_durable)),
                Err(error) => world.judge("zeroes", error, false)?,
            }
        }
        7 => {
            let began = with_clone(world, name, Model::begin);
            match device.flush().await {
                Ok(()) => with_clone(world, name, |model| model.flushed(began)),
                Err(error) => world.judge("a flush", error, false)?,
            }
        }
        _ => {
            let began = with_clone(world, name, Model::begin);
            let (outcome, buffer) = device.read(BlockIndex(block), Buffer::new(count as usize * BLOCK)).await;
            if let Err(error) = outcome {
                return world.judge("a read", error, false);
            }
            for (found, block) in versions(BLOCK, block, buffer.filled())?.into_iter().zip(block..) {
                with_clone(world, name, |model| model.check_read(block, found, began))?;
            }
        }
    }
    Ok(())
}

async fn grow(world: &World, part: &log::LogPart, random: &mut Random) -> Result<(), String> {
    let blocks = {
        let operated = &mut world.memory();
        let now = operated.asked.iter().copied().max().unwrap_or(operated.blocks);
        let most = [8, 64, 1200][random.below(3) as usize];
        let blocks = now + 1 + random.below(most);
        if blocks > MAX_BLOCKS {
            return Ok(());
        }
        operated.asked.push(blocks);
        blocks
    };
    match part.message(&format!("resize {}", blocks * BLOCK as u64)).await {
        Ok(_) => {
            let operated = &mut world.memory();
            operated.blocks = blocks;
            operated.asked.retain(|asked| *asked > blocks);
            Ok(())
        }
        Err(error) => world.judge("growing", error, false),
    }
}
