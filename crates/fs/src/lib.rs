//! The log-structured file system: files and directories on zones. For programs that link it, all calls are
//! asynchronous and don't block the shard.
//!
//! All metadata is in memory, in a [`tree`] of items. Every change of it is a [`change`] in a record of the
//! log, and a `checkpoint` writes the changed pages of the tree. Data is never overwritten in place.
//!
//! Modules without I/O:
//! - [`inode`], [`directory`], [`attributes`], `extents`: the kinds of items.
//! - `metadata`: the state and the effect of changes on it; [`namespace`]: changes of the operations on
//!   names.
//!
//! Modules of a core:
//! - [`core`](mod@core): the owner of the log; [`item`], [`tickets`]: the queue; [`node`]: files in use.
//! - [`stripes`], `striping`: large directories, whose names are divided among all cores.
//! - [`names`], [`operations`], [`data`]: operations of clients; [`sums`]: checksums, which every read
//!   verifies.
//! - [`classes`]: the order of reads, writes and syncs.
//! - [`format`](mod@format), `recovery`: creating and opening.
//!
//! [`check`](mod@check) looks for violated invariants, on the medium or in an open file system. [`scrub`]
//! verifies the checksums of all data, and [`defrag`] rewrites files with fewer fragments, both while they
//! are in use.
//!
//! [`file_system`] has the paths and open files for programs; [`mount`] serves the file system to the kernel.
//!
//! In other crates: group commit, zones, cleaning and the lookup of records (`logkit`); zones on a device
//! (`zones`); the FUSE protocol (`fuse`).
#![doc = include_str!("../DESIGN.md")]

pub mod check;
pub mod classes;
pub mod core;
pub mod data;
pub mod file;
pub mod file_system;
pub mod format;
pub mod metadata;
pub mod mount;
pub mod names;
mod recovery;
pub mod snapshots;
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
pub use mount::kind::KIND;
pub use mount::{MountConfig, Mounted};
pub use view::{SnapshotFile, SnapshotView};
