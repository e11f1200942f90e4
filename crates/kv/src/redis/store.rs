//! The store that the commands use.

use crate::entry::Timestamp;
use block::{Data, Result, Status};

/// Value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The value.
    pub value: Data,
    /// Time at which the key expires; `None` for never.
    pub expires: Option<Timestamp>,
}

impl Stored {
    /// Whether the key exists at this time.
    pub fn is_live(&self, now: impl FnOnce() -> Timestamp) -> bool {
        self.expires.is_none_or(|expires| expires > now())
    }
}

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Sets the value of a key.
    Put {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
        /// Time at which the key expires; `None` for never.
        expires: Option<Timestamp>,
    },
    /// Deletes a key, whether it exists or not.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// Deletes all keys in a range.
    DeleteRange {
        /// First key.
        from: Vec<u8>,
        /// First key after the range; it may be longer than a key.
        to: Vec<u8>,
    },
}

/// A range of keys, and the direction in which it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// First key.
    pub from: Vec<u8>,
    /// First key after the range; `None` for no end.
    pub to: Option<Vec<u8>>,
    /// Whether it is read from its last key down.
    pub is_backward: bool,
    /// Largest number of keys to return, at least 1.
    pub limit: usize,
}

impl Range {
    /// The keys from `from` on, at most `limit` of them.
    pub fn from(from: Vec<u8>, limit: usize) -> Range {
        Range { from, to: None, is_backward: false, limit }
    }
}

/// A shard's handle of a store that commands read and change. Keys have at most
/// [`MOST_KEY_BYTES`](crate::entry::MOST_KEY_BYTES), values at most [`MOST_VALUE_BYTES`](crate::entry::MOST_VALUE_BYTES); either
/// may be empty.
///
/// A write that has returned `Ok` is durable as the store is configured, and visible to all later reads. The store may return keys
/// whose time has passed: the commands ignore them.
pub trait Store: 'static {
    /// What the store has at one moment, as long as it lives.
    type Snapshot: 'static;

    /// Returns the value of a key.
    ///
    /// # Errors
    /// What reading returns.
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Stored>>>;

    /// Makes all writes or none, in this order: of several writes of a key the last one stays.
    ///
    /// # Errors
    /// What writing returns; none of the writes is made then.
    fn write(&self, writes: Vec<Write>) -> impl Future<Output = Result<()>>;

    /// Makes writes of single keys, each on its own, those of a key in this order. After an error any of them may have been made.
    ///
    /// # Errors
    /// What writing returns.
    fn write_each(&self, writes: Vec<Write>) -> impl Future<Output = Result<()>>;

    /// Changes a key atomically: `change` gets its value, and returns the write to make, of the same key, and the answer. No other
    /// write of the key comes between.
    ///
    /// # Errors
    /// What reading and writing return.
    fn update<R: Send + 'static>(
        &self,
        key: &[u8],
        change: impl FnOnce(Option<Stored>) -> (Option<Write>, R) + Send + 'static,
    ) -> impl Future<Output = Result<R>>;

    /// Returns keys of a range, in its order, at most `limit` of them and at least one: none means that there is none. It may return
    /// fewer to bound the memory of their values.
    ///
    /// # Errors
    /// What reading returns.
    fn scan(
        &self,
        snapshot: Option<&Self::Snapshot>,
        range: Range,
    ) -> impl Future<Output = Result<Vec<(Vec<u8>, Stored)>>>;

    /// Takes a snapshot for [`scan`](Self::scan).
    ///
    /// # Errors
    /// That the store is closed.
    fn snapshot(&self) -> impl Future<Output = Result<Self::Snapshot>>;

    /// Merges all tables down to the last level.
    ///
    /// # Errors
    /// What reading and writing return.
    fn compact(&self) -> impl Future<Output = Result<()>>;

    /// Returns counters and state, for the command `INFO`.
    fn status(&self) -> impl Future<Output = Status>;
}
