//! An outage of the store: flushes wait, appends wait at the limit of memory, and both continue afterwards.

use crate::common::{append, bytes, create, handle, options, read, reopen, settings, world};
use block::{EraseGuarantee, Error, Part, ZoneAddress, ZoneIndex};
use object_store::testing::{Bucket, Faults};
use objects::ObjectsPart;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Lets each request fail until the switch is off.
fn outage(bucket: &Bucket) -> Rc<Cell<bool>> {
    let is_gone = Rc::new(Cell::new(true));
    let switch = is_gone.clone();
    bucket.follow(move |_| {
        let answer = b"HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n".to_vec();
        switch.get().then_some(answer)
    });
    is_gone
}

#[test]
fn an_outage_makes_flushes_wait_and_memory_stays_bounded() {
    world(1, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        append(&*handle, 0, 1, 4096).await;
        handle.flush(&[ZoneIndex(0)]).await.unwrap();
        let is_gone = outage(&bucket);
        let flushing = {
            append(&*handle, 0, 2, 4096).await;
            let handle = handle.clone();
            runtime::spawn(async move { handle.flush(&[ZoneIndex(0)]).await })
        };
        let appended = Rc::new(Cell::new(0_u64));
        let count = appended.clone();
        let appending = {
            let handle = handle.clone();
            runtime::spawn(async move {
                for round in 0..40_u32 {
                    handle.append(ZoneIndex(1 + round % 4), bytes(3, 16 << 10)).await.unwrap();
                    count.set(count.get() + (16 << 10));
                }
            })
        };
        runtime::sleep(Duration::from_secs(300)).await;
        let stuck = appended.get();
        assert!(stuck > 128 << 10 && stuck <= settings().memory, "{stuck} bytes were accepted");
        assert!(!flushing.is_finished());
        let status = part.status().await;
        assert_eq!(status["state"], "waiting for the store");
        assert!(status["unsaved_bytes"].as_u64().unwrap() <= settings().memory);
        assert_eq!(read(&*handle, 0, 4096, 4096).await.unwrap(), vec![2; 4096], "from memory");
        is_gone.set(false);
        flushing.await.unwrap();
        appending.await;
        let all: Vec<ZoneIndex> = (0..5).map(ZoneIndex).collect();
        handle.flush(&all).await.unwrap();
        let status = part.status().await;
        assert_eq!((&status["state"], &status["unsaved_bytes"]), (&"writing".into(), &0.into()));
        drop(handle);
        part.close().await.unwrap();
        let part = reopen().await;
        let handle = crate::common::handle(&part).await;
        assert_eq!(read(&*handle, 1, 0, 160 << 10).await.unwrap(), vec![3; 160 << 10]);
        assert_eq!(read(&*handle, 0, 4096, 4096).await.unwrap(), vec![2; 4096]);
    });
}

#[test]
fn a_close_has_a_time_limit_and_returns_the_number_of_lost_bytes() {
    world(2, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        append(&*handle, 0, 1, 8192).await;
        let is_gone = outage(&bucket);
        drop(handle);
        let begun = runtime::now();
        let error = part.close().await.unwrap_err();
        assert!(matches!(error, Error::TimedOut(_)) && error.to_string().contains("8192 bytes"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(61));
        is_gone.set(false);
        reopen().await.close().await.unwrap();
    });
}

#[test]
fn nothing_is_lost_in_a_storm_of_503_and_lost_answers() {
    for seed in 1..6 {
        world(seed, move |bucket| async move {
            let part = create().await;
            let handle = handle(&part).await;
            let faults =
                Faults { slow_down: 0.5, lost_answer: 0.2, late: 0.1, duplicate: 0.3, ..Faults::default() };
            bucket.faults.set(faults);
            for round in 0..20_u8 {
                let zone = u32::from(round % 4);
                append(&*handle, zone, round, 30 << 10).await;
                handle.flush(&[ZoneIndex(zone)]).await.unwrap();
            }
            bucket.faults.set(Faults::default());
            let part = ObjectsPart::open(options(false)).await.unwrap();
            let handle = crate::common::handle(&part).await;
            for round in 0..20_u8 {
                let (zone, offset) = (u32::from(round % 4), u64::from(round / 4) * (30 << 10));
                assert_eq!(read(&*handle, zone, offset, 30 << 10).await.unwrap(), vec![round; 30 << 10]);
            }
            // Objects of failed attempts are garbage.
            part.message("gc").await.unwrap();
            runtime::sleep(Duration::from_secs(200)).await;
            let pieces = bucket.objects.borrow().keys().filter(|key| key.contains("zones/")).count();
            assert_eq!(part.status().await["pieces"], pieces);
        });
    }
}

