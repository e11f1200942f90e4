//! Damage on the medium, one byte at a time, and records where none should be: opening either refuses, and says what is
//! wrong, or gives what was there.

use crate::life::{BLOCK, Version, Volume, copy_of, disk, raw, run, small, stamped};
use block::{BlockIndex, Buffer, DevicePart, Durability, Error};
use log::kind::Options;
use runtime::Random;
use std::sync::Arc;

/// A record, as it lies on a disk; see the book's page on records.
#[derive(Debug, Clone, Copy)]
struct Record {
    block: usize,
    stream: u8,
    sequence: u64,
    data_blocks: usize,
}

const CHECKPOINT: u8 = 2;
const ROOT: u8 = 3;

/// All that begin like records, of any age.
fn records(bytes: &[u8]) -> Vec<Record> {
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

/// Every write a record of its own, flushed; then the process dies. Block n holds version n + 1.
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

/// What opening a disk with these bytes gives.
fn opened(bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
    run(move || async move {
        let disk = copy_of(&bytes).await;
        let volume = Volume::try_open(&disk, &small()).await?;
        let found = volume.bytes(0, 64).await?;
        // A log that was opened can be written to.
        volume.try_write(60, 1, 99).await?;
        volume.device.flush().await?;
        Ok(found)
    })
}

/// At which bytes they differ.
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
    let (mut sealed, mut refused) = (0, 0);
    for record in users {
        // In the header, in its checksums, in the data.
        for offset in [20, 47, 97, BLOCK, 2 * BLOCK - 1] {
            let mut damaged = bytes.clone();
            damaged[record.block * BLOCK + offset] ^= 0x10;
            match (record.sequence, opened(damaged)) {
                // Nobody can tell it from a record that the power cut took.
                (20, found) => assert!(found.expect("a torn tail is the normal end") == expected(19)),
                // A zone that was full says at its end what is in it, and its data isn't read to open the log.
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
                (sequence, Err(Error::Corrupt(text))) => {
                    assert!(text.contains(&format!("record {sequence} of stream 0")), "{text}");
                    refused += 1;
                }
                (sequence, Err(other)) => panic!("record {sequence}: {other}"),
            }
        }
    }
    println!("{refused} refused, {sealed} in sealed zones");
    assert!(refused >= 20 && sealed >= 20);
}

/// A log with zones that were cleaned, checkpoints and roots in both zones; closed, or not.
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

/// One bit of any block of the disk flips. The log refuses to open, or everything is as it was; only what lies in a block
/// of user data may differ in that bit, since reads don't check data.
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
            // One in what a header has, and one anywhere.
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
                        // The newest record can't be told from one that was never written.
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

/// The newest of several, by its number.
fn newest(bytes: &[u8], stream: u8) -> Record {
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
    // The pages stand in the record before.
    let page = records(&bytes)
        .into_iter()
        .find(|record| record.stream == CHECKPOINT && record.sequence == directory.sequence - 1)
        .unwrap();
    let mut damaged = bytes;
    damaged[(page.block + 1) * BLOCK + 5] ^= 1;
    let error = opened(damaged).unwrap_err();
    assert!(matches!(&error, Error::Corrupt(text) if text.contains("page 0 of a map")), "{error}");
}

/// The root of this life is gone: the one before must not pass for the newest, whose records it doesn't admit.
#[test]
fn a_damaged_root_does_not_bring_an_older_state_back() {
    let (bytes, _) = used(false);
    let mut damaged = bytes.clone();
    let root = newest(&bytes, ROOT);
    damaged[root.block * BLOCK + 60] ^= 1;
    let error = opened(damaged).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    // All of them.
    let mut damaged = bytes.clone();
    for record in records(&bytes).iter().filter(|record| record.stream == ROOT) {
        damaged[record.block * BLOCK + 60] ^= 1;
    }
    let error = opened(damaged).unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
}

/// Somebody who can read the disk writes records of it as user data.
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
            // Alone and many together, so that they come to lie at many places of a zone.
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
            // Overwritten, so that only the record itself counts.
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

/// Bytes that were written as a whole disk of records by somebody else don't make a log.
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
