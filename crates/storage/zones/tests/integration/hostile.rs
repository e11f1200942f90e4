//! Damaged and planted bytes on the medium: no panic, and nothing invalid is accepted silently.

use crate::common::CrashDisk;
use block::{
    Data, DevicePart, EraseGuarantee, Error, Part, Payload, ZoneAddress, ZoneIndex, ZoneState, Zones,
    ZonesPart,
};
use proptest::prelude::*;
use runtime::Random;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use zones::OnDevice;
use zones::on_device::Options;
use zones::on_device::format::{RECORD, Superblock, Uuid, ZoneHeader};

pub const BLOCK: u64 = 4096;
const BYTES: usize = 2 << 20;
const ZONE: u64 = 256 << 10;
/// Offset of the header of zone 0 on these disks.
pub const HEADERS: usize = 2 * BLOCK as usize;

pub fn inside<T: Send + 'static, F: Future<Output = T> + 'static>(test: impl FnOnce() -> F + Send) -> T {
    runtime::run(runtime::Config::default().with_shards(1), test).unwrap()
}

fn format() -> Options {
    Options { format: true, zone_size: Some(ZONE), ..Options::default() }
}

pub fn payload(bytes: usize, value: u8) -> Payload {
    Data::copy_of(&vec![value; bytes]).into()
}

async fn formatted() -> Arc<CrashDisk> {
    let disk = Arc::new(CrashDisk::new(BYTES, BLOCK, true));
    let zones = OnDevice::open(disk.clone(), format()).await.unwrap();
    zones.close().await.unwrap();
    disk
}

pub async fn open(disk: &Arc<CrashDisk>) -> block::Result<OnDevice> {
    OnDevice::open(disk.clone(), Options::default()).await
}

pub async fn handle(zones: &OnDevice) -> Rc<dyn Zones> {
    ZonesPart::open(zones).await.unwrap()
}

async fn refused(disk: &Arc<CrashDisk>) -> Error {
    match open(disk).await {
        Ok(zones) => panic!("accepted: {:?}", zones.status().await),
        Err(error) => error,
    }
}

fn superblock() -> Superblock {
    Superblock {
        block_size: BLOCK as u32,
        uuid: Uuid::from_bytes([7; 16]),
        sequence: 4,
        zone_size: ZONE,
        first_zone: ZONE,
        zones: 7,
        staging: 0,
        clean: true,
    }
}

fn header() -> ZoneHeader {
    ZoneHeader {
        uuid: Uuid::from_bytes([7; 16]),
        zone: 3,
        state: ZoneState::Full,
        generation: 9,
        write_pointer: 8192,
    }
}

fn decode_header(bytes: &[u8]) -> block::Result<ZoneHeader> {
    ZoneHeader::decode(bytes, Uuid::from_bytes([7; 16]), 3, ZONE, BLOCK)
}

proptest! {
    #[test]
    fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..1024)) {
        prop_assert!(Superblock::decode(&bytes).is_err());
        prop_assert!(decode_header(&bytes).is_err());
    }

    #[test]
    fn any_change_of_a_record_is_noticed(changes in prop::collection::vec((0..RECORD, 1_u8..), 1..4)) {
        let (mut first, mut second) = (superblock().encode().to_data().to_vec(), header().encode(BLOCK).to_data().to_vec());
        for (at, change) in &changes {
            first[*at] ^= change;
            second[*at] ^= change;
        }
        // Changes of the same byte can cancel out.
        if first != superblock().encode().to_data().to_vec() {
            prop_assert!(Superblock::decode(&first).is_err());
            prop_assert!(decode_header(&second).is_err());
        }
    }

    #[test]
    fn records_survive_the_trip(sequence in 0_u64..1 << 62, sizes in any::<(u64, u64, u32)>(), staging: u32, clean: bool) {
        let written = Superblock { sequence, zone_size: sizes.0, first_zone: sizes.1, zones: sizes.2, staging, clean, ..superblock() };
        prop_assert_eq!(Superblock::decode(&written.encode().to_data()).unwrap(), written);
        let written = ZoneHeader { generation: 1 + sequence / 2, write_pointer: sizes.0 % 60 * BLOCK, ..header() };
        prop_assert_eq!(decode_header(&written.encode(BLOCK).to_data()).unwrap(), written);
    }
}

