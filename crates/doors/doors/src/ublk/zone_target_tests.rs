//! Requests to zones without a kernel: on the emulated drive, and on zones of a device.

use super::*;
use block::{Durable, Part, ZonesPart};
use stack::{Registry, Stack};
use std::rc::Rc;
use std::sync::Arc;
use zns::{Settings, Shape, Zns};

const PAGE: u64 = 4096;
const CAPACITY: u64 = 64 << 10;

/// Zones with a handle, and their export.
struct Zoned {
    export: ZonesExport,
    zones: Rc<dyn Zones>,
}

impl Zoned {
    async fn open(part: &dyn ZonesPart) -> Zoned {
        let export = ZonesExport::new(part.geometry(), false).expect("zones for a block device");
        Zoned { export, zones: part.open().await.expect("a handle") }
    }

    async fn carry_out(&self, operation: ZoneOperation, data: &[u8]) -> Result<Done> {
        Served { export: &self.export, zones: &*self.zones }.carry_out(operation, Data::copy_of(data)).await
    }

    async fn write(&self, zone: u32, offset: u64, fill: u8) -> Result<()> {
        let at = ZoneAddress::new(zone, offset);
        let operation = ZoneOperation::Write(at, PAGE as u32, Durability::Visible);
        self.carry_out(operation, &[fill; PAGE as usize]).await.map(drop)
    }

    async fn read(&self, zone: u32, offset: u64, length: u64) -> Vec<u8> {
        let operation = ZoneOperation::Read(ZoneAddress::new(zone, offset), length as u32);
        self.carry_out(operation, &[]).await.expect("a read").data.expect("its data").to_vec()
    }

    async fn call(&self, operation: ZoneOperation) -> Result<()> {
        self.carry_out(operation, &[]).await.map(drop)
    }

    async fn states(&self) -> Vec<ZoneState> {
        let reports = self.zones.report(ZoneIndex(0), 100).await.expect("a report");
        reports.iter().map(|report| report.state).collect()
    }
}

fn drive(settings: Settings, profile: &str) -> Zns {
    let (zone_size, zone_capacity) = (96 << 10, CAPACITY);
    let shape = Shape { zones: 6, zone_size, zone_capacity, profile: profile.into(), ..Shape::default() };
    Zns::in_memory(&shape, settings).expect("a drive")
}

async fn built(line: &str) -> Arc<dyn ZonesPart> {
    let kinds = vec![&disks::ram::KIND, &zones::on_device::KIND, &layers::fault::ZONES_KIND, &zns::KIND];
    let stack = Stack::from_line("a stack", line, &Registry::new(kinds)).expect("a stack");
    let name = stack.top().expect("a top").name().to_owned();
    stack.check(true).expect("a plan").build().await.expect("zones").zones(&name).expect("the top")
}

fn run<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F + Send + 'static) {
    runtime::run(runtime::Config::default().with_shards(1), test).expect("it runs");
}

fn errno<T>(outcome: Result<T>) -> i32 {
    outcome.map(drop).map_err(|error| ZonesTarget::errno(&error)).expect_err("an error")
}

#[test]
fn writes_land_at_the_write_pointer_and_appends_say_where() {
    run(|| async {
        let zoned = Zoned::open(&drive(Settings::default(), "zn540")).await;
        zoned.write(1, 0, 1).await.expect("at the write pointer");
        assert_eq!(errno(zoned.write(1, 2 * PAGE, 2).await), libc::EIO, "behind the write pointer");
        assert_eq!(errno(zoned.write(1, 0, 2).await), libc::EIO, "before the write pointer");
        let append = ZoneOperation::Append(ZoneIndex(1), PAGE as u32, Durability::Durable);
        let done = zoned.carry_out(append, &[3; PAGE as usize]).await.expect("an append");
        // Zones of 96 KiB lie 128 KiB apart.
        assert_eq!((done.result, done.sector), (4096, 256 + 8));
        let bytes = zoned.read(1, 0, 4 * PAGE).await;
        let expected = [[1; 4096], [3; 4096], [0; 4096], [0; 4096]].concat();
        assert!(bytes == expected, "zeros from the write pointer on");
        assert!(zoned.read(1, 3 * PAGE, PAGE).await.iter().all(|byte| *byte == 0));
        assert_eq!(zoned.read(1, CAPACITY - PAGE, 2 * PAGE).await, vec![0; 8192], "across the capacity");
        assert_eq!(zoned.read(5, 0, PAGE).await, vec![0; 4096], "an empty zone");
    });
}

