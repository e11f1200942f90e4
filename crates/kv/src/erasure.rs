//! Persistent deletes: zones with deleted data are reset in time.
//!
//! A delete is persistent once every zone that held an older version of the key, or the tombstone, has been reset. With `delete_persistence` of time D
//! the store divides that time. Buffers with tombstones are written, and compaction brings tombstones to the bottom, within `1 - reset_share` of D
//! ([`policy`](crate::policy)). The due time of a zone is the time by which it must be reset:
//! - Blocks of a table are stale when the table is removed and no reader has it, or when they were moved. Their tombstones are in the write buffers and in the tables
//!   whose keys overlap, or are written later. So the zone is due D after the oldest deletion in these, and at most D after the blocks became stale.
//! - A zone of the write-ahead log, of the manifest's edits or of checkpoints is due `reset_share` of D after the first record was appended to it. So is a zone with
//!   stale data of unknown age, from the time at which it was found.
//!
//! As long as nothing is deleted, no zone is due.
//!
//! The state is shared by all shards; the home carries it out (`eraser`).

use crate::entry::Timestamp;
use crate::policy::CompactionParameters;
use logkit::ZonePool;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A zone that must be reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stale {
    /// The zone.
    pub zone: u32,
    /// Number of times that it had been reset.
    pub generation: u64,
    /// Time by which it must be reset.
    pub due: Timestamp,
}

/// A zone that must be reset, and the time at which it was noted first.
#[derive(Debug, Clone, Copy)]
struct Noted {
    stale: Stale,
    since: Timestamp,
}

/// Zones that must be reset, of all shards.
#[derive(Debug)]
pub struct Erasure {
    pool: Arc<ZonePool>,
    /// Time by which a delete is persistent; `None` without a promise.
    persistence: Option<Duration>,
    stale: Mutex<BTreeMap<u32, Noted>>,
    /// Number of deletes that may have left something.
    deletes: AtomicU64,
    /// Largest time that a zone has taken, in milliseconds.
    longest: AtomicU64,
    /// Zones that were reset too late.
    late: AtomicU64,
}

/// Time within which a zone with stale data of unknown age is reset.
fn limit_of(persistence: Duration) -> Duration {
    persistence.mul_f64(CompactionParameters::default().reset_share)
}

/// Due time of a zone with stale data of unknown age that was found at this time.
pub(crate) fn due_since(since: Timestamp, persistence: Option<Duration>) -> Timestamp {
    since.saturating_add(persistence.map_or(0, |persistence| limit_of(persistence).as_millis() as u64))
}

