//! Appending records: two lanes, each with one record on its way, while further writes gather for the next one.
//!
//! Two lanes keep the device busy while clients hear of one record and send their next writes; one would leave it idle
//! meanwhile, and three make records small. Records take effect in the order of their numbers, whatever order they land in:
//! so what is acknowledged is always a prefix of the log.

use super::core::{Core, Item, Pending, count};
use super::format::{Action, ENTRY, Entry, PREFIX};
use block::{Buffer, Durability, Error, Payload, Result};
use logkit::StreamId;
use logkit::record::{Header, Identity, Kind, sum_of};
use std::rc::Rc;

/// How many records are on their way at a time.
pub const LANES: usize = 2;
/// So often a record is written at most before the cache takes no more.
const ATTEMPTS: usize = 3;
/// In a full ring a record waits for room for so many blocks, if they are queued, so that not every other block is a header.
const GATHER: u64 = 16;

/// Writes records until the cache is closed or has failed.
pub async fn lane(core: Rc<Core>) {
    let mut meta = Vec::new();
    loop {
        if core.queue.borrow().is_empty() {
            if core.closing.get() || core.failure.borrow().is_some() {
                break;
            }
            core.work.notified().await;
            // Whoever was told of the same completion, or arrives in the same turn, comes along.
            runtime::yield_now().await;
            continue;
        }
        if let Err(error) = core.wait_for_room().await {
            core.refuse_queued(&error);
            continue;
        }
        let Some((number, address)) = core.take_record() else { continue };
        let place = core.ring.place(address);
        let mut outcome = Ok(());
        let mut blocks = 0;
        for _ in 0..ATTEMPTS {
            let payload = core.encode(number, address, &mut meta);
            blocks = payload.len() as u64 >> core.ring.block_size.shift();
            outcome = core.fast.write(place, payload, Durability::Visible).await;
            let Err(error) = &outcome else { break };
            tracing::warn!("record {number} of the write cache could not be written: {error}");
        }
        count(&core.counters.records, 1);
        core.uncommitted.set(core.uncommitted.get() + blocks);
        core.record_ended(number, outcome);
        // Those who were told come along with the next record.
        runtime::yield_now().await;
    }
    // Write-back goes on until nothing is queued.
    core.writeback.notify_all();
}

impl Core {
    /// Waits until what is first in the queue has room in the ring.
    async fn wait_for_room(&self) -> Result<()> {
        let mut counted = false;
        loop {
            if self.queue.borrow().is_empty() {
                return Ok(());
            }
            if let Some(error) = &*self.failure.borrow() {
                return Err(error.clone());
            }
            let room = self.room_for_writers();
            if room > 2 * (self.ring.most_data() + 1) {
                return Ok(());
            }
            let missing = self.room_for_next().saturating_sub(room);
            if missing == 0 {
                return Ok(());
            }
            if let Some(error) = &*self.stuck.borrow() {
                return Err(error.in_context("the write cache is full, and can't be written back"));
            }
            if !std::mem::replace(&mut counted, true) {
                count(&self.counters.writes_blocked, 1);
            }
            self.waiting_for_room.set(self.waiting_for_room.get() + 1);
            self.writeback.notify_all();
            // Room comes with time, too.
            let look_again = self.progress.hold(self.head.get(), self.free_blocks(), missing);
            let _ = runtime::timeout(look_again, self.freed.notified()).await;
            self.waiting_for_room.set(self.waiting_for_room.get() - 1);
        }
    }

    /// How many blocks of the ring a record needs that takes what is first in the queue, and what else is there of `GATHER`
    /// blocks.
    fn room_for_next(&self) -> u64 {
        let left = self.ring.left(self.head.get());
        let mut blocks = 0;
        for item in &*self.queue.borrow() {
            let more = item.entry.data_blocks();
            if blocks > 0 && (blocks + more > GATHER || blocks + more >= left) {
                break;
            }
            blocks += more;
        }
        match blocks < left {
            true => blocks + 1,
            // The rest of the segment is left out for it.
            false => left + blocks + 1,
        }
    }

    /// Everything that is queued fails.
    fn refuse_queued(&self, error: &Error) {
        let items = std::mem::take(&mut *self.queue.borrow_mut());
        let outcome = Err(error.clone());
        items.iter().for_each(|item| self.requests.item_ended(item.request, &outcome));
    }

    /// Gives what is first in the queue, and as much behind it as fits, a number and a place. None if another lane has
    /// taken it.
    fn take_record(&self) -> Option<(u64, u64)> {
        let mut queue = self.queue.borrow_mut();
        let first = queue.front()?;
        let wanted = first.entry.data_blocks();
        let (mut items, sums) = self.spare.borrow_mut().pop().unwrap_or_default();
        let address = self.head.get();
        let left = self.ring.left(address);
        // A record lies in one segment. Where what is first doesn't fit any more, one without entries ends the segment.
        let mut end = address + left;
        if wanted < left {
            let (most, mut room) = (self.ring.most_data().min(left - 1), self.ring.room());
            // All lanes share what there is room for.
            let most = most.min(self.room_for_writers().saturating_sub(1)).max(wanted);
            let mut blocks = 0;
            while let Some(item) = queue.front() {
                let more = item.entry.data_blocks();
                let bytes = ENTRY + 4 * more as usize;
                if blocks + more > most || bytes > room {
                    break;
                }
                (blocks, room) = (blocks + more, room - bytes);
                items.extend(queue.pop_front());
            }
            end = address + 1 + blocks;
        }
        let number = self.next_record.get();
        self.next_record.set(number + 1);
        self.head.set(end);
        // A queued write isn't acknowledged, so it may be ordered before or after a concurrent flush. All writes of a record
        // therefore take the epoch in which the record is formed, and one record holds the writes of many clients that flush.
        self.has_written.set(true);
        let flush_epoch = self.flush_epoch.get();
        let pending = Pending { number, flush_epoch, end, data: address + 1, items, sums, outcome: None };
        self.pending.borrow_mut().push_back(pending);
        Some((number, address))
    }

