//! Power cuts under a mirror: two or three recorded disks in one timeline, each of which is left in a state
//! of its own. Then all disks are there, or one is lost, or lost a little later, or each has unreadable
//! blocks, or the recovery is cut in turn.
//!
//! ```text
//!                                 ┌ record(role=disk) ─ delays ─ disk a
//! workload ─ record(role=client) ─ mirror ─ ...
//!                                 └ record(role=disk) ─ longer delays ─ the last disk
//! ```

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Error, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use conformance::budget::Budget;
use layers::fault::{FaultDevicePart, parse_rules};
use layers::record::replay::{Choice, Cursor, History, Image, ImageDisk};
use layers::record::{RecordDevicePart, Recorder, Role};
use mirror::{MirrorPart, Permissions, Plan, Settings};
use runtime::Random;
use siltstone_tests::oracle::{Workload, in_simulation, seed};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Blocks of a leg.
const BLOCKS: u64 = 40;
/// First block of the data on a leg: after two superblocks and a page of the bitmap.
const DATA: u64 = 3;
/// Names of the legs; a mirror uses the first ones.
const NAMES: [&str; 3] = ["a", "b", "c"];

fn geometry() -> DeviceGeometry {
    DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(BLOCKS),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }
}

fn settings() -> Settings {
    Settings {
        write_mostly: 0,
        write_behind: 0,
        behind_bytes: 1 << 20,
        fast_flush: false,
        bitmap_delay: Duration::from_millis(2),
        sync_speed_max: 0,
        first_leg: false,
        timeout: Duration::from_secs(30),
    }
}

type Leg = (&'static str, Arc<dyn DevicePart>);

async fn mirror(settings: &Settings, legs: Vec<Leg>, format: bool, degraded: bool) -> Result<MirrorPart> {
    let mut settings = settings.clone();
    // `write_mostly` numbers all legs, the mirror only those that are there.
    let is_avoided = |name: &str| NAMES.iter().position(|known| *known == name);
    let is_avoided = |name: &str| is_avoided(name).is_some_and(|leg| settings.write_mostly >> leg & 1 == 1);
    let slow = legs.iter().enumerate().filter(|(_, (name, _))| is_avoided(name));
    settings.write_mostly = slow.map(|(number, _)| 1 << number).sum();
    let plan = Plan {
        legs: legs.into_iter().map(|(name, leg)| (name.to_owned(), leg)).collect(),
        settings,
        permissions: Permissions { degraded, rebuild: 0 },
        format,
        bitmap_chunk: format.then_some(16 << 10),
    };
    MirrorPart::open(plan).await
}

fn with_rules(disk: Arc<dyn DevicePart>, rules: &[String], seed: u64) -> Result<Arc<dyn DevicePart>> {
    let rules = parse_rules(rules, stack::Contract::Device)?;
    Ok(Arc::new(FaultDevicePart::new(disk, rules, seed)?))
}

/// A disk with blocks that can't be read until they are written.
struct Rotten {
    inner: Arc<dyn DevicePart>,
    blocks: Arc<Mutex<BTreeSet<u64>>>,
}

impl Rotten {
    fn new(inner: Arc<dyn DevicePart>, blocks: BTreeSet<u64>) -> Self {
        Rotten { inner, blocks: Arc::new(Mutex::new(blocks)) }
    }
}

impl Part for Rotten {
    fn kind(&self) -> &'static str {
        "rotten"
    }
}

impl DevicePart for Rotten {
    fn geometry(&self) -> &DeviceGeometry {
        self.inner.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let (inner, blocks) = (self.inner.open().await?, self.blocks.clone());
            Ok(Rc::new(RottenHandle { inner, blocks }) as Rc<dyn Device>)
        })
    }
}

struct RottenHandle {
    inner: Rc<dyn Device>,
    blocks: Arc<Mutex<BTreeSet<u64>>>,
}

impl RottenHandle {
    fn heal(&self, blocks: Range<u64>) {
        self.blocks.lock().expect("nothing panics").retain(|block| !blocks.contains(block));
    }
}

impl Device for RottenHandle {
    fn geometry(&self) -> &DeviceGeometry {
        self.inner.geometry()
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        let end = at.0 + buffer.len() as u64 / 4096;
        let rotten = self.blocks.lock().expect("nothing panics").range(at.0..end).next().copied();
        match rotten {
            None => self.inner.read(at, buffer),
            Some(block) => {
                buffer.clear();
                Call::ready((Err(Error::io(format!("block {block} is rotten"))), buffer))
            }
        }
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        self.heal(at.0..at.0 + payload.len() as u64 / 4096);
        self.inner.write(at, payload, durability)
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        self.inner.flush()
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.heal(range.start.0..range.end().0);
        self.inner.discard(range)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.heal(range.start.0..range.end().0);
        self.inner.write_zeroes(range, mode, durability)
    }
}

