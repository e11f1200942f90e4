//! Models for tests of memtables, cursors and retention: histories of writes, and entries in a map.

use crate::cursor::Cursor;
use crate::key_version::{KeyVersion, RangeTombstone, Sequence, Timestamp, Value};
use crate::memory::memtable::Memtable;
use block::{Error, Result};
use proptest::prelude::*;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Ordered keys of all kinds: with zeros, with long common prefixes, and prefixes of others.
pub const KEYS: [&[u8]; 12] = [
    b"",
    b"\0",
    b"a",
    b"a\0",
    b"a\0\0\0\0\0\0\0\0\0\0\0\0",
    b"aa",
    b"key of eighteen 01",
    b"key of eighteen 02",
    b"key of eigh",
    b"key of eight",
    b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
    b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
];

/// One of [`KEYS`]; some are drawn more often and get many versions.
pub fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![3 => 0..KEYS.len(), 2 => 6..8_usize].prop_map(|number| KEYS[number].to_vec())
}

/// Runs a future that waits for nothing except yields.
pub fn complete<F: Future>(future: F) -> F::Output {
    count_turns(future).0
}

/// Runs such a future, and returns the number of its yields.
pub fn count_turns<F: Future>(future: F) -> (F::Output, usize) {
    let mut future = pin!(future);
    let mut turns = 0;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return (output, turns);
        }
        turns += 1;
    }
}

/// Owned content of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Put(Vec<u8>, Option<Timestamp>),
    Tombstone(Timestamp),
}

impl Said {
    pub fn value(&self) -> Value<'_> {
        match self {
            Said::Put(bytes, expires) => Value::Put { bytes, expires: *expires },
            Said::Tombstone(deleted) => Value::Tombstone { deleted: *deleted },
        }
    }

    pub fn of(value: Value<'_>) -> Said {
        match value {
            Value::Put { bytes, expires } => Said::Put(bytes.to_vec(), expires),
            Value::Tombstone { deleted } => Said::Tombstone(deleted),
        }
    }
}

/// Values, tombstones and expiring values, with times up to 9.
pub fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        3 => value().prop_map(|bytes| Said::Put(bytes, None)),
        1 => (value(), 0_u64..10).prop_map(|(bytes, expires)| Said::Put(bytes, Some(expires))),
        2 => (0_u64..10).prop_map(Said::Tombstone),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    (any::<u8>(), prop_oneof![8 => 0_usize..20, 1 => Just(4096_usize), 1 => Just(4097_usize)])
        .prop_map(|(byte, length)| vec![byte; length])
}

/// Entries in the order of cursors.
pub type Entries = BTreeMap<(Vec<u8>, Reverse<Sequence>), Said>;

/// A movement of a cursor.
#[derive(Debug, Clone)]
pub enum Move {
    First,
    Last,
    Seek(Vec<u8>, Sequence),
    Before(Vec<u8>, Sequence),
    Next,
    Previous,
}

/// Movements, with sequences below `limit`.
pub fn movement(limit: Sequence) -> impl Strategy<Value = Move> {
    prop_oneof![
        1 => Just(Move::First),
        1 => Just(Move::Last),
        2 => (key(), 0..limit).prop_map(|(key, sequence)| Move::Seek(key, sequence)),
        2 => (key(), 0..limit).prop_map(|(key, sequence)| Move::Before(key, sequence)),
        6 => Just(Move::Next),
        6 => Just(Move::Previous),
    ]
}

/// Moves a cursor, and a position in the model in the same way, and compares their entries.
pub fn move_both<C: Cursor>(
    cursor: &mut C,
    model: &Entries,
    at: &mut Option<(Vec<u8>, Reverse<Sequence>)>,
    movement: &Move,
) {
    let first_from = |from| model.range::<(Vec<u8>, Reverse<Sequence>), _>((from, Bound::Unbounded)).next();
    let last_to = |to| model.range::<(Vec<u8>, Reverse<Sequence>), _>((Bound::Unbounded, to)).next_back();
    let (result, expected) = match movement {
        Move::First => (complete(cursor.seek_first()), first_from(Bound::Unbounded)),
        Move::Last => (complete(cursor.seek_last()), last_to(Bound::Unbounded)),
        Move::Seek(key, sequence) => (
            complete(cursor.seek(key, *sequence)),
            first_from(Bound::Included(&(key.clone(), Reverse(*sequence)))),
        ),
        Move::Before(key, sequence) => (
            complete(cursor.seek_before(key, *sequence)),
            last_to(Bound::Excluded(&(key.clone(), Reverse(*sequence)))),
        ),
        Move::Next => (complete(cursor.next()), at.as_ref().and_then(|at| first_from(Bound::Excluded(at)))),
        Move::Previous => {
            (complete(cursor.previous()), at.as_ref().and_then(|at| last_to(Bound::Excluded(at))))
        }
    };
    result.unwrap();
    let found =
        cursor.entry().map(|entry| ((entry.key.to_vec(), Reverse(entry.sequence)), Said::of(entry.value)));
    assert_eq!(found, expected.map(|(at, said)| (at.clone(), said.clone())), "{movement:?} from {at:?}");
    *at = expected.map(|(at, _)| at.clone());
}

