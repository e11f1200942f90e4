//! ZAP: keeps deadlines, and writes about as few bytes as saturation (Nie et al., "Time-constrained
//! persistent deletion for key-value store engine on ZNS SSD", Future Generation Computer Systems 164, 2025;
//! thresholds and weights are not those of the paper).
//!
//! As in the paper, tables with urgent tombstones come first, ordered by deadline and number of tombstones.
//! Otherwise level 0 is compacted by its number of tables, and the levels below by saturation; the table is
//! chosen by a weighted sum of its overlap ratio, its tombstones and its zones. (The paper weights high
//! levels only. Here low levels are weighted also: an old tombstone that arrives in the level above the last
//! one makes all tables that it is merged with due early.)
//!
//! # Zones
//! A zone with stale data must be reset in time, so its live blocks are moved. A job leaves such zones at
//! both ends of the range that it rewrites; the zones between them have no live blocks after it. So a job for
//! a full level takes neighbours up to 24 tables including their overlapped ones, where RocksDB takes one
//! table.
//!
//! # Laziness
//! A tombstone that moves with a saturation job costs nothing. So a job is forced as late as possible, the
//! choice of saturation prefers old tombstones, and a forced job includes neighbours that are due soon. Let D
//! be `delete_persistence` without the share for resets, n the last level and R [`RATIO`]. A table of level i
//! is due at the age A_i = D · R^(i+1-n), and at the age D in levels n - 1 and n and if no table below
//! overlaps it. (Lethe's ratio is that of level sizes: it forces many jobs early, and each costs as many
//! tables as a late one.)
//! late one.)
//!
//! Bulk deletions fall due together. So the tables are sorted by due time, and the sizes of the jobs are
//! accumulated: the first job is forced when the remaining time is at most the time of all of them at
//! `bytes_per_second`, plus one job that may be running. But no job is forced before its tombstone has the
//! age A_i / 2: a table that is rewritten earlier would soon have new tombstones.
//!
//! # Lemma
//! Assume, for a tree of constant height, that forced jobs merge at least `bytes_per_second`; that no other
//! job takes longer than X of D (`JOB_SHARE`), or than the largest forced one; and that the tables of a level
//! that fall due within any A_i / 2 can be merged in that time. Then no table has a tombstone older than D,
//! that is, `delete_persistence` · (1 - `reset_share`). Proof: jobs are forced in the order of their due
//! times, and begin early enough for all of them, so a table leaves level i before the age A_i. Its
//! tombstones arrive in level i + 1 before the age A_i, which is at most A_(i+1) / 2: the age at which they
//! may be forced there. By induction they leave level n - 1 before D, and the merge into level n drops them.
//! ∎
//!
//! If level 0 has twice the tables that make a job due, saturation comes first, because writers would wait.
//! The store must set `bytes_per_second` below its full speed, and flush a memtable with tombstones when
//! level 0 would be due.

use super::saturation::overlap_ratio;
use super::shape::{Shape, merge_where_lowest, rewrite};
use super::{Compaction, CompactionParameters, Job, TableView, Tree};
use crate::key_version::Timestamp;
use std::cmp::Reverse;

/// Name of the policy in a stack.
pub const NAME: &str = "zap";

/// Ratio of the ages at which tables of neighbouring levels are due.
pub const RATIO: f64 = 2.0;

/// Weight of a tombstone's age in the choice by saturation.
const AGE_WEIGHT: f64 = 0.3;
/// Weight of the dead share of a table's zones.
const GARBAGE_WEIGHT: f64 = 0.2;
/// Weight of the share of tombstones in a table.
const TOMBSTONE_WEIGHT: f64 = 0.2;
/// Maximum share of the deadline for a job.
const JOB_SHARE: f64 = 1.0 / 32.0;
/// Number of tables up to which a saturation job takes neighbours.
const JOB_TABLES: u64 = 24;
/// Share of the time in a level: neighbours of a forced table that are due within it are included.
const NEIGHBOUR_WINDOW: f64 = 0.5;

/// The ZAP policy.
#[derive(Debug, Clone, Copy)]
pub struct Zap {
    shape: Shape,
    deadline: Option<u64>,
    bytes_per_second: u64,
}

