//! All sequences of one and two operations, with syncs between them, and a power cut at every event of the
//! disk.
//!
//! A sequence runs once, on a disk that is recorded. For each event of the disk, from the first operation to
//! the end of the file system's close, many of the states are generated that a power cut could leave:
//! unflushed writes are lost, reordered and torn ([`layers::record::replay`]). The file system is opened from
//! each state. The checker must find no problem, and the file system must show the state after a prefix of
//! the operations that includes all synced ones.

use crate::lives::difference;
use crate::model::{Bytes, Model, Operation, Shown, View, apply, is_alike, view_of};
use crate::world::checked;
use block::{BlockCount, BlockSize, DeviceGeometry, DevicePart, Error};
use conformance::budget::Budget;
use fs::core::Core;
use fs::names::namespace::Renaming;
use fs::{FileSystem, Properties, Settings};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::record::replay::{CrashState, CrashStates, History, ImageDisk, Search};
use layers::record::{RecordDevicePart, Recorder, Role};
use runtime::{Random, Simulation};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ZONE_BYTES: u64 = 128 << 10;
const DISK_BYTES: u64 = 4 << 20;
/// Number of inode groups: as in other tests, and few enough for the stripes of a directory.
const INODE_GROUPS: u32 = 8;
/// Delays of the disk, so that many requests are in flight at the same time.
const DELAYS: &str = "any delay=0us..300us probability=0.7";
/// One of this number of states is also used for further operations after it was checked.
const USE_EVERY: u64 = 8;

/// Operations after which the changed file is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Syncs {
    None,
    First,
    Each,
}

impl Syncs {
    const ALL: [Syncs; 3] = [Syncs::None, Syncs::First, Syncs::Each];

    fn is_after(self, index: usize) -> bool {
        match self {
            Syncs::None => false,
            Syncs::First => index == 0,
            Syncs::Each => true,
        }
    }
}

/// A sequence with its parameters.
#[derive(Debug, Clone)]
struct Sequence {
    seed: u64,
    operations: Vec<Operation>,
    syncs: Syncs,
    /// Number of names above which a directory is striped.
    stripe_above: u64,
}

pub fn owned(path: &str) -> String {
    path.to_owned()
}

/// Operations that create the initial files, which are durable before a sequence.
pub fn start() -> Vec<Operation> {
    vec![
        Operation::Create(owned("/a")),
        Operation::Write(owned("/a"), 0, Bytes::draw(5000, 1)),
        Operation::Create(owned("/b")),
        Operation::Write(owned("/b"), 0, Bytes::draw(20_000, 2)),
        Operation::MakeDirectory(owned("/d")),
        Operation::Create(owned("/d/c")),
        Operation::Write(owned("/d/c"), 0, Bytes::draw(100, 3)),
        Operation::MakeDirectory(owned("/e")),
        Operation::Link(owned("/b"), owned("/d/b")),
    ]
}

/// Operations of which sequences consist; the data of writes is determined by their position in the sequence.
pub fn operations(position: u64) -> Vec<Operation> {
    use Operation::*;
    let data = |length| Bytes::draw(length, 100 + position);
    vec![
        Create(owned("/n")),
        Write(owned("/a"), 50, data(100)),
        Write(owned("/b"), 4096, data(4096)),
        Write(owned("/b"), 1000, data(50_000)),
        // Takes more than one record.
        Write(owned("/a"), 3000, data(150_000)),
        Append(owned("/a"), data(3000)),
        Truncate(owned("/b"), 100),
        Truncate(owned("/a"), 30_000),
        Punch(owned("/b"), 4096, 12_288),
        Punch(owned("/b"), 1000, 9000),
        Preallocate(owned("/a"), 0, 40_960),
        Allocate(owned("/b"), 4096, 80_000),
        Clone(owned("/b"), 0, u64::MAX, owned("/a"), 0),
        Clone(owned("/b"), 4096, 8192, owned("/a"), 12_288),
        Clone(owned("/b"), 0, 8192, owned("/b"), 12_288),
        // The target is in another inode group.
        Clone(owned("/a"), 0, u64::MAX, owned("/d/c"), 50),
        Rename(owned("/a"), owned("/b"), Renaming::Replace),
        Rename(owned("/a"), owned("/n"), Renaming::NoReplace),
        Rename(owned("/a"), owned("/d/c"), Renaming::Exchange),
        Rename(owned("/d/c"), owned("/a"), Renaming::Replace),
        Rename(owned("/e"), owned("/d/e"), Renaming::Replace),
        Link(owned("/a"), owned("/d/n")),
        Unlink(owned("/a")),
        Unlink(owned("/b")),
        MakeDirectory(owned("/d/n")),
        RemoveDirectory(owned("/e")),
        SymbolicLink(owned("/a"), owned("/e/s")),
        SetAttribute(owned("/a"), owned("user.name"), data(300)),
    ]
}

