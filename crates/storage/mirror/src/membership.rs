//! Membership of legs, and the superblocks that record it.
//!
//! The contents of superblocks change in memory first ([`Core::superblock_changes`] rises), and are then
//! written durably to both copies on all members ([`Core::write_superblocks`]). A leg that fails such a write
//! becomes faulty, which is written to the others in the same way.

use crate::core::{Core, on_legs};
use crate::format::{SlotState, Superblock};
use crate::layout::Layout;
use crate::leg::{Mask, each};
use block::{Error, Payload, Result};

impl Core {
    /// Legs that keep a bitmap: active legs that aren't write-mostly, so that marking a chunk doesn't wait
    /// for a slow leg; all active legs if there is no other. If all of them are lost together with power, all
    /// chunks are dirty.
    pub fn bitmap_legs(&self) -> Mask {
        let active = self.active.get();
        match active & !self.settings.write_mostly {
            0 => active,
            fast => fast,
        }
    }

    /// Whether every slot has a leg that is active or being rebuilt.
    pub fn is_whole(&self) -> bool {
        (self.active.get() | self.rebuilding.get()).count_ones() as usize == self.slots.borrow().len()
    }

    /// Sets the state of a leg's slot.
    pub fn set_state(&self, leg: usize, state: SlotState) {
        if let Some(slot) = self.legs[leg].slot.get() {
            self.slots.borrow_mut()[slot].state = state;
        }
    }

    /// Marks a leg faulty, and waits until this is durable on the others.
    ///
    /// # Errors
    /// The same error, if it is the last leg.
    pub async fn fail(&self, leg: usize, error: Error) -> Result<()> {
        self.mark_faulty(leg, error, SlotState::Failed)?;
        self.write_superblocks().await
    }

    /// Marks a leg faulty in memory; the caller writes the superblocks.
    ///
    /// # Errors
    /// The same error, if it is the last leg.
    pub fn mark_faulty(&self, leg: usize, error: Error, state: SlotState) -> Result<()> {
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
        tracing::warn!("mirror {}: leg {name} is faulty: {error}", self.array);
        self.set_state(leg, state);
        self.kept.set(self.kept.get() & !bit);
        if self.source.get() == leg {
            self.choose_source();
        }
        self.superblocks_changed();
        Ok(())
    }

    /// Makes the first active leg that isn't write-mostly the source.
    pub fn choose_source(&self) {
        let active = self.active.get();
        let fast = active & !self.settings.write_mostly;
        let chosen = if fast != 0 { fast } else { active };
        self.source.set(chosen.trailing_zeros() as usize);
    }

    /// Notes that superblocks have to be written.
    pub fn superblocks_changed(&self) {
        self.superblock_changes.set(self.superblock_changes.get() + 1);
        self.publish();
    }

    /// Writes the superblocks, and waits until they contain the current state.
    ///
    /// # Errors
    /// The last active leg's error.
    pub async fn write_superblocks(&self) -> Result<()> {
        while !self.superblocks_are_current() {
            let _permit = self.superblock_writer.acquire(1).await;
            if self.superblocks_are_current() {
                break;
            }
            // Data that was read from a faulty leg has to be durable on the others before the superblocks
            // record the fault.
            self.flush_copies().await;
            self.complete_bitmaps().await?;
            let wanted = self.superblock_changes.get();
            self.kept.set(self.kept.get() & self.bitmap_legs());
            // While a leg is missing no bit is cleared, so that it can join again by the bitmap.
            if self.raise_cleared.replace(false) && self.is_whole() {
                self.cleared_events.set(self.events.get());
            }
            self.events.set(self.events.get() + 1);
            let members = self.active.get() | self.rebuilding.get();
            let mut lost = Vec::new();
            // Lagging legs are written last: with a higher event count than the others, a lagging leg would
            // be authoritative.
            let lagging = members & self.lagging();
            let copies = [self.events.get() % 2, (self.events.get() + 1) % 2];
            for (legs, copy) in
                [members & !lagging, lagging].into_iter().flat_map(|legs| copies.map(|copy| (legs, copy)))
            {
                let offset = Layout::superblock(self.layout.block_size, copy);
                let blocks: Vec<(usize, Payload)> =
                    each(legs).map(|leg| (leg, self.superblock(leg).encode(self.page_bytes()))).collect();
                let (_, failed) = on_legs(legs, |leg| {
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
            if lost.is_empty() && self.superblock_changes.get() == wanted {
                self.superblock_written.set(wanted);
            }
            for (leg, error) in lost {
                self.mark_faulty(leg, error, SlotState::Failed)?;
            }
        }
        Ok(())
    }

    /// Length of a page in bytes.
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
