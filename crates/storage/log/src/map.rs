//! Maps from logical to physical blocks: one trait, and the structures that implement it.
//!
//! A map translates logical blocks to physical ones. It is independent of zones, records and durability. Its
//! users apply changes in the order of the log, one at a time, and look up blocks at any time.
//!
//! # Contract of every implementation
//! - Lookups may run on any thread, at any time, concurrently with a change. For each block they return the
//!   value before or after the change; of several blocks some may be old and others new.
//! - Changes ([`insert`](Map::insert), [`compare_and_move`](Map::compare_and_move),
//!   [`load_page`](Map::load_page), [`snapshot`](Map::snapshot)) may come from any thread. On a map and its
//!   snapshots one change runs at a time: the caller serializes them, or else the map does.
//! - Memory that a change removed from the structure is reused only after a grace period (RCU): the caller
//!   calls [`begin_grace`](Map::begin_grace), waits until every lookup that had begun by then has returned,
//!   and calls [`end_grace`](Map::end_grace). A map that reclaims memory on its own does nothing in these
//!   calls. A map and its snapshots share their grace periods: "every lookup" includes those of all of them.
//! - Visitors are called during the change, and must not change the map or a snapshot of it.
//! - A snapshot keeps the contents of its creation when the other map changes; both can be changed.

pub mod btree;
pub mod delta;
mod extents;
pub mod hash;
mod joined;
mod make;
pub mod measure;
mod plain;
pub mod radix;
pub mod skiplist;
pub mod striped;

pub use btree::{Btree, MutexBtree};
pub use delta::Versioned;
pub use hash::Hash;
pub use make::{NAMES, make};
pub use plain::Plain;
pub use radix::Radix;
pub use skiplist::SkipList;
pub use striped::{Striped, make_striped};

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Number of blocks that a page of the map covers. Checkpoints save and load whole pages.
pub const PAGE_BLOCKS: u64 = 1024;

/// Physical block: its number in the log's address space. 0 is [`Physical::NONE`], since block 0 never holds
/// data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Physical(pub u32);

impl Physical {
    /// The logical block is not mapped; it reads as zeros.
    pub const NONE: Physical = Physical(0);

    /// Returns whether this is a physical block.
    #[inline]
    pub fn is_mapped(self) -> bool {
        self.0 != 0
    }

    /// Returns the physical block `blocks` after this one; [`NONE`](Self::NONE) for [`NONE`](Self::NONE).
    #[inline]
    pub fn offset(self, blocks: u64) -> Physical {
        if self.is_mapped() { Physical(self.0 + blocks as u32) } else { self }
    }
}

impl fmt::Display for Physical {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Consecutive logical blocks that are at consecutive physical ones, or are all unmapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First logical block.
    pub block: u64,
    /// Number of blocks; never 0.
    pub count: u64,
    /// Physical block of the first logical one.
    pub physical: Physical,
}

/// A map from logical blocks to physical ones. The [module's documentation](self) states the contract of all
/// implementations.
pub trait Map: Send + Sync + fmt::Debug {
    /// Returns the name of this structure in a stack: `radix`, `hash`, `skiplist`, `btree`, `mutex-btree`.
    fn name(&self) -> &'static str;

    /// Returns the number of logical blocks. The caller keeps all ranges below it.
    fn blocks(&self) -> u64;

    /// Returns the physical block of a logical one.
    fn lookup(&self, block: u64) -> Physical;

    /// Looks up several blocks: `found[i]` for `blocks[i]`. A structure may overlap their cache misses.
    ///
    /// # Panics
    /// If the slices' lengths differ.
    fn lookup_batch(&self, blocks: &[u64], found: &mut [Physical]) {
        assert_eq!(blocks.len(), found.len(), "as many places as blocks");
        for (block, found) in blocks.iter().zip(found) {
            *found = self.lookup(*block);
        }
    }

    /// Visits the range in order, in pieces that cover it without gap or overlap, unmapped ones included.
    /// Neighbouring pieces may be contiguous.
    fn lookup_range(&self, range: Range<u64>, visit: &mut dyn FnMut(Mapping));

