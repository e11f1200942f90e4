//! Single operations in sequence.

use super::common::{format, open, simulate, small, zones};
use kv::{Acknowledge, Batch, Scan, Settings, Stored, Update};

fn key(number: u32) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

#[test]
fn what_is_put_is_there_until_it_is_deleted_and_after_the_store_was_closed() {
    for shards in [1, 2] {
        simulate(1, shards, || async {
            let zones = zones(64);
            let store = format(&zones, &small()).await;
            store.put(b"a", b"1").await.unwrap();
            assert_eq!(store.get(b"a").await.unwrap(), Some(Stored { value: b"1".to_vec(), expires: None }));
            store.put(b"a", b"2").await.unwrap();
            store.put(b"b", b"3").await.unwrap();
            store.delete(b"b").await.unwrap();
            assert_eq!(store.get(b"b").await.unwrap(), None);
            store.close().await.unwrap();
            let store = open(&zones, &small()).await;
            assert_eq!(store.get(b"a").await.unwrap().unwrap().value, b"2");
            assert_eq!(store.get(b"b").await.unwrap(), None);
            store.close().await.unwrap();
        });
    }
}

#[test]
fn many_keys_go_through_all_levels() {
    for shards in [1, 2] {
        simulate(2, shards, || async {
            let zones = zones(64);
            let store = format(&zones, &small()).await;
            for round in 0..4u32 {
                for number in 0..2000 {
                    let value = format!("value {number} of round {round} {:0100}", number * 7);
                    store.put(&key(number * 7919 % 4000), value.as_bytes()).await.unwrap();
                }
            }
            for number in (0..2000).step_by(3) {
                store.delete(&key(number * 7919 % 4000)).await.unwrap();
            }
            for number in 0..2000u32 {
                let found = store.get(&key(number * 7919 % 4000)).await.unwrap();
                match number % 3 {
                    0 => assert_eq!(found, None, "key {number}"),
                    _ => assert!(
                        found.unwrap().value.starts_with(format!("value {number} of round 3").as_bytes())
                    ),
                }
            }
            let status = store.status().await.unwrap();
            assert!(status["compactions"].as_u64().unwrap() > 3, "{status:?}");
            let scan = Scan::from(Vec::new(), usize::MAX);
            let mut from = Vec::new();
            let mut count = 0;
            loop {
                let (pairs, has_more) =
                    store.scan(None, Scan { from: from.clone(), most: 100, ..scan.clone() }).await.unwrap();
                assert!(pairs.iter().map(|pair| pair.key).is_sorted());
                count += pairs.len();
                if !has_more {
                    break;
                }
                from = pairs.last().unwrap().key.to_vec();
                from.push(0);
            }
            assert_eq!(count, 1333);
            store.close().await.unwrap();
            let store = open(&zones, &small()).await;
            assert!(store.get(&key(3919)).await.unwrap().is_some());
            store.close().await.unwrap();
        });
    }
}

#[test]
fn batches_snapshots_updates_and_iterators() {
    simulate(3, 2, || async {
        let zones = zones(64);
        let store = format(&zones, &small()).await;
        let mut batch = Batch::new();
        (0..50).for_each(|number| batch.put(&key(number), b"first"));
        store.write(batch, Acknowledge::Flushed).await.unwrap();
        let snapshot = store.snapshot().await.unwrap();
        let mut batch = Batch::new();
        batch.delete_range(&key(10), &key(40));
        batch.put(&key(20), b"second");
        store.write(batch, Acknowledge::Written).await.unwrap();
        store.flush_buffers().await.unwrap();
        assert_eq!(store.get(&key(15)).await.unwrap(), None);
        assert_eq!(store.get(&key(20)).await.unwrap().unwrap().value, b"second");
        assert_eq!(store.get_in(&snapshot, &key(15)).await.unwrap().unwrap().value, b"first");
        let count = store
            .update(b"counter", |found| {
                let next = found.map_or(0u8, |it| it.value[0]) + 1;
                (Some(Update::Put(Stored { value: vec![next], expires: None })), next)
            })
            .await
            .unwrap();
        assert_eq!(count, 1);
        let mut iterator = store.iterate(b"key", None).await.unwrap();
        iterator.seek_last().await.unwrap();
        let mut keys = 0;
        while iterator.pair().is_some() {
            keys += 1;
            iterator.previous().await.unwrap();
        }
        assert_eq!(keys, 21);
        drop((iterator, snapshot));
        store.close().await.unwrap();
    });
}

/// Problems that a check of the store finds.
async fn problems(zones: &std::sync::Arc<dyn block::ZonesPart>) -> Vec<kv::check::Problem> {
    let handle = zones.open().await.unwrap();
    kv::check::check(&*handle, 100, &|_, _| {}).await.unwrap().problems
}

