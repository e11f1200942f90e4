//! Iterators over the keys of a snapshot.

use crate::core::Snapshot;
use crate::key_version::Timestamp;
use crate::scan::{Pair, Pairs, Scan};
use crate::store::Store;
use block::Result;

/// Number of pairs that an iterator fetches at a time.
const FETCHED: usize = 64;

/// Iterator over the keys of a snapshot, in both directions.
#[derive(Debug)]
pub struct Iterator {
    store: Store,
    snapshot: Snapshot,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    /// Pairs in the direction of the iteration.
    fetched: Pairs,
    at: usize,
    is_backward: bool,
    /// Whether the range has more pairs after the fetched ones.
    has_more: bool,
}

impl Iterator {
    /// Returns an iterator over the keys in `from`..`to`, positioned at no key.
    pub(crate) fn new(store: Store, snapshot: Snapshot, from: Vec<u8>, to: Option<Vec<u8>>) -> Self {
        let (fetched, at, is_backward, has_more) = (Pairs::new(), 0, false, false);
        Iterator { store, snapshot, from, to, fetched, at, is_backward, has_more }
    }

    /// Key and value at the position; `None` if there is no key.
    pub fn pair(&self) -> Option<(&[u8], &[u8])> {
        self.fetched.get(self.at).map(|pair| (pair.key, pair.value))
    }

    /// Expiry of the key at the position; `None` if it never expires or there is no key.
    pub fn expires(&self) -> Option<Timestamp> {
        self.fetched.get(self.at)?.expires
    }

    /// Snapshot of the iterator.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    async fn fetch(&mut self, from: Vec<u8>, to: Option<Vec<u8>>, is_backward: bool) -> Result<()> {
        let scan = Scan { to, is_backward, ..Scan::from(from, FETCHED) };
        let (pairs, has_more) = self.store.scan(Some(&self.snapshot), scan).await?;
        (self.fetched, self.has_more, self.at, self.is_backward) = (pairs, has_more, 0, is_backward);
        Ok(())
    }

    /// Moves to the first key.
    ///
    /// # Errors
    /// Errors of reading the store.
    pub async fn seek_first(&mut self) -> Result<()> {
        self.fetch(self.from.clone(), self.to.clone(), false).await
    }

    /// Moves to the last key.
    ///
    /// # Errors
    /// Errors of reading the store.
    pub async fn seek_last(&mut self) -> Result<()> {
        self.fetch(self.from.clone(), self.to.clone(), true).await
    }

    /// Moves to the first key at or after `key`.
    ///
    /// # Errors
    /// Errors of reading the store.
    pub async fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.fetch(self.from.clone().max(key.to_vec()), self.to.clone(), false).await
    }

    /// Moves to the last key before `key`.
    ///
    /// # Errors
    /// Errors of reading the store.
    pub async fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        let to = self.to.clone().map_or_else(|| key.to_vec(), |to| to.min(key.to_vec()));
        self.fetch(self.from.clone(), Some(to), true).await
    }

    /// Moves from a key to the next one.
    ///
    /// # Errors
    /// Errors of reading the store.
    pub async fn next(&mut self) -> Result<()> {
        let Some(Pair { key, .. }) = self.fetched.get(self.at) else { return Ok(()) };
        if !self.is_backward && (self.at + 1 < self.fetched.len() || !self.has_more) {
            self.at += 1;
            return Ok(());
        }
        // The lowest key after this one.
        let mut after = key.to_vec();
        after.push(0);
        self.fetch(after, self.to.clone(), false).await
    }

    /// Moves from a key to the previous one.
    ///
    /// # Errors
    /// Errors of reading the store.
    pub async fn previous(&mut self) -> Result<()> {
        let Some(Pair { key, .. }) = self.fetched.get(self.at) else { return Ok(()) };
        if self.is_backward && (self.at + 1 < self.fetched.len() || !self.has_more) {
            self.at += 1;
            return Ok(());
        }
        let key = key.to_vec();
        self.fetch(self.from.clone(), Some(key), true).await
    }
}
