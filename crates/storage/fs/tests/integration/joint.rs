//! Operations that involve several shards, in simulated worlds. Files with names in directories of all shards
//! are renamed, exchanged, linked and removed; directories are created, moved and removed; and the power is
//! cut at any time. Afterwards, each operation has taken effect as a whole or not at all, the operations on
//! each file and directory are a prefix of those submitted, and durable operations have taken effect.

use crate::world::{Setup, checked, empty, zones};
use block::{Data, Error, Part};
use conformance::Seeds;
use fs::broken::{Broken, with_broken};
use fs::core::Core;
use fs::metadata::change::Attributes;
use fs::metadata::inode::FileType;
use fs::names::namespace::Renaming;
use fs::{FileSystem, OpenOptions};
use runtime::{Random, Simulation};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// More names than a directory gets.
const UNSTRIPED: u64 = 1000;
/// Directories in the root, on all shards.
const DIRECTORIES: u64 = 6;

/// State of a file or directory: its names, and whether it has its contents.
type Shown = (BTreeSet<String>, bool);

/// A file or directory, with its successive states.
#[derive(Debug, Clone)]
struct Thing {
    is_directory: bool,
    /// Inode of a directory, once it is known.
    inode: Option<u64>,
    states: Vec<Shown>,
    /// Number of the last durable state; 0 is the state before creation.
    durable: usize,
}

impl Thing {
    fn names(&self) -> &BTreeSet<String> {
        &self.states.last().unwrap().0
    }

    /// Adds a state with one name removed, one added, or both.
    fn rename(&mut self, old: Option<&str>, new: Option<&str>) {
        let (mut names, is_full) = self.states.last().unwrap().clone();
        old.map(|old| names.remove(old));
        new.map(|new| names.insert(new.to_owned()));
        self.states.push((names, is_full));
    }
}

/// An operation that changed two things: for each, its index and the number of its state afterwards.
type Pair = [(usize, usize); 2];

/// Operations of a client.
#[derive(Debug, Clone, Default)]
struct History {
    things: Vec<Thing>,
    pairs: Vec<Pair>,
}

impl History {
    fn durable(&mut self, numbers: &[usize]) {
        self.things.iter_mut().zip(numbers).for_each(|(thing, number)| thing.durable = *number);
    }

    fn numbers(&self) -> Vec<usize> {
        self.things.iter().map(|thing| thing.states.len() - 1).collect()
    }

    /// Checks that the found states result from a set of whole operations.
    fn check(&self, found: &BTreeMap<usize, Shown>) -> Result<(), String> {
        let nothing = (BTreeSet::new(), false);
        let mut possible: Vec<BTreeSet<usize>> = Vec::new();
        for (number, thing) in self.things.iter().enumerate() {
            let shown = found.get(&number).unwrap_or(&nothing);
            // The contents of a file without names don't matter.
            let is_alike = |state: &Shown| state.0 == shown.0 && (shown.0.is_empty() || state.1 == shown.1);
            let states = (thing.durable..thing.states.len()).filter(|state| is_alike(&thing.states[*state]));
            possible.push(states.collect());
            if possible[number].is_empty() {
                return Err(format!("thing {number} shows {shown:?}: {thing:?}"));
            }
        }
        // An operation on two things has taken effect on both or on none.
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for [(one, after), (other, then)] in self.pairs.iter().flat_map(|[a, b]| [[*a, *b], [*b, *a]]) {
                let before: usize = possible.iter().map(BTreeSet::len).sum();
                if possible[one].iter().all(|state| *state >= after) {
                    possible[other].retain(|state| *state >= then);
                }
                if possible[one].iter().all(|state| *state < after) {
                    possible[other].retain(|state| *state < then);
                }
                if possible[other].is_empty() {
                    return Err(format!(
                        "one of two things has an operation, and the other hasn't: {one} and {other}: {found:?}: {self:?}"
                    ));
                }
                changed |= possible.iter().map(BTreeSet::len).sum::<usize>() != before;
            }
        }
        Ok(())
    }
}

fn contents(client: usize, thing: usize) -> Data {
    Data::copy_of(format!("client {client} thing {thing}").as_bytes())
}

