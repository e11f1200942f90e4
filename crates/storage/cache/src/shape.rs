//! Blocks of the cache and their parts.
//!
//! A block of the cache is divided into at most 64 parts. Each part has a valid and a dirty bit. Requests may
//! begin and end inside parts.

use block::{BlockSize, DeviceGeometry};

/// Largest number of parts of a block: the bits of a word.
const MAX_PARTS: u64 = 64;

/// Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Size of a block of the cache.
    pub block: u64,
    /// Size of a part; a power of two.
    pub part: u64,
    /// Size of the origin.
    pub origin: u64,
    /// Binary logarithm of the size of the device's blocks.
    pub shift: u32,
}

impl Shape {
    /// Chooses the size of parts for cache blocks of `block` bytes on devices with blocks of `device_block`.
    pub fn new(block: u64, device_block: BlockSize, origin: u64) -> Self {
        let part = device_block.bytes().max(block.div_ceil(MAX_PARTS).next_power_of_two());
        Shape { block, part, origin, shift: device_block.shift() }
    }

    /// Length of a block in bytes; the origin's last block may be shorter.
    #[inline]
    pub fn length(&self, block: u64) -> u64 {
        self.block.min(self.origin - block * self.block)
    }

    /// Parts that contain at least one of these bytes of a block; `from` is below `to`.
    #[inline]
    pub fn touched(&self, from: u64, to: u64) -> u64 {
        let shift = self.part.trailing_zeros();
        bits(from >> shift, ((to - 1) >> shift) + 1)
    }

    /// Parts that lie wholly in these bytes of a block.
    #[inline]
    pub fn covered(&self, block: u64, from: u64, to: u64) -> u64 {
        let shift = self.part.trailing_zeros();
        let to = if to == self.length(block) { to.next_multiple_of(self.part) } else { to };
        bits(from.div_ceil(self.part), to >> shift)
    }

    /// All parts of a block.
    pub fn all(&self, block: u64) -> u64 {
        self.touched(0, self.length(block))
    }

    /// Bytes of a run of parts of a block.
    pub fn bytes(&self, block: u64, parts: std::ops::Range<u64>) -> std::ops::Range<u64> {
        parts.start * self.part..(parts.end * self.part).min(self.length(block))
    }
}

/// Returns a word with the bits `from..to` set.
#[inline]
fn bits(from: u64, to: u64) -> u64 {
    if from >= to {
        return 0;
    }
    (u64::MAX >> (64 - (to - from))) << from
}

/// Returns the runs of set bits, in order.
pub(crate) fn runs(mut word: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    std::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let from = u64::from(word.trailing_zeros());
        let length = u64::from((!(word >> from)).trailing_zeros()).min(64 - from);
        word &= !bits(from, from + length);
        Some(from..from + length)
    })
}

/// Returns the length of a range.
pub(crate) fn length_of(bytes: std::ops::Range<u64>) -> u64 {
    bytes.end - bytes.start
}

/// Returns the block size of a device made of these two: the larger one.
pub(crate) fn block_size(fast: &DeviceGeometry, slow: &DeviceGeometry) -> BlockSize {
    fast.block_size.max(slow.block_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_bits() {
        assert_eq!(runs(0b0110_1001).collect::<Vec<_>>(), [0..1, 3..4, 5..7]);
        assert_eq!(runs(u64::MAX).next(), Some(0..64));
        assert_eq!(runs(u64::MAX).count(), 1);
        assert_eq!(runs(1 << 63).next(), Some(63..64));
        assert_eq!(runs(0).count(), 0);
    }

    #[test]
    fn parts_of_blocks() {
        let origin = (64 << 10) * 3 + 10 * 4096;
        let shape = Shape::new(64 << 10, BlockSize::default(), origin);
        assert_eq!((shape.part, shape.all(0), shape.all(3)), (4096, 0xFFFF, 0x3FF));
        let large = Shape::new(1 << 20, BlockSize::default(), (1 << 20) + 20480);
        assert_eq!(large.part, 16384);
        assert_eq!((large.touched(4096, 20480), large.covered(0, 4096, 20480)), (0b11, 0));
        assert_eq!((large.touched(0, 20480), large.covered(0, 0, 20480)), (0b11, 0b01));
        assert_eq!(large.covered(1, 0, 20480), 0b11, "the last part of the origin is shorter");
        assert_eq!(large.bytes(1, 0..2), 0..20480);
        let odd = Shape::new(101 * (32 << 10), BlockSize::default(), 1 << 30);
        assert_eq!((odd.part, odd.all(0).count_ones()), (64 << 10, 51));
        assert_eq!(odd.bytes(0, 0..51), 0..101 * (32 << 10));
    }
}