#[test]
fn an_implicitly_open_zone_makes_room_for_another_one() {
    run(|| async {
        let settings = Settings { max_open: 2, max_active: 4, ..Settings::default() };
        let zoned = Zoned::open(&drive(settings, "zn540")).await;
        use ZoneState::*;
        for round in 0..3 {
            for zone in 0..4 {
                zoned.write(zone, round * PAGE, 1).await.expect("room for an open zone");
            }
        }
        assert_eq!(zoned.states().await, [Closed, Closed, ImplicitlyOpen, ImplicitlyOpen, Empty, Empty]);
        assert_eq!(errno(zoned.write(4, 0, 1).await), libc::EOVERFLOW, "four zones are active");
        zoned.call(ZoneOperation::Open(ZoneIndex(0))).await.expect("room");
        zoned.call(ZoneOperation::Open(ZoneIndex(1))).await.expect("room");
        assert_eq!(zoned.states().await[..4], [ExplicitlyOpen, ExplicitlyOpen, Closed, Closed]);
        assert_eq!(errno(zoned.write(2, 3 * PAGE, 1).await), libc::ETOOMANYREFS);
        assert_eq!(errno(zoned.call(ZoneOperation::Open(ZoneIndex(2))).await), libc::ETOOMANYREFS);
        zoned.call(ZoneOperation::Finish(ZoneIndex(0))).await.expect("a finish");
        zoned.write(4, 0, 1).await.expect("the finished zone isn't active");
        assert_eq!(errno(zoned.call(ZoneOperation::Close(ZoneIndex(5))).await), libc::EIO, "it is empty");
    });
}

#[test]
fn a_zone_is_finished_by_its_last_write() {
    run(|| async {
        let line = "zones(ram(size=2MiB), zone_size=256KiB, max_open=1, max_active=1)";
        let zoned = Zoned::open(&*built(line).await).await;
        for zone in 0..3 {
            let mut at = 0;
            while at < zoned.export.layout.capacity {
                zoned.write(zone, at, 7).await.expect("room in the zone");
                at += PAGE;
            }
        }
        use ZoneState::*;
        assert_eq!(zoned.states().await[..4], [Full, Full, Full, Empty]);
        assert_eq!(errno(zoned.write(0, zoned.export.layout.capacity, 7).await), libc::EIO);
        zoned.call(ZoneOperation::ResetAll).await.expect("a reset");
        assert!(zoned.states().await.iter().all(|state| *state == Empty));
    });
}

#[test]
fn interrupted_zones_are_full_for_the_kernel_and_hold_no_others_up() {
    run(|| async {
        let settings = Settings { max_active: 3, ..Settings::default() };
        let drive = drive(settings, "zn540");
        let before = Zoned::open(&drive).await;
        for zone in 0..3 {
            before.write(zone, 0, 9).await.expect("a write");
        }
        drive.power_off().await.expect("off");
        drive.power_on().expect("on");
        let zoned = Zoned::open(&drive).await;
        use ZoneState::*;
        assert_eq!(interrupted(&*zoned.zones).await, Ok(3));
        let report = ZoneOperation::Report(ZoneIndex(0), 6);
        let described = zoned.carry_out(report, &[]).await.expect("a report").data.expect("its data");
        let conditions: Vec<u8> = described.chunks(DESCRIPTION_BYTES).map(|zone| zone[25]).collect();
        assert_eq!(conditions, [0xE, 0xE, 0xE, 1, 1, 1]);
        assert_eq!(errno(zoned.write(0, PAGE, 1).await), libc::EIO);
        assert_eq!(zoned.read(0, 0, PAGE).await, vec![9; 4096]);
        zoned.write(3, 0, 1).await.expect("an interrupted zone is finished for it");
        let is_interrupted = |state: &&ZoneState| **state == Interrupted;
        assert_eq!(zoned.states().await.iter().filter(is_interrupted).count(), 2);
        for zone in 0..3 {
            zoned.call(ZoneOperation::Reset(ZoneIndex(zone))).await.expect("a reset");
            assert_eq!(zoned.states().await[zone as usize], Empty);
        }
    });
}