#[test]
fn a_compaction_on_request_leaves_one_level_without_deleted_keys() {
    for shards in [1, 2] {
        simulate(4, shards, || async {
            let zones = zones(64);
            let store = format(&zones, &small()).await;
            for round in 0..3u32 {
                for number in 0..1500 {
                    store
                        .put(&key(number * 7919 % 4000), format!("{round} {:0100}", number).as_bytes())
                        .await
                        .unwrap();
                }
            }
            for number in 0..1000 {
                store.delete(&key(number * 7919 % 4000)).await.unwrap();
            }
            let mut batch = Batch::new();
            batch.delete_range(&key(3900), &key(4000));
            store.write(batch, Acknowledge::Written).await.unwrap();
            store.put_until(&key(9000), b"gone", 1).await.unwrap();
            store.flush_buffers().await.unwrap();
            assert_eq!(problems(&zones).await, [], "while it is open");
            let iterator = store.iterate(b"", None).await.unwrap();
            store.compact().await.unwrap();
            let held = store.status().await.unwrap();
            assert!(held["entries"].as_u64().unwrap() > 400, "{held:?}");
            drop(iterator);
            store.compact().await.unwrap();
            let status = store.status().await.unwrap();
            let levels = status["levels"].as_array().unwrap();
            for shard in levels {
                let with_tables =
                    shard.as_array().unwrap().iter().filter(|level| level["tables"] != 0).count();
                assert_eq!(with_tables, 1, "{levels:?}");
            }
            let mut keys = 0;
            for number in 0..1500u32 {
                let name = key(number * 7919 % 4000);
                let found = store.get(&name).await.unwrap();
                let is_there = number >= 1000 && name < key(3900);
                keys += u64::from(is_there);
                assert_eq!(
                    found.map(|stored| stored.value),
                    is_there.then(|| format!("2 {number:0100}").into_bytes())
                );
            }
            assert_eq!((&status["entries"], &status["tombstones"]), (&keys.into(), &0.into()), "{status:?}");
            store.close().await.unwrap();
            assert_eq!(problems(&zones).await, []);
        });
    }
}

#[test]
fn scans_yield_the_time_of_expiry_in_both_directions() {
    simulate(5, 2, || async {
        let zones = zones(64);
        let store = format(&zones, &small()).await;
        let later = runtime::wall_clock().as_millis() as u64 + 1_000_000;
        for number in 0..20 {
            match number % 2 {
                0 => store.put(&key(number), b"stays").await.unwrap(),
                _ => store.put_until(&key(number), b"goes", later + u64::from(number)).await.unwrap(),
            }
            if number == 10 {
                store.flush_buffers().await.unwrap();
            }
        }
        let scan = Scan::from(Vec::new(), 100);
        let (pairs, _) = store.scan(None, scan.clone()).await.unwrap();
        let (reversed, _) = store.scan(None, Scan { is_backward: true, ..scan }).await.unwrap();
        assert!(pairs.iter().eq(reversed.iter().rev()));
        for (number, pair) in (0..).zip(pairs.iter()) {
            let expires = (number % 2 == 1).then(|| later + u64::from(number));
            assert_eq!((pair.key, pair.expires), (&key(number)[..], expires));
        }
        let mut iterator = store.iterate(b"", None).await.unwrap();
        iterator.seek(&key(7)).await.unwrap();
        assert_eq!(iterator.expires(), Some(later + 7));
        drop(iterator);
        store.close().await.unwrap();
    });
}

#[test]
fn updates_and_conditional_batches_of_the_same_keys_take_turns() {
    for (seed, shards) in [(1, 1), (2, 3), (3, 16)] {
        simulate(seed, 2, move || async move {
            let store = format(&zones(128), &Settings { shards: Some(shards), ..small() }).await;
            let writers = (0..8u64).map(|writer| {
                let store = store.clone();
                runtime::spawn(async move {
                    let mut won = 0;
                    for round in 0..20 {
                        let add = move |found: Option<Stored>| {
                            let mut value = found.unwrap_or_default().value;
                            value.push(writer as u8);
                            (Some(Update::Put(Stored { value, expires: None })), ())
                        };
                        store.update(b"list", add).await.unwrap();
                        let mut batch = Batch::new();
                        for name in ["a", "b", "c", "d"] {
                            batch.put(format!("{name}{round}").as_bytes(), &[writer as u8]);
                        }
                        won += u64::from(store.write_if_absent(batch, Acknowledge::Written).await.unwrap());
                    }
                    won
                })
            });
            let won: u64 = runtime::join_all(writers.collect::<Vec<_>>()).await.into_iter().sum();
            assert_eq!((won, store.get(b"list").await.unwrap().unwrap().value.len()), (20, 160));
            for round in 0..20 {
                let mut found = Vec::new();
                for name in ["a", "b", "c", "d"] {
                    found
                        .extend(store.get(format!("{name}{round}").as_bytes()).await.unwrap().unwrap().value);
                }
                assert!(found.iter().all(|writer| *writer == found[0]), "round {round}: {found:?}");
            }
            let mut ranges = Batch::new();
            ranges.delete_range(b"a", b"b");
            let refused = store.write_if_absent(ranges, Acknowledge::Written).await.unwrap_err();
            assert!(refused.to_string().contains("deletes a range"), "{refused}");
            store.close().await.unwrap();
        });
    }
}
