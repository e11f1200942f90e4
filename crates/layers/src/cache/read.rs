//! Reads: from the cache what it has, from the origin what it hasn't, and what is worth it comes into the cache.

use super::core::{Core, Mode};
use super::policy::Policy;
use super::shape::runs;
use super::state::{EXCLUSIVE, LEAVING, RECENT};
use block::{Buffer, Call, Durability, Error, Payload, ReadOutcome, Result};
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;

/// How much comes into the cache at once where blocks are large, in bytes.
const WINDOW: u64 = 256 << 10;

/// A reader's hold on a slot: its block stays.
struct Pin<'a> {
    core: &'a Core,
    slot: u32,
}

impl<'a> Pin<'a> {
    /// The caller has counted it.
    fn new(core: &'a Core, slot: u32) -> Self {
        Pin { core, slot }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.core.state.borrow_mut().slot(self.slot).readers -= 1;
        self.core.slot_changed();
    }
}

/// Where the bytes of a read are.
enum Found {
    /// All in the cache.
    Fast(u32),
    /// None in the cache.
    Slow,
    /// Some parts, these, are.
    Both(u32, u64),
    /// None, and the block, of which this is to be read, has just got this slot.
    Promote(u32, Range<u64>),
}

impl Core {
    /// Reads bytes of the origin.
    pub fn read(self: &Rc<Self>, at: u64, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        let (block, from) = (at / self.shape.block, at % self.shape.block);
        let length = buffer.len() as u64;
        self.requests.set(self.requests.get() + 1);
        if let Err(error) = self.check_open() {
            return Call::ready((Err(error), buffer));
        }
        if from + length > self.shape.block {
            return Call::new(self.read_blocks(at, buffer));
        }
        let run = self.state.borrow_mut().sequential.note(at, length);
        self.read_piece(block, from, run, buffer)
    }

    async fn read_blocks(self: &Rc<Self>, at: u64, buffer: Buffer) -> ReadOutcome {
        let run = self.state.borrow_mut().sequential.note(at, buffer.len() as u64);
        let (mut at, end) = (at, at + buffer.len() as u64);
        let pieces = std::iter::from_fn(|| {
            let (block, from) = (at / self.shape.block, at % self.shape.block);
            let bytes = (self.shape.block - from).min(end - at);
            at += bytes;
            (bytes > 0).then_some((bytes as usize, (block, from)))
        });
        runtime::read_pieces(buffer, pieces, |(block, from), piece| self.read_piece(block, from, run, piece))
            .await
    }