/// Programs from before the staging area refuse bytes that aren't zeros here.
#[test]
fn a_staging_area_is_in_bytes_that_earlier_programs_expect_to_be_zeros() {
    let bytes = |staging| Superblock { staging, ..superblock() }.encode().to_data()[64..508].to_vec();
    assert_eq!(bytes(0), [0; 444]);
    assert_ne!(bytes(1 << 20), [0; 444]);
}

/// Records with a valid checksum and invalid contents.
#[test]
fn planted_headers_are_refused() {
    let wrong = [
        ZoneHeader { zone: 4, ..header() },
        ZoneHeader { uuid: Uuid::from_bytes([8; 16]), ..header() },
        ZoneHeader { generation: 0, ..header() },
        ZoneHeader { generation: u64::MAX, ..header() },
        ZoneHeader { write_pointer: ZONE + BLOCK, ..header() },
        ZoneHeader { write_pointer: u64::MAX, ..header() },
        ZoneHeader { write_pointer: 1, ..header() },
        ZoneHeader { state: ZoneState::Empty, ..header() },
        ZoneHeader { state: ZoneState::Offline, ..header() },
    ];
    for header in wrong {
        assert!(decode_header(&header.encode(BLOCK).to_data()).is_err(), "{header:?}");
    }
    assert!(decode_header(&header().encode(BLOCK).to_data()).is_ok());
}

#[test]
fn planted_superblocks_never_panic() {
    inside(|| async {
        let seed = runtime::random_u64();
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let disk = formatted().await;
        let mut accepted = 0;
        for _ in 0..3000 {
            let mut any = |usual: u64| match random.below(4) {
                0 => random.next_u64(),
                1 => 1 << random.below(64),
                2 => usual.wrapping_add(random.below(3)).wrapping_sub(1),
                _ => usual,
            };
            let planted = Superblock {
                block_size: any(BLOCK) as u32,
                sequence: any(4) & !1,
                zone_size: any(ZONE),
                first_zone: any(ZONE),
                zones: any(7) as u32,
                ..superblock()
            };
            let bytes = planted.encode_for(BLOCK);
            disk.damage(0, &bytes);
            disk.damage(4096, &[0; 4096]);
            if let Ok(zones) = open(&disk).await {
                accepted += 1;
                let geometry = ZonesPart::geometry(&zones).clone();
                let end = planted.first_zone + u64::from(geometry.zones) * geometry.zone_size;
                assert!(planted.block_size == BLOCK as u32 && end <= BYTES as u64, "{planted:?}");
                let headers = (2 + u64::from(planted.zones)) * BLOCK;
                assert!(planted.first_zone >= headers, "zones overlap the headers: {planted:?}");
                // The zone headers belong to another volume, so all of them are refused.
                for report in handle(&zones).await.report(ZoneIndex(0), u32::MAX).await.unwrap() {
                    assert_eq!(report.state, ZoneState::Offline);
                }
            }
        }
        assert!(accepted > 0, "some superblocks were right");
    });
}

trait EncodeFor {
    fn encode_for(&self, block: u64) -> Vec<u8>;
}

impl EncodeFor for Superblock {
    /// Encodes the record in a block of the disk, with any block size in its fields.
    fn encode_for(&self, block: u64) -> Vec<u8> {
        let mut bytes = Superblock { block_size: 512, ..*self }.encode().to_data().to_vec();
        bytes[12..16].copy_from_slice(&self.block_size.to_le_bytes());
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[..RECORD - 4]) as u32;
        bytes[RECORD - 4..RECORD].copy_from_slice(&crc.to_le_bytes());
        bytes.resize(block as usize, 0);
        bytes
    }
}

