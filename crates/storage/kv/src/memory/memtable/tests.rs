use super::*;
use crate::model::{Entries, Move, Said, complete, key, move_both, movement, said};
use proptest::prelude::*;
use std::cmp::Reverse;

#[derive(Debug, Clone)]
enum Step {
    Insert(Vec<u8>, Sequence, Said),
    Move(Move),
    Get(Vec<u8>, Sequence),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (key(), 0_u64..60, said()).prop_map(|(key, sequence, said)| Step::Insert(key, sequence, said)),
        6 => movement(61).prop_map(Step::Move),
        1 => (key(), 0_u64..61).prop_map(|(key, sequence)| Step::Get(key, sequence)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// A cursor finds entries that are inserted before and between its steps, and so does `get`.
    #[test]
    fn is_a_sorted_map(steps in proptest::collection::vec(step(), 0..400)) {
        let memtable = Rc::new(Memtable::with_capacity(0));
        let mut cursor = memtable.cursor();
        let (mut model, mut at) = (Entries::new(), None);
        for step in &steps {
            match step {
                Step::Insert(key, sequence, said) => {
                    let is_new = !model.contains_key(&(key.clone(), Reverse(*sequence)));
                    model.entry((key.clone(), Reverse(*sequence))).or_insert_with(|| said.clone());
                    prop_assert_eq!(memtable.insert(KeyVersion { key, sequence: *sequence, value: said.value() }), is_new);
                }
                Step::Move(movement) => move_both(&mut cursor, &model, &mut at, movement),
                Step::Get(key, snapshot) => {
                    let expected = model.range((key.clone(), Reverse(*snapshot))..).next().filter(|(at, _)| at.0 == *key);
                    let found = memtable.get(key, *snapshot, |entry| {
                        entry.map(|entry| ((entry.key.to_vec(), Reverse(entry.sequence)), Said::of(entry.value)))
                    });
                    prop_assert_eq!(found, expected.map(|(at, said)| (at.clone(), said.clone())));
                }
            }
        }
        prop_assert_eq!(memtable.len(), model.len());
        let times = |expiry: bool| model.values().filter_map(move |said| match said {
            Said::Put(_, expires) if expiry => *expires,
            Said::Tombstone(deleted) if !expiry => Some(*deleted),
            _ => None,
        });
        prop_assert_eq!(memtable.tombstones(), times(false).count());
        prop_assert_eq!(memtable.oldest_tombstone(), times(false).min());
        prop_assert_eq!(memtable.earliest_expiry(), times(true).min());
    }
}

/// Keys that are inserted in ascending, descending and mixed order are found; the index gets many levels.
#[test]
fn holds_many_entries() {
    for order in [|n: u32| n, |n: u32| 9_999 - n, |n: u32| n * 7_919 % 10_000] {
        let memtable = Rc::new(Memtable::with_capacity(0));
        for number in 0..10_000 {
            let key = order(number).to_be_bytes();
            memtable.insert(KeyVersion {
                key: &key,
                sequence: 1,
                value: Value::Put { bytes: &key, expires: None },
            });
        }
        let mut cursor = memtable.cursor();
        complete(cursor.seek_first()).unwrap();
        for number in 0..10_000_u32 {
            let key = number.to_be_bytes();
            let entry =
                KeyVersion { key: &key, sequence: 1, value: Value::Put { bytes: &key, expires: None } };
            assert_eq!(cursor.entry(), Some(entry));
            assert!(memtable.get(&key, 1, |found| found == Some(entry)));
            assert!(memtable.get(&key, 0, |found| found.is_none()));
            complete(cursor.next()).unwrap();
        }
        assert_eq!(cursor.entry(), None);
    }
}

/// The counted memory includes the arena, large values and tombstones.
#[test]
fn counts_its_memory() {
    let memtable = Memtable::with_capacity(1 << 20);
    assert!(memtable.is_empty());
    let insert = |sequence, value| {
        let before = memtable.bytes();
        memtable.insert(KeyVersion { key: b"sixteen byte key", sequence, value });
        memtable.bytes() - before
    };
    let small: Vec<_> =
        (0..1000).map(|number| insert(number, Value::Put { bytes: &[7; 100], expires: None })).collect();
    let mean = small.iter().sum::<usize>() / small.len();
    assert!((150..180).contains(&mean), "{mean} bytes for an entry of 116");
    assert!((100_000..100_200).contains(&insert(1000, Value::Put { bytes: &[7; 100_000], expires: None })));
    assert!(insert(1001, Value::Tombstone { deleted: 5 }) >= 40);

    let before = memtable.bytes();
    let range = RangeTombstone { from: vec![1; 100], to: vec![2; 100], sequence: 1002, deleted: 3 };
    assert!(memtable.insert_range_tombstone(range.clone()));
    assert!(!memtable.insert_range_tombstone(range.clone()));
    assert!(memtable.bytes() >= before + 600);
    assert_eq!(memtable.oldest_tombstone(), Some(3));
    assert_eq!(memtable.tombstones(), 2);

    let held = memtable.range_tombstones();
    assert!(memtable.insert_range_tombstone(RangeTombstone { sequence: 1003, ..range.clone() }));
    assert_eq!(held.iter().collect::<Vec<_>>(), [&range], "a set that is held doesn't change");
    assert_eq!(memtable.range_tombstones().len(), 2);
}

/// Measures processor time in nanoseconds of inserts of random and ascending keys, lookups, and steps of a
/// cursor, in a memtable of
/// 64 MiB. `cargo test --release -p siltstone-kv --lib memtable::tests::speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn speed() {
    const ENTRIES: u64 = 420_000;
    for (name, spread) in [("random", 0x9E37_79B9_7F4A_7C15_u64), ("rising", 1)] {
        for text in [false, true] {
            let keys: Vec<[u8; 16]> = (1..=ENTRIES)
                .map(|number| {
                    let mixed = number.wrapping_mul(spread);
                    let mut key = *b"user000000000000";
                    if text {
                        key[4..].copy_from_slice(format!("{:012}", mixed % 1_000_000_000_000).as_bytes());
                    } else {
                        key[..8].copy_from_slice(&mixed.to_be_bytes());
                    }
                    key
                })
                .collect();
            let timed = |what: &str, run: &mut dyn FnMut()| {
                let start = runtime::thread_cpu_time();
                run();
                let nanoseconds = (runtime::thread_cpu_time() - start).as_nanos() as u64 / ENTRIES;
                println!("{name} keys, text {text}: {nanoseconds} ns for {what}");
            };
            let memtable = Rc::new(Memtable::with_capacity(72 << 20));
            timed("an insert", &mut || {
                for (sequence, key) in keys.iter().enumerate() {
                    let value = Value::Put { bytes: &[9; 100], expires: None };
                    memtable.insert(KeyVersion { key, sequence: sequence as u64, value });
                }
            });
            println!("{} bytes, {} entries", memtable.bytes(), memtable.len());
            let mut found = 0;
            timed("a lookup", &mut || {
                for key in keys.iter().rev() {
                    found +=
                        memtable.get(key, Sequence::MAX, |entry| entry.map_or(0, |entry| entry.key.len()));
                }
            });
            let mut cursor = memtable.cursor();
            timed("a step", &mut || {
                complete(cursor.seek_first()).unwrap();
                while let Some(entry) = cursor.entry() {
                    found += entry.key.len();
                    complete(cursor.next()).unwrap();
                }
            });
            timed("a step back", &mut || {
                complete(cursor.seek_last()).unwrap();
                while let Some(entry) = cursor.entry() {
                    found += entry.key.len();
                    complete(cursor.previous()).unwrap();
                }
            });
            assert_eq!(found as u64, ENTRIES * 48);
            drop(cursor);
            let start = runtime::thread_cpu_time();
            drop(memtable);
            println!("{:?} for freeing all", runtime::thread_cpu_time() - start);
        }
    }
}
