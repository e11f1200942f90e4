//! One writer: no flush is acknowledged after the fence, whenever a suspended writer continues.

use crate::common::{append, claim_only, create, handle, options, read, reopen, show_earlier, world};
use block::{EraseGuarantee, Error, Part, ZoneIndex, ZoneState};
use conformance::Seeds;
use object_store::testing::{Bucket, Faults};
use objects::ObjectsPart;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

fn assert_fenced<T: std::fmt::Debug>(outcome: block::Result<T>) {
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::ReadOnly(_)) && error.to_string().contains("fenced"), "{error}");
    assert!(error.to_string().contains("a test"), "by whom: {error}");
}

/// The second writer crashes after its claim, and the next listings show the first epoch as it was after its
/// claim: a volume is there all the same.
#[test]
fn a_listing_of_an_earlier_moment_is_not_a_volume_whose_creation_has_not_ended() {
    world(1, |bucket| async move {
        let first = create().await;
        let old = handle(&first).await;
        append(&*old, 0, 1, 4096).await;
        old.flush(&[ZoneIndex(0)]).await.unwrap();
        claim_only(&bucket, 2).await;
        show_earlier(&bucket, 1, &["db1/manifest/00000001/0000000000000000".to_owned()], 3);
        let third = handle(&reopen().await).await;
        assert_eq!(read(&*third, 0, 0, 4096).await.unwrap(), vec![1; 4096]);
    });
}

#[test]
fn opening_fences_the_writer_before() {
    world(1, |_bucket| async {
        let first = create().await;
        let old = handle(&first).await;
        append(&*old, 0, 1, 4096).await;
        old.flush(&[ZoneIndex(0)]).await.unwrap();
        append(&*old, 0, 2, 4096).await;
        let second = reopen().await;
        let new = handle(&second).await;
        let report = new.report(ZoneIndex(0), 1).await.unwrap()[0];
        assert_eq!((report.state, report.write_pointer), (ZoneState::Interrupted, 4096));
        assert_eq!(read(&*new, 0, 0, 4096).await.unwrap(), vec![1; 4096]);
        assert_fenced(old.flush(&[ZoneIndex(0)]).await);
        assert_fenced(old.reset(ZoneIndex(1), EraseGuarantee::None).await);
        assert_fenced(old.append(ZoneIndex(2), crate::common::bytes(1, 512)).await);
        assert_eq!(first.status().await["state"], "fenced or ended");
        assert_fenced(first.close().await);
        new.reset(ZoneIndex(0), EraseGuarantee::None).await.unwrap();
        assert_eq!(second.status().await["epoch"], 2);
    });
}

/// Lets three further writers work for a day: enough for bases, deletions and further epochs.
async fn let_others_write_for_a_day() {
    for _ in 0..3 {
        let part = reopen().await;
        let handle = handle(&part).await;
        for round in 0..120_u32 {
            let zone = 1 + round % 5;
            handle.reset(ZoneIndex(zone), EraseGuarantee::None).await.unwrap();
            append(&*handle, zone, 7, 4096).await;
            handle.flush(&[ZoneIndex(zone)]).await.unwrap();
        }
        runtime::sleep(Duration::from_secs(8 * 3600)).await;
        part.close().await.unwrap();
    }
}

#[test]
fn a_writer_that_was_suspended_for_a_day_is_fenced() {
    world(2, |bucket| async move {
        let first = create().await;
        let old = handle(&first).await;
        append(&*old, 0, 1, 4096).await;
        old.flush(&[ZoneIndex(0)]).await.unwrap();
        append(&*old, 0, 2, 4096).await;
        let_others_write_for_a_day().await;
        let of_first = |bucket: &Bucket| {
            let objects = bucket.objects.borrow();
            objects.keys().filter(|key| key.starts_with("db1/manifest/00000001/")).count()
        };
        assert_eq!(of_first(&bucket), 2, "only the claim and the seal are left");
        assert_fenced(old.flush(&[ZoneIndex(0)]).await);
    });
}

