//! Tests of tables against a sorted list: gets at snapshots, and all operations of cursors.

use super::*;
use crate::key_version::order;
use crate::model::{Entries, Move, Said, move_both};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use std::cmp::Reverse;

/// A key and sequence: those of an entry, modified ones, or arbitrary ones.
#[derive(Debug, Clone)]
struct Target {
    entry: Index,
    change: u8,
    other: (Vec<u8>, u64),
}

/// Keys that are equal, prefixes of others, or differ in few bytes.
fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(prop::sample::select(&b"\x00ab\xFF"[..]), 0..6),
        2 => (vec(prop::sample::select(&b"ab"[..]), 0..4), 0usize..40).prop_map(|(end, length)| [vec![b'p'; length], end].concat()),
        1 => vec(any::<u8>(), 0..300),
    ]
}

fn said() -> impl Strategy<Value = Said> {
    let bytes = prop_oneof![
        vec(any::<u8>(), 0..40),
        (any::<u8>(), 0usize..600).prop_map(|(byte, count)| vec![byte; count])
    ];
    prop_oneof![
        3 => (bytes, proptest::option::of(any::<u64>())).prop_map(|(bytes, expires)| Said::Put(bytes, expires)),
        1 => any::<u64>().prop_map(Said::Tombstone),
    ]
}

fn sequences() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..6, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

fn targets() -> impl Strategy<Value = Target> {
    (any::<Index>(), 0u8..6, (keys(), sequences())).prop_map(|(entry, change, other)| Target {
        entry,
        change,
        other,
    })
}

/// Movements as numbers: to a first or last entry, to a target, and to a next or previous entry.
fn steps() -> impl Strategy<Value = (u8, Target)> {
    (0u8..24, targets())
}

fn options() -> impl Strategy<Value = (Options, usize)> {
    let compression = prop_oneof![Just(Compression::None), Just(Compression::Lz4)];
    (1usize..600, compression, prop_oneof![Just(0u32), 1u32..40], any::<u32>(), 1usize..400).prop_map(
        |(block_bytes, compression, filter_bits, salt, leaf_bytes)| {
            (Options { block_bytes, compression, filter_bits, salt }, leaf_bytes)
        },
    )
}

impl Target {
    fn of<'a>(&'a self, entries: &[KeyVersion<'a>]) -> (&'a [u8], u64) {
        let entry = (!entries.is_empty()).then(|| self.entry.get(entries));
        match (entry, self.change) {
            (Some(entry), 0) => (entry.key, entry.sequence),
            (Some(entry), 1) => (entry.key, entry.sequence.saturating_add(1)),
            (Some(entry), 2) => (entry.key, entry.sequence.saturating_sub(1)),
            (Some(entry), 3) => (entry.key, u64::MAX),
            (Some(entry), 4) => (&entry.key[..entry.key.len() / 2], 0),
            _ => (&self.other.0, self.other.1),
        }
    }
}

fn move_of(step: &(u8, Target), entries: &[KeyVersion<'_>]) -> Move {
    let (key, sequence) = step.1.of(entries);
    match step.0 {
        0 => Move::First,
        1 => Move::Last,
        2..5 => Move::Seek(key.to_vec(), sequence),
        5..8 => Move::Before(key.to_vec(), sequence),
        8..16 => Move::Next,
        _ => Move::Previous,
    }
}

/// Moves a cursor from one end to the other, in both directions, and then by `moves`.
fn walk(reader: &Reader<&Bytes>, entries: &[KeyVersion<'_>], moves: &[Move]) {
    let pair =
        |entry: &KeyVersion<'_>| ((entry.key.to_vec(), Reverse(entry.sequence)), Said::of(entry.value));
    let model: Entries = entries.iter().map(pair).collect();
    let (mut cursor, mut at) = (reader.cursor(), None);
    let all = |first, next| std::iter::once(first).chain(vec![next; entries.len()]);
    let ends = all(Move::First, Move::Next).chain(all(Move::Last, Move::Previous));
    for movement in ends.chain(moves.iter().cloned()) {
        move_both(&mut cursor, &model, &mut at, &movement);
    }
}

async fn get_all(
    reader: &Reader<&Bytes>,
    entries: &[KeyVersion<'_>],
    others: &[(Vec<u8>, u64)],
) -> Result<()> {
    let own = entries.iter().flat_map(|entry| {
        [entry.sequence, entry.sequence.saturating_sub(1), entry.sequence.saturating_add(1), u64::MAX]
            .map(|snapshot| (entry.key, snapshot))
    });
    for (key, snapshot) in own.chain(others.iter().map(|(key, snapshot)| (key.as_slice(), *snapshot))) {
        let expected = entries.iter().find(|entry| entry.key == key && entry.sequence <= snapshot);
        let found = reader.get(key, key_hash(key), snapshot).await?;
        let found = found.as_ref().map(|found| (found.sequence(), found.value()));
        assert_eq!(found, expected.map(|entry| (entry.sequence, entry.value)));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn a_table_is_a_sorted_list(
        (options, leaf_bytes) in options(),
        mut list in vec((keys(), sequences(), said()), 0..120),
        steps in vec(steps(), 0..80),
        others in vec((keys(), sequences()), 0..20),
        keeps: bool,
    ) {
        list.sort_by(|left, right| order((&left.0, left.1), (&right.0, right.1)));
        list.dedup_by(|left, right| (&left.0, left.1) == (&right.0, right.1));
        let entries: Vec<_> = list.iter().map(|(key, sequence, said)| KeyVersion { key, sequence: *sequence, value: said.value() }).collect();
        let (table, summary) = build(Builder::with_index_blocks(options, leaf_bytes), &entries, &[]);
        prop_assert_eq!(&table.summary().unwrap(), &summary);
        table.kept.set(keeps.then_some(0));
        let reader = Reader::new(&table, &summary);
        let moves: Vec<Move> = steps.iter().map(|step| move_of(step, &entries)).collect();
        walk(&reader, &entries, &moves);
        now(get_all(&reader, &entries, &others)).unwrap();
    }
}

#[test]
fn many_versions_of_a_key_span_blocks() {
    let entries: Vec<_> = (0..3000)
        .map(|number: u64| KeyVersion {
            key: if number < 2900 { b"key" } else { b"kez" },
            sequence: 9000 - 3 * number,
            value: put(b"value"),
        })
        .collect();
    for leaf_bytes in [256 << 10, 300] {
        let builder =
            Builder::with_index_blocks(Options { block_bytes: 300, ..Options::default() }, leaf_bytes);
        let (table, summary) = build(builder, &entries, &[]);
        assert!(summary.data_blocks > 50);
        table.kept.set(Some(0));
        let reader = Reader::new(&table, &summary);
        now(reader.get(b"key", key_hash(b"key"), 0)).unwrap();
        for entry in entries.iter().step_by(7) {
            for snapshot in entry.sequence..entry.sequence + 3 {
                table.reads.set(0);
                let found = now(reader.get(entry.key, key_hash(entry.key), snapshot)).unwrap().unwrap();
                assert_eq!(found.sequence(), entry.sequence);
                assert_eq!(table.reads.get(), usize::from(summary.index_levels), "one data block");
            }
        }
        walk(&reader, &entries, &[]);
    }
}