/// Returns all sequences of one and two operations, with each choice of syncs.
fn sequences() -> Vec<Sequence> {
    let (first, second) = (operations(1), operations(2));
    let single = first.iter().map(|one| vec![one.clone()]);
    let pairs = first.iter().flat_map(|one| second.iter().map(|two| vec![one.clone(), two.clone()]));
    let all: Vec<Vec<Operation>> = single.chain(pairs).collect();
    let with_syncs = all.into_iter().flat_map(|operations| {
        let is_single = operations.len() == 1;
        let ways = Syncs::ALL.into_iter().filter(move |syncs| !(is_single && *syncs == Syncs::Each));
        ways.map(move |syncs| (operations.clone(), syncs))
    });
    let numbered = with_syncs.zip(1..);
    numbered.map(|((operations, syncs), seed)| Sequence::new(seed, operations, syncs)).collect()
}

/// Path of the file that is synced after an operation, or of its directory if the file was removed.
fn changed(operation: &Operation) -> &str {
    match operation {
        Operation::Rename(_, path, _)
        | Operation::Link(_, path)
        | Operation::SymbolicLink(_, path)
        | Operation::Clone(_, _, _, path, _) => path,
        Operation::Create(path)
        | Operation::Write(path, ..)
        | Operation::Append(path, _)
        | Operation::Truncate(path, _)
        | Operation::Punch(path, ..)
        | Operation::Preallocate(path, ..)
        | Operation::Allocate(path, ..)
        | Operation::ZeroRange(path, ..)
        | Operation::Unlink(path)
        | Operation::MakeDirectory(path)
        | Operation::RemoveDirectory(path)
        | Operation::SetAttribute(path, ..) => path,
    }
}

async fn sync(files: &FileSystem, path: &str) -> block::Result<()> {
    let path = path.to_owned();
    let sync = |core: Rc<Core>| async move {
        let (directory, name) = path.rsplit_once('/').unwrap();
        let directory = match directory {
            "" => fs::metadata::inode::ROOT,
            named => core.lookup(fs::metadata::inode::ROOT, &named.as_bytes()[1..]).await?,
        };
        let inode = match core.lookup(directory, name.as_bytes()).await {
            Err(Error::NotFound(_)) => directory,
            found => found?,
        };
        let node = core.open(inode)?;
        let synced = core.sync_inode(inode).await;
        core.close(&node);
        synced
    };
    files.home().with(sync).await
}

/// A step of a run, in numbers of the disk's events: it can't be on the disk before event `from`, and is
/// durable at event `durable`.
#[derive(Debug, Clone)]
struct Step {
    operation: Operation,
    from: u64,
    durable: u64,
}

/// Results of a run.
struct Run {
    history: Arc<History>,
    /// Event of the disk before the first operation.
    first: u64,
    steps: Vec<Step>,
    /// States before the first operation and after each.
    models: Vec<Model>,
}

pub async fn zones_on(disk: Arc<dyn DevicePart>, format: bool) -> block::Result<Arc<zones::OnDevice>> {
    let zone_size = format.then_some(ZONE_BYTES);
    let options = zones::on_device::Options { format, zone_size, ..Default::default() };
    Ok(Arc::new(zones::OnDevice::open(disk, options).await?))
}

impl Sequence {
    fn new(seed: u64, operations: Vec<Operation>, syncs: Syncs) -> Self {
        Sequence { seed, operations, syncs, stripe_above: u64::MAX }
    }

