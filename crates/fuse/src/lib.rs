//! The FUSE kernel protocol as a server sees it, for whole file systems and for single files.
//!
//! The protocol is in sans-io modules, which never wait for the kernel: [`protocol`] (numbers and structures), [`request`] (parsing),
//! [`reply`], [`negotiation`] (INIT), [`dispatch`] (from a request to a reply). [`file_system`] has the trait that a file
//! system implements, [`session`] reads requests and sends replies on the shards' rings, [`mount`] mounts and unmounts.
//! Calls that wait for the server are made by a process apart ([`run_if_asked`]).
//!
//! Left to others: the files (the implementations of [`FileSystem`]), the rings (`runtime`), locks (the kernel).
#![doc = include_str!("../DESIGN.md")]

mod apart;
pub mod connection;
pub mod dispatch;
pub mod file_system;
pub mod mount;
pub mod negotiation;
pub mod protocol;
pub mod reply;
pub mod request;
pub mod session;

pub use apart::run_if_asked;
pub use file_system::{
    Attributes, CachedAttributes, Context, CopyRange, Entry, FileSystem, FileSystemPart, Opened, Read,
    Release, SetAttributes, SetTime, Statistics, Timestamp, Write,
};
pub use mount::{Mount, MountOptions};
pub use negotiation::Negotiated;
pub use reply::{DirectoryEntries, DirectoryEntriesPlus};
pub use session::{Ended, Notifier, Session};
