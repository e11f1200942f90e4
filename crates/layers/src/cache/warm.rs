//! Warming: what the cache holds and how hot it is, for those who save it; and blocks that come in beforehand, become as hot
//! as they were, or go.
//!
//! # Promises
//! - A step ends: after [`MOST_BYTES`] that came in, [`MOST_LOOKS`] blocks that were looked at, or [`LONGEST`] of time, it says how
//!   far it got, and whoever asked goes on from there. So nothing is remembered here of who loads what, and to stop asking
//!   is to stop it.
//! - What comes in takes slots that are really free, or those of blocks on a lower level ([`Heat::level`]) that are clean and
//!   that nobody uses; where there are none it stays outside. The policy's own order isn't disturbed by looking for them.
//! - It has a quarter of `migration_threshold` for itself, and takes nothing of what brings in what clients read. A
//!   slot is held against writers only while one piece of its block comes in.
//! - Nobody is waited for: what is being written, or goes, is left out, and counted.
//!
//! Left to others: the order in which it is asked, what is read from a file, and how fast.

use super::core::{Core, Level};
use super::policy::{Heat, Policy};
use super::shape::{Shape, length_of, runs};
use super::state::{EXCLUSIVE, FREE, LEAVING, MARKING, is_idle};
use block::{Error, Result};
use serde_json::json;
use stack::{FromWords, Words};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// How much comes in by one step, in bytes, unless a single piece has more.
const MOST_BYTES: u64 = 16 << 20;
/// How many pieces of blocks one step looks at.
const MOST_LOOKS: usize = 1 << 16;
/// How long one step takes, besides the piece that it is at.
const LONGEST: Duration = Duration::from_secs(1);
/// How many slots one answer lists.
const MOST_LISTED: u32 = 4096;
/// How many slots, or blocks, are looked at before others have their turn.
const SLICE: usize = 512;
/// How many blocks get room at once.
const AT_ONCE: usize = 64;
/// How much of a large block comes in at once, in bytes, where its parts aren't larger.
const PIECE: u64 = 256 << 10;
/// How often, and how long each time, it is tried to get at a block that somebody uses.
const TRIES: usize = 5;
const PATIENCE: Duration = Duration::from_millis(10);
/// How long a block that is to go may be in use.
const EVICT_PATIENCE: Duration = Duration::from_millis(500);
/// How many cold slots of each level are remembered at least.
const REMEMBERED: usize = 4096;

/// Bytes of the origin, and how hot they are to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// The bytes.
    pub bytes: Range<u64>,
    /// Their heat.
    pub heat: Heat,
}

/// Byte ranges of the origin. A range takes the last heat before it, or [`Heat::PREFETCHED`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wants(pub Vec<Want>);

impl FromWords for Wants {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        let (mut heat, mut wants) = (Heat::PREFETCHED, Vec::new());
        while !words.is_empty() || wants.is_empty() {
            let expected = "OFFSET+LENGTH in bytes, or a heat such as main/3/12 before them";
            let bytes = words.read(expected, |word| match Heat::parse(word) {
                Some(found) => {
                    heat = found;
                    Some(None)
                }
                None => Bytes::parse(word).map(Some),
            })?;
            wants.extend(bytes.map(|bytes| Want { bytes, heat }));
        }
        Ok(Wants(wants))
    }
}

/// A range of bytes of the origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bytes(pub Range<u64>);

impl Bytes {
    fn parse(word: &str) -> Option<Range<u64>> {
        let (from, length) = word.split_once('+')?;
        let (from, length) = (from.parse::<u64>().ok()?, length.parse::<u64>().ok()?);
        (length > 0).then_some(from..from.checked_add(length)?)
    }
}

impl FromWords for Bytes {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        words.read("OFFSET+LENGTH in bytes", Bytes::parse).map(Bytes)
    }
}

/// Slots as rows: block, which parts of it are there, which of them are dirty, heat.
pub(super) async fn list(core: &Core, from: u32, count: u32) -> Result<String> {
    let slots = core.state.borrow().slots.len() as u32;
    if from > slots {
        return Err(Error::invalid(format!("warm list {from}: the cache has {slots} blocks")));
    }
    let to = from.saturating_add(count.min(MOST_LISTED)).min(slots);
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
                if slot.block == FREE || slot.valid == 0 || slot.has(LEAVING) {
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

/// Bytes of one block.
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

/// Wants in pieces of blocks, in order.
struct Pieces {
    shape: Shape,
    /// How long a piece is at most, from a multiple of itself in its block on.
    step: u64,
    wants: std::vec::IntoIter<Want>,
    want: Option<Want>,
    /// Bytes behind the origin's end.
    past_end: u64,
}

impl Pieces {
    fn new(shape: Shape, wants: Vec<Want>) -> Self {
        Pieces { shape, step: step(&shape), wants: wants.into_iter(), want: None, past_end: 0 }
    }

    /// How many bytes of wants lie behind the origin's end, since this was asked last.
    fn take_past_end(&mut self) -> u64 {
        std::mem::take(&mut self.past_end)
    }
}

/// A whole block, or [`PIECE`] of it, or a part if those are larger.
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
            let mut want = match self.want.take() {
                Some(want) => want,
                None => self.wants.next()?,
            };
            let end = want.bytes.end.min(self.shape.origin);
            if want.bytes.start >= end {
                self.past_end += want.bytes.end - want.bytes.start;
                continue;
            }
            let (block, from) = (want.bytes.start / self.shape.block, want.bytes.start % self.shape.block);
            let base = block * self.shape.block;
            let to = ((from / self.step + 1) * self.step).min(self.shape.block).min(end - base);
            want.bytes.start = base + to;
            let heat = want.heat;
            self.want = (!want.bytes.is_empty()).then_some(want);
            return Some(Piece { block, from, to, heat });
        }
    }
}

