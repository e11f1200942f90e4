//! Idle stores, and steps of the system clock: promises are kept without activity, and an idle store writes
//! nothing.

use super::common::{drive, format, open, simulate, small};
use super::persistence::holding;
use block::{EraseGuarantee, ZonesPart};
use kv::{DeletePersistence, Settings, Store};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

const PERSISTENCE: Duration = Duration::from_secs(600);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const NEEDLE: &[u8] = b"a needle that is deleted";

fn settings(compaction: &str) -> Settings {
    Settings {
        delete_persistence: Some(DeletePersistence::Time(PERSISTENCE)),
        compaction: compaction.to_owned(),
        ..small()
    }
}

/// Puts keys, so that there are several tables.
async fn fill(store: &Store) {
    for number in 0..2000u32 {
        store.put(format!("key {:05}", number * 7919 % 2000).as_bytes(), &[number as u8; 100]).await.unwrap();
    }
    store.flush_buffers().await.unwrap();
}

/// Counters that grow with every write and every reset.
async fn activity(store: &Store) -> Vec<Value> {
    let status = store.status().await.unwrap();
    ["reset_zones", "checkpoints", "log_bytes", "overhead_bytes", "moved_bytes", "compactions"]
        .map(|name| status[name].clone())
        .to_vec()
}

