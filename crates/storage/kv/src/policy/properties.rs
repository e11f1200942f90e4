//! Properties of the jobs of all policies, in arbitrary trees; and trees for the tests of policies.

use super::{COMPACTIONS, CompactionParameters, Job, TableView, Tree, compaction};
use crate::key_version::Timestamp;
use proptest::prelude::*;
use std::time::Duration;

/// Returns a table of 100 bytes and 10 entries without tombstones.
pub(super) fn table<'a>(id: u64, smallest: &'a str, largest: &'a str) -> TableView<'a> {
    TableView {
        id,
        bytes: 100,
        smallest: smallest.as_bytes(),
        largest: largest.as_bytes(),
        entries: 10,
        tombstones: 0,
        oldest_tombstone: None,
        is_held: false,
        garbage: 0.0,
    }
}

/// Returns a table with a tombstone of time `oldest`.
pub(super) fn deleted<'a>(id: u64, smallest: &'a str, largest: &'a str, oldest: Timestamp) -> TableView<'a> {
    TableView { tombstones: 1, oldest_tombstone: Some(oldest), ..table(id, smallest, largest) }
}

/// Returns parameters with small levels and a deadline of 1000 ms.
pub(super) fn parameters() -> CompactionParameters {
    CompactionParameters {
        level_bytes: 400,
        delete_persistence: Some(Duration::from_secs(1)),
        reset_share: 0.0,
        bytes_per_second: 1_000_000,
        ..CompactionParameters::default()
    }
}

/// Checks the order of a tree.
pub(super) fn check_tree(tree: &Tree<'_>) {
    for (level, tables) in tree.levels.iter().enumerate() {
        for pair in tables.windows(2) {
            if level == 0 {
                assert!(pair[0].id > pair[1].id, "level 0 is in order of age");
            } else {
                assert!(pair[0].largest < pair[1].smallest, "level {level} doesn't overlap");
            }
        }
    }
}

/// Returns the participating tables of a job: its inputs, and those of the target level.
fn taken<'t, 'a>(tree: &'t Tree<'a>, job: &'t Job) -> (Vec<&'t TableView<'a>>, Vec<&'t TableView<'a>>) {
    let of = |level: usize, ids: &'t [u64]| {
        tree.level(level).iter().filter(|table| ids.contains(&table.id)).collect()
    };
    (of(job.level, &job.inputs), of(job.target, &job.overlapped))
}

/// Returns the smallest and the largest key of tables.
fn range<'a>(tables: &[&TableView<'a>]) -> (&'a [u8], &'a [u8]) {
    (
        tables.iter().map(|table| table.smallest).min().unwrap(),
        tables.iter().map(|table| table.largest).max().unwrap(),
    )
}

/// Checks the contract of jobs, by comparing each table with the inputs.
pub(super) fn check_job(tree: &Tree<'_>, job: &Job) {
    let (inputs, overlapped) = taken(tree, job);
    assert_eq!(
        (inputs.len(), overlapped.len()),
        (job.inputs.len(), job.overlapped.len()),
        "tables of the tree: {job:?}"
    );
    let (smallest, largest) = range(&inputs);
    for level in job.level + 1..=job.target {
        for table in tree.level(level) {
            let takes_part = level == job.target && job.overlapped.contains(&table.id);
            assert_eq!(
                table.overlaps(smallest, largest),
                takes_part,
                "table {} in level {level}: {job:?}",
                table.id
            );
        }
    }
    if job.level == 0 {
        assert!(job.target > 0, "level 0 is in order of age: {job:?}");
        for other in tree.level(0).iter().filter(|table| !job.inputs.contains(&table.id)) {
            let input = inputs.iter().find(|input| input.overlaps(other.smallest, other.largest));
            assert!(input.is_none_or(|input| input.id < other.id), "an older table stays above: {job:?}");
        }
    }
    if job.is_trivial_move {
        assert!(
            job.overlapped.is_empty() && job.target > job.level && (job.level > 0 || job.inputs.len() == 1),
            "{job:?}"
        );
    }
    if job.target == job.level {
        assert!(job.overlapped.is_empty() && job.inputs.len() == 1, "{job:?}");
    }
}

/// A table without contents.
#[derive(Debug, Clone)]
struct Owned {
    id: u64,
    smallest: [u8; 2],
    largest: [u8; 2],
    bytes: u64,
    oldest: Option<Timestamp>,
    is_held: bool,
}

impl Owned {
    fn view(&self) -> TableView<'_> {
        TableView {
            id: self.id,
            bytes: self.bytes,
            smallest: &self.smallest,
            largest: &self.largest,
            entries: 10,
            tombstones: u64::from(self.oldest.is_some()),
            oldest_tombstone: self.oldest,
            is_held: self.is_held,
            garbage: 0.5,
        }
    }
}

fn view(levels: &[Vec<Owned>]) -> Tree<'_> {
    Tree::of(levels.iter().map(|tables| tables.iter().map(Owned::view).collect()).collect())
}

