//! Writes: to the cache, to both sides, or past the cache.

use super::core::{Core, Level, Mode};
use super::policy::Policy;
use super::state::{CLEANING, EXCLUSIVE, LEAVING, MARKING, RECENT, State};
use block::{Call, Durability, Error, Payload, Result};
use runtime::range_lock::{RangeGuard, RangePlace};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// A write that has begun at a slot, or past all of them; it ends when this is dropped.
struct Writing {
    core: Rc<Core>,
    place: Place,
    from: u64,
    to: u64,
    /// Its bytes of the origin. Two writes of the same bytes never overlap in time: else the sides could end up different.
    _bytes: RangeGuard,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    /// Only the cache is written.
    Fast(u32),
    /// Both sides are.
    Both(u32),
    /// The block isn't in the cache.
    Direct(u64),
}

impl Drop for Writing {
    fn drop(&mut self) {
        {
            let mut state = self.core.state.borrow_mut();
            match self.place {
                Place::Fast(slot) | Place::Both(slot) => state.slot(slot).writers -= 1,
                Place::Direct(block) => *state.direct(block) -= 1,
            }
        }
        self.core.slot_changed();
    }
}

/// How a write may begin.
enum Begin {
    Now(Place),
    /// When something has changed.
    Wait,
    /// When the table has been told.
    Mark,
    /// When these parts of the slot, which this holds exclusively now, have come in.
    Fill(u32, u64),
    /// When the block has left this slot.
    Leave(u32),
    /// Never.
    Fail(Error),
}

impl Core {
    /// Writes bytes of the origin.
    pub fn write<'a>(
        self: &'a Rc<Self>,
        at: u64,
        payload: Payload,
        durability: Durability,
    ) -> Call<'a, Result<()>> {
        let (block, from) = (at / self.shape.block, at % self.shape.block);
        let length = payload.len() as u64;
        self.requests.set(self.requests.get() + 1);
        if let Err(error) = self.check_open() {
            return Call::ready(Err(error));
        }
        let run = self.state.borrow_mut().sequential.note(at, length);
        let core = self.clone();
        if from + length > self.shape.block {
            return runtime::carry_in(&self.calls, core.write_blocks(at, run, payload, durability));
        }
        // What has to wait for nothing begins at once.
        let bytes = match self.writing.ask(at..at + length).try_take() {
            Ok(bytes) => bytes,
            asked => {
                return runtime::carry_in(
                    &self.calls,
                    core.write_piece(asked, (block, from), run, payload, durability),
                );
            }
        };
        match self.begin(block, from, from + length, run) {
            Begin::Now(place) => {
                let writing = Writing { core, place, from, to: from + length, _bytes: bytes };
                runtime::carry_in(&self.calls, write_now(writing, block, payload, durability))
            }
            other => {
                // A call that is dropped before it has begun must leave nothing behind.
                if let Begin::Fill(slot, _) = other {
                    self.state.borrow_mut().slot(slot).flags &= !EXCLUSIVE;
                }
                runtime::carry_in(
                    &self.calls,
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
            let bytes = self.writing.ask(at + done..at + done + length).try_take();
            writes.push(self.clone().write_piece(bytes, (block, from), run, piece, durability));
            done += length;
        }
        runtime::join_all(writes).await.into_iter().collect()
    }

    /// Writes a piece that lies in one block, from this byte of it on, when it has its bytes and may begin.
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
                Begin::Now(place) => {
                    let writing = Writing { core: self.clone(), place, from, to, _bytes: bytes };
                    return write_now(writing, block, payload, durability).await;
                }
                Begin::Wait => self.changed.notified().await,
                Begin::Mark => self.commit(Level::Marks).await?,
                Begin::Fail(error) => return Err(error),
                Begin::Leave(slot) => {
                    // Where it has become dirty meanwhile, another way is found.
                    self.make_leave(slot, block).await?;
                }
                Begin::Fill(slot, parts) => {
                    let filled = self.fill(slot, block, parts).await;
                    self.state.borrow_mut().slot(slot).flags &= !EXCLUSIVE;
                    self.slot_changed();
                    filled?;
                }
            }
        }
    }

    fn begin(&self, block: u64, from: u64, to: u64, run: u64) -> Begin {
        let state = &mut *self.state.borrow_mut();
        let mode = self.writes();
        let (slot, is_new) = match state.find(block) {
            Some(slot) => (slot, false),
            None => match self.allocate_for_write(state, block, run) {
                Some(slot) => (slot, true),
                None => {
                    self.counters.write_misses.add(1);
                    *state.direct(block) += 1;
                    return Begin::Now(Place::Direct(block));
                }
            },
        };
        if !is_new {
            if let Err(error) = self.check_slot(state.slot(slot)) {
                return Begin::Fail(error);
            }
            let flags = state.slot(slot).flags;
            if flags & (EXCLUSIVE | LEAVING | MARKING) != 0 {
                return Begin::Wait;
            }
            // What is dirty is written to both sides until it has been written back.
            if mode == Mode::Passthrough && state.slot(slot).dirty == 0 {
                return Begin::Leave(slot);
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
            Mode::Writeback => Begin::Now(Place::Fast(slot)),
            _ => Begin::Now(Place::Both(slot)),
        }
    }

    fn allocate_for_write(&self, state: &mut State, block: u64, run: u64) -> Option<u32> {
        let limit = self.sequential_threshold.get();
        if limit > 0 && run >= limit {
            self.counters.bypassed.add(1);
            return None;
        }
        if !self.takes_blocks() {
            return None;
        }
        let slot = state.allocate(block);
        self.slot_was_taken(state.free.len());
        slot
    }
}

