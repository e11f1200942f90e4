//! When a volume is marked as in use on the medium, and when as closed cleanly.

use crate::common::CrashDisk;
use crate::hostile::{BLOCK, HEADERS, handle, inside, open, payload, used};
use block::{Buffer, EraseGuarantee, Error, Part, ZoneIndex, ZoneState, ZonesPart};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zones::OnDevice;
use zones::on_device::Options;

fn is_closed<T>(outcome: block::Result<T>) -> bool {
    matches!(outcome, Err(Error::Closed(_)))
}

async fn states(zones: &OnDevice) -> Vec<ZoneState> {
    let report = handle(zones).await.report(ZoneIndex(0), u32::MAX).await.unwrap();
    report.iter().map(|report| report.state).collect()
}

/// A change is checked when it is requested, and begins when it is first polled.
#[test]
fn changes_that_begin_after_a_close_are_refused_and_change_nothing() {
    for is_used in [false, true] {
        inside(move || async move {
            let (disk, _) = used().await;
            let zones = open(&disk).await.unwrap();
            let handle = handle(&zones).await;
            if is_used {
                handle.append(ZoneIndex(3), payload(4096, 3)).await.unwrap();
            }
            // A closed zone, empty ones, and the open one if there is one.
            let appends = [0, 2, 3].map(|zone| handle.append(ZoneIndex(zone), payload(4096, 4)));
            let finish = handle.finish(ZoneIndex(0));
            let reset = handle.reset(ZoneIndex(1), EraseGuarantee::None);
            let opening = handle.open(ZoneIndex(4));
            zones.close().await.unwrap();
            let closed = (disk.bytes(), handle.report(ZoneIndex(0), 7).await);
            for append in appends {
                assert!(is_closed(append.await), "used: {is_used}");
            }
            assert!(is_closed(finish.await) && is_closed(reset.await) && is_closed(opening.await));
            assert!(closed == (disk.bytes(), handle.report(ZoneIndex(0), 7).await), "used: {is_used}");
            let report = states(&open(&disk).await.unwrap()).await;
            assert_eq!((report[0], report[1]), (ZoneState::Closed, ZoneState::Full));
        });
    }
}

/// Appends that run while the volume is closed are in it afterwards, or are refused.
#[test]
fn appends_beside_a_close_are_found_or_refused() {
    let mut outcomes = [0, 0];
    for turns in 0..40 {
        let counts = inside(move || async move {
            let (disk, _) = used().await;
            let zones = open(&disk).await.unwrap();
            let handle = handle(&zones).await;
            if turns % 2 == 0 {
                handle.append(ZoneIndex(3), payload(4096, 3)).await.unwrap();
            }
            let append = |number: u32| {
                let handle = handle.clone();
                let zone = [0, 2, 3, 4][number as usize % 4];
                runtime::spawn(async move {
                    let append = handle.append(ZoneIndex(zone), payload(4096, 4));
                    for _ in 0..number {
                        runtime::yield_now().await;
                    }
                    append.await
                })
            };
            let appends: Vec<_> = (0..24).map(append).collect();
            for _ in 0..turns {
                runtime::yield_now().await;
            }
            zones.close().await.unwrap();
            let closed = disk.bytes();
            let appends = runtime::join_all(appends).await;
            assert!(closed == disk.bytes(), "a write after the close, {turns} turns");
            let zones = open(&Arc::new(CrashDisk::with(closed, BLOCK, true))).await.unwrap();
            let handle = ZonesPart::open(&zones).await.unwrap();
            let mut counts = [0, 0];
            for append in appends {
                counts[usize::from(append.is_err())] += 1;
                match append {
                    Ok(at) => {
                        let (outcome, buffer) = handle.read(at, Buffer::new(4096)).await;
                        assert!(
                            outcome.is_ok() && buffer.filled() == [4; 4096],
                            "{turns} turns: {outcome:?}"
                        );
                    }
                    refused => assert!(is_closed(refused), "{turns} turns"),
                }
            }
            counts
        });
        outcomes = [outcomes[0] + counts[0], outcomes[1] + counts[1]];
    }
    assert!(outcomes.iter().all(|count| *count > 0), "both happen: {outcomes:?}");
}

