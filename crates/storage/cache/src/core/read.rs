//! Reads: cached parts from the fast device, other parts from the origin; parts that are admitted are
//! promoted.

use super::Core;
use super::hold::Held;
use crate::mode::Mode;
use crate::shape::{length_of, runs};
use crate::state::{EVICTING, EXCLUSIVE, MARKING, RECENT, State};
use block::extents;
use block::{BlockRange, Buffer, Call, Durability, Error, Extent, ExtentState, Payload, ReadOutcome, Result};
use eviction::Policy;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// Aligned window around a request from which parts of a large block are promoted, in bytes; always whole
/// parts.
const WINDOW: u64 = 256 << 10;
/// Largest request of a fill, in bytes.
const MAX_AT_ONCE: u64 = 1 << 20;

/// Prevents the eviction of a slot's block until it is dropped.
///
/// Pass it to the functions that read as an argument: an `async move` block that only uses its `slot` would
/// copy that number and drop the pin at once.
struct Pin<'a> {
    core: &'a Core,
    slot: u32,
}

impl<'a> Pin<'a> {
    fn new(core: &'a Core, state: &mut State, slot: u32) -> Self {
        state.slot(slot).readers += 1;
        Pin { core, slot }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.core.state.borrow_mut().slot(self.slot).readers -= 1;
        self.core.calls.wake();
    }
}

