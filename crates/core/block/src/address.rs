//! Distinct types for byte offsets, block indices and zone indices, so that the compiler rejects a mix-up.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

number! {
    /// A byte offset from the start of a file, a device or a zone.
    ByteOffset(u64)
}
number! {
    /// A block of a [`Device`](crate::Device), counted from 0 in units of its block size.
    BlockIndex(u64)
}
number! {
    /// A number of blocks.
    BlockCount(u64)
}
number! {
    /// A zone of a [`Zones`](crate::Zones), counted from 0.
    ZoneIndex(u32)
}

impl Add<u64> for ByteOffset {
    type Output = ByteOffset;
    fn add(self, bytes: u64) -> ByteOffset {
        ByteOffset(self.0 + bytes)
    }
}

impl AddAssign<u64> for ByteOffset {
    fn add_assign(&mut self, bytes: u64) {
        self.0 += bytes;
    }
}

impl Sub for ByteOffset {
    type Output = u64;
    fn sub(self, other: ByteOffset) -> u64 {
        self.0 - other.0
    }
}

impl Add<BlockCount> for BlockIndex {
    type Output = BlockIndex;
    fn add(self, count: BlockCount) -> BlockIndex {
        BlockIndex(self.0 + count.0)
    }
}

impl AddAssign<BlockCount> for BlockIndex {
    fn add_assign(&mut self, count: BlockCount) {
        self.0 += count.0;
    }
}

impl Sub for BlockIndex {
    type Output = BlockCount;
    fn sub(self, other: BlockIndex) -> BlockCount {
        BlockCount(self.0 - other.0)
    }
}

/// Consecutive blocks of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockRange {
    /// The first block.
    pub start: BlockIndex,
    /// Number of blocks.
    pub count: BlockCount,
}

impl BlockRange {
    /// Range of `count` blocks, starting at `start`.
    pub const fn new(start: u64, count: u64) -> Self {
        BlockRange { start: BlockIndex(start), count: BlockCount(count) }
    }

    /// Returns the block after the last one; saturates at the largest index. The caller has checked the range
    /// against a geometry.
    pub fn end(&self) -> BlockIndex {
        BlockIndex(self.start.0.saturating_add(self.count.0))
    }

    /// Whether the range has no block.
    pub fn is_empty(&self) -> bool {
        self.count.0 == 0
    }

    /// Whether the two ranges share a block.
    pub fn overlaps(&self, other: &BlockRange) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Whether this block is in the range.
    pub fn contains(&self, block: BlockIndex) -> bool {
        self.start <= block && block < self.end()
    }
}

impl fmt::Display for BlockRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "blocks {}..{}", self.start, self.end())
    }
}

/// Address in a [`Zones`](crate::Zones): a zone and a byte offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ZoneAddress {
    /// The zone.
    pub zone: ZoneIndex,
    /// Offset from the start of the zone, in bytes.
    pub offset: ByteOffset,
}

impl ZoneAddress {
    /// Address `offset` bytes into zone number `zone`.
    pub const fn new(zone: u32, offset: u64) -> Self {
        ZoneAddress { zone: ZoneIndex(zone), offset: ByteOffset(offset) }
    }
}

impl fmt::Display for ZoneAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "zone {} byte {}", self.zone, self.offset)
    }
}

/// Block of a zone: a zone and a block in it, counted from 0 in blocks of the owner's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneBlock {
    /// The zone.
    pub zone: ZoneIndex,
    /// Block of the zone.
    pub block: u32,
}

impl ZoneBlock {
    /// Block number `block` of zone number `zone`.
    pub const fn new(zone: u32, block: u32) -> Self {
        ZoneBlock { zone: ZoneIndex(zone), block }
    }

    /// The block `blocks` blocks later in the zone.
    pub const fn after(self, blocks: u32) -> Self {
        ZoneBlock { zone: self.zone, block: self.block.saturating_add(blocks) }
    }
}

impl fmt::Display for ZoneBlock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "block {} of zone {}", self.block, self.zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let a = BlockRange::new(2, 4);
        assert!(a.overlaps(&BlockRange::new(5, 1)));
        assert!(!a.overlaps(&BlockRange::new(6, 1)));
        assert!(a.contains(BlockIndex(5)) && !a.contains(BlockIndex(6)));
    }
}
