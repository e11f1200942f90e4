//! Repeated appends after a crash: of a flush of several zones all bytes or none are found, without later
//! appends, and a rewound zone continues.

use crate::common::{append, bytes, create, handle, read, reopen, world};
use block::{Error, Part, ZoneAddress, ZoneIndex, ZoneState, Zones, ZonesPart};
use object_store::testing::Stored;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

#[test]
fn a_rewound_zone_takes_the_same_bytes_again_and_then_others() {
    for rewound in [0, 4096, 8192] {
        world(rewound + 1, move |_bucket| async move {
            let part = create().await;
            assert!(part.can_rewind() && part.flushes_atomically());
            let old = handle(&part).await;
            for value in 1..=2 {
                append(&*old, 3, value, 4096).await;
                old.flush(&[ZoneIndex(3)]).await.unwrap();
            }
            append(&*old, 3, 3, 4096).await;
            let part = reopen().await;
            let new = handle(&part).await;
            let state = async |new: &dyn Zones| {
                let report = new.report(ZoneIndex(3), 1).await.unwrap()[0];
                (report.state, report.write_pointer)
            };
            assert_eq!(state(&*new).await, (ZoneState::Interrupted, 8192));
            let beyond = new.rewind(ZoneAddress::new(3, 8704)).await.unwrap_err();
            assert!(matches!(beyond, Error::Invalid(_)), "{beyond}");
            assert!(matches!(new.rewind(ZoneAddress::new(4, 0)).await, Err(Error::Invalid(_))), "empty");
            new.rewind(ZoneAddress::new(3, rewound)).await.unwrap();
            assert_eq!(state(&*new).await, (ZoneState::Closed, rewound));
            // In appends that end elsewhere.
            let all = [1, 2, 3].map(|value| vec![value; 4096]).concat();
            let mut at = rewound;
            for length in [1024, 2048, 6656].into_iter().cycle() {
                let end = (at + length).min(12288);
                let payload = block::Data::copy_of(&all[at as usize..end as usize]).into();
                new.append_at(ZoneAddress::new(3, at), payload).await.unwrap();
                at = end;
                if at == 12288 {
                    break;
                }
            }
            assert_eq!(read(&*new, 3, 0, 12288).await.unwrap(), all);
            new.flush(&[ZoneIndex(3)]).await.unwrap();
            let again = handle(&reopen().await).await;
            assert_eq!(state(&*again).await, (ZoneState::Interrupted, 12288));
            assert_eq!(read(&*again, 3, 0, 12288).await.unwrap(), all);
            again.rewind(ZoneAddress::new(3, 4096)).await.unwrap();
            again.finish(ZoneIndex(3)).await.unwrap();
            assert_eq!(state(&*again).await, (ZoneState::Full, 12288), "what was durable remains");
        });
    }
}

/// After each request of a run, the flushes that are in the bucket are a prefix of those that were made.
#[test]
fn flushes_are_in_the_bucket_as_a_whole_and_in_order() {
    let moments: Rc<RefCell<Vec<BTreeMap<String, Stored>>>> = Rc::default();
    let kept = moments.clone();
    world(9, move |bucket| async move {
        let part = create().await;
        let handle = handle(&part).await;
        let own = Rc::downgrade(&bucket);
        bucket.follow(move |_| {
            kept.borrow_mut().push(own.upgrade()?.objects.borrow().clone());
            None
        });
        let zones = [1, 2, 3].map(ZoneIndex);
        for round in 0..12_u8 {
            for (number, zone) in (0_u8..).zip(zones) {
                handle.append(zone, bytes(round * 3 + number, 16 << 10)).await.unwrap();
            }
            // Bytes of the next round are in an open piece, or uploaded, while this flush is in progress.
            let flush = handle.flush(&zones);
            let both = runtime::join_all([flush]).await;
            both.into_iter().for_each(|flushed| flushed.unwrap());
        }
        part.close().await.unwrap();
    });
    let mut seen = std::collections::BTreeSet::new();
    for objects in moments.take() {
        let found = Rc::new(RefCell::new(Vec::new()));
        let slot = found.clone();
        world(10, move |bucket| async move {
            bucket.objects.replace(objects);
            let handle = handle(&reopen().await).await;
            let reports = handle.report(ZoneIndex(1), 3).await.unwrap();
            slot.borrow_mut().extend(reports.iter().map(|report| report.write_pointer));
        });
        let pointers = found.take();
        assert!(
            pointers.iter().all(|pointer| *pointer == pointers[0] && pointer % (16 << 10) == 0),
            "{pointers:?}"
        );
        seen.insert(pointers[0]);
    }
    assert_eq!(seen.len(), 13, "{seen:?}");
}
