//! Compactions of a shard: tables are merged with those of the next level, while the policy returns jobs.
//!
//! A failed job is retried. Jobs yield to other tasks of their shard after a number of entries.

use crate::broken::if_broken;
use crate::core::reserve::Claim;
use crate::core::table_writer::Output;
use crate::core::write_controller::WriteController;
use crate::core::{Core, add};
use crate::cursor::merge::Merge;
use crate::key_version::{RangeTombstone, Sequence, Timestamp};
use crate::policy::shape::merge;
use crate::policy::{Compaction, Job, TableView, Tree};
use crate::tree::level_cursor::{AnyCursor, LevelCursor};
use crate::tree::levels::Levels;
use crate::tree::manifest::{Edit, TableId, TableMeta};
use crate::tree::tables::Table;
use block::{Error, Result};
use runtime::sync::{Permit, Semaphore};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Interval of searches for tables to purge while nothing is written: values may have expired.
const PURGE_AGAIN: Duration = Duration::from_secs(60);
/// Maximum interval of checks for due deadlines.
const LOOK: Duration = Duration::from_secs(1);

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

/// Compactions of a shard.
pub(crate) struct Compactions {
    policy: Box<dyn Compaction>,
    /// Held during a compaction: at most one runs.
    permits: Rc<Semaphore>,
    /// Whether a compaction runs.
    is_running: Cell<bool>,
    /// Whether a flush has written range tombstones since the last search for tables that they delete
    /// completely.
    pub has_new_ranges: Cell<bool>,
    /// Sequence and time of the last search for tables to purge.
    purged: Cell<(Sequence, Option<runtime::Instant>)>,
    /// Error of the last compaction; `None` if it succeeded.
    error: RefCell<Option<Error>>,
    /// Admission of writes by the number of tables.
    pub controller: WriteController,
}

impl Compactions {
    /// Returns the state before the first compaction.
    pub fn new(policy: Box<dyn Compaction>, controller: WriteController) -> Self {
        Compactions {
            policy,
            permits: Semaphore::new(1),
            is_running: Cell::new(false),
            has_new_ranges: Cell::new(true),
            purged: Cell::new((0, None)),
            error: RefCell::default(),
            controller,
        }
    }

    /// Waits for the permit to compact.
    pub async fn permit(&self) -> Permit {
        self.permits.acquire(1).await
    }

    /// The compaction policy.
    pub fn policy(&self) -> &dyn Compaction {
        &*self.policy
    }

    /// Notes that tables may hide further entries.
    pub fn may_purge(&self) {
        self.purged.set((0, None));
    }
}

impl Core {
    /// Error of the last flush or compaction, which will be retried; `None` if both succeeded.
    pub(crate) fn background_error(&self) -> Option<Error> {
        let of_flush = self.buffers.error.borrow().clone();
        of_flush.or_else(|| self.compactions.error.borrow().clone())
    }

    /// Runs compactions while the policy returns jobs, until the store is closed.
    pub(crate) async fn run_compactions(self: Rc<Self>) {
        while !self.kit.is_closing() && self.kit.failure().is_none() {
            let permit = self.compactions.permit().await;
            let changed = self.events.changed.notified();
            let now = self.erasure.now();
            let due = self.with_tree(|tree| self.compactions.policy.wakes_at(tree));
            self.compactions.is_running.set(true);
            let next = self.next_job(now).await;
            self.compactions.is_running.set(false);
            let (job, claim) = match next {
                Ok(Next::Job(job, claim)) => (Some(job), claim),
                Ok(Next::Nothing) => (None, None),
                Ok(Next::NoSpace) => {
                    drop(permit);
                    let error = Error::no_space("no compaction has space; delete some keys");
                    if self.compactions.error.replace(Some(error)).is_none() {
                        self.events.changed.notify_all();
                    }
                    // After the timeout the loop checks again.
                    let _elapsed = runtime::timeout(LOOK, self.events.changed.notified()).await;
                    continue;
                }
                Err(error) => {
                    drop(permit);
                    if !self.note_outcome(&self.compactions.error, Err(error)).await {
                        return;
                    }
                    continue;
                }
            };
            let Some(job) = job else {
                drop(permit);
                // Where operations are counted, each grant of operations notifies `changed`.
                let due = due.filter(|_| !self.erasure.counts_operations());
                let wait =
                    due.map_or(LOOK, |due| Duration::from_millis(due.saturating_sub(now).max(1)).min(LOOK));
                // After the timeout the loop checks again.
                let _elapsed = runtime::timeout(wait, changed).await;
                // The error limited the search to small jobs, and none was found: the next search considers
                // all jobs.
                self.compactions.error.take();
                continue;
            };
            self.compactions.is_running.set(true);
            let outcome = self.compact(&job).await;
            drop((permit, claim));
            self.compactions.is_running.set(false);
            if !self.note_outcome(&self.compactions.error, outcome).await {
                return;
            }
        }
    }

    /// Finds the next job and claims its zones; reclaims space first if there isn't enough.
    async fn next_job(self: &Rc<Self>, now: Timestamp) -> Result<Next> {
        if self.compactions.has_new_ranges.take() {
            self.drop_covered().await?;
        }
        let job = self.with_tree(|tree| self.compactions.policy.next(tree, now));
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
            let levels = self.tables.levels();
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
        let (seen, at) = self.compactions.purged.get();
        let elapsed = at.map_or(Duration::MAX, |at| at.elapsed());
        if elapsed < LOOK {
            return Ok(Reclaimed::NotTried);
        }
        self.freeze_for_space();
        let flushed = self.buffers.flushed().sequence;
        if flushed == seen && elapsed < PURGE_AGAIN {
            self.note_exhausted();
            return Ok(Reclaimed::NotTried);
        }
        let outcome = self.purge_tables().await;
        self.compactions.purged.set((flushed, Some(runtime::now())));
        if outcome? {
            // Tables may hide further entries once others were written.
            self.compactions.may_purge();
            return Ok(Reclaimed::Some);
        }
        self.note_exhausted();
        Ok(Reclaimed::None)
    }

