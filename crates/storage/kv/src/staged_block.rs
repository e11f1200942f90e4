//! Format of the staging area of a store: acknowledged writes that aren't in a record yet. The book's page
//! "Staged writes of the key-value store" describes the bytes.
//!
//! The area is divided among the shards, and the part of a shard into blocks. A block has a header and then
//! entries one after the other, each with the writes of one call. Nothing records their number: they end at
//! the first one that doesn't verify. The checksum of an entry covers the identity and the epoch of the log,
//! the shard and the sequence of the entry's first write, which is that of the write after the entry before
//! it plus the number of writes between them that weren't staged. So neither a torn entry nor one from an
//! earlier use of the block is ever taken for an entry.

use crate::batch::Write;
use crate::key_version::Sequence;
use block::{Error, Result};
use crc_fast::{CrcAlgorithm, checksum};
use std::ops::Range;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a block.
const MAGIC: [u8; 8] = *b"SILTSTAG";
/// Version of the format.
const VERSION: u32 = 1;
/// Length of a block's header, in bytes: within one sector, so that a power cut doesn't tear it.
pub const HEADER: usize = size_of::<RawHeader>();
/// Bytes of an entry beside its writes: length, skipped writes and checksum.
pub const ENTRY_OVERHEAD: usize = 12;
/// Maximum and minimum size of a block, in bytes.
const MAX_BLOCK: u64 = 64 << 10;
const MIN_BLOCK: u64 = 4096;
/// Number of blocks of a shard as far as the area has space for them.
const BLOCKS: u64 = 8;
/// Minimum number of blocks of a shard: one takes writes while the records of the others are written.
const MIN_BLOCKS: u64 = 2;

/// Division of the area among shards and blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    /// Bytes of a block.
    pub block: u64,
    /// Number of blocks of a shard.
    pub blocks: u64,
}

impl Division {
    /// Division of an area among shards; `None` if it is too small for their number.
    pub fn new(bytes: u64, shards: u16) -> Option<Self> {
        let part = bytes / u64::from(shards.max(1));
        let block = (part / BLOCKS / MIN_BLOCK * MIN_BLOCK).clamp(MIN_BLOCK, MAX_BLOCK);
        let blocks = part / block;
        (blocks >= MIN_BLOCKS).then_some(Division { block, blocks })
    }

    /// Bytes of a shard.
    pub fn part(&self) -> u64 {
        self.block * self.blocks
    }

    /// Place of a shard's block in the area.
    pub fn place(&self, shard: u16, block: u64) -> Range<u64> {
        let begin = u64::from(shard) * self.part() + block * self.block;
        begin..begin + self.block
    }
}

/// Owner of staged writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// Identity of the log.
    pub uuid: [u8; 16],
    /// Epoch of the log in which the writes were made.
    pub epoch: u64,
    /// Shard of the store.
    pub shard: u16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U32,
    shard: U16,
    reserved: U16,
    uuid: [u8; 16],
    epoch: U64,
    first: U64,
    padding: [u8; 12],
    crc: U32,
}

/// Bytes that the checksum of an entry covers before its length.
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct EntryKey {
    uuid: [u8; 16],
    epoch: U64,
    sequence: U64,
    shard: U16,
    reserved: [u8; 6],
}

impl Writer {
    fn key(&self, sequence: Sequence) -> EntryKey {
        let Writer { uuid, epoch, shard } = *self;
        EntryKey {
            uuid,
            epoch: epoch.into(),
            sequence: sequence.into(),
            shard: shard.into(),
            reserved: [0; 6],
        }
    }

    /// Encodes the header of a block whose first entry begins with the write `first`.
    pub fn encode_header(&self, first: Sequence, into: &mut Vec<u8>) {
        let Writer { uuid, epoch, shard } = *self;
        let mut raw = RawHeader {
            magic: MAGIC,
            version: VERSION.into(),
            shard: shard.into(),
            reserved: 0.into(),
            uuid,
            epoch: epoch.into(),
            first: first.into(),
            padding: [0; 12],
            crc: 0.into(),
        };
        raw.crc = crc(&raw.as_bytes()[..HEADER - 4]).into();
        into.extend_from_slice(raw.as_bytes());
    }

    /// Encodes an entry whose first write has this sequence, `skipped` after the last write of the entry
    /// before it. `scratch` gets the bytes that the checksum covers.
    pub fn encode_entry(
        &self,
        (sequence, skipped): (Sequence, u32),
        writes: &[u8],
        scratch: &mut Vec<u8>,
        into: &mut Vec<u8>,
    ) {
        let checksum = self.checksum((sequence, skipped), writes, scratch);
        into.extend_from_slice(&scratch[size_of::<EntryKey>()..]);
        into.extend_from_slice(&checksum.to_le_bytes());
    }

    fn checksum(&self, (sequence, skipped): (Sequence, u32), writes: &[u8], scratch: &mut Vec<u8>) -> u32 {
        scratch.clear();
        scratch.extend_from_slice(self.key(sequence).as_bytes());
        scratch.extend_from_slice(&(writes.len() as u32).to_le_bytes());
        scratch.extend_from_slice(&skipped.to_le_bytes());
        scratch.extend_from_slice(writes);
        crc(scratch)
    }
}

