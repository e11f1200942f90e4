//! Compaction of a whole shard on request: all tables are merged down to the last level, which drops what was overwritten or deleted.
//!
//! It goes level by level and table by table, so it needs no more free space than a job of a policy. Tables that are flushed meanwhile stay where they are.

use crate::core::Core;
use crate::jobs::Reclaimed;
use crate::manifest::TableId;
use crate::policy::shape::{merge, rewrite};
use crate::policy::{Job, TableView, Tree};
use block::{Error, Result};
use std::rc::Rc;

/// The next merge of a compaction down to `last`, of tables numbered below `end` in level 0; `None` if only the last level has any.
fn next(tree: &Tree<'_>, last: usize, end: TableId) -> Option<Job> {
    let mut old = tree.level(0).iter().filter(|table| table.id < end).peekable();
    let (level, inputs) = match old.peek() {
        Some(_) => (0, old.collect::<Vec<_>>()),
        None => {
            let level = (1..last).find(|level| !tree.level(*level).is_empty())?;
            (level, tree.level(level).iter().take(1).collect())
        }
    };
    // A table that is moved as it is would keep what was overwritten.
    Some(Job { is_trivial_move: false, ..merge(tree, level, &inputs, level + 1) })
}

impl Core {
    /// Merges all tables of this shard down to the last level, buffers included.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; the failure of the log; [`Error::Closed`] where the store is closed meanwhile.
    pub(crate) async fn compact_all(self: &Rc<Self>) -> Result<()> {
        self.check_open()?;
        self.settle().await?;
        self.flush_buffers().await?;
        let (last, end) = self.with_tree(|tree| {
            let newest = tree.level(0).iter().map(|table| table.id).max();
            (tree.last().max(1), newest.map_or(0, |newest| newest + 1))
        });
        loop {
            // Between two jobs the policy may carry out one of level 0, for which writers wait.
            let _alone = self.compacting.acquire(1).await;
            self.check_compacts()?;
            let Some(job) = self.with_tree(|tree| next(tree, last, end)) else { break };
            self.compact_or_reclaim(job).await?;
        }
        // Tombstones come to the last level without a merge where a table was moved there as it is.
        let now = self.erasure.now();
        let deletes = self.with_tree(|tree| {
            let is_due = |table: &TableView<'_>| {
                table.oldest_tombstone.is_some_and(|time| time <= now) && !table.is_held
            };
            tree.level(last).iter().filter(|table| is_due(table)).map(|table| table.id).collect::<Vec<_>>()
        });
        for id in deletes {
            let _alone = self.compacting.acquire(1).await;
            self.check_compacts()?;
            let find = |tree: &Tree<'_>| tree.level(last).iter().position(|table| table.id == id);
            // It may have been compacted meanwhile.
            let job = self.with_tree(|tree| find(tree).map(|index| rewrite(tree, last, index)));
            if let Some(job) = job {
                self.compact_or_reclaim(job).await?;
            }
        }
        Ok(())
    }

    /// Carries out a job. Where there is no space for it, space is reclaimed first.
    async fn compact_or_reclaim(self: &Rc<Self>, job: Job) -> Result<()> {
        let fitting = self.fit(job.clone());
        match fitting {
            Some((job, _claim)) => self.compact(&job).await,
            None if self.reclaim().await? == Reclaimed::Some => Ok(()),
            None => self.compact(&job).await,
        }
    }

    fn check_compacts(&self) -> Result<()> {
        match self.kit.failure() {
            Some(error) => Err(error),
            None if self.kit.is_closing() => Err(Error::closed("the store is closed")),
            None => Ok(()),
        }
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
        let found =
            |tree: &Tree<'_>| next(tree, 2, 9).map(|job| (job.level, job.inputs, job.target, job.overlapped));
        assert_eq!(found(&tree), Some((0, vec![8, 7], 1, vec![2, 3])), "9 is newer");
        tree.levels[0].clear();
        assert_eq!(found(&tree), Some((1, vec![1], 2, vec![])), "nothing overlaps it");
        tree.levels[1].drain(..1);
        assert_eq!(found(&tree), Some((1, vec![2], 2, vec![5])));
        tree.levels[1].clear();
        assert_eq!(found(&tree), None);
    }
}
