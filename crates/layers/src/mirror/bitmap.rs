//! The write-intent bitmap on the legs.
//!
//! A bit is durable on all legs that keep a bitmap before a change to its chunk is given to any leg; those who want bits at the
//! same time share a write. A leg that fails such a write is left behind if another active leg takes it; else the change fails, and
//! no leg is left behind. Bits are cleared by a pass over chunks that have been quiet since the pass before (md's two
//! passes), after a flush of all legs, and only while every place has its leg.

use super::core::{Core, gather};
use super::format::{RECORD, encode_bitmap};
use super::leg::Mask;
use block::{Buffer, Error, Payload, Result};
use runtime::sync::Permit;
use std::ops::Range;

impl Core {
    /// Waits until the bits of these blocks are set, durably, and superblocks say how things are.
    ///
    /// # Errors
    /// That of the last leg.
    pub async fn mark(&self, blocks: &Range<u64>) -> Result<()> {
        loop {
            self.note().await?;
            if self.chunks.want(blocks) {
                return Ok(());
            }
            let permit = self.paging.acquire(1).await;
            // Others may have written it, or left a leg behind, while this waited.
            if !self.is_settled() || self.chunks.want(blocks) {
                continue;
            }
            let pages = self.chunks.take_unwritten();
            let failed = self.write_pages(&pages).await;
            self.judge_pages(&pages, failed, permit).await?;
        }
    }

    /// Handles failed writes of bitmap pages: marks the failed legs faulty if another active leg took the pages.
    ///
    /// # Errors
    /// The first leg's error, if no active leg took the pages. No leg becomes faulty then: the legs still have the same data,
    /// and the pages are written again before the next change of their chunks.
    async fn judge_pages(&self, pages: &[u64], failed: Vec<(usize, Error)>, permit: Permit) -> Result<()> {
        if failed.is_empty() {
            return Ok(());
        }
        self.chunks.put_back(pages);
        let lost: Mask = failed.iter().map(|(leg, _)| 1 << leg).sum();
        // If all legs that keep a bitmap failed, the other active legs have to keep it: try one page there.
        let others = self.active.get() & !lost;
        let (takes_it, _) = match self.markers() & !lost {
            0 => self.write_page(pages[0], &self.chunks.bits_of(pages[0]), others).await,
            rest => (rest, Vec::new()),
        };
        // Pages are written one at a time, this one included. Failing a leg writes pages, too.
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
        let offset = self.layout.bitmap_offset + page * self.page_bytes() as u64;
        gather(legs, |leg| self.legs[leg].device.write_own(offset, payload.clone())).await
    }

    /// Writes pages, as they are to be, to all legs that keep a bitmap; says which failed.
    async fn write_pages(&self, pages: &[u64]) -> Vec<(usize, Error)> {
        for page in pages {
            let bits = self.chunks.bits_of(*page);
            let (_, failed) = self.write_page(*page, &bits, self.markers()).await;
            if !failed.is_empty() {
                return failed;
            }
            self.chunks.page_is_durable(*page, &bits);
        }
        Vec::new()
    }

    fn page(&self, page: u64, bits: &[bool]) -> Payload {
        let mut buffer = Buffer::new(self.page_bytes());
        let (sectors, first) = ((self.page_bytes() / RECORD) as u64, page * self.layout.chunks_of_page());
        for sector in page * sectors..(page + 1) * sectors {
            encode_bitmap(&mut buffer, self.array, sector as u32, |chunk| {
                bits.get((chunk - first) as usize).copied().unwrap_or(false)
            });
        }
        buffer.into()
    }

    /// Writes the whole bitmap to legs that are to keep one from now on.
    ///
    /// # Errors
    /// That of the last leg.
    pub async fn complete_bitmaps(&self) -> Result<()> {
        while self.markers() & !self.kept.get() != 0 {
            let leg = (self.markers() & !self.kept.get()).trailing_zeros() as usize;
            let permit = self.paging.acquire(1).await;
            let mut outcome = Ok(());
            for page in 0..self.chunks.pages() {
                let payload = self.page(page, &self.chunks.bits_of(page));
                let offset = self.layout.bitmap_offset + page * self.page_bytes() as u64;
                outcome = self.legs[leg].device.write_own(offset, payload).await;
                if outcome.is_err() {
                    break;
                }
            }
            match outcome {
                Ok(()) => self.kept.set(self.kept.get() | 1 << leg),
                Err(error) => {
                    let error = error.in_context("writing its bitmap");
                    self.lose(leg, error, super::format::SlotState::Failed)?;
                }
            }
            drop(permit);
        }
        Ok(())
    }

    /// Whether the last note said that bits are cleared from then on.
    fn may_clear(&self) -> bool {
        self.cleared_events.get() + 1 == self.events.get()
    }

    /// Clears bits of chunks that are quiet, if every place has its leg.
    ///
    /// # Errors
    /// That of the last leg.
    pub async fn clear_quiet(&self, now: bool) -> Result<()> {
        // Once something may be lost, legs are compared where it was written when the mirror is opened again.
        if !self.is_whole() || self.chunks.dirty() == 0 || self.check_nothing_lost().is_err() {
            return Ok(());
        }
        let quiet = self.chunks.quiet(now);
        if quiet.is_empty() {
            return Ok(());
        }
        // What was written is on all legs for good before the bit goes that would have it compared.
        self.make_durable(self.active.get() | self.rebuilding.get()).await?;
        if self.is_whole() && !self.may_clear() {
            // Two notes: a leg that misses the second one, before anything is cleared, has the events of the first.
            self.changed();
            self.note().await?;
            self.raise_cleared.set(true);
            self.changed();
        }
        self.note().await?;
        let permit = self.paging.acquire(1).await;
        if !self.is_whole() || !self.is_settled() || !self.may_clear() || self.check_nothing_lost().is_err() {
            return Ok(());
        }
        let pages = self.chunks.clear(&quiet);
        let failed = self.write_pages(&pages).await;
        self.judge_pages(&pages, failed, permit).await
    }
}
