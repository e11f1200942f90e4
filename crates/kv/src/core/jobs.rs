//! Background jobs of a shard: flushes write full buffers as tables of level 0, and compactions merge tables
//! with those of the next level.
//!
//! A job writes new tables in pieces, then one edit of the manifest replaces the old ones. A failed job
//! leaves no live data, and is retried. Jobs yield to other tasks of their shard after a number of entries.

use crate::core::reserve::Claim;
use crate::core::{Core, add};
use crate::cursor::Cursor;
use crate::cursor::merge::Merge;
use crate::cursor::retention::Retention;
use crate::entry::{Entry, RangeTombstone, Sequence, Timestamp};
use crate::log_entry::KvEntry;
use crate::memory::buffer::WriteBuffer;
use crate::policy::shape::merge;
use crate::policy::{Job, NewTable, TableView, Tree};
use crate::table::{Builder, Summary};
use crate::tree::extents::Place;
use crate::tree::level_cursor::{AnyCursor, LevelCursor};
use crate::tree::manifest::{Edit, TableId, TableMeta};
use crate::tree::tables::{Table, TableFile};
use block::{Buffer, Error, Result};
use logkit::Owner;
use runtime::sync::Permit;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a table that are appended at a time.
const PIECE_BYTES: usize = 1 << 20;
/// Number of entries between two yields.
const ENTRIES_PER_TURN: u32 = 64;
/// Delay of the retry of a failed job.
const RETRY: Duration = Duration::from_millis(100);
/// Number of attempts of a flush without free space before writers get its error.
const FLUSH_ATTEMPTS: u32 = 4;
/// Number of free data blocks for which an edit waits. An edit with very long keys takes more, and may fail
/// for lack of space.
const EDIT_BLOCKS: u32 = 1;
/// Interval of searches for tables to purge while nothing is written: values may have expired.
const PURGE_AGAIN: Duration = Duration::from_secs(60);
/// Maximum interval of checks for due deadlines.
const LOOK: Duration = Duration::from_secs(1);

/// Tables that a job has written.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Summaries and files of the tables; their extents are read when the edit is made.
    tables: Vec<(Summary, Rc<TableFile>)>,
}

/// Next action of the compaction task.
enum Next {
    Job(Job, Option<Claim>),
    Nothing,
    /// A job is due, but there is no space for it.
    NoSpace,
}

/// Outcome of an attempt to reclaim space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reclaimed {
    /// Space was reclaimed.
    Some,
    /// There was nothing to reclaim.
    None,
    /// Not attempted: too soon after the last attempt, or nothing was written since.
    NotTried,
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
            let file = core.new_table();
            (Builder::new(core.table_options(file.id)), file)
        });
        builder
    }

    /// Bytes of the table that is being written.
    fn bytes(&self) -> u64 {
        self.table.as_ref().map_or(0, |(builder, _)| builder.bytes())
    }

    async fn add(&mut self, entry: Entry<'_>) -> Result<()> {
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
    pub(crate) async fn add_kept(&mut self, entry: Entry<'_>, ranges: &mut Clip) -> Result<()> {
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
        let item = KvEntry::piece(file.clone(), self.next_block, Place::NOWHERE, data.freeze().into(), block);
        let alone = self.core.space_for_tables(self.kept, self.class, blocks).await?;
        self.core.append_alone(&alone, self.class, vec![item]).await?;
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
            file.hold(held_by.filter(|_| has_tombstones));
        }
        Ok(self.output)
    }
}

impl Core {
    /// Waits until blocks can be appended to tables of a class: the open zone of the class has space, or more
    /// than `kept` zones are free. The permit excludes other appends to tables.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no zone can be freed; the failure of the log.
    /// [`Error::NoSpace`] where no zone can be freed; the failure of the log.
    async fn space_for_tables(&self, kept: u32, class: u8, blocks: u32) -> Result<Permit> {
        let class = self.open_zones.class(class);
        loop {
            let alone = self.mover.acquire(1).await;
            if let Some(error) = self.kit.failure() {
                return Err(error);
            }
            if self.kit.is_closing() {
                return Err(Error::closed("the store is being closed"));
            }
            if self.kit.pool.free() > kept || self.zones.borrow().has_room(&self.kit.layout, class, blocks) {
                return Ok(alone);
            }
            drop(alone);
            if let Some(error) = self.kit.stuck() {
                return Err(error);
            }
            let freed = self.kit.events.freed.notified();
            self.kit.events.cleaner.notify_all();
            freed.await;
        }
    }

