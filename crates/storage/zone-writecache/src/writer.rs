//! The writer: forms records of the queue and writes them to the fast device, one at a time. A record has the
//! operations of all calls that arrived while the one before it was written (group commit).

use crate::core::Core;
use crate::counters::count;
use crate::format::{Action, Header, Position, header_bytes};
use crate::pending::Pending;
use crate::queue::Queued;
use block::{Buffer, Durability, Payload, Result};
use std::rc::Rc;

/// Attempts at a write of a record that isn't durable, after which the fast device has failed.
const ATTEMPTS: usize = 3;

/// Writes records until the cache is closed. Once the fast device has failed or the uploads have ended, it
/// only completes calls, with that error.
pub async fn run(core: Rc<Core>) {
    loop {
        if core.queue.is_empty() {
            if core.health.is_closing() {
                break;
            }
            core.queue.arrival().await;
            // Calls of the same turn join the record.
            runtime::yield_now().await;
            continue;
        }
        // Also operations that were queued before the failure: none is written after one that failed.
        if let Err(error) = core.health.check_device().and_then(|()| core.health.check_conflict()) {
            core.complete(core.queue.take_all(), &Err(error));
            continue;
        }
        let queued = core.queue.take_record(core.layout.record_data);
        let outcome = core.write_record(&queued).await;
        core.complete(queued, &outcome);
        // Calls that follow a completion join the next record.
        runtime::yield_now().await;
    }
    core.demand.changed.notify_all();
}

impl Core {
    /// Completes the calls of these operations, and wakes what waits for progress.
    fn complete(&self, queued: Vec<Queued>, outcome: &Result<()>) {
        self.queue.complete(queued, outcome);
        self.progress.notify_all();
        self.demand.changed.notify_all();
    }

    /// Writes one record, and enters its operations into the index and the pending list.
    async fn write_record(&self, queued: &[Queued]) -> Result<()> {
        let block = self.layout.block_size;
        let data: u64 = queued.iter().map(|queued| queued.entry.length()).sum();
        let length = header_bytes(queued.len(), block) + data.next_multiple_of(block);
        let at = self.space_for(length).await?;
        let Position { record, .. } = self.log.head.get();
        let (flush_epoch, is_first_of_epoch) = self.log.add_record();
        // A user who flushed before it probably flushes it as well. One durable write is faster than a write
        // and a flush after it.
        let durability = match is_first_of_epoch && self.fast.geometry().volatile_cache {
            true => Durability::Durable,
            false => Durability::Visible,
        };
        let header = Header {
            epoch: self.superblock.get().epoch,
            record,
            address: at,
            durable: self.log.durable(),
            flush_epoch,
            written: runtime::wall_clock().as_millis() as u64,
            entries: queued.iter().map(|queued| queued.entry).collect(),
        };
        let payload = self.encode(&header, queued, length);
        let mut attempt = 1;
        loop {
            match self.fast.write(self.layout.log_block(at), payload.clone(), durability).await {
                Ok(()) => break,
                // A durable write may have failed in its flush, which may have lost other data of the device.
                Err(error) if attempt < ATTEMPTS && durability == Durability::Visible => {
                    tracing::warn!("record {record} of a write cache of zones, attempt {attempt}: {error}");
                    attempt += 1;
                }
                Err(error) => {
                    let error =
                        error.in_context(format!("writing record {record} of the write cache of zones"));
                    self.fail(&error);
                    return self.health.check_device();
                }
            }
        }
        count(&self.counters.records, 1);
        self.log.head.set(Position { address: at + length, record: record + 1, entry: 0 });
        self.enter_operations(&header);
        self.log.note_written(record, durability);
        Ok(())
    }

    /// Header, data and padding of a record; the data isn't copied.
    fn encode(&self, header: &Header, queued: &[Queued], length: u64) -> Payload {
        let mut payload = Payload::new();
        payload.push(header.encode(&self.superblock.get().identity, self.layout.block_size).freeze());
        for slice in queued.iter().flat_map(|queued| queued.payload.slices()) {
            payload.push(slice.clone());
        }
        let missing = length as usize - payload.len();
        if missing > 0 {
            payload.push(Buffer::zeroed(missing).freeze());
        }
        payload
    }

    /// Waits until the ring has space for a record of this length, and returns its address.
    async fn space_for(&self, length: u64) -> Result<u64> {
        loop {
            let at = self.layout.record_at(self.log.head.get().address, length);
            let end = at + length;
            // Records after the checkpoint are needed to open the cache.
            if end - self.superblock.get().checkpoint_at.address <= self.layout.ring {
                // Uploaded data that is overwritten is read from the origin from here on.
                let overwritten = end.saturating_sub(self.layout.ring);
                let tail = self.superblock.get().tail.address;
                self.index.borrow_mut().forget_before(overwritten, tail);
                self.readers.wait_until_ended_before(overwritten).await;
                return Ok(at);
            }
            // The uploader, which frees space, ends with a close and with a conflict.
            self.health.check()?;
            self.demand.needs_space.set(true);
            self.demand.changed.notify_all();
            self.progress.notified().await;
        }
    }

    /// Enters the operations of a written record into the index and the pending list.
    fn enter_operations(&self, header: &Header) {
        let next = self.log.head.get();
        for pending in Pending::of_record(header, self.layout.block_size, next, runtime::now()) {
            self.index.borrow_mut().apply(&pending.entry, pending.data);
            if pending.entry.action == Action::Append {
                count(&self.counters.appends, 1);
                count(&self.counters.appended_bytes, pending.entry.length());
            }
            self.pending.borrow_mut().push(pending);
        }
    }
}
