//! Persistent deletes: zones with deleted data are reset in time.
//!
//! A delete is persistent once every zone that held an older version of the key, or the tombstone, has been reset. With `delete_persistence` of time D
//! the store divides that time. Buffers with tombstones are written, and compaction brings tombstones to the bottom, within `1 - reset_share` of D
//! ([`policy`](crate::policy)). Every zone is reset within `reset_share` of D after the first of its data has become stale.
//!
//! That is enough: a copy of a deleted key that is stale before the delete is gone `reset_share` of D after that, and one that becomes stale by a compaction,
//! at most D after the delete. Data is stale when its table is removed and no reader has it, when it was moved, or when the writes of a record are in a table.
//! A zone of the write-ahead log, of the manifest's edits or of checkpoints counts as stale when the first record is appended to it. As long as nothing is
//! deleted, no zone is due.
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
    /// When the first of its data became stale.
    pub since: Timestamp,
}

/// Zones that must be reset, of all shards.
#[derive(Debug)]
pub struct Erasure {
    pool: Arc<ZonePool>,
    /// Time between the moment at which data is stale and the reset; `None` without a promise.
    limit: Option<Duration>,
    stale: Mutex<BTreeMap<u32, Stale>>,
    /// Number of deletes that may have left something.
    deletes: AtomicU64,
    /// Largest time that a zone has taken, in milliseconds.
    longest: AtomicU64,
    /// Zones that were reset too late.
    late: AtomicU64,
}

impl Erasure {
    /// The state of a store with this time for deletes; `stale` are the zones that a checkpoint names.
    pub fn new(pool: Arc<ZonePool>, delete_persistence: Option<Duration>, stale: Vec<Stale>) -> Arc<Self> {
        let share = CompactionParameters::default().reset_share;
        let deletes = AtomicU64::new(stale.len() as u64);
        Arc::new(Erasure {
            pool,
            limit: delete_persistence.map(|time| time.mul_f64(share)),
            stale: Mutex::new(stale.into_iter().map(|stale| (stale.zone, stale)).collect()),
            deletes,
            longest: AtomicU64::new(0),
            late: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Stale>> {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time between the moment at which data is stale and the reset; `None` without a promise.
    pub fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Notes a delete, or the time at which a value expires. From the first one on, zones with stale data are due.
    pub fn deleted(&self, at: Timestamp) {
        if self.limit.is_some() && self.deletes.fetch_add(1, Ordering::Relaxed) == 0 {
            self.lock().values_mut().for_each(|stale| stale.since = stale.since.max(at));
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

    /// Notes that data in a zone is stale, from now on.
    pub fn stale(&self, zone: u32) {
        if self.limit.is_some() {
            let generation = self.pool.get(zone).generation;
            self.stale_since(Stale { zone, generation, since: crate::batch::now() });
        }
    }

    /// Notes that data in a zone is stale.
    pub fn stale_since(&self, found: Stale) {
        if self.limit.is_none() {
            return;
        }
        let mut all = self.lock();
        let known = all.entry(found.zone).or_insert(found);
        if known.generation < found.generation {
            *known = found;
        } else if known.generation == found.generation {
            known.since = known.since.min(found.since);
        }
    }

    /// All zones that must be reset; those that were reset since are forgotten.
    pub fn all(&self) -> Vec<Stale> {
        let Some(limit) = self.limit else { return Vec::new() };
        let now = crate::batch::now();
        let mut all = self.lock();
        all.retain(|zone, stale| {
            let is_reset = self.pool.have_been_reset(&[(*zone, stale.generation)]);
            if is_reset {
                let took = now.saturating_sub(stale.since);
                self.longest.fetch_max(took, Ordering::Relaxed);
                let is_late = took > limit.as_millis() as u64 && self.deletes() > 0;
                self.late.fetch_add(is_late.into(), Ordering::Relaxed);
            }
            !is_reset
        });
        all.values().copied().collect()
    }

    /// Zones that are to be reset now: a share of their time has passed.
    pub fn due(&self, share: f64) -> Vec<Stale> {
        let Some(limit) = self.limit else { return Vec::new() };
        let now = crate::batch::now();
        let after = limit.mul_f64(share).as_millis() as u64;
        let mut due = self.all();
        due.retain(|stale| stale.since + after <= now && self.deletes() > 0);
        due
    }

    /// Number of zones that are overdue now, of zones that were reset too late, and the longest time of a zone in milliseconds.
    pub fn alarms(&self) -> (usize, u64, u64) {
        (self.due(1.0).len(), self.late.load(Ordering::Relaxed), self.longest.load(Ordering::Relaxed))
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
        erasure.stale_since(Stale { zone: 2, generation: 0, since: now - 11_000 });
        erasure.stale_since(Stale { zone: 2, generation: 0, since: now });
        assert!(erasure.due(0.0).is_empty(), "nothing was deleted");
        erasure.deleted(now - 11_000);
        assert_eq!(
            erasure.due(0.5),
            [Stale { zone: 2, generation: 0, since: now - 11_000 }],
            "the earliest time stays"
        );
        assert_eq!(erasure.alarms().0, 1, "a quarter of 40 s has passed");
        pool.set_free(2, 1);
        assert!(erasure.all().is_empty());
        let (overdue, late, longest) = erasure.alarms();
        assert!(overdue == 0 && late == 1 && longest >= 10_500);
        let without = Erasure::new(pool, None, Vec::new());
        without.stale(3);
        assert!(without.all().is_empty());
    }
}
