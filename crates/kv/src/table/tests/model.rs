//! Tables against a sorted list: gets at snapshots, and all operations of cursors.

use super::*;
use crate::cursor::Cursor;
use crate::entry::order;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// What an entry says, with bytes of its own.
#[derive(Debug, Clone)]
enum Said {
    Put(Vec<u8>, Option<u64>),
    Tombstone(u64),
}

impl Said {
    fn value(&self) -> Value<'_> {
        match self {
            Said::Put(bytes, expires) => Value::Put { bytes, expires: *expires },
            Said::Tombstone(deleted) => Value::Tombstone { deleted: *deleted },
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    First,
    Last,
    Seek(Target),
    SeekBefore(Target),
    Next,
    Previous,
}

/// A key and sequence: those of an entry, changed, or any.
#[derive(Debug, Clone)]
struct Target {
    entry: Index,
    change: u8,
    other: (Vec<u8>, u64),
}

/// Keys that are equal, that are prefixes of others, and that differ in few bytes.
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

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::First),
        1 => Just(Step::Last),
        3 => targets().prop_map(Step::Seek),
        3 => targets().prop_map(Step::SeekBefore),
        8 => Just(Step::Next),
        8 => Just(Step::Previous),
    ]
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
    fn of<'a>(&'a self, entries: &[Entry<'a>]) -> (&'a [u8], u64) {
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

async fn walk(reader: &Reader<&Bytes>, entries: &[Entry<'_>], steps: &[Step]) -> Result<()> {
    let mut cursor = reader.cursor();
    let mut at: Option<usize> = None;
    for step in steps {
        at = match step {
            Step::First => {
                cursor.seek_first().await?;
                Some(0)
            }
            Step::Last => {
                cursor.seek_last().await?;
                entries.len().checked_sub(1)
            }
            Step::Seek(target) | Step::SeekBefore(target) => {
                let target = target.of(entries);
                let first =
                    entries.partition_point(|entry| order((entry.key, entry.sequence), target).is_lt());
                if matches!(step, Step::Seek(_)) {
                    cursor.seek(target.0, target.1).await?;
                    Some(first)
                } else {
                    cursor.seek_before(target.0, target.1).await?;
                    first.checked_sub(1)
                }
            }
            Step::Next => {
                cursor.next().await?;
                at.map(|at| at + 1)
            }
            Step::Previous => {
                cursor.previous().await?;
                at.and_then(|at| at.checked_sub(1))
            }
        };
        at = at.filter(|&at| at < entries.len());
        assert_eq!(cursor.entry(), at.map(|at| entries[at]), "after {step:?}");
    }
    Ok(())
}

async fn get_all(reader: &Reader<&Bytes>, entries: &[Entry<'_>], others: &[(Vec<u8>, u64)]) -> Result<()> {
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
        pin: bool,
    ) {
        list.sort_by(|left, right| order((&left.0, left.1), (&right.0, right.1)));
        list.dedup_by(|left, right| (&left.0, left.1) == (&right.0, right.1));
        let entries: Vec<_> = list.iter().map(|(key, sequence, said)| Entry { key, sequence: *sequence, value: said.value() }).collect();
        let (table, summary) = build(Builder::with_index_blocks(options, leaf_bytes), &entries, &[]);
        prop_assert_eq!(&table.summary().unwrap(), &summary);
        let mut reader = Reader::new(&table, &summary);
        now(async {
            if pin {
                reader.pin().await?;
            }
            let all = |first, step: Step| [vec![first], vec![step; entries.len()]].concat();
            walk(&reader, &entries, &all(Step::First, Step::Next)).await?;
            walk(&reader, &entries, &all(Step::Last, Step::Previous)).await?;
            walk(&reader, &entries, &steps).await?;
            get_all(&reader, &entries, &others).await
        }).unwrap();
    }
}

#[test]
fn many_versions_of_a_key_span_blocks() {
    let entries: Vec<_> = (0..3000)
        .map(|number: u64| Entry {
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
        let mut reader = Reader::new(&table, &summary);
        now(reader.pin()).unwrap();
        for entry in entries.iter().step_by(7) {
            for snapshot in entry.sequence..entry.sequence + 3 {
                table.reads.set(0);
                let found = now(reader.get(entry.key, key_hash(entry.key), snapshot)).unwrap().unwrap();
                assert_eq!(found.sequence(), entry.sequence);
                assert_eq!(table.reads.get(), usize::from(summary.index_levels), "one data block");
            }
        }
        let all = |first, step: Step| [vec![first], vec![step; entries.len()]].concat();
        now(walk(&reader, &entries, &all(Step::First, Step::Next))).unwrap();
        now(walk(&reader, &entries, &all(Step::Last, Step::Previous))).unwrap();
    }
}
