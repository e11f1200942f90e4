//! The index: the address of the newest version of each cached block.
//!
//! Written blocks are in an open-addressing table (linear probing, deletion by moving back; Knuth, TAOCP vol.
//! 3, 6.4, algorithm R), allocated once for as many blocks as the cache can hold: 16 bytes each at a load of
//! at most 7/8, checksum included, so that reads by clients are checked. Discarded ranges are in a map and
//! don't overlap. Both have addresses of the log; the higher address is the newer version.
//!
//! Invariant: addresses are entered in rising order. Versions up to the **floor** are on the origin: lookups
//! don't find them, even before they are removed from the table.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a block number and of an address.
pub const BITS: u32 = 48;
const MASK: u64 = (1 << BITS) - 1;

/// Source of a block's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The cache, at this address of the log, with this checksum.
    At(u64, u32),
    /// None: the block reads as zeros.
    Zeros,
    /// The origin.
    Origin,
}

/// Block and address, with half of the checksum in the upper bits of each. An empty slot has address 0, which
/// no log has.
type Slot = [u64; 2];

fn block_of(slot: Slot) -> u64 {
    slot[0] & MASK
}

fn address_of(slot: Slot) -> u64 {
    slot[1] & MASK
}

fn sum_in(slot: Slot) -> u32 {
    (slot[0] >> BITS << 16 | slot[1] >> BITS) as u32
}

/// Index of the cached blocks.
#[derive(Debug)]
pub struct Index {
    slots: Vec<Slot>,
    /// Number of slots with a block. Written on the home shard only, read on all.
    used: Arc<AtomicU64>,
    discarded: Ranges,
    /// Versions up to this address are on the origin.
    floor: u64,
}

impl Index {
    /// Creates an index for at most this many written blocks. Pages of memory are allocated by the system on
    /// their first use.
    pub fn new(capacity: u64) -> Self {
        let slots = (capacity + capacity / 7 + 8) as usize;
        Index { slots: vec![[0, 0]; slots], used: Arc::default(), discarded: Ranges::default(), floor: 0 }
    }

    /// Number of cached blocks.
    pub fn blocks(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Number of cached blocks, readable on any shard.
    pub fn blocks_for_all_shards(&self) -> Arc<AtomicU64> {
        self.used.clone()
    }

    /// Number of discarded ranges.
    pub fn ranges(&self) -> usize {
        self.discarded.0.len()
    }

    /// Bytes of memory of the table once all of it has been used.
    pub fn bytes(&self) -> u64 {
        (self.slots.len() * size_of::<Slot>()) as u64
    }

    /// Whether nothing is cached.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.blocks() == 0 && self.discarded.0.is_empty()
    }

