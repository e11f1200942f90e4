//! Slots of the region: the chunk of each, the checksums of its units, and the choice of the next victim.
//!
//! A slot is free, taken (its chunk is being written), or holds a chunk. A chunk that is evicted while it is
//! read keeps its slot until the last read has ended, so no slot is written while it is read.

use super::region::UNITS;
use block::ZoneIndex;
use eviction::{Index, Policy, S3Fifo};
use std::ops::Range;

/// Bits of the number of a chunk in its zone.
pub const CHUNK_BITS: u32 = 26;
/// Bits of a generation in a key. A reset removes the chunks of a zone, so a later generation with the same
/// bits finds none of them.
const GENERATION_BITS: u32 = 20;
/// Key of a slot without a chunk. No chunk has it: the last number of a chunk isn't used.
const NONE: u64 = u64::MAX;
/// Searches for a victim, after which a chunk isn't admitted.
const MAX_SEARCHES: usize = 8;

/// The chunk was fetched ahead and not read since.
const AHEAD: u32 = 1 << 31;
/// The chunk was evicted, and the slot is free once no read is in flight.
const EVICTED: u32 = 1 << 30;
/// The slot is retired once no read is in flight.
const RETIRING: u32 = 1 << 29;
const LENGTH: u32 = RETIRING - 1;

/// Checksums of the units of a chunk.
pub type Sums = [u32; UNITS];

/// Identity of a chunk: zone, generation of the zone, number of the chunk in the zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkKey(u64);

impl ChunkKey {
    /// Key of a chunk.
    pub fn new(zone: ZoneIndex, generation: u64, chunk: u64) -> Self {
        let generation = generation & ((1 << GENERATION_BITS) - 1);
        let zone = u64::from(zone.0) << (GENERATION_BITS + CHUNK_BITS);
        ChunkKey(zone | generation << CHUNK_BITS | chunk)
    }

    /// All keys of a zone, of any generation.
    pub fn of_zone(zone: ZoneIndex) -> std::ops::RangeInclusive<Self> {
        let first = u64::from(zone.0) << (GENERATION_BITS + CHUNK_BITS);
        ChunkKey(first)..=ChunkKey(first | ((1 << (GENERATION_BITS + CHUNK_BITS)) - 1))
    }
}

/// A part of a cached chunk that is being read.
#[derive(Debug, Clone)]
pub struct Part {
    /// Slot of the chunk.
    pub slot: u32,
    /// Bytes of the chunk.
    pub bytes: Range<u64>,
    /// Length of the chunk.
    pub length: u64,
    /// Checksums of its units.
    pub sums: Sums,
    /// Whether the chunk was fetched ahead, and this is its first read.
    pub was_ahead: bool,
    key: ChunkKey,
}

/// The slots.
pub struct Slots {
    keys: Vec<u64>,
    /// Length of the chunk, and flags.
    lengths: Vec<u32>,
    sums: Vec<Sums>,
    /// Number of reads in flight.
    readers: Vec<u16>,
    free: Vec<u32>,
    index: Index,
    policy: S3Fifo,
    used: usize,
    retired: usize,
}

impl Slots {
    /// Creates this number of free slots.
    pub fn new(slots: usize) -> Self {
        Slots {
            keys: vec![NONE; slots],
            lengths: vec![0; slots],
            sums: vec![[0; UNITS]; slots],
            readers: vec![0; slots],
            // The last one is taken first.
            free: (0..slots as u32).rev().collect(),
            index: Index::new(slots),
            policy: S3Fifo::new(slots),
            used: 0,
            retired: 0,
        }
    }

    /// Number of slots that hold chunks.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Number of slots that aren't used any more, after an error.
    pub fn retired(&self) -> usize {
        self.retired
    }

    fn find(&self, key: ChunkKey) -> Option<u32> {
        self.index.get(key.0, |slot| self.keys[slot as usize])
    }

    fn length(&self, slot: u32) -> u64 {
        u64::from(self.lengths[slot as usize] & LENGTH)
    }

    /// Whether the first `length` bytes of a chunk are cached.
    pub fn has(&self, key: ChunkKey, length: u64) -> bool {
        self.find(key).is_some_and(|slot| self.length(slot) >= length)
    }

    /// Begins a read of bytes of a chunk; `None` if they aren't cached.
    pub fn begin_read(&mut self, key: ChunkKey, bytes: Range<u64>) -> Option<Part> {
        let slot = self.find(key)?;
        let (number, length) = (slot as usize, self.length(slot));
        if length < bytes.end || self.readers[number] == u16::MAX {
            return None;
        }
        self.readers[number] += 1;
        self.policy.hit(slot);
        let was_ahead = self.lengths[number] & AHEAD != 0;
        self.lengths[number] &= !AHEAD;
        Some(Part { slot, bytes, length, sums: self.sums[number], was_ahead, key })
    }

