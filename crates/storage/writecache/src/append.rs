//! Appending records: two lanes, each with one record in flight, while further writes queue up for the next
//! one.
//!
//! Two lanes keep the device busy while clients learn of one record and send their next writes. One lane
//! would leave it idle meanwhile; three make records small. Records may complete in any order, and take
//! effect in the order of their numbers, so the acknowledged writes are always a prefix of the log.

use crate::core::Core;
use crate::counters::count;
use crate::format::{Action, Entry};
use crate::log::Position;
use crate::queue::RecordLimits;
use crate::records::{Record, Stamp};
use block::{Durability, Result};
use std::rc::Rc;

/// Number of lanes, which is the limit to the records in flight.
pub const LANES: usize = 2;
/// Attempts at writing a record before the cache device counts as failed.
const ATTEMPTS: usize = 3;

/// Writes records until the cache is closed or has failed.
pub async fn lane(core: Rc<Core>) {
    let mut meta = Vec::new();
    loop {
        if core.queue.is_empty() {
            if core.health.is_closing() || core.health.has_failed() {
                break;
            }
            core.queue.arrived().await;
            // Clients that run in the same turn join the record.
            runtime::yield_now().await;
            continue;
        }
        if let Err(error) = core.wait_for_space().await {
            core.queue.complete_all(&Err(error));
            continue;
        }
        let Some(Position { record: number, address }) = core.take_record() else { continue };
        let place = core.ring.place(address);
        let mut outcome = Ok(());
        let mut blocks = 0;
        for _ in 0..ATTEMPTS {
            let stamp = Stamp {
                identity: core.superblocks.identity(),
                epoch: core.superblocks.epoch(),
                durable_record: core.log.durable_record(),
            };
            let payload = core.records.encode(number, &core.ring, stamp, &mut meta);
            blocks = payload.len() as u64 >> core.ring.block_size.shift();
            outcome = core.fast.write(place, payload, Durability::Visible).await;
            let Err(error) = &outcome else { break };
            tracing::warn!("record {number} of the write cache could not be written: {error}");
        }
        count(&core.counters.records, 1);
        core.autocommit.add(blocks);
        core.records.completed(number, outcome);
        core.complete_records();
        // Clients whose writes have completed join the next record.
        runtime::yield_now().await;
    }
    // Write-back continues until the queue is empty.
    core.demand.wake();
}

impl Core {
    /// Waits until the ring has space for the first of the queue.
    async fn wait_for_space(&self) -> Result<()> {
        let mut is_counted = false;
        loop {
            if self.queue.is_empty() {
                return Ok(());
            }
            self.health.check_device()?;
            let space = self.space_for_writers();
            if space > self.ring.max_step() {
                return Ok(());
            }
            let head = self.log.head().address;
            let missing = self.queue.space_for_next(self.ring.left(head)).saturating_sub(space);
            if missing == 0 {
                return Ok(());
            }
            let writeback = self.health.check_writeback();
            writeback.map_err(|error| error.in_context("write cache: it is full, and write-back failed"))?;
            if !std::mem::replace(&mut is_counted, true) {
                count(&self.counters.writes_blocked, 1);
            }
            let waiting = self.space.enter_lane();
            self.demand.wake();
            // The throttle also grants more space as time passes.
            waiting.changed(self.throttle.hold(head, self.log.free(), missing)).await;
        }
    }

    /// Forms the next record of the queue, and appends it to the log. Returns its position; `None` if the
    /// other lane has taken the whole queue. A record lies in one segment: one without entries fills a
    /// segment that is too short for the first of the queue.
    fn take_record(&self) -> Option<Position> {
        let wanted = self.queue.first_data_blocks()?;
        let mut lists = self.records.spare_lists();
        let address = self.log.head().address;
        let left = self.ring.left(address);
        let mut end = address + left;
        if wanted < left {
            let blocks = self.ring.max_data().min(left - 1).min(self.space_for_writers().saturating_sub(1));
            let limits = RecordLimits { blocks: blocks.max(wanted), bytes: self.ring.header_capacity() };
            end = address + 1 + self.queue.take(&mut lists.0, limits);
        }
        // A queued write isn't acknowledged, so it may be ordered before or after a concurrent flush. All
        // writes of a record therefore take the epoch in which the record is formed, and one record holds the
        // writes of many clients that flush.
        let flush_epoch = self.epoch.add_record();
        let record = self.log.append(end);
        self.records.begin(record, address, end, flush_epoch, lists);
        Some(Position { address, record })
    }

    /// Puts completed records into effect, up to the first that is still in flight, and completes their
    /// requests.
    fn complete_records(&self) {
        while let Some((mut record, mut outcome)) = self.records.pop_completed() {
            if let Err(error) = &outcome {
                self.fail(&error.in_context(format!("record {}", record.number)));
            }
            // After a failure a record is missing for good: opening would find nothing after it.
            match self.health.check_device() {
                Ok(()) => self.take_effect(&record),
                failure => outcome = failure,
            }
            record.items.drain(..).for_each(|item| self.queue.complete(item, &outcome));
            self.records.recycle(record);
        }
        if self.demand.is_high(self.log.used()) || self.space.has_lanes() || self.cleaner.is_on() {
            self.demand.wake();
        }
        self.autocommit.wake_if_due();
    }

    /// Enters a record into the index.
    fn take_effect(&self, record: &Record) {
        let mut index = self.index.borrow_mut();
        let (mut address, mut sums) = (record.data(), record.sums.iter());
        let before = index.blocks();
        for item in &record.items {
            let Entry { action, block, count } = item.entry;
            match action {
                Action::Write => {
                    for block in block..block + count {
                        let sum = sums.next().copied().unwrap_or(0);
                        index.write(block, address, sum);
                        address += 1;
                    }
                }
                // A range has the address of the next data block: data of the record before it is older, and
                // data after it is newer.
                Action::Discard | Action::Zero => index.discard(block, count, address),
            }
        }
        let written = record.sums.len() as u64;
        count(&self.counters.overhead_blocks, record.end - record.address - written);
        count(&self.counters.write_blocks, written);
        count(&self.counters.write_hits, written - (index.blocks() - before).min(written));
        self.demand.note_record();
        self.log.commit(Position { address: record.end, record: record.number + 1 });
    }
}
