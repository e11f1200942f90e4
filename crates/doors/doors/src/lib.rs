//! Doors: servers through which programs use a stack. Each translates an existing protocol to calls on the
//! contracts of `block`, and keeps the promises of the protocol's specification.
//!
//! - [`fuse`]: a device as a file.
//! - [`nbd`]: the NBD protocol over unix and TCP sockets, and a batching client for it.
//! - [`ublk`]: a device as a block device of the kernel.
//! - [`vhost_user`]: the vhost-user-blk protocol, for disks of virtual machines.
//! - [`served`]: common parts of the doors.
//! - [`sysfs`]: attributes of the machine's block devices.
//!
//! Other crates execute requests on devices; `runtime` has the sockets and tasks.
#![doc = include_str!("../DESIGN.md")]

pub mod fuse;
pub mod nbd;
pub mod served;
pub mod sysfs;
pub mod ublk;
pub mod vhost_user;
