//! The key store: parts of it that can't be read, readers beside the writer, copies, and work on a volume
//! that isn't opened.

use crate::common::{ZONE_SIZE, append, bytes, handle, options, read, world};
use crate::encryption::{memory, new_volume, open, with_key};
use block::{
    BlockIndex, BlockSize, Buffer, DevicePart, Durability, EraseGuarantee, Error, Part, ZoneIndex, ZoneState,
    Zones, ZonesPart,
};
use disks::ram::RamPart;
use layers::fault::{FaultDevicePart, parse_rules};
use object_store::testing::Bucket;
use objects::{NewVolume, ObjectsPart, Options, ReaderPart, Volume};
use std::sync::Arc;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(10);
const STORE: usize = 64 << 10;
/// Place of the secrets of zones 0 to 7 on a device with blocks of 512 bytes.
const FIRST: &str = "4096..4608";

fn small_blocks() -> Arc<dyn DevicePart> {
    Arc::new(RamPart::new(STORE as u64, BlockSize::new(512).unwrap()).unwrap())
}

fn faulty(part: &Arc<dyn DevicePart>, rules: &[&str]) -> Arc<dyn DevicePart> {
    let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
    let rules = parse_rules(&rules, stack::Contract::Device).unwrap();
    Arc::new(FaultDevicePart::new(part.clone(), rules, 1).unwrap())
}

async fn contents(part: &Arc<dyn DevicePart>) -> Vec<u8> {
    let (outcome, buffer) = part.open().await.unwrap().read(BlockIndex(0), Buffer::new(STORE)).await;
    outcome.unwrap();
    buffer.filled().to_vec()
}

async fn copy_of(part: &Arc<dyn DevicePart>) -> Arc<dyn DevicePart> {
    let copy = memory();
    let all = Buffer::copy_of(&contents(part).await);
    copy.open().await.unwrap().write(BlockIndex(0), all.into(), Durability::Durable).await.unwrap();
    copy
}

/// A device that refuses writes, as what a reader has.
fn unwritable(part: &Arc<dyn DevicePart>) -> Arc<dyn DevicePart> {
    faulty(part, &["write discard write_zeroes error=EIO"])
}

async fn flushed(zones: &dyn Zones, zone: u32, value: u8) {
    append(zones, zone, value, 4096).await;
    zones.flush(&[ZoneIndex(zone)]).await.unwrap();
}

async fn has(zones: &dyn Zones, zone: u32, value: u8) {
    assert_eq!(read(zones, zone, 0, 4096).await.unwrap(), vec![value; 4096], "zone {zone}");
}

async fn reader(store: Option<Arc<dyn DevicePart>>) -> block::Result<ReaderPart> {
    ReaderPart::open(with_key(false, 5, store), INTERVAL).await
}

async fn handle_of(part: &ReaderPart) -> std::rc::Rc<dyn Zones> {
    part.open().await.unwrap()
}

/// 16 zones, whose secrets are in two blocks.
fn two_blocks(format: bool, store: Arc<dyn DevicePart>) -> Options {
    let new = NewVolume { zones: 16, zone_size: ZONE_SIZE, probe: false };
    Options { format: format.then_some(new), ..with_key(false, 5, Some(store)) }
}

