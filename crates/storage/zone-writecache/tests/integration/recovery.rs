//! Records that an open must find in the log, or report as missing, and the state of the origin after it.

use crate::origins::{Mode, Switched};
use crate::promises::{KIB, filled, number, read, simulated, text};
use crate::{FAST, copy_of, fast_device, open, options, ram_zones};
use block::{BlockIndex, Buffer, DevicePart, Durability, Error, Part, ZoneAddress, ZoneIndex, ZonesPart};
use std::sync::Arc;
use std::time::Duration;
use zone_writecache::ZoneWriteCachePart;
use zones::ram::{self, RamZones};

fn zones_of(options: ram::Options) -> Arc<RamZones> {
    Arc::new(RamZones::new(ram::Options { durable: block::Durable::OnFlush, ..options }).unwrap())
}

/// Number of the first block of the device whose bytes all have this value.
async fn find(fast: &Arc<dyn DevicePart>, byte: u8) -> u64 {
    let device = fast.open().await.unwrap();
    let (_, buffer) = device.read(BlockIndex(0), Buffer::new(FAST as usize)).await;
    let blocks = buffer.filled().chunks_exact(4 * KIB);
    blocks.zip(0..).find(|(block, _)| block.iter().all(|it| *it == byte)).unwrap().1
}

async fn damage(fast: &Arc<dyn DevicePart>, block: u64) {
    let device = fast.open().await.unwrap();
    device.write(BlockIndex(block), filled(99, 4 * KIB), Durability::Durable).await.unwrap();
}

/// A record that didn't fit before the end of the ring is found in the next lap, also by an open with a
/// smaller limit of an append.
#[test]
fn a_smaller_limit_of_an_append_loses_no_record() {
    simulated(|| async {
        const LARGE: usize = 2 << 20;
        let zones = zones_of(ram::Options {
            zones: 12,
            zone_size: LARGE as u64,
            max_append: LARGE as u64,
            ..ram::Options::default()
        });
        let fast = fast_device();
        let (origin, switch) = Switched::new(zones.clone());
        let part = open(&fast, origin, true).await.unwrap();
        let handle = part.open().await.unwrap();
        for zone in 0..5 {
            handle.append(ZoneIndex(zone), filled(zone as u8 + 1, LARGE)).await.unwrap();
        }
        part.message("flush").await.unwrap();
        switch.set(Mode::Hangs);
        let at = handle.append(ZoneIndex(5), filled(6, LARGE)).await.unwrap();
        handle.flush(&[ZoneIndex(5)]).await.unwrap();
        let copy = copy_of(&fast).await;
        let (origin, _) = Switched::with_max_append(zones, 4 * KIB as u64);
        let part = open(&copy, origin, false).await.unwrap();
        let handle = part.open().await.unwrap();
        assert_eq!(handle.report(ZoneIndex(5), 1).await.unwrap()[0].write_pointer, LARGE as u64);
        assert_eq!(read(&handle, at, 4 * KIB).await.unwrap(), [6; 4 * KIB]);
        part.close().await.unwrap();
    });
}

/// The superblock before the newest one names an earlier epoch, whose log ends where the records of the
/// newest one begin: it isn't taken for the whole log, so that what was acknowledged since isn't overwritten.
#[test]
fn a_damaged_newest_superblock_is_refused_and_loses_nothing() {
    for is_early in [false, true] {
        simulated(move || async move {
            let zones = ram_zones();
            let fast = fast_device();
            let part = open(&fast, zones.clone(), true).await.unwrap();
            part.close().await.unwrap();
            // The second epoch, of which nothing is uploaded yet.
            let part = open(&fast, zones.clone(), false).await.unwrap();
            let handle = part.open().await.unwrap();
            let at = handle.append(ZoneIndex(0), filled(7, 4 * KIB)).await.unwrap();
            handle.flush(&[]).await.unwrap();
            let copy = copy_of(&fast).await;
            let (newest, older) = superblocks(&copy).await;
            let whole = copy_of(&copy).await;
            damage(&copy, if is_early { older } else { newest }).await;
            let opened = open(&copy, zones.clone(), false).await;
            match is_early {
                true => {
                    let part = opened.unwrap();
                    let handle = part.open().await.unwrap();
                    assert_eq!(read(&handle, at, 4 * KIB).await.unwrap(), [7; 4 * KIB]);
                }
                false => {
                    let error = opened.map(drop).unwrap_err();
                    let text = error.to_string();
                    assert!(matches!(error, Error::Corrupt(_)) && text.contains("superblock"), "{text}");
                    let part = open(&whole, zones.clone(), false).await.unwrap();
                    let handle = part.open().await.unwrap();
                    assert_eq!(read(&handle, at, 4 * KIB).await.unwrap(), [7; 4 * KIB]);
                }
            }
        });
    }
}

