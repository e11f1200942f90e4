//! Data blocks that are known to be damaged: reads of them fail.
//!
//! Reads of a log aren't verified with checksums. Records after a checkpoint are, when the log is opened: a
//! block with wrong data of a record that had been durable must not be read as good data. The list of these
//! blocks is part of each checkpoint ([`Directory`](crate::directory::Directory)); a block is removed from it
//! when its zone has been reset.
//!
//! Blocks of a [salvaged](crate::salvage) log whose location is unknown also fail: the map has them in a root
//! zone.

use crate::layout::Layout;
use crate::map::Physical;
use block::{Error, Result, ZoneBlock, ZoneIndex};
use logkit::ZonePool;
use logkit::layout::ROOT_ZONES;
use std::sync::Arc;

/// The damaged blocks, with the generations of their zones, in order.
#[derive(Debug)]
pub struct Damaged {
    blocks: Vec<(Physical, u64)>,
    /// Reasons why locations are unknown, by location, starting at block 1.
    unknown: Vec<String>,
    layout: Layout,
    pool: Arc<ZonePool>,
}

impl Damaged {
    /// Creates the list of the blocks that a checkpoint names, and those (zone and block) that recovery found
    /// after it.
    pub fn new(
        mut known: Vec<(Physical, u64)>,
        found: &[(u32, u32)],
        layout: Layout,
        pool: Arc<ZonePool>,
    ) -> Self {
        let generation = |zone| pool.get(zone).generation;
        known.extend(found.iter().map(|(zone, position)| {
            (layout.physical(ZoneBlock { zone: ZoneIndex(*zone), block: *position }), generation(*zone))
        }));
        known.sort_unstable();
        known.dedup();
        let mut damaged = Damaged { blocks: known, unknown: Vec::new(), layout, pool };
        damaged.blocks = damaged.list();
        damaged
    }

    /// Adds reasons why locations are unknown, by location, starting at block 1.
    #[must_use]
    pub fn with_unknown(self, unknown: Vec<String>) -> Self {
        Damaged { unknown, ..self }
    }

    /// Returns the blocks whose zones haven't been reset since.
    pub fn list(&self) -> Vec<(Physical, u64)> {
        self.blocks.iter().filter(|block| self.is_there(block)).copied().collect()
    }

    fn is_there(&self, (physical, generation): &(Physical, u64)) -> bool {
        let zone = self.layout.place(*physical).zone.0;
        zone < self.layout.zones && self.pool.get(zone).generation == *generation
    }

    /// Describes the damaged blocks for operators; `None` if there are none.
    pub fn describe(&self) -> Option<String> {
        let all = self.list();
        let ZoneBlock { zone, block } = self.layout.place(all.first()?.0);
        Some(format!(
            "{} data blocks are damaged, the first of them block {block} of zone {zone}; they can't be read",
            all.len()
        ))
    }

    /// Checks that a range has no damaged block.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first damaged block, or the reason why its location is unknown.
    #[inline]
    pub fn check(&self, from: Physical, count: u64) -> Result<()> {
        match self.blocks.is_empty() && self.unknown.is_empty() {
            true => Ok(()),
            false => self.check_list(from, count),
        }
    }

    #[cold]
    fn check_list(&self, from: Physical, count: u64) -> Result<()> {
        if from.0 < ROOT_ZONES * self.layout.zone_blocks {
            // Also for the start of a range that continues in the first zone with data.
            let cause = self.unknown.get((from.0 as usize).saturating_sub(1));
            let cause = cause.map_or("its location is unknown", String::as_str);
            return Err(Error::corrupt(format!("the block can't be read: {cause}")));
        }
        let start = self.blocks.partition_point(|(physical, _)| *physical < from);
        let within = self.blocks[start..]
            .iter()
            .take_while(|(physical, _)| u64::from(physical.0) < u64::from(from.0) + count);
        match within.into_iter().find(|block| self.is_there(block)) {
            None => Ok(()),
            Some((physical, _)) => {
                let ZoneBlock { zone, block } = self.layout.place(*physical);
                Err(Error::corrupt(format!(
                    "block {block} of zone {zone} had a wrong checksum when the log was opened after an unclean stop: it is damaged; \
                     write it again, or restore it from a backup"
                )))
            }
        }
    }
}
