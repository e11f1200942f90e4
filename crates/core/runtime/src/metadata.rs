//! Type and size of a file.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Type and size of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// The length in bytes; for a block device its capacity.
    pub length: u64,
    /// Whether it is a regular file.
    pub is_file: bool,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Whether it is a block device.
    pub is_block_device: bool,
    /// Allocated space in bytes.
    pub allocated: u64,
    /// Permission bits, such as 0o600.
    pub mode: u32,
}

impl Metadata {
    /// Metadata of a file of the kernel, with its length.
    pub(crate) fn of(found: &std::fs::Metadata, length: u64) -> Self {
        Metadata {
            length,
            is_file: found.is_file(),
            is_directory: found.is_dir(),
            is_block_device: found.file_type().is_block_device(),
            allocated: found.blocks() * 512,
            mode: found.mode() & 0o7777,
        }
    }

    /// Metadata of a simulated file or directory.
    pub(crate) fn simulated(length: u64, is_directory: bool) -> Self {
        Metadata {
            length,
            is_file: !is_directory,
            is_directory,
            is_block_device: false,
            allocated: length,
            mode: 0o600,
        }
    }
}
