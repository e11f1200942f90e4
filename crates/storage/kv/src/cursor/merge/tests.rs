use super::*;
use crate::key_version::Value;
use crate::memory::memtable::Memtable;
use crate::model::{Entries, Said, Watched, complete, key, move_both, movement, said};
use block::Error;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::rc::Rc;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// A merge returns the union of its sources' entries, some of which are in several sources.
    #[test]
    fn is_the_union_of_its_sources(
        entries in proptest::collection::vec((key(), 0_u64..20, said(), 1_u8..32), 0..80),
        sources in 0_usize..6,
        moves in proptest::collection::vec(movement(21), 0..60),
    ) {
        let memtables: Vec<_> = (0..sources).map(|_| Rc::new(Memtable::with_capacity(0))).collect();
        let mut model = Entries::new();
        for (key, sequence, said, mask) in &entries {
            let said = model.get(&(key.clone(), Reverse(*sequence))).unwrap_or(said).clone();
            for (_, memtable) in memtables.iter().enumerate().filter(|(number, _)| mask >> number & 1 != 0) {
                memtable.insert(KeyVersion { key, sequence: *sequence, value: said.value() });
                model.insert((key.clone(), Reverse(*sequence)), said.clone());
            }
        }
        let mut merge = Merge::new(memtables.iter().map(Memtable::cursor).collect());
        let mut at = None;
        for movement in &moves {
            move_both(&mut merge, &model, &mut at, movement);
        }
    }
}

/// After an error of a source the cursor is at no entry, and a seek makes it usable.
#[test]
fn shows_nothing_after_an_error() {
    let memtables: Vec<_> = (0..3).map(|_| Rc::new(Memtable::with_capacity(0))).collect();
    for number in 0..30_u8 {
        let value = Value::Put { bytes: &[number], expires: None };
        memtables[usize::from(number % 3)].insert(KeyVersion { key: &[number], sequence: 1, value });
    }
    let cursors: Vec<_> = memtables.iter().map(|memtable| Watched::new(memtable.cursor())).collect();
    // Switch for failures of the cursor with key 10.
    let fails = Rc::clone(&cursors[1].fails);
    let mut merge = Merge::new(cursors);
    let at = |merge: &Merge<_>| Cursor::entry(merge).map(|entry| Said::of(entry.value));
    let value = |number: u8| Some(Said::Put(vec![number], None));

    for attempt in 0..4 {
        complete(merge.seek(&[10], 1)).unwrap();
        assert_eq!(at(&merge), value(10));
        fails.set(true);
        let result = match attempt {
            0 => complete(merge.next()),
            1 => complete(merge.previous()),
            2 => complete(merge.seek_last()),
            _ => complete(merge.seek_before(&[5], 1)),
        };
        assert_eq!(result, Err(Error::io("the drive is gone")));
        assert_eq!(at(&merge), None);
        complete(merge.next()).unwrap();
        assert_eq!(at(&merge), None);
        fails.set(false);
        complete(merge.seek_before(&[10], 1)).unwrap();
        assert_eq!(at(&merge), value(9));
    }
}
