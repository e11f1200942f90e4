//! What a record's header says, checked: that it is this cache's, belongs at its place, and agrees with itself.
//!
//! Whether its number and epoch are the expected ones, and its data whole, is left to who reads the log: write-back and
//! opening.

use super::format::{Entry, Meta};
use block::{Error, Result};
use logkit::record::{Header, Identity, Parsed};

/// What to expect.
#[derive(Debug, Clone, Copy)]
pub struct Expect<'a> {
    /// Whose records.
    pub identity: &'a Identity,
    /// How many blocks the origin has.
    pub origin_blocks: u64,
}

/// The header of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What it says.
    pub header: Header,
    /// How many flushes by clients had come before it.
    pub flush_epoch: u64,
    /// What it does.
    pub entries: Vec<Entry>,
    /// The checksums of its data blocks.
    pub sums: Vec<u32>,
    /// Nothing follows in its segment.
    pub ends_segment: bool,
}

impl Found {
    /// Reads the header of the record that begins at this address.
    ///
    /// # Errors
    /// [`Error::Protocol`] and [`Error::Corrupt`] where no record of this cache begins here.
    pub fn decode(block: &[u8], address: u64, expect: &Expect<'_>) -> Result<Found> {
        let parsed = Parsed::decode(block, expect.identity)?;
        let header = parsed.header;
        if (header.generation, header.zone, header.position) != (address, 0, 0) {
            return Err(Error::protocol(format!(
                "a record of address {}, found at address {address}",
                header.generation
            )));
        }
        let meta = Meta::decode(parsed.meta, header.blocks, expect.origin_blocks)?;
        Ok(Found {
            header,
            flush_epoch: meta.flush_epoch,
            entries: meta.entries().collect(),
            sums: (0..header.blocks as usize).map(|number| parsed.sum(number)).collect(),
            ends_segment: meta.ends_segment(),
        })
    }

    /// How many blocks there are from one data block of it, or its header, to the record behind it; `left` are left in the
    /// segment, from the header on.
    pub fn length(&self, left: u64) -> u64 {
        match self.ends_segment {
            true => left,
            false => 1 + u64::from(self.header.blocks),
        }
    }

    /// Each written block with the number of its data block in the record, and each range with the number of data blocks
    /// before it.
    pub fn changes(&self) -> impl Iterator<Item = (Entry, u64)> + '_ {
        let mut before = 0;
        self.entries.iter().map(move |entry| {
            let number = before;
            before += entry.data_blocks();
            (*entry, number)
        })
    }
}
