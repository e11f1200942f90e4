//! Races of writers and openings: numbers of manifests that were deleted, a writer that flushes without a
//! pause, a writer that writes its first manifests late.

use crate::common::{ZONES, append, bytes, create, handle, options, read, reopen, settings, world};
use block::{EraseGuarantee, Error, Part, ZoneIndex, ZoneState, Zones};
use object_store::Limits;
use object_store::testing::{Asked, Bucket};
use objects::{ObjectsPart, Options};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

const BLOCK: usize = 512;
const SILENCE: Duration = Duration::from_secs(70);

/// Whether a request creates a seal: the kind of a manifest is at byte 52.
fn is_seal(asked: &Asked) -> bool {
    asked.method == "PUT" && asked.key.contains("/manifest/") && asked.body.get(52) == Some(&3)
}

/// Acknowledged flushes: zone, generation, offset, value.
type Acknowledged = Rc<RefCell<Vec<(u32, u64, u64, u8)>>>;

/// Flushes one block after the other to a zone, which is reset when it is full, until an error.
async fn flush_without_pauses(handle: Rc<dyn Zones>, zone: u32, acknowledged: Acknowledged) -> Error {
    let (index, mut generation, mut value) = (ZoneIndex(zone), 1, 0_u8);
    loop {
        value = value.wrapping_add(1);
        let at = match handle.append(index, bytes(value, BLOCK)).await {
            Err(Error::NoSpace(_)) => {
                acknowledged.borrow_mut().retain(|(known, ..)| *known != zone);
                match handle.reset(index, EraseGuarantee::None).await {
                    Ok(raised) => generation = raised,
                    Err(error) => return error,
                }
                continue;
            }
            Err(error) => return error,
            Ok(at) => at,
        };
        if let Err(error) = handle.flush(&[index]).await {
            return error;
        }
        acknowledged.borrow_mut().push((zone, generation, at.offset.0, value));
    }
}

/// Opens the volume beside two clients that flush without pauses. Returns the part, and the old one.
async fn open_beside_flushes(bucket: Rc<Bucket>, open: Options) -> (ObjectsPart, ObjectsPart) {
    let first = ObjectsPart::open(Options {
        settings: objects::Settings { grace: Duration::from_secs(10), ..settings() },
        ..options(true)
    });
    let first = first.await.unwrap();
    bucket.latency.set(Duration::from_millis(20));
    let acknowledged = Acknowledged::default();
    let mut flushing = Vec::new();
    for zone in 0..2 {
        let handle = handle(&first).await;
        flushing.push(runtime::spawn(flush_without_pauses(handle, zone, acknowledged.clone())));
    }
    runtime::sleep(Duration::from_secs(1)).await;
    let second = ObjectsPart::open(open).await.unwrap();
    for error in runtime::join_all(flushing).await {
        assert!(matches!(error, Error::ReadOnly(_)) && error.to_string().contains("fenced"), "{error}");
    }
    bucket.latency.set(Duration::ZERO);
    let new = handle(&second).await;
    assert_eq!(second.status().await["zones"], ZONES);
    assert!(acknowledged.borrow().len() > 10);
    for (zone, generation, offset, value) in acknowledged.take() {
        // The last reset may not have been acknowledged.
        let report = new.report(ZoneIndex(zone), 1).await.unwrap()[0];
        if report.generation == generation {
            assert_eq!(read(&*new, zone, offset, BLOCK).await, Ok(vec![value; BLOCK]), "{zone} {offset}");
        } else {
            assert_eq!(report.generation, generation + 1);
        }
    }
    (second, first)
}

