//! Saturation: a level above its target size moves a table to the next one; deletions have no deadline.
//!
//! Trigger and choice are those of RocksDB's leveled compaction: the level that exceeds its target by the
//! largest factor, level 0 by its number of tables and others by their size. From level 0, all tables that
//! overlap its oldest one are merged; from another level, the table with the smallest overlap ratio: size of
//! the tables that it overlaps in the next level, relative to its own. Without overlap the table is moved
//! unchanged.

use super::shape::Shape;
use super::{Compaction, Job, TableView, Tree};
use crate::key_version::Timestamp;

/// Name of the policy in a stack.
pub const NAME: &str = "saturation";

/// The saturation policy.
#[derive(Debug, Clone, Copy)]
pub struct Saturation {
    shape: Shape,
}

impl Saturation {
    pub(super) fn new(shape: Shape) -> Self {
        Saturation { shape }
    }
}

impl Compaction for Saturation {
    fn next(&self, tree: &Tree<'_>, _: Timestamp) -> Option<Job> {
        let level = self.shape.fullest(tree)?;
        if level == 0 {
            return self.shape.level0(tree, None);
        }
        let index = self.shape.cheapest(tree, level, overlap_ratio)?;
        Some(self.shape.push(tree, level, index..index + 1, level + 1))
    }

    fn wakes_at(&self, _: &Tree<'_>) -> Option<Timestamp> {
        None
    }

    fn due(&self, _: usize, _: usize, _: Timestamp) -> Option<Timestamp> {
        None
    }
}

/// Returns the size of the tables that a table overlaps in the next level, relative to its own size.
pub(super) fn overlap_ratio(table: &TableView<'_>, overlapped: u64) -> f64 {
    overlapped as f64 / table.bytes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::super::properties::{parameters, table};
    use super::super::{COMPACTIONS, Compaction, CompactionParameters, Tree, compaction};

    fn saturation() -> Box<dyn Compaction> {
        compaction("saturation", parameters()).unwrap()
    }

    #[test]
    fn a_tree_within_its_limits_has_no_job_for_any_policy() {
        let level1 = vec![table(5, "a", "b"), table(4, "c", "d"), table(3, "e", "f"), table(2, "g", "h")];
        let tree = Tree::of(vec![vec![table(9, "a", "z"), table(8, "a", "z"), table(7, "a", "z")], level1]);
        for name in COMPACTIONS {
            let policy = compaction(name, parameters()).unwrap();
            assert_eq!((policy.next(&tree, 0), policy.wakes_at(&tree)), (None, None), "{name}");
            assert_eq!(policy.next(&Tree::default(), 0), None, "{name}: an empty tree");
        }
    }

    #[test]
    fn tables_of_level_0_that_overlap_go_together() {
        let level0 = vec![table(9, "x", "z"), table(8, "c", "e"), table(7, "p", "q"), table(6, "a", "d")];
        let level1 = vec![table(1, "d", "g"), table(2, "h", "m")];
        let job = saturation().next(&Tree::of(vec![level0, level1]), 0).unwrap();
        assert_eq!(
            (&job.inputs[..], &job.overlapped[..]),
            (&[8, 6][..], &[1][..]),
            "the oldest, and what overlaps it"
        );
        assert_eq!((job.level, job.target, job.is_trivial_move), (0, 1, false));
    }

    #[test]
    fn level_0_waits_for_a_level_that_is_too_full_by_a_larger_factor() {
        let level0 = |tables: u64| (0..tables).map(|id| table(100 + id, "a", "z")).collect::<Vec<_>>();
        let keys = "abcdefghijklmnopqrstuvwxyz";
        let level1 =
            |tables: usize| (0..tables).map(|at| table(at as u64, &keys[at..=at], &keys[at..=at])).collect();
        let level = |tables0, tables1| {
            let tree = Tree::of(vec![level0(tables0), level1(tables1)]);
            COMPACTIONS.map(|name| compaction(name, parameters()).unwrap().next(&tree, 0).unwrap().level)
        };
        // Four tables of level 0 make a job due, and four tables have the target size of level 1.
        assert_eq!(level(4, 4), [0; 3]);
        assert_eq!(level(8, 8), [0; 3], "of equals, level 0");
        assert_eq!(level(8, 9), [1; 3]);
        assert_eq!(level(4, 5), [1; 3]);
    }

    #[test]
    fn tables_of_sequential_keys_are_moved() {
        let level0 = vec![table(9, "j", "k"), table(8, "h", "i"), table(7, "f", "g"), table(6, "d", "e")];
        let job = saturation().next(&Tree::of(vec![level0, vec![table(1, "a", "c")]]), 0).unwrap();
        assert_eq!(job.inputs, [6]);
        assert!(job.is_trivial_move);
    }

    #[test]
    fn the_fullest_level_gives_the_table_with_the_smallest_overlap_and_free_neighbours() {
        let level1 = vec![
            table(10, "a", "b"),
            table(11, "c", "d"),
            table(12, "e", "f"),
            table(13, "k", "p"),
            table(14, "s", "t"),
        ];
        let level2 = vec![
            table(1, "a", "a5"),
            table(2, "b", "b5"),
            table(3, "c", "f"),
            table(4, "g", "l"),
            table(5, "m", "z"),
        ];
        let job = saturation().next(&Tree::of(vec![vec![], level1, level2]), 0).unwrap();
        assert_eq!(
            (&job.inputs[..], &job.overlapped[..]),
            (&[11, 12][..], &[3][..]),
            "12 lies in the range that 11 rewrites anyway"
        );
        assert_eq!(job.target, 2);
    }

    #[test]
    fn a_job_takes_no_free_neighbour_beyond_its_size() {
        let level1 = (0..5).map(|index| {
            table(
                10 + index,
                ["a", "c", "e", "g", "i"][index as usize],
                ["b", "d", "f", "h", "j"][index as usize],
            )
        });
        let tree = Tree::of(vec![vec![], level1.collect(), vec![table(1, "a", "z")]]);
        let policy =
            compaction("saturation", CompactionParameters { job_bytes: 300, ..parameters() }).unwrap();
        let job = policy.next(&tree, 0).unwrap();
        assert_eq!((&job.inputs[..], &job.overlapped[..]), (&[10, 11][..], &[1][..]));
    }

    #[test]
    fn the_last_level_has_no_target_size() {
        let full = (0..9)
            .map(|index| {
                table(index, &"abcdefghi"[index as usize..][..1], &"abcdefghi"[index as usize..][..1])
            })
            .collect();
        let policy = compaction("saturation", CompactionParameters { levels: 2, ..parameters() }).unwrap();
        assert_eq!(policy.next(&Tree::of(vec![vec![], full]), 0), None);
    }
}