impl Erasure {
    /// The state of a store with this time for deletes; `stale` are the zones that a checkpoint names.
    pub fn new(pool: Arc<ZonePool>, persistence: Option<Duration>, stale: Vec<Stale>) -> Arc<Self> {
        let erasure = Erasure {
            pool,
            persistence,
            stale: Mutex::default(),
            deletes: AtomicU64::new(stale.len() as u64),
            longest: AtomicU64::new(0),
            late: AtomicU64::new(0),
        };
        // The store may have been opened with a longer time before.
        let latest = erasure.due_after(crate::batch::now()).unwrap_or(0);
        stale.into_iter().for_each(|found| erasure.note(Stale { due: found.due.min(latest), ..found }));
        Arc::new(erasure)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Noted>> {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time within which a zone with stale data of unknown age is reset; `None` without a promise.
    pub fn limit(&self) -> Option<Duration> {
        self.persistence.map(limit_of)
    }

    /// Due time of a zone with stale data of keys of which none was deleted before `oldest`; `None` without a promise.
    pub fn due_after(&self, oldest: Timestamp) -> Option<Timestamp> {
        Some(oldest.saturating_add(self.persistence?.as_millis() as u64))
    }

    /// Notes a delete, or the time at which a value expires. From the first one on, zones with stale data are due.
    pub fn deleted(&self, at: Timestamp) {
        if self.persistence.is_some() && self.deletes.fetch_add(1, Ordering::Relaxed) == 0 {
            // A value that will expire may be overwritten, and deleted, before that.
            let at = at.min(crate::batch::now());
            let due = due_since(at, self.persistence);
            self.lock().values_mut().for_each(|noted| {
                noted.since = noted.since.max(at);
                noted.stale.due = noted.stale.due.max(due);
            });
        }
    }

    /// Number of deletes that may have left something.
    pub fn deletes(&self) -> u64 {
        self.deletes.load(Ordering::Relaxed)
    }

    /// Forgets deletes that have left nothing: no tombstone and no stale data were left, when there had been so many.
    pub fn forget(&self, deletes: u64) {
        // Another delete since then is kept.
        let _newer = self.deletes.compare_exchange(deletes, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes that a zone has stale data, with the due time that [`due_after`](Self::due_after) returned; `None` for data of unknown age.
    pub fn stale(&self, zone: u32, due: Option<Timestamp>) {
        if self.persistence.is_some() {
            let generation = self.pool.get(zone).generation;
            let due = due.unwrap_or_else(|| due_since(crate::batch::now(), self.persistence));
            self.note(Stale { zone, generation, due });
        }
    }

    /// Whether a zone was noted since its last reset.
    pub fn knows(&self, zone: u32) -> bool {
        let generation = self.pool.get(zone).generation;
        self.lock().get(&zone).is_some_and(|noted| noted.stale.generation == generation)
    }

    /// Notes that this generation of a zone has stale data of unknown age.
    pub fn stale_in(&self, zone: u32, generation: u64) {
        self.note(Stale { zone, generation, due: due_since(crate::batch::now(), self.persistence) });
    }

    fn note(&self, found: Stale) {
        if self.persistence.is_none() {
            return;
        }
        let new = Noted { stale: found, since: crate::batch::now() };
        let mut all = self.lock();
        let known = all.entry(found.zone).or_insert(new);
        if known.stale.generation < found.generation {
            *known = new;
        } else if known.stale.generation == found.generation {
            known.stale.due = known.stale.due.min(found.due);
        }
    }

    /// All zones that must be reset; those that were reset since are forgotten.
    pub fn all(&self) -> Vec<Stale> {
        let now = crate::batch::now();
        let mut all = self.lock();
        all.retain(|zone, noted| {
            let is_reset = self.pool.have_been_reset(&[(*zone, noted.stale.generation)]);
            if is_reset {
                self.longest.fetch_max(now.saturating_sub(noted.since), Ordering::Relaxed);
                let is_late = now > noted.stale.due && self.deletes() > 0;
                self.late.fetch_add(is_late.into(), Ordering::Relaxed);
            }
            !is_reset
        });
        all.values().map(|noted| noted.stale).collect()
    }

    /// Zones whose due time is at most this far ahead.
    pub fn due_within(&self, time: Duration) -> Vec<Stale> {
        let until = crate::batch::now().saturating_add(time.as_millis() as u64);
        let mut due = self.all();
        due.retain(|stale| stale.due <= until && self.deletes() > 0);
        due
    }

    /// Number of zones that are overdue now, of zones that were reset too late, and the longest time of a zone in milliseconds.
    pub fn alarms(&self) -> (usize, u64, u64) {
        (
            self.due_within(Duration::ZERO).len(),
            self.late.load(Ordering::Relaxed),
            self.longest.load(Ordering::Relaxed),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_due_only_with_deletes_and_forgotten_once_they_are_reset() {
        let pool = Arc::new(ZonePool::new(4));
        let erasure = Erasure::new(pool.clone(), Some(Duration::from_secs(40)), Vec::new());
        let now = crate::batch::now();
        erasure.stale(2, Some(now - 1000));
        erasure.stale(2, Some(now + 60_000));
        assert!(erasure.due_within(Duration::ZERO).is_empty(), "nothing was deleted");
        erasure.deleted(now - 11_000);
        assert_eq!(
            erasure.due_within(Duration::ZERO),
            [Stale { zone: 2, generation: 0, due: now - 1000 }],
            "the earliest time stays; a quarter of 40 s has passed since the first delete"
        );
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
        let without = Erasure::new(pool, None, Vec::new());
        without.stale(3, None);
        assert!(without.all().is_empty());
    }
}
