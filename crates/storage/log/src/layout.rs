//! Numbering of the zones' blocks for maps, and the division of the volume's blocks among shards.

use crate::map::Physical;
use crate::stripes::Stripes;
use block::{BlockSize, Error, Result, ZoneBlock, ZoneGeometry, ZoneIndex};

/// Block size of a log, in bytes.
pub const BLOCK: u64 = 4096;
/// The largest record, in bytes.
pub const MAX_APPEND: u64 = zones::on_device::defaults::MAX_APPEND;

/// The kit's division of zones into blocks, with a number for each block of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    kit: logkit::Layout,
    /// 2^64 / `zone_blocks`, rounded up: each block number in a map is divided by `zone_blocks`, a thousand
    /// times per page.
    reciprocal: u64,
    /// Division of the volume's blocks among shards.
    pub stripes: Stripes,
}

impl std::ops::Deref for Layout {
    type Target = logkit::Layout;

    #[inline]
    fn deref(&self) -> &logkit::Layout {
        &self.kit
    }
}

impl Layout {
    /// Divides these zones into blocks of this size.
    ///
    /// # Errors
    /// [`Error::Invalid`] for zones that are too small or too many.
    pub fn new(geometry: &ZoneGeometry, block_size: BlockSize) -> Result<Self> {
        Self::of(logkit::Layout::new(geometry, block_size)?)
    }

    /// Numbers the blocks of the kit's division.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more blocks than a map can name.
    pub fn of(kit: logkit::Layout) -> Result<Self> {
        if kit.blocks() > u64::from(u32::MAX) {
            return Err(Error::invalid(format!(
                "{} zones of {} blocks: expected at most {} blocks of {} bytes in all; take a smaller device, such as a part of this \
                 one (linear(…, size=15TiB))",
                kit.zones,
                kit.zone_blocks,
                u32::MAX,
                kit.block_size
            )));
        }
        let reciprocal = u64::MAX / u64::from(kit.zone_blocks) + 1;
        Ok(Layout { kit, reciprocal, stripes: Stripes::ONE })
    }

    /// Returns the layout of a log whose volume is divided among shards.
    #[must_use]
    pub fn with_stripes(self, stripes: Stripes) -> Self {
        Layout { stripes, ..self }
    }

    /// Returns the number of a block of a zone.
    #[inline]
    pub fn physical(&self, at: ZoneBlock) -> Physical {
        Physical(at.zone.0 * self.kit.zone_blocks + at.block)
    }

    /// Returns the zone of a block, and the block in it.
    #[inline]
    pub fn place(&self, physical: Physical) -> ZoneBlock {
        // Exact for every 32-bit dividend: Granlund and Montgomery, "Division by invariant integers using
        // multiplication", PLDI 1994. The processor's division takes several times as long.
        let zone = ((u128::from(physical.0) * u128::from(self.reciprocal)) >> 64) as u32;
        ZoneBlock { zone: ZoneIndex(zone), block: physical.0 - zone * self.kit.zone_blocks }
    }

    /// Most single blocks of a record, each from a different position of the volume.
    pub fn single_blocks(&self) -> u32 {
        self.kit.record_blocks(crate::format::EXTENT)
    }

    /// Number of data blocks, summary and headers subtracted, that always fit a zone which the cleaner fills
    /// with single blocks.
    pub fn data_blocks(&self) -> u32 {
        self.kit.data_blocks(crate::format::EXTENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(zone_blocks: u32, zones: u32, max_append: u32) -> Layout {
        let block_size = BlockSize::default();
        Layout::of(logkit::Layout { block_size, zone_blocks, zones, max_append }).expect("few enough blocks")
    }

    #[test]
    fn places_go_both_ways() {
        let layout = layout(15, 9, 15);
        for zone in 0..9 {
            for position in 0..15 {
                let at = ZoneBlock { zone: ZoneIndex(zone), block: position };
                assert_eq!(layout.place(layout.physical(at)), at);
            }
        }
    }

    #[test]
    fn places_are_exact_for_every_size_of_zone() {
        for zone_blocks in [2, 3, 7, 15, 64, 4095, 4096, 65_535, 65_537, 1 << 31, u32::MAX] {
            let layout = layout(zone_blocks, 1, zone_blocks);
            let near = |block: u32| [block.wrapping_sub(1), block, block.wrapping_add(1)];
            let multiples = (0..40).map(|shift| (u64::from(zone_blocks) << shift) as u32);
            for block in multiples.chain([u32::MAX]).flat_map(near) {
                let expected = ZoneBlock { zone: ZoneIndex(block / zone_blocks), block: block % zone_blocks };
                assert_eq!(
                    layout.place(Physical(block)),
                    expected,
                    "block {block} of zones of {zone_blocks}"
                );
            }
        }
    }

    #[test]
    fn a_zone_of_the_cleaner_is_nearly_all_data() {
        let layout = layout(4095, 9, 512);
        let share = f64::from(layout.data_blocks()) / f64::from(layout.zone_blocks);
        assert!((0.98..0.99).contains(&share), "{share}");
        assert!(layout.data_blocks() < layout.zone_blocks);
    }
}
