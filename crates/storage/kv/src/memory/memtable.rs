//! Memtable: the newest entries of a shard, in memory.
//!
//! A memtable belongs to one shard, and entries are only added. Cursors share it by an `Rc` and stay valid
//! while entries are inserted: a cursor copies the entry at its position to a reused buffer (for a large
//! value only a reference). A cursor finds entries that are inserted ahead of its position during a walk; a
//! snapshot doesn't see them.
//!
//! Range tombstones are separate from the entries: [`Memtable::get`] and cursors don't apply them. The store
//! limits [`Memtable::bytes`].

mod skip_list;
#[cfg(test)]
mod tests;

use crate::cursor::Cursor;
use crate::cursor::visible::RangeTombstones;
use crate::key_version::{KeyVersion, RangeTombstone, Sequence, Timestamp, Value, earlier};
use block::Result;
use skip_list::{Position, RecordKind, SkipList, StoredValue};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The newest entries of a shard.
#[derive(Debug)]
pub struct Memtable {
    list: RefCell<SkipList>,
    ranges: RefCell<Rc<RangeTombstones>>,
    tombstones: Cell<usize>,
    oldest_tombstone: Cell<Option<Timestamp>>,
    earliest_expiry: Cell<Option<Timestamp>>,
}

impl Memtable {
    /// Creates an empty memtable with capacity for about `bytes` bytes. It can grow beyond, and memory is
    /// used only as entries are inserted.
    pub fn with_capacity(bytes: usize) -> Self {
        Memtable {
            list: RefCell::new(SkipList::with_capacity(bytes)),
            ranges: RefCell::default(),
            tombstones: Cell::new(0),
            oldest_tombstone: Cell::new(None),
            earliest_expiry: Cell::new(None),
        }
    }

    /// Inserts an entry. Returns false, without a change, if an entry with this key and sequence exists.
    ///
    /// # Panics
    /// If the key has more than [`MAX_KEY_BYTES`](crate::key_version::MAX_KEY_BYTES).
    pub fn insert(&self, entry: KeyVersion<'_>) -> bool {
        let is_new = self.list.borrow_mut().insert(entry);
        match entry.value {
            Value::Tombstone { deleted } if is_new => self.count_tombstone(deleted),
            Value::Put { expires: Some(expires), .. } if is_new => {
                self.earliest_expiry.set(earlier(self.earliest_expiry.get(), expires));
            }
            _ => {}
        }
        is_new
    }

    /// Inserts a range tombstone. Returns false, without a change, if the same one exists, or if its range is
    /// empty.
    pub fn insert_range_tombstone(&self, tombstone: RangeTombstone) -> bool {
        let deleted = tombstone.deleted;
        // Copies the set if a reader holds it.
        let is_new = Rc::make_mut(&mut self.ranges.borrow_mut()).insert(tombstone);
        if is_new {
            self.count_tombstone(deleted);
        }
        is_new
    }

    /// Calls `found` with the newest entry of a key whose sequence is at most `snapshot`, or with `None`. The
    /// entry may be a tombstone or expired. `found` must not insert.
    #[inline]
    pub fn get<R>(
        &self,
        key: &[u8],
        snapshot: Sequence,
        found: impl FnOnce(Option<KeyVersion<'_>>) -> R,
    ) -> R {
        let list = self.list.borrow();
        let place = list.at_or_after(key, snapshot);
        found(place.map(|place| list.entry(place)).filter(|entry| entry.key == key))
    }

    /// Returns the present range tombstones; later inserts don't change the returned set.
    pub fn range_tombstones(&self) -> Rc<RangeTombstones> {
        Rc::clone(&self.ranges.borrow())
    }

    /// Memory of entries and range tombstones, in bytes.
    pub fn bytes(&self) -> usize {
        self.list.borrow().bytes() + self.ranges.borrow().bytes()
    }

    /// Number of entries, without range tombstones.
    pub fn len(&self) -> usize {
        self.list.borrow().len()
    }

    /// Whether there are neither entries nor range tombstones.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.ranges.borrow().is_empty()
    }

    /// Number of tombstones, including range tombstones.
    pub fn tombstones(&self) -> usize {
        self.tombstones.get()
    }

    /// Earliest time of a deletion, range tombstones included; `None` without tombstones.
    pub fn oldest_tombstone(&self) -> Option<Timestamp> {
        self.oldest_tombstone.get()
    }

    /// Earliest expiry of a value; `None` if no value expires.
    pub fn earliest_expiry(&self) -> Option<Timestamp> {
        self.earliest_expiry.get()
    }

    /// Creates a cursor, positioned at no entry.
    pub fn cursor(self: &Rc<Self>) -> MemtableCursor {
        MemtableCursor {
            memtable: Rc::clone(self),
            at: None,
            sequence: 0,
            kind: RecordKind::Put { expires: None },
            bytes: Vec::new(),
            key_length: 0,
            large_value: None,
        }
    }

    fn count_tombstone(&self, deleted: Timestamp) {
        self.tombstones.set(self.tombstones.get() + 1);
        self.oldest_tombstone.set(earlier(self.oldest_tombstone.get(), deleted));
    }
}

/// Cursor over a memtable. Its methods never wait and never fail.
#[derive(Debug)]
pub struct MemtableCursor {
    memtable: Rc<Memtable>,
    at: Option<Position>,
    sequence: Sequence,
    kind: RecordKind,
    /// The key, followed by the value unless that is large.
    bytes: Vec<u8>,
    key_length: usize,
    large_value: Option<Rc<[u8]>>,
}

impl MemtableCursor {
    /// Moves to the position that `find` returns.
    #[inline]
    fn go(&mut self, find: impl FnOnce(&SkipList) -> Option<Position>) -> Result<()> {
        let list = self.memtable.list.borrow();
        self.at = find(&list);
        self.large_value = None;
        let Some(place) = self.at else { return Ok(()) };
        let (key, sequence, kind, value) = list.read(place);
        self.bytes.clear();
        self.bytes.extend_from_slice(key);
        match value {
            StoredValue::Inline(bytes) => self.bytes.extend_from_slice(bytes),
            StoredValue::Large(bytes) => self.large_value = Some(Rc::clone(bytes)),
        }
        (self.key_length, self.sequence, self.kind) = (key.len(), sequence, kind);
        Ok(())
    }
}

impl Cursor for MemtableCursor {
    #[inline]
    fn entry(&self) -> Option<KeyVersion<'_>> {
        self.at?;
        let (key, value) = self.bytes.split_at(self.key_length);
        let value = self.large_value.as_deref().unwrap_or(value);
        Some(KeyVersion { key, sequence: self.sequence, value: self.kind.with(value) })
    }

    async fn seek_first(&mut self) -> Result<()> {
        self.go(SkipList::first)
    }

    async fn seek_last(&mut self) -> Result<()> {
        self.go(SkipList::last)
    }

    async fn seek(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        self.go(|list| list.at_or_after(key, sequence))
    }

    async fn seek_before(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        self.go(|list| list.before(key, sequence))
    }

    async fn next(&mut self) -> Result<()> {
        let at = self.at;
        self.go(|list| list.next(at?))
    }

    async fn previous(&mut self) -> Result<()> {
        let at = self.at;
        self.go(|list| list.previous(at?))
    }
}
