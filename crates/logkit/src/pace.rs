//! How fast the cleaner goes: in proportion to what users write, by the room that is left and what victims cost. The rule
//! is [`Pacer`]'s; here is what room is in a log, where its marks lie, and why nobody waits for ever.
//!
//! ```text
//!   free zones   0 ─────────────── keep ──────────── low ──────────────── high ────────
//!   users        wait              write ───────────────────────────────────────────►
//!   the cleaner  as fast as it can  gains on them    goes along with them  rests
//! ```
//!
//! *Room* is counted in data blocks: those of free and of dead zones, what is left of open ones, and what has been passed
//! of the victim. So it goes down by one with each block that a user writes and up by one with each dead block that is
//! passed; a move leaves it as it is. Half a zone is subtracted for each that is open, and for the victim: what they have
//! left, or have passed, on average. So room is what the free zones below are on average, without their steps.
//!
//! `keep` is what users leave: three zones of the cleaner's own, and what a checkpoint may need now. `low` is one more,
//! `high` at least two more than `low`; the keys `low_watermark` and `high_watermark` put them higher.
//!
//! # Why no writer waits for ever
//! [`decision::next`](crate::decision::next) decides what the cleaner does. `decision/tests.rs` checks it in every small state;
//! `decision/model.rs` drives it through an abstract log with failures, in which a waiter runs only when it is woken. The argument
//! that they check:
//! - *A user's write* waits for a zone only while no more than `keep` are free. In that state the room is at most `stop`, so
//!   the pace is infinite and the cleaner waits for no user. A writer wakes the cleaner when it begins to wait. So the two never wait
//!   for each other. (Checked: the pace is no cause of a wait while users wait; in the model each writer gets a zone or an error.)
//! - *The cleaner* finds a zone for its moves, because users leave it three. The class of its victim opens at most one zone before
//!   the victim is empty, and an empty victim becomes a free zone after a reset. The reset needs at most a checkpoint, and
//!   the checkpoint takes zones that no other writer takes. A move that finds no zone
//!   all the same fails, and is tried again after a pause. (Checked in the model: at most one move in 100 000 fails so while no
//!   further failure of the disk is to come, and each writer still gets a zone or an error. Why these few fail isn't known.)
//! - *If nothing can be freed*, writers are refused with ENOSPC (`stuck`): no victim is in hand, no zone is worth cleaning, no dead zone
//!   can be covered or reset, and no task runs. Whatever frees blocks later wakes the cleaner. (Checked: `Action::Refuse`.)
//! - *The cleaner waits* for users' commits, while users get zones or dead zones hold records that haven't committed; for the end of a
//!   task; or for any change, when users get zones and nothing is to be done. Each of them wakes it. (Checked: `Action::Wait` has a
//!   cause that wakes it; in the model, the log comes to rest only when no writer waits.)
//!
//! A log that nobody writes to is left alone, however its marks are set: marks that can't be reached would have the cleaner move the same
//! blocks for ever.

use crate::cleaning::{Candidate, Marks, Pacer, Pressure, pacing::SPAN};
use crate::decision::Admission;
use crate::kit::Kit;
use crate::layout::ROOT_ZONES;
use crate::owner::Owner;
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;

/// The pace is looked at again at least so often in the time in which users fill a zone.
const LOOKS_PER_ZONE: u64 = 16;

/// What is known of the pace. Belongs to the home shard.
#[derive(Debug)]
pub struct Pace {
    pacer: RefCell<Pacer>,
    /// Moves that are due; negative where more was moved than was due.
    due: Cell<f64>,
    /// How much users had written when that was computed.
    counted: Cell<u64>,
    /// What has been passed of the victim, in data blocks, if there is one.
    passed: Cell<Option<u64>>,
}

impl Pace {
    /// For zones of so many data blocks.
    pub fn new(zone: u32) -> Self {
        Pace {
            pacer: RefCell::new(Pacer::new(u64::from(zone.max(1)))),
            due: Cell::new(0.0),
            counted: Cell::new(0),
            passed: Cell::new(None),
        }
    }

    /// A zone is about to be cleaned.
    pub fn begin(&self, victim: &Candidate) {
        self.pacer.borrow_mut().begin(victim);
    }

    /// So many data blocks of the victim have been passed; none if there is no victim any more.
    pub fn pass(&self, blocks: Option<u64>) {
        self.passed.set(blocks);
    }

    /// So many blocks were moved.
    pub fn moved(&self, blocks: u32) {
        self.due.set(self.due.get() - f64::from(blocks));
    }
}

