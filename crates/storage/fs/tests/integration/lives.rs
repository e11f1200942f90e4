//! File systems in simulated worlds. Clients carry out operations drawn from a seed, with a model for each
//! client. The file system is closed and reopened, killed, or reopened after power cuts at any time. Each
//! client's directory must then show the state after a prefix of its operations that includes all durable
//! ones. The checker must find no problem in any epoch.
//!
//! In some epochs the medium fails: operations may fail, and the clients stop; data that is read must still
//! be right.

use crate::model::{Bytes, Model, Operation, Shown, View, apply, draw, is_alike, is_of_medium, view_of};
use crate::world::{Files, Setup, checked, empty, zones};
use block::{Error, Part};
use conformance::Seeds;
use fs::names::namespace::Renaming;
use fs::{File, FileSystem, OpenOptions};
use runtime::{Random, SimulatedFaults, Simulation};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// End of an epoch, unless the power is cut before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Cut,
    Killed,
}

/// Parameters of an epoch.
#[derive(Debug, Clone, Copy)]
struct Life {
    seed: u64,
    operations: u64,
    end: End,
    cut_after: Option<Duration>,
    faults: SimulatedFaults,
}

impl Life {
    fn draw(random: &mut Random, setup: Setup, may_fail: bool) -> Self {
        let shift = 18 + random.below(13);
        let mut faults = SimulatedFaults { slow: setup.slow, ..SimulatedFaults::default() };
        if may_fail && random.chance(0.4) {
            let mut fault = |probability: f64| if random.chance(0.5) { probability } else { 0.0 };
            faults = SimulatedFaults {
                read_error: fault(0.005),
                write_error: fault(0.005),
                sync_error: fault(0.01),
                short: fault(0.05),
                slow: fault(0.02),
            };
        }
        let life = Life {
            seed: random.next_u64(),
            operations: random.below(250),
            end: [End::Closed, End::Cut, End::Killed][random.below(3) as usize],
            cut_after: random.chance(0.6).then(|| Duration::from_nanos(random.below(1 << shift))),
            faults,
        };
        match setup.is_closed {
            true => Life { end: End::Closed, cut_after: None, ..life },
            false => life,
        }
    }

    fn may_fail(&self) -> bool {
        let SimulatedFaults { read_error, write_error, sync_error, .. } = self.faults;
        read_error + write_error + sync_error > 0.0
    }
}

/// States that a client's directory may have; the first one is durable.
#[derive(Debug, Clone)]
struct States {
    /// Number of the first state.
    first: u64,
    states: Vec<Model>,
    /// Number of the newest acknowledged state.
    acknowledged: u64,
    /// Number of snapshots that are being taken and may show any of the states.
    pins: u64,
    /// Number of the newest durable state.
    durable: u64,
}

impl States {
    fn of(model: Model) -> Self {
        States { first: 0, states: vec![model], acknowledged: 0, pins: 0, durable: 0 }
    }

    fn newest(&self) -> &Model {
        self.states.last().unwrap()
    }

    fn begin(&mut self, next: Model) {
        self.states.push(next);
    }

    fn done(&mut self) {
        self.acknowledged = self.first + self.states.len() as u64 - 1;
    }

    /// Notes that the states up to this number are durable.
    fn durable(&mut self, number: u64) {
        self.durable = self.durable.max(number);
        if self.pins == 0 {
            let fewer = self.durable.saturating_sub(self.first) as usize;
            self.states.drain(..fewer);
            self.first += fewer as u64;
        }
    }

    /// States that may be found.
    fn possible(&self) -> &[Model] {
        &self.states[self.durable.saturating_sub(self.first) as usize..]
    }

    /// States with this number or later ones.
    fn since(&self, number: u64) -> Vec<Model> {
        self.states[(number - self.first) as usize..].to_vec()
    }

    fn unpin(&mut self) {
        self.pins -= 1;
        self.durable(0);
    }
}