#[test]
fn foreign_devices_are_refused_by_name() {
    inside(|| async {
        let plant: [(usize, &[u8], &str); 5] = [
            (0, b"", "nothing but zeros"),
            (0, b"XFSB", "XFS"),
            (1080, b"\x53\xef", "ext4"),
            (512, b"EFI PART", "GPT"),
            (77, b"hello", "doesn't know"),
        ];
        for (at, magic, name) in plant {
            let disk = Arc::new(CrashDisk::new(BYTES, BLOCK, true));
            disk.damage(at, magic);
            let before = disk.bytes();
            let error = refused(&disk).await;
            assert!(matches!(error, Error::Protocol(_)), "{error}");
            assert!(
                error.to_string().contains(name) && error.to_string().contains("siltstone format --force"),
                "{error}"
            );
            assert!(before == disk.bytes(), "a refused device is not written to");
        }
    });
}

#[test]
fn other_versions_and_geometries_are_refused() {
    inside(|| async {
        let disk = formatted().await;
        for copy in 0..2 {
            disk.damage(copy * 4096 + 8, &[1]);
        }
        let error = refused(&disk).await;
        assert!(matches!(error, Error::Protocol(_)) && error.to_string().contains("version 1"), "{error}");

        let disk = formatted().await;
        let other_blocks = Arc::new(CrashDisk::with(disk.bytes(), 512, true));
        let error = refused(&other_blocks).await;
        assert!(
            matches!(error, Error::Invalid(_)) && error.to_string().contains("block_size=4096"),
            "{error}"
        );

        let shorter = disk.bytes()[..BYTES - (64 << 10)].to_vec();
        let error = refused(&Arc::new(CrashDisk::with(shorter, BLOCK, true))).await;
        assert!(matches!(error, Error::Invalid(_)), "{error}");

        let other_size = Options { zone_size: Some(2 * ZONE), ..Options::default() };
        let error = OnDevice::open(disk.clone(), other_size).await.err().unwrap();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("262144"), "{error}");
    });
}

/// Leaves zone 0 open with 4 blocks, zone 1 full with 2, zone 2 reset once.
pub async fn used() -> (Arc<CrashDisk>, u64) {
    let disk = formatted().await;
    let zones = open(&disk).await.unwrap();
    let handle = handle(&zones).await;
    handle.append(ZoneIndex(0), payload(16384, 1)).await.unwrap();
    handle.append(ZoneIndex(1), payload(8192, 2)).await.unwrap();
    handle.finish(ZoneIndex(1)).await.unwrap();
    handle.append(ZoneIndex(2), payload(4096, 3)).await.unwrap();
    let generation = handle.reset(ZoneIndex(2), EraseGuarantee::None).await.unwrap();
    drop(handle);
    zones.close().await.unwrap();
    (disk, generation)
}

#[test]
fn torn_superblocks_are_survived_and_never_trusted_as_clean() {
    inside(|| async {
        for copy in 0..2 {
            for (from, damage) in [(0, vec![0; 4096]), (200, vec![0xFF; 300]), (100, vec![1])] {
                let (disk, generation) = used().await;
                disk.damage(copy * 4096 + from, &damage);
                let zones = open(&disk).await.unwrap();
                let handle = handle(&zones).await;
                let report = handle.report(ZoneIndex(0), 3).await.unwrap();
                assert_eq!(
                    report[0].state,
                    ZoneState::Interrupted,
                    "what is torn may have said that the volume is in use"
                );
                assert_eq!(report[0].write_pointer, ZonesPart::geometry(&zones).zone_capacity);
                assert_eq!((report[1].state, report[1].write_pointer), (ZoneState::Full, 8192));
                assert_eq!((report[2].state, report[2].generation), (ZoneState::Empty, generation));
                // The first change repairs the copy, also without a close: afterwards either one is enough.
                handle.append(ZoneIndex(2), payload(4096, 4)).await.unwrap();
                let without = |copy: usize| {
                    let left = Arc::new(CrashDisk::with(disk.bytes(), BLOCK, true));
                    left.damage(copy * 4096, &[0; 4096]);
                    left
                };
                open(&without(0)).await.unwrap();
                open(&without(1)).await.unwrap();
                drop(handle);
                zones.close().await.unwrap();
                open(&without(0)).await.unwrap();
                open(&without(1)).await.unwrap();
                let closed = open(&disk).await.unwrap();
                let report =
                    ZonesPart::open(&closed).await.unwrap().report(ZoneIndex(2), 1).await.unwrap()[0];
                assert_eq!((report.state, report.write_pointer), (ZoneState::Closed, 4096));
            }
        }
        let (disk, _) = used().await;
        disk.damage(300, &[9]);
        disk.damage(4096 + 300, &[9]);
        let error = refused(&disk).await;
        assert!(matches!(error, Error::Corrupt(_)), "{error}");
    });
}

