//! Write-back: the ring is destaged to the origin, batch by batch, beginning at the tail.
//!
//! Order of writes, each durable before the next begins: a batch on the origin; the superblock with the tail
//! after it; the next batch. Only a batch of the same flush epoch need not wait until the one before it is
//! durable. So data that is written again after a crash belongs to the same epoch as the part of it that the
//! origin already has, and the origin alone is always in a state that an earlier power cut could have left.
//! Space of the ring is reused only when, in addition, no read that found it is in flight.

use crate::batch::{Batch, Start};
use crate::core::Core;
use crate::counters::count;
use crate::destage;
use crate::log::Position;
use crate::scan::Found;
use crate::settings::Order;
use block::{Buffer, Result};
use std::rc::Rc;
use std::time::Duration;

/// Time between a failed attempt and the next one.
const RETRY: Duration = Duration::from_millis(500);

/// The next batch, which is read while one is written back, and the address at which it begins.
type Ahead = Option<(u64, runtime::JoinHandle<Result<Batch>>)>;

/// A batch that the origin has acknowledged, while it is made durable there and its space is freed.
struct Settling {
    done: runtime::JoinHandle<Result<()>>,
    /// Position after the batch.
    end: Position,
    epoch: Option<u64>,
}

/// State of write-back.
struct WriteBack {
    core: Rc<Core>,
    ahead: Ahead,
    settling: Option<Settling>,
}

/// Writes back until the cache is closed.
pub async fn run(core: Rc<Core>) {
    let mut write_back = WriteBack { core: core.clone(), ahead: None, settling: None };
    let mut running = false;
    while !core.is_done() {
        running = write_back.is_due(running);
        let outcome = if running {
            core.pause().await;
            write_back.next().await
        } else if write_back.settling.is_some() {
            write_back.settle().await
        } else if core.needs_seal() {
            core.seal().await
        } else {
            core.demand.changed().await;
            continue;
        };
        match outcome {
            Ok(()) => {
                core.health.writeback_succeeded();
                core.space.notify();
            }
            Err(error) => {
                count(&core.counters.writeback_errors, 1);
                write_back.ahead = None;
                // Acknowledged batches may still become durable; all others are written back again.
                let _ = write_back.settle().await;
                core.throttle.fail();
                core.health.writeback_failed(error);
                // Writers that wait for space get the error.
                core.space.notify();
                if core.health.is_closing() {
                    break;
                }
                core.demand.changed_within(RETRY).await;
            }
        }
    }
    // A failure loses nothing: blocks that aren't durable on the origin are still in the ring.
    let _ = write_back.settle().await;
}

impl Core {
    /// Whether write-back of a cache that is being closed has ended. Queued writes, whose calls may have been
    /// dropped, may still need space.
    fn is_done(&self) -> bool {
        let is_destaged = self.log.tail().address == self.log.committed().address;
        self.health.is_closing() && self.queue.is_empty() && (is_destaged || !self.demand.is_on_close())
    }

    /// Whether the cache is drained in the mode `cleaner` and not yet sealed.
    fn needs_seal(&self) -> bool {
        self.cleaner.is_on() && !self.health.is_closing() && !self.cleaner.is_sealed() && self.is_drained()
    }

    /// Writes over the older superblock.
    async fn seal(&self) -> Result<()> {
        self.superblocks.write(self.log.durable_record()).await?;
        // A write that was in flight before writes went around the cache may have been cached meanwhile.
        self.cleaner.set_sealed(self.log.used() == 0);
        Ok(())
    }

    /// Waits while clients use the origin, as long as there is enough space.
    async fn pause(&self) {
        while let Some(left) = self.origin.pause_left() {
            let may_pause = self.demand.may_pause(self.log.used(), self.ring.blocks());
            if self.is_urgent(self.log.tail().address) || !may_pause {
                break;
            }
            self.demand.changed_within(left).await;
        }
    }

    /// Makes a batch durable that the origin has acknowledged, and frees its space after that of the batch
    /// before.
    async fn settle(self: Rc<Self>, batch: Rc<Batch>, before: Option<Settling>) -> Result<()> {
        let outcome = self.free(&batch, before).await;
        self.space.notify();
        outcome
    }

    async fn free(&self, batch: &Batch, before: Option<Settling>) -> Result<()> {
        let flushed = destage::flush(self).await;
        if let Some(before) = before {
            before.done.await?;
        }
        flushed?;
        let end = batch.end();
        self.write_tail(end).await?;
        batch.remove_from_index(self).await;
        self.readers.wait().await;
        self.throttle.complete(end.address - self.log.tail().address);
        self.log.free_to(end);
        self.damage.free_to(end.address);
        self.cleaner.set_sealed(false);
        self.demand.set_oldest(match batch.next_written() {
            Some(written) => Some(written),
            None if end.address == self.log.committed().address => None,
            None => self.written_at(end.address).await,
        });
        count(&self.counters.written_back, batch.to_write());
        count(&self.counters.superseded, batch.superseded());
        count(&self.counters.batches, 1);
        Ok(())
    }

