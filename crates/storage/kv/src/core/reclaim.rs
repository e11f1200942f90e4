//! Reclaiming space of tables with less free space than a compaction needs.
//!
//! - A table whose keys are all deleted by a range tombstone above it is dropped by an edit of the manifest.
//!   This takes no space for data, so a full store can be emptied.
//! - A *purge* rewrites a table in its level, without the entries that tables above it hide. It takes at most
//!   the space of one table, where a compaction takes that of all overlapping tables. The tombstones and
//!   values that hide the entries stay above.
//!
//! Only tables are considered to hide entries: writes that are only in the log may be lost.

#[cfg(test)]
mod tests;

use super::table_writer::{Clip, Output, TableWriter};
use crate::core::{Core, TABLE_CLASS};
use crate::cursor::Cursor;
use crate::cursor::merge::Merge;
use crate::key_version::{KeyVersion, RangeTombstone, Sequence, order};
use crate::table::TableCursor;
use crate::tree::level_cursor::AnyCursor;
use crate::tree::levels::Levels;
use crate::tree::manifest::{Edit, TableId};
use crate::tree::tables::Table;
use block::Result;
use std::cmp::Ordering;
use std::rc::Rc;

/// Minimum share of a table's entries that a purge must drop: one in `WORTHWHILE`.
const WORTHWHILE: u64 = 32;
/// Number of entries between two yields.
const ENTRIES_PER_TURN: u32 = 64;

/// Whether a range tombstone deletes all keys of a table.
fn covers(range: &RangeTombstone, table: &Table) -> bool {
    let summary = &table.meta.summary;
    let ends = match summary.largest_excluded {
        true => summary.largest <= range.to,
        false => summary.largest < range.to,
    };
    range.from <= summary.smallest && ends
}

/// Tables above a table that may hide its entries.
fn above<'a>(levels: &'a Levels, table: &'a Rc<Table>) -> impl Iterator<Item = &'a Rc<Table>> {
    let level = usize::from(table.meta.level);
    let newer = levels.0[0].iter().take_while(move |other| !Rc::ptr_eq(other, table));
    let deeper = levels.0.iter().take(level).skip(1).flatten();
    newer.chain(deeper).filter(move |other| other.overlaps(table))
}

impl Core {
    /// Drops tables whose keys are all deleted by a range tombstone above them. Returns whether there were
    /// any.
    ///
    /// # Errors
    /// Errors of reading range tombstones and of appending the edit.
    pub(crate) async fn drop_covered(self: &Rc<Self>) -> Result<bool> {
        let mut has_dropped = false;
        loop {
            let levels = self.tables.levels().clone();
            let mut removed = Vec::new();
            for table in levels.0.iter().rev().flatten() {
                if self.is_covered(&levels, table).await? {
                    removed.push(table.meta.id);
                }
            }
            if removed.is_empty() {
                return Ok(has_dropped);
            }
            let edit = Edit { removed, ..Edit::default() };
            self.append_edit(edit, Output::default(), 1, TABLE_CLASS).await?;
            has_dropped = true;
        }
    }