/// A client with its things.
struct Client {
    files: FileSystem,
    number: usize,
    history: Rc<RefCell<Vec<History>>>,
    random: Random,
    names: u64,
}

impl Client {
    fn history<R>(&self, work: impl FnOnce(&mut History) -> R) -> R {
        work(&mut self.history.borrow_mut()[self.number])
    }

    /// Returns a name that wasn't used before.
    fn name(&mut self, thing: usize) -> String {
        self.names += 1;
        let directory = self.random.below(DIRECTORIES);
        format!("/d{directory}/c{}t{thing}n{}", self.number, self.names)
    }

    /// Draws a thing that has a name. Returns it with the name.
    fn draw(&mut self, is_directory: Option<bool>) -> Option<(usize, String)> {
        let named: Vec<(usize, String)> = self.history(|history| {
            let things = history.things.iter().enumerate();
            things
                .filter(|(_, thing)| is_directory.is_none_or(|wanted| thing.is_directory == wanted))
                .flat_map(|(number, thing)| thing.names().iter().map(move |name| (number, name.clone())))
                .collect()
        });
        let at = self.random.below(named.len().max(1) as u64) as usize;
        named.get(at).cloned()
    }

    async fn make(&mut self) -> Result<(), Error> {
        let number = self.history(|history| history.things.len());
        let (name, is_directory) = (self.name(number), self.random.chance(0.3));
        self.history(|history| {
            let states = vec![(BTreeSet::new(), false), (BTreeSet::from([name.clone()]), is_directory)];
            history.things.push(Thing { is_directory, inode: None, states, durable: 0 });
        });
        if is_directory {
            self.files.make_directory(&name).await?;
            let (directory, own) = name.rsplit_once('/').unwrap();
            let entries = self.files.read_directory(directory).await?;
            let entry = entries.iter().find(|entry| entry.name == own.as_bytes());
            let inode = entry.map(|entry| entry.inode);
            self.history(|history| history.things[number].inode = inode);
            return Ok(());
        }
        let options = OpenOptions { create_new: true, ..OpenOptions::default() };
        let file = self.files.open_file(&name, options).await?;
        self.history(|history| {
            let states = &mut history.things[number].states;
            states.push((states.last().unwrap().0.clone(), true));
        });
        file.write_at(0, contents(self.number, number)).await
    }

    async fn step(&mut self) -> Result<(), Error> {
        match self.random.below(10) {
            0 | 1 => self.make().await,
            2..5 => {
                let Some((thing, old)) = self.draw(None) else { return Ok(()) };
                let new = self.name(thing);
                self.history(|history| history.things[thing].rename(Some(&old), Some(&new)));
                let renaming = if self.random.chance(0.5) { Renaming::Replace } else { Renaming::NoReplace };
                self.files.rename(&old, &new, renaming).await
            }
            5 => {
                let Some((thing, old)) = self.draw(Some(false)) else { return Ok(()) };
                let new = self.name(thing);
                self.history(|history| history.things[thing].rename(None, Some(&new)));
                self.files.link(&old, &new).await
            }
            6 => {
                let Some((thing, old)) = self.draw(None) else { return Ok(()) };
                let is_directory = self.history(|history| {
                    history.things[thing].rename(Some(&old), None);
                    history.things[thing].is_directory
                });
                match is_directory {
                    true => self.files.remove_directory(&old).await,
                    false => self.files.unlink(&old).await,
                }
            }
            7 | 8 => {
                // One thing replaces another.
                let is_directory = self.random.chance(0.3);
                let (Some((one, old)), Some((other, new))) =
                    (self.draw(Some(is_directory)), self.draw(Some(is_directory)))
                else {
                    return Ok(());
                };
                if one == other {
                    return Ok(());
                }
                let exchanges = self.random.chance(0.5);
                self.history(|history| {
                    history.things[one].rename(Some(&old), Some(&new));
                    history.things[other].rename(Some(&new), exchanges.then_some(&*old));
                    let state = |thing: usize| history.things[thing].states.len() - 1;
                    let pair = [(one, state(one)), (other, state(other))];
                    history.pairs.push(pair);
                });
                let renaming = if exchanges { Renaming::Exchange } else { Renaming::Replace };
                self.files.rename(&old, &new, renaming).await
            }
            _ => {
                let numbers = self.history(|history| history.numbers());
                self.files.sync().await?;
                self.history(|history| history.durable(&numbers));
                Ok(())
            }
        }
    }
}

