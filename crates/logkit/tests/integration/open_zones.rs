//! Zones that the drive or the budget doesn't permit to open: tasks seal their zones and wait, and nothing
//! fails.

use crate::bare::{Bare, Item, LANES, USER, zones};
use block::{
    Buffer, Call, EraseGuarantee, Error, Payload, ReadOutcome, Result, ZoneAddress, ZoneGeometry, ZoneIndex,
    ZoneReport, Zones,
};
use logkit::cleaning::{Candidate, Policy, Pressure};
use logkit::layout::ROOT_ZONES;
use logkit::pool::budget::{Demand, Purpose, Requests};
use logkit::{Mover, Owner, checkpoint, lane};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Time within which each test ends.
const PATIENCE: Duration = Duration::from_secs(120);

/// Zones whose next appends, except those to root zones, fail. Only an append that begins a zone gets `Busy`.
struct Failing {
    inner: Rc<dyn Zones>,
    begun: RefCell<BTreeSet<ZoneIndex>>,
    next: RefCell<VecDeque<Error>>,
    /// Whether appends of one block, other than roots, fail for lack of space: marks, and records without
    /// data.
    refuses_marks: Cell<bool>,
}

impl Failing {
    async fn new() -> Result<Rc<Self>> {
        Self::with_limit(0).await
    }

    async fn with_limit(max_open: u32) -> Result<Rc<Self>> {
        let inner = zones(40, 64 << 10, max_open).await?.open().await?;
        Ok(Rc::new(Failing {
            inner,
            begun: RefCell::default(),
            next: RefCell::default(),
            refuses_marks: Cell::new(false),
        }))
    }

    fn fail(&self, errors: impl IntoIterator<Item = Error>) {
        self.next.borrow_mut().extend(errors);
    }

    fn is_empty(&self) -> bool {
        self.next.borrow().is_empty()
    }
}

fn busy(times: usize) -> impl Iterator<Item = Error> {
    std::iter::repeat_with(|| Error::busy("14 zones are open")).take(times)
}

impl Zones for Failing {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        let is_begun = self.begun.borrow().contains(&zone);
        let fails = |error: &Error| zone.0 >= ROOT_ZONES && !(is_begun && matches!(error, Error::Busy(_)));
        let is_next = self.next.borrow().front().is_some_and(fails);
        let next = if is_next { self.next.borrow_mut().pop_front() } else { None };
        let is_refused = self.refuses_marks.get() && payload.len() <= 4096 && zone.0 >= ROOT_ZONES;
        match next.or_else(|| is_refused.then(|| Error::no_space("the file system is full"))) {
            Some(error) => Call::ready(Err(error)),
            None => {
                self.begun.borrow_mut().insert(zone);
                self.inner.append(zone, payload)
            }
        }
    }

    fn append_at(&self, at: ZoneAddress, payload: Payload) -> Call<'_, Result<()>> {
        self.inner.append_at(at, payload)
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.inner.open(zone)
    }

    fn close(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.inner.close(zone)
    }

    fn read(&self, at: ZoneAddress, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.inner.read(at, buffer)
    }

    fn flush<'a>(&'a self, zones: &'a [ZoneIndex]) -> Call<'a, Result<()>> {
        self.inner.flush(zones)
    }

    fn finish(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        self.inner.finish(zone)
    }

    fn reset(&self, zone: ZoneIndex, erase: EraseGuarantee) -> Call<'_, Result<u64>> {
        self.inner.reset(zone, erase)
    }

    fn report(&self, first: ZoneIndex, count: u32) -> Call<'_, Result<Vec<ZoneReport>>> {
        self.inner.report(first, count)
    }
}

/// A policy with classes of users and of moves.
#[derive(Debug)]
struct Classes {
    users: u8,
    all: u8,
}

impl Policy for Classes {
    fn name(&self) -> &'static str {
        "classes"
    }

    fn classes(&self) -> u8 {
        self.all
    }

    fn is_users(&self, class: u8) -> bool {
        class < self.users
    }

    fn choose(
        &mut self,
        _candidates: &mut dyn Iterator<Item = Candidate>,
        _pressure: Pressure,
        _now: u64,
    ) -> Option<ZoneIndex> {
        None
    }
}

fn simulate<F: Future<Output = Result<()>> + 'static>(main: impl FnOnce() -> F + Send + 'static) {
    let world = runtime::Simulation::new(1);
    let ends = async move || {
        let ended = runtime::timeout(PATIENCE, main()).await;
        ended.unwrap_or_else(|_| panic!("it waits for ever"))
    };
    runtime::simulate(world, ends).expect("the world runs").value.unwrap_or_else(|error| panic!("{error}"));
}

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
        // No request concerns this zone, until more tasks wait than the other zone has permits for.
        mover.append(&owner, 2, [Item::new(2, 1, 8)]).await?;
        let others = [waits(), waits()];
        mover.answer(&*owner).await;
        for other in others {
            other.await;
        }
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
