//! Leaves: devices on the kernel or on memory, without parts below them.
//!
//! - [`mod@file`]: a regular file or a block device, with O_DIRECT if the file system supports it.
//! - [`ram`]: memory of this process, lost when it ends.
//! - [`null`]: accepts and discards writes, reads zeros.
//!
//! A leaf guarantees atomic writes of a sector, 512 bytes. Each completion passes once through the run queue,
//! even if the work was done at once, so that a task in a loop can't starve others.

pub mod file;
pub mod null;
pub mod ram;
mod size;

/// Size of an atomic write of a leaf, in bytes.
pub const SECTOR: u32 = 512;

/// Passes a result that is known at once through the run queue.
fn queued<'a, T: 'a>(result: T) -> block::Call<'a, T> {
    block::Call::new(async move {
        runtime::yield_now().await;
        result
    })
}
