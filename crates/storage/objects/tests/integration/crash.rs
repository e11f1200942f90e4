//! The state of the store before each request is a state that a crash may leave: acknowledged data is there,
//! in states that the contract permits.

use crate::common::{ZONES, append, bytes, handle, options, read, reopen, settings, settings_of, world};
use block::{EraseGuarantee, Part, ZoneIndex, ZoneState, Zones};
use conformance::budget::Budget;
use object_store::testing::Stored;
use objects::{ObjectsPart, Options};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Acknowledged changes of a zone.
#[derive(Debug, Clone, Default)]
pub struct Acknowledged {
    generation: u64,
    is_full: bool,
    /// Durable appends: offset, value, length.
    durable: Vec<(u64, u8, usize)>,
    /// Appends that a flush hasn't returned for.
    visible: Vec<(u64, u8, usize)>,
    /// Whether a reset, or a finish, has begun and not returned.
    is_resetting: bool,
    is_finishing: bool,
}

impl Acknowledged {
    /// Nothing, of zones in their first generation.
    pub fn none() -> Vec<Acknowledged> {
        vec![Acknowledged { generation: 1, ..Acknowledged::default() }; ZONES as usize]
    }
}

pub type Model = Rc<RefCell<Vec<Acknowledged>>>;
pub type Objects = BTreeMap<String, Stored>;

/// A moment: objects in the bucket, and what was acknowledged.
type Moment = (Objects, Vec<Acknowledged>);

pub async fn step(handle: &dyn Zones, model: &Model, random: &mut runtime::Random) {
    let zone = random.below(u64::from(ZONES)) as u32;
    let (index, at) = (ZoneIndex(zone), zone as usize);
    let state = handle.report(index, 1).await.unwrap()[0].state;
    match random.below(10) {
        0 => {
            model.borrow_mut()[at].is_resetting = true;
            let generation = handle.reset(index, EraseGuarantee::None).await.unwrap();
            model.borrow_mut()[at] = Acknowledged { generation, ..Acknowledged::default() };
        }
        1 if state != ZoneState::Empty => {
            model.borrow_mut()[at].is_finishing = true;
            handle.finish(index).await.unwrap();
            let zone = &mut model.borrow_mut()[at];
            zone.durable.append(&mut zone.visible);
            (zone.is_full, zone.is_finishing) = (true, false);
        }
        2..=4 => {
            let before: Vec<usize> = model.borrow().iter().map(|zone| zone.visible.len()).collect();
            let all: Vec<ZoneIndex> = (0..ZONES).map(ZoneIndex).collect();
            handle.flush(&all).await.unwrap();
            for (zone, count) in model.borrow_mut().iter_mut().zip(before) {
                zone.durable.extend(zone.visible.drain(..count));
            }
        }
        _ if !matches!(state, ZoneState::Full | ZoneState::Interrupted) => {
            let (value, length) = (random.below(255) as u8, 512 * (1 + random.below(60) as usize));
            if let Ok(landed) = handle.append(index, bytes(value, length)).await {
                model.borrow_mut()[at].visible.push((landed.offset.0, value, length));
            }
        }
        _ => {}
    }
}

/// Runs a workload, and returns the moments before each of its requests.
fn moments(seed: u64) -> Vec<Moment> {
    let moments = Rc::new(RefCell::new(Vec::new()));
    let kept = moments.clone();
    world(seed, move |bucket| async move {
        let options = Options { settings: settings_of(seed), ..options(true) };
        let part = ObjectsPart::open(options).await.unwrap();
        let handle = handle(&part).await;
        let model: Model = Rc::new(RefCell::new(Acknowledged::none()));
        let (own, at) = (Rc::downgrade(&bucket), model.clone());
        bucket.follow(move |asked| {
            if asked.method != "GET" && asked.method != "HEAD" {
                let objects = own.upgrade()?.objects.borrow().clone();
                kept.borrow_mut().push((objects, at.borrow().clone()));
            }
            None
        });
        let mut random = runtime::Random::new(seed);
        for _ in 0..80 {
            step(&*handle, &model, &mut random).await;
        }
        drop(handle);
        if seed.is_multiple_of(2) {
            part.close().await.unwrap();
        }
    });
    moments.take()
}

/// Checks the volume of a moment after it was opened. Returns the first broken promise.
pub async fn judge(part: &ObjectsPart, acknowledged: &[Acknowledged]) -> Result<(), String> {
    let handle = handle(part).await;
    let reports = handle.report(ZoneIndex(0), ZONES).await.unwrap();
    for (zone, (known, report)) in (0_u32..).zip(acknowledged.iter().zip(&reports)) {
        let broken = |what: &str| Err(format!("zone {zone}: {what}: {known:?}, {report:?}"));
        if known.is_resetting && report.generation == known.generation + 1 {
            continue;
        }
        if report.generation != known.generation {
            return broken("another generation");
        }
        let has_data = !known.durable.is_empty();
        let is_permitted = match report.state {
            ZoneState::Full => known.is_full || known.is_finishing,
            ZoneState::Interrupted | ZoneState::Closed => !known.is_full,
            ZoneState::Empty => !known.is_full && !has_data,
            _ => false,
        };
        if !is_permitted {
            return broken("a state that can't be");
        }
        for (offset, value, length) in &known.durable {
            if read(&*handle, zone, *offset, *length).await != Ok(vec![*value; *length]) {
                return broken("a durable append is lost");
            }
        }
    }
    // The zones can be used.
    handle.reset(ZoneIndex(0), EraseGuarantee::None).await.unwrap();
    append(&*handle, 0, 9, 4096).await;
    handle.flush(&[ZoneIndex(0)]).await.unwrap();
    Ok(())
}

/// Judges a moment in a world of its own.
fn judged(seed: u64, moment: Moment) -> Result<(), String> {
    let outcome = Rc::new(RefCell::new(None));
    let slot = outcome.clone();
    world(seed, move |bucket| async move {
        let (objects, acknowledged) = moment;
        bucket.objects.replace(objects);
        *slot.borrow_mut() = Some(judge(&reopen().await, &acknowledged).await);
    });
    outcome.take().unwrap()
}

#[test]
fn every_state_of_the_store_has_what_was_acknowledged() {
    let budget = Budget::of(4);
    assert!(settings().piece_size < crate::common::ZONE_SIZE);
    let seeds = if conformance::budget::is_long() { 200 } else { 20 };
    'seeds: for seed in 1..=seeds {
        println!("SILTSTONE_SEED={seed}");
        let moments = moments(seed);
        assert!(moments.len() > 20, "seed {seed}: {} moments", moments.len());
        let count = moments.len() as u64;
        for (number, moment) in moments.into_iter().enumerate() {
            if !budget.allows_more(seeds * count) {
                break 'seeds;
            }
            judged(seed, moment).unwrap_or_else(|broken| panic!("seed {seed}, request {number}: {broken}"));
        }
    }
}

/// Without the manifest that names it, a flush is lost, and the judge finds it.
#[test]
fn a_lost_manifest_is_found() {
    let mut found = 0;
    for moment in moments(1).into_iter().step_by(5) {
        let (mut objects, acknowledged) = moment;
        let last = objects.keys().rfind(|key| key.starts_with("db1/manifest/")).cloned().unwrap();
        if last.ends_with("/0000000000000001") {
            continue;
        }
        objects.remove(&last);
        found += usize::from(judged(1, (objects, acknowledged)).is_err());
    }
    assert!(found > 0, "no moment shows it");
}
