//! Flushes of users and the durable writes that save flushes of the fast device.

use crate::crash_disk::CrashDisk;
use crate::promises::{KIB, filled, number, read, simulated};
use crate::{FAST, open, ram_zones, with_faults};
use block::{DevicePart, ZoneAddress, ZoneIndex, ZonesPart};
use runtime::Random;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn disk() -> CrashDisk {
    CrashDisk::new(FAST as usize, 4096, true)
}

/// A client that flushes each append: its records are written durably, and a power cut loses none.
#[test]
fn appends_with_a_flush_each_are_durable_writes() {
    simulated(|| async {
        let (disk, origin) = (Arc::new(disk()), ram_zones());
        let fast: Arc<dyn DevicePart> = disk.clone();
        let part = open(&fast, origin.clone(), true).await.unwrap();
        let handle = part.open().await.unwrap();
        let before = number(&*part, "fast_flushes").await;
        for byte in 0..20 {
            handle.append(ZoneIndex(0), filled(byte, 4 * KIB)).await.unwrap();
            handle.flush(&[ZoneIndex(0)]).await.unwrap();
        }
        assert_eq!(number(&*part, "flushes").await, 20);
        assert_eq!(number(&*part, "fast_flushes").await, before);
        // Appends without a flush are plain writes, but for the first one.
        for byte in 20..24 {
            handle.append(ZoneIndex(0), filled(byte, 4 * KIB)).await.unwrap();
        }
        assert_eq!(number(&*part, "unflushed_bytes").await, 3 * 4 * KIB as u64);
        let left: Arc<dyn DevicePart> = Arc::new(disk.crash(&mut Random::new(1)));
        drop(handle);
        origin.crash(&mut Random::new(1));
        let part = open(&left, origin, false).await.unwrap();
        let handle = part.open().await.unwrap();
        for byte in 0..21 {
            let at = ZoneAddress::new(0, u64::from(byte) * 4096);
            assert_eq!(read(&handle, at, 4 * KIB).await.unwrap(), [byte; 4 * KIB]);
        }
    });
}

/// A durable write that fails may have failed in its flush, which may have lost other data of the device. So
/// only other writes are repeated.
#[test]
fn a_durable_write_that_fails_is_not_repeated() {
    for is_durable in [true, false] {
        simulated(move || async move {
            let disk = Arc::new(disk());
            let fast = with_faults(disk.clone(), ["write delay=10ms"], 1);
            let part = open(&fast, ram_zones(), true).await.unwrap();
            let handle = part.open().await.unwrap();
            let append = || handle.append(ZoneIndex(0), filled(1, 4 * KIB));
            append().await.unwrap();
            if is_durable {
                handle.flush(&[ZoneIndex(0)]).await.unwrap();
            }
            disk.fail_writes.store(true, Ordering::SeqCst);
            let failing = disk.fail_writes.clone();
            runtime::spawn(async move {
                runtime::sleep(Duration::from_millis(15)).await;
                failing.store(false, Ordering::SeqCst);
            })
            .detach();
            assert_eq!(append().await.is_err(), is_durable);
            assert_eq!(handle.flush(&[ZoneIndex(0)]).await.is_err(), is_durable);
        });
    }
}
