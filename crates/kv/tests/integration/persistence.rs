//! Deletes that are persistent in time, across a restart: what the cells of the drive hold afterwards.

use super::common::{drive, format, open, simulate, small};
use block::{ZoneIndex, ZonesPart};
use kv::Settings;
use std::sync::Arc;
use std::time::Duration;
use zns::Zns;

const PERSISTENCE: Duration = Duration::from_secs(20);

/// Zones whose cells hold these bytes.
async fn holding(drive: &Zns, wanted: &[u8]) -> Vec<u32> {
    let (zones, capacity) = (drive.geometry().zones, drive.geometry().zone_capacity);
    let mut found = Vec::new();
    for zone in 0..zones {
        let cells = drive.raw(ZoneIndex(zone), 0, capacity, false).await.unwrap();
        if cells.windows(wanted.len()).any(|bytes| bytes == wanted) {
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
                delete_persistence: Some(PERSISTENCE),
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