#[test]
fn a_clean_volume_continues_and_an_unclean_one_does_not() {
    inside(|| async {
        let (disk, _) = used().await;
        let zones = open(&disk).await.unwrap();
        let first = handle(&zones).await;
        let report = first.report(ZoneIndex(0), 1).await.unwrap()[0];
        assert_eq!((report.state, report.write_pointer), (ZoneState::Closed, 16384));
        let at = first.append(ZoneIndex(0), payload(4096, 4)).await.unwrap();
        assert_eq!(at, ZoneAddress::new(0, 16384));
        drop(first);
        // The volume isn't closed; the header still has the write pointer of the last close, which is out of
        // date.
        drop(zones);
        let zones = open(&disk).await.unwrap();
        let report = handle(&zones).await.report(ZoneIndex(0), 1).await.unwrap()[0];
        assert_eq!(report.state, ZoneState::Interrupted);
        assert_eq!(report.write_pointer, ZonesPart::geometry(&zones).zone_capacity);
    });
}

/// Temporary read errors of a disk cost no zone.
#[test]
fn headers_that_can_be_read_at_the_fourth_attempt_are_read() {
    inside(|| async {
        let (disk, _) = used().await;
        let states = async |failures: u64| {
            disk.fail_reads.store(failures, Ordering::Release);
            let zones = open(&disk).await?;
            let report = handle(&zones).await.report(ZoneIndex(0), u32::MAX).await.unwrap();
            zones.close().await.unwrap();
            Ok::<_, Error>(report.iter().map(|report| report.state).collect::<Vec<_>>())
        };
        let usual = states(0).await.unwrap();
        assert_eq!(usual[0], ZoneState::Closed);
        assert_eq!(states(3).await.unwrap(), usual);
        assert!(matches!(states(4).await, Err(Error::Io(_))));
    });
}

/// Headers are read many at a time; an unreadable one doesn't affect the others.
#[test]
fn a_header_that_can_not_be_read_takes_its_zone_offline_and_no_other() {
    inside(|| async {
        let (disk, _) = used().await;
        let states = async || {
            let zones = open(&disk).await.unwrap();
            let report = handle(&zones).await.report(ZoneIndex(0), u32::MAX).await.unwrap();
            zones.close().await.unwrap();
            report.iter().map(|report| report.state).collect::<Vec<_>>()
        };
        let usual = states().await;
        for bad in 0..usual.len() {
            disk.bad_block.store(2 + bad as u64, Ordering::Release);
            let mut expected = usual.clone();
            expected[bad] = ZoneState::Offline;
            assert_eq!(states().await, expected);
        }
    });
}

#[test]
fn a_damaged_header_takes_its_zone_offline_and_no_other() {
    inside(|| async {
        for damage in [vec![0; 4096], vec![0xAB; 512], header().encode(BLOCK).to_data().to_vec()] {
            let (disk, _) = used().await;
            disk.damage(HEADERS + BLOCK as usize, &damage);
            let zones = open(&disk).await.unwrap();
            assert!(
                zones.status().await["damage"][0].as_str().unwrap().contains("zone 1"),
                "{:?}",
                zones.status().await
            );
            let handle = handle(&zones).await;
            let report = handle.report(ZoneIndex(0), 3).await.unwrap();
            let states: Vec<ZoneState> = report.iter().map(|report| report.state).collect();
            assert_eq!(states, [ZoneState::Closed, ZoneState::Offline, ZoneState::Empty]);
            let (outcome, buffer) = handle.read(ZoneAddress::new(1, 0), block::Buffer::new(4096)).await;
            assert!(outcome.is_err() && buffer.filled().is_empty());
            assert!(handle.append(ZoneIndex(1), payload(4096, 1)).await.is_err());
            assert!(handle.finish(ZoneIndex(1)).await.is_err());
            // The generation is unknown, so a reset could let old records validate.
            assert!(handle.reset(ZoneIndex(1), EraseGuarantee::None).await.is_err());
            handle.append(ZoneIndex(2), payload(4096, 1)).await.unwrap();
            drop(handle);
            zones.close().await.unwrap();
            assert!(open(&disk).await.unwrap().status().await["damage"].is_array(), "it stays so");
        }
    });
}

