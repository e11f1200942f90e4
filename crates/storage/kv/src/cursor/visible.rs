//! Keys and values that a snapshot sees among the entries of a merged cursor.
//!
//! Of each key, a snapshot sees the newest entry whose sequence is at most its own. The key doesn't exist if
//! there is none, if that entry is a tombstone or an expired value, or if a range tombstone that the snapshot
//! sees deletes it.

mod range_tombstones;
#[cfg(test)]
mod tests;
mod undeleted;

pub use range_tombstones::RangeTombstones;
pub use undeleted::Undeleted;

use crate::cursor::Cursor;
use crate::key_version::{KeyVersion, Sequence, Timestamp, Value};
use block::Result;
use std::rc::Rc;

/// Number of skipped entries after which a cursor yields to other tasks.
const YIELD_AFTER: u32 = 256;
/// Number of steps among the versions of a key after which a cursor seeks past them.
const SEEK_AFTER: u32 = 8;

/// View of a snapshot at a time.
#[derive(Debug, Clone)]
pub struct View {
    /// Largest visible sequence.
    pub snapshot: Sequence,
    /// Present time: values with an expiry up to it have expired.
    pub now: Timestamp,
    /// Range tombstones of all sources; those above the snapshot are ignored.
    pub ranges: Vec<Rc<RangeTombstones>>,
}

impl View {
    /// Whether the key doesn't exist, given its newest entry that the snapshot sees.
    pub fn hides(&self, entry: &KeyVersion<'_>) -> bool {
        let is_live = match entry.value {
            Value::Put { expires, .. } => expires.is_none_or(|expires| expires > self.now),
            Value::Tombstone { .. } => false,
        };
        !is_live
            || self
                .ranges
                .iter()
                .any(|ranges| ranges.covers(entry.key, entry.sequence, self.snapshot).is_some())
    }

    /// Copies an entry's value with its expiry, unless the entry is hidden; returns whether it was copied.
    fn copy(&self, entry: &KeyVersion<'_>, copy: &mut (Vec<u8>, Option<Timestamp>)) -> bool {
        match entry.value {
            Value::Put { bytes, expires } if !self.hides(entry) => {
                copy.0.clear();
                copy.0.extend_from_slice(bytes);
                copy.1 = expires;
                true
            }
            _ => false,
        }
    }
}

/// Cursor over the keys and values that a snapshot sees, in both directions.
///
/// After an error, or after a future was dropped before its completion, the cursor is at no key; a seek makes
/// it usable again.
#[derive(Debug)]
pub struct Visible<C> {
    cursor: C,
    view: View,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    at: At,
    /// Key at the position, in both directions.
    key: Vec<u8>,
    /// Value at the position after backward movement, with its expiry.
    value: (Vec<u8>, Option<Timestamp>),
    skipped: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Nothing,
    /// At the entry of the underlying cursor.
    Entry,
    /// At the copied key and value: the underlying cursor is before all entries of the key.
    Copy,
}

impl<C: Cursor> Visible<C> {
    /// Creates a cursor over the keys in `from`..`to`, at no key.
    pub fn new(cursor: C, view: View, from: Vec<u8>, to: Option<Vec<u8>>) -> Self {
        Visible {
            cursor,
            view,
            from,
            to,
            at: At::Nothing,
            key: Vec::new(),
            value: (Vec::new(), None),
            skipped: 0,
        }
    }

    /// Key and value at the position; `None` if there is no key.
    #[inline]
    pub fn pair(&self) -> Option<(&[u8], &[u8])> {
        match self.at {
            At::Nothing => None,
            At::Copy => Some((&self.key, &self.value.0)),
            At::Entry => match self.cursor.entry()?.value {
                Value::Put { bytes, .. } => Some((&self.key, bytes)),
                Value::Tombstone { .. } => None,
            },
        }
    }

    /// Expiry of the key at the position; `None` if it never expires or there is no key.
    pub fn expires(&self) -> Option<Timestamp> {
        match self.at {
            At::Nothing => None,
            At::Copy => self.value.1,
            At::Entry => match self.cursor.entry()?.value {
                Value::Put { expires, .. } => expires,
                Value::Tombstone { .. } => None,
            },
        }
    }

