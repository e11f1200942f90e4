//! Work on a bucket without opening its volume: status, check, garbage, fence.

use crate::common::{append, claim_only, create, handle, options, read, reopen, show_earlier, world};
use block::{EraseGuarantee, Error, Part, ZoneIndex, Zones};
use object_store::testing::Bucket;
use objects::{Collected, Volume};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

fn volume() -> Volume {
    Volume::new(options(false)).unwrap()
}

async fn check(data: bool) -> objects::CheckReport {
    volume().check(data, &|_| (), &|_, _| ()).await.unwrap()
}

async fn collect(is_dry: bool) -> Collected {
    volume().collect(is_dry, &|_| (), &|_, _| ()).await.unwrap()
}

fn keys(bucket: &Bucket, part: &str) -> Vec<String> {
    bucket.objects.borrow().keys().filter(|key| key.contains(part)).cloned().collect()
}

/// Number of requests that change the bucket.
fn changes(bucket: &Bucket) -> usize {
    bucket.count("PUT") + bucket.count("POST") + bucket.count("DELETE")
}

/// Flushes bytes of one value to a zone.
async fn flushed(handle: &dyn Zones, zone: u32, value: u8, length: usize) {
    for at in (0..length).step_by(90 << 10) {
        append(handle, zone, value, (length - at).min(90 << 10)).await;
    }
    handle.flush(&[ZoneIndex(zone)]).await.unwrap();
}

#[test]
fn status_and_check_write_nothing_and_fence_no_writer() {
    world(1, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        for zone in 0..3 {
            flushed(&*handle, zone, 3, 90 << 10).await;
        }
        handle.finish(ZoneIndex(0)).await.unwrap();
        let before = changes(&bucket);
        let status = volume().status(true, &|_| ()).await.unwrap();
        assert_eq!(changes(&bucket), before);
        assert_eq!(status["state"], "in use, or not closed");
        assert_eq!((&status["epoch"], &status["writer"]), (&1.into(), &"a test".into()));
        assert_eq!((&status["pieces"], &status["stored_bytes"]), (&6.into(), &(270 << 10).into()));
        assert_eq!(status["zones"]["full"], 1);
        assert_eq!((&status["zones"]["begun"], &status["zones"]["empty"]), (&2.into(), &5.into()));
        assert_eq!(status["garbage"]["objects"], 0);
        let report = check(true).await;
        assert!(!report.is_damaged(), "{report:?}");
        assert_eq!((report.pieces.objects, report.verified_bytes), (6, Some(270 << 10)));
        assert_eq!(changes(&bucket), before);
        flushed(&*handle, 1, 4, 4096).await;
        drop(handle);
        part.close().await.unwrap();
        assert_eq!(volume().status(false, &|_| ()).await.unwrap()["state"], "closed");
    });
}

#[test]
fn a_prefix_without_a_volume_is_an_error() {
    world(2, |_bucket| async move {
        let not_found = |error: Error| {
            assert!(matches!(error, Error::NotFound(_)) && error.to_string().contains("\"db1/\""), "{error}");
        };
        not_found(volume().status(false, &|_| ()).await.unwrap_err());
        not_found(volume().check(false, &|_| (), &|_, _| ()).await.unwrap_err());
        not_found(volume().collect(false, &|_| (), &|_, _| ()).await.unwrap_err());
        not_found(volume().fence().await.unwrap_err());
    });
}

