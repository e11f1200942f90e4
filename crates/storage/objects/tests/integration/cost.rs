//! Requests: of sequential writes, of many small flushes, of an idle volume, of opening large ones.

use crate::common::{append, bytes, create, fill_table, handle, options, world};
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

/// Flushes of a few KiB, in pieces of 64 KiB: `U` uploaded pieces, and `F` flushes, are at most
/// `U + F + U / 4` PUTs, since each merge removes eight objects and needs at most two PUTs. A finished zone
/// of `z` bytes has at most `z / t + 1` pieces of `t` bytes, and eight that are too few to be merged.
#[test]
fn many_small_flushes_become_few_objects() {
    for length in [512, 2048] {
        world(5, move |bucket| async move {
            let (zone_size, piece_size) = (1 << 20, 64 << 10);
            let settings =
                Settings { piece_size, memory: 1 << 20, max_append: 16 << 10, ..Settings::default() };
            let new = NewVolume { zones: 8, zone_size, probe: false };
            let part = ObjectsPart::open(objects::Options { format: Some(new), settings, ..options(true) });
            let part = part.await.unwrap();
            let handle = handle(&part).await;
            let (before, mut flushes, zones) =
                (bucket.count("PUT") as u64, 0, if length == 512 { 1 } else { 2 });
            for zone in 0..zones {
                for _ in 0..zone_size / length {
                    append(&*handle, zone, 5, length as usize).await;
                    handle.flush(&[ZoneIndex(zone)]).await.unwrap();
                    flushes += 1;
                }
                // While it grows as well.
                let pieces = part.status().await["pieces"].as_u64().unwrap();
                let most = u64::from(zone + 1) * (zone_size / piece_size + 9) + piece_size / length + 128;
                assert!(pieces <= most, "{pieces} pieces of {zone} zones, {most} permitted");
                handle.finish(ZoneIndex(zone)).await.unwrap();
            }
            // The other pieces are merged with the budget of the next uploads.
            append(&*handle, 7, 5, 512).await;
            handle.flush(&[ZoneIndex(7)]).await.unwrap();
            runtime::sleep(Duration::from_secs(70)).await;
            let puts = bucket.count("PUT") as u64 - before;
            let pieces = bucket.objects.borrow().keys().filter(|key| key.contains("/zones/")).count() as u64;
            println!(
                "flushes of {length} bytes: {flushes} flushes, {puts} PUTs, {pieces} pieces in {zones} zones"
            );
            let (uploaded, finishes) = (flushes + 1, u64::from(zones));
            assert!(puts <= uploaded + flushes + 1 + finishes + uploaded / 4, "{puts}");
            assert!(pieces <= finishes * (zone_size / piece_size + 9) + 1, "{pieces}");
            let asked = bucket.asked.borrow().len();
            runtime::sleep(Duration::from_secs(600)).await;
            assert_eq!(bucket.asked.borrow().len(), asked, "idle");
        });
    }
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
        bucket.pages_are_long.set(true);
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

/// Opens a volume of zones of 128 MiB, of which all but 256 are full of pieces of 8 MiB, on a machine that
/// never saw it, at 20 ms a request. There are 250 deltas after the base.
async fn open_full(bucket: &object_store::testing::Bucket, zones: u32) -> Duration {
    let new = NewVolume { zones, zone_size: 128 << 20, probe: false };
    ObjectsPart::open(objects::Options { format: Some(new), ..options(true) }).await.unwrap();
    fill_table(bucket, zones, zones - 256, 16);
    let part = ObjectsPart::open(options(false)).await.unwrap();
    let handle = handle(&part).await;
    for zone in zones - 250..zones {
        append(&*handle, zone, 1, 4096).await;
        handle.flush(&[ZoneIndex(zone)]).await.unwrap();
    }
    bucket.pages_are_long.set(true);
    bucket.latency.set(Duration::from_millis(20));
    let (begun, before) = (runtime::now(), bucket.asked.borrow().len());
    let received = || {
        let objects = bucket.objects.borrow();
        objects.get("db1/manifest/00000003/0000000000000001").map_or(0, |base| base.bytes.len())
    };
    let part = ObjectsPart::open(options(false)).await.unwrap();
    let (elapsed, requests) = (begun.elapsed(), bucket.asked.borrow().len() - before);
    println!("{zones} zones: a base of {} bytes, {requests} requests, {elapsed:?}", received());
    bucket.latency.set(Duration::ZERO);
    assert_eq!(part.status().await["pieces"], u64::from(zones - 256) * 16 + 250);
    elapsed
}

#[test]
fn a_full_tib_opens_in_three_seconds_at_20_ms_a_request() {
    world(6, |bucket| async move {
        let elapsed = open_full(&bucket, 8192).await;
        assert!(elapsed < Duration::from_secs(3), "{elapsed:?}");
    });
}

#[test]
fn the_largest_table_opens() {
    if conformance::budget::is_left_out() {
        return;
    }
    world(7, |bucket| async move {
        let elapsed = open_full(&bucket, 1 << 20).await;
        assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
    });
}
