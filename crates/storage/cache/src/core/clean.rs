//! The cleaner: writes dirty parts back to the origin, and records clean parts in the table.
//!
//! It writes back while the cache is idle, while at least half of the slots are dirty, while the evictor
//! lacks clean slots, and in all modes but writeback.

use super::Core;
use crate::commits::Level;
use crate::mode::Mode;
use crate::shape::runs;
use crate::state::{
    CLEANING, EVICTING, EXCLUSIVE, FREE, IN_DIRTY, IN_UNSETTLED, MARKED, MARKING, RECENT, Slot,
};
use block::{Durability, Result};
use runtime::Instant;
use std::rc::Rc;
use std::time::Duration;

/// Interval at which the cleaner checks for requests.
const LOOK: Duration = Duration::from_millis(100);
/// Number of consecutive intervals without a request after which the cache is idle.
const IDLE_LOOKS: u32 = 3;
/// Percentage of dirty slots from which the cleaner works even if the cache isn't idle.
const HIGH: u64 = 50;
/// Number of slots that are written back between two flushes of the origin.
const SLOTS_AT_ONCE: usize = 64;
/// Largest request of a write-back, in bytes.
const MAX_AT_ONCE: u64 = 1 << 20;
/// Shortest sleep between two checks.
const MIN_WAIT: Duration = Duration::from_micros(100);
/// Sleep after an error.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// A slot that is being written back.
#[derive(Debug, Clone, Copy)]
struct Cleaning {
    slot: u32,
    block: u64,
    parts: u64,
}

/// Writes dirty blocks back, until the cache closes.
pub(crate) async fn run(core: Rc<Core>, settle_every: Duration) {
    let (mut requests, mut idle_looks) = (core.calls.count(), 0);
    let failures = runtime::FailureRun::default();
    let mut settled = runtime::now();
    let mut looked = runtime::now();
    while !core.upkeep.is_ending() {
        if looked.elapsed() >= LOOK {
            idle_looks = if core.calls.count() == requests { idle_looks + 1 } else { 0 };
            (requests, looked) = (core.calls.count(), runtime::now());
        }
        if !core.commits.has_failed() {
            if settled.elapsed() >= settle_every {
                core.settle(false).await;
                settled = runtime::now();
            }
            if core.wants_cleaning(idle_looks >= IDLE_LOOKS) {
                match core.clean_some().await {
                    Ok(is_more) => {
                        failures.ended("cache: write-back");
                        if is_more {
                            continue;
                        }
                    }
                    Err(error) => {
                        core.counters.origin_errors.add(1);
                        failures.failed(format_args!(
                            "cache: write-back failed, next try in {AFTER_ERROR:?}: {error}"
                        ));
                        let _ = runtime::timeout(AFTER_ERROR, core.upkeep.ending()).await;
                    }
                }
            }
        }
        wait(&core, looked, settle_every).await;
    }
}

async fn wait(core: &Core, looked: Instant, settle_every: Duration) {
    // After a close there are no further notifications.
    if core.upkeep.is_ending() {
        return;
    }
    let left = LOOK.saturating_sub(looked.elapsed()).min(settle_every).max(MIN_WAIT);
    let _ = runtime::timeout(left, core.upkeep.woken()).await;
}

impl Core {
    fn wants_cleaning(&self, is_idle: bool) -> bool {
        let state = self.state.borrow();
        state.dirty_slots > 0
            && (is_idle
                || self.upkeep.wants_clean()
                || self.control.writes() != Mode::Writeback
                || state.dirty_slots * 100 >= HIGH * state.slots.len() as u64)
    }

    /// Writes a batch of slots back and flushes the origin. Returns false if no slot could be written back.
    pub async fn clean_some(self: &Rc<Self>) -> Result<bool> {
        // The origin may be changed only under parts that are dirty in the table. Only this batch's slots are
        // committed: committing everything written since the last flush would write the table far too often.
        let is_unknown = {
            let state = &mut *self.state.borrow_mut();
            let lacks = |slot: &u32| {
                let found = &state.slots[*slot as usize];
                found.block != FREE && found.dirty & !self.entry(*slot).dirty != 0
            };
            let unknown = state.dirty.iter().take(2 * SLOTS_AT_ONCE).copied().filter(lacks);
            state.for_cleaner.extend(unknown);
            !state.for_cleaner.is_empty()
        };
        if is_unknown || self.commits.is_committing() {
            self.commit(Level::Marks).await?;
        }
        if self.commits.is_committing() {
            return Ok(true);
        }
        let batch = self.choose();
        if batch.is_empty() {
            return Ok(false);
        }
        let outcome = self.write_back(&batch).await;
        let flushed = match &outcome {
            Ok(()) => self.slow.flush_now().await,
            Err(error) => Err(error.clone()),
        };
        {
            let state = &mut *self.state.borrow_mut();
            for cleaning in &batch {
                let found = state.slot(cleaning.slot);
                found.flags &= !CLEANING;
                let found = *found;
                if flushed.is_ok() {
                    let done = cleaning.parts & !found.rewritten;
                    state.set_parts(cleaning.slot, found.valid, found.dirty & !done);
                    state.queue_unsettled(cleaning.slot);
                    self.counters.write_backs.add(1);
                }
                if state.slot(cleaning.slot).dirty != 0 {
                    state.queue_dirty(cleaning.slot);
                }
            }
        }
        self.calls.wake();
        self.upkeep.wake();
        flushed.map(|()| true)
    }

