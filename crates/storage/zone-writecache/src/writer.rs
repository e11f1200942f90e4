//! The writer: forms records of the queue and writes them to the fast device, one at a time, so that a record
//! holds the operations of all calls that came while the one before it was written (group commit).

use crate::core::{Core, Queued};
use crate::counters::count;
use crate::format::{Action, Entry, Header, MAX_ENTRIES, Position, header_bytes};
use crate::pending::Pending;
use block::{Buffer, Durability, Payload, Result, ZoneAddress};
use std::rc::Rc;

/// Attempts at writing a record before the fast device counts as failed.
const ATTEMPTS: usize = 3;

/// Writes records until the cache is closed. Once the fast device has failed or the uploads have ended, it
/// only completes calls, with that error.
pub async fn run(core: Rc<Core>) {
    loop {
        if core.queue.borrow().is_empty() {
            if core.health.is_closing() {
                break;
            }
            core.arrived.notified().await;
            // Calls of the same turn join the record.
            runtime::yield_now().await;
            continue;
        }
        // Also operations that were queued before, so that none is written after one that isn't.
        if let Err(error) = core.health.check_device().and_then(|()| core.health.check_conflict()) {
            let queued: Vec<Queued> = core.queue.borrow_mut().drain(..).collect();
            core.complete(queued, &Err(error));
            continue;
        }
        let queued = core.take_queued();
        let outcome = core.write_record(&queued).await;
        core.complete(queued, &outcome);
        // Calls that follow a completion join the next record.
        runtime::yield_now().await;
    }
    core.demand.changed.notify_all();
}

impl Core {
    /// Takes the operations of the next record from the queue.
    fn take_queued(&self) -> Vec<Queued> {
        let mut queue = self.queue.borrow_mut();
        let mut bytes = 0;
        let count = queue.iter().take(MAX_ENTRIES).take_while(|queued| {
            bytes += queued.entry.length();
            bytes <= self.layout.record_data
        });
        // One append may be longer than the limit.
        let count = count.count().max(1);
        queue.drain(..count).collect()
    }

    /// Completes the calls of these operations.
    fn complete(&self, queued: Vec<Queued>, outcome: &Result<()>) {
        let bytes: u64 = queued.iter().map(|queued| queued.entry.length()).sum();
        self.queued_bytes.set(self.queued_bytes.get() - bytes);
        self.written.set(self.written.get() + queued.len() as u64);
        for Queued { done, .. } in queued {
            // A call that was dropped doesn't wait.
            let _ = done.send(outcome.clone());
        }
        self.progress.notify_all();
        self.demand.changed.notify_all();
    }

    /// Writes one record, and puts its operations into effect.
    async fn write_record(&self, queued: &[Queued]) -> Result<()> {
        let block = self.layout.block_size;
        let data: u64 = queued.iter().map(|queued| queued.entry.length()).sum();
        let length = header_bytes(queued.len(), block) + data.next_multiple_of(block);
        let at = self.space_for(length).await?;
        let Position { record, .. } = self.log.head.get();
        let header = Header {
            epoch: self.superblock.get().epoch,
            record,
            address: at,
            durable: self.log.durable.get(),
            flush_epoch: self.log.add_record(),
            written: runtime::wall_clock().as_millis() as u64,
            entries: queued.iter().map(|queued| queued.entry).collect(),
        };
        let payload = self.encode(&header, queued, length);
        let mut attempt = 1;
        loop {
            match self.fast.write(self.layout.place(at), payload.clone(), Durability::Visible).await {
                Ok(()) => break,
                Err(error) if attempt < ATTEMPTS => {
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
        self.take_effect(&header);
        self.log.completed.set(record);
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
                // Uploaded data in the way leaves the cache.
                let overwritten = end.saturating_sub(self.layout.ring);
                let tail = self.superblock.get().tail.address;
                self.index.borrow_mut().forget_before(overwritten, tail);
                self.readers.ended_before(overwritten).await;
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
    fn take_effect(&self, header: &Header) {
        let since = runtime::now();
        let mut data = header.address + header.bytes(self.layout.block_size);
        let end = self.log.head.get();
        let last = header.entries.len();
        for (number, entry) in header.entries.iter().enumerate() {
            self.enter_index(entry, data);
            let end = match number + 1 == last {
                true => end,
                false => {
                    Position { address: header.address, record: header.record, entry: number as u32 + 1 }
                }
            };
            let Header { record, flush_epoch, written, .. } = *header;
            let pending = Pending { entry: *entry, data, record, end, flush_epoch, written, since };
            self.pending.borrow_mut().push(pending);
            if entry.action == Action::Append {
                count(&self.counters.appends, 1);
                count(&self.counters.appended_bytes, entry.length());
            }
            data += entry.length();
        }
    }

    /// Enters an operation into the index, with the address of its data.
    pub fn enter_index(&self, entry: &Entry, data: u64) {
        let mut index = self.index.borrow_mut();
        match entry.action {
            Action::Append => {
                index.insert(ZoneAddress::new(entry.zone.0, entry.offset), entry.length(), data)
            }
            Action::Reset => index.forget_zone(entry.zone),
            _ => {}
        }
    }
}