#[test]
fn a_check_finds_lost_and_altered_objects_with_their_zones_and_bytes() {
    world(3, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        for zone in 0..4 {
            flushed(&*handle, zone, zone as u8, 200 << 10).await;
        }
        drop(handle);
        part.close().await.unwrap();
        // Pieces of 48 KiB: the third one of zone 0 is lost, the second one of zone 1 altered, the last one
        // of zone 2 shortened.
        let pieces = |zone: u32| keys(&bucket, &format!("zones/{zone:08x}."));
        let (lost, altered, short) = (pieces(0)[2].clone(), pieces(1)[1].clone(), pieces(2)[4].clone());
        bucket.objects.borrow_mut().remove(&lost);
        bucket.objects.borrow_mut().get_mut(&altered).unwrap().bytes[5000] ^= 1;
        bucket.objects.borrow_mut().get_mut(&short).unwrap().bytes.pop();
        let found = |report: &objects::CheckReport| {
            let of = |damage: &objects::Damage| (damage.object.clone(), damage.zone, damage.bytes.clone());
            report.damage.iter().map(of).collect::<Vec<_>>()
        };
        let (first, last) = ((lost, Some(0), 96 << 10..144 << 10), (short, Some(2), 192 << 10..200 << 10));
        let report = check(false).await;
        assert_eq!(found(&report), [first.clone(), last.clone()], "{report:?}");
        let report = check(true).await;
        assert_eq!(found(&report), [first, (altered, Some(1), 48 << 10..96 << 10), last], "{report:?}");
        assert_eq!((report.damaged_objects, report.lost_bytes), (3, 104 << 10));
        assert_eq!(report.verified_bytes, Some(4 * (200 << 10) - (104 << 10)));
        // All other bytes are served.
        let part = reopen().await;
        let handle = crate::common::handle(&part).await;
        assert_eq!(read(&*handle, 0, 0, 96 << 10).await.unwrap(), vec![0; 96 << 10]);
        assert_eq!(read(&*handle, 3, 0, 200 << 10).await.unwrap(), vec![3; 200 << 10]);
        assert!(matches!(read(&*handle, 0, 96 << 10, 512).await, Err(Error::Corrupt(_))));
    });
}

#[test]
fn damaged_manifests_and_lost_claims_are_damage() {
    world(4, |bucket| async move {
        let part = create().await;
        flushed(&*handle(&part).await, 0, 1, 4096).await;
        reopen().await.close().await.unwrap();
        assert!(!check(true).await.is_damaged());
        let claim = keys(&bucket, "manifest/00000001/0000000000000000").pop().unwrap();
        let kept = bucket.objects.borrow_mut().remove(&claim).unwrap();
        let report = check(false).await;
        assert!(report.is_damaged() && report.damage[0].what.contains(&claim), "{report:?}");
        bucket.objects.borrow_mut().insert(claim, kept);
        // After the loss of a claim in the middle no earlier state is taken for the newest one.
        for _ in 0..3 {
            reopen().await.close().await.unwrap();
        }
        let claim = keys(&bucket, "manifest/00000004/0000000000000000").pop().unwrap();
        let kept = bucket.objects.borrow_mut().remove(&claim).unwrap();
        let report = check(false).await;
        assert!(report.is_damaged() && format!("{report:?}").contains(&claim), "{report:?}");
        let outcome = volume().status(false, &|_| ()).await;
        assert!(outcome.is_err_and(|error| error.to_string().contains(&claim)));
        bucket.objects.borrow_mut().insert(claim, kept);
        assert!(!check(true).await.is_damaged());
        let last = keys(&bucket, "manifest/00000005/").pop().unwrap();
        bucket.objects.borrow_mut().get_mut(&last).unwrap().bytes[60] ^= 1;
        let report = check(false).await;
        assert!(report.is_damaged() && report.damage[0].what.contains(&last), "{report:?}");
        assert_eq!(report.manifest, None);
        // Another version isn't damage.
        {
            let mut objects = bucket.objects.borrow_mut();
            let stored = objects.get_mut(&last).unwrap();
            stored.bytes[8] = 9;
            stored.headers.clear();
        }
        let error = volume().check(false, &|_| (), &|_, _| ()).await.unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
    });
}

