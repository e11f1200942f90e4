//! The newest entries of a shard, in memory.