impl Kit {
    fn data_zones(&self) -> u32 {
        self.layout.zones - ROOT_ZONES
    }

    /// Data blocks of a zone that the cleaner fills, as the unit of room.
    fn zone_room(&self) -> u64 {
        u64::from(self.settings.data_blocks.max(1))
    }

    /// Number of blocks that users have written, headers of records included: those take room, too.
    fn written_by_users(&self) -> u64 {
        let value = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        value(&self.counters.user_blocks) + value(&self.counters.user_records)
    }

    /// Has the next commit of users wake the cleaner: it may be what the cleaner waits for.
    pub fn wake_cleaner_with_next_commit(&self) {
        self.shared().cleaner_wakes_at.store(self.written_by_users() + 1, Ordering::Relaxed);
    }

    /// Wakes the cleaner if users have written as much as it waits for.
    pub fn wake_paced_cleaner(&self) {
        let wakes_at = &self.shared().cleaner_wakes_at;
        if self.written_by_users() >= wakes_at.load(Ordering::Relaxed) {
            wakes_at.store(u64::MAX, Ordering::Relaxed);
            self.events.cleaner.notify_all();
        }
    }
}

/// The marks of the room, in free zones: below the first cleaning gains on users, from the second on it rests.
pub fn watermarks<O: Owner>(owner: &O) -> (u32, u32) {
    let kit = owner.kit();
    let share = |share: f64| (f64::from(kit.data_zones()) * share) as u32;
    let low = share(kit.settings.low_watermark).max(owner.kept_zones() + 1);
    (low, share(kit.settings.high_watermark).max(low + SPAN as u32))
}

fn marks<O: Owner>(owner: &O) -> Marks {
    let room = |free: u32| u64::from(free) * owner.kit().zone_room();
    let (low, high) = watermarks(owner);
    Marks { stop: room(owner.kept_zones()), low: room(low), high: room(high) }
}

/// The room, in data blocks: no more than at `stop` if users wait, or would.
fn room<O: Owner>(owner: &O, marks: &Marks) -> u64 {
    let kit = owner.kit();
    let zone = kit.zone_room();
    let (open, left) = kit.pool.open_space(kit.settings.data_blocks, kit.layout.zone_blocks);
    let passed = kit.pace.passed.get();
    let begun = u64::from(open) + u64::from(passed.is_some());
    let room = u64::from(kit.pool.free_soon()) * zone + left + passed.unwrap_or(0);
    let room = room.saturating_sub(begun * zone / 2);
    match kit.pool.free() <= owner.kept_zones() {
        true => room.min(marks.stop),
        false => room,
    }
}

/// What a policy is told.
pub(crate) fn pressure<O: Owner>(owner: &O) -> Pressure {
    let marks = marks(owner);
    let kit = owner.kit();
    marks.pressure(kit.zone_room(), room(owner, &marks), kit.data_zones())
}

/// Number of blocks that are moved for each that users write, at the moment; `None` while the cleaner doesn't wait for users.
pub fn moves_per_write<O: Owner>(owner: &O) -> Option<f64> {
    let marks = marks(owner);
    let pace = owner.kit().pace.pacer.borrow().pace(room(owner, &marks), &marks);
    pace.must.is_finite().then_some(pace.must)
}

/// Whether something of the victim may be moved now. If not, commits of users wake the cleaner when it may be.
pub(crate) fn admit_moves<O: Owner>(owner: &O) -> Admission {
    let kit = owner.kit();
    let pace = &kit.pace;
    let written = kit.written_by_users();
    let new = written - pace.counted.replace(written);
    let marks = marks(owner);
    let room = room(owner, &marks);
    let speed = pace.pacer.borrow().pace(room, &marks);
    let per_write = speed.must.is_finite().then_some(speed.must.ceil() as u32);
    // What is cleaned unasked pays for itself.
    let rate = if room < marks.high { speed.must } else { speed.may };
    if rate.is_infinite() {
        pace.due.set(0.0);
        return Admission::Now { per_write };
    }
    let most = f64::from(kit.settings.record_blocks);
    let due = (pace.due.get() + new as f64 * rate).min(most);
    pace.due.set(due);
    if due >= 1.0 {
        return Admission::Now { per_write };
    }
    let wait = ((1.0 - due) / rate).ceil().min((kit.zone_room() / LOOKS_PER_ZONE).max(1) as f64);
    kit.shared().cleaner_wakes_at.store(written + wait as u64, Ordering::Relaxed);
    Admission::Later
}