/// Errors of the store for other reasons aren't damage.
#[test]
fn an_outage_is_no_damage() {
    world(5, |bucket| async move {
        let part = create().await;
        flushed(&*handle(&part).await, 0, 1, 4096).await;
        let is_out =
            |asked: &object_store::testing::Asked| asked.method == "GET" && asked.key.contains("/zones/");
        bucket.follow(move |asked| {
            is_out(asked).then(|| b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n".to_vec())
        });
        let error = volume().check(true, &|_| (), &|_, _| ()).await.unwrap_err();
        assert!(!matches!(error, Error::Corrupt(_)), "{error}");
    });
}

/// A writer that resets zones all the time, and deletes their pieces soon, loses nothing for a check.
#[test]
fn a_check_beside_a_writer_that_deletes_finds_no_damage() {
    for seed in 10..13 {
        world(seed, move |_bucket| async move {
            let mut options = options(true);
            options.settings.grace = Duration::from_millis(1);
            let part = objects::ObjectsPart::open(options).await.unwrap();
            let (handle, is_over) = (handle(&part).await, Rc::new(Cell::new(false)));
            let end = is_over.clone();
            let writer = runtime::spawn(async move {
                let mut round = 0;
                while !end.get() {
                    let zone = round % 4;
                    handle.reset(ZoneIndex(zone), EraseGuarantee::None).await.unwrap();
                    flushed(&*handle, zone, 1, 90 << 10).await;
                    round += 1;
                }
                round
            });
            runtime::sleep(Duration::from_millis(seed * 7)).await;
            for _ in 0..5 {
                let report = check(true).await;
                assert!(!report.is_damaged(), "seed {seed}: {report:?}");
            }
            is_over.set(true);
            assert!(writer.await > 20, "seed {seed}: the writer was idle");
        });
    }
}

#[test]
fn garbage_of_a_crash_is_deleted_beside_the_next_writer() {
    world(6, |bucket| async move {
        let first = create().await;
        let old = handle(&first).await;
        flushed(&*old, 0, 1, 90 << 10).await;
        // A piece that no manifest names.
        append(&*old, 1, 2, 90 << 10).await;
        runtime::sleep(Duration::from_secs(1)).await;
        let found = collect(false).await;
        assert_eq!((found.garbage.objects, found.unsettled.objects), (0, 1), "its writer may name it");
        let second = reopen().await;
        let new = handle(&second).await;
        flushed(&*new, 2, 3, 90 << 10).await;
        let before = changes(&bucket);
        let found = collect(true).await;
        assert_eq!((found.garbage.objects, found.deleted), (3, 0), "a piece, a base and a delta: {found:?}");
        assert_eq!(changes(&bucket), before);
        let began = runtime::now();
        let found = collect(false).await;
        assert_eq!((found.garbage.objects, found.deleted, found.waited), (3, 3, Duration::from_secs(60)));
        assert!(began.elapsed() >= Duration::from_secs(60));
        assert_eq!(keys(&bucket, "zones/00000001.").len(), 0);
        assert_eq!(keys(&bucket, "manifest/00000001/").len(), 2, "the claim and the seal");
        assert_eq!(collect(true).await.garbage.objects, 0);
        assert_eq!(read(&*new, 0, 0, 90 << 10).await.unwrap(), vec![1; 90 << 10]);
        flushed(&*new, 3, 4, 4096).await;
        assert!(old.flush(&[ZoneIndex(1)]).await.is_err(), "the seal is there");
        drop(new);
        second.close().await.unwrap();
        assert!(!check(true).await.is_damaged());
    });
}

/// The next writer deletes the manifests of the epoch before while they are looked at.
#[test]
fn a_survey_beside_the_deletion_of_old_manifests_finds_no_damage() {
    for delay in (0..200).step_by(8) {
        world(70, move |_bucket| async move {
            let mut options = options(true);
            options.settings.grace = Duration::from_millis(100);
            let first = objects::ObjectsPart::open(options.clone()).await.unwrap();
            let old = handle(&first).await;
            for round in 0..20 {
                flushed(&*old, round % 8, 1, 512).await;
            }
            options.format = None;
            let _second = objects::ObjectsPart::open(options).await.unwrap();
            runtime::sleep(Duration::from_millis(delay)).await;
            assert!(!check(false).await.is_damaged(), "{delay} ms");
        });
    }
}

/// After a close or a fence, objects that the last writer hasn't named are garbage as well.
#[test]
fn garbage_of_the_last_writer_is_deleted_once_it_has_ended() {
    world(7, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        append(&*handle, 1, 2, 90 << 10).await;
        runtime::sleep(Duration::from_secs(3600)).await;
        assert_eq!(collect(false).await.unsettled.objects, 1);
        volume().fence().await.unwrap();
        let began = runtime::now();
        assert_eq!(collect(false).await.deleted, 1);
        // The time of the last manifest is an hour ago, and its creation may be later.
        assert_eq!(began.elapsed().as_secs(), 60);
        assert_eq!(keys(&bucket, "zones/").len(), 0);
        reopen().await.close().await.unwrap();
    });
}