/// The seal takes the number of a manifest that was deleted, as a base followed it.
#[test]
fn a_number_that_was_deleted_is_no_seal() {
    for is_format in [false, true] {
        world(1, move |bucket| async move {
            let begun = Rc::new(Cell::new(None));
            bucket.follow(move |asked| {
                if !is_seal(asked) {
                    return None;
                }
                let begun: runtime::Instant = begun.get().unwrap_or_else(|| {
                    begun.set(Some(runtime::now()));
                    runtime::now()
                });
                // No answer.
                (begun.elapsed() < SILENCE).then(Vec::new)
            });
            let limits = Limits { operation: Duration::from_secs(120), ..Limits::default() };
            let open = Options { store: object_store::testing::config(limits), ..options(false) };
            if !is_format {
                open_beside_flushes(bucket, open).await;
                return;
            }
            // Of a volume that is replaced, whose last manifests aren't read.
            let first = create().await;
            let old = handle(&first).await;
            bucket.latency.set(Duration::from_millis(20));
            let acknowledged = Acknowledged::default();
            let flushing = runtime::spawn(flush_without_pauses(old, 0, acknowledged));
            runtime::sleep(Duration::from_secs(1)).await;
            let format = Options { store: open.store, ..options(true) };
            let second = ObjectsPart::open(format).await.unwrap();
            assert!(matches!(flushing.await, Error::ReadOnly(_)));
            let new = handle(&second).await;
            assert_eq!(new.report(ZoneIndex(0), 1).await.unwrap()[0].state, ZoneState::Empty);
        });
    }
}

/// Each refused number costs three requests, and the writer needs one for each.
#[test]
fn a_writer_without_pauses_is_fenced_within_a_few_rounds() {
    for seed in 1..=5 {
        world(seed, move |bucket| async move {
            let begun = runtime::now();
            let (second, first) = open_beside_flushes(bucket.clone(), options(false)).await;
            assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
            second.message("gc").await.unwrap();
            runtime::sleep(Duration::from_secs(100)).await;
            let next = first.status().await["manifest"].as_u64().unwrap() + 1;
            let kept: Vec<String> = {
                let objects = bucket.objects.borrow();
                objects.keys().filter(|key| key.contains("/manifest/00000001/")).cloned().collect()
            };
            println!("seed {seed}: {kept:?}");
            assert!(kept.contains(&format!("db1/manifest/00000001/{next:016x}")), "{next:x}: {kept:?}");
            assert!(kept.len() > 2, "the seals of one window: {kept:?}");
            assert_eq!(second.message("gc").await.unwrap(), "0 objects will be deleted");
            reopen().await;
        });
    }
}

/// A writer claims its epoch, and writes its first manifests after the next one has looked for them.
#[test]
fn manifests_of_a_writer_that_begins_late_are_followed() {
    for has_delta in [false, true] {
        world(1, move |bucket| async move {
            create().await;
            let part = reopen().await;
            let old = handle(&part).await;
            if has_delta {
                append(&*old, 0, 7, BLOCK).await;
                old.flush(&[ZoneIndex(0)]).await.unwrap();
            }
            let is_late =
                |key: &str| key.contains("/manifest/00000002/") && !key.ends_with("/0000000000000000");
            let late: Vec<_> = {
                let mut objects = bucket.objects.borrow_mut();
                let late = objects.iter().filter(|(key, _)| is_late(key));
                let late = late.map(|(key, stored)| (key.clone(), stored.clone())).collect();
                objects.retain(|key, _| !is_late(key));
                late
            };
            assert_eq!(late.len(), 1 + usize::from(has_delta));
            let (own, late) = (Rc::downgrade(&bucket), Cell::new(late));
            bucket.follow(move |asked| {
                if is_seal(asked) && asked.key.contains("/00000002/") {
                    own.upgrade()?.objects.borrow_mut().extend(late.take());
                }
                None
            });
            let part = reopen().await;
            assert_eq!(part.status().await["zones"], ZONES);
            let new = handle(&part).await;
            let report = new.report(ZoneIndex(0), 1).await.unwrap()[0];
            match has_delta {
                true => assert_eq!(read(&*new, 0, 0, BLOCK).await.unwrap(), vec![7; BLOCK]),
                false => assert_eq!(report.state, ZoneState::Empty),
            }
            assert!(matches!(old.reset(ZoneIndex(1), EraseGuarantee::None).await, Err(Error::ReadOnly(_))));
        });
    }
}

