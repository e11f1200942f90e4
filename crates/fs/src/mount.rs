//! Mounting: the file system for all programs, through FUSE of the kernel.
//!
//! The number of a FUSE node is that of its inode. Its generation is 0, since inode numbers aren't reused. A
//! request is sent as one message to the core of its inode, or to the core that holds the name. The kernel
//! checks permissions and keeps locks.
//!
//! # Caches of the kernel
//! Only the kernel changes a mounted file system, so it may cache names, attributes and data without a limit
//! in time. With its writeback cache it also owns size and times of regular files: it sends the size with
//! writes and the times with SETATTR. So no other request sets the times of a regular file, which would
//! differ from those that programs have seen. All kernels that a session accepts have this cache.
//!
//! # Inodes without names
//! An inode is kept while it is open or the kernel refers to it: each lookup adds one reference, until the
//! kernel forgets it. So a removed working directory, or a removed file that is open with `O_PATH`, can still
//! be accessed.
//!
//! Modules: `convert` converts attributes between both sides, `actions` has the requests that are more than
//! one call of the core, `serve` all requests, `refused_reads` the log lines for refused reads, `snapshots`
//! the requests in `.snapshots`, with the nodes of `slots`, [`mounted`] a mount from start to end, [`kind`]
//! the kind `fs` of a stack.

mod actions;
mod control;
mod convert;
pub mod kind;
pub mod mounted;
mod refused_reads;
mod serve;
mod slots;
mod snapshots;

pub use mounted::{MountConfig, Mounted};
