//! Geometry of a device or a set of zones: sizes, limits and guarantees.

use crate::address::{BlockCount, BlockIndex, BlockRange, ByteOffset, ZoneAddress};
use crate::error::{Error, Result};
use std::fmt;

/// The size of a block: a power of two from 512 bytes to 1 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockSize(u32);

impl BlockSize {
    /// The smallest block size, in bytes.
    pub const SMALLEST: u32 = 512;
    /// The largest block size, in bytes.
    pub const LARGEST: u32 = 1 << 20;

    /// Checks that `bytes` is a power of two from 512 to 1 MiB.
    pub fn new(bytes: u64) -> Result<Self> {
        let allowed = u64::from(Self::SMALLEST)..=u64::from(Self::LARGEST);
        if bytes.is_power_of_two() && allowed.contains(&bytes) {
            return Ok(BlockSize(bytes as u32));
        }
        Err(Error::invalid(format!("block size {bytes}: expected a power of two from 512 to 1048576 bytes")))
    }

    /// Size in bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.0)
    }

    /// Base-2 logarithm of the size.
    pub fn shift(self) -> u32 {
        self.0.trailing_zeros()
    }

    /// Offset of a block, in bytes.
    pub fn offset_of(self, block: BlockIndex) -> ByteOffset {
        ByteOffset(block.0 << self.shift())
    }

    /// Size of `count` blocks, in bytes.
    pub fn bytes_of(self, count: BlockCount) -> u64 {
        count.0 << self.shift()
    }
}

impl Default for BlockSize {
    fn default() -> Self {
        BlockSize(4096)
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Sizes and guarantees of a [`Device`](crate::Device).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceGeometry {
    /// Addressing unit of the device.
    pub block_size: BlockSize,
    /// Number of blocks.
    pub blocks: BlockCount,
    /// Size of an aligned write that a power cut never tears, in bytes: 512 for a leaf (a sector), the block
    /// size for the log.
    pub atomic_write: u32,
    /// Whether a power cut may lose an acknowledged write until `flush` or FUA has returned.
    pub volatile_cache: bool,
    /// Whether every write is refused with [`Error::ReadOnly`].
    pub read_only: bool,
}

impl DeviceGeometry {
    /// Capacity in bytes.
    pub fn bytes(&self) -> u64 {
        self.block_size.bytes_of(self.blocks)
    }

    /// Range of all blocks.
    pub fn whole(&self) -> BlockRange {
        BlockRange { start: BlockIndex(0), count: self.blocks }
    }

    /// Checks that a range lies inside the device.
    #[inline]
    pub fn check(&self, range: BlockRange) -> Result<()> {
        match range.start.0.checked_add(range.count.0) {
            Some(end) if end <= self.blocks.0 => Ok(()),
            _ => Err(Error::invalid(format!(
                "{} blocks at block {}: out of range 0..{}",
                range.count, range.start, self.blocks
            ))),
        }
    }

    /// Checks that `bytes` bytes at block `at` are whole blocks inside the device, and returns their range.
    #[inline]
    pub fn range(&self, at: BlockIndex, bytes: usize) -> Result<BlockRange> {
        let bytes = bytes as u64;
        if bytes & (self.block_size.bytes() - 1) != 0 {
            return Err(Error::invalid(format!(
                "{bytes} bytes at block {at}: expected a multiple of the block size, {}",
                self.block_size
            )));
        }
        let range = BlockRange { start: at, count: BlockCount(bytes >> self.block_size.shift()) };
        self.check(range).map(|()| range)
    }

    /// As [`range`](Self::range); an error if the device is read-only.
    #[inline]
    pub fn writable_range(&self, at: BlockIndex, bytes: usize) -> Result<BlockRange> {
        self.check_writable()?;
        self.range(at, bytes)
    }

    /// Returns an error if the device is read-only.
    #[inline]
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::read_only("the device is read-only"));
        }
        Ok(())
    }
}

/// Moment at which an append to a zone survives a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    /// As soon as it is acknowledged.
    OnAppend,
    /// Once a `flush` that began afterwards has returned.
    OnFlush,
    /// Once the zone is finished; `flush` finishes the zones that it has to make durable.
    OnFinish,
}

/// Guarantee about the old contents of a zone once `reset` has returned; from weakest to strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EraseGuarantee {
    /// No guarantee: the zone can be written again.
    None,
    /// The layer below was informed that the contents are no longer needed (a hole punched, an object
    /// deleted).
    Deallocated,
    /// The contents were overwritten or erased on the medium.
    Erased,
    /// The encryption key of the contents was destroyed.
    Key,
}