#[test]
fn a_flush_makes_what_every_queue_wrote_durable() {
    let simulation = runtime::Simulation::new(5);
    let outcome = runtime::simulate(simulation, || async {
        for flushed in [false, true] {
            let settings = Settings { timed: true, ..Settings::default() };
            let drive = drive(settings, "unprotected");
            assert_eq!(drive.geometry().durable, Durable::OnFlush);
            let zoned = Zoned::open(&drive).await;
            let other = drive.open().await.expect("the handle of another queue");
            for zone in 0..3 {
                zoned.write(zone, 0, 5).await.expect("a write");
            }
            if flushed {
                let other = Served { export: &zoned.export, zones: &*other };
                let done = other.carry_out(ZoneOperation::Flush, Data::copy_of(&[])).await;
                done.expect("a flush");
                assert_eq!(zoned.export.unflushed.all(), []);
            }
            drive.power_off().await.expect("off");
            drive.power_on().expect("on");
            let zoned = Zoned::open(&drive).await;
            for zone in 0..3 {
                assert_eq!(zoned.read(zone, 0, PAGE).await == vec![5; 4096], flushed, "zone {zone}");
            }
        }
    });
    outcome.expect("it runs");
}

#[test]
fn what_a_flush_failed_to_make_durable_is_flushed_again() {
    run(|| async {
        let part = built(
            "zone-fault(zns-emulator(profile=unprotected, zones=4, zone_size=64KiB, time=none), \"flush error=EIO times=2\", seed=1)",
        );
        let zoned = Zoned::open(&*part.await).await;
        zoned.write(0, 0, 1).await.expect("a write");
        zoned.write(1, 0, 1).await.expect("a write");
        let zones = || zoned.export.unflushed.all().iter().map(|(zone, _)| zone.0).collect::<Vec<_>>();
        assert_eq!(errno(zoned.call(ZoneOperation::Flush).await), libc::EIO);
        assert_eq!(zones(), [0, 1]);
        let at = ZoneAddress::new(2, 0);
        let durable = ZoneOperation::Write(at, PAGE as u32, Durability::Durable);
        assert_eq!(errno(zoned.carry_out(durable, &[1; 4096]).await), libc::EIO, "not durable");
        assert_eq!(zones(), [0, 1, 2]);
        let durable = ZoneOperation::Append(ZoneIndex(2), PAGE as u32, Durability::Durable);
        zoned.carry_out(durable, &[1; 4096]).await.expect("the third flush");
        assert_eq!(zones(), [0, 1], "of the zone alone");
        zoned.call(ZoneOperation::Reset(ZoneIndex(0))).await.expect("a reset");
        zoned.call(ZoneOperation::Finish(ZoneIndex(1))).await.expect("a finish");
        assert_eq!(zones(), [] as [u32; 0], "nothing is left to be flushed");
        zoned.call(ZoneOperation::Flush).await.expect("a flush of nothing");
    });
}

#[test]
fn an_append_during_a_flush_stays_unflushed() {
    let unflushed = Unflushed::default();
    let (first, second) = (ZoneIndex(1), ZoneIndex(2));
    unflushed.appended(first);
    unflushed.appended(second);
    let covered = unflushed.all();
    unflushed.appended(first);
    unflushed.forget(&covered);
    assert_eq!(unflushed.of(second), []);
    assert_eq!(unflushed.of(first).len(), 1);
    unflushed.forget(&unflushed.of(first));
    assert_eq!(unflushed.all(), []);
}

#[test]
fn zones_that_failed_say_so() {
    run(|| async {
        let drive = drive(Settings::default(), "zn540");
        let zoned = Zoned::open(&drive).await;
        zoned.write(0, 0, 1).await.expect("a write");
        zoned.write(1, 0, 1).await.expect("a write");
        drive.message("read-only 0").await.expect("a message");
        drive.message("offline 1").await.expect("a message");
        assert_eq!(errno(zoned.write(0, PAGE, 1).await), libc::EROFS);
        assert_eq!(zoned.read(0, 0, 2 * PAGE).await, [vec![1; 4096], vec![0; 4096]].concat());
        let read = ZoneOperation::Read(ZoneAddress::new(1, 0), PAGE as u32);
        assert_eq!(errno(zoned.call(read).await), libc::EIO);
        for zone in [0, 1] {
            assert_eq!(errno(zoned.call(ZoneOperation::Reset(ZoneIndex(zone))).await), libc::EIO);
        }
        zoned.write(2, 0, 1).await.expect("a write");
        zoned.call(ZoneOperation::ResetAll).await.expect("those that can be reset");
        use ZoneState::*;
        assert_eq!(zoned.states().await[..3], [ReadOnly, Offline, Empty]);
    });
}