/// Blocks of the newest superblock, and of the one before.
async fn superblocks(fast: &Arc<dyn DevicePart>) -> (u64, u64) {
    let device = fast.open().await.unwrap();
    let (_, buffer) = device.read(BlockIndex(0), Buffer::new(8 * KIB)).await;
    // The sequence is after the magic, the version, the unit, the identity and its key.
    let sequence = |block: usize| {
        let at = block * 4 * KIB + 40;
        u64::from_le_bytes(buffer.filled()[at..at + 8].try_into().unwrap())
    };
    if sequence(0) > sequence(1) { (0, 1) } else { (1, 0) }
}

/// Zones that the uploads of an earlier epoch open at the origin are closed there, within its limit of open
/// zones.
#[test]
fn zones_of_an_earlier_epoch_are_closed_at_the_origin() {
    for is_clean in [false, true] {
        simulated(move || async move {
            let zones = zones_of(ram::Options {
                zones: 12,
                zone_size: 256 << 10,
                max_append: 64 << 10,
                max_open: 2,
                ..ram::Options::default()
            });
            let fast = fast_device();
            let (origin, switch) = Switched::new(zones.clone());
            let part = open(&fast, origin, true).await.unwrap();
            let handle = part.open().await.unwrap();
            switch.set(Mode::Fails);
            for zone in [0, 1] {
                handle.append(ZoneIndex(zone), filled(zone as u8, 64 * KIB)).await.unwrap();
            }
            handle.flush(&[]).await.unwrap();
            let copy = match is_clean {
                true => {
                    drop(handle);
                    part.close().await.unwrap();
                    fast
                }
                false => copy_of(&fast).await,
            };
            let part = open(&copy, zones.clone(), false).await.unwrap();
            let handle = part.open().await.unwrap();
            for zone in [2, 3] {
                handle.append(ZoneIndex(zone), filled(zone as u8, 64 * KIB)).await.unwrap();
            }
            part.message("flush").await.unwrap();
            let below = zones.open().await.unwrap();
            for zone in 0..4 {
                let found = read(&below, ZoneAddress::new(zone, 0), 64 * KIB).await.unwrap();
                assert_eq!(found, [zone as u8; 64 * KIB], "zone {zone}, clean: {is_clean}");
            }
            drop(handle);
            part.close().await.unwrap();
        });
    }
}

/// An open after a close replays no record that was uploaded before.
#[test]
fn a_close_writes_a_checkpoint() {
    simulated(|| async {
        let (fast, origin) = (fast_device(), ram_zones());
        let part = open(&fast, origin.clone(), true).await.unwrap();
        let handle = part.open().await.unwrap();
        for _ in 0..4 {
            handle.append(ZoneIndex(0), filled(1, 64 * KIB)).await.unwrap();
        }
        part.message("flush").await.unwrap();
        drop(handle);
        part.close().await.unwrap();
        let part = open(&fast, origin, false).await.unwrap();
        assert_eq!(number(&*part, "extents").await, 0);
        let used = number(&*part, "used_ring_bytes").await;
        assert!(used <= 8 * KIB as u64, "{used} bytes of the log are replayed");
        part.close().await.unwrap();
    });
}

