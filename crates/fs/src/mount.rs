//! Mounting: the file system for all programs, through the kernel's FUSE.
//!
//! The number of a FUSE node is that of its inode; its generation is 0, since numbers of inodes are never given again. A request that
//! comes to another shard goes to the file system's home as one message. Permissions and locks are the kernel's.
//!
//! # Caches of the kernel
//! The kernel alone changes a mounted file system, so it keeps names, attributes and data as long as it likes. With its writeback cache
//! it also owns size and times of regular files: it sends the size by writes and the times by SETATTR. So no other request sets the
//! times of a regular file: they would differ from those that programs have seen. All kernels that a session takes have this cache.
//!
//! # Inodes without names
//! An inode stays while it is open or while the kernel refers to it: each lookup counts one reference until the kernel forgets it. So a
//! removed working directory, or a file that is held with `O_PATH`, can still be looked at.
//!
//! Modules: `convert` between the attributes of both sides, `actions` what requests do beyond one call of the shard, `serve` the
//! requests, `refused_reads` their lines in the log, `snapshots` those in `.snapshots` with the nodes of `slots`, [`mounted`] a mount from its beginning to its end,
//! [`watch`] whether the storage completes requests, [`kind`] the kind `fs` of a stack.

mod actions;
mod control;
mod convert;
pub mod kind;
pub mod mounted;
mod refused_reads;
mod serve;
mod slots;
mod snapshots;
pub mod watch;

pub use mounted::{MountConfig, Mounted};
