//! Manifest of a shard: the tables of its tree, their places, and the position in the log up to which writes
//! are in tables.
//!
//! Edits change it; they are records of the log, and a checkpoint has the whole manifest. Applying an edit
//! twice has no effect.

use crate::erasure::Stale;
use crate::erasure::reset_history::ResetHistory;
use crate::key_version::Timestamp;
use crate::memory::buffer::Flushed;
use crate::policy::MAX_LEVELS;
use crate::table::Summary;
use crate::tree::extents::Extent;
use block::{Error, Result, ZoneBlock};
use logkit::{Sequences, StreamId};
use zones::bytes::{Reader, Writer};

/// Number of a table in its shard; never reused.
pub type TableId = u64;

/// Version of the store's state in a checkpoint, and of the edits after it.
const VERSION: u32 = 4;
/// Oldest readable version: it has no clock, no deadlines of zones, and no history of resets.
const OLDEST_VERSION: u32 = 2;
/// Maximum number of shards of a store: a record is a member of the streams of all of them.
pub const MAX_SHARDS: u16 = logkit::record::MAX_LINKS as u16;

/// A table in the manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct TableMeta {
    /// Number of the table.
    pub id: TableId,
    /// Level of the table.
    pub level: u8,
    /// Time at which the table was written.
    pub created: Timestamp,
    /// Summary of the table's contents.
    pub summary: Summary,
    /// Places of the table's blocks, in the order of the blocks.
    pub extents: Vec<Extent>,
}

impl TableMeta {
    fn encode(&self, writer: &mut Writer) {
        writer.u64(self.id);
        writer.u8(self.level);
        writer.u64(self.created);
        self.summary.encode(writer);
        writer.u32(self.extents.len() as u32);
        for extent in &self.extents {
            for number in [extent.first, extent.blocks, extent.place.zone.0, extent.place.block] {
                writer.u32(number);
            }
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let (id, level, created) = (reader.u64()?, reader.u8()?, reader.u64()?);
        let summary = Summary::decode(reader)?;
        let mut extents = Vec::new();
        let mut next = 0u32;
        for _ in 0..reader.count(16)? {
            let [first, blocks, zone, position] =
                [reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?];
            let end = first.checked_add(blocks).filter(|_| first == next && blocks > 0);
            next = end.ok_or_else(|| {
                reader.strange(&format!("table {id}: {blocks} blocks from block {first} on; expected block {next}, and at least one"))
            })?;
            extents.push(Extent { first, blocks, place: ZoneBlock::new(zone, position) });
        }
        if usize::from(level) >= MAX_LEVELS {
            return Err(
                reader.strange(&format!("table {id} of level {level}; expected 0 to {}", MAX_LEVELS - 1))
            );
        }
        Ok(TableMeta { id, level, created, summary, extents })
    }
}

/// A change of the manifest.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Edit {
    /// Tables that are added.
    pub added: Vec<TableMeta>,
    /// Tables that are removed.
    pub removed: Vec<TableId>,
    /// New position up to which writes are in tables; `None` if it doesn't change.
    pub flushed: Option<Flushed>,
}

impl Edit {
    /// Encodes the edit.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(self.added.len() as u32);
        self.added.iter().for_each(|table| table.encode(&mut writer));
        writer.u32(self.removed.len() as u32);
        self.removed.iter().for_each(|id| writer.u64(*id));
        writer.u8(self.flushed.is_some().into());
        if let Some(flushed) = self.flushed {
            writer.u64(flushed.record);
            writer.u64(flushed.sequence);
        }
        writer.0
    }

    /// Decodes an edit.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that no version of this program writes.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "an edit of the manifest");
        let mut edit = Edit::default();
        for _ in 0..reader.count(1)? {
            edit.added.push(TableMeta::decode(&mut reader)?);
        }
        for _ in 0..reader.count(8)? {
            edit.removed.push(reader.u64()?);
        }
        edit.flushed = match reader.u8()? {
            0 => None,
            _ => Some(Flushed { record: reader.u64()?, sequence: reader.u64()? }),
        };
        reader.end()?;
        Ok(edit)
    }
}

/// The manifest of one shard.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifest {
    /// Tables in the order in which they were added.
    pub tables: Vec<TableMeta>,
    /// Position up to which writes are in tables.
    pub flushed: Flushed,
    /// Number of the next table.
    pub next_table: TableId,
}

impl Manifest {
    /// Applies an edit.
    pub fn apply(&mut self, edit: Edit) {
        self.tables.retain(|table| !edit.removed.contains(&table.id));
        for table in edit.added {
            self.next_table = self.next_table.max(table.id + 1);
            self.tables.retain(|other| other.id != table.id);
            self.tables.push(table);
        }
        if let Some(flushed) = edit.flushed {
            self.flushed = flushed;
        }
    }
}