#[test]
fn a_failed_append_interrupts_its_zone() {
    inside(|| async {
        let disk = formatted().await;
        let zones = open(&disk).await.unwrap();
        let handle = handle(&zones).await;
        let good = handle.append(ZoneIndex(0), payload(4096, 5)).await.unwrap();
        disk.fail_writes.store(true, Ordering::Release);
        let error = handle.append(ZoneIndex(0), payload(4096, 6)).await.unwrap_err();
        assert!(matches!(error, Error::Io(_)), "{error}");
        // The header of an empty zone also can't be written.
        let error = handle.append(ZoneIndex(1), payload(4096, 6)).await.unwrap_err();
        assert!(matches!(error, Error::Io(_)), "{error}");
        assert!(
            handle.finish(ZoneIndex(0)).await.is_err()
                && handle.reset(ZoneIndex(1), EraseGuarantee::None).await.is_err()
        );
        disk.fail_writes.store(false, Ordering::Release);
        for zone in 0..2 {
            let report = handle.report(ZoneIndex(zone), 1).await.unwrap()[0];
            assert_eq!(report.state, ZoneState::Interrupted);
            assert!(matches!(handle.open(ZoneIndex(zone)).await, Err(Error::Invalid(_))));
            assert!(matches!(handle.close(ZoneIndex(zone)).await, Err(Error::Invalid(_))));
            let error = handle.append(ZoneIndex(zone), payload(4096, 7)).await.unwrap_err();
            assert!(
                matches!(error, Error::Invalid(_)) && error.to_string().contains("wants this write to fail"),
                "{error}"
            );
        }
        let (outcome, buffer) = handle.read(good, block::Buffer::new(4096)).await;
        assert!(outcome.is_ok() && buffer.filled() == [5; 4096]);
        handle.finish(ZoneIndex(0)).await.unwrap();
        let generation = handle.report(ZoneIndex(1), 1).await.unwrap()[0].generation;
        let after = handle.reset(ZoneIndex(1), EraseGuarantee::Deallocated).await.unwrap();
        assert_eq!(after, generation + 1);
        handle.append(ZoneIndex(1), payload(4096, 8)).await.unwrap();
        drop(handle);
        zones.close().await.unwrap();
        let reopened = open(&disk).await.unwrap();
        let report = ZonesPart::open(&reopened).await.unwrap().report(ZoneIndex(0), 2).await.unwrap();
        assert_eq!((report[0].state, report[1].state), (ZoneState::Full, ZoneState::Closed));
    });
}

#[test]
fn an_append_to_an_open_zone_is_one_write() {
    inside(|| async {
        let disk = formatted().await;
        let zones = open(&disk).await.unwrap();
        let handle = handle(&zones).await;
        handle.append(ZoneIndex(0), payload(4096, 5)).await.unwrap();
        let before = disk.writes.load(Ordering::Acquire);
        for _ in 0..10 {
            handle.append(ZoneIndex(0), payload(4096, 5)).await.unwrap();
        }
        assert_eq!(disk.writes.load(Ordering::Acquire) - before, 10);
    });
}