/// An open makes the records durable that it finds: the loss of one is damage from then on.
#[test]
fn records_of_an_earlier_epoch_are_not_lost_silently() {
    simulated(|| async {
        let (fast, zones) = (fast_device(), ram_zones());
        let (origin, switch) = Switched::new(zones.clone());
        switch.set(Mode::Works);
        let part = open(&fast, origin.clone(), true).await.unwrap();
        let handle = part.open().await.unwrap();
        switch.set(Mode::Fails);
        for byte in 1..=3 {
            handle.append(ZoneIndex(0), filled(byte, 4 * KIB)).await.unwrap();
        }
        let copy = copy_of(&fast).await;
        let _second = open(&copy, origin, false).await.unwrap();
        let crashed = copy_of(&copy).await;
        let last = find(&crashed, 3).await;
        // Its header, and the record that the second open may have written.
        for block in [last - 1, last + 1] {
            damage(&crashed, block).await;
        }
        let error = open(&crashed, zones, false).await.err().expect("a record is missing");
        assert!(matches!(&error, Error::Corrupt(text) if text.contains("is damaged")), "{error}");
    });
}

/// Data that is damaged before it is uploaded ends the uploads with an error, without further attempts.
#[test]
fn damaged_data_ends_the_uploads() {
    simulated(|| async {
        let (fast, zones) = (fast_device(), ram_zones());
        let (origin, switch) = Switched::new(zones.clone());
        let part = open(&fast, origin, true).await.unwrap();
        let handle = part.open().await.unwrap();
        switch.set(Mode::Fails);
        let at = handle.append(ZoneIndex(0), filled(7, 4 * KIB)).await.unwrap();
        handle.flush(&[ZoneIndex(0)]).await.unwrap();
        damage(&fast, find(&fast, 7).await).await;
        switch.set(Mode::Works);
        let error = part.message("flush").await.expect_err("the data is damaged");
        assert!(error.detail().contains("wrong checksum"), "{error}");
        runtime::sleep(Duration::from_secs(60)).await;
        let errors = number(&*part, "origin_errors").await;
        assert!(text(&*part, "conflict").await.contains("wrong checksum"), "{:?}", part.status().await);
        runtime::sleep(Duration::from_secs(600)).await;
        assert_eq!(number(&*part, "origin_errors").await, errors, "no further attempt");
        let below = zones.open().await.unwrap();
        assert_eq!(below.report(ZoneIndex(at.zone.0), 1).await.unwrap()[0].write_pointer, 0);
    });
}

/// Any record after a torn one may show that the torn one was durable.
#[test]
fn a_record_after_large_ones_shows_that_an_earlier_one_was_durable() {
    simulated(|| async {
        const LARGE: usize = 4 << 20;
        let zones = zones_of(ram::Options {
            zones: 12,
            zone_size: LARGE as u64,
            max_append: LARGE as u64,
            ..ram::Options::default()
        });
        let device = |bytes| Arc::new(disks::ram::RamPart::new(bytes, block::BlockSize::default()).unwrap());
        let fast: Arc<dyn DevicePart> = device(64 << 20);
        let (origin, switch) = Switched::new(zones.clone());
        let mut options = options(true);
        options.max_lag.bytes = 16 << 20;
        let part = ZoneWriteCachePart::open(fast.clone(), origin, options).await.unwrap();
        let handle = part.open().await.unwrap();
        switch.set(Mode::Fails);
        // Records without a flush between them, and one after a flush, which names them as durable.
        handle.append(ZoneIndex(0), filled(1, 4 * KIB)).await.unwrap();
        for zone in [1, 2] {
            handle.append(ZoneIndex(zone), filled(zone as u8 + 1, LARGE)).await.unwrap();
        }
        handle.flush(&[]).await.unwrap();
        handle.append(ZoneIndex(3), filled(4, 4 * KIB)).await.unwrap();
        damage(&fast, find(&fast, 1).await - 1).await;
        options.format = false;
        let error = ZoneWriteCachePart::open(fast, zones, options).await.err().expect("a record is missing");
        assert!(matches!(&error, Error::Corrupt(text) if text.contains("is damaged")), "{error}");
    });
}
