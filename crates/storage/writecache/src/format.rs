//! On-device format, version 2: the superblock, and the metadata of records. The book's page "A write cache"
//! describes them byte by byte.
//!
//! Decoding accepts any bytes without a panic, and rejects everything that encoding doesn't write.

use crate::index::BITS;
use block::{Error, Payload, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
use zones::on_device::format::Uuid;
use zones::record::{FIXED, Identity};
use zones::sector::{self, Format, Head};

/// Format version that this code writes and reads.
pub const VERSION: u32 = 2;
/// Length of a superblock, in bytes.
pub const SUPERBLOCK: usize = sector::SECTOR;
const FORMAT: Format = Format { magic: *b"SILTWCSB", version: VERSION };
/// Limit to sequence numbers, addresses and epochs.
const MAX_COUNT: u64 = 1 << 62;

/// Fields of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Block size of the cache, in bytes.
    pub block_size: u32,
    /// Identity that all records of this cache carry.
    pub identity: Identity,
    /// Number of writes of a superblock; copy `sequence % 2` has it.
    pub sequence: u64,
    /// Number of blocks of the origin, of this size.
    pub origin_blocks: u64,
    /// First block of the ring of segments.
    pub ring_start: u32,
    /// Length of a segment, in blocks.
    pub segment_blocks: u32,
    /// Number of segments.
    pub segments: u32,
    /// Number of opens of the cache; records carry it.
    pub epoch: u64,
    /// Number of the first record of this epoch. Records of earlier epochs are invalid from this number on.
    pub first_of_epoch: u64,
    /// Address of the first record that may not have been written back.
    pub tail: u64,
    /// Number of that record.
    pub tail_record: u64,
    /// Number of the last record that is known to be durable and whole.
    pub durable: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    head: Head,
    block_size: U32,
    uuid: [u8; 16],
    key: U64,
    sequence: U64,
    origin_blocks: U64,
    ring_start: U32,
    segment_blocks: U32,
    segments: U32,
    epoch: U64,
    first_of_epoch: U64,
    tail: U64,
    tail_record: U64,
    durable: U64,
    reserved: [u8; 400],
    crc: U32,
}

impl Superblock {
    /// Encodes the superblock as a block, padded with zeros.
    pub fn encode(&self) -> Payload {
        let raw = Raw {
            head: FORMAT.head(),
            block_size: self.block_size.into(),
            uuid: self.identity.uuid.into_bytes(),
            key: self.identity.key.into(),
            sequence: self.sequence.into(),
            origin_blocks: self.origin_blocks.into(),
            ring_start: self.ring_start.into(),
            segment_blocks: self.segment_blocks.into(),
            segments: self.segments.into(),
            epoch: self.epoch.into(),
            first_of_epoch: self.first_of_epoch.into(),
            tail: self.tail.into(),
            tail_record: self.tail_record.into(),
            durable: self.durable.into(),
            reserved: [0; 400],
            crc: 0.into(),
        };
        sector::block_of(&raw, self.block_size as usize).into()
    }

    /// Decodes the first bytes of a block.
    ///
    /// # Errors
    /// As [`Format::read`]; [`Error::Corrupt`] also for fields out of range.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let raw: &Raw = FORMAT.read(bytes, "superblock of a write cache")?;
        let counts = [raw.sequence, raw.epoch, raw.first_of_epoch, raw.tail, raw.tail_record, raw.durable];
        if raw.reserved.iter().any(|byte| *byte != 0)
            || counts.iter().any(|count| count.get() > MAX_COUNT)
            || raw.tail.get() >> BITS != 0
            || raw.ring_start.get() < 2
            || raw.segment_blocks.get() == 0
            || raw.segments.get() == 0
        {
            return Err(Error::corrupt(format!(
                "superblock of a write cache: field out of range: sequence={}, epoch={}, first_of_epoch={}, tail={}, \
                 tail_record={}, durable={}, ring_start={}, segment_blocks={}, segments={}",
                raw.sequence,
                raw.epoch,
                raw.first_of_epoch,
                raw.tail,
                raw.tail_record,
                raw.durable,
                raw.ring_start,
                raw.segment_blocks,
                raw.segments
            )));
        }
        Ok(Superblock {
            block_size: raw.block_size.get(),
            identity: Identity { uuid: Uuid::from_bytes(raw.uuid), key: raw.key.get() },
            sequence: raw.sequence.get(),
            origin_blocks: raw.origin_blocks.get(),
            ring_start: raw.ring_start.get(),
            segment_blocks: raw.segment_blocks.get(),
            segments: raw.segments.get(),
            epoch: raw.epoch.get(),
            first_of_epoch: raw.first_of_epoch.get(),
            tail: raw.tail.get(),
            tail_record: raw.tail_record.get(),
            durable: raw.durable.get(),
        })
    }
}

/// Effect of an entry on the origin's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The blocks have the record's next data blocks.
    Write,
    /// The blocks read as zeros, and their space may be released.
    Discard,
    /// The blocks read as zeros and keep their space.
    Zero,
}

/// Change of consecutive blocks of the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Effect on the blocks.
    pub action: Action,
    /// First block.
    pub block: u64,
    /// Number of blocks; for a write at most [`MAX_WRITE`].
    pub count: u64,
}

