//! Leaves: devices with nothing below them but the kernel or memory.
//!
//! - [`mod@file`]: a regular file or a block device, with O_DIRECT where the file system has it.
//! - [`ram`]: memory of this process, gone with it.
//! - [`null`]: takes everything, keeps nothing, reads zeros.
//!
//! A leaf promises an atomic write of a sector, 512 bytes. Each completion goes once through the run queue,
//! also where the work was done at once, so that a task in a loop can't keep the others from running.

pub mod file;
pub mod null;
pub mod ram;
mod size;

/// The atomic write that a leaf promises, in bytes.
pub const SECTOR: u32 = 512;

/// Passes the result of what was done at once through the run queue.
fn queued<'a, T: 'a>(result: T) -> block::Call<'a, T> {
    block::Call::new(async move {
        runtime::yield_now().await;
        result
    })
}
