//! Extents in a B-tree without locking, used by the maps with locks and by the deltas of versions.

use super::joined::Joined;
use super::{Mapping, Physical};
use std::collections::BTreeMap;
use std::ops::Range;

/// Number of blocks of an extent, and the physical block of the first one.
#[derive(Debug, Clone, Copy)]
struct Extent {
    count: u32,
    physical: Physical,
}

impl Extent {
    fn end(self, start: u64) -> u64 {
        start + u64::from(self.count)
    }

    fn at(self, offset: u64) -> Physical {
        self.physical.offset(offset)
    }
}

/// Most blocks of an extent; larger ones are split.
const MAX_BLOCKS: u64 = 1 << 31;

/// Extents by their first block. They don't overlap, and contiguous neighbours are merged. An extent may mark
/// its blocks as unmapped; blocks outside of all extents have no entry.
#[derive(Debug, Default)]
pub(super) struct Extents {
    tree: BTreeMap<u64, Extent>,
}

impl Extents {
    /// Returns the entry of a block.
    pub(super) fn get(&self, block: u64) -> Option<Physical> {
        let (start, extent) = self.tree.range(..=block).next_back()?;
        (block < extent.end(*start)).then(|| extent.at(block - start))
    }

    /// Calls `visit` for the entries of the range, in order, and returns the block where it stopped: after
    /// `most` pieces or at the end.
    pub(super) fn visit(&self, range: Range<u64>, most: usize, mut visit: impl FnMut(Mapping)) -> u64 {
        let before = self.tree.range(..range.start).next_back();
        let inside = self.tree.range(range.clone());
        let mut left = most;
        for (start, extent) in before.into_iter().chain(inside) {
            let (from, to) = (range.start.max(*start), range.end.min(extent.end(*start)));
            if from < to {
                visit(Mapping { block: from, count: to - from, physical: extent.at(from - start) });
                left -= 1;
                if left == 0 {
                    return to;
                }
            }
        }
        range.end
    }

    /// Splits the extent that contains this block before it.
    fn cut(&mut self, block: u64) {
        if let Some((start, extent)) = self.tree.range_mut(..block).next_back()
            && block < extent.end(*start)
        {
            let count = (block - start) as u32;
            let rest = Extent { count: extent.count - count, physical: extent.at(count.into()) };
            extent.count = count;
            self.tree.insert(block, rest);
        }
    }

    /// Removes the entries of a range.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        self.cut(range.start);
        self.cut(range.end);
        while let Some((start, _)) = self.tree.range(range.clone()).next() {
            let start = *start;
            self.tree.remove(&start);
        }
    }

    /// Sets the location of a range, or marks it as unmapped.
    pub(super) fn set(&mut self, range: Range<u64>, to: Physical) {
        self.forget(range.clone());
        let mut start = range.start;
        while start < range.end {
            let count = MAX_BLOCKS.min(range.end - start);
            let physical = to.offset(start - range.start);
            self.tree.insert(start, Extent { count: count as u32, physical });
            self.join(start);
            start += count;
        }
        self.join(range.end);
    }

    /// Merges the extents on both sides of a block if they are contiguous.
    fn join(&mut self, block: u64) {
        let Some(right) = self.tree.get(&block).copied() else { return };
        let Some((start, left)) = self.tree.range_mut(..block).next_back() else { return };
        let both = u64::from(left.count) + u64::from(right.count);
        let continues = if left.physical.is_mapped() {
            u64::from(right.physical.0) == u64::from(left.physical.0) + u64::from(left.count)
        } else {
            !right.physical.is_mapped()
        };
        if left.end(*start) == block && both <= MAX_BLOCKS && continues {
            left.count = both as u32;
            self.tree.remove(&block);
        }
    }

    /// Inserts as the map's `insert` does; unmapped blocks have no entry.
    pub(super) fn insert(&mut self, range: Range<u64>, to: Physical, displaced: &mut Joined<'_>) {
        self.visit(range.clone(), usize::MAX, |piece| {
            displaced.push(piece.block, piece.count, piece.physical)
        });
        if to.is_mapped() { self.set(range, to) } else { self.forget(range) }
    }

    /// Moves blocks as the map's `compare_and_move` does.
    pub(super) fn compare_and_move(
        &mut self,
        range: Range<u64>,
        from: Physical,
        to: Physical,
        moved: &mut Joined<'_>,
    ) {
        let mut found = Vec::new();
        self.visit(range.clone(), usize::MAX, |piece| {
            if piece.physical == from.offset(piece.block - range.start) {
                found.push(piece.block..piece.block + piece.count);
            }
        });
        for piece in found {
            let to = to.offset(piece.start - range.start);
            moved.push(piece.start, piece.end - piece.start, to);
            self.set(piece, to);
        }
    }

    /// Returns the number of extents.
    pub(super) fn len(&self) -> usize {
        self.tree.len()
    }

    /// Returns the approximate memory of the extents in bytes: nodes of the standard library's B-tree hold up
    /// to 11 entries and are two thirds full on average, and one in seven is an inner one with 12 pointers.
    pub(super) fn bytes(&self) -> u64 {
        const NODE: u64 = 11 * (size_of::<u64>() + size_of::<Extent>()) as u64 + 16;
        (self.len() as u64).div_ceil(7) * (NODE + 12 * 8 / 7)
    }
}

/// Visits a range without gaps; blocks without an entry are visited as unmapped. Takes `pieces` in batches,
/// so that no lock is held during visits.
pub(super) fn visit_all(
    range: Range<u64>,
    visit: &mut dyn FnMut(Mapping),
    mut pieces: impl FnMut(Range<u64>, &mut Vec<Mapping>) -> u64,
) {
    let mut visitor = Joined::all(visit);
    let mut some = Vec::new();
    let mut block = range.start;
    while block < range.end {
        some.clear();
        let end = pieces(block..range.end, &mut some);
        for piece in &some {
            visitor.push(block, piece.block - block, Physical::NONE);
            visitor.push(piece.block, piece.count, piece.physical);
            block = piece.block + piece.count;
        }
        visitor.push(block, end - block, Physical::NONE);
        block = end;
    }
    visitor.finish();
}

/// Number of pieces in a batch.
pub(super) const SOME: usize = 64;