#[test]
fn changes_that_wait_for_a_mark_that_fails_take_its_error() {
    inside(|| async {
        let (disk, _) = used().await;
        let zones = open(&disk).await.unwrap();
        let handle = handle(&zones).await;
        let before = disk.writes.load(Ordering::Acquire);
        disk.fail_writes.store(true, Ordering::Release);
        let appends = [2, 2, 3, 3, 4, 0].map(|zone| handle.append(ZoneIndex(zone), payload(4096, 4)));
        for append in runtime::join_all(appends).await {
            let error = append.unwrap_err();
            assert!(matches!(error, Error::Io(_)) && error.to_string().contains("superblock"), "{error}");
        }
        assert_eq!(disk.writes.load(Ordering::Acquire) - before, 1, "one attempt for all");
        // A later change tries again.
        assert!(handle.append(ZoneIndex(2), payload(4096, 4)).await.is_err());
        assert_eq!(disk.writes.load(Ordering::Acquire) - before, 2);
        disk.fail_writes.store(false, Ordering::Release);
        for zone in [0, 2, 3] {
            handle.append(ZoneIndex(zone), payload(4096, 4)).await.unwrap();
        }
        zones.close().await.unwrap();
        let report = states(&open(&disk).await.unwrap()).await;
        assert!([0, 2, 3].iter().all(|zone| report[*zone] == ZoneState::Closed), "{report:?}");
    });
}

#[test]
fn calls_that_change_nothing_do_not_mark_the_volume() {
    inside(|| async {
        let (disk, _) = used().await;
        // Its header is damaged.
        disk.damage(HEADERS + 3 * BLOCK as usize + 20, &[0xFF; 4]);
        let before = disk.bytes();
        let options = Options { max_active: 1, ..Options::default() };
        let zones = OnDevice::open(disk.clone(), options).await.unwrap();
        let handle = handle(&zones).await;
        handle.finish(ZoneIndex(1)).await.unwrap();
        assert!(handle.finish(ZoneIndex(3)).await.is_err());
        assert!(handle.reset(ZoneIndex(3), EraseGuarantee::None).await.is_err());
        let open = handle.open(ZoneIndex(2)).await;
        assert!(matches!(open, Err(Error::Busy(_))), "zone 0 is active: {open:?}");
        let append = handle.append(ZoneIndex(2), payload(4096, 4)).await;
        assert!(matches!(append, Err(Error::Busy(_))), "{append:?}");
        assert!(before == disk.bytes());
        zones.close().await.unwrap();
        assert!(before == disk.bytes());
    });
}

/// After a close that failed, the medium marks the volume as in use.
#[test]
fn all_closes_return_the_failure_of_the_first() {
    inside(|| async {
        let (disk, _) = used().await;
        let zones = open(&disk).await.unwrap();
        handle(&zones).await.append(ZoneIndex(3), payload(4096, 3)).await.unwrap();
        disk.fail_writes.store(true, Ordering::Release);
        for (close, outcome) in runtime::join_all([zones.close(), zones.close()]).await.iter().enumerate() {
            assert!(matches!(outcome, Err(Error::Io(_))), "close {close}: {outcome:?}");
        }
        disk.fail_writes.store(false, Ordering::Release);
        let later = zones.close().await;
        assert!(matches!(later, Err(Error::Io(_))), "{later:?}");
        let report = states(&open(&disk).await.unwrap()).await;
        assert_eq!(report[3], ZoneState::Interrupted, "the volume isn't closed cleanly");
    });
}

#[test]
fn a_close_that_is_dropped_is_carried_to_its_end() {
    inside(|| async {
        let (disk, _) = used().await;
        let zones = open(&disk).await.unwrap();
        handle(&zones).await.append(ZoneIndex(3), payload(4096, 3)).await.unwrap();
        let mut close = zones.close();
        let begun = std::future::poll_fn(|context| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut close).poll(context).is_pending())
        });
        assert!(begun.await, "it writes headers");
        drop(close);
        zones.close().await.unwrap();
        let report = states(&open(&disk).await.unwrap()).await;
        assert_eq!(report[3], ZoneState::Closed);
    });
}

#[test]
fn a_close_waits_for_reservations_of_space_and_refuses_later_ones() {
    inside(|| async {
        let (disk, _) = used().await;
        let zones = open(&disk).await.unwrap();
        let handle = handle(&zones).await;
        disk.has_holes.store(true, Ordering::Release);
        let before = disk.writes.load(Ordering::Acquire);
        let later = handle.reserve(ZoneIndex(4), 4 * BLOCK);
        let its = handle.clone();
        let reserving = runtime::spawn(async move { its.reserve(ZoneIndex(3), 8 * BLOCK).await });
        while disk.writes.load(Ordering::Acquire) == before {
            runtime::yield_now().await;
        }
        zones.close().await.unwrap();
        let closed = disk.writes.load(Ordering::Acquire);
        assert!(is_closed(later.await));
        reserving.await.unwrap();
        assert_eq!((closed - before, disk.writes.load(Ordering::Acquire)), (8, closed));
    });
}
