//! Damaged and hostile bytes: every deviation is detected, or reads return correct results; nothing panics.

use super::super::entries_writer::EntriesWriter;
use super::super::stored::{BlockKind, Sealer};
use super::*;
use crate::cursor::Cursor;
use crate::key_version::order;
use proptest::prelude::*;
use zones::bytes::Writer;

/// A small table with every kind of block, and an index of two levels.
fn small(compression: Compression) -> (Vec<(Vec<u8>, Sequence)>, Bytes, Summary) {
    let options = Options { block_bytes: 150, compression, salt: 0x5EED, ..Options::default() };
    let keys: Vec<_> =
        (0..24u64).map(|number| (format!("key{:02}", number / 2).into_bytes(), 50 - number)).collect();
    let entries: Vec<_> = keys
        .iter()
        .map(|(key, sequence)| match sequence % 5 {
            0 => KeyVersion { key, sequence: *sequence, value: Value::Tombstone { deleted: 1 << 40 } },
            1 => KeyVersion {
                key,
                sequence: *sequence,
                value: Value::Put { bytes: &key[..], expires: Some(9) },
            },
            _ => KeyVersion { key, sequence: *sequence, value: put(&[7; 20]) },
        })
        .collect();
    let ranges = [range(b"key03", b"key05", 40, 77), range(b"key03", b"kez", 41, 78)];
    let (table, summary) = build(Builder::with_index_blocks(options, 30), &entries, &ranges);
    assert!(summary.index_levels == 2 && summary.data_blocks > 3);
    (keys, table, summary)
}

/// All contents of a table as text: entries forward, entries backward, range tombstones.
async fn contents(table: &Bytes, summary: &Summary) -> Result<String> {
    let reader = Reader::new(table, summary);
    let mut said = String::new();
    let mut cursor = reader.cursor();
    cursor.seek_first().await?;
    while let Some(entry) = cursor.entry() {
        said += &format!("{entry:?}\n");
        cursor.next().await?;
    }
    cursor.seek_last().await?;
    while let Some(entry) = cursor.entry() {
        said += &format!("{entry:?}\n");
        cursor.previous().await?;
    }
    Ok(said + &format!("{:?}", reader.range_tombstones().await?))
}

#[test]
fn damage_of_any_byte_is_noticed_and_no_get_returns_another_value() {
    for compression in [Compression::Lz4, Compression::None] {
        let (keys, table, summary) = small(compression);
        let right = now(contents(&table, &summary)).unwrap();
        let gets = |table: &Bytes| -> Vec<_> {
            let reader = Reader::new(table, &summary);
            let get = |(key, sequence): &(Vec<u8>, Sequence)| {
                let found = now(reader.get(key, key_hash(key), *sequence))?;
                Ok::<_, Error>(found.map(|found| format!("{} {:?}", found.sequence(), found.value())))
            };
            keys.iter().map(get).collect()
        };
        let right_gets = gets(&table);
        assert!(right_gets.iter().all(|found| matches!(found, Ok(Some(_)))));
        for at in 0..table.bytes.len() {
            for flip in [1, 0x80, 0xFF] {
                let mut bytes = table.bytes.clone();
                bytes[at] ^= flip;
                let damaged = Bytes { bytes, ..Bytes::default() };
                let filter = damaged.block(summary.filter.unwrap());
                let found = now(contents(&damaged, &summary));
                let is_noticed = found.is_err() || filter.is_err() || damaged.summary().is_err();
                assert!(is_noticed, "byte {at} xor {flip:#x} isn't noticed");
                assert!(found.is_err() || found.unwrap() == right);
                for (found, right) in gets(&damaged).iter().zip(&right_gets) {
                    assert!(
                        found.as_ref().is_err_and(|error| matches!(error, Error::Corrupt(_)))
                            || found == right
                    );
                }
            }
        }
    }
}

#[test]
fn cut_tables_and_blocks_are_refused() {
    let (_, table, summary) = small(Compression::Lz4);
    for length in 0..table.bytes.len() {
        let cut = Bytes { bytes: table.bytes[..length].to_vec(), ..Bytes::default() };
        assert!(cut.summary().is_err(), "{length} bytes");
    }
    let handle = summary.index.unwrap();
    for length in 0..handle.length {
        let stored = &table.bytes[handle.offset as usize..][..length as usize];
        assert!(Block::decode(stored, handle).is_err());
        assert!(Block::decode(stored, BlockHandle { length, ..handle }).is_err());
    }
}