    /// Maps the range to `to` and the blocks after it, or unmaps it if `to` is [`Physical::NONE`]. Visits the
    /// previous mappings, piece by piece, in order; unmapped blocks aren't visited.
    fn insert(&self, range: Range<u64>, to: Physical, displaced: &mut dyn FnMut(Mapping));

    /// Maps each block `i` of the range that is mapped to `from + i` to `to + i`. Blocks with another
    /// location stay unchanged. Visits the moved blocks with their new location. Snapshots that share nodes
    /// with the map may also see the move, since the data is the same. If `from` or `to` is
    /// [`Physical::NONE`], nothing moves.
    fn compare_and_move(
        &self,
        range: Range<u64>,
        from: Physical,
        to: Physical,
        moved: &mut dyn FnMut(Mapping),
    );

    /// Returns another map with the same contents, which shares nodes if possible: its cost is low at first,
    /// and later in proportion to the changes of either map.
    fn snapshot(&self) -> Arc<dyn Map>;

    /// Replaces a whole page: `entries[i]` is the physical block of block `page * PAGE_BLOCKS + i`, 0 for an
    /// unmapped one. Entries after the map's last block are 0.
    ///
    /// # Panics
    /// If there aren't [`PAGE_BLOCKS`] entries.
    fn load_page(&self, page: u64, entries: &[u32]) {
        assert_eq!(entries.len() as u64, PAGE_BLOCKS, "a whole page");
        let first = page * PAGE_BLOCKS;
        let count = PAGE_BLOCKS.min(self.blocks().saturating_sub(first));
        let mut at = 0;
        while at < count {
            let start = Physical(entries[at as usize]);
            let mut end = at + 1;
            while end < count && entries[end as usize] == start.offset(end - at).0 {
                end += 1;
            }
            self.insert(first + at..first + end, start, &mut |_| {});
            at = end;
        }
    }

    /// Announces that most blocks of these pages, in order, are about to be loaded with scattered locations,
    /// so that the map can prepare memory. Unlike changes, this may be called by several threads at a time,
    /// and concurrently with a change of the map.
    fn expect_pages(&self, _pages: &[u64]) {}

    /// Copies a whole page, in the form that [`load_page`](Self::load_page) takes.
    ///
    /// # Panics
    /// If `entries` is shorter than [`PAGE_BLOCKS`].
    fn save_page(&self, page: u64, entries: &mut [u32]) {
        assert_eq!(entries.len() as u64, PAGE_BLOCKS, "a whole page");
        let first = page * PAGE_BLOCKS;
        let end = (first + PAGE_BLOCKS).min(self.blocks());
        entries.fill(0);
        self.lookup_range(first..end, &mut |piece| {
            for number in 0..piece.count {
                entries[(piece.block - first + number) as usize] = piece.physical.offset(number).0;
            }
        });
    }

    /// Adds the words that are needed, in addition to the memory of a persistent home, to reopen a map kept
    /// there. Other maps add none.
    fn roots(&self, _roots: &mut Vec<u32>) {}

    /// Returns the map with its parts, if it is divided among shards.
    fn striped(&self) -> Option<&Striped> {
        None
    }

    /// Extends the map to `blocks` blocks; the additional ones are unmapped. Never shrinks.
    fn grow(&self, blocks: u64);

    /// Returns the memory of the map in bytes, memory that waits for a grace period included. Memory that is
    /// shared with snapshots is counted in each of them.
    fn bytes(&self) -> u64;

    /// Returns the memory that waits for a grace period, in bytes.
    fn retired_bytes(&self) -> u64 {
        0
    }

    /// Begins a grace period for everything that has been retired so far, and returns its number.
    fn begin_grace(&self) -> u64 {
        0
    }

    /// Ends a grace period: every lookup that began before it has returned, so its retired memory may be
    /// reused.
    fn end_grace(&self, _grace: u64) {}
}
