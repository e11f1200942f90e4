//! Warming: lists cached blocks with their heat, and prefetches, heats or evicts blocks on request.
//!
//! # Promises
//! - A step is bounded: it ends after [`MAX_BYTES`] fetched, [`MAX_LOOKS`] examined pieces, or [`LONGEST`] of
//!   time. Its answer says how many bytes are done; the caller continues from there. No state is kept between
//!   steps, so a caller stops the warming by sending no further step.
//! - Prefetched blocks take free slots, or evict clean, idle blocks of lower levels ([`Heat::level`]).
//!   Without such a slot a block isn't fetched. The search for victims leaves the policy's order unchanged.
//! - Prefetching has its own limit of data in flight, a quarter of `migration_threshold`, and takes nothing
//!   from promotions of clients' reads. A slot is closed to writers only while one piece of its block is
//!   filled.
//! - Blocks in use or being evicted are skipped after bounded waits, and counted.
//!
//! Left to the callers: the order and rate of requests, and files of saved heat.

use super::Core;
use super::hold::Held;
use crate::commits::Level;
use crate::ranges::{ByteRange, WarmRange};
use crate::shape::{Shape, length_of, runs};
use crate::state::{EVICTING, EXCLUSIVE, FREE, MARKING, State, is_idle};
use block::{Error, Result};
use eviction::{Heat, Policy};
use serde_json::json;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

/// Limit of bytes that one step fetches; a single piece may exceed it.
const MAX_BYTES: u64 = 16 << 20;
/// Limit of pieces of blocks that one step examines.
const MAX_LOOKS: usize = 1 << 16;
/// Time after which a step begins no further piece.
const LONGEST: Duration = Duration::from_secs(1);
/// Largest number of slots that one answer lists.
const MAX_LISTED: u32 = 4096;
/// Number of slots or pieces that are examined between two yields to other tasks.
const SLICE: usize = 512;
/// Largest number of blocks that are fetched, or evicted, at once.
const AT_ONCE: usize = 64;
/// Size of a piece of a large block in bytes; a part if that is larger.
const PIECE: u64 = 256 << 10;
/// Number of tries to hold a block in use, and wait before the next try.
const TRIES: usize = 5;
const PATIENCE: Duration = Duration::from_millis(10);
/// Longest wait for a block in use that is to be evicted.
const EVICT_PATIENCE: Duration = Duration::from_millis(500);
/// Least number of cold slots of each level that one search keeps.
const REMEMBERED: usize = 4096;

/// Lists slots as JSON, one row each: block, valid parts, dirty parts, heat.
pub(crate) async fn list(core: &Core, from: u32, count: u32) -> Result<String> {
    let slots = core.state.borrow().slots.len() as u32;
    if from > slots {
        return Err(Error::invalid(format!(
            "warm list {from}: out of range; expected a slot in 0..={slots}"
        )));
    }
    let to = from.saturating_add(count.min(MAX_LISTED)).min(slots);
    let shape = &core.shape;
    let mut text = format!(
        "{{\"bytes\":{},\"block_size\":{},\"part_size\":{},\"total_blocks\":{slots},\"next\":",
        shape.origin, shape.block, shape.part
    );
    // Writing to a string doesn't fail.
    let _ = match to == slots {
        true => write!(text, "null,\"blocks\":["),
        false => write!(text, "{to},\"blocks\":["),
    };
    let mut comma = "";
    for slice in (from..to).step_by(SLICE) {
        {
            let state = core.state.borrow();
            for number in slice..(slice + SLICE as u32).min(to) {
                let slot = &state.slots[number as usize];
                if slot.block == FREE || slot.valid == 0 || slot.has(EVICTING) {
                    continue;
                }
                let heat = state.policy.heat(number);
                let _ = write!(text, "{comma}[{},{},{},\"{heat}\"]", slot.block, slot.valid, slot.dirty);
                comma = ",";
            }
        }
        runtime::yield_now().await;
    }
    text.push_str("]}");
    Ok(text)
}

/// Byte range of one block, relative to its start, with a heat.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    block: u64,
    from: u64,
    to: u64,
    heat: Heat,
}

impl Piece {
    fn length(&self) -> u64 {
        self.to - self.from
    }
}

