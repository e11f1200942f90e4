//! Positions of superblocks, headers and data on the device.

use super::format::RECORD;
use super::slot::MAX_BLOCKS;
use block::{BlockCount, BlockIndex, BlockRange, BlockSize, DeviceGeometry, Error, Result};

/// Alignment of zone 0 if zones are at least as large, in bytes; else it is the size of a zone.
const ALIGNMENT: u64 = 1 << 20;
/// Smallest area of a superblock or a header, in bytes, so that data is aligned to pages on any device.
const MIN_AREA: u64 = 4096;

/// Smallest size of a zone with which the formatter leaves a staging area by default, in bytes.
const MIN_ZONE_OF_STAGING: u64 = 4 << 20;
/// Smallest number of zones beside a staging area by default: a volume with fewer has no store on it.
const MIN_ZONES_OF_STAGING: u32 = 16;
/// Default size of the staging area, in bytes.
const STAGING: u64 = 1 << 20;
/// Largest size of the staging area, in bytes: a store reads all of it when it is opened.
const MAX_STAGING: u64 = 64 << 20;

/// Division of a device into two superblocks, the headers of all zones one after the other, so that opening
/// reads them in large pieces, and zones. Each header has an area of its own: it is written independently of
/// the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) block_size: BlockSize,
    /// Distance between two zones, in bytes.
    pub(super) zone_size: u64,
    /// Start of zone 0, in bytes.
    pub(super) first_zone: u64,
    pub(super) zones: u32,
    /// Size of the staging area before zone 0, in bytes; 0 without one.
    pub(super) staging: u64,
}