/// Writes where it was decided to, and notes what is where then.
async fn write_now(writing: Writing, block: u64, payload: Payload, durability: Durability) -> Result<()> {
    let core = writing.core.clone();
    let slow_at = core.on_slow(block) + writing.from;
    match writing.place {
        Place::Direct(_) => {
            let written = core.slow.write(slow_at, payload, durability).await;
            core.slow_epochs.note();
            written
        }
        Place::Fast(slot) => {
            let fast_at = core.table.layout().data(slot) + writing.from;
            let written = core.fast.write(fast_at, payload, durability).await;
            core.fast_epochs.note();
            let is_known = written_fast(&writing, slot, block, written.is_ok());
            drop(writing);
            written?;
            if durability == Durability::Durable && !is_known {
                core.commit(Level::All).await?;
                return core.flush_unsaid().await;
            }
            Ok(())
        }
        Place::Both(slot) => {
            let on_fast = write_both(&writing, slot, block, payload, durability).await?;
            let touched = core.shape.touched(writing.from, writing.to);
            let counts = touched & core.entry(slot).dirty;
            let lost = counts & !core.state.borrow_mut().slot(slot).valid;
            drop(writing);
            // The table says that the cache is authoritative: it says so still although the cache failed, or it has been told so during
            // the write, which may not be durable in the cache.
            let is_unsafe = lost != 0 || on_fast == Durability::Visible && counts != 0;
            match durability {
                Durability::Durable if is_unsafe => core.flush().await,
                _ => Ok(()),
            }
        }
    }
}

/// The cache was written, or it failed. Returns whether the table says durably already that the cache counts there.
fn written_fast(writing: &Writing, slot: u32, block: u64, is_ok: bool) -> bool {
    let core = &writing.core;
    let touched = core.shape.touched(writing.from, writing.to);
    let covered = core.shape.covered(block, writing.from, writing.to);
    let state = &mut *core.state.borrow_mut();
    let found = *state.slot(slot);
    if !is_ok {
        core.counters.cache_errors.add(1);
        // What both had is on the origin still; of what only the cache has, nothing is known any more. Another write of the same
        // part, of other bytes, may be on its way to the cache, though: then the cache counts for all of it.
        let clean = touched & found.clean();
        match found.writers {
            1 => state.set_parts(slot, found.valid & !clean, found.dirty),
            _ => state.set_parts(slot, found.valid, found.dirty | clean),
        }
        state.slot(slot).epoch = core.slow_epochs.now();
        state.queue_must(slot);
        return true;
    }
    // Parts that were discarded meanwhile, under a write of a bit of them, come from the origin again.
    let written = covered | touched & found.valid;
    state.set_parts(slot, found.valid | written, found.dirty | written);
    if found.has(CLEANING) {
        state.slot(slot).rewritten |= touched;
    }
    let known = core.entry(slot);
    if known.block == block && known.dirty & touched == touched {
        // What is being said may not be durable yet, and what was being said when the table failed may never be.
        return !core.is_committing.get() && core.failure.borrow().is_none();
    }
    state.queue_must(slot);
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
    // Where the table says that the cache counts, it has to be as durable there.
    let fast_durability = match core.entry(slot).dirty & touched {
        0 => Durability::Visible,
        _ => durability,
    };
    let fast = core.fast.write(fast_at, payload.clone(), fast_durability);
    let slow = core.slow.write(core.on_slow(block) + from, payload, durability);
    let (fast, slow) = both(fast, slow).await;
    core.fast_epochs.note();
    let epoch = core.slow_epochs.note();
    let state = &mut *core.state.borrow_mut();
    let found = *state.slot(slot);
    if found.has(CLEANING) {
        state.slot(slot).rewritten |= touched;
    }
    state.slot(slot).epoch = epoch;
    if fast.is_ok() && slow.is_ok() {
        state.set_parts(slot, found.valid | core.shape.covered(block, from, to), found.dirty);
        state.queue_lazy(slot);
        return Ok(fast_durability);
    }
    // The two may differ: the cache forgets what the origin has, too.
    state.set_parts(slot, found.valid & !(touched & !found.dirty), found.dirty);
    state.queue_must(slot);
    if fast.is_err() {
        core.counters.cache_errors.add(1);
    }
    if slow.is_err() {
        core.counters.origin_errors.add(1);
    }
    match found.dirty & touched {
        // The cache isn't needed.
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
