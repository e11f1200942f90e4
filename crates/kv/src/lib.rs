//! The key-value store: a log-structured merge tree on zones, whose deletes are persistent by a deadline.
//!
//! Writes go to a write-ahead log and to a memtable; full memtables become sorted tables, which compaction merges level by level
//! (O'Neil, Cheng, Gawlick, O'Neil, "The Log-Structured Merge-Tree", 1996). Keys are divided among shards by their hash; each shard
//! has a tree of its own.
//!
//! Without I/O of their own:
//! - [`entry`]: the versions of keys; [`cursor`]: what walks through them in order.
//! - [`memtable`]: the newest entries, in memory; [`table`]: the format of sorted tables.
//! - [`merge`]: several cursors as one; [`visible`]: what a snapshot sees of them; [`retention`]: what compaction keeps of them.
//! - [`policy`]: which tables are compacted next, and in which zones tables are written.
//!
//! Left to others: group commit, zones, cleaning and recovery of records (`logkit`); zones on a device (`zones`); emulated flash (`zns`).

pub mod cursor;
pub mod entry;
pub mod memtable;
pub mod merge;
pub mod policy;
pub mod redis;
pub mod retention;
pub mod table;
pub mod visible;
