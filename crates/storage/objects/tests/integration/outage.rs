//! An outage of the store: flushes wait, appends wait at the limit of memory, and both continue afterwards.

use crate::common::{append, bytes, create, handle, options, read, reopen, settings, world};
use block::{Error, Part, ZoneIndex};
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
fn an_outage_is_waiting_and_memory_stays_bounded() {
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
fn a_close_has_a_limit_and_says_what_is_lost() {
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
            // What failed attempts left is garbage.
            part.message("gc").await.unwrap();
            runtime::sleep(Duration::from_secs(200)).await;
            let pieces = bucket.objects.borrow().keys().filter(|key| key.contains("zones/")).count();
            assert_eq!(part.status().await["pieces"], pieces);
        });
    }
}
