//! Manual compaction of a whole shard: all tables are merged down to the last level, which drops overwritten
//! and deleted entries.
//!
//! It passes each level once, in the order of keys, table by table. So it needs no more free space than a job
//! of a policy, and ends even if writes continue: tables that arrive in the passed part of a level have only
//! writes after the start.
//!
//! Before each step, level 0 is merged if that is due, because writers wait for it; they wait for at most one
//! step.

use crate::core::Core;
use crate::core::compactions::Reclaimed;
use crate::policy::shape::{merge, rewrite};
use crate::policy::{Job, TableView, Tree};
use crate::tree::manifest::TableId;
use block::Result;
use std::rc::Rc;

/// Progress of a manual compaction.
#[derive(Debug, Default, Clone)]
struct Pass {
    /// Tables of level 0 with lower numbers must be merged.
    end: TableId,
    /// Level that is being passed; those above are done.
    level: usize,
    /// Largest key passed in this level; `None` at its start.
    passed: Option<Vec<u8>>,
}

/// Returns the next merge of a compaction down to `last`; `None` when all levels above `last` are passed.
fn next(tree: &Tree<'_>, last: usize, pass: &mut Pass) -> Option<Job> {
    // A trivial move would keep overwritten entries.
    let whole = |job| Job { is_trivial_move: false, ..job };
    while pass.level < last {
        if pass.level == 0 {
            let old: Vec<_> = tree.level(0).iter().filter(|table| table.id < pass.end).collect();
            if !old.is_empty() {
                return Some(whole(merge(tree, 0, &old, 1)));
            }
        } else {
            let is_left =
                |table: &&TableView<'_>| pass.passed.as_deref().is_none_or(|passed| table.largest > passed);
            if let Some(table) = tree.level(pass.level).iter().find(is_left) {
                pass.passed = Some(table.largest.to_vec());
                return Some(whole(merge(tree, pass.level, &[table], pass.level + 1)));
            }
        }
        (pass.level, pass.passed) = (pass.level + 1, None);
    }
    None
}

/// Returns the merge of all tables of level 0 if there are at least `due`.
fn level0(tree: &Tree<'_>, due: usize) -> Option<Job> {
    let tables: Vec<_> = tree.level(0).iter().collect();
    (tables.len() >= due.max(1)).then(|| merge(tree, 0, &tables, 1))
}

impl Core {
    /// Merges all buffers and tables of this shard down to the last level.
    ///
    /// # Errors
    /// [`NoSpace`](block::Error::NoSpace); the failure of the log; [`Closed`](block::Error::Closed) if the
    /// store is closed meanwhile.
    pub(crate) async fn compact_all(self: &Rc<Self>) -> Result<()> {
        self.check_open()?;
        self.settle().await?;
        self.flush_buffers().await?;
        let (last, end) = self.with_tree(|tree| {
            let newest = tree.level(0).iter().map(|table| table.id).max();
            (tree.last().max(1), newest.map_or(0, |newest| newest + 1))
        });
        let mut pass = Pass { end, ..Pass::default() };
        loop {
            // The policy may run a job between two steps.
            let _permit = self.compactions.permit().await;
            self.compact_level0().await?;
            let before = pass.clone();
            let Some(job) = self.with_tree(|tree| next(tree, last, &mut pass)) else { break };
            if !self.compact_or_reclaim(job).await? {
                pass = before;
            }
        }
        // Trivial moves bring tombstones to the last level without a merge.
        let now = self.erasure.now();
        let deletes = self.with_tree(|tree| {
            let is_due = |table: &TableView<'_>| {
                table.oldest_tombstone.is_some_and(|time| time <= now) && !table.is_held
            };
            tree.level(last).iter().filter(|table| is_due(table)).map(|table| table.id).collect::<Vec<_>>()
        });
        for id in deletes {
            let _permit = self.compactions.permit().await;
            self.compact_level0().await?;
            let find = |tree: &Tree<'_>| tree.level(last).iter().position(|table| table.id == id);
            // The table may have been compacted meanwhile.
            let job = self.with_tree(|tree| find(tree).map(|index| rewrite(tree, last, index)));
            if let Some(job) = job {
                self.compact_or_reclaim(job).await?;
            }
        }
        Ok(())
    }

    /// Merges level 0 if that is due; the caller holds the permit to compact.
    async fn compact_level0(self: &Rc<Self>) -> Result<()> {
        self.check_running()?;
        let job = self.with_tree(|tree| level0(tree, self.settings.level0_tables));
        // Without space, the policy reclaims some.
        match job.and_then(|job| self.fit(job)) {
            Some((job, _claim)) => self.compact(&job).await,
            None => Ok(()),
        }
    }

    /// Runs a job, after reclaiming space if there isn't enough. Returns false if reclaiming made the job
    /// obsolete or changed it.
    async fn compact_or_reclaim(self: &Rc<Self>, job: Job) -> Result<bool> {
        let fitting = self.fit(job.clone());
        match fitting {
            Some((job, _claim)) => self.compact(&job).await?,
            None if self.reclaim().await? == Reclaimed::Some => return Ok(false),
            None => self.compact(&job).await?,
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(id: TableId, smallest: &'static str, largest: &'static str) -> TableView<'static> {
        TableView {
            id,
            bytes: 1,
            smallest: smallest.as_bytes(),
            largest: largest.as_bytes(),
            entries: 1,
            tombstones: 0,
            oldest_tombstone: None,
            is_held: false,
            garbage: 0.0,
        }
    }

    #[test]
    fn old_tables_of_level_0_go_first_then_each_level_table_by_table() {
        let mut tree = Tree::of(vec![
            vec![table(9, "a", "z"), table(8, "c", "d"), table(7, "b", "b")],
            vec![table(1, "a", "a"), table(2, "b", "c"), table(3, "d", "f"), table(4, "g", "h")],
            vec![table(5, "c", "d"), table(6, "h", "z")],
        ]);
        let mut pass = Pass { end: 9, ..Pass::default() };
        let mut found = |tree: &Tree<'_>| {
            next(tree, 2, &mut pass).map(|job| (job.level, job.inputs, job.target, job.overlapped))
        };
        assert_eq!(found(&tree), Some((0, vec![8, 7], 1, vec![2, 3])), "9 is newer");
        tree.levels[0].truncate(1);
        assert_eq!(found(&tree), Some((1, vec![1], 2, vec![])), "nothing overlaps it");
        // Tables in the passed part are newer; a table that extends beyond it may have older keys.
        tree.levels[1][0] = table(10, "a", "a");
        assert_eq!(found(&tree), Some((1, vec![2], 2, vec![5])));
        tree.levels[1] = vec![table(10, "a", "a"), table(11, "b", "e"), table(4, "g", "h")];
        assert_eq!(found(&tree), Some((1, vec![11], 2, vec![5])));
        tree.levels[1].remove(1);
        assert_eq!(found(&tree), Some((1, vec![4], 2, vec![6])));
        assert_eq!(found(&tree), None, "10 and 9 are newer");
    }

    #[test]
    fn level_0_is_merged_as_a_whole_once_it_is_due() {
        let tree = Tree::of(vec![
            vec![table(9, "e", "z"), table(8, "c", "d")],
            vec![table(1, "a", "a"), table(2, "c", "c"), table(3, "d", "f")],
        ]);
        assert_eq!(level0(&tree, 3), None);
        let job = level0(&tree, 2).expect("it is due");
        assert_eq!((job.level, job.inputs, job.target, job.overlapped), (0, vec![9, 8], 1, vec![2, 3]));
        assert_eq!(level0(&Tree::default(), 0), None);
    }
}
