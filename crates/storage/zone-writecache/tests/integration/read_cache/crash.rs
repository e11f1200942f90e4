//! Power cuts after every write of a short history, with the read cache in use: flushed data is found, also
//! by a second read, which is read from the cache.

use super::{CHUNK, FAST, MIB, Slow, check, open, settle, slow, stamped, with_cache};
use crate::crash_disk::CrashDisk;
use crate::promises::{KIB, number, read};
use block::{Data, DevicePart, EraseGuarantee, Part, ZoneAddress, ZoneIndex, ZonesPart};
use layers::fault::{FaultDevicePart, parse_rules};
use runtime::{Random, Simulation};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zone_writecache::ZoneWriteCachePart;

const ZONES: u32 = 8;
const ZONE: usize = 128 * KIB;

/// Generations and lengths of the zones that were flushed, and that were begun.
#[derive(Clone, Default)]
struct Model {
    flushed: Vec<(u64, usize)>,
    begun: Vec<(u64, usize)>,
}

/// Appends, flushes, resets and reads; overwritten data of the ring is read through the cache.
async fn history(part: Arc<ZoneWriteCachePart>, model: Rc<RefCell<Model>>) -> block::Result<()> {
    let handle = part.open().await?;
    for round in 0..3_u32 {
        for zone in 0..ZONES / 2 {
            let zone = (zone + round) % ZONES;
            let (generation, length) = model.borrow().begun[zone as usize];
            if length > 0 {
                model.borrow_mut().begun[zone as usize] = (generation + 1, 0);
                handle.reset(ZoneIndex(zone), EraseGuarantee::None).await?;
                model.borrow_mut().flushed[zone as usize] = (generation + 1, 0);
            }
            let generation = model.borrow().begun[zone as usize].0;
            for at in (0..ZONE).step_by(CHUNK) {
                model.borrow_mut().begun[zone as usize].1 = at + CHUNK;
                let bytes = stamped(zone, generation, at, CHUNK);
                handle.append(ZoneIndex(zone), Data::copy_of(&bytes).into()).await?;
            }
            handle.flush(&[ZoneIndex(zone)]).await?;
            let begun = model.borrow().begun[zone as usize];
            model.borrow_mut().flushed[zone as usize] = begun;
        }
        part.message("flush").await?;
        for zone in 0..ZONES {
            let (generation, length) = model.borrow().flushed[zone as usize];
            for at in (0..length).step_by(16 * KIB) {
                let found = read(&handle, ZoneAddress::new(zone, at as u64), 16 * KIB).await?;
                assert!(found == stamped(zone, generation, at, 16 * KIB), "zone {zone}");
            }
        }
    }
    Ok(())
}

/// Cuts the power after this number of writes to the fast device. Returns whether the history had ended.
fn cut_after(writes: u64) -> bool {
    let main = move || async move {
        let (origin, _) = slow(ZONES, ZONE, Duration::from_millis(1));
        let disk = Arc::new(CrashDisk::new(FAST as usize / 2, 4096, true));
        let fast: Arc<dyn DevicePart> = disk.clone();
        // Zones of the origin that the log doesn't have.
        let options = |format| with_cache(Some(MIB as u64), format);
        let part = open(&fast, origin.clone(), options(true)).await;
        let model = Rc::new(RefCell::new(Model { flushed: vec![(1, 0); 8], begun: vec![(1, 0); 8] }));
        let reports = part.open().await.unwrap().report(ZoneIndex(0), ZONES).await.unwrap();
        for report in reports {
            model.borrow_mut().flushed[report.zone.0 as usize].0 = report.generation;
            model.borrow_mut().begun[report.zone.0 as usize].0 = report.generation;
        }
        for zone in ZONES / 2..ZONES {
            let handle = part.open().await.unwrap();
            let generation = model.borrow().begun[zone as usize].0;
            for at in (0..ZONE).step_by(CHUNK) {
                let bytes = stamped(zone, generation, at, CHUNK);
                handle.append(ZoneIndex(zone), Data::copy_of(&bytes).into()).await.unwrap();
            }
            model.borrow_mut().begun[zone as usize].1 = ZONE;
            model.borrow_mut().flushed[zone as usize].1 = ZONE;
        }
        part.message("flush").await.unwrap();
        part.close().await.unwrap();
        // Writes take time, so that a cut finds each of them.
        let rules = parse_rules(&["any delay=50us..200us".to_owned()], stack::Contract::Device).unwrap();
        let slow_fast: Arc<dyn DevicePart> = Arc::new(FaultDevicePart::new(fast, rules, writes).unwrap());
        let part = open(&slow_fast, origin.clone(), options(false)).await;
        let start = disk.writes.load(Ordering::Relaxed);
        let working = runtime::spawn(history(part.clone(), model.clone()));
        while !working.is_finished() && disk.writes.load(Ordering::Relaxed) < start + writes {
            runtime::sleep(Duration::from_micros(20)).await;
        }
        let is_over = working.is_finished();
        let mut random = Random::new(writes);
        let left: Arc<dyn DevicePart> = Arc::new(disk.crash(&mut random));
        let origin = origin.crash(&mut random);
        let model = model.borrow().clone();
        match is_over {
            true => working.await.unwrap(),
            false => working.abort(),
        }
        verify(left, origin, &model).await;
        is_over
    };
    let outcome = runtime::simulate(Simulation::new(writes), main);
    outcome.unwrap_or_else(|error| panic!("{writes} writes: {error}")).value
}

/// Compares the state after a power cut with the model: after the open, and after everything was uploaded.
async fn verify(fast: Arc<dyn DevicePart>, origin: Arc<Slow>, model: &Model) {
    let mut seen = None;
    for _ in 0..2 {
        let part = open(&fast, origin.clone(), with_cache(Some(MIB as u64), false)).await;
        let handle = part.open().await.unwrap();
        let reports = handle.report(ZoneIndex(0), ZONES).await.unwrap();
        let states: Vec<(u64, usize)> =
            reports.iter().map(|report| (report.generation, report.write_pointer as usize)).collect();
        for (zone, found) in states.iter().enumerate() {
            let (least, most) = (model.flushed[zone], model.begun[zone]);
            assert!((least..=most).contains(found), "zone {zone}: {found:?}; expected {least:?} to {most:?}");
        }
        assert!(seen.is_none_or(|seen| seen == states), "it is what the first open found");
        for _ in 0..2 {
            for (zone, (generation, length)) in states.iter().enumerate() {
                for at in (0..*length).step_by(16 * KIB) {
                    check(&handle, zone as u32, *generation, at, 16 * KIB).await;
                }
            }
            settle().await;
        }
        assert_eq!(number(&*part, "read_cache_errors").await, 0);
        part.message("flush").await.unwrap();
        drop(handle);
        part.close().await.unwrap();
        seen = Some(states);
    }
}

#[test]
fn a_cut_at_every_write_of_a_short_history() {
    let step = if conformance::budget::is_long() { 1 } else { 5 };
    let cuts = (1..10_000).step_by(step).take_while(|writes| !cut_after(*writes)).count();
    println!("{cuts} cuts");
    assert!(cuts * step > 60, "{cuts} cuts");
}
