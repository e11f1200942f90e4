//! Settings of the shards, and their numbers.

use std::fmt;

/// Settings of the shards of [`run`](crate::run).
#[derive(Debug, Clone)]
pub struct Config {
    /// Number of shards, 1 to 256.
    pub shards: usize,
    /// Whether shard n is pinned to the n-th processor that the process may use (modulo their number).
    pub pin: bool,
    /// Submission entries per ring, a power of two.
    pub ring_entries: u32,
    /// Bytes of buffers that each shard tries to register with its ring; fewer, or none, if the kernel's
    /// limit on locked memory is lower.
    pub registered_bytes: usize,
    /// Whether a shard polls its ring for up to 50 µs before it sleeps, if its waits are that short and there
    /// are more processors than shards. This saves clients with one request at a time the wake-up of a
    /// thread.
    pub poll: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config { shards: 1, pin: false, ring_entries: 256, registered_bytes: 4 << 20, poll: false }
    }
}

impl Config {
    /// Sets the number of shards.
    pub fn with_shards(mut self, shards: usize) -> Self {
        self.shards = shards;
        self
    }

    /// Lets shards poll before they sleep.
    pub fn polling(mut self) -> Self {
        self.poll = true;
        self
    }

    /// Pins shards to processors.
    pub fn pinned(mut self) -> Self {
        self.pin = true;
        self
    }
}

/// Number of a shard, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardIndex(pub usize);

impl fmt::Display for ShardIndex {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
