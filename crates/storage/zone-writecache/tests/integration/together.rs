//! Appends, finishes and resets of zones that are written side by side, over a bucket: it alone is always a
//! prefix of them, and nothing that was flushed is lost by a crash, with faults of the store and of the fast
//! device.

use crate::bucket::{How, bucket_options, empty_disk, open_cache, world};
use crate::crash_disk::CrashDisk;
use crate::promises::{filled, read};
use crate::with_faults;
use block::{DevicePart, EraseGuarantee, Part, ZoneAddress, ZoneIndex, ZoneState, Zones, ZonesPart};
use conformance::Seeds;
use object_store::testing::{Faults, Stored};
use objects::ObjectsPart;
use runtime::Random;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ZONES: u32 = 8;
/// Unit of appends, in bytes.
const UNIT: usize = 4096;
const UNITS: usize = 64;

type Objects = BTreeMap<String, Stored>;

/// A zone: its generation, whether it is full, whether it takes no appends since a crash, and the value of
/// each unit.
#[derive(Debug, Clone, PartialEq)]
struct Zone {
    generation: u64,
    is_full: bool,
    is_interrupted: bool,
    units: Vec<u8>,
}

impl Zone {
    fn empty(generation: u64) -> Zone {
        Zone { generation, is_full: false, is_interrupted: false, units: Vec::new() }
    }

    fn looks_like(&self, other: &Zone) -> bool {
        (self.generation, self.is_full, &self.units) == (other.generation, other.is_full, &other.units)
    }
}

/// States after each operation, oldest first, and the number of operations that were flushed.
#[derive(Clone)]
struct Model {
    states: Vec<Vec<Zone>>,
    flushed: usize,
}

impl Model {
    fn last(&self) -> &Vec<Zone> {
        self.states.last().unwrap()
    }

    fn change(&mut self, zone: u32, change: impl FnOnce(&mut Zone)) {
        let mut next = self.last().clone();
        change(&mut next[zone as usize]);
        self.states.push(next);
    }

    /// The last state that looks like this one.
    fn find(&self, found: &[Zone]) -> Option<usize> {
        let same = |state: &Vec<Zone>| state.iter().zip(found).all(|(one, other)| one.looks_like(other));
        self.states.iter().rposition(same)
    }
}

/// States of the zones, with their data.
async fn found(handle: &Rc<dyn Zones>) -> Vec<Zone> {
    let mut zones = Vec::new();
    for report in handle.report(ZoneIndex(0), ZONES).await.unwrap() {
        let mut units = Vec::new();
        if report.write_pointer > 0 {
            let at = ZoneAddress::new(report.zone.0, 0);
            let bytes = read(handle, at, report.write_pointer as usize).await.unwrap();
            for unit in bytes.chunks(UNIT) {
                assert!(unit.len() == UNIT && unit.iter().all(|byte| *byte == unit[0]), "{report:?}");
                units.push(unit[0]);
            }
        }
        zones.push(Zone {
            generation: report.generation,
            is_full: report.state == ZoneState::Full,
            is_interrupted: report.state == ZoneState::Interrupted,
            units,
        });
    }
    zones
}

/// Writes four zones in turn; finishes and resets zones, some of them twice in a short time.
async fn work(handle: Rc<dyn Zones>, model: Rc<RefCell<Model>>, seed: u64) {
    let mut random = Random::new(seed);
    loop {
        let zone = random.below(u64::from(ZONES)) as u32;
        let index = ZoneIndex(zone);
        let now = model.borrow().last()[zone as usize].clone();
        let takes = !now.is_full && !now.is_interrupted;
        match random.below(40) {
            0..=1 if takes => {
                model.borrow_mut().change(zone, |zone| zone.is_full = true);
                handle.finish(index).await.unwrap();
                let all = model.borrow().states.len();
                model.borrow_mut().flushed = all - 1;
            }
            2..=3 => {
                model.borrow_mut().change(zone, |zone| *zone = Zone::empty(zone.generation + 1));
                handle.reset(index, EraseGuarantee::None).await.unwrap();
                let all = model.borrow().states.len();
                model.borrow_mut().flushed = all - 1;
            }
            4..=5 => {
                let all = model.borrow().states.len();
                handle.flush(&[index]).await.unwrap();
                model.borrow_mut().flushed = all - 1;
            }
            6 => runtime::sleep(Duration::from_millis(random.below(400))).await,
            _ if takes && now.units.len() < UNITS => {
                let units = (1 + random.below(16) as usize).min(UNITS - now.units.len());
                let value = random.below(256) as u8;
                model.borrow_mut().change(zone, |zone| zone.units.extend(vec![value; units]));
                handle.append(index, filled(value, units * UNIT)).await.unwrap();
            }
            _ if now.is_full || now.is_interrupted || now.units.len() == UNITS => {
                model.borrow_mut().change(zone, |zone| *zone = Zone::empty(zone.generation + 1));
                handle.reset(index, EraseGuarantee::None).await.unwrap();
                let all = model.borrow().states.len();
                model.borrow_mut().flushed = all - 1;
            }
            _ => {}
        }
    }
}

/// State after a power cut: the bucket, the fast device, and the states before; the buckets before each
/// request that may change it.
struct Left {
    objects: Objects,
    fast: Vec<u8>,
    model: Model,
    moments: Vec<Objects>,
}

/// Faults of a run.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    None,
    Store,
    FastDevice,
}

