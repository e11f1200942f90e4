//! Lookups of the radix map: of single blocks and of batches. All are wait-free.

use super::Radix;
use super::arena::{Kind, Reference};
use super::memory::{FIRST_SEAT, Memory, Word};
use super::runs;
use crate::map::Physical;

/// Number of lookups of a batch that run interleaved: more than the processor's outstanding cache misses.
const AT_ONCE: usize = 32;

/// Returns the index of a block in a leaf, and in the words that have a bit per page.
#[inline]
fn offset<M: Memory>(block: u64) -> usize {
    (block & ((1 << M::SLAB_SHIFT) - 1)) as usize
}

/// Returns whether a block's leaf is in its seat, given the word of its bit. Branches instead of selected
/// addresses: the processor predicts them, and loads from the seat at once. If all neighbours are also in
/// seats, no shift is needed.
#[inline]
fn is_seated<M: Memory>(bits: u32, block: u64) -> bool {
    bits == u32::MAX || bits >> ((block >> M::SLAB_SHIFT) % 32) & 1 != 0
}

/// Returns the index of the word with the bit of a block's page.
#[inline]
fn bit_word<M: Memory>(block: u64) -> usize {
    (block >> M::SLAB_SHIFT >> 5) as usize
}

/// Returns the word of a block in the array of seats; `None` if the bits show that its leaf isn't there.
#[inline]
fn in_seat<'a, M: Memory>(seated: &[M::Word], seats: &'a [M::Word], block: u64) -> Option<&'a M::Word> {
    let bits = seated.get(bit_word::<M>(block))?.get();
    seats.get(block as usize).filter(|_| is_seated::<M>(bits, block))
}

/// Returns whether all of these blocks' leaves are in their seats. Not inlined, to save registers.
#[inline(never)]
fn are_seated<M: Memory>(seated: &[M::Word], blocks: &[u64; AT_ONCE]) -> bool {
    blocks.iter().all(|block| {
        let bits = seated.get(bit_word::<M>(*block)).map_or(0, Word::get);
        is_seated::<M>(bits, *block)
    })
}

/// Returns the word of a block in its dense leaf.
#[inline]
fn in_dense<M: Memory>(memory: &M, slab: u32, block: u64) -> &M::Word {
    if M::SEATS && slab >= FIRST_SEAT {
        return &memory.seats()[block as usize];
    }
    &memory.words()[((slab as usize) << M::SLAB_SHIFT) | offset::<M>(block)]
}

impl<M: Memory> Radix<M> {
    /// Returns the location of a block.
    #[inline]
    pub(super) fn find(&self, block: u64) -> Physical {
        let memory = &self.family.memory;
        if M::SEATS
            && let Some(word) = in_seat::<M>(self.seated.words(), memory.seats(), block)
        {
            return Physical(word.get());
        }
        self.find_in_leaf(block)
    }

    /// Returns the location through the middle node. Not inlined, so that lookups in seats don't pay for its
    /// registers.
    #[inline(never)]
    fn find_in_leaf(&self, block: u64) -> Physical {
        let leaf = self.leaf(block >> M::SLAB_SHIFT);
        match leaf.kind() {
            Kind::Dense(slab) => Physical(in_dense(&self.family.memory, slab, block).get()),
            _ => self.find_in_runs(leaf, block),
        }
    }

    /// Returns the location of a block whose leaf isn't dense. Not inlined, so that lookups in dense leaves
    /// don't pay for its registers.
    #[inline(never)]
    fn find_in_runs(&self, leaf: Reference, block: u64) -> Physical {
        match leaf.kind() {
            Kind::Runs(piece) => {
                let words = piece.words(&self.family.memory);
                runs::find(words, piece.class, offset::<M>(block) as u32)
            }
            _ => Physical::NONE,
        }
    }

    /// Looks up each of these blocks.
    pub(super) fn find_batch(&self, blocks: &[u64], found: &mut [Physical]) {
        assert_eq!(blocks.len(), found.len(), "as many places as blocks");
        let (batches, rest) = blocks.as_chunks::<AT_ONCE>();
        let (found, found_rest) = found.as_chunks_mut::<AT_ONCE>();
        for (blocks, found) in batches.iter().zip(found) {
            if !M::SEATS || self.find_in_seats(blocks, found).is_none() {
                self.find_some(blocks, found);
            }
        }
        if !rest.is_empty() {
            self.find_some(rest, found_rest);
        }
    }

    /// Looks up these blocks if all of them are in seats; otherwise returns `None`, and `found` is invalid.
    ///
    /// The order matters: with all prefetches before the first test of a bit, as many cache misses overlap as
    /// without the tests. The prefetches are therefore speculative if the first block is in its seat.
    #[inline]
    fn find_in_seats(&self, blocks: &[u64; AT_ONCE], found: &mut [Physical; AT_ONCE]) -> Option<()> {
        let (seated, seats) = (self.seated.words(), self.family.memory.seats());
        in_seat::<M>(seated, seats, blocks[0])?;
        for block in blocks {
            M::prefetch_seat(seats, *block as usize);
        }
        let mut all = u32::MAX;
        for block in blocks {
            all &= seated.get(bit_word::<M>(*block))?.get();
        }
        if all != u32::MAX && !are_seated::<M>(seated, blocks) {
            return None;
        }
        for (block, found) in blocks.iter().zip(found) {
            *found = Physical(seats.get(*block as usize)?.get());
        }
        Some(())
    }

    /// Looks up at most [`AT_ONCE`] blocks, step by step for all of them, so that their cache misses overlap.
    #[inline(never)]
    fn find_some(&self, blocks: &[u64], found: &mut [Physical]) {
        let memory = &self.family.memory;
        let mut places = [0; AT_ONCE];
        for (place, block) in places.iter_mut().zip(blocks) {
            *place = self.leaf_word(block >> M::SLAB_SHIFT);
            memory.prefetch(*place);
        }
        let mut leaves = [Reference::EMPTY; AT_ONCE];
        let mut all_dense = true;
        let words = memory.words();
        for (((leaf, place), block), found) in leaves.iter_mut().zip(places).zip(blocks).zip(&mut *found) {
            *leaf = Reference(words[place].get());
            match leaf.kind() {
                Kind::Dense(slab) => *found = Physical(in_dense(memory, slab, *block).get()),
                Kind::Runs(piece) => {
                    piece.prefetch(memory);
                    all_dense = false;
                }
                Kind::Empty => *found = Physical::NONE,
            }
        }
        if !all_dense {
            for ((found, leaf), block) in found.iter_mut().zip(leaves).zip(blocks) {
                if let Kind::Runs(_) = leaf.kind() {
                    *found = self.find_in_runs(leaf, *block);
                }
            }
        }
    }
}