impl fmt::Display for EraseGuarantee {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            EraseGuarantee::None => "none",
            EraseGuarantee::Deallocated => "deallocated",
            EraseGuarantee::Erased => "erased",
            EraseGuarantee::Key => "key",
        })
    }
}

/// Sizes, limits and guarantees of a [`Zones`](crate::Zones).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneGeometry {
    /// Number of zones.
    pub zones: u32,
    /// Distance between the starts of two zones in the address space, in bytes; at least the capacity.
    pub zone_size: u64,
    /// Writable bytes of a zone.
    pub zone_capacity: u64,
    /// Unit of the length of an append, in bytes.
    pub append_granularity: u32,
    /// Unit of the offset and the length of a read, in bytes.
    pub read_granularity: u32,
    /// Largest append, in bytes.
    pub max_append: u64,
    /// Limit of open zones; 0 is no limit.
    pub max_open: u32,
    /// Limit of active zones (open or closed: begun and not finished); 0 is no limit.
    pub max_active: u32,
    /// Moment at which an append is durable.
    pub durable: Durable,
    /// Strongest guarantee that `reset` can give.
    pub erase: EraseGuarantee,
}

impl ZoneGeometry {
    /// Capacity of all zones together, in bytes.
    pub fn capacity(&self) -> u64 {
        u64::from(self.zones) * self.zone_capacity
    }

    /// Checks that the zone exists.
    pub fn check_zone(&self, zone: crate::ZoneIndex) -> Result<()> {
        if zone.0 < self.zones {
            return Ok(());
        }
        Err(Error::invalid(format!("zone {zone} out of range 0..{}", self.zones)))
    }

    /// Checks an append's length against granularity and limit.
    pub fn check_append(&self, zone: crate::ZoneIndex, bytes: usize) -> Result<()> {
        self.check_zone(zone)?;
        let bytes = bytes as u64;
        if bytes == 0 || !bytes.is_multiple_of(u64::from(self.append_granularity)) || bytes > self.max_append
        {
            return Err(Error::invalid(format!(
                "append of {bytes} bytes to zone {zone}: expected a multiple of {} up to {}",
                self.append_granularity, self.max_append
            )));
        }
        Ok(())
    }

    /// Checks an append as [`check_append`](Self::check_append) does, and that a write pointer can have its
    /// offset.
    pub fn check_append_at(&self, at: ZoneAddress, bytes: usize) -> Result<()> {
        self.check_append(at.zone, bytes)?;
        let unit = u64::from(self.append_granularity);
        if !at.offset.0.is_multiple_of(unit) || at.offset.0 > self.zone_capacity {
            return Err(Error::invalid(format!(
                "append at {at}: expected an offset that is a multiple of {unit}, up to {}",
                self.zone_capacity
            )));
        }
        Ok(())
    }

    /// Checks a read's address and length against granularity and capacity.
    pub fn check_read(&self, at: ZoneAddress, bytes: usize) -> Result<()> {
        self.check_zone(at.zone)?;
        let (bytes, unit) = (bytes as u64, u64::from(self.read_granularity));
        let end = at.offset.0.checked_add(bytes);
        let whole = at.offset.0.is_multiple_of(unit) && bytes.is_multiple_of(unit);
        if !whole || end.is_none_or(|end| end > self.zone_capacity) {
            return Err(Error::invalid(format!(
                "read of {bytes} bytes at {at}: expected multiples of {unit} inside a zone's {} bytes",
                self.zone_capacity
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes() {
        assert!(BlockSize::new(256).is_err());
        assert!(BlockSize::new(768).is_err());
        assert!(BlockSize::new(2 << 20).is_err());
        assert_eq!(BlockSize::new(4096).expect("valid").shift(), 12);
    }

    #[test]
    fn ranges_are_checked_without_overflow() {
        let geometry = DeviceGeometry {
            block_size: BlockSize::default(),
            blocks: BlockCount(10),
            atomic_write: 512,
            volatile_cache: true,
            read_only: false,
        };
        assert!(geometry.range(BlockIndex(9), 4096).is_ok());
        assert!(geometry.range(BlockIndex(9), 8192).is_err());
        assert!(geometry.range(BlockIndex(u64::MAX), 4096).is_err());
        assert!(geometry.range(BlockIndex(0), 100).is_err());
    }
}
