//! Writes in memory: `memtable` has the newest entries in order, `buffer` a memtable with the zones of the
//! log that contain its writes.

pub mod buffer;
pub mod memtable;
