//! Writes: to the cache, to both devices, or past the cache to the origin.

use super::Core;
use crate::commits::Level;
use crate::mode::Mode;
use crate::state::{CLEANING, EVICTING, EXCLUSIVE, MARKING, RECENT, State};
use block::{Call, Durability, Error, Payload, Result};
use eviction::Policy;
use runtime::range_lock::{RangeGuard, RangePlace};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// A write in flight, counted at its slot or as a write past the cache until this is dropped.
struct Writing {
    core: Rc<Core>,
    destination: Destination,
    from: u64,
    to: u64,
    /// Lock of the bytes on the origin. Writes of the same bytes are serialised, else both sides could end up
    /// different.
    _bytes: RangeGuard,
}

#[derive(Debug, Clone, Copy)]
enum Destination {
    /// Only the cache, in this slot.
    Fast(u32),
    /// Both devices; the cache in this slot.
    Both(u32),
    /// Only the origin, at this block, which isn't cached.
    Direct(u64),
}

impl Drop for Writing {
    fn drop(&mut self) {
        {
            let mut state = self.core.state.borrow_mut();
            match self.destination {
                Destination::Fast(slot) | Destination::Both(slot) => state.slot(slot).writers -= 1,
                Destination::Direct(block) => *state.direct(block) -= 1,
            }
        }
        self.core.calls.wake();
    }
}

/// Condition under which a write may begin.
enum Begin {
    /// Now.
    Now(Destination),
    /// After the slot has changed.
    Wait,
    /// After a mark is committed.
    Mark,
    /// After these parts of the slot, which is held exclusively now, are filled from the origin.
    Fill(u32, u64),
    /// After the block is evicted from this slot.
    Evict(u32),
    /// Never.
    Fail(Error),
}

