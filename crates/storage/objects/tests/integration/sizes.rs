//! Smallest and largest sizes, many shards, storms of flushes, days without a request, steps of the clock,
//! and one slow request among fast ones.

use crate::common::{ZONES, append, bytes, create, handle, options, read, settings, world};
use block::{EraseGuarantee, Part, ZoneAddress, ZoneIndex, ZonesPart};
use object_store::testing::{Bucket, Faults};
use objects::{NewVolume, ObjectsPart, Settings};
use runtime::ShardIndex;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

async fn format(zones: u32, zone_size: u64, settings: Settings) -> ObjectsPart {
    let new = NewVolume { zones, zone_size, probe: false };
    ObjectsPart::open(objects::Options { format: Some(new), settings, ..options(true) }).await.unwrap()
}

#[test]
fn the_smallest_and_the_largest_pieces_keep_their_bytes() {
    for (piece_size, memory) in [(512, 2048), (1 << 30, 1 << 30)] {
        world(1, move |bucket| async move {
            let settings = Settings { piece_size, memory, max_append: 1024, ..settings() };
            let part = format(4, 64 << 10, settings).await;
            let zones = handle(&part).await;
            for zone in 0..4 {
                for round in 0..64_u32 {
                    append(&*zones, zone, (zone * 64 + round) as u8, 1024).await;
                    if round % 16 == 15 {
                        zones.flush(&[ZoneIndex(zone)]).await.unwrap();
                    }
                }
                zones.finish(ZoneIndex(zone)).await.unwrap();
            }
            runtime::sleep(Duration::from_secs(100)).await;
            let pieces = part.status().await["pieces"].as_u64().unwrap();
            assert_eq!(pieces, 4 * (64 << 10) / piece_size.min(16 << 10), "of {piece_size} bytes");
            let found = bucket.objects.borrow().keys().filter(|key| key.contains("/zones/")).count();
            assert_eq!(found as u64, pieces);
            for zone in 0..4 {
                for round in 0..64_u32 {
                    let found = read(&*zones, zone, u64::from(round) * 1024, 1024).await;
                    assert_eq!(found, Ok(vec![(zone * 64 + round) as u8; 1024]));
                }
            }
        });
    }
}

#[test]
fn the_work_of_an_operation_does_not_grow_with_the_zones() {
    world(2, |bucket| async move {
        let part = format(1 << 20, 1 << 30, Settings::default()).await;
        let zones = handle(&part).await;
        let before = bucket.asked.borrow().len();
        for round in 0..200_u32 {
            let zone = round * 5000;
            append(&*zones, zone, 1, 4096).await;
            zones.flush(&[ZoneIndex(zone)]).await.unwrap();
            if round % 2 == 0 {
                zones.reset(ZoneIndex(zone), EraseGuarantee::None).await.unwrap();
            }
        }
        assert!(bucket.asked.borrow().len() - before < 520);
        assert_eq!(part.status().await["pieces"], 100);
    });
}

#[test]
fn handles_of_many_shards_flush_to_one_volume() {
    for shards in [1, 7, 32] {
        let simulation = runtime::Simulation { most_events: 200_000_000, ..runtime::Simulation::new(3) }
            .with_shards(shards);
        let main = move || async move {
            let bucket = Bucket::start(Faults::default());
            let part = Arc::new(create().await);
            let clients = (0..shards).map(|shard| {
                let part = part.clone();
                runtime::spawn_on(ShardIndex(shard), move || async move {
                    let zones = part.open().await.unwrap();
                    for round in 0..20_u8 {
                        let zone = ZoneIndex(shard as u32 % ZONES);
                        let at = zones.append(zone, bytes(shard as u8, 1024)).await.unwrap();
                        zones.flush(&[zone]).await.unwrap();
                        let found = read(&*zones, zone.0, at.offset.0, 1024).await;
                        assert_eq!(found, Ok(vec![shard as u8; 1024]), "round {round}");
                    }
                })
            });
            for client in clients.collect::<Vec<_>>() {
                client.await.unwrap();
            }
            runtime::sleep(Duration::from_secs(100)).await;
            let status = part.status().await;
            assert_eq!(status["stored_bytes"].as_u64().unwrap(), shards as u64 * 20 * 1024);
            let found = bucket.objects.borrow().keys().filter(|key| key.contains("/zones/")).count();
            assert_eq!(status["pieces"].as_u64().unwrap(), found as u64);
        };
        runtime::simulate(simulation, main).unwrap_or_else(|error| panic!("{shards} shards: {error}"));
    }
}

