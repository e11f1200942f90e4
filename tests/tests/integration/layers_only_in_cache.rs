//! Bytes of a device that are only in a cache, as reported on any shard.

use block::{BlockCount, BlockSize, DeviceGeometry, DevicePart, Part};
use cache::{CachePart, Mode};
use conformance::requests::{read, write};
use layers::record::replay::ImageDisk;
use mirror::{MirrorPart, Permissions, Plan, Settings};
use runtime::{Config, ShardIndex, Simulation, simulate};
use std::sync::Arc;
use std::time::Duration;
use writecache::{Options, WriteCachePart};

fn disk(blocks: u64) -> Arc<dyn DevicePart> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(blocks),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }))
}

/// A mirror with a leg behind a cache. The cache and the mirror belong to shard 0, and shard 1 asks both.
async fn is_told_on_another_shard(cache: Arc<dyn DevicePart>) {
    let settings = Settings {
        write_mostly: 0b10,
        write_behind: 0,
        behind_bytes: 64 << 20,
        fast_flush: false,
        bitmap_delay: Duration::from_secs(3600),
        sync_speed_max: 0,
        first_leg: false,
        timeout: Duration::from_secs(30),
    };
    let plan = Plan {
        legs: vec![("a".to_owned(), disk(64)), ("b".to_owned(), cache.clone())],
        settings,
        permissions: Permissions::default(),
        format: true,
        bitmap_chunk: None,
    };
    let part = Arc::new(MirrorPart::open(plan).await.unwrap());
    while part.status().await["chunks_to_copy"] != 0 {
        runtime::sleep(Duration::from_millis(1)).await;
    }
    let handle = part.open().await.unwrap();
    // The writes of the mirror's format are written back: by a write cache on the message `flush`, by a cache
    // while it is idle.
    if cache.kind() == writecache::KIND.name {
        cache.message("flush").await.unwrap();
    }
    while cache.only_in_cache() != Some(0) {
        runtime::sleep(Duration::from_millis(1)).await;
    }
    for block in 0..8 {
        write(&*handle, block, 7).await.unwrap();
    }
    let told = runtime::spawn_on(ShardIndex(1), {
        let (cache, part) = (cache.clone(), part.clone());
        move || async move { (cache.only_in_cache(), part.status().await["one_copy_bytes"].as_u64()) }
    });
    let (in_cache, one_copy) = told.await.unwrap();
    assert_eq!(in_cache, Some(8 * 4096));
    assert_eq!(one_copy, in_cache, "what the mirror says");
    assert_eq!(read(&*handle, 7, 1).await.unwrap()[0], 7);
    drop(handle);
    part.close().await.unwrap();
    cache.close().await.unwrap();
}

#[test]
fn of_a_write_cache() {
    // In a simulation all shards share a thread.
    runtime::run(Config::default().with_shards(2), || async {
        let options = Options { format: true, high_watermark: 100, low_watermark: 100, ..Options::default() };
        is_told_on_another_shard(Arc::new(WriteCachePart::open(disk(64), disk(130), options).await.unwrap()))
            .await;
    })
    .unwrap();
}

#[test]
fn of_a_cache_in_writeback() {
    simulate(Simulation::new(1).with_shards(2), || async {
        let options = cache::Options {
            format: true,
            mode: Mode::Writeback,
            block_size: 64 << 10,
            ..cache::Options::default()
        };
        let part = CachePart::open(disk(64), disk(512), "slow", &options).await.unwrap();
        is_told_on_another_shard(Arc::new(part)).await;
    })
    .unwrap();
}

/// Parts that are rewritten, discarded, and written back.
#[test]
fn of_a_cache_it_is_what_is_dirty() {
    simulate(Simulation::new(1), || async {
        let options = cache::Options {
            format: true,
            mode: Mode::Writeback,
            block_size: 64 << 10,
            ..cache::Options::default()
        };
        let part = CachePart::open(disk(64), disk(512), "slow", &options).await.unwrap();
        let handle = part.open().await.unwrap();
        for block in [0, 0, 1, 20] {
            write(&*handle, block, 7).await.unwrap();
        }
        assert_eq!(part.only_in_cache(), Some(3 * 4096));
        handle.discard(block::BlockRange::new(1, 1)).await.unwrap();
        assert_eq!(part.only_in_cache(), Some(2 * 4096));
        // While the cache is idle, all dirty parts are written back.
        runtime::sleep(Duration::from_secs(5)).await;
        assert_eq!(part.only_in_cache(), Some(0));
        drop(handle);
        part.close().await.unwrap();
    })
    .unwrap();
}
