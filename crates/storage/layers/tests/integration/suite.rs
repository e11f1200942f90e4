//! The layers keep the promises of their contract.

use block::{BlockCount, BlockSize, DeviceGeometry, DevicePart, ZonesPart};
use layers::fault::{FaultDevicePart, FaultZonesPart, parse_rules};
use layers::model::ModelPart;
use layers::record::replay::ImageDisk;
use layers::record::{Contents, RecordDevicePart, RecordZonesPart, Recorder, Role};
use layers::stats::{StatsDevicePart, StatsZonesPart};
use stack::Contract;
use std::sync::Arc;

/// Disk below the layers. Requests from two shards must not mix inside a sector below a layer that is being
/// checked, so this disk carries out each request as a whole.
fn disk() -> Arc<dyn DevicePart> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(1024),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }))
}

fn zones() -> Arc<dyn ZonesPart> {
    let options = zones::ram::Options { zone_size: 64 << 10, max_append: 16 << 10, ..Default::default() };
    Arc::new(zones::ram::RamZones::new(options).expect("the shape makes sense"))
}

fn device(make: impl Fn() -> Arc<dyn DevicePart> + Send + 'static) {
    let config = runtime::Config::default().with_shards(2);
    let main = move || async move { conformance::device::run(async || make(), Default::default()).await };
    runtime::run(config, main).expect("the runtime starts").unwrap_or_else(|broken| panic!("{broken}"));
}

fn zoned(make: impl Fn() -> Arc<dyn ZonesPart> + Send + 'static) {
    let config = runtime::Config::default().with_shards(2);
    let main = move || async move { conformance::zones::run(async || make(), Default::default()).await };
    runtime::run(config, main).expect("the runtime starts").unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn a_disk_from_an_image() {
    device(disk);
}

#[test]
fn stats_on_a_device() {
    device(|| Arc::new(StatsDevicePart::new(disk())));
}

#[test]
fn model_of_a_device_without_moving_parts() {
    device(|| {
        let profile = layers::model::profile::known().expect("they are right").remove("sata-ssd");
        Arc::new(ModelPart::new(disk(), "sata-ssd", profile.expect("it is known"), 7))
    });
}

#[test]
fn model_of_a_disk() {
    device(|| {
        // A fast disk, so that the suite ends.
        let text = "[drum]\ntitle = \"a drum\"\nmedium = \"disk\"\nrpm = 6000000\ntrack_seek = \"1us\"\nfull_seek = \"9us\"\n\
                    bandwidth = \"1GiB\"\ninterface = \"1us\"\nqueue_depth = 8\nwrite_buffer = 8\nvolatile_cache = true";
        let profile = layers::model::profile::parse(text).expect("it is right").remove("drum");
        Arc::new(ModelPart::new(disk(), "drum", profile.expect("it is there"), 7))
    });
}

/// Disk of `blocks` times 4096 bytes, with this block size.
fn disk_of(blocks: u64, block_size: u64) -> Arc<dyn DevicePart> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::new(block_size).expect("a size"),
        blocks: BlockCount(blocks * 4096 / block_size),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }))
}

#[test]
fn linear_over_devices_of_different_sizes() {
    device(|| {
        let legs = vec![disk_of(7, 4096), disk_of(300, 512), disk_of(1, 4096), disk_of(200, 1024)];
        Arc::new(layers::linear::linear(legs).expect("they have blocks"))
    });
}

#[test]
fn stripe_over_devices_of_different_sizes() {
    device(|| {
        let legs = vec![disk_of(130, 4096), disk_of(128, 512), disk_of(140, 4096)];
        Arc::new(layers::stripe::stripe(legs, 16 << 10).expect("they have chunks"))
    });
}

#[test]
fn stats_on_zones() {
    zoned(|| Arc::new(StatsZonesPart::new(zones())));
}

#[test]
fn fault_without_rules_on_a_device() {
    device(|| Arc::new(FaultDevicePart::new(disk(), Vec::new(), 0).expect("no rules fit any device")));
}

#[test]
fn fault_with_delays_on_a_device() {
    device(|| {
        let rules = parse_rules(&["any delay=0us..50us probability=0.2".into()], Contract::Device);
        let part = FaultDevicePart::new(disk(), rules.expect("the rule is right"), 7);
        Arc::new(part.expect("the rule fits"))
    });
}

#[test]
fn fault_without_rules_on_zones() {
    zoned(|| Arc::new(FaultZonesPart::new(zones(), Vec::new(), 0)));
}

#[test]
fn record_on_a_device() {
    device(|| {
        let part = RecordDevicePart::new(disk(), Recorder::in_memory(), "disk", Role::Disk);
        Arc::new(part.expect("a new timeline takes it"))
    });
}

#[test]
fn record_with_reads_and_without_data() {
    device(|| {
        let part = RecordDevicePart::new(disk(), Recorder::in_memory(), "disk", Role::Client);
        Arc::new(part.expect("a new timeline takes it").with_contents(Contents { reads: true, data: false }))
    });
}

#[test]
fn record_on_zones() {
    zoned(|| {
        let part = RecordZonesPart::new(zones(), Recorder::in_memory(), "disk", Role::Disk);
        Arc::new(part.expect("a new timeline takes it"))
    });
}
