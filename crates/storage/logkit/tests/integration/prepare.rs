//! Zones that are opened ahead: in steady state no record of users waits for a zone to be opened, and limits
//! are kept.

use crate::bare::{Bare, Item, LANES, run, zones};
use block::{Call, Error, Payload, Result, ZoneAddress, ZoneIndex, ZoneReport, ZoneState, Zones};
use logkit::Owner;
use logkit::layout::ROOT_ZONES;
use logkit::record;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Duration of an append, as on a disk.
const APPEND: Duration = Duration::from_micros(50);
/// Duration of opening a zone: a durable write, with a flush of the disk's cache.
const OPEN: Duration = Duration::from_micros(300);

/// Counts of calls.
#[derive(Debug, Default)]
struct Counts {
    /// Records of users that opened their zone.
    users_opened: Cell<u32>,
    /// Records of users.
    users: Cell<u32>,
    /// Zones that were opened ahead.
    opened: Cell<u32>,
    /// Calls that were refused because too many zones are open.
    busy: Cell<u32>,
}

fn add(count: &Cell<u32>) {
    count.set(count.get() + 1);
}

/// Zones with the latencies of a disk, and counts.
struct Counting {
    inner: Rc<dyn Zones>,
    counts: Rc<Counts>,
    /// Error of the next calls of `open`.
    open_fails: Cell<Option<fn() -> Error>>,
}

impl Counting {
    async fn is_empty(&self, zone: ZoneIndex) -> Result<bool> {
        Ok(self.inner.report(zone, 1).await?[0].state == ZoneState::Empty)
    }

    fn note<T>(&self, outcome: Result<T>) -> Result<T> {
        if let Err(Error::Busy(_)) = &outcome {
            add(&self.counts.busy);
        }
        outcome
    }
}

/// Whether an append is a record of users, of class 0.
fn is_users(payload: &Payload) -> bool {
    let bytes = &payload.slices()[0];
    bytes.starts_with(&record::MAGIC) && (bytes[14], bytes[15]) == (record::Kind::Entries as u8, 0)
}

impl Zones for Counting {
    conformance::pass_on!(inner: geometry, append_at, close, read, flush, finish, reset, report);

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        Call::new(async move {
            let opens = self.is_empty(zone).await?;
            if is_users(&payload) {
                add(&self.counts.users);
                self.counts.users_opened.set(self.counts.users_opened.get() + u32::from(opens));
            }
            runtime::sleep(APPEND + if opens { OPEN } else { Duration::ZERO }).await;
            self.note(self.inner.append(zone, payload).await)
        })
    }

    fn open(&self, zone: ZoneIndex) -> Call<'_, Result<()>> {
        Call::new(async move {
            add(&self.counts.opened);
            runtime::sleep(OPEN).await;
            if let Some(error) = self.open_fails.get() {
                return Err(error());
            }
            self.note(self.inner.open(zone).await)
        })
    }
}

/// Counts of a run, and the number of zones that users filled.
#[derive(Debug)]
struct Outcome {
    users_opened: u32,
    users: u32,
    opened: u32,
    busy: u32,
    filled: u32,
    /// Zones, root zones excluded, that are neither empty nor full after the close.
    left_open: u32,
}

/// Writes entries of two data blocks to about 15 zones of 255 blocks from several clients.
async fn fill(prepare: bool, max_open: u32, open_fails: Option<fn() -> Error>) -> Result<Outcome> {
    let counts: Rc<Counts> = Rc::default();
    let inner = zones(48, 1 << 20, max_open).await?.open().await?;
    let open_fails = Cell::new(open_fails);
    let handle: Rc<dyn Zones> =
        Rc::new(Counting { inner: inner.clone(), counts: counts.clone(), open_fails });
    let owner = Bare::format(handle, prepare).await?;
    logkit::lane::start(&owner);
    let clients = (0..4).map(|client| {
        let owner = owner.clone();
        runtime::spawn(async move {
            for _ in 0..400 {
                owner.append(Item::new(client, 2, 20)).await;
            }
        })
    });
    runtime::join_all(clients.collect::<Vec<_>>()).await;
    owner.close().await;
    owner.take_checkpoint(true).await?;
    assert_eq!(owner.seen.borrow().refused.len(), 0);
    let reports = inner.report(ZoneIndex(ROOT_ZONES), 64).await?;
    let is_left = |report: &&ZoneReport| !matches!(report.state, ZoneState::Empty | ZoneState::Full);
    let mut filled: Vec<u32> = owner.seen.borrow().committed.iter().map(|(zone, ..)| *zone).collect();
    filled.sort_unstable();
    filled.dedup();
    Ok(Outcome {
        users_opened: counts.users_opened.get(),
        users: counts.users.get(),
        opened: counts.opened.get(),
        busy: counts.busy.get(),
        filled: filled.len() as u32,
        left_open: reports.iter().filter(is_left).count() as u32,
    })
}

fn filled(prepare: bool, max_open: u32, open_fails: Option<fn() -> Error>) -> Outcome {
    let main = move || fill(prepare, max_open, open_fails);
    let world = runtime::Simulation { most_events: u64::MAX, ..runtime::Simulation::new(7) };
    let outcome = runtime::simulate(world, main).expect("it ends").value.expect("it is written");
    println!("prepare={prepare} max_open={max_open}: {outcome:?}");
    assert!(outcome.filled > 10 && outcome.users > 100, "too few: {outcome:?}");
    assert_eq!((outcome.busy, outcome.left_open), (0, 0), "{outcome:?}");
    outcome
}

#[test]
fn no_record_of_users_waits_for_a_zone_to_be_opened() {
    let without = filled(false, 0, None);
    assert_eq!((without.users_opened, without.opened), (without.filled, 0));
    let with = filled(true, 0, None);
    // Only the first zone of each lane.
    assert_eq!(with.users_opened, LANES, "{with:?}");
    assert!(with.opened + LANES >= with.filled && with.opened <= with.filled + LANES, "{with:?}");
}

/// Zones that may be open: of two lanes, two being sealed, the cleaner's, the filler, a checkpoint's and two
/// root zones.
#[test]
fn limits_of_open_zones_are_kept() {
    for (max_open, opened_ahead) in [(9, false), (10, true), (11, true)] {
        let outcome = filled(true, max_open, None);
        assert_eq!(outcome.opened > 0, opened_ahead, "max_open={max_open}: {outcome:?}");
    }
}

#[test]
fn zones_that_cannot_be_opened_ahead_do_not_keep_users_from_writing() {
    for error in [(|| Error::busy("enough are open")) as fn() -> Error, || Error::io("a broken header")] {
        let outcome = filled(true, 0, Some(error));
        assert_eq!(outcome.users_opened, outcome.filled, "{outcome:?}");
    }
}

/// A zone that is being opened when the log is closed is also returned.
#[test]
fn a_log_that_is_closed_leaves_no_zone_open() {
    for records in 1..40_u32 {
        let left = run(move || async move {
            let handle = zones(16, 64 << 10, 0).await?.open().await?;
            let owner = Bare::format(handle.clone(), true).await?;
            logkit::lane::start(&owner);
            for _ in 0..records {
                owner.append(Item::new(1, 1, 20)).await;
            }
            owner.close().await;
            owner.take_checkpoint(true).await?;
            let reports = handle.report(ZoneIndex(ROOT_ZONES), 64).await?;
            Ok(reports.iter().filter(|report| report.state.is_active()).count())
        });
        assert_eq!(left, 0, "{records} records");
    }
}
