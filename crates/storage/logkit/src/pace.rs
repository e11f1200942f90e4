//! Pace of the cleaner: in proportion to users' writes, depending on the headroom and the cost of victims.
//! [`Pacer`](crate::cleaning::Pacer) has the rule. This module measures the headroom of a log, sets its
//! watermarks, and shows why no writer waits forever.
//!
//! ```text
//!   free zones   0 ─────────────── keep ──────────── low ──────────────── high ────────
//!   users        wait              write ───────────────────────────────────────────►
//!   the cleaner  unlimited         faster than users  paced to users      idle
//! ```
//!
//! *Headroom* is counted in data blocks: those of free and of dead zones, the rest of open zones, and the
//! blocks of the victim that the cleaner has passed, by a move or because they were dead. So each block that
//! a user writes lowers it by one, each dead block that is passed raises it by one, and a move leaves it
//! unchanged. Half a zone is subtracted for each open zone and for the victim, their rest or passed part on
//! average. So headroom is the number of free zones on average, without its steps.
//!
//! `keep` is the number of zones reserved: three for the cleaner, and those that a checkpoint may need now.
//! `low` is one more, `high` at least two more than `low`; the keys `low_watermark` and `high_watermark`
//! raise them.
//!
//! # Why no writer waits forever
//! [`decision::next`](crate::decision::next) decides what the cleaner does. `decision/tests.rs` checks it in
//! every small state; `decision/model.rs` drives it through an abstract log with failures, in which a waiter
//! runs only when it is woken. The argument that they check:
//! - *A user's write* waits for a zone only while no more than `keep` are free. In that state the headroom is
//!   at most `stop`, so the pace is infinite and the cleaner waits for no user. A writer wakes the cleaner
//!   when it begins to wait. So the two never wait for each other. (Checked: the pace is no cause of a wait
//!   while users wait; in the model each writer gets a zone or an error.)
//! - *The cleaner* finds a zone for its moves, because three are reserved for it. The class of its victim
//!   opens at most one zone before the victim is empty, and an empty victim becomes a free zone after a
//!   reset. The reset needs at most a checkpoint, and the checkpoint takes zones that no other writer takes.
//!   A move that nevertheless finds no zone fails, and is retried after a pause. (Checked in the model: at
//!   most one move in 100 000 fails this way without further failures of the disk, and each writer still gets
//!   a zone or an error. The cause of these failures isn't known.)
//! - *A zone that is opened ahead* ([`prepare`](crate::prepare)) isn't free until it has been opened, and is
//!   then free for every task. It is taken only while more than `keep` zones are free, so the cleaner and
//!   checkpoints find theirs. Meanwhile no writer is refused, and the end of opening wakes the cleaner and
//!   the writers.
//! - *If nothing can be freed*, writers are refused with ENOSPC (`stuck`): there is no victim, no zone is
//!   worth cleaning, no dead zone can be covered or reset, and no task runs. Blocks that are freed later wake
//!   the cleaner. (Checked: `Action::Refuse`.)
//! - *The cleaner waits* for users' commits, while users get zones or dead zones hold records that haven't
//!   committed; for the end of a task; or for any change, when users get zones and nothing is to be done.
//!   Each of them wakes it. (Checked: `Action::Wait` has a cause that wakes it; in the model, the log comes
//!   to rest only when no writer waits.)
//!
//! A log without writes is not cleaned, whatever its watermarks: with unreachable watermarks the cleaner
//! would move the same blocks forever.

use crate::cleaning::{Marks, Pressure, pacing::SPAN};
use crate::decision::Admission;
use crate::kit::Kit;
use crate::layout::ROOT_ZONES;
use crate::owner::Owner;
use std::sync::atomic::Ordering;

/// Least number of evaluations of the pace while users fill one zone.
const LOOKS_PER_ZONE: u64 = 16;

impl Kit {
    fn data_zones(&self) -> u32 {
        self.layout.zones - ROOT_ZONES
    }

    /// Number of data blocks of a zone that the cleaner fills, as the unit of headroom.
    fn zone_headroom(&self) -> u64 {
        u64::from(self.settings.data_blocks.max(1))
    }

