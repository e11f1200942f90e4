//! Power cuts, failures and full drives, one at a time: regressions of the first version, and similar cases.

use super::common::{drive, format, open, simulate, small};
use block::{Error, ZoneIndex, ZonesPart};
use kv::{Acknowledge, Batch, DeletePersistence, Settings, Store};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zns::machine::State;

fn key(number: u32) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

/// Incompressible values.
fn noise(number: u32) -> Vec<u8> {
    (0..1000u32)
        .map(|at| (number.wrapping_mul(2_654_435_761).wrapping_add(at * 40_503) >> (at % 19)) as u8)
        .collect()
}

/// Writes until the store has no space; returns the number of keys, and the error.
async fn fill(store: &Store, acknowledge: Acknowledge) -> (u32, Error) {
    let mut number = 0;
    loop {
        let mut batch = Batch::new();
        batch.put(&key(number), &noise(number));
        if let Err(error) = store.write(batch, acknowledge).await {
            return (number, error);
        }
        number += 1;
    }
}

#[test]
fn all_writers_are_answered_when_the_power_is_cut() {
    simulate(1, 1, || async {
        let drive = drive(64);
        let zones: Arc<dyn ZonesPart> = drive.clone();
        let store = format(&zones, &small()).await;
        let answered = Rc::new(Cell::new(0));
        for writer in 0..40u32 {
            let (store, answered) = (store.clone(), answered.clone());
            let writing = async move {
                let mut number = writer * 10_000;
                while store.put(&key(number), &[7; 200]).await.is_ok() {
                    number += 1;
                }
                answered.set(answered.get() + 1);
            };
            runtime::spawn(writing).detach();
        }
        for _ in 0..500 {
            runtime::yield_now().await;
        }
        drive.power_off().await.unwrap();
        runtime::sleep(Duration::from_secs(60)).await;
        assert_eq!(answered.get(), 40);
    });
}

