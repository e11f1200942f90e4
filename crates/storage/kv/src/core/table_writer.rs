//! Writer of the tables of a job: pieces of new tables, then one edit of the manifest that replaces the old
//! ones. A failed job leaves no live data.

use super::Core;
use crate::cursor::Cursor;
use crate::cursor::merge::Merge;
use crate::cursor::retention::Retention;
use crate::key_version::{KeyVersion, RangeTombstone, Sequence};
use crate::log_entry::KvEntry;
use crate::table::{Builder, Summary};
use crate::tree::level_cursor::AnyCursor;
use crate::tree::manifest::{Edit, TableMeta};
use crate::tree::tables::{Table, TableFile};
use block::{Buffer, Result};
use logkit::Owner;
use std::rc::Rc;

/// Bytes of a table that are appended at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Number of entries between two yields.
pub(super) const ENTRIES_PER_TURN: u32 = 64;
/// Number of free data blocks for which an edit waits. An edit with very long keys takes more, and may fail
/// for lack of space.
const EDIT_BLOCKS: u32 = 1;

/// Tables that a job has written.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Summaries and files of the tables; their extents are read when the edit is made.
    tables: Vec<(Summary, Rc<TableFile>)>,
}

impl Output {
    /// Whether a table has range tombstones.
    pub fn has_ranges(&self) -> bool {
        self.tables.iter().any(|(summary, _)| summary.range_tombstones > 0)
    }
}

/// Writer of a job's tables, one after another.
pub(crate) struct TableWriter<'a> {
    core: &'a Rc<Core>,
    level: usize,
    class: u8,
    /// Number of free zones that the writer leaves to others.
    kept: u32,
    table: Option<(Builder, Rc<TableFile>)>,
    /// Bytes after the last complete block, and number of the next block.
    rest: Vec<u8>,
    next_block: u32,
    last_key: Vec<u8>,
    output: Output,
    written: u64,
}

impl<'a> TableWriter<'a> {
    pub(crate) fn new(core: &'a Rc<Core>, level: usize, class: u8, kept: u32) -> Self {
        TableWriter {
            core,
            level,
            class,
            kept,
            table: None,
            rest: Vec::new(),
            next_block: 0,
            last_key: Vec::new(),
            output: Output::default(),
            written: 0,
        }
    }

    fn builder(&mut self) -> &mut Builder {
        let core = self.core;
        let (builder, _) = self.table.get_or_insert_with(|| {
            let file = core.tables.new_table();
            (Builder::new(core.table_options(file.id)), file)
        });
        builder
    }

    /// Bytes of the table that is being written.
    fn bytes(&self) -> u64 {
        self.table.as_ref().map_or(0, |(builder, _)| builder.bytes())
    }

    async fn add(&mut self, entry: KeyVersion<'_>) -> Result<()> {
        self.builder().add(entry)?;
        if let Some((builder, file)) = &mut self.table
            && let Some(bytes) = builder.take_output(PIECE_BYTES)
        {
            let file = file.clone();
            self.append(&file, &bytes, false).await?;
        }
        Ok(())
    }

    /// Adds an entry. Begins the next table if this one is full and the key differs: all versions of a key
    /// are in one table.
    pub(crate) async fn add_kept(&mut self, entry: KeyVersion<'_>, ranges: &mut Clip) -> Result<()> {
        let is_full =
            self.level > 0 && self.bytes() >= self.core.settings.table_bytes && entry.key != self.last_key;
        if is_full {
            for range in ranges.until(Some(entry.key)) {
                self.builder().add_range_tombstone(range)?;
            }
            self.end_table().await?;
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(entry.key);
        self.add(entry).await
    }

    /// Appends bytes to the table; with `is_last`, pads them to a block.
    async fn append(&mut self, file: &Rc<TableFile>, bytes: &[u8], is_last: bool) -> Result<()> {
        let block = self.core.kit.layout.block_bytes();
        let length = self.rest.len() + bytes.len();
        let whole = if is_last { length.next_multiple_of(block) } else { length - length % block };
        if whole == 0 {
            self.rest.extend_from_slice(bytes);
            return Ok(());
        }
        let mut data = Buffer::new(whole);
        data.append(&self.rest);
        let taken = (whole - self.rest.len()).min(bytes.len());
        data.append(&bytes[..taken]);
        data.append_zeroes(data.missing());
        self.rest = bytes[taken..].to_vec();
        let blocks = (whole / block) as u32;
        let log_entry = KvEntry::piece(file.clone(), self.next_block, None, data.freeze().into(), block);
        let permit = self.core.space_for_tables(self.kept, self.class, blocks).await?;
        self.core.append_alone(&permit, self.class, vec![log_entry]).await?;
        self.next_block += blocks;
        self.written += whole as u64;
        Ok(())
    }

    /// Ends the table that is being written, if there is one.
    async fn end_table(&mut self) -> Result<()> {
        let Some((builder, file)) = self.table.take() else { return Ok(()) };
        let (rest, summary) = builder.finish()?;
        self.append(&file, &rest, true).await?;
        self.next_block = 0;
        self.output.tables.push((summary, file));
        Ok(())
    }

    /// Adds range tombstones to the last table.
    pub(crate) fn add_ranges(&mut self, ranges: Vec<RangeTombstone>) -> Result<()> {
        ranges.into_iter().try_for_each(|range| self.builder().add_range_tombstone(range))
    }

    /// Ends the last table. `held_by` is the newest snapshot that may keep tombstones.
    pub(crate) async fn end(mut self, held_by: Option<Sequence>) -> Result<Output> {
        self.end_table().await?;
        for (summary, file) in &self.output.tables {
            let has_tombstones = summary.tombstones + summary.range_tombstones > 0;
            file.held_by.set(held_by.filter(|_| has_tombstones));
        }
        Ok(self.output)
    }
}

impl Core {
    /// Returns the decision which entries are kept at present. The range tombstones include those of the
    /// merged tables.
    pub(super) fn retention(&self, tombstones: impl IntoIterator<Item = RangeTombstone>) -> Retention {
        Retention::new(
            self.tables.snapshots.sequences(),
            tombstones,
            crate::key_version::now(),
            self.settings.delete_persistence.is_some(),
        )
        .counting(self.erasure.counts_operations().then(|| self.erasure.now()))
        .ahead(self.erasure.clock().ahead())
    }