    /// Reads a piece that lies in one block.
    fn read_piece(self: &Rc<Self>, block: u64, from: u64, run: u64, buffer: Buffer) -> Call<'_, ReadOutcome> {
        let to = from + buffer.len() as u64;
        match self.find(block, from, to, run) {
            Found::Fast(slot) => {
                let pin = Pin::new(self, slot);
                Call::new(async move {
                    let at = self.table.layout().data(slot) + from;
                    let (outcome, buffer) = self.fast.read(at, buffer).await;
                    match outcome {
                        Ok(()) => (outcome, buffer),
                        Err(error) => self.read_again(&pin, block, from, error, buffer).await,
                    }
                })
            }
            Found::Slow => self.slow.read(self.on_slow(block) + from, buffer),
            Found::Both(slot, there) => Call::new(self.read_both(slot, block, from, there, buffer)),
            Found::Promote(slot, window) => {
                let (core, begun) = (self.clone(), Promotion { core: self.clone(), slot, window });
                runtime::carry_in(&self.calls, async move { core.promote(begun, block, from, buffer).await })
            }
        }
    }

    fn find(&self, block: u64, from: u64, to: u64, run: u64) -> Found {
        let state = &mut *self.state.borrow_mut();
        let mode = self.mode.get();
        let Some(number) = state.find(block) else {
            self.counters.read_misses.add(1);
            return self.admit(state, block, from, to, run);
        };
        let touched = self.shape.touched(from, to);
        let slot = &mut state.slots[number as usize];
        let there = match (slot.has(LEAVING), mode) {
            (true, _) => 0,
            (_, Mode::Passthrough) => slot.dirty & touched,
            _ => slot.valid & touched,
        };
        if there == 0 {
            self.counters.read_misses.add(1);
            return Found::Slow;
        }
        slot.readers += 1;
        state.policy.hit(number);
        if there == touched {
            self.counters.read_hits.add(1);
            return Found::Fast(number);
        }
        self.counters.read_misses.add(1);
        Found::Both(number, there)
    }

    /// Whether a block that isn't there comes in.
    fn admit(&self, state: &mut super::state::State, block: u64, from: u64, to: u64, run: u64) -> Found {
        let limit = self.sequential_threshold.get();
        if limit > 0 && run >= limit {
            self.counters.bypassed.add(1);
            return Found::Slow;
        }
        let length = self.shape.length(block);
        let start = from / WINDOW * WINDOW;
        let window = start..to.next_multiple_of(WINDOW).min(length);
        let bytes = window.end - window.start;
        if !self.takes_blocks() || !self.may_migrate(bytes) {
            return Found::Slow;
        }
        let Some(slot) = state.allocate(block) else {
            self.slot_was_taken(0);
            return Found::Slow;
        };
        state.slot(slot).flags |= EXCLUSIVE;
        self.migrating.set(self.migrating.get() + bytes);
        self.slot_was_taken(state.free.len());
        Found::Promote(slot, window)
    }

    /// What the cache can't read, the origin may have.
    async fn read_again(
        &self,
        pin: &Pin<'_>,
        block: u64,
        from: u64,
        error: Error,
        buffer: Buffer,
    ) -> ReadOutcome {
        self.counters.cache_errors.add(1);
        let touched = self.shape.touched(from, from + buffer.len() as u64);
        if self.state.borrow_mut().slot(pin.slot).dirty & touched != 0 {
            let text = format!("the cache can't read what only it has, block {block}: {}", error.detail());
            return (Err(error.with_detail(text)), buffer);
        }
        self.slow.read(self.on_slow(block) + from, buffer).await
    }

    /// Reads what is partly there.
    async fn read_both(
        self: &Rc<Self>,
        slot: u32,
        block: u64,
        from: u64,
        there: u64,
        buffer: Buffer,
    ) -> ReadOutcome {
        let pin = Pin::new(self, slot);
        let to = from + buffer.len() as u64;
        let missing = self.shape.touched(from, to) & !there;
        let mut pieces: SmallVec<[(Range<u64>, bool); 8]> = SmallVec::new();
        let bytes = |run: Range<u64>| {
            let bytes = self.shape.bytes(block, run);
            bytes.start.max(from)..bytes.end.min(to)
        };
        pieces.extend(runs(there).map(|run| (bytes(run), true)));
        pieces.extend(runs(missing).map(|run| (bytes(run), false)));
        pieces.sort_unstable_by_key(|(bytes, _)| bytes.start);
        let pieces = pieces.into_iter().map(|(bytes, is_fast)| {
            let length = (bytes.end - bytes.start) as usize;
            (length, (bytes.start, is_fast))
        });
        runtime::read_pieces(buffer, pieces, |(from, is_fast), piece| {
            self.read_run(&pin, block, from, is_fast, piece)
        })
        .await
    }

    async fn read_run(
        &self,
        pin: &Pin<'_>,
        block: u64,
        from: u64,
        is_fast: bool,
        buffer: Buffer,
    ) -> ReadOutcome {
        if !is_fast {
            return self.slow.read(self.on_slow(block) + from, buffer).await;
        }
        let at = self.table.layout().data(pin.slot) + from;
        let (outcome, buffer) = self.fast.read(at, buffer).await;
        match outcome {
            Ok(()) => (outcome, buffer),
            Err(error) => self.read_again(pin, block, from, error, buffer).await,
        }
    }

    /// Reads around what was asked for, answers, and then puts it in the cache.
    async fn promote(
        self: &Rc<Self>,
        promotion: Promotion,
        block: u64,
        from: u64,
        mut buffer: Buffer,
    ) -> ReadOutcome {
        let window = promotion.window.clone();
        let at = self.on_slow(block) + window.start;
        let Ok(found) = self.slow.bytes(at, window.end - window.start).await else {
            drop(promotion);
            return self.slow.read(self.on_slow(block) + from, buffer).await;
        };
        // Only a flush that begins from now on counts for it.
        let epoch = self.slow_epochs.now();
        let inside = (from - window.start) as usize;
        buffer.clear();
        buffer.append(&found.filled()[inside..inside + buffer.len()]);
        let (core, call) = (self.clone(), self.calls.enter());
        runtime::spawn(async move {
            let _call = call;
            let covered = core.shape.covered(block, window.start, window.end);
            if core.put(promotion.slot, window.start, found.into()).await.is_ok() {
                core.came(promotion.slot, covered, epoch);
                core.counters.promotions.add(1);
            }
            drop(promotion);
        })
        .detach();
        (Ok(()), buffer)
    }

    /// Writes to the cache what the origin has.
    async fn put(&self, slot: u32, from: u64, data: Payload) -> Result<()> {
        let at = self.table.layout().data(slot) + from;
        let written = self.fast.write(at, data, Durability::Visible).await;
        self.fast_epochs.note();
        written.inspect_err(|_| self.counters.cache_errors.add(1))
    }

    /// These parts have come from the origin, which was read then.
    fn came(&self, slot: u32, parts: u64, epoch: u64) {
        let mut state = self.state.borrow_mut();
        let found = *state.slot(slot);
        state.set_parts(slot, found.valid | parts, found.dirty);
        state.slot(slot).epoch = found.epoch.max(epoch);
        state.slot(slot).flags |= RECENT;
        state.queue_lazy(slot);
    }

    /// Brings parts in that are about to be written in part. The caller holds the slot exclusively.
    pub async fn fill(&self, slot: u32, block: u64, parts: u64) -> Result<()> {
        for run in runs(parts) {
            let covered = self.shape.bytes(block, run);
            let come = self.shape.touched(covered.start, covered.end);
            let at = self.on_slow(block) + covered.start;
            let found = self.slow.bytes(at, covered.end - covered.start).await?;
            let epoch = self.slow_epochs.now();
            self.put(slot, covered.start, found.into()).await?;
            self.came(slot, come, epoch);
        }
        Ok(())
    }
}

/// A block that comes in. Until it is dropped nobody writes to its slot.
struct Promotion {
    core: Rc<Core>,
    slot: u32,
    window: Range<u64>,
}

impl Drop for Promotion {
    fn drop(&mut self) {
        let moved = self.window.end - self.window.start;
        self.core.migrating.set(self.core.migrating.get() - moved);
        {
            let mut state = self.core.state.borrow_mut();
            state.slot(self.slot).flags &= !EXCLUSIVE;
            if state.slot(self.slot).valid == 0 {
                // It came to nothing, and the table never heard of it.
                state.policy.remove(self.slot);
                state.release(self.slot);
            }
        }
        self.core.slot_changed();
        self.core.upkeep.notify_all();
    }
}
