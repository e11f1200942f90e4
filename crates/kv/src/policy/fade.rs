//! FADE: tombstones go on by a time to live per level (Sarkar, Papon, Staratzis, Athanassoulis, "Lethe: A Tunable Delete-Aware LSM
//! Engine", SIGMOD 2020).
//!
//! Levels above the last one share the deadline D: level i takes d_i = d_0 · T^i of it, where T is the size ratio of levels, and the
//! sum is D. A tombstone that is older than d_0 + … + d_i makes its table in level i due. Due tables come first: those of the first
//! level that has any, then the most overdue, then the one with the most tombstones. Otherwise the trigger is saturation, and the
//! choice is the smallest overlap; of equals, the most tombstones (the paper's SO).
//!
//! In the paper level 0 is the memtable. Here it is the memtable with level 0, which is flushed from it unmerged. D is
//! `delete_persistence` without the share for resets, so that all policies keep the same promise.

use super::saturation::overlap_ratio;
use super::shape::{Shape, merge_where_lowest, rewrite};
use super::{Compaction, CompactionParameters, Job, Reason, Tree};
use crate::entry::Timestamp;
use std::cmp::Reverse;

/// Name of the policy in a stack.
pub const NAME: &str = "fade";

/// The FADE policy.
#[derive(Debug, Clone, Copy)]
pub struct Fade {
    shape: Shape,
    deadline: Option<u64>,
    multiplier: f64,
}

impl Fade {
    pub(super) fn new(shape: Shape, parameters: &CompactionParameters) -> Self {
        Fade { shape, deadline: parameters.deadline(), multiplier: parameters.multiplier as f64 }
    }

    /// Returns the level, the index and the time to leave of all tables with tombstones that a job can move on.
    fn dues<'t>(&'t self, tree: &'t Tree<'_>) -> impl Iterator<Item = (usize, usize, Timestamp)> + 't {
        let last = tree.last();
        tree.levels.iter().enumerate().flat_map(move |(level, tables)| {
            tables.iter().enumerate().filter_map(move |(index, table)| {
                let at = self.due(level, last, table.oldest_tombstone?)?;
                (level < last || level == 0 || !table.is_held).then_some((level, index, at))
            })
        })
    }
}

impl Compaction for Fade {
    fn name(&self) -> &'static str {
        NAME
    }

    fn next(&self, tree: &Tree<'_>, now: Timestamp) -> Option<Job> {
        let expired = self
            .dues(tree)
            .filter(|&(.., at)| at <= now)
            .min_by_key(|&(level, index, at)| (level, at, Reverse(tree.level(level)[index].tombstones)));
        if let Some((level, index, _)) = expired {
            if level == 0 {
                let job = self.shape.level0(tree, Some(index), Reason::Deadline)?;
                return Some(merge_where_lowest(tree, job));
            }
            if level == tree.last() {
                return Some(rewrite(tree, level, index, Reason::Deadline));
            }
            let job = self.shape.push(tree, level, index..index + 1, level + 1, Reason::Deadline);
            return Some(merge_where_lowest(tree, job));
        }
        if self.shape.is_level0_full(tree, 1) {
            return self.shape.level0(tree, None, Reason::Level0);
        }
        let level = self.shape.fullest(tree)?;
        let index = self.shape.cheapest(tree, level, |table, overlapped| {
            // The second term decides between equal overlaps only.
            overlap_ratio(table, overlapped) - 1e-9 * table.tombstones as f64
        })?;
        Some(self.shape.push(tree, level, index..index + 1, level + 1, Reason::Size))
    }

    fn wakes_at(&self, tree: &Tree<'_>) -> Option<Timestamp> {
        self.dues(tree).map(|(.., at)| at).min()
    }

    fn due(&self, level: usize, last: usize, oldest_tombstone: Timestamp) -> Option<Timestamp> {
        let deadline = self.deadline?;
        // (T^(i+1) - 1) / (T^n - 1), where levels 0 to n - 1 have a time to live.
        let power = |exponent: usize| self.multiplier.powi(exponent as i32) - 1.0;
        let share = if level + 1 >= last { 1.0 } else { power(level + 1) / power(last) };
        Some(oldest_tombstone.saturating_add((deadline as f64 * share) as u64))
    }
}
