//! A cursor over one source that skips completely deleted ranges.

use super::View;
use crate::cursor::Cursor;
use crate::key_version::{KeyVersion, Sequence};
use block::Result;

/// A cursor that omits entries that range tombstones delete, by seeking past their ranges instead of reading
/// them.
///
/// It is used on one source, a table or a level, before sources are merged: if the entries of a source are
/// older than a range tombstone, it deletes all entries in its range, whereas a merged cursor may have newer
/// entries there.
#[derive(Debug)]
pub struct Undeleted<C> {
    cursor: C,
    view: View,
    newest: Sequence,
}

impl<C: Cursor> Undeleted<C> {
    /// Creates a cursor over a source whose entries have sequences up to `newest`, except entries above the
    /// view's snapshot.
    pub fn new(cursor: C, mut view: View, newest: Sequence) -> Self {
        view.ranges.retain(|ranges| ranges.has_between(newest, view.snapshot));
        Undeleted { cursor, view, newest }
    }

    async fn skip_forward(&mut self) -> Result<()> {
        'skipped: loop {
            for ranges in &self.view.ranges {
                let Some(entry) = self.cursor.entry() else { return Ok(()) };
                if let Some(to) = ranges.skip_to(entry.key, self.newest, self.view.snapshot) {
                    self.cursor.seek(to, Sequence::MAX).await?;
                    continue 'skipped;
                }
            }
            return Ok(());
        }
    }

    async fn skip_backward(&mut self) -> Result<()> {
        'skipped: loop {
            for ranges in &self.view.ranges {
                let Some(entry) = self.cursor.entry() else { return Ok(()) };
                if let Some(from) = ranges.skip_back_to(entry.key, self.newest, self.view.snapshot) {
                    self.cursor.seek_before(from, Sequence::MAX).await?;
                    continue 'skipped;
                }
            }
            return Ok(());
        }
    }
}

impl<C: Cursor> Cursor for Undeleted<C> {
    #[inline]
    fn entry(&self) -> Option<KeyVersion<'_>> {
        self.cursor.entry()
    }

    async fn seek_first(&mut self) -> Result<()> {
        self.cursor.seek_first().await?;
        self.skip_forward().await
    }

    async fn seek_last(&mut self) -> Result<()> {
        self.cursor.seek_last().await?;
        self.skip_backward().await
    }

    async fn seek(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        self.cursor.seek(key, sequence).await?;
        self.skip_forward().await
    }

    async fn seek_before(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        self.cursor.seek_before(key, sequence).await?;
        self.skip_backward().await
    }

    async fn next(&mut self) -> Result<()> {
        self.cursor.next().await?;
        self.skip_forward().await
    }

    async fn previous(&mut self) -> Result<()> {
        self.cursor.previous().await?;
        self.skip_backward().await
    }
}
