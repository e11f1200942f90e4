//! Small pieces are merged in the background: few objects at the end, with the same bytes, while zones are
//! read, reset and rewound, and after a crash at any moment.

use crate::common::{ZONE_SIZE, append, bytes, create, handle, options, read, reopen, settings, world};
use block::{EraseGuarantee, Error, Part, ZoneAddress, ZoneIndex, ZoneState, Zones};
use object_store::testing::{Bucket, Stored};
use objects::ObjectsPart;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

const BLOCK: usize = 2048;
/// Blocks of a zone.
const BLOCKS: u64 = ZONE_SIZE / BLOCK as u64;

/// Flushes blocks to a zone, one by one. Block `n` has the value `n`.
pub async fn fill(handle: &dyn Zones, zone: u32, blocks: std::ops::Range<u64>) {
    for number in blocks {
        append(handle, zone, number as u8, BLOCK).await;
        handle.flush(&[ZoneIndex(zone)]).await.unwrap();
    }
}

pub async fn has(handle: &dyn Zones, zone: u32, blocks: std::ops::Range<u64>) {
    let count = blocks.clone().count();
    let found = read(handle, zone, blocks.start * BLOCK as u64, count * BLOCK).await.unwrap();
    for (number, found) in blocks.zip(found.chunks(BLOCK)) {
        assert_eq!(found, vec![number as u8; BLOCK], "zone {zone}, block {number}");
    }
}

async fn pieces(part: &ObjectsPart) -> u64 {
    part.status().await["pieces"].as_u64().unwrap()
}

fn objects(bucket: &Bucket, zone: u32) -> usize {
    let prefix = format!("db1/zones/{zone:08x}.");
    bucket.objects.borrow().keys().filter(|key| key.starts_with(&prefix)).count()
}

#[test]
fn a_zone_of_small_flushes_becomes_few_objects() {
    world(1, |bucket| async move {
        let part = create().await;
        let zones = handle(&part).await;
        for zone in 0..4 {
            fill(&*zones, zone, 0..BLOCKS).await;
            if zone % 2 == 0 {
                zones.finish(ZoneIndex(zone)).await.unwrap();
            }
        }
        // Another upload gives the budget for the other pieces.
        fill(&*zones, 4, 0..30).await;
        runtime::sleep(Duration::from_secs(1)).await;
        let status = part.status().await;
        assert!(status["merged_objects"].as_u64().unwrap() >= 4 * (BLOCKS - 16), "{status:?}");
        for zone in 0..4 {
            has(&*zones, zone, 0..BLOCKS).await;
        }
        runtime::sleep(Duration::from_secs(100)).await;
        let most = ZONE_SIZE.div_ceil(settings().piece_size) as usize + 1;
        // Fewer than nine pieces aren't merged.
        for zone in 0..4 {
            assert!(objects(&bucket, zone) <= most + 8, "{} objects", objects(&bucket, zone));
        }
        let kept: usize = (0..5).map(|zone| objects(&bucket, zone)).sum();
        assert_eq!(kept as u64, pieces(&part).await, "the old ones are deleted");
        let part = reopen().await;
        let zones = handle(&part).await;
        for zone in 0..4 {
            has(&*zones, zone, 0..BLOCKS).await;
        }
        assert_eq!(part.message("gc").await.unwrap(), "0 objects will be deleted");
    });
}

/// Each state of the store while pieces are merged has all that was flushed.
#[test]
fn every_state_of_a_merge_has_all_bytes() {
    let states: Rc<RefCell<Vec<BTreeMap<String, Stored>>>> = Rc::default();
    let kept = states.clone();
    world(2, move |bucket| async move {
        let part = create().await;
        let zones = handle(&part).await;
        fill(&*zones, 0, 0..BLOCKS - 20).await;
        let own = Rc::downgrade(&bucket);
        bucket.follow(move |asked| {
            if asked.method != "GET" {
                kept.borrow_mut().push(own.upgrade()?.objects.borrow().clone());
            }
            None
        });
        zones.finish(ZoneIndex(0)).await.unwrap();
        fill(&*zones, 1, 0..20).await;
        runtime::sleep(Duration::from_secs(100)).await;
        assert!(pieces(&part).await < 40);
    });
    let states = states.take();
    assert!(states.len() > 40, "{} states", states.len());
    for objects in states {
        world(3, move |bucket| async move {
            bucket.objects.replace(objects);
            let part = reopen().await;
            let zones = handle(&part).await;
            has(&*zones, 0, 0..BLOCKS - 20).await;
            part.message("gc").await.unwrap();
            runtime::sleep(Duration::from_secs(100)).await;
            has(&*zones, 0, 0..BLOCKS - 20).await;
            let found = bucket.objects.borrow().keys().filter(|key| key.contains("zones/")).count();
            assert_eq!(found as u64, pieces(&part).await);
        });
    }
}