    /// Ends a read. A chunk with wrong bytes is removed, and its slot retired.
    pub fn end_read(&mut self, part: &Part, is_good: bool) {
        let number = part.slot as usize;
        if !is_good {
            if self.keys[number] == part.key.0 {
                self.detach(part.slot);
            }
            self.lengths[number] |= RETIRING;
        }
        self.readers[number] -= 1;
        if self.readers[number] == 0 {
            self.free_if_unread(part.slot);
        }
    }

    /// Frees or retires a slot without a chunk, once no read of it is in flight.
    fn free_if_unread(&mut self, slot: u32) {
        let number = slot as usize;
        let flags = self.lengths[number];
        if self.readers[number] > 0 || flags & (EVICTED | RETIRING) == 0 {
            return;
        }
        self.lengths[number] = 0;
        match flags & RETIRING != 0 {
            true => self.retired += 1,
            false => self.free.push(slot),
        }
    }

    /// Removes the chunk of a slot. Returns its bytes if it was fetched ahead and never read.
    fn detach(&mut self, slot: u32) -> u64 {
        let number = slot as usize;
        let keys = &self.keys;
        self.index.remove(keys[number], |slot| keys[slot as usize]);
        self.keys[number] = NONE;
        self.policy.remove(slot);
        self.used -= 1;
        let wasted = if self.lengths[number] & AHEAD != 0 { self.length(slot) } else { 0 };
        self.lengths[number] = self.lengths[number] & !AHEAD | EVICTED;
        wasted
    }

    /// Takes a slot for a chunk, from which another chunk is evicted if none is free. Returns the slot, and
    /// the bytes of the evicted chunk if it was fetched ahead and never read.
    pub fn take(&mut self) -> Option<(u32, u64)> {
        if let Some(slot) = self.free.pop() {
            return Some((slot, 0));
        }
        for _ in 0..MAX_SEARCHES.min(self.used) {
            let (keys, readers) = (&self.keys, &self.readers);
            let victim =
                self.policy.victim(&|slot| keys[slot as usize], &mut |slot| readers[slot as usize] == 0);
            if let Some(slot) = victim {
                let wasted = self.detach(slot);
                self.lengths[slot as usize] = 0;
                return Some((slot, wasted));
            }
        }
        None
    }

    /// Frees a slot that was taken.
    pub fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Retires a slot that was taken.
    pub fn retire(&mut self) {
        self.retired += 1;
    }

    /// Enters a chunk that was written to a slot that was taken. Returns the bytes of an earlier, shorter
    /// copy of the chunk if it was fetched ahead and never read.
    pub fn admit(&mut self, slot: u32, key: ChunkKey, length: u64, sums: Sums, is_ahead: bool) -> u64 {
        let wasted = self.forget(key);
        let number = slot as usize;
        self.keys[number] = key.0;
        self.lengths[number] = length as u32 | if is_ahead { AHEAD } else { 0 };
        self.sums[number] = sums;
        self.index.insert(key.0, slot);
        self.policy.insert(slot, key.0);
        self.used += 1;
        wasted
    }

    fn forget(&mut self, key: ChunkKey) -> u64 {
        let Some(slot) = self.find(key) else { return 0 };
        let wasted = self.detach(slot);
        self.free_if_unread(slot);
        wasted
    }

