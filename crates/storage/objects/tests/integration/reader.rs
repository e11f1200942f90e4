//! Readers of a volume that another machine writes.

use crate::common::{append, bytes, create, handle, options, read, reopen, settings, world};
use block::{EraseGuarantee, Error, Part, ZoneAddress, ZoneIndex, ZoneState, Zones, ZonesPart};
use object_store::testing::Bucket;
use objects::ReaderPart;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(10);

async fn reader() -> ReaderPart {
    ReaderPart::open(options(false), INTERVAL).await.unwrap()
}

async fn flushed(handle: &dyn Zones, zone: u32, value: u8, length: usize) {
    append(handle, zone, value, length).await;
    handle.flush(&[ZoneIndex(zone)]).await.unwrap();
}

async fn report(handle: &dyn Zones, zone: u32) -> block::ZoneReport {
    handle.report(ZoneIndex(zone), 1).await.unwrap()[0]
}

fn changes(bucket: &Bucket) -> usize {
    bucket.count("PUT") + bucket.count("POST") + bucket.count("DELETE")
}

#[test]
fn a_reader_follows_the_writer_and_does_not_fence_it() {
    world(1, |bucket| async move {
        let part = create().await;
        let writer = handle(&part).await;
        flushed(&*writer, 0, 1, 4096).await;
        let before = changes(&bucket);
        let reading = reader().await;
        let zones = reading.open().await.unwrap();
        assert_eq!(read(&*zones, 0, 0, 4096).await.unwrap(), vec![1; 4096]);
        assert_eq!(report(&*zones, 0).await.state, ZoneState::Interrupted);
        assert_eq!(changes(&bucket), before);
        flushed(&*writer, 0, 2, 4096).await;
        flushed(&*writer, 3, 3, 90 << 10).await;
        writer.finish(ZoneIndex(3)).await.unwrap();
        assert_eq!(report(&*zones, 0).await.write_pointer, 4096, "not yet");
        runtime::sleep(INTERVAL + Duration::from_secs(1)).await;
        assert_eq!(read(&*zones, 0, 4096, 4096).await.unwrap(), vec![2; 4096]);
        assert_eq!(report(&*zones, 3).await.state, ZoneState::Full);
        let status = reading.status().await;
        assert_eq!(
            (&status["state"], &status["writer"]),
            (&"reading".into(), &"a test".into()),
            "{status:?}"
        );
        // An idle writer costs a reader two requests for each interval.
        let asked = bucket.asked.borrow().len();
        runtime::sleep(INTERVAL * 10).await;
        assert!(bucket.asked.borrow().len() - asked <= 22, "{}", bucket.asked.borrow().len() - asked);
        // A clean stop, and the next writer.
        drop(writer);
        part.close().await.unwrap();
        let part = reopen().await;
        let writer = handle(&part).await;
        flushed(&*writer, 5, 5, 4096).await;
        runtime::sleep(INTERVAL + Duration::from_secs(1)).await;
        assert_eq!(read(&*zones, 5, 0, 4096).await.unwrap(), vec![5; 4096]);
        assert_eq!(reading.status().await["epoch"], 2);
        reading.close().await.unwrap();
        assert!(matches!(read(&*zones, 5, 0, 4096).await, Err(Error::Closed(_))));
        flushed(&*writer, 5, 6, 4096).await;
    });
}

#[test]
fn changes_are_refused_with_the_reason() {
    world(2, |_bucket| async move {
        let part = create().await;
        flushed(&*handle(&part).await, 0, 1, 4096).await;
        let reading = reader().await;
        let view = reading.view().await.unwrap().unwrap();
        for zones in [reading.open().await.unwrap(), view.zones.open().await.unwrap()] {
            let zone = ZoneIndex(0);
            let refused = [
                zones.append(zone, bytes(1, 512)).await.map(drop),
                zones.append_at(ZoneAddress::new(0, 4096), bytes(1, 512)).await,
                zones.finish(zone).await,
                zones.open(zone).await,
                zones.close(zone).await,
                zones.reset(zone, EraseGuarantee::None).await.map(drop),
            ];
            for outcome in refused {
                let error = outcome.unwrap_err();
                assert!(matches!(error, Error::ReadOnly(_)), "{error}");
                assert!(error.to_string().contains("open=reader"), "{error}");
            }
        }
        assert!(matches!(reading.message("gc").await, Err(Error::ReadOnly(_))));
    });
}

