//! Where each block of a volume lies: one trait, and the structures that implement it.
//!
//! A map translates logical blocks to physical ones. It knows nothing of zones, records or durability: those
//! who use it apply changes in the order of the log, one at a time, and look up whenever they like.
//!
//! # Promises of every implementation
//! - Lookups may run on any thread, at any time, beside a change. Each single block gives the value before the
//!   change or the one after; of several blocks some may be old and others new.
//! - Changes ([`insert`](Map::insert), [`compare_and_move`](Map::compare_and_move), [`load_page`](Map::load_page),
//!   [`snapshot`](Map::snapshot)) may come from any thread. Of a map and its snapshots one runs at a time: they
//!   are ordered by the caller, or else by the map itself.
//! - Memory that a change took out of the structure is used again only after a grace period: the caller asks
//!   [`begin_grace`](Map::begin_grace), waits until every lookup that had begun by then has returned, and says so
//!   with [`end_grace`](Map::end_grace). A map that reclaims on its own does nothing there.
//!   A map and its snapshots have their grace periods together: "every lookup" is one of any of them.
//! - What a change visits, it visits while it runs: a visitor must not change the map or a snapshot of it.
//! - A snapshot has the contents of its moment, whatever happens to the other later; both can be changed.

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

pub use btree::{Btree, MutexBtree};
pub use delta::Versioned;
pub use hash::Hash;
pub use make::{NAMES, make};
pub use plain::Plain;
pub use radix::Radix;
pub use skiplist::SkipList;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// How many blocks a page of the map covers. Checkpoints save and load whole pages.
pub const PAGE_BLOCKS: u64 = 1024;

/// A physical block: its number in the log's address space. 0 is [`Physical::NONE`]: block 0 never holds data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Physical(pub u32);

impl Physical {
    /// The logical block is not mapped; it reads as zeros.
    pub const NONE: Physical = Physical(0);

    /// Whether this is a place at all.
    #[inline]
    pub fn is_mapped(self) -> bool {
        self.0 != 0
    }

    /// The block `blocks` further on; of [`NONE`](Self::NONE), none.
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

/// Consecutive logical blocks that lie at consecutive physical ones, or are all unmapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// The first logical block.
    pub block: u64,
    /// How many; never 0.
    pub count: u64,
    /// Where the first one lies.
    pub physical: Physical,
}

/// A map from logical blocks to physical ones. See the module's head for what all of them promise.
pub trait Map: Send + Sync + fmt::Debug {
    /// The word by which a stack names this structure: `radix`, `hash`, `skiplist`, `btree`, `mutex-btree`.
    fn name(&self) -> &'static str;

    /// How many logical blocks there are. The caller keeps all ranges below it.
    fn blocks(&self) -> u64;

    /// Where one block lies.
    fn lookup(&self, block: u64) -> Physical;

    /// Where each of these blocks lies: `found[i]` for `blocks[i]`. A structure that can overlaps their cache misses.
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
    /// Neighbouring pieces may be parts of what could be one.
    fn lookup_range(&self, range: Range<u64>, visit: &mut dyn FnMut(Mapping));

    /// Maps the range to `to` and the blocks behind it, or unmaps it where `to` is [`Physical::NONE`]. Visits
    /// what was mapped there before, piece by piece, in order; unmapped blocks aren't visited.
    fn insert(&self, range: Range<u64>, to: Physical, displaced: &mut dyn FnMut(Mapping));

    /// For each block `i` of the range that is mapped to `from + i`: maps it to `to + i`. Blocks that lie elsewhere
    /// by now stay where they are. Visits what was moved, with its new place. Where a map shares parts with
    /// snapshots, they may see the move too: to them it is the same block, which has moved. If `from` or `to` is
    /// [`Physical::NONE`], nothing moves.
    fn compare_and_move(
        &self,
        range: Range<u64>,
        from: Physical,
        to: Physical,
        moved: &mut dyn FnMut(Mapping),
    );

    /// Another map with the same contents, that shares what it can: it costs little now, and later in
    /// proportion to what changes in either.
    fn snapshot(&self) -> Arc<dyn Map>;

    /// Replaces a whole page: `entries[i]` is the place of block `page * PAGE_BLOCKS + i`, 0 where there is
    /// none. Entries behind the map's last block are 0.
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

    /// Most blocks of these pages, in order, are about to be loaded, each to a place of its own: memory for them may be made
    /// ready. Unlike changes, this may be called by several threads at a time, and while one of them changes the map.
    fn expect_pages(&self, _pages: &[u64]) {}

    /// Copies a whole page, in the form that [`load_page`](Self::load_page) takes.
    ///
    /// # Panics
    /// If there isn't room for [`PAGE_BLOCKS`] entries.
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

    /// Of a map whose memory survives in a home of its own: adds the words that, beside that memory, are all it takes to
    /// open it again. Other maps add none.
    fn roots(&self, _roots: &mut Vec<u32>) {}

    /// Makes room for more blocks, which aren't mapped. Never shrinks.
    fn grow(&self, blocks: u64);

    /// How much memory the map takes, in bytes, what waits for a grace period included. What it shares with
    /// snapshots is counted in each of them.
    fn bytes(&self) -> u64;

    /// How much of that waits for a grace period, in bytes.
    fn retired_bytes(&self) -> u64 {
        0
    }

    /// Begins a grace period for everything that has been retired so far, and returns its number.
    fn begin_grace(&self) -> u64 {
        0
    }

    /// Every lookup that had begun when this grace period did has returned: its memory may be used again.
    fn end_grace(&self, _grace: u64) {}
}
