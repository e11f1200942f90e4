//! Write-back: what the ring holds goes to the origin, batch by batch, from the tail on.
//!
//! The order of things, each durable before the next begins: a batch on the origin; the superblock that says that the tail
//! is behind it; the next batch. Only a batch of the same epoch needn't wait for the one before it to be durable. So what is
//! written again after a crash is of the same epoch as what the origin had got of it, and the origin alone is at every moment
//! a state that an earlier power cut could have left. Places are used again only when, besides, no read that found them is on
//! its way.

use super::batch::{Batch, Limit, Start};
use super::core::{Core, Order, count};
use super::format::Action;
use block::{BlockRange, Durability, Error, Result, ZeroMode};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// After an attempt that failed, write-back waits so long.
const RETRY: Duration = Duration::from_millis(500);
/// How many blocks one write to the origin has at most.
const LONGEST_RUN: u64 = 256;
/// How many ranges are discarded at a time.
const RANGES_AT_ONCE: usize = 16;

/// The next batch, which is read while one is written back.
type Ahead = Option<(u64, runtime::JoinHandle<Result<Batch>>)>;

/// What the origin has acknowledged, while it is made durable there and its room is freed.
struct Settling {
    done: runtime::JoinHandle<Result<()>>,
    /// The address behind it, and the number of the record there.
    end: u64,
    next_record: u64,
    epoch: Option<u64>,
}

/// Writes back, as long as the cache is open.
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
        running = core.needs_writeback(write_back.written(), running);
        let outcome = if running {
            core.pause().await;
            write_back.next().await
        } else if write_back.settling.is_some() {
            write_back.settle().await
        } else if core.needs_seal() {
            core.seal().await
        } else {
            core.wait_for_need().await;
            continue;
        };
        match outcome {
            Ok(()) => {
                *core.stuck.borrow_mut() = None;
                core.freed.notify_all();
            }
            Err(error) => {
                count(&core.counters.writeback_errors, 1);
                if core.stuck.borrow().is_none() {
                    tracing::warn!("write-back: {error}; trying again");
                }
                write_back.ahead = None;
                // What is acknowledged may still become durable; all others are written back again.
                let _ = write_back.settle().await;
                core.progress.fail();
                *core.stuck.borrow_mut() = Some(error);
                // Whoever waits for room hears of it.
                core.freed.notify_all();
                if core.closing.get() {
                    break;
                }
                let _ = runtime::timeout(RETRY, core.writeback.notified()).await;
            }
        }
    }
    // Whoever closes the cache holds nothing that depends on it: what isn't durable there is still in the ring.
    let _ = write_back.settle().await;
}

/// Flushes the cache device now and then, so that little is lost with power.
pub async fn committer(core: Rc<Core>) {
    while !core.closing.get() {
        let _ = runtime::timeout(core.settings.autocommit_time, core.committer.notified()).await;
        if core.uncommitted.get() > 0 && core.failure.borrow().is_none() {
            // A failure says so itself.
            let _ = core.commit().await;
        }
    }
}

impl Core {
    /// Whether there is nothing more to do for a cache that is being closed. What is still queued, by callers that no longer
    /// wait, may need room.
    fn is_done(&self) -> bool {
        let is_empty = self.tail.get() == self.committed.get();
        self.closing.get() && self.queue.borrow().is_empty() && (is_empty || !self.flush_on_suspend.get())
    }

    /// Whether a batch is to be written back now; `written`, the address behind the last one, and `running`, whether one just
    /// was.
    fn needs_writeback(&self, written: u64, running: bool) -> bool {
        if written >= self.committed.get() {
            return false;
        }
        let used = self.head.get() - written;
        let is_asked = self.waiting_for_room.get() > 0
            || self.cleaner.get()
            || written < self.flush_to.get()
            || self.closing.get();
        is_asked || used >= self.settings.high || running && used >= self.settings.low || self.is_too_old()
    }

    /// Whether writes would go around the cache, but for a superblock from which what was written back would be written
    /// back once more, over them, if it were all that is left.
    fn needs_seal(&self) -> bool {
        self.cleaner.get() && !self.closing.get() && !self.sealed.get() && self.is_drained()
    }

    /// Writes over the older superblock.
    async fn seal(&self) -> Result<()> {
        self.write_superblock(|_| {}).await?;
        // A write may have come that had been on its way to the cache before writes went around it.
        self.sealed.set(self.used() == 0);
        Ok(())
    }

    fn is_too_old(&self) -> bool {
        let (Some(most), Some(oldest)) = (self.settings.max_age, self.oldest.get()) else { return false };
        runtime::wall_clock().as_millis() as u64 >= oldest.saturating_add(most.as_millis() as u64)
    }

