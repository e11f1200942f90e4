//! Sizes of the read cache: chunks, units of verification, and the bounds of its memory.
//!
//! A chunk has 16 units, each with a checksum in memory, so a read of 4 KiB reads one unit. The number of
//! chunks is limited, which bounds the memory: chunks are larger in a larger region.

use block::{BlockIndex, Error, Result};
use stack::format_size;
use std::ops::{Range, RangeInclusive};

/// Permitted sizes of a read cache, except for 0.
pub const SIZES: RangeInclusive<u64> = 1 << 20..=64 << 30;
/// Units of a chunk.
pub const UNITS: usize = 16;
/// Smallest unit, in bytes.
const UNIT: u64 = 4096;
/// Largest unit, in bytes, unless a block is larger.
const MAX_UNIT: u64 = 64 << 10;
/// Limit of the chunks of a region.
const MAX_SLOTS: u64 = 1 << 16;
/// Limit of the chunks of a zone, by the bits of a chunk's key.
const ZONE_CHUNKS: u64 = (1 << super::slots::CHUNK_BITS) - 1;
/// Limit of the bytes of a request to the origin, unless a chunk is larger: the size of one request of an
/// object store.
const MAX_REQUEST: u64 = 1 << 20;
/// Memory of a chunk's slot, with the queues of the policy, in bytes.
const SLOT_MEMORY: u64 = 96;
/// Memory of the tables of the index and of the policy for a slot, in bytes; their sizes are powers of two.
const TABLE_MEMORY: u64 = 24;
/// Memory of a zone in the tables of zones, in bytes.
const ZONE_MEMORY: u64 = 48;
/// Limit of the memory of the read cache and of the tables of zones together.
const MEMORY: u64 = 24 << 20;
/// Smallest and largest limit of the data that is being fetched.
const FETCH_LIMITS: (u64, u64) = (4 << 20, 16 << 20);
/// Limit of the bytes that are requested ahead of one sequential read.
const MAX_WINDOW: u64 = 8 << 20;

/// Region of the fast device with the chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// First byte on the device.
    start: u64,
    /// Unit of the device, in bytes.
    block_size: u64,
    /// Unit of reads of the origin, in bytes.
    granularity: u64,
    /// Bytes with one checksum.
    pub unit: u64,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Number of chunks.
    pub slots: u32,
}

/// Checks the size of a read cache.
///
/// # Errors
/// [`Error::Invalid`] for a size that is neither 0 nor within [`SIZES`].
pub fn check_size(bytes: u64) -> Result<u64> {
    if bytes == 0 || SIZES.contains(&bytes) {
        return Ok(bytes);
    }
    let [given, least, most] = [bytes, *SIZES.start(), *SIZES.end()].map(format_size);
    Err(Error::invalid(format!("read_cache {given}: expected 0, or {least} to {most}")))
}

impl Region {
    /// Divides `bytes` bytes at `start` into chunks; `None` if there is no space for one, or no permitted
    /// size of a chunk is a multiple of the origin's unit of reads.
    pub fn new(
        start: u64,
        bytes: u64,
        block_size: u64,
        granularity: u32,
        zone_capacity: u64,
    ) -> Option<Self> {
        let granularity = u64::from(granularity).max(1);
        let bytes = bytes.min(*SIZES.end());
        let mut unit = UNIT.max(block_size);
        let largest = MAX_UNIT.max(block_size);
        loop {
            let chunk = unit * UNITS as u64;
            let slots = bytes / chunk;
            let fits = slots <= MAX_SLOTS
                && chunk.is_multiple_of(granularity)
                && zone_capacity.div_ceil(chunk) <= ZONE_CHUNKS;
            if fits {
                let slots = slots as u32;
                return (slots > 0).then_some(Region { start, block_size, granularity, unit, chunk, slots });
            }
            unit *= 2;
            if unit > largest {
                return None;
            }
        }
    }

