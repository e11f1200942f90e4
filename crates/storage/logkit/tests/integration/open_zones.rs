//! Zones that the drive or the budget doesn't permit to open: tasks seal their zones and wait, and nothing
//! fails.

use crate::bare::{Bare, CLEANER, Item, KIND, LANES, MOVED, USER, zones};
use crate::failing::{Classes, Failing, busy, simulate};
use block::{Error, Result, ZoneIndex, Zones};
use logkit::pool::budget::{Demand, Purpose, Requests};
use logkit::recovery::{self, Goal, Opening};
use logkit::scan::Found;
use logkit::{Mover, Owner, checkpoint, lane};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

#[test]
fn movers_of_several_classes_seal_their_zones_before_they_wait_for_a_permit() {
    simulate(async || {
        let zones = zones(40, 64 << 10, 0).await?.open().await?;
        let owner = Bare::with_policy(zones, false, Box::new(Classes { users: 1, all: 4 })).await?;
        owner.kit().budget().set(Demand { limit: Some(7), log: LANES, tables: 3 });
        let (mut mover, mut idle) = (Mover::new(4), Mover::new(4));
        mover.append(&owner, 1, [Item::new(1, 1, 8)]).await?;
        mover.append(&owner, 2, [Item::new(2, 1, 8)]).await?;
        idle.append(&owner, 1, [Item::new(3, 1, 8)]).await?;
        // Zones that could not be finished stay open on the drive.
        (0..4).for_each(|_| owner.kit().budget().lose());
        let turns = {
            let owner = owner.clone();
            async move {
                owner.kit().budget().wanted(Requests::default()).await;
                idle.close(&*owner).await;
            }
        };
        let turns = runtime::spawn(turns);
        for class in [3, 1, 2, 3] {
            mover.append(&owner, class, [Item::new(class, 1, 8)]).await?;
        }
        turns.await;
        mover.close(&*owner).await;
        assert_eq!(owner.kit().budget().held(), 1, "the zone of checkpoints");
        Ok(())
    });
}

#[test]
fn two_movers_that_need_each_others_permits_go_on() {
    simulate(async || {
        let zones = zones(40, 64 << 10, 0).await?.open().await?;
        let owner = Bare::with_policy(zones, false, Box::new(Classes { users: 1, all: 3 })).await?;
        owner.kit().budget().set(Demand { limit: Some(5), log: LANES, tables: 2 });
        let (mut first, mut second) = (Mover::new(3), Mover::new(3));
        first.append(&owner, 1, [Item::new(1, 1, 8)]).await?;
        second.append(&owner, 2, [Item::new(2, 1, 8)]).await?;
        (0..2).for_each(|_| owner.kit().budget().lose());
        let other = {
            let owner = owner.clone();
            runtime::spawn(async move {
                second.append(&owner, 1, [Item::new(3, 1, 8)]).await?;
                second.close(&*owner).await;
                Ok::<_, Error>(())
            })
        };
        first.append(&owner, 2, [Item::new(4, 1, 8)]).await?;
        first.close(&*owner).await;
        other.await
    });
}

#[test]
fn lanes_of_several_classes_seal_their_zones_before_they_wait_for_a_permit() {
    simulate(async || {
        let zones = zones(40, 64 << 10, 0).await?.open().await?;
        let owner = Bare::with_policy(zones, false, Box::new(Classes { users: 3, all: 4 })).await?;
        owner.kit().budget().set(Demand { limit: Some(3), log: LANES * 3, tables: 1 });
        lane::start(&owner);
        for number in 0..12 {
            owner.append_to(number % 3, Item::new(number, 1, 8)).await;
        }
        assert_eq!(owner.seen.borrow().committed.len(), 12);
        owner.close().await;
        Ok(())
    });
}

#[test]
fn a_drive_that_opens_no_zone_at_the_moment_fails_no_append() {
    simulate(async || {
        let failing = Failing::new().await?;
        let owner = Bare::format(failing.clone(), false).await?;
        lane::start(&owner);
        // More failures than a record has attempts.
        failing.fail(busy(20));
        let begun = runtime::now();
        owner.append(Item::new(1, 2, 8)).await;
        // After the first one the task seals the zone of checkpoints, and tries again at once.
        assert!(failing.is_empty() && begun.elapsed() >= Duration::from_millis(190));
        let (zone, ..) = owner.seen.borrow().committed[0];
        assert_eq!(owner.kit().pool.get(zone).written, 2, "each data block counts once");
        failing.fail(busy(20));
        let mut mover = Mover::new(2);
        mover.append(&owner, crate::bare::MOVED, [Item::new(2, 1, 8)]).await?;
        checkpoint::seal(owner.kit()).await;
        failing.fail(busy(20));
        owner.take_checkpoint(false).await?;
        mover.close(&*owner).await;
        owner.close().await;
        let seen = owner.seen.borrow();
        assert!(seen.refused.is_empty() && failing.is_empty() && owner.kit().failure().is_none());
        Ok(())
    });
}

