//! Entries: the versions of keys, as memtables and tables have them.
//!
//! Entries are ordered by key, as bytes, and those of one key by sequence, the newest first.

use std::cmp::Ordering;

/// Largest key, in bytes.
pub const MOST_KEY_BYTES: usize = 32 << 10;
/// Largest value, in bytes.
pub const MOST_VALUE_BYTES: usize = 64 << 20;

/// Number of a write in its shard, rising; a snapshot sees the entries up to one.
pub type Sequence = u64;

/// Time in milliseconds since the Unix epoch.
pub type Timestamp = u64;

/// What an entry says of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// The key has this value.
    Put {
        /// The value.
        bytes: &'a [u8],
        /// Time at which the key expires; `None` for never.
        expires: Option<Timestamp>,
    },
    /// The key doesn't exist.
    Tombstone {
        /// Time of the deletion.
        deleted: Timestamp,
    },
}

/// A version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Number of its write.
    pub sequence: Sequence,
    /// What it says of the key.
    pub value: Value<'a>,
}

/// A deletion of all keys in a range.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeTombstone {
    /// First key.
    pub from: Vec<u8>,
    /// First key after the range.
    pub to: Vec<u8>,
    /// Number of its write: it deletes the entries with lower numbers.
    pub sequence: Sequence,
    /// Time of the deletion.
    pub deleted: Timestamp,
}

impl RangeTombstone {
    /// Whether it deletes an entry of this key and sequence.
    pub fn deletes(&self, key: &[u8], sequence: Sequence) -> bool {
        sequence < self.sequence && self.from.as_slice() <= key && key < self.to.as_slice()
    }
}

/// Order of entries: by key, then the newest first.
pub fn order(left: (&[u8], Sequence), right: (&[u8], Sequence)) -> Ordering {
    left.0.cmp(right.0).then(right.1.cmp(&left.1))
}
