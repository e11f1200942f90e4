//! Worlds by seeds: writers that take over from each other, on a store that loses answers, duplicates and
//! reorders requests, asks for fewer of them, fails for minutes and shows old listings, while pieces are
//! merged and another machine deletes garbage. Some writers sleep for a day and wake up, some openings are
//! broken off.
//!
//! Each 512 bytes of a zone are a function of their place and generation, so that all that is read can be
//! verified. Each acknowledgement of a writer is compared with the state that the next opening has found.

use crate::common::{ZONE_SIZE, ZONES, options, settings, settings_of, world};
use block::{
    Buffer, Data, EraseGuarantee, Error, Part, ZoneAddress, ZoneIndex, ZoneReport, ZoneState, Zones,
    ZonesPart,
};
use conformance::Seeds;
use object_store::testing::{Bucket, Faults};
use objects::{ObjectsPart, Options, Settings, Volume};
use runtime::Random;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

const BLOCK: u64 = 512;
/// Zones with a client.
const USED: u32 = 4;

/// Bytes of a range of a zone's generation.
fn contents(zone: u32, generation: u64, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    for block in offset / BLOCK..(offset + length as u64).div_ceil(BLOCK) {
        let seed = u64::from(zone) << 48 | generation << 24 | block;
        let mut of = [0; BLOCK as usize];
        // The first words are enough to distinguish blocks. Those of one zone can't be compressed.
        let length = if zone == 3 { of.len() } else { 8 };
        Random::new(seed).fill(&mut of[..length]);
        bytes.extend_from_slice(&of);
    }
    bytes
}

/// An acknowledgement.
#[derive(Debug, Clone, Copy)]
enum Acknowledged {
    /// Bytes before `end` were flushed.
    Flushed {
        zone: u32,
        generation: u64,
        end: u64,
    },
    Finished {
        zone: u32,
        generation: u64,
        end: u64,
    },
    Reset {
        zone: u32,
        generation: u64,
    },
}

/// A writer from its opening on.
#[derive(Default)]
struct Epoch {
    /// Acknowledgements since.
    acknowledged: RefCell<Vec<Acknowledged>>,
    /// Resets and appends that have begun, by zone: highest generation, and highest end with its generation.
    begun: RefCell<Vec<(u64, u64, u64)>>,
    /// Whether another one was opened.
    is_over: Cell<bool>,
}

/// Client of one zone of a writer.
struct Client {
    handle: Rc<dyn Zones>,
    epoch: Rc<Epoch>,
    zone: u32,
    random: Random,
}

impl Client {
    async fn report(&self) -> block::Result<ZoneReport> {
        Ok(self.handle.report(ZoneIndex(self.zone), 1).await?[0])
    }

    fn acknowledge(&self, it: Acknowledged) {
        self.epoch.acknowledged.borrow_mut().push(it);
    }

    async fn append(&mut self, known: ZoneReport) -> block::Result<()> {
        let most = if self.random.chance(0.1) { 160 } else { 6 };
        let length = (BLOCK * (1 + self.random.below(most))).min(ZONE_SIZE - known.write_pointer);
        if length == 0 {
            return Ok(());
        }
        let end = known.write_pointer + length;
        self.epoch.begun.borrow_mut()[self.zone as usize] = (known.generation, known.generation, end);
        let bytes = contents(self.zone, known.generation, known.write_pointer, length as usize);
        let at = ZoneAddress::new(self.zone, known.write_pointer);
        self.handle.append_at(at, Data::copy_of(&bytes).into()).await
    }

