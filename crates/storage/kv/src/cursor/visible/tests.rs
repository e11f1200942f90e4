use super::*;
use crate::cursor::merge::Merge;
use crate::key_version::RangeTombstone;
use crate::memory::memtable::{Memtable, MemtableCursor};
use crate::model::{KEYS, Watched, Write, complete, count_turns, divide, history, insert, key, state};
use proptest::prelude::*;
use proptest::sample::Index;
use std::cell::Cell;

type Pair = (Vec<u8>, Vec<u8>);

#[derive(Debug, Clone)]
enum Move {
    First,
    Last,
    Next,
    Previous,
    /// Inserts the next write of the history.
    Insert,
}

fn movement() -> impl Strategy<Value = Move> {
    prop_oneof![
        1 => Just(Move::First),
        1 => Just(Move::Last),
        5 => Just(Move::Next),
        5 => Just(Move::Previous),
        4 => Just(Move::Insert),
    ]
}

/// Cursor over the keys that a snapshot sees in these memtables, oldest first. Sources skip deleted ranges.
fn cursor(
    memtables: &[Rc<Memtable>],
    (snapshot, now): (Sequence, Timestamp),
    bounds: (Vec<u8>, Option<Vec<u8>>),
) -> Visible<Merge<Undeleted<MemtableCursor>>> {
    let ranges = memtables.iter().map(|memtable| memtable.range_tombstones()).collect();
    let view = View { snapshot, now, ranges };
    let mut newest = 0;
    let sources = memtables.iter().map(|memtable| {
        newest += (memtable.len() + memtable.range_tombstones().len()) as Sequence;
        Undeleted::new(memtable.cursor(), view.clone(), newest)
    });
    Visible::new(Merge::new(sources.collect()), view, bounds.0, bounds.1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// A snapshot sees the contents of a map after the writes up to it, in both directions, while later
    /// writes are inserted.
    #[test]
    fn is_a_map_of_the_past(
        history in history(120),
        places in proptest::collection::vec(any::<Index>(), 0..4),
        (at_first, snapshot) in (any::<Index>(), any::<Index>()),
        now in 0_u64..10,
        from in prop_oneof![Just(Vec::new()), key()],
        to in proptest::option::of(key()),
        moves in proptest::collection::vec(movement(), 0..80),
    ) {
        let history: Vec<_> = history.into_iter().filter(|write| !matches!(write, Write::Range { from, to, .. } if from >= to)).collect();
        let at_first = at_first.index(history.len() + 1);
        let snapshot = snapshot.index(at_first + 1) as Sequence;
        let memtables = divide(&history[..at_first], &places);
        let mut cursor = cursor(&memtables, (snapshot, now), (from.clone(), to.clone()));
        let mut later = (at_first..).zip(&history[at_first..]);

        let within = |key: &Vec<u8>| *key >= from && to.as_ref().is_none_or(|to| key < to);
        let pairs: Vec<Pair> = state(&history, snapshot, now).into_iter().filter(|(key, _)| within(key)).collect();
        let mut at: Option<usize> = None;
        for movement in &moves {
            let result = match movement {
                Move::First => { at = Some(0); complete(cursor.seek_first()) }
                Move::Last => { at = pairs.len().checked_sub(1); complete(cursor.seek_last()) }
                Move::Next => { at = at.map(|at| at + 1); complete(cursor.next()) }
                Move::Previous => { at = at.and_then(|at| at.checked_sub(1)); complete(cursor.previous()) }
                Move::Insert => {
                    if let Some((number, write)) = later.next() {
                        insert(memtables.last().unwrap(), write, number as Sequence + 1);
                    }
                    Ok(())
                }
            };
            prop_assert_eq!(result, Ok(()));
            at = at.filter(|at| *at < pairs.len());
            let expected = at.map(|at| (pairs[at].0.as_slice(), pairs[at].1.as_slice()));
            prop_assert_eq!(cursor.pair(), expected, "after {:?}", movement);
        }
    }

    /// Lookups in a set of range tombstones agree with linear searches, for any order of inserts.
    #[test]
    fn range_tombstones_cover_what_they_delete(
        ranges in proptest::collection::vec((key(), key(), 1_u64..12, 0_u64..3), 0..12),
        queries in proptest::collection::vec((key(), 0_u64..13, 0_u64..13), 1..40),
    ) {
        let tombstones = ranges.into_iter().map(|(from, to, sequence, deleted)| RangeTombstone { from, to, sequence, deleted });
        let tombstones: Vec<_> = tombstones.collect();
        let mut set = RangeTombstones::default();
        for tombstone in &tombstones {
            set.insert(tombstone.clone());
        }
        prop_assert_eq!(set.iter().collect::<Vec<_>>().len(), set.len());
        for (key, sequence, snapshot) in &queries {
            let deletes = |tombstone: &&RangeTombstone, key: &[u8]| {
                tombstone.sequence <= *snapshot && tombstone.deletes(key, *sequence)
            };
            let is_covered = |key: &[u8]| tombstones.iter().any(|tombstone| deletes(&tombstone, key));
            for set in [&set, &tombstones.iter().cloned().collect()] {
                let covers = set.covers(key, *sequence, *snapshot);
                prop_assert_eq!(covers.is_some(), is_covered(key));
                prop_assert!(covers.is_none_or(|tombstone| tombstones.contains(tombstone) && deletes(&tombstone, key)));
                let between = tombstones.iter().any(|other| {
                    other.from < other.to && (sequence + 1..=*snapshot).contains(&other.sequence)
                });
                prop_assert_eq!(set.has_between(*sequence, *snapshot), between);

                let skipped = set.skip_to(key, *sequence, *snapshot);
                prop_assert_eq!(skipped.is_some(), is_covered(key));
                if let Some(to) = skipped {
                    prop_assert!(!is_covered(to) && KEYS.iter().all(|other| *other < key.as_slice() || *other >= to || is_covered(other)));
                }
                let back = set.skip_back_to(key, *sequence, *snapshot);
                prop_assert_eq!(back.is_some(), is_covered(key));
                if let Some(from) = back {
                    prop_assert!(KEYS.iter().all(|other| *other < from || *other > key.as_slice() || is_covered(other)));
                }
            }
        }
    }
}

fn put(memtable: &Memtable, key: u32, sequence: Sequence) {
    let value = Value::Put { bytes: &sequence.to_be_bytes(), expires: None };
    memtable.insert(KeyVersion { key: &key.to_be_bytes(), sequence, value });
}

/// Cursor over a view of a memtable, and its number of movements.
fn counting(
    memtable: &Rc<Memtable>,
    view: &View,
    (newest, from): (Sequence, &[u8]),
) -> (Rc<Cell<usize>>, Visible<Undeleted<Watched<MemtableCursor>>>) {
    let source = Watched::new(memtable.cursor());
    let moves = Rc::clone(&source.moves);
    (moves, Visible::new(Undeleted::new(source, view.clone(), newest), view.clone(), from.to_vec(), None))
}

/// A scan over ten thousand tombstones yields to other tasks, in both directions.
#[test]
fn lets_others_run_among_tombstones() {
    let memtable = Rc::new(Memtable::with_capacity(0));
    for key in 0..10_000_u32 {
        memtable.insert(KeyVersion {
            key: &key.to_be_bytes(),
            sequence: 1,
            value: Value::Tombstone { deleted: 1 },
        });
    }
    put(&memtable, 10_000, 1);
    let view = View { snapshot: 1, now: 0, ranges: Vec::new() };
    let (_, mut cursor) = counting(&memtable, &view, (1, &[]));
    let (result, turns) = count_turns(cursor.seek_first());
    result.unwrap();
    assert_eq!(cursor.pair().unwrap().0, 10_000_u32.to_be_bytes());
    assert_eq!(turns, 10_000 / YIELD_AFTER as usize);
    let (result, turns) = count_turns(cursor.previous());
    result.unwrap();
    assert_eq!(cursor.pair(), None);
    assert_eq!(turns, 10_000 / YIELD_AFTER as usize);
}

/// A cursor skips a range that is deleted in a source, and old versions of a key.
#[test]
fn seeks_past_deleted_ranges_and_old_versions() {
    let memtable = Rc::new(Memtable::with_capacity(0));
    for key in 0..1000 {
        put(&memtable, key, 1);
    }
    let tombstone = |from: u32, to: u32| RangeTombstone {
        from: from.to_be_bytes().to_vec(),
        to: to.to_be_bytes().to_vec(),
        sequence: 2,
        deleted: 0,
    };
    let ranges = vec![Rc::new([tombstone(10, 500), tombstone(500, 990)].into_iter().collect())];
    let view = View { snapshot: 2, now: 0, ranges };
    let (moves, mut cursor) = counting(&memtable, &view, (1, &[]));
    let mut seen = 0;
    complete(cursor.seek_first()).unwrap();
    while cursor.pair().is_some() {
        seen += 1;
        complete(cursor.next()).unwrap();
    }
    assert_eq!((seen, moves.take()), (20, 22));
    complete(cursor.seek_last()).unwrap();
    while cursor.pair().is_some() {
        seen += 1;
        complete(cursor.previous()).unwrap();
    }
    assert_eq!((seen, moves.take()), (40, 23));

    for sequence in 2..1000 {
        put(&memtable, 5, sequence);
    }
    let view = View { snapshot: 500, now: 0, ranges: Vec::new() };
    let (moves, mut cursor) = counting(&memtable, &view, (999, &4_u32.to_be_bytes()));
    complete(cursor.seek_first()).unwrap();
    for key in [5, 6, 5, 4_u32] {
        let result = if cursor.pair().unwrap().0 < key.to_be_bytes().as_slice() {
            complete(cursor.next())
        } else {
            complete(cursor.previous())
        };
        result.unwrap();
        let sequence: Sequence = if key == 5 { 500 } else { 1 };
        assert_eq!(cursor.pair(), Some((key.to_be_bytes().as_slice(), sequence.to_be_bytes().as_slice())));
    }
    assert!(moves.get() < 60, "{} movements for 5 keys of 1003 versions", moves.get());
}
