//! Discards and zeroings: carried out on the origin; the cache drops the covered parts.

use super::Core;
use crate::commits::Level;
use crate::state::{CLEANING, EVICTING, EXCLUSIVE, MARKING, RECENT};
use block::{Durability, Result, ZeroMode};
use runtime::range_lock::RangeGuard;
use std::rc::Rc;

/// Number of blocks that are held at a time.
const BLOCKS_AT_ONCE: u64 = 1024;

/// Operation on a range of the origin.
#[derive(Debug, Clone, Copy)]
pub enum Zeroing {
    Discard,
    Zeroes(ZeroMode),
}

/// Slots that are held exclusively until this is dropped. No slot is allocated meanwhile.
struct Held {
    core: Rc<Core>,
    slots: Vec<u32>,
    _bytes: RangeGuard,
}

impl Drop for Held {
    fn drop(&mut self) {
        {
            let mut state = self.core.state.borrow_mut();
            state.wide -= 1;
            for slot in &self.slots {
                state.slot(*slot).flags &= !EXCLUSIVE;
            }
        }
        self.core.calls.wake();
    }
}

impl Core {
    /// Discards or zeroes these bytes.
    pub async fn zero(
        self: Rc<Self>,
        from: u64,
        to: u64,
        zeroing: Zeroing,
        durability: Durability,
    ) -> Result<()> {
        self.calls.begin()?;
        let mut at = from;
        while at < to {
            let end = ((at / self.shape.block + BLOCKS_AT_ONCE) * self.shape.block).min(to);
            self.zero_some(at, end, zeroing, durability).await?;
            at = end;
            runtime::yield_now().await;
        }
        match durability {
            Durability::Visible => Ok(()),
            // The discarded parts may still be dirty in the table.
            Durability::Durable => self.make_durable().await,
        }
    }

    async fn zero_some(
        self: &Rc<Self>,
        from: u64,
        to: u64,
        zeroing: Zeroing,
        durability: Durability,
    ) -> Result<()> {
        let held = self.hold(from, to).await?;
        let inside = |block: u64| {
            let start = block * self.shape.block;
            (from.max(start) - start)..(to - start).min(self.shape.block)
        };
        let mut outcome = Ok(());
        for slot in &held.slots {
            let block = self.state.borrow_mut().slot(*slot).block;
            outcome = self.zero_edges(*slot, block, inside(block)).await;
            if outcome.is_err() {
                // Some edges may have been zeroed: clean parts are dropped from the cache below, as after an
                // error of the origin.
                self.counters.cache_errors.add(1);
                break;
            }
        }
        if outcome.is_ok() {
            outcome = match zeroing {
                Zeroing::Discard => self.slow.medium().discard(from, to - from).await,
                Zeroing::Zeroes(mode) => {
                    self.slow.medium().write_zeroes(from, to - from, mode, durability).await
                }
            };
            if outcome.is_err() {
                self.counters.origin_errors.add(1);
            }
        }
        let epoch = self.slow.note();
        let state = &mut *self.state.borrow_mut();
        for slot in &held.slots {
            let found = *state.slot(*slot);
            let bytes = inside(found.block);
            let parts = match outcome.is_ok() {
                true => self.shape.covered(found.block, bytes.start, bytes.end),
                // The origin may contain old bytes or zeros; dirty parts stay in the cache.
                false => self.shape.touched(bytes.start, bytes.end) & !found.dirty,
            };
            if found.dirty & parts & !self.entry(*slot).dirty != 0 {
                state.unrecorded_discard = epoch;
            }
            state.set_parts(*slot, found.valid & !parts, found.dirty & !parts);
            state.slot(*slot).epoch = epoch;
            state.slot(*slot).flags |= RECENT;
            state.queue_for_flush(*slot);
        }
        outcome
    }

    /// Holds all slots of these bytes exclusively once they are idle, in the order of their blocks so that
    /// two calls can't deadlock, and marks them, so that none of their parts is clean in the table.
    async fn hold(self: &Rc<Self>, from: u64, to: u64) -> Result<Held> {
        let bytes = self.calls.ranges().ask(from..to).await;
        self.state.borrow_mut().wide += 1;
        let mut held = Held { core: self.clone(), slots: Vec::new(), _bytes: bytes };
        let mut marks = false;
        for block in from / self.shape.block..to.div_ceil(self.shape.block) {
            loop {
                {
                    let state = &mut *self.state.borrow_mut();
                    let Some(number) = state.find(block) else { break };
                    let slot = state.slot(number);
                    self.check_slot(slot)?;
                    if slot.writers == 0 && !slot.has(EXCLUSIVE | EVICTING | MARKING | CLEANING) {
                        slot.flags |= EXCLUSIVE;
                        held.slots.push(number);
                        marks |= self.mark(state, number, u64::MAX);
                        break;
                    }
                }
                self.calls.changed().await;
            }
        }
        if marks {
            self.commit(Level::Marks).await?;
        }
        Ok(held)
    }

    /// Zeroes the cached bytes of parts that are only partly in the range.
    async fn zero_edges(&self, slot: u32, block: u64, bytes: std::ops::Range<u64>) -> Result<()> {
        let found = *self.state.borrow_mut().slot(slot);
        let covered = self.shape.covered(block, bytes.start, bytes.end);
        let edges = self.shape.touched(bytes.start, bytes.end) & !covered & found.valid;
        for run in crate::shape::runs(edges) {
            let part = self.shape.bytes(block, run);
            let (start, end) = (part.start.max(bytes.start), part.end.min(bytes.end));
            let at = self.table.layout().data(slot) + start;
            let mode = ZeroMode::KeepAllocated;
            self.fast.write_zeroes(at..at + (end - start), mode, Durability::Visible).await?;
        }
        Ok(())
    }
}