/// A view has the state of one manifest: of zones that are flushed together, all bytes or none.
#[test]
fn a_view_is_of_one_manifest_and_stays() {
    for seed in 10..16 {
        world(seed, move |_bucket| async move {
            let part = create().await;
            let (writer, is_over) = (handle(&part).await, Rc::new(Cell::new(false)));
            let end = is_over.clone();
            let writing = runtime::spawn(async move {
                let mut rounds = 0;
                while !end.get() && rounds < 60 {
                    for zone in [1, 6] {
                        append(&*writer, zone, rounds, 4096).await;
                    }
                    writer.flush(&[ZoneIndex(1), ZoneIndex(6)]).await.unwrap();
                    rounds += 1;
                }
                rounds
            });
            let reading = ReaderPart::open(options(false), Duration::from_millis(30 + seed)).await.unwrap();
            let mut last = 0;
            for _ in 0..8 {
                runtime::sleep(Duration::from_millis(100)).await;
                let view = reading.view().await.unwrap().unwrap();
                let zones = view.zones.open().await.unwrap();
                let ends = [report(&*zones, 1).await.write_pointer, report(&*zones, 6).await.write_pointer];
                assert_eq!(ends[0], ends[1], "seed {seed}");
                assert!(ends[0] >= last, "seed {seed}: it went back");
                runtime::sleep(Duration::from_millis(100)).await;
                for (round, offset) in (0..).zip((0..ends[0]).step_by(4096)) {
                    assert_eq!(read(&*zones, 6, offset, 4096).await.unwrap(), vec![round; 4096]);
                }
                assert_eq!(report(&*zones, 1).await.write_pointer, ends[0], "seed {seed}: it stays");
                last = ends[0];
                drop(zones);
                view.zones.close().await.unwrap();
            }
            is_over.set(true);
            assert!(last > 4096 * 4 && writing.await > 4, "seed {seed}: {last}");
        });
    }
}

#[test]
fn deleted_pieces_are_an_error_until_the_next_follow() {
    world(3, |_bucket| async move {
        let part = create().await;
        let writer = handle(&part).await;
        for zone in 0..2 {
            flushed(&*writer, zone, 1, 90 << 10).await;
        }
        let slow = ReaderPart::open(options(false), Duration::from_secs(3600)).await.unwrap();
        let zones = slow.open().await.unwrap();
        writer.reset(ZoneIndex(0), EraseGuarantee::None).await.unwrap();
        flushed(&*writer, 0, 2, 90 << 10).await;
        runtime::sleep(settings().grace / 2).await;
        assert_eq!(read(&*zones, 0, 0, 90 << 10).await.unwrap(), vec![1; 90 << 10], "within the grace");
        runtime::sleep(settings().grace).await;
        let error = read(&*zones, 0, 0, 4096).await.unwrap_err();
        assert!(
            matches!(error, Error::NotFound(_)) && error.to_string().contains("deleted it since"),
            "{error}"
        );
        assert_eq!(read(&*zones, 1, 0, 90 << 10).await.unwrap(), vec![1; 90 << 10]);
        slow.follow().await.unwrap();
        assert_eq!(read(&*zones, 0, 0, 90 << 10).await.unwrap(), vec![2; 90 << 10]);
    });
}

/// After a day the reader's manifests are deleted, and other writers have written.
#[test]
fn a_reader_that_was_suspended_finds_the_newest_state() {
    world(4, |_bucket| async move {
        let part = create().await;
        flushed(&*handle(&part).await, 0, 1, 4096).await;
        let reading = ReaderPart::open(options(false), Duration::from_secs(86400)).await.unwrap();
        for value in 2..5 {
            let part = reopen().await;
            let writer = handle(&part).await;
            for _ in 0..300 {
                writer.reset(ZoneIndex(0), EraseGuarantee::None).await.unwrap();
            }
            flushed(&*writer, 0, value, 4096).await;
            runtime::sleep(Duration::from_secs(3600)).await;
            drop(writer);
            part.close().await.unwrap();
        }
        reading.follow().await.unwrap();
        let zones = reading.open().await.unwrap();
        assert_eq!(read(&*zones, 0, 0, 4096).await.unwrap(), vec![4; 4096]);
        // Another volume in its place isn't followed.
        create().await;
        let error = reading.follow().await.unwrap_err();
        assert!(error.to_string().contains("another volume"), "{error}");
        assert_eq!(reading.status().await["epoch"], 4);
    });
}