/// No zone is lost with a block that can't be read: nothing is written there, neither by the opening nor by
/// a reset nearby, and the other zones are served.
#[test]
fn zones_whose_keys_cannot_be_read_fail_alone_and_lose_nothing() {
    world(1, |_bucket| async move {
        let store = small_blocks();
        let part = ObjectsPart::open(two_blocks(true, store.clone())).await.unwrap();
        let zones = handle(&part).await;
        for zone in [0, 1, 9, 10] {
            flushed(&*zones, zone, zone as u8).await;
            zones.finish(ZoneIndex(zone)).await.unwrap();
        }
        drop(zones);
        part.close().await.unwrap();
        let unreadable = faulty(&store, &[&format!("read error=EIO range={FIRST}")]);
        let before = contents(&store).await;
        let part = ObjectsPart::open(two_blocks(false, unreadable)).await.unwrap();
        assert_eq!(part.status().await["zones_without_key"], 2);
        let zones = handle(&part).await;
        for zone in [0, 1] {
            let error = read(&*zones, zone, 0, 512).await.unwrap_err();
            let is_named = error.to_string().contains(&format!("zone {zone}: its key is unknown"));
            assert!(matches!(error, Error::Corrupt(_)) && is_named, "{error}");
            let error = zones.reset(ZoneIndex(zone), EraseGuarantee::Key).await.unwrap_err();
            assert!(
                matches!(error, Error::Io(_)) && error.to_string().contains("nothing was changed"),
                "{error}"
            );
        }
        // Zones without data stay as they are.
        let opened = zones.open(ZoneIndex(2)).await;
        let appended = zones.append(ZoneIndex(2), bytes(1, 512)).await.map(drop);
        for error in [opened.unwrap_err(), appended.unwrap_err()] {
            assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains("zone 2"), "{error}");
        }
        zones.reset(ZoneIndex(2), EraseGuarantee::None).await.unwrap_err();
        let reports = zones.report(ZoneIndex(0), 3).await.unwrap();
        assert_eq!(reports.iter().map(|report| report.generation).collect::<Vec<_>>(), [1; 3]);
        assert_eq!(reports[2].state, ZoneState::Empty);
        // Others are served, and erased.
        has(&*zones, 9, 9).await;
        zones.reset(ZoneIndex(10), EraseGuarantee::Key).await.unwrap();
        flushed(&*zones, 10, 20).await;
        assert_eq!(contents(&store).await[4096..4608], before[4096..4608]);
        drop(zones);
        part.close().await.unwrap();
        let part = ObjectsPart::open(two_blocks(false, store.clone())).await.unwrap();
        assert_eq!(part.status().await["zones_without_key"], 0);
        let zones = handle(&part).await;
        for (zone, value) in [(0, 0), (1, 1), (9, 9), (10, 20)] {
            has(&*zones, zone, value).await;
        }
    });
}

/// Reads fail for a while: a reset reads again, and writes what is there.
#[test]
fn a_reset_reads_again_what_could_not_be_read() {
    world(2, |_bucket| async move {
        let store = small_blocks();
        let part = ObjectsPart::open(two_blocks(true, store.clone())).await.unwrap();
        let zones = handle(&part).await;
        for zone in [0, 1] {
            flushed(&*zones, zone, zone as u8).await;
        }
        drop(zones);
        part.close().await.unwrap();
        // With each handle twice: all of it, and then the block.
        let unreadable = faulty(&store, &[&format!("read error=EIO range={FIRST} times=2")]);
        let part = ObjectsPart::open(two_blocks(false, unreadable)).await.unwrap();
        let zones = handle(&part).await;
        read(&*zones, 0, 0, 512).await.unwrap_err();
        zones.reset(ZoneIndex(1), EraseGuarantee::Key).await.unwrap();
        has(&*zones, 0, 0).await;
        assert_eq!(part.status().await["zones_without_key"], 0);
        drop(zones);
        part.close().await.unwrap();
        let part = ObjectsPart::open(two_blocks(false, store)).await.unwrap();
        has(&*handle(&part).await, 0, 0).await;
    });
}

/// A reader reads the writer's key store after each manifest, and writes nothing to it.
#[test]
fn a_reader_follows_a_writer_whose_key_store_it_shares() {
    world(3, |bucket| async move {
        let (store, _part, zones) = new_volume().await;
        flushed(&*zones, 1, 1).await;
        flushed(&*zones, 2, 2).await;
        let changes = |bucket: &Bucket| bucket.count("PUT") + bucket.count("POST") + bucket.count("DELETE");
        let (asked, kept) = (changes(&bucket), contents(&store).await);
        let reading = reader(Some(unwritable(&store))).await.unwrap();
        let newest = handle_of(&reading).await;
        has(&*newest, 1, 1).await;
        assert_eq!((changes(&bucket), contents(&store).await), (asked, kept));
        let view = reading.view().await.unwrap().unwrap();
        let old = view.zones.open().await.unwrap();
        for round in 0..5 {
            zones.reset(ZoneIndex(1), EraseGuarantee::Key).await.unwrap();
            flushed(&*zones, 1, 10 + round).await;
            reading.follow().await.unwrap();
            has(&*newest, 1, 10 + round).await;
            has(&*newest, 2, 2).await;
        }
        // What it has had stays, until its objects are deleted.
        has(&*old, 1, 1).await;
        let status = reading.status().await;
        assert_eq!(
            (&status["zones_without_key"], &status["encryption"]),
            (&0.into(), &"XAES-256-GCM".into())
        );
        // Without a reset nothing of the key store is read.
        flushed(&*zones, 3, 3).await;
        reading.follow().await.unwrap();
        has(&*newest, 3, 3).await;
        reading.close().await.unwrap();
        flushed(&*zones, 4, 4).await;
    });
}