/// Limit to the data blocks of one entry.
pub const MAX_WRITE: u64 = 256;

/// Length of an entry, in bytes.
pub const ENTRY: usize = 16;
/// Length of the flush epoch, which precedes the entries of a record, in bytes.
pub const PREFIX: usize = 8;
const ACTION_SHIFT: u32 = 62;

impl Entry {
    /// Number of data blocks of the record that belong to the entry.
    pub fn data_blocks(&self) -> u64 {
        match self.action {
            Action::Write => self.count,
            _ => 0,
        }
    }

    /// Appends the encoded entry to `meta`.
    pub fn encode(&self, meta: &mut Vec<u8>) {
        let action = match self.action {
            Action::Write => 0,
            Action::Discard => 1,
            Action::Zero => 2,
        };
        meta.extend_from_slice(&self.block.to_le_bytes());
        meta.extend_from_slice(&(self.count | action << ACTION_SHIFT).to_le_bytes());
    }

    fn decode(bytes: &[u8; ENTRY]) -> Result<Self> {
        let word = |from: usize| u64::from_le_bytes(std::array::from_fn(|at| bytes[from + at]));
        let (block, packed) = (word(0), word(8));
        let count = packed & ((1 << ACTION_SHIFT) - 1);
        let action = match packed >> ACTION_SHIFT {
            0 if count <= MAX_WRITE => Action::Write,
            1 => Action::Discard,
            2 => Action::Zero,
            code => {
                return Err(Error::corrupt(format!(
                    "record of a write cache: entry out of range: action={code}, block={block}, count={count}"
                )));
            }
        };
        Ok(Entry { action, block, count })
    }
}

/// Metadata of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Flush epoch of the record.
    pub flush_epoch: u64,
    /// The entries, in order. A record without entries fills the rest of its segment.
    pub entries: Vec<Entry>,
}

impl Meta {
    /// Decodes the metadata of a record with this many data blocks. `origin_blocks` is the limit to the
    /// entries.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for anything that [`Entry::encode`] doesn't write, for blocks after the origin's
    /// end, and where the entries don't have as many data blocks as the record.
    pub fn decode(meta: &[u8], data_blocks: u32, origin_blocks: u64) -> Result<Self> {
        let wrong =
            || Error::corrupt("record of a write cache: entries out of range, or not those of its data");
        let (prefix, entries) = meta.split_at_checked(PREFIX).ok_or_else(wrong)?;
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        let flush_epoch = u64::from_le_bytes(std::array::from_fn(|at| prefix[at]));
        let mut meta = Meta { flush_epoch, entries: Vec::with_capacity(entries.len()) };
        let mut data = 0;
        for entry in entries {
            let entry = Entry::decode(entry)?;
            meta.entries.push(entry);
            data += entry.data_blocks();
            match entry.block.checked_add(entry.count) {
                Some(end) if end <= origin_blocks => {}
                _ => return Err(wrong()),
            }
        }
        match data == u64::from(data_blocks) && rest.is_empty() && meta.flush_epoch <= MAX_COUNT {
            true => Ok(meta),
            false => Err(wrong()),
        }
    }

    /// Whether the record fills the rest of its segment.
    pub fn ends_segment(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Bytes of a header for entries and checksums, in a block of this size.
pub fn header_capacity(block_size: usize) -> usize {
    block_size.min(1 << 16) - FIXED - PREFIX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn superblock() -> Superblock {
        Superblock {
            block_size: 4096,
            identity: Identity { uuid: Uuid::from_bytes([3; 16]), key: 4 },
            sequence: 5,
            origin_blocks: 6,
            ring_start: 2,
            segment_blocks: 7,
            segments: 8,
            epoch: 9,
            first_of_epoch: 10,
            tail: 11,
            tail_record: 12,
            durable: 13,
        }
    }

    #[test]
    fn a_superblock_is_read_as_written_and_every_changed_bit_is_noticed() {
        let bytes = superblock().encode().to_data().to_vec();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
        for bit in 0..SUPERBLOCK * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn entries_are_read_as_written() {
        let entries = [
            Entry { action: Action::Write, block: 5, count: 2 },
            Entry { action: Action::Discard, block: 0, count: 100 },
            Entry { action: Action::Zero, block: 99, count: 1 },
        ];
        let mut meta = 7_u64.to_le_bytes().to_vec();
        entries.iter().for_each(|entry| entry.encode(&mut meta));
        let read = Meta::decode(&meta, 2, 100).expect("valid metadata");
        assert_eq!(read, Meta { flush_epoch: 7, entries: entries.to_vec() });
        assert!(Meta::decode(&meta, 3, 100).is_err(), "more data than entries");
        assert!(Meta::decode(&meta, 2, 99).is_err(), "after the origin's end");
        assert!(Meta::decode(&meta[..meta.len() - 1], 2, 100).is_err(), "cut off");
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]

        #[test]
        fn any_bytes_are_decoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), blocks in any::<u32>()) {
            let _ = Meta::decode(&bytes, blocks, 1 << 40);
            prop_assert!(Superblock::decode(&bytes).is_err());
        }
    }
}
