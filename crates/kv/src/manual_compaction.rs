//! Compaction of a whole shard on request: all tables are merged down to the last level, which drops what was overwritten or deleted.
//!
//! It passes each level once, in the order of keys, table by table, so it needs no more free space than a job of a policy, and ends whatever is written
//! meanwhile: what comes to a level behind the pass was written after the beginning.
//!
//! Before each piece, level 0 is merged where that is due: writers wait for it, and for no more than one piece.

use crate::core::Core;
use crate::jobs::Reclaimed;
use crate::manifest::TableId;
use crate::policy::shape::{merge, rewrite};
use crate::policy::{Job, TableView, Tree};
use block::{Error, Result};
use std::rc::Rc;

/// How far a compaction has come.
#[derive(Debug, Default, Clone)]
struct Pass {
    /// Tables of level 0 with lower numbers are merged.
    end: TableId,
    /// The level that it passes; it has passed those before.
    level: usize,
    /// Largest key that it has passed there.
    passed: Option<Vec<u8>>,
}

/// The next merge of a compaction down to `last`; `None` once it has passed all levels before that.
fn next(tree: &Tree<'_>, last: usize, pass: &mut Pass) -> Option<Job> {
    // A table that is moved as it is would keep what was overwritten.
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

/// The merge of all tables of level 0, if it has so many that it is due.
fn level0(tree: &Tree<'_>, due: usize) -> Option<Job> {
    let tables: Vec<_> = tree.level(0).iter().collect();
    (tables.len() >= due.max(1)).then(|| merge(tree, 0, &tables, 1))
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
        let mut pass = Pass { end, ..Pass::default() };
        loop {
            // Between two pieces the policy may carry out a job.
            let _alone = self.compacting.acquire(1).await;
            self.compact_level0().await?;
            let before = pass.clone();
            let Some(job) = self.with_tree(|tree| next(tree, last, &mut pass)) else { break };
            if !self.compact_or_reclaim(job).await? {
                pass = before;
            }
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
            self.compact_level0().await?;
            let find = |tree: &Tree<'_>| tree.level(last).iter().position(|table| table.id == id);
            // It may have been compacted meanwhile.
            let job = self.with_tree(|tree| find(tree).map(|index| rewrite(tree, last, index)));
            if let Some(job) = job {
                self.compact_or_reclaim(job).await?;
            }
        }
        Ok(())
    }

    /// Merges level 0 where that is due, for a caller that compacts alone.
    async fn compact_level0(self: &Rc<Self>) -> Result<()> {
        self.check_compacts()?;
        let job = self.with_tree(|tree| level0(tree, self.settings.level0_tables));
        // Where there is no space, the policy reclaims it.
        match job.and_then(|job| self.fit(job)) {
            Some((job, _claim)) => self.compact(&job).await,
            None => Ok(()),
        }
    }

    /// Carries out a job. Where there is no space for it, space is reclaimed first. Returns false where that made the job needless, or another one.
    async fn compact_or_reclaim(self: &Rc<Self>, job: Job) -> Result<bool> {
        let fitting = self.fit(job.clone());
        match fitting {
            Some((job, _claim)) => self.compact(&job).await?,
            None if self.reclaim().await? == Reclaimed::Some => return Ok(false),
            None => self.compact(&job).await?,
        }
        Ok(true)
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
        let mut pass = Pass { end: 9, ..Pass::default() };
        let mut found = |tree: &Tree<'_>| {
            next(tree, 2, &mut pass).map(|job| (job.level, job.inputs, job.target, job.overlapped))
        };
        assert_eq!(found(&tree), Some((0, vec![8, 7], 1, vec![2, 3])), "9 is newer");
        tree.levels[0].truncate(1);
        assert_eq!(found(&tree), Some((1, vec![1], 2, vec![])), "nothing overlaps it");
        // What comes behind the pass is newer; a table that reaches beyond it may have older keys.
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