#[test]
fn a_block_of_another_place_or_table_is_refused() {
    let sealed = |salt| {
        let mut sealer = Sealer::new(Compression::None, salt);
        let block = |sealer: &mut Sealer| sealer.seal(BlockKind::Filter, &[6; 65]).unwrap();
        let handles = [block(&mut sealer), block(&mut sealer)];
        (sealer.output, handles)
    };
    let (bytes, [first, second]) = sealed(1);
    let at = |handle: BlockHandle| &bytes[handle.offset as usize..handle.end() as usize];
    assert!(Block::decode(at(first), first).is_ok() && Block::decode(at(second), second).is_ok());
    assert!(Block::decode(at(first), second).is_err(), "another place");
    assert!(Block::decode(at(first), sealed(2).1[0]).is_err(), "another table");
    let error = Block::decode(at(second), first).unwrap_err();
    assert!(error.detail().starts_with("table block at 0: checksum 0x"), "{error}");
}

#[test]
fn a_block_takes_no_more_memory_than_its_stored_length_justifies() {
    // Arbitrary contents with a valid checksum.
    let stored = |code: u8, contents: &[u8]| {
        let mut stored = contents.to_vec();
        stored.push(code);
        let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &stored) as u32;
        stored.extend_from_slice(&checksum.to_le_bytes());
        let handle = BlockHandle { offset: 0, length: stored.len() as u32, salt: 0 };
        Block::decode(&stored, handle).map(|block| block.memory_bytes())
    };
    let zeros = vec![0; 100_000];
    let compressed = lz4_flex::block::compress(&zeros);
    for length in [0, 99_999, 100_001, 255 * compressed.len() + 1, 128 << 20, u32::MAX as usize] {
        let contents = [&(length as u32).to_le_bytes()[..], &compressed].concat();
        assert!(stored(0x11, &contents).is_err(), "{length} bytes");
    }
    let error = stored(0x11, &[&u32::MAX.to_le_bytes()[..], &compressed].concat()).unwrap_err();
    assert!(error.detail().contains("decompressed length 4294967295; expected at most"), "{error}");
    for code in [0x01, 0x12, 0x1F, 0x60, 0xF0] {
        assert!(stored(code, &[1; 65]).is_err(), "code {code:#04x}");
    }
    assert!(stored(0x30, &[1; 65]).is_ok(), "a filter");
    let compressed = [&65u32.to_le_bytes()[..], &lz4_flex::block::compress(&[1; 65])].concat();
    assert!(stored(0x31, &compressed).is_err(), "a compressed filter");
    assert!(stored(0x11, &[]).is_err() && stored(0x10, &[]).is_err());
}

#[test]
fn footers_of_other_versions_are_refused() {
    let (_, table, _) = small(Compression::None);
    let mut footer = *table.bytes.last_chunk::<FOOTER_BYTES>().unwrap();
    footer[8] = 2;
    let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &footer[..28]) as u32;
    footer[28..].copy_from_slice(&checksum.to_le_bytes());
    let error = decode_footer(&footer, table.bytes.len() as u64).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)) && error.detail().contains("version 2"), "{error}");
    assert!(decode_footer(table.bytes.last_chunk().unwrap(), table.bytes.len() as u64 + 1).is_err());
}

#[test]
fn summaries_that_contradict_themselves_are_refused() {
    let (_, _, summary) = small(Compression::None);
    let decode = |summary: &Summary| {
        let mut writer = Writer::default();
        summary.encode(&mut writer);
        Summary::decode(&mut zones::bytes::Reader::new(&writer.0, "summary"))
    };
    assert_eq!(decode(&summary).unwrap(), summary);
    let changes: [fn(&mut Summary); 16] = [
        |summary| summary.length = 10,
        |summary| summary.length = summary.index.unwrap().end(),
        |summary| summary.tombstones = summary.entries + 1,
        |summary| summary.index = None,
        |summary| summary.index_levels = 0,
        |summary| summary.index_levels = 3,
        |summary| summary.data_blocks = 0,
        |summary| summary.entries = 0,
        |summary| summary.range_tombstone_block = None,
        |summary| summary.range_tombstones = 0,
        |summary| summary.smallest = b"z".to_vec(),
        |summary| summary.largest = vec![b'z'; 33 << 10],
        |summary| summary.smallest_sequence = summary.largest_sequence + 1,
        |summary| summary.oldest_tombstone = None,
        |summary| summary.filter.as_mut().unwrap().offset = u64::MAX,
        |summary| summary.filter.as_mut().unwrap().length = 4,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut changed = summary.clone();
        change(&mut changed);
        let error = decode(&changed).unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "change {index}: {error}");
    }
}

