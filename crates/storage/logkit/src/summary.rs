//! The summary at the end of a full zone: the headers of all its records in order, so that recovery and the
//! cleaner read them with one request.
//!
//! The summary takes the last written blocks of the zone. The very last block begins with a trailer; the
//! headers' bytes fill the blocks before it and then the rest of the last block. A summary is valid only in a
//! full zone: its contents were durable before the zone was marked as full.

use crate::record::{Identity, Parsed, keyed_sum};
use block::{Error, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a trailer.
pub const MAGIC: [u8; 8] = *b"SILTSUM1";
/// Size of a trailer in bytes.
pub const TRAILER: usize = size_of::<Raw>();
/// Alignment of the headers in bytes.
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

/// Block of a zone at one generation: where a summary or a record begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockAddress {
    /// Zone that the summary describes.
    pub zone: u32,
    /// Number of times that the zone had been reset.
    pub generation: u64,
    /// First block of the summary in the zone.
    pub position: u32,
}

/// Headers of a zone's records, collected while the zone fills.
#[derive(Debug, Default)]
pub struct Builder {
    bytes: Vec<u8>,
    records: u32,
}

impl Builder {
    /// Removes all headers and keeps the allocation.
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

    /// Returns the number of blocks of the summary after adding a header of `more` bytes (0: none).
    pub fn blocks_with(&self, more: usize, block_size: usize) -> usize {
        // Block sizes are powers of two: this runs for each entry of a record, and a division would be slow.
        debug_assert!(block_size.is_power_of_two());
        let bytes = self.bytes.len() + more.next_multiple_of(ALIGNMENT) + TRAILER;
        (bytes + block_size - 1) >> block_size.trailing_zeros()
    }

    /// Writes the summary to `target`, which is [`blocks_with`](Self::blocks_with)`(0)` blocks of zeros.
    pub fn encode(&self, place: BlockAddress, identity: &Identity, block_size: usize, target: &mut [u8]) {
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

/// Returns the number of blocks of a summary, given its last block, which is the last written block of the
/// zone.
///
/// # Errors
/// [`Error::Protocol`] if no summary ends with this block.
pub fn blocks_of(last: &[u8]) -> Result<u32> {
    let (raw, _) = Raw::ref_from_prefix(last).map_err(|_| Error::protocol("summary cut short"))?;
    if raw.magic != MAGIC || raw.blocks.get() == 0 {
        return Err(Error::protocol("not the end of a summary: other magic"));
    }
    Ok(raw.blocks.get())
}

/// Records of a zone as listed by its summary.
#[derive(Debug, Clone)]
pub struct Summary {
    bytes: Vec<u8>,
    records: u32,
}

impl Summary {
    /// Decodes the summary of this zone from its blocks.
    ///
    /// # Errors
    /// [`Error::Protocol`] if there is none of this log, zone and generation; [`Error::Corrupt`] for a
    /// damaged one.
    pub fn decode(
        mut blocks: Vec<u8>,
        place: BlockAddress,
        identity: &Identity,
        block_size: usize,
    ) -> Result<Summary> {
        let count = blocks.len() / block_size;
        if count == 0 || !blocks.len().is_multiple_of(block_size) {
            return Err(Error::protocol("summary: not a multiple of the block size"));
        }
        let (before, last) = blocks.split_at((count - 1) * block_size);
        if blocks_of(last)? as usize != count {
            return Err(Error::protocol("summary of another length"));
        }
        let (raw, _) = Raw::ref_from_prefix(last).map_err(|_| Error::protocol("summary cut short"))?;
        let found = BlockAddress {
            zone: raw.zone.get(),
            generation: raw.generation.get(),
            position: raw.position.get(),
        };
        if raw.uuid != identity.uuid.into_bytes() || found != place {
            return Err(Error::protocol(format!("summary of {found:?}; expected {place:?}")));
        }
        if keyed_sum(identity.key, &[&last[12..TRAILER], before, &last[TRAILER..]]) != raw.checksum.get() {
            return Err(Error::corrupt(format!("summary of zone {}: wrong checksum", place.zone)));
        }
        let length = raw.length.get() as usize;
        let (records, trailer) = (raw.records.get(), before.len());
        if length > blocks.len() - TRAILER {
            return Err(Error::corrupt(format!(
                "summary of zone {}: length {length} exceeds its blocks",
                place.zone
            )));
        }
        // The bytes before and after the trailer are contiguous without it.
        blocks.drain(trailer..trailer + TRAILER);
        blocks.truncate(length);
        Ok(Summary { bytes: blocks, records })
    }

    /// Returns the records in the order in which they were appended; ends early at an invalid one.
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
    use crate::record::StreamId;
    use crate::record::{Header, Kind};
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
            let mut builder = Builder::default();
            for sequence in 0..records {
                let expected = builder.blocks_with(header(sequence).len(), BLOCK);
                builder.push(&header(sequence));
                assert_eq!(builder.blocks_with(0, BLOCK), expected);
            }
            let place = BlockAddress { zone: 3, generation: 4, position: 100 };
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
            let elsewhere = BlockAddress { generation: 5, ..place };
            assert!(Summary::decode(blocks.clone(), elsewhere, &IDENTITY, BLOCK).is_err());
        }
    }
}
