//! Saturation: a level that is too large gives a table to the next one; no promise about deletions.
//!
//! The trigger and the choice of RocksDB's leveled compaction: level 0 by its number of tables; otherwise the level that exceeds its
//! target size by the largest factor. That level gives the table with the smallest overlap ratio: the size of what it overlaps in the
//! next level, relative to its own. Without overlap the table is moved as it is.
//!
//! With `delete_persistence` the policy works as without. A table with an expired tombstone is merged, not moved, where no
//! table below overlaps it, so that the tombstone goes.

use super::shape::{Shape, merge_where_lowest};
use super::{Compaction, CompactionParameters, Job, Reason, TableView, Tree};
use crate::entry::Timestamp;

/// Name of the policy in a stack.
pub const NAME: &str = "saturation";

/// The saturation policy.
#[derive(Debug, Clone, Copy)]
pub struct Saturation {
    shape: Shape,
    deadline: Option<u64>,
}

impl Saturation {
    pub(super) fn new(shape: Shape, parameters: &CompactionParameters) -> Self {
        Saturation { shape, deadline: parameters.deadline() }
    }
}

impl Compaction for Saturation {
    fn name(&self) -> &'static str {
        NAME
    }

    fn next(&self, tree: &Tree<'_>, now: Timestamp) -> Option<Job> {
        if self.shape.is_level0_full(tree, 1) {
            return self.shape.level0(tree, None, Reason::Level0);
        }
        let level = self.shape.fullest(tree)?;
        let index = self.shape.cheapest(tree, level, overlap_ratio)?;
        let job = self.shape.push(tree, level, index..index + 1, level + 1, Reason::Size);
        let oldest = tree.level(level)[index].oldest_tombstone;
        let is_expired = self.deadline.zip(oldest).is_some_and(|(deadline, oldest)| oldest + deadline <= now);
        Some(if is_expired { merge_where_lowest(tree, job) } else { job })
    }

    fn wakes_at(&self, _: &Tree<'_>) -> Option<Timestamp> {
        None
    }

    fn due(&self, _: usize, _: usize, _: Timestamp) -> Option<Timestamp> {
        None
    }
}

/// Returns the size of what a table overlaps in the next level, relative to its own.
pub(super) fn overlap_ratio(table: &TableView<'_>, overlapped: u64) -> f64 {
    overlapped as f64 / table.bytes.max(1) as f64
}
