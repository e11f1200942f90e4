//! Settings of an open store; they aren't stored on the medium.

use crate::policy::{Compaction, CompactionParameters, placement, saturation, zap};
use crate::table;
use block::{Error, Result};
use logkit::recovery::Goal;
use std::time::Duration;

/// Minimum number of operations for persistent deletes.
const MIN_OPERATIONS: u64 = 10_000;
/// Minimum number of bytes that compactions write for each operation, as `zap` assumes; writes wait if this
/// is exceeded.
const BYTES_PER_OPERATION: u64 = 256;

/// State in which a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acknowledge {
    /// In memory. A crash of the program loses unwritten writes: those of the last 10 ms if the medium keeps
    /// up, and at most 12 MiB of each shard and one write.
    Buffered,
    /// Written to the zones, or to their staging area in the page cache. A power cut loses unflushed writes
    /// if the zones have a volatile cache.
    #[default]
    Written,
    /// Durable.
    Flushed,
}

/// Limit within which every copy of a deleted key is removed from the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletePersistence {
    /// Time after the delete, or after the expiry of the value.
    Time(Duration),
    /// Number of further writes of the store. Writes wait if zones aren't reset in time. An expired value is
    /// deleted by the compaction that finds it.
    Operations(u64),
}

impl DeletePersistence {
    /// Limit as policies count it: an operation counts as a millisecond.
    pub fn span(self) -> Duration {
        match self {
            DeletePersistence::Time(time) => time,
            DeletePersistence::Operations(count) => Duration::from_millis(count),
        }
    }

    /// Whether operations are counted instead of time.
    pub fn counts_operations(self) -> bool {
        matches!(self, DeletePersistence::Operations(_))
    }
}

/// Settings of an open store.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Number of shards of a new store; `None` is one for each shard of the runtime.
    pub shards: Option<u16>,
    /// State in which writes are acknowledged, unless a call specifies another.
    pub acknowledge: Acknowledge,
    /// Memory of the active write buffers of all shards, in bytes.
    pub buffer_bytes: u64,
    /// Memory of the block cache, in bytes. In addition, tables keep their filters and indexes, up to half of
    /// this size.
    pub cache_bytes: u64,
    /// Size in bytes at which a table is ended.
    pub table_bytes: u64,
    /// Format of new tables.
    pub table: table::Options,
    /// Name of the compaction policy.
    pub compaction: String,
    /// Name of the placement policy.
    pub placement: String,
    /// Number of tables in level 0 that starts a compaction.
    pub level0_tables: usize,
    /// Number of tables in level 0 at which writes wait; they are slowed from the midpoint of `level0_tables`
    /// and this number.
    pub stop_tables: usize,
    /// Size of level 1 in bytes, over all shards.
    pub level_bytes: u64,
    /// Ratio of the sizes of a level and the one above.
    pub multiplier: u64,
    /// Minimum write rate of compactions of all shards, in bytes per second; `zap` relies on it to keep
    /// `delete_persistence`.
    pub compaction_rate: u64,
    /// Promise of persistent deletes; `None` without one.
    pub delete_persistence: Option<DeletePersistence>,
    /// Guarantee of resets with `delete_persistence`.
    pub erase: block::EraseGuarantee,
    /// Purpose of opening the store: normal use or salvage.
    pub goal: Goal,
}

impl Default for Settings {
    fn default() -> Self {
        let (compaction, placement) = default_policies(false);
        Settings {
            shards: None,
            acknowledge: Acknowledge::default(),
            buffer_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            table_bytes: 32 << 20,
            table: table::Options::default(),
            compaction: compaction.to_owned(),
            placement: placement.to_owned(),
            level0_tables: 4,
            stop_tables: 20,
            level_bytes: 256 << 20,
            multiplier: 10,
            compaction_rate: CompactionParameters::default().bytes_per_second,
            delete_persistence: None,
            erase: block::EraseGuarantee::Erased,
            goal: Goal::Serve,
        }
    }
}

/// Names of the default compaction and placement policies, with or without persistent deletes.
pub fn default_policies(has_persistence: bool) -> (&'static str, &'static str) {
    match has_persistence {
        true => (zap::NAME, placement::ZAP),
        false => (saturation::NAME, placement::LIFETIME),
    }
}

impl Settings {
    /// Checks the compaction policy and its parameters.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown name or parameters out of range.
    pub fn check_compaction(&self) -> Result<()> {
        self.compaction(1, u64::MAX).map(drop)
    }

    /// Returns the compaction policy for one of `shards` shards on a drive of `drive_bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown name, and for `saturation` with `delete_persistence`.
    pub(crate) fn compaction(&self, shards: u16, drive_bytes: u64) -> Result<Box<dyn Compaction>> {
        if self.delete_persistence.is_some() && self.compaction == saturation::NAME {
            return Err(Error::invalid(
                "compaction \"saturation\" knows no deadline; expected fade or zap with delete_persistence",
            ));
        }
        if let Some(DeletePersistence::Operations(count)) = self.delete_persistence
            && count < MIN_OPERATIONS
        {
            return Err(Error::invalid(format!(
                "delete_persistence is {count} operations; expected at least {MIN_OPERATIONS}"
            )));
        }
        crate::policy::compaction(&self.compaction, self.parameters(shards, drive_bytes))
    }

    fn parameters(&self, shards: u16, drive_bytes: u64) -> CompactionParameters {
        let (shards, defaults) = (u64::from(shards), CompactionParameters::default());
        let rate = match self.delete_persistence {
            Some(DeletePersistence::Operations(_)) => 1000 * BYTES_PER_OPERATION,
            _ => self.compaction_rate,
        };
        CompactionParameters {
            level0_tables: self.level0_tables,
            level_bytes: (self.level_bytes / shards).max(self.table_bytes),
            multiplier: self.multiplier,
            delete_persistence: self.delete_persistence.map(DeletePersistence::span),
            bytes_per_second: (rate / shards).max(1),
            // A running job takes space for its outputs in addition to its inputs.
            job_bytes: defaults.job_bytes.min(drive_bytes / 16 / shards),
            ..defaults
        }
    }

    /// Guarantee of resets of zones.
    pub(crate) fn guarantee(&self) -> block::EraseGuarantee {
        self.delete_persistence.map_or(block::EraseGuarantee::None, |_| self.erase)
    }
}
