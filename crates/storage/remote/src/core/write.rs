//! Writes: pages are packed into staged blocks, and full blocks are written to nodes.

use super::Core;
use super::counters::add;
use super::fetch::Source;
use super::streams::CLEANER_STREAM;
use crate::arena::{BLOCK, BLOCK_GRANULES};
use crate::entry::{Entry, Place};
use crate::nodes;
use crate::slot::{self, Encoding, GENERATIONS, GRANULE, HEADER, PAGE, Slot};
use block::{Buffer, Error, Payload, Result};
use logkit::pool::Usage;
use smallvec::SmallVec;
use std::rc::Rc;
use std::time::Duration;

impl Core {
    /// Writes a page.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the nodes have no space; [`Error::Disconnected`] if none answers.
    pub async fn write_page(self: &Rc<Self>, page: u32, data: &[u8; PAGE]) -> Result<()> {
        add(&self.counters.writes, 1);
        if let Some(pattern) = slot::pattern_of(data) {
            self.replace(page, Entry::Same(pattern));
            return Ok(());
        }
        let stream = self.streams.of_page(page);
        loop {
            if self.store(stream, page, data) {
                return Ok(());
            }
            self.open_next(stream).await?;
        }
    }

    /// Compresses a page and stores it in the open block of a stream. Returns false if it doesn't fit.
    fn store(&self, stream: usize, page: u32, data: &[u8; PAGE]) -> bool {
        let mut compressor = self.compressor.borrow_mut();
        let is_smaller = |bytes: &[u8]| slot::granules_of(bytes.len()) < slot::granules_of(PAGE);
        let compressed = compressor.compress(data).filter(|(_, bytes)| is_smaller(bytes));
        let (encoding, bytes) = compressed.unwrap_or((Encoding::Plain, data));
        let is_stored = self.store_slot(stream, page, encoding, bytes);
        if is_stored {
            add(&self.counters.packed, 1);
            add(&self.counters.packed_bytes, bytes.len() as u64);
        }
        is_stored
    }

    /// Stores the bytes of a slot in the open block of a stream, and makes the map name it. Returns false if
    /// it doesn't fit.
    pub(crate) fn store_slot(&self, stream: usize, page: u32, encoding: Encoding, bytes: &[u8]) -> bool {
        let Some(staged) = self.streams[stream].staged.get() else { return false };
        let granules = slot::granules_of(bytes.len());
        let mut staging = self.staging.borrow_mut();
        let Some(first) = staging.reserve(&self.arena, staged, granules) else { return false };
        let block = staging.get(staged).block;
        drop(staging);
        let generation = (self.generation.get() + 1) % GENERATIONS;
        self.generation.set(generation);
        let slot = Slot { page, generation, encoding, bytes };
        let (at, end) = (first as usize * GRANULE, (first as usize + usize::from(granules)) * GRANULE);
        let header = slot.header(self.zones.generation(self.zone_of(block).0));
        self.arena.write_staged(staged, at, &header);
        self.arena.write_staged(staged, at + HEADER, bytes);
        let padding = end - at - HEADER - bytes.len();
        self.arena.write_staged(staged, end - padding, &[0; GRANULE][..padding]);
        add(&self.clock, granules.into());
        let place = Place { granule: block * BLOCK_GRANULES + u64::from(first), granules, generation };
        self.replace(page, Entry::Stored(place));
        true
    }

    /// Opens the next block of a stream, after the open one has become full.
    pub(crate) async fn open_next(self: &Rc<Self>, stream: usize) -> Result<()> {
        let before = self.streams[stream].staged.get();
        let _alone = self.streams[stream].opening.acquire(1).await;
        if self.streams[stream].staged.get() != before {
            return Ok(());
        }
        self.close_staged(stream);
        // The last staged blocks are reserved for the cleaner.
        let kept = if stream == CLEANER_STREAM { 0 } else { 2 };
        while self.staging.borrow().available() <= kept {
            self.check()?;
            self.check_staging(stream)?;
            self.freed.notified().await;
        }
        let zone = self.zone_for(stream).await?;
        // Other streams may have taken the staged blocks while this one waited for a zone.
        if self.staging.borrow().available() <= kept {
            return Ok(());
        }
        let zone_blocks = self.arena.sizes().zone_blocks;
        let number = self.zones.change(&self.arena, zone, |entry| {
            entry.blocks += 1;
            entry.pending += 1;
            entry.is_closed = entry.blocks == zone_blocks;
            entry.blocks - 1
        });
        if number + 1 == zone_blocks {
            self.streams[stream].zone.set(None);
        }
        let block = self.blocks_of(zone, 0).start + u64::from(number);
        let staged = self.staging.borrow_mut().open(&self.arena, block);
        self.streams[stream].staged.set(staged);
        Ok(())
    }