/// A table that must leave its level.
#[derive(Debug, Clone, Copy)]
struct Due {
    level: usize,
    index: usize,
    /// Time at which the table is due.
    at: Timestamp,
    /// Time before which the table isn't forced.
    from: Timestamp,
    /// Number of the table's tombstones.
    tombstones: u64,
    /// Size of the job in bytes.
    bytes: u64,
}

impl Zap {
    pub(super) fn new(shape: Shape, parameters: &CompactionParameters) -> Self {
        Zap { shape, deadline: parameters.deadline(), bytes_per_second: parameters.bytes_per_second }
    }

    /// Returns the age in milliseconds of tombstones at which a table of a level is due.
    fn age(&self, level: usize, last: usize) -> Option<u64> {
        let exponent = (last.saturating_sub(level + 1)) as i32;
        Some((self.deadline? as f64 / RATIO.powi(exponent)) as u64)
    }

    /// Returns the time in milliseconds that a job of this size takes.
    fn time(&self, bytes: u64) -> u64 {
        u64::try_from(u128::from(bytes) * 1000 / u128::from(self.bytes_per_second)).unwrap_or(u64::MAX)
    }

    /// Returns the tables with tombstones in the order of their due times, and the time at which the first
    /// job is forced.
    fn dues(&self, tree: &Tree<'_>) -> Option<(Vec<Due>, Timestamp)> {
        let last = tree.last();
        let mut dues = Vec::new();
        for (level, tables) in tree.levels.iter().enumerate() {
            for (index, table) in tables.iter().enumerate() {
                let Some(oldest) = table.oldest_tombstone else { continue };
                let below = tree.next_overlapping(level, table.smallest, table.largest);
                if below.is_none() && level > 0 && table.is_held {
                    continue;
                }
                // If no table below overlaps it, a single job is enough at any level.
                let age = self.age(if below.is_some() { level } else { last }, last)?;
                let overlapped =
                    below.map_or(0, |below| tree.overlapping_bytes(below, table.smallest, table.largest));
                dues.push(Due {
                    level,
                    index,
                    at: oldest.saturating_add(age),
                    from: oldest.saturating_add(age / 2),
                    tombstones: table.tombstones,
                    bytes: table.bytes + overlapped,
                });
            }
        }
        dues.sort_unstable_by_key(|due| (due.at, Reverse(due.tombstones), due.level, due.index));
        let level0 = tree.bytes(0) + tree.bytes(1);
        let largest = dues.iter().map(|due| due.bytes).fold(level0, u64::max);
        let running = self.time(largest).max((self.deadline? as f64 * JOB_SHARE) as u64);
        let mut bytes = 0;
        let latest = dues.iter().map(|due| {
            bytes += due.bytes;
            due.at.saturating_sub(self.time(bytes).saturating_add(running))
        });
        let start = latest.min()?;
        Some((dues, start))
    }

    /// Returns the job of a table that must leave its level.
    fn forced(&self, tree: &Tree<'_>, due: Due) -> Option<Job> {
        let Due { level, index, .. } = due;
        if level == 0 {
            let job = self.shape.level0(tree, Some(index))?;
            return Some(merge_where_lowest(tree, job));
        }
        let table = &tree.level(level)[index];
        let Some(target) = tree.next_overlapping(level, table.smallest, table.largest) else {
            return Some(rewrite(tree, level, index));
        };
        let last = tree.last();
        let window = (self.age(level, last)? as f64 * NEIGHBOUR_WINDOW) as u64;
        let most = self.deadline? as f64 / 1000.0 * JOB_SHARE * self.bytes_per_second as f64;
        let run = self.shape.extend(tree, level, index, most as u64, |table| {
            let at = table.oldest_tombstone.and_then(|oldest| self.due(level, last, oldest));
            target == level + 1 && at.is_some_and(|at| at <= due.at + window)
        });
        Some(self.shape.push(tree, level, run, target))
    }

    /// Returns the job of the level that exceeds its target by the largest factor.
    fn saturated(&self, tree: &Tree<'_>, now: Timestamp) -> Option<Job> {
        let level = self.shape.fullest(tree)?;
        if level == 0 {
            return self.shape.level0(tree, None);
        }
        let age = self.age(level, tree.last());
        let index =
            self.shape.cheapest(tree, level, |table, overlapped| self.cost(table, overlapped, age, now))?;
        let table_bytes = tree.bytes(level) / tree.level(level).len() as u64;
        let run = self.shape.extend(tree, level, index, JOB_TABLES * table_bytes, |_| true);
        Some(self.shape.push(tree, level, run, level + 1))
    }