    /// The bytes of a record that has a place.
    fn encode(&self, number: u64, address: u64, meta: &mut Vec<u8>) -> Payload {
        let size = self.ring.block_size.bytes() as usize;
        let mut pending = self.pending.borrow_mut();
        let Some(record) = pending.iter_mut().find(|record| record.number == number) else {
            unreachable!("a record that was taken is pending until it has ended");
        };
        meta.clear();
        meta.extend_from_slice(&record.flush_epoch.to_le_bytes());
        debug_assert_eq!(meta.len(), PREFIX);
        record.sums.clear();
        let mut slices = 1;
        for item in &record.items {
            item.entry.encode(meta);
            slices += item.payload.slices().len();
            let is_whole = item.payload.slices().iter().all(|slice| slice.len().is_multiple_of(size));
            match is_whole {
                true => {
                    let blocks = item.payload.slices().iter().flat_map(|slice| slice.chunks_exact(size));
                    record.sums.extend(blocks.map(sum_of));
                }
                false => record.sums.extend(item.payload.to_data().chunks_exact(size).map(sum_of)),
            }
        }
        let header = Header {
            kind: Kind::WriteCache,
            stream: StreamId(0),
            class: 0,
            epoch: self.superblock.get().epoch,
            sequence: number,
            durable: self.durable_record.get(),
            clock: runtime::wall_clock().as_millis() as u64,
            zone: 0,
            generation: address,
            position: 0,
            blocks: record.sums.len() as u32,
        };
        let identity: &Identity = &self.superblock.get().identity;
        let mut buffer = Buffer::zeroed(size);
        header.encode(identity, &[], &record.sums, meta, buffer.filled_mut());
        // The data goes to the device from where it is.
        let mut payload = Payload::with_room(slices);
        payload.push(buffer.freeze());
        for slice in record.items.iter().flat_map(|item| item.payload.slices()) {
            payload.push(slice.clone());
        }
        payload
    }

    /// A record is there, or can't be: it takes effect, and whatever had waited for it, if nothing is missing before it.
    fn record_ended(&self, number: u64, outcome: Result<()>) {
        if let Some(record) = self.pending.borrow_mut().iter_mut().find(|record| record.number == number) {
            record.outcome = Some(outcome);
        }
        loop {
            let mut pending = self.pending.borrow_mut();
            if pending.front().is_none_or(|record| record.outcome.is_none()) {
                break;
            }
            let Some(mut record) = pending.pop_front() else { break };
            drop(pending);
            let mut outcome = record.outcome.take().unwrap_or(Ok(()));
            if let Err(error) = &outcome {
                self.fail(&error.in_context(format!("record {}", record.number)));
            }
            if let Some(error) = &*self.failure.borrow() {
                // A record before it is missing for good: nothing behind it would be found when the cache is opened.
                outcome = Err(error.clone());
            } else {
                self.take_effect(&record);
            }
            record.items.drain(..).for_each(|item| {
                drop(item.payload);
                self.requests.item_ended(item.request, &outcome);
            });
            self.spare.borrow_mut().push((record.items, record.sums));
        }
        if self.used() >= self.settings.high || self.waiting_for_room.get() > 0 || self.cleaner.get() {
            self.writeback.notify_all();
        }
        if self.uncommitted.get() >= self.settings.autocommit_blocks {
            self.committer.notify_all();
        }
    }

    fn take_effect(&self, record: &Pending) {
        let mut index = self.index.borrow_mut();
        let (mut address, mut sums) = (record.data, record.sums.iter());
        let before = index.blocks();
        for Item { entry, .. } in &record.items {
            match entry.action {
                Action::Write => {
                    for block in entry.block..entry.block + entry.count {
                        let sum = sums.next().copied().unwrap_or(0);
                        index.write(block, address, sum);
                        address += 1;
                    }
                }
                Action::Discard | Action::Zero => {
                    // It lies where the next data block does, or the header: what came before is older, and what
                    // comes behind is newer, also in the same record.
                    let Entry { block, count, .. } = *entry;
                    index.discard(block, count, address);
                }
            }
        }
        let written = record.sums.len() as u64;
        count(&self.counters.overhead_blocks, record.end + 1 - record.data - written);
        count(&self.counters.write_blocks, written);
        count(&self.counters.write_hits, written - (index.blocks() - before).min(written));
        if self.oldest.get().is_none() {
            self.oldest.set(Some(runtime::wall_clock().as_millis() as u64));
        }
        self.committed.set(record.end);
        self.committed_record.set(record.number);
    }
}