#[test]
fn a_full_store_refuses_puts_and_takes_deletes_and_then_puts() {
    simulate(2, 1, move || async move {
        let drive = drive(40);
        let zones: Arc<dyn ZonesPart> = drive.clone();
        let settings = small();
        let store = format(&zones, &settings).await;
        let (keys, error) = fill(&store, Acknowledge::Written).await;
        assert!(matches!(error, Error::NoSpace(_)), "{error}");
        // The drive has 40 zones of 768 KiB.
        assert!(keys > 5000, "{keys} keys");
        let again = async |work: &mut dyn AsyncTry| {
            for _ in 0..30 {
                if work.attempt(&store).await.is_ok() {
                    return;
                }
                runtime::sleep(Duration::from_secs(1)).await;
            }
            panic!("refused for 30 s: {:?}", store.status().await);
        };
        again(&mut DeleteAll).await;
        again(&mut PutOne(0)).await;
        // A compaction frees the space of deleted keys.
        store.compact().await.unwrap();
        let mut taken = 0;
        for number in 0..60 {
            taken += u32::from(store.put(&key(number), b"y").await.is_ok());
            runtime::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(taken, 60, "{:?}", store.status().await);
        let closed = runtime::timeout(Duration::from_secs(600), store.close()).await;
        closed.expect("closing hangs").unwrap();
        let store = runtime::timeout(Duration::from_secs(600), Store::open(zones.clone(), &settings)).await;
        assert!(store.expect("opening hangs").unwrap().get(&key(59)).await.unwrap().is_some());
    });
}

/// A write that is retried.
trait AsyncTry {
    fn attempt<'a>(&'a mut self, store: &'a Store) -> block::Call<'a, block::Result<()>>;
}

struct DeleteAll;

impl AsyncTry for DeleteAll {
    fn attempt<'a>(&'a mut self, store: &'a Store) -> block::Call<'a, block::Result<()>> {
        block::Call::new(store.delete_range(b"key", b"kez"))
    }
}

struct PutOne(u32);

impl AsyncTry for PutOne {
    fn attempt<'a>(&'a mut self, store: &'a Store) -> block::Call<'a, block::Result<()>> {
        let number = self.0;
        block::Call::new(async move { store.put(&key(number), &noise(number)).await })
    }
}

#[test]
fn a_full_store_keeps_every_write_that_was_acknowledged_before_it_was_written() {
    simulate(3, 1, || async {
        let drive = drive(24);
        let zones: Arc<dyn ZonesPart> = drive.clone();
        let store = format(&zones, &small()).await;
        let (keys, error) = fill(&store, Acknowledge::Buffered).await;
        assert!(matches!(error, Error::NoSpace(_)), "{error}");
        store.flush().await.unwrap();
        drop(store.close().await);
        let store = open(&zones, &small()).await;
        for number in 0..keys {
            assert!(store.get(&key(number)).await.unwrap().is_some(), "key {number} of {keys}");
        }
    });
}

#[test]
fn a_second_power_cut_while_the_log_is_replayed_into_small_buffers_loses_nothing() {
    for wait in 0..100u64 {
        simulate(5, 1, move || async move {
            let drive = drive(64);
            let zones: Arc<dyn ZonesPart> = drive.clone();
            let large = Settings { buffer_bytes: 8 << 20, ..small() };
            let store = format(&zones, &large).await;
            for round in 0..10u32 {
                let puts = (0..40u32).map(|number| {
                    let store = store.clone();
                    async move {
                        let mut batch = Batch::new();
                        batch.put(&key(round * 100 + number), &[number as u8; 900]);
                        let modes = [Acknowledge::Written, Acknowledge::Buffered];
                        store.write(batch, modes[number as usize % 2]).await
                    }
                });
                runtime::join_all(puts).await.into_iter().for_each(|outcome| outcome.unwrap());
            }
            store.flush().await.unwrap();
            drive.power_off().await.unwrap();
            drop(store);
            drive.power_on().unwrap();
            let tiny = Settings { buffer_bytes: 2 << 10, level0_tables: 100, stop_tables: 1000, ..small() };
            let again = zones.clone();
            let opening = async move { Store::open(again, &tiny).await.map(std::mem::forget) };
            runtime::spawn(opening).detach();
            for _ in 0..wait * 20 {
                runtime::yield_now().await;
            }
            drive.power_off().await.unwrap();
            runtime::sleep(Duration::from_secs(1)).await;
            drive.power_on().unwrap();
            let store = open(&zones, &large).await;
            for number in (0..10u32).flat_map(|round| (0..40).map(move |number| round * 100 + number)) {
                assert!(
                    store.get(&key(number)).await.unwrap().is_some(),
                    "key {number} is lost, wait {wait}"
                );
            }
        });
    }
}

#[test]
fn stores_of_one_to_the_most_shards_delete_ranges_close_and_open_and_others_are_refused() {
    for shards in [1u16, 15, 16, 17, 40] {
        simulate(8, 1, move || async move {
            let drive = drive(256);
            let zones: Arc<dyn ZonesPart> = drive.clone();
            let settings = Settings { shards: Some(shards), buffer_bytes: 4 << 20, ..small() };
            let store = Store::format(zones.clone(), &settings).await;
            if shards > kv::MAX_SHARDS {
                let error = store.expect_err("too many shards");
                assert!(error.to_string().contains("expected 1 to 16"), "{error}");
                return;
            }
            let store = store.unwrap().on_lent_zones();
            store.delete_range(b"a", b"b").await.unwrap();
            store.close().await.unwrap();
            open(&zones, &settings).await.close().await.unwrap();
        });
    }
}

#[test]
fn full_and_filling_stores_close_and_open() {
    for seed in 0..16u64 {
        simulate(seed, 1, move || async move {
            let drive = drive(20 + (seed % 8) as u32);
            let zones: Arc<dyn ZonesPart> = drive.clone();
            let store = format(&zones, &small()).await;
            let filler = store.clone();
            let filling = runtime::spawn(async move { fill(&filler, Acknowledge::Written).await });
            if seed % 2 == 0 {
                filling.await;
                runtime::sleep(Duration::from_millis(seed * 13)).await;
            } else {
                runtime::sleep(Duration::from_millis(seed * 40)).await;
                filling.detach();
            }
            let closed = runtime::timeout(Duration::from_secs(3600), store.close()).await;
            assert!(closed.is_ok(), "seed {seed}: closing hangs");
            let opened =
                runtime::timeout(Duration::from_secs(3600), Store::open(zones.clone(), &small())).await;
            assert!(opened.is_ok_and(|opened| opened.is_ok()), "seed {seed}");
        });
    }
}

#[test]
fn buffered_writes_survive_a_clean_close_and_a_power_cut_after_it() {
    for seed in 0..30u64 {
        simulate(seed, 1, move || async move {
            let drive = drive(64);
            let zones: Arc<dyn ZonesPart> = drive.clone();
            let settings = Settings { acknowledge: Acknowledge::Buffered, buffer_bytes: 16 << 10, ..small() };
            let store = format(&zones, &settings).await;
            for number in 0..(400 + seed as u32 * 3) {
                store.put(&key(number), &[number as u8; 300]).await.unwrap();
                if number % 50 == 0 {
                    store.flush().await.unwrap();
                }
                if number % 7 == 0 {
                    runtime::yield_now().await;
                }
            }
            store.close().await.unwrap();
            let store = open(&zones, &settings).await;
            store.flush().await.unwrap();
            drive.power_off().await.unwrap();
            drop(store);
            drive.power_on().unwrap();
            let store = open(&zones, &settings).await;
            for number in 0..400 {
                assert!(store.get(&key(number)).await.unwrap().is_some(), "seed {seed}, key {number}");
            }
        });
    }
}

/// A store without the expiring class moves tables of that class.
#[test]
fn a_store_is_opened_with_another_placement() {
    simulate(3, 1, || async {
        let zones: Arc<dyn ZonesPart> = drive(32);
        let deadline = Settings {
            compaction: "zap".to_owned(),
            placement: "zap".to_owned(),
            delete_persistence: Some(DeletePersistence::Time(Duration::from_secs(40))),
            ..small()
        };
        let store = format(&zones, &deadline).await;
        for round in 0..60u32 {
            for number in 0..400 {
                let number = (round * 400 + number) * 7919 % 5000;
                store.put(&key(number), &noise(round + number)).await.unwrap();
                if number % 50 == round % 50 {
                    store.delete(&key(number)).await.unwrap();
                }
            }
            runtime::sleep(Duration::from_secs(2)).await;
        }
        store.close().await.unwrap();
        // Without a deadline only the cleaner resets zones.
        let store = open(&zones, &small()).await;
        for round in 0..60u32 {
            for number in 0..400 {
                let number = (round * 400 + number) * 7919 % 5000;
                store.put(&key(number), &noise(round + number)).await.unwrap();
            }
        }
        assert!(store.status().await.unwrap()["moved_bytes"].as_u64() > Some(0), "nothing was moved");
        store.close().await.unwrap();
    });
}

#[test]
fn a_batch_with_a_key_or_a_value_that_is_too_large_is_refused() {
    simulate(4, 1, || async {
        let zones: Arc<dyn ZonesPart> = drive(32);
        let store = format(&zones, &small()).await;
        let mut batch = Batch::new();
        batch.put(b"a", b"1");
        batch.put(&vec![7; 40_000], b"2");
        let error = store.write(batch, Acknowledge::Written).await.unwrap_err();
        assert!(
            matches!(&error, Error::Invalid(_)) && error.to_string().contains("key of 40000 bytes"),
            "{error}"
        );
        assert!(store.get(b"a").await.unwrap().is_none());
    });
}

/// Zones fail one after another: each read of a key finds its value or fails, and the status reports it; data
/// in other zones stays readable.
#[test]
fn zones_that_go_offline_one_by_one_take_only_what_is_in_them() {
    for seed in 0..6u64 {
        simulate(seed, 1, move || async move {
            let drive = drive(48);
            let zones: Arc<dyn ZonesPart> = drive.clone();
            let settings = Settings { cache_bytes: 0, ..small() };
            let store = format(&zones, &settings).await;
            let all = 3000;
            let values: Vec<Vec<u8>> = (0..all).map(noise).collect();
            for (number, value) in (0..).zip(&values) {
                store.put(&key(number), value).await.unwrap();
            }
            store.flush_buffers().await.unwrap();
            store.wait_for_compactions().await.unwrap();
            let mut readable = all;
            for zone in (0..48).map(|step| (step * 7 + seed as u32) % 48).take(24) {
                drive.fail_zone(ZoneIndex(zone), State::Offline).await.unwrap();
                let mut found = 0;
                for (number, value) in (0..).zip(&values) {
                    match store.get(&key(number)).await {
                        Ok(Some(stored)) => {
                            assert_eq!(stored.value, *value, "key {number}");
                            found += 1;
                        }
                        Ok(None) => panic!("zone {zone} is offline, and key {number} doesn't exist any more"),
                        Err(error) => {
                            assert!(error.to_string().contains("of zone"), "key {number}: {error}");
                        }
                    }
                }
                assert!(
                    found <= readable && found + 1000 > readable,
                    "{readable} keys, then {found}, by zone {zone}"
                );
                readable = found;
                // A put succeeds or is refused, but doesn't hang.
                let put = runtime::timeout(Duration::from_secs(60), store.put(b"new", b"1")).await;
                assert!(put.is_ok(), "a put hangs");
            }
            assert!(readable < all, "nothing was in the zones");
            let closed = runtime::timeout(Duration::from_secs(600), store.close()).await;
            assert!(closed.is_ok(), "closing hangs");
        });
    }
}
