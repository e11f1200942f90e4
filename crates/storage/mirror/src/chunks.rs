//! State of each chunk in memory: its bit as wanted and as durable, the number of writers, and whether legs
//! may differ.
//!
//! Promises: a chunk with a writer, or in which legs may differ, is never offered for clearing. Reading and
//! writing the bitmap, and the interval of the passes, are left to `bitmap`.

use crate::layout::Layout;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

/// The bit is to be set.
const DIRTY: u8 = 1;
/// The bit is durably set on all legs that keep a bitmap.
const DURABLE: u8 = 2;
/// The chunk was written since the last pass.
const TOUCHED: u8 = 4;
/// Active legs may differ in the chunk, after an unclean stop or a failed change.
const DIFFER: u8 = 8;
/// Legs that are being rebuilt lack the chunk.
const LACKING: u8 = 16;

/// No leg could read some block of the chunk.
const STUCK: u8 = 32;
/// Legs may differ since the copy of the chunk began, perhaps in a part that was already copied.
const AGAIN: u8 = 64;

/// Largest number of ranges that are remembered as equal inside chunks that differ.
const MAX_PIECES: usize = 4096;

#[derive(Debug, Clone, Copy, Default)]
struct Chunk {
    writers: u32,
    flags: u8,
}

/// All chunks.
pub struct Chunks {
    /// Binary logarithm of the number of blocks of a chunk.
    shift: u32,
    blocks: u64,
    chunks_of_page: u64,
    all: RefCell<Vec<Chunk>>,
    differ: Cell<u64>,
    lacking: Cell<u64>,
    dirty: Cell<u64>,
    /// Pages with wanted bits that aren't durable.
    unwritten: RefCell<Vec<bool>>,
    /// Ranges of blocks that are equal, inside chunks that differ: end by start.
    equal: RefCell<BTreeMap<u64, u64>>,
}

impl Chunks {
    /// Creates chunks that are all clean and equal.
    pub fn new(layout: &Layout) -> Self {
        Chunks {
            shift: (layout.chunk >> layout.block_size.shift()).trailing_zeros(),
            blocks: layout.data_bytes >> layout.block_size.shift(),
            chunks_of_page: layout.chunks_of_page(),
            all: RefCell::new(vec![Chunk::default(); layout.chunks() as usize]),
            differ: Cell::new(0),
            lacking: Cell::new(0),
            dirty: Cell::new(0),
            unwritten: RefCell::new(vec![false; layout.pages() as usize]),
            equal: RefCell::default(),
        }
    }

    /// Number of chunks.
    pub fn len(&self) -> u64 {
        self.all.borrow().len() as u64
    }

    /// Number of pages of the bitmap.
    pub fn pages(&self) -> u64 {
        self.unwritten.borrow().len() as u64
    }

    /// Number of chunks in which active legs may differ.
    pub fn differ(&self) -> u64 {
        self.differ.get()
    }

    /// Number of chunks that legs being rebuilt lack.
    pub fn lacking(&self) -> u64 {
        self.lacking.get()
    }

    /// Number of chunks whose bit is to be set.
    pub fn dirty(&self) -> u64 {
        self.dirty.get()
    }

    fn of(&self, blocks: &Range<u64>) -> Range<usize> {
        match blocks.is_empty() {
            true => 0..0,
            false => (blocks.start >> self.shift) as usize..((blocks.end - 1) >> self.shift) as usize + 1,
        }
    }

    /// Returns the blocks of a chunk.
    pub fn blocks_of(&self, chunk: u64) -> Range<u64> {
        chunk << self.shift..((chunk + 1) << self.shift).min(self.blocks)
    }

    /// Adds a writer to these blocks. Returns whether their bits are durable.
    pub fn begin(&self, blocks: &Range<u64>) -> bool {
        let mut durable = true;
        for chunk in &mut self.all.borrow_mut()[self.of(blocks)] {
            chunk.writers += 1;
            chunk.flags |= TOUCHED;
            durable &= chunk.flags & DURABLE != 0;
        }
        durable
    }

    /// Adds another writer to blocks that already have one.
    pub fn begin_another(&self, blocks: &Range<u64>) {
        self.all.borrow_mut()[self.of(blocks)].iter_mut().for_each(|chunk| chunk.writers += 1);
    }

    /// Removes a writer.
    pub fn end(&self, blocks: &Range<u64>) {
        self.all.borrow_mut()[self.of(blocks)].iter_mut().for_each(|chunk| chunk.writers -= 1);
    }

