use super::*;
use crate::model::{Entries, KEYS, Said, Write, history, state};
use proptest::prelude::*;
use proptest::sample::Index;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Entries and range tombstones of a level.
#[derive(Debug, Clone, Default)]
struct Level {
    entries: Entries,
    ranges: Vec<RangeTombstone>,
}

impl Level {
    fn has(&self, key: &[u8]) -> bool {
        self.entries.keys().any(|(other, _)| other == key)
    }

    fn has_within(&self, range: &RangeTombstone) -> bool {
        self.entries.keys().any(|(key, _)| range.from <= *key && *key < range.to)
    }

    /// Sequences and times of a key's tombstones.
    fn tombstones(&self, of: &[u8]) -> Vec<(Sequence, Timestamp)> {
        let tombstone = |((key, sequence), said): (&(Vec<u8>, Reverse<Sequence>), &Said)| match said {
            Said::Tombstone(deleted) if key == of => Some((sequence.0, *deleted)),
            _ => None,
        };
        self.entries.iter().filter_map(tombstone).collect()
    }

    /// Sequences of the values of a key.
    fn values(&self, of: &[u8]) -> Vec<Sequence> {
        let value = |((key, sequence), said): (&(Vec<u8>, Reverse<Sequence>), &Said)| {
            (key == of && matches!(said, Said::Put(..))).then_some(sequence.0)
        };
        self.entries.iter().filter_map(value).collect()
    }
}

/// Divides a history among levels, newest first.
fn divide(history: &[Write], places: &[Index]) -> Vec<Level> {
    let mut levels = vec![Level::default(); places.len() + 1];
    let mut cuts: Vec<usize> = places.iter().map(|place| place.index(history.len() + 1)).collect();
    cuts.sort_unstable();
    for (number, write) in history.iter().enumerate() {
        let level = &mut levels[places.len() - cuts.partition_point(|cut| *cut <= number)];
        let sequence = number as Sequence + 1;
        match write.clone() {
            Write::Entry(key, said) => {
                level.entries.insert((key, Reverse(sequence)), said);
            }
            Write::Range { from, to, deleted } if from < to => {
                level.ranges.push(RangeTombstone { from, to, sequence, deleted });
            }
            Write::Range { .. } => {}
        }
    }
    levels
}

/// Keys and values that a snapshot sees in levels.
fn seen(levels: &[Level], snapshot: Sequence, now: Timestamp) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let newest = |key: &[u8]| {
        // The first level with a version has the newest one.
        let of_key = |level: &Level| {
            let mut range = level.entries.range((key.to_vec(), Reverse(snapshot))..);
            range
                .next()
                .filter(|((other, _), _)| other == key)
                .map(|((_, sequence), said)| (sequence.0, said.clone()))
        };
        let (sequence, said) = levels.iter().find_map(of_key)?;
        let ranges = levels.iter().flat_map(|level| &level.ranges);
        let is_deleted =
            ranges.filter(|range| range.sequence <= snapshot).any(|range| range.deletes(key, sequence));
        match said {
            Said::Put(bytes, expires) if !is_deleted && expires.is_none_or(|expires| expires > now) => {
                Some(bytes)
            }
            _ => None,
        }
    };
    KEYS.iter().filter_map(|key| Some((key.to_vec(), newest(key)?))).collect()
}

/// Merges levels into one.
fn compact(
    levels: &[Level],
    snapshots: &[Sequence],
    shallower: &[Level],
    now: Timestamp,
    is_bottom: impl Fn(&[u8]) -> bool,
    is_bottom_range: impl Fn(&RangeTombstone) -> bool,
) -> Level {
    let ranges = levels.iter().flat_map(|level| level.ranges.clone());
    let more = shallower.iter().flat_map(|level| level.ranges.clone());
    let mut retention = Retention::new(snapshots.to_vec(), ranges.clone().chain(more), now, true);
    let mut written = Vec::new();
    let write =
        |entry: KeyVersion<'_>| ((entry.key.to_vec(), Reverse(entry.sequence)), Said::of(entry.value));
    let merged: Entries = levels.iter().flat_map(|level| level.entries.clone()).collect();
    for ((key, sequence), said) in &merged {
        let entry = KeyVersion { key, sequence: sequence.0, value: said.value() };
        written.extend(retention.feed(entry, &is_bottom).map(write));
    }
    written.extend(retention.finish().map(write));
    assert!(written.is_sorted_by(|left, right| left.0 < right.0), "out of order: {written:?}");
    let ranges = ranges.filter(|range| retention.keeps_range(range, is_bottom_range(range))).collect();
    Level { entries: written.into_iter().collect(), ranges }
}