    /// Returns the cost of choosing a table of a full level: its overlap ratio, reduced for old and for many
    /// tombstones, and for dead data in its zones, which the move may free.
    fn cost(&self, table: &TableView<'_>, overlapped: u64, age: Option<u64>, now: Timestamp) -> f64 {
        let used = match table.oldest_tombstone.zip(age) {
            Some((oldest, age)) => (now.saturating_sub(oldest) as f64 / age.max(1) as f64).min(1.0),
            None => 0.0,
        };
        let tombstones = table.tombstones as f64 / table.entries.max(1) as f64;
        (1.0 + overlap_ratio(table, overlapped))
            * (1.0 - AGE_WEIGHT * used)
            * (1.0 - GARBAGE_WEIGHT * table.garbage)
            * (1.0 - TOMBSTONE_WEIGHT * tombstones)
    }
}

impl Compaction for Zap {
    fn next(&self, tree: &Tree<'_>, now: Timestamp) -> Option<Job> {
        // Forced jobs must not keep writers waiting.
        if self.shape.is_level0_full(tree, 2) {
            return self.saturated(tree, now);
        }
        if let Some((dues, start)) = self.dues(tree)
            && start <= now
            && let Some(due) = dues.into_iter().find(|due| due.from <= now)
        {
            return self.forced(tree, due);
        }
        self.saturated(tree, now)
    }

    fn wakes_at(&self, tree: &Tree<'_>) -> Option<Timestamp> {
        let (dues, start) = self.dues(tree)?;
        let from = dues.iter().map(|due| due.from).min()?;
        Some(start.max(from))
    }