/// Openings, crashes and searches for garbage in any order lose nothing.
#[test]
fn no_search_for_garbage_deletes_what_is_needed() {
    for seed in 30..35 {
        world(seed, move |_bucket| async move {
            let mut random = runtime::Random::new(seed);
            let mut part = create().await;
            let searches = runtime::spawn(async move {
                let mut deleted = 0;
                for _ in 0..15 {
                    runtime::sleep(Duration::from_secs(20)).await;
                    if let Ok(found) = volume().collect(false, &|_| (), &|_, _| ()).await {
                        deleted += found.deleted;
                    }
                }
                deleted
            });
            let mut expected = [None::<u8>; 8];
            for round in 0..60_u8 {
                let handle = handle(&part).await;
                let zone = random.below(8) as u32;
                handle.reset(ZoneIndex(zone), EraseGuarantee::None).await.unwrap();
                flushed(&*handle, zone, round, 60 << 10).await;
                expected[zone as usize] = Some(round);
                // Pieces that no manifest will name.
                handle.reset(ZoneIndex((zone + 1) % 8), EraseGuarantee::None).await.unwrap();
                expected[(zone as usize + 1) % 8] = None;
                append(&*handle, (zone + 1) % 8, round, 60 << 10).await;
                runtime::sleep(Duration::from_millis(random.below(30_000))).await;
                if random.chance(0.3) {
                    part = reopen().await;
                }
                if random.chance(0.1) {
                    volume().fence().await.unwrap();
                    part = reopen().await;
                }
            }
            let deleted = searches.await;
            let part = reopen().await;
            let handle = handle(&part).await;
            for (zone, value) in (0..).zip(expected) {
                if let Some(value) = value {
                    assert_eq!(
                        read(&*handle, zone, 0, 60 << 10).await,
                        Ok(vec![value; 60 << 10]),
                        "seed {seed}"
                    );
                }
            }
            assert!(!check(true).await.is_damaged(), "seed {seed}");
            assert!(deleted > 0, "seed {seed}: nothing was deleted");
        });
    }
}

/// A volume whose creation hasn't ended is told as such, with who began it; and a damaged last claim is
/// damage.
#[test]
fn unfinished_volumes_and_damaged_claims_are_told() {
    world(40, |bucket| async move {
        create().await.close().await.unwrap();
        let claim = "db1/manifest/00000001/0000000000000000".to_owned();
        let all = bucket.objects.borrow().clone();
        bucket.objects.borrow_mut().retain(|key, _| *key == claim);
        for error in [
            volume().status(false, &|_| ()).await.map(drop).unwrap_err(),
            volume().check(false, &|_| (), &|_, _| ()).await.map(drop).unwrap_err(),
            objects::ObjectsPart::open(options(false)).await.map(drop).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(matches!(error, Error::NotFound(_)), "{text}");
            let said = ["writer \"a test\" began to create it", "0000000000000001 is missing", "\"db1/\""];
            said.iter().for_each(|said| assert!(text.contains(said), "{said}: {text}"));
        }
        bucket.objects.replace(all);
        assert!(!check(false).await.is_damaged());
        {
            let mut objects = bucket.objects.borrow_mut();
            let stored = objects.get_mut(&claim).unwrap();
            stored.bytes[60] ^= 1;
            stored.headers.clear();
        }
        let report = check(false).await;
        assert!(report.is_damaged() && format!("{report:?}").contains(&claim), "{report:?}");
        assert_eq!(volume().status(false, &|_| ()).await.unwrap()["state"], "closed");
    });
}

/// A seal that can't be read isn't taken for the last manifest of its epoch: it still fences the writer.
#[test]
fn a_seal_that_cannot_be_read_is_kept() {
    for is_newer in [false, true] {
        world(42, move |bucket| async move {
            let first = create().await;
            let old = handle(&first).await;
            flushed(&*old, 1, 1, 4096).await;
            // The second writer ends before it deletes the manifests of the first one.
            reopen().await;
            let seal = keys(&bucket, "manifest/00000001/").pop().unwrap();
            {
                let mut objects = bucket.objects.borrow_mut();
                let stored = objects.get_mut(&seal).unwrap();
                stored.bytes[if is_newer { 8 } else { 60 }] ^= 8;
                stored.headers.clear();
            }
            let third = reopen().await;
            third.message("gc").await.unwrap();
            runtime::sleep(Duration::from_secs(100)).await;
            collect(false).await;
            assert!(keys(&bucket, "manifest/00000001/").contains(&seal), "newer: {is_newer}");
            append(&*old, 1, 2, 512).await;
            let fenced = old.flush(&[ZoneIndex(1)]).await;
            assert!(matches!(fenced, Err(Error::ReadOnly(_))), "newer: {is_newer}: {fenced:?}");
        });
    }
}