/// Returns the states of the things of each client. Directories are identified by their names.
async fn look(files: &FileSystem, histories: &[History]) -> Result<Vec<BTreeMap<usize, Shown>>, Error> {
    let mut found: Vec<BTreeMap<usize, Shown>> = vec![BTreeMap::new(); histories.len()];
    for directory in 0..DIRECTORIES {
        for entry in files.read_directory(&format!("/d{directory}")).await? {
            let name = String::from_utf8(entry.name).unwrap();
            let path = format!("/d{directory}/{name}");
            let client: usize = name[1..].split('t').next().unwrap().parse().unwrap();
            // Thing for which the name was first created.
            let first_thing = || name.split(['t', 'n']).nth(1).unwrap().parse::<usize>().unwrap();
            let attributes = files.attributes(&path).await?;
            let (thing, is_full) = match attributes.file_type() {
                FileType::Directory => {
                    let known =
                        histories[client].things.iter().position(|thing| thing.inode == Some(entry.inode));
                    (known.unwrap_or_else(first_thing), true)
                }
                _ => {
                    let file = files.open_file(&path, OpenOptions::default()).await?;
                    let data = file.read_at(0, 100).await?.to_data();
                    let text = String::from_utf8_lossy(&data[..]).into_owned();
                    match text.split_once(" thing ") {
                        Some((_, thing)) => (thing.parse().unwrap(), true),
                        // The power was cut before its contents were written: the first name identifies it.
                        None => (first_thing(), false),
                    }
                }
            };
            let shown = found[client].entry(thing).or_insert_with(|| (BTreeSet::new(), is_full));
            shown.0.insert(path);
        }
    }
    Ok(found)
}

fn world(seed: u64, stripe_above: u64) -> Result<(), String> {
    world_of(seed, stripe_above, 60_000_000)
}

fn broken_world(seed: u64, stripe_above: u64, broken: Broken) -> Result<(), String> {
    // Operations that don't check again may retry forever, which is also detected.
    with_broken([broken], || world_of(seed, stripe_above, 500_000))
}

fn world_of(seed: u64, stripe_above: u64, most_events: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let clients = 1 + random.below(3) as usize;
    let setup = Setup {
        disk: 24 << 20,
        zone: 128 << 10,
        shards: 2 + random.below(2) as u32,
        slow: if random.chance(0.5) { 0.1 } else { 0.0 },
        stripe_above,
        ..Setup::draw(&mut random)
    };
    let operations = random.below(150);
    let shift = 20 + random.below(8);
    let cut_after = Duration::from_nanos(random.below(1 << shift));
    let checkpoints = random.chance(0.5);
    let simulation =
        |seed: u64| Simulation { trace_lines: 0, most_events: 60_000_000, ..Simulation::new(seed) };
    let life = move || async move {
        let files = setup.format().await?;
        for directory in 0..DIRECTORIES {
            files.make_directory(&format!("/d{directory}")).await?;
        }
        files.sync().await?;
        let history = Rc::new(RefCell::new(vec![History::default(); clients]));
        let mut running = Vec::new();
        for number in 0..clients {
            let random = Random::new(seed ^ (number as u64 + 1).wrapping_mul(0x9E37_79B9));
            let mut client =
                Client { files: files.clone(), number, history: history.clone(), random, names: 0 };
            running.push(async move {
                for _ in 0..operations {
                    client.step().await?;
                    if checkpoints && client.random.chance(0.05) {
                        client.files.take_checkpoint().await?;
                    }
                }
                Ok::<_, Error>(())
            });
        }
        let all = runtime::join_all(running);
        if let Ok(ended) = runtime::timeout(cut_after, all).await {
            ended.into_iter().collect::<Result<(), Error>>()?;
        }
        Ok::<_, Error>((runtime::power_cut(), history.take()))
    };
    let faults = runtime::SimulatedFaults { slow: setup.slow, ..Default::default() };
    let mut before = simulation(seed).with_files(empty(setup.disk)).with_faults(faults);
    before.most_events = most_events;
    let cut = runtime::simulate(before, life).map_err(|error| error.to_string())?;
    let (disk, histories) = cut.value.map_err(|error| format!("before the power cut: {error}"))?;
    let known = histories.clone();
    let after = move || async move {
        let zones = zones(None).await?;
        let report = checked(&zones).await?;
        if !report.is_sound() {
            return Err(Error::corrupt(format!("after the power cut: {report:?}")));
        }
        zones.close().await?;
        let files = Setup { shards: 1 + (seed % 3) as u32, ..setup }.open().await?;
        let found = look(&files, &known).await?;
        let report = files.check().await?;
        files.close().await?;
        match report.is_sound() {
            true => Ok(found),
            false => Err(Error::corrupt(format!("after it was opened: {report:?}"))),
        }
    };
    let found =
        runtime::simulate(simulation(seed).with_files(disk), after).map_err(|error| error.to_string())?;
    let found = found.value.map_err(|error| error.to_string())?;
    for (client, (history, found)) in histories.iter().zip(&found).enumerate() {
        history.check(found).map_err(|error| format!("client {client}: {error}"))?;
    }
    Ok(())
}