#[test]
fn closing_a_zone_and_opening_a_closed_one_write_nothing() {
    inside(|| async {
        let disk = formatted().await;
        let zones = open(&disk).await.unwrap();
        let handle = handle(&zones).await;
        handle.open(ZoneIndex(0)).await.unwrap();
        let before = disk.writes.load(Ordering::Acquire);
        for call in 0..3 {
            handle.close(ZoneIndex(0)).await.unwrap();
            handle.open(ZoneIndex(0)).await.unwrap();
            handle.append_at(ZoneAddress::new(0, call * 4096), payload(4096, 5)).await.unwrap();
            assert!(handle.append_at(ZoneAddress::new(0, 0), payload(4096, 6)).await.is_err());
        }
        assert_eq!(disk.writes.load(Ordering::Acquire) - before, 3);
    });
}

/// An append that fails after its zone was closed still leaves a hole in it, even if the zone was opened
/// again.
#[test]
fn an_append_that_fails_in_a_closed_zone_interrupts_it() {
    for opens in [false, true] {
        inside(move || async move {
            let disk = formatted().await;
            let zones = open(&disk).await.unwrap();
            let handle = handle(&zones).await;
            handle.append(ZoneIndex(0), payload(4096, 5)).await.unwrap();
            disk.fail_writes.store(true, Ordering::Release);
            let mut append = handle.append(ZoneIndex(0), payload(4096, 6));
            let begun =
                poll_fn(|context| Poll::Ready(Pin::new(&mut append).poll(context).is_pending())).await;
            assert!(begun, "its write takes a turn");
            handle.close(ZoneIndex(0)).await.unwrap();
            if opens {
                handle.open(ZoneIndex(0)).await.unwrap();
            }
            assert!(append.await.is_err());
            let report = handle.report(ZoneIndex(0), 1).await.unwrap()[0];
            assert_eq!(report.state, ZoneState::Interrupted);
        });
    }
}

#[test]
fn a_read_only_device_is_read_and_not_written() {
    inside(|| async {
        let (disk, _) = used().await;
        let before = disk.bytes();
        let protected = Arc::new(CrashDisk::with(disk.bytes(), BLOCK, true).read_only());
        let zones = open(&protected).await.unwrap();
        let handle = handle(&zones).await;
        let (outcome, buffer) = handle.read(ZoneAddress::new(0, 0), block::Buffer::new(16384)).await;
        assert!(outcome.is_ok() && buffer.filled() == [1; 16384]);
        assert!(matches!(handle.append(ZoneIndex(2), payload(4096, 1)).await, Err(Error::ReadOnly(_))));
        assert!(matches!(handle.finish(ZoneIndex(0)).await, Err(Error::ReadOnly(_))));
        assert!(matches!(handle.reset(ZoneIndex(0), EraseGuarantee::None).await, Err(Error::ReadOnly(_))));
        let report = handle.report(ZoneIndex(0), 1).await.unwrap()[0];
        assert_eq!((report.state, report.write_pointer), (ZoneState::Closed, 16384));
        drop(handle);
        zones.close().await.unwrap();
        assert!(before == protected.bytes());
    });
}

#[test]
fn zones_that_are_opened_read_only_are_not_written() {
    inside(|| async {
        let (disk, _) = used().await;
        let before = disk.bytes();
        let options = Options { read_only: true, ..Options::default() };
        let zones = OnDevice::open(disk.clone(), options).await.unwrap();
        let handle = handle(&zones).await;
        let (outcome, buffer) = handle.read(ZoneAddress::new(0, 0), block::Buffer::new(16384)).await;
        assert!(outcome.is_ok() && buffer.filled() == [1; 16384]);
        assert!(matches!(handle.append(ZoneIndex(2), payload(4096, 1)).await, Err(Error::ReadOnly(_))));
        assert!(matches!(handle.reset(ZoneIndex(0), EraseGuarantee::None).await, Err(Error::ReadOnly(_))));
        let report = handle.report(ZoneIndex(0), 1).await.unwrap()[0];
        assert_eq!((report.state, report.write_pointer), (ZoneState::Closed, 16384));
        drop(handle);
        zones.close().await.unwrap();
        assert!(before == disk.bytes());
        let both = Options { read_only: true, ..format() };
        assert!(matches!(OnDevice::open(disk.clone(), both).await, Err(Error::Invalid(_))));
        assert!(before == disk.bytes());
    });
}

