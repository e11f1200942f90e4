//! Damage on the medium, one byte at a time, and records in wrong places: opening either fails with the
//! reason, or returns the right contents, or fails reads of the damaged blocks.

use crate::life::{BLOCK, Version, Volume, copy_of, disk, raw, run, small, stamped};
use block::{BlockIndex, Buffer, DevicePart, Durability, Error};
use log::kind::Options;
use runtime::Random;
use std::sync::Arc;
use std::time::Duration;

/// A record as it is on a disk; see the book's page on records.
#[derive(Debug, Clone, Copy)]
pub struct Record {
    pub block: usize,
    pub stream: u8,
    pub sequence: u64,
    pub data_blocks: usize,
}

pub const CHECKPOINT: u8 = 2;
pub const ROOT: u8 = 3;

/// All blocks that begin with a record's magic number, of any age.
pub fn records(bytes: &[u8]) -> Vec<Record> {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let all = bytes.chunks_exact(BLOCK).enumerate().filter(|(_, block)| block.starts_with(b"SILTREC1"));
    all.map(|(at, block)| Record {
        block: at,
        // Kind 1 has entries; 2 and 3 are checkpoints and roots.
        stream: if block[14] == 1 { block[80] } else { block[14] },
        sequence: number(&block[40..48]),
        data_blocks: u32::from_le_bytes(block[88..92].try_into().unwrap()) as usize,
    })
    .collect()
}

/// Writes and flushes `count` blocks, each as a record of its own; then the process dies. Block n holds
/// version n + 1.
fn durable_writes(count: u64) -> Vec<u8> {
    let disk = disk(4);
    run({
        let disk = disk.clone();
        move || async move {
            let volume = Volume::make(&disk, &Options { checkpoint_after: 1 << 40, ..small() }).await;
            for block in 0..count {
                volume.write(block, 1, block + 1).await;
                volume.flush().await;
            }
        }
    });
    run(move || async move { raw(&disk).await })
}

/// Contents after opening a disk with these bytes, or the error.
fn opened(bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
    run(move || async move {
        let disk = copy_of(&bytes).await;
        let volume = Volume::try_open(&disk, &small()).await?;
        let found = volume.bytes(0, 64).await?;
        // An open log accepts writes.
        volume.try_write(60, 1, 99).await?;
        volume.device.flush().await?;
        Ok(found)
    })
}

/// Contents of each block, or the error of reading it, after opening a disk with these bytes.
fn blocks_of(bytes: Vec<u8>) -> Result<Vec<Result<Vec<u8>, Error>>, Error> {
    run(move || async move {
        let disk = copy_of(&bytes).await;
        let volume = Volume::try_open(&disk, &small()).await?;
        let mut blocks = Vec::new();
        for block in 0..64 {
            blocks.push(volume.bytes(block, 1).await);
        }
        Ok(blocks)
    })
}

/// Checks that exactly one block can't be read, because it is damaged, and that all others are right.
fn assert_only_damaged(blocks: &[Result<Vec<u8>, Error>], damaged: usize, right: &[u8], what: &str) {
    for (number, (found, right)) in blocks.iter().zip(right.chunks_exact(BLOCK)).enumerate() {
        match found {
            Err(Error::Corrupt(text)) if number == damaged => {
                assert!(text.contains("had a wrong checksum"), "{what}: {text}");
            }
            Ok(found) if number != damaged => assert!(found == right, "{what}: block {number}"),
            other => panic!("{what}: block {number}: {:?}", other.as_ref().map(|_| "readable")),
        }
    }
}

/// Offsets of the bytes that differ.
fn differing(found: &[u8], right: &[u8]) -> Vec<usize> {
    (0..right.len()).filter(|at| found[*at] != right[*at]).collect()
}

fn expected(count: u64) -> Vec<u8> {
    let mut all: Vec<u8> = (0..count).flat_map(|block| stamped(block, 1, block + 1).to_vec()).collect();
    all.resize(64 * BLOCK, 0);
    all
}

