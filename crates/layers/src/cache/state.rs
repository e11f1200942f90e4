//! What the cache knows of its slots and of what is going on, in memory; changed without waiting.

use super::counters::Counters;
use super::index::Index;
use super::policy::{Heat, Policy, S3Fifo};
use super::sequential::Sequential;
use crate::table::Words;
use std::collections::VecDeque;
use std::sync::Arc;

/// The block of a slot that has none.
pub(super) const FREE: u64 = u64::MAX;

/// Nobody may begin to write to the slot: somebody fills it, or changes the origin under it.
pub(super) const EXCLUSIVE: u16 = 1;
/// The slot's block goes: reads go to the origin, writes wait.
pub(super) const LEAVING: u16 = 2;
/// The table must not say of any part that both sides have it: it is being written.
pub(super) const HOT: u16 = 4;
/// The table is being told so; writes wait.
pub(super) const MARKING: u16 = 8;
/// It is being written back.
pub(super) const CLEANING: u16 = 16;
/// It is in the list of what a flush has to put in the table.
pub(super) const IN_MUST: u16 = 32;
/// It is in the list of what may be put in the table at leisure.
pub(super) const IN_LAZY: u16 = 64;
/// It was written since the last look.
pub(super) const RECENT: u16 = 128;
/// It is in the queue of what is to be written back.
pub(super) const IN_DIRTY: u16 = 256;
/// Nobody knows what the table says of it: it was being told when its device failed.
pub(super) const SUSPECT: u16 = 512;

/// A place for a block of the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    /// The block of the origin; [`FREE`] for none.
    pub block: u64,
    /// The parts that are there.
    pub valid: u64,
    /// Those of them that the origin doesn't have.
    pub dirty: u64,
    /// Parts that were written since it is being written back.
    pub rewritten: u64,
    /// When the origin was changed, or read, for it.
    pub epoch: u64,
    pub writers: u16,
    pub readers: u16,
    pub flags: u16,
}

impl Slot {
    pub const EMPTY: Slot =
        Slot { block: FREE, valid: 0, dirty: 0, rewritten: 0, epoch: 0, writers: 0, readers: 0, flags: 0 };

    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }

    pub fn clean(&self) -> u64 {
        self.valid & !self.dirty
    }
}

/// Where an entry's first word says how hot the block is; below is the block, of which there are less than 2^49.
const HEAT_SHIFT: u32 = 54;
const BLOCK: u64 = (1 << HEAT_SHIFT) - 1;

/// An entry of the table: which block a slot has, which parts of it the cache has, and for which of those it alone counts.
/// Of a part that is valid and not dirty both sides have the same; of one that isn't valid, the origin counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub block: u64,
    pub valid: u64,
    pub dirty: u64,
}

impl Entry {
    pub const FREE: Entry = Entry { block: FREE, valid: 0, dirty: 0 };

    #[inline]
    pub fn from_words(words: Words) -> Self {
        Entry { block: (words[0] & BLOCK).wrapping_sub(1), valid: words[1], dirty: words[2] }
    }

    /// With how hot the block is, which decides nothing of what counts.
    pub fn words(self, heat: Heat) -> Words {
        match self.block {
            FREE => [0; 3],
            block => [(block + 1) | (heat.bits() << HEAT_SHIFT), self.valid, self.dirty],
        }
    }

    /// How hot the words say that the block is; none for what can't be.
    pub fn heat(words: Words) -> Option<Heat> {
        Heat::from_bits(words[0] >> HEAT_SHIFT)
    }

    pub fn clean(&self) -> u64 {
        self.valid & !self.dirty
    }
}

/// How many counters there are for writes past the cache; blocks share them.
const DIRECT: usize = 1024;