/// Applies a job as if no entry hid another: its output is one table with the bytes of all its inputs.
fn apply(levels: &mut Vec<Vec<Owned>>, job: &Job, id: u64, now: Timestamp) {
    let is_lowest = {
        let tree = view(levels);
        let (mut tables, overlapped) = taken(&tree, job);
        tables.extend(overlapped);
        let (smallest, largest) = range(&tables);
        tree.next_overlapping(job.target, smallest, largest).is_none()
    };
    let mut chosen = Vec::new();
    for (level, ids) in [(job.level, &job.inputs), (job.target, &job.overlapped)] {
        let Some(level) = levels.get_mut(level) else { continue };
        let (taken, kept): (Vec<_>, Vec<_>) =
            std::mem::take(level).into_iter().partition(|table| ids.contains(&table.id));
        *level = kept;
        chosen.extend(taken);
    }
    levels.resize_with(levels.len().max(job.target + 1), Vec::new);
    if job.is_trivial_move {
        levels[job.target].extend(chosen);
    } else {
        let is_held = chosen.iter().any(|table| table.is_held);
        let oldest = chosen.iter().filter_map(|table| table.oldest);
        levels[job.target].push(Owned {
            id,
            smallest: chosen.iter().map(|table| table.smallest).min().unwrap(),
            largest: chosen.iter().map(|table| table.largest).max().unwrap(),
            bytes: chosen.iter().map(|table| table.bytes).sum(),
            // Values that expire later stay.
            oldest: oldest.filter(|&oldest| !is_lowest || is_held || oldest > now).min(),
            is_held,
        });
    }
    levels[job.target].sort_by_key(|table| table.smallest);
}

/// Present time of the properties; tombstones are up to twice as old as the deadline, or expire later.
const NOW: Timestamp = 10_000;

fn tables(most: usize) -> impl Strategy<Value = Vec<(u8, u8, u64, Option<Timestamp>, bool)>> {
    let oldest = proptest::option::of(NOW - 2000..NOW + 500);
    prop::collection::vec((any::<u8>(), 0..40_u8, 1..300_u64, oldest, prop::bool::weighted(0.1)), 0..most)
}

/// Arbitrary trees of up to five levels.
fn levels() -> impl Strategy<Value = Vec<Vec<Owned>>> {
    let drawn = (tables(9), prop::collection::vec(tables(20), 0..5));
    drawn.prop_map(|(level0, deeper)| {
        let mut id = 1000;
        let mut own = |level: usize, drawn: Vec<(u8, u8, u64, Option<Timestamp>, bool)>| {
            let mut tables: Vec<Owned> = Vec::new();
            let mut drawn = drawn;
            if level > 0 {
                drawn.sort_unstable();
            }
            for (start, width, bytes, oldest, is_held) in drawn {
                let (smallest, largest) = ([start, 0], [start.saturating_add(width), 0]);
                if level > 0 && tables.last().is_some_and(|last| last.largest >= smallest) {
                    continue;
                }
                id -= 1;
                let is_held = is_held && oldest.is_some();
                tables.push(Owned { id, smallest, largest, bytes, oldest, is_held });
            }
            tables
        };
        std::iter::once(level0).chain(deeper).enumerate().map(|(level, drawn)| own(level, drawn)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Jobs keep the order of the tree and terminate, and leave no level too full and no tombstone overdue.
    #[test]
    fn jobs_keep_the_order_and_come_to_an_end(first in levels(), level0_tables in 1..5_usize, multiplier in 2..5_u64) {
        for name in COMPACTIONS {
            let parameters = CompactionParameters { level0_tables, multiplier, level_bytes: 500, ..parameters() };
            let policy = compaction(name, parameters).unwrap();
            let mut levels = first.clone();
            let mut jobs = 0;
            loop {
                let tree = view(&levels);
                check_tree(&tree);
                let next = policy.next(&tree, NOW);
                let is_due = policy.wakes_at(&tree).is_some_and(|wake| wake <= NOW);
                prop_assert!(next.is_some() || !is_due, "{}: awake without a job in {:?}", name, levels);
                let Some(job) = next else { break };
                check_job(&tree, &job);
                jobs += 1;
                prop_assert!(jobs < 1000, "{}: no end, {:?} in {:?}", name, job, levels);
                apply(&mut levels, &job, 1000 + jobs, NOW);
            }
            let tree = view(&levels);
            prop_assert!(tree.level(0).len() < level0_tables, "{}: {:?}", name, levels);
            for level in 1..levels.len().min(parameters.levels - 1) {
                prop_assert!(tree.bytes(level) <= 500 * multiplier.pow(level as u32 - 1), "{}: {:?}", name, levels);
            }
            if name == "saturation" {
                continue;
            }
            for (level, tables) in tree.levels.iter().enumerate() {
                for table in tables.iter().filter(|table| table.oldest_tombstone.is_some_and(|oldest| oldest + 1000 <= NOW)) {
                    let is_lowest = tree.next_overlapping(level, table.smallest, table.largest).is_none();
                    prop_assert!(table.is_held && is_lowest && level > 0, "{}: overdue in {:?}", name, levels);
                }
            }
        }
    }

    /// No job is forced before a policy's wake time, and one is forced then.
    #[test]
    fn policies_wake_when_a_job_is_due(levels in levels()) {
        let tree = view(&levels);
        for name in ["fade", "zap"] {
            let parameters = CompactionParameters { level0_tables: 100, level_bytes: 1 << 40, ..parameters() };
            let policy = compaction(name, parameters).unwrap();
            match policy.wakes_at(&tree) {
                Some(wake) => {
                    prop_assert_eq!(policy.next(&tree, wake.saturating_sub(1)), None, "{}", name);
                    prop_assert!(policy.next(&tree, wake).is_some(), "{}", name);
                }
                None => prop_assert_eq!(policy.next(&tree, 10 * NOW), None, "{}", name),
            }
        }
    }
}
