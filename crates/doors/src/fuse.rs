//! The FUSE door, which serves a device as a regular file, for programs and the kernel's loop driver.
//!
//! The protocol is in the crate `fuse`. Here: `file` is the file system of one file, [`door`] mounts it and declares the kind.

pub mod door;
mod file;