/// Expected state of a snapshot.
#[derive(Debug, Clone)]
struct Taken {
    name: String,
    /// Whether the snapshot must exist; if false, it may exist.
    is_sure: bool,
    /// Whether a task is taking, reading or deleting the snapshot.
    is_busy: bool,
    /// While the snapshot is being taken: number of the state that was acknowledged before, for each client.
    since: Vec<u64>,
    /// States that the snapshot may show, for each client.
    states: Vec<Vec<Model>>,
}

/// Expected state of a file system after an epoch.
struct Left {
    files: Files,
    clients: Vec<States>,
    taken: Vec<Taken>,
}

type Outcome<T> = Result<T, String>;

/// An open file without names, and its contents.
type Handle = (File, Vec<u8>);

/// A file system in an epoch, with its expected state.
struct Alive {
    setup: Setup,
    life: Life,
    files: FileSystem,
    clients: Rc<RefCell<Vec<States>>>,
    taken: Rc<RefCell<Vec<Taken>>>,
}

impl Alive {
    /// Whether an error may be caused by a fault of the medium.
    fn is_excused(&self, error: &Error) -> bool {
        self.life.may_fail() && is_of_medium(error)
    }

    async fn sync(&self) -> Outcome<bool> {
        let numbers: Vec<u64> = self.clients.borrow().iter().map(|client| client.acknowledged).collect();
        match self.files.sync().await {
            Ok(()) => {
                let mut clients = self.clients.borrow_mut();
                clients.iter_mut().zip(numbers).for_each(|(client, number)| client.durable(number));
                Ok(true)
            }
            Err(error) if self.is_excused(&error) => match self.files.sync().await {
                Err(_) => Ok(false),
                Ok(()) => Err(format!("a sync succeeds after one that failed: {error}")),
            },
            Err(error) => Err(format!("sync: {error}")),
        }
    }

    /// Carries out an operation of a client. Returns false if the medium has failed.
    async fn carry_out(&self, client: usize, operation: &Operation) -> Outcome<bool> {
        let mut next = self.clients.borrow()[client].newest().clone();
        if !next.is_atomic(operation) {
            return Ok(true);
        }
        let expected = next.apply(operation);
        if expected.is_ok() {
            self.clients.borrow_mut()[client].begin(next);
        }
        let done = apply(&self.files, &format!("/c{client}"), operation).await;
        let states = &mut self.clients.borrow_mut()[client];
        match done {
            _ if is_alike(&expected, &done) => {
                if expected.is_ok() {
                    states.done();
                }
                Ok(true)
            }
            Err(Error::NoSpace(_)) if !operation.needs_no_space() => {
                // The operation changed nothing.
                if expected.is_ok() {
                    states.states.pop();
                }
                Ok(true)
            }
            // The operation may have taken effect.
            Err(error) if self.is_excused(&error) => Ok(false),
            done => Err(format!("client {client}: {operation:?}: {done:?}, expected {expected:?}")),
        }
    }

    /// Creates a file, keeps it open, and removes its name. Returns `None` if there was no space, or the
    /// medium has failed.
    async fn open_unlinked(&self, client: usize, number: u64) -> Outcome<Option<Handle>> {
        let name = format!("/open{number}");
        let data = Bytes::draw(9000, number);
        let before = self.clients.borrow()[client].newest().view();
        if !self.carry_out(client, &Operation::Create(name.clone())).await?
            || !self.carry_out(client, &Operation::Write(name.clone(), 100, data)).await?
        {
            return Ok(None);
        }
        let view = self.clients.borrow()[client].newest().view();
        let Some(Shown::File { contents, .. }) = view.get(&name).filter(|_| !before.contains_key(&name))
        else {
            return Ok(None);
        };
        let opened = self.files.open_file(&format!("/c{client}{name}"), OpenOptions::default()).await;
        let file = match opened {
            Ok(file) => file,
            Err(error) if self.is_excused(&error) => return Ok(None),
            Err(error) => return Err(format!("opening {name}: {error}")),
        };
        match self.carry_out(client, &Operation::Unlink(name)).await? {
            true => Ok(Some((file, contents.to_vec()))),
            false => Ok(None),
        }
    }