/// Resets while a reader reads the key store: it finds a state whose keys are there.
#[test]
fn a_reset_while_the_key_store_is_read_leads_to_a_newer_state() {
    world(4, |_bucket| async move {
        let (store, _part, zones) = new_volume().await;
        for zone in 1..=2 {
            flushed(&*zones, zone, 1).await;
        }
        // The first two reads are those of the opening.
        let slow = faulty(&unwritable(&store), &["read delay=3s after=2"]);
        let reading = reader(Some(slow)).await.unwrap();
        zones.reset(ZoneIndex(2), EraseGuarantee::Key).await.unwrap();
        flushed(&*zones, 2, 2).await;
        let writer = runtime::spawn(async move {
            runtime::sleep(Duration::from_secs(1)).await;
            zones.reset(ZoneIndex(1), EraseGuarantee::Key).await.unwrap();
            flushed(&*zones, 1, 2).await;
            zones
        });
        let began = runtime::now();
        reading.follow().await.unwrap();
        assert!(began.elapsed() >= Duration::from_secs(3), "it has read the key store");
        let _zones = writer.await;
        let newest = handle_of(&reading).await;
        has(&*newest, 1, 2).await;
        has(&*newest, 2, 2).await;
        assert_eq!(reading.status().await["zones_without_key"], 0);
    });
}

/// A copy lacks the secrets of zones that were reset since, and those only.
#[test]
fn a_reader_with_a_copy_of_the_key_store_lacks_what_was_reset_since() {
    world(5, |_bucket| async move {
        let (store, _part, zones) = new_volume().await;
        flushed(&*zones, 1, 1).await;
        flushed(&*zones, 2, 2).await;
        let copy = copy_of(&store).await;
        zones.reset(ZoneIndex(1), EraseGuarantee::Key).await.unwrap();
        flushed(&*zones, 1, 3).await;
        let reading = reader(Some(unwritable(&copy))).await.unwrap();
        let newest = handle_of(&reading).await;
        has(&*newest, 2, 2).await;
        let error = read(&*newest, 1, 0, 512).await.unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains("an older copy"), "{error}");
        assert_eq!(reading.status().await["zones_without_key"], 1);
        // The check finds the same.
        let volume = Volume::new(with_key(false, 5, Some(unwritable(&copy)))).unwrap();
        let report = volume.check(true, &|_| (), &|_, _| ()).await.unwrap();
        assert_eq!((report.damaged_objects, report.lost_bytes), (1, 4096), "{report:?}");
        assert!(report.damage[0].what.contains("an older copy"), "{report:?}");
    });
}

/// A reset that comes between a manifest and a read has destroyed the key: the read says so.
#[test]
fn a_zone_that_was_reset_since_the_manifest_is_told_as_such() {
    world(6, |_bucket| async move {
        let (store, _part, zones) = new_volume().await;
        for zone in 1..=2 {
            flushed(&*zones, zone, 1).await;
        }
        // A reader that never sees a state whose keys are there: each look at the key store is overtaken.
        let slow = faulty(&unwritable(&store), &["read delay=3s after=2"]);
        let reading = reader(Some(slow)).await.unwrap();
        zones.reset(ZoneIndex(2), EraseGuarantee::Key).await.unwrap();
        flushed(&*zones, 2, 2).await;
        let writer = runtime::spawn(async move {
            for round in 0..40 {
                runtime::sleep(Duration::from_millis(500)).await;
                for zone in 1..=2 {
                    zones.reset(ZoneIndex(zone), EraseGuarantee::Key).await.unwrap();
                    flushed(&*zones, zone, round).await;
                }
            }
            zones
        });
        reading.follow().await.unwrap();
        assert!(reading.status().await["zones_without_key"].as_u64().unwrap() > 0);
        let view = reading.view().await.unwrap().unwrap();
        let error = read(&*view.zones.open().await.unwrap(), 1, 0, 512).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::NotFound(_)) && text.contains("destroyed its key"), "{text}");
        let _zones = writer.await;
        reading.follow().await.unwrap();
        has(&*handle_of(&reading).await, 1, 39).await;
    });
}