#[test]
fn zones_that_are_only_looked_at_stay_as_they_are() {
    inside(|| async {
        let (disk, _) = used().await;
        let before = disk.bytes();
        for _ in 0..2 {
            let zones = OnDevice::open(disk.clone(), Options::default()).await.unwrap();
            let handle = handle(&zones).await;
            let (outcome, _) = handle.read(ZoneAddress::new(0, 0), block::Buffer::new(16384)).await;
            assert!(outcome.is_ok() && before == disk.bytes());
            drop(handle);
            zones.close().await.unwrap();
            assert!(before == disk.bytes());
        }
        // A program that dies before its first change leaves it closed cleanly; one that dies after it
        // doesn't.
        for is_changed in [false, true] {
            let zones = OnDevice::open(disk.clone(), Options::default()).await.unwrap();
            if is_changed {
                let handle = handle(&zones).await;
                let appends = (0..2).map(|number| handle.append(ZoneIndex(2 + number), payload(4096, 1)));
                runtime::join_all(appends).await.into_iter().for_each(|append| assert!(append.is_ok()));
            }
            drop(zones);
            let left = Arc::new(CrashDisk::with(disk.bytes(), BLOCK, true));
            let zones = OnDevice::open(left, Options::default()).await.unwrap();
            let report = handle(&zones).await.report(ZoneIndex(0), 1).await.unwrap()[0];
            let state = if is_changed { ZoneState::Interrupted } else { ZoneState::Closed };
            assert_eq!(report.state, state, "changed: {is_changed}");
        }
    });
}

#[test]
fn an_interrupted_format_leaves_nothing_that_opens() {
    inside(|| async {
        let seed = runtime::random_u64();
        println!("seed {seed}");
        let mut random = Random::new(seed);
        for _ in 0..40 {
            let (disk, _) = used().await;
            let device: Arc<dyn DevicePart> = disk.clone();
            let begun =
                runtime::spawn(
                    async move { OnDevice::open(device, format()).await.map(|zones| zones.uuid()) },
                );
            for _ in 0..random.below(30) {
                runtime::yield_now().await;
            }
            let finished = begun.is_finished();
            begun.abort();
            let left = Arc::new(disk.crash(&mut random));
            match open(&left).await {
                Ok(zones) => {
                    let handle = handle(&zones).await;
                    let report = handle.report(ZoneIndex(0), 3).await.unwrap();
                    let old = report[1].state == ZoneState::Full;
                    let new = report.iter().all(|report| report.state == ZoneState::Empty);
                    assert!(old || new, "neither the old volume nor the new one: {report:?}");
                }
                Err(error) => {
                    assert!(!finished && matches!(error, Error::Protocol(_) | Error::Corrupt(_)), "{error}")
                }
            }
        }
    });
}

#[test]
fn a_power_cut_after_a_close_takes_nothing() {
    inside(|| async {
        let seed = runtime::random_u64();
        println!("seed {seed}");
        let mut random = Random::new(seed);
        for _ in 0..20 {
            let (disk, generation) = used().await;
            let zones = open(&disk).await.unwrap();
            handle(&zones).await.append(ZoneIndex(0), payload(4096, 1)).await.unwrap();
            zones.close().await.unwrap();
            let left = Arc::new(disk.crash(&mut random));
            let zones = open(&left).await.unwrap();
            let handle = handle(&zones).await;
            let report = handle.report(ZoneIndex(0), 3).await.unwrap();
            assert_eq!((report[0].state, report[0].write_pointer), (ZoneState::Closed, 20480));
            assert_eq!((report[2].state, report[2].generation), (ZoneState::Empty, generation));
            for (zone, length, value) in [(0, 20480, 1), (1, 8192, 2)] {
                let (outcome, buffer) =
                    handle.read(ZoneAddress::new(zone, 0), block::Buffer::new(length)).await;
                assert!(outcome.is_ok() && buffer.filled().iter().all(|byte| *byte == value), "zone {zone}");
            }
        }
    });
}
