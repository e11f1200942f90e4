//! Tests of the format of staged writes.

use super::*;
use crate::batch::Batch;

const UUID: [u8; 16] = [7; 16];
const EPOCH: u64 = 5;
const WRITER: Writer = Writer { uuid: UUID, epoch: EPOCH, shard: 0 };
const DIVISION: Division = Division { block: 4096, blocks: 3 };

fn writes(count: u64, number: u64) -> Vec<u8> {
    let mut batch = Batch::new();
    (0..count).for_each(|at| batch.put(&[at as u8; 3], &number.to_le_bytes()));
    batch.bytes().to_vec()
}

/// Writes a block with these entries, each with its number of writes, over a part; returns the sequence after
/// the last entry.
fn stage(part: &mut [u8], block: u64, writer: Writer, first: Sequence, counts: &[u64]) -> Sequence {
    let (mut encoded, mut scratch, mut next) = (Vec::new(), Vec::new(), first);
    writer.encode_header(first, &mut encoded);
    for count in counts {
        writer.encode_entry((next, 0), &writes(*count, next), &mut scratch, &mut encoded);
        next += count;
    }
    let at = DIVISION.place(0, block).start as usize;
    part[at..at + encoded.len()].copy_from_slice(&encoded);
    next
}

fn empty() -> Vec<u8> {
    vec![0; DIVISION.part() as usize]
}

fn found(part: &[u8], last: Sequence) -> StagedWrites {
    recover(part, DIVISION, (UUID, EPOCH, 0), last).unwrap()
}

/// Writes of the entries that are found, by the sequences of their first writes.
fn expected(entries: &[(Sequence, u64)]) -> Vec<Vec<u8>> {
    entries.iter().map(|(first, count)| writes(*count, *first)).collect()
}

#[test]
fn the_area_is_divided_among_shards_and_blocks() {
    let division = |bytes, shards| Division::new(bytes, shards).map(|it| (it.block, it.blocks));
    assert_eq!(division(1 << 20, 1), Some((64 << 10, 16)));
    assert_eq!(division(1 << 20, 2), Some((64 << 10, 8)));
    assert_eq!(division(1 << 20, 7), Some((16 << 10, 9)));
    assert_eq!(division(1 << 20, 32), Some((4096, 8)));
    assert_eq!(division(8192, 1), Some((4096, 2)));
    assert_eq!(division(8192, 2), None);
    assert_eq!(division(0, 1), None);
    for shards in 1..=64 {
        let division = Division::new(1 << 20, shards).unwrap();
        assert!(division.place(shards - 1, division.blocks - 1).end <= 1 << 20, "{shards}: {division:?}");
    }
}

#[test]
fn entries_that_follow_the_log_are_found_in_order() {
    let mut part = empty();
    let next = stage(&mut part, 2, WRITER, 11, &[1, 3, 1]);
    stage(&mut part, 0, WRITER, next, &[2, 1]);
    assert_eq!(found(&part, 10).entries, expected(&[(11, 1), (12, 3), (15, 1), (16, 2), (18, 1)]));
    // The log has some of them.
    assert_eq!(found(&part, 14).entries, expected(&[(15, 1), (16, 2), (18, 1)]));
    assert_eq!(found(&part, 18), StagedWrites::default());
    assert_eq!(found(&part, 100), StagedWrites::default());
    // Earlier writes are nowhere.
    assert_eq!(found(&part, 8), StagedWrites { entries: Vec::new(), gap: Some((8, 11)) });
}

/// Writes between two entries have records of their own.
#[test]
fn entries_after_writes_that_were_not_staged_are_found_if_the_log_has_these() {
    let mut part = empty();
    let (mut encoded, mut scratch) = (Vec::new(), Vec::new());
    WRITER.encode_header(11, &mut encoded);
    for (sequence, skipped) in [(11, 0), (15, 3), (16, 0)] {
        WRITER.encode_entry((sequence, skipped), &writes(1, sequence), &mut scratch, &mut encoded);
    }
    part[..encoded.len()].copy_from_slice(&encoded);
    assert_eq!(found(&part, 14).entries, expected(&[(15, 1), (16, 1)]));
    assert_eq!(found(&part, 10), StagedWrites { entries: expected(&[(11, 1)]), gap: Some((11, 15)) });
}

#[test]
fn a_gap_between_blocks_ends_them_and_is_reported() {
    let mut part = empty();
    stage(&mut part, 0, WRITER, 11, &[1, 1]);
    stage(&mut part, 1, WRITER, 15, &[1]);
    assert_eq!(
        found(&part, 10),
        StagedWrites { entries: expected(&[(11, 1), (12, 1)]), gap: Some((12, 15)) }
    );
}

/// A block that is used again has entries of its earlier use after the end of the new ones, at all distances.
#[test]
fn entries_of_an_earlier_use_of_a_block_are_never_taken() {
    for earlier in 1..20 {
        for written in 1..=earlier {
            let mut part = empty();
            stage(&mut part, 0, WRITER, 11, &vec![1; earlier]);
            let first = 11 + earlier as u64;
            stage(&mut part, 0, WRITER, first, &vec![1; written]);
            let entries: Vec<_> = (0..written as u64).map(|at| (first + at, 1)).collect();
            assert_eq!(found(&part, first - 1).entries, expected(&entries), "{earlier}, {written}");
        }
    }
}