    async fn is_covered(&self, levels: &Levels, table: &Rc<Table>) -> Result<bool> {
        let summary = &table.meta.summary;
        // With a deadline, tombstones stay as long as tables below overlap them.
        let has_tombstones = summary.tombstones + summary.range_tombstones > 0;
        let level = usize::from(table.meta.level);
        let has_deeper = || levels.0.iter().skip(level + 1).flatten().any(|deeper| deeper.overlaps(table));
        if self.settings.delete_persistence.is_some() && has_tombstones && has_deeper() {
            return Ok(false);
        }
        for other in above(levels, table).filter(|other| other.meta.summary.range_tombstones > 0) {
            for range in other.reader.range_tombstones().await?.iter() {
                let is_seen = self.tables.snapshots.has_before(range.sequence);
                if covers(range, table) && range.sequence > summary.largest_sequence && !is_seen {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Purges tables below level 0 with enough hidden entries, deepest first. Returns whether there were any.
    ///
    /// # Errors
    /// Errors of reading the tables and of appending.
    pub(crate) async fn purge_tables(self: &Rc<Self>) -> Result<bool> {
        let mut has_purged = false;
        // Numbers instead of tables: a held tree would keep the zones of purged tables from being reset until
        // the last purge.
        let ids: Vec<TableId> = {
            let levels = self.tables.levels();
            levels.0.iter().skip(1).rev().flatten().map(|table| table.meta.id).collect()
        };
        for id in ids {
            self.check_running()?;
            let found = self.tables.levels().all().find(|table| table.meta.id == id).cloned();
            let Some(table) = found else { continue };
            let entries = table.meta.summary.entries;
            let kept = self.unhidden(&table, None).await?;
            if (entries - kept.min(entries)) * WORTHWHILE >= entries.max(1) {
                self.purge(&table).await?;
                has_purged = true;
            }
        }
        Ok(has_purged)
    }

    /// Rewrites a table without hidden entries.
    async fn purge(self: &Rc<Self>, table: &Rc<Table>) -> Result<()> {
        let level = usize::from(table.meta.level);
        let class = self.class_of(level, self.erasure.oldest_delete(&table.meta.summary));
        let mut writer = TableWriter::new(self, level, class, self.kept_by_flushes());
        self.unhidden(table, Some(&mut writer)).await?;
        let held_by = self.tables.snapshots.sequences().last().copied();
        let output = writer.end(held_by).await?;
        let edit = Edit { removed: vec![table.meta.id], ..Edit::default() };
        self.append_edit(edit, output, level, class).await
    }

    /// Counts the entries of a table that no table above hides, and adds them to `writer` if there is one.
    async fn unhidden(
        self: &Rc<Self>,
        table: &Rc<Table>,
        mut writer: Option<&mut TableWriter<'_>>,
    ) -> Result<u64> {
        let levels = self.tables.levels().clone();
        let (summary, level) = (&table.meta.summary, usize::from(table.meta.level));
        let own_ranges: Vec<RangeTombstone> = table.reader.range_tombstones().await?.to_vec();
        let mut ranges = own_ranges.clone();
        let mut cursors = vec![AnyCursor::WholeTable(Box::new(table.sequential(self.tables.reads())))];
        for other in above(&levels, table) {
            cursors.push(AnyCursor::Table(Box::new(other.cursor())));
            ranges.extend(other.reader.range_tombstones().await?.iter().cloned());
        }
        let below: Vec<&Rc<Table>> =
            levels.0.iter().skip(level + 1).flatten().filter(|other| other.overlaps(table)).collect();
        let is_bottom = |key: &[u8]| !below.iter().any(|other| other.may_have(key));
        let mut retention = self.retention(ranges);
        let kept_ranges =
            own_ranges.into_iter().filter(|range| retention.keeps_range(range, below.is_empty()));
        let mut clip = Clip::new(kept_ranges.collect());
        let mut own = table.sequential(self.tables.reads());
        own.seek_first().await?;
        let mut cursor = Merge::new(cursors);
        cursor.seek(&summary.smallest, Sequence::MAX).await?;
        let (mut kept, mut seen) = (0, 0);
        while let Some(entry) = cursor.entry().filter(|entry| entry.key <= summary.largest.as_slice()) {
            for unhidden in retention.feed(entry, is_bottom) {
                if is_in(&mut own, &unhidden).await? {
                    kept += 1;
                    if let Some(writer) = &mut writer {
                        writer.add_kept(unhidden, &mut clip).await?;
                    }
                }
            }
            seen += 1;
            if seen % ENTRIES_PER_TURN == 0 {
                runtime::yield_now().await;
            }
            cursor.next().await?;
        }
        if let Some(unhidden) = retention.finish()
            && is_in(&mut own, &unhidden).await?
        {
            kept += 1;
            if let Some(writer) = &mut writer {
                writer.add_kept(unhidden, &mut clip).await?;
            }
        }
        if let Some(writer) = &mut writer {
            writer.add_ranges(clip.until(None))?;
        }
        Ok(kept)
    }
}

/// Whether a table has an entry. The cursor only moves forward: calls are in the order of entries.
async fn is_in<S: crate::table::BlockSource, R: std::ops::Deref<Target = crate::table::Reader<S>>>(
    own: &mut TableCursor<R>,
    entry: &KeyVersion<'_>,
) -> Result<bool> {
    loop {
        let found = own.entry().map(|own| order((own.key, own.sequence), (entry.key, entry.sequence)));
        match found {
            Some(Ordering::Less) => own.next().await?,
            found => return Ok(found == Some(Ordering::Equal)),
        }
    }
}
