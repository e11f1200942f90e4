//! Tests of tables against a sorted list, and with damage.

mod damage;
mod model;

use super::*;
use crate::key_version::{KeyVersion, RangeTombstone, Sequence, Value};
use ::block::{Error, Result};
use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Result of a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a table in memory waits for nothing"),
    }
}

/// A table in memory that counts the blocks that are read.
#[derive(Debug, Default)]
struct Bytes {
    bytes: Vec<u8>,
    reads: Cell<usize>,
    /// Number of bytes that readers keep; `None` if they may keep nothing.
    kept: Cell<Option<usize>>,
}

impl Bytes {
    fn block(&self, handle: BlockHandle) -> Result<Block> {
        let stored = self.bytes.get(handle.offset as usize..handle.end() as usize);
        Block::decode(stored.ok_or_else(|| Error::corrupt("beyond the table"))?, handle)
    }

    /// Summary in the table itself.
    fn summary(&self) -> Result<Summary> {
        let footer = self.bytes.last_chunk().ok_or_else(|| Error::corrupt("too short"))?;
        self.block(decode_footer(footer, self.bytes.len() as u64)?)?.summary().cloned()
    }
}

impl BlockSource for &Bytes {
    async fn read(&self, handle: BlockHandle) -> Result<Arc<Block>> {
        self.reads.set(self.reads.get() + 1);
        self.block(handle).map(Arc::new)
    }

    fn may_keep(&self, bytes: usize) -> bool {
        let kept = self.kept.get().map(|kept| kept + bytes);
        self.kept.set(kept);
        kept.is_some()
    }
}

fn put(bytes: &[u8]) -> Value<'_> {
    Value::Put { bytes, expires: None }
}

