//! Background tasks: resync and rebuild, scrubs, clearing the bitmap.
//!
//! Copies and comparisons lock one piece at a time, so a request waits for one piece at most. The bitmap
//! keeps the progress of copies: copied chunks are cleared there, and a restart continues with the others. A
//! scrub starts over after a restart.

use super::Core;
use super::read::Copying;
use crate::format::SlotState;
use crate::leg::each;
use crate::upkeep::Scrub;
use block::{Error, ExtentState, Result};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Length of a piece that is copied or compared at once, in bytes.
const PIECE: u64 = 512 << 10;
/// Wait before a failed step is retried.
const AGAIN: Duration = Duration::from_millis(200);
/// Wait before chunks are retried with blocks that no leg could read.
const STUCK: Duration = Duration::from_secs(10);
/// Least time between two passes over the bitmap, so that other tasks run.
const MIN_BETWEEN_LOOKS: Duration = Duration::from_micros(50);
/// Sector, the unit of counted mismatches, in bytes.
const SECTOR: usize = 512;

impl Core {
    /// Starts the background tasks.
    pub fn start(self: &Rc<Self>) {
        self.upkeep.start(self.clone().keep());
        self.upkeep.start(self.clone().clear());
    }

    async fn clear(self: Rc<Self>) {
        let delay = self.setup.settings.bitmap_delay.max(MIN_BETWEEN_LOOKS);
        let mut next = runtime::now() + delay;
        while !self.upkeep.is_closing() {
            self.upkeep.rest(next - runtime::now()).await;
            if self.upkeep.is_closing() || runtime::now() < next {
                continue;
            }
            if let Err(error) = self.clear_quiet(false).await {
                tracing::warn!("mirror {}: clearing the bitmap: {error}", self.setup.array);
            }
            self.summarize();
            next = runtime::now() + delay;
            // With no dirty chunk and an elapsed timer this loop would otherwise never yield.
            runtime::yield_now().await;
        }
    }

    async fn keep(self: Rc<Self>) {
        let mut position = 0;
        while !self.upkeep.is_closing() {
            let done = if let Some(chunk) = self.chunks.next_to_copy(position) {
                position = chunk;
                self.copy_chunk(chunk).await
            } else if self.chunks.differ() + self.chunks.lacking() > 0 {
                // The remaining chunks have blocks that no leg could read. They may be written, or become
                // readable.
                self.upkeep.rest(STUCK).await;
                self.chunks.unstick();
                Ok(())
            } else if self.members.rebuilding() != 0 || self.members.should_move_source() {
                self.settle_legs().await
            } else if self.upkeep.scrub().is_some() {
                self.scrub_piece().await
            } else {
                self.upkeep.woken().await;
                Ok(())
            };
            if let Err(error) = done {
                tracing::warn!("mirror {}: {error}", self.setup.array);
                self.upkeep.rest(AGAIN).await;
            }
        }
    }

    fn pieces(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let step = (PIECE >> self.setup.layout.block_size.shift()).max(1);
        let end = blocks.end;
        blocks.step_by(step as usize).map(move |start| start..(start + step).min(end))
    }

