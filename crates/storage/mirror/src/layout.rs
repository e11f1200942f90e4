//! Layout of a leg, the same on all legs: two superblocks, the bitmap, the data.

use crate::format::{BITMAP_BITS, RECORD, Superblock};
use block::{BlockSize, Error, Result};

/// The smallest chunk of the bitmap, in bytes; md's limit.
pub const MIN_CHUNK: u64 = 4 << 10;
/// Default chunk of the bitmap, in bytes; mdadm's choice.
pub const USUAL_CHUNK: u64 = 64 << 20;
/// Largest number of chunks, which bounds the bitmap and the state of chunks in memory.
pub const MAX_CHUNKS: u64 = 1 << 21;
/// Smallest size of a leg whose data is aligned to [`ALIGNMENT`].
const LARGE: u64 = 128 << 20;
const ALIGNMENT: u64 = 1 << 20;

/// Offsets and lengths, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Block size of the mirror.
    pub block_size: BlockSize,
    /// Offset of the bitmap.
    pub bitmap_offset: u64,
    /// Size of the chunk of one bit.
    pub chunk: u64,
    /// Offset of the data.
    pub data_offset: u64,
    /// Length of the data.
    pub data_bytes: u64,
}

impl Layout {
    /// The unit in which superblocks and the bitmap are written.
    pub fn page(block_size: BlockSize) -> u64 {
        block_size.bytes().max(4096)
    }

    /// Plans a new mirror whose smallest leg has `least` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a chunk out of range, and for legs that are too small.
    pub fn new(least: u64, block_size: BlockSize, chunk: u64) -> Result<Self> {
        if !chunk.is_power_of_two() || chunk < MIN_CHUNK.max(block_size.bytes()) {
            return Err(Error::invalid(format!(
                "bitmap_chunk {chunk}: expected a power of two, at least {MIN_CHUNK} (md's limit) and at least a \
                 block, {block_size}"
            )));
        }
        let chunks = least.div_ceil(chunk);
        if chunks > MAX_CHUNKS {
            let enough = least.div_ceil(MAX_CHUNKS).next_power_of_two();
            return Err(Error::invalid(format!(
                "bitmap_chunk {chunk}: legs of {least} bytes would have {chunks} chunks; expected at most {MAX_CHUNKS}; \
                 take {enough} or more"
            )));
        }
        let page = Self::page(block_size);
        let bitmap_offset = 2 * page;
        let sectors = chunks.div_ceil(BITMAP_BITS);
        let bitmap_bytes = (sectors * RECORD as u64).next_multiple_of(page);
        let alignment = if least >= LARGE { ALIGNMENT.max(page) } else { page };
        let data_offset = (bitmap_offset + bitmap_bytes).next_multiple_of(alignment);
        let data_bytes = least.saturating_sub(data_offset) >> block_size.shift() << block_size.shift();
        if data_bytes == 0 {
            return Err(Error::invalid(format!(
                "smallest leg: {least} bytes; expected more than the {data_offset} bytes of the mirror's metadata; take a larger \
                 one"
            )));
        }
        Ok(Layout { block_size, bitmap_offset, chunk, data_offset, data_bytes })
    }

    /// Returns the layout of a superblock.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a field out of range.
    pub fn of(superblock: &Superblock) -> Result<Self> {
        let refuse = |what: &str| Error::corrupt(format!("superblock of a mirror: {what} out of range"));
        let block_size =
            BlockSize::new(u64::from(superblock.block_size)).map_err(|_| refuse("block size"))?;
        let layout = Layout {
            block_size,
            bitmap_offset: superblock.bitmap_offset,
            chunk: superblock.bitmap_chunk,
            data_offset: superblock.data_offset,
            data_bytes: superblock.data_bytes,
        };
        let page = Self::page(block_size);
        if !layout.chunk.is_power_of_two() || layout.chunk < MIN_CHUNK.max(block_size.bytes()) {
            return Err(refuse("bitmap_chunk"));
        }
        let whole = layout.data_bytes.is_multiple_of(block_size.bytes()) && layout.data_bytes > 0;
        if !whole || layout.data_bytes.div_ceil(layout.chunk) > MAX_CHUNKS {
            return Err(refuse("capacity"));
        }
        if layout.bitmap_offset != 2 * page {
            return Err(refuse("offset of the bitmap"));
        }
        let end = layout.bitmap_offset + layout.pages() * page;
        let placed = layout.data_offset >= end && layout.data_offset.is_multiple_of(page);
        if !placed || layout.data_offset.checked_add(layout.data_bytes).is_none() {
            return Err(refuse("offset of the data"));
        }
        Ok(layout)
    }

    /// Offset of a copy of the superblock.
    pub fn superblock(block_size: BlockSize, copy: u64) -> u64 {
        copy * Self::page(block_size)
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u64 {
        self.data_bytes.div_ceil(self.chunk)
    }

    /// Number of pages of the bitmap.
    pub fn pages(&self) -> u64 {
        self.chunks().div_ceil(self.chunks_of_page())
    }

    /// Number of chunks of a page of the bitmap.
    pub fn chunks_of_page(&self) -> u64 {
        Self::page(self.block_size) / RECORD as u64 * BITMAP_BITS
    }

    /// Least size of a leg.
    pub fn leg_bytes(&self) -> u64 {
        self.data_offset + self.data_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_legs() {
        let size = BlockSize::default();
        let small = Layout::new(48 << 12, size, 4096).expect("there is room");
        assert_eq!((small.data_offset, small.data_bytes, small.chunks()), (3 << 12, 45 << 12, 45));
        let large = Layout::new(1 << 40, size, USUAL_CHUNK).expect("there is room");
        assert_eq!((large.data_offset, large.chunks(), large.pages()), (1 << 20, 16384, 1));
        let fine = Layout::new(1 << 33, size, 4096).expect("there is room");
        assert_eq!((fine.pages(), fine.data_offset % ALIGNMENT), (70, 0));
        assert!(Layout::new(1 << 34, size, 4096).expect_err("too many").detail().contains("take 8192"));
        assert!(Layout::new(1 << 30, size, 12 << 10).is_err());
        assert!(Layout::new(1 << 30, size, 2 << 10).is_err());
        assert!(Layout::new(3 << 12, size, 4096).expect_err("too small").detail().contains("12288"));
    }
}
