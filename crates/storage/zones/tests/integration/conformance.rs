//! The conformance suite on zones on a device and zones in memory.

use crate::common::CrashDisk;
use block::{BlockSize, Call, DevicePart, ZonesPart};
use conformance::zones::{Options, run};
use runtime::Random;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use zones::on_device;
use zones::ram::{self, RamZones};
use zones::{OnDevice, Overlay};

fn shards(number: usize) -> runtime::Config {
    runtime::Config::default().with_shards(number)
}

/// Zones on the RAM device, formatted once and opened repeatedly.
async fn on_ram(block_size: u64, max_open: u32, max_active: u32) -> Result<(), String> {
    let block_size = BlockSize::new(block_size).unwrap();
    let device: Arc<dyn DevicePart> = Arc::new(disks::ram::RamPart::new(10 << 20, block_size).unwrap());
    let formatted = Mutex::new(false);
    let make = async || {
        let format = !std::mem::replace(&mut *formatted.lock().unwrap(), true);
        let zone_size = format.then_some(512 << 10);
        let options = on_device::Options { format, zone_size, max_open, max_active, ..Default::default() };
        Arc::new(OnDevice::open(device.clone(), options).await.unwrap()) as Arc<dyn ZonesPart>
    };
    run(make, Options { persistent: true, ..Options::default() }).await
}

#[test]
fn zones_on_ram_keep_the_promises() {
    for (number, block_size, max_open, max_active) in
        [(1, 4096, 0, 0), (2, 512, 3, 0), (2, 16384, 0, 4), (2, 4096, 5, 3)]
    {
        let judged = runtime::run(shards(number), move || on_ram(block_size, max_open, max_active));
        judged.unwrap().unwrap();
    }
}

/// Zones on a device whose power is cut repeatedly.
async fn on_crash_disk(block_size: u64, volatile_cache: bool) -> Result<(), String> {
    let disk = Rc::new(Mutex::new(Arc::new(CrashDisk::new(5 << 20, block_size, volatile_cache))));
    let format = on_device::Options { format: true, zone_size: Some(256 << 10), ..Default::default() };
    let formatted = Mutex::new(false);
    let held = disk.clone();
    let make = async || {
        let fresh = !std::mem::replace(&mut *formatted.lock().unwrap(), true);
        let device = held.lock().unwrap().clone();
        let options = if fresh { format } else { on_device::Options::default() };
        Arc::new(OnDevice::open(device, options).await.unwrap()) as Arc<dyn ZonesPart>
    };
    let crash = move |_: Arc<dyn ZonesPart>| {
        let disk = disk.clone();
        Call::new(async move {
            let left = {
                let mut current = disk.lock().unwrap();
                *current = Arc::new(current.crash(&mut Random::new(runtime::random_u64())));
                current.clone()
            };
            let opened = OnDevice::open(left, on_device::Options::default()).await;
            Arc::new(opened.unwrap()) as Arc<dyn ZonesPart>
        })
    };
    run(make, Options { persistent: true, crash: Some(Rc::new(crash)), crashes: 40, ..Options::default() })
        .await
}

#[test]
fn zones_on_a_disk_survive_power_cuts() {
    for (block_size, volatile_cache) in [(512, true), (4096, true), (4096, false)] {
        let judged = runtime::run(shards(1), move || on_crash_disk(block_size, volatile_cache));
        judged.unwrap().unwrap();
    }
}

async fn in_ram(options: ram::Options) -> Result<(), String> {
    let zones = Arc::new(RamZones::new(options).unwrap());
    let held = zones.clone();
    let make = async || held.clone() as Arc<dyn ZonesPart>;
    let crash = move |_: Arc<dyn ZonesPart>| {
        zones.crash(&mut Random::new(runtime::random_u64()));
        Call::ready(zones.clone() as Arc<dyn ZonesPart>)
    };
    run(make, Options { persistent: true, crash: Some(Rc::new(crash)), ..Options::default() }).await
}

#[test]
fn zones_in_memory_keep_the_promises() {
    let usual = ram::Options { zone_size: 128 << 10, ..ram::Options::default() };
    let bytes = ram::Options { granularity: 1, zone_size: 60_000, max_append: 9_999, ..usual };
    let limited = ram::Options { zones: 7, max_open: 4, max_active: 5, ..usual };
    let odd =
        ram::Options { granularity: 48, zone_size: 48 * 1001, max_append: 48 * 77, max_open: 1, ..usual };
    for (number, options) in [(1, usual), (2, usual), (2, bytes), (1, limited), (2, limited), (2, odd)] {
        runtime::run(shards(number), move || in_ram(options)).unwrap().unwrap();
    }
}

