//! Uploads to a bucket at the same time: their duration, and the order in which they become durable.

use crate::ack::in_bucket;
use crate::bucket::{How, bucket_options, empty_disk, open_cache, world};
use crate::crash_disk::CrashDisk;
use crate::options;
use crate::promises::{KIB, filled, text};
use crate::with_faults;
use block::{DevicePart, EraseGuarantee, Part, ZoneIndex, ZoneState, Zones, ZonesPart};
use object_store::testing::{Bucket, Faults};
use objects::{Encryption, ObjectsPart};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zone_writecache::{MaxLag, Options, ZoneWriteCachePart};

const ZONE: usize = 256 * KIB;

/// Fills and finishes zones.
async fn fill(handle: &Rc<dyn Zones>, zones: std::ops::Range<u32>) {
    for zone in zones.map(ZoneIndex) {
        for _ in 0..ZONE / (64 * KIB) {
            handle.append(zone, filled(7, 64 * KIB)).await.unwrap();
        }
        handle.finish(zone).await.unwrap();
    }
}

/// Each zone takes an upload of its data and two manifests.
#[test]
fn zones_do_not_wait_for_the_requests_of_those_before_them() {
    world(1, |bucket| async move {
        let cache = open_cache(Arc::new(empty_disk()), How::Format).await.unwrap();
        cache.message("flush").await.unwrap();
        let handle = cache.open().await.unwrap();
        let request = Duration::from_millis(80);
        bucket.latency.set(request);
        let begun = runtime::now();
        fill(&handle, 0..16).await;
        cache.message("flush").await.unwrap();
        let took = begun.elapsed();
        println!("16 zones in {took:?}, {} PUTs", bucket.count("PUT"));
        // One after the other takes 48 requests. At most 1 MiB is in flight, the limit of the lag.
        assert!(took < 24 * request, "{took:?}");
        drop(handle);
        cache.close().await.unwrap();
    });
}

const SLOW_DOWN: &[u8] = b"HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n";

/// Sends this answer to PUTs of the first zone's pieces, or none if it is empty, while the returned switch is
/// on.
fn answer_first(bucket: &Bucket, answer: &'static [u8]) -> Rc<Cell<bool>> {
    let is_refused = Rc::new(Cell::new(true));
    let switch = is_refused.clone();
    bucket.follow(move |asked| {
        let is_first = asked.method == "PUT" && asked.key.starts_with("db1/zones/00000000.");
        (switch.get() && is_first).then(|| answer.to_vec())
    });
    is_refused
}

/// The first zone's pieces are refused for a while, those of the others are stored at once.
#[test]
fn nothing_is_durable_before_what_was_written_earlier() {
    world(2, |bucket| async move {
        let cache = open_cache(Arc::new(empty_disk()), How::Format).await.unwrap();
        cache.message("flush").await.unwrap();
        let (handle, copy) = (cache.open().await.unwrap(), Cell::new(0));
        let is_refused = answer_first(&bucket, SLOW_DOWN);
        fill(&handle, 0..3).await;
        runtime::sleep(Duration::from_secs(5)).await;
        let stored =
            bucket.objects.borrow().keys().filter(|key| key.starts_with("db1/zones/00000001")).count();
        assert!(stored > 0, "later zones are uploaded meanwhile");
        for zone in 0..3 {
            let report = in_bucket(&bucket, &copy, zone).await;
            assert_eq!((report.state, report.write_pointer), (ZoneState::Empty, 0), "zone {zone}");
        }
        is_refused.set(false);
        cache.message("flush").await.unwrap();
        for zone in 0..3 {
            assert_eq!(in_bucket(&bucket, &copy, zone).await.state, ZoneState::Full, "zone {zone}");
        }
        drop(handle);
        cache.close().await.unwrap();
    });
}

/// An upload that is due and has to follow another one of its zone waits for the end of that one, without
/// looking for it again and again.
#[test]
fn an_upload_that_waits_for_its_zone_takes_no_processor_time() {
    let run = || async {
        let bucket = Bucket::start(Faults::default());
        let cache = open_cache(Arc::new(empty_disk()), How::Format).await.unwrap();
        cache.message("flush").await.unwrap();
        let handle = cache.open().await.unwrap();
        let is_silent = answer_first(&bucket, b"");
        fill(&handle, 0..1).await;
        // Its upload begins. Appends wait once it is older than 5 s.
        runtime::sleep(Duration::from_secs(2)).await;
        handle.reset(ZoneIndex(0), EraseGuarantee::None).await.unwrap();
        fill(&handle, 1..3).await;
        runtime::sleep(Duration::from_secs(3600)).await;
        is_silent.set(false);
        cache.message("flush").await.unwrap();
        drop(handle);
        cache.close().await.unwrap();
    };
    // A look each millisecond would have 3.6 million events.
    let simulation = runtime::Simulation { most_events: 500_000, ..runtime::Simulation::new(3) };
    runtime::simulate(simulation, run).unwrap();
}

/// A write cache over an encrypted bucket, whose key store is this device.
async fn open_encrypted(
    fast: &Arc<dyn DevicePart>,
    key_store: &Arc<dyn DevicePart>,
    format: bool,
) -> Arc<ZoneWriteCachePart> {
    let key = Arc::new(crypt::secret::copy_of(&[5; 32]).unwrap());
    let encryption = Some(Encryption { key, key_store: Some(key_store.clone()) });
    let volume = ObjectsPart::find(objects::Options { encryption, ..bucket_options(format) }).await.unwrap();
    let part = ZoneWriteCachePart::open(fast.clone(), Arc::new(volume), options(format)).await;
    Arc::new(part.unwrap())
}

