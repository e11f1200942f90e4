//! The summary at the end of a full zone: the headers of all its records, one behind the other, so that a recovery or a
//! cleaner reads them in one piece.
//!
//! It fills the last blocks of the zone that were written. The very last one begins with a trailer; the headers'
//! bytes fill the blocks before it and what is left of it. A summary is believed only in a zone that is full: then
//! everything in it was durable before it was marked as full.

use crate::record::{Identity, Parsed, keyed_sum};
use block::{Error, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a trailer.
pub const MAGIC: [u8; 8] = *b"SILTSUM1";
/// How long a trailer is, in bytes.
pub const TRAILER: usize = size_of::<Raw>();
/// Headers begin at multiples of so many bytes.
const ALIGNMENT: usize = 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    checksum: U32,
    zone: U32,
    uuid: [u8; 16],
    generation: U64,
    position: U32,
    blocks: U32,
    records: U32,
    length: U32,
}

/// Which zone a summary describes, and where in it it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The zone.
    pub zone: u32,
    /// How many times it had been reset.
    pub generation: u64,
    /// The first block of the summary in the zone.
    pub position: u32,
}

/// The headers of a zone's records, as they are collected while it fills.
#[derive(Debug, Default)]
pub struct Builder {
    bytes: Vec<u8>,
    records: u32,
}

