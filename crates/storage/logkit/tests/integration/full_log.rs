//! A log without free zones: entries that free space, and entries that can't be refused, use the open zone of
//! any lane.

use crate::bare::{Bare, Item, zones};
use crate::failing::simulate;
use block::{Error, Result};
use logkit::{Owner, lane};
use std::rc::Rc;
use std::time::Duration;

/// Number of entries that follow each other, so that both lanes are woken.
const ENTRIES: u8 = 6;
/// More than the time for which entries that can't be refused wait for a zone.
const LONG: Duration = Duration::from_secs(11);

/// Refuses the writers that wait for a zone, as a cleaner does that has nothing to clean.
async fn refuse_waiting(owner: Rc<Bare>) {
    loop {
        owner.kit().set_stuck(Some(Error::no_space("the log is full")));
        owner.kit().events.freed.notify_all();
        runtime::sleep(Duration::from_millis(10)).await;
    }
}

/// A log with two lanes, one of which has a zone, and `free` free zones.
async fn full(free: u32) -> Result<Rc<Bare>> {
    let owner = Bare::format(zones(12, 64 << 10, 0).await?.open().await?, false).await?;
    lane::start(&owner);
    owner.append(Item::new(0, 1, 8)).await;
    let kit = owner.kit();
    while kit.pool.free() > free {
        kit.pool.take(0, 0, false, 0).expect("a free zone");
    }
    Ok(owner)
}

/// Numbers of committed and of refused entries.
fn ended(owner: &Bare) -> (usize, usize) {
    (owner.seen.borrow().committed.len(), owner.seen.borrow().refused.len())
}

#[test]
fn entries_that_free_space_go_to_the_zone_of_another_lane_before_they_take_one_or_are_refused() {
    // One zone is left to checkpoints.
    for free in [1, 2] {
        simulate(async move || {
            let owner = full(free).await?;
            let _cleaner = runtime::spawn(refuse_waiting(owner.clone()));
            for number in 0..ENTRIES {
                owner.append_alone(Item::new(number, 0, 8).freeing()).await;
            }
            assert_eq!(ended(&owner), (1 + usize::from(ENTRIES), 0), "{free} free zones");
            assert_eq!(owner.kit().pool.free(), free);
            // The zone ends: the lanes take another one if it isn't a checkpoint's, and refuse entries
            // otherwise.
            for number in 0..8 {
                owner.append_alone(Item::new(number, 1, 8).freeing()).await;
            }
            assert_eq!(owner.kit().pool.free(), 1);
            assert_eq!(ended(&owner).1 > 0, free == 1, "{free} free zones: {:?}", ended(&owner));
            owner.close().await;
            Ok(())
        });
    }
}

#[test]
fn acknowledged_entries_go_to_the_zone_of_another_lane_long_after_a_lane_found_none() {
    simulate(async || {
        let owner = full(1).await?;
        let _cleaner = runtime::spawn(refuse_waiting(owner.clone()));
        for number in 0..ENTRIES {
            owner.append_alone(Item::new(number, 1, 8)).await;
        }
        let (committed, refused) = ended(&owner);
        assert!(refused > 0, "the lane without a zone was also woken");
        runtime::sleep(LONG).await;
        for number in 0..ENTRIES {
            owner.append_alone(Item::new(number, 0, 8).acknowledged()).await;
        }
        assert_eq!(owner.kit().failure(), None);
        assert_eq!(ended(&owner), (committed + usize::from(ENTRIES), refused));
        owner.close().await;
        Ok(())
    });
}

#[test]
fn acknowledged_data_stays_queued_for_the_zone_of_another_lane() {
    simulate(async || {
        let owner = full(1).await?;
        let _cleaner = runtime::spawn(refuse_waiting(owner.clone()));
        // Both lanes are woken, and the one without a zone may come first.
        for number in 0..ENTRIES {
            owner.append_alone(Item::new(number, 1, 8).acknowledged()).await;
        }
        assert_eq!(owner.kit().failure(), None);
        assert_eq!(ended(&owner), (1 + usize::from(ENTRIES), 0));
        owner.close().await;
        Ok(())
    });
}

#[test]
fn acknowledged_data_waits_for_a_zone_that_is_freed_before_the_log_fails() {
    // The zone of the lane ends, and one is left to checkpoints.
    for is_freed in [true, false] {
        simulate(async move || {
            let owner = full(2).await?;
            let kit = owner.kit().clone();
            let taken = kit.pool.take(0, 0, false, 0).expect("a free zone").zone;
            let _cleaner = runtime::spawn(refuse_waiting(owner.clone()));
            let freeing = runtime::spawn(async move {
                runtime::sleep(Duration::from_secs(5)).await;
                if is_freed {
                    kit.pool.put_back(taken);
                }
            });
            for number in 0..8 {
                if owner.kit().failure().is_some() {
                    break;
                }
                owner.append_alone(Item::new(number, 1, 8).acknowledged()).await;
            }
            freeing.await;
            assert_eq!(owner.kit().failure().is_some(), !is_freed);
            assert_eq!(ended(&owner).1 == 0, is_freed);
            owner.close().await;
            Ok(())
        });
    }
}