    fn settings(&self) -> Settings {
        Settings { sums_bytes: 1, stripe_above: Some(self.stripe_above), ..Settings::default() }
    }

    async fn run(&self) -> Result<Run, String> {
        let failed = |what: &str, error: Error| format!("{what}: {error}");
        let geometry = DeviceGeometry {
            block_size: BlockSize::default(),
            blocks: BlockCount(DISK_BYTES / BlockSize::default().bytes()),
            atomic_write: 512,
            volatile_cache: true,
            read_only: false,
        };
        let delays = parse_rules(&[DELAYS.to_owned()], stack::Contract::Device).unwrap();
        let slow = FaultDevicePart::new(Arc::new(ImageDisk::empty(geometry)), delays, self.seed).unwrap();
        let recorder = Recorder::in_memory();
        let disk = RecordDevicePart::new(Arc::new(slow), recorder.clone(), "disk", Role::Disk).unwrap();
        let disk = Arc::new(disk);
        let zones = zones_on(disk.clone(), true).await.map_err(|error| failed("making zones", error))?;
        let properties = Properties { inode_groups: INODE_GROUPS, ..Properties::default() };
        let files = FileSystem::format(zones, properties, &self.settings()).await;
        let files = files.map_err(|error| failed("formatting", error))?;
        let mut model = Model::default();
        for operation in start() {
            model.apply(&operation).unwrap();
            apply(&files, "", &operation).await.map_err(|error| failed("the start", error))?;
        }
        files.sync().await.map_err(|error| failed("the start", error))?;
        let first = recorder.events();
        let (mut steps, mut models): (Vec<Step>, _) = (Vec::new(), vec![model.clone()]);
        let mut random = Random::new(self.seed);
        for (index, operation) in self.operations.iter().enumerate() {
            let from = recorder.events();
            let expected = model.apply(operation);
            let done = apply(&files, "", operation).await;
            if !is_alike(&expected, &done) {
                return Err(format!("{operation:?}: {done:?}, expected {expected:?}"));
            }
            if expected.is_err() {
                continue;
            }
            models.push(model.clone());
            steps.push(Step { operation: operation.clone(), from, durable: u64::MAX });
            if self.syncs.is_after(index) {
                sync(&files, changed(operation)).await.map_err(|error| failed("a sync", error))?;
                let now = recorder.events();
                steps.iter_mut().for_each(|step| step.durable = step.durable.min(now));
            } else if random.chance(0.5) {
                // The next operation has another record.
                runtime::sleep(Duration::from_micros(random.below(1000))).await;
            }
        }
        files.close().await.map_err(|error| failed("closing", error))?;
        let now = recorder.events();
        steps.iter_mut().for_each(|step| step.durable = step.durable.min(now));
        let timeline = recorder.timeline().unwrap();
        let history = History::new(&timeline, disk.number()).unwrap();
        Ok(Run { history, first, steps, models })
    }

    /// Runs the sequence, and opens the file system from all states of its disk that the budget permits.
    /// Returns their number.
    async fn check(&self, budget: &Budget, search: Search) -> Result<u64, String> {
        let run = self.run().await?;
        let last = run.history.events();
        let mut tried = 0;
        for state in CrashStates::new(run.history.clone(), run.first..last + 1, search) {
            if budget.is_over() && tried > 0 {
                break;
            }
            tried += 1;
            self.check_state(&run, &state, tried).await.map_err(|error| {
                format!("cut at {:?} of {last} with {}: {error}", state.cuts, state.choice)
            })?;
        }
        Ok(tried)
    }