impl Builder {
    /// With nothing in it, and room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Builder { bytes: Vec::with_capacity(bytes), records: 0 }
    }

    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.records = 0;
    }

    /// Adds a record by its header (without padding).
    pub fn push(&mut self, header: &[u8]) {
        self.bytes.extend_from_slice(header);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        self.records += 1;
    }

    /// How many blocks the summary will take once a header of `more` bytes has been added; 0 asks as it is now.
    pub fn blocks_with(&self, more: usize, block_size: usize) -> usize {
        // Sizes of blocks are powers of two: asked for each entry of a record, a division would be felt.
        debug_assert!(block_size.is_power_of_two());
        let bytes = self.bytes.len() + more.next_multiple_of(ALIGNMENT) + TRAILER;
        (bytes + block_size - 1) >> block_size.trailing_zeros()
    }

    /// Writes the summary to `target`, which is [`blocks_with`](Self::blocks_with)`(0)` blocks of zeros.
    pub fn encode(&self, place: Place, identity: &Identity, block_size: usize, target: &mut [u8]) {
        let blocks = self.blocks_with(0, block_size);
        debug_assert_eq!(target.len(), blocks * block_size);
        let raw = Raw {
            magic: MAGIC,
            checksum: 0.into(),
            zone: place.zone.into(),
            uuid: identity.uuid.into_bytes(),
            generation: place.generation.into(),
            position: place.position.into(),
            blocks: (blocks as u32).into(),
            records: self.records.into(),
            length: (self.bytes.len() as u32).into(),
        };
        let (before, last) = target.split_at_mut((blocks - 1) * block_size);
        let in_front = before.len().min(self.bytes.len());
        before[..in_front].copy_from_slice(&self.bytes[..in_front]);
        last[..TRAILER].copy_from_slice(raw.as_bytes());
        let rest = &self.bytes[in_front..];
        last[TRAILER..TRAILER + rest.len()].copy_from_slice(rest);
        let sum = keyed_sum(identity.key, &[&last[12..TRAILER], before, &last[TRAILER..]]);
        last[8..12].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Says how many blocks the summary takes whose last block this is, the last that was written to its zone.
///
/// # Errors
/// [`Error::Protocol`] where this block ends no summary.
pub fn blocks_of(last: &[u8]) -> Result<u32> {
    let (raw, _) = Raw::ref_from_prefix(last).map_err(|_| Error::protocol("too short for a summary"))?;
    if raw.magic != MAGIC || raw.blocks.get() == 0 {
        return Err(Error::protocol("no summary ends here"));
    }
    Ok(raw.blocks.get())
}

/// The records of a zone, by its summary.
#[derive(Debug, Clone)]
pub struct Summary {
    bytes: Vec<u8>,
    records: u32,
}

impl Summary {
    /// Reads the summary of this zone from its blocks.
    ///
    /// # Errors
    /// [`Error::Protocol`] where there is none of this log, zone and generation; [`Error::Corrupt`] for a damaged one.
    pub fn decode(
        mut blocks: Vec<u8>,
        place: Place,
        identity: &Identity,
        block_size: usize,
    ) -> Result<Summary> {
        let count = blocks.len() / block_size;
        if count == 0 || !blocks.len().is_multiple_of(block_size) {
            return Err(Error::protocol("a summary takes whole blocks"));
        }
        let (before, last) = blocks.split_at((count - 1) * block_size);
        if blocks_of(last)? as usize != count {
            return Err(Error::protocol("a summary of another length"));
        }
        let (raw, _) = Raw::ref_from_prefix(last).map_err(|_| Error::protocol("too short for a summary"))?;
        let found =
            Place { zone: raw.zone.get(), generation: raw.generation.get(), position: raw.position.get() };
        if raw.uuid != identity.uuid.into_bytes() || found != place {
            return Err(Error::protocol(format!("a summary of {found:?}, expected {place:?}")));
        }
        if keyed_sum(identity.key, &[&last[12..TRAILER], before, &last[TRAILER..]]) != raw.checksum.get() {
            return Err(Error::corrupt(format!("the summary of zone {} has a wrong checksum", place.zone)));
        }
        let length = raw.length.get() as usize;
        let (records, trailer) = (raw.records.get(), before.len());
        if length > blocks.len() - TRAILER {
            return Err(Error::corrupt(format!("the summary of zone {} is longer than it is", place.zone)));
        }
        // What stands before the trailer and behind it, in one piece.
        blocks.drain(trailer..trailer + TRAILER);
        blocks.truncate(length);
        Ok(Summary { bytes: blocks, records })
    }

    /// The records, in the order in which they were appended; ends early at one that doesn't validate.
    pub fn records<'a>(&'a self, identity: &'a Identity) -> impl Iterator<Item = Parsed<'a>> + 'a {
        let mut at = 0;
        (0..self.records).map_while(move |_| {
            let parsed = Parsed::decode(self.bytes.get(at..)?, identity).ok()?;
            at += parsed.bytes.len().next_multiple_of(ALIGNMENT);
            Some(parsed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Header, Kind};
    use crate::stream::StreamId;
    use zones::on_device::format::Uuid;

    const IDENTITY: Identity = Identity { uuid: Uuid::from_bytes([7; 16]), key: 99 };
    const BLOCK: usize = 512;

    fn header(sequence: u64) -> Vec<u8> {
        let header = Header {
            kind: Kind::Entries,
            stream: StreamId(0),
            class: 0,
            epoch: 1,
            sequence,
            durable: 0,
            clock: 0,
            zone: 3,
            generation: 4,
            position: sequence as u32 * 2,
            blocks: 1,
        };
        let mut bytes = vec![0; BLOCK];
        let length = header.encode(&IDENTITY, &[], &[5], b"abc", &mut bytes);
        bytes.truncate(length);
        bytes
    }

    #[test]
    fn any_number_of_headers_comes_back() {
        for records in 0..30 {
            let mut builder = Builder::with_capacity(0);
            for sequence in 0..records {
                let expected = builder.blocks_with(header(sequence).len(), BLOCK);
                builder.push(&header(sequence));
                assert_eq!(builder.blocks_with(0, BLOCK), expected);
            }
            let place = Place { zone: 3, generation: 4, position: 100 };
            let mut blocks = vec![0; builder.blocks_with(0, BLOCK) * BLOCK];
            builder.encode(place, &IDENTITY, BLOCK, &mut blocks);
            assert_eq!(blocks_of(&blocks[blocks.len() - BLOCK..]), Ok((blocks.len() / BLOCK) as u32));
            let summary = Summary::decode(blocks.clone(), place, &IDENTITY, BLOCK).expect("it is a summary");
            let found: Vec<u64> = summary.records(&IDENTITY).map(|parsed| parsed.header.sequence).collect();
            assert_eq!(found, (0..records).collect::<Vec<_>>());
            for byte in [0, 12, blocks.len() - 1, blocks.len() / 2] {
                let mut damaged = blocks.clone();
                damaged[byte] ^= 1;
                assert!(Summary::decode(damaged, place, &IDENTITY, BLOCK).is_err(), "{byte}");
            }
            let elsewhere = Place { generation: 5, ..place };
            assert!(Summary::decode(blocks.clone(), elsewhere, &IDENTITY, BLOCK).is_err());
        }
    }
}