/// State of the store in a checkpoint: the manifests of all shards, and that of persistent deletes.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// Manifest of each shard.
    pub shards: Vec<Manifest>,
    /// Zones that must be reset.
    pub stale: Vec<Stale>,
    /// Deadline clock.
    pub clock: Timestamp,
    /// History of the guarantees of resets.
    pub resets: ResetHistory,
}

impl State {
    /// Encodes the state.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(VERSION);
        writer.u32(self.shards.len() as u32);
        for shard in &self.shards {
            writer.u64(shard.flushed.record);
            writer.u64(shard.flushed.sequence);
            writer.u64(shard.next_table);
            writer.u32(shard.tables.len() as u32);
            shard.tables.iter().for_each(|table| table.encode(&mut writer));
        }
        writer.u32(self.stale.len() as u32);
        for stale in &self.stale {
            writer.u32(stale.zone);
            writer.u64(stale.generation);
            writer.u64(stale.due);
            writer.u64(stale.deadline);
        }
        writer.u64(self.clock);
        self.resets.encode(&mut writer);
        writer.0
    }

    /// Decodes a state.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that no version of this program writes; [`Error::Unsupported`] for other
    /// versions.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "the manifest of the store");
        let version = reader.u32()?;
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            return Err(Error::unsupported(format!(
                "the store has version {version} of its format; this program reads versions {OLDEST_VERSION} to {VERSION}: back it up with the program that wrote it"
            )));
        }
        let mut shards = Vec::new();
        for _ in 0..reader.count(28)? {
            let flushed = Flushed { record: reader.u64()?, sequence: reader.u64()? };
            let next_table = reader.u64()?;
            let mut tables = Vec::new();
            for _ in 0..reader.count(1)? {
                tables.push(TableMeta::decode(&mut reader)?);
            }
            shards.push(Manifest { tables, flushed, next_table });
        }
        let mut stale = Vec::new();
        for _ in 0..reader.count(20)? {
            let (zone, generation, due) = (reader.u32()?, reader.u64()?, reader.u64()?);
            let deadline = if version == VERSION { reader.u64()? } else { due };
            stale.push(Stale { zone, generation, due, deadline });
        }
        let (clock, resets) = match version {
            VERSION => (reader.u64()?, ResetHistory::decode(&mut reader)?),
            _ => (0, ResetHistory::new(block::EraseGuarantee::None)),
        };
        reader.end()?;
        match (1..=usize::from(MAX_SHARDS)).contains(&shards.len()) {
            true => Ok(State { shards, stale, clock, resets }),
            false => Err(Error::corrupt(format!(
                "the manifest names {} shards; expected 1 to {MAX_SHARDS}",
                shards.len()
            ))),
        }
    }
}

/// Stream of a shard's writes: its write-ahead log.
pub fn write_stream(shard: u16) -> StreamId {
    StreamId(2 * shard)
}

/// Stream of a shard's tables and edits.
pub fn table_stream(shard: u16) -> StreamId {
    StreamId(2 * shard + 1)
}

/// Shard of a stream.
pub fn shard_of(stream: StreamId) -> u16 {
    stream.0 / 2
}

/// Sets the records of a shard that a checkpoint covers: those of its writes up to `writes`, which replay
/// doesn't need, and all tables and edits up to `tables`.
pub fn cover(covered: &mut Sequences, shard: u16, writes: u64, tables: u64) {
    covered.set(write_stream(shard), writes);
    covered.set(table_stream(shard), tables);
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::EraseGuarantee;

    #[test]
    fn the_version_before_is_read_as_one_of_which_resets_nothing_is_known() {
        let stale = vec![Stale { zone: 7, generation: 3, due: 50, deadline: 90 }];
        let resets = ResetHistory::new(EraseGuarantee::Erased);
        let state = State { shards: vec![Manifest::default()], stale, clock: 1234, resets };
        assert_eq!(State::decode(&state.encode()).unwrap(), state);
        let mut old = Writer::default();
        old.u32(2);
        old.u32(1);
        (0..3).for_each(|_| old.u64(0));
        old.u32(0);
        old.u32(1);
        old.u32(7);
        [3, 50].into_iter().for_each(|number| old.u64(number));
        let found = State::decode(&old.0).unwrap();
        assert_eq!(found.stale, [Stale { zone: 7, generation: 3, due: 50, deadline: 50 }]);
        assert_eq!((found.clock, found.resets), (0, ResetHistory::new(EraseGuarantee::None)));
        old.0[0] = 5;
        assert!(matches!(State::decode(&old.0), Err(Error::Unsupported(_))));
    }
}
