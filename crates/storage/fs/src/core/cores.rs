//! Cores among which the shards of an open file system are divided, and totals of the memory and space that
//! they use.
//!
//! A core has the shards whose numbers are congruent to its own, modulo the number of cores. The format
//! doesn't depend on the number of cores, so a file system may be opened with any number.

use crate::core::Core;
use crate::metadata::Metadata;
use crate::metadata::forest::Shard;
use crate::metadata::inode::InodeNumber;
use crate::metadata::stripes::StripedDirectories;
use crate::names::locks::Locks;
use runtime::Home;
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of the core that has a shard; `cores` is the number of cores.
#[inline]
pub fn core_of(shard: Shard, cores: u32) -> u32 {
    shard % cores
}

/// Handles of the cores. The first core is the home, which runs the cleaner and checkpoints.
#[derive(Debug, Clone)]
pub struct Cores {
    homes: Arc<[Home<Core>]>,
    shards: u32,
    striped: Arc<StripedDirectories>,
}

impl Cores {
    /// Returns the cores of a file system, at least one; `shards` is the number of its shards.
    pub fn new(homes: Vec<Home<Core>>, shards: u32) -> Self {
        Cores { homes: homes.into(), shards, striped: Arc::default() }
    }

    /// Number of cores.
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

    /// Handles of all cores.
    pub fn all(&self) -> &[Home<Core>] {
        &self.homes
    }

    /// Number of the core that has an inode.
    #[inline]
    pub fn index_of(&self, inode: InodeNumber) -> u32 {
        core_of((inode % u64::from(self.shards)) as Shard, self.count())
    }

    /// The core that has an inode.
    #[inline]
    pub fn of(&self, inode: InodeNumber) -> &Home<Core> {
        &self.homes[self.index_of(inode) as usize]
    }
}

/// A core among the others.
pub(crate) struct Peers {
    index: u32,
    /// All cores; set once, after they are created.
    all: OnceCell<Cores>,
    totals: Arc<Totals>,
    /// Locks of operations on several cores.
    pub locks: Locks,
}

impl Peers {
    /// Returns the core with this number, before it knows the others.
    pub fn new(index: u32, totals: Arc<Totals>) -> Self {
        Peers { index, all: OnceCell::new(), totals, locks: Locks::default() }
    }

    /// Sets the handles of all cores; called once.
    pub fn set(&self, cores: Cores) {
        self.all.set(cores).ok();
    }

    /// Number of the core.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// All cores.
    pub fn all(&self) -> &Cores {
        self.all.get().expect("the handles of all cores are set before any operation")
    }

    /// Memory and space that all cores use.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Whether an inode belongs to this core.
    #[inline]
    pub fn has(&self, inode: InodeNumber) -> bool {
        self.totals.cores() == 1 || self.all().index_of(inode) == self.index
    }
}

/// Memory and space that a core uses.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Used {
    /// Preallocated blocks.
    pub preallocated: AtomicU64,
    /// Blocks that are reserved for writes in flight.
    pub growing: AtomicU64,
    /// Pages of the trees of the core.
    pub pages: AtomicU64,
    /// Pages that the next checkpoint writes.
    pub unstored: AtomicU64,
    /// Bytes of memory of the core's trees, those of snapshots included.
    pub memory: AtomicU64,
    /// Inodes.
    pub inodes: AtomicU64,
}

impl Used {
    /// Publishes the use of a core with this metadata and `growing` blocks reserved for writes in flight.
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

/// Memory and space that all cores use. Each core writes its own part and reads all parts.
#[derive(Debug)]
pub struct Totals(Box<[Used]>);

impl Totals {
    /// Returns totals of 0 for a number of cores.
    pub fn new(cores: u32) -> Arc<Self> {
        Arc::new(Totals((0..cores).map(|_| Used::default()).collect()))
    }

    /// Number of cores.
    pub fn cores(&self) -> u32 {
        self.0.len() as u32
    }

    /// The part of a core.
    #[inline]
    pub fn of(&self, core: u32) -> &Used {
        &self.0[core as usize]
    }

    /// Returns the sum of a value of all cores.
    #[inline]
    pub fn sum(&self, part: impl Fn(&Used) -> &AtomicU64) -> u64 {
        self.0.iter().map(|used| part(used).load(Ordering::Relaxed)).sum()
    }
}