fn crc(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Decodes the header of a block of this log and shard; `None` for other bytes. Returns its writer and the
/// sequence of its first write.
///
/// # Errors
/// [`Error::Unsupported`] for a block of this log in another version of the format.
fn decode_header(block: &[u8], uuid: [u8; 16], shard: u16) -> Result<Option<(Writer, Sequence)>> {
    let Ok((raw, _)) = RawHeader::ref_from_prefix(block) else { return Ok(None) };
    let is_of_log =
        raw.magic == MAGIC && raw.uuid == uuid && raw.crc.get() == crc(&raw.as_bytes()[..HEADER - 4]);
    if !is_of_log {
        return Ok(None);
    }
    let version = raw.version.get();
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "shard {shard}: the staging area has writes in version {version} of its format; this program reads version {VERSION}: open the \
             store with the program that wrote them, and close it there"
        )));
    }
    let is_of_shard = raw.shard.get() == shard;
    Ok(is_of_shard.then(|| (Writer { uuid, epoch: raw.epoch.get(), shard }, raw.first.get())))
}

/// Decodes the entry at the beginning of `bytes`, if it is one whose sequence isn't below `next`. Returns its
/// sequence and its writes.
fn decode_entry<'a>(
    bytes: &'a [u8],
    writer: &Writer,
    next: Sequence,
    scratch: &mut Vec<u8>,
) -> Option<(Sequence, &'a [u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (skipped, rest) = rest.split_first_chunk::<4>()?;
    let (length, skipped) = (u32::from_le_bytes(*length) as usize, u32::from_le_bytes(*skipped));
    let sequence = next.checked_add(u64::from(skipped))?;
    let (writes, rest) = rest.split_at_checked(length).filter(|_| length > 0)?;
    let (stored, _) = rest.split_first_chunk::<4>()?;
    let expected = writer.checksum((sequence, skipped), writes, scratch);
    (u32::from_le_bytes(*stored) == expected).then_some((sequence, writes))
}

/// Number of encoded writes.
///
/// # Errors
/// [`Error::Corrupt`] for bytes that no version of this program writes.
pub fn count(writes: &[u8]) -> Result<u64> {
    let mut count = 0;
    Write::decode_all(writes, |_| count += 1).map(|()| count)
}

/// Staged writes of a shard that aren't in its records.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StagedWrites {
    /// Encoded writes of each entry, in the order of their sequences.
    pub entries: Vec<Vec<u8>>,
    /// Last sequence before a gap, and the first one after it, if later entries exist.
    pub gap: Option<(Sequence, Sequence)>,
}

/// Finds the writes of a shard that follow `last`, the last write in its records, without a gap.
///
/// Entries of the newest epoch in the part are valid: a store erases the whole area before it takes writes,
/// so all entries are from the last epoch that did. It may be older than that of the root, `root_epoch`, by
/// more than one: each opening begins an epoch, also one that is interrupted before it has moved the staged
/// writes to the log. It is never newer, since a root is durable before its epoch takes writes.
///
/// # Errors
/// [`Error::Unsupported`] for blocks in another version of the format; [`Error::Corrupt`] for an epoch after
/// that of the root, and for entries that no version of this program writes.
pub fn recover(
    part: &[u8],
    division: Division,
    (uuid, root_epoch, shard): ([u8; 16], u64, u16),
    last: Sequence,
) -> Result<StagedWrites> {
    let blocks = part.chunks_exact(division.block as usize);
    let decoded = blocks.filter_map(|block| {
        let header = decode_header(block, uuid, shard).transpose()?;
        Some(header.map(|(writer, first)| (writer, first, block)))
    });
    let mut blocks: Vec<(Writer, Sequence, &[u8])> = decoded.collect::<Result<_>>()?;
    let newest = blocks.iter().map(|(writer, _, _)| writer.epoch).max();
    if let Some(epoch) = newest.filter(|epoch| *epoch > root_epoch) {
        return Err(Error::corrupt(format!(
            "shard {shard}: the staging area has writes of epoch {epoch}, and the newest root of the log is of epoch {root_epoch}; expected \
             none after it: a root is damaged, or parts of two copies were mixed; restore the store from a backup, or copy what can be read \
             with the key salvage"
        )));
    }
    blocks.retain(|(writer, _, _)| Some(writer.epoch) == newest);
    blocks.sort_by_key(|(_, first, _)| *first);
    let (mut found, mut last, mut scratch) = (StagedWrites::default(), last, Vec::new());
    for (writer, first, block) in blocks {
        let (mut next, mut at) = (first, HEADER);
        while let Some((sequence, writes)) = decode_entry(&block[at..], &writer, next, &mut scratch) {
            let count = count(writes)?;
            next = sequence.checked_add(count).ok_or_else(|| {
                Error::corrupt(format!(
                    "shard {shard}: {count} staged writes from number {sequence} on; expected numbers below 2^64"
                ))
            })?;
            if Some(sequence) == last.checked_add(1) {
                found.entries.push(writes.to_vec());
                last = next - 1;
            } else if sequence > last && found.gap.is_none() {
                found.gap = Some((last, sequence));
            }
            at += ENTRY_OVERHEAD + writes.len();
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