/// A recorded run.
struct Run {
    first: u64,
    last: u64,
    disks: Vec<Arc<History>>,
    client: Arc<History>,
}

async fn recorded(seed: u64, operations: u64, count: usize, settings: &Settings) -> Result<Run> {
    let recorder = Recorder::in_memory();
    let mut legs = Vec::new();
    for (number, name) in NAMES[..count].iter().enumerate() {
        let longest = if number + 1 == count { 900 } else { 200 };
        let delay = format!("any delay=0us..{longest}us probability=0.7");
        let slow = with_rules(Arc::new(ImageDisk::empty(geometry())), &[delay], seed)?;
        legs.push((*name, Arc::new(RecordDevicePart::new(slow, recorder.clone(), name, Role::Disk)?)));
    }
    let numbers: Vec<_> = legs.iter().map(|(_, leg)| leg.number()).collect();
    let legs = legs.into_iter().map(|(name, leg)| (name, leg as Arc<dyn DevicePart>)).collect();
    let part = Arc::new(mirror(settings, legs, true, false).await?);
    let client = RecordDevicePart::new(part.clone(), recorder.clone(), "client", Role::Client)?;
    let client_number = client.number();
    let first = recorder.events();
    let handle = client.open().await?;
    let workload = Workload { operations, ..Workload::new(seed) };
    // A pause now and then, so that the bitmap is cleared.
    for round in 0..4 {
        let part = Workload { seed: seed + round, operations: workload.operations / 4, ..workload.clone() };
        part.run(&handle).await?;
        runtime::sleep(Duration::from_millis(8)).await;
    }
    drop(handle);
    part.close().await?;
    let timeline = recorder.timeline().expect("a recorder in memory has its timeline");
    let history = |device| History::new(&timeline, device).expect("it is in the timeline");
    let client = history(client_number);
    let disks = numbers.into_iter().map(history).collect();
    Ok(Run { first, last: client.events(), disks, client })
}

async fn read_all(device: &dyn Device) -> Result<Vec<u8>> {
    let bytes = device.geometry().bytes() as usize;
    let mut contents = Vec::with_capacity(bytes);
    while contents.len() < bytes {
        let length = (bytes - contents.len()).min(5 * 4096);
        let at = BlockIndex((contents.len() / 4096) as u64);
        let (outcome, buffer) = device.read(at, Buffer::new(length)).await;
        outcome?;
        contents.extend_from_slice(buffer.filled());
    }
    Ok(contents)
}

fn choice(random: &mut Random) -> Choice {
    match random.below(8) {
        0 | 1 => Choice::Nothing,
        2 | 3 => Choice::Everything,
        4 | 5 => Choice::Subset(random.next_u64()),
        6 => Choice::Torn(random.next_u64()),
        _ => Choice::Scattered(random.next_u64()),
    }
}

/// State of the legs after a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Whole,
    /// This leg is lost.
    Lost(usize),
    /// This leg is lost once everything has been read.
    LostThen(usize),
    Rot,
    CutAgain,
}

struct Trial<'a> {
    settings: &'a Settings,
    cursor: &'a Cursor,
    images: Vec<Image>,
    case: Case,
    number: u64,
}

