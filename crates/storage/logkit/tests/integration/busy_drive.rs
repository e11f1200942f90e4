//! Drives that open no zone for a log, because other programs have opened as many as the drive permits.

use crate::bare::{Bare, Item, KIND, MOVED, zones};
use crate::failing::{Classes, Failing, simulate};
use block::{Error, Result, ZoneIndex, Zones, ZonesPart};
use logkit::layout::ROOT_ZONES;
use logkit::recovery::{self, Goal, Opening};
use logkit::scan::Found;
use logkit::{Layout, Mover, Owner, checkpoint, lane};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The drive has a slot again only once the zone that was opened ahead is finished.
#[test]
fn a_record_in_a_zone_that_was_opened_ahead_waits_for_no_task_that_the_drive_refused() {
    simulate(async || {
        let failing = Failing::new().await?;
        let owner = Bare::format(failing.clone(), true).await?;
        lane::start(&owner);
        while failing.opened.borrow().is_empty() || owner.kit().pool.preparing() > 0 {
            owner.append(Item::new(1, 1, 8)).await;
        }
        let ahead = failing.opened.borrow()[0];
        failing.is_shut.set(true);
        failing.opener.set(Some(ahead));
        failing.finish_takes.set(Duration::from_millis(100));
        let begun = runtime::now();
        let mut mover = Mover::new(2);
        let moved = {
            let owner = owner.clone();
            runtime::spawn(async move {
                mover.append(&owner, MOVED, [Item::new(2, 1, 8)]).await?;
                mover.close(&*owner).await;
                Ok::<_, Error>(())
            })
        };
        // The mover has been refused, and seals the zone of checkpoints.
        runtime::sleep(Duration::from_millis(1)).await;
        while owner.kit().pool.get(ahead.0).written == 0 {
            owner.append(Item::new(3, 1, 8)).await;
        }
        assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
        moved.await?;
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
        failing.is_shut.set(false);
        owner.close().await;
        assert_eq!((owner.kit().failure(), owner.seen.borrow().refused.len()), (None, 0));
        Ok(())
    });
}

#[test]
fn a_root_in_an_open_zone_waits_for_no_task_that_the_drive_refused() {
    simulate(async || {
        let failing = Failing::new().await?;
        let owner = Bare::format(failing.clone(), false).await?;
        lane::start(&owner);
        let space = checkpoint::space(&owner, 1, |_| 0).await?;
        checkpoint::give_back(&*owner, space);
        failing.is_shut.set(true);
        let waiting = {
            let owner = owner.clone();
            runtime::spawn(async move { owner.append(Item::new(1, 1, 8)).await })
        };
        runtime::sleep(Duration::from_secs(1)).await;
        let (begun, root) = (runtime::now(), owner.kit().checkpoints.root().clone());
        checkpoint::write_root(&*owner, root).await?;
        assert!(begun.elapsed() < Duration::from_millis(1), "{:?}", begun.elapsed());
        failing.is_shut.set(false);
        waiting.await;
        owner.close().await;
        assert_eq!(owner.kit().failure(), None);
        Ok(())
    });
}

/// Tasks that need a zone each, on two shards; returns the owners and the tasks.
async fn waiting_tasks(failing: &Rc<Failing>) -> Result<([Rc<Bare>; 2], Vec<runtime::JoinHandle<()>>)> {
    let classes = || Box::new(Classes { users: 2, all: 4 });
    let home = Bare::with_policy(failing.clone(), false, classes()).await?;
    let other = Bare::join(&home, classes());
    lane::start(&home);
    lane::start(&other);
    checkpoint::seal(home.kit()).await;
    failing.is_shut.set(true);
    let mut tasks = Vec::new();
    for owner in [&home, &other] {
        for class in 0..2 {
            let owner = owner.clone();
            tasks.push(runtime::spawn(async move { owner.append_to(class, Item::new(class, 1, 8)).await }));
        }
        let owner = owner.clone();
        tasks.push(runtime::spawn(async move {
            let moved = Mover::new(4).append(&owner, 2, [Item::new(2, 1, 8)]).await;
            assert!(moved.is_err(), "no zone was opened");
        }));
        runtime::sleep(Duration::from_millis(500)).await;
    }
    let owner = home.clone();
    tasks.push(runtime::spawn(async move {
        assert!(owner.take_checkpoint(false).await.is_err(), "no zone was opened");
    }));
    Ok(([home, other], tasks))
}

#[test]
fn a_drive_that_opens_no_zone_fails_all_tasks_at_once_when_patience_ends() {
    simulate(async || {
        let failing = Failing::new().await?;
        let begun = runtime::now();
        let (owners, tasks) = waiting_tasks(&failing).await?;
        for task in tasks {
            task.await;
        }
        for owner in owners {
            owner.close().await;
            let failure = owner.kit().failure().map(|failure| failure.to_string()).unwrap_or_default();
            assert!(failure.contains("the drive has opened none for 10 s"), "{failure}");
        }
        let took = begun.elapsed();
        assert!(Duration::from_secs(10) <= took && took < Duration::from_secs(11), "{took:?}");
        Ok(())
    });
}