#[test]
fn operations_of_several_shards_are_there_as_a_whole_or_not_at_all() {
    hold(UNSTRIPED);
}

#[test]
fn operations_in_directories_that_become_striped_are_there_as_a_whole_or_not_at_all() {
    hold(3);
}

fn hold(stripe_above: u64) {
    for seed in Seeds::within(2, 600) {
        world(seed, stripe_above).unwrap_or_else(|error| panic!("SILTSTONE_SEED={seed}: {error}"));
    }
}

#[test]
fn operations_that_are_a_record_for_each_core_are_noticed() {
    let noticed = (1..200).find(|seed| broken_world(*seed, UNSTRIPED, Broken::SplitsOperations).is_err());
    assert!(noticed.is_some(), "it isn't noticed");
    println!("noticed with seed {noticed:?}");
}

#[test]
fn directories_that_damage_has_put_below_each_other_are_refused() {
    let setup = Setup { disk: 24 << 20, shards: 3, ..Setup::draw_shards(&mut Random::new(1)) };
    let main = move || async move {
        let files = setup.format().await.unwrap();
        for path in ["/0", "/1", "/0/moved"] {
            files.make_directory(path).await.unwrap();
        }
        let mut numbers = [0; 2];
        for entry in files.read_directory("/").await.unwrap() {
            numbers[usize::from(entry.name[..] == *b"1")] = entry.inode;
        }
        for (inode, parent) in [(numbers[0], numbers[1]), (numbers[1], numbers[0])] {
            let attributes = Attributes { parent: Some(parent), ..Attributes::default() };
            let set = move |core: Rc<Core>| async move { core.set_attributes(inode, attributes).await };
            files.shards().of(inode).with(set).await.unwrap();
        }
        let moved = files.rename("/0/moved", "/1/moved", Renaming::Replace).await;
        assert!(matches!(moved, Err(Error::Corrupt(_))), "{moved:?}");
        assert!(files.attributes("/0/moved").await.is_ok());
    };
    let world = Simulation { trace_lines: 0, ..Simulation::new(1) }.with_shards(3);
    runtime::simulate(world.with_files(empty(setup.disk)), main).unwrap();
}

/// Violates an invariant, which must be detected with striped directories.
fn is_noticed(broken: Broken) {
    let noticed = (1..400).find_map(|seed| broken_world(seed, 3, broken).err().map(|error| (seed, error)));
    println!("{broken:?}: {noticed:?}");
    assert!(noticed.is_some(), "it isn't noticed");
}

#[test]
fn striping_that_is_a_record_for_each_core_is_noticed() {
    is_noticed(Broken::SplitsOperations);
}

#[test]
fn names_that_are_copied_while_others_change_them_are_noticed() {
    is_noticed(Broken::StripesUnlocked);
}

#[test]
fn operations_that_do_not_look_again_for_stripes_are_noticed() {
    is_noticed(Broken::ForgetsStripes);
}