#[test]
fn during_an_outage_the_last_state_is_read() {
    world(5, |bucket| async move {
        let part = create().await;
        let writer = handle(&part).await;
        flushed(&*writer, 0, 1, 4096).await;
        let reading = reader().await;
        let zones = reading.open().await.unwrap();
        let is_out = Rc::new(Cell::new(true));
        let switch = is_out.clone();
        bucket.follow(move |asked| {
            let is_manifest = asked.key.contains("/manifest/") && asked.method != "PUT";
            (switch.get() && is_manifest).then(|| b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n".to_vec())
        });
        flushed(&*writer, 0, 2, 4096).await;
        runtime::sleep(Duration::from_secs(200)).await;
        assert!(reading.status().await["error"].is_string());
        assert_eq!(report(&*zones, 0).await.write_pointer, 4096);
        assert_eq!(read(&*zones, 0, 0, 4096).await.unwrap(), vec![1; 4096]);
        is_out.set(false);
        runtime::sleep(Duration::from_secs(100)).await;
        assert_eq!(report(&*zones, 0).await.write_pointer, 8192);
        assert!(!reading.status().await.contains_key("error"));
        is_out.set(true);
        reading.close().await.unwrap();
    });
}

/// The pieces that a slow reader knows were merged and deleted: a newer manifest has their bytes.
#[test]
fn merged_pieces_are_read_from_the_newest_state() {
    world(6, |_bucket| async move {
        let part = create().await;
        let writer = handle(&part).await;
        for value in 0..8 {
            flushed(&*writer, 0, value, 2048).await;
        }
        let slow = ReaderPart::open(options(false), Duration::from_secs(86400)).await.unwrap();
        let (zones, view) = (slow.open().await.unwrap(), slow.view().await.unwrap().unwrap());
        let of_view = view.zones.open().await.unwrap();
        for value in 8..100 {
            flushed(&*writer, 0, value, 2048).await;
        }
        writer.finish(ZoneIndex(0)).await.unwrap();
        for value in 0..60 {
            flushed(&*writer, 1, value, 2048).await;
        }
        runtime::sleep(settings().grace * 2).await;
        assert!(part.status().await["merged_objects"].as_u64().unwrap() > 80);
        for value in 0..8 {
            let offset = u64::from(value) * 2048;
            for zones in [&of_view, &zones] {
                assert_eq!(read(&**zones, 0, offset, 2048).await, Ok(vec![value; 2048]), "{value}");
            }
        }
        assert_eq!(report(&*of_view, 0).await.write_pointer, 8 * 2048);
        assert_eq!(report(&*of_view, 1).await.write_pointer, 0, "the view stays");
        assert_eq!(report(&*zones, 1).await.write_pointer, 60 * 2048);
        assert_eq!(slow.status().await["states"], 2);
    });
}

/// One follow catches up with hundreds of manifests, and bases beside them, with few requests in a row.
#[test]
fn a_reader_far_behind_catches_up_with_one_follow() {
    world(7, |bucket| async move {
        bucket.latency.set(Duration::from_millis(20));
        let part = create().await;
        let writer = handle(&part).await;
        let slow = ReaderPart::open(options(false), Duration::from_secs(86400)).await.unwrap();
        let zones = slow.open().await.unwrap();
        for round in 1..5_u64 {
            for value in 0..120 {
                flushed(&*writer, 0, value, 512).await;
            }
            let began = runtime::now();
            slow.follow().await.unwrap();
            assert_eq!(report(&*zones, 0).await.write_pointer, 120 * 512 * round);
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        }
        // Two follows at the same time end with the newest state.
        flushed(&*writer, 0, 1, 512).await;
        let outcome = runtime::join_all([slow.follow(), slow.follow()]).await;
        assert_eq!(outcome, [Ok(()), Ok(())]);
        assert_eq!(report(&*zones, 0).await.write_pointer, 120 * 512 * 4 + 512);
    });
}

/// A look beside an opening: the state of the epoch before isn't taken for the last one once the next epoch
/// has a base.
#[test]
fn a_look_beside_an_opening_finds_all_flushed_bytes() {
    for delay in (0..300).step_by(10) {
        world(8, move |bucket| async move {
            let part = create().await;
            let writer = handle(&part).await;
            flushed(&*writer, 0, 1, 4096).await;
            drop(writer);
            part.close().await.unwrap();
            bucket.latency.set(Duration::from_millis(20));
            let opening = runtime::spawn(async move {
                let part = reopen().await;
                flushed(&*handle(&part).await, 0, 2, 4096).await;
                part
            });
            runtime::sleep(Duration::from_millis(delay)).await;
            let reading = ReaderPart::open(options(false), INTERVAL).await.unwrap();
            let status = reading.status().await;
            let _part = opening.await;
            let zones = reading.open().await.unwrap();
            assert!(report(&*zones, 0).await.write_pointer >= 4096, "{delay} ms: {status:?}");
            reading.follow().await.unwrap();
            assert_eq!(report(&*zones, 0).await.write_pointer, 8192, "{delay} ms");
        });
    }
}