#[test]
fn refused_attempts_that_are_slow_end_after_ten_seconds_too() {
    simulate(async || {
        let failing = Failing::new().await?;
        failing.busy_takes.set(Duration::from_millis(1500));
        let begun = runtime::now();
        let (owners, tasks) = waiting_tasks(&failing).await?;
        for task in tasks {
            task.await;
        }
        let took = begun.elapsed();
        // The first attempt, 10 s, and the attempt that is in flight then.
        assert!(Duration::from_secs(10) <= took && took < Duration::from_secs(14), "{took:?}");
        for owner in owners {
            owner.close().await;
        }
        Ok(())
    });
}

/// A checkpoint that the drive refuses until the zone of a lane is finished, which is in an append of 12 s.
#[test]
fn a_task_that_comes_after_ten_seconds_asks_the_holder_of_a_zone_again() {
    simulate(async || {
        let failing = Failing::new().await?;
        let owner = Bare::format(failing.clone(), false).await?;
        lane::start(&owner);
        owner.append(Item::new(1, 1, 8)).await;
        checkpoint::seal(owner.kit()).await;
        let (zone, ..) = owner.seen.borrow().committed[0];
        failing.opener.set(Some(ZoneIndex(zone)));
        failing.is_shut.set(true);
        failing.append_takes.set(Duration::from_secs(12));
        let slow = {
            let owner = owner.clone();
            runtime::spawn(async move { owner.append(Item::new(2, 1, 8)).await })
        };
        runtime::sleep(Duration::from_millis(1)).await;
        failing.append_takes.set(Duration::ZERO);
        let begun = runtime::now();
        let refused = owner.take_checkpoint(false).await.expect_err("the holder is slow");
        assert!(matches!(refused, Error::Busy(_)) && begun.elapsed() < Duration::from_secs(11), "{refused}");
        owner.take_checkpoint(false).await?;
        assert!(begun.elapsed() < Duration::from_secs(13), "{:?}", begun.elapsed());
        slow.await;
        owner.close().await;
        assert_eq!(owner.kit().failure(), None);
        Ok(())
    });
}

#[test]
fn a_zone_that_a_refused_append_has_opened_is_finished() {
    simulate(async || {
        let failing = Failing::new().await?;
        let owner = Bare::format(failing.clone(), false).await?;
        checkpoint::seal(owner.kit()).await;
        failing.is_shut.set(true);
        failing.opens_refused.set(true);
        let refused = owner.take_checkpoint(false).await.expect_err("no append succeeds");
        assert!(matches!(refused, Error::Busy(_)), "{refused}");
        let reports = failing.report(ZoneIndex(0), failing.geometry().zones).await?;
        let active = reports.iter().filter(|report| report.state.is_active() && report.zone.0 >= ROOT_ZONES);
        assert_eq!(active.count(), 0, "zones that the log doesn't use are open");
        Ok(())
    });
}

#[test]
fn all_tasks_that_wait_for_the_drive_end_when_the_log_fails() {
    simulate(async || {
        let failing = Failing::new().await?;
        let (owners, tasks) = waiting_tasks(&failing).await?;
        runtime::sleep(Duration::from_secs(2)).await;
        let begun = runtime::now();
        owners[0].fail(&Error::io("the disk is broken"));
        for task in tasks {
            task.await;
        }
        for owner in owners {
            owner.close().await;
        }
        assert!(begun.elapsed() < Duration::from_millis(20), "{:?}", begun.elapsed());
        Ok(())
    });
}

/// Writes a log, closes it, and opens it on a drive that opens no root zone for `refused`.
async fn reopen(part: Arc<dyn ZonesPart>, refused: Duration) -> Result<Duration> {
    let zones = part.open().await?;
    let owner = Bare::format(zones.clone(), false).await?;
    lane::start(&owner);
    owner.append(Item::new(1, 1, 8)).await;
    owner.close().await;
    drop(owner);
    let failing = Failing::on(zones);
    failing.is_shut_for_roots.set(true);
    let opens = {
        let failing = failing.clone();
        runtime::spawn(async move {
            runtime::sleep(refused).await;
            failing.is_shut_for_roots.set(false);
        })
    };
    let opening: Opening<Found> = recovery::open(&*failing, KIND, Goal::Serve).await?;
    let begun = runtime::now();
    let parts = opening.finish(&*failing, 0).await;
    let took = begun.elapsed();
    opens.await;
    let layout: Layout = parts?.layout;
    assert!(layout.zones > 0);
    Ok(took)
}

#[test]
fn the_root_of_an_opening_waits_for_a_zone_of_the_drive() {
    simulate(async || {
        let took = reopen(zones(40, 64 << 10, 0).await?, Duration::from_secs(3)).await?;
        assert!((3.0..3.1).contains(&took.as_secs_f64()), "{took:?}");
        let limited = zones(40, 64 << 10, 14).await?;
        let error = reopen(limited, Duration::from_secs(60)).await.expect_err("no zone is opened");
        let text = error.to_string();
        assert!(matches!(error, Error::Busy(_)), "{text}");
        assert!(text.contains("none for 10 s") && text.contains("the drive permits 14 open"), "{text}");
        Ok(())
    });
}