    /// Removes the first `chunks` chunks of a generation of a zone. Returns the bytes of those that were
    /// fetched ahead and never read.
    pub fn forget_zone(&mut self, zone: ZoneIndex, generation: u64, chunks: u64) -> u64 {
        if chunks <= self.keys.len() as u64 {
            return (0..chunks).map(|chunk| self.forget(ChunkKey::new(zone, generation, chunk))).sum();
        }
        let keys = ChunkKey::of_zone(zone);
        let held =
            self.keys.iter().map(|key| ChunkKey(*key)).filter(|key| key.0 != NONE && keys.contains(key));
        let held: Vec<ChunkKey> = held.collect();
        held.into_iter().map(|key| self.forget(key)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(zone: u32, generation: u64, chunk: u64) -> ChunkKey {
        ChunkKey::new(ZoneIndex(zone), generation, chunk)
    }

    fn fill(slots: &mut Slots, key: ChunkKey, length: u64) -> u32 {
        let (slot, _) = slots.take().expect("a slot");
        slots.admit(slot, key, length, [7; UNITS], false);
        slot
    }

    #[test]
    fn a_chunk_is_found_by_its_generation_and_length() {
        let mut slots = Slots::new(4);
        let slot = fill(&mut slots, key(3, 5, 9), 1000);
        assert!(slots.has(key(3, 5, 9), 1000) && !slots.has(key(3, 5, 9), 1001));
        assert!(!slots.has(key(3, 6, 9), 1) && !slots.has(key(4, 5, 9), 1) && !slots.has(key(3, 5, 8), 1));
        let part = slots.begin_read(key(3, 5, 9), 10..1000).expect("cached");
        assert_eq!((part.slot, part.length, part.sums), (slot, 1000, [7; UNITS]));
        slots.end_read(&part, true);
        // A longer copy replaces it.
        fill(&mut slots, key(3, 5, 9), 2000);
        assert!(slots.has(key(3, 5, 9), 2000));
        assert_eq!((slots.used(), slots.free.len()), (1, 3));
    }

    #[test]
    fn a_zone_is_forgotten_as_a_whole() {
        for chunks in [3, 1 << 20] {
            let mut slots = Slots::new(8);
            for chunk in 0..3 {
                fill(&mut slots, key(1, 2, chunk), 100);
            }
            fill(&mut slots, key(2, 2, 0), 100);
            slots.forget_zone(ZoneIndex(1), 2, chunks);
            assert!((0..3).all(|chunk| !slots.has(key(1, 2, chunk), 1)), "{chunks} chunks");
            assert!(slots.has(key(2, 2, 0), 100));
            assert_eq!((slots.used(), slots.free.len()), (1, 7));
        }
    }

    #[test]
    fn a_slot_is_not_taken_while_it_is_read() {
        let mut slots = Slots::new(2);
        let slot = fill(&mut slots, key(0, 0, 0), 100);
        let other = fill(&mut slots, key(0, 0, 1), 100);
        let part = slots.begin_read(key(0, 0, 0), 0..10).expect("cached");
        assert_eq!(slots.take().expect("the other one").0, other);
        assert!(slots.take().is_none(), "one is taken, and one is read");
        // Its chunk is removed, and the slot is free once the read ends.
        slots.forget_zone(ZoneIndex(0), 0, 2);
        assert!(!slots.has(key(0, 0, 0), 1) && slots.take().is_none());
        slots.end_read(&part, true);
        assert_eq!(slots.take().expect("free").0, slot);
    }

    #[test]
    fn a_slot_with_wrong_bytes_is_retired() {
        let mut slots = Slots::new(2);
        fill(&mut slots, key(0, 0, 0), 100);
        let (first, second) = (
            slots.begin_read(key(0, 0, 0), 0..10).expect("cached"),
            slots.begin_read(key(0, 0, 0), 0..10).expect("cached"),
        );
        slots.end_read(&first, false);
        assert!(!slots.has(key(0, 0, 0), 1));
        assert_eq!(slots.retired(), 0, "it is being read");
        slots.end_read(&second, false);
        assert_eq!((slots.retired(), slots.used(), slots.free.len()), (1, 0, 1));
    }

    #[test]
    fn the_last_zone_has_no_key_of_a_free_slot() {
        let last = key((1 << 18) - 1, u64::MAX, (1 << CHUNK_BITS) - 2);
        assert_ne!(last.0, NONE);
        assert!(ChunkKey::of_zone(ZoneIndex((1 << 18) - 1)).contains(&last));
        assert!(!ChunkKey::of_zone(ZoneIndex(1)).contains(&key(2, 0, 0)));
        assert!(key(1, 1 << 20, 0) == key(1, 0, 0), "so a reset removes chunks as well");
    }

    #[test]
    fn a_scan_evicts_no_chunk_that_is_read_often() {
        let mut slots = Slots::new(1000);
        let read = |slots: &mut Slots, chunk| match slots.begin_read(key(0, 0, chunk), 0..10) {
            Some(part) => slots.end_read(&part, true),
            None => {
                fill(slots, key(0, 0, chunk), 100);
            }
        };
        for _ in 0..4 {
            (0..500).for_each(|chunk| read(&mut slots, chunk));
        }
        (10_000..12_000).for_each(|chunk| read(&mut slots, chunk));
        let kept = (0..500).filter(|chunk| slots.has(key(0, 0, *chunk), 100)).count();
        assert_eq!(kept, 500, "a scan of twice the cache");
    }
}