    /// Slot at which the search for a block begins. Blocks are hashed: consecutive ones would make long
    /// clusters.
    #[inline]
    fn home(&self, block: u64) -> usize {
        let spread = block.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let spread = (spread ^ spread >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        ((u128::from(spread) * self.slots.len() as u128) >> 64) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    /// Slot of the block, or the empty slot for it.
    #[inline]
    fn slot_of(&self, block: u64) -> usize {
        let mut at = self.home(block);
        while address_of(self.slots[at]) != 0 && block_of(self.slots[at]) != block {
            at = self.next(at);
        }
        at
    }

    /// Source of a block's data.
    #[inline]
    pub fn lookup(&self, block: u64) -> Found {
        let slot = self.slots[self.slot_of(block)];
        let written = address_of(slot);
        match self.discarded.address_of(block) {
            Some(gone) if gone > written && gone > self.floor => Found::Zeros,
            _ if written <= self.floor => Found::Origin,
            _ => Found::At(written, sum_in(slot)),
        }
    }

    /// The address of the newest version of a block, if it is cached.
    pub fn newest(&self, block: u64) -> Option<u64> {
        let written = address_of(self.slots[self.slot_of(block)]);
        let gone = self.discarded.address_of(block).unwrap_or(0);
        Some(written.max(gone)).filter(|newest| *newest > self.floor)
    }

    /// Blocks at these addresses, each with address and checksum. Searches the whole table.
    pub fn written_at(&self, addresses: &Range<u64>) -> Vec<(u64, u64, u32)> {
        let written = self.slots.iter().filter(|slot| addresses.contains(&address_of(**slot)));
        written.map(|slot| (block_of(*slot), address_of(*slot), sum_in(*slot))).collect()
    }

    /// Ranges that were discarded at these addresses: start, count and address.
    pub fn discarded_at(&self, addresses: &Range<u64>) -> Vec<(u64, u64, u64)> {
        let gone = self.discarded.0.iter().filter(|(_, gone)| addresses.contains(&gone.address));
        gone.map(|(start, gone)| (*start, gone.end - start, gone.address)).collect()
    }

    /// Enters a block with this checksum, written at this address, the highest so far.
    #[inline]
    pub fn write(&mut self, block: u64, address: u64, sum: u32) {
        let at = self.slot_of(block);
        if address_of(self.slots[at]) == 0 {
            self.used.store(self.blocks() + 1, Ordering::Relaxed);
            assert!(
                self.blocks() < self.slots.len() as u64,
                "the index has a slot for every block of the ring"
            );
        }
        let (high, low) = (u64::from(sum >> 16), u64::from(sum & 0xFFFF));
        self.slots[at] = [block | high << BITS, address | low << BITS];
    }

    /// Enters a range that was discarded at this address, the highest so far.
    pub fn discard(&mut self, start: u64, count: u64, address: u64) {
        self.discarded.insert(start, count, address);
    }

    /// Raises the floor: versions up to this address are on the origin, and lookups no longer find them.
    /// Their slots are removed later.
    pub fn forget_to(&mut self, address: u64) {
        self.floor = self.floor.max(address);
    }

    /// Removes this version of a block, unless a newer one has replaced it.
    #[inline]
    pub fn forget_write(&mut self, block: u64, address: u64) {
        let mut hole = self.slot_of(block);
        if address_of(self.slots[hole]) != address {
            return;
        }
        let mut at = hole;
        loop {
            at = self.next(at);
            let slot = self.slots[at];
            if address_of(slot) == 0 {
                break;
            }
            // The slot moves back unless its home lies after the hole, cyclically.
            let home = self.home(block_of(slot));
            let stays = if hole <= at { hole < home && home <= at } else { hole < home || home <= at };
            if !stays {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = [0, 0];
        self.used.store(self.blocks() - 1, Ordering::Relaxed);
    }

    /// Removes the remains of a range that was discarded at this address.
    pub fn forget_discard(&mut self, start: u64, count: u64, address: u64) {
        self.discarded.forget(start, count, address);
    }
}

/// Discarded ranges, each with its address. They don't overlap.
#[derive(Debug, Default)]
pub struct Ranges(BTreeMap<u64, Discarded>);

#[derive(Debug, Clone, Copy)]
struct Discarded {
    end: u64,
    address: u64,
}

impl Ranges {
    /// Address at which this block was discarded last.
    #[inline]
    pub fn address_of(&self, block: u64) -> Option<u64> {
        if self.0.is_empty() {
            return None;
        }
        let (_, gone) = self.0.range(..=block).next_back()?;
        (gone.end > block).then_some(gone.address)
    }

    /// Enters a range that was discarded at this address, the highest so far.
    pub fn insert(&mut self, start: u64, count: u64, address: u64) {
        let end = start + count;
        // Older ranges that reach into this one are cut; ranges inside it are removed.
        if let Some((_, before)) = self.0.range_mut(..start).next_back()
            && before.end > start
        {
            let rest = *before;
            before.end = start;
            if rest.end > end {
                self.0.insert(end, rest);
            }
        }
        while let Some((&inside, &gone)) = self.0.range(start..end).next() {
            self.0.remove(&inside);
            if gone.end > end {
                self.0.insert(end, gone);
            }
        }
        self.0.insert(start, Discarded { end, address });
    }

    /// Removes the remains of a range that was discarded at this address.
    fn forget(&mut self, start: u64, count: u64, address: u64) {
        let end = start + count;
        let mut at = start;
        while let Some((&found, &gone)) = self.0.range(at..end).next() {
            if gone.address == address {
                self.0.remove(&found);
            }
            at = gone.end;
            if at >= end {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Random;

    /// The changes in order: start, count, address, and whether it is a write.
    #[derive(Default)]
    struct Plain(Vec<(u64, u64, u64, bool)>);

    impl Plain {
        fn lookup(&self, block: u64) -> Found {
            let newest =
                self.0.iter().rev().find(|(start, count, ..)| (*start..start + count).contains(&block));
            match newest {
                None => Found::Origin,
                Some((start, _, address, true)) => {
                    Found::At(address + block - start, sum(address + block - start))
                }
                Some((.., false)) => Found::Zeros,
            }
        }
    }

    fn sum(address: u64) -> u32 {
        (address as u32).wrapping_mul(0x9E37_79B1)
    }

    fn forget(index: &mut Index, (start, count, address, written): (u64, u64, u64, bool)) {
        match written {
            true => (0..count).for_each(|at| index.forget_write(start + at, address + at)),
            false => index.forget_discard(start, count, address),
        }
    }

    #[test]
    fn the_index_agrees_with_a_plain_list_while_the_tail_moves() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut index, mut plain, mut next) = (Index::new(200), Plain::default(), 1);
            for _ in 0..2000 {
                let (start, count) = (random.below(90), 1 + random.below(10));
                match random.below(3) {
                    0 => {
                        index.discard(start, count, next);
                        plain.0.push((start, count, next, false));
                        next += 1;
                    }
                    1 if plain.0.iter().filter(|entry| entry.3).map(|entry| entry.1).sum::<u64>() < 190 => {
                        (0..count).for_each(|at| index.write(start + at, next + at, sum(next + at)));
                        plain.0.push((start, count, next, true));
                        next += count;
                    }
                    _ if plain.0.is_empty() => {}
                    _ => forget(&mut index, plain.0.remove(0)),
                }
                for block in 0..100 {
                    assert_eq!(index.lookup(block), plain.lookup(block), "seed {seed} block {block}");
                }
            }
            std::mem::take(&mut plain.0).into_iter().for_each(|entry| forget(&mut index, entry));
            assert!(index.is_empty(), "seed {seed}: {} blocks, {} ranges", index.blocks(), index.ranges());
        }
    }
}
