//! The contract of a device, for logs on any disk, with any number of shards, closed and opened again.

use block::{BlockCount, BlockSize, DeviceGeometry, DevicePart};
use layers::record::replay::ImageDisk;
use log::kind::{Options, open};
use std::cell::Cell;
use std::sync::Arc;

pub fn disk(blocks: u64, block_size: u64, volatile_cache: bool) -> Arc<dyn DevicePart> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::new(block_size).expect("a block size"),
        blocks: BlockCount(blocks),
        atomic_write: 512,
        volatile_cache,
        read_only: false,
    }))
}

pub fn conforms(shards: usize, disk: Arc<dyn DevicePart>, options: Options) {
    let config = runtime::Config::default().with_shards(shards);
    let main = move || async move {
        let made = Cell::new(false);
        let make = async || {
            let options = Options { format: !made.replace(true), ..options.clone() };
            Arc::new(open(disk.clone(), &options).await.expect("the log opens")) as Arc<dyn DevicePart>
        };
        let suite = conformance::device::Options { persistent: true, ..Default::default() };
        conformance::device::run(make, suite).await
    };
    runtime::run(config, main).expect("the runtime starts").unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn with_room() {
    conforms(1, disk(8192, 4096, true), Options::default());
}

#[test]
fn on_two_shards() {
    conforms(2, disk(8192, 4096, true), Options::default());
}

#[test]
fn on_sectors_of_512_bytes_without_a_volatile_cache() {
    conforms(1, disk(65536, 512, false), Options::default());
}

/// 2 MiB are overwritten many times in a volume of 3 MiB, so zones are reused often.
#[test]
fn with_hardly_any_room() {
    let options = Options {
        size: Some(3 << 20),
        zone_size: Some(64 << 10),
        checkpoint_after: 256 << 10,
        ..Options::default()
    };
    conforms(2, disk(2048, 4096, true), options);
}

#[test]
fn with_one_append_at_a_time_and_little_dirty_data() {
    let options = Options { appends_in_flight: 1, dirty: 64 << 10, ..Options::default() };
    conforms(1, disk(8192, 4096, true), options);
}

#[test]
fn acknowledged_from_the_buffer() {
    let options =
        Options { acknowledge: log::core::Acknowledge::Buffer, dirty: 1 << 20, ..Options::default() };
    conforms(2, disk(8192, 4096, true), options.clone());
    conforms(1, disk(8192, 4096, false), options);
}

#[test]
fn every_map() {
    for map in log::map::NAMES {
        println!("{map}");
        conforms(2, disk(8192, 4096, true), Options { map: map.to_owned(), ..Options::default() });
    }
}

#[test]
fn every_policy() {
    for cleaning in logkit::cleaning::NAMES {
        println!("{cleaning}");
        let size = Some(12 << 20);
        conforms(
            1,
            disk(8192, 4096, true),
            Options { cleaning: cleaning.to_owned(), size, ..Options::default() },
        );
    }
}
