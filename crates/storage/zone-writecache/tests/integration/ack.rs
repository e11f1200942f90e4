//! `ack = "origin"`: flushes, finishes and resets wait for the bucket, and other calls don't.

use crate::bucket::{How, bucket_options, empty_disk, open_cache_with, world};
use crate::promises::{KIB, filled, number, text};
use block::{
    EraseGuarantee, Error, Part, Result, ZoneAddress, ZoneIndex, ZoneReport, ZoneState, Zones, ZonesPart,
};
use object_store::testing::{Bucket, Faults};
use objects::ObjectsPart;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zone_writecache::{Ack, ZoneWriteCachePart};

/// Opens a new cache whose flushes wait for the bucket.
async fn open_waiting() -> Arc<ZoneWriteCachePart> {
    let cache = open_cache_with(Arc::new(empty_disk()), How::Format, Ack::Origin).await.unwrap();
    cache.message("flush").await.unwrap();
    cache
}

/// State of a zone that an opening of the bucket finds now: in a copy of the bucket at another address.
pub async fn in_bucket(bucket: &Rc<Bucket>, copy: &Cell<u8>, zone: u32) -> ZoneReport {
    copy.set(copy.get() + 1);
    let address = format!("10.0.1.{}:80", copy.get());
    let other = Bucket::start_at(&address, None, Faults::default());
    other.objects.replace(bucket.objects.borrow().clone());
    let mut options = bucket_options(false);
    options.store.endpoint = format!("http://{address}");
    let part = ObjectsPart::open(options).await.unwrap();
    part.open().await.unwrap().report(ZoneIndex(zone), 1).await.unwrap()[0]
}

async fn timed<T>(call: impl Future<Output = Result<T>>) -> (T, Duration) {
    let begun = runtime::now();
    (call.await.unwrap(), begun.elapsed())
}

#[test]
fn a_flush_a_finish_and_a_reset_return_once_the_bucket_has_them() {
    world(1, |bucket| async move {
        let cache = open_waiting().await;
        let (handle, copy) = (cache.open().await.unwrap(), Cell::new(0));
        let two_requests = Duration::from_millis(40);
        for round in 1..=3_u64 {
            let (_, took) = timed(handle.append(ZoneIndex(0), filled(1, 4 * KIB))).await;
            assert!(took < Duration::from_millis(5), "an append took {took:?}");
            let ((), took) = timed(handle.flush(&[ZoneIndex(0)])).await;
            assert!((two_requests..5 * two_requests).contains(&took), "a flush took {took:?}");
            assert_eq!(in_bucket(&bucket, &copy, 0).await.write_pointer, round * 4 * KIB as u64);
            // A flush without new appends.
            let ((), took) = timed(handle.flush(&[ZoneIndex(0)])).await;
            assert!(took < Duration::from_millis(5), "{took:?}");
        }
        handle.append(ZoneIndex(0), filled(1, 4 * KIB)).await.unwrap();
        handle.finish(ZoneIndex(0)).await.unwrap();
        let report = in_bucket(&bucket, &copy, 0).await;
        assert_eq!((report.state, report.write_pointer), (ZoneState::Full, 16 * KIB as u64));
        handle.append(ZoneIndex(1), filled(1, 4 * KIB)).await.unwrap();
        assert_eq!(handle.reset(ZoneIndex(0), EraseGuarantee::None).await.unwrap(), 2);
        assert_eq!(in_bucket(&bucket, &copy, 0).await.generation, 2);
        assert_eq!(
            in_bucket(&bucket, &copy, 1).await.write_pointer,
            4 * KIB as u64,
            "the append was before the reset"
        );
        assert_eq!(
            (text(&*cache, "ack").await, text(&*cache, "state").await),
            ("\"origin\"".into(), "\"writing\"".into())
        );
        drop(handle);
        cache.close().await.unwrap();
    });
}

/// Appends a block and flushes, `rounds` times, by a client for each of 20 zones.
async fn clients(handle: &Rc<dyn Zones>, rounds: usize) -> Result<()> {
    let clients = (0..20).map(|zone| {
        let handle = handle.clone();
        runtime::spawn(async move {
            for _ in 0..rounds {
                handle.append(ZoneIndex(zone), filled(2, KIB)).await.unwrap();
                handle.flush(&[ZoneIndex(zone)]).await.unwrap();
            }
        })
    });
    runtime::join_all(clients.collect::<Vec<_>>()).await;
    Ok(())
}

#[test]
fn flushes_that_wait_share_an_upload() {
    world(2, |_bucket| async move {
        let cache = open_waiting().await;
        let handle = cache.open().await.unwrap();
        let before = number(&*cache, "origin_flushes").await;
        let ((), took) = timed(clients(&handle, 20)).await;
        let uploads = number(&*cache, "origin_flushes").await - before;
        println!("400 flushes, {uploads} uploads, {took:?}");
        assert!((20..=45).contains(&uploads), "{uploads} uploads of 400 flushes");
        assert!(took < Duration::from_secs(5), "{took:?}");
    });
}