    /// Checks that a staged block may become available: one is being written, or its pages are being moved.
    /// The cleaner's stream moves the pages of refused blocks, so it doesn't wait for these.
    fn check_staging(&self, stream: usize) -> Result<()> {
        let staging = self.staging.borrow();
        let comes = if stream == CLEANER_STREAM { staging.is_writing() } else { staging.is_progressing() };
        match comes {
            true => Ok(()),
            false => Err(self.no_staged()),
        }
    }

    /// Closes the open block of a stream, and starts its write to the nodes.
    fn close_staged(self: &Rc<Self>, stream: usize) {
        if let Some(staged) = self.streams[stream].staged.take() {
            self.staging.borrow_mut().close(&self.arena, staged);
            self.spawn_write(staged);
        }
    }

    /// Closes the open zone of a stream.
    fn leave_zone(&self, stream: usize, zone: u32) {
        self.streams[stream].zone.set(None);
        self.zones.change(&self.arena, zone, |entry| entry.is_closed = true);
        self.close_if_done(zone);
    }

    /// Closes the open block and zone of a stream if the zone lacks a copy that can be made. Only closed
    /// zones are copied, and without writes this one would stay open.
    pub(crate) fn leave_zone_without_copy(self: &Rc<Self>, stream: usize) {
        let in_zone = || {
            let staged = self.streams[stream].staged.get();
            let of_block = staged.map(|staged| self.zone_of(self.staging.borrow().get(staged).block).0);
            let both = [self.streams[stream].zone.get(), of_block];
            both.into_iter().flatten().any(|zone| {
                let known = self.zones.get(zone);
                self.lacks_copy(&known) && self.node_for_copy(&known).is_some()
            })
        };
        // A stream that waits for a zone checks its copies itself.
        let Some(_alone) = self.streams[stream].opening.try_acquire(1) else { return };
        if in_zone() {
            self.close_staged(stream);
            if let Some(zone) = self.streams[stream].zone.get() {
                self.leave_zone(stream, zone);
            }
        }
    }

    /// Returns the zone for a stream's next block.
    async fn zone_for(self: &Rc<Self>, stream: usize) -> Result<u32> {
        let usable = |zone: &u32| {
            let zone = self.zones.get(*zone);
            zone.copies
                .iter()
                .filter(|copy| {
                    copy.is_whole && self.nodes[usize::from(copy.node)].state() == nodes::State::Up
                })
                .count()
                >= self.copies_now().min(zone.copies.len())
        };
        if let Some(zone) = self.streams[stream].zone.get() {
            if usable(&zone) {
                return Ok(zone);
            }
            self.leave_zone(stream, zone);
        }
        let is_cleaner = stream == CLEANER_STREAM;
        let keep = if is_cleaner { 0 } else { self.settings.reserve };
        let mut is_asked = false;
        // Zones that users write have class 0, zones that the cleaner writes class 1.
        loop {
            if let Some(taken) = self.pool.take(u8::from(is_cleaner), keep, false, self.clock.get()) {
                match self.allocate_regions(taken.zone) {
                    Ok(()) => {
                        self.streams[stream].zone.set(Some(taken.zone));
                        if self.pool.free() < self.settings.low {
                            self.work.notify_all();
                        }
                        return Ok(taken.zone);
                    }
                    Err(error) => {
                        self.pool.put_back(taken.zone);
                        self.stuck.borrow_mut().get_or_insert(error);
                    }
                }
            }
            // The cleaner is woken once: after a pass it notifies `freed`, and if that woke it again, neither
            // would pause.
            if !std::mem::replace(&mut is_asked, true) {
                self.work.notify_all();
            }
            self.check()?;
            // Only the cleaner frees zones, so it can't wait for one unless a reset or a write in flight
            // ends.
            let comes = self.pool.free_soon() > 0 || self.is_writing();
            if is_cleaner && !comes {
                return Err(self.no_region());
            }
            self.freed.notified().await;
        }
    }

