//! Layout of the fast device: two superblocks, two slots for checkpoints, the ring, the read cache.

use crate::format::{MAX_ENTRIES, PAGE, ZONES_OF_PAGE, header_bytes};
use crate::read_cache::{Region, SIZES};
use block::{BlockIndex, DeviceGeometry, Error, Result, ZoneGeometry};
use stack::format_size;

/// Limit of the zones of an origin: the tables of zones are held in memory.
pub const MAX_ZONES: u32 = 1 << 18;
/// Limit of the data of a record, unless one append is larger.
const RECORD_DATA: u64 = 1 << 20;
/// Limit of an append: an append is one record.
pub const MAX_APPEND: u64 = 4 << 20;
/// Limit of the log between a checkpoint and the tail. An open reads that much log, and a checkpoint of
/// [`MAX_ZONES`] zones is a twelfth of it.
const CHECKPOINT_DISTANCE: u64 = 64 << 20;
/// Distance of the superblocks, in bytes, unless a block is larger.
const MIN_SUPERBLOCK_DISTANCE: u64 = 4096;

/// Distance of the two copies of the superblock, in bytes.
pub fn superblock_distance(block_size: u64) -> u64 {
    MIN_SUPERBLOCK_DISTANCE.max(block_size)
}

/// Alignment of the read cache, in bytes: devices read and write whole pages.
fn read_cache_alignment(block_size: u64) -> u64 {
    (PAGE as u64).max(block_size)
}

/// Layout of a fast device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Unit of the device.
    pub block_size: u64,
    /// Bytes of a slot for a checkpoint.
    slot: u64,
    /// Start of the ring.
    ring_start: u64,
    /// Bytes of the ring.
    pub ring: u64,
    /// Limit of the data of a record, unless one append is larger.
    pub record_data: u64,
    /// Bytes of the read cache, which is after the ring.
    read_cache: u64,
}

/// Sizes that follow from both devices and the limit of the lag.
struct Sizes {
    block_size: u64,
    slot: u64,
    ring_start: u64,
    record_data: u64,
    /// Bytes from the start of the ring to the end of the device.
    available: u64,
    /// Smallest permitted ring, in bytes.
    needed: u64,
}

/// Largest append that the cache accepts.
pub fn max_append(origin: &ZoneGeometry) -> u64 {
    let unit = u64::from(origin.append_granularity).max(1);
    origin.max_append.min((MAX_APPEND / unit * unit).max(unit))
}

/// Limit of the bytes of a record, whatever the limits of the lag and of an append were when it was written:
/// the origin's limit of an append isn't a part of its format, and may be another one at each open.
pub fn max_record(block_size: u64, granularity: u32) -> u64 {
    record_bytes(block_size, RECORD_DATA.max(MAX_APPEND).max(u64::from(granularity)))
}

fn record_bytes(block_size: u64, data: u64) -> u64 {
    header_bytes(MAX_ENTRIES, block_size) + data.next_multiple_of(block_size)
}

impl Sizes {
    fn new(device: &DeviceGeometry, origin: &ZoneGeometry, max_lag: u64) -> Result<Self> {
        if origin.zones > MAX_ZONES {
            return Err(Error::invalid(format!(
                "origin with {} zones: expected at most {MAX_ZONES}; use larger zones",
                origin.zones
            )));
        }
        let block_size = device.block_size.bytes();
        let pages = u64::from(origin.zones).div_ceil(ZONES_OF_PAGE as u64);
        let slot = (pages * PAGE as u64).next_multiple_of(block_size);
        let ring_start = 2 * superblock_distance(block_size) + 2 * slot;
        // Small appends have a header each, so the log of a lag is up to twice as long as its data.
        let record_data = RECORD_DATA.min(max_lag / 4).max(max_append(origin));
        let needed = (2 * max_lag + 4 * record_bytes(block_size, record_data)).next_multiple_of(block_size);
        let available = device.bytes().saturating_sub(ring_start) / block_size * block_size;
        Ok(Sizes { block_size, slot, ring_start, record_data, available, needed })
    }

    fn too_small(&self, device: &DeviceGeometry, origin: &ZoneGeometry, read_cache: u64) -> Error {
        let of_reads = match read_cache {
            0 => String::new(),
            bytes => format!(", {} for read_cache", format_size(bytes)),
        };
        Error::invalid(format!(
            "fast device of {}: expected at least {} ({} for the log of max_lag, {} for superblocks and two checkpoints \
             of {} zones{of_reads}); use a larger device or a smaller max_lag{}",
            format_size(device.bytes()),
            format_size(self.ring_start + self.needed + read_cache),
            format_size(self.needed),
            format_size(self.ring_start),
            origin.zones,
            if read_cache == 0 { "" } else { " or read_cache" },
        ))
    }

    fn layout(&self, ring: u64, read_cache: u64) -> Layout {
        let Sizes { block_size, slot, ring_start, record_data, .. } = *self;
        Layout { block_size, slot, ring_start, ring, record_data, read_cache }
    }
}

