//! Persistent deletes: zones with deleted data are reset in time.
//!
//! A delete is persistent once every zone that held an older version of the key, or the tombstone, has been
//! reset. With `delete_persistence` of time D the store divides that time. Within `1 - reset_share` of D,
//! buffers with tombstones are written and compaction moves tombstones to the bottom
//! ([`policy`](crate::policy)). The due time of a zone is the time by which it must be reset:
//! - Blocks of a table become stale when the table is removed and its last reader ends, or when they are
//!   moved. Their tombstones are in the write buffers, in the tables with overlapping keys, or are written
//!   later. So the zone is due D after the oldest deletion in these, and at most D after the blocks became
//!   stale.
//! - A zone of the write-ahead log, of the manifest's edits or of checkpoints is due `reset_share` of D after
//!   the first append of a record to it. A zone with stale data of unknown age is due `reset_share` of D
//!   after the data was found.
//!
//! Due times are for planning. The *deadline* of a zone is D after the oldest deletion of which it may have a
//! copy: a reset after the deadline breaks the promise, and raises an alarm.
//!
//! No zone is due before the first delete. Deletes are forgotten once there is no tombstone and no expired
//! value and the remaining zones were begun after a checkpoint of that state: these have no copy of a deleted
//! key. So an idle store becomes quiet, though each checkpoint notes its own zone.
//!
//! # Counts of operations
//! With a count of operations instead of a time, timestamps of deletions are numbers of operations of the
//! store, and an operation counts as a millisecond. The number is the sum of the shards' sequences, so
//! recovery restores it. The eraser grants operations: writes wait at the end of a grant. The next grant
//! follows once nothing is due within it, or after two seconds; in that case a delete may be late, and an
//! alarm reports it.
//!
//! The state is shared by all shards; the home executes it (`eraser`).

pub mod clock;
pub mod reset_history;

use crate::key_version::Timestamp;
use crate::policy::CompactionParameters;
use crate::settings::DeletePersistence;
use crate::table::Summary;
use block::EraseGuarantee;
use clock::DeadlineClock;
use logkit::ZonePool;
use reset_history::ResetHistory;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of grants of operations within the limit.
const GRANTS: u64 = 64;

/// A zone that must be reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stale {
    /// Number of the zone.
    pub zone: u32,
    /// Generation of the zone: number of its resets.
    pub generation: u64,
    /// Time by which the zone must be reset.
    pub due: Timestamp,
    /// Time after which the promise is broken if the zone isn't reset.
    pub deadline: Timestamp,
}

/// State that an opening restores.
#[derive(Debug)]
pub struct Found {
    /// Number of operations of the store.
    pub operations: u64,
    /// Zones that the checkpoint lists.
    pub stale: Vec<Stale>,
    /// Zones that were written after the checkpoint, with their generations.
    pub unlisted: Vec<(u32, u64)>,
    /// Deadline clock at the checkpoint.
    pub clock: Timestamp,
    /// History of the guarantees of resets.
    pub resets: ResetHistory,
}

impl Found {
    /// State of a new store whose zones were reset with `guarantee`.
    pub fn new(guarantee: EraseGuarantee) -> Self {
        let resets = ResetHistory::new(guarantee);
        Found { operations: 0, stale: Vec::new(), unlisted: Vec::new(), clock: 0, resets }
    }
}

/// State of the store while no deletion is outstanding.
#[derive(Debug, Default)]
struct Settled {
    /// Number of deletes when the last one ceased to be outstanding; `None` while one is outstanding.
    deletes: Option<u64>,
    /// Start of the first checkpoint after that.
    cut: Option<Timestamp>,
}

/// A zone that must be reset, and the time at which it was first noted.
#[derive(Debug, Clone, Copy)]
struct Noted {
    stale: Stale,
    since: Timestamp,
}

