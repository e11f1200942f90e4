//! Cursors of a shard: over memtables, tables and whole levels.

use crate::cursor::Cursor;
use crate::key_version::{KeyVersion, Sequence};
use crate::memory::memtable::MemtableCursor;
use crate::table::{BlockSource, Reader, TableCursor};
use crate::tree::tables::{CachedReader, Sequential, Table};
use block::Result;
use std::ops::Deref;
use std::rc::Rc;

/// Function that opens a cursor of a table.
type Open<R> = Box<dyn Fn(&Rc<Table>) -> TableCursor<R>>;

/// Cursor over sorted, disjoint tables of a level; one table is open at a time.
pub struct LevelCursor<R> {
    tables: Vec<Rc<Table>>,
    open: Open<R>,
    at: usize,
    current: Option<TableCursor<R>>,
}

impl<S: BlockSource, R: Deref<Target = Reader<S>>> LevelCursor<R> {
    /// Returns a cursor over tables, which are in the order of their keys.
    pub fn new(tables: Vec<Rc<Table>>, open: impl Fn(&Rc<Table>) -> TableCursor<R> + 'static) -> Self {
        LevelCursor { tables, open: Box::new(open), at: 0, current: None }
    }

    fn go_to(&mut self, at: usize) {
        if self.current.is_none() || self.at != at {
            self.current = self.tables.get(at).map(|table| (self.open)(table));
            self.at = at;
        }
    }

    /// Moves to the next table with entries if the present one has no further entry.
    async fn skip_forward(&mut self) -> Result<()> {
        while let Some(current) = &self.current
            && current.entry().is_none()
        {
            self.go_to(self.at + 1);
            if let Some(current) = &mut self.current {
                current.seek_first().await?;
            }
        }
        Ok(())
    }

    async fn skip_backward(&mut self) -> Result<()> {
        while let Some(current) = &self.current
            && current.entry().is_none()
        {
            if self.at == 0 {
                self.current = None;
                break;
            }
            self.go_to(self.at - 1);
            if let Some(current) = &mut self.current {
                current.seek_last().await?;
            }
        }
        Ok(())
    }
}

impl<S: BlockSource, R: Deref<Target = Reader<S>>> Cursor for LevelCursor<R> {
    fn entry(&self) -> Option<KeyVersion<'_>> {
        self.current.as_ref()?.entry()
    }

    async fn seek_first(&mut self) -> Result<()> {
        self.go_to(0);
        if let Some(current) = &mut self.current {
            current.seek_first().await?;
        }
        self.skip_forward().await
    }

    async fn seek_last(&mut self) -> Result<()> {
        self.go_to(self.tables.len().saturating_sub(1));
        if let Some(current) = &mut self.current {
            current.seek_last().await?;
        }
        self.skip_backward().await
    }

    async fn seek(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        self.go_to(self.tables.partition_point(|table| table.meta.summary.largest.as_slice() < key));
        if let Some(current) = &mut self.current {
            current.seek(key, sequence).await?;
        }
        self.skip_forward().await
    }

    async fn seek_before(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        let after = self.tables.partition_point(|table| table.meta.summary.smallest.as_slice() <= key);
        if after == 0 {
            self.current = None;
            return Ok(());
        }
        self.go_to(after - 1);
        if let Some(current) = &mut self.current {
            current.seek_before(key, sequence).await?;
        }
        self.skip_backward().await
    }

    async fn next(&mut self) -> Result<()> {
        if let Some(current) = &mut self.current {
            current.next().await?;
        }
        self.skip_forward().await
    }

    async fn previous(&mut self) -> Result<()> {
        if let Some(current) = &mut self.current {
            current.previous().await?;
        }
        self.skip_backward().await
    }
}

/// A cursor of any kind that a shard uses.
pub enum AnyCursor {
    /// Cursor of a memtable.
    Memtable(MemtableCursor),
    /// Cursor of a table, through the block cache.
    Table(Box<TableCursor<CachedReader>>),
    /// Cursor of a level, through the block cache.
    Level(Box<LevelCursor<CachedReader>>),
    /// Sequential cursor of a table, without the cache.
    WholeTable(Box<TableCursor<Rc<Reader<Sequential>>>>),
    /// Sequential cursor of several tables, without the cache.
    WholeLevel(Box<LevelCursor<Rc<Reader<Sequential>>>>),
}

macro_rules! each {
    ($self:expr, $cursor:ident => $call:expr) => {
        match $self {
            AnyCursor::Memtable($cursor) => $call,
            AnyCursor::Table($cursor) => $call,
            AnyCursor::Level($cursor) => $call,
            AnyCursor::WholeTable($cursor) => $call,
            AnyCursor::WholeLevel($cursor) => $call,
        }
    };
}

impl Cursor for AnyCursor {
    fn entry(&self) -> Option<KeyVersion<'_>> {
        each!(self, cursor => cursor.entry())
    }

    async fn seek_first(&mut self) -> Result<()> {
        each!(self, cursor => cursor.seek_first().await)
    }

    async fn seek_last(&mut self) -> Result<()> {
        each!(self, cursor => cursor.seek_last().await)
    }

    async fn seek(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        each!(self, cursor => cursor.seek(key, sequence).await)
    }

    async fn seek_before(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        each!(self, cursor => cursor.seek_before(key, sequence).await)
    }

    async fn next(&mut self) -> Result<()> {
        each!(self, cursor => cursor.next().await)
    }

    async fn previous(&mut self) -> Result<()> {
        each!(self, cursor => cursor.previous().await)
    }
}