impl Core {
    /// Writes bytes of the origin.
    pub fn write_bytes<'a>(
        self: &'a Rc<Self>,
        at: u64,
        payload: Payload,
        durability: Durability,
    ) -> Call<'a, Result<()>> {
        let (block, from) = (at / self.shape.block, at % self.shape.block);
        let length = payload.len() as u64;
        if let Err(error) = self.calls.begin() {
            return Call::ready(Err(error));
        }
        let run = self.state.borrow_mut().sequential.note(at, length);
        let core = self.clone();
        if from + length > self.shape.block {
            return runtime::carry_in(self.calls.group(), core.write_blocks(at, run, payload, durability));
        }
        // A write that waits for nothing begins here.
        let bytes = match self.calls.ranges().ask(at..at + length).try_take() {
            Ok(bytes) => bytes,
            asked => {
                return runtime::carry_in(
                    self.calls.group(),
                    core.write_piece(asked, (block, from), run, payload, durability),
                );
            }
        };
        match self.begin(block, from, from + length, run) {
            Begin::Now(destination) => {
                let writing = Writing { core, destination, from, to: from + length, _bytes: bytes };
                runtime::carry_in(self.calls.group(), write_now(writing, block, payload, durability))
            }
            other => {
                // The call may be dropped before its first poll, so the hold is released here and taken again
                // there.
                if let Begin::Fill(slot, _) = other {
                    self.state.borrow_mut().slot(slot).flags &= !EXCLUSIVE;
                }
                runtime::carry_in(
                    self.calls.group(),
                    core.write_piece(Ok(bytes), (block, from), run, payload, durability),
                )
            }
        }
    }

    async fn write_blocks(
        self: Rc<Self>,
        at: u64,
        run: u64,
        payload: Payload,
        durability: Durability,
    ) -> Result<()> {
        let mut writes = Vec::new();
        let mut done = 0;
        while done < payload.len() as u64 {
            let (block, from) = ((at + done) / self.shape.block, (at + done) % self.shape.block);
            let length = (self.shape.block - from).min(payload.len() as u64 - done);
            let piece = payload.slice(done as usize..(done + length) as usize);
            let bytes = self.calls.ranges().ask(at + done..at + done + length).try_take();
            writes.push(self.clone().write_piece(bytes, (block, from), run, piece, durability));
            done += length;
        }
        runtime::join_all(writes).await.into_iter().collect()
    }

    /// Writes a piece of one block, from byte `from` of it on, once its range is locked and it may begin.
    async fn write_piece(
        self: Rc<Self>,
        bytes: std::result::Result<RangeGuard, RangePlace>,
        (block, from): (u64, u64),
        run: u64,
        payload: Payload,
        durability: Durability,
    ) -> Result<()> {
        let to = from + payload.len() as u64;
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(asked) => asked.await,
        };
        loop {
            match self.begin(block, from, to, run) {
                Begin::Now(destination) => {
                    let writing = Writing { core: self.clone(), destination, from, to, _bytes: bytes };
                    return write_now(writing, block, payload, durability).await;
                }
                Begin::Wait => self.calls.changed().await,
                Begin::Mark => self.commit(Level::Marks).await?,
                Begin::Fail(error) => return Err(error),
                Begin::Evict(slot) => {
                    // If the block has become dirty meanwhile, the next round writes both devices.
                    self.evict_block(slot, block).await?;
                }
                Begin::Fill(slot, parts) => {
                    let filled = self.fill(slot, block, parts).await;
                    self.state.borrow_mut().slot(slot).flags &= !EXCLUSIVE;
                    self.calls.wake();
                    filled?;
                }
            }
        }
    }

    fn begin(&self, block: u64, from: u64, to: u64, run: u64) -> Begin {
        let state = &mut *self.state.borrow_mut();
        let mode = self.control.writes();
        let (slot, is_new) = match state.find(block) {
            Some(slot) => (slot, false),
            None => match self.allocate_for_write(state, block, run) {
                Some(slot) => (slot, true),
                None => {
                    self.counters.write_misses.add(1);
                    *state.direct(block) += 1;
                    return Begin::Now(Destination::Direct(block));
                }
            },
        };
        if !is_new {
            if let Err(error) = self.check_slot(state.slot(slot)) {
                return Begin::Fail(error);
            }
            let flags = state.slot(slot).flags;
            if flags & (EXCLUSIVE | EVICTING | MARKING) != 0 {
                return Begin::Wait;
            }
            // A dirty block can't be evicted: both devices are written until it has been written back.
            if mode == Mode::Passthrough && state.slot(slot).dirty == 0 {
                return Begin::Evict(slot);
            }
        }
        let touched = self.shape.touched(from, to);
        if self.mark(state, slot, touched) {
            return Begin::Mark;
        }
        let partial = touched & !self.shape.covered(block, from, to) & !state.slot(slot).valid;
        if partial != 0 {
            if state.slot(slot).writers > 0 {
                return Begin::Wait;
            }
            state.slot(slot).flags |= EXCLUSIVE;
            return Begin::Fill(slot, partial);
        }
        match is_new {
            true => self.counters.write_misses.add(1),
            false => {
                self.counters.write_hits.add(1);
                state.policy.hit(slot);
            }
        }
        let found = state.slot(slot);
        found.writers += 1;
        found.flags |= RECENT;
        if found.has(CLEANING) {
            found.rewritten |= touched;
        }
        match mode {
            Mode::Writeback => Begin::Now(Destination::Fast(slot)),
            _ => Begin::Now(Destination::Both(slot)),
        }
    }

    fn allocate_for_write(&self, state: &mut State, block: u64, run: u64) -> Option<u32> {
        if self.control.is_bypassed(run) {
            self.counters.bypassed.add(1);
            return None;
        }
        if !self.may_promote() {
            return None;
        }
        let slot = state.allocate(block);
        self.slot_was_taken(state.free.len());
        slot
    }
}

/// Writes to the destination, and updates the valid and dirty parts.
async fn write_now(writing: Writing, block: u64, payload: Payload, durability: Durability) -> Result<()> {
    let core = writing.core.clone();
    let slow_at = core.on_slow(block) + writing.from;
    match writing.destination {
        Destination::Direct(_) => core.slow.write(slow_at, payload, durability).await,
        Destination::Fast(slot) => {
            let fast_at = core.table.layout().data(slot) + writing.from;
            let written = core.fast.write(fast_at, payload, durability).await;
            let is_known = written_fast(&writing, slot, block, written.is_ok());
            drop(writing);
            written?;
            if durability == Durability::Durable && !is_known {
                core.commit(Level::All).await?;
                return core.flush_unrecorded_discards().await;
            }
            Ok(())
        }
        Destination::Both(slot) => {
            let on_fast = write_both(&writing, slot, block, payload, durability).await?;
            let touched = core.shape.touched(writing.from, writing.to);
            let counts = touched & core.entry(slot).dirty;
            let lost = counts & !core.state.borrow_mut().slot(slot).valid;
            drop(writing);
            // The cache is authoritative in the table although the write to it failed, or became
            // authoritative during the write, whose data may not be durable there.
            let is_unsafe = lost != 0 || on_fast == Durability::Visible && counts != 0;
            match durability {
                Durability::Durable if is_unsafe => core.make_durable().await,
                _ => Ok(()),
            }
        }
    }
}