/// Zones of all shards that must be reset.
#[derive(Debug)]
pub struct Erasure {
    pool: Arc<ZonePool>,
    clock: DeadlineClock,
    resets: Mutex<ResetHistory>,
    settled: Mutex<Settled>,
    /// Time of the oldest deletion that was outstanding in the last round, or since; `u64::MAX` for none.
    oldest: AtomicU64,
    /// Promise of persistent deletes; `None` without one.
    persistence: Option<DeletePersistence>,
    /// Number of operations of the store, and number up to which writes are granted, if operations are
    /// counted.
    operations: AtomicU64,
    granted: AtomicU64,
    /// Whether the next grant was requested.
    is_asked: AtomicBool,
    /// Number of operations when the store was opened.
    opened: u64,
    stale: Mutex<BTreeMap<u32, Noted>>,
    /// Number of deletes that may have left tombstones or stale data.
    deletes: AtomicU64,
    /// Longest time from noting a zone to its reset, in milliseconds or operations.
    longest: AtomicU64,
    /// Number of zones that were reset after their deadline.
    late: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Erasure {
    /// Returns the state of a store with this promise.
    pub fn new(pool: Arc<ZonePool>, persistence: Option<DeletePersistence>, found: Found) -> Arc<Self> {
        let Found { operations, stale, unlisted, clock: shown, resets } = found;
        let clock = DeadlineClock::default();
        clock.raise(shown);
        let erasure = Erasure {
            pool,
            clock,
            resets: Mutex::new(resets),
            settled: Mutex::default(),
            oldest: AtomicU64::new(u64::MAX),
            persistence,
            operations: AtomicU64::new(operations),
            granted: AtomicU64::new(u64::MAX),
            is_asked: AtomicBool::new(false),
            opened: operations,
            stale: Mutex::default(),
            deletes: AtomicU64::new((stale.len() + unlisted.len()) as u64),
            longest: AtomicU64::new(0),
            late: AtomicU64::new(0),
        };
        if erasure.counts_operations() {
            erasure.grant();
        }
        // The store may have been open with a longer time before, or with the other kind of promise.
        let latest = erasure.due_after(erasure.now()).unwrap_or(0);
        for found in stale {
            let (due, deadline) = (found.due.min(latest), found.deadline.min(latest));
            erasure.note(Stale { due, deadline, ..found });
        }
        unlisted.into_iter().for_each(|(zone, generation)| erasure.stale_in(zone, generation, false));
        Arc::new(erasure)
    }

    /// The deadline clock.
    pub fn clock(&self) -> &DeadlineClock {
        &self.clock
    }

    /// Copy of the history of resets, for a checkpoint.
    pub fn resets(&self) -> ResetHistory {
        let mut resets = lock(&self.resets);
        resets.look(|zone| self.pool.get(zone).generation);
        resets.clone()
    }

    /// Guarantee of resets of zones.
    pub fn guarantee(&self) -> EraseGuarantee {
        lock(&self.resets).guarantee()
    }

    /// Notes that a checkpoint with the history of resets is durable.
    pub fn wrote_history(&self) {
        lock(&self.resets).written();
    }

    /// Zones whose last reset had a weaker guarantee than the present one, and the weakest of these
    /// guarantees.
    pub fn weakly_reset(&self) -> (Vec<u32>, EraseGuarantee) {
        let resets = self.resets();
        (resets.pending().collect(), resets.weakest())
    }

    /// Notes the oldest deletion that a round found outstanding; the round began when `deletes` deletes had
    /// been counted.
    pub fn looked(&self, deletes: u64, oldest: Option<Timestamp>) {
        self.oldest.store(oldest.unwrap_or(u64::MAX), Ordering::Relaxed);
        let mut settled = lock(&self.settled);
        if oldest.is_some() || self.deletes() != deletes {
            *settled = Settled::default();
        } else if settled.deletes != Some(deletes) {
            *settled = Settled { deletes: Some(deletes), cut: None };
        }
    }

    /// Notes the start of a checkpoint: it takes the state of all shards after this call.
    pub fn begin_cut(&self) {
        let mut settled = lock(&self.settled);
        if settled.deletes == Some(self.deletes()) && settled.cut.is_none() {
            settled.cut = Some(self.now());
        }
    }

    /// Whether no deletion is outstanding, and no remaining zone was begun before that state's checkpoint.
    pub fn is_settled(&self) -> bool {
        // `all` forgets zones that were reset.
        let is_empty = self.all().is_empty();
        let cut = lock(&self.settled).cut;
        is_empty || cut.is_some_and(|cut| lock(&self.stale).values().all(|noted| noted.since > cut))
    }

    /// Whether operations are counted instead of time.
    pub fn counts_operations(&self) -> bool {
        self.persistence.is_some_and(DeletePersistence::counts_operations)
    }

    /// Present timestamp for deletions: a time, or a number of operations.
    pub fn now(&self) -> Timestamp {
        match self.counts_operations() {
            true => self.operations.load(Ordering::Relaxed),
            false => self.clock.now(),
        }
    }

    /// Adds operations to the count.
    pub fn took(&self, operations: u64) {
        if self.counts_operations() {
            self.operations.fetch_add(operations, Ordering::Relaxed);
        }
    }

    /// Whether the grant permits another write.
    pub fn may_write(&self) -> bool {
        !self.counts_operations() || self.now() < self.granted.load(Ordering::Relaxed)
    }

    /// Whether the caller must request the next grant: half of the present one is used. Returns true once per
    /// grant.
    pub fn must_ask(&self) -> bool {
        self.counts_operations()
            && self.now() + self.step() / 2 >= self.granted.load(Ordering::Relaxed)
            && !self.is_asked.swap(true, Ordering::Relaxed)
    }

    /// Grants another step of operations.
    pub fn grant(&self) {
        self.granted.store(self.now() + self.step(), Ordering::Relaxed);
        self.is_asked.store(false, Ordering::Relaxed);
    }

    /// Number of operations of a grant.
    pub fn step(&self) -> u64 {
        (self.span() / GRANTS).max(1)
    }

    /// Time in which compaction must drop a tombstone, in milliseconds or operations; the rest is for resets.
    pub(crate) fn time_of_tables(&self) -> u64 {
        self.span() - self.limit().map_or(0, |limit| limit.as_millis() as u64)
    }

    /// Time of the promise, in milliseconds or operations.
    fn span(&self) -> u64 {
        self.persistence.map_or(0, |persistence| persistence.span().as_millis() as u64)
    }

    /// Time of the oldest deletion in a table: of a tombstone or, where time is counted, the expiry of a
    /// value.
    pub(crate) fn oldest_delete(&self, summary: &Summary) -> Option<Timestamp> {
        let tombstone = summary.oldest_tombstone.map(|deleted| self.known(deleted));
        tombstone.into_iter().chain(summary.earliest_expiry.and_then(|expires| self.expiry(expires))).min()
    }

    /// Deadline-clock time of an expiry, which is a time of the system clock; `None` where operations are
    /// counted.
    pub(crate) fn expiry(&self, expires: Timestamp) -> Option<Timestamp> {
        (!self.counts_operations()).then(|| expires.saturating_add(self.clock.ahead()))
    }

    /// Timestamp for the tombstone of a deletion at `time` of the system clock.
    pub(crate) fn stamp(&self, time: Timestamp) -> Timestamp {
        match self.counts_operations() {
            true => self.now(),
            false => time.saturating_add(self.clock.ahead()).min(self.now()),
        }
    }

    /// Corrects a deletion's timestamp: one above the count was written while the store was open with a
    /// promise in time, or with none.
    pub(crate) fn known(&self, deleted: Timestamp) -> Timestamp {
        if self.counts_operations() && deleted > self.now() { self.opened } else { deleted }
    }

    /// Due time of a zone whose stale data of unknown age is found at `since`.
    fn due_of_unknown(&self, since: Timestamp) -> Timestamp {
        since.saturating_add(self.limit().map_or(0, |limit| limit.as_millis() as u64))
    }

    /// Time within which a zone with stale data of unknown age must be reset; `None` without a promise.
    pub fn limit(&self) -> Option<Duration> {
        let share = CompactionParameters::default().reset_share;
        self.persistence.map(|persistence| persistence.span().mul_f64(share))
    }

    /// Due time of a zone with stale data of keys that were deleted at `oldest` or later; `None` without a
    /// promise.
    pub fn due_after(&self, oldest: Timestamp) -> Option<Timestamp> {
        self.persistence.map(|_| oldest.saturating_add(self.span()))
    }

    /// Notes a delete, or the expiry of a value. The first one makes zones with stale data due.
    pub fn deleted(&self, at: Timestamp) {
        if self.persistence.is_none() {
            return;
        }
        // A value that will expire may be overwritten and deleted before.
        let at = at.min(self.now());
        self.oldest.fetch_min(at, Ordering::Relaxed);
        if self.deletes.fetch_add(1, Ordering::Relaxed) == 0 {
            let (due, deadline) = (self.due_of_unknown(at), at.saturating_add(self.span()));
            lock(&self.stale).values_mut().for_each(|noted| {
                noted.since = noted.since.max(at);
                noted.stale.due = noted.stale.due.max(due);
                noted.stale.deadline = noted.stale.deadline.max(deadline);
            });
        }
    }

    /// Number of deletes that may have left tombstones or stale data.
    pub fn deletes(&self) -> u64 {
        self.deletes.load(Ordering::Relaxed)
    }

    /// Forgets deletes if their number is still `deletes`: the caller found no tombstone and no stale data
    /// left of them.
    pub fn forget(&self, deletes: u64) {
        // A newer delete prevents this.
        let _newer = self.deletes.compare_exchange(deletes, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes stale data in a zone, with the due time that [`due_after`](Self::due_after) returned; `None` for
    /// data of unknown age.
    pub fn stale(&self, zone: u32, due: Option<Timestamp>) {
        if self.persistence.is_some() {
            let generation = self.pool.get(zone).generation;
            match due {
                Some(due) => self.note(Stale { zone, generation, due, deadline: due }),
                None => self.stale_in(zone, generation, false),
            }
        }
    }

    /// Whether a zone was noted as stale since its last reset.
    pub fn knows(&self, zone: u32) -> bool {
        let generation = self.pool.get(zone).generation;
        lock(&self.stale).get(&zone).is_some_and(|noted| noted.stale.generation == generation)
    }

    /// Notes stale data of unknown age in this generation of a zone; with `is_new`, only of keys that will be
    /// deleted later.
    pub fn stale_in(&self, zone: u32, generation: u64, is_new: bool) {
        let now = self.now();
        let due = self.due_of_unknown(now);
        let oldest = if is_new { now } else { self.oldest.load(Ordering::Relaxed).min(now) };
        self.note(Stale { zone, generation, due, deadline: oldest.saturating_add(self.span()).max(due) });
    }

    fn note(&self, found: Stale) {
        if self.persistence.is_none() {
            return;
        }
        let new = Noted { stale: found, since: self.now() };
        let mut all = lock(&self.stale);
        let known = all.entry(found.zone).or_insert(new);
        if known.stale.generation < found.generation {
            *known = new;
        } else if known.stale.generation == found.generation {
            known.stale.due = known.stale.due.min(found.due);
            known.stale.deadline = known.stale.deadline.min(found.deadline);
        }
    }

    /// All zones that must be reset; forgets those that were reset meanwhile.
    pub fn all(&self) -> Vec<Stale> {
        let now = self.now();
        let mut all = lock(&self.stale);
        all.retain(|zone, noted| {
            let is_reset = self.pool.have_been_reset(&[(*zone, noted.stale.generation)]);
            if is_reset {
                self.longest.fetch_max(now.saturating_sub(noted.since), Ordering::Relaxed);
                let is_late = now > noted.stale.deadline && self.deletes() > 0;
                self.late.fetch_add(is_late.into(), Ordering::Relaxed);
            }
            !is_reset
        });
        all.values().map(|noted| noted.stale).collect()
    }

    /// Zones that are due within `time`.
    pub fn due_within(&self, time: Duration) -> Vec<Stale> {
        let until = self.now().saturating_add(time.as_millis() as u64);
        let mut due = self.all();
        due.retain(|stale| stale.due <= until && self.deletes() > 0);
        due
    }

    /// Number of zones whose deadline has passed.
    fn overdue(&self) -> usize {
        let now = self.now();
        self.all().iter().filter(|stale| stale.deadline < now && self.deletes() > 0).count()
    }

    /// Number of zones that are overdue, number of zones that were reset too late, and the longest time until
    /// a reset in milliseconds or operations.
    pub fn alarms(&self) -> (usize, u64, u64) {
        (self.overdue(), self.late.load(Ordering::Relaxed), self.longest.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: u64) -> Option<DeletePersistence> {
        Some(DeletePersistence::Time(Duration::from_secs(seconds)))
    }

    #[test]
    fn operations_are_granted_in_steps_and_zones_are_due_by_their_number() {
        let pool = Arc::new(ZonePool::new(4));
        let persistence = Some(DeletePersistence::Operations(64_000));
        let found = Found { operations: 5_000, unlisted: vec![(1, 0)], ..Found::new(EraseGuarantee::None) };
        let erasure = Erasure::new(pool.clone(), persistence, found);
        assert_eq!((erasure.now(), erasure.step()), (5_000, 1_000));
        assert_eq!(
            erasure.all(),
            [Stale { zone: 1, generation: 0, due: 5_000 + 16_000, deadline: 5_000 + 64_000 }],
            "a quarter is for resets"
        );
        erasure.took(499);
        assert!(erasure.may_write() && !erasure.must_ask());
        erasure.took(1);
        assert!(erasure.may_write() && erasure.must_ask() && !erasure.must_ask(), "asked once");
        erasure.took(500);
        assert!(!erasure.may_write());
        erasure.grant();
        assert!(erasure.may_write() && !erasure.must_ask());
        assert_eq!([5_500, 1_700_000_000_000].map(|at| erasure.known(at)), [5_500, 5_000]);
        let without = Erasure::new(pool, time(1), Found::new(EraseGuarantee::None));
        without.took(1 << 40);
        assert!(without.may_write() && !without.must_ask());
    }

    #[test]
    fn zones_are_due_only_with_deletes_and_forgotten_once_they_are_reset() {
        let pool = Arc::new(ZonePool::new(4));
        let erasure = Erasure::new(pool.clone(), time(40), Found::new(EraseGuarantee::None));
        let now = erasure.now();
        erasure.stale(2, Some(now - 1000));
        erasure.stale(2, Some(now + 60_000));
        assert!(erasure.due_within(Duration::ZERO).is_empty(), "nothing was deleted");
        erasure.deleted(now - 11_000);
        assert_eq!(
            erasure.due_within(Duration::ZERO),
            [Stale { zone: 2, generation: 0, due: now - 1000, deadline: now + 29_000 }],
            "the earliest time stays; a quarter of 40 s has passed since the first delete"
        );
        assert_eq!(erasure.alarms().0, 0, "three quarters haven't");
        erasure.stale(2, Some(now - 1));
        assert_eq!(erasure.alarms().0, 1);
        erasure.stale(1, erasure.due_after(now - 30_000));
        erasure.stale(3, None);
        let zones = |seconds| -> Vec<u32> {
            erasure.due_within(Duration::from_secs(seconds)).iter().map(|stale| stale.zone).collect()
        };
        assert_eq!([zones(8), zones(11)], [vec![2], vec![1, 2, 3]], "10 s are left in zones 1 and 3");
        pool.set_free(2, 1);
        assert_eq!(erasure.all().len(), 2);
        let (overdue, late, _) = erasure.alarms();
        assert!(overdue == 0 && late == 1);
        let without = Erasure::new(pool, None, Found::new(EraseGuarantee::None));
        without.stale(3, None);
        assert!(without.all().is_empty());
    }
}
