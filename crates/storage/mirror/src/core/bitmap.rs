//! The write-intent bitmap on the legs.
//!
//! A bit is durable on all legs that keep a bitmap before any leg gets a change of its chunk; concurrent
//! changes share a write of the bitmap. A leg that fails such a write becomes faulty if another active leg
//! took it; otherwise the change fails, and no leg becomes faulty. A periodic pass clears the bits of chunks
//! without writes since the previous pass (two passes, as md), after a flush of all legs, and only while
//! every slot has its leg.

use super::Core;
use crate::format::{RECORD, encode_bitmap};
use crate::leg::{Mask, on_legs};
use block::{Buffer, Error, Payload, Result};
use runtime::sync::{Permit, Semaphore};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

/// Legs that keep a bitmap, and the right to write it.
pub struct Bitmap {
    /// Legs with a complete bitmap.
    kept: Cell<Mask>,
    writer: Rc<Semaphore>,
}

impl Bitmap {
    /// Begins without a leg that keeps a bitmap.
    pub fn new() -> Self {
        Bitmap { kept: Cell::new(0), writer: Semaphore::new(1) }
    }

    /// Legs with a complete bitmap.
    pub fn kept(&self) -> Mask {
        self.kept.get()
    }

    /// Notes that a leg's bitmap is complete.
    fn keep(&self, leg: usize) {
        self.kept.set(self.kept() | 1 << leg);
    }

    /// Notes that the bitmaps of these legs are no longer kept.
    pub fn forget(&self, legs: Mask) {
        self.kept.set(self.kept() & !legs);
    }

    /// Waits for the right to write the bitmap.
    async fn writer(&self) -> Permit {
        self.writer.acquire(1).await
    }
}

impl Core {
    /// Waits until the bits of these blocks are durably set and the superblocks are current.
    ///
    /// # Errors
    /// The last active leg's error.
    pub async fn mark(&self, blocks: &Range<u64>) -> Result<()> {
        loop {
            self.write_superblocks().await?;
            if self.chunks.request(blocks) {
                return Ok(());
            }
            let permit = self.bitmap.writer().await;
            // Other tasks may have written the page, or failed a leg, meanwhile.
            if !self.superblocks.are_current() || self.chunks.request(blocks) {
                continue;
            }
            let pages = self.chunks.take_unwritten();
            let failed = self.write_pages(&pages).await;
            self.handle_failed_pages(&pages, failed, permit).await?;
        }
    }

    /// Handles failed writes of bitmap pages: marks the failed legs faulty if another active leg took the
    /// pages.
    ///
    /// # Errors
    /// The first leg's error, if no active leg took the pages. No leg becomes faulty then: the legs still
    /// have the same data, and the pages are written again before the next change of their chunks.
    async fn handle_failed_pages(
        &self,
        pages: &[u64],
        failed: Vec<(usize, Error)>,
        permit: Permit,
    ) -> Result<()> {
        if failed.is_empty() {
            return Ok(());
        }
        self.chunks.put_back(pages);
        let lost: Mask = failed.iter().map(|(leg, _)| 1 << leg).sum();
        // If all legs that keep a bitmap failed, the other active legs have to keep it: try one page there.
        let others = self.members.active() & !lost;
        let (takes_it, _) = match self.bitmap_legs() & !lost {
            0 => self.write_page(pages[0], &self.chunks.bits_of(pages[0]), others).await,
            rest => (rest, Vec::new()),
        };
        // Pages are written one at a time, this one included. Failing a leg also writes pages.
        drop(permit);
        let contexts = failed.into_iter().map(|(leg, error)| (leg, error.in_context("writing its bitmap")));
        for (leg, error) in contexts {
            if takes_it == 0 {
                return Err(error);
            }
            self.fail(leg, error).await?;
        }
        Ok(())
    }

    async fn write_page(&self, page: u64, bits: &[bool], legs: Mask) -> (Mask, Vec<(usize, Error)>) {
        let payload = self.page(page, bits);
        let offset = self.setup.layout.bitmap_offset + page * self.page_bytes() as u64;
        on_legs(legs, |leg| self.legs[leg].device.write_own(offset, payload.clone())).await
    }

    /// Writes pages with their wanted bits to all legs that keep a bitmap. Returns the failed legs.
    async fn write_pages(&self, pages: &[u64]) -> Vec<(usize, Error)> {
        for page in pages {
            let bits = self.chunks.bits_of(*page);
            let (_, failed) = self.write_page(*page, &bits, self.bitmap_legs()).await;
            if !failed.is_empty() {
                return failed;
            }
            self.chunks.page_is_durable(*page, &bits);
        }
        Vec::new()
    }

    fn page(&self, page: u64, bits: &[bool]) -> Payload {
        let mut buffer = Buffer::new(self.page_bytes());
        let (sectors, first) =
            ((self.page_bytes() / RECORD) as u64, page * self.setup.layout.chunks_of_page());
        for sector in page * sectors..(page + 1) * sectors {
            encode_bitmap(&mut buffer, self.setup.array, sector as u32, |chunk| {
                bits.get((chunk - first) as usize).copied().unwrap_or(false)
            });
        }
        buffer.into()
    }

    /// Writes the whole bitmap to legs that begin to keep one.
    ///
    /// # Errors
    /// The last active leg's error.
    pub async fn complete_bitmaps(&self) -> Result<()> {
        while self.bitmap_legs() & !self.bitmap.kept() != 0 {
            let leg = (self.bitmap_legs() & !self.bitmap.kept()).trailing_zeros() as usize;
            let permit = self.bitmap.writer().await;
            let mut outcome = Ok(());
            for page in 0..self.chunks.pages() {
                let (_, failed) = self.write_page(page, &self.chunks.bits_of(page), 1 << leg).await;
                if let Some((_, error)) = failed.into_iter().next() {
                    outcome = Err(error);
                    break;
                }
            }
            match outcome {
                Ok(()) => self.bitmap.keep(leg),
                Err(error) => {
                    let error = error.in_context("writing its bitmap");
                    self.mark_faulty(leg, error, crate::format::SlotState::Failed)?;
                }
            }
            drop(permit);
        }
        Ok(())
    }

    /// Clears the bits of quiet chunks, if every slot has its leg.
    ///
    /// # Errors
    /// The last active leg's error.
    pub async fn clear_quiet(&self, now: bool) -> Result<()> {
        // If acknowledged changes may be lost, the set bits make the next opening resync these chunks.
        if !self.members.is_whole() || self.chunks.dirty() == 0 || self.loss.check().is_err() {
            return Ok(());
        }
        let quiet = self.chunks.quiet(now);
        if quiet.is_empty() {
            return Ok(());
        }
        // Writes have to be durable on all legs before the bit is cleared that would cause a resync.
        self.make_durable(self.members.all()).await?;
        if self.members.is_whole() && !self.superblocks.allow_clearing() {
            // Two updates: a leg that misses only the second one, before a bit is cleared, has the event
            // count of the first.
            self.superblocks_changed();
            self.write_superblocks().await?;
            self.superblocks.request_cleared();
            self.publish();
        }
        self.write_superblocks().await?;
        let permit = self.bitmap.writer().await;
        if !self.members.is_whole()
            || !self.superblocks.are_current()
            || !self.superblocks.allow_clearing()
            || self.loss.check().is_err()
        {
            return Ok(());
        }
        let pages = self.chunks.clear(&quiet);
        let failed = self.write_pages(&pages).await;
        self.handle_failed_pages(&pages, failed, permit).await
    }
}