    async fn wait_for_need(&self) {
        if self.is_done() {
            return;
        }
        let asked = self.writeback.notified();
        match self.settings.max_age {
            None => asked.await,
            Some(age) => {
                let step = (age / 8).clamp(Duration::from_millis(5), Duration::from_secs(1));
                let _ = runtime::timeout(step, asked).await;
            }
        }
    }

    /// Waits while clients use the origin, as long as there is room enough.
    async fn pause(&self) {
        let pause = self.settings.pause;
        if pause.is_zero() {
            return;
        }
        while let Some(used) = self.origin_used.get() {
            let since = used.elapsed();
            let room = self.settings.high + (self.ring.blocks() - self.settings.high) / 2;
            let is_asked = self.waiting_for_room.get() > 0
                || self.cleaner.get()
                || self.closing.get()
                || self.tail.get() < self.flush_to.get();
            if since >= pause || is_asked || self.used() >= room {
                break;
            }
            let _ = runtime::timeout(pause - since, self.writeback.notified()).await;
        }
    }

    /// Makes a batch durable that the origin has acknowledged, and frees its room, once that of those before it is free.
    async fn settle(self: Rc<Self>, batch: Rc<Batch>, before: Option<Settling>) -> Result<()> {
        let outcome = self.free(&batch, before).await;
        self.freed.notify_all();
        outcome
    }

    async fn free(&self, batch: &Batch, before: Option<Settling>) -> Result<()> {
        let mut flushed = Ok(());
        if !self.settings.fua && self.origin.geometry().volatile_cache {
            flushed = self.origin.flush().await.map_err(|error| error.in_context("flushing the origin"));
            count(&self.counters.origin_flushes, 1);
        }
        if let Some(before) = before {
            before.done.await?;
        }
        flushed?;
        let end = batch.end;
        self.note_tail_in_the_end(end, batch.next_record).await?;
        // Readers find it on the origin from now on.
        batch.forget(self);
        batch.take_out(self).await;
        self.readers.grace().await;
        self.progress.freed(end - self.tail.get());
        self.tail.set(end);
        self.unreadable.borrow_mut().retain(|address| *address >= end);
        self.released.borrow_mut().retain(|address| *address >= end);
        self.sealed.set(false);
        self.oldest.set(match batch.next_written {
            Some(written) => Some(written),
            None if end == self.committed.get() => None,
            None => self.oldest_at(end).await,
        });
        let newest = batch.newest as u64;
        count(&self.counters.written_back, newest);
        count(&self.counters.superseded, batch.versions() as u64 - newest);
        count(&self.counters.batches, 1);
        Ok(())
    }

    /// As [`note_tail`](Self::note_tail), as often as it takes. The batch must not be written back once more: of a superblock
    /// that couldn't be written nobody knows whether it is there, and with it the log begins behind the batch, of which a
    /// part would be missing on the origin while it is written again.
    ///
    /// # Errors
    /// Of the cache device, when the cache is being closed.
    async fn note_tail_in_the_end(&self, tail: u64, tail_record: u64) -> Result<()> {
        let mut failed = false;
        loop {
            let Err(error) = self.note_tail(tail, tail_record).await else {
                if failed {
                    *self.stuck.borrow_mut() = None;
                }
                return Ok(());
            };
            failed = true;
            count(&self.counters.writeback_errors, 1);
            if self.closing.get() {
                return Err(error);
            }
            if self.stuck.borrow().is_none() {
                tracing::warn!("write-back: {error}; trying again");
            }
            *self.stuck.borrow_mut() = Some(error);
            // Whoever waits for room hears of it.
            self.freed.notify_all();
            let _ = runtime::timeout(RETRY, self.writeback.notified()).await;
        }
    }

    /// Writes a superblock with this tail.
    async fn note_tail(&self, tail: u64, tail_record: u64) -> Result<()> {
        self.write_superblock(|superblock| (superblock.tail, superblock.tail_record) = (tail, tail_record))
            .await
    }

    /// When the record at this address was written.
    async fn oldest_at(&self, address: u64) -> Option<u64> {
        self.settings.max_age?;
        let superblock = self.superblock.get();
        let expect =
            super::scan::Expect { identity: &superblock.identity, origin_blocks: superblock.origin_blocks };
        let buffer = block::Buffer::new(self.bytes_of(1));
        let (outcome, buffer) = self.fast.read(self.ring.place(address), buffer).await;
        outcome.ok()?;
        super::scan::Found::decode(buffer.filled(), address, &expect).ok().map(|found| found.header.clock)
    }

