//! Rewinding: appends that a power cut may have lost are repeated.

use crate::common::CrashDisk;
use block::{
    Buffer, Data, Durable, EraseGuarantee, Error, Part, Payload, ZoneAddress, ZoneIndex, ZoneState, Zones,
    ZonesPart,
};
use runtime::Random;
use std::rc::Rc;
use std::sync::Arc;
use zones::on_device::{self, OnDevice};
use zones::ram::{self, RamZones};

const ZONE: ZoneIndex = ZoneIndex(3);
const KIB: u64 = 1024;

fn filled(byte: u8, length: u64) -> Payload {
    Data::copy_of(&vec![byte; length as usize]).into()
}

fn at(offset: u64) -> ZoneAddress {
    ZoneAddress::new(ZONE.0, offset)
}

async fn is_filled(handle: &Rc<dyn Zones>, offset: u64, byte: u8) -> bool {
    let (outcome, buffer) = handle.read(at(offset), Buffer::new(16 << 10)).await;
    outcome.is_ok() && buffer.filled().iter().all(|it| *it == byte)
}

/// Appends 16 KiB that are flushed and 16 KiB that aren't.
async fn begin(handle: &Rc<dyn Zones>) {
    handle.append(ZONE, filled(1, 16 * KIB)).await.unwrap();
    handle.flush(&[ZONE]).await.unwrap();
    handle.append(ZONE, filled(2, 16 * KIB)).await.unwrap();
}

/// Checks that a zone of which the flushed part is known continues there, after a power cut.
async fn continues(handle: &Rc<dyn Zones>) {
    assert_eq!(handle.report(ZONE, 1).await.unwrap()[0].state, ZoneState::Interrupted);
    assert!(handle.append(ZONE, filled(2, 16 * KIB)).await.is_err());
    handle.rewind(at(16 * KIB)).await.unwrap();
    let report = handle.report(ZONE, 1).await.unwrap()[0];
    assert_eq!((report.state, report.write_pointer), (ZoneState::Closed, 16 * KIB));
    assert!(is_filled(handle, 0, 1).await);
    handle.append_at(at(16 * KIB), filled(2, 16 * KIB)).await.unwrap();
    handle.append_at(at(32 * KIB), filled(3, 16 * KIB)).await.unwrap();
    handle.flush(&[ZONE]).await.unwrap();
}

async fn is_whole(handle: &Rc<dyn Zones>) {
    for (offset, byte) in [(0, 1), (16 * KIB, 2), (32 * KIB, 3)] {
        assert!(is_filled(handle, offset, byte).await, "byte {offset}");
    }
}

async fn refusals(handle: &Rc<dyn Zones>) {
    let invalid =
        |outcome: block::Result<()>| assert!(matches!(outcome, Err(Error::Invalid(_))), "{outcome:?}");
    invalid(handle.rewind(ZoneAddress::new(5, 0)).await);
    invalid(handle.rewind(ZoneAddress::new(9999, 0)).await);
    handle.append(ZoneIndex(5), filled(1, 16 * KIB)).await.unwrap();
    invalid(handle.rewind(ZoneAddress::new(5, 20 * KIB)).await);
    handle.finish(ZoneIndex(5)).await.unwrap();
    invalid(handle.rewind(ZoneAddress::new(5, 16 * KIB)).await);
    handle.reset(ZoneIndex(5), EraseGuarantee::None).await.unwrap();
    invalid(handle.rewind(ZoneAddress::new(5, 0)).await);
}

#[test]
fn zones_on_a_device_continue_after_two_power_cuts() {
    let main = || async {
        let options = on_device::Options { zone_size: Some(256 << 10), ..Default::default() };
        let format = on_device::Options { format: true, ..options };
        for seed in 0..20 {
            let disk = Arc::new(CrashDisk::new(5 << 20, 4096, true));
            let handle = OnDevice::open(disk.clone(), format).await.unwrap().open().await.unwrap();
            refusals(&handle).await;
            begin(&handle).await;
            let disk = Arc::new(disk.crash(&mut Random::new(seed)));
            let part = OnDevice::open(disk.clone(), options).await.unwrap();
            // In half of the cases a clean stop comes between, which keeps the zone interrupted.
            let (disk, part) = match seed % 2 {
                0 => (disk, part),
                _ => {
                    let handle = part.open().await.unwrap();
                    handle.append(ZoneIndex(7), filled(9, 16 * KIB)).await.unwrap();
                    drop(handle);
                    part.close().await.unwrap();
                    (disk.clone(), OnDevice::open(disk, options).await.unwrap())
                }
            };
            let handle = part.open().await.unwrap();
            continues(&handle).await;
            let disk = Arc::new(disk.crash(&mut Random::new(seed)));
            let handle = OnDevice::open(disk, options).await.unwrap().open().await.unwrap();
            let report = handle.report(ZONE, 1).await.unwrap()[0];
            assert!(report.state == ZoneState::Interrupted && report.write_pointer >= 48 * KIB, "{report:?}");
            is_whole(&handle).await;
        }
    };
    runtime::run(runtime::Config::default(), main).unwrap();
}

#[test]
fn zones_in_memory_continue_after_a_power_cut() {
    let main = || async {
        let options = ram::Options { durable: Durable::OnFlush, ..ram::Options::default() };
        for seed in 0..20 {
            let part = RamZones::new(options).unwrap();
            let handle = part.open().await.unwrap();
            refusals(&handle).await;
            begin(&handle).await;
            part.crash(&mut Random::new(seed));
            let handle = part.open().await.unwrap();
            continues(&handle).await;
            part.crash(&mut Random::new(seed));
            is_whole(&part.open().await.unwrap()).await;
        }
    };
    runtime::run(runtime::Config::default(), main).unwrap();
}
