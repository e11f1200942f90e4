//! Cursor of a table.

use super::block::Block;
use super::entries::{Body, Entries};
use super::reader::{BlockSource, Reader};
use crate::cursor::Cursor;
use crate::key_version::{KeyVersion, Sequence};
use block::Result;
use smallvec::SmallVec;
use std::cmp::Ordering;
use std::ops::Deref;
use std::sync::Arc;

/// Cursor of a table. `R` dereferences to its [`Reader`]: a reference, an `Rc` or an `Arc`.
///
/// After an error the cursor is at no entry.
#[derive(Debug)]
pub struct TableCursor<R> {
    reader: R,
    /// Blocks of the index from the root to the leaf, each with the index of the present child.
    path: SmallVec<[(Arc<Block>, usize); 2]>,
    block: Option<Arc<Block>>,
    /// Key of the present entry, or of the last one.
    key: Vec<u8>,
    entry: Option<Position>,
}

/// Position of an entry in the block.
#[derive(Debug)]
struct Position {
    at: usize,
    end: usize,
    /// Last restart point at or before the entry.
    restart: usize,
    body: Body,
}

/// First or last child of an index block, or entry of a data block.
#[derive(Debug, Clone, Copy)]
enum Edge {
    First,
    Last,
}

impl<S: BlockSource, R: Deref<Target = Reader<S>>> TableCursor<R> {
    /// Returns a cursor at no entry.
    pub fn new(reader: R) -> Self {
        TableCursor { reader, path: SmallVec::new(), block: None, key: Vec::new(), entry: None }
    }

    /// Moves to the block that `choose` selects, level by level from the root.
    async fn descend(&mut self, choose: impl Fn(&Entries) -> Result<usize>) -> Result<()> {
        self.entry = None;
        self.block = None;
        self.path.clear();
        if let Some(root) = self.reader.cursor_root().await? {
            let at = choose(root.index()?)?;
            self.path.push((root, at));
            self.read_below(choose).await?;
        }
        Ok(())
    }

    /// Reads the blocks below the last one of the path, until one is skipped.
    async fn read_below(&mut self, choose: impl Fn(&Entries) -> Result<usize>) -> Result<()> {
        while let Some((index, at)) = self.path.last() {
            let Some(block) = self.reader.read_child(index, *at).await? else { break };
            if self.path.len() == self.reader.levels() {
                self.block = Some(block);
                break;
            }
            let at = choose(block.index()?)?;
            self.path.push((block, at));
        }
        Ok(())
    }

    /// Moves to the first entry of the next block, or to the last one of the previous block; to no entry if
    /// there is no such block. `after` is as in [`TableCursor::read`].
    async fn go_to_neighbour(&mut self, enter_at: Edge, after: Option<Sequence>) -> Result<()> {
        self.entry = None;
        self.block = None;
        while let Some((index, at)) = self.path.last_mut() {
            let next = match enter_at {
                Edge::First => {
                    Some(*at + 1).filter(|&at| index.index().is_ok_and(|index| at < index.restarts()))
                }
                Edge::Last => at.checked_sub(1),
            };
            if let Some(next) = next {
                *at = next;
                self.read_below(edge_child(enter_at)).await?;
                if self.block.is_none() {
                    continue;
                }
                return self.enter(enter_at, after);
            }
            self.path.pop();
        }
        Ok(())
    }

    /// Moves to the first or last entry of the block; `after` is as in [`TableCursor::read`], for the first
    /// one.
    fn enter(&mut self, edge: Edge, after: Option<Sequence>) -> Result<()> {
        let Some(block) = self.block.take() else { return Ok(()) };
        let entries = block.data()?;
        match edge {
            Edge::First => self.read(entries, 0, 0, after)?,
            Edge::Last => self.scan(entries, entries.restarts() - 1, entries.end())?,
        }
        self.block = Some(block);
        Ok(())
    }

    /// Moves to the first or last entry of the block. If the block is skipped, moves to the nearest block in
    /// that direction.
    async fn enter_or_go_on(&mut self, edge: Edge) -> Result<()> {
        match self.block.is_some() {
            true => self.enter(edge, None),
            false => self.go_to_neighbour(edge, None).await,
        }
    }

    /// Moves to the entry that ends at `end`, from the restart point before it.
    fn scan(&mut self, entries: &Entries, restart: usize, end: usize) -> Result<()> {
        let mut at = entries.restart(restart);
        self.read(entries, at, restart, None)?;
        while let Some(entry) = &self.entry {
            match entry.end.cmp(&end) {
                Ordering::Less => at = entry.end,
                Ordering::Equal => break,
                Ordering::Greater => return Err(entries.corrupt(at, "it reaches beyond the next one")),
            }
            let after = Some(entry.body.sequence);
            self.read(entries, at, restart, after)?;
        }
        Ok(())
    }