    /// Writes to files without names and reads them.
    async fn use_unlinked(&self, handles: &mut [Handle], number: u64) -> Outcome<bool> {
        for (file, contents) in handles {
            let offset = (number % 5 * 3000) as usize;
            let mut data = vec![0; 3000];
            Random::new(number).fill(&mut data);
            match file.write_at(offset as u64, block::Data::copy_of(&data)).await {
                Ok(()) => {
                    contents.resize(contents.len().max(offset + data.len()), 0);
                    contents[offset..offset + data.len()].copy_from_slice(&data);
                }
                Err(Error::NoSpace(_)) => {}
                Err(error) if self.is_excused(&error) => return Ok(false),
                Err(error) => return Err(format!("writing to a file without a name: {error}")),
            }
            match file.read_at(0, contents.len() + 1).await {
                Ok(found) if found.to_data()[..] == contents[..] => {}
                Ok(_) => return Err("a file without a name has other contents".to_owned()),
                Err(error) if self.is_excused(&error) => return Ok(false),
                Err(error) => return Err(format!("reading a file without a name: {error}")),
            }
        }
        Ok(true)
    }

    /// Carries out operations on names faster than their records are written.
    async fn burst(&self, client: usize, number: u64, random: &mut Random) -> Outcome<bool> {
        let name = |number: u64| format!("/burst{}", number % 7);
        for at in 0..10 + random.below(40) {
            let operation = match random.below(6) {
                0 => Operation::Create(name(number + at)),
                1 => Operation::Link(name(number + at), name(number + random.below(7))),
                2 => Operation::Unlink(name(number + at)),
                3 => draw(random, self.life.seed.wrapping_add(number), self.setup.blocks).of_names(),
                _ => Operation::Rename(name(number + at), name(number + at + 1), Renaming::Replace),
            };
            if random.chance(0.02) {
                let files = self.files.clone();
                runtime::spawn(async move { files.take_checkpoint().await.ok() }).detach();
                runtime::yield_now().await;
            }
            if !self.carry_out(client, &operation).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes a snapshot, which must show a state of each client during this call.
    async fn take_snapshot(&self, name: String) -> Outcome<bool> {
        let pin = |client: &mut States| {
            client.pins += 1;
            client.acknowledged
        };
        let since: Vec<u64> = self.clients.borrow_mut().iter_mut().map(pin).collect();
        self.taken.borrow_mut().push(Taken {
            name: name.clone(),
            is_sure: false,
            is_busy: true,
            since: since.clone(),
            states: Vec::new(),
        });
        let made = self.files.create_snapshot(&name).await;
        let mut clients = self.clients.borrow_mut();
        let states = clients.iter().zip(since).map(|(client, since)| client.since(since)).collect();
        clients.iter_mut().for_each(States::unpin);
        let mut taken = self.taken.borrow_mut();
        let at = taken.iter().position(|taken| taken.name == name).unwrap();
        let (since, is_sure) = (Vec::new(), made.is_ok());
        taken[at] = Taken { name, is_sure, is_busy: false, since, states };
        match made {
            Ok(_) => Ok(true),
            Err(Error::NoSpace(_)) => {
                taken.remove(at);
                Ok(true)
            }
            Err(error) if self.is_excused(&error) => Ok(false),
            Err(error) => Err(format!("taking a snapshot: {error}")),
        }
    }

    /// Marks an idle snapshot as busy. Returns its name.
    fn occupy(&self, number: u64) -> Option<String> {
        let mut taken = self.taken.borrow_mut();
        let mut idle: Vec<&mut Taken> = taken.iter_mut().filter(|it| it.is_sure && !it.is_busy).collect();
        let count = idle.len() as u64;
        let it = idle.get_mut((number % count.max(1)) as usize)?;
        it.is_busy = true;
        Some(it.name.clone())
    }

    fn release(&self, name: &str) {
        let mut taken = self.taken.borrow_mut();
        taken.iter_mut().filter(|taken| taken.name == name).for_each(|taken| taken.is_busy = false);
    }

    async fn delete_snapshot(&self, name: &str) -> Outcome<bool> {
        let unsure = |taken: &mut Taken| taken.is_sure = taken.is_sure && taken.name != name;
        self.taken.borrow_mut().iter_mut().for_each(unsure);
        match self.files.delete_snapshot(name).await {
            Ok(()) => {
                self.taken.borrow_mut().retain(|taken| taken.name != name);
                Ok(true)
            }
            Err(error) if self.is_excused(&error) => Ok(false),
            Err(error) => Err(format!("deleting a snapshot: {error}")),
        }
    }

    async fn use_snapshots(&self, number: u64, random: &mut Random) -> Outcome<bool> {
        let choice = random.below(8);
        if choice < 4 && self.taken.borrow().len() < 6 {
            return self.take_snapshot(format!("s{}-{number}", random.below(1 << 40))).await;
        }
        let Some(name) = self.occupy(random.next_u64() >> 1) else { return Ok(true) };
        if choice < 6 {
            return self.delete_snapshot(&name).await;
        }
        let read = read_snapshot(&self.files, &self.taken, &name, self.life).await;
        self.release(&name);
        read
    }

    async fn client(&self, client: usize) -> Outcome<()> {
        let mut random = Random::new(self.life.seed ^ (client as u64 + 1).wrapping_mul(0x9E37_79B9));
        let mut handles = Vec::new();
        for number in 0..self.life.operations {
            if random.chance(0.05) && !self.sync().await? {
                return Ok(());
            }
            if random.chance(0.02)
                && let Some(handle) = self.open_unlinked(client, number).await?
            {
                handles.push(handle);
            }
            if random.chance(0.1) && !self.use_unlinked(&mut handles, number).await? {
                return Ok(());
            }
            if random.chance(0.03) {
                handles.clear();
            }
            if random.chance(self.setup.checkpoints) {
                let files = self.files.clone();
                // This fails if the disk is full.
                runtime::spawn(async move { files.take_checkpoint().await.ok() }).detach();
            }
            if random.chance(self.setup.snapshots) && !self.use_snapshots(number, &mut random).await? {
                return Ok(());
            }
            if random.chance(self.setup.bursts) && !self.burst(client, number, &mut random).await? {
                return Ok(());
            }
            let drawn = draw(&mut random, self.life.seed.wrapping_add(number), self.setup.blocks);
            if !self.carry_out(client, &drawn).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Compares the contents of the file system with the newest states.
    async fn compare(&self) -> Outcome<()> {
        for client in 0..self.setup.clients as usize {
            let expected = self.clients.borrow()[client].newest().view();
            match view_of(&self.files, &format!("/c{client}")).await {
                Ok(found) if found == expected => {}
                Ok(found) => {
                    return Err(format!("client {client}: shows {}", difference(&found, &expected)));
                }
                Err(error) => return Err(format!("client {client}: reading: {error}")),
            }
        }
        let names: Vec<String> = self.taken.borrow().iter().map(|taken| taken.name.clone()).collect();
        for name in names {
            read_snapshot(&self.files, &self.taken, &name, self.life).await?;
        }
        self.check().await
    }

    async fn check(&self) -> Outcome<()> {
        let report = self.files.check().await.map_err(|error| format!("checking: {error}"))?;
        match report.is_sound() && report.excluded_zones == 0 {
            true => Ok(()),
            false => Err(format!("while it is open: {report:?}")),
        }
    }

    async fn run(&self) -> Outcome<()> {
        let clients = (0..self.setup.clients as usize).map(|client| self.client(client));
        for ended in runtime::join_all(clients).await {
            ended?;
        }
        if self.life.may_fail() {
            // The medium may have failed; an epoch without faults follows.
            return Ok(());
        }
        self.compare().await?;
        if self.life.end == End::Closed {
            let acknowledged: Vec<u64> = self.clients.borrow().iter().map(|it| it.acknowledged).collect();
            self.files.close().await.map_err(|error| format!("closing: {error}"))?;
            let mut clients = self.clients.borrow_mut();
            clients.iter_mut().zip(acknowledged).for_each(|(client, number)| client.durable(number));
        }
        Ok(())
    }
}

/// Creates the file system with a directory for each client.
async fn format(setup: Setup) -> block::Result<FileSystem> {
    let files = setup.format().await?;
    for client in 0..setup.clients {
        files.make_directory(&format!("/c{client}")).await?;
    }
    files.sync().await?;
    Ok(files)
}

/// Reads a snapshot, and compares it with its possible states. Afterwards, one state of each client is
/// possible. Returns false if the medium has failed.
async fn read_snapshot(
    files: &FileSystem,
    taken: &RefCell<Vec<Taken>>,
    name: &str,
    life: Life,
) -> Outcome<bool> {
    let view = files.snapshot(name).await.map_err(|error| format!("snapshot {name}: {error}"))?;
    let known = taken.borrow().iter().find(|taken| taken.name == name).cloned().unwrap();
    let mut matched = Vec::new();
    for (client, states) in known.states.iter().enumerate() {
        let found = match view_of(&view, &format!("/c{client}")).await {
            Ok(found) => found,
            Err(error) if life.may_fail() && is_of_medium(&error) => return Ok(false),
            Err(error) => return Err(format!("snapshot {name}, client {client}: reading: {error}")),
        };
        let model =
            matching(states, &found).map_err(|error| format!("snapshot {name}, client {client}: {error}"))?;
        matched.push(vec![model]);
    }
    let mut taken = taken.borrow_mut();
    taken.iter_mut().filter(|it| it.name == name).for_each(|it| {
        (it.states, it.is_sure) = (matched.clone(), true);
    });
    Ok(true)
}

/// Compares the existing snapshots with the expected ones.
async fn find_snapshots(files: &FileSystem, taken: &RefCell<Vec<Taken>>, life: Life) -> Outcome<bool> {
    let found = files.snapshots().await.map_err(|error| format!("listing snapshots: {error}"))?;
    let is_there = |name: &str| found.iter().any(|info| info.name == name);
    if let Some(lost) = taken.borrow().iter().find(|it| it.is_sure && !is_there(&it.name)) {
        return Err(format!("snapshot {} isn't there any more", lost.name));
    }
    taken.borrow_mut().retain(|it| is_there(&it.name));
    for info in &found {
        if !taken.borrow().iter().any(|it| it.name == info.name) {
            return Err(format!("snapshot {} shouldn't be there", info.name));
        }
        if !read_snapshot(files, taken, &info.name, life).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Opens the file system, after the checker has found no problem, and determines the states of the clients'
/// directories.
async fn open(
    setup: Setup,
    life: Life,
    clients: &Rc<RefCell<Vec<States>>>,
    taken: &Rc<RefCell<Vec<Taken>>>,
) -> Outcome<Option<FileSystem>> {
    if !life.may_fail() {
        let zones = zones(None).await.map_err(|error| format!("opening the zones: {error}"))?;
        let report = checked(&zones).await.map_err(|error| format!("checking: {error}"))?;
        if !report.is_sound() {
            return Err(format!("before it is opened: {report:?}"));
        }
        zones.close().await.map_err(|error| format!("closing the zones: {error}"))?;
    }
    let files = match setup.open().await {
        Ok(files) => files,
        Err(_) if life.may_fail() => return Ok(None),
        Err(error) => return Err(format!("opening: {error}")),
    };
    for client in 0..setup.clients as usize {
        let found = match view_of(&files, &format!("/c{client}")).await {
            Ok(found) => found,
            Err(error) if life.may_fail() && is_of_medium(&error) => return Ok(None),
            Err(error) => return Err(format!("client {client}: reading: {error}")),
        };
        let model = matching(clients.borrow()[client].possible(), &found)
            .map_err(|error| format!("client {client}: {error}"))?;
        clients.borrow_mut()[client] = States::of(model);
    }
    if !find_snapshots(&files, taken, life).await? {
        return Ok(None);
    }
    if !life.may_fail() {
        no_orphans(&files).await?;
    }
    Ok(Some(files))
}

/// Waits until files without names have been removed.
async fn no_orphans(files: &FileSystem) -> Outcome<()> {
    for _ in 0..100 {
        let report = files.check().await.map_err(|error| format!("checking: {error}"))?;
        if !report.is_sound() {
            return Err(format!("after it was opened: {report:?}"));
        }
        if report.orphans == 0 {
            return Ok(());
        }
        runtime::sleep(Duration::from_millis(10)).await;
    }
    Err("files without names stay after it was opened".to_owned())
}

/// Runs one epoch. Returns `None` if it ended before the file system was created.
fn live(setup: Setup, life: Life, left: Option<Left>) -> Outcome<Option<Left>> {
    let is_new = left.is_none();
    let (before, known, taken) = match left {
        Some(left) => (left.files, left.clients, left.taken),
        None => (empty(setup.disk), vec![States::of(Model::default()); setup.clients as usize], Vec::new()),
    };
    let main = move || async move {
        let clients = Rc::new(RefCell::new(known));
        let is_made = Rc::new(Cell::new(!is_new));
        let taken = Rc::new(RefCell::new(taken));
        let (all, made, snapshots) = (clients.clone(), is_made.clone(), taken.clone());
        let living = async move {
            let files = match is_new {
                true => match format(setup).await {
                    Ok(files) => files,
                    Err(_) if life.may_fail() => return Ok(()),
                    Err(error) => return Err(format!("formatting: {error}")),
                },
                false => match open(setup, life, &all, &snapshots).await? {
                    Some(files) => files,
                    None => return Ok(()),
                },
            };
            made.set(true);
            Alive { setup, life, files, clients: all, taken: snapshots }.run().await
        };
        let (ended, was_cut) = match life.cut_after {
            Some(time) => match runtime::timeout(time, living).await {
                Ok(ended) => (ended, false),
                Err(_) => (Ok(()), true),
            },
            None => (living.await, false),
        };
        // A killed process leaves all data that it has written to the kernel, as the world returns it.
        let is_killed = life.end == End::Killed || life.end == End::Closed && !was_cut;
        let files = (!is_killed).then(runtime::power_cut);
        let (clients, mut taken) = (clients.take(), taken.take());
        for it in &mut taken {
            if !it.since.is_empty() {
                it.states =
                    clients.iter().zip(&it.since).map(|(client, since)| client.since(*since)).collect();
                it.since.clear();
            }
            it.is_busy = false;
        }
        (ended, files, is_made.get().then_some((clients, taken)))
    };
    let world = Simulation { most_events: 60_000_000, trace_lines: 0, ..Simulation::new(life.seed) };
    let world = world.with_files(before).with_faults(life.faults);
    let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime::simulate(world, main)));
    let simulated = run.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        format!(
            "panic: {}",
            text.or(panic.downcast_ref::<&str>().map(|it| (*it).to_owned())).unwrap_or_default()
        )
    })?;
    let simulated = simulated.map_err(|error| error.to_string())?;
    let (ended, files, clients) = simulated.value;
    ended.map(|()| {
        clients.map(|(clients, taken)| Left { files: files.unwrap_or(simulated.files), clients, taken })
    })
}

/// Returns the newest of these states with this view.
fn matching(states: &[Model], found: &View) -> Outcome<Model> {
    let matching = states.iter().rev().find(|state| state.view() == *found);
    matching.cloned().ok_or_else(|| {
        let first = states.first().map(Model::view).unwrap_or_default();
        let last = states.last().map(Model::view).unwrap_or_default();
        format!(
            "shows what none of {} states does; other than the durable one: {}; than the last one: {}",
            states.len(),
            difference(found, &first),
            difference(found, &last)
        )
    })
}

pub fn difference(found: &View, expected: &View) -> String {
    let short = |shown: Option<&Shown>| match shown {
        Some(Shown::File { contents, links, attributes }) => {
            format!("{} bytes, {links} links, {} attributes", contents.len(), attributes.len())
        }
        other => format!("{other:?}"),
    };
    let paths: std::collections::BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    let differing = paths.into_iter().filter(|path| found.get(*path) != expected.get(*path));
    differing
        .map(|path| format!("{path}: {} for {}", short(found.get(path)), short(expected.get(path))))
        .collect::<Vec<_>>()
        .join("; ")
}

/// Runs several epochs of one file system.
pub fn lives(seed: u64, draw: impl Fn(&mut Random) -> Setup, may_fail: bool) -> Outcome<()> {
    let mut random = Random::new(seed);
    let setup = draw(&mut random);
    let mut left = None;
    for number in 0..1 + random.below(6) {
        let mut life = Life::draw(&mut random, setup, may_fail);
        if let Some(before) = &left {
            let Left { clients, .. }: &Left = before;
            debug_assert_eq!(clients.len() as u64, setup.clients);
        }
        let shards = if setup.shards == 1 { 1 } else { 1 + random.below(3) as u32 };
        let setup = Setup { shards, ..setup };
        let next = live(setup, life, left)
            .map_err(|error| format!("SILTSTONE_SEED={seed}: {setup:?}, life {number}: {life:?}: {error}"))?;
        left = next;
        if life.may_fail() && left.is_some() {
            // After a failure of the medium, an epoch without faults checks the contents.
            life = Life {
                seed: random.next_u64(),
                operations: 10,
                end: End::Closed,
                cut_after: None,
                faults: SimulatedFaults::default(),
            };
            left = live(setup, life, left)
                .map_err(|error| format!("SILTSTONE_SEED={seed}: {setup:?}, after life {number}: {error}"))?;
        }
    }
    Ok(())
}

/// Runs as many seeds as the shares of time allow.
fn hold(shares: u32, usual: u64, draw: impl Fn(&mut Random) -> Setup + Copy, may_fail: bool) {
    for seed in Seeds::within(shares, usual) {
        lives(seed, draw, may_fail).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn what_was_made_durable_survives_and_the_rest_is_cut_off_at_one_point() {
    hold(2, 400, Setup::draw, false);
}

#[test]
fn clients_on_a_disk_that_they_fill_keep_what_they_made_durable() {
    hold(2, 400, Setup::draw_full, false);
}

#[test]
fn checkpoints_of_operations_that_are_not_written_show_them_once() {
    hold(2, 400, Setup::draw_busy, false);
}

#[test]
fn shards_whose_number_changes_keep_what_was_made_durable() {
    hold(2, 400, Setup::draw_shards, false);
}

#[test]
fn directories_that_become_striped_keep_what_was_made_durable() {
    hold(2, 400, Setup::draw_striped, false);
}

#[test]
fn directories_that_become_striped_on_several_shards_show_every_operation() {
    hold(2, 400, Setup::draw_striped_shards, false);
}

#[test]
fn directories_that_become_striped_on_a_medium_that_fails_are_never_wrong() {
    hold(1, 400, Setup::draw_striped, true);
}

#[test]
fn snapshots_stay_as_they_were_taken() {
    hold(2, 400, Setup::draw_snapshots, false);
}

#[test]
fn snapshots_on_a_medium_that_fails_are_never_wrong() {
    hold(1, 400, Setup::draw_snapshots, true);
}

#[test]
fn a_medium_that_fails_makes_operations_fail_and_never_wrong() {
    hold(1, 400, Setup::draw_full, true);
}