    /// Number of blocks that users have written, headers of records included, since they also take headroom.
    fn written_by_users(&self) -> u64 {
        let value = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        value(&self.counters.user_blocks) + value(&self.counters.user_records)
    }

    /// Makes the next commit of users wake the cleaner, which may wait for it.
    pub fn wake_cleaner_with_next_commit(&self) {
        self.shared().cleaner_wakes_at.store(self.written_by_users() + 1, Ordering::Relaxed);
    }

    /// Wakes the cleaner if users have written the number of blocks that it waits for.
    pub fn wake_paced_cleaner(&self) {
        let wakes_at = &self.shared().cleaner_wakes_at;
        if self.written_by_users() >= wakes_at.load(Ordering::Relaxed) {
            wakes_at.store(u64::MAX, Ordering::Relaxed);
            self.events.cleaner.notify_all();
        }
    }
}

/// Returns the low and the high watermark, in free zones: below the low one, cleaning is faster than users'
/// writes; at or above the high one, it is idle.
pub fn watermarks<O: Owner>(owner: &O) -> (u32, u32) {
    let kit = owner.kit();
    let share = |share: f64| (f64::from(kit.data_zones()) * share) as u32;
    let low = share(kit.settings.low_watermark).max(owner.kept_zones() + 1);
    (low, share(kit.settings.high_watermark).max(low + SPAN as u32))
}

fn marks<O: Owner>(owner: &O) -> Marks {
    let headroom = |free: u32| u64::from(free) * owner.kit().zone_headroom();
    let (low, high) = watermarks(owner);
    Marks { stop: headroom(owner.kept_zones()), low: headroom(low), high: headroom(high) }
}

/// Returns the headroom in data blocks, at most `stop` if users would wait.
fn headroom<O: Owner>(owner: &O, marks: &Marks) -> u64 {
    let kit = owner.kit();
    let zone = kit.zone_headroom();
    let (open, left) = kit.pool.open_space(kit.settings.data_blocks, kit.layout.zone_blocks);
    let passed = kit.pace.passed.get();
    let begun = u64::from(open) + u64::from(passed.is_some());
    let headroom = u64::from(kit.pool.free_soon()) * zone + left + passed.unwrap_or(0);
    let headroom = headroom.saturating_sub(begun * zone / 2);
    match kit.pool.free() <= owner.kept_zones() {
        true => headroom.min(marks.stop),
        false => headroom,
    }
}

/// Returns the inputs of a policy.
pub(crate) fn pressure<O: Owner>(owner: &O) -> Pressure {
    let marks = marks(owner);
    let kit = owner.kit();
    marks.pressure(kit.zone_headroom(), headroom(owner, &marks), kit.data_zones())
}

/// Returns the current number of blocks to move per block that users write; `None` while the cleaner is
/// unlimited.
pub fn moves_per_write<O: Owner>(owner: &O) -> Option<f64> {
    let marks = marks(owner);
    let pace = owner.kit().pace.pacer.borrow().pace(headroom(owner, &marks), &marks);
    pace.must.is_finite().then_some(pace.must)
}

/// Decides whether blocks of the victim may be moved now. If not, a later commit of users wakes the cleaner.
pub(crate) fn admit_moves<O: Owner>(owner: &O) -> Admission {
    let kit = owner.kit();
    let pace = &kit.pace;
    let written = kit.written_by_users();
    let new = written - pace.counted.replace(written);
    let marks = marks(owner);
    let headroom = headroom(owner, &marks);
    let speed = pace.pacer.borrow().pace(headroom, &marks);
    let per_write = speed.must.is_finite().then_some(speed.must.ceil() as u32);
    // Above the high watermark only victims that pay for their cost are cleaned.
    let rate = if headroom < marks.high { speed.must } else { speed.may };
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
    let wait = ((1.0 - due) / rate).ceil().min((kit.zone_headroom() / LOOKS_PER_ZONE).max(1) as f64);
    kit.shared().cleaner_wakes_at.store(written + wait as u64, Ordering::Relaxed);
    Admission::Later
}