    /// Moves to the entry at `at`. Its key and sequence must be after the previous key and the sequence
    /// `after`.
    #[inline]
    fn read(&mut self, entries: &Entries, at: usize, restart: usize, after: Option<Sequence>) -> Result<()> {
        self.entry = None;
        let header = entries.header(at)?;
        let rest = entries.rest(&header);
        let (is_restart, shared) = (at == entries.restart(restart), header.shared);
        if shared > self.key.len() || (is_restart && shared > 0) || header.end > entries.interval_end(restart)
        {
            return Err(entries.corrupt(at, "its shared length or its end is out of range"));
        }
        let body = entries.body(&header)?;
        if let Some(after) = after {
            let order = self.key[shared..].cmp(rest).then(body.sequence.cmp(&after));
            if order != Ordering::Less {
                return Err(entries.corrupt(at, "it isn't after the one before"));
            }
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(rest);
        self.entry = Some(Position { at, end: header.end, restart, body });
        Ok(())
    }

    /// Moves to the first entry of the block at or after (`key`, `sequence`); to no entry if all are before.
    fn seek_in_block(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        let Some(block) = &self.block else { return Ok(()) };
        let entries = block.data()?;
        if let Some(sought) = entries.seek(key, sequence)? {
            self.key.clear();
            // The bytes that the entry shares with the previous entry are also those that the previous entry
            // shares with the sought key.
            self.key.extend_from_slice(&key[..sought.header.shared]);
            self.key.extend_from_slice(entries.rest(&sought.header));
            let (at, end) = (sought.at, sought.header.end);
            self.entry = Some(Position { at, end, restart: sought.restart, body: sought.body });
        }
        Ok(())
    }

    /// Moves to the entry before the one at `at` in the interval of `restart`, or to the previous block if
    /// there is none in this one.
    async fn go_before(&mut self, at: usize, restart: usize) -> Result<()> {
        self.entry = None;
        let Some(block) = self.block.take() else { return Ok(()) };
        let entries = block.data()?;
        let restart = if at == entries.restart(restart) { restart.checked_sub(1) } else { Some(restart) };
        match restart {
            Some(restart) => self.scan(entries, restart, at)?,
            None => return self.go_to_neighbour(Edge::Last, None).await,
        }
        self.block = Some(block);
        Ok(())
    }
}

fn edge_child(edge: Edge) -> impl Fn(&Entries) -> Result<usize> {
    move |entries| {
        Ok(match edge {
            Edge::First => 0,
            Edge::Last => entries.restarts() - 1,
        })
    }
}

impl<S: BlockSource, R: Deref<Target = Reader<S>>> Cursor for TableCursor<R> {
    #[inline]
    fn entry(&self) -> Option<KeyVersion<'_>> {
        let (entry, block) = (self.entry.as_ref()?, self.block.as_ref()?);
        Some(KeyVersion { key: &self.key, sequence: entry.body.sequence, value: block.value(&entry.body) })
    }

    async fn seek_first(&mut self) -> Result<()> {
        self.descend(edge_child(Edge::First)).await?;
        self.enter_or_go_on(Edge::First).await
    }

    async fn seek_last(&mut self) -> Result<()> {
        self.descend(edge_child(Edge::Last)).await?;
        self.enter_or_go_on(Edge::Last).await
    }

    async fn seek(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        self.descend(|index| index.child_of(key, sequence)).await?;
        self.seek_in_block(key, sequence)?;
        if self.entry.is_none() {
            // The sought key is between this block's last entry and the next block's first one.
            self.go_to_neighbour(Edge::First, None).await?;
        }
        Ok(())
    }

    async fn seek_before(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        self.descend(|index| index.child_of(key, sequence)).await?;
        self.seek_in_block(key, sequence)?;
        match &self.entry {
            Some(Position { at, restart, .. }) => {
                let (at, restart) = (*at, *restart);
                self.go_before(at, restart).await
            }
            None => self.enter_or_go_on(Edge::Last).await,
        }
    }

    async fn next(&mut self) -> Result<()> {
        let (Some(entry), Some(block)) = (&self.entry, self.block.take()) else { return Ok(()) };
        let entries = block.data()?;
        let (at, after) = (entry.end, Some(entry.body.sequence));
        if at >= entries.end() {
            return self.go_to_neighbour(Edge::First, after).await;
        }
        let restart =
            if at == entries.interval_end(entry.restart) { entry.restart + 1 } else { entry.restart };
        self.read(entries, at, restart, after)?;
        self.block = Some(block);
        Ok(())
    }

    async fn previous(&mut self) -> Result<()> {
        match &self.entry {
            Some(Position { at, restart, .. }) => {
                let (at, restart) = (*at, *restart);
                self.go_before(at, restart).await
            }
            None => Ok(()),
        }
    }
}