/// Opens what was left, compares it with the states before, and works until the next power cut.
fn run(seed: u64, left: Option<Left>, trouble: Trouble) -> Left {
    world(seed, move |bucket| async move {
        let mut random = Random::new(seed);
        let (how, disk, model) = match left {
            None => {
                let states = vec![vec![Zone::empty(1); ZONES as usize]];
                (How::Format, empty_disk(), Model { states, flushed: 0 })
            }
            Some(left) => {
                bucket.objects.replace(left.objects);
                (How::Again, CrashDisk::with(left.fast, 4096, true), left.model)
            }
        };
        let disk = Arc::new(disk);
        let rule =
            matches!(trouble, Trouble::FastDevice).then_some("read error=EIO probability=0.03 after=40");
        let fast = with_faults(disk.clone(), rule, seed);
        let cache = match (open_cache(fast, how).await, trouble) {
            // Of the log or of a superblock.
            (Err(error), Trouble::FastDevice) if error.to_string().contains("EIO") => {
                open_cache(disk.clone(), how).await
            }
            (opened, _) => opened,
        };
        let cache = cache.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let handle = cache.open().await.unwrap();
        let model = Rc::new(RefCell::new(model));
        if how == How::Again {
            // The state after the last flush, or a later one.
            let zones = handle.report(ZoneIndex(0), ZONES).await.unwrap();
            let mut known = model.borrow_mut();
            let fits = |state: &&Vec<Zone>| {
                state.iter().zip(&zones).all(|(zone, report)| {
                    let full = report.state == ZoneState::Full;
                    let end = (zone.units.len() * UNIT) as u64;
                    (zone.generation, zone.is_full, end) == (report.generation, full, report.write_pointer)
                })
            };
            let at = known.states.iter().rposition(|state| fits(&state));
            let at = at.unwrap_or_else(|| panic!("seed {seed}: a state that never was"));
            assert!(at >= known.flushed, "seed {seed}: {at} of {} flushed", known.flushed);
            known.states.truncate(at + 1);
            known.flushed = at;
            let mut last = known.last().clone();
            for (zone, report) in last.iter_mut().zip(&zones) {
                zone.is_interrupted = report.state == ZoneState::Interrupted;
            }
            known.states.push(last);
        }
        if let Trouble::Store = trouble {
            let faults = Faults {
                lost_answer: 0.03,
                lost_request: 0.03,
                slow_down: 0.03,
                internal: 0.03,
                ..Faults::default()
            };
            bucket.faults.set(faults);
        }
        let moments = Rc::new(RefCell::new(Vec::new()));
        let (own, kept) = (Rc::downgrade(&bucket), moments.clone());
        bucket.follow(move |asked| {
            if asked.method == "PUT" && asked.key.contains("/manifest/") {
                kept.borrow_mut().push(own.upgrade()?.objects.borrow().clone());
            }
            None
        });
        runtime::spawn(work(handle, model.clone(), seed + 1)).detach();
        runtime::sleep(Duration::from_millis(500 + random.below(6000))).await;
        let status = cache.status().await;
        assert!(!status["state"].to_string().contains("ended"), "seed {seed}: {status:?}");
        println!("errors of uploads: {}", status["origin_errors"]);
        let (model, objects) = (model.borrow().clone(), bucket.objects.borrow().clone());
        let fast = disk.crash(&mut random).bytes();
        Left { objects, fast, model, moments: moments.take() }
    })
}

/// The states in which the bucket alone is, by their numbers.
fn bucket_alone(seed: u64, objects: Objects, model: &Model) -> usize {
    let zones = world(seed, |bucket| async move {
        bucket.objects.replace(objects);
        let part = ObjectsPart::open(bucket_options(false)).await.unwrap();
        found(&part.open().await.unwrap()).await
    });
    model.find(&zones).unwrap_or_else(|| panic!("seed {seed}: the bucket was never in this state: {zones:?}"))
}

/// All that was left reaches the bucket.
fn drained(seed: u64, left: Left) {
    let model = left.model.clone();
    let zones = world(seed, move |bucket| async move {
        bucket.objects.replace(left.objects);
        let fast: Arc<dyn DevicePart> = Arc::new(CrashDisk::with(left.fast, 4096, true));
        let cache = open_cache(fast, How::Again).await.unwrap();
        let before = found(&cache.open().await.unwrap()).await;
        cache.message("flush").await.unwrap();
        cache.close().await.unwrap();
        let part = ObjectsPart::open(bucket_options(false)).await.unwrap();
        let after = found(&part.open().await.unwrap()).await;
        assert!(before.iter().zip(&after).all(|(one, other)| one.looks_like(other)), "seed {seed}: a drain");
        after
    });
    let at = model.find(&zones).unwrap_or_else(|| panic!("seed {seed}: a state that never was: {zones:?}"));
    assert!(at >= model.flushed, "seed {seed}: lost what was flushed");
}

#[test]
fn the_bucket_is_a_prefix_and_nothing_flushed_is_lost() {
    let (mut tried, mut states, mut together) = (0, 0, 0);
    for seed in Seeds::of(if conformance::budget::is_long() { 300 } else { 3 }) {
        tried += 1;
        let trouble = [Trouble::None, Trouble::Store, Trouble::FastDevice][seed as usize % 3];
        let mut left = None;
        for life in 0..2 {
            println!("seed {seed}, life {life}, {trouble:?}");
            let mut now = run(100 * seed + life, left.take(), trouble);
            let (mut before, count) = (0, now.moments.len());
            for objects in std::mem::take(&mut now.moments).into_iter().step_by(1 + count / 4) {
                let at = bucket_alone(seed, objects, &now.model);
                assert!(at >= before, "seed {seed}: {at} after {before}");
                together += usize::from(at > before + 1);
                states += usize::from(at != before);
                before = at;
            }
            left = Some(now);
        }
        drained(seed, left.unwrap());
    }
    println!("{states} states, {together} with several operations");
    assert!(tried < 3 || states > 10 && together > 10, "{states} {together}: the seeds show nothing");
}