    /// Merges the entries of a cursor up to a sequence into new tables of a level.
    pub(super) async fn rewrite(
        self: &Rc<Self>,
        (mut cursor, newest): (Merge<AnyCursor>, Sequence),
        tombstones: Vec<RangeTombstone>,
        level: usize,
        class: u8,
        is_bottom: impl Fn(&[u8]) -> bool,
    ) -> Result<(Output, u64)> {
        let held_by = self.tables.snapshots.sequences().last().copied();
        let bottom_range = is_bottom_range(self, level, &is_bottom);
        let mut retention = self.retention(tombstones.iter().cloned());
        let kept = tombstones.into_iter().filter(|range| retention.keeps_range(range, bottom_range(range)));
        let mut clipped = Clip::new(kept.collect());
        // A flush frees zones of the write-ahead log, so compactions leave zones for it.
        let kept = if level == 0 { self.kept_by_flushes() } else { self.kept_by_compactions() };
        let mut writer = TableWriter::new(self, level, class, kept);
        let mut entries = 0;
        cursor.seek_first().await?;
        while let Some(entry) = cursor.entry() {
            if entry.sequence <= newest {
                for kept in retention.feed(entry, &is_bottom) {
                    writer.add_kept(kept, &mut clipped).await?;
                }
            }
            entries += 1;
            if entries % ENTRIES_PER_TURN == 0 {
                if let Some(error) = self.kit.failure() {
                    return Err(error);
                }
                runtime::yield_now().await;
            }
            cursor.next().await?;
        }
        if let Some(kept) = retention.finish() {
            writer.add_kept(kept, &mut clipped).await?;
        }
        writer.add_ranges(clipped.until(None))?;
        writer.end_table().await?;
        let written = writer.written;
        Ok((writer.end(held_by).await?, written))
    }

    /// Appends an edit that adds new tables, and waits until it takes effect.
    pub(crate) async fn append_edit(
        self: &Rc<Self>,
        mut edit: Edit,
        output: Output,
        level: usize,
        class: u8,
    ) -> Result<()> {
        // An edit frees more than it takes, so it may use the zones that are kept for the cleaner.
        let permit = self.space_for_tables(self.checkpoint_zones(), class, EDIT_BLOCKS).await?;
        // While the permit is held, no piece is moved until the edit is appended.
        for moved in &mut edit.added {
            let file = self.tables.file(moved.id);
            moved.extents = file.map_or_else(Vec::new, |file| file.extents());
        }
        let created = self.erasure.now();
        let mut files = Vec::new();
        for (summary, file) in output.tables {
            edit.added.push(TableMeta {
                id: file.id,
                level: level as u8,
                created,
                summary,
                extents: file.extents(),
            });
            files.push(file);
        }
        let log_entry = KvEntry::edit(edit, files, self.kit.layout.block_bytes());
        self.append_alone(&permit, class, vec![log_entry]).await
    }
}

fn is_bottom_range<'a>(
    core: &'a Core,
    level: usize,
    is_bottom: &'a impl Fn(&[u8]) -> bool,
) -> impl Fn(&RangeTombstone) -> bool + 'a {
    let levels = core.tables.levels().clone();
    move |range| {
        let overlaps = |table: &Rc<Table>| {
            table.meta.summary.smallest.as_slice() < range.to.as_slice()
                && range.from <= table.meta.summary.largest
        };
        let deeper = levels.all().filter(|table| usize::from(table.meta.level) > level).any(overlaps);
        !deeper && is_bottom(&range.from)
    }
}

/// Range tombstones, divided among tables at the first key of each table.
pub(crate) struct Clip {
    left: Vec<RangeTombstone>,
}

impl Clip {
    pub(crate) fn new(tombstones: Vec<RangeTombstone>) -> Self {
        Clip { left: tombstones }
    }

    /// Takes the parts of the range tombstones before `key`; `None` takes all.
    pub(crate) fn until(&mut self, key: Option<&[u8]>) -> Vec<RangeTombstone> {
        let Some(key) = key else { return std::mem::take(&mut self.left) };
        let mut taken = Vec::new();
        let mut left = Vec::new();
        for mut range in self.left.drain(..) {
            if range.to.as_slice() <= key {
                taken.push(range);
            } else if range.from.as_slice() >= key {
                left.push(range);
            } else {
                left.push(RangeTombstone { from: key.to_vec(), ..range.clone() });
                range.to = key.to_vec();
                taken.push(range);
            }
        }
        self.left = left;
        taken
    }
}
