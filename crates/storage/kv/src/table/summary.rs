//! Summary of a table, and the footer that locates the table's own copy of it.

use super::stored::{BlockHandle, TRAILER_BYTES};
use crate::key_version::{MAX_KEY_BYTES, Sequence, Timestamp};
use block::{Error, Result};
use crc_fast::{CrcAlgorithm, checksum};
use zones::bytes::{Reader, Writer};

/// Length of the footer at the end of a table, in bytes.
pub const FOOTER_BYTES: usize = 32;
pub(super) const MAGIC: &[u8; 8] = b"SILTTABL";
const VERSION: u32 = 1;

/// Properties of a table, and places of its blocks. The store keeps the summary in its manifest, and the
/// table contains a copy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Length of the table, in bytes.
    pub length: u64,
    /// [`Options::salt`](super::Options::salt).
    pub salt: u32,
    /// Number of entries.
    pub entries: u64,
    /// Number of entries that are tombstones.
    pub tombstones: u64,
    /// Number of range tombstones.
    pub range_tombstones: u64,
    /// Bytes of the entries' keys.
    pub key_bytes: u64,
    /// Bytes of the entries' values.
    pub value_bytes: u64,
    /// Smallest key of entries and range tombstones.
    pub smallest: Vec<u8>,
    /// Largest key of entries and ends of range tombstones.
    pub largest: Vec<u8>,
    /// Whether `largest` is only the exclusive end of a range, so that the table has no entry or deletion of
    /// that key.
    pub largest_excluded: bool,
    /// Smallest sequence of entries and range tombstones; 0 without any.
    pub smallest_sequence: Sequence,
    /// Largest sequence of entries and range tombstones; 0 without any.
    pub largest_sequence: Sequence,
    /// Earliest time of a deletion by a tombstone or a range tombstone; `None` without any.
    pub oldest_tombstone: Option<Timestamp>,
    /// Earliest expiry of a value; `None` if no value expires.
    pub earliest_expiry: Option<Timestamp>,
    /// Number of data blocks.
    pub data_blocks: u64,
    /// Root of the index; `None` without entries.
    pub index: Option<BlockHandle>,
    /// Levels of the index: 1, or 2 if the root has index blocks as children; 0 without entries.
    pub index_levels: u8,
    /// The filter; `None` if the table has none.
    pub filter: Option<BlockHandle>,
    /// The block of range tombstones; `None` without any.
    pub range_tombstone_block: Option<BlockHandle>,
}

impl Summary {
    /// Whether a key is between the table's smallest and largest key.
    pub fn covers(&self, key: &[u8]) -> bool {
        (self.entries > 0 || self.range_tombstones > 0)
            && self.smallest.as_slice() <= key
            && !self.ends_before(key)
    }

    /// Whether all keys of the table are smaller than `key`.
    pub fn ends_before(&self, key: &[u8]) -> bool {
        match self.largest_excluded {
            true => self.largest.as_slice() <= key,
            false => self.largest.as_slice() < key,
        }
    }

    /// Appends the summary.
    pub fn encode(&self, writer: &mut Writer) {
        writer.u64(self.length);
        writer.u32(self.salt);
        let numbers = [
            self.entries,
            self.tombstones,
            self.range_tombstones,
            self.key_bytes,
            self.value_bytes,
            self.smallest_sequence,
            self.largest_sequence,
            self.oldest_tombstone.unwrap_or(0),
            self.earliest_expiry.unwrap_or(0),
            self.data_blocks,
        ];
        numbers.into_iter().for_each(|number| writer.u64(number));
        for handle in [self.index, self.filter, self.range_tombstone_block] {
            writer.u64(handle.map_or(0, |handle| handle.offset));
            writer.u32(handle.map_or(0, |handle| handle.length));
        }
        writer.u8(self.index_levels);
        let flags = [self.oldest_tombstone.is_some(), self.earliest_expiry.is_some(), self.largest_excluded];
        writer.u8(flags.iter().rev().fold(0, |bits, &flag| bits << 1 | u8::from(flag)));
        for key in [&self.smallest, &self.largest] {
            writer.u32(key.len() as u32);
            writer.put(key.as_slice());
        }
    }

