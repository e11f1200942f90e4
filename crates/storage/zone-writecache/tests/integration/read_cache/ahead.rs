//! Reads ahead of sequential reads, counted at the origin and at a simulated store.

use super::{CHUNK, MIB, check, filled, open, settle, slow, stamped, with_cache};
use crate::bucket::world;
use crate::crash_disk::CrashDisk;
use crate::promises::{KIB, number, simulated};
use block::{Data, DevicePart, Part, ZoneIndex, ZonesPart};
use object_store::Limits;
use object_store::testing::config;
use objects::{NewVolume, ObjectsPart};
use runtime::Random;
use std::sync::Arc;
use std::time::Duration;

const ZONE: usize = 16 * MIB;
/// Space for the log, and a read cache of 256 MiB.
const FAST: u64 = (256 << 20) + (8 << 20);
const CACHE: Option<u64> = Some(256 << 20);

fn device() -> Arc<dyn DevicePart> {
    Arc::new(disks::ram::RamPart::new(FAST, block::BlockSize::default()).unwrap())
}

#[test]
fn sequential_reads_have_several_requests_in_flight() {
    simulated(|| async {
        let delay = Duration::from_millis(50);
        let (origin, record) = slow(4, ZONE, delay);
        let fast = device();
        filled(&fast, &origin, 0..2, ZONE, with_cache(CACHE, true)).await;
        let part = open(&fast, origin, with_cache(CACHE, false)).await;
        let handle = part.open().await.unwrap();
        let start = runtime::now();
        for at in (0..ZONE).step_by(32 * KIB) {
            check(&handle, 1, 1, at, 32 * KIB).await;
        }
        let took = start.elapsed();
        let reads = record.take();
        let bytes: usize = reads.iter().map(|read| read.2).sum();
        assert_eq!(bytes, ZONE, "everything once");
        assert!(reads.len() <= 16 + 14, "{} requests: {reads:?}", reads.len());
        assert!(*record.most.lock().unwrap() >= 5, "{} at a time", record.most.lock().unwrap());
        // One by one they would take 24 delays of 50 ms; here the window grows in the first ones.
        assert!(took < 10 * delay, "{took:?}");
        assert_eq!(number(&*part, "read_ahead_wasted_bytes").await, 0);
        let ahead = number(&*part, "read_ahead_bytes").await;
        assert_eq!(number(&*part, "read_ahead_used_bytes").await, ahead);
        assert!(ahead > 15 * MIB as u64, "{ahead}");
        part.close().await.unwrap();
    });
}

#[test]
fn random_reads_request_nothing_ahead() {
    simulated(|| async {
        let (origin, record) = slow(4, ZONE, Duration::from_millis(2));
        let fast = device();
        filled(&fast, &origin, 0..2, ZONE, with_cache(CACHE, true)).await;
        let part = open(&fast, origin, with_cache(CACHE, false)).await;
        let handle = part.open().await.unwrap();
        let mut random = Random::new(5);
        for _ in 0..300 {
            let at = random.below((ZONE / 4096) as u64) as usize * 4096;
            check(&handle, random.below(2) as u32, 1, at, 4096).await;
        }
        settle().await;
        assert_eq!(number(&*part, "read_ahead_requests").await, 0);
        let reads = record.take();
        assert!(reads.iter().all(|read| read.2 == CHUNK), "a chunk each");
        assert_eq!(reads.len() as u64, number(&*part, "read_cache_fills").await, "each of them once");
        part.close().await.unwrap();
    });
}

/// Streams of several zones, read in turns, and their limit of memory.
#[test]
fn streams_share_the_limit_of_fetches() {
    simulated(|| async {
        let (origin, record) = slow(8, ZONE, Duration::from_millis(50));
        let fast = device();
        filled(&fast, &origin, 0..4, ZONE, with_cache(CACHE, true)).await;
        let part = open(&fast, origin, with_cache(CACHE, false)).await;
        let handle = part.open().await.unwrap();
        let streams = (0..4).map(|zone| {
            let handle = handle.clone();
            async move {
                for at in (0..ZONE).step_by(64 * KIB) {
                    check(&handle, zone, 1, at, 64 * KIB).await;
                }
            }
        });
        let watched = part.clone();
        let watch = runtime::spawn(async move {
            let mut most = 0;
            for _ in 0..200 {
                most = most.max(number(&*watched, "read_cache_fetching_bytes").await);
                runtime::sleep(Duration::from_millis(5)).await;
            }
            most
        });
        runtime::join_all(streams).await;
        let most = watch.await;
        assert!((8 << 20..=16 << 20).contains(&most), "{most}");
        let bytes: usize = record.take().iter().map(|read| read.2).sum();
        assert_eq!(bytes, 4 * ZONE, "everything once");
        part.close().await.unwrap();
    });
}

/// Requests of a bucket, at 20 ms each.
#[test]
fn a_cold_zone_of_a_bucket_is_read_in_large_requests() {
    world(1, |bucket| async move {
        let bucket_of = async |format: bool| {
            let options = objects::Options {
                store: config(Limits::default()),
                prefix: "db1".to_owned(),
                writer: "a test".to_owned(),
                format: format.then_some(NewVolume { zones: 8, zone_size: 8 << 20, probe: false }),
                expected: (None, None),
                settings: objects::Settings { max_append: 256 << 10, ..objects::Settings::default() },
                follow: None,
                encryption: None,
            };
            let part: Arc<dyn ZonesPart> = Arc::new(ObjectsPart::find(options).await.unwrap());
            part
        };
        let fast: Arc<dyn DevicePart> = Arc::new(CrashDisk::new(FAST as usize / 4, 4096, true));
        let cache = Some(32 << 20);
        let below = bucket_of(true).await;
        let part = open(&fast, below.clone(), with_cache(cache, true)).await;
        let handle = part.open().await.unwrap();
        for at in (0..8 * MIB).step_by(256 * KIB) {
            let bytes = stamped(1, 1, at, 256 * KIB);
            handle.append(ZoneIndex(1), Data::copy_of(&bytes).into()).await.unwrap();
        }
        handle.finish(ZoneIndex(1)).await.unwrap();
        part.message("flush").await.unwrap();
        drop(handle);
        part.close().await.unwrap();
        below.close().await.unwrap();
        let below = bucket_of(false).await;
        let part = open(&fast, below.clone(), with_cache(cache, false)).await;
        let handle = part.open().await.unwrap();
        let (before, start) = (bucket.count("GET"), runtime::now());
        for at in (0..8 * MIB).step_by(128 * KIB) {
            check(&handle, 1, 1, at, 128 * KIB).await;
        }
        let (requests, took) = (bucket.count("GET") - before, start.elapsed());
        println!("{requests} requests in {took:?}");
        // 64 reads, of 8 MiB that the bucket gives a MiB at a time; pieces are uploaded at 256 KiB of lag.
        assert!(requests <= 40, "{requests}");
        assert!(took < Duration::from_millis(64 * 20 / 4), "{took:?}");
        settle().await;
        let before = bucket.count("GET");
        for at in (0..8 * MIB).step_by(128 * KIB) {
            check(&handle, 1, 1, at, 128 * KIB).await;
        }
        assert_eq!(bucket.count("GET"), before, "warm reads have no request");
        drop(handle);
        part.close().await.unwrap();
        below.close().await.unwrap();
    });
}