/// Updates the parts after a write to the cache alone. Returns whether the touched parts are already durably
/// dirty in the table, or the write failed.
fn written_fast(writing: &Writing, slot: u32, block: u64, is_ok: bool) -> bool {
    let core = &writing.core;
    let touched = core.shape.touched(writing.from, writing.to);
    let covered = core.shape.covered(block, writing.from, writing.to);
    let state = &mut *core.state.borrow_mut();
    let found = *state.slot(slot);
    if !is_ok {
        core.counters.cache_errors.add(1);
        // Clean parts are still intact on the origin; dirty parts have undefined contents now. If another
        // write, of other bytes of the same part, is in flight to the cache, the cache remains authoritative
        // for the whole part.
        let clean = touched & found.clean();
        match found.writers {
            1 => state.set_parts(slot, found.valid & !clean, found.dirty),
            _ => state.set_parts(slot, found.valid, found.dirty | clean),
        }
        state.slot(slot).epoch = core.slow.now();
        state.queue_for_flush(slot);
        return true;
    }
    // Partly written parts that were discarded meanwhile are not valid: the origin is authoritative for them.
    let written = covered | touched & found.valid;
    state.set_parts(slot, found.valid | written, found.dirty | written);
    if found.has(CLEANING) {
        state.slot(slot).rewritten |= touched;
    }
    let known = core.entry(slot);
    if known.block == block && known.dirty & touched == touched {
        // An entry of a commit in flight may not be durable yet; one of a failed commit may never be.
        return !core.commits.is_committing() && !core.commits.has_failed();
    }
    state.queue_for_flush(slot);
    false
}

/// Writes both sides at the same time. Returns the durability of the write to the fast device.
async fn write_both(
    writing: &Writing,
    slot: u32,
    block: u64,
    payload: Payload,
    durability: Durability,
) -> Result<Durability> {
    let core = &writing.core;
    let (from, to) = (writing.from, writing.to);
    let touched = core.shape.touched(from, to);
    let fast_at = core.table.layout().data(slot) + from;
    // If a part is dirty in the table, the write to the cache also needs the requested durability.
    let fast_durability = match core.entry(slot).dirty & touched {
        0 => Durability::Visible,
        _ => durability,
    };
    let fast = core.fast.medium().write(fast_at, payload.clone(), fast_durability);
    let slow = core.slow.medium().write(core.on_slow(block) + from, payload, durability);
    let (fast, slow) = both(fast, slow).await;
    core.fast.note();
    let epoch = core.slow.note();
    let state = &mut *core.state.borrow_mut();
    let found = *state.slot(slot);
    if found.has(CLEANING) {
        state.slot(slot).rewritten |= touched;
    }
    state.slot(slot).epoch = epoch;
    if fast.is_ok() && slow.is_ok() {
        state.set_parts(slot, found.valid | core.shape.covered(block, from, to), found.dirty);
        state.queue_unsettled(slot);
        return Ok(fast_durability);
    }
    // The sides may differ: clean parts are dropped from the cache.
    state.set_parts(slot, found.valid & !(touched & !found.dirty), found.dirty);
    state.queue_for_flush(slot);
    if fast.is_err() {
        core.counters.cache_errors.add(1);
    }
    if slow.is_err() {
        core.counters.origin_errors.add(1);
    }
    match found.dirty & touched {
        // No touched part is dirty: only the write to the origin matters.
        0 => slow,
        _ => slow.and(fast),
    }
    .map(|()| fast_durability)
}

/// Waits for two calls at the same time, without an allocation.
async fn both<A, B>(mut first: Call<'_, A>, mut second: Call<'_, B>) -> (A, B) {
    let (mut a, mut b) = (None, None);
    poll_fn(move |context| {
        if a.is_none()
            && let Poll::Ready(value) = Pin::new(&mut first).poll(context)
        {
            a = Some(value);
        }
        if b.is_none()
            && let Poll::Ready(value) = Pin::new(&mut second).poll(context)
        {
            b = Some(value);
        }
        match (a.take(), b.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (one, other) => {
                (a, b) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}