/// Checks that the deletions of the merged levels become persistent by their deadlines: each older version
/// that is left has a tombstone above it with the same deadline.
fn assert_deadlines(key: &[u8], merged: &[Level], output: &Level, deeper: &[Level]) {
    let left: Vec<Sequence> =
        output.values(key).into_iter().chain(deeper.iter().flat_map(|level| level.values(key))).collect();
    for (sequence, deleted) in merged.iter().flat_map(|level| level.tombstones(key)) {
        for older in left.iter().filter(|older| **older < sequence) {
            let drives = |&(sequence, time): &(Sequence, Timestamp)| sequence > *older && time <= deleted;
            assert!(
                output.tombstones(key).iter().any(drives),
                "{key:?} {older} deleted by {sequence}: {output:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Compactions of consecutive levels don't change what snapshots see, and drop what they must.
    #[test]
    fn keeps_what_snapshots_see(
        history in history(80),
        places in proptest::collection::vec(any::<Index>(), 0..5),
        snapshots in proptest::collection::vec(any::<Index>(), 0..4),
        compactions in proptest::collection::vec(
            (any::<Index>(), any::<Index>(), proptest::bits::u16::ANY, any::<bool>(), 0_usize..2, 0_u64..5), 0..5,
        ),
    ) {
        let mut levels = divide(&history, &places);
        let mut snapshots: Vec<Sequence> = snapshots.iter().map(|index| index.index(history.len() + 1) as Sequence).collect();
        let mut now = 0;
        for (first, last, known, with_shallower, released, passed) in compactions {
            snapshots.truncate(snapshots.len() - released.min(snapshots.len()));
            now += passed;
            let first = first.index(levels.len());
            let last = first + last.index(levels.len() - first);
            let (shallower, merged, deeper) = (&levels[..first], &levels[first..=last], &levels[last + 1..]);
            let knows = |key: &[u8]| known >> KEYS.iter().position(|other| *other == key).unwrap() & 1 != 0;
            let is_bottom = |key: &[u8]| knows(key) && !deeper.iter().any(|level| level.has(key));
            let output = compact(
                merged,
                &snapshots,
                if with_shallower { shallower } else { &[] },
                now,
                is_bottom,
                |range| knows(&range.from) && !deeper.iter().any(|level| level.has_within(range)),
            );
            for key in KEYS {
                assert_deadlines(key, merged, &output, deeper);
                let (values, tombstones) = (output.values(key), output.tombstones(key));
                prop_assert!(values.len() <= snapshots.len() + 1);
                prop_assert!(tombstones.len() <= values.len() + 1);
                if is_bottom(key) {
                    prop_assert!(tombstones.iter().all(|(sequence, _)| values.iter().any(|value| value < sequence)));
                }
                for (sequence, said) in output.entries.iter().filter(|((other, _), _)| other == key).map(|((_, sequence), said)| (sequence.0, said)) {
                    let Said::Put(_, expires) = said else { continue };
                    prop_assert!(expires.is_none_or(|expires| expires > now));
                    let newer = snapshots.iter().copied().filter(|snapshot| *snapshot >= sequence).min();
                    prop_assert!(values.iter().all(|other| *other <= sequence || newer.is_some_and(|newer| *other > newer)));
                }
            }
            levels.splice(first..=last, [output]);
            for now in [now, now + 3] {
                for snapshot in snapshots.iter().copied().chain([history.len() as Sequence]) {
                    prop_assert_eq!(seen(&levels, snapshot, now), state(&history, snapshot, now));
                }
            }
        }

        // Persistent deletes.
        let output = compact(&levels, &[], &[], now, |_| true, |_| true);
        prop_assert!(output.ranges.is_empty());
        let left: Vec<_> = output.entries.into_iter().map(|((key, _), said)| match said {
            Said::Put(bytes, expires) => (key, bytes, expires.is_some_and(|expires| expires <= now)),
            Said::Tombstone(_) => panic!("a tombstone of {key:?} is left"),
        }).collect();
        let live: Vec<_> = state(&history, Sequence::MAX, now).into_iter().map(|(key, bytes)| (key, bytes, false)).collect();
        prop_assert_eq!(left, live);
    }
}

const PUT: Said = Said::Put(Vec::new(), None);

/// Feeds the versions of a key, and returns those that are kept.
fn kept(versions: &[(Sequence, Said)], snapshots: &[Sequence], is_bottom: bool) -> Vec<(Sequence, Said)> {
    kept_with(versions, snapshots, is_bottom, true)
}

fn kept_with(
    versions: &[(Sequence, Said)],
    snapshots: &[Sequence],
    is_bottom: bool,
    has_deadline: bool,
) -> Vec<(Sequence, Said)> {
    let mut retention = Retention::new(snapshots.to_vec(), [], 50, has_deadline);
    let mut kept = Vec::new();
    let write = |entry: KeyVersion<'_>| (entry.sequence, Said::of(entry.value));
    for (sequence, said) in versions {
        let entry = KeyVersion { key: b"key", sequence: *sequence, value: said.value() };
        kept.extend(retention.feed(entry, |_| is_bottom).map(write));
    }
    kept.extend(retention.finish().map(write));
    kept
}

/// A value that was deleted and written again keeps the tombstone; without it the version below would have no
/// deadline.
#[test]
fn a_hidden_tombstone_keeps_its_deadline() {
    let versions = [(9, PUT), (8, Said::Tombstone(30)), (7, PUT), (6, Said::Tombstone(20)), (5, PUT)];
    assert_eq!(kept(&versions, &[], false), [(9, PUT), (6, Said::Tombstone(20))]);
    assert_eq!(kept(&versions, &[], true), [(9, PUT)]);
    // A snapshot keeps version 5 until its release; then the tombstone causes a timely drop.
    assert_eq!(kept(&versions, &[5], true), [(9, PUT), (6, Said::Tombstone(20)), (5, PUT)]);
    assert_eq!(kept(&versions, &[7], true), [(9, PUT), (8, Said::Tombstone(30)), (7, PUT)]);
    assert_eq!(
        kept(&versions, &[7], false),
        [(9, PUT), (8, Said::Tombstone(30)), (7, PUT), (6, Said::Tombstone(20))]
    );
}

/// Above the bottom, an expired value becomes a tombstone with the time of its expiry; at the bottom it is
/// dropped.
#[test]
fn an_expired_value_becomes_a_tombstone() {
    let expires = |at| Said::Put(Vec::new(), Some(at));
    assert_eq!(kept(&[(2, expires(50)), (1, PUT)], &[], false), [(2, Said::Tombstone(50))]);
    assert_eq!(kept(&[(2, expires(50)), (1, PUT)], &[], true), []);
    assert_eq!(kept(&[(2, expires(50)), (1, PUT)], &[1], true), [(2, Said::Tombstone(50)), (1, PUT)]);
    assert_eq!(kept(&[(2, expires(51)), (1, PUT)], &[], true), [(2, expires(51))]);
    // The value may have expired before it was overwritten.
    let overwritten = [(3, PUT), (2, expires(50)), (1, PUT)];
    assert_eq!(kept(&overwritten, &[], false), [(3, PUT), (2, Said::Tombstone(50))]);
    assert_eq!(kept_with(&overwritten, &[], false, false), [(3, PUT)], "without a deadline");
}