    /// Takes the slots that have been dirty longest and sorts them by block.
    fn choose(&self) -> Vec<Cleaning> {
        let state = &mut *self.state.borrow_mut();
        let mut batch: Vec<Cleaning> = Vec::new();
        for _ in 0..state.dirty.len().min(4 * SLOTS_AT_ONCE) {
            if batch.len() == SLOTS_AT_ONCE {
                break;
            }
            let Some(number) = state.dirty.pop_front() else { break };
            let known = self.entry(number).dirty;
            let slot = state.slot(number);
            slot.flags &= !IN_DIRTY;
            if slot.block == FREE || slot.dirty == 0 {
                continue;
            }
            let parts = slot.dirty & known;
            if parts == 0 || slot.writers > 0 || slot.has(EXCLUSIVE | EVICTING | CLEANING) {
                state.queue_dirty(number);
                continue;
            }
            slot.flags |= CLEANING;
            slot.rewritten = 0;
            batch.push(Cleaning { slot: number, block: slot.block, parts });
        }
        batch.sort_unstable_by_key(|cleaning| cleaning.block);
        batch
    }

    async fn write_back(self: &Rc<Self>, batch: &[Cleaning]) -> Result<()> {
        let at_once = (self.control.migration_bytes() / self.shape.block).max(1) as usize;
        let slots = batch.iter().map(|cleaning| self.write_back_slot(*cleaning));
        runtime::join_limited(at_once, slots).await.into_iter().collect()
    }

    async fn write_back_slot(&self, cleaning: Cleaning) -> Result<()> {
        let base = self.table.layout().data(cleaning.slot);
        for run in runs(cleaning.parts) {
            let bytes = self.shape.bytes(cleaning.block, run);
            // A block may be larger than one request.
            let mut at = bytes.start;
            while at < bytes.end {
                let length = (bytes.end - at).min(MAX_AT_ONCE);
                let moved = self.fast.bytes(base + at, length).await;
                let data = moved.inspect_err(|_| self.counters.cache_errors.add(1))?;
                let target = self.on_slow(cleaning.block) + at;
                self.slow.write(target, data.into(), Durability::Visible).await?;
                self.counters.written_back_bytes.add(length);
                at += length;
            }
        }
        Ok(())
    }

    /// Records parts as clean in the table that were promoted, written to both sides, or written back. Slots
    /// that were written since the last call are left for the next one, unless `recent_too`.
    pub async fn settle(&self, recent_too: bool) {
        let list = std::mem::take(&mut self.state.borrow_mut().unsettled);
        if list.is_empty() {
            return;
        }
        let needs_flush = {
            let state = self.state.borrow();
            let is_old = |slot: &u32| self.slow.covers(state.slots[*slot as usize].epoch);
            !list.iter().all(is_old)
        };
        let flushed = match needs_flush {
            true => self.slow.flush_now().await,
            false => Ok(()),
        };
        {
            let state = &mut *self.state.borrow_mut();
            for number in list {
                let slot: &mut Slot = state.slot(number);
                slot.flags &= !IN_UNSETTLED;
                if slot.block == FREE {
                    continue;
                }
                let is_busy = slot.writers > 0 || slot.has(MARKING | EXCLUSIVE);
                let waits = is_busy || slot.has(RECENT) && !recent_too || flushed.is_err();
                slot.flags &= !RECENT;
                match waits {
                    true => state.queue_unsettled(number),
                    false => {
                        slot.flags &= !MARKED;
                        state.queue_for_flush(number);
                    }
                }
            }
        }
        if flushed.is_ok() {
            // A failure is kept in `failure`, which flushes and later changes return.
            let _ = self.commit(Level::All).await;
        }
    }
}