/// Seals after a gap, whose creator has crashed, don't end the epoch.
#[test]
fn a_gap_before_a_seal_is_filled() {
    world(1, |bucket| async move {
        let first = create().await;
        let old = handle(&first).await;
        append(&*old, 0, 1, BLOCK).await;
        old.flush(&[ZoneIndex(0)]).await.unwrap();
        // A seal of the number after the next one: that of another opening, which has crashed.
        let key = |number: u64| format!("db1/manifest/00000001/{number:016x}");
        reopen().await;
        let mut seal = bucket.objects.borrow_mut().remove(&key(3)).unwrap();
        seal.bytes[56] = 4;
        let covered = seal.bytes.len() - 4;
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &seal.bytes[..covered]) as u32;
        seal.bytes[covered..].copy_from_slice(&sum.to_le_bytes());
        seal.headers.clear();
        bucket.objects.borrow_mut().retain(|key, _| !key.contains("/manifest/00000002/"));
        bucket.objects.borrow_mut().insert(key(4), seal);
        // The old writer hasn't noticed, and flushes once more.
        append(&*old, 0, 2, BLOCK).await;
        old.flush(&[ZoneIndex(0)]).await.unwrap();
        append(&*old, 0, 3, BLOCK).await;
        let again = old.flush(&[ZoneIndex(0)]).await;
        assert!(matches!(again, Err(Error::ReadOnly(_))), "{again:?}");
        let new = handle(&reopen().await).await;
        assert_eq!(read(&*new, 0, 0, BLOCK).await.unwrap(), vec![1; BLOCK]);
        assert_eq!(read(&*new, 0, BLOCK as u64, BLOCK).await.unwrap(), vec![2; BLOCK]);
        assert_eq!(new.report(ZoneIndex(0), 1).await.unwrap()[0].write_pointer, 2 * BLOCK as u64);
    });
    world(2, |bucket| async move {
        let first = create().await;
        let old = handle(&first).await;
        reopen().await;
        let key = |number: u64| format!("db1/manifest/00000001/{number:016x}");
        // As above, with nothing in the gap: the opening closes it.
        let mut seal = bucket.objects.borrow_mut().remove(&key(2)).unwrap();
        seal.bytes[56] = 3;
        let covered = seal.bytes.len() - 4;
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &seal.bytes[..covered]) as u32;
        seal.bytes[covered..].copy_from_slice(&sum.to_le_bytes());
        seal.headers.clear();
        bucket.objects.borrow_mut().retain(|key, _| !key.contains("/manifest/00000002/"));
        bucket.objects.borrow_mut().insert(key(3), seal);
        reopen().await;
        assert!(bucket.objects.borrow().contains_key(&key(2)));
        let reset = old.reset(ZoneIndex(0), EraseGuarantee::None).await;
        assert!(matches!(reset, Err(Error::ReadOnly(_))), "{reset:?}");
    });
}

/// Without the claim of an epoch the next one is refused, and not created.
#[test]
fn a_missing_claim_is_damage() {
    world(1, |bucket| async move {
        create().await;
        reopen().await;
        reopen().await;
        for (lost, is_format) in [(1, false), (1, true), (2, false), (2, true)] {
            let key = format!("db1/manifest/{lost:08x}/0000000000000000");
            let kept = bucket.objects.borrow_mut().remove(&key).unwrap();
            let error = ObjectsPart::open(options(is_format)).await.unwrap_err();
            assert!(matches!(error, Error::Corrupt(_)) && error.to_string().contains(&*key), "{error}");
            assert!(!bucket.objects.borrow().contains_key(&key));
            bucket.objects.borrow_mut().insert(key, kept);
        }
        reopen().await;
    });
}
