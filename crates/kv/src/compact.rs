//! Compaction of a whole shard on request: all tables are merged down to the last level, which drops what was overwritten or deleted.
//!
//! It goes level by level and table by table, so it needs no more free space than a job of a policy. Tables that are flushed meanwhile stay where they are.

use crate::core::Core;
use crate::manifest::TableId;
use crate::policy::{Inputs, Job, Reason, Tree};
use block::{Error, Result};
use std::rc::Rc;

/// A merge of inputs into a level.
fn job(inputs: Vec<Inputs>, target: usize) -> Job {
    Job { inputs, target, reason: Reason::Size, is_trivial_move: false }
}

/// Tables of the level below one that overlap a range, as inputs.
fn below(tree: &Tree<'_>, level: usize, smallest: &[u8], largest: &[u8]) -> Option<Inputs> {
    let found = tree.overlapping(level + 1, smallest, largest);
    let tables: Vec<TableId> = tree.level(level + 1)[found].iter().map(|table| table.id).collect();
    (!tables.is_empty()).then_some(Inputs { level: level + 1, tables })
}

/// The next merge of a compaction down to `last`, of tables numbered below `end` in level 0; `None` if only the last level has any.
fn next(tree: &Tree<'_>, last: usize, end: TableId) -> Option<Job> {
    let old = || tree.level(0).iter().filter(|table| table.id < end);
    if let Some(smallest) = old().map(|table| table.smallest).min() {
        let largest = old().map(|table| table.largest).max().unwrap_or(smallest);
        let inputs = Inputs { level: 0, tables: old().map(|table| table.id).collect() };
        return Some(job(std::iter::once(inputs).chain(below(tree, 0, smallest, largest)).collect(), 1));
    }
    let level = (1..last).find(|level| !tree.level(*level).is_empty())?;
    let first = tree.level(level).first()?;
    let inputs = Inputs { level, tables: vec![first.id] };
    let inputs = std::iter::once(inputs).chain(below(tree, level, first.smallest, first.largest));
    Some(job(inputs.collect(), level + 1))
}

impl Core {
    /// Merges all tables of this shard down to the last level, buffers included.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; the failure of the log; [`Error::Closed`] where the store is closed meanwhile.
    pub(crate) async fn compact_all(self: &Rc<Self>) -> Result<()> {
        self.settle().await?;
        self.flush_buffers().await?;
        let _alone = self.compacting.acquire(1).await;
        let (last, end) = self.with_tree(|tree| {
            let newest = tree.level(0).iter().map(|table| table.id).max();
            (tree.last().max(1), newest.map_or(0, |newest| newest + 1))
        });
        while let Some(job) = self.with_tree(|tree| next(tree, last, end)) {
            self.check_compacts()?;
            self.compact(&job).await?;
        }
        // Tombstones come to the last level without a merge where a table was moved there as it is.
        let now = crate::batch::now();
        let deletes = self.with_tree(|tree| {
            let is_due = |table: &&crate::policy::TableView<'_>| table.oldest_tombstone.is_some_and(|time| time <= now) && !table.is_held;
            tree.level(last).iter().filter(is_due).map(|table| table.id).collect::<Vec<TableId>>()
        });
        for table in deletes {
            self.check_compacts()?;
            self.compact(&job(vec![Inputs { level: last, tables: vec![table] }], last)).await?;
        }
        Ok(())
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
    use crate::policy::TableView;

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
        let mut tree = Tree {
            levels: vec![
                vec![table(9, "a", "z"), table(8, "c", "d"), table(7, "b", "b")],
                vec![table(1, "a", "a"), table(2, "b", "c"), table(3, "d", "f"), table(4, "g", "h")],
                vec![table(5, "c", "d"), table(6, "h", "z")],
            ],
        };
        let ids = |job: &Job| job.inputs.iter().map(|inputs| (inputs.level, inputs.tables.clone())).collect::<Vec<_>>();
        let first = next(&tree, 2, 9).unwrap();
        assert_eq!((ids(&first), first.target), (vec![(0, vec![8, 7]), (1, vec![2, 3])], 1), "9 is newer");
        tree.levels[0].clear();
        let second = next(&tree, 2, 9).unwrap();
        assert_eq!((ids(&second), second.target), (vec![(1, vec![1])], 2), "nothing overlaps it");
        tree.levels[1].drain(..1);
        assert_eq!(ids(&next(&tree, 2, 9).unwrap()), [(1, vec![2]), (2, vec![5])]);
        tree.levels[1].clear();
        assert_eq!(next(&tree, 2, 9), None);
    }
}
