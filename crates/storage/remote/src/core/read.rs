//! Reads that need no node, and slots of pages.

use super::Core;
use super::counters::add;
use crate::arena::BLOCK_GRANULES;
use crate::entry::{Entry, Place, lost, pieces_of};
use crate::slot::{GRANULE, PAGE, Slot, append_page};
use block::{Buffer, Result};
use std::rc::Rc;

impl Core {
    /// Reads a page that needs no node into `page`. Returns false if it needs one.
    ///
    /// # Errors
    /// [`Error::Io`] for a page that was lost.
    fn read_here(&self, number: u32, page: &mut [u8; PAGE]) -> Result<bool> {
        match self.arena.entry(number) {
            Entry::Absent => page.fill(0),
            Entry::Same(pattern) => {
                page.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&pattern.to_le_bytes()))
            }
            Entry::Stored(place) => {
                let packed = &mut *self.scratch.borrow_mut();
                let bytes = &mut packed[..usize::from(place.granules) * GRANULE];
                if !self.read_local(place, bytes) {
                    return Ok(false);
                }
                let is_whole =
                    self.slot_at(number, place, bytes).is_some_and(|slot| self.unpack(&slot, page));
                if !is_whole {
                    let (first, end) = pieces_of(place);
                    self.frames.borrow_mut().forget(&self.arena, first..end);
                }
                return Ok(is_whole);
            }
            Entry::Lost => return Err(lost(number)),
        }
        Ok(true)
    }

    /// Copies the granules of a place from a staged block or from frames. Returns false if some are only on
    /// nodes.
    fn read_local(&self, place: Place, target: &mut [u8]) -> bool {
        let at = (place.granule % BLOCK_GRANULES) as usize * GRANULE;
        if let Some(staged) = self.staging.borrow().of_block(place.granule / BLOCK_GRANULES) {
            self.arena.read_staged(staged, at, target);
            return true;
        }
        let (first, end) = pieces_of(place);
        let mut frames = self.frames.borrow_mut();
        let (mut done, mut offset) = (0, at % PAGE);
        for piece in first..end {
            let Some(frame) = frames.get(&self.arena, piece) else { return false };
            let count = (PAGE - offset).min(target.len() - done);
            self.arena.read_frame(frame, offset, &mut target[done..done + count]);
            (done, offset) = (done + count, 0);
        }
        true
    }

    /// Slot of a page in the bytes of its place; `None` if it isn't there, is damaged, or has another
    /// generation than the map's.
    pub(crate) fn slot_at<'a>(&self, number: u32, place: Place, bytes: &'a [u8]) -> Option<Slot<'a>> {
        let slot = Slot::parse(bytes, self.zones.generation(self.zone_at(place)))?;
        (slot.page == number && slot.generation == place.generation).then_some(slot)
    }

    /// Decodes the page of a slot into `page`. Returns false if the bytes aren't a page.
    pub(crate) fn unpack(&self, slot: &Slot<'_>, page: &mut [u8; PAGE]) -> bool {
        self.compressor.borrow_mut().decompress(slot.encoding, slot.bytes, page).is_ok()
    }

    /// Reads a page, and appends it to a buffer. `ahead` is the number of pages that the request reads after
    /// it.
    ///
    /// # Errors
    /// [`Error::Io`] for a page that was lost; errors of the nodes.
    pub async fn read_page(self: &Rc<Self>, number: u32, ahead: u32, buffer: &mut Buffer) -> Result<()> {
        add(&self.counters.reads, 1);
        if self.append_here(number, buffer)? {
            add(&self.counters.hits, 1);
            return Ok(());
        }
        self.fetch(number, ahead, buffer).await
    }

    /// Appends a page that needs no node to a buffer. Returns false if it needs one.
    pub(crate) fn append_here(&self, number: u32, buffer: &mut Buffer) -> Result<bool> {
        append_page(buffer, |page| self.read_here(number, page))
    }

    /// Discards a page: it reads as zeros.
    pub fn discard_page(&self, page: u32) {
        if self.arena.entry(page) != Entry::Absent {
            add(&self.counters.discards, 1);
            self.replace(page, Entry::Absent);
        }
    }
}