/// Clients that flush 512 bytes at a time, as many as a store takes: few manifests, bounded lists, and pieces
/// that are merged meanwhile.
#[test]
fn a_storm_of_flushes_is_bounded() {
    let rounds = if conformance::budget::is_long() { 1600 } else { 30 };
    world(4, move |bucket| async move {
        let settings = Settings { piece_size: 128 << 10, memory: 1 << 20, ..settings() };
        let part = format(8, 1 << 20, settings).await;
        bucket.latency.set(Duration::from_millis(20));
        let before = bucket.count("PUT");
        let begun = runtime::now();
        let clients = (0..64_u32).map(|client| {
            let part = handle(&part);
            async move {
                let zones = part.await;
                let zone = ZoneIndex(client % 8);
                for _ in 0..rounds {
                    while let Err(error) = zones.append(zone, bytes(client as u8, 512)).await {
                        assert!(matches!(error, block::Error::NoSpace(_)), "{error}");
                        zones.reset(zone, EraseGuarantee::None).await.unwrap();
                    }
                    zones.flush(&[zone]).await.unwrap();
                }
            }
        });
        runtime::join_all(clients.collect::<Vec<_>>()).await;
        let (flushes, puts) = (64 * rounds, bucket.count("PUT") - before);
        let status = part.status().await;
        println!("{flushes} flushes, {puts} PUTs, {:?}, {status:?}", begun.elapsed());
        // A piece each, and shared manifests.
        assert!(puts <= flushes + flushes / 4, "{puts}");
        bucket.latency.set(Duration::ZERO);
        runtime::sleep(Duration::from_secs(200)).await;
        let manifests = bucket.objects.borrow().keys().filter(|key| key.contains("/manifest/")).count();
        assert!(manifests < 900, "{manifests} manifests");
    });
}

#[test]
fn a_day_without_changes_has_no_request() {
    world(5, |bucket| async move {
        let part = create().await;
        let zones = handle(&part).await;
        for round in 0..300_u32 {
            append(&*zones, round % 4, 1, 512).await;
            zones.flush(&[ZoneIndex(round % 4)]).await.unwrap();
        }
        runtime::sleep(Duration::from_secs(100)).await;
        let before = bucket.asked.borrow().len();
        runtime::sleep(Duration::from_secs(24 * 3600)).await;
        assert_eq!(bucket.asked.borrow().len(), before);
    });
}

/// Until a delta links to it, a base replaces nothing.
#[test]
fn a_base_that_no_delta_links_to_deletes_nothing() {
    world(8, |bucket| async move {
        let part = create().await;
        let zones = handle(&part).await;
        let has_base = || bucket.objects.borrow().keys().any(|key| key.ends_with(".base"));
        let mut flushes = 0;
        while !has_base() {
            append(&*zones, 0, 1, 512).await;
            zones.flush(&[ZoneIndex(0)]).await.unwrap();
            flushes += 1;
            runtime::sleep(Duration::from_millis(500)).await;
        }
        runtime::sleep(Duration::from_secs(100)).await;
        let zones = handle(&crate::common::reopen().await).await;
        assert_eq!(read(&*zones, 0, 0, flushes * 512).await, Ok(vec![1; flushes * 512]));
    });
}

/// The grace is by the monotonic clock: an operator who sets the clock neither shortens nor lengthens it.
#[test]
fn steps_of_the_clock_change_no_grace() {
    for seconds in [86_400, -86_400] {
        world(6, move |bucket| async move {
            let part = create().await;
            let zones = handle(&part).await;
            append(&*zones, 0, 1, 4096).await;
            zones.flush(&[ZoneIndex(0)]).await.unwrap();
            zones.reset(ZoneIndex(0), EraseGuarantee::None).await.unwrap();
            let pieces = || bucket.objects.borrow().keys().filter(|key| key.contains("/zones/")).count();
            runtime::step_simulated_wall_clock(seconds);
            runtime::sleep(Duration::from_secs(55)).await;
            assert_eq!(pieces(), 1, "within the grace");
            runtime::sleep(Duration::from_secs(10)).await;
            assert_eq!(pieces(), 0);
            // A writer with another wall clock claims the volume.
            append(&*zones, 0, 2, 4096).await;
            zones.flush(&[ZoneIndex(0)]).await.unwrap();
            runtime::step_simulated_wall_clock(-2 * seconds);
            let zones = handle(&crate::common::reopen().await).await;
            assert_eq!(read(&*zones, 0, 0, 4096).await, Ok(vec![2; 4096]));
        });
    }
}

/// A piece whose PUT takes a minute delays the flush of its zone alone.
#[test]
fn a_slow_upload_delays_its_zone_alone() {
    world(7, |bucket| async move {
        let part = create().await;
        let zones = handle(&part).await;
        let is_slow = Rc::new(Cell::new(true));
        let switch = is_slow.clone();
        bucket.follow(move |asked| {
            let is_first = asked.method == "PUT" && asked.key.contains("/zones/00000000.") && switch.get();
            is_first.then(Vec::new)
        });
        append(&*zones, 0, 1, 4096).await;
        let slow = {
            let zones = zones.clone();
            runtime::spawn(async move { zones.flush(&[ZoneIndex(0)]).await })
        };
        let begun = runtime::now();
        for round in 0..50_u32 {
            append(&*zones, 1 + round % 4, 1, 4096).await;
            zones.flush(&[ZoneIndex(1 + round % 4)]).await.unwrap();
            append(&*zones, 0, 1, 512).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(read(&*zones, 0, 4096, 512).await, Ok(vec![1; 512]));
        runtime::sleep(Duration::from_secs(60)).await;
        assert!(!slow.is_finished());
        is_slow.set(false);
        slow.await.unwrap();
        zones.flush(&[ZoneIndex(0)]).await.unwrap();
        let (outcome, _) = zones.read(ZoneAddress::new(0, 0), block::Buffer::new(4096)).await;
        outcome.unwrap();
    });
}
