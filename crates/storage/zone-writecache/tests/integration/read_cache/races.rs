//! Clients of several shards that append, read, reset and use zones again, while chunks of them are being
//! fetched: every read gives the bytes of the zone's generation.

use super::{CHUNK, MIB, ZONE, open, settle, slow, stamped, with_cache};
use crate::fast_device;
use crate::promises::{KIB, number, read};
use block::{Data, EraseGuarantee, Part, ZoneAddress, ZoneIndex, Zones, ZonesPart};
use runtime::{Random, ShardIndex, Simulation};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zone_writecache::ZoneWriteCachePart;

const ZONES: u32 = 40;

/// State of a zone for its users.
#[derive(Clone, Copy, Default)]
struct Zone {
    generation: u64,
    length: usize,
    readers: usize,
    /// An append or a reset is in flight.
    is_changing: bool,
}

type Model = Arc<Mutex<Vec<Zone>>>;

/// Reads some of a zone, from its start in small reads, or a random range.
async fn read_some(handle: &Rc<dyn Zones>, model: &Model, zone: u32, random: &mut Random) {
    let Zone { generation, length, .. } = {
        let mut zones = model.lock().unwrap();
        let known = &mut zones[zone as usize];
        if known.length == 0 || known.is_changing {
            return;
        }
        known.readers += 1;
        *known
    };
    let ranges: Vec<(usize, usize)> = match random.below(3) {
        0 => (0..length).step_by(16 * KIB).map(|at| (at, (length - at).min(16 * KIB))).collect(),
        _ => {
            let at = random.below((length / 512) as u64) as usize * 512;
            let most = (length - at).min(CHUNK * 2) / 512;
            vec![(at, (1 + random.below(most as u64) as usize) * 512)]
        }
    };
    for (at, bytes) in ranges {
        let found = read(handle, ZoneAddress::new(zone, at as u64), bytes).await.unwrap();
        assert!(
            found == stamped(zone, generation, at, bytes),
            "zone {zone}, generation {generation}, {bytes} bytes at {at}"
        );
    }
    model.lock().unwrap()[zone as usize].readers -= 1;
}

/// Appends to a zone, or resets a full one once it has no readers.
async fn change(handle: &Rc<dyn Zones>, model: &Model, zone: u32, random: &mut Random) {
    let Zone { generation, length, .. } = {
        let mut zones = model.lock().unwrap();
        let known = &mut zones[zone as usize];
        if known.is_changing {
            return;
        }
        known.is_changing = true;
        *known
    };
    let set = |change: &dyn Fn(&mut Zone)| change(&mut model.lock().unwrap()[zone as usize]);
    if length == ZONE || length > 0 && random.chance(0.1) {
        while model.lock().unwrap()[zone as usize].readers > 0 {
            runtime::sleep(Duration::from_micros(100)).await;
        }
        let raised = handle.reset(ZoneIndex(zone), EraseGuarantee::None).await.unwrap();
        assert_eq!(raised, generation + 1);
        set(&|known| *known = Zone { generation: raised, ..Zone::default() });
        return;
    }
    let bytes = (1 + random.below(128) as usize) * 512;
    let bytes = bytes.min(ZONE - length);
    let data = Data::copy_of(&stamped(zone, generation, length, bytes));
    let at = handle.append(ZoneIndex(zone), data.into()).await.unwrap();
    assert_eq!(at, ZoneAddress::new(zone, length as u64));
    set(&|known| {
        known.length += bytes;
        known.is_changing = false;
    });
}

async fn client(part: Arc<ZoneWriteCachePart>, model: Model, seed: u64, steps: u32) {
    let handle = part.open().await.unwrap();
    let mut random = Random::new(seed);
    for _ in 0..steps {
        let zone = random.below(ZONES.into()) as u32;
        match random.below(100) {
            0..60 => read_some(&handle, &model, zone, &mut random).await,
            60..98 => change(&handle, &model, zone, &mut random).await,
            98 => handle.flush(&[ZoneIndex(zone)]).await.unwrap(),
            _ => drop(part.message("flush").await.unwrap()),
        }
    }
}

fn run(seed: u64, shards: usize, read_cache: usize, steps: u32) {
    let simulation = Simulation { shards, most_events: 200_000_000, ..Simulation::new(seed) };
    let main = move || async move {
        let (origin, record) = slow(ZONES, ZONE, Duration::from_millis(1 + seed % 20));
        let fast = fast_device();
        let part = open(&fast, origin, with_cache(Some(read_cache as u64), true)).await;
        let zones = part.open().await.unwrap().report(ZoneIndex(0), ZONES).await.unwrap();
        let zones = zones.iter().map(|zone| Zone { generation: zone.generation, ..Zone::default() });
        let model: Model = Arc::new(Mutex::new(zones.collect()));
        let clients = (0..16_usize).map(|number| {
            let (part, model, seed) = (part.clone(), model.clone(), seed * 100 + number as u64);
            runtime::spawn_on(ShardIndex(number % shards), move || client(part, model, seed, steps))
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.unwrap();
        }
        settle().await;
        let names =
            ["read_cache_hits", "read_cache_fills", "read_ahead_used_bytes", "read_cache_fetching_bytes"];
        let mut numbers = Vec::new();
        for name in names {
            numbers.push(number(&*part, name).await);
        }
        println!(
            "seed {seed}, {shards} shards: {} origin reads, {names:?}: {numbers:?}",
            record.take().len()
        );
        assert!(numbers[0] > 0 && numbers[1] > 0, "seed {seed}: the cache wasn't used");
        assert_eq!((number(&*part, "read_cache_errors").await, numbers[3]), (0, 0), "seed {seed}");
        part.close().await.unwrap();
    };
    runtime::simulate(simulation, main)
        .unwrap_or_else(|error| panic!("seed {seed}, {shards} shards: {error}"));
}

#[test]
fn no_read_gives_bytes_of_another_generation() {
    // The log has less space than the zones.
    for (seed, shards, read_cache, steps) in [(1, 1, MIB, 200), (2, 7, 8 * MIB, 200), (3, 32, 4 * MIB, 200)] {
        run(seed, shards, read_cache, steps);
    }
    if conformance::budget::is_long() {
        (10..60).for_each(|seed| run(seed, [1, 7, 32][seed as usize % 3], MIB << (seed % 4), 1000));
    }
}