/// Lets the first merge wait at its first upload, until the switch is on. A merged piece is longer than the
/// flushes of these tests.
fn hold_merges(bucket: &Bucket) -> (Rc<Cell<bool>>, Rc<Cell<usize>>) {
    let (is_free, held) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let (switch, count) = (is_free.clone(), held.clone());
    bucket.follow(move |asked| {
        let is_merged = asked.method == "PUT" && asked.key.contains("zones/") && asked.body.len() > 4 * BLOCK;
        if is_merged && !switch.get() {
            count.set(count.get() + 1);
            // No answer, until the client ends the attempt.
            return Some(Vec::new());
        }
        None
    });
    (is_free, held)
}

#[test]
fn a_reset_cancels_the_merge_of_its_zone() {
    world(4, |bucket| async move {
        let part = create().await;
        let zones = handle(&part).await;
        let (is_free, held) = hold_merges(&bucket);
        fill(&*zones, 0, 0..60).await;
        runtime::sleep(Duration::from_secs(5)).await;
        assert_eq!(held.get(), 1, "a merge is in progress");
        assert_eq!(zones.reset(ZoneIndex(0), EraseGuarantee::None).await, Ok(2));
        // Pieces at the same offsets, of the next generation.
        fill(&*zones, 0, 0..60).await;
        is_free.set(true);
        runtime::sleep(Duration::from_secs(200)).await;
        assert_eq!(part.status().await["merged_objects"], 0);
        assert_eq!((objects(&bucket, 0), pieces(&part).await), (60, 60));
        has(&*zones, 0, 0..60).await;
        let zones = handle(&reopen().await).await;
        has(&*zones, 0, 0..60).await;
    });
}

/// After a crash a write cache repeats appends that may be lost, while the zone is merged.
#[test]
fn a_zone_that_is_merged_can_be_rewound() {
    for rewound in [0, 7, 24, 59] {
        world(5, move |bucket| async move {
            let part = create().await;
            let zones = handle(&part).await;
            let (is_free, _) = hold_merges(&bucket);
            fill(&*zones, 0, 0..60).await;
            let part = reopen().await;
            let zones = handle(&part).await;
            is_free.set(true);
            bucket.latency.set(Duration::from_millis(50));
            let rewind = async |blocks: u64| {
                let at = ZoneAddress::new(0, blocks * BLOCK as u64);
                zones.rewind(at).await.unwrap();
                assert_eq!(zones.report(ZoneIndex(0), 1).await.unwrap()[0].write_pointer, at.offset.0);
            };
            // Uploads of another zone let a merge begin.
            fill(&*zones, 1, 0..3).await;
            rewind(rewound).await;
            fill(&*zones, 0, rewound..40).await;
            rewind(rewound.min(30)).await;
            fill(&*zones, 0, rewound.min(30)..100).await;
            zones.finish(ZoneIndex(0)).await.unwrap();
            fill(&*zones, 1, 3..6).await;
            runtime::sleep(Duration::from_secs(100)).await;
            assert!(part.status().await["merged_objects"].as_u64().unwrap() > 50);
            has(&*zones, 0, 0..100).await;
            let zones = handle(&reopen().await).await;
            assert_eq!(zones.report(ZoneIndex(0), 1).await.unwrap()[0].state, ZoneState::Full);
            has(&*zones, 0, 0..100).await;
        });
    }
}

/// A read that takes longer than the grace doesn't find its pieces any more, and reads the merged ones.
#[test]
fn a_read_that_outlasts_the_grace_of_merged_pieces_is_repeated() {
    world(6, |bucket| async move {
        let settings = objects::Settings { grace: Duration::from_secs(1), ..settings() };
        let part = ObjectsPart::open(objects::Options { settings, ..options(true) }).await.unwrap();
        let zones = handle(&part).await;
        let (is_free, is_silent) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (uploads, reads) = (is_free.clone(), is_silent.clone());
        bucket.follow(move |asked| {
            let is_merged =
                asked.method == "PUT" && asked.key.contains("zones/") && asked.body.len() > 4 * BLOCK;
            let is_first = asked.method == "GET" && asked.key.contains("/000000000000.");
            ((is_merged && !uploads.get()) || (is_first && reads.get())).then(Vec::new)
        });
        fill(&*zones, 0, 0..60).await;
        runtime::sleep(Duration::from_secs(1)).await;
        let key = bucket.objects.borrow().keys().find(|key| key.contains("/000000000000.")).cloned().unwrap();
        is_silent.set(true);
        let reading = {
            let zones = zones.clone();
            runtime::spawn(async move { read(&*zones, 0, 0, BLOCK).await })
        };
        runtime::sleep(Duration::from_secs(1)).await;
        // The attempt without an answer is repeated.
        is_free.set(true);
        for _ in 0..60 {
            runtime::sleep(Duration::from_secs(1)).await;
        }
        assert!(!bucket.objects.borrow().contains_key(&key), "merged and deleted");
        assert!(!reading.is_finished());
        is_silent.set(false);
        assert_eq!(reading.await, Ok(vec![0; BLOCK]));
    });
}

