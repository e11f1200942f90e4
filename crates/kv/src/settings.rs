//! Settings of an open store; none of them is on the medium.

use crate::policy::{Compaction, CompactionParameters, Placement, saturation};
use crate::table;
use crate::write_controller::WriteController;
use block::{Error, Result};
use logkit::recovery::Goal;
use std::time::Duration;

/// Fewest operations within which deletes can be promised to be persistent.
const FEWEST_OPERATIONS: u64 = 10_000;
/// Bytes that compactions write at least for each operation, as `zap` counts; writes wait where that is too much.
const BYTES_PER_OPERATION: u64 = 256;

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acknowledge {
    /// Once it is in memory: a crash of the program loses what wasn't written yet, that is, writes of the last 10 ms where the medium keeps up, and
    /// at most 12 MiB of each shard and one write.
    Buffered,
    /// Once its record is written: a power cut loses what wasn't flushed yet, where the zones have a volatile cache.
    #[default]
    Written,
    /// Once it is durable.
    Flushed,
}

/// When every copy of a deleted key is gone from the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeletePersistence {
    /// This long after the delete, or after the value has expired.
    Time(Duration),
    /// Before the store has taken this many further writes. Writes wait where zones aren't reset in time. A value that expires is deleted by the compaction
    /// that finds it.
    Operations(u64),
}

impl DeletePersistence {
    /// The promise as policies count it: an operation counts as a millisecond.
    pub fn span(self) -> Duration {
        match self {
            DeletePersistence::Time(time) => time,
            DeletePersistence::Operations(count) => Duration::from_millis(count),
        }
    }

    /// Whether operations are counted.
    pub fn counts_operations(self) -> bool {
        matches!(self, DeletePersistence::Operations(_))
    }
}

/// A rule that the store breaks on purpose: tests show that the crash oracle, worlds and the audit notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A checkpoint covers writes that are in no table.
    CoversBuffers,
    /// Compaction drops tombstones of which older versions are below.
    DropsTombstones,
    /// Zones with deleted data aren't erased in time.
    ForgetsZones,
}

/// Settings of an open store.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Number of shards of a new store; `None` for one for each shard of the runtime.
    pub shards: Option<u16>,
    /// When writes are acknowledged, unless a call says otherwise.
    pub acknowledge: Acknowledge,
    /// Memory of the active write buffers of all shards, in bytes.
    pub buffer_bytes: u64,
    /// Memory of the block cache, in bytes; besides, tables keep their filters and indexes, up to half of it.
    pub cache_bytes: u64,
    /// Size at which a table is ended, in bytes.
    pub table_bytes: u64,
    /// Format of new tables.
    pub table: table::Options,
    /// Name of the compaction policy.
    pub compaction: String,
    /// Name of the placement policy.
    pub placement: String,
    /// Number of tables in level 0 that starts a compaction.
    pub level0_tables: usize,
    /// Number of tables in level 0 with which writes wait; from halfway on between this and `level0_tables` they are slowed.
    pub stop_tables: usize,
    /// Size of level 1, in bytes, of all shards.
    pub level_bytes: u64,
    /// Ratio of the sizes of a level and the one before.
    pub multiplier: u64,
    /// Bytes per second that compactions of all shards write at least; `zap` counts on it to keep `delete_persistence`.
    pub compaction_rate: u64,
    /// When a deleted key is gone from the medium; `None` for no promise.
    pub delete_persistence: Option<DeletePersistence>,
    /// Guarantee of a reset, with `delete_persistence`.
    pub erase: block::EraseGuarantee,
    /// What the store is opened for.
    pub goal: Goal,
    /// The rule that is broken, in tests.
    pub broken: Option<Broken>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            shards: None,
            acknowledge: Acknowledge::default(),
            buffer_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            table_bytes: 32 << 20,
            table: table::Options::default(),
            compaction: "saturation".to_owned(),
            placement: "lifetime".to_owned(),
            level0_tables: 4,
            stop_tables: 20,
            level_bytes: 256 << 20,
            multiplier: 10,
            compaction_rate: CompactionParameters::default().bytes_per_second,
            delete_persistence: None,
            erase: block::EraseGuarantee::Erased,
            goal: Goal::Serve,
            broken: None,
        }
    }
}

impl Settings {
    /// The compaction policy of one of `shards` shards on a drive of this many bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown name, and for `saturation` with `delete_persistence`.
    pub fn compaction(&self, shards: u16, drive_bytes: u64) -> Result<Box<dyn Compaction>> {
        if self.delete_persistence.is_some() && self.compaction == saturation::NAME {
            return Err(Error::invalid(
                "compaction \"saturation\" knows no deadline; expected fade or zap with delete_persistence",
            ));
        }
        if let Some(DeletePersistence::Operations(count)) = self.delete_persistence
            && count < FEWEST_OPERATIONS
        {
            return Err(Error::invalid(format!(
                "delete_persistence is {count} operations; expected at least {FEWEST_OPERATIONS}"
            )));
        }
        crate::policy::compaction(&self.compaction, self.parameters(shards, drive_bytes))
    }

    /// What slows the writes of one of `shards` shards.
    pub(crate) fn write_controller(&self, shards: u16) -> WriteController {
        let rate = (self.compaction_rate / u64::from(shards)).max(1);
        WriteController::new(self.level0_tables, self.stop_tables, rate)
    }

    /// The placement policy.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an unknown name.
    pub fn placement(&self) -> Result<Box<dyn Placement>> {
        crate::policy::placement(&self.placement)
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
            // Until it has ended, a job takes space beside its inputs.
            job_bytes: defaults.job_bytes.min(drive_bytes / 16 / shards),
            ..defaults
        }
    }

    /// Guarantee with which zones are reset.
    pub(crate) fn guarantee(&self) -> block::EraseGuarantee {
        self.delete_persistence.map_or(block::EraseGuarantee::None, |_| self.erase)
    }

    /// Whether a rule is broken on purpose.
    pub(crate) fn breaks(&self, rule: Broken) -> bool {
        cfg!(debug_assertions) && self.broken == Some(rule)
    }
}
