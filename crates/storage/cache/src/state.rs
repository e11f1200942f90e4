//! State in memory of the slots and of requests in flight. Its methods never wait.

use crate::counters::Counters;
use crate::sequential::Sequential;
use crate::table::Words;
use eviction::Index;
use eviction::{Heat, Policy, S3Fifo};
use std::collections::VecDeque;
use std::sync::Arc;

/// The block of a slot that has none.
pub(crate) const FREE: u64 = u64::MAX;

/// The slot is held by a fill, a discard or a zeroing: no write to it may begin.
pub(crate) const EXCLUSIVE: u16 = 1;
/// The slot's block is being evicted: reads go to the origin, writes wait.
pub(crate) const EVICTING: u16 = 2;
/// The slot is marked: none of its parts may be recorded as clean, because writes to it may be in flight.
pub(crate) const MARKED: u16 = 4;
/// The mark is being committed; writes wait.
pub(crate) const MARKING: u16 = 8;
/// The slot is being written back.
pub(crate) const CLEANING: u16 = 16;
/// The slot is in the list `for_flush`.
pub(crate) const IN_FOR_FLUSH: u16 = 32;
/// The slot is in the list `unsettled`.
pub(crate) const IN_UNSETTLED: u16 = 64;
/// The slot was written since the last call of `settle`.
pub(crate) const RECENT: u16 = 128;
/// The slot is in the queue `dirty`.
pub(crate) const IN_DIRTY: u16 = 256;
/// The slot's entry on the medium is unknown: it was being written when the fast device failed.
pub(crate) const SUSPECT: u16 = 512;

/// Space on the fast device for one block, and the state of the block in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    /// Block number on the origin; [`FREE`] for none.
    pub block: u64,
    /// Cached parts.
    pub valid: u64,
    /// Cached parts that the origin doesn't have.
    pub dirty: u64,
    /// Parts that were written since the write-back in flight began.
    pub rewritten: u64,
    /// Epoch of the origin when it was last changed or read for this block.
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

/// Bit position of the heat in an entry's first word. The bits below hold the block number plus one, which is
/// less than 2^49.
const HEAT_SHIFT: u32 = 54;
const BLOCK: u64 = (1 << HEAT_SHIFT) - 1;

/// An entry of the table: the block in a slot, its valid parts, and its dirty parts, for which the cache is
/// authoritative. A part that is valid and not dirty is equal on both sides. For a part that isn't valid the
/// origin is authoritative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
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

    /// Encodes the entry with the block's heat, which doesn't affect which side is authoritative.
    pub fn words(self, heat: Heat) -> Words {
        match self.block {
            FREE => [0; 3],
            block => [(block + 1) | (heat.bits() << HEAT_SHIFT), self.valid, self.dirty],
        }
    }

    /// Decodes the heat; `None` if it is out of range.
    pub fn heat(words: Words) -> Option<Heat> {
        Heat::from_bits(words[0] >> HEAT_SHIFT)
    }

    pub fn clean(&self) -> u64 {
        self.valid & !self.dirty
    }
}

/// Number of counters of writes past the cache; several blocks share one.
const DIRECT: usize = 1024;

/// State of the slots and of requests in flight.
pub(crate) struct State {
    pub slots: Vec<Slot>,
    pub index: Index,
    pub policy: S3Fifo,
    pub sequential: Sequential,
    pub free: Vec<u32>,
    /// Slots whose entries a flush has to record.
    pub for_flush: Vec<u32>,
    /// Slots whose entries the next commit has to record, after the cache's data: the cleaner's next batch.
    pub for_cleaner: Vec<u32>,
    /// Slots that wait for a mark.
    pub marks: Vec<u32>,
    /// Slots whose blocks are being evicted.
    pub evicting: Vec<u32>,
    /// Slots with parts that may be recorded as clean in the background.
    pub unsettled: Vec<u32>,
    /// Slots with dirty parts, in the order in which they became dirty.
    pub dirty: VecDeque<u32>,
    pub dirty_slots: u64,
    /// Slots of low levels that warming has found, the coldest last. Their level is checked again before
    /// eviction.
    pub cold: Vec<u32>,
    /// Number of writes past the cache in flight, by block.
    direct: Vec<u32>,
    /// Number of discards and zeroings in flight, during which no slot is allocated.
    pub wide: u32,
    /// Epoch of the origin at the last discard of dirty parts that the table never recorded as dirty.
    pub unrecorded_discard: u64,
    counters: Arc<Counters>,
}