/// A reset is refused, after a second, because the device can't read the block with the keys of the zone and
/// of another with data. A later finish in the bucket would be evidence that the reset is there, and the
/// origin would seem to be another one for ever.
#[test]
fn nothing_overtakes_a_reset_that_is_refused() {
    world(4, |_bucket| async move {
        let fast: Arc<dyn DevicePart> = Arc::new(empty_disk());
        let block = block::BlockSize::new(512).unwrap();
        let store: Arc<dyn DevicePart> = Arc::new(disks::ram::RamPart::new(64 << 10, block).unwrap());
        let cache = open_encrypted(&fast, &store, true).await;
        let handle = cache.open().await.unwrap();
        fill(&handle, 1..3).await;
        handle.append(ZoneIndex(9), filled(9, 64 * KIB)).await.unwrap();
        drop(handle);
        cache.message("flush").await.unwrap();
        cache.close().await.unwrap();
        // The secrets of zones 0 to 7.
        let rules = ["read delay=1s range=4096..4608", "read error=EIO range=4096..4608"];
        let unreadable = with_faults(store.clone(), rules, 1);
        let cache = open_encrypted(&fast, &unreadable, false).await;
        let handle = cache.open().await.unwrap();
        handle.reset(ZoneIndex(1), EraseGuarantee::None).await.unwrap();
        handle.finish(ZoneIndex(9)).await.unwrap();
        // Enough for an upload beside the one in flight.
        fill(&handle, 10..13).await;
        cache.message("flush").await.unwrap_err();
        runtime::sleep(Duration::from_secs(60)).await;
        assert_eq!(text(&*cache, "state").await, "\"waiting for the origin\"");
        drop(handle);
        cache.close().await.unwrap();
        // The device works again.
        let cache = open_encrypted(&fast, &store, false).await;
        cache.message("flush").await.unwrap();
        assert_eq!(text(&*cache, "state").await, "\"writing\"");
        let reports = cache.open().await.unwrap().report(ZoneIndex(0), 10).await.unwrap();
        assert_eq!((reports[1].generation, reports[9].state), (2, ZoneState::Full));
        cache.close().await.unwrap();
    });
}

/// Opens a new cache with a lag of 4 MiB, of which 1 MiB begins an upload.
async fn open_with_lag(memory: u64) -> Arc<ZoneWriteCachePart> {
    let of_bucket = bucket_options(true);
    let settings = objects::Settings { memory, ..of_bucket.settings };
    let volume = ObjectsPart::find(objects::Options { settings, ..of_bucket }).await.unwrap();
    let max_lag = MaxLag { bytes: 4 << 20, age: Duration::from_secs(5) };
    let fast = Arc::new(CrashDisk::new(32 << 20, 4096, true));
    let cache = ZoneWriteCachePart::open(fast, Arc::new(volume), Options { max_lag, ..options(true) }).await;
    let cache = Arc::new(cache.unwrap());
    cache.message("flush").await.unwrap();
    cache
}

/// Finishes and resets don't end the pieces of the other zones. Four zones are written in turn, and each is
/// finished when the others are full in part. A zone of 256 KiB has two pieces of 128 KiB, and one more where
/// a batch ends.
#[test]
fn zones_that_are_written_side_by_side_need_few_objects() {
    world(5, |bucket| async move {
        let cache = open_with_lag(1 << 20).await;
        let handle = cache.open().await.unwrap();
        let puts = |part: &str| {
            let is_put = |(method, key): &&(String, String)| method == "PUT" && key.contains(part);
            bucket.asked.borrow().iter().filter(is_put).count()
        };
        let before = (puts("/zones/"), puts("/manifest/"));
        // Zones that are open, with the number of their appends.
        let (mut open, mut next) = ([(0, 0), (1, 1), (2, 2), (3, 3)], 4);
        while next < 24 {
            for (zone, appends) in &mut open {
                handle.append(ZoneIndex(*zone), filled(*zone as u8, 64 * KIB)).await.unwrap();
                *appends += 1;
                if *appends == ZONE / (64 * KIB) {
                    handle.finish(ZoneIndex(*zone)).await.unwrap();
                    if let Some(old) = zone.checked_sub(8) {
                        handle.reset(ZoneIndex(old), EraseGuarantee::None).await.unwrap();
                    }
                    (*zone, *appends, next) = (next, 0, next + 1);
                }
            }
        }
        cache.message("flush").await.unwrap();
        let (pieces, manifests) = (puts("/zones/") - before.0, puts("/manifest/") - before.1);
        println!("{pieces} pieces, {manifests} manifests");
        assert!(pieces <= 56 && manifests <= 10, "{pieces} pieces, {manifests} manifests");
        drop(handle);
        cache.close().await.unwrap();
    });
}

/// A slow store that takes pieces all the time isn't one that has stopped: two pieces are uploaded at a time.
#[test]
fn a_close_that_uploads_everything_goes_on_while_the_store_takes_pieces() {
    world(6, |bucket| async move {
        let cache = open_with_lag(256 << 10).await;
        let handle = cache.open().await.unwrap();
        bucket.latency.set(Duration::from_secs(9));
        fill(&handle, 0..15).await;
        drop(handle);
        cache.message("flush_on_suspend").await.unwrap();
        cache.close().await.unwrap();
    });
}
