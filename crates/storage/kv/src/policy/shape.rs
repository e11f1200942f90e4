//! Common functions of the compaction policies: sizes of levels, overlaps, the construction of jobs.

use super::{CompactionParameters, Job, TableView, Tree};
use std::ops::Range;

/// Target shape of a tree, and construction of jobs that keep its order.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    level0_tables: usize,
    level_bytes: u64,
    multiplier: u64,
    levels: usize,
    job_bytes: u64,
}

impl Shape {
    pub(super) fn new(parameters: &CompactionParameters) -> Self {
        let CompactionParameters { level0_tables, level_bytes, multiplier, levels, job_bytes, .. } =
            *parameters;
        Shape { level0_tables, level_bytes, multiplier, levels, job_bytes }
    }

    /// Returns the target size in bytes of a level other than 0; unlimited for the last level.
    pub fn target_bytes(&self, level: usize) -> u64 {
        if level + 1 >= self.levels {
            return u64::MAX;
        }
        let exponent = u32::try_from(level.saturating_sub(1)).unwrap_or(u32::MAX);
        self.level_bytes.saturating_mul(self.multiplier.saturating_pow(exponent))
    }

    /// Returns whether level 0 has at least `multiple` times the tables that make a job due.
    pub(super) fn is_level0_full(&self, tree: &Tree<'_>, multiple: usize) -> bool {
        tree.level(0).len() >= self.level0_tables * multiple
    }

    /// Returns the level that exceeds its target by the largest factor; on ties, the first. Level 0 is
    /// measured by its number of tables and is included when a job is due; others are measured by their size.
    /// (RocksDB's score: if level 0 always came first, the levels below would grow without bound under load,
    /// and each job of level 0 with them.)
    pub(super) fn fullest(&self, tree: &Tree<'_>) -> Option<usize> {
        let (mut fullest, mut highest) = (None, 1.0);
        if self.is_level0_full(tree, 1) {
            (fullest, highest) = (Some(0), tree.level(0).len() as f64 / self.level0_tables as f64);
        }
        for level in 1..tree.levels.len() {
            let score = tree.bytes(level) as f64 / self.target_bytes(level) as f64;
            if score > highest {
                (fullest, highest) = (Some(level), score);
            }
        }
        fullest
    }

    /// Returns the table of a level other than 0 with the lowest cost; on ties, the oldest. The cost is
    /// computed from the table and the size in bytes of the tables that it overlaps in the next level.
    pub(super) fn cheapest(
        &self,
        tree: &Tree<'_>,
        level: usize,
        cost: impl Fn(&TableView<'_>, u64) -> f64,
    ) -> Option<usize> {
        let mut best: Option<(f64, u64, usize)> = None;
        for (index, table) in tree.level(level).iter().enumerate() {
            let cost = cost(table, tree.overlapping_bytes(level + 1, table.smallest, table.largest));
            let is_better =
                best.is_none_or(|(lowest, id, _)| cost.total_cmp(&lowest).then(table.id.cmp(&id)).is_lt());
            if is_better {
                best = Some((cost, table.id, index));
            }
        }
        best.map(|(_, _, index)| index)
    }

    /// Returns the job that moves a table of level 0 to level 1, with all tables of level 0 that overlap it
    /// directly or transitively. The default index is that of the oldest table.
    pub(super) fn level0(&self, tree: &Tree<'_>, index: Option<usize>) -> Option<Job> {
        let tables = tree.level(0);
        let first = tables.get(index.unwrap_or(tables.len().checked_sub(1)?))?;
        let (mut smallest, mut largest) = (first.smallest, first.largest);
        loop {
            let before = (smallest, largest);
            for table in tables.iter().filter(|table| table.overlaps(before.0, before.1)) {
                smallest = smallest.min(table.smallest);
                largest = largest.max(table.largest);
            }
            if before == (smallest, largest) {
                break;
            }
        }
        let chosen: Vec<&TableView<'_>> =
            tables.iter().filter(|table| table.overlaps(smallest, largest)).collect();
        Some(merge(tree, 0, &chosen, 1))
    }

    /// Returns the job that merges adjacent tables of a level other than 0 into a deeper level, with further
    /// neighbours that don't add inputs of the target level.
    pub(super) fn push(&self, tree: &Tree<'_>, level: usize, run: Range<usize>, target: usize) -> Job {
        let run = self.widen(tree, level, run, target);
        let chosen: Vec<&TableView<'_>> = tree.level(level)[run].iter().collect();
        merge(tree, level, &chosen, target)
    }

    /// Returns the run extended by neighbours that lie in the range of its overlapped tables: merged later,
    /// they would rewrite the same tables of the target again. (LevelDB and RocksDB do the same.)
    fn widen(&self, tree: &Tree<'_>, level: usize, run: Range<usize>, target: usize) -> Range<usize> {
        let tables = tree.level(level);
        let (smallest, largest) = range(tables[run.clone()].iter());
        let overlapped = &tree.level(target)[tree.overlapping(target, smallest, largest)];
        let Some((first, last)) = overlapped.first().zip(overlapped.last()) else { return run };
        if target != level + 1 || tree.is_short {
            return run;
        }
        let mut bytes: u64 = tables[run.clone()].iter().chain(overlapped).map(|table| table.bytes).sum();
        let mut fits = |table: &TableView<'_>| {
            bytes += table.bytes;
            bytes <= self.job_bytes && first.smallest <= table.smallest && table.largest <= last.largest
        };
        let Range { mut start, mut end } = run;
        while start > 0 && fits(&tables[start - 1]) {
            start -= 1;
        }
        while end < tables.len() && fits(&tables[end]) {
            end += 1;
        }
        start..end
    }

