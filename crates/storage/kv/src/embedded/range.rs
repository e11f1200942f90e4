//! Iteration over the keys of a range, and snapshots.

use super::{Opened, Pending, Store};
use crate::core;
use crate::scan::{Pairs, Scan};
use block::Result;
use runtime::ShardIndex;
use runtime::embedded::Embedded;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// Maximum number of pairs of a page.
const PAGE_PAIRS: usize = 1024;
/// Bytes of each shard's pairs after which a page ends.
const PAGE_BYTES: usize = 128 << 10;

/// A key with its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// A snapshot of a store, for reads: later writes aren't in it. Compaction keeps its data until it is
/// dropped.
#[derive(Debug, Clone)]
pub struct Snapshot {
    store: Store,
    held: Arc<Held>,
}

/// Snapshot of the shards, which is released there.
#[derive(Debug)]
pub(super) struct Held {
    snapshot: Option<core::Snapshot>,
    embedded: Embedded<Opened>,
}

impl Held {
    pub(super) fn new(snapshot: core::Snapshot, embedded: Embedded<Opened>) -> Self {
        Held { snapshot: Some(snapshot), embedded }
    }

    pub(super) fn get(&self) -> Option<&core::Snapshot> {
        self.snapshot.as_ref()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let snapshot = self.snapshot.take();
        self.embedded.send(ShardIndex(0), move || drop(snapshot));
    }
}

impl Snapshot {
    pub(super) fn new(store: Store, held: Held) -> Self {
        Snapshot { store, held: Arc::new(held) }
    }

    /// Returns the value of a key; `None` if it didn't exist.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn get(&self, key: impl AsRef<[u8]>) -> Pending<Option<Vec<u8>>> {
        let (key, held) = (key.as_ref().to_vec(), self.held.clone());
        self.store.embedded.call(self.store.place(&key), move |opened: Arc<Opened>| async move {
            let found = match held.get() {
                Some(snapshot) => opened.store.get_in(snapshot, &key).await?,
                None => None,
            };
            Ok(found.map(|stored| stored.value))
        })
    }

    /// Iterates over all keys in order.
    pub fn iter(&self) -> Range {
        self.range::<&[u8]>(..)
    }

    /// Iterates over the keys of a range in order.
    pub fn range<K: AsRef<[u8]>>(&self, keys: impl RangeBounds<K>) -> Range {
        let range = self.store.range(keys);
        Range { held: Some(self.held.clone()), ..range }
    }

    /// Iterates over the keys that begin with `prefix`, in order.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        let range = self.store.prefix(prefix);
        Range { held: Some(self.held.clone()), ..range }
    }
}

/// Iteration over the keys of a range, on a snapshot. It reads a page at a time, of at most 1024 pairs, and
/// at most 128 KiB and one pair of each shard.
#[derive(Debug)]
pub struct Range {
    store: Store,
    /// Snapshot of the iteration; `None` before the first page.
    held: Option<Arc<Held>>,
    /// First key, and first key after the range, of what isn't read yet.
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    is_backward: bool,
    page: Pairs,
    at: usize,
    /// Whether the range may have pairs after the page.
    has_more: bool,
}

impl Range {
    pub(super) fn new(store: Store, from: Vec<u8>, to: Option<Vec<u8>>) -> Self {
        let has_more = to.as_ref().is_none_or(|to| from < *to);
        Range { store, held: None, from, to, is_backward: false, page: Pairs::new(), at: 0, has_more }
    }

    /// Returns the first and the end of bounds of keys.
    pub(super) fn bounds<K: AsRef<[u8]>>(keys: &impl RangeBounds<K>) -> (Vec<u8>, Option<Vec<u8>>) {
        // The lowest key after a key is the key with a zero appended.
        let after = |key: &K| [key.as_ref(), &[0]].concat();
        let from = match keys.start_bound() {
            Bound::Included(key) => key.as_ref().to_vec(),
            Bound::Excluded(key) => after(key),
            Bound::Unbounded => Vec::new(),
        };
        let to = match keys.end_bound() {
            Bound::Included(key) => Some(after(key)),
            Bound::Excluded(key) => Some(key.as_ref().to_vec()),
            Bound::Unbounded => None,
        };
        (from, to)
    }

    /// Returns the iteration from the last key to the first, to be called before the first pair is taken.
    #[must_use]
    pub fn rev(self) -> Range {
        let range = Range::new(self.store, self.from, self.to);
        Range { held: self.held, is_backward: !self.is_backward, ..range }
    }

    /// Takes the next pair of the page.
    fn pop(&mut self) -> Option<Pair> {
        let pair = self.page.get(self.at)?;
        self.at += 1;
        Some((pair.key.to_vec(), pair.value.to_vec()))
    }

    /// Reads the next page of a snapshot.
    fn read(&self, held: Arc<Held>) -> Pending<(Pairs, bool)> {
        let scan = Scan {
            from: self.from.clone(),
            to: self.to.clone(),
            is_backward: self.is_backward,
            most: PAGE_PAIRS,
            most_bytes: PAGE_BYTES,
        };
        self.store.embedded.call(ShardIndex(0), move |opened: Arc<Opened>| async move {
            opened.store.scan(held.get(), scan).await
        })
    }

    fn take_page(&mut self, (page, has_more): (Pairs, bool)) {
        if let Some(last) = page.last() {
            match self.is_backward {
                true => self.to = Some(last.key.to_vec()),
                false => self.from = [last.key, &[0]].concat(),
            }
        }
        (self.page, self.at, self.has_more) = (page, 0, has_more);
    }

    /// Returns the next pair; `None` at the end of the range.
    ///
    /// # Errors
    /// Errors of reading the store, after which the same pair is tried again; [`Error::Closed`].
    ///
    /// [`Error::Closed`]: block::Error::Closed
    pub async fn next(&mut self) -> Result<Option<Pair>> {
        loop {
            if let Some(pair) = self.pop() {
                return Ok(Some(pair));
            }
            if !self.has_more {
                return Ok(None);
            }
            let held = match &self.held {
                Some(held) => held.clone(),
                None => self.held.insert(self.store.snapshot().await?.held).clone(),
            };
            let page = self.read(held).await?;
            self.take_page(page);
        }
    }

    fn next_blocking(&mut self) -> Result<Option<Pair>> {
        loop {
            if let Some(pair) = self.pop() {
                return Ok(Some(pair));
            }
            if !self.has_more {
                return Ok(None);
            }
            let held = match &self.held {
                Some(held) => held.clone(),
                None => self.held.insert(self.store.snapshot().blocking()?.held).clone(),
            };
            let page = self.read(held).blocking()?;
            self.take_page(page);
        }
    }

    /// Returns an iterator for plain threads: `next` waits for the store.
    pub fn blocking(self) -> Blocking {
        Blocking { range: self, has_failed: false }
    }
}

/// Iterator over the pairs of a range that blocks the thread. It ends after the first error.
#[derive(Debug)]
pub struct Blocking {
    range: Range,
    has_failed: bool,
}

impl std::iter::Iterator for Blocking {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Result<Pair>> {
        if self.has_failed {
            return None;
        }
        let next = self.range.next_blocking().transpose();
        self.has_failed = matches!(next, Some(Err(_)));
        next
    }
}
