//! Changes and flushes of clients, from the handle to the queue.
//!
//! A change is acknowledged once its record is on the cache device, and a durable one once the cache device
//! was flushed after it. Opening stops at the first missing record, so a change is durable only with all
//! changes before it.

use crate::core::Core;
use crate::counters::count;
use crate::format::{Action, Entry};
use block::{Call, Durability, Payload, Result, ZeroMode};
use std::rc::Rc;

/// Limit to the discarded ranges that are not written back yet; further discards wait.
const MAX_RANGES: usize = 1 << 16;

impl Core {
    /// Carries out a write, and waits until its record is written. The range isn't empty, and lies inside the
    /// origin. A write that has to wait for nothing but its record is queued at once: its call is only the
    /// wait.
    ///
    /// # Errors
    /// Errors of [`change`](Self::change).
    pub fn begin_write<'a>(
        self: &'a Rc<Self>,
        entry: Entry,
        payload: Payload,
        durability: Durability,
    ) -> Call<'a, Result<()>> {
        let is_plain = durability == Durability::Visible && !self.cleaner.is_on() && self.health.is_open();
        match is_plain.then(|| self.queue.try_reserve(payload.len())).flatten() {
            None => Call::new(self.change(entry, payload, durability)),
            memory => Call::new(self.queue.submit(entry, payload, memory, &self.ring)),
        }
    }

    /// Carries out one change, and waits until its record is written. The range isn't empty, and lies inside
    /// the origin.
    ///
    /// # Errors
    /// The failure of the cache device; the error of write-back that keeps space from being freed.
    pub async fn change(
        self: &Rc<Self>,
        entry: Entry,
        payload: Payload,
        durability: Durability,
    ) -> Result<()> {
        self.health.check_open()?;
        if self.cleaner.is_on() && self.goes_around().await? {
            return self.write_around(entry, payload, durability).await;
        }
        self.change_cached(entry, payload, durability).await
    }

    /// Carries out one change through the cache.
    async fn change_cached(&self, entry: Entry, payload: Payload, durability: Durability) -> Result<()> {
        let memory = match payload.len() {
            0 => None,
            bytes => match self.queue.try_reserve(bytes) {
                Some(memory) => Some(memory),
                None => {
                    let memory = self.queue.reserve(bytes).await;
                    self.health.check_open()?;
                    Some(memory)
                }
            },
        };
        if entry.action != Action::Write {
            self.wait_for_ranges().await?;
        }
        let outcome = self.queue.submit(entry, payload, memory, &self.ring).await;
        match (outcome, durability) {
            // Changes that are submitted later belong to a later epoch, so they reach the origin after this
            // one.
            (Ok(()), Durability::Durable) => self.flush_cache().await,
            (outcome, _) => outcome,
        }
    }

    /// Waits until another range may be discarded.
    async fn wait_for_ranges(&self) -> Result<()> {
        while self.index.borrow().ranges() + self.queue.len() >= MAX_RANGES {
            self.health.check_writeback()?;
            self.health.check_open()?;
            self.demand.set_target(self.log.committed().address);
            self.demand.wake();
            self.space.changed().await;
        }
        Ok(())
    }

    /// Whether a write goes straight to the origin, in the mode `cleaner`. Waits while the last batch is
    /// written back: that would never end if more were added.
    ///
    /// # Errors
    /// The error that stops write-back; the failure of the cache device.
    async fn goes_around(&self) -> Result<bool> {
        loop {
            // After a failure no lane takes queued changes.
            self.health.check_open()?;
            if self.is_drained() && self.cleaner.is_sealed() {
                return Ok(true);
            }
            if self.log.used() > self.thresholds.batch {
                return Ok(false);
            }
            self.health.check_writeback()?;
            self.demand.wake();
            self.space.changed().await;
        }
    }

    /// Carries out one change on the origin. Once it has begun it runs to its end, also if the call is
    /// dropped.
    fn write_around<'a>(
        self: &Rc<Self>,
        entry: Entry,
        payload: Payload,
        durability: Durability,
    ) -> Call<'a, Result<()>> {
        let core = self.clone();
        runtime::carry_in(&self.tasks, async move {
            let _in_flight = core.around.enter();
            count(&core.counters.writes_around, entry.count);
            core.origin.note_use();
            let (device, range) = (core.origin.device(), core.origin.range(entry.block, entry.count));
            let outcome = match entry.action {
                Action::Write => device.write(core.origin.block(entry.block), payload, durability).await,
                Action::Discard => device.discard(range).await,
                Action::Zero => device.write_zeroes(range, ZeroMode::KeepAllocated, durability).await,
            };
            core.around.completed();
            match (outcome, entry.action, durability) {
                (Ok(()), Action::Discard, Durability::Durable) => device.flush().await,
                (outcome, ..) => outcome,
            }
        })
    }

    /// Carries out a client's flush.
    ///
    /// # Errors
    /// Errors of either device; the failure of the cache device.
    pub async fn make_durable(&self) -> Result<()> {
        count(&self.counters.flush_requests, 1);
        self.flush_cache().await?;
        self.around.flush(&self.origin).await
    }

    /// Makes all acknowledged changes durable in the cache, and ends the flush epoch: changes that are
    /// submitted later are written back after them.
    async fn flush_cache(&self) -> Result<()> {
        self.health.check_device()?;
        self.epoch.flush();
        self.commit().await
    }

    /// Makes all committed records durable.
    ///
    /// # Errors
    /// Errors of the cache device, whose failure it becomes.
    pub async fn commit(&self) -> Result<()> {
        let committed = self.log.committed();
        if self.fast.geometry().volatile_cache && self.log.durable().record < committed.record {
            self.autocommit.begin_flush();
            if let Err(error) = self.fast.flush().await {
                let error = error.in_context("flushing the cache device");
                self.fail(&error);
                return Err(error);
            }
        }
        self.log.make_durable(committed);
        Ok(())
    }
}