/// Iterator over the requested ranges in pieces of blocks, in order.
struct Pieces {
    shape: Shape,
    /// Alignment and largest length of a piece, in bytes.
    step: u64,
    ranges: std::vec::IntoIter<WarmRange>,
    range: Option<WarmRange>,
    /// Requested bytes past the origin's end.
    past_end: u64,
}

impl Pieces {
    fn new(shape: Shape, ranges: Vec<WarmRange>) -> Self {
        Pieces { shape, step: step(&shape), ranges: ranges.into_iter(), range: None, past_end: 0 }
    }

    /// Returns the number of requested bytes past the origin's end since the last call.
    fn take_past_end(&mut self) -> u64 {
        std::mem::take(&mut self.past_end)
    }
}

/// Returns the length of pieces: a whole block, or [`PIECE`], or a part if that is larger.
fn step(shape: &Shape) -> u64 {
    match shape.block <= PIECE {
        true => shape.block,
        false => PIECE.max(shape.part),
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        loop {
            let mut range = match self.range.take() {
                Some(range) => range,
                None => self.ranges.next()?,
            };
            let end = range.bytes.end.min(self.shape.origin);
            if range.bytes.start >= end {
                self.past_end += range.bytes.end - range.bytes.start;
                continue;
            }
            let (block, from) = (range.bytes.start / self.shape.block, range.bytes.start % self.shape.block);
            let base = block * self.shape.block;
            let to = ((from / self.step + 1) * self.step).min(self.shape.block).min(end - base);
            range.bytes.start = base + to;
            let heat = range.heat;
            self.range = (!range.bytes.is_empty()).then_some(range);
            return Some(Piece { block, from, to, heat });
        }
    }
}

/// Outcome for requested bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Fetched,
    Present,
    NoRoom,
    Busy,
    Failed,
}

/// Progress of a step, in requested bytes, by outcome in the order of [`Outcome`].
#[derive(Debug, Default)]
struct Fetched {
    outcomes: [u64; 5],
    past_end: u64,
    error: Option<Error>,
}

impl Fetched {
    fn add(&mut self, outcome: Outcome, bytes: u64) {
        self.outcomes[outcome as usize] += bytes;
    }

    fn answer(&self) -> String {
        let [fetched, present, no_room, busy, failed] = self.outcomes;
        let done = self.outcomes.iter().sum::<u64>() + self.past_end;
        let mut answer = json!({
            "done": done, "fetched": fetched, "present": present, "no_room": no_room, "busy": busy, "failed": failed,
            "past_end": self.past_end,
        });
        if let Some(error) = &self.error {
            answer["error"] = error.to_string().into();
        }
        answer.to_string()
    }
}

/// Remaining limits of this step.
struct Budget {
    began: runtime::Instant,
    looks: usize,
    bytes: u64,
}

impl Budget {
    fn new() -> Self {
        Budget { began: runtime::now(), looks: MAX_LOOKS, bytes: MAX_BYTES }
    }

    fn is_left(&self) -> bool {
        self.looks > 0 && self.bytes > 0 && self.began.elapsed() < LONGEST
    }
}

pub(crate) async fn fetch(core: Rc<Core>, ranges: Vec<WarmRange>) -> Result<String> {
    let mut pieces = Pieces::new(core.shape, ranges).peekable_by_level();
    let mut fetched = Fetched::default();
    let mut budget = Budget::new();
    while budget.is_left() && !pieces.is_at_end() {
        core.check_fetches()?;
        let missing = core.choose_pieces(&mut pieces, &mut fetched, &mut budget);
        if !missing.is_empty() {
            core.fetch_pieces(missing, &mut fetched).await?;
        }
        runtime::yield_now().await;
    }
    fetched.past_end = pieces.pieces.take_past_end();
    Ok(fetched.answer())
}

/// Pieces, peekable by level.
struct ByLevel {
    pieces: Pieces,
    next: Option<Piece>,
}

impl Pieces {
    fn peekable_by_level(mut self) -> ByLevel {
        let next = self.next();
        ByLevel { pieces: self, next }
    }
}

impl ByLevel {
    fn is_at_end(&self) -> bool {
        self.next.is_none()
    }

