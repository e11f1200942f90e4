//! The key-value store: a log-structured merge tree on zones, with deletes that are persistent by a deadline.
//!
//! Writes go to a write-ahead log and to a memtable; full memtables become sorted tables, which compaction
//! merges level by level (O'Neil, Cheng, Gawlick, O'Neil, "The Log-Structured Merge-Tree", 1996). Keys are
//! divided among shards by their hash; each shard has its own tree.
//!
//! Modules, each of which imports only those before it:
//! - `key_version`: versions of keys; `cursor`: positions in ordered entries, their merge, visibility and
//!   retention; `batch`: writes that take effect atomically; `scan`: parameters and results of scans.
//! - `table`: the format of sorted tables; `policy`: compaction and placement of tables; `settings`.
//! - `memory`: the newest entries; `erasure`: zones that must be reset in time; `tree`: tables in zones,
//!   their levels and manifest.
//! - `log_entry`: entries of the log; `staged_block`: acknowledged writes that aren't in the log yet;
//! `replay`: the state that the log has; [`check`]: detection of damage;
//!   [`audit`](mod@audit): search of the cells of a drive for deleted keys.
//! - `core`: a shard, the owner of the log; `recovery`: formatting and opening; `store`: [`Store`], the
//!   interface for tasks of the runtime's shards; `sizes`: default sizes.
//! - [`embedded`]: the store for programs on any executor, or on none.
//!
//! Elsewhere: the kind of stacks, and redis clients (`redis-door`); group commit, zones, cleaning and
//! recovery of records (`logkit`); zones on a device (`zones`); emulated flash (`zns`).
#![doc = include_str!("../DESIGN.md")]

pub mod audit;
mod batch;
mod broken;
pub mod check;
mod core;
mod cursor;
pub mod embedded;

mod erasure;
#[doc(hidden)]
pub mod fuzzing;
mod key_version;
mod log_entry;
mod memory;
#[cfg(test)]
mod model;
mod policy;
mod recovery;
mod replay;
mod scan;
mod settings;
pub mod sizes;
mod staged_block;
mod store;
mod table;
mod tree;

pub use batch::{Batch, Write};
#[cfg(feature = "broken-rules")]
pub use broken::{Broken, with_broken};
pub use core::{Snapshot, TableFacts};
pub use key_version::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Timestamp, now};
pub use logkit::recovery::Goal;
pub use policy::{COMPACTIONS, PLACEMENTS};
pub use recovery::{check_zones, default_shards, fewest_zones};
pub use scan::{Pair, Pairs, Scan, Stored};
pub use settings::{Acknowledge, DeletePersistence, Settings, default_policies};
pub use store::{Iterator, Store, Update, shard_of_key};
pub use table::{Compression, Options as TableOptions, key_hash};
pub use tree::manifest::MAX_SHARDS;