    /// Requests the bits of these blocks. Returns whether all of them are durable.
    pub fn request(&self, blocks: &Range<u64>) -> bool {
        let mut all = self.all.borrow_mut();
        let mut durable = true;
        for number in self.of(blocks) {
            let chunk = &mut all[number];
            if chunk.flags & DURABLE != 0 {
                continue;
            }
            durable = false;
            if chunk.flags & DIRTY == 0 {
                chunk.flags |= DIRTY;
                self.dirty.set(self.dirty.get() + 1);
            }
            self.unwritten.borrow_mut()[number / self.chunks_of_page as usize] = true;
        }
        durable
    }

    /// Takes the pages that have to be written; the caller writes them or calls [`put_back`](Self::put_back).
    pub fn take_unwritten(&self) -> Vec<u64> {
        let mut unwritten = self.unwritten.borrow_mut();
        let pages = (0..unwritten.len()).filter(|page| std::mem::take(&mut unwritten[*page]));
        pages.map(|page| page as u64).collect()
    }

    /// Notes that these pages still have to be written.
    pub fn put_back(&self, pages: &[u64]) {
        pages.iter().for_each(|page| self.unwritten.borrow_mut()[*page as usize] = true);
    }

    fn of_page(&self, page: u64) -> Range<usize> {
        let first = page * self.chunks_of_page;
        first as usize..(first + self.chunks_of_page).min(self.len()) as usize
    }

    /// Returns the wanted bits of a page.
    pub fn bits_of(&self, page: u64) -> Vec<bool> {
        self.all.borrow()[self.of_page(page)].iter().map(|chunk| chunk.flags & DIRTY != 0).collect()
    }

    /// Notes that a page with these bits is durable.
    pub fn page_is_durable(&self, page: u64, bits: &[bool]) {
        let chunks = self.of_page(page);
        for (chunk, bit) in self.all.borrow_mut()[chunks].iter_mut().zip(bits) {
            if *bit && chunk.flags & DIRTY != 0 {
                chunk.flags |= DURABLE;
            }
        }
    }

    /// Returns chunks whose bits may be cleared after a flush: dirty, equal on all legs, and without writes
    /// since the last call. With `now`, chunks without a writer at the moment qualify.
    pub fn quiet(&self, now: bool) -> Vec<u64> {
        let mut quiet = Vec::new();
        for (number, chunk) in self.all.borrow_mut().iter_mut().enumerate() {
            let was_touched = chunk.flags & TOUCHED != 0 && !now;
            chunk.flags &= !TOUCHED;
            if chunk.flags & (DIRTY | DIFFER | LACKING) == DIRTY && chunk.writers == 0 && !was_touched {
                quiet.push(number as u64);
            }
        }
        quiet
    }

    /// Clears the wanted bits of the chunks that are still quiet. Returns the pages to write.
    pub fn clear(&self, quiet: &[u64]) -> Vec<u64> {
        let mut all = self.all.borrow_mut();
        let mut pages = Vec::new();
        for number in quiet {
            let chunk = &mut all[*number as usize];
            let is_quiet = chunk.writers == 0 && chunk.flags & (TOUCHED | DIFFER | LACKING) == 0;
            if is_quiet && chunk.flags & DIRTY != 0 {
                chunk.flags &= !(DIRTY | DURABLE);
                self.dirty.set(self.dirty.get() - 1);
                let page = number / self.chunks_of_page;
                if pages.last() != Some(&page) {
                    pages.push(page);
                }
            }
        }
        pages
    }

    /// Notes a bit that was found set on the medium.
    pub fn found(&self, chunk: u64) {
        let chunk = &mut self.all.borrow_mut()[chunk as usize];
        if chunk.flags & DIRTY == 0 {
            self.dirty.set(self.dirty.get() + 1);
        }
        chunk.flags |= DIRTY | DURABLE;
    }

    /// Requests all bits.
    pub fn request_all(&self) {
        self.request(&(0..self.blocks));
    }

    /// Notes that active legs may differ in all dirty chunks.
    pub fn dirty_differ(&self) {
        self.mark_dirty(DIFFER | AGAIN);
        self.equal.borrow_mut().clear();
    }

    /// Notes that legs being rebuilt lack all dirty chunks.
    pub fn dirty_lacking(&self) {
        self.mark_dirty(LACKING | AGAIN);
    }

    fn mark_dirty(&self, flags: u8) {
        for chunk in self.all.borrow_mut().iter_mut().filter(|chunk| chunk.flags & DIRTY != 0) {
            chunk.flags |= flags;
        }
        self.count();
    }

    /// Notes that active legs may differ in these blocks, and marks their whole chunks.
    pub fn may_differ(&self, blocks: &Range<u64>) {
        for chunk in &mut self.all.borrow_mut()[self.of(blocks)] {
            chunk.flags |= DIFFER | AGAIN;
        }
        self.forget_equal(blocks);
        self.count();
    }