async fn promise(store: &Store) -> Value {
    store.status().await.unwrap()["delete_persistence"].clone()
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Event {
    /// The key is deleted.
    Delete,
    /// The key was put with an expiry an hour ahead; there is no other activity.
    Expiry,
    /// As `Delete`; a quarter of the time limit later the system clock is set by this number of seconds.
    Step(i64),
    /// As `Step`, followed by a close and an open of the store.
    StepAndReopen(i64),
}

#[test]
fn promises_are_kept_on_idle_stores_which_become_quiet() {
    let mut table = Vec::new();
    for shards in [1, 4] {
        for (compaction, event) in [
            ("fade", Event::Delete),
            ("zap", Event::Delete),
            ("zap", Event::Expiry),
            ("fade", Event::Expiry),
            ("zap", Event::Step(-3600)),
            ("zap", Event::Step(3600)),
            ("fade", Event::StepAndReopen(-3600)),
            ("fade", Event::StepAndReopen(3600)),
        ] {
            table.push((shards, compaction, event));
        }
    }
    for (number, (shards, compaction, event)) in (0..).zip(table) {
        simulate(number, shards, move || async move {
            let case = format!("{shards} shards, {compaction}, {event:?}");
            let drive = drive(64);
            let zones: Arc<dyn ZonesPart> = drive.clone();
            let mut store = format(&zones, &settings(compaction)).await;
            fill(&store).await;
            match event {
                Event::Expiry => {
                    let expires = kv::now() + HOUR.as_millis() as u64;
                    store.put_until(b"key", NEEDLE, expires).await.unwrap();
                    // Long enough for the store to become idle first.
                    runtime::sleep(HOUR - PERSISTENCE / 2).await;
                    let before = activity(&store).await;
                    runtime::sleep(PERSISTENCE / 4).await;
                    assert_eq!(activity(&store).await, before, "{case}: quiet before the expiry");
                    runtime::sleep(PERSISTENCE / 4).await;
                }
                _ => {
                    store.put(b"key", NEEDLE).await.unwrap();
                    store.flush_buffers().await.unwrap();
                    store.delete(b"key").await.unwrap();
                }
            }
            runtime::sleep(PERSISTENCE / 4).await;
            assert!(!holding(&drive, NEEDLE).await.is_empty(), "{case}: nothing is erased yet");
            if let Event::Step(seconds) | Event::StepAndReopen(seconds) = event {
                runtime::step_simulated_wall_clock(seconds);
            }
            if let Event::StepAndReopen(_) = event {
                store.close().await.unwrap();
                store = open(&zones, &settings(compaction)).await;
            }
            runtime::sleep(PERSISTENCE * 3 / 4).await;
            let status = promise(&store).await;
            assert_eq!(holding(&drive, NEEDLE).await, Vec::<u32>::new(), "{case}: {status}");
            for name in ["zones_overdue", "tombstones_overdue"] {
                assert_eq!(status[name], 0, "{case}: {status}");
            }
            // After a step forward the deadline clock has advanced more.
            if !matches!(event, Event::Step(1..) | Event::StepAndReopen(1..)) {
                assert_eq!(status["zones_late"], 0, "{case}: {status}");
            }
            runtime::sleep(4 * PERSISTENCE).await;
            let before = activity(&store).await;
            // Two of the cases are enough for a whole day.
            let is_long =
                shards == 1 && matches!((compaction, event), ("zap", Event::Delete | Event::Expiry));
            runtime::sleep(if is_long { DAY } else { HOUR }).await;
            assert_eq!(activity(&store).await, before, "{case}: an idle store writes and resets nothing");
            assert_eq!(store.get(b"key 00007").await.unwrap().map(|stored| stored.value.len()), Some(100));
            store.close().await.unwrap();
        });
    }
}

#[test]
fn expired_values_of_a_full_store_are_erased_in_time_or_an_alarm() {
    for shards in [1, 4] {
        simulate(50, shards, move || async move {
            let drive = drive(if shards == 1 { 24 } else { 40 });
            let zones: Arc<dyn ZonesPart> = drive.clone();
            let store = format(&zones, &settings("fade")).await;
            let expires = kv::now() + PERSISTENCE.as_millis() as u64;
            for number in 0u32.. {
                let (key, value) = (format!("key {number:07}"), [NEEDLE, &[number as u8; 4000]].concat());
                if store.put_until(key.as_bytes(), &value, expires).await.is_err() {
                    break;
                }
            }
            runtime::sleep(3 * PERSISTENCE).await;
            let status = promise(&store).await;
            let is_alarmed = status["tombstones_overdue"] != 0 || status["zones_overdue"] != 0;
            let left = holding(&drive, NEEDLE).await;
            assert!(left.is_empty() || is_alarmed, "{shards} shards, {left:?}: {status}");
            drop(store);
        });
    }
}

#[test]
fn zones_that_were_reset_with_less_are_reset_again_once_more_is_promised() {
    let less = [
        ("no promise", Settings { delete_persistence: None, ..small() }),
        ("deallocated", Settings { erase: EraseGuarantee::Deallocated, ..settings("fade") }),
    ];
    for (number, (name, before)) in (60..).zip(less) {
        simulate(number, 1, move || async move {
            let drive = drive(40);
            let zones: Arc<dyn ZonesPart> = drive.clone();
            let store = format(&zones, &before).await;
            store.put(b"key", NEEDLE).await.unwrap();
            store.delete(b"key").await.unwrap();
            // Reset zones aren't reused before the other free zones, so their cells stay.
            while store.status().await.unwrap()["reset_zones"].as_u64().unwrap() < 4 {
                fill(&store).await;
                store.compact().await.unwrap();
                runtime::sleep(PERSISTENCE / 4).await;
            }
            store.close().await.unwrap();
            assert!(!holding(&drive, NEEDLE).await.is_empty(), "{name}: zones were reset, and not erased");
            let strong = settings("fade");
            let store = open(&zones, &strong).await;
            let status = promise(&store).await;
            assert!(status["weakly_reset_zones"].as_u64().unwrap() > 0, "{name}: {status}");
            assert!(status["weakly_reset"].as_str().unwrap().contains("were reset"), "{name}: {status}");
            store.close().await.unwrap();
            // The obligation persists across a restart.
            let store = open(&zones, &strong).await;
            runtime::sleep(PERSISTENCE).await;
            let status = promise(&store).await;
            let (left, pending) =
                (holding(&drive, NEEDLE).await, status["weakly_reset_zones"].as_u64().unwrap());
            assert!(left.len() as u64 <= pending && pending < 20, "{name}: {left:?}, {status}");
            store.close().await.unwrap();
        });
    }
}
