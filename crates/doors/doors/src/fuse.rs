//! The FUSE door, which serves a device as a regular file, for programs and the kernel's loop driver.
//!
//! The crate `fuse` has the protocol, `file` the file system of one file; [`door`] mounts it and declares the
//! kind.

pub mod door;
mod file;