/// What became of bytes that were wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Fetched,
    Present,
    NoRoom,
    Busy,
    Failed,
}

/// How far a step of fetching got, in bytes that were wanted, in their order.
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

/// What still may be done by this step.
struct Budget {
    began: runtime::Instant,
    looks: usize,
    bytes: u64,
}

impl Budget {
    fn new() -> Self {
        Budget { began: runtime::now(), looks: MOST_LOOKS, bytes: MOST_BYTES }
    }

    fn is_left(&self) -> bool {
        self.looks > 0 && self.bytes > 0 && self.began.elapsed() < LONGEST
    }
}

pub(super) async fn fetch(core: Rc<Core>, wants: Vec<Want>) -> Result<String> {
    let mut pieces = Pieces::new(core.shape, wants).peekable_by_level();
    let mut fetched = Fetched::default();
    let mut budget = Budget::new();
    while budget.is_left() && !pieces.is_at_end() {
        core.check_fetches()?;
        let missing = core.choose_pieces(&mut pieces, &mut fetched, &mut budget);
        if !missing.is_empty() {
            core.bring_all(missing, &mut fetched).await?;
        }
        runtime::yield_now().await;
    }
    fetched.past_end = pieces.pieces.take_past_end();
    Ok(fetched.answer())
}

/// Pieces with a look at the next one.
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

    /// The next one, if it is on this level, or on any.
    fn next_on(&mut self, level: Option<u8>) -> Option<Piece> {
        let fits =
            self.next.as_ref().is_some_and(|next| level.is_none_or(|level| next.heat.level() == level));
        match fits {
            true => std::mem::replace(&mut self.next, self.pieces.next()),
            false => None,
        }
    }
}

/// How a block can be got at.
enum Hold {
    /// All of the piece is there.
    Present,
    NoRoom,
    /// When something has changed.
    Busy,
    /// When the table has been told.
    Mark,
    /// These parts are missing.
    Fill(Held, u64),
}

/// A slot that nobody may begin to write to while a piece of its block comes in.
struct Held {
    core: Rc<Core>,
    slot: u32,
    is_new: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        {
            let mut state = self.core.state.borrow_mut();
            state.slot(self.slot).flags &= !EXCLUSIVE;
            if self.is_new && state.slot(self.slot).valid == 0 {
                // It came to nothing, and the table never heard of it.
                state.policy.remove(self.slot);
                state.release(self.slot);
            }
        }
        self.core.slot_changed();
        self.core.upkeep.notify_all();
    }
}

impl Core {
    fn check_fetches(&self) -> Result<()> {
        self.check_open()?;
        if let Some(error) = self.failure.borrow().clone() {
            return Err(error);
        }
        match self.takes_blocks() {
            true => Ok(()),
            false => Err(Error::invalid(
                "nothing comes into this cache: it is being detached, or its mode is passthrough; say \"cancel\", or \
                 another \"mode\", first",
            )),
        }
    }

    /// The next pieces of one level that aren't there; those that are, become as hot.
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