/// See the module's head.
pub(super) struct State {
    pub slots: Vec<Slot>,
    pub index: Index,
    pub policy: S3Fifo,
    pub sequential: Sequential,
    pub free: Vec<u32>,
    /// Slots that a flush has to put in the table.
    pub must: Vec<u32>,
    /// Of these, slots of which the table has to be told now, the data that it relies on included.
    pub soon: Vec<u32>,
    /// Slots of which the table is to be told that they are being written.
    pub marks: Vec<u32>,
    /// Slots whose blocks go.
    pub leaving: Vec<u32>,
    /// Slots that the table could know better.
    pub lazy: Vec<u32>,
    /// Slots with something to be written back.
    pub dirty: VecDeque<u32>,
    pub dirty_slots: u64,
    /// Slots that warming found on low levels, the coldest last; what they are by now is looked at again.
    pub cold: Vec<u32>,
    /// Writes past the cache, by block.
    direct: Vec<u32>,
    /// Changes of the origin over many blocks.
    pub wide: u32,
    /// When something dirty was last discarded of which the table had not been told.
    pub unsaid: u64,
    counters: Arc<Counters>,
}

impl State {
    /// With what the table has.
    pub fn new(entries: impl ExactSizeIterator<Item = (Entry, Heat)>, counters: Arc<Counters>) -> Self {
        let count = entries.len();
        let mut state = State {
            slots: Vec::with_capacity(count),
            index: Index::new(count),
            policy: S3Fifo::new(count),
            sequential: Sequential::default(),
            free: Vec::new(),
            must: Vec::new(),
            soon: Vec::new(),
            marks: Vec::new(),
            leaving: Vec::new(),
            lazy: Vec::new(),
            dirty: VecDeque::new(),
            dirty_slots: 0,
            cold: Vec::new(),
            direct: vec![0; DIRECT],
            wide: 0,
            unsaid: 0,
            counters,
        };
        let mut placed: Vec<(u32, Heat)> = Vec::new();
        for (number, (entry, heat)) in entries.enumerate() {
            let number = number as u32;
            let (valid, dirty) = (entry.valid, entry.dirty);
            state.slots.push(Slot { block: entry.block, valid, dirty, ..Slot::EMPTY });
            if entry.block == FREE {
                state.free.push(number);
                continue;
            }
            let slots = &state.slots;
            state.index.insert(entry.block, number);
            debug_assert!(slots.len() as u32 == number + 1);
            placed.push((number, heat));
            if dirty != 0 {
                state.dirty_slots += 1;
                state.counters.dirty_parts.add(u64::from(dirty.count_ones()));
                state.queue_dirty(number);
            }
        }
        // Each goes behind those that are newer.
        placed.sort_by_key(|(_, heat)| heat.age);
        placed.into_iter().for_each(|(slot, heat)| state.policy.place(slot, heat));
        // The first ones first.
        state.free.reverse();
        state.count();
        state
    }

    fn count(&self) {
        self.counters.used.set((self.slots.len() - self.free.len()) as u64);
        self.counters.dirty.set(self.dirty_slots);
    }

    /// Whether no slot has a block.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    #[inline]
    pub fn slot(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// The slot of a block.
    #[inline]
    pub fn find(&self, block: u64) -> Option<u32> {
        self.index.get(block, |slot| self.slots[slot as usize].block)
    }

    /// Gives a free slot to a block that has none, if there is one and nobody writes the block past the cache.
    pub fn allocate(&mut self, block: u64) -> Option<u32> {
        let slot = self.take_free(block)?;
        self.policy.insert(slot, block);
        Some(slot)
    }

    /// As [`allocate`](Self::allocate), for a block that nobody asks for now and whose heat is known.
    pub fn allocate_hot(&mut self, block: u64, heat: Heat) -> Option<u32> {
        let slot = self.take_free(block)?;
        self.policy.place(slot, heat);
        Some(slot)
    }

    fn take_free(&mut self, block: u64) -> Option<u32> {
        if self.wide > 0 || *self.direct(block) > 0 {
            return None;
        }
        let slot = self.free.pop()?;
        let flags = self.slot(slot).flags & (IN_MUST | IN_LAZY | IN_DIRTY);
        *self.slot(slot) = Slot { block, flags, ..Slot::EMPTY };
        self.index.insert(block, slot);
        self.count();
        Some(slot)
    }

    /// A slot whose entry in the table is free, durably, has no block any more.
    pub fn release(&mut self, slot: u32) {
        let block = self.slot(slot).block;
        let slots = &self.slots;
        self.index.remove(block, |slot| slots[slot as usize].block);
        let flags = self.slot(slot).flags & (IN_MUST | IN_LAZY | IN_DIRTY);
        *self.slot(slot) = Slot { flags, ..Slot::EMPTY };
        self.free.push(slot);
        self.count();
    }

    /// The counter of writes past the cache of this block, and others.
    pub fn direct(&mut self, block: u64) -> &mut u32 {
        let place = block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - DIRECT.trailing_zeros());
        &mut self.direct[place as usize]
    }

