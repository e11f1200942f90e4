//! What a snapshot sees of the entries of a merged cursor.
//!
//! Of each key it sees the newest entry whose sequence is at most that of the snapshot. The key doesn't exist if there is none, if that
//! entry is a tombstone or a value that has expired, or if a range tombstone that the snapshot sees deletes it.

mod range_tombstones;
#[cfg(test)]
mod tests;
mod undeleted;

pub use range_tombstones::RangeTombstones;
pub use undeleted::Undeleted;

use crate::cursor::Cursor;
use crate::entry::{Entry, Sequence, Timestamp, Value};
use block::Result;
use std::rc::Rc;

/// Other tasks run after so many entries that a snapshot doesn't see.
const YIELD_AFTER: u32 = 256;
/// A cursor seeks past the versions of a key after so many steps among them.
const SEEK_AFTER: u32 = 8;

/// How a snapshot sees a store.
#[derive(Debug, Clone)]
pub struct View {
    /// It sees entries up to this sequence.
    pub snapshot: Sequence,
    /// Values expire at this time or before it.
    pub now: Timestamp,
    /// Range tombstones of all sources; those above the snapshot don't matter.
    pub ranges: Vec<Rc<RangeTombstones>>,
}

impl View {
    /// Whether the key doesn't exist, given the newest of its entries that the snapshot sees.
    pub fn hides(&self, entry: &Entry<'_>) -> bool {
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

    /// Copies an entry's value with its expiry, unless the entry is hidden; returns whether it did.
    fn copy(&self, entry: &Entry<'_>, copy: &mut (Vec<u8>, Option<Timestamp>)) -> bool {
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

/// The keys and values that a snapshot sees, in both directions.
///
/// After an error, and after a future that was dropped before it was complete, it is at no key; a seek makes it usable again.
#[derive(Debug)]
pub struct Visible<C> {
    cursor: C,
    view: View,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    at: At,
    /// The key at which it is, in both directions.
    key: Vec<u8>,
    /// The value of the key at which it is after going backward, and its expiry.
    value: (Vec<u8>, Option<Timestamp>),
    skipped: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Nothing,
    /// At the entry at which the cursor is.
    Entry,
    /// At the key and value that were copied: the cursor is before all entries of the key.
    Copy,
}

impl<C: Cursor> Visible<C> {
    /// Creates a cursor over the keys from `from` on and below `to`, at no key.
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

    /// The key and the value at which it is; `None` where there is none.
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

    /// Time at which the key at which it is expires; `None` for never, and where there is no key.
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

    /// Goes to the first key.
    ///
    /// # Errors
    /// What reading returns.
    pub async fn seek_first(&mut self) -> Result<()> {
        self.at = At::Nothing;
        self.cursor.seek(&self.from, self.view.snapshot).await?;
        self.find_forward(false).await
    }

    /// Goes to the last key.
    ///
    /// # Errors
    /// What reading returns.
    pub async fn seek_last(&mut self) -> Result<()> {
        self.at = At::Nothing;
        match &self.to {
            Some(to) => self.cursor.seek_before(to, Sequence::MAX).await?,
            None => self.cursor.seek_last().await?,
        }
        self.find_backward().await
    }

    /// Goes to the next key, from one.
    ///
    /// # Errors
    /// What reading returns.
    pub async fn next(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.at, At::Nothing) {
            At::Nothing => return Ok(()),
            At::Entry => self.cursor.next().await?,
            At::Copy => self.cursor.seek(&self.key, 0).await?,
        }
        self.find_forward(true).await
    }

    /// Goes to the key before, from one.
    ///
    /// # Errors
    /// What reading returns.
    pub async fn previous(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.at, At::Nothing) {
            At::Nothing => return Ok(()),
            At::Entry => self.cursor.seek_before(&self.key, Sequence::MAX).await?,
            At::Copy => {}
        }
        self.find_backward().await
    }

    /// Goes on to an entry that the snapshot sees, from the cursor's on. `is_passed` says that entries of `self.key` are passed over.
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

    /// Goes back to a key that the snapshot sees, from the entry at which the cursor is.
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

    /// Goes back past the entries of `self.key`, from the oldest. Copies the value that the snapshot sees, and returns whether it sees one.
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

    /// Counts a step to an entry that may be skipped, and lets other tasks run after many.
    async fn skip(&mut self) {
        self.skipped += 1;
        if self.skipped == YIELD_AFTER {
            self.skipped = 0;
            runtime::yield_now().await;
        }
    }
}