/// Reads wait for two minutes, even if uploads have used up the client's retry budget.
#[test]
fn a_read_waits_for_the_end_of_an_outage_and_has_a_limit() {
    world(3, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        append(&*handle, 0, 1, 8192).await;
        handle.flush(&[ZoneIndex(0)]).await.unwrap();
        let is_gone = outage(&bucket);
        for zone in 1..5 {
            append(&*handle, zone, 2, 48 << 10).await;
        }
        runtime::sleep(Duration::from_secs(200)).await;
        let begun = runtime::now();
        let error = read(&*handle, 0, 0, 8192).await.unwrap_err();
        assert!(matches!(error, Error::Io(_) | Error::TimedOut(_)), "{error}");
        let elapsed = begun.elapsed();
        assert!((110..=121).contains(&elapsed.as_secs()), "{elapsed:?}: {error}");
        let reading = {
            let handle = handle.clone();
            runtime::spawn(async move { read(&*handle, 0, 0, 8192).await })
        };
        runtime::sleep(Duration::from_secs(60)).await;
        is_gone.set(false);
        assert_eq!(reading.await.unwrap(), vec![1; 8192]);
    });
}

/// A rewind waits for earlier appends: one that takes effect later would be taken for a repetition.
#[test]
fn a_rewind_waits_for_appends_that_wait_for_memory() {
    world(4, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        append(&*handle, 0, 1, 8192).await;
        handle.flush(&[ZoneIndex(0)]).await.unwrap();
        let is_gone = outage(&bucket);
        let append_later = |zone: u32, value: u8| {
            let handle = handle.clone();
            runtime::spawn(async move { handle.append(ZoneIndex(zone), bytes(value, 8192)).await })
        };
        let mut filling: Vec<_> = (0..32).map(|_| append_later(1, 2)).collect();
        runtime::sleep(Duration::from_secs(10)).await;
        assert_eq!(part.status().await["unsaved_bytes"], settings().memory);
        let landing = append_later(0, 3);
        runtime::sleep(Duration::from_secs(10)).await;
        let rewinding = {
            let handle = handle.clone();
            runtime::spawn(async move { handle.rewind(ZoneAddress::new(0, 0)).await })
        };
        runtime::sleep(Duration::from_secs(10)).await;
        assert!(!landing.is_finished() && !rewinding.is_finished());
        is_gone.set(false);
        assert_eq!(landing.await.unwrap().offset.0, 8192);
        rewinding.await.unwrap();
        assert_eq!(handle.report(ZoneIndex(0), 1).await.unwrap()[0].write_pointer, 0);
        for filled in filling.drain(..) {
            filled.await.unwrap();
        }
        // The zone has all bytes: the rest of the repetition is known.
        for value in [1, 3] {
            append(&*handle, 0, value, 8192).await;
        }
        handle.finish(ZoneIndex(0)).await.unwrap();
        assert_eq!(read(&*handle, 0, 0, 16384).await.unwrap(), [[1; 8192], [3; 8192]].concat());
    });
}

/// Many clients on a slow store: pieces stay large, as few are being uploaded at a time.
#[test]
fn pieces_stay_large_on_a_slow_store() {
    world(5, |bucket| async move {
        let part = create().await;
        bucket.latency.set(Duration::from_millis(200));
        let handle = handle(&part).await;
        let clients = (0..64_u32).map(|client| {
            let handle = handle.clone();
            runtime::spawn(async move {
                for round in 0..8_u32 {
                    let zone = ZoneIndex((client + round) % 8);
                    handle.append(zone, bytes(client as u8, 4096)).await.unwrap();
                }
            })
        });
        runtime::join_all(clients.collect::<Vec<_>>()).await;
        let all: Vec<ZoneIndex> = (0..8).map(ZoneIndex).collect();
        handle.flush(&all).await.unwrap();
        let status = part.status().await;
        let (pieces, stored) = (&status["pieces"], &status["stored_bytes"]);
        let average = stored.as_u64().unwrap() / pieces.as_u64().unwrap();
        println!("{pieces} pieces of {average} bytes");
        assert!(average >= settings().piece_size / 3, "{pieces} pieces of {average} bytes");
    });
}

/// An object whose deletion the store refuses doesn't delay the deletion of others.
#[test]
fn objects_are_deleted_beside_one_that_the_store_refuses() {
    world(6, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        for zone in 0..3 {
            append(&*handle, zone, 1, 8192).await;
        }
        handle.flush(&[0, 1, 2].map(ZoneIndex)).await.unwrap();
        bucket.follow(|asked| {
            let body = String::from_utf8_lossy(&asked.body);
            let is_refused = asked.query("delete").is_some() && body.contains("/zones/00000000.");
            is_refused.then(|| {
                let body =
                    "<DeleteResult><Error><Key>k</Key><Code>AccessDenied</Code></Error></DeleteResult>";
                format!("HTTP/1.1 200 x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
            })
        });
        for zone in 0..3 {
            handle.reset(ZoneIndex(zone), EraseGuarantee::None).await.unwrap();
            runtime::sleep(Duration::from_secs(5)).await;
        }
        runtime::sleep(Duration::from_secs(80)).await;
        let left: Vec<String> = {
            let objects = bucket.objects.borrow();
            objects.keys().filter(|key| key.contains("/zones/")).cloned().collect()
        };
        assert!(left.len() == 1 && left[0].contains("/zones/00000000."), "{left:?}");
        // Few attempts in a day.
        let before = bucket.count("POST");
        runtime::sleep(Duration::from_secs(24 * 3600)).await;
        assert!((5..30).contains(&(bucket.count("POST") - before)), "{}", bucket.count("POST") - before);
    });
}
