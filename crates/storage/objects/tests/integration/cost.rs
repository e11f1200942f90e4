//! Requests: of sequential writes, of an idle volume, of opening.

use crate::common::{append, bytes, create, handle, options, world};
use block::{EraseGuarantee, Part, ZoneIndex};
use objects::{NewVolume, ObjectsPart, Settings};
use std::time::Duration;

/// A GiB in pieces of 8 MiB and zones of 128 MiB, in a sixty-fourth of all sizes.
#[test]
fn a_gib_takes_at_most_140_puts() {
    world(1, |bucket| async move {
        let settings =
            Settings { piece_size: 128 << 10, memory: 1 << 20, max_append: 16 << 10, ..Settings::default() };
        let new = NewVolume { zones: 8, zone_size: 2 << 20, probe: true };
        let part = ObjectsPart::open(objects::Options { format: Some(new), settings, ..options(true) });
        let part = part.await.unwrap();
        let handle = handle(&part).await;
        let before = bucket.count("PUT");
        for zone in 0..8 {
            for _ in 0..128 {
                append(&*handle, zone, 5, 16 << 10).await;
            }
            handle.finish(ZoneIndex(zone)).await.unwrap();
        }
        drop(handle);
        part.close().await.unwrap();
        let puts = bucket.count("PUT") - before;
        println!("{puts} PUTs for 128 pieces in 8 zones");
        assert!((128..=140).contains(&puts), "{puts}");
    });
}

#[test]
fn an_idle_volume_sends_nothing() {
    world(2, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        for zone in 0..4 {
            append(&*handle, zone, 5, 8192).await;
            handle.flush(&[ZoneIndex(zone)]).await.unwrap();
            handle.reset(ZoneIndex(zone), EraseGuarantee::None).await.unwrap();
        }
        append(&*handle, 5, 5, 8192).await;
        runtime::sleep(Duration::from_secs(61)).await;
        assert!(bucket.objects.borrow().keys().all(|key| !key.contains("zones/")), "deleted after the grace");
        let before = bucket.asked.borrow().len();
        runtime::sleep(Duration::from_secs(600)).await;
        assert_eq!(bucket.asked.borrow().len(), before);
    });
}

/// Resets that are in flight at the same time share manifests.
#[test]
fn many_resets_are_few_requests() {
    world(3, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        for zone in 0..8 {
            append(&*handle, zone, 5, 512).await;
        }
        let all: Vec<ZoneIndex> = (0..8).map(ZoneIndex).collect();
        handle.flush(&all).await.unwrap();
        let before = bucket.count("PUT");
        let resets = all.iter().map(|zone| handle.reset(*zone, EraseGuarantee::None));
        assert!(runtime::join_all(resets).await.into_iter().all(|generation| generation == Ok(2)));
        assert!(bucket.count("PUT") - before <= 2);
    });
}

/// A TiB in zones of 128 MiB after a crash, at 20 ms a request: time is that of the simulated world.
#[test]
fn a_tib_opens_in_three_seconds_at_20_ms_a_request() {
    world(4, |bucket| async move {
        let new = NewVolume { zones: 8192, zone_size: 128 << 20, probe: false };
        let format = || objects::Options { format: Some(new), ..options(true) };
        for _ in 0..20 {
            ObjectsPart::open(format()).await.unwrap();
        }
        let part = ObjectsPart::open(format()).await.unwrap();
        let zones = handle(&part).await;
        for round in 0..250_u32 {
            zones.append(ZoneIndex(round * 30), bytes(1, 4096)).await.unwrap();
            zones.flush(&[ZoneIndex(round * 30)]).await.unwrap();
        }
        bucket.latency.set(Duration::from_millis(20));
        let (begun, before) = (runtime::now(), bucket.asked.borrow().len());
        let part = ObjectsPart::open(options(false)).await.unwrap();
        let (elapsed, requests) = (begun.elapsed(), bucket.asked.borrow().len() - before);
        println!("{requests} requests, {elapsed:?}");
        assert!(elapsed < Duration::from_secs(3), "{elapsed:?}");
        bucket.latency.set(Duration::ZERO);
        let zones = handle(&part).await;
        assert_eq!(crate::common::read(&*zones, 7470, 0, 4096).await.unwrap(), vec![1; 4096]);
    });
}
