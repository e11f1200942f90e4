//! The log-structured file system: files and directories on zones. For programs that link it, all calls are
//! asynchronous and don't block the shard.
//!
//! All metadata is in memory, in a [`tree`] of items. Every [change](metadata::change) of it is in a
//! record of the log, and a checkpoint writes the changed pages of the tree. Data is never overwritten in
//! place.
//!
//! Groups of modules:
//! - [`tree`], [`metadata`]: trees and their items, changes and their effect, without I/O;
//!   [`format`](mod@format): the state on the medium.
//! - [`core`](mod@core): a shard, the owner of the log, with the operations of clients.
//! - [`names`]: decisions on names, operations on several shards, striped directories, paths.
//! - [`data`]: verified reads, clones, defragmentation. [`classes`]: the order of reads, writes and syncs.
//! - `snapshots`: taking and deleting them. `recovery`: creating and opening.
//! - [`check`](mod@check): invariants, on the medium or in an open file system; verification of all data.
//! - [`sizes`]: default sizes, and the zones on a device. `status`: figures for operators.
//! - [`embedded`]: the file system for programs on any executor, or on none.
//! - [`file_system`]: paths and open files for programs; [`mount`]: the file system for the kernel.
//!
//! In other crates: group commit, zones, cleaning and the lookup of records (`logkit`); zones on a device
//! (`zones`); the FUSE protocol (`fuse`).
#![doc = include_str!("../DESIGN.md")]

#[doc(hidden)]
pub mod broken;
pub mod check;
pub mod classes;
pub mod core;
pub mod data;
pub mod embedded;
pub mod file;
pub mod file_system;
pub mod format;
pub mod metadata;
pub mod mount;
pub mod names;
mod recovery;
pub mod sizes;
mod snapshots;
mod status;
pub mod tree;
mod view;

pub use crate::core::Settings;
pub use check::check;
pub use classes::{Class, ClassStatistics};
pub use data::clones::Cloned;
pub use file::File;
pub use file_system::{Directory, FileSystem, OpenOptions};
pub use format::Properties;
pub use logkit::cleaning::Parameters as CleaningParameters;
pub use logkit::recovery::{Goal, LostParts};
pub use metadata::versions::SnapshotInfo;
pub use mount::kind::{FsDoor, KIND};
pub use mount::{MountConfig, Mounted};
pub use view::{SnapshotFile, SnapshotView};