/// A bucket that shows an older state than the key store was rolled back: readers and the check find it as an
/// opening does.
#[test]
fn a_rolled_back_bucket_is_found_by_readers_and_by_the_check() {
    world(7, |bucket| async move {
        let (store, _part, zones) = new_volume().await;
        flushed(&*zones, 1, 1).await;
        let before = bucket.objects.borrow().clone();
        zones.reset(ZoneIndex(1), EraseGuarantee::Key).await.unwrap();
        drop(zones);
        bucket.objects.replace(before);
        let error = reader(Some(unwritable(&store))).await.map(drop).unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains("rolled back"), "{error}");
        let volume = Volume::new(with_key(false, 5, Some(unwritable(&store)))).unwrap();
        let report = volume.check(true, &|_| (), &|_, _| ()).await.unwrap();
        assert!(report.is_damaged() && format!("{report:?}").contains("rolled back"), "{report:?}");
    });
}

/// Key stores that don't fit are refused, and what is needed is named.
#[test]
fn readers_without_the_key_store_are_told_what_they_need() {
    world(8, |_bucket| async move {
        let other = memory();
        let elsewhere = Options { prefix: "b".to_owned(), ..with_key(true, 5, Some(other.clone())) };
        ObjectsPart::open(elsewhere).await.unwrap().close().await.unwrap();
        let part = open(true, Some(memory())).await;
        flushed(&*handle(&part).await, 1, 1).await;
        for (store, expected) in [
            (None, "expected key_store: its device, or for a reader a copy of it"),
            (Some(memory()), "no key store of zones"),
            (Some(other), "the secrets of another volume"),
        ] {
            let error = reader(store.clone()).await.map(drop).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}; expected: {expected}");
            let volume = Volume::new(with_key(false, 5, store)).unwrap();
            let error = volume.check(true, &|_| (), &|_, _| ()).await.map(drop).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}; expected: {expected}");
        }
    });
}

/// Verbs that read manifests alone need no key store.
#[test]
fn work_on_manifests_needs_no_key_store() {
    world(9, |bucket| async move {
        let (store, _part, zones) = new_volume().await;
        flushed(&*zones, 1, 1).await;
        flushed(&*zones, 2, 2).await;
        let kept = contents(&store).await;
        let volume = || Volume::new(with_key(false, 5, None)).unwrap();
        assert_eq!(volume().status(true, &|_| ()).await.unwrap()["pieces"], 2);
        assert!(!volume().check(false, &|_| (), &|_, _| ()).await.unwrap().is_damaged());
        volume().collect(true, &|_| (), &|_, _| ()).await.unwrap();
        let with_data = Volume::new(with_key(false, 5, Some(unwritable(&store)))).unwrap();
        let report = with_data.check(true, &|_| (), &|_, _| ()).await.unwrap();
        assert_eq!((report.is_damaged(), report.verified_bytes), (false, Some(8192)), "{report:?}");
        flushed(&*zones, 3, 3).await;
        assert_eq!(volume().fence().await.unwrap().epoch, 1);
        assert_eq!(contents(&store).await, kept);
        // Another key, and none.
        for (options, expected) in [
            (with_key(false, 6, None), "another key than that of key_file"),
            (options(false), "expected key_file"),
        ] {
            let volume = Volume::new(options).unwrap();
            let before = bucket.objects.borrow().len();
            for error in [
                volume.status(false, &|_| ()).await.map(drop).unwrap_err(),
                volume.epoch().await.map(drop).unwrap_err(),
                volume.fence().await.map(drop).unwrap_err(),
            ] {
                assert!(matches!(error, Error::Unsupported(_)), "{error}");
                assert!(error.to_string().contains(expected), "{error}");
            }
            assert_eq!(bucket.objects.borrow().len(), before, "nothing was written");
        }
    });
}