impl Layout {
    /// Layout of a device that is formatted for an origin with this geometry. By default the read cache gets
    /// half of the space that the ring doesn't need; the other half keeps recent data in the ring, and
    /// permits a larger max_lag.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that is too small for this limit of the lag, with the sizes; for an
    /// origin with too many zones.
    pub fn for_device(
        device: &DeviceGeometry,
        origin: &ZoneGeometry,
        max_lag: u64,
        read_cache: Option<u64>,
    ) -> Result<Self> {
        let sizes = Sizes::new(device, origin, max_lag)?;
        if sizes.available < sizes.needed {
            return Err(sizes.too_small(device, origin, read_cache.unwrap_or(0)));
        }
        let spare = sizes.available - sizes.needed;
        let wanted = read_cache.unwrap_or_else(|| match spare / 2 {
            half if half < *SIZES.start() => 0,
            half => half.min(*SIZES.end()),
        });
        if wanted == 0 {
            return Ok(sizes.layout(sizes.available, 0));
        }
        let end = sizes.ring_start + sizes.available;
        let alignment = read_cache_alignment(sizes.block_size);
        let start = end.saturating_sub(wanted) / alignment * alignment;
        if start < sizes.ring_start + sizes.needed {
            return Err(sizes.too_small(device, origin, wanted));
        }
        let ring = (start - sizes.ring_start) / sizes.block_size * sizes.block_size;
        Ok(sizes.layout(ring, end - start))
    }

    /// Layout of a device that was formatted with a ring of this size. The space after the ring is the read
    /// cache, up to `read_cache` bytes. A device that is too small has a layout with a smaller ring.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a ring that is too small for this limit of the lag, with the sizes; for an
    /// origin with too many zones.
    pub fn of_ring(
        device: &DeviceGeometry,
        origin: &ZoneGeometry,
        max_lag: u64,
        ring: u64,
        read_cache: Option<u64>,
    ) -> Result<Self> {
        let sizes = Sizes::new(device, origin, max_lag)?;
        if sizes.available < sizes.needed {
            return Err(sizes.too_small(device, origin, 0));
        }
        if ring > sizes.available {
            return Ok(sizes.layout(sizes.available, 0));
        }
        if ring < sizes.needed {
            return Err(Error::invalid(format!(
                "log of {} on the fast device: expected at least {} for max_lag; use a smaller max_lag, or format the device with \
                 a smaller read_cache",
                format_size(ring),
                format_size(sizes.needed)
            )));
        }
        let start = (sizes.ring_start + ring).next_multiple_of(read_cache_alignment(sizes.block_size));
        let after = (sizes.ring_start + sizes.available).saturating_sub(start);
        Ok(sizes.layout(ring, after.min(read_cache.unwrap_or(u64::MAX))))
    }

    /// Region of the read cache; `None` if there is none.
    pub fn read_cache(&self, origin: &ZoneGeometry) -> Option<Region> {
        let start = (self.ring_start + self.ring).next_multiple_of(read_cache_alignment(self.block_size));
        Region::new(start, self.read_cache, self.block_size, origin.read_granularity, origin.zone_capacity)
    }

    /// Bytes of the log between a checkpoint and the tail after which the next checkpoint is written.
    pub fn checkpoint_distance(&self) -> u64 {
        CHECKPOINT_DISTANCE.min(self.ring / 4)
    }

    fn block(&self, byte: u64) -> BlockIndex {
        BlockIndex(byte / self.block_size)
    }

    /// Block of copy `sequence % 2` of the superblock.
    pub fn superblock(&self, sequence: u64) -> BlockIndex {
        self.block(sequence % 2 * superblock_distance(self.block_size))
    }

    /// Block at this byte of the slot of a checkpoint.
    pub fn checkpoint(&self, number: u64, byte: u64) -> BlockIndex {
        let start = 2 * superblock_distance(self.block_size) + number % 2 * self.slot;
        self.block(start + byte)
    }

    /// Bytes of a slot for a checkpoint.
    pub fn slot(&self) -> u64 {
        self.slot
    }

    /// Block of an address of the log, which is a multiple of the block size.
    pub fn log_block(&self, address: u64) -> BlockIndex {
        self.block(self.ring_start + address % self.ring)
    }

    /// Bytes from an address to the end of its lap.
    pub fn bytes_to_lap_end(&self, address: u64) -> u64 {
        self.ring - address % self.ring
    }