    async fn read(&mut self, known: ZoneReport) -> block::Result<()> {
        let blocks = known.write_pointer / BLOCK;
        if blocks == 0 {
            return Ok(());
        }
        let first = self.random.below(blocks);
        let length = (1 + self.random.below((blocks - first).min(200))) * BLOCK;
        let at = ZoneAddress::new(self.zone, first * BLOCK);
        let (outcome, buffer) = self.handle.read(at, Buffer::new(length as usize)).await;
        match outcome {
            Ok(()) => {
                let expected = contents(self.zone, known.generation, first * BLOCK, length as usize);
                assert!(buffer.filled() == expected, "zone {}, {length} bytes at block {first}", self.zone);
                Ok(())
            }
            // A writer that doesn't know yet that it is fenced.
            Err(Error::Corrupt(_)) if self.epoch.is_over.get() => Ok(()),
            Err(Error::Io(_) | Error::TimedOut(_) | Error::Disconnected(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn step(&mut self) -> block::Result<()> {
        let known = self.report().await?;
        let (index, zone, generation) = (ZoneIndex(self.zone), self.zone, known.generation);
        let takes_appends = !matches!(known.state, ZoneState::Full | ZoneState::Interrupted);
        match self.random.below(40) {
            0 => {
                self.epoch.begun.borrow_mut()[zone as usize].0 = generation + 1;
                let generation = self.handle.reset(index, EraseGuarantee::None).await?;
                self.acknowledge(Acknowledged::Reset { zone, generation });
                Ok(())
            }
            1 if known.state != ZoneState::Empty => {
                self.handle.finish(index).await?;
                let end = self.report().await?.write_pointer;
                self.acknowledge(Acknowledged::Finished { zone, generation, end });
                Ok(())
            }
            2 if known.state == ZoneState::Interrupted => {
                // As a write cache does: what a crash may have lost is repeated.
                let at = BLOCK * self.random.below(known.write_pointer / BLOCK + 1);
                self.handle.rewind(ZoneAddress::new(zone, at.min(ZONE_SIZE - BLOCK))).await
            }
            3..=7 => self.read(known).await,
            8 => {
                let all: Vec<ZoneIndex> = (0..ZONES).map(ZoneIndex).collect();
                self.handle.flush(&all).await?;
                let end = known.write_pointer;
                self.acknowledge(Acknowledged::Flushed { zone, generation, end });
                Ok(())
            }
            9 => {
                runtime::sleep(Duration::from_millis(self.random.below(4000))).await;
                Ok(())
            }
            _ if takes_appends => {
                self.append(known).await?;
                if self.random.chance(0.9) {
                    let end = self.report().await?.write_pointer;
                    self.handle.flush(&[index]).await?;
                    self.acknowledge(Acknowledged::Flushed { zone, generation, end });
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Works until the writer is fenced or closed, or `steps` are done; may sleep for a day before one.
    async fn work(mut self, steps: u64) {
        let sleeps_at = if self.random.chance(0.05) { self.random.below(steps) } else { steps };
        for step in 0..steps {
            if step == sleeps_at {
                runtime::sleep(Duration::from_secs(24 * 3600)).await;
            }
            match self.step().await {
                Ok(()) => {}
                Err(Error::ReadOnly(_) | Error::Closed(_)) => return,
                Err(Error::Invalid(text)) if self.epoch.is_over.get() => {
                    panic!("zone {}: {text}", self.zone)
                }
                Err(error) => panic!("zone {}, step {step}: {error}", self.zone),
            }
        }
    }
}

/// State that an opening has found: after each flush, zones with their pointers.
type Found = Vec<ZoneReport>;

/// Reads all that is there, which must be as it was appended.
async fn verify(handle: &dyn Zones, found: &Found) {
    for report in found {
        let (zone, end) = (report.zone.0, report.write_pointer);
        let mut at = 0;
        while at < end {
            let length = (end - at).min(128 << 10) as usize;
            let read = crate::common::read(handle, zone, at, length).await;
            let read = read.unwrap_or_else(|error| panic!("zone {zone} at {at}: {error}"));
            assert!(read == contents(zone, report.generation, at, length), "zone {zone} at {at}");
            at += length as u64;
        }
    }
}

/// Compares the acknowledgements of a writer with the state that the next one has found.
fn judge(epoch: &Epoch, before: &Found, found: &Found) {
    for it in epoch.acknowledged.borrow().iter() {
        let (Acknowledged::Flushed { zone, generation, .. }
        | Acknowledged::Finished { zone, generation, .. }
        | Acknowledged::Reset { zone, generation }) = *it;
        let report = found[zone as usize];
        if report.generation > generation {
            continue;
        }
        let is_there = report.generation == generation
            && match *it {
                Acknowledged::Flushed { end, .. } => report.write_pointer >= end,
                Acknowledged::Finished { end, .. } => {
                    report.state == ZoneState::Full && report.write_pointer == end
                }
                Acknowledged::Reset { .. } => true,
            };
        assert!(is_there, "acknowledged and lost: {it:?}, found {report:?}");
    }
    for ((zone, begun), (before, report)) in
        (0_u32..).zip(epoch.begun.borrow().iter()).zip(before.iter().zip(found))
    {
        let most = begun.0.max(before.generation);
        assert!(report.generation <= most, "zone {zone}: {report:?}, resets up to {most}");
        assert!(report.generation >= before.generation, "zone {zone}: {report:?}, before {before:?}");
        let limit = [(begun.1, begun.2), (before.generation, before.write_pointer)];
        let limit = limit.iter().filter(|(generation, _)| *generation == report.generation);
        let limit = limit.map(|(_, end)| *end).max().unwrap_or(ZONE_SIZE);
        assert!(report.write_pointer <= limit, "zone {zone}: {report:?} of {limit} appended bytes");
    }
}

fn drawn(random: &mut Random) -> Faults {
    let mut fault = |most: f64| if random.chance(0.4) { most * random.unit() } else { 0.0 };
    Faults {
        lost_answer: fault(0.2),
        lost_request: fault(0.1),
        duplicate: fault(0.2),
        slow_down: fault(0.4),
        internal: fault(0.1),
        late: fault(0.1),
        cut: fault(0.05),
        stale: fault(0.4),
        ..Faults::default()
    }
}

/// Changes the faults until the bucket is left: quiet times, faults, outages.
async fn change_faults(bucket: std::rc::Weak<Bucket>, mut random: Random, is_over: Rc<Cell<bool>>) {
    loop {
        let (faults, latency) = match random.below(6) {
            0..=2 => (Faults::default(), random.below(30)),
            3 => (Faults { slow_down: 1.0, ..Faults::default() }, 1),
            _ => (drawn(&mut random), random.below(300)),
        };
        {
            let Some(bucket) = bucket.upgrade().filter(|_| !is_over.get()) else { return };
            bucket.faults.set(faults);
            bucket.latency.set(Duration::from_millis(latency));
        }
        runtime::sleep(Duration::from_millis(500 + random.below(40_000))).await;
    }
}

fn of_world(format: bool, settings: Settings) -> Options {
    Options { settings, ..options(format) }
}

/// Searches for garbage from another machine several times, until the world is over.
async fn collect(settings: Settings, mut random: Random, is_over: Rc<Cell<bool>>) {
    for _ in 0..12 {
        if is_over.get() {
            return;
        }
        runtime::sleep(Duration::from_millis(random.below(60_000))).await;
        let volume = Volume::new(of_world(false, settings)).unwrap();
        if let Err(error) = volume.collect(false, &|_| (), &|_, _| ()).await {
            println!("gc: {error}");
        }
    }
}

/// Begins an opening, and drops it after at most 3 s.
async fn break_off_opening(settings: Settings, random: &mut Random) {
    let limit = Duration::from_millis(random.below(3000));
    let _ = runtime::timeout(limit, ObjectsPart::open(of_world(false, settings))).await;
}

/// Opens, again after failures of the store.
async fn open(settings: Settings, is_final: bool) -> ObjectsPart {
    for _ in 0..1000 {
        match ObjectsPart::open(of_world(false, settings)).await {
            Ok(part) => return part,
            // Corrupt: manifests that were deleted while a slow store returned them.
            Err(Error::Io(_) | Error::TimedOut(_) | Error::Disconnected(_) | Error::Busy(_)) => {}
            Err(Error::Corrupt(text)) if !is_final => println!("opening: {text}"),
            Err(error) => panic!("opening: {error}"),
        }
        runtime::sleep(Duration::from_secs(1)).await;
    }
    panic!("it doesn't open");
}

async fn found(handle: &dyn Zones) -> Found {
    handle.report(ZoneIndex(0), ZONES).await.unwrap()
}

/// A world. Returns the number of merged objects.
async fn live(bucket: Rc<Bucket>, seed: u64, settings: Settings) -> u64 {
    let mut random = Random::new(seed);
    // Each writer has the key `compression` as it comes.
    let drawn_settings = |random: &mut Random| Settings {
        compression: settings_of(random.next_u64()).compression,
        ..settings
    };
    let first = ObjectsPart::open(of_world(true, drawn_settings(&mut random))).await.unwrap();
    let is_over = Rc::new(Cell::new(false));
    let faults = runtime::spawn(change_faults(
        Rc::downgrade(&bucket),
        Random::new(random.next_u64()),
        is_over.clone(),
    ));
    let searches = random
        .chance(0.5)
        .then(|| runtime::spawn(collect(settings, Random::new(random.next_u64()), is_over.clone())));
    let (mut part, mut parts, mut working, mut epochs) = (first, Vec::new(), Vec::new(), Vec::new());
    let mut states = vec![found(&*part.open().await.unwrap()).await];
    for _ in 0..1 + random.below(3) {
        let epoch = Rc::new(Epoch::default());
        epoch.begun.replace(vec![(0, 0, 0); ZONES as usize]);
        let steps = 20 + random.below(80);
        for zone in 0..USED {
            let handle = part.open().await.unwrap();
            let random = Random::new(random.next_u64());
            let client = Client { handle, epoch: epoch.clone(), zone, random };
            working.push(runtime::spawn(client.work(steps)));
        }
        runtime::sleep(Duration::from_millis(1000 + random.below(120_000))).await;
        if random.chance(0.2) {
            // It may fail within its limit, in an outage.
            let _ = part.close().await;
        }
        if random.chance(0.3) {
            break_off_opening(settings, &mut random).await;
            runtime::sleep(Duration::from_millis(random.below(100_000))).await;
        }
        let next = open(drawn_settings(&mut random), false).await;
        epoch.is_over.set(true);
        states.push(found(&*next.open().await.unwrap()).await);
        parts.push(std::mem::replace(&mut part, next));
        epochs.push(epoch);
    }
    // The sleepers wake up.
    runtime::join_all(working).await;
    is_over.set(true);
    faults.await;
    if let Some(searches) = searches {
        searches.await;
    }
    bucket.faults.set(Faults::default());
    bucket.latency.set(Duration::ZERO);
    let last = open(drawn_settings(&mut random), true).await;
    let handle = last.open().await.unwrap();
    states.push(found(&*handle).await);
    epochs.push(Rc::new(Epoch { begun: RefCell::new(vec![(0, 0, 0); ZONES as usize]), ..Epoch::default() }));
    for (epoch, states) in epochs.iter().zip(states.windows(2)) {
        judge(epoch, &states[0], &states[1]);
    }
    parts.push(part);
    let mut merged = 0;
    for part in &parts {
        merged += part.status().await.get("merged_objects").and_then(|count| count.as_u64()).unwrap_or(0);
    }
    // Also without the garbage.
    runtime::sleep(Duration::from_secs(200)).await;
    last.message("gc").await.unwrap();
    runtime::sleep(Duration::from_secs(200)).await;
    verify(&*handle, &states[states.len() - 1]).await;
    let pieces = bucket.objects.borrow().keys().filter(|key| key.contains("zones/")).count();
    assert_eq!(last.status().await["pieces"], pieces, "objects that no zone has");
    merged
}

#[test]
fn worlds_keep_what_was_acknowledged() {
    let (mut worlds, merged) = (0, Rc::new(Cell::new(0)));
    for seed in Seeds::within(8, if conformance::budget::is_long() { 100_000 } else { 10_000 }) {
        let count = merged.clone();
        world(seed, move |bucket| async move {
            let grace = Duration::from_secs([1, 10, 60][seed as usize % 3]);
            let settings = Settings { grace, ..settings() };
            count.set(count.get() + live(bucket, seed, settings).await);
        });
        worlds += 1;
    }
    println!("{worlds} worlds, {} merged objects", merged.get());
    assert!(worlds < 10 || merged.get() > 0, "nothing was merged");
}
