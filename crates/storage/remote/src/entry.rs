//! An entry of the map: the place of a page, in 64 bits.
//!
//! ```text
//! bits  0..2   kind: absent, same, stored, lost
//! same:   bits 2..34  the four bytes that fill the page
//! stored: bits 2..38  granule on the nodes, 38..45 number of granules, 45..64 generation
//! ```

use crate::slot::{GRANULE, PAGE};
use block::Error;

/// Largest number of granules of all zones: 4 TiB of remote memory. `config` checks it.
pub const MAX_GRANULES: u64 = 1 << 36;
/// Place of a stored page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// First granule, counted over all zones.
    pub granule: u64,
    /// Number of granules, 1 to 127.
    pub granules: u8,
    /// Number of the write that stored it, modulo [`GENERATIONS`](crate::slot::GENERATIONS).
    pub generation: u32,
}

/// Entry of a page in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Never written, or discarded: it reads as zeros.
    Absent,
    /// Filled with these four bytes, over and over; nothing else is stored.
    Same(u32),
    /// Stored on the nodes, or in a block that will be written there.
    Stored(Place),
    /// All copies were lost: reads fail until the page is written again.
    Lost,
}

impl Entry {
    /// Encodes the entry in 64 bits.
    pub fn encode(self) -> u64 {
        match self {
            Entry::Absent => 0,
            Entry::Same(pattern) => 1 | u64::from(pattern) << 2,
            Entry::Stored(Place { granule, granules, generation }) => {
                2 | granule << 2 | u64::from(granules) << 38 | u64::from(generation) << 45
            }
            Entry::Lost => 3,
        }
    }

    /// Decodes bits that [`encode`](Self::encode) returned.
    pub fn decode(bits: u64) -> Self {
        match bits & 3 {
            0 => Entry::Absent,
            1 => Entry::Same((bits >> 2) as u32),
            2 => Entry::Stored(Place {
                granule: (bits >> 2) & (MAX_GRANULES - 1),
                granules: (bits >> 38) as u8 & 0x7F,
                generation: (bits >> 45) as u32,
            }),
            _ => Entry::Lost,
        }
    }
}

/// First piece of a place and the end of its pieces, in pieces of 4 KiB over all blocks.
pub(crate) fn pieces_of(place: Place) -> (u64, u64) {
    let pages = (PAGE / GRANULE) as u64;
    (place.granule / pages, (place.granule + u64::from(place.granules)).div_ceil(pages))
}

/// Error of a page that has lost all copies.
pub(crate) fn lost(page: u32) -> Error {
    Error::io(format!("page {page}: every copy was lost with its memory node"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::GENERATIONS;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_entry_is_decoded_as_it_was(
            pattern: u32,
            granule in 0..MAX_GRANULES,
            granules in 1..128_u8,
            generation in 0..GENERATIONS,
        ) {
            let stored = Entry::Stored(Place { granule, granules, generation });
            for entry in [Entry::Absent, Entry::Same(pattern), stored, Entry::Lost] {
                prop_assert_eq!(Entry::decode(entry.encode()), entry);
            }
        }
    }
}