/// The same sequences in another epoch, log or shard. Only the newest epoch has taken writes since the
/// erasure.
#[test]
fn blocks_of_other_epochs_logs_and_shards_are_ignored() {
    let other = [Writer { uuid: [8; 16], ..WRITER }, Writer { shard: 1, ..WRITER }];
    for writer in other {
        let mut part = empty();
        stage(&mut part, 0, writer, 11, &[1, 1]);
        assert_eq!(found(&part, 10), StagedWrites::default(), "{writer:?}");
        // Nor are their entries after the header of another block.
        stage(&mut part, 0, WRITER, 11, &[1]);
        assert_eq!(found(&part, 10).entries, expected(&[(11, 1)]), "{writer:?}");
    }
    // Openings that are interrupted begin epochs.
    let old = Writer { epoch: EPOCH - 3, ..WRITER };
    let mut part = empty();
    stage(&mut part, 0, old, 11, &[1, 1]);
    assert_eq!(found(&part, 10).entries, expected(&[(11, 1), (12, 1)]));
    stage(&mut part, 1, WRITER, 13, &[1]);
    assert_eq!(found(&part, 10), StagedWrites { entries: Vec::new(), gap: Some((10, 13)) });
}

fn refusal(part: &[u8], last: Sequence) -> Error {
    recover(part, DIVISION, (UUID, EPOCH, 0), last).expect_err("it is refused")
}

#[test]
fn an_epoch_after_that_of_the_root_is_refused() {
    let mut part = empty();
    stage(&mut part, 0, WRITER, 11, &[1]);
    stage(&mut part, 1, Writer { epoch: EPOCH + 1, ..WRITER }, 12, &[1]);
    let error = refusal(&part, 10);
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    assert!(error.detail().contains("epoch 6, and the newest root of the log is of epoch 5"), "{error}");
}

/// An opening would erase the writes in it.
#[test]
fn another_version_of_a_block_of_the_log_is_refused() {
    let version_2 = |writer: Writer| {
        let mut part = empty();
        stage(&mut part, 1, writer, 11, &[1]);
        let at = DIVISION.place(0, 1).start as usize;
        let header = &mut part[at..at + HEADER];
        header[8] = 2;
        let crc = crc(&header[..HEADER - 4]);
        header[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        part
    };
    for writer in [WRITER, Writer { shard: 1, epoch: EPOCH - 1, ..WRITER }] {
        let error = refusal(&version_2(writer), 10);
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        assert!(error.detail().contains("version 2 of its format; this program reads version 1"), "{error}");
    }
    assert_eq!(found(&version_2(Writer { uuid: [8; 16], ..WRITER }), 10), StagedWrites::default());
}

#[test]
fn numbers_beyond_the_largest_are_refused() {
    let mut part = empty();
    stage(&mut part, 0, WRITER, u64::MAX - 3, &[2]);
    assert_eq!(found(&part, u64::MAX - 4).entries, expected(&[(u64::MAX - 3, 2)]));
    let (mut encoded, mut scratch) = (Vec::new(), Vec::new());
    WRITER.encode_header(u64::MAX - 1, &mut encoded);
    WRITER.encode_entry((u64::MAX - 1, 0), &writes(3, 0), &mut scratch, &mut encoded);
    part[..encoded.len()].copy_from_slice(&encoded);
    for last in [0, u64::MAX - 2, u64::MAX] {
        assert!(
            refusal(&part, last).detail().contains("3 staged writes from number 18446744073709551614 on")
        );
    }
}

#[test]
fn any_change_of_a_byte_ends_the_entries_before_it() {
    let mut part = empty();
    let counts = [1, 2, 1];
    let next = stage(&mut part, 0, WRITER, 11, &counts);
    let entries = expected(&[(11, 1), (12, 2), (14, 1)]);
    assert_eq!(next, 15);
    let ends: Vec<usize> = entries
        .iter()
        .scan(HEADER, |at, writes| {
            *at += ENTRY_OVERHEAD + writes.len();
            Some(*at)
        })
        .collect();
    for at in 0..ends[2] {
        for bit in 0..8 {
            let mut damaged = part.clone();
            damaged[at] ^= 1 << bit;
            let whole = if at < HEADER { 0 } else { ends.iter().filter(|end| **end <= at).count() };
            assert_eq!(found(&damaged, 10).entries, entries[..whole], "byte {at}, bit {bit}");
        }
    }
}

/// Any bytes, also with valid headers: no panic, and nothing is found.
#[test]
fn arbitrary_bytes_are_no_entries() {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    for seed in 0..200_u64 {
        let mut part = empty();
        for (at, byte) in part.iter_mut().enumerate() {
            let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, at as u64));
            *byte = if seed % 2 == 0 { hash as u8 } else { hash as u8 & 1 };
        }
        assert_eq!(found(&part, seed), StagedWrites::default(), "seed {seed}");
        stage(&mut part, 1, WRITER, seed + 1, &[]);
        assert_eq!(found(&part, seed), StagedWrites::default(), "seed {seed}");
    }
}