/// Answers each request with 503 while the returned switch is on.
fn outage(bucket: &Bucket) -> Rc<Cell<bool>> {
    let is_down = Rc::new(Cell::new(true));
    let switch = is_down.clone();
    let answer = b"HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n";
    bucket.follow(move |_| switch.get().then(|| answer.to_vec()));
    is_down
}

#[test]
fn an_outage_makes_flushes_wait_and_nothing_fails() {
    world(3, |bucket| async move {
        let cache = open_waiting().await;
        let (handle, copy) = (cache.open().await.unwrap(), Cell::new(0));
        let is_down = outage(&bucket);
        let flushing: Vec<_> = (0..3)
            .map(|zone| {
                let handle = handle.clone();
                runtime::spawn(async move {
                    handle.append(ZoneIndex(zone), filled(3, 4 * KIB)).await?;
                    match zone {
                        0 => handle.flush(&[ZoneIndex(zone)]).await,
                        1 => handle.finish(ZoneIndex(zone)).await,
                        _ => handle.reset(ZoneIndex(zone), EraseGuarantee::None).await.map(drop),
                    }
                })
            })
            .collect();
        runtime::sleep(Duration::from_secs(1)).await;
        // The first one after a flush is a durable write, the second one isn't.
        for _ in 0..2 {
            let (_, took) = timed(handle.append(ZoneIndex(4), filled(3, 4 * KIB))).await;
            assert!(took < Duration::from_millis(5), "an append took {took:?}");
        }
        runtime::sleep(Duration::from_secs(3600)).await;
        assert!(flushing.iter().all(|flush| !flush.is_finished()));
        let status = cache.status().await;
        assert_eq!(
            (&status["state"], &status["waiting_flushes"]),
            (&"waiting for the origin".into(), &3.into())
        );
        assert_eq!(status["unflushed_bytes"], 4096, "the last append, which no flush followed");
        assert!(status["awaited_seconds"].as_f64().unwrap() > 3600.0, "{status:?}");
        assert!(status["lag_seconds"].as_f64().unwrap() > 3600.0, "{status:?}");
        is_down.set(false);
        let flushed = runtime::timeout(Duration::from_secs(30), runtime::join_all(flushing)).await;
        flushed.expect("the store answers again").into_iter().for_each(|outcome| outcome.unwrap());
        assert_eq!(in_bucket(&bucket, &copy, 1).await.state, ZoneState::Full);
        assert_eq!(in_bucket(&bucket, &copy, 2).await.generation, 2);
        let status = cache.status().await;
        assert_eq!((&status["state"], &status["waiting_flushes"]), (&"writing".into(), &0.into()));
        drop(handle);
        cache.close().await.unwrap();
    });
}

/// A close during an outage ends the flushes that wait; the data stays on the fast device.
#[test]
fn a_close_ends_flushes_that_wait() {
    world(4, |bucket| async move {
        let disk = Arc::new(empty_disk());
        let cache = open_cache_with(disk.clone(), How::Format, Ack::Origin).await.unwrap();
        cache.message("flush").await.unwrap();
        let handle = cache.open().await.unwrap();
        let is_down = outage(&bucket);
        handle.append(ZoneIndex(0), filled(3, 4 * KIB)).await.unwrap();
        let flushing = {
            let handle = handle.clone();
            runtime::spawn(async move { handle.flush(&[ZoneIndex(0)]).await })
        };
        runtime::sleep(Duration::from_secs(10)).await;
        let begun = runtime::now();
        drop(handle);
        runtime::timeout(Duration::from_secs(30), cache.close()).await.expect("a close ends").unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        let error = flushing.await.unwrap_err();
        assert!(matches!(error, Error::Closed(_)), "{error}");
        is_down.set(false);
        let cache = open_cache_with(disk, How::Again, Ack::Origin).await.unwrap();
        let handle = cache.open().await.unwrap();
        let at = ZoneAddress::new(0, 0);
        assert_eq!(crate::promises::read(&handle, at, 4 * KIB).await.unwrap(), [3; 4 * KIB]);
    });
}

/// An error of the origin ends the message `flush`, and not a flush by a user.
#[test]
fn the_message_returns_the_first_error_and_a_flush_waits_for_success() {
    crate::promises::simulated(|| async {
        let (origin, switch) = crate::origins::Switched::new(crate::ram_zones());
        let options = zone_writecache::Options { ack: Ack::Origin, ..crate::options(true) };
        let cache = ZoneWriteCachePart::open(crate::fast_device(), origin, options).await.unwrap();
        let handle = cache.open().await.unwrap();
        runtime::sleep(Duration::from_secs(2)).await;
        switch.set(crate::origins::Mode::Fails);
        handle.append(ZoneIndex(0), filled(3, 4 * KIB)).await.unwrap();
        assert!(matches!(cache.message("flush").await, Err(Error::Disconnected(_))));
        let flush = handle.flush(&[ZoneIndex(0)]);
        assert!(runtime::timeout(Duration::from_secs(100), flush).await.is_err(), "it waits");
        switch.set(crate::origins::Mode::Works);
        handle.flush(&[ZoneIndex(0)]).await.unwrap();
        assert_eq!(number(&cache, "lag_bytes").await, 0);
    });
}
