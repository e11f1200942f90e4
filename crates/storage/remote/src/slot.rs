//! A page as it lies in a block: a header, and the page, compressed where that makes it smaller.
//!
//! ```text
//! 0  page u32   4  bytes u16   6  encoding u16   8  generation u32   12  CRC32C   16  bytes
//! ```
//! Numbers are little-endian. A slot takes whole granules; the rest of the last one is zeros. The checksum
//! covers the header, the bytes and the zone's number of resets, so that slots of an earlier use of the zone
//! are invalid and a block can be searched for slots at every granule.

use block::{Buffer, Result};
use crc_fast::{CrcAlgorithm, Digest};

/// Unit in which pages are packed, in bytes.
pub const GRANULE: usize = 64;
/// Generations are counted modulo this.
pub const GENERATIONS: u32 = 1 << 19;

/// Size of a page in bytes.
pub const PAGE: usize = 4096;
/// Size of the header in bytes.
pub const HEADER: usize = 16;

/// Encoding of the bytes of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// The bytes of the page.
    Plain,
    /// An LZ4 block.
    Lz4,
    /// A frame of zstd.
    Zstd,
}

/// A slot in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot<'a> {
    /// Number of the page.
    pub page: u32,
    /// Number of the write that stored it, modulo [`GENERATIONS`].
    pub generation: u32,
    /// Encoding of the bytes.
    pub encoding: Encoding,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// Number of granules of a slot with this many bytes.
pub fn granules_of(bytes: usize) -> u8 {
    (HEADER + bytes).div_ceil(GRANULE) as u8
}

fn checksum(header: &[u8], zone_generation: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(header);
    digest.update(&zone_generation.to_le_bytes());
    digest.update(bytes);
    digest.finalize() as u32
}

impl<'a> Slot<'a> {
    /// Encodes the header, for a zone with this number of resets.
    pub fn header(&self, zone_generation: u32) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&self.page.to_le_bytes());
        header[4..6].copy_from_slice(&(self.bytes.len() as u16).to_le_bytes());
        let encoding: u16 = match self.encoding {
            Encoding::Plain => 0,
            Encoding::Lz4 => 1,
            Encoding::Zstd => 2,
        };
        header[6..8].copy_from_slice(&encoding.to_le_bytes());
        header[8..12].copy_from_slice(&self.generation.to_le_bytes());
        let sum = checksum(&header[..12], zone_generation, self.bytes);
        header[12..].copy_from_slice(&sum.to_le_bytes());
        header
    }

    /// Decodes the slot at the beginning of these bytes; `None` if there is no valid one of a zone with this
    /// number of resets.
    pub fn parse(from: &'a [u8], zone_generation: u32) -> Option<Self> {
        let header = from.get(..HEADER)?;
        let number =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = usize::from(u16::from_le_bytes([header[4], header[5]]));
        let encoding = match u16::from_le_bytes([header[6], header[7]]) {
            0 if length == PAGE => Encoding::Plain,
            1 if (1..PAGE).contains(&length) => Encoding::Lz4,
            2 if (1..PAGE).contains(&length) => Encoding::Zstd,
            _ => return None,
        };
        let (page, generation) = (number(0), number(8));
        let bytes = from.get(HEADER..HEADER + length)?;
        let is_whole =
            generation < GENERATIONS && checksum(&header[..12], zone_generation, bytes) == number(12);
        is_whole.then_some(Slot { page, generation, encoding, bytes })
    }

    /// Number of granules that the slot takes.
    pub fn granules(&self) -> u8 {
        granules_of(self.bytes.len())
    }
}

/// Visits the slots of a part of a block, each with its first granule in the part. Other bytes between slots
/// are skipped.
pub fn each<'a>(part: &'a [u8], zone_generation: u32, mut visit: impl FnMut(usize, Slot<'a>)) {
    let mut granule = 0;
    while let Some(rest) = part.get(granule * GRANULE..).filter(|rest| rest.len() > HEADER) {
        granule += match Slot::parse(rest, zone_generation) {
            Some(slot) => {
                visit(granule, slot);
                usize::from(slot.granules())
            }
            None => 1,
        };
    }
}