    /// Returns the next piece if it has this level; with `None`, of any level.
    fn next_on(&mut self, level: Option<u8>) -> Option<Piece> {
        let fits =
            self.next.as_ref().is_some_and(|next| level.is_none_or(|level| next.heat.level() == level));
        match fits {
            true => std::mem::replace(&mut self.next, self.pieces.next()),
            false => None,
        }
    }
}

/// Result of a try to hold a block's slot.
enum Hold {
    /// The whole piece is cached.
    Present,
    /// No slot is available.
    NoRoom,
    /// The block is in use; try again after a change.
    Busy,
    /// Try again after a mark is committed.
    Mark,
    /// The slot is held; these parts are missing.
    Fill(Held, u64),
}

impl Core {
    fn check_fetches(&self) -> Result<()> {
        self.calls.check_open()?;
        self.commits.check()?;
        match self.may_promote() {
            true => Ok(()),
            false => Err(Error::invalid(
                "warm fetch: the cache admits no blocks: a detach is in progress, or the mode is passthrough; send \
                 \"cancel\", or \"mode\" with another mode, first",
            )),
        }
    }

    /// Returns the next missing pieces of one level, and raises the heat of cached ones.
    fn choose_pieces(&self, pieces: &mut ByLevel, fetched: &mut Fetched, budget: &mut Budget) -> Vec<Piece> {
        let state = &mut *self.state.borrow_mut();
        let mut missing: Vec<Piece> = Vec::new();
        for _ in 0..SLICE {
            let is_enough = missing.len() == AT_ONCE || budget.looks == 0 || budget.bytes == 0;
            let level = missing.first().map(|piece| piece.heat.level());
            let Some(piece) = (!is_enough).then(|| pieces.next_on(level)).flatten() else { break };
            budget.looks -= 1;
            let wanted = self.shape.touched(piece.from, piece.to);
            let found =
                state.find(piece.block).filter(|slot| wanted & !state.slots[*slot as usize].valid == 0);
            match found {
                Some(slot) => {
                    warm_up(state, slot, piece.heat);
                    fetched.add(Outcome::Present, piece.length());
                }
                None => {
                    budget.bytes = budget.bytes.saturating_sub(piece.length());
                    missing.push(piece);
                }
            }
        }
        missing
    }

    /// Fetches pieces of one level.
    async fn fetch_pieces(self: &Rc<Self>, missing: Vec<Piece>, fetched: &mut Fetched) -> Result<()> {
        let lacking = {
            let state = self.state.borrow();
            let lacks = |piece: &&Piece| state.find(piece.block).is_none();
            missing.iter().filter(lacks).map(|piece| piece.block).collect::<BTreeSet<_>>().len()
        };
        let level = missing.first().map_or(0, |piece| piece.heat.level());
        // The evictor keeps up to this number of slots free for promotions; only slots beyond it are
        // available.
        let kept = self.low_water() + self.low_water() / 2;
        let mut room = self.state.borrow().free.len().saturating_sub(kept);
        if room < lacking {
            room += self.displace(lacking - room, level).await?;
        }
        let room = Cell::new(room);
        // Pieces of one block are adjacent in the list.
        let of_blocks = missing.chunk_by(|one, other| one.block == other.block);
        let at_once = (self.control.migration_bytes() / 4 / step(&self.shape)).max(1) as usize;
        let calls = of_blocks.map(|pieces| self.fetch_block(pieces, &room));
        for (piece, outcome) in runtime::join_limited(at_once, calls).await.into_iter().flatten() {
            match outcome {
                Ok((Outcome::Fetched, bytes)) => {
                    fetched.add(Outcome::Fetched, bytes);
                    fetched.add(Outcome::Present, piece.length() - bytes);
                }
                Ok((outcome, _)) => fetched.add(outcome, piece.length()),
                Err(error) => {
                    fetched.add(Outcome::Failed, piece.length());
                    fetched.error.get_or_insert(error);
                }
            }
        }
        Ok(())
    }