    async fn discard_ranges(&self, batch: &Batch) -> Result<()> {
        let discards = batch.ranges.iter().map(|(entry, _)| async move {
            let start = self.on_origin(entry.block);
            let range = BlockRange::new(start.0, entry.count << self.origin_shift);
            let durability = self.durability();
            match (entry.action, durability) {
                (Action::Discard, Durability::Visible) => self.origin.discard(range).await,
                // A discard has no FUA.
                (Action::Discard, Durability::Durable) => {
                    self.origin.write_zeroes(range, ZeroMode::MayDeallocate, durability).await
                }
                _ => self.origin.write_zeroes(range, ZeroMode::KeepAllocated, durability).await,
            }
        });
        let outcomes = runtime::join_limited(RANGES_AT_ONCE, discards).await;
        outcomes
            .into_iter()
            .collect::<Result<()>>()
            .map_err(|error| error.in_context("discarding on the origin"))
    }

    fn durability(&self) -> Durability {
        if self.settings.fua { Durability::Durable } else { Durability::Visible }
    }

    /// Writes all runs, `jobs` of them at a time.
    async fn write_runs(self: &Rc<Self>, batch: &Rc<Batch>) -> Result<()> {
        let runs: Vec<(usize, usize)> = batch.runs(LONGEST_RUN).collect();
        let next = Rc::new(Cell::new(0));
        let failed: Rc<RefCell<Option<Error>>> = Rc::default();
        let runs = Rc::new(runs);
        let jobs = self.settings.jobs.min(runs.len());
        let workers: Vec<_> = (0..jobs)
            .map(|_| {
                let (core, batch, runs) = (self.clone(), batch.clone(), runs.clone());
                let (next, failed) = (next.clone(), failed.clone());
                runtime::spawn(async move {
                    while failed.borrow().is_none()
                        && let Some(run) = runs.get(next.get())
                    {
                        next.set(next.get() + 1);
                        let (block, payload) = batch.run(&core, *run);
                        let outcome =
                            core.origin.write(core.on_origin(block), payload, core.durability()).await;
                        if let Err(error) = outcome {
                            *failed.borrow_mut() =
                                Some(error.in_context(format!("block {block} of the origin")));
                            break;
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.await;
        }
        match failed.take() {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }
}

impl WriteBack {
    /// The address behind what has been written back, durably or not.
    fn written(&self) -> u64 {
        self.settling.as_ref().map_or(self.core.tail.get(), |settling| settling.end)
    }

    /// Waits until all that the origin has acknowledged is durable there, and its room is free.
    async fn settle(&mut self) -> Result<()> {
        match self.settling.take() {
            None => Ok(()),
            Some(settling) => settling.done.await,
        }
    }

    /// Waits until no more is on its way than there is room that writers may take ahead.
    async fn wait_for_settled(&self) {
        let core = &self.core;
        while let Some(settling) = &self.settling
            && settling.end - core.tail.get() >= core.settings.batch
            && !settling.done.is_finished()
        {
            core.freed.notified().await;
        }
    }

    /// Writes back one batch, or waits until the one before it is durable. It is made durable while the next one is read, and
    /// while next ones are written where that is faster, as far as they are of the same epoch.
    async fn next(&mut self) -> Result<()> {
        if self.settling.is_some() && !self.core.progress.overlaps() {
            return self.settle().await;
        }
        self.wait_for_settled().await;
        let core = self.core.clone();
        // Nothing that the cache could still lose goes to the origin, or saves an older version from going there: what
        // is there after a power cut stays a prefix of what was written.
        core.commit().await?;
        // Nothing goes around the cache from now on until what is cached by now has been written back.
        let limit = Limit::now(&core);
        core.writers_around.grace().await;
        let start = match &self.settling {
            None => Start::at_tail(&core),
            Some(settling) => Start::at(settling.end, settling.next_record),
        };
        let address = start.address;
        let mut batch = match self.ahead.take() {
            Some((at, read)) if at == address => read.await?,
            _ => Batch::read(&core, start, limit).await?,
        };
        let is_another = self.settling.as_ref().is_some_and(|settling| settling.epoch != batch.epoch);
        if batch.end == address || core.settings.order == Order::Flushes && is_another {
            self.settle().await?;
        }
        if batch.end == address {
            return Ok(());
        }
        batch.prepare(&core)?;
        let mut batch = Rc::new(batch);
        // Who waits for room doesn't wait for the next one to be read, too.
        if core.durable.get() > batch.end
            && (core.waiting_for_room.get() > 0 || core.used() >= core.settings.high)
        {
            let (own, start, limit) = (core.clone(), batch.next(&core), Limit::now(&core));
            let read = core.tasks.spawn(async move { Batch::read(&own, start, limit).await });
            self.ahead = Some((batch.end, read));
        }
        core.progress.begin(batch.end - address);
        core.discard_ranges(&batch).await?;
        core.write_runs(&batch).await?;
        if let Some(batch) = Rc::get_mut(&mut batch) {
            batch.drop_data();
        }
        let (end, next_record, epoch) = (batch.end, batch.next_record, batch.epoch);
        let settling = core.clone().settle(batch, self.settling.take());
        let done = core.tasks.spawn(settling);
        self.settling = Some(Settling { done, end, next_record, epoch });
        Ok(())
    }
}
