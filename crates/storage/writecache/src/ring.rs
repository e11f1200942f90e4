//! Layout of the cache device: two superblocks, and a ring of segments after them.
//!
//! The log has 64-bit addresses that only grow, in blocks. An address modulo the ring's size is its place in
//! the ring. A record lies in one segment, and each segment begins with a record, so that opening follows
//! many segments at once. The log begins at the second lap: address 0 is never used.

use crate::format::{ENTRY, MAX_WRITE, Superblock, header_capacity};
use block::{BlockIndex, BlockSize, DeviceGeometry, Error, Result};

/// Offset of the ring on a large enough device, in bytes.
const START: u64 = 1 << 20;
/// Minimum and maximum length of a segment, in blocks.
const SEGMENT: (u64, u64) = (16, 4096);
/// Minimum number of segments.
const MIN_SEGMENTS: u64 = 4;

/// Layout of the cache device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// Block size of the cache.
    pub block_size: BlockSize,
    /// First block of the ring, in the cache's blocks.
    pub start: u64,
    /// Length of a segment, in blocks.
    pub segment: u64,
    /// Number of segments.
    pub segments: u64,
    /// Binary logarithm of the device's blocks per block of the cache.
    shift: u32,
}

impl Ring {
    /// Lays out a device.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that is too small, [`Error::Unsupported`] for a device that tears
    /// sectors.
    pub fn for_device(device: &DeviceGeometry, block_size: BlockSize) -> Result<Self> {
        if u64::from(device.atomic_write) < crate::format::SUPERBLOCK as u64 {
            return Err(Error::unsupported(format!(
                "the cache device may tear writes at {} bytes; expected an atomic write of at least 512",
                device.atomic_write
            )));
        }
        let blocks = device.bytes() / block_size.bytes();
        let start = Self::start(blocks, block_size);
        let available = blocks.saturating_sub(start);
        let wanted = (available / 16).max(1);
        let segment = (1 << wanted.ilog2()).clamp(SEGMENT.0, SEGMENT.1);
        let segments = (available / segment).min(u64::from(u32::MAX));
        if segments < MIN_SEGMENTS {
            return Err(Error::invalid(format!(
                "the cache device has {} bytes; expected at least {} for blocks of {block_size}",
                device.bytes(),
                (MIN_SEGMENTS * SEGMENT.0 + 2) * block_size.bytes()
            )));
        }
        Ok(Ring { block_size, start, segment, segments, shift: Self::shift(device, block_size) })
    }

    /// The layout that a superblock describes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for segments out of range; [`Error::Invalid`] where the ring doesn't fit the
    /// device.
    pub fn of(superblock: &Superblock, device: &DeviceGeometry) -> Result<Self> {
        let block_size = BlockSize::new(u64::from(superblock.block_size))?;
        let blocks = device.bytes() / block_size.bytes();
        let (segment, segments) = (u64::from(superblock.segment_blocks), u64::from(superblock.segments));
        let start = u64::from(superblock.ring_start);
        let ring = Ring { block_size, start, segment, segments, shift: Self::shift(device, block_size) };
        let possible = segment.is_power_of_two() && (SEGMENT.0..=SEGMENT.1).contains(&segment);
        if !possible || segments < MIN_SEGMENTS {
            return Err(Error::corrupt(format!(
                "superblock of a write cache: fields out of range: segments={segments}, segment_blocks={segment}"
            )));
        }
        if block_size < device.block_size || ring.start + ring.blocks() > blocks {
            return Err(Error::invalid(format!(
                "the write cache was formatted with {} bytes in blocks of {block_size}: the device has {} bytes in blocks of \
                 {}; attach the whole device",
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

    /// Number of blocks of the ring.
    #[inline]
    pub fn blocks(&self) -> u64 {
        self.segment * self.segments
    }

    /// Address at which the log of a new cache begins.
    pub fn first_address(&self) -> u64 {
        self.blocks()
    }

    /// Block of the device with this address.
    #[inline]
    pub fn place(&self, address: u64) -> BlockIndex {
        BlockIndex((self.start + address % self.blocks()) << self.shift)
    }

    /// Number of blocks from this address to the end of its segment.
    #[inline]
    pub fn left(&self, address: u64) -> u64 {
        self.segment - (address & (self.segment - 1))
    }

    /// Block of the device with the superblock of this sequence number.
    pub fn superblock(&self, sequence: u64) -> BlockIndex {
        BlockIndex((sequence % 2) << self.shift)
    }

    /// Whether a segment begins at this address.
    pub fn begins_segment(&self, address: u64) -> bool {
        self.left(address) == self.segment
    }

    /// Number of bytes in this many blocks.
    #[inline]
    pub fn bytes(&self, blocks: u64) -> usize {
        (blocks << self.block_size.shift()) as usize
    }

    /// Number of blocks in this many bytes.
    #[inline]
    pub fn blocks_in(&self, bytes: usize) -> u64 {
        bytes as u64 >> self.block_size.shift()
    }

    /// Limit to the data blocks of a record.
    pub fn max_data(&self) -> u64 {
        (self.segment / 4 - 1).min(MAX_WRITE).min(self.max_data_of_header())
    }

    /// Limit to the blocks that one record takes: its header, its data, and before it an unused end of a
    /// segment that is shorter than the record.
    pub fn max_step(&self) -> u64 {
        2 * (self.max_data() + 1)
    }

    /// Number of entries with one data block each that fit a header.
    fn max_data_of_header(&self) -> u64 {
        ((self.header_capacity() - ENTRY) / (ENTRY + 4)) as u64
    }

    /// Bytes of a header for entries and checksums.
    pub fn header_capacity(&self) -> usize {
        header_capacity(self.block_size.bytes() as usize)
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
    fn a_ring_fills_its_device() {
        for (bytes, device_block, block) in [
            (66 * 512, 512, 512),
            (1 << 20, 512, 4096),
            (40 << 20, 4096, 4096),
            (26 << 30, 4096, 4096),
            (1 << 40, 512, 65536),
        ] {
            let geometry = geometry(bytes, device_block);
            let ring =
                Ring::for_device(&geometry, BlockSize::new(block).expect("a valid size")).expect("it fits");
            let end = ring.place(ring.blocks() * 2 - 1).0 + (1 << ring.shift);
            assert!(
                end <= geometry.blocks.0 && end + (ring.segment << ring.shift) > geometry.blocks.0,
                "{ring:?}"
            );
            assert!(ring.place(ring.blocks()).0 > ring.superblock(1).0);
            assert!(ring.max_data() >= 1);
        }
        let small = geometry(65 * 512, 512);
        assert!(Ring::for_device(&small, small.block_size).is_err());
    }
}