    /// Bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        u64::from(self.slots) * self.chunk
    }

    /// Rounds the end of a zone down to whole units of reads.
    pub fn whole_units(&self, end: u64) -> u64 {
        end / self.granularity * self.granularity
    }

    /// Range of the chunk with byte `at` of a zone whose data ends at `end`.
    pub fn chunk_at(&self, at: u64, end: u64) -> Range<u64> {
        let start = at / self.chunk * self.chunk;
        start..(start + self.chunk).min(end)
    }

    /// End of the request to the origin that begins with this byte of a zone.
    pub fn request_end(&self, at: u64) -> u64 {
        let request = MAX_REQUEST.max(self.chunk);
        (at / request + 1) * request
    }

    /// Block of byte `at` of a slot.
    pub fn block(&self, slot: u32, at: u64) -> BlockIndex {
        BlockIndex((self.start + u64::from(slot) * self.chunk + at) / self.block_size)
    }

    /// Rounds the length of a chunk up to whole blocks.
    pub fn whole_blocks(&self, length: u64) -> u64 {
        length.next_multiple_of(self.block_size)
    }

    /// Memory of the index and of the policy.
    pub fn index_bytes(&self) -> u64 {
        let slots = u64::from(self.slots);
        slots * SLOT_MEMORY + slots.next_power_of_two() * TABLE_MEMORY
    }

    /// Limit of the data that is being fetched: [`MEMORY`] without the index and the tables of zones.
    pub fn fetch_bytes(&self, zones: u32) -> u64 {
        let used = self.index_bytes() + u64::from(zones) * ZONE_MEMORY;
        MEMORY.saturating_sub(used).clamp(FETCH_LIMITS.0, FETCH_LIMITS.1).max(self.chunk)
    }

    /// Limit of the bytes ahead of one sequential read. Chunks that weren't read yet are in the small queue
    /// of the policy, a tenth of the slots, and must not evict each other.
    pub fn max_window(&self, zones: u32) -> u64 {
        let of_queue = u64::from(self.slots / 20).max(1) * self.chunk;
        MAX_WINDOW.min(self.fetch_bytes(zones) / 2).min(of_queue).max(self.chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(bytes: u64) -> Region {
        Region::new(1 << 20, bytes, 4096, 512, 1 << 30).expect("large enough")
    }

    #[test]
    fn a_larger_region_has_larger_chunks_and_its_memory_a_bound() {
        for (bytes, chunk, slots) in [
            (1 << 20, 64 << 10, 16),
            (4 << 30, 64 << 10, 1 << 16),
            (5 << 30, 128 << 10, 40960),
            (64 << 30, 1 << 20, 1 << 16),
            (1 << 50, 1 << 20, 1 << 16),
        ] {
            let region = region(bytes);
            assert_eq!((region.chunk, region.slots), (chunk, slots), "{bytes}");
            assert_eq!(region.unit * UNITS as u64, chunk);
            for zones in [1, 4096, 1 << 18] {
                let memory = region.index_bytes() + region.fetch_bytes(zones);
                assert!(memory + u64::from(zones) * ZONE_MEMORY <= MEMORY, "{bytes}, {zones} zones");
                assert!(region.max_window(zones) <= region.fetch_bytes(zones));
            }
        }
        assert_eq!(region(1 << 20).max_window(12), 64 << 10);
        assert_eq!(region(4 << 30).max_window(4096), 8 << 20);
    }

    #[test]
    fn chunks_suit_the_devices() {
        let wide = Region::new(0, 1 << 30, 1 << 20, 512, 1 << 30).expect("large enough");
        assert_eq!((wide.unit, wide.chunk), (1 << 20, 16 << 20));
        assert!(Region::new(0, 1 << 20, 1 << 20, 512, 1 << 30).is_none(), "not a chunk");
        assert!(Region::new(0, 1 << 30, 4096, 3000, 1 << 30).is_none(), "reads of 3000 bytes");
        let coarse = Region::new(0, 1 << 30, 4096, 128 << 10, 1 << 30).expect("large enough");
        assert_eq!(coarse.chunk, 128 << 10);
        let long = Region::new(0, 1 << 30, 4096, 512, 1 << 43).expect("large enough");
        assert!((1 << 43) / long.chunk <= ZONE_CHUNKS && long.chunk > 64 << 10);
    }

    #[test]
    fn blocks_of_slots_and_ends_of_chunks_and_requests() {
        let region = region(1 << 20);
        assert_eq!(region.block(3, 8192), BlockIndex(((1 << 20) + 3 * (64 << 10) + 8192) / 4096));
        assert_eq!(region.chunk_at(70_000, 1 << 20), 65536..131_072);
        assert_eq!(region.chunk_at(70_000, 70_144), 65536..70_144);
        assert_eq!(region.request_end(70_000), 1 << 20);
        assert_eq!(region.request_end(1 << 20), 2 << 20);
        assert_eq!(region.whole_units(1025), 1024);
        assert_eq!(region.whole_blocks(5000), 8192);
        assert!([0, 1 << 20, 64 << 30].iter().all(|bytes| check_size(*bytes).is_ok()));
        let error = check_size(1 << 19).expect_err("too small");
        assert!(error.detail().contains("read_cache 512KiB: expected 0, or 1MiB to 64GiB"), "{error}");
    }
}