/// A table with these contents of a data block, and an index whose only child is at `child` and is `more`
/// bytes longer than the block.
fn hand_made(data: &[u8], child: u64, more: u32) -> (Bytes, Summary) {
    let mut sealer = Sealer::new(Compression::None, 0);
    let block = sealer.seal(BlockKind::Data, data).unwrap();
    let mut index = EntriesWriter::new(1);
    index.add_child(b"", Sequence::MAX, child, block.length + more);
    let index = sealer.seal(BlockKind::Index, index.finish()).unwrap();
    let summary = Summary { index: Some(index), index_levels: 1, ..Summary::default() };
    (Bytes { bytes: sealer.output, ..Bytes::default() }, summary)
}

#[test]
fn blocks_that_contradict_themselves_are_refused() {
    let mut writer = EntriesWriter::new(1);
    for key in [b"a", b"b"] {
        writer.add(&KeyVersion { key, sequence: 1, value: put(b"1") }, 0);
    }
    let data = writer.finish();
    let error_of = |data: &[u8], child, more| {
        let (table, summary) = hand_made(data, child, more);
        now(contents(&table, &summary)).map_err(|error| error.to_string())
    };
    assert!(error_of(data, 0, 0).is_ok());
    for (child, more) in [(1, 0), (0, 1), (u64::MAX, 0)] {
        let error = error_of(data, child, more).unwrap_err();
        assert!(error.contains("its block isn't before the index"), "{error}");
    }
    // Two entries of 6 bytes, followed by their restart points.
    assert_eq!(data[12..], [0, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0]);
    for (at, value, expected) in [
        (0, 1, "table block at 0: entry at 0: its shared length or its end is out of range"),
        (1, 9, "entry at 0: its lengths are out of range"),
        (2, 11, "entry at 3: its sequence, time or kind is invalid"),
        (6, 1, "entry at 6: its shared length or its end is out of range"),
        (9, b'a', "entry at 6: it isn't after the one before"),
        (12, 1, "restart point 0 at 1; expected 0..12"),
        (16, 5, "entry at 0: its shared length or its end is out of range"),
        (16, 12, "restart point 1 at 12; expected 1..12"),
        (20, 9, "9 restart points in 24 bytes"),
    ] {
        let mut data = data.to_vec();
        data[at] = value;
        let error = error_of(&data, 0, 0).unwrap_err();
        assert!(error.contains(expected), "byte {at}: {error}");
    }
}

