//! Index from blocks to slots: a hash table with open addressing and linear probing, of eight bytes per slot.
//!
//! Buckets hold slot numbers; a caller's function returns the block of a slot.

/// Empty bucket.
const NONE: u32 = u32::MAX;

/// Index from blocks to slots.
#[derive(Debug)]
pub struct Index {
    buckets: Vec<u32>,
    shift: u32,
}

impl Index {
    /// Creates an empty index for at most `slots` slots.
    pub fn new(slots: usize) -> Self {
        let buckets = (slots * 2).next_power_of_two().max(8);
        Index { buckets: vec![NONE; buckets], shift: 64 - buckets.trailing_zeros() }
    }

    /// Home bucket of a block by Fibonacci hashing (Knuth, "The Art of Computer Programming", volume 3,
    /// section 6.4).
    #[inline]
    fn home(&self, block: u64) -> usize {
        (block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    /// Returns the slot of a block; `block_of` returns the block of a slot.
    #[inline]
    pub fn get(&self, block: u64, block_of: impl Fn(u32) -> u64) -> Option<u32> {
        let mask = self.buckets.len() - 1;
        let mut bucket = self.home(block);
        loop {
            match self.buckets[bucket] {
                NONE => return None,
                slot if block_of(slot) == block => return Some(slot),
                _ => bucket = (bucket + 1) & mask,
            }
        }
    }

    /// Inserts a block that isn't in the index.
    pub fn insert(&mut self, block: u64, slot: u32) {
        let mask = self.buckets.len() - 1;
        let mut bucket = self.home(block);
        while self.buckets[bucket] != NONE {
            bucket = (bucket + 1) & mask;
        }
        self.buckets[bucket] = slot;
    }

    /// Removes a block, if it is in the index, and moves displaced slots up so that probing finds them.
    pub fn remove(&mut self, block: u64, block_of: impl Fn(u32) -> u64) {
        let mask = self.buckets.len() - 1;
        let mut hole = self.home(block);
        loop {
            match self.buckets[hole] {
                NONE => return,
                slot if block_of(slot) == block => break,
                _ => hole = (hole + 1) & mask,
            }
        }
        let mut bucket = hole;
        loop {
            bucket = (bucket + 1) & mask;
            let slot = self.buckets[bucket];
            if slot == NONE {
                break;
            }
            let home = self.home(block_of(slot));
            // The slot may move into the hole if its home bucket is at or before the hole.
            if (bucket.wrapping_sub(home) & mask) >= (bucket.wrapping_sub(hole) & mask) {
                self.buckets[hole] = slot;
                hole = bucket;
            }
        }
        self.buckets[hole] = NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Random;
    use std::collections::BTreeMap;

    #[test]
    fn it_finds_what_a_map_finds() {
        let (slots, blocks) = (64, 200);
        let mut random = Random::new(1);
        let mut index = Index::new(slots);
        let mut of = vec![u64::MAX; slots];
        let mut map = BTreeMap::new();
        for _ in 0..20_000 {
            let block = random.below(blocks) << random.below(3);
            match index.get(block, |slot| of[slot as usize]) {
                found @ Some(slot) => {
                    assert_eq!(map.remove(&block), found);
                    index.remove(block, |slot| of[slot as usize]);
                    of[slot as usize] = u64::MAX;
                }
                None => {
                    assert!(!map.contains_key(&block));
                    if let Some(free) = of.iter().position(|block| *block == u64::MAX) {
                        of[free] = block;
                        index.insert(block, free as u32);
                        map.insert(block, free as u32);
                    }
                }
            }
        }
        for (block, slot) in &map {
            assert_eq!(index.get(*block, |slot| of[slot as usize]), Some(*slot));
        }
    }
}