#[test]
fn rot_in_the_middle_is_told_from_a_torn_tail() {
    let bytes = durable_writes(20);
    assert!(opened(bytes.clone()).unwrap() == expected(20));
    let users: Vec<Record> = records(&bytes).into_iter().filter(|record| record.stream == 0).collect();
    assert_eq!(users.len(), 20);
    let (mut sealed, mut refused, mut damaged_blocks) = (0, 0, 0);
    for record in users {
        // In the header, in its checksums, and in the data.
        for offset in [20, 47, 97, BLOCK, 2 * BLOCK - 1] {
            let mut damaged = bytes.clone();
            damaged[record.block * BLOCK + offset] ^= 0x10;
            match (record.sequence, opened(damaged)) {
                // Damage of the last record is indistinguishable from a record that the power cut tore.
                (20, found) => assert!(found.expect("a torn tail is the normal end") == expected(19)),
                // The summary of a full zone lists its records, and their data isn't read to open the log.
                (sequence, Ok(found)) => {
                    let wrong = differing(&found, &expected(20));
                    let is_the_byte = wrong == [(sequence as usize - 1) * BLOCK + offset % BLOCK];
                    let is_header = offset < BLOCK && wrong.is_empty();
                    assert!(
                        is_header || is_the_byte,
                        "record {sequence}, byte {offset}: {} bytes",
                        wrong.len()
                    );
                    sealed += 1;
                }
                // The record is part of the log, and only the damaged data is lost.
                (sequence, Err(Error::Corrupt(_))) if offset >= BLOCK => {
                    let mut damaged = bytes.clone();
                    damaged[record.block * BLOCK + offset] ^= 0x10;
                    let what = format!("record {sequence}, byte {offset}");
                    let blocks = blocks_of(damaged).expect("one block is damaged");
                    assert_only_damaged(&blocks, sequence as usize - 1, &expected(20), &what);
                    damaged_blocks += 1;
                }
                (sequence, Err(Error::Corrupt(text))) => {
                    assert!(text.contains(&format!("record {sequence} of stream 0")), "{text}");
                    refused += 1;
                }
                (sequence, Err(other)) => panic!("record {sequence}: {other}"),
            }
        }
    }
    println!("{refused} refused, {damaged_blocks} with a damaged block, {sealed} in sealed zones");
    assert!(refused >= 12 && damaged_blocks >= 8 && sealed >= 20);
}

/// Ten writes, each a record of its own and flushed; then the log is idle for `pause`, and its process dies.
fn writes_and_pause(pause: Duration) -> Vec<u8> {
    let main = move || async move {
        let disk = disk(4);
        let volume = Volume::make(&disk, &Options { checkpoint_after: 1 << 40, ..small() }).await;
        for block in 0..10 {
            volume.write(block, 1, block + 1).await;
            volume.flush().await;
        }
        runtime::sleep(pause).await;
        raw(&disk).await
    };
    runtime::simulate(runtime::Simulation::new(1), main).expect("the world runs").value
}

/// Last record of users with data.
fn last_write(bytes: &[u8]) -> Record {
    let all = records(bytes).into_iter().filter(|record| record.stream == 0 && record.data_blocks > 0);
    all.max_by_key(|record| record.sequence).unwrap()
}

pub fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    damaged[at] ^= 1;
    damaged
}

/// Findings of a check of a disk with these bytes: the damage and the notes.
fn checked(bytes: Vec<u8>) -> (Vec<String>, Vec<String>) {
    run(move || async move {
        let report = log::check::check_device(copy_of(&bytes).await, &|_, _| {}).await.unwrap();
        let words = |findings: &[log::check::Finding]| findings.iter().map(|it| it.what.clone()).collect();
        (words(&report.damage), words(&report.notes))
    })
}

#[test]
fn damage_of_the_last_record_is_told_from_a_torn_end_once_the_log_was_idle() {
    let bytes = writes_and_pause(Duration::ZERO);
    let last = last_write(&bytes);
    let (header, data) = (last.block * BLOCK + 47, (last.block + 1) * BLOCK + 9);
    assert_eq!(last.sequence, 10);
    // The record may have been cut off by the end of the process: it is dropped, and that is reported.
    for (at, torn) in [(header, 0), (data, 1)] {
        let damaged = flipped(&bytes, at);
        assert!(opened(damaged.clone()).expect("a torn end") == expected(9));
        let recovered = run({
            let damaged = damaged.clone();
            move || async move { Volume::open(&copy_of(&damaged).await, &small()).await.part.recovered().clone() }
        });
        assert_eq!((recovered.torn, recovered.damaged_blocks, recovered.replayed), (torn, 0, 9));
        let (damage, notes) = checked(damaged);
        assert_eq!((damage.len(), notes.len() as u64), (0, torn), "{damage:?}, {notes:?}");
    }
    let bytes = writes_and_pause(Duration::from_secs(5));
    assert_eq!(last_write(&bytes).block, last.block);
    let error = opened(flipped(&bytes, header)).expect_err("a record that had been durable is missing");
    assert!(error.to_string().contains("record 10 of stream 0"), "{error}");
    let damaged = flipped(&bytes, data);
    let blocks = blocks_of(damaged.clone()).expect("one block is damaged");
    assert_only_damaged(&blocks, 9, &expected(10), "after a pause");
    for at in [header, data] {
        let (damage, _) = checked(flipped(&bytes, at));
        assert!(!damage.is_empty(), "byte {at}");
    }
    // No data is lost with the mark itself.
    let mark = records(&bytes).into_iter().filter(|it| it.stream == 0).max_by_key(|it| it.sequence).unwrap();
    assert_eq!((mark.sequence, mark.data_blocks), (11, 0));
    assert!(opened(flipped(&bytes, mark.block * BLOCK + 47)).expect("all is there") == expected(10));
}

