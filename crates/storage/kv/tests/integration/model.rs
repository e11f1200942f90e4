//! The store against a map: snapshots, scans in both directions, deletes of ranges, expiry, compactions and
//! openings, by seed. The test must detect a store that breaks a rule.

use super::common::{drive, format, open, small};
use block::ZonesPart;
use conformance::Seeds;
use kv::{Acknowledge, Batch, Broken, DeletePersistence, Scan, Settings, Snapshot, Store, with_broken};
use runtime::{Random, Simulation};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Bound;
use std::sync::Arc;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u64 = 120;
const STEPS: u32 = 500;

fn key(number: u64) -> Vec<u8> {
    format!("k{number:04}").into_bytes()
}

/// Compares a result of the store with that of the map.
fn same<T: PartialEq + Debug>(found: &T, expected: &T, what: impl std::fmt::Display) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: {found:?}, expected {expected:?}")),
    }
}

fn any_key(random: &mut Random) -> Vec<u8> {
    key(random.below(KEYS))
}

/// Draws a batch, and applies it to the model.
fn writes(random: &mut Random, model: &mut Model, step: u32) -> Batch {
    let mut batch = Batch::new();
    for _ in 0..=random.below(4) {
        match random.below(10) {
            0 => {
                // Mostly short ranges, so that many keys stay.
                let first = random.below(KEYS);
                let to = if random.below(8) == 0 { any_key(random) } else { key(first + random.below(8)) };
                let from = key(first);
                batch.delete_range(&from, &to);
                model.retain(|key, _| *key < from || *key >= to);
            }
            1 | 2 => {
                let key = any_key(random);
                batch.delete(&key);
                model.remove(&key);
            }
            _ => {
                let key = any_key(random);
                // An incompressible value, so that levels get deep.
                let mut value = vec![0; random.below(600) as usize];
                Random::new(step.into()).fill(&mut value);
                batch.put(&key, &value);
                model.insert(key, value);
            }
        }
    }
    batch
}

/// Compares scans of a range in both directions, in pages, with the model.
async fn check_scans(
    store: &Store,
    snapshot: Option<&Snapshot>,
    model: &Model,
    random: &mut Random,
) -> Result<(), String> {
    let (from, end) = (any_key(random), any_key(random));
    let to = (random.below(4) > 0 && from < end).then_some(end);
    let bounds = (Bound::Included(from.clone()), to.clone().map_or(Bound::Unbounded, Bound::Excluded));
    let range = model.range::<Vec<u8>, _>(bounds).map(|(key, value)| (key.clone(), value.clone()));
    for is_backward in [false, true] {
        let mut expected: Vec<_> = range.clone().collect();
        if is_backward {
            expected.reverse();
        }
        let (mut first, mut last) = (from.clone(), to.clone());
        let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        loop {
            let most = 1 + random.below(20) as usize;
            let scan = Scan { to: last.clone(), is_backward, ..Scan::from(first.clone(), most) };
            let (pairs, has_more) = store.scan(snapshot, scan).await.unwrap();
            found.extend(pairs.iter().map(|pair| (pair.key.to_vec(), pair.value.to_vec())));
            if !has_more {
                break;
            }
            // A page may be empty if a shard had more pairs than it may return.
            let Some((key, _)) = found.last() else { continue };
            match is_backward {
                true => last = Some(key.clone()),
                false => first = [key.as_slice(), &[0]].concat(),
            }
        }
        same(&found, &expected, format_args!("from {from:?} to {to:?}, backward: {is_backward}"))?;
    }
    Ok(())
}

/// Moves an iterator back and forth.
async fn check_iterator(store: &Store, model: &Model, random: &mut Random) -> Result<(), String> {
    let mut iterator = store.iterate(b"", None).await.unwrap();
    let key = any_key(random);
    iterator.seek(&key).await.unwrap();
    let mut at = model.range::<Vec<u8>, _>(key..).next().map(|(key, _)| key.clone());
    for _ in 0..20 {
        same(&iterator.pair().map(|(key, _)| key.to_vec()), &at, "key of an iterator")?;
        let Some(key) = at else { return Ok(()) };
        let value = iterator.pair().map(|(_, value)| value);
        same(&value, &model.get(&key).map(Vec::as_slice), "value of an iterator")?;
        let above = (Bound::Excluded(key.clone()), Bound::Unbounded);
        at = match random.below(3) {
            0 => {
                iterator.previous().await.unwrap();
                model.range::<Vec<u8>, _>(..key).next_back().map(|(key, _)| key.clone())
            }
            _ => {
                iterator.next().await.unwrap();
                model.range::<Vec<u8>, _>(above).next().map(|(key, _)| key.clone())
            }
        };
    }
    Ok(())
}

async fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let zones: Arc<dyn ZonesPart> = drive(64);
    let names = ["saturation", "fade", "zap"];
    let compaction = names[random.below(3) as usize];
    let settings = Settings {
        buffer_bytes: 8 << 10,
        table_bytes: 8 << 10,
        level_bytes: 16 << 10,
        multiplier: 2,
        compaction: compaction.to_owned(),
        delete_persistence: (compaction != "saturation")
            .then_some(DeletePersistence::Time(std::time::Duration::from_secs(1))),
        acknowledge: [Acknowledge::Buffered, Acknowledge::Written][random.below(2) as usize],
        shards: Some(1 + random.below(3) as u16),
        ..small()
    };
    let mut store = format(&zones, &settings).await;
    let mut model = Model::new();
    let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
    for step in 0..STEPS {
        match random.below(100) {
            0..55 => {
                let batch = writes(&mut random, &mut model, step);
                store.write(batch, settings.acknowledge).await.unwrap();
            }
            55..58 => {
                let key = any_key(&mut random);
                // Expires at once, or long after the test.
                let is_expired = random.below(2) == 0;
                let expires = kv::now() + if is_expired { 0 } else { 1 << 40 };
                store.put_until(&key, b"for a time", expires).await.unwrap();
                model.remove(&key);
                if !is_expired {
                    model.insert(key, b"for a time".to_vec());
                }
            }
            58..64 => {
                if snapshots.len() < 4 {
                    snapshots.push((store.snapshot().await.unwrap(), model.clone()));
                } else {
                    snapshots.swap_remove(random.below(4) as usize);
                }
            }
            64..70 => {
                let key = any_key(&mut random);
                let found = store.get(&key).await.unwrap().map(|stored| stored.value);
                same(&found.as_ref(), &model.get(&key), format_args!("{key:?}"))?;
                for (snapshot, model) in &snapshots {
                    let found = store.get_in(snapshot, &key).await.unwrap().map(|stored| stored.value);
                    same(&found.as_ref(), &model.get(&key), format_args!("{key:?} of a snapshot"))?;
                }
            }
            70..80 => check_scans(&store, None, &model, &mut random).await?,
            80..88 => {
                if let Some((snapshot, model)) = snapshots.last() {
                    check_scans(&store, Some(snapshot), model, &mut random).await?;
                }
            }
            88..93 => check_iterator(&store, &model, &mut random).await?,
            93..96 => store.flush_buffers().await.unwrap(),
            96..98 => store.compact().await.unwrap(),
            98 => runtime::sleep(std::time::Duration::from_millis(300)).await,
            _ => {
                snapshots.clear();
                store.close().await.unwrap();
                store = open(&zones, &settings).await;
            }
        }
    }
    check_scans(&store, None, &model, &mut random).await?;
    snapshots.clear();
    store.close().await.unwrap();
    Ok(())
}

fn simulated(seed: u64) -> Result<(), String> {
    let world = Simulation { shards: 1 + (seed % 2) as usize, ..Simulation::new(seed) };
    let ended = runtime::simulate(world, move || run(seed)).map_err(|error| error.to_string());
    ended.and_then(|ended| ended.value).map_err(|error| format!("seed {seed}: {error}"))
}

#[test]
fn the_store_answers_as_a_map_does() {
    for seed in Seeds::of(40) {
        simulated(seed).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Uses a seed that the test above also tries, without the broken rule.
#[test]
fn tombstones_that_are_dropped_above_older_versions_are_noticed() {
    let noticed =
        with_broken(Some(Broken::DropsTombstones), || (1..=40).find_map(|seed| simulated(seed).err()));
    println!("{:.100}", noticed.expect("the model doesn't detect it"));
}