    async fn check_state(&self, run: &Run, state: &CrashState, number: u64) -> Result<(), String> {
        let failed = |what: &str, error: Error| format!("{what}: {error}");
        let disk = Arc::new(ImageDisk::new(state.image.clone()));
        let zones = zones_on(disk, false).await.map_err(|error| failed("opening the zones", error))?;
        let report = checked(&zones).await.map_err(|error| failed("checking", error))?;
        if !report.is_sound() {
            return Err(format!("before it is opened: {report:?}"));
        }
        let files = FileSystem::open(zones, &self.settings()).await;
        let files = files.map_err(|error| failed("opening", error))?;
        let found = view_of(&files, "").await.map_err(|error| failed("reading", error))?;
        run.allows(state, &found)?;
        if number.is_multiple_of(USE_EVERY) {
            let file = files.create("/later").await.map_err(|error| failed("creating", error))?;
            let data = block::Data::copy_of(&[1; 10_000]);
            file.write_at(0, data).await.map_err(|error| failed("writing", error))?;
            file.sync().await.map_err(|error| failed("a sync", error))?;
            drop(file);
            files.unlink("/later").await.map_err(|error| failed("removing", error))?;
            let report = files.check().await.map_err(|error| failed("checking", error))?;
            if !report.is_sound() {
                return Err(format!("after it was used: {report:?}"));
            }
            let after = view_of(&files, "").await.map_err(|error| failed("reading", error))?;
            if after != found {
                return Err(format!("what was used shows {}", difference(&after, &found)));
            }
        }
        files.close().await.map_err(|error| failed("closing", error))
    }

    fn simulated(&self, budget: &Rc<Budget>, search: Search) -> Result<u64, String> {
        let (sequence, budget) = (self.clone(), budget.clone());
        let world = Simulation { most_events: u64::MAX, trace_lines: 0, ..Simulation::new(self.seed) };
        let main = move || async move { sequence.check(&budget, search).await };
        let run = runtime::simulate(world, main).map_err(|error| error.to_string());
        let checked = run.and_then(|simulated| simulated.value);
        checked.map_err(|error| format!("{self:?}: {error}"))
    }
}

impl Run {
    /// Checks that a file system may show this view after a power cut.
    fn allows(&self, state: &CrashState, found: &View) -> Result<(), String> {
        let (start, end) = (*state.cuts.start(), *state.cuts.end());
        let least = self.steps.iter().take_while(|step| step.durable <= end).count();
        let most = self.steps.iter().take_while(|step| step.from <= start).count();
        let whole = self.models[least..=most].iter().any(|model| model.view() == *found);
        let in_part = (least..most).any(|index| {
            let model = &self.models[index];
            !model.is_atomic(&self.steps[index].operation)
                && is_between(found, &model.view(), &self.models[index + 1].view())
        });
        if whole || in_part {
            return Ok(());
        }
        Err(format!(
            "it shows neither the state after {least} operations nor up to {most}; other than after {least}: {}; than after {most}: {}",
            difference(found, &self.models[least].view()),
            difference(found, &self.models[most].view())
        ))
    }
}

/// Whether a part of a write has taken effect: every byte of a file is the old or the new one, and other
/// files are unchanged.
fn is_between(found: &View, before: &View, after: &View) -> bool {
    let byte = |shown: &[u8], at: usize| shown.get(at).copied().unwrap_or(0);
    found.len() == before.len()
        && found.iter().all(|(path, shown)| match (shown, before.get(path), after.get(path)) {
            (found, Some(before), Some(after)) if before == after => found == before,
            (
                Shown::File { contents, links, attributes },
                Some(Shown::File { contents: old, links: old_links, attributes: old_attributes }),
                Some(Shown::File { contents: new, .. }),
            ) => {
                (links, attributes) == (old_links, old_attributes)
                    && (old.len()..=new.len()).contains(&contents.len())
                    && contents
                        .iter()
                        .enumerate()
                        .all(|(at, found)| [byte(old, at), byte(new, at)].contains(found))
            }
            _ => false,
        })
}

/// Checks a sequence with every choice of syncs, from every state of the disk.
fn holds_at_every_cut(operations: &[Operation]) {
    holds_where_striped(operations, u64::MAX);
}

/// As [`holds_at_every_cut`], with directories striped above `stripe_above` names.
fn holds_where_striped(operations: &[Operation], stripe_above: u64) {
    let budget = Rc::new(Budget::unlimited());
    for (syncs, seed) in Syncs::ALL.into_iter().zip(1..) {
        let sequence = Sequence { stripe_above, ..Sequence::new(seed, operations.to_vec(), syncs) };
        let tried =
            sequence.simulated(&budget, Search::brief(seed)).unwrap_or_else(|error| panic!("{error}"));
        println!("{syncs:?}: {tried} states");
    }
}

