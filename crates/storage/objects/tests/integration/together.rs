//! Changes that become durable together: all of them are found after a crash, or none.

use crate::common::{append, create, handle, read, reopen, world};
use crate::encryption::{new_volume, open};
use block::{EraseGuarantee, Error, ZoneChange, ZoneIndex, ZoneReport, ZoneState, Zones, ZonesPart};
use object_store::testing::Stored;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

const FLUSHED: ZoneIndex = ZoneIndex(0);
const RESET: ZoneIndex = ZoneIndex(1);
const ROUNDS: u32 = 4;
/// Appended to the flushed zone in a round: two pieces.
const LENGTH: usize = 60 << 10;

/// Zone that is finished in this round.
fn finished(round: u32) -> u32 {
    3 + round
}

/// Appends to three zones, and flushes the first, resets the second and finishes the third together.
async fn change(handle: &dyn Zones, round: u32) {
    append(handle, FLUSHED.0, round as u8, LENGTH).await;
    append(handle, RESET.0, 99, 8192).await;
    append(handle, finished(round), round as u8, 4096).await;
    let (finish, reset) = (ZoneChange::Finish(ZoneIndex(finished(round))), ZoneChange::Reset(RESET));
    handle.change_together(vec![finish, reset, ZoneChange::Flush(FLUSHED)]).await.unwrap();
    append(handle, RESET.0, round as u8, 4096).await;
    handle.flush(&[RESET]).await.unwrap();
}

/// Number of rounds that are there as a whole; a part of one is an error.
async fn rounds(handle: &dyn Zones) -> u32 {
    let reports = handle.report(ZoneIndex(0), 8).await.unwrap();
    let round = (reports[1].generation - 1) as u32;
    assert_eq!(reports[0].write_pointer, u64::from(round) * LENGTH as u64, "{reports:?}");
    for number in 1..=ROUNDS {
        let zone = reports[finished(number) as usize];
        let expected = if number <= round { (ZoneState::Full, 4096) } else { (ZoneState::Empty, 0) };
        assert_eq!((zone.state, zone.write_pointer), expected, "round {round}: {reports:?}");
    }
    for number in 1..=round {
        let at = u64::from(number - 1) * LENGTH as u64;
        assert_eq!(read(handle, FLUSHED.0, at, LENGTH).await.unwrap(), vec![number as u8; LENGTH]);
        assert_eq!(read(handle, finished(number), 0, 4096).await.unwrap(), vec![number as u8; 4096]);
    }
    assert!(reports[1].write_pointer <= 4096, "what was reset has come back: {reports:?}");
    round
}

#[test]
fn changes_together_are_found_as_a_whole_after_a_crash_at_any_request() {
    type Moment = (BTreeMap<String, Stored>, u32);
    let (moments, acknowledged) = (Rc::new(RefCell::new(Vec::<Moment>::new())), Rc::new(Cell::new(0)));
    let (kept, count) = (moments.clone(), acknowledged.clone());
    world(1, move |bucket| async move {
        let part = create().await;
        assert!(part.keep_order());
        let handle = handle(&part).await;
        let (own, at) = (Rc::downgrade(&bucket), count.clone());
        bucket.follow(move |_| {
            kept.borrow_mut().push((own.upgrade()?.objects.borrow().clone(), at.get()));
            None
        });
        for round in 1..=ROUNDS {
            change(&*handle, round).await;
            count.set(round);
        }
        assert_eq!(rounds(&*handle).await, ROUNDS, "in memory");
    });
    let (mut seen, moments) = (Vec::new(), moments.take());
    for (objects, acknowledged) in moments {
        let found = Rc::new(Cell::new(0));
        let slot = found.clone();
        world(2, move |bucket| async move {
            bucket.objects.replace(objects);
            slot.set(rounds(&*handle(&reopen().await).await).await);
        });
        assert!((acknowledged..=acknowledged + 1).contains(&found.get()), "{acknowledged} {}", found.get());
        seen.push(found.get());
    }
    assert!(seen.is_sorted() && seen.first() == Some(&0) && seen.contains(&ROUNDS), "{seen:?}");
}

/// A call that is dropped is carried out, and leaves no zone locked.
#[test]
fn a_dropped_call_changes_all_of_its_zones() {
    world(1, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        append(&*handle, 0, 1, 4096).await;
        bucket.latency.set(std::time::Duration::from_millis(20));
        let changes = [ZoneChange::Reset(ZoneIndex(2)), ZoneChange::Finish(ZoneIndex(0))];
        let call = handle.change_together(changes.to_vec());
        runtime::timeout(std::time::Duration::from_millis(1), call).await.unwrap_err();
        // Waits for the lock of the zone.
        assert_eq!(handle.reset(ZoneIndex(2), EraseGuarantee::None).await.unwrap(), 3);
        let new = reopen().await.open().await.unwrap();
        let reports = new.report(ZoneIndex(0), 3).await.unwrap();
        assert_eq!((reports[0].state, reports[0].write_pointer), (ZoneState::Full, 4096));
        assert_eq!(reports[2].generation, 3);
    });
}