impl State {
    /// Creates the state from the table's entries.
    pub fn new(entries: impl ExactSizeIterator<Item = (Entry, Heat)>, counters: Arc<Counters>) -> Self {
        let count = entries.len();
        let mut state = State {
            slots: Vec::with_capacity(count),
            index: Index::new(count),
            policy: S3Fifo::new(count),
            sequential: Sequential::default(),
            free: Vec::new(),
            for_flush: Vec::new(),
            for_cleaner: Vec::new(),
            marks: Vec::new(),
            evicting: Vec::new(),
            unsettled: Vec::new(),
            dirty: VecDeque::new(),
            dirty_slots: 0,
            cold: Vec::new(),
            direct: vec![0; DIRECT],
            wide: 0,
            unrecorded_discard: 0,
            counters,
        };
        let mut restored: Vec<(u32, Heat)> = Vec::new();
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
            restored.push((number, heat));
            if dirty != 0 {
                state.dirty_slots += 1;
                state.counters.dirty_parts.add(u64::from(dirty.count_ones()));
                state.queue_dirty(number);
            }
        }
        // The newest first: `restore` puts each block before the ones that were restored earlier, as the
        // oldest of its queue.
        restored.sort_by_key(|(_, heat)| heat.age);
        restored.into_iter().for_each(|(slot, heat)| state.policy.restore(slot, heat));
        // Slots are allocated from the end of the list, so the lowest numbers go there.
        state.free.reverse();
        state.count();
        state
    }

    fn count(&self) {
        self.counters.used.set((self.slots.len() - self.free.len()) as u64);
        self.counters.dirty.set(self.dirty_slots);
    }

    /// Whether all slots are free.
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

    /// Allocates a slot for a block. Returns `None` without a free slot, and while a write past the cache of
    /// this block or any discard or zeroing is in flight.
    pub fn allocate(&mut self, block: u64) -> Option<u32> {
        let slot = self.take_free(block)?;
        self.policy.insert(slot, block);
        Some(slot)
    }

    /// As [`allocate`](Self::allocate), for a block that is warmed to a given heat.
    pub fn allocate_hot(&mut self, block: u64, heat: Heat) -> Option<u32> {
        let slot = self.take_free(block)?;
        self.policy.restore(slot, heat);
        Some(slot)
    }

    fn take_free(&mut self, block: u64) -> Option<u32> {
        if self.wide > 0 || *self.direct(block) > 0 {
            return None;
        }
        let slot = self.free.pop()?;
        let flags = self.slot(slot).flags & (IN_FOR_FLUSH | IN_UNSETTLED | IN_DIRTY);
        *self.slot(slot) = Slot { block, flags, ..Slot::EMPTY };
        self.index.insert(block, slot);
        self.count();
        Some(slot)
    }

    /// Frees a slot whose entry in the table is durably free.
    pub fn release(&mut self, slot: u32) {
        let block = self.slot(slot).block;
        let slots = &self.slots;
        self.index.remove(block, |slot| slots[slot as usize].block);
        let flags = self.slot(slot).flags & (IN_FOR_FLUSH | IN_UNSETTLED | IN_DIRTY);
        *self.slot(slot) = Slot { flags, ..Slot::EMPTY };
        self.free.push(slot);
        self.count();
    }

    /// Returns the counter of writes past the cache that this block shares with others.
    pub fn direct(&mut self, block: u64) -> &mut u32 {
        let counter = block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - DIRECT.trailing_zeros());
        &mut self.direct[counter as usize]
    }

    pub fn queue_for_flush(&mut self, slot: u32) {
        if !self.slot(slot).has(IN_FOR_FLUSH) {
            self.slot(slot).flags |= IN_FOR_FLUSH;
            self.for_flush.push(slot);
        }
    }

    pub fn queue_unsettled(&mut self, slot: u32) {
        if !self.slot(slot).has(IN_UNSETTLED) {
            self.slot(slot).flags |= IN_UNSETTLED;
            self.unsettled.push(slot);
        }
    }

    pub fn queue_dirty(&mut self, slot: u32) {
        if !self.slot(slot).has(IN_DIRTY) {
            self.slot(slot).flags |= IN_DIRTY;
            self.dirty.push_back(slot);
        }
    }

    /// Sets the valid and the dirty parts.
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

    /// Begins the eviction of at most `most` blocks that are idle, clean and allowed by `may`. Returns their
    /// number.
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
            self.slot(victim).flags |= EVICTING;
            self.evicting.push(victim);
            chosen += 1;
        }
        chosen
    }

    /// Begins the eviction of a slot's block.
    pub fn begin_eviction(&mut self, slot: u32) {
        self.policy.remove(slot);
        self.slot(slot).flags |= EVICTING;
        self.evicting.push(slot);
    }

    /// Begins the eviction of a slot's block in favour of a hotter one.
    pub fn displace(&mut self, slot: u32) {
        let block = self.slot(slot).block;
        self.policy.displace(slot, block);
        self.slot(slot).flags |= EVICTING;
        self.evicting.push(slot);
    }
}

/// Whether no request, fill, commit or write-back uses the slot.
pub(crate) fn is_idle(slot: &Slot) -> bool {
    slot.writers == 0 && slot.readers == 0 && !slot.has(EXCLUSIVE | EVICTING | MARKING | CLEANING)
}
