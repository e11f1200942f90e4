//! What lies where on the cache device: two superblocks, and a ring of segments behind them.
//!
//! The log has 64-bit addresses that only grow, in blocks; an address modulo the ring's size says where it lies. A record
//! lies in one segment, and each segment begins with a record, so that opening follows many segments at once. The log begins
//! at the second lap: address 0 is no address.

use super::format::{ENTRY, LONGEST_WRITE, Superblock, header_room};
use block::{BlockIndex, BlockSize, DeviceGeometry, Error, Result};

/// The ring begins here where the device is large enough, in bytes.
const START: u64 = 1 << 20;
/// Segments have so many blocks at least, and at most.
const SEGMENT: (u64, u64) = (16, 4096);
/// There are so many segments at least.
const FEWEST: u64 = 4;

/// The division of the cache device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// The size of the cache's blocks.
    pub block_size: BlockSize,
    /// The first block of the ring, in the cache's blocks.
    pub start: u64,
    /// In blocks.
    pub segment: u64,
    /// How many there are.
    pub segments: u64,
    /// How many of the device's blocks one of the cache's is, as a power of two.
    shift: u32,
}

impl Ring {
    /// The ring that a device gets.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that is too small, [`Error::Unsupported`] for one that tears sectors.
    pub fn make(device: &DeviceGeometry, block_size: BlockSize) -> Result<Self> {
        if u64::from(device.atomic_write) < super::format::SUPERBLOCK as u64 {
            return Err(Error::unsupported(format!(
                "a write cache on a device whose writes may be torn at {} bytes: expected at least 512",
                device.atomic_write
            )));
        }
        let blocks = device.bytes() / block_size.bytes();
        let start = Self::start(blocks, block_size);
        let room = blocks.saturating_sub(start);
        let wanted = (room / 16).max(1);
        let segment = (1 << wanted.ilog2()).clamp(SEGMENT.0, SEGMENT.1);
        let segments = (room / segment).min(u64::from(u32::MAX));
        if segments < FEWEST {
            return Err(Error::invalid(format!(
                "a cache of {} bytes: a write cache with blocks of {block_size} needs {}",
                device.bytes(),
                (FEWEST * SEGMENT.0 + 2) * block_size.bytes()
            )));
        }
        Ok(Ring { block_size, start, segment, segments, shift: Self::shift(device, block_size) })
    }

    /// The ring that a superblock describes.
    ///
    /// # Errors
    /// [`Error::Invalid`] where it doesn't fit the device.
    pub fn of(superblock: &Superblock, device: &DeviceGeometry) -> Result<Self> {
        let block_size = BlockSize::new(u64::from(superblock.block_size))?;
        let blocks = device.bytes() / block_size.bytes();
        let (segment, segments) = (u64::from(superblock.segment_blocks), u64::from(superblock.segments));
        let start = u64::from(superblock.ring_start);
        let ring = Ring { block_size, start, segment, segments, shift: Self::shift(device, block_size) };
        let possible = segment.is_power_of_two() && (SEGMENT.0..=SEGMENT.1).contains(&segment);
        if !possible || segments < FEWEST {
            return Err(Error::corrupt(format!(
                "a write cache of {segments} segments of {segment} blocks can't be"
            )));
        }
        if block_size < device.block_size || ring.start + ring.blocks() > blocks {
            return Err(Error::invalid(format!(
                "the write cache was made with {} bytes in blocks of {block_size}: the device has {} bytes in blocks of {}; \
                 bring the whole device back",
                (ring.start + ring.blocks()) * block_size.bytes(),
                device.bytes(),
                device.block_size
            )));
        }
        Ok(ring)
    }

    fn start(blocks: u64, block_size: BlockSize) -> u64 {
        let usual = START / block_size.bytes();
        if blocks >= 16 * usual { usual.max(2) } else { 2 }
    }

    fn shift(device: &DeviceGeometry, block_size: BlockSize) -> u32 {
        block_size.shift().saturating_sub(device.block_size.shift())
    }

    /// How many blocks the ring has.
    #[inline]
    pub fn blocks(&self) -> u64 {
        self.segment * self.segments
    }

    /// Where the log begins.
    pub fn first_address(&self) -> u64 {
        self.blocks()
    }

    /// The block of the device that holds this address.
    #[inline]
    pub fn place(&self, address: u64) -> BlockIndex {
        BlockIndex((self.start + address % self.blocks()) << self.shift)
    }

    /// How many blocks are left in the segment of this address, itself included.
    #[inline]
    pub fn left(&self, address: u64) -> u64 {
        self.segment - (address & (self.segment - 1))
    }

    /// Where a superblock with this sequence lies.
    pub fn superblock(&self, sequence: u64) -> BlockIndex {
        BlockIndex((sequence % 2) << self.shift)
    }

    /// How many data blocks a record has at most.
    pub fn most_data(&self) -> u64 {
        (self.segment / 4 - 1).min(LONGEST_WRITE).min(self.most_of_header())
    }

    /// How many data blocks of one entry each fit a header.
    fn most_of_header(&self) -> u64 {
        ((self.room() - ENTRY) / (ENTRY + 4)) as u64
    }

    /// How many bytes of a header are for entries and checksums.
    pub fn room(&self) -> usize {
        header_room(self.block_size.bytes() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::BlockCount;

    fn geometry(bytes: u64, block_size: u64) -> DeviceGeometry {
        let block_size = BlockSize::new(block_size).expect("a valid size");
        DeviceGeometry {
            block_size,
            blocks: BlockCount(bytes >> block_size.shift()),
            atomic_write: 512,
            volatile_cache: true,
            read_only: false,
        }
    }

    #[test]
    fn a_ring_fits_its_device_and_is_found_again() {
        for (bytes, device_block, block) in [
            (66 * 512, 512, 512),
            (1 << 20, 512, 4096),
            (40 << 20, 4096, 4096),
            (26 << 30, 4096, 4096),
            (1 << 40, 512, 65536),
        ] {
            let geometry = geometry(bytes, device_block);
            let ring = Ring::make(&geometry, BlockSize::new(block).expect("a valid size")).expect("it fits");
            let end = ring.place(ring.blocks() * 2 - 1).0 + (1 << ring.shift);
            assert!(
                end <= geometry.blocks.0 && end + (ring.segment << ring.shift) > geometry.blocks.0,
                "{ring:?}"
            );
            assert!(ring.place(ring.blocks()).0 > ring.superblock(1).0);
            assert!(ring.most_data() >= 1);
        }
        let small = geometry(65 * 512, 512);
        assert!(Ring::make(&small, small.block_size).is_err());
    }
}
