//! Status of a shard for operators: its counters and its tables.

use super::staging::Staging;
use crate::core::Core;
use crate::key_version::Timestamp;
use crate::memory::buffer::WriteBuffer;
use crate::settings::DeletePersistence;
use crate::table::Summary;
use crate::tree::tables::Table;
use block::Status;
use logkit::Owner;
use serde_json::json;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Properties of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFacts {
    /// Shard of the table.
    pub shard: u16,
    /// Level of the table.
    pub level: u8,
    /// Size in bytes.
    pub bytes: u64,
    /// Number of entries, including tombstones.
    pub entries: u64,
    /// Number of tombstones, of keys and of ranges.
    pub tombstones: u64,
    /// Time at which the table was written.
    pub created: Timestamp,
    /// Time of the oldest deletion in the table; `None` without any.
    pub oldest_tombstone: Option<Timestamp>,
}

impl Core {
    pub(crate) fn table_facts(&self) -> Vec<TableFacts> {
        let facts = |table: &Rc<Table>| {
            let summary = &table.meta.summary;
            TableFacts {
                shard: self.peers.shard,
                level: table.meta.level,
                bytes: summary.length,
                entries: summary.entries,
                tombstones: summary.tombstones + summary.range_tombstones,
                created: table.meta.created,
                oldest_tombstone: summary.oldest_tombstone,
            }
        };
        self.tables.levels().all().map(facts).collect()
    }

    /// Returns the numbers of this shard.
    pub(crate) fn status(&self) -> Status {
        let levels = self.tables.levels().clone();
        let sum = |of: fn(&Summary) -> u64| levels.all().map(|table| of(&table.meta.summary)).sum::<u64>();
        let (cache_bytes, hits, misses) = self.tables.cache_statistics();
        let work = &self.work;
        let mut status = Status::new();
        let numbers = [
            ("tables", levels.all().count() as u64),
            ("table_bytes", sum(|summary| summary.length)),
            ("entries", sum(|summary| summary.entries)),
            ("tombstones", sum(|summary| summary.tombstones + summary.range_tombstones)),
            ("buffer_bytes", self.buffers.bytes() as u64),
            ("client_bytes", work.client_bytes.get()),
            ("staged_bytes", self.commit.staging().map_or(0, Staging::staged_bytes)),
            ("flushed_bytes", work.flushed_bytes.get()),
            ("compacted_bytes", work.compacted_bytes.get()),
            ("written_bytes", work.written_bytes.get()),
            ("moved_bytes", work.moved_bytes.get()),
            ("compactions", work.compactions.get()),
            ("stalls", work.stalls.get()),
            ("slowed_writes", work.slowed.get()),
            ("cache_bytes", cache_bytes),
            ("cache_hits", hits),
            ("cache_misses", misses),
            ("tombstones_overdue", self.tombstones_overdue()),
            ("snapshots", self.tables.snapshots.count()),
        ];
        status.extend(numbers.into_iter().map(|(name, value)| (name.to_owned(), json!(value))));
        let levels = levels.0.iter().map(|level| {
            json!({"tables": level.len(), "bytes": level.iter().map(|table| table.meta.summary.length).sum::<u64>()})
        });
        status.insert("levels".into(), levels.collect());
        if let Some(lost) = self.tables.lost() {
            status.insert("lost".into(), json!(lost.lines()));
            status.insert("lost_count".into(), json!(lost.count()));
        }
        status
    }

    /// Number of tombstones that should have met all older versions by now, plus tables and buffers with
    /// values that expired as long ago.
    fn tombstones_overdue(&self) -> u64 {
        let Some(limit) = self.settings.delete_persistence else { return 0 };
        let late = self.erasure.now().saturating_sub(limit.span().as_millis() as u64);
        let overdue = |oldest: Option<Timestamp>, tombstones: u64, expires: Option<Timestamp>| {
            let is_late = oldest.is_some_and(|oldest| self.erasure.known(oldest) < late);
            let expired = expires.and_then(|expires| self.erasure.expiry(expires));
            tombstones * u64::from(is_late) + u64::from(expired.is_some_and(|expired| expired < late))
        };
        let levels = self.tables.levels().clone();
        let of_table = |summary: &Summary| {
            let tombstones = summary.tombstones + summary.range_tombstones;
            overdue(summary.oldest_tombstone, tombstones, summary.earliest_expiry)
        };
        let of_buffer = |buffer: &WriteBuffer| {
            let memtable = &buffer.memtable;
            overdue(memtable.oldest_tombstone(), memtable.tombstones() as u64, memtable.earliest_expiry())
        };
        levels.all().map(|table| of_table(&table.meta.summary)).sum::<u64>()
            + self.buffers.frozen().iter().map(|buffer| of_buffer(buffer)).sum::<u64>()
            + of_buffer(&self.buffers.active())
    }

    /// Returns the numbers of the log and of persistent deletes.
    pub(crate) fn home_status(&self, tombstones: u64) -> Status {
        let counters = &self.kit().counters;
        let block = self.kit().layout.block_size.bytes();
        let mut status = Status::new();
        let numbers = [
            ("zones", u64::from(self.kit().pool.zones())),
            ("free_zones", u64::from(self.kit().pool.free())),
            ("damaged_zones", u64::from(self.kit().pool.damaged())),
            ("reset_zones", counters.reset_zones.load(Ordering::Relaxed)),
            ("checkpoints", counters.checkpoints.load(Ordering::Relaxed)),
            ("log_bytes", counters.user_blocks.load(Ordering::Relaxed) * block),
            ("overhead_bytes", counters.overhead_blocks.load(Ordering::Relaxed) * block),
        ];
        status.extend(numbers.into_iter().map(|(name, value)| (name.to_owned(), json!(value))));
        if let Some(persistence) = self.settings.delete_persistence {
            let (overdue, late, longest) = self.erasure.alarms();
            let is_overdue = overdue > 0 || tombstones > 0;
            let mut promise = json!({
                "tombstones_overdue": tombstones,
                "zones_overdue": overdue,
                "zones_late": late,
                "reason": self.why_overdue(is_overdue),
            });
            match persistence {
                DeletePersistence::Time(time) => {
                    promise["seconds"] = json!(time.as_secs_f64());
                    promise["longest_zone_seconds"] = json!(longest as f64 / 1000.0);
                }
                DeletePersistence::Operations(count) => {
                    promise["operations"] = json!(count);
                    promise["longest_zone_operations"] = json!(longest);
                }
            }
            let (weak, guarantee) = self.erasure.weakly_reset();
            promise["weakly_reset_zones"] = json!(weak.len());
            if !weak.is_empty() {
                promise["weakly_reset"] = json!(format!(
                    "{} zones were reset with the guarantee \"{guarantee}\" before, and may hold keys that were deleted before: free ones are being reset \
                     again, others are once their data is gone",
                    weak.len()
                ));
            }
            status.insert("delete_persistence".into(), promise);
        }
        status
    }

    /// Reason for overdue zones; empty if there are none.
    fn why_overdue(&self, is_overdue: bool) -> String {
        if !is_overdue {
            return String::new();
        }
        if let Some(error) = self.kit().failure().or_else(|| self.kit().stuck()) {
            return error.to_string();
        }
        if let Some(error) = self.background_error() {
            return error.to_string();
        }
        if !self.tables.snapshots.is_empty() {
            return "a snapshot or an iterator is older than the deadline".to_owned();
        }
        if self.kit().pool.damaged() > 0 {
            return "a zone can't be read, written or reset".to_owned();
        }
        "zones are being emptied".to_owned()
    }
}
