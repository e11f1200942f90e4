//! FADE: tombstones move down by a time to live per level (Sarkar, Papon, Staratzis, Athanassoulis, "Lethe: A
//! Tunable Delete-Aware LSM Engine", SIGMOD 2020).
//!
//! Levels above the last one share the deadline D: level i gets d_i = d_0 · T^i of it, where T is the size
//! ratio of levels, and the sum is D. A tombstone that is older than d_0 + … + d_i makes its table in level i
//! due. Due tables come first: those of the first level that has any, then the most overdue, then the one
//! with the most tombstones. Otherwise the trigger is saturation, and the choice is the smallest overlap; on
//! ties, the most tombstones (the paper's SO).
//!
//! In the paper level 0 is the memtable. Here it is the memtable together with level 0, to which memtables
//! are flushed unmerged. D is `delete_persistence` without the share for resets, so that all policies keep
//! the same promise.
//!
//! A job begins when its table has expired, so the duration of jobs is added to the age. While expired tables
//! of the first levels keep compaction busy, those of deeper levels wait: FADE has no bound then.

use super::saturation::overlap_ratio;
use super::shape::{Shape, merge_where_lowest, rewrite};
use super::{Compaction, CompactionParameters, Job, Tree};
use crate::key_version::Timestamp;
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

    /// Returns level, index and due time of all tables with tombstones that a job can move down.
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
    fn next(&self, tree: &Tree<'_>, now: Timestamp) -> Option<Job> {
        let expired = self
            .dues(tree)
            .filter(|&(.., at)| at <= now)
            .min_by_key(|&(level, index, at)| (level, at, Reverse(tree.level(level)[index].tombstones)));
        if let Some((level, index, _)) = expired {
            if level == 0 {
                let job = self.shape.level0(tree, Some(index))?;
                return Some(merge_where_lowest(tree, job));
            }
            if level == tree.last() {
                return Some(rewrite(tree, level, index));
            }
            let job = self.shape.push(tree, level, index..index + 1, level + 1);
            return Some(merge_where_lowest(tree, job));
        }
        let level = self.shape.fullest(tree)?;
        if level == 0 {
            return self.shape.level0(tree, None);
        }
        let index = self.shape.cheapest(tree, level, |table, overlapped| {
            // The second term only breaks ties of overlaps.
            overlap_ratio(table, overlapped) - 1e-9 * table.tombstones as f64
        })?;
        Some(self.shape.push(tree, level, index..index + 1, level + 1))
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

#[cfg(test)]
mod tests {
    use super::super::properties::{deleted, parameters, table};
    use super::super::{Compaction, CompactionParameters, TableView, Tree, compaction};

    fn fade() -> Box<dyn Compaction> {
        compaction("fade", parameters()).unwrap()
    }

    #[test]
    fn times_to_live_grow_by_the_size_ratio_and_add_up_to_the_deadline() {
        let due = |level| fade().due(level, 3, 5000).unwrap() - 5000;
        let times: Vec<u64> =
            (0..3).map(|level| if level == 0 { due(0) } else { due(level) - due(level - 1) }).collect();
        assert_eq!(times, [9, 90, 901], "9/999, 90/999 and 900/999 of 1000 ms, rounded");
        assert_eq!([due(2), due(3), due(9)], [1000; 3]);
        assert_eq!(fade().due(0, 0, 0), Some(1000), "a tree of level 0 only");
        let parameters = CompactionParameters { reset_share: 0.25, ..parameters() };
        assert_eq!(compaction("fade", parameters).unwrap().due(2, 3, 0), Some(750));
        let parameters = CompactionParameters { delete_persistence: None, ..parameters };
        assert_eq!(compaction("fade", parameters).unwrap().due(2, 3, 0), None);
    }

    /// Three levels below level 0: tombstones of level 1 are due after 99 ms, of level 2 after 1000 ms.
    fn tree() -> Tree<'static> {
        let level1 = vec![deleted(10, "a", "b", 900), deleted(11, "c", "d", 880), deleted(12, "k", "l", 880)];
        let level1 = level1.into_iter().map(|table| TableView { tombstones: table.id, ..table }).collect();
        let level2 = vec![deleted(5, "a", "d", 0), table(6, "e", "z")];
        Tree::of(vec![vec![], level1, level2, vec![table(1, "a", "z")]])
    }

    #[test]
    fn the_first_level_with_expired_tables_gives_the_most_overdue_one_with_the_most_tombstones() {
        assert_eq!(fade().wakes_at(&tree()), Some(979));
        assert_eq!(fade().next(&tree(), 978), None);
        let job = fade().next(&tree(), 1500).unwrap();
        assert_eq!(
            (&job.inputs[..], &job.overlapped[..]),
            (&[12][..], &[6][..]),
            "11 is as old, but has fewer tombstones; level 2 comes later"
        );
        assert_eq!(job.target, 2);
    }

    #[test]
    fn saturation_chooses_the_most_tombstones_of_equal_overlaps() {
        let level1 = vec![
            table(10, "a", "a"),
            table(11, "b", "b"),
            deleted(12, "c", "c", 0),
            table(13, "d", "d"),
            table(14, "e", "e"),
        ];
        let job = fade().next(&Tree::of(vec![vec![], level1, vec![table(1, "a", "z")]]), 0).unwrap();
        assert!(job.inputs.contains(&12));
    }

    #[test]
    fn tombstones_of_the_last_level_go_by_a_rewrite_unless_a_snapshot_holds_them() {
        let table = deleted(10, "a", "b", 0);
        let job = fade().next(&Tree::of(vec![vec![], vec![table]]), 1000).unwrap();
        assert_eq!((&job.inputs[..], job.target, job.is_trivial_move), (&[10][..], 1, false));
        let held = Tree::of(vec![vec![], vec![TableView { is_held: true, ..table }]]);
        assert_eq!((fade().next(&held, 1000), fade().wakes_at(&held)), (None, None));
    }

    #[test]
    fn an_expired_table_is_moved_only_where_one_below_overlaps_it() {
        let move_to = |last: Vec<TableView<'static>>| {
            let level1 = vec![deleted(10, "a", "b", 0)];
            fade().next(&Tree::of(vec![vec![], level1, vec![table(2, "x", "y")], last]), 1000).unwrap()
        };
        assert!(move_to(vec![table(1, "a", "z")]).is_trivial_move, "level 3 has older versions");
        assert!(!move_to(vec![table(1, "p", "z")]).is_trivial_move, "the merge drops the tombstones");
    }
}