/// An overlay over zones on a device, which stay unchanged.
#[test]
fn an_overlay_keeps_the_promises_and_changes_nothing_below() {
    let judged = runtime::run(shards(2), || async {
        let disk: Arc<dyn DevicePart> =
            Arc::new(disks::ram::RamPart::new(10 << 20, BlockSize::default()).unwrap());
        let options = on_device::Options { format: true, zone_size: Some(512 << 10), ..Default::default() };
        let below: Arc<dyn ZonesPart> = Arc::new(OnDevice::open(disk.clone(), options).await.unwrap());
        let lower = below.open().await.unwrap();
        let payload = || block::Data::copy_of(&[7; 8192]).into();
        let at = lower.append(block::ZoneIndex(3), payload()).await.unwrap();
        lower.close(block::ZoneIndex(3)).await.unwrap();
        lower.append(block::ZoneIndex(4), payload()).await.unwrap();
        lower.finish(block::ZoneIndex(4)).await.unwrap();
        let count = below.geometry().zones;
        let before = lower.report(block::ZoneIndex(0), count).await.unwrap();
        let overlay: Arc<dyn ZonesPart> = Arc::new(Overlay::new(below.clone(), 64 << 20));
        let upper = overlay.open().await.unwrap();
        // A zone begun below can be read, finished and reset, and takes no appends.
        let refused = upper.append(block::ZoneIndex(3), payload()).await.unwrap_err();
        assert!(matches!(refused, block::Error::Invalid(_)), "{refused}");
        let (outcome, found) = upper.read(at, block::Buffer::new(8192)).await;
        outcome.unwrap();
        assert_eq!(found.filled(), [7; 8192]);
        upper.finish(block::ZoneIndex(3)).await.unwrap();
        assert_eq!(upper.report(block::ZoneIndex(3), 1).await.unwrap()[0].state, block::ZoneState::Full);
        for zone in [3, 4].map(block::ZoneIndex) {
            let generation = upper.reset(zone, block::EraseGuarantee::None).await.unwrap();
            assert_eq!(generation, before[zone.0 as usize].generation + 1);
        }
        drop(upper);
        run(async || overlay.clone(), Options::default()).await?;
        assert_eq!(lower.report(block::ZoneIndex(0), count).await.unwrap(), before);
        let (outcome, found) = lower.read(at, block::Buffer::new(8192)).await;
        outcome.unwrap();
        assert_eq!(found.filled(), [7; 8192]);
        // Appends above the limit are refused.
        let small = Overlay::new(below, 12 << 10);
        let upper = small.open().await.unwrap();
        upper.append(block::ZoneIndex(5), payload()).await.unwrap();
        let refused = upper.append(block::ZoneIndex(6), payload()).await.unwrap_err();
        assert!(matches!(refused, block::Error::NoSpace(_)), "{refused}");
        Ok::<_, String>(())
    });
    judged.unwrap().unwrap();
}

#[test]
fn appends_land_out_of_order() {
    let landed = runtime::run(shards(1), || async {
        let zones = RamZones::new(ram::Options::default()).unwrap();
        let handle = zones.open().await.unwrap();
        let appends =
            (0..64).map(|_| handle.append(block::ZoneIndex(0), block::Data::copy_of(&[1; 512]).into()));
        runtime::join_all(appends).await.into_iter().map(|at| at.unwrap().offset.0).collect::<Vec<_>>()
    });
    let landed = landed.unwrap();
    assert!(!landed.is_sorted(), "{landed:?}");
}

/// The same under the simulated runtime, whose seed decides all orders.
#[test]
fn simulated_orders_keep_the_promises() {
    for seed in if conformance::budget::is_long() { 1..=3 } else { 1..=1 } {
        let simulation =
            || runtime::Simulation { shards: 2, most_events: 200_000_000, ..runtime::Simulation::new(seed) };
        runtime::simulate(simulation(), || on_ram(4096, 5, 6)).unwrap().value.unwrap();
        runtime::simulate(simulation(), || on_crash_disk(4096, true)).unwrap().value.unwrap();
        runtime::simulate(simulation(), || in_ram(ram::Options::default())).unwrap().value.unwrap();
    }
}

#[test]
fn the_test_disk_is_a_right_device() {
    let judged = runtime::run(shards(2), || async {
        let disk: Arc<dyn DevicePart> = Arc::new(CrashDisk::new(1 << 20, 4096, true));
        let make = async || disk.clone();
        let options =
            conformance::device::Options { operations: 500, persistent: true, ..Default::default() };
        conformance::device::run(make, options).await
    });
    judged.unwrap().unwrap();
}