    /// Address of a record of this length: `head`, or the start of the next lap if the record doesn't fit
    /// before it. A record never wraps around.
    pub fn record_at(&self, head: u64, length: u64) -> u64 {
        let left = self.bytes_to_lap_end(head);
        match length <= left {
            true => head,
            false => head + left,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{BlockCount, BlockSize, Durable, EraseGuarantee};

    fn geometry(zones: u32) -> ZoneGeometry {
        ZoneGeometry {
            zones,
            zone_size: 1 << 20,
            zone_capacity: 1 << 20,
            append_granularity: 512,
            read_granularity: 512,
            max_append: 1 << 20,
            max_open: 0,
            max_active: 0,
            durable: Durable::OnFlush,
            erase: EraseGuarantee::None,
        }
    }

    fn device(bytes: u64) -> DeviceGeometry {
        DeviceGeometry {
            block_size: BlockSize::new(512).expect("valid"),
            blocks: BlockCount(bytes / 512),
            atomic_write: 512,
            volatile_cache: true,
            read_only: false,
        }
    }

    #[test]
    fn the_parts_of_a_device_do_not_overlap() {
        let layout =
            Layout::for_device(&device(64 << 20), &geometry(1000), 8 << 20, Some(0)).expect("large enough");
        assert!(layout.superblock(1) < layout.checkpoint(0, 0));
        assert_eq!(layout.checkpoint(0, layout.slot()), layout.checkpoint(1, 0));
        assert_eq!(layout.checkpoint(1, layout.slot()), layout.log_block(0));
        assert_eq!(layout.log_block(layout.ring), layout.log_block(0));
        assert_eq!(layout.log_block(layout.ring - 512).0 + 1, (64 << 20) / 512);
        assert_eq!(layout.record_at(layout.ring - 512, 512), layout.ring - 512);
        assert_eq!(layout.record_at(layout.ring - 512, 1024), layout.ring);
    }

    #[test]
    fn a_large_ring_has_no_more_log_to_replay() {
        let distance = |bytes| {
            let layout =
                Layout::for_device(&device(bytes), &geometry(1000), 8 << 20, None).expect("large enough");
            (layout.checkpoint_distance(), layout.ring)
        };
        let (small, ring) = distance(64 << 20);
        assert_eq!(small, ring / 4);
        assert_eq!(distance(1 << 40).0, 64 << 20);
    }

    #[test]
    fn a_device_that_is_too_small_is_refused_with_the_sizes() {
        let error =
            Layout::for_device(&device(8 << 20), &geometry(1000), 8 << 20, None).expect_err("too small");
        assert!(error.detail().starts_with("fast device of 8MiB: expected at least 20"), "{error}");
        assert!(Layout::for_device(&device(64 << 20), &geometry(MAX_ZONES + 1), 8 << 20, None).is_err());
    }

    #[test]
    fn the_read_cache_is_after_the_ring() {
        let (device, origin) = (device(64 << 20), geometry(1000));
        let layout = |read_cache| Layout::for_device(&device, &origin, 8 << 20, read_cache);
        let (none, half) = (layout(Some(0)).expect("valid"), layout(None).expect("valid"));
        assert_eq!(none.read_cache(&origin), None);
        assert!(half.read_cache > 16 << 20 && half.read_cache < none.ring / 2, "{half:?}");
        let region = half.read_cache(&origin).expect("large enough");
        let block = half.block_size;
        assert!(region.block(0, 0).0 * block >= half.ring_start + half.ring);
        assert!((region.block(region.slots - 1, region.chunk).0) * block <= 64 << 20);
        for bytes in [1 << 20, 3 << 20, (40 << 20) + 512] {
            let formatted = layout(Some(bytes)).expect("valid");
            let opened =
                |key| Layout::of_ring(&device, &origin, 8 << 20, formatted.ring, key).expect("valid");
            assert_eq!(opened(None), formatted);
            assert_eq!(opened(Some(1 << 20)).read_cache, 1 << 20, "a part of it");
            assert_eq!(opened(Some(1 << 30)), formatted, "no more than was formatted");
            assert!(formatted.read_cache >= bytes && formatted.read_cache < bytes + 8192);
        }
        let error = layout(Some(60 << 20)).expect_err("no space for the ring");
        assert!(error.detail().contains("60MiB for read_cache"), "{error}");
    }

    #[test]
    fn a_ring_of_the_whole_device_has_no_read_cache() {
        let (small, origin) = (device(64 << 20), geometry(1000));
        let old = Layout::for_device(&small, &origin, 8 << 20, Some(0)).expect("valid");
        for key in [None, Some(1 << 20)] {
            let opened = Layout::of_ring(&small, &origin, 8 << 20, old.ring, key).expect("valid");
            assert_eq!((opened, opened.read_cache(&origin)), (old, None));
        }
        let larger = Layout::of_ring(&device(80 << 20), &origin, 8 << 20, old.ring, None).expect("valid");
        assert_eq!(larger.ring, old.ring);
        assert!(larger.read_cache(&origin).is_some(), "a larger device has space for one");
        let smaller = Layout::of_ring(&device(48 << 20), &origin, 8 << 20, old.ring, None).expect("valid");
        assert!(smaller.ring < old.ring, "the superblock has another one");
        let small_ring = Layout::for_device(&small, &origin, 8 << 20, Some(40 << 20)).expect("valid");
        let error = Layout::of_ring(&small, &origin, 20 << 20, small_ring.ring, None).expect_err("too small");
        assert!(error.detail().contains("a smaller read_cache"), "{error}");
    }
}