    /// Notes that legs being rebuilt lack these blocks.
    pub fn are_lacking(&self, blocks: &Range<u64>) {
        self.all.borrow_mut()[self.of(blocks)].iter_mut().for_each(|chunk| chunk.flags |= LACKING | AGAIN);
        self.count();
    }

    /// Notes that fewer than two active legs are left, which can't differ.
    pub fn none_differ(&self) {
        self.all.borrow_mut().iter_mut().for_each(|chunk| chunk.flags &= !DIFFER);
        self.equal.borrow_mut().clear();
        self.count();
    }

    /// Notes that no leg is being rebuilt.
    pub fn none_lacking(&self) {
        self.all.borrow_mut().iter_mut().for_each(|chunk| chunk.flags &= !LACKING);
        self.count();
    }

    fn count(&self) {
        let all = self.all.borrow();
        self.differ.set(all.iter().filter(|chunk| chunk.flags & DIFFER != 0).count() as u64);
        self.lacking.set(all.iter().filter(|chunk| chunk.flags & LACKING != 0).count() as u64);
    }

    /// Returns the first chunk to copy at or after this one, wrapping around.
    pub fn next_to_copy(&self, from: u64) -> Option<u64> {
        if self.differ.get() + self.lacking.get() == 0 {
            return None;
        }
        let all = self.all.borrow();
        let needs = |number: &usize| {
            let flags = all[*number].flags;
            flags & (DIFFER | LACKING) != 0 && flags & STUCK == 0
        };
        let next = (from as usize..all.len()).find(needs);
        next.or_else(|| (0..all.len().min(from as usize)).find(needs)).map(|number| number as u64)
    }

    /// Notes that no leg could read some block of a chunk: the chunk is skipped until
    /// [`unstick`](Self::unstick).
    pub fn stick(&self, chunk: u64) {
        self.all.borrow_mut()[chunk as usize].flags |= STUCK;
    }

    /// Whether no leg could read some block of a chunk.
    pub fn is_stuck(&self, chunk: u64) -> bool {
        self.all.borrow()[chunk as usize].flags & STUCK != 0
    }

    /// Makes stuck chunks eligible for copying again. Returns whether there were any.
    pub fn unstick(&self) -> bool {
        let mut found = false;
        for chunk in self.all.borrow_mut().iter_mut() {
            found |= chunk.flags & STUCK != 0;
            chunk.flags &= !STUCK;
        }
        found
    }

    /// Notes that the copy of a chunk begins.
    pub fn begin_copying(&self, chunk: u64) {
        self.all.borrow_mut()[chunk as usize].flags &= !AGAIN;
    }

    /// Whether legs may differ in a chunk since its copy began, so that it has to be copied again.
    pub fn is_to_be_copied_again(&self, chunk: u64) -> bool {
        self.all.borrow()[chunk as usize].flags & AGAIN != 0
    }

    /// Notes that a whole chunk has been copied to all active legs and legs being rebuilt.
    pub fn copied(&self, chunk: u64) {
        {
            let chunk = &mut self.all.borrow_mut()[chunk as usize];
            self.differ.set(self.differ.get() - u64::from(chunk.flags & DIFFER != 0));
            self.lacking.set(self.lacking.get() - u64::from(chunk.flags & LACKING != 0));
            chunk.flags &= !(DIFFER | LACKING | STUCK);
        }
        self.forget_equal(&self.blocks_of(chunk));
    }

    /// Whether active legs may differ in some of these blocks.
    pub fn blocks_differ(&self, blocks: &Range<u64>) -> bool {
        if self.differ.get() == 0 {
            return false;
        }
        let chunks = self.of(blocks);
        let all = self.all.borrow();
        let mut differing = chunks.filter(|number| all[*number].flags & DIFFER != 0);
        differing.any(|number| {
            let chunk = self.blocks_of(number as u64);
            !self.are_equal(&(blocks.start.max(chunk.start)..blocks.end.min(chunk.end)))
        })
    }

    fn are_equal(&self, blocks: &Range<u64>) -> bool {
        let equal = self.equal.borrow();
        let piece = equal.range(..=blocks.start).next_back();
        piece.is_some_and(|(_, end)| *end >= blocks.end)
    }

    /// Notes that these blocks are equal on all active legs, although their chunk may not be.
    pub fn blocks_are_equal(&self, blocks: &Range<u64>) {
        if self.differ.get() == 0 || blocks.is_empty() {
            return;
        }
        let mut equal = self.equal.borrow_mut();
        let (mut start, mut end) = (blocks.start, blocks.end);
        if let Some((before, its_end)) = equal.range(..=start).next_back().map(|(from, to)| (*from, *to))
            && its_end >= start
        {
            (start, end) = (before, end.max(its_end));
        }
        while let Some((next, its_end)) = equal.range(start..=end).next().map(|(from, to)| (*from, *to)) {
            equal.remove(&next);
            end = end.max(its_end);
        }
        if equal.len() < MAX_PIECES {
            equal.insert(start, end);
        }
    }