/// Location of the bytes of a read.
enum Found<'a> {
    /// All in the cache.
    Fast(Pin<'a>),
    /// None in the cache.
    Slow,
    /// These parts in the cache, others on the origin.
    Both(Pin<'a>, u64),
    /// These parts, perhaps none, in the cache; others are promoted.
    Promote(u64, Promotion),
}

impl Core {
    /// Reads bytes of the origin.
    pub fn read_bytes(self: &Rc<Self>, at: u64, buffer: Buffer) -> Call<'_, ReadOutcome> {
        let (block, from) = (at / self.shape.block, at % self.shape.block);
        let length = buffer.len() as u64;
        if let Err(error) = self.calls.begin() {
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
            Found::Fast(pin) => Call::new(self.read_hit(pin, block, from, buffer)),
            Found::Slow => self.slow.read(self.on_slow(block) + from, buffer),
            Found::Both(pin, there) => Call::new(self.read_both(pin, block, from, there, buffer)),
            Found::Promote(there, promotion) => {
                let core = self.clone();
                runtime::carry_in(self.calls.group(), async move {
                    core.promote(promotion, from, there, buffer).await
                })
            }
        }
    }

    fn find(self: &Rc<Self>, block: u64, from: u64, to: u64, run: u64) -> Found<'_> {
        let state = &mut *self.state.borrow_mut();
        let mode = self.control.mode();
        let Some(number) = state.find(block) else {
            self.counters.read_misses.add(1);
            let promotion = self.admit(state, block, None, from, to, run);
            return promotion.map_or(Found::Slow, |promotion| Found::Promote(0, promotion));
        };
        let touched = self.shape.touched(from, to);
        let slot = state.slots[number as usize];
        let there = match (slot.has(EVICTING), mode) {
            (true, _) => 0,
            (_, Mode::Passthrough) => slot.dirty & touched,
            _ => slot.valid & touched,
        };
        if there != 0 {
            state.policy.hit(number);
        }
        if there == touched {
            self.counters.read_hits.add(1);
            return Found::Fast(Pin::new(self, state, number));
        }
        self.counters.read_misses.add(1);
        if let Some(promotion) = self.admit(state, block, Some(number), from, to, run) {
            if there == 0 {
                state.policy.hit(number);
            }
            return Found::Promote(there, promotion);
        }
        if there == 0 {
            return Found::Slow;
        }
        Found::Both(Pin::new(self, state, number), there)
    }

    /// Whether absent parts of a block are promoted; `slot` is the block's, if it has one. Only parts
    /// adjacent to the request are.
    fn admit(
        self: &Rc<Self>,
        state: &mut State,
        block: u64,
        slot: Option<u32>,
        from: u64,
        to: u64,
        run: u64,
    ) -> Option<Promotion> {
        if self.control.is_bypassed(run) {
            self.counters.bypassed.add(1);
            return None;
        }
        let end = to.next_multiple_of(WINDOW).min(self.shape.length(block));
        let around = self.shape.touched(from / WINDOW * WINDOW, end);
        let parts = match slot {
            Some(slot) => around & !state.slots[slot as usize].valid,
            None => around,
        };
        let bytes = runs(parts).map(|run| self.shape.bytes(block, run)).map(length_of).sum();
        if !self.may_promote() || !self.calls.may_migrate(bytes, self.control.migration_bytes()) {
            return None;
        }
        let (slot, is_new) = match slot {
            Some(slot) => {
                let found = &state.slots[slot as usize];
                let is_held = found.writers > 0 || found.has(EXCLUSIVE | EVICTING | MARKING);
                // The cache may be changed only under parts that aren't clean in the table.
                if is_held || self.entry(slot).clean() & parts != 0 {
                    return None;
                }
                (slot, false)
            }
            None => {
                let Some(slot) = state.allocate(block) else {
                    self.slot_was_taken(0);
                    return None;
                };
                self.slot_was_taken(state.free.len());
                (slot, true)
            }
        };
        self.calls.begin_migration(bytes);
        Some(Promotion {
            core: self.clone(),
            held: Held::new(self, state, slot, is_new),
            block,
            parts,
            bytes,
        })
    }

    /// Reads from the origin after an error of the fast device; fails if a part is dirty.
    async fn read_fallback(
        &self,
        slot: u32,
        block: u64,
        from: u64,
        error: Error,
        buffer: Buffer,
    ) -> ReadOutcome {
        self.counters.cache_errors.add(1);
        let touched = self.shape.touched(from, from + buffer.len() as u64);
        if self.state.borrow_mut().slot(slot).dirty & touched != 0 {
            let text =
                format!("cache: dirty block {block} is unreadable on the fast device: {}", error.detail());
            return (Err(error.with_detail(text)), buffer);
        }
        self.slow.read(self.on_slow(block) + from, buffer).await
    }

    /// Returns the pieces of a read in order, each with whether it is read from the cache; the cache has the
    /// parts `there`.
    fn pieces(&self, block: u64, from: u64, to: u64, there: u64) -> SmallVec<[(Range<u64>, bool); 8]> {
        let missing = self.shape.touched(from, to) & !there;
        let mut pieces: SmallVec<[(Range<u64>, bool); 8]> = SmallVec::new();
        let bytes = |run: Range<u64>| {
            let bytes = self.shape.bytes(block, run);
            bytes.start.max(from)..bytes.end.min(to)
        };
        pieces.extend(runs(there).map(|run| (bytes(run), true)));
        pieces.extend(runs(missing).map(|run| (bytes(run), false)));
        pieces.sort_unstable_by_key(|(bytes, _)| bytes.start);
        pieces
    }

    /// Reads from the cache.
    async fn read_hit(&self, pin: Pin<'_>, block: u64, from: u64, buffer: Buffer) -> ReadOutcome {
        self.read_run(pin.slot, block, from, true, buffer).await
    }

    /// Reads the parts `there` from the cache, and others from the origin.
    async fn read_both(
        &self,
        pin: Pin<'_>,
        block: u64,
        from: u64,
        there: u64,
        buffer: Buffer,
    ) -> ReadOutcome {
        let to = from + buffer.len() as u64;
        let pieces = self.pieces(block, from, to, there);
        let pieces = pieces
            .into_iter()
            .map(|(bytes, is_fast)| (length_of(bytes.clone()) as usize, (bytes.start, is_fast)));
        runtime::read_pieces(buffer, pieces, |(from, is_fast), piece| {
            self.read_run(pin.slot, block, from, is_fast, piece)
        })
        .await
    }

    /// Reads a piece of a block from one side. The caller holds the slot.
    async fn read_run(&self, slot: u32, block: u64, from: u64, is_fast: bool, buffer: Buffer) -> ReadOutcome {
        if !is_fast {
            return self.slow.read(self.on_slow(block) + from, buffer).await;
        }
        let at = self.table.layout().data(slot) + from;
        let (outcome, buffer) = self.fast.read(at, buffer).await;
        match outcome {
            Ok(()) => (outcome, buffer),
            Err(error) => self.read_fallback(slot, block, from, error, buffer).await,
        }
    }

    /// Reads the requested bytes and the promoted parts around them, answers, and then writes the promoted
    /// parts to the cache. If parts are larger than the window, they are read after the answer.
    async fn promote(
        self: &Rc<Self>,
        promotion: Promotion,
        from: u64,
        there: u64,
        buffer: Buffer,
    ) -> ReadOutcome {
        let (slot, block, parts) = (promotion.held.slot(), promotion.block, promotion.parts);
        let to = from + buffer.len() as u64;
        let is_large = self.shape.part > WINDOW;
        let fetched = RefCell::new(SmallVec::new());
        let pieces = self.pieces(block, from, to, there).into_iter();
        let pieces = pieces.map(|(bytes, is_fast)| (length_of(bytes.clone()) as usize, (bytes, is_fast)));
        let read = |(bytes, is_fast): (Range<u64>, bool), piece| {
            let fetched = &fetched;
            async move {
                match is_fast || is_large {
                    true => self.read_run(slot, block, bytes.start, is_fast, piece).await,
                    false => self.read_around(block, bytes, parts, fetched, piece).await,
                }
            }
        };
        let outcome = runtime::read_pieces(buffer, pieces, read).await;
        let fetched = fetched.into_inner();
        if outcome.0.is_ok() && (is_large || !fetched.is_empty()) {
            let core = self.clone();
            self.calls
                .group()
                .spawn(async move { core.complete_promotion(promotion, fetched).await })
                .detach();
        }
        outcome
    }

    /// Reads the run of promoted parts around a range from the origin, adds it to `fetched`, and answers the
    /// range.
    async fn read_around(
        &self,
        block: u64,
        bytes: Range<u64>,
        parts: u64,
        fetched: &RefCell<SmallVec<[Fetched; 2]>>,
        mut piece: Buffer,
    ) -> ReadOutcome {
        let mut promoted = runs(parts).map(|run| self.shape.bytes(block, run));
        let run = promoted.find(|run| run.contains(&bytes.start)).unwrap_or_else(|| bytes.clone());
        let Ok(found) = self.slow.bytes(self.on_slow(block) + run.start, length_of(run.clone())).await else {
            return self.slow.read(self.on_slow(block) + bytes.start, piece).await;
        };
        // The data that was read is durable on the origin only after a flush that begins after this point.
        let epoch = self.slow.now();
        let inside = (bytes.start - run.start) as usize;
        piece.clear();
        piece.append(&found.filled()[inside..inside + piece.len()]);
        fetched.borrow_mut().push(Fetched { bytes: run, data: found.into(), epoch });
        (Ok(()), piece)
    }

    /// Writes promoted data to the cache; large parts are read only now.
    async fn complete_promotion(&self, promotion: Promotion, fetched: SmallVec<[Fetched; 2]>) {
        let (slot, block) = (promotion.held.slot(), promotion.block);
        let fill = async || {
            if fetched.is_empty() {
                return self.fill(slot, block, promotion.parts).await;
            }
            for Fetched { bytes, data, epoch } in &fetched {
                self.write_promoted(slot, bytes.start, data.clone()).await?;
                self.note_promoted(slot, self.shape.covered(block, bytes.start, bytes.end), *epoch);
            }
            Ok(())
        };
        if fill().await.is_ok() && promotion.held.is_new() {
            self.counters.promotions.add(1);
        }
    }

    /// Writes data of the origin to the cache.
    async fn write_promoted(&self, slot: u32, from: u64, data: Payload) -> Result<()> {
        let at = self.table.layout().data(slot) + from;
        let written = self.fast.write(at, data, Durability::Visible).await;
        written.inspect_err(|_| self.counters.cache_errors.add(1))
    }

    /// Notes parts as valid that were copied from the origin, which was read in this epoch.
    fn note_promoted(&self, slot: u32, parts: u64, epoch: u64) {
        let mut state = self.state.borrow_mut();
        let found = *state.slot(slot);
        state.set_parts(slot, found.valid | parts, found.dirty);
        state.slot(slot).epoch = found.epoch.max(epoch);
        state.slot(slot).flags |= RECENT;
        state.queue_unsettled(slot);
    }

    /// Copies parts from the origin to the slot, one piece at a time. The caller holds the slot exclusively.
    pub async fn fill(&self, slot: u32, block: u64, parts: u64) -> Result<()> {
        for run in runs(parts) {
            let covered = self.shape.bytes(block, run);
            let mut at = covered.start;
            while at < covered.end {
                let length = (covered.end - at).min(MAX_AT_ONCE);
                let found = self.slow.bytes(self.on_slow(block) + at, length).await?;
                self.write_promoted(slot, at, found.into()).await?;
                at += length;
            }
            // The data that was read is durable on the origin only after a flush that begins after this
            // point.
            let epoch = self.slow.now();
            self.note_promoted(slot, self.shape.touched(covered.start, covered.end), epoch);
        }
        Ok(())
    }
}

