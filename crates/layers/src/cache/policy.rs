//! Which blocks stay: a policy without knobs.
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue and Vinayak, "FIFO queues are all you need for cache eviction", SOSP 2023): a small queue
//! for what is new, a main queue for what was asked for again, and the memory of what left the small one, the ghosts. A scan
//! passes through the small queue and leaves the main one alone. A hit costs a counter, no list is touched.
//!
//! What is different here: requests come in smaller pieces than blocks, so several in a row for the same block are one
//! visit, and a hit counts only when other blocks were asked for in between.

use std::collections::VecDeque;

/// Decides which block makes room.
pub(super) trait Policy {
    /// A block that is there was asked for.
    fn hit(&mut self, slot: u32);

    /// A block that wasn't there got this slot.
    fn insert(&mut self, slot: u32, block: u64);

    /// Takes out the slot that is to make room, of those that may; `block_of` says which block it has. None, if it has looked
    /// at many and none of them may: another call looks at others.
    fn victim(&mut self, block_of: &dyn Fn(u32) -> u64, may: &mut dyn FnMut(u32) -> bool) -> Option<u32>;

    /// A slot's block has gone otherwise.
    fn remove(&mut self, slot: u32);
}

/// How many slots are looked at for one that may make room.
const LOOKS: usize = 64;
/// The most hits that are counted.
const MOST_HITS: u8 = 3;
/// So many hits in the small queue are worth a place in the main one.
const WORTHY: u8 = 2;
/// Hits count when so many others lie between them, where the cache is large enough.
const VISIT: u32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queue {
    None,
    Small,
    Main,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct S3Fifo {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    queue: Vec<Queue>,
    hits: Vec<u8>,
    /// When a slot was last visited, in requests.
    visited: Vec<u32>,
    requests: u32,
    visit: u32,
    /// How many the small queue has when it is full: a tenth.
    small_size: usize,
    ghosts: Ghosts,
}

impl S3Fifo {
    /// For so many slots.
    pub fn new(slots: usize) -> Self {
        S3Fifo {
            small: VecDeque::new(),
            main: VecDeque::new(),
            queue: vec![Queue::None; slots],
            hits: vec![0; slots],
            visited: vec![0; slots],
            requests: 0,
            visit: VISIT.min(slots as u32 / 32),
            small_size: (slots / 10).max(1),
            ghosts: Ghosts::new(slots),
        }
    }

    fn is_ghost(&self, block: u64) -> bool {
        self.ghosts.has(block)
    }

    /// From the small queue: out, or to the main one. None where none was found that may leave.
    fn leave_small(
        &mut self,
        block_of: &dyn Fn(u32) -> u64,
        may: &mut dyn FnMut(u32) -> bool,
        looks: &mut usize,
    ) -> Option<u32> {
        for _ in 0..self.small.len() {
            if *looks == 0 {
                return None;
            }
            *looks -= 1;
            let slot = self.small.pop_front()?;
            let index = slot as usize;
            if self.queue[index] != Queue::Small {
                continue;
            }
            if self.hits[index] >= WORTHY {
                self.hits[index] = 0;
                self.queue[index] = Queue::Main;
                self.main.push_back(slot);
                continue;
            }
            if may(slot) {
                self.queue[index] = Queue::None;
                self.ghosts.insert(block_of(slot));
                return Some(slot);
            }
            self.small.push_back(slot);
        }
        None
    }

    fn leave_main(&mut self, may: &mut dyn FnMut(u32) -> bool, looks: &mut usize) -> Option<u32> {
        while *looks > 0 {
            *looks -= 1;
            let slot = self.main.pop_front()?;
            let index = slot as usize;
            if self.queue[index] != Queue::Main {
                continue;
            }
            if self.hits[index] > 0 {
                self.hits[index] -= 1;
                // A hit is a reprieve and no look at a candidate.
                *looks += usize::from(self.hits[index] > 0);
                self.main.push_back(slot);
                continue;
            }
            if may(slot) {
                self.queue[index] = Queue::None;
                return Some(slot);
            }
            self.main.push_back(slot);
        }
        None
    }
}

impl Policy for S3Fifo {
    #[inline]
    fn hit(&mut self, slot: u32) {
        let index = slot as usize;
        self.requests = self.requests.wrapping_add(1);
        if self.requests.wrapping_sub(self.visited[index]) > self.visit && self.hits[index] < MOST_HITS {
            self.hits[index] += 1;
        }
        self.visited[index] = self.requests;
    }

    fn insert(&mut self, slot: u32, block: u64) {
        let index = slot as usize;
        self.requests = self.requests.wrapping_add(1);
        self.visited[index] = self.requests;
        self.hits[index] = 0;
        if self.is_ghost(block) {
            self.queue[index] = Queue::Main;
            self.main.push_back(slot);
        } else {
            self.queue[index] = Queue::Small;
            self.small.push_back(slot);
        }
    }

    fn victim(&mut self, block_of: &dyn Fn(u32) -> u64, may: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let mut looks = LOOKS;
        let small_first = self.small.len() >= self.small_size || self.main.is_empty();
        let found = match small_first {
            true => self.leave_small(block_of, may, &mut looks),
            false => self.leave_main(may, &mut looks),
        };
        found.or_else(|| match small_first {
            true => self.leave_main(may, &mut looks),
            false => self.leave_small(block_of, may, &mut looks),
        })
    }

    fn remove(&mut self, slot: u32) {
        // It is left out when its turn comes, or when the slot is used again; both are rare.
        let index = slot as usize;
        match self.queue[index] {
            Queue::None => {}
            Queue::Small => self.small.retain(|other| *other != slot),
            Queue::Main => self.main.retain(|other| *other != slot),
        }
        self.queue[index] = Queue::None;
    }
}

/// What left the small queue lately: fingerprints in a table that forgets by age, and by being written over.
#[derive(Debug)]
struct Ghosts {
    /// A fingerprint in the upper half, when it came in the lower one.
    places: Vec<u64>,
    clock: u32,
    /// How many are remembered.
    capacity: u32,
}

impl Ghosts {
    fn new(slots: usize) -> Self {
        let places = (slots * 2).next_power_of_two().max(8);
        Ghosts { places: vec![0; places], clock: 0, capacity: slots.max(1) as u32 }
    }

    /// Where a block's fingerprint is, and it.
    fn place(&self, block: u64) -> (usize, u64) {
        let mut mixed = block.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^= mixed >> 29;
        mixed = mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed as usize) & (self.places.len() - 1), mixed >> 32 | 1)
    }

    fn has(&self, block: u64) -> bool {
        let (place, fingerprint) = self.place(block);
        let found = self.places[place];
        found >> 32 == fingerprint && self.clock.wrapping_sub(found as u32) < self.capacity
    }

    fn insert(&mut self, block: u64) {
        let (place, fingerprint) = self.place(block);
        self.clock = self.clock.wrapping_add(1);
        self.places[place] = fingerprint << 32 | u64::from(self.clock);
    }
}

#[cfg(test)]
mod comparison;