    /// Returns the run of the table at `index` and its neighbours for which `wanted` is true. The job stays
    /// within `most` bytes and the maximum size of a job. On a drive that is short of space the run is the
    /// table alone.
    pub(super) fn extend(
        &self,
        tree: &Tree<'_>,
        level: usize,
        index: usize,
        most: u64,
        wanted: impl Fn(&TableView<'_>) -> bool,
    ) -> Range<usize> {
        let tables = tree.level(level);
        if tree.is_short {
            return index..index + 1;
        }
        let fits = |run: Range<usize>| {
            let (smallest, largest) = range(tables[run.clone()].iter());
            let own: u64 = tables[run].iter().map(|table| table.bytes).sum();
            own + tree.overlapping_bytes(level + 1, smallest, largest) <= self.job_bytes.min(most)
        };
        let (mut start, mut end) = (index, index + 1);
        while start > 0 && wanted(&tables[start - 1]) && fits(start - 1..end) {
            start -= 1;
        }
        while end < tables.len() && wanted(&tables[end]) && fits(start..end + 1) {
            end += 1;
        }
        start..end
    }
}

/// Returns the job that rewrites a table in its level.
pub fn rewrite(tree: &Tree<'_>, level: usize, index: usize) -> Job {
    let inputs = vec![tree.level(level)[index].id];
    Job { level, inputs, target: level, overlapped: Vec::new(), is_trivial_move: false }
}

/// Returns the job as a merge if no table below its inputs overlaps them: a trivial move would keep their
/// tombstones.
pub(super) fn merge_where_lowest(tree: &Tree<'_>, job: Job) -> Job {
    if !job.is_trivial_move {
        return job;
    }
    let chosen = tree.level(job.level).iter().filter(|table| job.inputs.contains(&table.id));
    let (smallest, largest) = range(chosen);
    let is_trivial_move = tree.next_overlapping(job.level, smallest, largest).is_some();
    Job { is_trivial_move, ..job }
}

/// Returns the smallest and the largest key of the tables, of which there is at least one.
fn range<'a: 'b, 'b>(mut tables: impl Iterator<Item = &'b TableView<'a>>) -> (&'a [u8], &'a [u8]) {
    let first = tables.next().expect("a job has at least one table");
    tables.fold((first.smallest, first.largest), |(smallest, largest), table| {
        (smallest.min(table.smallest), largest.max(table.largest))
    })
}

/// Returns the job that merges tables of a level into a deeper one.
pub fn merge(tree: &Tree<'_>, level: usize, chosen: &[&TableView<'_>], target: usize) -> Job {
    let (smallest, largest) = range(chosen.iter().copied());
    let overlapped = &tree.level(target)[tree.overlapping(target, smallest, largest)];
    let is_sorted = level > 0 || chosen.len() == 1;
    Job {
        level,
        inputs: chosen.iter().map(|table| table.id).collect(),
        target,
        overlapped: overlapped.iter().map(|table| table.id).collect(),
        is_trivial_move: overlapped.is_empty() && is_sorted,
    }
}