/// A later claim shows that the writer has ended, but not that a listing shows its last manifest.
#[test]
fn a_listing_of_an_earlier_moment_does_not_end_an_epoch() {
    // After that many flushes there is a base beside the deltas.
    for flushes in [1, 600] {
        world(43, move |bucket| async move {
            let first = create().await;
            let old = handle(&first).await;
            flushed(&*old, 0, 1, 4096).await;
            let earlier = keys(&bucket, "manifest/00000001/");
            for number in 0..flushes {
                flushed(&*old, 1 + number / 150, 2, 512).await;
            }
            claim_only(&bucket, 2).await;
            show_earlier(&bucket, 1, &earlier, usize::MAX);
            let found = volume().collect(false, &|_| (), &|_, _| ()).await;
            let deleted = found.map_or(0, |found| found.deleted);
            assert_eq!(deleted, 0, "{flushes} flushes: the writer's last manifests aren't known");
            bucket.follow(|_| None);
            assert!(!check(true).await.is_damaged());
            let handle = handle(&reopen().await).await;
            assert_eq!(read(&*handle, 1, 0, 512).await.unwrap(), vec![2; 512]);
        });
    }
}

/// A seal of an epoch without a base isn't taken for its base.
#[test]
fn a_fenced_opening_leaves_a_volume_that_can_be_looked_at() {
    world(44, |bucket| async move {
        let first = create().await;
        flushed(&*handle(&first).await, 0, 1, 4096).await;
        claim_only(&bucket, 2).await;
        volume().fence().await.unwrap();
        assert_eq!(volume().status(true, &|_| ()).await.unwrap()["pieces"], 1);
        assert!(!check(true).await.is_damaged());
        collect(false).await;
        let handle = handle(&reopen().await).await;
        assert_eq!(read(&*handle, 0, 0, 4096).await.unwrap(), vec![1; 4096]);
    });
}

/// A volume of a newer version isn't fenced: what a seal does there isn't known.
#[test]
fn a_volume_of_another_version_is_not_fenced() {
    world(41, |bucket| async move {
        create().await.close().await.unwrap();
        let last = keys(&bucket, "manifest/00000001/").pop().unwrap();
        {
            let mut objects = bucket.objects.borrow_mut();
            let stored = objects.get_mut(&last).unwrap();
            stored.bytes[8] = 9;
            stored.headers.clear();
        }
        let before = bucket.objects.borrow().len();
        for error in [volume().fence().await.unwrap_err(), volume().epoch().await.unwrap_err()] {
            let text = error.to_string();
            assert!(matches!(error, Error::Unsupported(_)) && text.contains("version 9"), "{text}");
        }
        assert_eq!(bucket.objects.borrow().len(), before);
    });
}

#[test]
fn a_fence_ends_the_writer_and_claims_nothing() {
    world(8, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        flushed(&*handle, 0, 1, 4096).await;
        let before = changes(&bucket);
        let epoch = volume().epoch().await.unwrap();
        assert_eq!((epoch.epoch, epoch.writer.as_deref(), epoch.sealed), (1, Some("a test"), None));
        assert_eq!(changes(&bucket), before, "asking fences nobody");
        let fenced = volume().fence().await.unwrap();
        assert_eq!((fenced.writer.as_deref(), fenced.sealed), (Some("a test"), None));
        append(&*handle, 0, 2, 4096).await;
        let error = handle.flush(&[ZoneIndex(0)]).await.unwrap_err();
        assert!(
            matches!(error, Error::ReadOnly(_)) && error.to_string().contains("objects fence"),
            "{error}"
        );
        assert_eq!(volume().status(false, &|_| ()).await.unwrap()["state"], "fenced");
        let again = volume().fence().await.unwrap();
        assert!(again.sealed.is_some_and(|seal| seal.creator.contains("objects fence")));
        assert_eq!(keys(&bucket, "manifest/00000002").len(), 0, "no epoch was claimed");
        let next = reopen().await;
        let handle = crate::common::handle(&next).await;
        assert_eq!(read(&*handle, 0, 0, 4096).await.unwrap(), vec![1; 4096]);
        drop(handle);
        next.close().await.unwrap();
        assert!(volume().fence().await.unwrap().is_closed);
        reopen().await;
    });
}

