//! Which slot has which block: a hash table with open addressing and linear probing, of eight bytes per slot.
//!
//! The table holds slots; the blocks themselves are found where the slots are.

/// No slot.
const NONE: u32 = u32::MAX;

/// Slots, found by their blocks.
#[derive(Debug)]
pub(super) struct Index {
    places: Vec<u32>,
    shift: u32,
}

impl Index {
    /// For so many slots.
    pub fn new(slots: usize) -> Self {
        let places = (slots * 2).next_power_of_two().max(8);
        Index { places: vec![NONE; places], shift: 64 - places.trailing_zeros() }
    }

    /// Fibonacci hashing (Knuth, "The Art of Computer Programming", volume 3, section 6.4).
    #[inline]
    fn home(&self, block: u64) -> usize {
        (block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    /// The slot of a block; `block_of` says which block a slot has.
    #[inline]
    pub fn get(&self, block: u64, block_of: impl Fn(u32) -> u64) -> Option<u32> {
        let mask = self.places.len() - 1;
        let mut place = self.home(block);
        loop {
            match self.places[place] {
                NONE => return None,
                slot if block_of(slot) == block => return Some(slot),
                _ => place = (place + 1) & mask,
            }
        }
    }

    /// The block isn't there yet.
    pub fn insert(&mut self, block: u64, slot: u32) {
        let mask = self.places.len() - 1;
        let mut place = self.home(block);
        while self.places[place] != NONE {
            place = (place + 1) & mask;
        }
        self.places[place] = slot;
    }

    /// Takes a block's slot out, if it is there; slots that were pushed behind it move up.
    pub fn remove(&mut self, block: u64, block_of: impl Fn(u32) -> u64) {
        let mask = self.places.len() - 1;
        let mut hole = self.home(block);
        loop {
            match self.places[hole] {
                NONE => return,
                slot if block_of(slot) == block => break,
                _ => hole = (hole + 1) & mask,
            }
        }
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let slot = self.places[place];
            if slot == NONE {
                break;
            }
            let home = self.home(block_of(slot));
            // It may move if its home isn't behind the hole.
            if (place.wrapping_sub(home) & mask) >= (place.wrapping_sub(hole) & mask) {
                self.places[hole] = slot;
                hole = place;
            }
        }
        self.places[hole] = NONE;
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
