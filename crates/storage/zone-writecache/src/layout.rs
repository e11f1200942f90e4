//! Layout of the fast device: two superblocks, two slots for checkpoints, the ring.

use crate::format::{MAX_ENTRIES, PAGE, ZONES_OF_PAGE, header_bytes};
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
const SUPERBLOCK_DISTANCE: u64 = 4096;

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

impl Layout {
    /// Layout of a device for an origin with this geometry. The ring takes all that the tables leave.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that is too small for this limit of the lag, with the sizes; for an
    /// origin with too many zones.
    pub fn for_device(device: &DeviceGeometry, origin: &ZoneGeometry, max_lag: u64) -> Result<Self> {
        if origin.zones > MAX_ZONES {
            return Err(Error::invalid(format!(
                "origin with {} zones: expected at most {MAX_ZONES}; use larger zones",
                origin.zones
            )));
        }
        let block_size = device.block_size.bytes();
        let distance = SUPERBLOCK_DISTANCE.max(block_size);
        let pages = u64::from(origin.zones).div_ceil(ZONES_OF_PAGE as u64);
        let slot = (pages * PAGE as u64).next_multiple_of(block_size);
        let ring_start = 2 * distance + 2 * slot;
        let left = device.bytes().saturating_sub(ring_start);
        let ring = left / block_size * block_size;
        // Small appends have a header each, so the log of a lag is up to twice as long as its data.
        let record_data = RECORD_DATA.min(max_lag / 4).max(max_append(origin));
        let needed = (2 * max_lag + 4 * record_bytes(block_size, record_data)).next_multiple_of(block_size);
        if ring < needed {
            return Err(Error::invalid(format!(
                "fast device of {}: expected at least {} ({} for the log of max_lag, {} for superblocks and two checkpoints \
                 of {} zones); use a larger device or a smaller max_lag",
                format_size(device.bytes()),
                format_size(ring_start + needed),
                format_size(needed),
                format_size(ring_start),
                origin.zones
            )));
        }
        Ok(Layout { block_size, slot, ring_start, ring, record_data })
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
        self.block(sequence % 2 * SUPERBLOCK_DISTANCE.max(self.block_size))
    }

    /// Block at this byte of the slot of a checkpoint.
    pub fn checkpoint(&self, number: u64, byte: u64) -> BlockIndex {
        let start = 2 * SUPERBLOCK_DISTANCE.max(self.block_size) + number % 2 * self.slot;
        self.block(start + byte)
    }

    /// Bytes of a slot for a checkpoint.
    pub fn slot(&self) -> u64 {
        self.slot
    }

    /// Block of an address of the log, which is a multiple of the block size.
    pub fn place(&self, address: u64) -> BlockIndex {
        self.block(self.ring_start + address % self.ring)
    }

    /// Bytes from an address to the end of its lap.
    pub fn left(&self, address: u64) -> u64 {
        self.ring - address % self.ring
    }

    /// Address of a record of this length: `head`, or the start of the next lap if the record doesn't fit
    /// before it. A record never wraps around.
    pub fn record_at(&self, head: u64, length: u64) -> u64 {
        match length <= self.left(head) {
            true => head,
            false => head + self.left(head),
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
        let layout = Layout::for_device(&device(64 << 20), &geometry(1000), 8 << 20).expect("large enough");
        assert!(layout.superblock(1) < layout.checkpoint(0, 0));
        assert_eq!(layout.checkpoint(0, layout.slot()), layout.checkpoint(1, 0));
        assert_eq!(layout.checkpoint(1, layout.slot()), layout.place(0));
        assert_eq!(layout.place(layout.ring), layout.place(0));
        assert_eq!(layout.place(layout.ring - 512).0 + 1, (64 << 20) / 512);
        assert_eq!(layout.record_at(layout.ring - 512, 512), layout.ring - 512);
        assert_eq!(layout.record_at(layout.ring - 512, 1024), layout.ring);
    }

    #[test]
    fn a_large_ring_has_no_more_log_to_replay() {
        let distance = |bytes| {
            let layout = Layout::for_device(&device(bytes), &geometry(1000), 8 << 20).expect("large enough");
            (layout.checkpoint_distance(), layout.ring)
        };
        let (small, ring) = distance(64 << 20);
        assert_eq!(small, ring / 4);
        assert_eq!(distance(1 << 40).0, 64 << 20);
    }

    #[test]
    fn a_device_that_is_too_small_is_refused_with_the_sizes() {
        let error = Layout::for_device(&device(8 << 20), &geometry(1000), 8 << 20).expect_err("too small");
        assert!(error.detail().starts_with("fast device of 8MiB: expected at least 20"), "{error}");
        assert!(Layout::for_device(&device(64 << 20), &geometry(MAX_ZONES + 1), 8 << 20).is_err());
    }
}