#[test]
fn a_fence_ends_a_writer_that_flushes_without_pauses() {
    for seed in 60..63 {
        world(seed, move |bucket| async move {
            bucket.latency.set(Duration::from_millis(20));
            let part = create().await;
            let handle = handle(&part).await;
            let writer = runtime::spawn(async move {
                let mut acknowledged = 0;
                loop {
                    append(&*handle, 0, 1, 512).await;
                    if handle.flush(&[ZoneIndex(0)]).await.is_err() {
                        return acknowledged;
                    }
                    acknowledged += 512;
                }
            });
            runtime::sleep(Duration::from_millis(500)).await;
            volume().fence().await.unwrap();
            let acknowledged = writer.await;
            let part = reopen().await;
            let handle = crate::common::handle(&part).await;
            let end = handle.report(ZoneIndex(0), 1).await.unwrap()[0].write_pointer;
            assert!(
                end >= acknowledged && acknowledged > 0,
                "seed {seed}: {end}, acknowledged {acknowledged}"
            );
        });
    }
}

/// The message uploads what was appended, while the writer continues.
#[test]
fn the_message_flush_uploads_everything() {
    world(9, |_bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        append(&*handle, 0, 1, 4096).await;
        append(&*handle, 1, 2, 90 << 10).await;
        part.message("flush").await.unwrap();
        let status = volume().status(false, &|_| ()).await.unwrap();
        assert_eq!(status["stored_bytes"], 4096 + (90 << 10));
        append(&*handle, 0, 3, 4096).await;
    });
}

/// Bases beside the deltas are no damage and no garbage while they are needed. Of very many lost pieces the
/// first ones are listed, and all are counted.
#[test]
fn bases_are_known_and_many_lost_pieces_are_counted() {
    world(9, |bucket| async move {
        let mut new = options(true);
        new.settings.merge = false;
        let part = objects::ObjectsPart::open(new).await.unwrap();
        let handle = handle(&part).await;
        for number in 0..1100_u32 {
            flushed(&*handle, number % 8, number as u8, 512).await;
        }
        assert!(!keys(&bucket, ".base").is_empty());
        let status = volume().status(true, &|_| ()).await.unwrap();
        assert_eq!(status["garbage"]["objects"], 0, "{status:?}");
        runtime::sleep(Duration::from_secs(100)).await;
        let status = volume().status(true, &|_| ()).await.unwrap();
        assert_eq!((&status["garbage"]["objects"], &status["unsettled"]["objects"]), (&0.into(), &0.into()));
        assert!(!check(true).await.is_damaged());
        // A base without a later delta, and a delta before the base, of a writer that has ended.
        drop(handle);
        let fence = volume().fence().await.unwrap();
        let base = keys(&bucket, ".base").pop().unwrap();
        let stored = bucket.objects.borrow()[&base].clone();
        let unneeded = ["0000000000000002.base", "0000000000000005", "fffffffffffffff0.base"];
        let folder = format!("db1/manifest/{:08x}/", fence.epoch);
        for name in unneeded {
            bucket.objects.borrow_mut().insert(format!("{folder}{name}"), stored.clone());
        }
        let found = collect(false).await;
        assert_eq!((found.garbage.objects, found.deleted), (3, 3), "{found:?}");
        assert!(!check(true).await.is_damaged() && keys(&bucket, ".base") == [base]);
        let pieces = keys(&bucket, "zones/");
        assert_eq!(pieces.len(), 1100);
        for key in &pieces[5..] {
            bucket.objects.borrow_mut().remove(key);
        }
        bucket.objects.borrow_mut().get_mut(&pieces[3]).unwrap().bytes[300] ^= 1;
        let report = check(true).await;
        assert_eq!((report.damaged_objects, report.damage.len()), (1096, 1000));
        assert_eq!((report.lost_bytes, report.verified_bytes), (1096 * 512, Some(4 * 512)));
    });
}
