//! Persistent deletes across a restart: contents of the drive's cells afterwards.

use super::common::{drive, format, open, simulate, small};
use block::{ZoneIndex, ZonesPart};
use kv::{DeletePersistence, Settings};
use std::sync::Arc;
use std::time::Duration;
use zns::Zns;

const PERSISTENCE: Duration = Duration::from_secs(20);

/// Zones whose cells contain these bytes.
pub async fn holding(drive: &Zns, wanted: &[u8]) -> Vec<u32> {
    let (zones, capacity) = (drive.geometry().zones, drive.geometry().zone_capacity);
    let mut found = Vec::new();
    for zone in 0..zones {
        let cells = drive.raw(ZoneIndex(zone), 0, capacity, false).await.unwrap();
        if conformance::images::find(&cells, wanted).is_some() {
            found.push(zone);
        }
    }
    found
}

#[test]
fn a_key_that_was_deleted_before_a_restart_is_gone_in_time() {
    for compaction in ["fade", "zap"] {
        simulate(6, 1, move || async move {
            let drive = drive(40);
            let zones: Arc<dyn ZonesPart> = drive.clone();
            let settings = Settings {
                delete_persistence: Some(DeletePersistence::Time(PERSISTENCE)),
                compaction: compaction.to_owned(),
                ..small()
            };
            let store = format(&zones, &settings).await;
            store.put(b"key", b"a needle that is deleted").await.unwrap();
            store.put(b"other", b"a needle that stays").await.unwrap();
            store.flush_buffers().await.unwrap();
            store.delete(b"key").await.unwrap();
            store.close().await.unwrap();
            assert!(!holding(&drive, b"needle that is deleted").await.is_empty(), "nothing is erased yet");
            let store = open(&zones, &settings).await;
            runtime::sleep(PERSISTENCE).await;
            let status = store.status().await.unwrap();
            assert_eq!(holding(&drive, b"needle that is deleted").await, Vec::<u32>::new(), "{status:?}");
            assert_eq!(status["delete_persistence"]["zones_overdue"], 0, "{status:?}");
            assert!(!holding(&drive, b"needle that stays").await.is_empty());
            assert_eq!(store.get(b"other").await.unwrap().unwrap().value, b"a needle that stays");
            store.close().await.unwrap();
        });
    }
}

/// Puts unrelated keys; returns the next number.
async fn put_others(store: &kv::Store, from: u64, count: u64) -> u64 {
    for number in from..from + count {
        let key = format!("other {}", number % 3000);
        store.put(key.as_bytes(), &[number as u8; 100]).await.unwrap();
    }
    from + count
}

#[test]
fn a_deleted_key_is_gone_after_so_many_writes_also_across_a_restart() {
    const COUNT: u64 = 20_000;
    let broken = Some(kv::Broken::ForgetsZones);
    for (compaction, shards, broken) in
        [("fade", 1, None), ("zap", 1, None), ("zap", 2, None), ("zap", 1, broken)]
    {
        let run = move || async move {
            let drive = drive(40);
            let zones: Arc<dyn ZonesPart> = drive.clone();
            let settings = Settings {
                delete_persistence: Some(DeletePersistence::Operations(COUNT)),
                compaction: compaction.to_owned(),
                ..small()
            };
            let store = format(&zones, &settings).await;
            let mut written = put_others(&store, 0, 5000).await;
            store.put(b"key", b"a needle that is deleted").await.unwrap();
            written = put_others(&store, written, 5000).await;
            store.delete(b"key").await.unwrap();
            // With a count of operations, elapsed time has no effect.
            runtime::sleep(Duration::from_secs(3600)).await;
            assert!(!holding(&drive, b"needle that is deleted").await.is_empty(), "nothing is erased yet");
            written = put_others(&store, written, COUNT / 2).await;
            store.close().await.unwrap();
            let store = open(&zones, &settings).await;
            put_others(&store, written, COUNT / 2).await;
            let status = store.status().await.unwrap();
            let promise = &status["delete_persistence"];
            let left = holding(&drive, b"needle that is deleted").await;
            if broken.is_some() {
                // The cleaner may have reset the zones in time on its own.
                let is_noticed = promise["zones_overdue"] != 0 || promise["zones_late"] != 0;
                assert!(is_noticed || left.is_empty(), "{left:?}: {status:?}");
                return store.close().await.unwrap();
            }
            assert_eq!(left, Vec::<u32>::new(), "{status:?}");
            for name in ["zones_overdue", "zones_late", "tombstones_overdue"] {
                assert_eq!(promise[name], 0, "{status:?}");
            }
            assert_eq!(promise["operations"], COUNT);
            assert_eq!(store.get(b"key").await.unwrap(), None);
            store.close().await.unwrap();
        };
        kv::with_broken(broken, || simulate(7, shards, run));
    }
}