    pub fn queue_must(&mut self, slot: u32) {
        if !self.slot(slot).has(IN_MUST) {
            self.slot(slot).flags |= IN_MUST;
            self.must.push(slot);
        }
    }

    pub fn queue_lazy(&mut self, slot: u32) {
        if !self.slot(slot).has(IN_LAZY) {
            self.slot(slot).flags |= IN_LAZY;
            self.lazy.push(slot);
        }
    }

    pub fn queue_dirty(&mut self, slot: u32) {
        if !self.slot(slot).has(IN_DIRTY) {
            self.slot(slot).flags |= IN_DIRTY;
            self.dirty.push_back(slot);
        }
    }

    /// Says which parts are there and dirty from now on.
    pub fn set_parts(&mut self, slot: u32, valid: u64, dirty: u64) {
        debug_assert!(dirty & !valid == 0);
        let was = self.slot(slot).dirty;
        let others = self.counters.dirty_parts.get() - u64::from(was.count_ones());
        self.counters.dirty_parts.set(others + u64::from(dirty.count_ones()));
        (self.slot(slot).valid, self.slot(slot).dirty) = (valid, dirty);
        match (was, dirty) {
            (0, 0) => {}
            (0, _) => {
                self.dirty_slots += 1;
                self.queue_dirty(slot);
                self.count();
            }
            (_, 0) => {
                self.dirty_slots -= 1;
                self.count();
            }
            _ => {}
        }
    }

    /// Chooses slots whose blocks go; `may` says which may besides being idle and clean.
    pub fn evict(&mut self, most: usize, may: &dyn Fn(u32, &Slot) -> bool) -> usize {
        let mut chosen = 0;
        while chosen < most {
            let slots = &self.slots;
            let mut idle = |slot: u32| {
                let found = &slots[slot as usize];
                found.dirty == 0 && is_idle(found) && may(slot, found)
            };
            let victim = self.policy.victim(&|slot| slots[slot as usize].block, &mut idle);
            let Some(victim) = victim else { break };
            self.slot(victim).flags |= LEAVING;
            self.leaving.push(victim);
            chosen += 1;
        }
        chosen
    }

    /// A slot's block goes, if it may; the same as of one that was chosen.
    pub fn leave(&mut self, slot: u32) {
        self.policy.remove(slot);
        self.slot(slot).flags |= LEAVING;
        self.leaving.push(slot);
    }

    /// A slot's block makes room for a hotter one.
    pub fn displace(&mut self, slot: u32) {
        let block = self.slot(slot).block;
        self.policy.displace(slot, block);
        self.slot(slot).flags |= LEAVING;
        self.leaving.push(slot);
    }
}

/// Nobody does anything with it.
pub(super) fn is_idle(slot: &Slot) -> bool {
    slot.writers == 0 && slot.readers == 0 && !slot.has(EXCLUSIVE | LEAVING | MARKING | CLEANING)
}
