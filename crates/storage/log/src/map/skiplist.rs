//! `skiplist`: extents in a lock-free skip list (crossbeam-skiplist), by their first block.
//!
//! Lookups are lock-free: they never wait, and repeat only after a concurrent change. Changes are serialized
//! by a lock, because splitting an extent takes several steps that must not interleave with those of another
//! change.
//!
//! # Lookups concurrent with the steps of a change
//! A lookup takes the last extent that starts at or before its block, and checks whether that extent reaches
//! the block. A later extent thus hides the rest of an earlier one. An extent's length and location are one
//! word, changed atomically, and an existing key is never inserted again (the list would remove it first). A
//! change of blocks `[start, end)`
//! 1. adds an extent at `end` with the rest of the extent across `end`;
//! 2. adds the new extent at `start`, if none starts there;
//! 3. increments `steps`;
//! 4. changes the word of the extent at `start`, if there was one; shortens the extent across `start`; and
//!    removes the extents inside.
//!
//! After each step every block has its old or its new location. A lookup that found an extent before a step,
//! and reads its word after the step, may find a block unmapped. But the extents that hide a shortened or
//! removed one were added before `steps` was incremented. A lookup that missed them began earlier, so it sees
//! that `steps` has changed, and repeats.

use super::joined::Joined;
use super::{Mapping, Physical, Plain};
use crossbeam_skiplist::SkipMap;
use std::ops::{Bound, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Number of blocks and location of an extent, in one word.
#[derive(Debug)]
struct Extent(AtomicU64);

impl Extent {
    fn new(count: u64, physical: Physical) -> Self {
        Extent(AtomicU64::new(count << 32 | u64::from(physical.0)))
    }

    fn get(&self) -> (u64, Physical) {
        let word = self.0.load(Ordering::Acquire);
        (word >> 32, Physical(word as u32))
    }

    fn set(&self, count: u64, physical: Physical) {
        self.0.store(count << 32 | u64::from(physical.0), Ordering::Release);
    }
}

/// Most blocks of an extent; larger ones are split.
const MAX_BLOCKS: u64 = 1 << 31;

/// A map of extents in a skip list.
#[derive(Debug, Default)]
pub struct SkipList {
    extents: SkipMap<u64, Extent>,
    steps: AtomicU64,
    changes: Mutex<()>,
}

impl SkipList {
    /// Returns the mapping of a block and the end of that mapping: the end of its extent or, for an unmapped
    /// block, the start of the next extent.
    fn find(&self, block: u64) -> (Physical, u64) {
        loop {
            let before = self.steps.load(Ordering::SeqCst);
            let entry = self.extents.upper_bound(Bound::Included(&block));
            if let Some(entry) = &entry {
                let (count, physical) = entry.value().get();
                let offset = block - entry.key();
                if offset < count {
                    let end = entry.key() + count;
                    let next =
                        self.extents.lower_bound(Bound::Excluded(&block)).map_or(end, |next| *next.key());
                    return (physical.offset(offset), end.min(next));
                }
            }
            let next = self.extents.lower_bound(Bound::Excluded(&block)).map_or(u64::MAX, |next| *next.key());
            if self.steps.load(Ordering::SeqCst) == before {
                return (Physical::NONE, next);
            }
        }
    }

    /// Runs the steps of a change; the caller holds the lock.
    fn change(&self, range: Range<u64>, to: Physical) {
        self.split(range.end);
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + MAX_BLOCKS);
            self.change_part(start..end, to.offset(start - range.start));
            start = end;
        }
    }

    /// Adds an extent that starts at this block, with the rest of the extent across it.
    fn split(&self, block: u64) {
        if let Some(entry) = self.extents.upper_bound(Bound::Excluded(&block)) {
            let ((count, physical), offset) = (entry.value().get(), block - entry.key());
            if offset < count && self.extents.get(&block).is_none() {
                self.extents.insert(block, Extent::new(count - offset, physical.offset(offset)));
            }
        }
    }

    fn change_part(&self, range: Range<u64>, to: Physical) {
        let count = range.end - range.start;
        // The rest of an earlier part hides nothing of the next one: it is removed with the others.
        let there = self.extents.get(&range.start);
        let across = self.extents.upper_bound(Bound::Excluded(&range.start));
        if there.is_none() && to.is_mapped() {
            self.extents.insert(range.start, Extent::new(count, to));
        }
        self.steps.fetch_add(1, Ordering::SeqCst);
        if let (Some(there), true) = (&there, to.is_mapped()) {
            there.value().set(count, to);
        }
        if let Some(across) = across {
            let ((count, physical), offset) = (across.value().get(), range.start - across.key());
            if offset < count {
                across.value().set(offset, physical);
            }
        }
        let from = if to.is_mapped() { Bound::Excluded(range.start) } else { Bound::Included(range.start) };
        for entry in self.extents.range((from, Bound::Excluded(range.end))) {
            entry.remove();
        }
    }
}

impl Plain for SkipList {
    fn name(&self) -> &'static str {
        "skiplist"
    }

    fn lookup(&self, block: u64) -> Physical {
        loop {
            let before = self.steps.load(Ordering::SeqCst);
            if let Some(entry) = self.extents.upper_bound(Bound::Included(&block)) {
                let (count, physical) = entry.value().get();
                let offset = block - entry.key();
                if offset < count {
                    return physical.offset(offset);
                }
            }
            if self.steps.load(Ordering::SeqCst) == before {
                return Physical::NONE;
            }
        }
    }

    fn lookup_range(&self, range: Range<u64>, visit: &mut dyn FnMut(Mapping)) {
        let mut visitor = Joined::all(visit);
        let mut block = range.start;
        while block < range.end {
            let (physical, end) = self.find(block);
            let end = end.min(range.end);
            visitor.push(block, end - block, physical);
            block = end;
        }
        visitor.finish();
    }

    fn insert(&self, range: Range<u64>, to: Physical, displaced: &mut Joined<'_>) {
        if range.is_empty() {
            return;
        }
        let _lock = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.lookup_range(range.clone(), &mut |piece| {
            displaced.push(piece.block, piece.count, piece.physical)
        });
        self.change(range, to);
    }

    fn compare_and_move(&self, range: Range<u64>, from: Physical, to: Physical, moved: &mut Joined<'_>) {
        let _lock = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut block = range.start;
        while block < range.end {
            let (physical, end) = self.find(block);
            let (end, offset) = (end.min(range.end), block - range.start);
            if physical == from.offset(offset) {
                self.change(block..end, to.offset(offset));
                moved.push(block, end - block, to.offset(offset));
            }
            block = end;
        }
    }

    fn bytes(&self) -> u64 {
        // A node is 24 bytes and a tower of two pointers on average, in 48 of the allocator's.
        self.extents.len() as u64 * 48 + size_of::<Self>() as u64
    }
}