    /// Brings in pieces of one level.
    async fn bring_all(self: &Rc<Self>, missing: Vec<Piece>, fetched: &mut Fetched) -> Result<()> {
        let lacking = {
            let state = self.state.borrow();
            let lacks = |piece: &&Piece| state.find(piece.block).is_none();
            missing.iter().filter(lacks).map(|piece| piece.block).collect::<BTreeSet<_>>().len()
        };
        let level = missing.first().map_or(0, |piece| piece.heat.level());
        // The evictor has so many free at times: only what is free beyond that is.
        let kept = self.low_water() + self.low_water() / 2;
        let mut room = self.state.borrow().free.len().saturating_sub(kept);
        if room < lacking {
            room += self.displace(lacking - room, level).await?;
        }
        let room = Cell::new(room);
        // Pieces of one block follow each other.
        let of_blocks = missing.chunk_by(|one, other| one.block == other.block);
        let at_once = (self.migration_threshold.get() / 4 / step(&self.shape)).max(1) as usize;
        let calls = of_blocks.map(|pieces| self.bring_block(pieces, &room));
        for (piece, brought) in runtime::join_limited(at_once, calls).await.into_iter().flatten() {
            match brought {
                Ok((Outcome::Fetched, came)) => {
                    fetched.add(Outcome::Fetched, came);
                    fetched.add(Outcome::Present, piece.length() - came);
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

    async fn bring_block<'a>(
        self: &Rc<Self>,
        pieces: &'a [Piece],
        room: &Cell<usize>,
    ) -> Vec<(&'a Piece, Result<(Outcome, u64)>)> {
        let mut brought = Vec::with_capacity(pieces.len());
        for piece in pieces {
            brought.push((piece, self.bring(piece, room).await));
        }
        brought
    }

    /// Brings in what is missing of a piece; says how many of its bytes that was.
    async fn bring(self: &Rc<Self>, piece: &Piece, room: &Cell<usize>) -> Result<(Outcome, u64)> {
        for _ in 0..TRIES {
            if self.check_fetches().is_err() {
                // The next look says why.
                break;
            }
            match self.hold_for(piece, room) {
                Hold::Present => return Ok((Outcome::Present, 0)),
                Hold::NoRoom => return Ok((Outcome::NoRoom, 0)),
                Hold::Mark => self.commit(Level::Marks).await?,
                Hold::Busy => {
                    let _ = runtime::timeout(PATIENCE, self.changed.notified()).await;
                }
                Hold::Fill(held, parts) => {
                    self.fill(held.slot, piece.block, parts).await?;
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

    /// Holds the slot of a block exclusively, if it can be done now: that of the block, or a free one.
    fn hold_for(self: &Rc<Self>, piece: &Piece, room: &Cell<usize>) -> Hold {
        let state = &mut *self.state.borrow_mut();
        let wanted = self.shape.touched(piece.from, piece.to);
        let Some(number) = state.find(piece.block) else {
            if room.get() == 0 || state.free.is_empty() {
                return Hold::NoRoom;
            }
            // Somebody may be writing it past the cache.
            let Some(slot) = state.allocate_hot(piece.block, piece.heat) else { return Hold::Busy };
            room.set(room.get() - 1);
            state.slot(slot).flags |= EXCLUSIVE;
            self.slot_was_taken(state.free.len());
            return Hold::Fill(Held { core: self.clone(), slot, is_new: true }, wanted);
        };
        let slot = *state.slot(number);
        let missing = wanted & !slot.valid;
        if slot.has(EXCLUSIVE | LEAVING | MARKING) {
            return Hold::Busy;
        }
        if missing == 0 {
            return Hold::Present;
        }
        if slot.writers > 0 {
            return Hold::Busy;
        }
        // The cache may be changed only where the table doesn't say that both sides have the same.
        if self.mark(state, number, missing) {
            return Hold::Mark;
        }
        state.slot(number).flags |= EXCLUSIVE;
        warm_up(state, number, piece.heat);
        Hold::Fill(Held { core: self.clone(), slot: number, is_new: false }, missing)
    }

    /// Lets blocks go that are on a lower level than this one, the coldest first. Says how many.
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

    /// Whether a slot's block may make room for one on this level.
    fn is_cold(&self, state: &super::state::State, number: u32, level: u8) -> bool {
        let slot = &state.slots[number as usize];
        slot.block != FREE
            && slot.dirty == 0
            && is_idle(slot)
            && state.policy.heat(number).level() < level
            && self.may_leave(number, slot.epoch)
    }

    /// Slots that may make room for this level, the coldest last; not all of them, but as many as are needed for some time.
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

/// Makes a slot's block as hot as that, if it isn't as hot already.
fn warm_up(state: &mut super::state::State, slot: u32, heat: Heat) {
    if !state.slot(slot).has(LEAVING) && state.policy.heat(slot).level() < heat.level() {
        state.policy.place(slot, heat);
    }
}

pub(super) async fn heat(core: &Core, wants: Vec<Want>) -> Result<String> {
    core.check_open()?;
    let mut pieces = Pieces::new(core.shape, wants);
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
        if pieces.want.is_none() && pieces.wants.len() == 0 {
            break;
        }
        runtime::yield_now().await;
    }
    let past_end = pieces.take_past_end();
    let done = present + absent + past_end;
    Ok(json!({ "done": done, "present": present, "absent": absent, "past_end": past_end }).to_string())
}

pub(super) async fn evict(core: Rc<Core>, bytes: Vec<Bytes>) -> Result<String> {
    core.check_open()?;
    let wants = bytes.into_iter().map(|bytes| Want { bytes: bytes.0, heat: Heat::PREFETCHED }).collect();
    let mut pieces = Pieces::new(core.shape, wants);
    let mut budget = Budget::new();
    let (mut gone, mut dirty, mut busy, mut absent) = (0, 0, 0, 0);
    while budget.is_left() {
        core.check_open()?;
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
            // What waits longer than that is in use all the time.
            runtime::timeout(EVICT_PATIENCE, core.make_leave(*slot, *block))
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
        if pieces.want.is_none() && pieces.wants.len() == 0 {
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