    /// Writes a full block to every copy of its zone.
    pub(crate) async fn write_out(self: Rc<Self>, staged: u32) {
        let tag = self.staging.borrow().get(staged);
        let (zone, offset) = self.zone_of(tag.block);
        let used = (tag.fill as usize * GRANULE).next_multiple_of(PAGE).min(BLOCK);
        let mut is_anywhere = false;
        if used > 0 {
            let _permit = self.writing.acquire(1).await;
            if self.may_take(zone) {
                // Writes of users wait for its end.
                self.staging.borrow_mut().resume(staged);
            }
            let mut buffer = Buffer::new(used);
            self.arena.append_staged(staged, used, &mut buffer);
            is_anywhere = self.write_copies(zone, offset, buffer.freeze().into()).await;
        }
        if !is_anywhere && used > 0 && self.pool.live(zone) > 0 {
            self.staging.borrow_mut().refuse(staged);
            // The pages go to another zone.
            if let Err(error) = self.move_block(tag.block, 0).await {
                let block = tag.block;
                self.failed_writes.failed(format_args!("block {block}: {error}; it is tried again"));
                self.staging.borrow_mut().stall(staged);
                self.freed.notify_all();
                runtime::sleep(Duration::from_millis(200)).await;
                if !self.is_closing.get() {
                    self.spawn_write(staged);
                }
                return;
            }
            self.failed_writes.ended("writing to memory nodes");
            self.staging.borrow_mut().forget(&self.arena, staged);
        } else {
            if is_anywhere {
                self.failed_writes.ended("writing to memory nodes");
            }
            self.staging.borrow_mut().written(&self.arena, staged);
        }
        self.block_done(zone);
        self.freed.notify_all();
    }

    /// Whether a node of a zone answers and isn't known to have no memory.
    fn may_take(&self, zone: u32) -> bool {
        let copies = self.zones.get(zone).copies;
        copies.iter().any(|copy| self.nodes[usize::from(copy.node)].state() == nodes::State::Up)
    }

    /// Notes that a block of a zone is on the nodes, or isn't needed there.
    fn block_done(&self, zone: u32) {
        self.zones.change(&self.arena, zone, |entry| entry.pending -= 1);
        self.close_if_done(zone);
    }

    /// Marks a closed zone as full once all its blocks are on the nodes.
    pub(super) fn close_if_done(&self, zone: u32) {
        let known = self.zones.get(zone);
        if known.is_closed && known.pending == 0 && self.pool.get(zone).usage == Usage::Open {
            if self.pool.set_full(zone) {
                self.work.notify_all();
            }
            self.freed.notify_all();
        }
    }

    /// Writes to all whole copies of a zone at once, including the one on the backup device. Returns whether
    /// any write succeeded.
    async fn write_copies(&self, zone: u32, offset: u64, payload: Payload) -> bool {
        let known = self.zones.get(zone);
        let whole = known.copies.iter().filter(|copy| copy.is_whole);
        let backup = known.has_backup.then_some((None, zone));
        let targets = whole.map(|copy| (Some(copy.node), copy.region)).chain(backup);
        let write = |target: Source| {
            let payload = payload.clone();
            async move { (target, self.node_of(target).write(target.1, offset, payload).await) }
        };
        let mut failed: SmallVec<[Source; 4]> = SmallVec::new();
        let mut succeeded = 0;
        let mut failure = None;
        for (target, outcome) in runtime::join_all(targets.map(write)).await {
            match outcome {
                Ok(()) => {
                    succeeded += 1;
                    let on_nodes = if target.0.is_some() { payload.len() as u64 } else { 0 };
                    add(&self.counters.node_written, on_nodes);
                }
                Err(error) => {
                    // The node has logged that it is down, or its error.
                    tracing::debug!("zone {zone}: {error}");
                    failed.push(target);
                    if !matches!(failure, Some(Error::NoSpace(_))) {
                        failure = Some(error);
                    }
                }
            }
        }
        // A block that no copy has goes to another zone, so that the copies stay whole.
        if succeeded == 0 {
            self.refusal.replace(failure);
        } else {
            failed.into_iter().for_each(|copy| self.set_not_whole(zone, copy));
        }
        succeeded > 0
    }

    /// Notes that a copy of a zone lacks data that was written to the zone.
    pub(crate) fn set_not_whole(&self, zone: u32, (node, region): Source) {
        self.zones.change(&self.arena, zone, |entry| {
            let mut copies = entry.copies.iter_mut();
            match node {
                Some(_) => copies
                    .find(|copy| (Some(copy.node), copy.region) == (node, region))
                    .into_iter()
                    .for_each(|copy| copy.is_whole = false),
                None => entry.has_backup = false,
            }
        });
    }
}
