//! Cursors: positions in ordered entries.
//!
//! `merge`: several cursors as one; `visible`: entries that a snapshot sees; `retention`: entries that a
//! compaction keeps.

pub mod merge;
pub mod retention;
pub mod visible;

use crate::key_version::{KeyVersion, Sequence};
use block::Result;

/// A position in entries, [ordered](crate::key_version::order): at an entry, or at none, before the first or
/// after the last one.
pub trait Cursor {
    /// Entry at the position; `None` if there is none.
    fn entry(&self) -> Option<KeyVersion<'_>>;

    /// Moves to the first entry.
    ///
    /// # Errors
    /// Errors of reading blocks.
    fn seek_first(&mut self) -> impl Future<Output = Result<()>>;

    /// Moves to the last entry.
    ///
    /// # Errors
    /// Errors of reading blocks.
    fn seek_last(&mut self) -> impl Future<Output = Result<()>>;

    /// Moves to the first entry at or after (`key`, `sequence`). With the largest sequence that is the newest
    /// version of the key, or an entry of the next key.
    ///
    /// # Errors
    /// Errors of reading blocks.
    fn seek(&mut self, key: &[u8], sequence: Sequence) -> impl Future<Output = Result<()>>;

    /// Moves to the last entry before (`key`, `sequence`). With the largest sequence that is an entry of a
    /// lower key.
    ///
    /// # Errors
    /// Errors of reading blocks.
    fn seek_before(&mut self, key: &[u8], sequence: Sequence) -> impl Future<Output = Result<()>>;

    /// Moves from an entry to the next one.
    ///
    /// # Errors
    /// Errors of reading blocks.
    fn next(&mut self) -> impl Future<Output = Result<()>>;

    /// Moves from an entry to the previous one.
    ///
    /// # Errors
    /// Errors of reading blocks.
    fn previous(&mut self) -> impl Future<Output = Result<()>>;
}