    /// Writes a superblock with this tail, and repeats that until it succeeds. The batch must not be written
    /// back again: after a failed write the superblock may be there or not. If it is, the log begins after
    /// the batch, of which the origin would have only a part while it is written again.
    ///
    /// # Errors
    /// Errors of the cache device, when the cache is being closed.
    async fn write_tail(&self, tail: Position) -> Result<()> {
        let mut failed = false;
        loop {
            let Err(error) = self.superblocks.write_tail(self.log.durable_record(), tail).await else {
                if failed {
                    self.health.writeback_succeeded();
                }
                return Ok(());
            };
            failed = true;
            count(&self.counters.writeback_errors, 1);
            if self.health.is_closing() {
                return Err(error);
            }
            self.health.writeback_failed(error);
            // Writers that wait for space get the error.
            self.space.notify();
            self.demand.changed_within(RETRY).await;
        }
    }

    /// Time at which the record at this address was written, read from its header; `None` if ages don't
    /// matter or the header can't be read.
    async fn written_at(&self, address: u64) -> Option<u64> {
        if !self.demand.has_age_limit() {
            return None;
        }
        let buffer = Buffer::new(self.ring.bytes(1));
        let (outcome, buffer) = self.fast.read(self.ring.place(address), buffer).await;
        outcome.ok()?;
        let found = Found::decode(buffer.filled(), address, &self.superblocks.expect());
        found.ok().map(|found| found.header.clock)
    }
}

impl WriteBack {
    /// Position after the batches that the origin has acknowledged, durable or not.
    fn written(&self) -> Position {
        self.settling.as_ref().map_or(self.core.log.tail(), |settling| settling.end)
    }

    /// Whether a batch is to be written back now; `running` says whether one just was.
    fn is_due(&self, running: bool) -> bool {
        let (core, written) = (&self.core, self.written().address);
        if written >= core.log.committed().address {
            return false;
        }
        core.is_urgent(written) || core.demand.is_due(core.log.head().address - written, running)
    }

    /// Waits until the batches that the origin has acknowledged are durable there, and their space is free.
    async fn settle(&mut self) -> Result<()> {
        match self.settling.take() {
            None => Ok(()),
            Some(settling) => settling.done.await,
        }
    }

    /// Waits until the batches that aren't durable take less than the largest batch.
    async fn wait_for_settled(&self) {
        let core = &self.core;
        while let Some(settling) = &self.settling
            && settling.end.address - core.log.tail().address >= core.thresholds.batch
            && !settling.done.is_finished()
        {
            core.space.changed().await;
        }
    }

    /// Writes back one batch, or waits until the one before it is durable. A batch is made durable while the
    /// next one is read, and while the next ones of the same epoch are written where that is faster.
    async fn next(&mut self) -> Result<()> {
        if self.settling.is_some() && !self.core.throttle.overlaps() {
            return self.settle().await;
        }
        self.wait_for_settled().await;
        let core = self.core.clone();
        // Only versions that are durable in the cache go to the origin or supersede older ones, so that the
        // origin's state after a power cut is a prefix of the writes.
        core.commit().await?;
        // Until the cached blocks have been written back, no further write goes around the cache.
        let limit = core.log.durable();
        core.around.wait().await;
        let start = Start::at(self.written());
        let begin = start.position().address;
        let mut batch = match self.ahead.take() {
            Some((at, read)) if at == begin => read.await?,
            _ => Batch::read(&core, start, limit).await?,
        };
        let is_empty = batch.end().address == begin;
        let is_another = self.settling.as_ref().is_some_and(|settling| settling.epoch != batch.epoch());
        if is_empty || core.settings.order == Order::Flushes && is_another {
            self.settle().await?;
        }
        if is_empty {
            return Ok(());
        }
        batch.prepare(&core)?;
        let mut batch = Rc::new(batch);
        // Writers that wait for space don't wait until the next batch is read.
        if core.log.durable().address > batch.end().address
            && (core.space.has_lanes() || core.demand.is_high(core.log.used()))
        {
            let (own, start, limit) = (core.clone(), batch.next(), core.log.durable());
            let read = core.tasks.spawn(async move { Batch::read(&own, start, limit).await });
            self.ahead = Some((batch.end().address, read));
        }
        core.throttle.begin(batch.end().address - begin);
        destage::write(&core, &batch).await?;
        if let Some(batch) = Rc::get_mut(&mut batch) {
            batch.release_data();
        }
        let (end, epoch) = (batch.end(), batch.epoch());
        let settling = core.clone().settle(batch, self.settling.take());
        let done = core.tasks.spawn(settling);
        self.settling = Some(Settling { done, end, epoch });
        Ok(())
    }
}