#[test]
fn every_sequence_of_two_operations_is_cut_at_one_point() {
    let mut sequences = sequences();
    // A short run draws a fixed sample.
    let mut random = Random::new(1);
    for last in (1..sequences.len()).rev() {
        sequences.swap(last, random.below(last as u64 + 1) as usize);
    }
    if let Ok(seed) = std::env::var("SILTSTONE_SEED") {
        let seed: u64 = seed.parse().unwrap();
        sequences.retain(|sequence| sequence.seed == seed);
    }
    let budget = Rc::new(Budget::of(6));
    let count = sequences.len() as u64;
    let mut states = 0;
    for sequence in sequences {
        if !budget.allows_more(count) {
            break;
        }
        let tried = sequence.simulated(&budget, Search::brief(sequence.seed));
        states += tried.unwrap_or_else(|error| panic!("SILTSTONE_SEED={}: {error}", sequence.seed));
    }
    println!("{states} states");
}

#[test]
fn a_rename_is_there_as_a_whole_or_not_at_all_at_every_cut() {
    for (from, to, renaming) in [
        ("/a", "/b", Renaming::Replace),
        ("/a", "/n", Renaming::NoReplace),
        ("/a", "/d/c", Renaming::Exchange),
        ("/d/c", "/a", Renaming::Replace),
        ("/d", "/e", Renaming::Exchange),
        ("/e", "/d/e", Renaming::Replace),
    ] {
        holds_at_every_cut(&[Operation::Rename(owned(from), owned(to), renaming)]);
    }
}

#[test]
fn a_file_written_and_renamed_over_another_is_the_old_or_the_new_one() {
    holds_at_every_cut(&[
        Operation::Create(owned("/new")),
        Operation::Write(owned("/new"), 0, Bytes::draw(100_000, 9)),
        Operation::Rename(owned("/new"), owned("/a"), Renaming::Replace),
    ]);
}

#[test]
fn a_clone_is_there_as_a_whole_or_not_at_all_and_stays_when_its_source_goes() {
    holds_at_every_cut(&[
        Operation::Create(owned("/n")),
        Operation::Clone(owned("/b"), 0, u64::MAX, owned("/n"), 0),
        Operation::Truncate(owned("/b"), 5000),
        Operation::Write(owned("/n"), 4096, Bytes::draw(4096, 9)),
        Operation::Unlink(owned("/b")),
        Operation::Unlink(owned("/d/b")),
    ]);
}

#[test]
fn a_directory_becomes_striped_and_is_emptied_and_removed_at_one_point() {
    let all = [
        Operation::Create(owned("/d/n")),
        Operation::Rename(owned("/d/n"), owned("/d/m"), Renaming::Replace),
        Operation::MakeDirectory(owned("/d/below")),
        Operation::Rename(owned("/d/b"), owned("/n"), Renaming::NoReplace),
        Operation::Unlink(owned("/d/m")),
        Operation::RemoveDirectory(owned("/d/below")),
        Operation::Unlink(owned("/d/c")),
        Operation::RemoveDirectory(owned("/d")),
    ];
    holds_where_striped(&all, 2);
    holds_where_striped(&all[..2], 2);
    // The root becomes striped, and a striped directory is replaced.
    holds_where_striped(
        &[
            Operation::Create(owned("/n")),
            Operation::Create(owned("/e/x")),
            Operation::Create(owned("/e/y")),
            Operation::Unlink(owned("/e/x")),
            Operation::Unlink(owned("/e/y")),
            Operation::Rename(owned("/d"), owned("/e"), Renaming::Replace),
        ],
        1,
    );
}

/// Checks an append with an fsync from every state of the disk.
pub fn synced_append() -> Result<u64, String> {
    let operations = vec![Operation::Append(owned("/a"), Bytes::draw(3000, 9))];
    let sequence = Sequence::new(1, operations, Syncs::First);
    sequence.simulated(&Rc::new(Budget::unlimited()), Search::new(1))
}
