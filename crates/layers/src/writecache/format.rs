//! The bytes of version 1 on the cache device: superblock, and what the kit's records say. The book's page "A write
//! cache" describes them byte by byte.
//!
//! Decoding takes any bytes: it never panics, and what isn't exactly right is named, never accepted.

use super::index::BITS;
use block::{Error, Payload, Result};
use logkit::record::{FIXED, Identity};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
use zones::on_device::format::Uuid;
use zones::sector::{self, Format, Head};

/// The version of the format that this code writes and reads.
pub const VERSION: u32 = 1;
/// How long a superblock is, in bytes.
pub const SUPERBLOCK: usize = sector::SECTOR;
const FORMAT: Format = Format { magic: *b"SILTWCSB", version: VERSION };
/// No sequence, address or epoch was ever counted so far.
const LARGEST_COUNT: u64 = 1 << 62;

/// What a superblock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// The size of the cache's blocks, in bytes.
    pub block_size: u32,
    /// What binds records to this cache.
    pub identity: Identity,
    /// Raised by every write of a superblock; copy `sequence % 2` holds it.
    pub sequence: u64,
    /// How many blocks of this size the origin had.
    pub origin_blocks: u64,
    /// The block at which the ring of segments begins.
    pub ring_start: u32,
    /// How many blocks a segment has.
    pub segment_blocks: u32,
    /// How many segments there are.
    pub segments: u32,
    /// How often the cache had been opened; records carry it.
    pub epoch: u64,
    /// The number of the first record of this epoch. None of an earlier epoch counts from it on.
    pub first_of_epoch: u64,
    /// The address of the first record that may not have been written back.
    pub tail: u64,
    /// Its number.
    pub tail_record: u64,
    /// Every record up to this number was durable, and whole.
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
    /// The block that holds it, zeros behind it.
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

    /// Reads it from the first bytes of a block.
    ///
    /// # Errors
    /// As [`Format::read`]; [`Error::Corrupt`] also for fields that can't be.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let raw: &Raw = FORMAT.read(bytes, "superblock of a write cache")?;
        let counts = [raw.sequence, raw.epoch, raw.first_of_epoch, raw.tail, raw.tail_record, raw.durable];
        if raw.reserved.iter().any(|byte| *byte != 0)
            || counts.iter().any(|count| count.get() > LARGEST_COUNT)
            || raw.tail.get() >> BITS != 0
            || raw.ring_start.get() < 2
            || raw.segment_blocks.get() == 0
            || raw.segments.get() == 0
        {
            return Err(Error::corrupt("superblock of a write cache: it says what can't be"));
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

/// What one entry of a record does to the origin's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// They hold the record's next data blocks.
    Write,
    /// They read as zeros, and their space may be given back.
    Discard,
    /// They read as zeros and keep their space.
    Zero,
}

/// One change of consecutive blocks of the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What becomes of them.
    pub action: Action,
    /// The first.
    pub block: u64,
    /// How many; for a write at most [`LONGEST_WRITE`].
    pub count: u64,
}

/// How many data blocks one entry has at most.
pub const LONGEST_WRITE: u64 = 256;

/// How long an entry is, in bytes.
pub const ENTRY: usize = 16;
/// How long what precedes the entries of a record is, in bytes: the flush epoch.
pub const PREFIX: usize = 8;
const ACTION_SHIFT: u32 = 62;

impl Entry {
    /// How many data blocks of the record belong to it.
    pub fn data_blocks(&self) -> u64 {
        match self.action {
            Action::Write => self.count,
            _ => 0,
        }
    }

    /// Puts it behind `meta`.
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
        let (block, said) = (word(0), word(8));
        let count = said & ((1 << ACTION_SHIFT) - 1);
        let action = match said >> ACTION_SHIFT {
            0 if count <= LONGEST_WRITE => Action::Write,
            1 => Action::Discard,
            2 => Action::Zero,
            _ => return Err(Error::corrupt("a record of a write cache that says what can't be")),
        };
        Ok(Entry { action, block, count })
    }
}

/// What a record of a write cache says besides its data.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'a> {
    /// How many flushes by clients had come before it.
    pub flush_epoch: u64,
    entries: &'a [[u8; ENTRY]],
}

impl<'a> Meta<'a> {
    /// Reads the meta of a record with so many data blocks; `origin_blocks` bounds the entries.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for anything else than what [`Entry::encode`] writes, for blocks behind the origin's end, and where
    /// entries and data don't match.
    pub fn decode(meta: &'a [u8], data_blocks: u32, origin_blocks: u64) -> Result<Self> {
        let wrong = || Error::corrupt("a record of a write cache whose entries don't match it");
        let (prefix, entries) = meta.split_at_checked(PREFIX).ok_or_else(wrong)?;
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        let meta = Meta { flush_epoch: u64::from_le_bytes(std::array::from_fn(|at| prefix[at])), entries };
        let mut data = 0;
        for entry in entries {
            let entry = Entry::decode(entry)?;
            data += entry.data_blocks();
            match entry.block.checked_add(entry.count) {
                Some(end) if end <= origin_blocks => {}
                _ => return Err(wrong()),
            }
        }
        match data == u64::from(data_blocks) && rest.is_empty() && meta.flush_epoch <= LARGEST_COUNT {
            true => Ok(meta),
            false => Err(wrong()),
        }
    }

    /// The entries, in order. A record without any fills the rest of its segment.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + use<'a> {
        // All of them were decoded once.
        self.entries.iter().filter_map(|entry| Entry::decode(entry).ok())
    }

    /// Whether nothing follows the record in its segment.
    pub fn ends_segment(&self) -> bool {
        self.entries.is_empty()
    }
}

/// How many bytes of a header are left for entries and their checksums, in a block of this size.
pub fn header_room(block_size: usize) -> usize {
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
        let read = Meta::decode(&meta, 2, 100).expect("it is right");
        assert_eq!((read.flush_epoch, read.entries().collect::<Vec<_>>()), (7, entries.to_vec()));
        assert!(Meta::decode(&meta, 3, 100).is_err(), "more data than entries");
        assert!(Meta::decode(&meta, 2, 99).is_err(), "behind the origin's end");
        assert!(Meta::decode(&meta[..meta.len() - 1], 2, 100).is_err(), "cut off");
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]

        #[test]
        fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..600), blocks in any::<u32>()) {
            let _ = Meta::decode(&bytes, blocks, 1 << 40);
            prop_assert!(Superblock::decode(&bytes).is_err());
        }
    }
}
