//! Where what lies on the device.

use super::format::RECORD;
use super::slot::MOST_BLOCKS;
use block::{BlockCount, BlockIndex, BlockRange, BlockSize, DeviceGeometry, Error, Result};

/// The largest distance from the start of the device to zone 0, and what it is aligned to where zones are
/// at least as large, in bytes.
const FIRST_ZONE: u64 = 1 << 20;
/// The smallest area of a superblock or a header, in bytes, so that data is aligned to pages on any device.
const SMALLEST_AREA: u64 = 4096;

/// The division of a device into two superblocks and zones, each of which begins with its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) block_size: BlockSize,
    /// The distance between two zones, in bytes.
    pub(super) zone_size: u64,
    /// Where zone 0 begins, in bytes.
    pub(super) first_zone: u64,
    pub(super) zones: u32,
}

/// How many bytes a superblock, or the header of a zone, takes.
fn area(block_size: BlockSize) -> u64 {
    block_size.bytes().max(SMALLEST_AREA)
}

/// Refuses devices on which a record of 512 bytes could be torn.
pub(super) fn check_device(geometry: &DeviceGeometry) -> Result<()> {
    if (geometry.atomic_write as usize) < RECORD {
        return Err(Error::unsupported(format!(
            "zones on a device whose writes may be torn at {} bytes: expected at least {RECORD}",
            geometry.atomic_write
        )));
    }
    Ok(())
}

impl Layout {
    /// As many zones of this size as the device has room for.
    pub(super) fn for_device(geometry: &DeviceGeometry, zone_size: u64) -> Result<Self> {
        let block_size = geometry.block_size;
        let area = area(block_size);
        if zone_size < 2 * area
            || !zone_size.is_multiple_of(area)
            || zone_size >> block_size.shift() > MOST_BLOCKS
        {
            return Err(Error::invalid(format!(
                "zone_size {zone_size}: expected a multiple of {area} bytes, at least {} and less than 2^41 blocks",
                2 * area
            )));
        }
        let first_zone = (2 * area).max(FIRST_ZONE.min(zone_size));
        let room = geometry.bytes().saturating_sub(first_zone) / zone_size;
        let zones = u32::try_from(room).unwrap_or(u32::MAX);
        let layout = Layout { block_size, zone_size, first_zone, zones };
        layout.check(geometry).map(|()| layout)
    }

    /// Checks a layout, from wherever it came, against the rules and the device.
    pub(super) fn check(&self, geometry: &DeviceGeometry) -> Result<()> {
        let area = area(self.block_size);
        if self.block_size != geometry.block_size {
            return Err(Error::invalid(format!(
                "the zones were made on blocks of {} bytes and the device has blocks of {}: open it with \
                 block_size={}",
                self.block_size, geometry.block_size, self.block_size
            )));
        }
        let size_is_possible = self.zone_size >= 2 * area && self.zone_size.is_multiple_of(area);
        let start_is_possible = self.first_zone >= 2 * area && self.first_zone.is_multiple_of(area);
        if !size_is_possible || !start_is_possible || self.capacity() >> self.block_size.shift() > MOST_BLOCKS
        {
            return Err(Error::corrupt(format!(
                "zones of {} bytes from byte {} on can't be",
                self.zone_size, self.first_zone
            )));
        }
        let end = u64::from(self.zones)
            .checked_mul(self.zone_size)
            .and_then(|bytes| bytes.checked_add(self.first_zone))
            .unwrap_or(u64::MAX);
        if self.zones == 0 || end > geometry.bytes() {
            return Err(Error::invalid(format!(
                "{} zones of {} bytes from byte {} on: the device has {} bytes; expected at least one zone, \
                 and room for all",
                self.zones,
                self.zone_size,
                self.first_zone,
                geometry.bytes()
            )));
        }
        Ok(())
    }

    /// How many bytes of data a zone takes.
    pub(super) fn capacity(&self) -> u64 {
        self.zone_size - area(self.block_size)
    }

    fn block_at(&self, byte: u64) -> BlockIndex {
        BlockIndex(byte >> self.block_size.shift())
    }

    /// The block of superblock copy 0 or 1.
    pub(super) fn superblock(block_size: BlockSize, copy: u64) -> BlockIndex {
        BlockIndex((copy * area(block_size)) >> block_size.shift())
    }

    /// The block of a zone's header.
    pub(super) fn header(&self, zone: u32) -> BlockIndex {
        self.block_at(self.first_zone + u64::from(zone) * self.zone_size)
    }

    /// The block that holds this byte of a zone's data.
    pub(super) fn data(&self, zone: u32, offset: u64) -> BlockIndex {
        let start = self.first_zone + u64::from(zone) * self.zone_size + area(self.block_size);
        self.block_at(start + offset)
    }

    /// All blocks of a zone's data.
    pub(super) fn data_range(&self, zone: u32) -> BlockRange {
        let count = BlockCount(self.capacity() >> self.block_size.shift());
        BlockRange { start: self.data(zone, 0), count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(bytes: u64, block_size: u64) -> DeviceGeometry {
        let block_size = BlockSize::new(block_size).expect("a valid size");
        let blocks = BlockCount(bytes >> block_size.shift());
        DeviceGeometry { block_size, blocks, atomic_write: 512, volatile_cache: true, read_only: false }
    }

    #[test]
    fn zones_fill_the_device_and_do_not_touch() {
        for (block_size, zone_size) in [(512, 8192), (4096, 65536), (65536, 131072), (4096, 4 << 20)] {
            let geometry = geometry(40 << 20, block_size);
            let layout = Layout::for_device(&geometry, zone_size).expect("fits");
            for zone in 0..layout.zones {
                let data = layout.data_range(zone);
                assert!(layout.header(zone) < data.start);
                let next =
                    if zone + 1 < layout.zones { layout.header(zone + 1).0 } else { geometry.blocks.0 };
                assert!(data.end().0 <= next);
            }
            assert!(Layout::superblock(layout.block_size, 1) < layout.header(0));
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        for zone_size in [0, 4096, 8191, 65536 + 512, 64 << 20, u64::MAX, u64::MAX - 4095] {
            assert!(Layout::for_device(&geometry(40 << 20, 4096), zone_size).is_err(), "{zone_size}");
        }
        let hostile = [(0, 8192, 9), (8192, 0, 9), (8192, 8192, 0), (!4095, 8192, 2), (8192, !4095, 1)];
        for (zone_size, first_zone, zones) in hostile {
            let layout = Layout { block_size: BlockSize::default(), zone_size, first_zone, zones };
            assert!(layout.check(&geometry(40 << 20, 4096)).is_err(), "{layout:?}");
        }
    }
}
