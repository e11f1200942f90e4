//! Mounting: the file system for all programs, through FUSE of the kernel.
//!
//! The number of a FUSE node is that of its inode. Its generation is 0, since inode numbers aren't reused. A
//! request is sent as one message to the shard of its inode, or to the shard that holds the name. The kernel
//! checks permissions and keeps locks.
//!
//! # Caches of the kernel
//! Only the kernel changes a mounted file system, so it may cache names, attributes and data without a limit
//! in time. With its writeback cache it also owns size and times of regular files: it sends the size with
//! writes and the times with SETATTR. So no other request sets the times of a regular file, which would
//! differ from those that programs have seen. All kernels that a session accepts have this cache.
//!
//! It caches no entries of directories: it would keep them after an operation that was answered ENOSPC and
//! takes effect later, and it fetches no attributes for entries that are cached.
//!
//! # Inodes without names
//! An inode is kept while it is open or the kernel refers to it: each lookup adds one reference, until the
//! kernel forgets it. So a removed working directory, or a removed file that is open with `O_PATH`, can still
//! be accessed.
//!
//! # Modules
//! An operation of the kernel passes three modules: `snapshots` executes those on nodes in `.snapshots`,
//! which `slots` numbers, and passes the others on; `serve` sends an operation to the shard that executes it;
//! `actions` has the operations that take more than one call of the shard, `listing` the reads of
//! directories. `convert` converts attributes between both sides, `control` has the virtual extended
//! attributes of the commands `siltstone fs`, `refused_reads` the log lines for refused reads.
//!
//! [`mounted`] is a mount from start to end, [`kind`] the kind `fs` of a stack.

mod actions;
mod control;
mod convert;
pub mod kind;
mod listing;
pub mod mounted;
mod owner;
mod refused_reads;
mod serve;
mod slots;
mod snapshots;

pub use mounted::{MountConfig, Mounted};
