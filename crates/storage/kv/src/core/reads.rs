//! Reads of a shard: single keys, and scans of snapshots.

use crate::core::Core;
use crate::cursor::Cursor;
use crate::cursor::merge::Merge;
use crate::cursor::visible::{RangeTombstones, Undeleted, View, Visible};
use crate::key_version::{KeyVersion, RangeTombstone, Sequence, Timestamp, Value};
use crate::memory::memtable::Memtable;
use crate::scan::{Pair, Pairs, Scan, Stored};
use crate::table::key_hash;
use crate::tree::level_cursor::{AnyCursor, LevelCursor};
use crate::tree::levels::Levels;
use crate::tree::tables::Table;
use block::Result;
use std::rc::Rc;

/// Value of an entry; `None` for a tombstone or a value that has expired at `now`.
fn stored(entry: &KeyVersion<'_>, now: Timestamp) -> Option<Stored> {
    match entry.value {
        Value::Put { bytes, expires } if expires.is_none_or(|expires| expires > now) => {
            Some(Stored { value: bytes.to_vec(), expires })
        }
        _ => None,
    }
}

/// Sequence of the newest range tombstone that deletes a key for a snapshot; 0 if there is none.
fn newest_range(ranges: &[RangeTombstone], key: &[u8], snapshot: Sequence) -> Sequence {
    let covering = ranges.iter().filter(|range| range.sequence <= snapshot && range.deletes(key, 0));
    covering.map(|range| range.sequence).max().unwrap_or(0)
}

impl Core {
    /// Memtables of the buffers, newest first.
    fn memtables(&self) -> Vec<Rc<Memtable>> {
        let frozen = self.buffers.frozen();
        let active = self.buffers.active().memtable.clone();
        std::iter::once(active).chain(frozen.iter().rev().map(|buffer| buffer.memtable.clone())).collect()
    }

    /// Finds a key in a memtable; `Some(None)` if it is deleted there. `ranges` has the range tombstones of
    /// newer memtables, and those of this one are added.
    fn find_in(
        memtable: &Memtable,
        key: &[u8],
        snapshot: Sequence,
        now: Timestamp,
        ranges: &mut Vec<Rc<RangeTombstones>>,
    ) -> Option<Option<Stored>> {
        let own = memtable.range_tombstones();
        if !own.is_empty() {
            ranges.push(own);
        }
        memtable.get(key, snapshot, |entry| {
            let entry = entry?;
            let is_deleted = ranges.iter().any(|range| range.covers(key, entry.sequence, snapshot).is_some());
            Some(if is_deleted { None } else { stored(&entry, now) })
        })
    }

    /// Value of a key at a snapshot; `None` for the latest one.
    pub(crate) async fn get(&self, key: &[u8], snapshot: Option<Sequence>) -> Result<Option<Stored>> {
        let snapshot = snapshot.unwrap_or(Sequence::MAX);
        let now = crate::key_version::now();
        let mut ranges = Vec::new();
        let active = self.buffers.active().clone();
        if let Some(found) = Self::find_in(&active.memtable, key, snapshot, now, &mut ranges) {
            return Ok(found);
        }
        // No await until the levels are cloned: buffers and tables are of the same moment.
        for buffer in self.buffers.frozen().iter().rev() {
            if let Some(found) = Self::find_in(&buffer.memtable, key, snapshot, now, &mut ranges) {
                return Ok(found);
            }
        }
        let levels = self.tables.levels().clone();
        let hash = key_hash(key);
        // Newest range tombstone that covers the key, in the tables so far.
        let mut deleted = 0;
        for (number, level) in levels.0.iter().enumerate() {
            let candidates = match number {
                0 => &level[..],
                _ => tables_of(level, key),
            };
            for table in candidates {
                if !table.may_have(key) {
                    continue;
                }
                if table.meta.summary.range_tombstones > 0 {
                    let ranges = table.reader.range_tombstones().await?;
                    deleted = deleted.max(newest_range(&ranges, key, snapshot));
                }
                if let Some(found) = table.reader.get(key, hash, snapshot).await? {
                    let entry = KeyVersion { key, sequence: found.sequence(), value: found.value() };
                    let is_deleted = entry.sequence < deleted
                        || ranges.iter().any(|range| range.covers(key, entry.sequence, snapshot).is_some());
                    return Ok(if is_deleted { None } else { stored(&entry, now) });
                }
            }
        }
        Ok(None)
    }