/// Size of the area of a superblock or of a zone's header, in bytes.
pub(super) fn area(block_size: BlockSize) -> u64 {
    block_size.bytes().max(MIN_AREA)
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
    /// Layout with as many zones of this size as the device has space for, and a staging area of `staging`
    /// bytes; by default 1 MiB if at least 16 zones of at least 4 MiB fit beside it.
    pub(super) fn for_device(
        geometry: &DeviceGeometry,
        zone_size: u64,
        staging: Option<u64>,
    ) -> Result<Self> {
        let Some(staging) = staging else {
            let with_staging = (zone_size >= MIN_ZONE_OF_STAGING)
                .then(|| Self::for_device(geometry, zone_size, Some(STAGING)))
                .and_then(Result::ok)
                .filter(|layout| layout.zones >= MIN_ZONES_OF_STAGING);
            return with_staging.map_or_else(|| Self::for_device(geometry, zone_size, Some(0)), Ok);
        };
        let block_size = geometry.block_size;
        let area = area(block_size);
        if zone_size < 2 * area
            || !zone_size.is_multiple_of(area)
            || zone_size >> block_size.shift() > MAX_BLOCKS
        {
            return Err(Error::invalid(format!(
                "zone_size {zone_size}: expected a multiple of {area} bytes, at least {} and less than 2^41 blocks",
                2 * area
            )));
        }
        if !staging.is_multiple_of(area) || staging > MAX_STAGING {
            return Err(Error::invalid(format!(
                "staging area of {staging} bytes: expected a multiple of {area}, up to {MAX_STAGING}"
            )));
        }
        let room = geometry.bytes().saturating_sub(2 * area + staging) / (zone_size + area);
        let with = |zones: u32| {
            let first_zone =
                ((2 + u64::from(zones)) * area + staging).next_multiple_of(ALIGNMENT.min(zone_size));
            Layout { block_size, zone_size, first_zone, zones, staging }
        };
        let most = with(u32::try_from(room).unwrap_or(u32::MAX));
        // The alignment may have taken the space of the last zone.
        let layout = if most.end() > geometry.bytes() { with(most.zones.saturating_sub(1)) } else { most };
        layout.check(geometry).map(|()| layout)
    }

    /// Checks a layout, from any source, against the rules and the device.
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
        let headers = (2 + u64::from(self.zones)) * area;
        let staging_is_possible = self.staging <= MAX_STAGING && self.staging.is_multiple_of(area);
        let start_is_possible = staging_is_possible
            && self.first_zone >= headers + self.staging
            && self.first_zone.is_multiple_of(area);
        if !size_is_possible || !start_is_possible || self.capacity() >> self.block_size.shift() > MAX_BLOCKS
        {
            return Err(Error::corrupt(format!(
                "superblock of zones: fields out of range: zones={}, zone_size={}, first_zone={}, staging={}",
                self.zones, self.zone_size, self.first_zone, self.staging
            )));
        }
        if self.zones == 0 || self.end() > geometry.bytes() {
            return Err(Error::invalid(format!(
                "{} zones of {} bytes from byte {} on: the device has {} bytes; expected at least one zone, \
                 and space for all",
                self.zones,
                self.zone_size,
                self.first_zone,
                geometry.bytes()
            )));
        }
        Ok(())
    }

    /// End of the last zone, in bytes.
    fn end(&self) -> u64 {
        let zones = u64::from(self.zones).checked_mul(self.zone_size);
        zones.and_then(|bytes| bytes.checked_add(self.first_zone)).unwrap_or(u64::MAX)
    }

    /// Capacity of a zone, in bytes.
    pub(super) fn capacity(&self) -> u64 {
        self.zone_size
    }

    fn block_at(&self, byte: u64) -> BlockIndex {
        BlockIndex(byte >> self.block_size.shift())
    }

    /// Block of superblock copy 0 or 1.
    pub(super) fn superblock(block_size: BlockSize, copy: u64) -> BlockIndex {
        BlockIndex((copy * area(block_size)) >> block_size.shift())
    }

    /// Block of a zone's header.
    pub(super) fn header(&self, zone: u32) -> BlockIndex {
        self.block_at((2 + u64::from(zone)) * area(self.block_size))
    }

    /// Block that holds this byte of a zone's data.
    pub(super) fn data(&self, zone: u32, offset: u64) -> BlockIndex {
        self.block_at(self.first_zone + u64::from(zone) * self.zone_size + offset)
    }

    /// Blocks of the staging area; `None` without one.
    pub(super) fn staging_range(&self) -> Option<BlockRange> {
        let count = BlockCount(self.staging >> self.block_size.shift());
        let start = self.block_at(self.first_zone - self.staging);
        (count.0 > 0).then_some(BlockRange { start, count })
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
            let layout = Layout::for_device(&geometry, zone_size, None).expect("fits");
            let area = area(layout.block_size) >> layout.block_size.shift();
            for zone in 0..layout.zones {
                assert_eq!(layout.header(zone).0, (2 + u64::from(zone)) * area);
                let data = layout.data_range(zone);
                assert!(layout.header(zone).0 + area <= layout.data_range(0).start.0);
                assert!(data.end().0 <= geometry.blocks.0);
                if zone > 0 {
                    assert_eq!(layout.data_range(zone - 1).end(), data.start);
                }
            }
            assert_eq!(Layout::superblock(layout.block_size, 1).0, area);
            // Another zone would not have fitted, with its header and the alignment.
            assert!(geometry.bytes() - layout.end() < 2 * zone_size, "{layout:?}");
        }
    }

    #[test]
    fn headers_and_zones_share_a_device_to_its_last_block() {
        // Two superblocks, five headers and five zones, exactly; with a block less there are four.
        let exact = 7 * 4096 + 5 * 28672;
        let layout = |bytes| Layout::for_device(&geometry(bytes, 4096), 28672, None).expect("fits");
        assert_eq!((layout(exact).zones, layout(exact).first_zone), (5, 28672));
        assert_eq!(layout(exact - 4096).zones, 4);
        for bytes in (exact..3 * exact).step_by(4096) {
            let layout = layout(bytes);
            assert!(layout.end() <= bytes && layout.end() + 2 * 28672 > bytes, "{bytes}: {layout:?}");
        }
    }

    #[test]
    fn a_staging_area_is_between_the_headers_and_the_zones() {
        let zones_of = |bytes, zone_size| Layout::for_device(&geometry(bytes, 4096), zone_size, None);
        let layout = zones_of(1 << 30, 4 << 20).expect("fits");
        let staging = layout.staging_range().expect("large zones have one");
        assert_eq!((staging.count.0, staging.end()), (256, layout.data(0, 0)));
        assert!(staging.start.0 > layout.header(layout.zones - 1).0, "{layout:?}");
        // Small zones and few zones have none.
        assert_eq!(zones_of(1 << 30, 2 << 20).expect("fits").staging, 0);
        assert_eq!(zones_of(64 << 20, 4 << 20).expect("fits").staging, 0);
        for staging in [100, 65 << 20, u64::MAX] {
            assert!(Layout::for_device(&geometry(1 << 30, 4096), 4 << 20, Some(staging)).is_err());
            assert!(Layout { staging, ..layout }.check(&geometry(1 << 30, 4096)).is_err());
        }
        // It may not reach into the headers.
        assert!(Layout { staging: 2 << 20, ..layout }.check(&geometry(1 << 30, 4096)).is_err());
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        for zone_size in [0, 4096, 8191, 65536 + 512, 64 << 20, u64::MAX, u64::MAX - 4095] {
            assert!(Layout::for_device(&geometry(40 << 20, 4096), zone_size, None).is_err(), "{zone_size}");
        }
        let hostile = [
            (0, 65536, 9),
            (8192, 0, 9),
            (8192, 8192, 0),
            (!4095, 65536, 2),
            (8192, !4095, 1),
            // The headers reach into the first zone.
            (8192, 40960, 9),
            (8192, 65536, u32::MAX),
        ];
        for (zone_size, first_zone, zones) in hostile {
            let layout =
                Layout { block_size: BlockSize::default(), zone_size, first_zone, zones, staging: 0 };
            assert!(layout.check(&geometry(40 << 20, 4096)).is_err(), "{layout:?}");
        }
    }
}