    /// Waits until a copy of `bytes` since `began` is within the speed limit.
    async fn pace(&self, began: runtime::Instant, bytes: u64) {
        let speed = self.setup.settings.sync_speed_max;
        if speed > 0 {
            let least = Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(speed)) as u64);
            if began.elapsed() < least {
                self.upkeep.rest(least.saturating_sub(began.elapsed())).await;
            }
        }
    }

    /// Copies a chunk from the source to all other legs, unless all legs report it as zeros.
    async fn copy_chunk(self: &Rc<Self>, chunk: u64) -> Result<()> {
        let (joined, blocks) = (self.members.joined(), self.chunks.blocks_of(chunk));
        let holding = self.hold(&blocks).await;
        let is_zero = self.are_zeros(&blocks).await;
        if is_zero && joined == self.members.joined() {
            self.chunks.copied(chunk);
            self.publish_copied();
            return Ok(());
        }
        self.chunks.begin_copying(chunk);
        drop(holding);
        for piece in self.pieces(blocks) {
            if self.upkeep.is_closing() {
                return Ok(());
            }
            if self.members.all().count_ones() < 2 {
                self.chunks.none_differ();
                self.chunks.none_lacking();
                return Ok(());
            }
            let began = runtime::now();
            if !self.copy_piece(&piece).await {
                self.chunks.stick(chunk);
            }
            self.pace(began, self.bytes_of(&piece) as u64).await;
        }
        // A leg that joined meanwhile lacks the earlier pieces; a failed change may have made legs differ in
        // them.
        let is_over = joined == self.members.joined() && !self.chunks.is_to_be_copied_again(chunk);
        if is_over && !self.chunks.is_stuck(chunk) {
            self.chunks.copied(chunk);
            self.publish_copied();
        }
        Ok(())
    }

    fn publish_copied(&self) {
        if self.chunks.differ() == 0 {
            self.publish();
        }
    }

    /// Whether all legs report these blocks as zeros.
    async fn are_zeros(&self, blocks: &Range<u64>) -> bool {
        for leg in each(self.members.all()) {
            let mut at = blocks.start;
            while at < blocks.end {
                let Ok(extents) = self.legs[leg].device.extents(&(at..blocks.end)).await else {
                    return false;
                };
                if extents.is_empty() || extents.iter().any(|extent| extent.state == ExtentState::Data) {
                    return false;
                }
                let found: u64 = extents.iter().map(|extent| extent.range.count.0).sum();
                at += found >> self.legs[leg].device.shift();
                if found >> self.legs[leg].device.shift() == 0 {
                    return false;
                }
            }
        }
        true
    }

    /// Copies a piece. Returns whether all of it was copied: false if no leg could read some block.
    async fn copy_piece(self: &Rc<Self>, piece: &Range<u64>) -> bool {
        let _holding = self.hold(piece).await;
        let _copying = (self.chunks.differ() > 0).then(|| Copying::begin(self));
        let members = self.members.all();
        let first = match self.read_best(piece).await {
            Ok((data, has_it)) => {
                self.copy_to(members & !has_it, has_it, piece, data).await;
                return true;
            }
            Err(error) => error,
        };
        tracing::warn!("mirror {}: {first}: copying block by block", self.setup.array);
        let mut all = true;
        for block in piece.clone() {
            let one = block..block + 1;
            match self.read_best(&one).await {
                Ok((data, has_it)) => self.copy_to(members & !has_it, has_it, &one, data).await,
                Err(_) => all = false,
            }
        }
        all
    }

    /// Makes rebuilt legs active after the last copy, and moves the source to a leg that doesn't lag.
    async fn settle_legs(&self) -> Result<()> {
        let rebuilt = self.members.rebuilding();
        let (_, failed) = self.flush_legs(rebuilt).await;
        for (leg, error) in failed {
            self.fail(leg, error).await?;
        }
        // A leg may have joined meanwhile.
        let rebuilt = rebuilt & self.members.rebuilding();
        if self.chunks.next_to_copy(0).is_some() {
            return Ok(());
        }
        self.members.activate(rebuilt);
        each(rebuilt).for_each(|leg| self.set_state(leg, SlotState::Active));
        if self.members.should_move_source() {
            self.members.choose_source();
        }
        self.superblocks_changed();
        self.write_superblocks().await
    }

    /// Compares a piece of all active legs.
    async fn scrub_piece(&self) -> Result<()> {
        let blocks = self.shared.geometry.blocks.0;
        let Some(Scrub { repairs, at }) = self.upkeep.scrub() else { return Ok(()) };
        let piece = self.pieces(at..blocks).next().unwrap_or(at..at);
        let began = runtime::now();
        if !piece.is_empty() {
            let _holding = self.hold(&piece).await;
            self.compare(&piece, repairs).await;
        }
        let bytes = self.bytes_of(&piece) as u64;
        self.shared.scrubbed_bytes.fetch_add(bytes, Ordering::Relaxed);
        let is_over = piece.end >= blocks;
        self.upkeep.move_scrub(piece.end);
        if is_over {
            self.upkeep.end_scrub();
            self.summarize();
        }
        self.pace(began, bytes).await;
        Ok(())
    }

    /// Compares blocks that the caller has locked.
    async fn compare(&self, piece: &Range<u64>, repairs: bool) {
        let legs: Vec<usize> = each(self.members.active()).collect();
        let reads = runtime::join_all(legs.iter().map(|leg| self.read_leg(*leg, piece))).await;
        for (leg, read) in legs.iter().zip(&reads) {
            if read.is_err() {
                self.repair_held(*leg, piece).await;
            }
        }
        let source = legs.iter().position(|leg| *leg == self.members.source());
        let Some(Ok(right)) = source.and_then(|source| reads.get(source)) else { return };
        for (leg, read) in legs.iter().zip(&reads) {
            let Ok(found) = read else { continue };
            let sectors = right.chunks(SECTOR).zip(found.chunks(SECTOR));
            let different = sectors.filter(|(right, found)| right != found).count() as u64;
            if different == 0 {
                continue;
            }
            self.shared.mismatches.fetch_add(different, Ordering::Relaxed);
            let name = &self.legs[*leg].name;
            tracing::warn!(
                "mirror {}: leg {name} differs from the source in {different} sectors of blocks {piece:?}",
                self.setup.array
            );
            if repairs {
                self.copy_to(1 << leg, 1 << self.members.source(), piece, right.clone()).await;
            }
        }
    }

    /// Begins a scrub.
    ///
    /// # Errors
    /// [`Error::Busy`] if one is running.
    pub fn begin_scrub(&self, repairs: bool) -> Result<()> {
        self.upkeep.begin_scrub(repairs)?;
        self.shared.mismatches.store(0, Ordering::Relaxed);
        self.shared.scrubbed_bytes.store(0, Ordering::Relaxed);
        self.summarize();
        Ok(())
    }

    /// Joins a faulty leg again, or a new one; with `whole` it gets all data, otherwise chunks whose bit is
    /// set.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the leg is a member already.
    pub async fn join(&self, leg: usize, slot: usize, whole: bool) -> Result<()> {
        if self.members.has(leg) {
            return Err(Error::invalid(format!(
                "leg \"{}\" is a member of the mirror already",
                self.legs[leg].name
            )));
        }
        if whole {
            // The missing chunks are durably marked before the leg is recorded as rebuilding.
            self.chunks.request_all();
            self.mark(&self.all_blocks()).await?;
        }
        self.legs[leg].slot.set(Some(slot));
        self.members.join(leg);
        self.set_state(leg, SlotState::Rebuilding);
        self.chunks.dirty_lacking();
        self.superblocks_changed();
        self.write_superblocks().await?;
        self.upkeep.wake();
        Ok(())
    }
}
