//! Persistent deletes: after their time limit no cell of the drive has a deleted key.

use super::common::{drive, format, open, simulate, small};
use block::{EraseGuarantee, ZoneIndex, ZonesPart};
use kv::audit::{Findings, audit};
use kv::{Broken, DeletePersistence, Settings, Store, with_broken};
use std::sync::Arc;
use std::time::Duration;
use zns::Zns;

/// Time limit of persistent deletes.
const PERSISTENCE: Duration = Duration::from_secs(2);

fn settings(compaction: &str, placement: &str) -> Settings {
    Settings {
        compaction: compaction.to_owned(),
        placement: placement.to_owned(),
        delete_persistence: Some(DeletePersistence::Time(PERSISTENCE)),
        erase: EraseGuarantee::Erased,
        ..small()
    }
}

async fn look(drive: &Zns, keys: &[Vec<u8>]) -> Findings {
    let geometry = ZonesPart::geometry(drive).clone();
    let cells = async |zone| drive.raw(ZoneIndex(zone), 0, geometry.zone_capacity, false).await;
    audit(geometry.zones, cells, keys).await.unwrap()
}

fn doomed() -> Vec<Vec<u8>> {
    (0..40).map(|number| format!("doomed-{number:04}-key").into_bytes()).collect()
}

fn other(number: u32) -> Vec<u8> {
    format!("key-{number:06}").into_bytes()
}

/// Writes unrelated keys at a steady rate.
async fn work(store: &Store, time: Duration, from: u32) {
    for round in 0..time.as_millis() as u32 / 20 {
        for number in 0..4 {
            let value = format!("{:0200}", round * 7 + number);
            store.put(&other((from + round * 4 + number) * 7919 % 3000), value.as_bytes()).await.unwrap();
        }
        runtime::sleep(Duration::from_millis(20)).await;
    }
}

/// Puts keys among others, overwrites and deletes them.
async fn delete_some(store: &Store) {
    for number in 0..3000 {
        store.put(&other(number), format!("{number:0200}").as_bytes()).await.unwrap();
    }
    for key in doomed() {
        store.put(&key, b"an older version").await.unwrap();
    }
    work(store, PERSISTENCE / 4, 0).await;
    for key in doomed() {
        store.put(&key, b"the newest version").await.unwrap();
    }
    work(store, PERSISTENCE / 4, 1000).await;
    for key in doomed().iter().take(20) {
        store.delete(key).await.unwrap();
    }
    store.delete_range(b"doomed-0020", b"doomed-9").await.unwrap();
}

#[test]
fn deleted_keys_are_gone_from_the_cells_in_time() {
    for (compaction, placement) in [("fade", "lifetime"), ("zap", "zap")] {
        for shards in [1, 2] {
            simulate(7, shards, move || async move {
                let drive = drive(64);
                let zones: Arc<dyn ZonesPart> = drive.clone();
                let store = format(&zones, &settings(compaction, placement)).await;
                delete_some(&store).await;
                let before = look(&drive, &doomed()).await;
                assert!(before.found.len() > 40, "{compaction}: {before:?}");
                assert!(before.blocks > 100, "{before:?}");
                work(&store, PERSISTENCE, 2000).await;
                let after = look(&drive, &doomed()).await;
                let status = store.status().await.unwrap();
                assert_eq!(after.found, [], "{compaction}, {shards} shards: {status:?}");
                assert_eq!(status["delete_persistence"]["zones_overdue"], 0, "{status:?}");
                assert_eq!(status["delete_persistence"]["zones_late"], 0, "{status:?}");
                assert!(store.get(&other(5)).await.unwrap().is_some());
                store.close().await.unwrap();
                zones.close().await.unwrap();
            });
        }
    }
}

#[test]
fn deleted_keys_are_gone_in_time_though_the_power_was_cut() {
    simulate(8, 1, || async {
        let drive = drive(64);
        let zones: Arc<dyn ZonesPart> = drive.clone();
        let store = format(&zones, &settings("zap", "zap")).await;
        delete_some(&store).await;
        store.flush().await.unwrap();
        drive.power_off().await.unwrap();
        drop(store);
        drive.power_on().unwrap();
        let store = open(&zones, &settings("zap", "zap")).await;
        work(&store, PERSISTENCE, 2000).await;
        let after = look(&drive, &doomed()).await;
        assert_eq!(after.found, [], "{:?}", store.status().await);
        store.close().await.unwrap();
    });
}

#[test]
fn the_audit_finds_keys_in_zones_that_were_forgotten_or_not_erased() {
    let no_erasure = Settings { erase: EraseGuarantee::Deallocated, ..settings("zap", "zap") };
    let no_promise = Settings { delete_persistence: None, ..settings("saturation", "lifetime") };
    let cases = [
        ("forgets", settings("zap", "zap"), Some(Broken::ForgetsZones)),
        ("no erasure", no_erasure, None),
        ("no promise", no_promise, None),
    ];
    for (name, settings, broken) in cases {
        let run = move || async move {
            let drive = drive(64);
            let zones: Arc<dyn ZonesPart> = drive.clone();
            let store = format(&zones, &settings).await;
            delete_some(&store).await;
            work(&store, PERSISTENCE, 2000).await;
            let after = look(&drive, &doomed()).await;
            assert!(!after.found.is_empty(), "{name}: {after:?}");
            store.close().await.unwrap();
        };
        with_broken(broken, || simulate(9, 1, run));
    }
}

#[test]
fn a_snapshot_that_keeps_deleted_keys_is_an_alarm() {
    simulate(10, 1, || async {
        let drive = drive(64);
        let zones: Arc<dyn ZonesPart> = drive.clone();
        let store = format(&zones, &settings("zap", "zap")).await;
        for key in doomed() {
            store.put(&key, b"a version").await.unwrap();
        }
        let snapshot = store.snapshot().await.unwrap();
        delete_some(&store).await;
        work(&store, PERSISTENCE * 2, 2000).await;
        let status = store.status().await.unwrap();
        assert_eq!(store.get_in(&snapshot, &doomed()[3]).await.unwrap().unwrap().value, b"a version");
        let promise = &status["delete_persistence"];
        assert!(promise["tombstones_overdue"].as_u64().unwrap() > 0, "{promise:?}");
        assert!(promise["reason"].as_str().unwrap().contains("snapshot"), "{promise:?}");
        drop(snapshot);
        work(&store, PERSISTENCE, 5000).await;
        let status = store.status().await.unwrap();
        assert_eq!(look(&drive, &doomed()).await.found, [], "{status:?}");
        assert_eq!(status["delete_persistence"]["tombstones_overdue"], 0, "{status:?}");
        store.close().await.unwrap();
    });
}