    /// Next pairs of a scan, and whether the range has more; `snapshot` `None` reads the latest state.
    pub(crate) async fn scan(&self, mut scan: Scan, snapshot: Option<Sequence>) -> Result<(Pairs, bool)> {
        let snapshot = snapshot.unwrap_or(self.buffers.sequence());
        let levels = self.tables.levels().clone();
        let memtables = self.memtables();
        let mut ranges: Vec<Rc<RangeTombstones>> = memtables
            .iter()
            .map(|memtable| memtable.range_tombstones())
            .filter(|ranges| !ranges.is_empty())
            .collect();
        // Cursors, each with the largest sequence of its entries that the snapshot sees.
        let mut cursors: Vec<(AnyCursor, Sequence)> =
            memtables.iter().map(|memtable| (AnyCursor::Memtable(memtable.cursor()), snapshot)).collect();
        let is_in = |table: &Rc<Table>| {
            let summary = &table.meta.summary;
            !summary.ends_before(&scan.from) && scan.to.as_ref().is_none_or(|to| summary.smallest < *to)
        };
        for table in levels.all().filter(|table| table.meta.summary.range_tombstones > 0 && is_in(table)) {
            let found = table.reader.scanned_range_tombstones().await?;
            ranges.push(Rc::new(RangeTombstones::from_iter(found.iter().cloned())));
        }
        push_cursors(&levels, is_in, &mut cursors);
        let view = View { snapshot, now: crate::key_version::now(), ranges };
        let (from, to) = (std::mem::take(&mut scan.from), scan.to.take());
        if view.ranges.is_empty() {
            let cursors = cursors.into_iter().map(|(cursor, _)| cursor).collect();
            return pairs_of(Visible::new(Merge::new(cursors), view, from, to), &scan).await;
        }
        let skipping = |(cursor, newest)| Undeleted::new(cursor, view.clone(), newest);
        let cursors = cursors.into_iter().map(skipping).collect();
        pairs_of(Visible::new(Merge::new(cursors), view, from, to), &scan).await
    }
}

/// Returns the pairs of a scan in its direction up to its limits, and whether the range has more.
async fn pairs_of<C: Cursor>(mut visible: Visible<C>, scan: &Scan) -> Result<(Pairs, bool)> {
    match scan.is_backward {
        true => visible.seek_last().await?,
        false => visible.seek_first().await?,
    }
    let mut pairs = Pairs::new();
    while let Some((key, value)) = visible.pair() {
        if pairs.len() == scan.most || pairs.bytes() >= scan.most_bytes {
            return Ok((pairs, true));
        }
        pairs.push(Pair { key, value, expires: visible.expires() });
        match scan.is_backward {
            true => visible.previous().await?,
            false => visible.next().await?,
        }
    }
    Ok((pairs, false))
}

fn push_cursors(
    levels: &Levels,
    is_in: impl Fn(&Rc<Table>) -> bool,
    cursors: &mut Vec<(AnyCursor, Sequence)>,
) {
    let newest = |table: &Rc<Table>| table.meta.summary.largest_sequence;
    for (number, level) in levels.0.iter().enumerate() {
        let tables: Vec<Rc<Table>> = level.iter().filter(|table| is_in(table)).cloned().collect();
        match number {
            0 => cursors.extend(
                tables.iter().map(|table| (AnyCursor::Table(Box::new(table.cursor())), newest(table))),
            ),
            _ => {
                let Some(newest) = tables.iter().map(newest).max() else { continue };
                let cursor = LevelCursor::new(tables, |table| table.cursor());
                cursors.push((AnyCursor::Level(Box::new(cursor)), newest));
            }
        }
    }
}

/// Tables of a level other than 0 that may have a key: two if one ends with a range up to the key and the
/// next begins with it.
fn tables_of<'a>(level: &'a [Rc<Table>], key: &[u8]) -> &'a [Rc<Table>] {
    let first = level.partition_point(|table| table.meta.summary.largest.as_slice() < key);
    &level[first..(first + 2).min(level.len())]
}