    /// Flushes frozen buffers until the store is closed.
    pub(crate) async fn run_flushes(self: Rc<Self>) {
        let mut attempts = 0;
        loop {
            let changed = self.changed.notified();
            let first = self.frozen.borrow().first().cloned();
            let outcome = match first {
                Some(buffer) => self.flush_buffer(&buffer).await,
                None if self.kit.is_closing() || self.kit.failure().is_some() => return,
                None => {
                    changed.await;
                    continue;
                }
            };
            // Retried quietly: a compaction without space frees the tables that it has written.
            attempts = if matches!(outcome, Err(Error::NoSpace(_))) { attempts + 1 } else { 0 };
            if (1..FLUSH_ATTEMPTS).contains(&attempts) {
                runtime::sleep(RETRY).await;
                continue;
            }
            if !self.note_outcome(&self.flush_error, outcome).await {
                return;
            }
        }
    }

    /// Error of the last flush or compaction, which will be retried; `None` if both succeeded.
    pub(crate) fn background_error(&self) -> Option<Error> {
        self.flush_error.borrow().clone().or_else(|| self.compaction_error.borrow().clone())
    }

    /// Notes the outcome of a job. Returns false if no further job may begin.
    async fn note_outcome(&self, noted: &RefCell<Option<Error>>, outcome: Result<()>) -> bool {
        let Err(error) = outcome else {
            noted.replace(None);
            self.changed.notify_all();
            return true;
        };
        tracing::warn!("shard {}: {error}", self.shard);
        noted.replace(Some(error));
        self.changed.notify_all();
        if self.kit.failure().is_some() || self.kit.is_closing() {
            return false;
        }
        runtime::sleep(RETRY).await;
        true
    }

    /// Runs compactions while the policy returns jobs, until the store is closed.
    pub(crate) async fn run_compactions(self: Rc<Self>) {
        while !self.kit.is_closing() && self.kit.failure().is_none() {
            let alone = self.compacting.acquire(1).await;
            let changed = self.changed.notified();
            let now = self.erasure.now();
            let due = self.with_tree(|tree| self.compaction.wakes_at(tree));
            self.is_compacting.set(true);
            let next = self.next_job(now).await;
            self.is_compacting.set(false);
            let (job, claim) = match next {
                Ok(Next::Job(job, claim)) => (Some(job), claim),
                Ok(Next::Nothing) => (None, None),
                Ok(Next::NoSpace) => {
                    drop(alone);
                    let error = Error::no_space("no compaction has space; delete some keys");
                    if self.compaction_error.replace(Some(error)).is_none() {
                        self.changed.notify_all();
                    }
                    // After the timeout the loop checks again.
                    let _elapsed = runtime::timeout(LOOK, self.changed.notified()).await;
                    continue;
                }
                Err(error) => {
                    drop(alone);
                    if !self.note_outcome(&self.compaction_error, Err(error)).await {
                        return;
                    }
                    continue;
                }
            };
            let Some(job) = job else {
                drop(alone);
                // Where operations are counted, each grant of operations notifies `changed`.
                let due = due.filter(|_| !self.erasure.counts_operations());
                let wait =
                    due.map_or(LOOK, |due| Duration::from_millis(due.saturating_sub(now).max(1)).min(LOOK));
                // After the timeout the loop checks again.
                let _elapsed = runtime::timeout(wait, changed).await;
                // The error limited the search to small jobs, and none was found: the next search considers
                // all jobs.
                self.compaction_error.replace(None);
                continue;
            };
            self.is_compacting.set(true);
            let outcome = self.compact(&job).await;
            drop((alone, claim));
            self.is_compacting.set(false);
            if !self.note_outcome(&self.compaction_error, outcome).await {
                return;
            }
        }
    }

