//! The server's side of the FUSE kernel protocol, for whole file systems and for single files.
//!
//! The protocol is in sans-io modules, which never wait for the kernel: [`protocol`] (numbers and
//! structures), [`request`] (parsing), [`operation`] (parsed operations), [`reply`], [`ring_frame`] (both in
//! the entries of a ring), [`negotiation`] (INIT), [`dispatch`] (from a request to a reply). [`file_system`]
//! has the trait that a file system implements,
//! [`session`] reads requests and sends replies on the shards' rings, [`mount`] mounts and unmounts. A
//! separate process makes calls that wait for the server ([`run_if_asked`]).
//!
//! Implementations of [`FileSystem`] have the files, `runtime` the rings, the kernel the locks.
#![doc = include_str!("../DESIGN.md")]

mod apart;
pub mod connection;
mod directory;
pub mod dispatch;
pub mod file_system;
pub mod mount;
pub mod negotiation;
pub mod operation;
pub mod protocol;
pub mod reply;
pub mod request;
pub mod ring_frame;
pub mod session;

pub use apart::run_if_asked;
pub use directory::DirectoryEntries;
pub use file_system::{Context, FileSystem, FileSystemPart, not_implemented};
pub use mount::{Mount, MountOptions};
pub use negotiation::Negotiated;
pub use operation::{CopyRange, Operation, Read, ReadDirectory, SetAttributes, SetTime, Timestamp, Write};
pub use reply::{Attributes, CachedAttributes, Entry, Opened, Reply, Statistics};
pub use session::{Ended, Notifier, Session};