    /// Moves to the first key.
    ///
    /// # Errors
    /// Errors of reading blocks.
    pub async fn seek_first(&mut self) -> Result<()> {
        self.at = At::Nothing;
        self.cursor.seek(&self.from, self.view.snapshot).await?;
        self.find_forward(false).await
    }

    /// Moves to the last key.
    ///
    /// # Errors
    /// Errors of reading blocks.
    pub async fn seek_last(&mut self) -> Result<()> {
        self.at = At::Nothing;
        match &self.to {
            Some(to) => self.cursor.seek_before(to, Sequence::MAX).await?,
            None => self.cursor.seek_last().await?,
        }
        self.find_backward().await
    }

    /// Moves from a key to the next one.
    ///
    /// # Errors
    /// Errors of reading blocks.
    pub async fn next(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.at, At::Nothing) {
            At::Nothing => return Ok(()),
            At::Entry => self.cursor.next().await?,
            At::Copy => self.cursor.seek(&self.key, 0).await?,
        }
        self.find_forward(true).await
    }

    /// Moves from a key to the previous one.
    ///
    /// # Errors
    /// Errors of reading blocks.
    pub async fn previous(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.at, At::Nothing) {
            At::Nothing => return Ok(()),
            At::Entry => self.cursor.seek_before(&self.key, Sequence::MAX).await?,
            At::Copy => {}
        }
        self.find_backward().await
    }

    /// Moves forward to an entry that the snapshot sees, beginning with the cursor's. `is_passed` is whether
    /// entries of `self.key` are skipped.
    async fn find_forward(&mut self, mut is_passed: bool) -> Result<()> {
        let mut steps = 0;
        while let Some(entry) = self.cursor.entry() {
            if self.to.as_deref().is_some_and(|to| entry.key >= to) {
                break;
            }
            let is_older = is_passed && entry.key == self.key;
            if is_older || entry.sequence > self.view.snapshot {
                steps += 1;
            } else {
                self.key.clear();
                self.key.extend_from_slice(entry.key);
                if !self.view.hides(&entry) {
                    self.at = At::Entry;
                    break;
                }
                (is_passed, steps) = (true, 0);
            }
            if steps < SEEK_AFTER {
                self.cursor.next().await?;
            } else {
                steps = 0;
                let sequence = if is_older { 0 } else { self.view.snapshot };
                is_passed = is_older;
                self.key.clear();
                self.key.extend_from_slice(entry.key);
                self.cursor.seek(&self.key, sequence).await?;
            }
            self.skip().await;
        }
        Ok(())
    }

    /// Moves backward to a key that the snapshot sees, beginning with the cursor's entry.
    async fn find_backward(&mut self) -> Result<()> {
        while let Some(entry) = self.cursor.entry()
            && entry.key >= self.from.as_slice()
        {
            self.key.clear();
            self.key.extend_from_slice(entry.key);
            if self.copy_backward().await? {
                self.at = At::Copy;
                break;
            }
        }
        Ok(())
    }

    /// Moves backward past the entries of `self.key`, beginning with the oldest. Copies the value that the
    /// snapshot sees, and returns whether it sees one.
    async fn copy_backward(&mut self) -> Result<bool> {
        let mut is_seen = false;
        let mut steps = 0;
        while let Some(entry) = self.cursor.entry()
            && entry.key == self.key
        {
            if steps < SEEK_AFTER {
                if entry.sequence <= self.view.snapshot {
                    is_seen = self.view.copy(&entry, &mut self.value);
                }
                steps += 1;
                self.cursor.previous().await?;
            } else {
                if entry.sequence <= self.view.snapshot {
                    self.cursor.seek(&self.key, self.view.snapshot).await?;
                    is_seen =
                        self.cursor.entry().is_some_and(|entry| self.view.copy(&entry, &mut self.value));
                }
                self.cursor.seek_before(&self.key, Sequence::MAX).await?;
            }
            self.skip().await;
        }
        Ok(is_seen)
    }

    /// Counts a step to an entry that may be skipped, and yields after [`YIELD_AFTER`] of them.
    async fn skip(&mut self) {
        self.skipped += 1;
        if self.skipped == YIELD_AFTER {
            self.skipped = 0;
            runtime::yield_now().await;
        }
    }
}
