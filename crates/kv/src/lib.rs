//! The key-value store: a log-structured merge tree on zones, with deletes that are persistent by a deadline.
//!
//! Writes go to a write-ahead log and to a memtable; full memtables become sorted tables, which compaction
//! merges level by level (O'Neil, Cheng, Gawlick, O'Neil, "The Log-Structured Merge-Tree", 1996). Keys are
//! divided among shards by their hash; each shard has its own tree.
//!
//! Without I/O:
//! - `entry`: versions of keys; `cursor`: positions in ordered entries; `batch`: writes that take effect
//!   atomically.
//! - `memtable`: the newest entries, in memory; `table`: the format of sorted tables.
//! - `merge`: several cursors as one; `visible`: entries that a snapshot sees; `retention`: entries that a
//!   compaction keeps.
//! - `policy`: compaction and placement of tables; `cleaning`: choice of victims.
//! - `manifest`: the tables of a tree; `item`: entries of the log.
//!
//! A shard:
//! - `core`: the owner of the log; `buffer`: write buffers; `tables`: tables in zones, and the block cache;
//!   `extents`: places of their blocks; `gate`: mutual exclusion of writes of a key; `write_controller`:
//!   throttling of writes.
//! - `jobs`: flushes and compactions; `manual_compaction`: compaction on request; `reads`: gets and scans;
//!   `pairs`: results of scans; `level_cursor`: cursors of levels; `cross_shard`: batches and snapshots of
//!   several shards; `status`: numbers for operators.
//! - `recovery`, `checkpoint`: formatting and opening; [`check`]: detection of damage; `salvage`: losses of a
//!   damaged store. `erasure`, `eraser`: persistent deletes, timed by `clock`; `reset_history`: guarantees of
//!   earlier resets.
//!
//! [`Store`] is the interface for programs. [`audit`](mod@audit) searches the cells of a drive for deleted
//! keys. `fuzzing` has the entry point of a fuzz target.
//!
//! Elsewhere: the kind of stacks, and redis clients (`redis-door`); group commit, zones, cleaning and recovery of records (`logkit`); zones on a device (`zones`);
//! emulated flash (`zns`).
#![doc = include_str!("../DESIGN.md")]

pub mod audit;
mod batch;
mod buffer;
pub mod check;
mod checkpoint;
mod cleaning;
mod clock;
mod core;
mod cross_shard;
mod cursor;
mod entry;
mod eraser;
mod erasure;
mod extents;
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod item;
mod iterator;
mod jobs;
mod level_cursor;
mod manifest;
mod manual_compaction;
mod memtable;
mod merge;
#[cfg(test)]
mod model;
mod open_zones;
mod pairs;
mod policy;
mod reads;
mod reclaim;
mod recovery;
mod reserve;
mod reset_history;
mod retention;
mod salvage;
mod settings;
mod status;
mod store;
mod table;
mod tables;
mod visible;
mod write_controller;

pub use batch::{Batch, Write, now};
pub use entry::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Timestamp};
pub use iterator::Iterator;
pub use logkit::recovery::Goal;
pub use manifest::MAX_SHARDS;
pub use pairs::{Pair, Pairs};
pub use policy::{COMPACTIONS, PLACEMENTS};
pub use reads::{Scan, Stored};
pub use recovery::{check_zones, default_shards, fewest_zones};
pub use settings::{Acknowledge, Broken, DeletePersistence, Settings, default_policies};
pub use status::TableFacts;
pub use store::{Snapshot, Store, Update, shard_of_key};
pub use table::{Compression, Options as TableOptions, key_hash};
