//! What holds for the jobs of every policy, in any tree.

use super::{Job, Tree};

/// Checks that a tree is in order.
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

/// Checks that a job keeps the order of a tree, by comparing each of its tables with each other one.
pub(super) fn check_job(tree: &Tree<'_>, job: &Job) {
    let first = job.inputs[0].level;
    let is_input = |level: usize, id: u64| {
        job.inputs.iter().any(|inputs| inputs.level == level && inputs.tables.contains(&id))
    };
    let mut range: Option<(&[u8], &[u8])> = None;
    for level in first..=job.target {
        for table in tree.level(level) {
            let overlaps = range.is_some_and(|(smallest, largest)| table.overlaps(smallest, largest));
            assert_eq!(
                level > first && overlaps,
                level > first && is_input(level, table.id),
                "level {level} of {job:?}"
            );
        }
        for table in tree.level(level).iter().filter(|table| is_input(level, table.id)) {
            let (smallest, largest) = range.unwrap_or((table.smallest, table.largest));
            range = Some((smallest.min(table.smallest), largest.max(table.largest)));
        }
    }
    let number: usize = job.inputs.iter().map(|inputs| inputs.tables.len()).sum();
    let found: usize = tree
        .levels
        .iter()
        .enumerate()
        .map(|(level, tables)| tables.iter().filter(|table| is_input(level, table.id)).count())
        .sum();
    assert_eq!(number, found, "inputs exist once: {job:?}");
    assert!(job.inputs.iter().all(|inputs| !inputs.tables.is_empty()), "{job:?}");
    if first == 0 {
        for table in tree.level(0).iter().filter(|table| !is_input(0, table.id)) {
            for input in tree.level(0).iter().filter(|input| is_input(0, input.id)) {
                assert!(
                    table.id > input.id || !table.overlaps(input.smallest, input.largest),
                    "an older table stays above: {job:?}"
                );
            }
        }
    }
    if job.is_trivial_move {
        assert!(job.inputs.len() == 1 && job.target > first && (first > 0 || number == 1), "{job:?}");
    }
}
