//! Longest delays of writes during compactions.

use super::common::{format, limited_drive, simulate};
use super::slow_zones::SlowZones;
use kv::{Settings, Store};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BUFFER: u64 = 256 * KIB;
/// Bandwidth of the zones for reads and appends together, in bytes per second.
const BANDWIDTH: u64 = 8 * MIB;
const WRITERS: u64 = 64;
const VALUE: u64 = 4000;
const KEYS: u64 = 2000;
/// Maximum size of an append or read of a compaction.
const PIECE: u64 = MIB;

fn settings() -> Settings {
    Settings {
        buffer_bytes: BUFFER,
        table_bytes: 128 * KIB,
        level_bytes: MIB,
        multiplier: 4,
        cache_bytes: MIB,
        shards: Some(1),
        ..Settings::default()
    }
}

/// Puts keys in random order until `ends`; returns the longest duration of a put, and the number of puts.
async fn put(store: Store, writer: u64, ends: Rc<Cell<bool>>, most: u64) -> (Duration, u64) {
    let (mut longest, mut count) = (Duration::ZERO, 0);
    let mut random = writer << 32 | 1;
    while !ends.get() && count < most {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let value: Vec<u8> = (0..VALUE).map(|at| (random >> (at % 57)) as u8 ^ at as u8).collect();
        let begun = runtime::now();
        store.put(format!("key {:08}", (random >> 33) % KEYS).as_bytes(), &value).await.unwrap();
        longest = longest.max(begun.elapsed());
        count += 1;
    }
    (longest, count)
}

async fn put_from_all(store: &Store, ends: &Rc<Cell<bool>>, most: u64) -> (Duration, u64) {
    let writers = (0..WRITERS).map(|writer| runtime::spawn(put(store.clone(), writer, ends.clone(), most)));
    let outcomes = runtime::join_all(writers.collect::<Vec<_>>()).await;
    outcomes
        .into_iter()
        .fold((Duration::ZERO, 0), |(longest, count), (one, own)| (longest.max(one), count + own))
}

#[test]
fn no_put_waits_longer_than_is_stated_while_all_tables_are_compacted() {
    let seed = 1;
    simulate(seed, 1, move || async move {
        let zones = SlowZones::with_bandwidth(limited_drive(128, MIB, 0), BANDWIDTH);
        let store = format(&zones, &settings()).await;
        let ends: Rc<Cell<bool>> = Rc::default();
        put_from_all(&store, &ends, 3 * KEYS / WRITERS).await;
        let begun = runtime::now();
        let compaction = {
            let (store, ends) = (store.clone(), ends.clone());
            runtime::spawn(async move {
                let outcome = store.compact().await;
                ends.set(true);
                outcome
            })
        };
        let (longest, count) = put_from_all(&store, &ends, 4000).await;
        let took = begun.elapsed();
        assert!(ends.get(), "the compaction goes on as long as there are writes: {took:?}");
        compaction.await.unwrap();
        let status = store.status().await.unwrap();
        assert!(
            status["slowed_writes"].as_u64() > Some(0),
            "seed {seed}: {count} puts were not enough: {status:?}"
        );
        // A put is delayed for at most a second; then it may wait for a flush, whose pieces alternate with
        // those of a compaction.
        let flush = Duration::from_secs_f64((4 * PIECE) as f64 / BANDWIDTH as f64);
        assert!(longest <= Duration::from_secs(1) + flush, "seed {seed}: a put took {longest:?}");
        assert!(took > Duration::from_secs(5), "seed {seed}: the compaction took only {took:?}");
        store.close().await.unwrap();
    });
}