/// A damaged block is still known after checkpoints, until it is overwritten.
#[test]
fn a_damaged_block_stays_unreadable_until_it_is_overwritten() {
    let bytes = writes_and_pause(Duration::from_secs(5));
    let damaged = flipped(&bytes, (last_write(&bytes).block + 1) * BLOCK + 9);
    run(move || async move {
        let disk = copy_of(&damaged).await;
        let volume = Volume::open(&disk, &small()).await;
        assert_eq!(volume.part.recovered().damaged_blocks, 1);
        assert!(volume.bytes(8, 2).await.is_err());
        volume.close().await;
        let volume = Volume::open(&disk, &small()).await;
        assert!(matches!(volume.bytes(9, 1).await, Err(Error::Corrupt(_))), "after a checkpoint");
        assert_eq!(volume.versions(0, 9).await, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        // Other blocks are written and moved until the damaged block's zone has been reset.
        for version in 11..400 {
            volume.write(9 + version % 40, 1, version).await;
        }
        volume.write(9, 1, 1000).await;
        volume.close().await;
        let volume = Volume::open(&disk, &small()).await;
        assert_eq!(volume.versions(9, 1).await, [1000]);
        volume.close().await;
    });
}

/// A log with cleaned zones, checkpoints, and roots in both zones; closed if `closes`.
fn used(closes: bool) -> (Vec<u8>, Vec<Version>) {
    let disk = disk(2);
    let options =
        Options { zone_size: Some(32 << 10), size: Some(256 << 10), checkpoint_after: 128 << 10, ..small() };
    let model = run({
        let (disk, options) = (disk.clone(), options.clone());
        move || async move {
            let volume = Volume::make(&disk, &options).await;
            let mut model = vec![0; 64];
            let mut random = Random::new(41);
            for version in 1..=600 {
                let block = random.below(64);
                volume.write(block, 1, version).await;
                model[block as usize] = version;
            }
            volume.close().await;
            let volume = Volume::open(&disk, &options).await;
            for version in 601..=700 {
                let block = random.below(64);
                volume.write(block, 1, version).await;
                volume.flush().await;
                model[block as usize] = version;
            }
            if closes {
                volume.close().await;
            }
            model
        }
    });
    (run(move || async move { raw(&disk).await }), model)
}

/// One bit of any block of the disk flips. The log either fails to open or has its old contents. Only data in
/// a block of user data may differ in that bit, since reads don't verify data.
#[test]
fn one_flipped_bit_anywhere_is_never_taken_for_something_else() {
    println!("seed 41");
    for closes in [true, false] {
        let (bytes, model) = used(closes);
        let right: Vec<u8> =
            model.iter().zip(0..).flat_map(|(version, block)| stamped(block, 1, *version).to_vec()).collect();
        assert!(opened(bytes.clone()).unwrap() == right, "closed: {closes}");
        let last = *records(&bytes)
            .iter()
            .filter(|record| record.stream == 0)
            .map(|record| &record.sequence)
            .max()
            .unwrap();
        let mut random = Random::new(42);
        let (mut refused, mut unharmed, mut harmed) = (0, 0, 0);
        for block in 0..bytes.len() / BLOCK {
            if bytes[block * BLOCK..(block + 1) * BLOCK].iter().all(|byte| *byte == 0) {
                continue;
            }
            // One bit of a header's fields, and one anywhere.
            for at in [random.below(128), random.below(BLOCK as u64)] {
                let (at, bit) = (block * BLOCK + at as usize, random.below(8));
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                let what = || {
                    let all = records(&bytes);
                    let owner = all
                        .iter()
                        .rev()
                        .find(|record| (record.block..=record.block + record.data_blocks).contains(&block));
                    format!("closed: {closes}, block {block}, byte {}, {owner:?}", at % BLOCK)
                };
                match opened(damaged.clone()) {
                    Err(Error::Corrupt(_) | Error::Protocol(_)) => refused += 1,
                    Err(error) => panic!("{}: refused with {error}", what()),
                    Ok(found) if found == right => unharmed += 1,
                    Ok(found) => {
                        let differing = differing(&found, &right);
                        let is_the_bit = differing.len() == 1
                            && found[differing[0]] == right[differing[0]] ^ 1 << bit
                            && differing[0] % BLOCK == at % BLOCK;
                        // Damage of the newest record is indistinguishable from a record that was never
                        // written.
                        let is_the_tail = !closes
                            && records(&bytes).iter().any(|record| {
                                record.stream == 0
                                    && record.sequence == last
                                    && (record.block..=record.block + 1).contains(&block)
                            });
                        assert!(is_the_bit || is_the_tail, "{}: {} bytes differ", what(), differing.len());
                        harmed += 1;
                    }
                }
            }
        }
        println!("closed: {closes}: {refused} refused, {unharmed} unharmed, {harmed} harmed");
        assert!(refused > 10 && unharmed > 10 && harmed > 10);
    }
}

/// The record of this stream with the highest number.
pub fn newest(bytes: &[u8], stream: u8) -> Record {
    records(bytes)
        .into_iter()
        .filter(|record| record.stream == stream)
        .max_by_key(|record| record.sequence)
        .unwrap()
}

#[test]
fn a_damaged_directory_or_page_is_named() {
    let (bytes, _) = used(true);
    let directory = newest(&bytes, CHECKPOINT);
    let mut damaged = bytes.clone();
    damaged[(directory.block + 1) * BLOCK + 100] ^= 1;
    let error = opened(damaged).unwrap_err();
    assert!(matches!(&error, Error::Corrupt(text) if text.contains("directory")), "{error}");
    // The pages are in the previous record.
    let page = records(&bytes)
        .into_iter()
        .find(|record| record.stream == CHECKPOINT && record.sequence == directory.sequence - 1)
        .unwrap();
    let mut damaged = bytes;
    damaged[(page.block + 1) * BLOCK + 5] ^= 1;
    let error = opened(damaged).unwrap_err();
    assert!(matches!(&error, Error::Corrupt(text) if text.contains("page 0 of a map")), "{error}");
}

/// The root of this epoch is lost: the previous one must not be taken for the newest, as it doesn't admit the
/// epoch's records.
#[test]
fn a_damaged_root_does_not_bring_an_older_state_back() {
    let (bytes, _) = used(false);
    let mut damaged = bytes.clone();
    let root = newest(&bytes, ROOT);
    damaged[root.block * BLOCK + 60] ^= 1;
    let error = opened(damaged).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    // All roots are lost.
    let mut damaged = bytes.clone();
    for record in records(&bytes).iter().filter(|record| record.stream == ROOT) {
        damaged[record.block * BLOCK + 60] ^= 1;
    }
    let error = opened(damaged).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
}

/// A user who can read the disk writes copies of its records as data.
#[test]
fn planted_copies_of_records_do_not_validate() {
    let bytes = durable_writes(10);
    let all: Vec<Record> = records(&bytes).into_iter().filter(|record| record.stream == 0).collect();
    let plant: Vec<Vec<u8>> = all
        .iter()
        .map(|record| bytes[record.block * BLOCK..(record.block + 1 + record.data_blocks) * BLOCK].to_vec())
        .collect();
    let disk = run(move || async move { copy_of(&bytes).await });
    let write = |disk: Arc<dyn DevicePart>, plant: Vec<Vec<u8>>| {
        run(move || async move {
            let volume = Volume::open(&disk, &small()).await;
            // Alone and many together, so that the copies are at many positions of a zone.
            for (number, record) in plant.iter().enumerate() {
                for copy in 0..5 {
                    let at = BlockIndex(100 + 20 * number as u64 + 2 * copy);
                    volume
                        .device
                        .write(at, Buffer::copy_of(record).into(), Durability::Visible)
                        .await
                        .unwrap();
                }
            }
            // The original blocks are overwritten: a copy that is replayed would bring their old data back.
            volume.write(0, 10, 50).await;
            volume.flush().await;
        });
    };
    write(disk.clone(), plant.clone());
    write(disk.clone(), plant.clone());
    run(move || async move {
        let volume = Volume::open(&disk, &small()).await;
        assert_eq!(volume.versions(0, 12).await, [[50; 10].as_slice(), &[0; 2]].concat());
        for (number, record) in plant.iter().enumerate() {
            for copy in 0..5 {
                assert!(volume.bytes(100 + 20 * number as u64 + 2 * copy, 2).await.unwrap() == *record);
            }
        }
    });
}

/// A disk full of records that another program wrote isn't a log.
#[test]
fn what_is_no_log_is_refused_with_what_it_is() {
    let empty = run(|| async {
        let disk = disk(2);
        Volume::try_open(&disk, &small()).await.err().expect("there is nothing")
    });
    assert!(matches!(empty, Error::Protocol(_)), "{empty}");
    let random = run(|| async {
        let mut bytes = vec![0; 2 << 20];
        Random::new(43).fill(&mut bytes);
        let disk = copy_of(&bytes).await;
        Volume::try_open(&disk, &small()).await.err().expect("there is nothing")
    });
    assert!(matches!(random, Error::Protocol(_) | Error::Corrupt(_)), "{random}");
}
