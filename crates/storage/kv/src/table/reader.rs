//! Reading of tables.

use super::block::Block;
use super::cursor::TableCursor;
use super::entries::Body;
use super::stored::BlockHandle;
use super::summary::Summary;
use crate::key_version::{RangeTombstone, Sequence, Value};
use block::{Error, Result};
use std::cell::{Cell, OnceCell};
use std::sync::Arc;

/// Source of the blocks of a table: the store's cache, and the zones below it.
pub trait BlockSource {
    /// Returns the block at a place, from a cache or by [`Block::decode`].
    ///
    /// # Errors
    /// Errors of reading and decoding the block.
    fn read(&self, handle: BlockHandle) -> impl Future<Output = Result<Arc<Block>>>;

    /// Whether a reader may keep `bytes` bytes of blocks for its lifetime. It calls
    /// [`dropped`](Self::dropped) when it has dropped them.
    fn may_keep(&self, _bytes: usize) -> bool {
        false
    }

    /// Whether a cursor skips an unreadable block. True only if the loss is reported, since entries are then
    /// missing.
    fn skips(&self, _handle: BlockHandle, _error: &Error) -> bool {
        false
    }

    /// Notes that a reader has dropped blocks that it was permitted to keep.
    fn dropped(&self, _bytes: usize) {}
}

/// Reader of a table.
#[derive(Debug)]
pub struct Reader<S: BlockSource> {
    source: S,
    salt: u32,
    index: Option<BlockHandle>,
    levels: usize,
    filter: Option<BlockHandle>,
    range_tombstones: Option<BlockHandle>,
    pinned_index: OnceCell<Arc<Block>>,
    pinned_filter: OnceCell<Arc<Block>>,
    /// Number of bytes that the source permitted the reader to keep.
    kept: Cell<usize>,
}

impl<S: BlockSource> Drop for Reader<S> {
    fn drop(&mut self) {
        self.source.dropped(self.kept.get());
    }
}

/// A version of a key that was found; it holds the block, so that the value isn't copied.
#[derive(Debug, Clone)]
pub struct Found {
    block: Arc<Block>,
    body: Body,
}

impl Found {
    /// Sequence of the version.
    pub fn sequence(&self) -> Sequence {
        self.body.sequence
    }

    /// Value or tombstone.
    pub fn value(&self) -> Value<'_> {
        self.block.value(&self.body)
    }
}

impl<S: BlockSource> Reader<S> {
    /// Returns a reader of the table with this summary.
    pub fn new(source: S, summary: &Summary) -> Self {
        Reader {
            source,
            salt: summary.salt,
            index: summary.index,
            levels: summary.index_levels.into(),
            filter: summary.filter,
            range_tombstones: summary.range_tombstone_block,
            pinned_index: OnceCell::new(),
            pinned_filter: OnceCell::new(),
            kept: Cell::new(0),
        }
    }

    /// Finds the newest version of a key that `snapshot` sees, which may be a tombstone; `None` if there is
    /// none. `hash` is [`key_hash`](super::key_hash) of the key. Range tombstones aren't applied.
    ///
    /// # Errors
    /// Errors of reading blocks.
    pub async fn get(&self, key: &[u8], hash: u64, snapshot: Sequence) -> Result<Option<Found>> {
        let may_contain = match self.pinned_filter.get() {
            Some(filter) => filter.filter()?.may_contain(hash),
            None => match self.filter().await? {
                Some(filter) => filter.filter()?.may_contain(hash),
                None => true,
            },
        };
        if !may_contain {
            return Ok(None);
        }
        let mut handle = match self.pinned_index.get() {
            Some(root) => self.child_of(root, key, snapshot)?,
            None => match self.root().await? {
                Some(root) => self.child_of(&root, key, snapshot)?,
                None => return Ok(None),
            },
        };
        for _ in 1..self.levels {
            handle = self.child_of(&*self.source.read(handle).await?, key, snapshot)?;
        }
        let block = self.source.read(handle).await?;
        let sought = block.data()?.seek(key, snapshot)?;
        Ok(sought.filter(|sought| sought.is_key).map(|sought| Found { block, body: sought.body }))
    }

    /// Range tombstones, ordered by their first keys.
    ///
    /// # Errors
    /// Errors of reading their block.
    pub async fn range_tombstones(&self) -> Result<Arc<[RangeTombstone]>> {
        match self.range_tombstones {
            Some(handle) => self.source.read(handle).await?.range_tombstones().cloned(),
            None => Ok(Arc::new([])),
        }
    }

    /// Returns a cursor at no entry; [`TableCursor::new`] returns one that owns a shared reader.
    pub fn cursor(&self) -> TableCursor<&Self> {
        TableCursor::new(self)
    }

    #[inline]
    fn child_of(&self, index: &Block, key: &[u8], sequence: Sequence) -> Result<BlockHandle> {
        let index = index.index()?;
        index.child(index.child_of(key, sequence)?, self.salt)
    }

    async fn filter(&self) -> Result<Option<Arc<Block>>> {
        self.pinned_or_read(&self.pinned_filter, self.filter).await
    }

    /// Root of the index; `None` without entries.
    pub(super) async fn root(&self) -> Result<Option<Arc<Block>>> {
        self.pinned_or_read(&self.pinned_index, self.index).await
    }

    async fn pinned_or_read(
        &self,
        pinned: &OnceCell<Arc<Block>>,
        at: Option<BlockHandle>,
    ) -> Result<Option<Arc<Block>>> {
        if let Some(block) = pinned.get() {
            return Ok(Some(Arc::clone(block)));
        }
        let Some(handle) = at else { return Ok(None) };
        let block = self.source.read(handle).await?;
        let bytes = block.memory_bytes();
        // A concurrent read may have kept the block.
        if pinned.get().is_none() && self.source.may_keep(bytes) {
            self.kept.set(self.kept.get() + bytes);
            pinned.get_or_init(|| Arc::clone(&block));
        }
        Ok(Some(block))
    }

    /// Root of the index for a cursor; `None` without entries, or if the source skips the block.
    pub(super) async fn cursor_root(&self) -> Result<Option<Arc<Block>>> {
        self.unless_skipped(self.index, self.root().await)
    }

    /// Reads child `at` of an index block; `None` if the source skips it.
    pub(super) async fn read_child(&self, index: &Block, at: usize) -> Result<Option<Arc<Block>>> {
        let handle = index.index()?.child(at, self.salt)?;
        self.unless_skipped(Some(handle), self.source.read(handle).await.map(Some))
    }

    fn unless_skipped<T>(&self, at: Option<BlockHandle>, found: Result<Option<T>>) -> Result<Option<T>> {
        match (found, at) {
            (Err(error), Some(handle)) if self.source.skips(handle, &error) => Ok(None),
            (found, _) => found,
        }
    }

    /// Range tombstones for a scan; empty if the source skips their block.
    ///
    /// # Errors
    /// Errors of reading their block.
    pub async fn scanned_range_tombstones(&self) -> Result<Arc<[RangeTombstone]>> {
        let found = self.range_tombstones().await.map(Some);
        Ok(self.unless_skipped(self.range_tombstones, found)?.unwrap_or_else(|| Arc::new([])))
    }

    /// Number of levels of the index.
    pub(super) fn levels(&self) -> usize {
        self.levels
    }
}