    /// Decodes and checks a summary at the start of `reader`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that aren't the summary of a table.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let (length, salt) = (reader.u64()?, reader.u32()?);
        let [entries, tombstones, range_tombstones, key_bytes, value_bytes] = reader.u64s()?;
        let [smallest_sequence, largest_sequence, oldest, earliest, data_blocks] = reader.u64s()?;
        let mut handles = [None; 3];
        for handle in &mut handles {
            let (offset, length) = (reader.u64()?, reader.u32()?);
            *handle = match (offset, length) {
                (0, 0) => None,
                (offset, length) => Some(BlockHandle { offset, length, salt }),
            };
        }
        let (index_levels, flags) = (reader.u8()?, reader.u8()?);
        if flags > 7 {
            return Err(reader.strange(&format!("has the flags {flags:#04x}; expected at most 0x07")));
        }
        let mut keys = [const { Vec::new() }; 2];
        for key in &mut keys {
            let length = reader.u32()? as usize;
            if length > MAX_KEY_BYTES {
                return Err(
                    reader.strange(&format!("has a key of {length} bytes; expected at most {MAX_KEY_BYTES}"))
                );
            }
            *key = reader.bytes(length)?.to_vec();
        }
        let flag = |bit: u8, time: Timestamp| (flags >> bit & 1 == 1).then_some(time);
        let [smallest, largest] = keys;
        let [index, filter, range_tombstone_block] = handles;
        let summary = Summary {
            length,
            salt,
            entries,
            tombstones,
            range_tombstones,
            key_bytes,
            value_bytes,
            smallest,
            largest,
            largest_excluded: flag(2, 0).is_some(),
            smallest_sequence,
            largest_sequence,
            oldest_tombstone: flag(0, oldest),
            earliest_expiry: flag(1, earliest),
            data_blocks,
            index,
            index_levels,
            filter,
            range_tombstone_block,
        };
        match summary.contradiction() {
            None if (flag(0, 0).is_some() || oldest == 0) && (flag(1, 0).is_some() || earliest == 0) => {
                Ok(summary)
            }
            None => Err(reader.strange("has a time that its flags deny")),
            Some(what) => Err(reader.strange(&what)),
        }
    }

    /// Decodes a summary that takes all the bytes.
    pub(super) fn decode_whole(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "table summary");
        let summary = Self::decode(&mut reader)?;
        reader.end().map(|()| summary)
    }

    /// Description of a contradiction in the summary; `None` if it is consistent.
    fn contradiction(&self) -> Option<String> {
        let blocks_end = self.length.checked_sub((FOOTER_BYTES + TRAILER_BYTES) as u64);
        let Some(blocks_end) = blocks_end else {
            return Some(format!(
                "has the length {}; expected at least {}",
                self.length,
                FOOTER_BYTES + TRAILER_BYTES
            ));
        };
        for handle in [self.index, self.filter, self.range_tombstone_block].into_iter().flatten() {
            if (handle.length as usize) < TRAILER_BYTES || handle.end() > blocks_end {
                let BlockHandle { offset, length, .. } = handle;
                return Some(format!(
                    "names a block at {offset} of {length} bytes; expected it before {blocks_end}"
                ));
            }
        }
        let (has_entries, has_ranges) = (self.entries > 0, self.range_tombstones > 0);
        let is_empty = !has_entries && !has_ranges;
        let deletes = self.tombstones > 0 || has_ranges;
        let invariants = [
            ("tombstones", self.tombstones <= self.entries),
            ("index", self.index.is_some() == has_entries),
            ("index_levels", (1..=2).contains(&self.index_levels) == has_entries && self.index_levels <= 2),
            ("data_blocks", self.data_blocks <= self.entries && (self.data_blocks > 0) == has_entries),
            ("filter", self.filter.is_none() || has_entries),
            ("range_tombstone_block", self.range_tombstone_block.is_some() == has_ranges),
            ("smallest", self.smallest <= self.largest),
            ("largest", !is_empty || self.largest.is_empty()),
            ("largest_excluded", !self.largest_excluded || (has_ranges && self.smallest < self.largest)),
            ("smallest_sequence", self.smallest_sequence <= self.largest_sequence),
            ("largest_sequence", !is_empty || self.largest_sequence == 0),
            ("oldest_tombstone", self.oldest_tombstone.is_some() == deletes),
            ("earliest_expiry", self.earliest_expiry.is_none() || self.tombstones < self.entries),
        ];
        let (name, _) = invariants.into_iter().find(|&(_, holds)| !holds)?;
        Some(format!("has a field {name} that contradicts the others: {self:?}"))
    }
}

/// Encodes the footer of a table whose properties are at `properties`.
pub(super) fn encode_footer(properties: BlockHandle) -> [u8; FOOTER_BYTES] {
    let mut writer = Writer::default();
    writer.put(MAGIC);
    writer.u32(VERSION);
    writer.u32(properties.salt);
    writer.u64(properties.offset);
    writer.u32(properties.length);
    let checksum = checksum(CrcAlgorithm::Crc32Iscsi, &writer.0) as u32;
    writer.u32(checksum);
    std::array::from_fn(|index| writer.0[index])
}

/// Decodes the last [`FOOTER_BYTES`] of a table of `length` bytes. Returns the handle of its properties:
/// [`Block::summary`](super::Block::summary) of that block is the table's.
///
/// # Errors
/// [`Error::Corrupt`] for an invalid footer; [`Error::Unsupported`] for another version.
pub fn decode_footer(footer: &[u8; FOOTER_BYTES], length: u64) -> Result<BlockHandle> {
    let mut reader = Reader::new(footer, "table footer");
    if reader.bytes(MAGIC.len())? != MAGIC {
        return Err(reader.strange(&format!("begins with {:02x?}; expected SILTTABL", &footer[..8])));
    }
    let (version, salt, offset) = (reader.u32()?, reader.u32()?, reader.u64()?);
    let (block_length, found) = (reader.u32()?, reader.u32()?);
    let expected = checksum(CrcAlgorithm::Crc32Iscsi, &footer[..FOOTER_BYTES - 4]) as u32;
    if found != expected {
        return Err(reader.strange(&format!("has the checksum {found:#010x}; expected {expected:#010x}")));
    }
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "table of version {version}; expected {VERSION}: open it with the Siltstone that wrote it"
        )));
    }
    let handle = BlockHandle { offset, length: block_length, salt };
    if handle.end().checked_add(FOOTER_BYTES as u64) != Some(length) {
        return Err(reader.strange(&format!(
            "names {block_length} bytes of properties at {offset}; expected them to end at {length} - {FOOTER_BYTES}"
        )));
    }
    Ok(handle)
}