/// The seal fences: without it the suspended writer acknowledges again.
#[test]
fn a_deleted_seal_would_let_two_writers_acknowledge() {
    world(3, |bucket| async move {
        let first = create().await;
        let old = handle(&first).await;
        append(&*old, 0, 1, 4096).await;
        let_others_write_for_a_day().await;
        let is_seal =
            |key: &str| key.starts_with("db1/manifest/00000001/") && !key.ends_with("/0000000000000000");
        bucket.objects.borrow_mut().retain(|key, _| !is_seal(key));
        old.flush(&[ZoneIndex(0)]).await.unwrap();
    });
}

/// Acknowledged flushes: zone, generation, offset, value.
type Acknowledged = Rc<RefCell<Vec<(u32, u64, u64, u8)>>>;

const BLOCK: usize = 4096;

/// Claims the volume, and flushes until it is fenced or has written enough.
async fn writer(value: u8, acknowledged: Acknowledged) {
    runtime::sleep(Duration::from_millis(runtime::random_u64() % 3000)).await;
    let Ok(part) = ObjectsPart::open(options(false)).await else { return };
    let handle = handle(&part).await;
    let Ok(reports) = handle.report(ZoneIndex(0), 8).await else { return };
    let Some(zone) = reports.iter().find(|report| report.state == ZoneState::Empty) else { return };
    for _ in 0..6 {
        let Ok(at) = handle.append(zone.zone, crate::common::bytes(value, BLOCK)).await else { return };
        if handle.flush(&[zone.zone]).await.is_err() {
            return;
        }
        acknowledged.borrow_mut().push((zone.zone.0, zone.generation, at.offset.0, value));
        runtime::sleep(Duration::from_millis(runtime::random_u64() % 500)).await;
    }
}

/// Lets writers claim the volume one after the other. Returns the acknowledged flushes that the last one
/// lacks.
async fn race(bucket: Rc<Bucket>, faults: Faults) -> Vec<(u32, u64, u64, u8)> {
    create().await;
    bucket.faults.set(faults);
    let acknowledged = Acknowledged::default();
    let writers = (1..=5).map(|value| runtime::spawn(writer(value, acknowledged.clone())));
    runtime::join_all(writers).await;
    bucket.faults.set(Faults::default());
    let part = reopen().await;
    let handle = handle(&part).await;
    let mut lost = Vec::new();
    for (zone, generation, offset, value) in acknowledged.take() {
        let report = handle.report(ZoneIndex(zone), 1).await.unwrap()[0];
        let found = read(&*handle, zone, offset, BLOCK).await;
        if report.generation != generation || found != Ok(vec![value; BLOCK]) {
            lost.push((zone, generation, offset, value));
        }
    }
    lost
}

fn drawn(seed: u64) -> Faults {
    let mut random = runtime::Random::new(seed);
    let mut fault = |most: f64| if random.chance(0.5) { most * random.unit() } else { 0.0 };
    Faults {
        lost_answer: fault(0.2),
        lost_request: fault(0.1),
        duplicate: fault(0.2),
        slow_down: fault(0.2),
        internal: fault(0.1),
        late: fault(0.1),
        stale: fault(0.3),
        ..Faults::default()
    }
}

#[test]
fn no_acknowledged_flush_is_lost_to_another_writer() {
    for seed in Seeds::within(3, if conformance::budget::is_long() { 100_000 } else { 10_000 }) {
        world(seed, move |bucket| async move {
            let lost = race(bucket, drawn(seed)).await;
            assert!(lost.is_empty(), "seed {seed}: acknowledged and lost: {lost:?}");
        });
    }
}

/// On a store that ignores the condition of a PUT the same check finds lost flushes.
#[test]
fn a_store_without_conditions_loses_acknowledged_flushes() {
    let has_lost = Rc::new(RefCell::new(false));
    for seed in 1..20 {
        let has_lost = has_lost.clone();
        world(seed, move |bucket| async move {
            let own = Rc::downgrade(&bucket);
            bucket.follow(move |asked| {
                asked.header("if-none-match")?;
                let mut asked = asked.clone();
                asked.headers.retain(|(name, _)| name != "if-none-match");
                own.upgrade()?.carry_out(&asked, None);
                Some(b"HTTP/1.1 200 x\r\netag: \"x\"\r\ncontent-length: 0\r\n\r\n".to_vec())
            });
            if !race(bucket, Faults::default()).await.is_empty() {
                *has_lost.borrow_mut() = true;
            }
        });
    }
    assert!(has_lost.take(), "no seed shows it");
}
