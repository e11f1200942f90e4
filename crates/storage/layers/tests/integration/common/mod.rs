//! Devices, payloads and helpers that the tests of the layers share.

pub mod builder;

use block::{BlockCount, BlockIndex, BlockSize, Buffer, Device, DeviceGeometry, Durability, Payload, Result};
use layers::record::replay::ImageDisk;
use std::sync::Arc;

/// 64 blocks of 4 KiB with sectors of 512 bytes and a volatile cache.
pub fn geometry() -> DeviceGeometry {
    DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(64),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }
}

pub fn disk() -> Arc<ImageDisk> {
    Arc::new(ImageDisk::empty(geometry()))
}

/// Blocks that are full of this byte.
pub fn full(byte: u8, blocks: usize) -> Payload {
    Buffer::copy_of(&vec![byte; blocks * 4096]).into()
}

pub async fn write(device: &dyn Device, block: u64, byte: u8) -> Result<()> {
    device.write(BlockIndex(block), full(byte, 1), Durability::Visible).await
}

pub async fn read(device: &dyn Device, block: u64, blocks: usize) -> Result<Vec<u8>> {
    let (result, buffer) = device.read(BlockIndex(block), Buffer::new(blocks * 4096)).await;
    result.map(|()| buffer.filled().to_vec())
}

/// Runs a test on one shard.
pub fn on_a_shard<T, Fut>(main: impl FnOnce() -> Fut + Send) -> T
where
    T: Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    runtime::run(runtime::Config::default(), main).expect("the runtime starts")
}