impl Trial<'_> {
    fn legs(&self) -> Vec<Leg> {
        let disk = |image: &Image| Arc::new(ImageDisk::new(image.clone())) as Arc<dyn DevicePart>;
        NAMES.into_iter().zip(self.images.iter().map(disk)).collect()
    }

    fn check(&self, contents: &[u8]) -> Result<(), String> {
        self.cursor
            .check(0, contents)
            .map_err(|mismatch| format!("block {} holds what it can't", mismatch.range.start / 4096))
    }

    async fn run(&self, random: &mut Random) -> Result<(), String> {
        let text = |error: block::Error| error.to_string();
        let all = self.legs();
        let legs = match self.case {
            Case::Lost(lost) => [&all[..lost], &all[lost + 1..]].concat(),
            Case::Rot => self.rotten(&all, random),
            Case::CutAgain => return self.cut_again(random).await,
            Case::Whole | Case::LostThen(_) => all.clone(),
        };
        let degraded = legs.len() < all.len();
        let part = mirror(self.settings, legs, false, degraded).await.map_err(text)?;
        let handle = part.open().await.map_err(text)?;
        if self.case == Case::Rot && self.settings.fast_flush {
            self.check_what_can_be_read(&*handle).await?;
            drop(handle);
            return part.close().await.map_err(text);
        }
        let found = read_all(&*handle).await.map_err(text)?;
        self.check(&found)?;
        if let Case::LostThen(lost) = self.case {
            part.message(&format!("fail {}", NAMES[lost])).await.map_err(text)?;
            let again = read_all(&*handle).await.map_err(text)?;
            same(&found, &again, "when a leg was lost")?;
        }
        drop(handle);
        if self.case == Case::Whole && self.number.is_multiple_of(4) {
            while part.status().await["chunks_to_copy"] != 0 {
                runtime::sleep(Duration::from_micros(200)).await;
            }
            for (name, disk) in &all {
                let contents = read_all(&*disk.open().await.map_err(text)?).await.map_err(text)?;
                same(&found, &contents[(DATA << 12) as usize..], name)?;
            }
        }
        part.close().await.map_err(text)?;
        if self.case == Case::Whole && self.number.is_multiple_of(4) {
            let turned = all.into_iter().rev().collect();
            let part = mirror(self.settings, turned, false, false).await.map_err(text)?;
            let again = read_all(&*part.open().await.map_err(text)?).await.map_err(text)?;
            same(&found, &again, "when it was closed")?;
            part.close().await.map_err(text)?;
        }
        Ok(())
    }

    /// Checks the blocks that can be read: if the fast leg can't read a block and the other leg may lack it,
    /// the read must fail and not return old data.
    async fn check_what_can_be_read(&self, device: &dyn Device) -> Result<(), String> {
        for block in 0..device.geometry().blocks.0 {
            let (outcome, buffer) = device.read(BlockIndex(block), Buffer::new(4096)).await;
            if outcome.is_ok() {
                let checked = self.cursor.check(block << 12, buffer.filled());
                checked.map_err(|_| format!("block {block} holds what it can't"))?;
            }
        }
        Ok(())
    }

    /// Makes some blocks of the data unreadable, on each leg others, and one superblock of the first leg.
    fn rotten(&self, legs: &[Leg], random: &mut Random) -> Vec<Leg> {
        let mut rotten = vec![BTreeSet::new(); legs.len()];
        rotten[0].insert(random.below(2));
        for block in DATA..BLOCKS {
            if random.chance(0.3) {
                rotten[random.below(legs.len() as u64) as usize].insert(block);
            }
        }
        let leg =
            |((name, leg), blocks): (&Leg, _)| -> Leg { (*name, Arc::new(Rotten::new(leg.clone(), blocks))) };
        legs.iter().zip(rotten).map(leg).collect()
    }

    /// Cuts a recovery in turn: the next one must find the same contents as the first.
    async fn cut_again(&self, random: &mut Random) -> Result<(), String> {
        let text = |error: block::Error| error.to_string();
        let recorder = Recorder::in_memory();
        let mut disks = Vec::new();
        for (name, image) in NAMES.into_iter().zip(&self.images) {
            let disk = Arc::new(ImageDisk::empty(geometry()));
            let disk = RecordDevicePart::new(disk, recorder.clone(), name, Role::Disk).map_err(text)?;
            let handle = disk.open().await.map_err(text)?;
            image.write_to(&*handle).await.map_err(text)?;
            handle.flush().await.map_err(text)?;
            disks.push(Arc::new(disk));
        }
        let first = recorder.events();
        let legs = disks.iter().map(|disk| disk.clone() as Arc<dyn DevicePart>);
        let legs = NAMES.into_iter().zip(legs).collect();
        let part = mirror(self.settings, legs, false, false).await.map_err(text)?;
        let opened = recorder.events();
        let found = read_all(&*part.open().await.map_err(text)?).await.map_err(text)?;
        self.check(&found)?;
        part.close().await.map_err(text)?;
        let timeline = recorder.timeline().expect("a recorder in memory has its timeline");
        let history =
            |disk: &Arc<RecordDevicePart>| History::new(&timeline, disk.number()).expect("it is there");
        let histories: Vec<_> = disks.iter().map(history).collect();
        for _ in 0..6 {
            let cut = first + random.below(histories[0].events() + 1 - first);
            let images = histories.iter().map(|history| {
                let mut cursor = Cursor::new(history.clone());
                cursor.advance_to(cut);
                Arc::new(ImageDisk::new(Image::new(&cursor, choice(random)))) as Arc<dyn DevicePart>
            });
            let legs = NAMES.into_iter().zip(images).collect();
            let part = mirror(self.settings, legs, false, false).await.map_err(text)?;
            let again = read_all(&*part.open().await.map_err(text)?).await.map_err(text)?;
            part.close().await.map_err(text)?;
            let what = format!("in a second recovery, cut before event {cut} of the first ({opened}: open)");
            match cut > opened {
                true => same(&found, &again, &what)?,
                false => self.check(&again).map_err(|broken| format!("{what}: {broken}"))?,
            }
        }
        Ok(())
    }
}

fn same(found: &[u8], again: &[u8], when: &str) -> Result<(), String> {
    let different = found.chunks(512).zip(again.chunks(512)).position(|(found, again)| found != again);
    match different {
        None => Ok(()),
        Some(sector) => Err(format!("sector {sector} reads as something else {when}")),
    }
}