/// Returns the four bytes that fill a page when repeated; `None` if there are none.
pub fn pattern_of(page: &[u8; PAGE]) -> Option<u32> {
    let pattern = u32::from_le_bytes([page[0], page[1], page[2], page[3]]);
    let double = u64::from(pattern) << 32 | u64::from(pattern);
    let is_same = |chunk: &[u8]| chunk == double.to_le_bytes();
    // Most other pages differ in one of the first comparisons.
    let is_filled = is_same(&page[PAGE - 8..]) && page.chunks_exact(8).all(is_same);
    is_filled.then_some(pattern)
}

/// Appends a page to a buffer, unless `fill` returns false or an error.
pub(crate) fn append_page(
    buffer: &mut Buffer,
    fill: impl FnOnce(&mut [u8; PAGE]) -> Result<bool>,
) -> Result<bool> {
    let length = buffer.filled().len();
    buffer.append_zeroes(PAGE);
    let page = buffer.filled_mut()[length..].first_chunk_mut().expect("a page was appended");
    let outcome = fill(page);
    if outcome != Ok(true) {
        buffer.truncate_filled(length);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stored(slot: Slot<'_>, zone_generation: u32) -> Vec<u8> {
        let mut bytes = slot.header(zone_generation).to_vec();
        bytes.extend_from_slice(slot.bytes);
        bytes.resize(usize::from(slot.granules()) * GRANULE, 0);
        bytes
    }

    proptest! {
        #[test]
        fn a_slot_is_parsed_as_it_was_written_and_in_no_other_zone(
            page: u32,
            generation in 0..GENERATIONS,
            zone_generation: u32,
            bytes in proptest::collection::vec(any::<u8>(), 1..PAGE),
            flipped: prop::sample::Index,
        ) {
            let slot = Slot { page, generation, encoding: Encoding::Lz4, bytes: &bytes };
            let mut whole = stored(slot, zone_generation);
            prop_assert_eq!(Slot::parse(&whole, zone_generation), Some(slot));
            prop_assert_eq!(Slot::parse(&whole, zone_generation.wrapping_add(1)), None);
            let end = HEADER + bytes.len();
            prop_assert_eq!(Slot::parse(&whole[..end - 1], zone_generation), None);
            whole[flipped.index(end)] ^= 4;
            prop_assert_eq!(Slot::parse(&whole, zone_generation), None);
            let plain = Slot { encoding: Encoding::Plain, bytes: &[7; PAGE], ..slot };
            let whole = stored(plain, 3);
            prop_assert_eq!(Slot::parse(&whole, 3), Some(plain));
        }

        #[test]
        fn any_bytes_are_searched_for_slots(bytes in proptest::collection::vec(any::<u8>(), 0..1000), lengths in proptest::collection::vec(1..300_usize, 0..9)) {
            // Arbitrary bytes in whole granules between slots.
            let mut block = Vec::new();
            let mut expected = Vec::new();
            for (number, length) in lengths.iter().enumerate() {
                let rubbish = bytes.len() / GRANULE * GRANULE;
                block.extend_from_slice(&bytes[..rubbish]);
                expected.push((block.len() / GRANULE, number as u32));
                let bytes = vec![number as u8; *length];
                block.extend(stored(Slot { page: number as u32, generation: 1, encoding: Encoding::Lz4, bytes: &bytes }, 5));
            }
            let mut found = Vec::new();
            each(&block, 5, |granule, slot| found.push((granule, slot.page)));
            prop_assert_eq!(found, expected);
            each(&bytes, 5, |_, _| panic!("no slot is there"));
        }
    }

    #[test]
    fn pages_of_one_pattern_are_told_from_others() {
        let mut page = [0; PAGE];
        assert_eq!(pattern_of(&page), Some(0));
        page.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&[1, 2, 3, 4]));
        assert_eq!(pattern_of(&page), Some(u32::from_le_bytes([1, 2, 3, 4])));
        for at in [0, 5, 2000, PAGE - 1] {
            let mut other = page;
            other[at] ^= 1;
            assert_eq!(pattern_of(&other), None);
        }
    }
}
