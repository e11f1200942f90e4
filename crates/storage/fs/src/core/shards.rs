//! Shards of an open file system, among which its inode groups are divided, and totals of the memory and
//! space that they use.
//!
//! A shard has the inode groups whose numbers are congruent to its own, modulo the number of shards. The
//! format doesn't depend on the number of shards, so a file system may be opened with any number.

use crate::core::Core;
use crate::metadata::Metadata;
use crate::metadata::forest::InodeGroup;
use crate::metadata::inode::InodeNumber;
use crate::metadata::stripes::StripedDirectories;
use crate::names::locks::Locks;
use runtime::Home;
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of the shard that has an inode group; `shards` is the number of shards.
#[inline]
pub fn shard_of(group: InodeGroup, shards: u32) -> u32 {
    group % shards
}

/// Handles of the shards. The first shard is the home, which runs the cleaner and checkpoints.
#[derive(Debug, Clone)]
pub struct Shards {
    homes: Arc<[Home<Core>]>,
    groups: u32,
    striped: Arc<StripedDirectories>,
}

impl Shards {
    /// Returns the shards of a file system, at least one; `groups` is the number of its inode groups.
    pub fn new(homes: Vec<Home<Core>>, groups: u32) -> Self {
        Shards { homes: homes.into(), groups, striped: Arc::default() }
    }

    /// Number of shards.
    pub fn count(&self) -> u32 {
        self.homes.len() as u32
    }

    /// Striped directories.
    pub fn striped(&self) -> &StripedDirectories {
        &self.striped
    }

    /// Home of the file system.
    pub fn first(&self) -> &Home<Core> {
        &self.homes[0]
    }

    /// Handles of all shards.
    pub fn all(&self) -> &[Home<Core>] {
        &self.homes
    }

    /// Number of the shard that has an inode.
    #[inline]
    pub fn index_of(&self, inode: InodeNumber) -> u32 {
        shard_of((inode % u64::from(self.groups)) as InodeGroup, self.count())
    }

    /// The shard that has an inode.
    #[inline]
    pub fn of(&self, inode: InodeNumber) -> &Home<Core> {
        &self.homes[self.index_of(inode) as usize]
    }
}

/// A shard among the others.
pub(crate) struct Peers {
    index: u32,
    /// All shards; set once, after they are created.
    all: OnceCell<Shards>,
    totals: Arc<Totals>,
    /// Locks of operations on several shards.
    pub locks: Locks,
}

impl Peers {
    /// Returns the shard with this number, before it knows the others.
    pub fn new(index: u32, totals: Arc<Totals>) -> Self {
        Peers { index, all: OnceCell::new(), totals, locks: Locks::default() }
    }

    /// Sets the handles of all shards; called once.
    pub fn set(&self, shards: Shards) {
        self.all.set(shards).ok();
    }

    /// Number of the shard.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// All shards.
    pub fn all(&self) -> &Shards {
        self.all.get().expect("the handles of all shards are set before any operation")
    }

    /// Memory and space that all shards use.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Whether an inode belongs to this shard.
    #[inline]
    pub fn has(&self, inode: InodeNumber) -> bool {
        self.totals.shards() == 1 || self.all().index_of(inode) == self.index
    }
}

/// Memory and space that a shard uses.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Used {
    /// Preallocated blocks.
    pub preallocated: AtomicU64,
    /// Blocks that are reserved for writes in flight.
    pub growing: AtomicU64,
    /// Pages of the trees of the shard.
    pub pages: AtomicU64,
    /// Pages that the next checkpoint writes.
    pub unstored: AtomicU64,
    /// Bytes of memory of the shard's trees, those of snapshots included.
    pub memory: AtomicU64,
    /// Inodes.
    pub inodes: AtomicU64,
}

impl Used {
    /// Publishes the use of a shard with this metadata and `growing` blocks reserved for writes in flight.
    pub(crate) fn publish(&self, metadata: &Metadata, growing: u64) {
        self.preallocated.store(metadata.preallocated, Ordering::Relaxed);
        self.growing.store(growing, Ordering::Relaxed);
        let pages = match metadata.snapshots.is_empty() {
            true => metadata.items.pages(),
            // Each page that is shared with a snapshot may have to be copied.
            false => metadata.items.family_pages() + metadata.items.pages(),
        };
        self.pages.store(pages as u64, Ordering::Relaxed);
        self.unstored.store(metadata.items.unstored_pages() as u64, Ordering::Relaxed);
        self.memory.store(metadata.items.memory() as u64, Ordering::Relaxed);
        self.inodes.store(metadata.count(), Ordering::Relaxed);
    }
}

/// Memory and space that all shards use. Each shard writes its own part and reads all parts.
#[derive(Debug)]
pub struct Totals(Box<[Used]>);

impl Totals {
    /// Returns totals of 0 for a number of shards.
    pub fn new(shards: u32) -> Arc<Self> {
        Arc::new(Totals((0..shards).map(|_| Used::default()).collect()))
    }

    /// Number of shards.
    pub fn shards(&self) -> u32 {
        self.0.len() as u32
    }

    /// The part of a shard.
    #[inline]
    pub fn of(&self, shard: u32) -> &Used {
        &self.0[shard as usize]
    }

    /// Returns the sum of a value of all shards.
    #[inline]
    pub fn sum(&self, part: impl Fn(&Used) -> &AtomicU64) -> u64 {
        self.0.iter().map(|used| part(used).load(Ordering::Relaxed)).sum()
    }
}