    async fn fetch_block<'a>(
        self: &Rc<Self>,
        pieces: &'a [Piece],
        room: &Cell<usize>,
    ) -> Vec<(&'a Piece, Result<(Outcome, u64)>)> {
        let mut outcomes = Vec::with_capacity(pieces.len());
        for piece in pieces {
            outcomes.push((piece, self.fetch_piece(piece, room).await));
        }
        outcomes
    }

    /// Fetches the missing parts of a piece. Returns the number of the piece's bytes in them.
    async fn fetch_piece(self: &Rc<Self>, piece: &Piece, room: &Cell<usize>) -> Result<(Outcome, u64)> {
        for _ in 0..TRIES {
            if self.check_fetches().is_err() {
                // The next step returns the reason.
                break;
            }
            match self.hold_for(piece, room) {
                Hold::Present => return Ok((Outcome::Present, 0)),
                Hold::NoRoom => return Ok((Outcome::NoRoom, 0)),
                Hold::Mark => self.commit(Level::Marks).await?,
                Hold::Busy => {
                    let _ = runtime::timeout(PATIENCE, self.calls.changed()).await;
                }
                Hold::Fill(held, parts) => {
                    self.fill(held.slot(), piece.block, parts).await?;
                    let all: u64 =
                        runs(parts).map(|run| self.shape.bytes(piece.block, run)).map(length_of).sum();
                    self.counters.prefetched_bytes.add(all);
                    let wanted = runs(parts).map(|run| {
                        let bytes = self.shape.bytes(piece.block, run);
                        length_of(bytes.start.max(piece.from)..bytes.end.min(piece.to))
                    });
                    return Ok((Outcome::Fetched, wanted.sum()));
                }
            }
        }
        Ok((Outcome::Busy, 0))
    }

    /// Tries to hold a slot exclusively: the block's slot, or a free one.
    fn hold_for(self: &Rc<Self>, piece: &Piece, room: &Cell<usize>) -> Hold {
        let state = &mut *self.state.borrow_mut();
        let wanted = self.shape.touched(piece.from, piece.to);
        let Some(number) = state.find(piece.block) else {
            if room.get() == 0 || state.free.is_empty() {
                return Hold::NoRoom;
            }
            // Fails while a write past the cache, a discard or a zeroing is in flight.
            let Some(slot) = state.allocate_hot(piece.block, piece.heat) else { return Hold::Busy };
            room.set(room.get() - 1);
            self.slot_was_taken(state.free.len());
            return Hold::Fill(Held::new(self, state, slot, true), wanted);
        };
        let slot = *state.slot(number);
        let missing = wanted & !slot.valid;
        if slot.has(EXCLUSIVE | EVICTING | MARKING) {
            return Hold::Busy;
        }
        if missing == 0 {
            return Hold::Present;
        }
        if slot.writers > 0 {
            return Hold::Busy;
        }
        // The cache may be changed only under parts that aren't clean in the table.
        if self.mark(state, number, missing) {
            return Hold::Mark;
        }
        warm_up(state, number, piece.heat);
        Hold::Fill(Held::new(self, state, number, false), missing)
    }

    /// Evicts up to `need` blocks of levels below `level`, the coldest first. Returns their number.
    async fn displace(&self, need: usize, level: u8) -> Result<usize> {
        let (mut chosen, mut has_looked) = (0, false);
        while chosen < need {
            let candidate = self.state.borrow_mut().cold.pop();
            match candidate {
                Some(slot) => {
                    let state = &mut *self.state.borrow_mut();
                    if self.is_cold(state, slot, level) {
                        state.displace(slot);
                        chosen += 1;
                    }
                }
                None if has_looked => break,
                None => {
                    has_looked = true;
                    let found = self.find_cold(level).await;
                    self.state.borrow_mut().cold = found;
                }
            }
        }
        if chosen > 0 {
            self.commit(Level::Marks).await?;
        }
        Ok(chosen)
    }

    /// Whether a slot's block may be evicted for one of this level.
    fn is_cold(&self, state: &State, number: u32, level: u8) -> bool {
        let slot = &state.slots[number as usize];
        slot.block != FREE
            && slot.dirty == 0
            && is_idle(slot)
            && state.policy.heat(number).level() < level
            && self.is_evictable(number, slot.epoch)
    }

    /// Finds slots whose blocks may be evicted for one of this level, the coldest last. Their number is
    /// limited per level.
    async fn find_cold(&self, level: u8) -> Vec<u32> {
        let slots = self.state.borrow().slots.len();
        let most = REMEMBERED.max(slots / 16);
        let mut levels: Vec<Vec<u32>> = vec![Vec::new(); usize::from(level)];
        for from in (0..slots).step_by(SLICE) {
            {
                let state = self.state.borrow();
                for number in from as u32..(from + SLICE).min(slots) as u32 {
                    let its = usize::from(state.policy.heat(number).level());
                    if its < levels.len() && levels[its].len() < most && self.is_cold(&state, number, level) {
                        levels[its].push(number);
                    }
                }
            }
            runtime::yield_now().await;
        }
        levels.into_iter().rev().flatten().collect()
    }
}