/// Two calls that name the same zones in different orders don't wait for each other.
#[test]
fn calls_with_the_same_zones_do_not_wait_for_each_other() {
    world(1, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        bucket.latency.set(std::time::Duration::from_millis(20));
        let resets = |zones: [u32; 3]| {
            let handle = handle.clone();
            let changes = zones.map(|zone| ZoneChange::Reset(ZoneIndex(zone))).to_vec();
            runtime::spawn(async move { handle.change_together(changes).await })
        };
        let all = [[0, 1, 2], [2, 1, 0], [1, 2, 0]].map(resets);
        let ended = runtime::timeout(std::time::Duration::from_secs(60), runtime::join_all(all)).await;
        ended.expect("they end").into_iter().for_each(|outcome| outcome.unwrap());
        let reports = handle.report(ZoneIndex(0), 3).await.unwrap();
        assert!(reports.iter().all(|report| report.generation == 4), "{reports:?}");
    });
}

#[test]
fn a_zone_that_is_named_twice_is_refused_and_nothing_changes() {
    world(1, |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        append(&*handle, 1, 1, 4096).await;
        append(&*handle, 2, 2, 4096).await;
        let before: Vec<ZoneReport> = handle.report(ZoneIndex(0), 8).await.unwrap();
        let puts = bucket.count("PUT");
        let (one, two) = (ZoneIndex(1), ZoneIndex(2));
        for changes in [
            vec![ZoneChange::Finish(one), ZoneChange::Flush(two), ZoneChange::Reset(one)],
            vec![ZoneChange::Flush(two), ZoneChange::Finish(two)],
            vec![ZoneChange::Flush(one), ZoneChange::Finish(two), ZoneChange::Flush(one)],
            vec![ZoneChange::Reset(one), ZoneChange::Flush(ZoneIndex(8))],
        ] {
            let error = handle.change_together(changes.clone()).await.unwrap_err();
            let zone = match changes.last() {
                Some(ZoneChange::Flush(ZoneIndex(8))) => 8,
                last => last.unwrap().zone().0,
            };
            let named = error.to_string().contains(&format!("zone {zone}"));
            assert!(matches!(error, Error::Invalid(_)) && named, "{changes:?}: {error}");
        }
        assert_eq!(handle.report(ZoneIndex(0), 8).await.unwrap(), before);
        assert_eq!(bucket.count("PUT"), puts, "no request");
        // No zone is locked.
        let all = [ZoneChange::Finish(one), ZoneChange::Reset(two)];
        handle.change_together(all.to_vec()).await.unwrap();
        handle.change_together(Vec::new()).await.unwrap();
        assert_eq!(handle.report(two, 1).await.unwrap()[0].generation, 2);
    });
}

/// Each reset destroys a key, which isn't a part of a manifest.
#[test]
fn a_reset_with_a_key_store_is_not_made_together_with_others() {
    world(1, |bucket| async move {
        let (_store, _part, zones) = new_volume().await;
        append(&*zones, 0, 1, 4096).await;
        let puts = bucket.count("PUT");
        for changes in [
            vec![ZoneChange::Finish(ZoneIndex(0)), ZoneChange::Reset(ZoneIndex(1))],
            vec![ZoneChange::Reset(ZoneIndex(1))],
        ] {
            let error = zones.change_together(changes).await.unwrap_err();
            assert!(matches!(error, Error::Unsupported(_)) && error.to_string().contains("key"), "{error}");
        }
        let reports = zones.report(ZoneIndex(0), 2).await.unwrap();
        assert_eq!((reports[0].state, reports[1].generation), (ZoneState::ImplicitlyOpen, 1));
        assert_eq!(bucket.count("PUT"), puts, "no request");
        let others = [ZoneChange::Finish(ZoneIndex(0)), ZoneChange::Flush(ZoneIndex(1))];
        zones.change_together(others.to_vec()).await.unwrap();
        assert_eq!(zones.reset(ZoneIndex(0), EraseGuarantee::Key).await.unwrap(), 2);
    });
    // Without one no key is destroyed.
    world(2, |_bucket| async move {
        let zones = handle(&open(true, None).await).await;
        append(&*zones, 0, 1, 4096).await;
        let all = [ZoneChange::Finish(ZoneIndex(0)), ZoneChange::Reset(ZoneIndex(1))];
        zones.change_together(all.to_vec()).await.unwrap();
        let new = handle(&open(false, None).await).await;
        let reports = new.report(ZoneIndex(0), 2).await.unwrap();
        assert_eq!((reports[0].state, reports[1].generation), (ZoneState::Full, 2));
    });
}
