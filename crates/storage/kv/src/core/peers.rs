//! The shards of a store: their homes, and the free space that they need together.

use super::Core;
use runtime::Home;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes to which the writes of a shard that still take zones are rounded up: few writes change the rounded
/// number, which all shards read.
const UNWRITTEN_GRAIN: u64 = 16 << 10;

/// Free space that all shards need, so that each keeps the same number of zones free.
#[derive(Debug)]
pub(crate) struct SharedSpace {
    /// Bytes of the manifest of each shard.
    manifests: Box<[AtomicU64]>,
    /// Bytes of writes of each shard that still take zones, rounded up.
    unwritten: Box<[AtomicU64]>,
    /// Bytes of the largest table of each shard.
    largest: Box<[AtomicU64]>,
    /// Number of blocks of the last checkpoint.
    pub directory: AtomicU64,
    /// Number of zones that running jobs may still fill; space for checkpoints must exist beyond these.
    pub claimed: AtomicU32,
    /// Shards that found nothing to reclaim since their last write, one bit per shard.
    pub exhausted: AtomicU32,
}

impl SharedSpace {
    /// Returns the state of a store of `shards` shards without tables.
    pub fn new(shards: u16) -> Arc<Self> {
        let zeros = || (0..shards).map(|_| AtomicU64::new(0)).collect();
        Arc::new(SharedSpace {
            manifests: zeros(),
            unwritten: zeros(),
            largest: zeros(),
            directory: AtomicU64::new(0),
            claimed: AtomicU32::new(0),
            exhausted: AtomicU32::new(0),
        })
    }

    /// Sets the size of a shard's manifest and of its largest table, in bytes.
    pub fn set_tables(&self, shard: u16, manifest: u64, largest: u64) {
        self.manifests[usize::from(shard)].store(manifest, Ordering::Relaxed);
        self.largest[usize::from(shard)].store(largest, Ordering::Relaxed);
    }

    /// Sets the bytes of a shard's writes that still take zones. A shard that then reads the sum of all, and
    /// the number of free zones, acknowledges no write for zones that another one has counted on.
    pub fn set_unwritten(&self, shard: u16, bytes: u64) {
        let (own, bytes) = (&self.unwritten[usize::from(shard)], bytes.next_multiple_of(UNWRITTEN_GRAIN));
        if own.load(Ordering::Relaxed) != bytes {
            own.store(bytes, Ordering::SeqCst);
        }
    }

    /// Bytes of the writes of all shards that still take zones.
    pub fn unwritten_bytes(&self) -> u64 {
        self.unwritten.iter().map(|bytes| bytes.load(Ordering::SeqCst)).sum()
    }

    /// Bytes of the largest table of any shard.
    pub fn largest_table(&self) -> u64 {
        self.largest.iter().map(|bytes| bytes.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// Bytes of all manifests.
    pub fn manifest_bytes(&self) -> u64 {
        self.manifests.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }
}

/// A shard among the shards of its store.
pub(crate) struct Peers {
    /// Number of the shard.
    pub shard: u16,
    /// Number of shards of the store.
    pub shards: u16,
    /// Free space that all shards need.
    pub space: Arc<SharedSpace>,
    homes: RefCell<Vec<Home<Core>>>,
}

impl Peers {
    /// Returns one of `shards` shards, which doesn't know the homes of the others yet.
    pub fn new((shard, shards): (u16, u16), space: &Arc<SharedSpace>) -> Self {
        Peers { shard, shards, space: space.clone(), homes: RefCell::default() }
    }

    /// Sets the homes of all shards.
    pub fn set_homes(&self, homes: Vec<Home<Core>>) {
        self.homes.replace(homes);
    }

    /// Homes of all shards.
    pub fn homes(&self) -> Vec<Home<Core>> {
        self.homes.borrow().clone()
    }

    /// Home of a shard, which may be this one.
    pub fn at(&self, shard: u16) -> Home<Core> {
        self.homes.borrow()[usize::from(shard)].clone()
    }
}
