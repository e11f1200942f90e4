//! The key-value store: a log-structured merge tree on zones, whose deletes are persistent by a deadline.
//!
//! Writes go to a write-ahead log and to a memtable; full memtables become sorted tables, which compaction merges level by level
//! (O'Neil, Cheng, Gawlick, O'Neil, "The Log-Structured Merge-Tree", 1996). Keys are divided among shards by their hash; each shard
//! has a tree of its own.
//!
//! Without I/O of their own:
//! - `entry`: the versions of keys; `cursor`: what walks through them in order; `batch`: writes that take effect together.
//! - `memtable`: the newest entries, in memory; `table`: the format of sorted tables.
//! - `merge`: several cursors as one; `visible`: what a snapshot sees of them; `retention`: what a compaction keeps of them.
//! - `policy`: which tables are compacted next, and in which zones tables are written; `cleaning`: which zone is cleaned next.
//! - `manifest`: which tables there are; `item`: what is appended to the log.
//!
//! A shard:
//! - `core`: the owner of the log; `buffer`: write buffers; `tables`: tables in zones, and the block cache; `extents`: where their blocks are; `gate`: writes of
//!   a key take turns; `write_controller`: writes are slowed before they stop.
//! - `jobs`: flushes and compactions; `manual_compaction`: compaction on request; `reads`: gets and scans, `pairs`: what scans return; `level_cursor`: cursors
//!   of levels; `cross_shard`: batches and snapshots of several shards; `status`: numbers for operators.
//! - `recovery`, `checkpoint`: making and opening; [`check`]: looking for damage; `salvage`: losses of a damaged store. `erasure`, `eraser`: deletes are persistent in time, by `clock`; `reset_history`:
//!   guarantees of resets before.
//!
//! [`Store`] is what programs use, [`redis`] serves it to redis clients, and [`kind`] makes it a part of stacks. [`audit`](mod@audit) looks for deleted keys
//! in the cells of a drive. `fuzzing` has what the fuzz targets run.
//!
//! Left to others: group commit, zones, cleaning and recovery of records (`logkit`); zones on a device (`zones`); emulated flash (`zns`).
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
pub mod kind;
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
pub mod redis;
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
pub use entry::{MOST_KEY_BYTES, MOST_VALUE_BYTES, Timestamp};
pub use iterator::Iterator;
pub use kind::KIND;
pub use manifest::MOST_SHARDS;
pub use pairs::{Pair, Pairs};
pub use reads::{Scan, Stored};
pub use recovery::fewest_zones;
pub use settings::{Acknowledge, Broken, DeletePersistence, Settings};
pub use status::TableFacts;
pub use store::{Snapshot, Store, Update, shard_of_key};
pub use table::{Compression, Options as TableOptions};
