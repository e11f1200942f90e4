//! Cursors: positions in ordered entries.

use crate::entry::{Entry, Sequence};
use block::Result;

/// A position in ordered entries ([`entry::order`](crate::entry::order)): at an entry, or at none, before the first and after the last one.
pub trait Cursor {
    /// The entry at which it is; `None` where there is none.
    fn entry(&self) -> Option<Entry<'_>>;

    /// Goes to the first entry.
    ///
    /// # Errors
    /// What reading returns.
    fn seek_first(&mut self) -> impl Future<Output = Result<()>>;

    /// Goes to the last entry.
    ///
    /// # Errors
    /// What reading returns.
    fn seek_last(&mut self) -> impl Future<Output = Result<()>>;

    /// Goes to the first entry that isn't before (`key`, `sequence`): with the largest sequence that is the newest version of the key, or
    /// the next key.
    ///
    /// # Errors
    /// What reading returns.
    fn seek(&mut self, key: &[u8], sequence: Sequence) -> impl Future<Output = Result<()>>;

    /// Goes to the last entry that is before (`key`, `sequence`): with the largest sequence that is an entry of a lower key.
    ///
    /// # Errors
    /// What reading returns.
    fn seek_before(&mut self, key: &[u8], sequence: Sequence) -> impl Future<Output = Result<()>>;

    /// Goes to the next entry, from one.
    ///
    /// # Errors
    /// What reading returns.
    fn next(&mut self) -> impl Future<Output = Result<()>>;

    /// Goes to the entry before, from one.
    ///
    /// # Errors
    /// What reading returns.
    fn previous(&mut self) -> impl Future<Output = Result<()>>;
}