/// Calls everything that reads a block, and checks that the results are in order.
fn walk_hostile(table: &Bytes, summary: &Summary) {
    let reader = Reader::new(table, summary);
    now(async {
        let mut last: Option<(Vec<u8>, Sequence)> = None;
        let mut cursor = reader.cursor();
        let mut result = cursor.seek_first().await;
        while let (Ok(()), Some(entry)) = (&result, cursor.entry()) {
            let is_after = |(key, sequence): &(Vec<u8>, Sequence)| {
                order((key, *sequence), (entry.key, entry.sequence)).is_lt()
            };
            assert!(last.as_ref().is_none_or(is_after), "out of order");
            last = Some((entry.key.to_vec(), entry.sequence));
            result = cursor.next().await;
        }
        assert!(result.is_ok() || cursor.entry().is_none(), "after an error the cursor is at no entry");
        let mut steps = 0;
        let mut result = cursor.seek_last().await;
        while let (Ok(()), true) = (&result, cursor.entry().is_some()) {
            steps += 1;
            assert!(steps <= 2 * table.bytes.len(), "the walk backward ends");
            result = cursor.previous().await;
        }
        for key in [&b""[..], b"key03", b"key07\x00", b"\xFF"] {
            for sequence in [0, 30, 41, Sequence::MAX] {
                let _ = reader.get(key, key_hash(key), sequence).await;
                let _ = cursor.seek(key, sequence).await;
                let _ = cursor.previous().await;
                let _ = cursor.seek_before(key, sequence).await;
                let _ = cursor.next().await;
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Modified contents with valid checksums.
    #[test]
    fn hostile_blocks_do_no_harm(
        is_index: bool,
        compress: bool,
        any_bytes in proptest::option::weighted(0.2, proptest::collection::vec(any::<u8>(), 0..300)),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in 0usize..3,
    ) {
        let keys: Vec<_> = (0..40).map(|number| format!("key{:02}", number / 4)).collect();
        let entries: Vec<_> = keys.iter().zip((0..50).rev()).map(|(key, sequence)| KeyVersion { key: key.as_bytes(), sequence, value: put(b"12") }).collect();
        let options = Options { block_bytes: if is_index { 60 } else { 4096 }, compression: Compression::None, filter_bits: 0, salt: 0 };
        let (table, mut summary) = build(Builder::new(options), &entries, &[]);
        let index = summary.index.unwrap();
        // The only data block, or the index, is modified and sealed again; the index of a modified block
        // refers to the new one.
        let begin = if is_index { index.offset as usize } else { 0 };
        let end = if is_index { index.end() } else { index.offset } as usize - 5;
        let mut contents = any_bytes.unwrap_or_else(|| table.bytes[begin..end].to_vec());
        for (at, value) in &changes {
            if !contents.is_empty() {
                let at = at.index(contents.len());
                contents[at] = *value;
            }
        }
        contents.truncate(contents.len().saturating_sub(cut));
        let compression = if compress { Compression::Lz4 } else { Compression::None };
        let mut sealer = Sealer::new(compression, 0);
        sealer.output.extend_from_slice(&table.bytes[..begin]);
        sealer.offset = begin as u64;
        let kind = if is_index { BlockKind::Index } else { BlockKind::Data };
        let mut root = sealer.seal(kind, &contents).unwrap();
        if !is_index {
            let mut writer = EntriesWriter::new(1);
            writer.add_child(b"", Sequence::MAX, 0, root.length);
            root = sealer.seal(BlockKind::Index, writer.finish()).unwrap();
        }
        summary.index = Some(root);
        walk_hostile(&Bytes { bytes: sealer.output, ..Bytes::default() }, &summary);
    }

    /// Modified LZ4 data with valid checksums.
    #[test]
    fn hostile_compression_does_no_harm(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        any_bytes in proptest::option::weighted(0.2, proptest::collection::vec(any::<u8>(), 0..100)),
    ) {
        let contents: Vec<u8> = (0..200u8).flat_map(|byte| [byte / 16, 3, 3, byte % 7]).collect();
        let compressed = [&800u32.to_le_bytes()[..], &lz4_flex::block::compress(&contents)].concat();
        let mut bytes = any_bytes.unwrap_or(compressed);
        for (at, value) in &changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
        }
        crate::fuzzing::table_block(0x11, &bytes, b"key03", 30);
    }
}

/// Problems that a verification reports for a table.
fn problems(table: &Bytes, summary: &Summary) -> (Vec<String>, Verified) {
    let footer = table.bytes.last_chunk().copied().ok_or_else(|| Error::corrupt("too short"));
    let mut problems = Vec::new();
    let verified = now(verify(&table, summary, footer, &mut |what| problems.push(what))).unwrap();
    (problems, verified)
}

#[test]
fn a_verification_finds_damage_of_any_byte_and_nothing_in_a_sound_table() {
    for compression in [Compression::Lz4, Compression::None] {
        let (keys, table, summary) = small(compression);
        let (found, sound) = problems(&table, &summary);
        assert_eq!(found, Vec::<String>::new());
        let tombstones = keys.iter().filter(|(_, sequence)| sequence % 5 == 0).count() as u64;
        assert_eq!((sound.entries, sound.tombstones), (keys.len() as u64, tombstones));
        for at in 0..table.bytes.len() {
            let mut bytes = table.bytes.clone();
            bytes[at] ^= 0x10;
            let (found, verified) = problems(&Bytes { bytes, ..Bytes::default() }, &summary);
            assert!(!found.is_empty(), "byte {at}");
            // A damaged block hides only the blocks below it.
            assert!(
                verified.blocks + 1 >= sound.blocks
                    || at as u64 >= summary.index.unwrap().offset
                    || found.len() == 1
            );
        }
    }
}

#[test]
fn a_verification_compares_a_table_with_its_summary() {
    let (_, table, right) = small(Compression::Lz4);
    type Change = fn(&mut Summary);
    let wrong: [(&str, Change); 8] = [
        ("entries: 24; expected 25", |summary| summary.entries += 1),
        ("tombstones: 5; expected 4", |summary| summary.tombstones -= 1),
        ("an entry is outside of the table's bounds", |summary| summary.smallest = b"key01".to_vec()),
        ("an entry is outside of the table's bounds", |summary| summary.largest = b"key10".to_vec()),
        ("largest sequence: 50; expected 51", |summary| summary.largest_sequence += 1),
        ("earliest expiry: 9; expected 8", |summary| summary.earliest_expiry = Some(8)),
        ("data blocks", |summary| summary.data_blocks -= 1),
        ("2 range tombstones; expected 3", |summary| summary.range_tombstones += 1),
    ];
    for (expected, change) in wrong {
        let mut summary = right.clone();
        change(&mut summary);
        let (found, _) = problems(&table, &summary);
        assert!(found.iter().any(|what| what.contains(expected)), "{expected}: {found:?}");
        assert!(
            found.iter().any(|what| what.contains("differ from those that the manifest has")),
            "{found:?}"
        );
    }
}