/// Tries cuts of a run, as many as the budget allows, with several states of the disks at each.
fn holds(
    name: &'static str,
    usual_seed: u64,
    legs: usize,
    settings: Settings,
    cases: &'static [Case],
    budget: Budget,
) -> [u64; 2] {
    let seed = seed(name, usual_seed);
    let main = move || async move {
        let operations = if legs == 2 { 160 } else { 100 };
        let run = recorded(seed, operations, legs, &settings).await.map_err(|error| error.to_string())?;
        let mut cursors: Vec<Cursor> = run.disks.iter().cloned().map(Cursor::new).collect();
        let mut client = Cursor::new(run.client.clone());
        let mut states = 0;
        for cut in run.first..=run.last {
            client.advance_to(cut);
            cursors.iter_mut().for_each(|cursor| cursor.advance_to(cut));
            for _ in 0..2 {
                states += 1;
                if !budget.allows(cut - run.first, run.last - run.first) {
                    continue;
                }
                // Randomness of this trial alone, so that it doesn't depend on which others are tried.
                let mut random = Random::new(seed ^ states << 32);
                let choices: Vec<Choice> = cursors.iter().map(|_| choice(&mut random)).collect();
                let images = cursors
                    .iter()
                    .zip(&choices)
                    .map(|(cursor, choice)| Image::new(cursor, *choice))
                    .collect();
                let case = cases[random.below(cases.len() as u64) as usize];
                let trial = Trial { settings: &settings, cursor: &client, images, case, number: states };
                trial.run(&mut random).await.map_err(|broken| {
                    let choices: Vec<String> = choices.iter().map(Choice::to_string).collect();
                    format!("{broken}: {case:?}, cut before event {cut}, legs with {}", choices.join(", "))
                })?;
            }
        }
        Ok::<_, String>([run.last - run.first, states])
    };
    let done = in_simulation(seed, main);
    let [events, states] = done.unwrap_or_else(|broken| panic!("{name}, SILTSTONE_SEED={seed}: {broken}"));
    println!("{name}: {events} events, {states} states");
    assert!(states > 1000, "{name}: only {states} states");
    [events, states]
}

const ALL: &[Case] =
    &[Case::Whole, Case::Whole, Case::Lost(0), Case::Lost(1), Case::LostThen(0), Case::Rot, Case::CutAgain];
/// Cases of a mirror with three legs.
const ALL_OF_THREE: &[Case] = &[
    Case::Whole,
    Case::Lost(0),
    Case::Lost(1),
    Case::Lost(2),
    Case::LostThen(0),
    Case::LostThen(2),
    Case::Rot,
    Case::CutAgain,
];

#[test]
fn two_legs_alike() {
    holds("two legs alike", 1, 2, settings(), ALL, Budget::of(1));
}

#[test]
fn a_leg_that_lags() {
    let settings = Settings { write_mostly: 0b10, write_behind: 6, ..settings() };
    holds("a leg that lags", 2, 2, settings, ALL, Budget::of(1));
}

/// Flushed data may be on the fast leg alone: with that leg, all of it is there.
#[test]
fn flushes_of_the_fast_leg() {
    let settings = Settings { write_mostly: 0b10, write_behind: 6, fast_flush: true, ..settings() };
    let cases = &[Case::Whole, Case::Lost(1), Case::LostThen(0), Case::Rot, Case::CutAgain];
    holds("flushes of the fast leg", 3, 2, settings, cases, Budget::of(1));
}

#[test]
fn three_legs_alike() {
    holds("three legs alike", 4, 3, settings(), ALL_OF_THREE, Budget::of(1));
}

#[test]
fn three_legs_of_which_two_lag() {
    let settings = Settings { write_mostly: 0b110, write_behind: 6, ..settings() };
    holds("three legs of which two lag", 5, 3, settings, ALL_OF_THREE, Budget::of(1));
}

/// One of two fast legs may be lost.
#[test]
fn flushes_of_two_fast_legs() {
    let settings = Settings { write_mostly: 0b100, write_behind: 6, fast_flush: true, ..settings() };
    holds("flushes of two fast legs", 6, 3, settings, ALL_OF_THREE, Budget::of(1));
}

/// Proof that the check can fail: flushes leave out a leg, which is then the only one left.
#[test]
fn a_leg_that_was_not_flushed_is_caught() {
    let settings = Settings { write_mostly: 0b10, write_behind: 6, fast_flush: true, ..settings() };
    let tried = std::panic::catch_unwind(|| {
        holds("a leg that was not flushed", 3, 2, settings, &[Case::Lost(0)], Budget::unlimited())
    });
    let panic = tried.expect_err("flushed data is lost with the fast leg");
    let text = panic.downcast_ref::<String>().expect("it says what");
    assert!(text.contains("holds what it can't"), "{text}");
}
