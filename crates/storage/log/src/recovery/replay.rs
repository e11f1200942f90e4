//! Replay of records one by one on the maps of a checkpoint. If all records only map, unmap and move blocks
//! of the volume, [`batched`](super::batched) is faster, with the same result.

use crate::changes::Replayable;
use crate::format::Change;
use crate::layout::Layout;
use crate::map::Physical;
use crate::versions::{Effect, Versions, apply};
use block::{Error, Result, ZoneBlock, ZoneIndex};
use logkit::ZonePool;
use logkit::layout::ROOT_ZONES;
use smallvec::SmallVec;

/// Replay of records on the maps of a checkpoint.
pub(crate) struct Replay<'a> {
    pub(crate) versions: &'a mut Versions,
    pub(crate) pool: &'a ZonePool,
    pub(crate) layout: &'a Layout,
    pub(crate) clock: u64,
}

/// Checks that a record has as many data blocks as its entries.
///
/// # Errors
/// [`Error::Corrupt`] with both numbers.
pub(super) fn check_length(record: &Replayable, named: u32) -> Result<()> {
    let header = &record.header;
    if named == header.blocks {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "record {} of stream {}: {} data blocks; expected {named}, as its entries have",
        header.sequence, header.stream.0, header.blocks
    )))
}

impl Replay<'_> {
    /// Replays these records, in this order.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that no version of this program writes.
    pub(crate) fn run(&mut self, records: &[Replayable]) -> Result<()> {
        records.iter().try_for_each(|record| self.replay(record))
    }

    /// Looks up all blocks that a record writes in one batch, since single changes of a large map would each
    /// wait for memory.
    fn touch(&self, changes: &[Change]) {
        let mut blocks = SmallVec::<[u64; 256]>::new();
        let mut map = None;
        for change in changes {
            if let Change::Write { version, block, .. } = change
                && *map.get_or_insert(*version) == *version
            {
                blocks.push(*block);
            }
        }
        if let Some(version) = map.and_then(|map| self.versions.get(map)) {
            blocks.retain(|block| *block < version.blocks);
            let mut found = SmallVec::<[Physical; 256]>::from_elem(Physical::NONE, blocks.len());
            version.map.lookup_batch(&blocks, &mut found);
        }
    }

    fn replay(&mut self, record: &Replayable) -> Result<()> {
        let header = &record.header;
        let (zone, mut position) = (ZoneIndex(header.zone), header.position + 1);
        let (pool, layout, clock) = (self.pool, self.layout, self.clock);
        let changes = record.changes.iter().collect::<Result<Vec<Change>>>()?;
        check_length(record, changes.iter().map(Change::data_blocks).fold(0, u32::saturating_add))?;
        self.touch(&changes);
        for change in changes {
            let physical = layout.physical(ZoneBlock { zone, block: position });
            position += change.data_blocks();
            if let Change::Write { count, .. } = &change {
                self.clock += u64::from(*count);
            }
            let died = |physical, blocks| match layout.place(physical).zone.0 {
                // Block of a salvaged log whose location was unknown.
                zone if zone < ROOT_ZONES => {}
                zone => pool.remove_live(zone, blocks, clock),
            };
            let applied = apply(self.versions, &change, zone, physical, &mut |effect| match effect {
                Effect::Live(zone, blocks) => pool.add_live(zone.0, blocks as u32),
                Effect::Dead(physical, blocks) => died(physical, blocks as u32),
            });
            // No request waits during recovery.
            while self.versions.release(u64::MAX, &mut |physical| died(physical, 1)) {}
            // A change that failed originally fails again in the same state, and changes nothing.
            match applied {
                Ok(())
                | Err(Error::NotFound(_) | Error::Invalid(_) | Error::AlreadyExists(_) | Error::Busy(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
