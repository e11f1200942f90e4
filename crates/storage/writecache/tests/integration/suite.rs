//! The write cache keeps the promises of its contract.

use block::{BlockCount, BlockSize, DeviceGeometry, DevicePart};
use layers::record::replay::ImageDisk;
use std::sync::Arc;
use writecache::{Options, Order, WriteCachePart};

/// Disk of `blocks` times 4096 bytes, with this block size. Requests from two shards must not mix inside a
/// sector below a layer that is being checked, so this disk carries out each request as a whole.
fn disk_of(blocks: u64, block_size: u64) -> Arc<dyn DevicePart> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::new(block_size).expect("a size"),
        blocks: BlockCount(blocks * 4096 / block_size),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }))
}

/// A write cache a quarter as large as its origin, so that it becomes full repeatedly.
fn write_cache(block_sizes: (u64, u64), change: impl Fn(&mut Options) + Send + Sync + 'static) {
    let config = runtime::Config::default().with_shards(2);
    let change = Arc::new(change);
    let main = move || async move {
        let make = async || {
            let (origin, fast) = (disk_of(1024, block_sizes.0), disk_of(260, block_sizes.1));
            let mut options = Options { format: true, batch: 64 << 10, ..Options::default() };
            change(&mut options);
            let part = WriteCachePart::open(origin, fast, options).await.expect("it fits");
            Arc::new(part) as Arc<dyn DevicePart>
        };
        conformance::device::run(make, Default::default()).await
    };
    runtime::run(config, main).expect("the runtime starts").unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn a_write_cache() {
    write_cache((4096, 4096), |_| {});
}

#[test]
fn a_write_cache_that_writes_back_at_once() {
    write_cache((512, 4096), |options| (options.high_watermark, options.low_watermark) = (0, 0));
}

#[test]
fn a_write_cache_without_order() {
    write_cache((4096, 512), |options| {
        options.settings.order = Order::None;
        options.settings.fua = true;
    });
}

#[test]
fn a_write_cache_that_caches_nothing() {
    write_cache((4096, 4096), |options| options.cleaner = true);
}