    /// Finds the next job and claims its zones; reclaims space first if there isn't enough.
    async fn next_job(self: &Rc<Self>, now: Timestamp) -> Result<Next> {
        if self.has_new_ranges.take() {
            self.drop_covered().await?;
        }
        let job = self.with_tree(|tree| self.compaction.next(tree, now));
        let fitting = job.clone().and_then(|job| self.fit(job));
        if let Some((job, claim)) = fitting {
            return Ok(Next::Job(job, Some(claim)));
        }
        if job.is_none() && !self.is_low() {
            return Ok(Next::Nothing);
        }
        let reclaimed = self.reclaim().await?;
        Ok(match job {
            _ if reclaimed == Reclaimed::Some => Next::Nothing,
            None => Next::Nothing,
            // The claim assumes the worst case, so the job may succeed without it.
            Some(job)
                if reclaimed == Reclaimed::None && self.kit.pool.free() > self.kept_by_compactions() + 1 =>
            {
                Next::Job(job, None)
            }
            Some(_) => Next::NoSpace,
        })
    }

    /// Reduces a job to the available space, and claims that space.
    pub(crate) fn fit(self: &Rc<Self>, job: Job) -> Option<(Job, Claim)> {
        let bytes_of = |job: &Job| {
            let levels = self.levels.borrow();
            let takes_part = |id: &TableId| job.inputs.contains(id) || job.overlapped.contains(id);
            let tables = levels.all().filter(|table| takes_part(&table.meta.id));
            if job.is_trivial_move { 0 } else { tables.map(|table| table.meta.summary.length).sum::<u64>() }
        };
        let mut job = job;
        loop {
            if let Some(claim) = self.claim(bytes_of(&job)) {
                return Some((job, claim));
            }
            // From level 0, the oldest tables can be compacted alone.
            if job.level > 0 || job.target == 0 || job.inputs.len() < 2 {
                return None;
            }
            let rest = &job.inputs[1..];
            job = self.with_tree(|tree| {
                let chosen: Vec<&TableView<'_>> =
                    tree.level(0).iter().filter(|table| rest.contains(&table.id)).collect();
                merge(tree, 0, &chosen, job.target)
            });
        }
    }

    /// Frees the space of deleted and overwritten entries with less free space than a compaction needs.
    /// Tables are searched again after further writes, or after [`PURGE_AGAIN`].
    pub(crate) async fn reclaim(self: &Rc<Self>) -> Result<Reclaimed> {
        if self.drop_covered().await? {
            return Ok(Reclaimed::Some);
        }
        let (seen, at) = self.purged.get();
        let elapsed = at.map_or(Duration::MAX, |at| at.elapsed());
        if elapsed < LOOK {
            return Ok(Reclaimed::NotTried);
        }
        self.freeze();
        let flushed = self.flushed.get().sequence;
        if flushed == seen && elapsed < PURGE_AGAIN {
            self.note_exhausted();
            return Ok(Reclaimed::NotTried);
        }
        let outcome = self.purge_tables().await;
        self.purged.set((flushed, Some(runtime::now())));
        if outcome? {
            // Tables may hide further entries once others were written.
            self.purged.set((0, None));
            return Ok(Reclaimed::Some);
        }
        self.note_exhausted();
        Ok(Reclaimed::None)
    }