fn build(mut builder: Builder, entries: &[KeyVersion<'_>], ranges: &[RangeTombstone]) -> (Bytes, Summary) {
    entries.iter().for_each(|entry| builder.add(*entry).unwrap());
    ranges.iter().for_each(|range| builder.add_range_tombstone(range.clone()).unwrap());
    let (bytes, summary) = builder.finish().unwrap();
    (Bytes { bytes, ..Bytes::default() }, summary)
}

fn range(from: &[u8], to: &[u8], sequence: Sequence, deleted: u64) -> RangeTombstone {
    RangeTombstone { from: from.into(), to: to.into(), sequence, deleted }
}

#[test]
fn a_summary_says_what_is_in_the_table() {
    let entries = [
        KeyVersion { key: b"b", sequence: 9, value: Value::Tombstone { deleted: 400 } },
        KeyVersion { key: b"b", sequence: 7, value: Value::Put { bytes: b"12345", expires: Some(900) } },
        KeyVersion { key: b"cc", sequence: 8, value: put(b"123") },
    ];
    let ranges = [range(b"c", b"d", 3, 500), range(b"a", b"aa", 30, 300), range(b"c", b"d", 3, 500)];
    let (table, summary) = build(Builder::new(Options { salt: 7, ..Options::default() }), &entries, &ranges);
    let expected = Summary {
        length: table.bytes.len() as u64,
        salt: 7,
        entries: 3,
        tombstones: 1,
        range_tombstones: 2,
        key_bytes: 4,
        value_bytes: 8,
        smallest: b"a".into(),
        largest: b"d".into(),
        largest_excluded: true,
        smallest_sequence: 3,
        largest_sequence: 30,
        oldest_tombstone: Some(300),
        earliest_expiry: Some(900),
        data_blocks: 1,
        index_levels: 1,
        ..summary.clone()
    };
    assert_eq!(summary, expected);
    assert_eq!(table.summary().unwrap(), summary);
    assert_eq!(
        [&b"a"[..], b"cc", b"c\xFF", b"d", b"", b"e"].map(|key| summary.covers(key)),
        [true, true, true, false, false, false]
    );
    let reader = Reader::new(&table, &summary);
    assert_eq!(*now(reader.range_tombstones()).unwrap(), [ranges[1].clone(), ranges[0].clone()]);

    let (_, summary) = build(Builder::new(Options::default()), &entries, &[range(b"a", b"cc", 1, 1)]);
    assert!(!summary.largest_excluded && summary.largest == b"cc" && summary.covers(b"cc"));
}

#[test]
fn tables_without_entries_are_tables() {
    let ranges = [range(b"", b"x", 5, 10)];
    for ranges in [&[][..], &ranges] {
        let (table, summary) = build(Builder::new(Options::default()), &[], ranges);
        assert_eq!(table.summary().unwrap(), summary);
        assert_eq!((summary.entries, summary.index), (0, None));
        assert_eq!(summary.covers(b""), !ranges.is_empty());
        let reader = Reader::new(&table, &summary);
        assert!(now(reader.get(b"", key_hash(b""), 9)).unwrap().is_none());
        assert_eq!(*now(reader.range_tombstones()).unwrap(), *ranges);
        let mut cursor = reader.cursor();
        now(async {
            use crate::cursor::Cursor;
            cursor.seek_first().await.unwrap();
            cursor.seek_last().await.unwrap();
            cursor.seek(b"", Sequence::MAX).await.unwrap();
            cursor.seek_before(b"z", 0).await.unwrap();
            cursor.next().await.unwrap();
            cursor.previous().await.unwrap();
            assert!(cursor.entry().is_none());
        });
    }
}

#[test]
fn a_builder_refuses_entries_out_of_order_or_too_large_and_stays_as_it_was() {
    let mut builder = Builder::new(Options::default());
    builder.add(KeyVersion { key: b"k", sequence: 5, value: put(b"1") }).unwrap();
    let large = vec![0; 33 << 10];
    for (key, sequence) in [(&b""[..], 9), (b"a", 1), (b"k", 5), (b"k", 6), (&large, 1)] {
        let error = builder.add(KeyVersion { key, sequence, value: put(b"2") }).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    let value = vec![0; crate::key_version::MAX_VALUE_BYTES + 1];
    assert!(builder.add(KeyVersion { key: b"l", sequence: 1, value: put(&value) }).is_err());
    for (from, to) in [(&b"b"[..], &b"b"[..]), (b"b", b"a"), (b"a", &large)] {
        assert!(builder.add_range_tombstone(range(from, to, 1, 1)).is_err());
    }
    builder.add(KeyVersion { key: b"k", sequence: 4, value: put(b"3") }).unwrap();
    let (bytes, summary) = builder.finish().unwrap();
    assert_eq!((summary.entries, summary.range_tombstones), (2, 0));
    let expected = [(b"k", 5, b"1"), (b"k", 4, b"3")].map(|(key, sequence, value)| KeyVersion {
        key: &key[..],
        sequence,
        value: put(value),
    });
    assert_eq!(bytes, build(Builder::new(Options::default()), &expected, &[]).0.bytes);
}

/// Entries with incompressible keys and values of these lengths.
fn large_entries(keys: usize, key_bytes: usize, value_bytes: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let noise = |count: usize, seed: u64| {
        let word = |index: usize| key_hash(&(seed << 32 | index as u64).to_le_bytes()).to_le_bytes();
        (0..count.div_ceil(8)).flat_map(word).take(count).collect::<Vec<u8>>()
    };
    let key =
        |number: usize| [&[b'x'; 3][..], &(number as u32).to_be_bytes(), &noise(key_bytes - 7, 1)].concat();
    (0..keys).map(|number| (key(number), noise(value_bytes, 2 + number as u64))).collect()
}

#[test]
fn output_is_taken_in_pieces_so_that_memory_is_bounded() {
    let entries = large_entries(1500, 20, 700);
    let entries: Vec<_> =
        entries.iter().map(|(key, value)| KeyVersion { key, sequence: 1, value: put(value) }).collect();
    let mut builder = Builder::new(Options::default());
    let (mut pieces, mut most) = (Vec::new(), 0);
    for entry in &entries {
        builder.add(*entry).unwrap();
        if let Some(piece) = builder.take_output(64 << 10) {
            assert!(piece.len() >= 64 << 10);
            most = most.max(piece.len());
            pieces.extend_from_slice(&piece);
        }
    }
    assert!(builder.take_output(64 << 10).is_none());
    assert!(most < (64 << 10) + 8192, "a piece of {most} bytes");
    let estimate = builder.bytes();
    let (rest, summary) = builder.finish().unwrap();
    assert!(rest.len() < 128 << 10);
    pieces.extend_from_slice(&rest);
    assert_eq!(pieces.len() as u64, summary.length);
    assert!(summary.length.abs_diff(estimate) < summary.length / 50, "{estimate} for {}", summary.length);
    assert_eq!(pieces, build(Builder::new(Options::default()), &entries, &[]).0.bytes);
}

#[test]
fn a_point_read_costs_one_data_block_and_none_for_most_absent_keys() {
    let entries = large_entries(600, 20, 300);
    let entries: Vec<_> = entries
        .iter()
        .flat_map(|(key, value)| [9, 5].map(|sequence| KeyVersion { key, sequence, value: put(value) }))
        .collect();
    for leaf_bytes in [256 << 10, 1000] {
        let builder =
            Builder::with_index_blocks(Options { block_bytes: 1000, ..Options::default() }, leaf_bytes);
        let (table, summary) = build(builder, &entries, &[]);
        table.kept.set(Some(0));
        let reader = Reader::new(&table, &summary);
        assert!(now(reader.get(entries[0].key, key_hash(entries[0].key), 4)).unwrap().is_none());
        let kept = table.kept.get().unwrap();
        assert!(kept > 600 * 10 / 8 && kept < 30_000, "{kept} bytes");
        let levels = if leaf_bytes == 1000 { 2 } else { 1 };
        assert_eq!(usize::from(summary.index_levels), levels);
        for (index, entry) in entries.iter().enumerate() {
            for snapshot in [entry.sequence, entry.sequence + 2] {
                table.reads.set(0);
                let found = now(reader.get(entry.key, key_hash(entry.key), snapshot)).unwrap().unwrap();
                assert_eq!((found.sequence(), found.value()), (entry.sequence, entry.value));
                assert_eq!(table.reads.get(), levels, "entry {index}");
            }
            assert!(now(reader.get(entry.key, key_hash(entry.key), 4)).unwrap().is_none());
        }
        table.reads.set(0);
        for absent in 0..1000u32 {
            let key = absent.to_be_bytes();
            assert!(now(reader.get(&key, key_hash(&key), 9)).unwrap().is_none());
        }
        assert!(table.reads.get() < 30 * levels, "{} reads", table.reads.get());
    }
}

#[test]
fn large_keys_and_values_have_blocks_of_their_own() {
    let mut entries = large_entries(40, 32 << 10, 40);
    entries.extend(
        large_entries(4, 33 << 9, 3 << 20).into_iter().map(|(key, value)| ([b"y", &key[..]].concat(), value)),
    );
    entries.push((b"z".to_vec(), b"small".to_vec()));
    let list: Vec<_> =
        entries.iter().map(|(key, value)| KeyVersion { key, sequence: 1, value: put(value) }).collect();
    let builder = Builder::with_index_blocks(Options::default(), 4096);
    let (table, summary) = build(builder, &list, &[]);
    assert_eq!(summary.data_blocks, 45);
    // Separators are short: a key in the index has only the bytes that distinguish blocks.
    let reader = Reader::new(&table, &summary);
    let root = now(reader.root()).unwrap().unwrap();
    assert!(root.memory_bytes() < 2000, "{} bytes", root.memory_bytes());
    for entry in &list {
        let found = now(reader.get(entry.key, key_hash(entry.key), 1)).unwrap().unwrap();
        assert!(found.value() == entry.value);
        let mut absent = entry.key.to_vec();
        *absent.last_mut().unwrap() ^= 1;
        assert!(now(reader.get(&absent, key_hash(&absent), 1)).unwrap().is_none());
    }
}

#[test]
fn blocks_are_compressed_where_that_is_of_use() {
    let words = large_entries(300, 20, 100);
    let repeated = vec![b'v'; 100];
    let build = |compression, repeat: bool| {
        let entry = |(key, value): &'_ (Vec<u8>, Vec<u8>)| {
            (key.clone(), if repeat { repeated.clone() } else { value.clone() })
        };
        let words: Vec<_> = words.iter().map(entry).collect();
        let entries: Vec<_> =
            words.iter().map(|(key, value)| KeyVersion { key, sequence: 1, value: put(value) }).collect();
        build(Builder::new(Options { compression, ..Options::default() }), &entries, &[]).1.length
    };
    assert!(build(Compression::Lz4, true) * 4 < build(Compression::None, true));
    assert!(build(Compression::Lz4, false) > 30_000, "noise isn't compressed");
    assert!(build(Compression::Lz4, false) <= build(Compression::None, false));
}
