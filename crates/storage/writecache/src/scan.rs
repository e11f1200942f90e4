//! Checked headers of records: of this cache, at their place, with metadata that agrees with the record.
//!
//! Number and epoch of the record, and its data, are checked by the readers of the log: write-back and
//! opening.

use crate::format::{Entry, Meta};
use block::{Error, Result};
use zones::record::{Header, Identity, Parsed};

/// Properties of the cache against which a record's header is checked.
#[derive(Debug, Clone, Copy)]
pub struct Expect<'a> {
    /// Identity of the cache.
    pub identity: &'a Identity,
    /// Number of blocks of the origin.
    pub origin_blocks: u64,
}

/// Header of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Fields of the kit's record.
    pub header: Header,
    /// Flush epoch and entries.
    pub meta: Meta,
    /// Checksums of the data blocks.
    pub sums: Vec<u32>,
}

impl Found {
    /// Decodes the header of the record at this address.
    ///
    /// # Errors
    /// [`Error::Protocol`] and [`Error::Corrupt`] where no record of this cache begins.
    pub fn decode(block: &[u8], address: u64, expect: &Expect<'_>) -> Result<Found> {
        let parsed = Parsed::decode(block, expect.identity)?;
        let header = parsed.header;
        if (header.generation, header.zone, header.position) != (address, 0, 0) {
            return Err(Error::protocol(format!(
                "record of address {}; expected address {address}",
                header.generation
            )));
        }
        let meta = Meta::decode(parsed.meta, header.blocks, expect.origin_blocks)?;
        let sums = (0..header.blocks as usize).map(|number| parsed.sum(number)).collect();
        Ok(Found { header, meta, sums })
    }

    /// Number of blocks from the header to the next record. `left` is the number of blocks from the header to
    /// the end of the segment.
    pub fn length(&self, left: u64) -> u64 {
        match self.meta.ends_segment() {
            true => left,
            false => 1 + u64::from(self.header.blocks),
        }
    }

    /// The changes, each with the number of data blocks of the record before it.
    pub fn changes(&self) -> impl Iterator<Item = (Entry, u64)> + '_ {
        let mut before = 0;
        self.meta.entries.iter().map(move |entry| {
            let number = before;
            before += entry.data_blocks();
            (*entry, number)
        })
    }
}
