//! Superblocks and records with valid checksums and fields out of range, as an attacker with write access to
//! the device can make them.

use super::*;
use block::{BlockCount, DeviceGeometry, DevicePart};
use layers::record::replay::{Choice, Cursor, History, Image, ImageDisk};
use layers::record::{RecordDevicePart, Recorder, Role};
use std::sync::Arc;

const UNIT: u64 = 4096;

fn disk() -> Arc<dyn DevicePart> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(256),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }))
}

/// A table that has had one change, the device that it is on, and its superblock.
async fn table() -> (Rc<Medium>, Superblock) {
    table_on(disk()).await
}

async fn table_on(disk: Arc<dyn DevicePart>) -> (Rc<Medium>, Superblock) {
    let medium = Rc::new(Medium::new(disk.open().await.unwrap()));
    let table = Table::format(medium.clone(), 32 << 10, [0; OWNER]).await.unwrap();
    table.reserve().await.unwrap();
    table.set(&[(1, [1, 2, 3])]);
    table.append(&[(1, [1, 2, 3])]).await.unwrap();
    let superblock = find(&medium).await.unwrap().superblock;
    (medium, superblock)
}

/// Durably writes a record of this number to the place where it belongs.
async fn plant(medium: &Medium, superblock: &Superblock, sequence: u64, after: u64, durable: u64) {
    let (place, unit) = record(superblock, sequence, after, durable);
    medium.write(place, unit, Durability::Durable).await.unwrap();
}

/// A record of this number, and the place where it belongs.
fn record(superblock: &Superblock, sequence: u64, after: u64, durable: u64) -> (u64, Payload) {
    let position = sequence % u64::from(superblock.journal);
    let header = Header {
        kind: zones::record::Kind::CacheTable,
        stream: StreamId(0),
        class: 0,
        epoch: superblock.epoch,
        sequence,
        durable,
        clock: after,
        zone: 0,
        generation: 0,
        position: position as u32,
        blocks: 0,
    };
    let mut unit = block::Buffer::zeroed(UNIT as usize);
    header.encode(
        &superblock.identity,
        &[],
        &[],
        &format::encode_changes(&[(1, [4, 5, 6])]),
        unit.filled_mut(),
    );
    ((2 + position) * UNIT, unit.into())
}

/// The process was killed during an append: the next process reads a record that isn't durable. Its
/// superblock names that record.
#[test]
fn a_record_that_was_found_once_survives_a_power_cut() {
    runtime::run(runtime::Config::default(), || async {
        let recorder = Recorder::in_memory();
        let disk = Arc::new(RecordDevicePart::new(disk(), recorder.clone(), "disk", Role::Disk).unwrap());
        let (medium, superblock) = table_on(disk.clone()).await;
        let (place, unit) = record(&superblock, 2, 1, 1);
        medium.write(place, unit, Durability::Visible).await.unwrap();
        assert_eq!(Table::open(medium).await.unwrap().get(1), [4, 5, 6]);
        let history = History::new(&recorder.timeline().unwrap(), disk.number()).unwrap();
        let mut cursor = Cursor::new(history.clone());
        cursor.advance_to(history.events());
        let left = ImageDisk::new(Image::new(&cursor, Choice::Nothing));
        let medium = Rc::new(Medium::new(left.open().await.unwrap()));
        assert_eq!(Table::open(medium).await.unwrap().get(1), [4, 5, 6]);
    })
    .unwrap();
}

#[test]
fn a_record_that_says_what_cant_be_is_refused() {
    runtime::run(runtime::Config::default(), || async {
        // The one record so far is the first.
        let (medium, superblock) = table().await;
        plant(&medium, &superblock, 2, 1, 1).await;
        let opened = Table::open(medium).await.unwrap();
        assert_eq!(opened.get(1), [4, 5, 6], "a record as it should be counts");
        for (sequence, after, durable) in [
            (2, 3, 1),
            (2, 4, 1),
            (2, u64::MAX, 1),
            (2, 1, 2),
            (2, 1, u64::MAX),
            (2, u64::MAX, u64::MAX),
            // In the last place of a journal of 16 units.
            (u64::MAX, 1, 1),
            (u64::MAX, u64::MAX, u64::MAX - 1),
        ] {
            let (medium, superblock) = table().await;
            plant(&medium, &superblock, sequence, after, durable).await;
            let refused = Table::open(medium).await.err().expect("it is refused");
            assert!(matches!(refused, Error::Corrupt(_)), "{refused}");
            assert!(refused.detail().contains(&format!("record {sequence}")), "{refused}");
        }
    })
    .unwrap();
}

#[test]
fn a_journal_of_a_length_that_is_never_made_is_refused() {
    runtime::run(runtime::Config::default(), || async {
        for (journal, is_right) in
            [(1, false), (3, false), (7, false), (15, false), (16, true), (32 << 10, false)]
        {
            let (medium, superblock) = table().await;
            assert_eq!(superblock.journal, 16);
            let superblock = Superblock { journal, sequence: superblock.sequence + 1, ..superblock };
            let place = superblock.sequence % 2 * UNIT;
            medium.write(place, superblock.encode(), Durability::Durable).await.unwrap();
            match Table::open(medium).await.map(drop) {
                Ok(()) => assert!(is_right, "{journal} units: they are taken"),
                Err(error) => {
                    assert!(!is_right && matches!(error, Error::Corrupt(_)), "{journal} units: {error}");
                }
            }
        }
    })
    .unwrap();
}