/// Data of a block that was read from the origin for a promotion.
struct Fetched {
    bytes: Range<u64>,
    data: Payload,
    /// Epoch of the origin at the end of the read.
    epoch: u64,
}

/// A promotion in flight. Its slot is held until this is dropped.
struct Promotion {
    core: Rc<Core>,
    held: Held,
    block: u64,
    parts: u64,
    /// Number of bytes of the parts, in flight between the devices.
    bytes: u64,
}

impl Drop for Promotion {
    fn drop(&mut self) {
        self.core.calls.end_migration(self.bytes);
    }
}

/// Limit of the cache blocks that are looked up for one answer about extents.
const MAX_LOOKED_UP: u64 = 1 << 16;

impl Core {
    /// Returns the state of a range: dirty parts are data, all
    /// others as on the origin, which is equal to clean parts.
    pub async fn known_extents(&self, range: BlockRange) -> Result<Vec<Extent>> {
        let shift = self.shape.shift;
        let (from, to) = (range.start.0 << shift, range.end().0 << shift);
        // The slots are examined before the origin: a part that is written back in between is data in both.
        let mut found = Vec::new();
        let mut add = |from: u64, to: u64, state| {
            if from < to {
                extents::add_run(&mut found, BlockRange::new(from >> shift, (to - from) >> shift), state);
            }
        };
        {
            let state = self.state.borrow();
            let (first, last) = (from / self.shape.block, to.div_ceil(self.shape.block));
            let last = if state.dirty_slots == 0 { first } else { last.min(first + MAX_LOOKED_UP) };
            let mut at = from;
            for block in first..last {
                let start = block * self.shape.block;
                let dirty = state.find(block).map_or(0, |slot| state.slots[slot as usize].dirty);
                for run in runs(dirty) {
                    let bytes = self.shape.bytes(block, run);
                    let (dirty_from, dirty_to) = ((start + bytes.start).max(at), (start + bytes.end).min(to));
                    if dirty_from < dirty_to {
                        add(at, dirty_from, None);
                        add(dirty_from, dirty_to, Some(ExtentState::Data));
                        at = dirty_to;
                    }
                }
                let end = (start + self.shape.block).min(to);
                add(at, end, None);
                at = at.max(end);
            }
            if state.dirty_slots == 0 {
                add(from, to, None);
            }
        }
        extents::of_runs(found, async |range: BlockRange| self.slow.extents(range, shift).await).await
    }
}
