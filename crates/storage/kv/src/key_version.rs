//! Versions of keys: the entries of memtables and tables. (Entries of the log are in `log_entry`.)
//!
//! They are ordered by key, bytewise, and versions of the same key by sequence, newest first.

use std::cmp::Ordering;

/// Maximum size of a key, in bytes.
pub const MAX_KEY_BYTES: usize = 32 << 10;
/// Maximum size of a value, in bytes.
pub const MAX_VALUE_BYTES: usize = 64 << 20;

/// Number of a write in its shard, ascending; a snapshot sees the entries up to its sequence.
pub type Sequence = u64;

/// Time in milliseconds since the Unix epoch.
pub type Timestamp = u64;

/// The present time.
pub fn now() -> Timestamp {
    runtime::wall_clock().as_millis() as Timestamp
}

/// Content of a version: a value or a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// The key has a value.
    Put {
        /// The value.
        bytes: &'a [u8],
        /// Time at which the key expires; `None` if it never does.
        expires: Option<Timestamp>,
    },
    /// The key is deleted.
    Tombstone {
        /// Time of the deletion.
        deleted: Timestamp,
    },
}

/// A version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyVersion<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Sequence of the write.
    pub sequence: Sequence,
    /// Value or tombstone.
    pub value: Value<'a>,
}

/// A deletion of all keys in a range.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeTombstone {
    /// First key.
    pub from: Vec<u8>,
    /// First key after the range.
    pub to: Vec<u8>,
    /// Sequence of the write: the range's entries with lower sequences are deleted.
    pub sequence: Sequence,
    /// Time of the deletion.
    pub deleted: Timestamp,
}

impl RangeTombstone {
    /// Whether this deletes an entry with this key and sequence.
    pub fn deletes(&self, key: &[u8], sequence: Sequence) -> bool {
        sequence < self.sequence && self.from.as_slice() <= key && key < self.to.as_slice()
    }
}

/// Order of versions: by key, then newest first.
pub fn order(left: (&[u8], Sequence), right: (&[u8], Sequence)) -> Ordering {
    left.0.cmp(right.0).then(right.1.cmp(&left.1))
}

/// Earlier one of two times.
pub fn earlier(time: Option<Timestamp>, other: Timestamp) -> Option<Timestamp> {
    Some(time.map_or(other, |time| time.min(other)))
}