#[test]
fn a_record_without_space_waits_until_the_drive_opens_a_zone_for_it() {
    simulate(async || {
        let failing = Failing::new().await?;
        let owner = Bare::format(failing.clone(), false).await?;
        lane::start(&owner);
        failing.fail([Error::no_space("the file system is full")].into_iter().chain(busy(20)));
        owner.append(Item::new(1, 2, 8)).await;
        while !failing.is_empty() || owner.kit().streams.committed(USER) == 0 {
            runtime::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((owner.seen.borrow().refused.len(), owner.kit().failure()), (1, None));
        owner.close().await;
        Ok(())
    });
}

#[test]
fn a_mark_of_an_idle_log_for_which_there_is_no_space_ends_nothing() {
    for has_space_again in [true, false] {
        simulate(async move || {
            let failing = Failing::new().await?;
            let owner = Bare::format(failing.clone(), false).await?;
            lane::start(&owner);
            owner.append(Item::new(1, 2, 8)).await;
            failing.refuses_marks.set(true);
            runtime::sleep(Duration::from_secs(20)).await;
            assert_eq!(owner.kit().failure(), None);
            failing.refuses_marks.set(!has_space_again);
            if has_space_again {
                runtime::sleep(Duration::from_secs(60)).await;
                assert_eq!(owner.kit().streams.committed(USER), 2, "the mark keeps its number");
            }
            owner.close().await;
            assert_eq!(owner.kit().failure(), None, "has_space_again={has_space_again}");
            Ok(())
        });
    }
}

/// The log is closed while the mark has no space and the cleaner is moving a victim.
#[test]
fn no_record_follows_a_mark_that_was_dropped() {
    for has_follower in [false, true] {
        simulate(async move || {
            let failing = Failing::new().await?;
            let owner = Bare::format(failing.clone(), false).await?;
            lane::start(&owner);
            owner.append(Item::new(1, 2, 8)).await;
            // A mark of users' records, which finds space.
            runtime::sleep(Duration::from_secs(20)).await;
            let mut mover = Mover::new(2);
            mover.append(&owner, crate::bare::MOVED, [Item::new(2, 2, 8)]).await?;
            failing.refuses_marks.set(true);
            runtime::sleep(Duration::from_secs(20)).await;
            let streams = &owner.kit().streams;
            assert!(streams.has_uncommitted() && owner.kit().failure().is_none());
            owner.kit().begin_closing();
            runtime::sleep(Duration::from_secs(20)).await;
            assert_eq!(owner.kit().failure(), None, "the mark isn't needed");
            if has_follower {
                // Otherwise its data would be considered moved, although the record could never commit nor be
                // found.
                let moved = mover.append(&owner, crate::bare::MOVED, [Item::new(3, 2, 8)]).await;
                assert!(matches!(moved, Err(Error::NoSpace(_))), "{moved:?}");
                assert_eq!(owner.kit().failure(), None, "the move wasn't numbered");
            }
            assert_eq!(streams.committed(crate::bare::CLEANER), 1);
            owner.close().await;
            Ok(())
        });
    }
}

/// The drive permits fewer open zones than are held, and the budget has no limit.
#[test]
fn whatever_needs_a_zone_finds_one_because_all_holders_seal_theirs() {
    simulate(async || {
        // The newest root has one open zone, and a second one once the next root zone is begun.
        let zones = zones(400, 64 << 10, 3).await?.open().await?;
        let owner = Bare::format(zones, false).await?;
        lane::start(&owner);
        let mut mover = Mover::new(2);
        for number in 0..40 {
            owner.append(Item::new(number, 1, 8)).await;
            owner.take_checkpoint(false).await?;
            mover.append(&owner, crate::bare::MOVED, [Item::new(number, 1, 8)]).await?;
            mover.close(&*owner).await;
        }
        owner.close().await;
        let seen = owner.seen.borrow();
        assert_eq!((seen.committed.len(), seen.refused.len(), owner.kit().failure()), (80, 0, None));
        Ok(())
    });
}

#[test]
fn lanes_give_their_zones_to_a_drive_that_opens_no_other() {
    simulate(async || {
        let zones = zones(40, 64 << 10, 2).await?.open().await?;
        let owner = Bare::format(zones, false).await?;
        checkpoint::seal(owner.kit()).await;
        lane::start(&owner);
        owner.append(Item::new(1, 1, 8)).await;
        let (mut mover, begun) = (Mover::new(2), runtime::now());
        mover.append(&owner, crate::bare::MOVED, [Item::new(2, 1, 8)]).await?;
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        mover.close(&*owner).await;
        owner.close().await;
        assert_eq!(owner.kit().failure(), None);
        Ok(())
    });
}

#[test]
fn a_zone_that_a_task_has_waited_for_keeps_its_place() {
    simulate(async || {
        let failing = Failing::new().await?;
        let owner = Bare::format(failing.clone(), false).await?;
        lane::start(&owner);
        failing.fail(busy(5));
        for number in 0..8 {
            owner.append(Item::new(number, 1, 8)).await;
        }
        let zones: BTreeSet<u32> = owner.seen.borrow().committed.iter().map(|(zone, ..)| *zone).collect();
        assert!(zones.len() <= LANES as usize, "{zones:?}");
        owner.close().await;
        Ok(())
    });
}

#[test]
fn all_shards_give_their_zones_to_a_drive_that_opens_no_other() {
    simulate(async || {
        // One is the newest root's.
        let zones = zones(40, 64 << 10, 2).await?.open().await?;
        let classes = || Box::new(Classes { users: 1, all: 2 });
        let home = Bare::with_policy(zones, false, classes()).await?;
        let other = Bare::join(&home, classes());
        lane::start(&home);
        lane::start(&other);
        let begun = runtime::now();
        // The home has the zone of checkpoints, and then one of a lane.
        for number in 0..3 {
            other.append(Item::new(number, 1, 8)).await;
            home.append(Item::new(number, 1, 8)).await;
            home.take_checkpoint(false).await?;
        }
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        other.close().await;
        home.close().await;
        assert_eq!((home.kit().failure(), other.seen.borrow().refused.len()), (None, 0));
        Ok(())
    });
}

/// Keeps two appends of an owner queued or in flight, until `is_over`.
fn keep_busy(owner: &Rc<Bare>, is_over: &Rc<Cell<bool>>) -> [runtime::JoinHandle<()>; 2] {
    [0, 1].map(|number| {
        let (owner, is_over) = (owner.clone(), is_over.clone());
        runtime::spawn(async move {
            while !is_over.get() {
                owner.append(Item::new(number, 1, 8)).await;
            }
        })
    })
}

/// Appends on a second shard while lanes of the first are always busy.
async fn append_beside_busy_lanes(max_open: u32, demand: Option<Demand>) -> Result<()> {
    let zones = zones(400, 64 << 10, max_open).await?.open().await?;
    let classes = || Box::new(Classes { users: 1, all: 2 });
    let home = Bare::with_policy(zones, false, classes()).await?;
    checkpoint::seal(home.kit()).await;
    if let Some(demand) = demand {
        home.kit().budget().set(demand);
    }
    let other = Bare::join(&home, classes());
    lane::start(&home);
    lane::start(&other);
    let is_over = Rc::new(Cell::new(false));
    let busy = keep_busy(&home, &is_over);
    for number in 0..4 {
        let begun = runtime::now();
        other.append(Item::new(number, 1, 8)).await;
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    }
    is_over.set(true);
    for task in busy {
        task.await;
    }
    other.close().await;
    home.close().await;
    assert_eq!((home.kit().failure(), other.seen.borrow().refused.len()), (None, 0));
    Ok(())
}

#[test]
fn a_task_that_the_drive_refused_opens_a_zone_although_lanes_are_always_busy() {
    // One is the newest root's.
    simulate(async || append_beside_busy_lanes(2, None).await);
}

#[test]
fn a_task_that_waits_for_a_permit_gets_it_although_lanes_are_always_busy() {
    simulate(async || append_beside_busy_lanes(0, Some(Demand { limit: Some(3), log: 4, tables: 2 })).await);
}

#[test]
fn lanes_that_the_drive_refused_at_the_same_time_keep_their_zones() {
    simulate(async || {
        let failing = Failing::new().await?;
        let owner = Bare::format(failing.clone(), false).await?;
        lane::start(&owner);
        failing.fail(busy(50));
        let mut appends = Vec::new();
        for number in 0..LANES as u8 {
            let owner = owner.clone();
            appends.push(runtime::spawn(async move { owner.append(Item::new(number, 1, 8)).await }));
            runtime::sleep(Duration::from_millis(1)).await;
        }
        for append in appends {
            append.await;
        }
        for number in 0..8 {
            owner.append(Item::new(number, 1, 8)).await;
        }
        let zones: BTreeSet<u32> = owner.seen.borrow().committed.iter().map(|(zone, ..)| *zone).collect();
        assert_eq!(zones.len(), LANES as usize, "{zones:?}");
        owner.close().await;
        Ok(())
    });
}

#[test]
fn a_request_that_comes_while_another_is_answered_is_answered_too() {
    simulate(async || {
        let zones = zones(40, 64 << 10, 0).await?.open().await?;
        let owner = Bare::with_policy(zones, false, Box::new(Classes { users: 1, all: 3 })).await?;
        let budget = owner.kit().budget();
        budget.set(Demand { limit: Some(5), log: LANES, tables: 2 });
        let waits = || {
            let budget = budget.clone();
            runtime::spawn(async move { drop(budget.take(Purpose::Tables).await) })
        };
        let mut mover = Mover::new(3);
        mover.append(&owner, 1, [Item::new(1, 1, 8)]).await?;
        let permit = budget.try_take(Purpose::Tables);
        let first = waits();
        runtime::sleep(Duration::from_millis(1)).await;
        drop(permit);
        first.await;
        mover.append(&owner, 2, [Item::new(2, 1, 8)]).await?;
        let second = waits();
        runtime::sleep(Duration::from_millis(1)).await;
        // Begins to wait while the first zone is sealed.
        let third = waits();
        mover.answer(&*owner).await;
        second.await;
        third.await;
        assert_eq!(owner.kit().budget().held(), 1, "the zone of checkpoints");
        Ok(())
    });
}

#[test]
fn a_zone_of_checkpoints_that_is_in_use_is_sealed_for_the_drive_afterwards() {
    simulate(async || {
        // One is the newest root's, and one that of checkpoints.
        let zones = zones(40, 64 << 10, 2).await?.open().await?;
        let owner = Bare::format(zones, false).await?;
        lane::start(&owner);
        let space = checkpoint::space(&owner, 1, |_| 0).await?;
        let begun = runtime::now();
        let append = {
            let owner = owner.clone();
            runtime::spawn(async move { owner.append(Item::new(1, 1, 8)).await })
        };
        runtime::sleep(Duration::from_millis(100)).await;
        checkpoint::give_back(&*owner, space);
        let space = checkpoint::space(&owner, 1, |_| 0).await?;
        append.await;
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
        checkpoint::give_back(&*owner, space);
        owner.close().await;
        Ok(())
    });
}

/// Takes the free zones, except for a number of them.
fn leave_free(owner: &Bare, free: u32) {
    while owner.kit().pool.free() > free {
        owner.kit().pool.take(0, 0, false, 0).expect("a free zone");
    }
}

#[test]
fn a_mover_that_waits_for_a_checkpoint_seals_its_other_zones_for_it() {
    simulate(async || {
        let zones = zones(40, 64 << 10, 2).await?.open().await?;
        let owner = Bare::with_policy(zones, false, Box::new(Classes { users: 1, all: 3 })).await?;
        lane::start(&owner);
        checkpoint::seal(owner.kit()).await;
        let mut mover = Mover::new(3);
        mover.append(&owner, 1, [Item::new(1, 1, 8)]).await?;
        leave_free(&owner, 1);
        let (begun, checkpoints) = (runtime::now(), owner.kit().checkpoints.root().checkpoint);
        let moved = mover.append(&owner, 2, [Item::new(2, 1, 8)]).await;
        assert!(
            matches!(&moved, Err(Error::NoSpace(text)) if text.contains("no zone is free for moves")),
            "{moved:?}"
        );
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        assert!(owner.kit().checkpoints.root().checkpoint > checkpoints);
        mover.close(&*owner).await;
        owner.close().await;
        Ok(())
    });
}

#[test]
fn records_that_wait_for_space_seal_the_other_zones_of_their_lanes_for_a_checkpoint() {
    simulate(async || {
        let failing = Failing::with_limit(3).await?;
        let owner = Bare::with_policy(failing.clone(), false, Box::new(Classes { users: 2, all: 3 })).await?;
        lane::start(&owner);
        checkpoint::seal(owner.kit()).await;
        owner.append_to(0, Item::new(1, 1, 8)).await;
        failing.refuses_marks.set(true);
        failing.fail([(); 2].map(|()| Error::no_space("the file system is full")));
        lane::push(&*owner, 1, Item::new(2, 1, 8));
        owner.kit().events.work.notify_one();
        while owner.kit().space.check().is_ok() {
            runtime::sleep(Duration::from_millis(10)).await;
        }
        // Another program's.
        failing.open(ZoneIndex(20)).await?;
        let begun = runtime::now();
        owner.take_checkpoint(false).await?;
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        failing.refuses_marks.set(false);
        runtime::sleep(Duration::from_secs(60)).await;
        owner.close().await;
        assert_eq!(owner.kit().failure(), None);
        Ok(())
    });
}

#[test]
fn lanes_that_wait_for_a_free_zone_seal_their_others_for_a_checkpoint() {
    simulate(async || {
        let zones = zones(40, 64 << 10, 2).await?.open().await?;
        let owner = Bare::with_policy(zones, false, Box::new(Classes { users: 2, all: 3 })).await?;
        lane::start(&owner);
        checkpoint::seal(owner.kit()).await;
        owner.append_to(0, Item::new(1, 1, 8)).await;
        leave_free(&owner, owner.kept_zones());
        let appends = |number| {
            let owner = owner.clone();
            runtime::spawn(async move { owner.append_to(1, Item::new(number, 1, 8)).await })
        };
        let waiting = [appends(2), appends(3)];
        owner.kit().events.work.notify_all();
        runtime::sleep(Duration::from_secs(1)).await;
        let begun = runtime::now();
        owner.take_checkpoint(false).await?;
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        assert_eq!(owner.seen.borrow().committed.len(), 1, "the others wait");
        owner.kit().set_stuck(Some(Error::no_space("nothing is worth cleaning")));
        owner.kit().events.freed.notify_all();
        for it in waiting {
            it.await;
        }
        owner.close().await;
        assert_eq!(owner.kit().failure(), None);
        Ok(())
    });
}

/// Records of users and of the cleaner that find no space keep their numbers: later ones commit after them,
/// and recovery finds all.
#[test]
fn a_refused_append_leaves_no_hole_before_later_records() {
    simulate(async || {
        let failing = Failing::new().await?;
        let owner = Bare::format(failing.clone(), false).await?;
        lane::start(&owner);
        let mut mover = Mover::new(2);
        // As the cleaner does when it has nothing to free.
        let has_space_again = async || {
            runtime::sleep(Duration::from_secs(2)).await;
            owner.kit().set_stuck(Some(Error::no_space("nothing is worth cleaning")));
            assert!(owner.kit().look_for_space());
            owner.kit().set_stuck(None);
        };
        failing.fail([Error::no_space("the file system is full")]);
        let moved = mover.append(&owner, MOVED, [Item::new(1, 2, 8)]).await;
        assert!(matches!(moved, Err(Error::NoSpace(_))), "{moved:?}");
        has_space_again().await;
        mover.append(&owner, MOVED, [Item::new(2, 2, 8)]).await?;
        failing.fail([Error::no_space("the file system is full")]);
        owner.append(Item::new(3, 2, 8)).await;
        has_space_again().await;
        owner.append(Item::new(4, 2, 8)).await;
        runtime::sleep(Duration::from_secs(1)).await;
        let streams = &owner.kit().streams;
        assert_eq!([USER, CLEANER].map(|stream| streams.committed(stream)), [2, 2]);
        assert_eq!((owner.seen.borrow().committed.len(), owner.seen.borrow().refused.len()), (2, 2));
        mover.close(&*owner).await;
        owner.close().await;
        let opening: Opening<Found> = recovery::open(&*failing, KIND, Goal::Serve).await?;
        let parts = opening.finish(&*failing, 0).await?;
        assert_eq!([USER, CLEANER].map(|stream| parts.streams.committed(stream)), [2, 2]);
        Ok(())
    });
}
