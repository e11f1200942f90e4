//! Who belongs to the mirror, and that all who do know it: superblocks.
//!
//! What superblocks say is changed in memory first ([`Core::wanted`] rises) and written to all legs that belong, both copies,
//! each durably ([`Core::note`]). A leg that can't take it is left behind, and the others are told that, too.

use super::core::{Core, gather};
use super::format::{SlotState, Superblock};
use super::layout::Layout;
use super::leg::{Mask, each};
use block::{Error, Payload, Result};

impl Core {
    /// Legs that keep a bitmap: those that reads don't avoid, for marking a chunk must not wait for a slow one. Where all of
    /// those are lost at the same time as the power, all chunks count as dirty.
    pub fn markers(&self) -> Mask {
        let active = self.active.get();
        match active & !self.settings.write_mostly {
            0 => active,
            fast => fast,
        }
    }

    /// Whether every place has a leg that gets everything new.
    pub fn is_whole(&self) -> bool {
        (self.active.get() | self.rebuilding.get()).count_ones() as usize == self.slots.borrow().len()
    }

    /// Sets the state of a leg's place.
    pub fn set_state(&self, leg: usize, state: SlotState) {
        if let Some(slot) = self.legs[leg].slot.get() {
            self.slots.borrow_mut()[slot].state = state;
        }
    }

    /// Leaves a leg behind and waits until the others durably know it.
    ///
    /// # Errors
    /// The same error, if it is the last leg.
    pub async fn fail(&self, leg: usize, error: Error) -> Result<()> {
        self.lose(leg, error, SlotState::Failed)?;
        self.note().await
    }

    /// Leaves a leg behind, here.
    ///
    /// # Errors
    /// The same error, if it is the last leg.
    pub fn lose(&self, leg: usize, error: Error, state: SlotState) -> Result<()> {
        let (bit, name) = (1 << leg, &self.legs[leg].name);
        if self.rebuilding.get() & bit != 0 {
            self.rebuilding.set(self.rebuilding.get() & !bit);
            if self.rebuilding.get() == 0 {
                self.chunks.none_lacking();
            }
        } else if self.active.get() & bit != 0 {
            if self.active.get() == bit {
                return Err(error);
            }
            self.active.set(self.active.get() & !bit);
            if self.active.get().count_ones() == 1 {
                self.chunks.none_differ();
            }
        } else {
            return Ok(());
        }
        tracing::warn!("mirror {}: leg {name} is left behind: {error}", self.array);
        self.set_state(leg, state);
        self.kept.set(self.kept.get() & !bit);
        if self.source.get() == leg {
            self.choose_source();
        }
        self.changed();
        Ok(())
    }

    /// From now on what differs is copied from the first active leg that reads don't avoid.
    pub fn choose_source(&self) {
        let active = self.active.get();
        let fast = active & !self.settings.write_mostly;
        let chosen = if fast != 0 { fast } else { active };
        self.source.set(chosen.trailing_zeros() as usize);
    }

    /// Superblocks have to be written.
    pub fn changed(&self) {
        self.wanted.set(self.wanted.get() + 1);
        self.publish();
    }

    /// Waits until superblocks say how things are.
    ///
    /// # Errors
    /// That of the last leg.
    pub async fn note(&self) -> Result<()> {
        while !self.is_settled() {
            let _permit = self.noting.acquire(1).await;
            if self.is_settled() {
                break;
            }
            // Once superblocks say that a leg was left behind, what was read of it has to be on the others for good.
            self.flush_copies().await;
            self.complete_bitmaps().await?;
            let wanted = self.wanted.get();
            self.kept.set(self.kept.get() & self.markers());
            // Without a leg nothing is cleared, and it comes back by the bitmap.
            if self.raise_cleared.replace(false) && self.is_whole() {
                self.cleared_events.set(self.events.get());
            }
            self.events.set(self.events.get() + 1);
            let members = self.active.get() | self.rebuilding.get();
            let mut lost = Vec::new();
            // A leg that may lag never has a note that those haven't which it lags behind: it would be taken for the better one.
            let lagging = members & self.lagging();
            let copies = [self.events.get() % 2, (self.events.get() + 1) % 2];
            for (legs, copy) in
                [members & !lagging, lagging].into_iter().flat_map(|legs| copies.map(|copy| (legs, copy)))
            {
                let offset = Layout::superblock(self.layout.block_size, copy);
                let blocks: Vec<(usize, Payload)> =
                    each(legs).map(|leg| (leg, self.superblock(leg).encode(self.page_bytes()))).collect();
                let (_, failed) = gather(legs, |leg| {
                    let block = blocks.iter().find(|(number, _)| *number == leg);
                    let block = block.map(|(_, block)| block.clone()).unwrap_or_default();
                    self.legs[leg].device.write_own(offset, block)
                })
                .await;
                lost.extend(failed);
                if !lost.is_empty() {
                    break;
                }
            }
            if lost.is_empty() && self.wanted.get() == wanted {
                self.noted.set(wanted);
            }
            for (leg, error) in lost {
                self.lose(leg, error, SlotState::Failed)?;
            }
        }
        Ok(())
    }

    /// In bytes.
    pub fn page_bytes(&self) -> usize {
        Layout::page(self.layout.block_size) as usize
    }

    fn superblock(&self, leg: usize) -> Superblock {
        let mut slots = self.slots.borrow().clone();
        for (number, leg) in self.legs.iter().enumerate() {
            if let Some(slot) = leg.slot.get() {
                slots[slot].write_mostly = self.settings.write_mostly & 1 << number != 0;
                slots[slot].has_bitmap = self.kept.get() & 1 << number != 0;
            }
        }
        let slot_of = |leg: usize| self.legs[leg].slot.get().unwrap_or(0);
        Superblock {
            block_size: self.layout.block_size.bytes() as u32,
            array: self.array,
            events: self.events.get(),
            cleared_events: self.cleared_events.get(),
            data_offset: self.layout.data_offset,
            data_bytes: self.layout.data_bytes,
            bitmap_offset: self.layout.bitmap_offset,
            bitmap_chunk: self.layout.chunk,
            own: slot_of(leg),
            source: slot_of(self.source.get()),
            fast_flush: self.settings.fast_flush,
            slots,
        }
    }
}
