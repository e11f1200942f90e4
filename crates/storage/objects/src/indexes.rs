//! Indexes of compressed pieces in memory: those that were used last, within a limit.
//!
//! # Promises
//! - All of them have at most [`MEMORY`], whatever the number of pieces and the length of their indexes.
//! - An index is read once for all reads that need it at the same time.
//!
//! Left to others: reads of indexes (`core::compressed`), and their bytes (`compression`).

use crate::compression::Index;
use crate::names::PieceName;
use runtime::sync::Notify;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

/// Bytes of memory: the indexes of 2600 pieces of 8 MiB.
const MEMORY: usize = 1 << 20;
/// Bytes of memory of an entry, about, without its index.
const ENTRY: usize = 112;

/// Indexes, by the names of their pieces, which are never used again.
#[derive(Clone, Default)]
pub(crate) struct Indexes(Rc<RefCell<Known>>);

#[derive(Default)]
struct Known {
    /// Indexes that were used since the last change of generations, and their bytes; older ones in `old`.
    young: BTreeMap<PieceName, Rc<Index>>,
    bytes: usize,
    old: BTreeMap<PieceName, Rc<Index>>,
    loading: BTreeMap<PieceName, Rc<Notify>>,
}

/// Outcome of a search for an index.
pub(crate) enum Lookup {
    Known(Rc<Index>),
    /// The caller reads it.
    Unknown(Loading),
    /// Another one reads it: the caller waits, and looks again.
    Loading(Rc<Notify>),
}

/// A read of an index. The next one begins when it is dropped.
pub(crate) struct Loading {
    indexes: Indexes,
    name: PieceName,
}

impl fmt::Debug for Indexes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} indexes", self.0.borrow().young.len())
    }
}

impl Known {
    fn insert(&mut self, name: PieceName, index: Rc<Index>) {
        let bytes = ENTRY + index.memory();
        if self.bytes + bytes > MEMORY / 2 {
            (self.old, self.bytes) = (std::mem::take(&mut self.young), 0);
        }
        if bytes <= MEMORY / 2 && self.young.insert(name, index).is_none() {
            self.bytes += bytes;
        }
    }
}

impl Indexes {
    /// Looks for the index of a piece.
    pub fn find(&self, name: &PieceName) -> Lookup {
        let known = &mut *self.0.borrow_mut();
        if let Some(index) = known.young.get(name) {
            return Lookup::Known(index.clone());
        }
        if let Some(index) = known.old.remove(name) {
            known.insert(*name, index.clone());
            return Lookup::Known(index);
        }
        if let Some(loading) = known.loading.get(name) {
            return Lookup::Loading(loading.clone());
        }
        known.loading.insert(*name, Rc::default());
        Lookup::Unknown(Loading { indexes: self.clone(), name: *name })
    }
}

impl Loading {
    /// Keeps the index that was read.
    pub fn keep(&self, index: Rc<Index>) {
        self.indexes.0.borrow_mut().insert(self.name, index);
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        let loading = self.indexes.0.borrow_mut().loading.remove(&self.name);
        loading.iter().for_each(|loading| loading.notify_all());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::Size;
    use crate::format::CHUNK;

    fn name(offset: u64) -> PieceName {
        PieceName { zone: 1, generation: 1, epoch: 1, offset, serial: 1 }
    }

    /// Index of 16 chunks of one byte.
    fn index() -> Rc<Index> {
        let chunks = vec![block::Data::copy_of(&[0]); 16];
        let index = Index::of(16 * CHUNK as u64, &chunks, false).unwrap();
        let size = Size { length: 16 * CHUNK as u64, compressed: index.object_length() as u32 };
        assert_eq!(Index::decode(&index.encode(), size, false), Ok(index));
        Rc::new(Index::of(16 * CHUNK as u64, &chunks, false).unwrap())
    }

    fn load(indexes: &Indexes, offset: u64) -> bool {
        match indexes.find(&name(offset)) {
            Lookup::Known(_) => false,
            Lookup::Unknown(loading) => {
                loading.keep(index());
                true
            }
            Lookup::Loading(_) => panic!("nothing is being read"),
        }
    }

    #[test]
    fn what_is_used_stays_and_memory_is_bounded() {
        let indexes = Indexes::default();
        assert!(load(&indexes, 0));
        for offset in 1..50_000 {
            assert!(load(&indexes, offset));
            assert!(!load(&indexes, 0), "used after each other one, at {offset}");
            let known = indexes.0.borrow();
            assert!((known.young.len() + known.old.len()) * (ENTRY + 32) <= MEMORY);
        }
        let kept = indexes.0.borrow().young.len() + indexes.0.borrow().old.len();
        assert!(kept > 2000, "{kept}");
        assert!(load(&indexes, 1), "one of the first");
    }

    #[test]
    fn one_read_at_a_time_and_another_one_after_a_failure() {
        let indexes = Indexes::default();
        let Lookup::Unknown(first) = indexes.find(&name(0)) else { panic!("it is known") };
        assert!(matches!(indexes.find(&name(0)), Lookup::Loading(_)));
        assert!(matches!(indexes.find(&name(1)), Lookup::Unknown(_)));
        drop(first);
        assert!(load(&indexes, 0));
        assert!(!load(&indexes, 0));
    }
}
