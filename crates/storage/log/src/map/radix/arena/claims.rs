//! The account of memory that a home kept: its maps claim the slabs and pieces that they use.

use super::{Allocator, PART, Piece, Slab, halves, whole};
use crate::map::radix::memory::Memory;

impl Allocator {
    /// Returns the account of memory whose first `slabs` slabs have been allocated, with unknown uses. The
    /// caller claims the slabs that its maps use, and then calls [`settle`](Self::settle).
    pub(in crate::map::radix) fn of_slabs(slabs: u32) -> Self {
        let mut allocator = Allocator { used: slabs, ..Allocator::default() };
        for first in (0..slabs as usize).step_by(PART) {
            let mut part = Vec::with_capacity(PART);
            part.resize(PART.min(slabs as usize - first), Slab::Free(0));
            allocator.slabs.push(part);
        }
        *allocator.slab(0) = Slab::Whole(1);
        allocator
    }

    /// Adds a reference to this whole slab; returns whether it is the first. `None` if pieces of the slab
    /// were claimed.
    pub(in crate::map::radix) fn claim_whole(&mut self, slab: u32) -> Option<bool> {
        match self.slab(slab) {
            _ if slab == 0 => None,
            Slab::Cut(_) => None,
            Slab::Whole(references) => {
                *references += 1;
                Some(false)
            }
            free => {
                *free = Slab::Whole(1);
                Some(true)
            }
        }
    }

    /// Claims this piece. Returns false if its slab was claimed as a whole, or has pieces of another size.
    pub(in crate::map::radix) fn claim_piece<M: Memory>(&mut self, piece: Piece) -> bool {
        let (slab, class) = (piece.slab::<M>(), piece.class.0 as usize);
        let pieces = Self::pieces::<M>(piece.class);
        let bit = 1 << (piece.number % pieces as u32);
        match self.slab(slab) {
            Slab::Whole(_) => return false,
            Slab::Cut(free) => {
                let is_new = whole(*free) & bit != 0;
                *free = halves(whole(*free) & !bit);
                self.pieces += u64::from(is_new);
            }
            free => {
                let all: u64 = if pieces == 64 { u64::MAX } else { (1 << pieces) - 1 };
                *free = Slab::Cut(halves(all & !bit));
                self.pieces += 1;
                // Full slabs are also added for now, to record the size.
                self.with_free[class].insert(slab);
            }
        }
        self.with_free[class].contains(&slab)
    }

    /// Ends the claims: all other slabs and pieces are free.
    pub(in crate::map::radix) fn settle(&mut self) {
        for slab in (1..self.used).rev() {
            match *self.slab(slab) {
                Slab::Free(_) => self.free_slab(slab),
                Slab::Cut(free) if whole(free) == 0 => {
                    for room in &mut self.with_free {
                        room.remove(&slab);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the number of slabs that have ever been allocated.
    pub(in crate::map::radix) fn used(&self) -> u32 {
        self.used
    }
}
