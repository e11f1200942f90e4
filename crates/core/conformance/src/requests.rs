//! Requests of whole blocks of 4 KiB, for tests of devices.

use block::{BlockCount, BlockIndex, BlockSize, Buffer, Device, DeviceGeometry, Durability, Payload, Result};

/// Geometry of a small disk: 64 blocks of 4 KiB with sectors of 512 bytes and a volatile cache.
pub fn geometry() -> DeviceGeometry {
    DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(64),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }
}

/// Returns blocks that are full of this byte.
pub fn full(byte: u8, blocks: usize) -> Payload {
    Buffer::copy_of(&vec![byte; blocks * 4096]).into()
}

/// Writes one block that is full of this byte, with [`Durability::Visible`].
///
/// # Errors
/// Errors of the device.
pub async fn write(device: &dyn Device, block: u64, byte: u8) -> Result<()> {
    device.write(BlockIndex(block), full(byte, 1), Durability::Visible).await
}

/// Reads blocks, from this one on.
///
/// # Errors
/// Errors of the device.
pub async fn read(device: &dyn Device, block: u64, blocks: usize) -> Result<Vec<u8>> {
    let (result, buffer) = device.read(BlockIndex(block), Buffer::new(blocks * 4096)).await;
    result.map(|()| buffer.filled().to_vec())
}

/// Runs a test on one shard.
///
/// # Panics
/// If the runtime doesn't start.
pub fn on_a_shard<T, Fut>(main: impl FnOnce() -> Fut + Send) -> T
where
    T: Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    runtime::run(runtime::Config::default(), main).expect("the runtime starts")
}
