//! Writing of blocks of entries: prefix compression with restart points.

use crate::key_version::{KeyVersion, Sequence, Value};
use logkit::leb128::Encoded;
use std::cmp::Ordering;

/// Kinds of entries, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    Tombstone = 0,
    Put = 1,
    ExpiringPut = 2,
    /// A block below an index block; the entry's key and sequence are its lower bound.
    Child = 3,
}

/// Length of the common prefix, in bytes.
#[inline]
pub(super) fn common_prefix(left: &[u8], right: &[u8]) -> usize {
    let most = left.len().min(right.len());
    let (left_words, _) = left[..most].as_chunks::<8>();
    let (right_words, _) = right[..most].as_chunks::<8>();
    let mut at = 0;
    for (left, right) in left_words.iter().zip(right_words) {
        match first_difference(left, right) {
            8 => at += 8,
            within => return at + within,
        }
    }
    // Last eight bytes, some of which were compared already.
    if let (Some(left), Some(right)) = (left[..most].last_chunk(), right[..most].last_chunk()) {
        return most - 8 + first_difference(left, right);
    }
    while at < most && left[at] == right[at] {
        at += 1;
    }
    at
}

/// Index of the first byte that differs; 8 if all are equal.
#[inline]
fn first_difference(left: &[u8; 8], right: &[u8; 8]) -> usize {
    let differs = u64::from_le_bytes(*left) ^ u64::from_le_bytes(*right);
    differs.trailing_zeros() as usize / 8
}

/// Order of two keys with a common prefix of `common` bytes.
#[inline]
pub(super) fn order_after(common: usize, left: &[u8], right: &[u8]) -> Ordering {
    match (left.get(common), right.get(common)) {
        (Some(left), Some(right)) => left.cmp(right),
        _ => left.len().cmp(&right.len()),
    }
}

/// A block of entries that is being written.
#[derive(Debug)]
pub(super) struct EntriesWriter {
    bytes: Vec<u8>,
    /// Restart points: little-endian offsets of entries with complete keys.
    restarts: Vec<u8>,
    /// Number of entries between two restart points.
    interval: usize,
    until_restart: usize,
}

impl EntriesWriter {
    pub(super) fn new(interval: usize) -> Self {
        EntriesWriter { bytes: Vec::new(), restarts: Vec::new(), interval, until_restart: 0 }
    }

    /// Length of the block so far, in bytes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.bytes.len() + self.restarts.len() + 4
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends an entry whose key shares `common` bytes with the previous key.
    #[inline]
    pub(super) fn add(&mut self, entry: &KeyVersion<'_>, common: usize) {
        let mut numbers = Encoded::<20>::default();
        numbers.push(entry.sequence);
        let (kind, value) = match entry.value {
            Value::Put { bytes, expires: None } => (EntryKind::Put, bytes),
            Value::Put { bytes, expires: Some(expires) } => {
                numbers.push(expires);
                (EntryKind::ExpiringPut, bytes)
            }
            Value::Tombstone { deleted } => {
                numbers.push(deleted);
                (EntryKind::Tombstone, &[][..])
            }
        };
        self.append(kind, entry.key, common, numbers.bytes(), value);
    }

    /// Appends a child block with the entries at and after (`key`, `sequence`).
    pub(super) fn add_child(&mut self, key: &[u8], sequence: Sequence, offset: u64, length: u32) {
        let mut numbers = Encoded::<30>::default();
        // Most sequences are the largest one, so the complement is short.
        numbers.push(!sequence);
        numbers.push(offset);
        numbers.push(u64::from(length));
        self.append(EntryKind::Child, key, 0, numbers.bytes(), &[]);
    }

    #[inline]
    fn append(&mut self, kind: EntryKind, key: &[u8], common: usize, numbers: &[u8], value: &[u8]) {
        let shared = if self.until_restart == 0 {
            self.restarts.extend_from_slice(&(self.bytes.len() as u32).to_le_bytes());
            self.until_restart = self.interval;
            0
        } else {
            common
        };
        self.until_restart -= 1;
        let rest = &key[shared..];
        let mut header = Encoded::<30>::default();
        header.push(shared as u64);
        header.push(rest.len() as u64);
        header.push(((numbers.len() + value.len()) as u64) << 2 | kind as u64);
        let header = header.bytes();
        self.bytes.reserve(header.len() + rest.len() + numbers.len() + value.len());
        self.bytes.extend_from_slice(header);
        self.bytes.extend_from_slice(rest);
        self.bytes.extend_from_slice(numbers);
        self.bytes.extend_from_slice(value);
    }

    /// Ends the block and returns its contents, until [`EntriesWriter::clear`].
    pub(super) fn finish(&mut self) -> &[u8] {
        self.bytes.extend_from_slice(&self.restarts);
        self.bytes.extend_from_slice(&((self.restarts.len() / 4) as u32).to_le_bytes());
        &self.bytes
    }

    /// Begins the next block.
    pub(super) fn clear(&mut self) {
        const KEPT_BYTES: usize = 1 << 20;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
        self.restarts.clear();
        self.until_restart = 0;
    }
}
