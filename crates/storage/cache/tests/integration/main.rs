//! The cache: its promises, and the suite of the contract.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod cost;
mod parts;
mod promises;
mod suite;
mod warm;

use block::{BlockCount, BlockSize, DeviceGeometry, DevicePart};
use layers::record::replay::ImageDisk;
use std::sync::Arc;

/// A disk in memory that may lose what isn't flushed.
fn disk(bytes: u64, block_size: u64) -> Arc<dyn DevicePart> {
    Arc::new(ImageDisk::empty(DeviceGeometry {
        block_size: BlockSize::new(block_size).expect("a size"),
        blocks: BlockCount(bytes / block_size),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    }))
}
