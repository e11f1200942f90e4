//! Membership of legs, and the superblocks that record it.
//!
//! The contents of superblocks change in memory first ([`Core::superblock_changes`] rises), and are then
//! written durably to both copies on all members ([`Core::write_superblocks`]). A leg that fails such a write
//! becomes faulty, which is written to the others in the same way.

use super::Core;
use crate::format::{SlotState, Superblock};
use crate::layout::Layout;
use crate::leg::{Mask, each, on_legs};
use crate::members::Removed;
use block::{Error, Payload, Result};

impl Core {
    /// Legs that keep a bitmap: active legs that aren't write-mostly, so that marking a chunk doesn't wait
    /// for a slow leg; all active legs if there is no other. If all of them are lost together with power, all
    /// chunks are dirty.
    pub fn bitmap_legs(&self) -> Mask {
        self.members.prefer_fast(self.members.active())
    }

    /// Sets the state of a leg's slot.
    pub fn set_state(&self, leg: usize, state: SlotState) {
        if let Some(slot) = self.legs[leg].slot.get() {
            self.members.set_state(slot, state);
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
        if self.members.active() == 1 << leg {
            return Err(error);
        }
        match self.members.remove(leg) {
            Some(Removed::Rebuilding) if self.members.rebuilding() == 0 => self.chunks.none_lacking(),
            Some(Removed::Active) if !self.members.may_differ() => self.chunks.none_differ(),
            Some(_) => {}
            None => return Ok(()),
        }
        let name = &self.legs[leg].name;
        tracing::warn!("mirror {}: leg {name} is faulty: {error}", self.setup.array);
        self.set_state(leg, state);
        self.bitmap.forget(1 << leg);
        if self.members.source() == leg {
            self.members.choose_source();
        }
        self.superblocks_changed();
        Ok(())
    }

    /// Notes that superblocks have to be written.
    pub fn superblocks_changed(&self) {
        self.superblocks.change();
        self.publish();
    }

    /// Writes the superblocks, and waits until they contain the current state.
    ///
    /// # Errors
    /// The last active leg's error.
    pub async fn write_superblocks(&self) -> Result<()> {
        while !self.superblocks.are_current() {
            let _permit = self.superblocks.writer().await;
            if self.superblocks.are_current() {
                break;
            }
            // Data that was read from a faulty leg has to be durable on the others before the superblocks
            // record the fault.
            self.flush_copies().await;
            self.complete_bitmaps().await?;
            let wanted = self.superblocks.changes();
            self.bitmap.forget(!self.bitmap_legs());
            // While a leg is missing no bit is cleared, so that it can join again by the bitmap.
            self.superblocks.raise(self.members.is_whole());
            let members = self.members.all();
            let mut lost = Vec::new();
            // Lagging legs are written last: with a higher event count than the others, a lagging leg would
            // be authoritative.
            let lagging = members & self.lagging();
            let events = self.superblocks.events();
            let copies = [events % 2, (events + 1) % 2];
            for (legs, copy) in
                [members & !lagging, lagging].into_iter().flat_map(|legs| copies.map(|copy| (legs, copy)))
            {
                let offset = Layout::superblock(self.setup.layout.block_size, copy);
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
            if lost.is_empty() {
                self.superblocks.note_written(wanted);
            }
            for (leg, error) in lost {
                self.mark_faulty(leg, error, SlotState::Failed)?;
            }
        }
        Ok(())
    }

    fn superblock(&self, leg: usize) -> Superblock {
        let mut slots = self.members.slots().clone();
        for (number, leg) in self.legs.iter().enumerate() {
            if let Some(slot) = leg.slot.get() {
                slots[slot].write_mostly = self.setup.settings.write_mostly & 1 << number != 0;
                slots[slot].has_bitmap = self.bitmap.kept() & 1 << number != 0;
            }
        }
        let slot_of = |leg: usize| self.legs[leg].slot.get().unwrap_or(0);
        Superblock {
            block_size: self.setup.layout.block_size.bytes() as u32,
            array: self.setup.array,
            events: self.superblocks.events(),
            cleared_events: self.superblocks.cleared_events(),
            data_offset: self.setup.layout.data_offset,
            data_bytes: self.setup.layout.data_bytes,
            bitmap_offset: self.setup.layout.bitmap_offset,
            bitmap_chunk: self.setup.layout.chunk,
            own: slot_of(leg),
            source: slot_of(self.members.source()),
            fast_flush: self.setup.settings.fast_flush,
            slots,
        }
    }
}