/// Sets the heat of a slot's block if its level is lower.
fn warm_up(state: &mut State, slot: u32, heat: Heat) {
    if !state.slot(slot).has(EVICTING) && state.policy.heat(slot).level() < heat.level() {
        state.policy.restore(slot, heat);
    }
}

pub(crate) async fn heat(core: &Core, ranges: Vec<WarmRange>) -> Result<String> {
    core.calls.check_open()?;
    let mut pieces = Pieces::new(core.shape, ranges);
    let mut budget = Budget::new();
    let (mut present, mut absent) = (0, 0);
    while budget.is_left() {
        {
            let state = &mut *core.state.borrow_mut();
            for piece in pieces.by_ref().take(SLICE) {
                budget.looks = budget.looks.saturating_sub(1);
                match state.find(piece.block) {
                    Some(slot) => {
                        warm_up(state, slot, piece.heat);
                        present += piece.length();
                    }
                    None => absent += piece.length(),
                }
            }
        }
        if pieces.range.is_none() && pieces.ranges.len() == 0 {
            break;
        }
        runtime::yield_now().await;
    }
    let past_end = pieces.take_past_end();
    let done = present + absent + past_end;
    Ok(json!({ "done": done, "present": present, "absent": absent, "past_end": past_end }).to_string())
}

pub(crate) async fn evict(core: Rc<Core>, bytes: Vec<ByteRange>) -> Result<String> {
    core.calls.check_open()?;
    let ranges =
        bytes.into_iter().map(|bytes| WarmRange { bytes: bytes.0, heat: Heat::PREFETCHED }).collect();
    let mut pieces = Pieces::new(core.shape, ranges);
    let mut budget = Budget::new();
    let (mut gone, mut dirty, mut busy, mut absent) = (0, 0, 0, 0);
    while budget.is_left() {
        core.calls.check_open()?;
        let mut found: Vec<(u32, u64, u64)> = Vec::new();
        {
            let state = core.state.borrow();
            while found.len() < AT_ONCE && budget.looks > 0 {
                let Some(piece) = pieces.next() else { break };
                budget.looks -= 1;
                if let Some(last) = found.last_mut().filter(|last| last.1 == piece.block) {
                    last.2 += piece.length();
                } else if let Some(slot) = state.find(piece.block) {
                    found.push((slot, piece.block, piece.length()));
                } else {
                    absent += piece.length();
                }
                if budget.looks.is_multiple_of(SLICE) {
                    break;
                }
            }
        }
        let calls = found.iter().map(|(slot, block, _)| {
            // A block that isn't idle within this time is reported as busy.
            runtime::timeout(EVICT_PATIENCE, core.evict_block(*slot, *block))
        });
        let outcomes = runtime::join_all(calls).await;
        for ((_, _, length), outcome) in found.iter().zip(outcomes) {
            match outcome {
                Ok(Ok(true)) => gone += length,
                Ok(Ok(false)) => dirty += length,
                Ok(Err(error)) => return Err(error),
                Err(_) => busy += length,
            }
        }
        if pieces.range.is_none() && pieces.ranges.len() == 0 {
            break;
        }
        runtime::yield_now().await;
    }
    let past_end = pieces.take_past_end();
    let done = gone + dirty + busy + absent + past_end;
    let answer = json!({
        "done": done, "evicted": gone, "dirty": dirty, "busy": busy, "absent": absent, "past_end": past_end,
    });
    Ok(answer.to_string())
}

#[cfg(test)]
mod tests;