/// A cursor that counts its movements, and fails on request.
pub struct Watched<C> {
    cursor: C,
    pub moves: Rc<Cell<usize>>,
    pub fails: Rc<Cell<bool>>,
}

impl<C: Cursor> Watched<C> {
    pub fn new(cursor: C) -> Self {
        Watched { cursor, moves: Rc::default(), fails: Rc::default() }
    }

    fn count(&self) -> Result<()> {
        self.moves.update(|moves| moves + 1);
        if self.fails.get() { Err(Error::io("the drive is gone")) } else { Ok(()) }
    }
}

impl<C: Cursor> Cursor for Watched<C> {
    fn entry(&self) -> Option<KeyVersion<'_>> {
        self.cursor.entry()
    }
    async fn seek_first(&mut self) -> Result<()> {
        self.count()?;
        self.cursor.seek_first().await
    }
    async fn seek_last(&mut self) -> Result<()> {
        self.count()?;
        self.cursor.seek_last().await
    }
    async fn seek(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        self.count()?;
        self.cursor.seek(key, sequence).await
    }
    async fn seek_before(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        self.count()?;
        self.cursor.seek_before(key, sequence).await
    }
    async fn next(&mut self) -> Result<()> {
        self.count()?;
        self.cursor.next().await
    }
    async fn previous(&mut self) -> Result<()> {
        self.count()?;
        self.cursor.previous().await
    }
}

/// A write.
#[derive(Debug, Clone)]
pub enum Write {
    Entry(Vec<u8>, Said),
    Range { from: Vec<u8>, to: Vec<u8>, deleted: Timestamp },
}

/// Histories of writes; the sequence of a write is its number, from 1.
pub fn history(most: usize) -> impl Strategy<Value = Vec<Write>> {
    let write = prop_oneof![
        6 => (key(), said()).prop_map(|(key, said)| Write::Entry(key, said)),
        1 => (key(), key(), 0_u64..10).prop_map(|(from, to, deleted)| Write::Range { from, to, deleted }),
    ];
    proptest::collection::vec(write, 0..most)
}

/// Contents of a store after the writes up to a snapshot.
pub fn state(history: &[Write], snapshot: Sequence, now: Timestamp) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut map = BTreeMap::new();
    for write in &history[..history.len().min(usize::try_from(snapshot).unwrap())] {
        match write {
            Write::Entry(key, said) => {
                map.insert(key.clone(), said.clone());
            }
            Write::Range { from, to, .. } => map.retain(|key, _| !(from <= key && key < to)),
        }
    }
    let live = |said| match said {
        Said::Put(bytes, expires) if expires.is_none_or(|expires| now < expires) => Some(bytes),
        _ => None,
    };
    map.into_iter().filter_map(|(key, said)| Some((key, live(said)?))).collect()
}

/// Inserts a write into a memtable.
pub fn insert(memtable: &Memtable, write: &Write, sequence: Sequence) {
    match write {
        Write::Entry(key, said) => {
            assert!(memtable.insert(KeyVersion { key, sequence, value: said.value() }));
        }
        Write::Range { from, to, deleted } => {
            let (from, to) = (from.clone(), to.clone());
            let is_empty = from >= to;
            let inserted =
                memtable.insert_range_tombstone(RangeTombstone { from, to, sequence, deleted: *deleted });
            assert_eq!(inserted, !is_empty);
        }
    }
}

/// Divides a history among memtables at these indices; the first one gets the oldest writes.
pub fn divide(history: &[Write], places: &[prop::sample::Index]) -> Vec<Rc<Memtable>> {
    let mut cuts: Vec<usize> = places.iter().map(|place| place.index(history.len() + 1)).collect();
    cuts.extend([0, history.len()]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|cut| {
            let memtable = Rc::new(Memtable::with_capacity(0));
            for (sequence, write) in (cut[0] as Sequence + 1..).zip(&history[cut[0]..cut[1]]) {
                insert(&memtable, write, sequence);
            }
            memtable
        })
        .collect()
}
