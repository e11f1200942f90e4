//! Merging of contiguous pieces before they are visited.

use super::{Mapping, Physical};

/// Takes pieces in the order of their blocks, merges contiguous neighbours, and visits the results.
pub struct Joined<'a> {
    pending: Option<Mapping>,
    with_unmapped: bool,
    visit: &'a mut dyn FnMut(Mapping),
}

impl<'a> Joined<'a> {
    /// Visits mapped and unmapped pieces.
    pub(super) fn all(visit: &'a mut dyn FnMut(Mapping)) -> Self {
        Joined { pending: None, with_unmapped: true, visit }
    }

    /// Visits mapped pieces only.
    pub(super) fn mapped(visit: &'a mut dyn FnMut(Mapping)) -> Self {
        Joined { pending: None, with_unmapped: false, visit }
    }

    /// Adds the next piece.
    #[inline]
    pub(super) fn push(&mut self, block: u64, count: u64, physical: Physical) {
        if count == 0 || !(physical.is_mapped() || self.with_unmapped) {
            return;
        }
        if let Some(pending) = &mut self.pending {
            let continues = if pending.physical.is_mapped() {
                u64::from(physical.0) == u64::from(pending.physical.0) + pending.count
            } else {
                !physical.is_mapped()
            };
            if continues && pending.block + pending.count == block {
                pending.count += count;
                return;
            }
            (self.visit)(*pending);
        }
        self.pending = Some(Mapping { block, count, physical });
    }

    /// Visits the last piece, which is lost without this call.
    pub(super) fn finish(mut self) {
        if let Some(pending) = self.pending.take() {
            (self.visit)(pending);
        }
    }
}