    /// Calls `look` with the tree in the form that policies use.
    pub(crate) fn with_tree<T>(&self, look: impl FnOnce(&Tree<'_>) -> T) -> T {
        let levels = self.tables.levels().clone();
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
            is_held: table.file.held_by.get().is_some_and(|held| self.tables.snapshots.has_before(held + 1)),
            garbage: self.garbage(table),
        }
    }

    /// Share of dead blocks in the zones of a table, 0 to 1.
    fn garbage(&self, table: &Table) -> f64 {
        let (mut dead, mut blocks) = (0.0, 0.0);
        for extent in table.file.extents() {
            let zone = self.kit.pool.get(extent.place.zone.0);
            let share = 1.0 - f64::from(zone.live) / f64::from(zone.written.max(1));
            dead += share.max(0.0) * f64::from(extent.blocks);
            blocks += f64::from(extent.blocks);
        }
        if blocks > 0.0 { dead / blocks } else { 0.0 }
    }

    /// Carries out a compaction.
    pub(crate) async fn compact(self: &Rc<Self>, job: &Job) -> Result<()> {
        let levels = self.tables.levels().clone();
        let is_input = |id: &TableId| job.inputs.contains(id) || job.overlapped.contains(id);
        let inputs: Vec<Rc<Table>> = levels.all().filter(|table| is_input(&table.meta.id)).cloned().collect();
        let removed = inputs.iter().map(|table| table.meta.id).collect();
        let mut edit = Edit { removed, ..Edit::default() };
        if job.is_trivial_move {
            let moved = |table: &Rc<Table>| TableMeta { level: job.target as u8, ..table.present_meta() };
            edit.added = inputs.iter().map(moved).collect();
            return self.append_edit(edit, Output::default(), job.target, crate::core::TABLE_CLASS).await;
        }
        let oldest = inputs.iter().filter_map(|table| self.erasure.oldest_delete(&table.meta.summary)).min();
        let class = self.class_of(job.target, oldest);
        let (cursors, tombstones) = self.open_inputs(&levels, is_input).await?;
        let below = below(&levels, &inputs, job.target);
        let is_bottom = |key: &[u8]| {
            if_broken!(DropsTombstones, return true);
            !below.iter().any(|table| table.may_have(key))
        };
        let begun = runtime::now();
        let (output, written) = self
            .rewrite((Merge::new(cursors), Sequence::MAX), tombstones, job.target, class, is_bottom)
            .await?;
        let lengths = |level0_only: bool| -> u64 {
            let chosen = inputs.iter().filter(|table| !level0_only || table.meta.level == 0);
            chosen.map(|table| table.meta.summary.length).sum()
        };
        add(&self.work.compacted_bytes, lengths(false));
        add(&self.work.written_bytes, written);
        add(&self.work.compactions, 1);
        self.append_edit(edit, output, job.target, class).await?;
        if lengths(true) > 0 {
            self.compactions.controller.note_compaction(lengths(true), begun, runtime::now());
        }
        Ok(())
    }

    /// Cursors over the inputs of a compaction, in the order of levels, and their range tombstones.
    async fn open_inputs(
        &self,
        levels: &Levels,
        is_input: impl Fn(&TableId) -> bool,
    ) -> Result<(Vec<AnyCursor>, Vec<RangeTombstone>)> {
        let (mut cursors, mut tombstones) = (Vec::new(), Vec::new());
        for (number, level) in levels.0.iter().enumerate() {
            let chosen: Vec<Rc<Table>> =
                level.iter().filter(|table| is_input(&table.meta.id)).cloned().collect();
            for table in &chosen {
                tombstones.extend(table.reader.range_tombstones().await?.iter().cloned());
            }
            let reads = self.tables.reads().clone();
            let open = move |table: &Rc<Table>| table.sequential(&reads);
            if number == 0 {
                cursors.extend(chosen.iter().map(|table| AnyCursor::WholeTable(Box::new(open(table)))));
            } else if !chosen.is_empty() {
                cursors.push(AnyCursor::WholeLevel(Box::new(LevelCursor::new(chosen, open))));
            }
        }
        Ok((cursors, tombstones))
    }

    /// Waits until no frozen buffer is left and no compaction is due.
    pub(crate) async fn wait_for_compactions(&self) -> Result<()> {
        loop {
            let changed = self.events.changed.notified();
            self.check_open()?;
            if let Some(error) = self.background_error() {
                return Err(error);
            }
            let is_due =
                || self.with_tree(|tree| self.compactions.policy.next(tree, self.erasure.now())).is_some();
            if !self.compactions.is_running.get() && self.buffers.frozen().is_empty() && !is_due() {
                return Ok(());
            }
            changed.await;
        }
    }
}

/// Tables that are lower in the tree than the inputs of a compaction: those of levels below its target, and
/// tables of level 0 that are older than the inputs from level 0.
fn below(levels: &Levels, inputs: &[Rc<Table>], target: usize) -> Vec<Rc<Table>> {
    let oldest0 = inputs.iter().filter(|input| input.meta.level == 0).map(|input| input.meta.id).min();
    let is_below = |table: &&Rc<Table>| {
        let is_older = table.meta.level == 0 && oldest0.is_some_and(|oldest| table.meta.id < oldest);
        (usize::from(table.meta.level) > target || is_older)
            && !inputs.iter().any(|input| Rc::ptr_eq(input, table))
    };
    levels.all().filter(is_below).cloned().collect()
}