#[test]
fn pieces_that_cannot_be_read_stay_and_others_are_merged() {
    world(7, |bucket| async move {
        let part = create().await;
        let zones = handle(&part).await;
        let (is_free, _) = hold_merges(&bucket);
        fill(&*zones, 0, 0..40).await;
        runtime::sleep(Duration::from_secs(60)).await;
        let key =
            bucket.objects.borrow().keys().find(|key| key.contains("zones/00000000.")).cloned().unwrap();
        bucket.objects.borrow_mut().get_mut(&key).unwrap().bytes[100] ^= 1;
        is_free.set(true);
        zones.finish(ZoneIndex(0)).await.unwrap();
        fill(&*zones, 1, 0..BLOCKS).await;
        zones.finish(ZoneIndex(1)).await.unwrap();
        fill(&*zones, 2, 0..3).await;
        runtime::sleep(Duration::from_secs(100)).await;
        assert!(objects(&bucket, 1) <= 15, "{}", objects(&bucket, 1));
        let error = read(&*zones, 0, 0, BLOCK).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains(&*key), "{error}");
        has(&*zones, 0, 1..40).await;
        has(&*zones, 1, 0..BLOCKS).await;
    });
}

/// No request of a merge while the store fails or asks for fewer, and nothing while no user writes.
#[test]
fn merges_wait_for_a_store_without_failures_and_for_uploads() {
    world(8, |bucket| async move {
        let part = create().await;
        let zones = handle(&part).await;
        let (is_free, held) = hold_merges(&bucket);
        fill(&*zones, 0, 0..60).await;
        runtime::sleep(Duration::from_secs(40)).await;
        assert!(held.get() > 0);
        let before = bucket.asked.borrow().len();
        // The attempt has ended by its limit, and no user writes.
        is_free.set(true);
        runtime::sleep(Duration::from_secs(3600)).await;
        let deletions = bucket.count("POST");
        assert!(bucket.asked.borrow().len() - before <= deletions + 1, "idle");
        assert_eq!(pieces(&part).await, 60);
        // An upload just after the store asked for fewer requests.
        let slow = Rc::new(Cell::new(true));
        let switch = slow.clone();
        bucket.follow(move |asked| {
            let is_refused = asked.method == "PUT" && switch.replace(false);
            is_refused.then(|| b"HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n".to_vec())
        });
        let reads = bucket.count("GET");
        fill(&*zones, 1, 0..8).await;
        runtime::sleep(Duration::from_secs(5)).await;
        assert_eq!(bucket.count("GET"), reads, "nothing is merged for a while");
        runtime::sleep(Duration::from_secs(15)).await;
        fill(&*zones, 1, 8..9).await;
        runtime::sleep(Duration::from_secs(5)).await;
        assert!(pieces(&part).await < 40, "{}", pieces(&part).await);
        has(&*zones, 0, 0..60).await;
    });
}

/// Uploads of users aren't delayed: a merge takes no slot of theirs and ends if they need the connections.
#[test]
fn memory_of_a_merge_is_a_part_of_the_limit() {
    world(9, |bucket| async move {
        let part = create().await;
        let zones = handle(&part).await;
        let (_, held) = hold_merges(&bucket);
        fill(&*zones, 0, 0..60).await;
        runtime::sleep(Duration::from_secs(1)).await;
        assert_eq!(held.get(), 1);
        assert_eq!(part.status().await["unsaved_bytes"], 0, "nothing that a user has appended");
        // The rest of the memory can be used, and what is flushed is durable at once.
        let begun = runtime::now();
        let rest = (settings().memory - settings().piece_size) as usize / 4;
        for zone in 1..5 {
            zones.append(ZoneIndex(zone), bytes(3, rest.min(90 << 10))).await.unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(1));
        // An append that needs the memory of the merge has it soon, though no upload ends.
        zones.append(ZoneIndex(5), bytes(3, 40 << 10)).await.unwrap();
        let waited = begun.elapsed();
        assert!((Duration::from_secs(1)..Duration::from_secs(2)).contains(&waited), "{waited:?}");
    });
}

/// A damaged upload of a merged piece doesn't exclude the zone from merging, as unreadable pieces do.
#[test]
fn an_upload_that_is_damaged_in_transfer_excludes_no_zone() {
    world(10, |bucket| async move {
        let part = create().await;
        let zones = handle(&part).await;
        let (is_damaged, count) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(0)));
        let (switch, damaged) = (is_damaged.clone(), count.clone());
        bucket.follow(move |asked| {
            let is_merged =
                asked.method == "PUT" && asked.key.contains("zones/") && asked.body.len() > 4 * BLOCK;
            (is_merged && switch.get()).then(|| {
                damaged.set(damaged.get() + 1);
                let head = "HTTP/1.1 200 x\r\netag: \"1\"\r\nx-amz-checksum-crc32c: AAAAAA==\r\n";
                format!("{head}content-length: 0\r\n\r\n").into_bytes()
            })
        });
        fill(&*zones, 0, 0..60).await;
        runtime::sleep(Duration::from_secs(60)).await;
        assert!(count.get() > 0);
        assert_eq!(pieces(&part).await, 60);
        is_damaged.set(false);
        fill(&*zones, 1, 0..8).await;
        runtime::sleep(Duration::from_secs(5)).await;
        assert!(pieces(&part).await < 40, "{}", pieces(&part).await);
        has(&*zones, 0, 0..60).await;
    });
}