    fn due(&self, level: usize, last: usize, oldest_tombstone: Timestamp) -> Option<Timestamp> {
        Some(oldest_tombstone.saturating_add(self.age(level, last)?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::properties::{deleted, parameters, table};
    use super::super::{Compaction, CompactionParameters, TableView, Tree, compaction};
    use super::{JOB_SHARE, RATIO};

    fn zap() -> Box<dyn Compaction> {
        compaction("zap", parameters()).unwrap()
    }

    /// Time in milliseconds reserved for a running job.
    const RUNNING: u64 = (1000.0 * JOB_SHARE) as u64;

    #[test]
    fn tables_of_each_level_have_more_time_than_those_above() {
        let due = |level| zap().due(level, 4, 5000).unwrap() - 5000;
        assert_eq!([3, 4, 9].map(due), [1000; 3]);
        assert_eq!(due(2), (1000.0 / RATIO) as u64);
        assert_eq!(due(0), (1000.0 / RATIO.powi(3)) as u64);
        let parameters = CompactionParameters { delete_persistence: None, ..parameters() };
        assert_eq!(compaction("zap", parameters).unwrap().due(2, 3, 0), None);
    }

    #[test]
    fn a_job_is_forced_as_late_as_possible() {
        let tree = Tree::of(vec![vec![], vec![deleted(10, "a", "b", 0)], vec![table(1, "a", "z")]]);
        let wake = 1000 - RUNNING;
        assert_eq!(zap().wakes_at(&tree), Some(wake), "200 bytes take no time at this rate");
        assert_eq!(zap().next(&tree, wake - 1), None);
        let job = zap().next(&tree, wake).unwrap();
        assert_eq!((&job.inputs[..], &job.overlapped[..]), (&[10][..], &[1][..]));
        assert_eq!(job.target, 2);
    }

    #[test]
    fn jobs_that_are_due_together_begin_as_early_as_they_need_but_not_before_half_of_the_time() {
        let level1 = ["a", "b", "c", "d"].map(|key| deleted(key.as_bytes()[0].into(), key, key, 0));
        let level2 = ["a", "b", "c", "d"].map(|key| table(u64::from(key.as_bytes()[0]) - 90, key, key));
        let tree = Tree::of(vec![vec![], level1.to_vec(), level2.to_vec()]);
        let wake = |bytes_per_second| {
            let policy =
                compaction("zap", CompactionParameters { bytes_per_second, ..parameters() }).unwrap();
            let wake = policy.wakes_at(&tree).unwrap();
            assert_eq!(policy.next(&tree, wake - 1), None);
            assert!(policy.next(&tree, wake).is_some());
            wake
        };
        assert_eq!(
            wake(8_000),
            1000 - 100 - 50,
            "four jobs of 200 bytes; the 400 bytes of level 1 may be running"
        );
        assert_eq!(wake(100), 500);
    }

    #[test]
    fn neighbours_that_are_due_soon_go_along() {
        let level1 = vec![
            deleted(10, "a", "b", 499),
            deleted(11, "c", "d", 0),
            deleted(12, "e", "f", 500),
            deleted(13, "g", "h", 501),
        ];
        let level2 =
            ["b", "d", "f", "h"].map(|key| table(u64::from(key.as_bytes()[0]) - 90, key, key)).to_vec();
        let job = zap().next(&Tree::of(vec![vec![], level1, level2]), 1000).unwrap();
        assert_eq!(
            (&job.inputs[..], &job.overlapped[..]),
            (&[10, 11, 12][..], &[8, 10, 12][..]),
            "13 is due more than half a deadline later"
        );
    }

    #[test]
    fn a_forced_table_passes_levels_without_overlap_and_is_rewritten_in_the_lowest() {
        let level1 = vec![deleted(10, "a", "b", 0)];
        let levels = |level3| vec![vec![], level1.clone(), vec![table(2, "x", "y")], level3];
        let job = zap().next(&Tree::of(levels(vec![table(1, "a", "z")])), 1000).unwrap();
        assert_eq!((&job.inputs[..], &job.overlapped[..], job.target), (&[10][..], &[1][..], 3));
        let job = zap().next(&Tree::of(levels(vec![table(1, "p", "z")])), 1000).unwrap();
        assert_eq!((&job.inputs[..], job.target, job.is_trivial_move), (&[10][..], 1, false));
        let held = vec![TableView { is_held: true, ..level1[0] }];
        assert_eq!(zap().next(&Tree::of(vec![vec![], held]), 5000), None);
    }

    #[test]
    fn a_value_that_expires_later_forces_nothing_yet() {
        let tree = Tree::of(vec![vec![], vec![deleted(10, "a", "b", 9000)]]);
        let slow = compaction("zap", CompactionParameters { bytes_per_second: 1, ..parameters() }).unwrap();
        assert_eq!(slow.next(&tree, 9499), None, "a rewrite would keep the value");
        assert_eq!(slow.wakes_at(&tree), Some(9500));
        assert!(slow.next(&tree, 9500).is_some());
    }

    #[test]
    fn saturation_prefers_old_tombstones_many_of_them_and_zones_that_are_nearly_dead() {
        let keys = ["a", "b", "c", "d", "e"];
        let level2: Vec<_> =
            keys.iter().map(|key| table(u64::from(key.as_bytes()[0]) - 90, key, key)).collect();
        let chosen = |special: TableView<'static>| {
            let mut level1 = keys.map(|key| deleted(key.as_bytes()[0].into(), key, key, 0)).to_vec();
            level1[3] = TableView { id: 100, smallest: b"d", largest: b"d", ..special };
            let mut tree = Tree::of(vec![vec![], level1, level2.clone()]);
            let job = zap().next(&tree, 10).unwrap();
            assert_eq!(job.inputs.len(), 5, "neighbours go along");
            tree.is_short = true;
            zap().next(&tree, 10).unwrap().inputs
        };
        let same = deleted(0, "", "", 0);
        assert_eq!(chosen(same), [97], "of equals the oldest");
        assert_eq!(chosen(TableView { garbage: 0.9, ..same }), [100]);
        assert_eq!(chosen(TableView { tombstones: 9, ..same }), [100]);
        assert_eq!(chosen(TableView { oldest_tombstone: None, tombstones: 0, ..same }), [97]);
    }

    #[test]
    fn writers_that_wait_go_before_forced_jobs() {
        let level0: Vec<_> = (0..8).rev().map(|index| table(20 + index, "a", "z")).collect();
        let tree = |level0| Tree::of(vec![level0, vec![deleted(10, "a", "b", 0)], vec![table(1, "a", "z")]]);
        assert_eq!(zap().next(&tree(level0.clone()), 5000).unwrap().level, 0);
        assert_eq!(zap().next(&tree(level0[1..].to_vec()), 5000).unwrap().level, 1);
    }
}