    /// Calls `look` with the tree in the form that policies use.
    pub(crate) fn with_tree<T>(&self, look: impl FnOnce(&Tree<'_>) -> T) -> T {
        let levels = self.levels.borrow().clone();
        // After a job that ran out of space, policies choose small jobs.
        let is_short = matches!(self.background_error(), Some(Error::NoSpace(_)));
        let mut tree = Tree { is_short, ..Tree::default() };
        for level in &levels.0 {
            tree.levels.push(level.iter().map(|table| self.view(table)).collect());
        }
        look(&tree)
    }

    /// Returns a table in the form that policies use.
    fn view<'a>(&self, table: &'a Table) -> TableView<'a> {
        let summary = &table.meta.summary;
        TableView {
            id: table.meta.id,
            bytes: summary.length,
            smallest: &summary.smallest,
            largest: &summary.largest,
            entries: summary.entries,
            tombstones: summary.tombstones + summary.range_tombstones,
            oldest_tombstone: self.erasure.oldest_delete(summary),
            is_held: table
                .file
                .held_by()
                .is_some_and(|held| self.snapshots.borrow().range(..=held).next().is_some()),
            garbage: self.garbage(table),
        }
    }

    /// Share of dead blocks in the zones of a table, 0 to 1.
    fn garbage(&self, table: &Table) -> f64 {
        let (mut dead, mut blocks) = (0.0, 0.0);
        for extent in table.file.extents() {
            let zone = self.kit.pool.get(extent.place.zone);
            let share = 1.0 - f64::from(zone.live) / f64::from(zone.written.max(1));
            dead += share.max(0.0) * f64::from(extent.blocks);
            blocks += f64::from(extent.blocks);
        }
        if blocks > 0.0 { dead / blocks } else { 0.0 }
    }

    /// Class of the zone for a new table.
    pub(crate) fn class_of(&self, level: usize, oldest: Option<Timestamp>) -> u8 {
        let last = self.levels.borrow().0.len().saturating_sub(1);
        let due = oldest.and_then(|oldest| self.compaction.due(level, last, oldest));
        self.placement.place(&NewTable { level, due }, &self.lifetimes.borrow(), self.erasure.now())
    }

    /// Writes a frozen buffer as a table of level 0, and removes the buffer.
    pub(crate) async fn flush_buffer(self: &Rc<Self>, buffer: &Rc<WriteBuffer>) -> Result<()> {
        let class = self.class_of(0, buffer.memtable.oldest_tombstone());
        let cursor = Merge::new(vec![AnyCursor::Memtable(buffer.memtable.cursor())]);
        let has_tables = self.levels.borrow().all().next().is_some() || self.frozen.borrow().len() > 1;
        // Newer entries are also in the next buffer.
        let newest = buffer.last().sequence;
        let tombstones = buffer.memtable.range_tombstones();
        let tombstones = tombstones.iter().filter(|range| range.sequence <= newest).cloned().collect();
        let output = self.rewrite((cursor, newest), tombstones, 0, class, |_| !has_tables).await?;
        add(&self.work.flushed_bytes, output.1);
        let has_ranges = output.0.tables.iter().any(|(summary, _)| summary.range_tombstones > 0);
        let edit = Edit { flushed: Some(buffer.last()), ..Edit::default() };
        self.append_edit(edit, output.0, 0, class).await?;
        self.has_new_ranges.set(self.has_new_ranges.get() || has_ranges);
        Ok(())
    }

    /// Merges the entries of a cursor up to a sequence into new tables of a level.
    async fn rewrite(
        self: &Rc<Self>,
        (mut cursor, newest): (Merge<AnyCursor>, Sequence),
        tombstones: Vec<RangeTombstone>,
        level: usize,
        class: u8,
        is_bottom: impl Fn(&[u8]) -> bool,
    ) -> Result<(Output, u64)> {
        let snapshots = self.snapshot_sequences();
        let held_by = snapshots.last().copied();
        let bottom_range = is_bottom_range(self, level, &is_bottom);
        let mut retention = Retention::new(
            snapshots,
            tombstones.iter().cloned(),
            crate::entry::now(),
            self.settings.delete_persistence.is_some(),
        )
        .counting(self.erasure.counts_operations().then(|| self.erasure.now()))
        .ahead(self.erasure.clock().ahead());
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
        let alone = self.space_for_tables(self.checkpoint_zones(), class, EDIT_BLOCKS).await?;
        // While the permit is held, no piece is moved until the edit is appended.
        for moved in &mut edit.added {
            let file = self.file(moved.id);
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
        let item = KvEntry::edit(edit, files, self.kit.layout.block_bytes());
        self.append_alone(&alone, class, vec![item]).await
    }

    /// Carries out a compaction.
    pub(crate) async fn compact(self: &Rc<Self>, job: &Job) -> Result<()> {
        let levels = self.levels.borrow().clone();
        let find = |ids: &[TableId]| -> Vec<Rc<Table>> {
            levels.all().filter(|table| ids.contains(&table.meta.id)).cloned().collect()
        };
        let ids: Vec<TableId> = job.inputs.iter().chain(&job.overlapped).copied().collect();
        let inputs = find(&ids);
        if job.is_trivial_move {
            let mut edit = Edit::default();
            for table in &inputs {
                edit.removed.push(table.meta.id);
                edit.added.push(TableMeta { level: job.target as u8, ..table.present_meta() });
            }
            return self.append_edit(edit, Output::default(), job.target, crate::core::TABLE_CLASS).await;
        }
        let oldest = inputs.iter().filter_map(|table| self.erasure.oldest_delete(&table.meta.summary)).min();
        let class = self.class_of(job.target, oldest);
        let mut cursors = Vec::new();
        let mut tombstones = Vec::new();
        for (number, level) in levels.0.iter().enumerate() {
            let chosen: Vec<Rc<Table>> = level
                .iter()
                .filter(|table| inputs.iter().any(|input| Rc::ptr_eq(input, table)))
                .cloned()
                .collect();
            match number {
                0 => cursors.extend(
                    chosen.iter().map(|table| AnyCursor::WholeTable(Box::new(table.sequential(&self.reads)))),
                ),
                _ if !chosen.is_empty() => {
                    let reads = self.reads.clone();
                    let open = move |table: &Rc<Table>| table.sequential(&reads);
                    cursors.push(AnyCursor::WholeLevel(Box::new(LevelCursor::new(chosen.clone(), open))));
                }
                _ => {}
            }
            for table in &chosen {
                tombstones.extend(table.reader().range_tombstones().await?.iter().cloned());
            }
        }
        // Lower in the tree are the tables of deeper levels, and tables of level 0 that are older than the
        // inputs from level 0.
        let oldest0 = inputs.iter().filter(|input| input.meta.level == 0).map(|input| input.meta.id).min();
        let below: Vec<Rc<Table>> = levels
            .all()
            .filter(|table| !inputs.iter().any(|input| Rc::ptr_eq(input, table)))
            .filter(|table| {
                let is_older = table.meta.level == 0 && oldest0.is_some_and(|oldest| table.meta.id < oldest);
                usize::from(table.meta.level) > job.target || is_older
            })
            .cloned()
            .collect();
        let is_bottom = |key: &[u8]| !below.iter().any(|table| table.may_have(key));
        let breaks = self.settings.breaks(crate::settings::Broken::DropsTombstones);
        let read: u64 = inputs.iter().map(|table| table.meta.summary.length).sum();
        let (begun, level0) = (runtime::now(), inputs.iter().filter(|table| table.meta.level == 0));
        let level0: u64 = level0.map(|table| table.meta.summary.length).sum();
        let output = self
            .rewrite((Merge::new(cursors), Sequence::MAX), tombstones, job.target, class, |key| {
                breaks || is_bottom(key)
            })
            .await?;
        add(&self.work.compacted_bytes, read);
        add(&self.work.written_bytes, output.1);
        add(&self.work.compactions, 1);
        let edit = Edit { removed: inputs.iter().map(|table| table.meta.id).collect(), ..Edit::default() };
        self.append_edit(edit, output.0, job.target, class).await?;
        if level0 > 0 {
            self.controller.note_compaction(level0, begun, runtime::now());
        }
        Ok(())
    }

    /// Freezes the active buffer, and waits until all buffers are in tables.
    pub(crate) async fn flush_buffers(self: &Rc<Self>) -> Result<()> {
        if self.lost.is_some() {
            // In a salvaged store, replayed writes stay in memory.
            return Ok(());
        }
        self.freeze();
        while !self.frozen.borrow().is_empty() {
            if let Some(error) = self.kit.failure() {
                return Err(error);
            }
            let changed = self.changed.notified();
            if let Some(error) = &*self.flush_error.borrow() {
                return Err(error.clone());
            }
            changed.await;
        }
        Ok(())
    }

    /// Waits until no frozen buffer is left and no compaction is due.
    pub(crate) async fn wait_for_compactions(&self) -> Result<()> {
        loop {
            let changed = self.changed.notified();
            self.check_open()?;
            if let Some(error) = self.background_error() {
                return Err(error);
            }
            let is_due = || self.with_tree(|tree| self.compaction.next(tree, self.erasure.now())).is_some();
            if !self.is_compacting.get() && self.frozen.borrow().is_empty() && !is_due() {
                return Ok(());
            }
            changed.await;
        }
    }
}

fn is_bottom_range<'a>(
    core: &'a Core,
    level: usize,
    is_bottom: &'a impl Fn(&[u8]) -> bool,
) -> impl Fn(&RangeTombstone) -> bool + 'a {
    let levels = core.levels.borrow().clone();
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