    fn forget_equal(&self, blocks: &Range<u64>) {
        let mut equal = self.equal.borrow_mut();
        let before = equal.range(..blocks.start).next_back().map(|(start, end)| (*start, *end));
        if let Some((start, end)) = before.filter(|(_, end)| *end > blocks.start) {
            equal.insert(start, blocks.start);
            if end > blocks.end {
                equal.insert(blocks.end, end);
            }
        }
        while let Some((start, end)) = equal.range(blocks.clone()).next().map(|(start, end)| (*start, *end)) {
            equal.remove(&start);
            if end > blocks.end {
                equal.insert(blocks.end, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::BlockSize;
    use runtime::Random;

    fn chunks() -> Chunks {
        let layout = Layout::new(67 << 12, BlockSize::default(), 4 << 12).expect("there is room");
        assert_eq!(layout.chunks(), 16);
        Chunks::new(&layout)
    }

    #[test]
    fn a_bit_is_set_before_and_cleared_after() {
        let chunks = chunks();
        let blocks = 3..6;
        assert!(!chunks.begin(&blocks) && !chunks.request(&blocks));
        let pages = chunks.take_unwritten();
        assert_eq!(pages, [0]);
        let bits = chunks.bits_of(0);
        assert_eq!(bits.iter().filter(|bit| **bit).count(), 2);
        chunks.page_is_durable(0, &bits);
        assert!(chunks.request(&blocks));
        assert!(chunks.quiet(true).is_empty(), "a chunk with a writer is offered");
        chunks.begin_another(&(3..4));
        chunks.end(&blocks);
        assert_eq!(chunks.quiet(true), [1]);
        chunks.end(&(3..4));
        chunks.begin(&blocks);
        chunks.end(&blocks);
        assert!(chunks.quiet(false).is_empty(), "touched since the last look");
        assert_eq!(chunks.quiet(false), [0, 1]);
        // Chunk 1 gets a writer meanwhile: only chunk 0 is cleared.
        assert!(chunks.begin(&(4..5)));
        assert_eq!(chunks.clear(&[0, 1]), [0]);
        assert_eq!(chunks.dirty(), 1);
        chunks.end(&(4..5));
    }

    #[test]
    fn what_differs_is_not_cleared() {
        let chunks = chunks();
        chunks.found(2);
        chunks.dirty_differ();
        assert!(chunks.quiet(true).is_empty() && chunks.blocks_differ(&(11..12)));
        assert!(!chunks.blocks_differ(&(0..8)) && !chunks.blocks_differ(&(12..16)));
        chunks.copied(2);
        assert_eq!((chunks.quiet(true), chunks.differ()), (vec![2], 0));
    }

    #[test]
    fn what_is_found_to_differ_while_it_is_copied_is_copied_again() {
        let chunks = chunks();
        for differs in [Chunks::may_differ, Chunks::are_lacking] {
            differs(&chunks, &(9..10));
            chunks.begin_copying(2);
            assert!(!chunks.is_to_be_copied_again(2), "it was known before");
            differs(&chunks, &(7..10));
            assert!(chunks.is_to_be_copied_again(1) && chunks.is_to_be_copied_again(2));
            assert!(!chunks.is_to_be_copied_again(3));
        }
    }

    #[test]
    fn pieces_that_are_equal() {
        for seed in 0..200 {
            let (chunks, mut random) = (chunks(), Random::new(seed));
            chunks.request_all();
            chunks.dirty_differ();
            let mut differs = [true; 64];
            for _ in 0..60 {
                let start = random.below(64);
                let blocks = start..(start + 1 + random.below(9)).min(64);
                match random.below(8) {
                    0 => {
                        chunks.may_differ(&blocks);
                        for block in 0..64 {
                            // The whole chunks are marked; blocks outside the range that are known to be
                            // equal stay equal.
                            differs[block as usize] |= blocks.contains(&block);
                        }
                    }
                    1 => {
                        chunks.copied(start / 4);
                        chunks.blocks_of(start / 4).for_each(|block| differs[block as usize] = false);
                    }
                    _ => {
                        chunks.blocks_are_equal(&blocks);
                        blocks.clone().for_each(|block| differs[block as usize] = false);
                    }
                }
                let expected = differs[start as usize..blocks.end as usize].iter().any(|it| *it);
                // A chunk that was copied and then marked for a part of its blocks counts as differing as a
                // whole.
                assert!(!expected || chunks.blocks_differ(&blocks), "seed {seed}: {blocks:?}");
            }
        }
    }
}
