//! Which blocks stay: a policy without knobs.
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue and Vinayak, "FIFO queues are all you need for cache eviction", SOSP 2023): a small queue
//! for what is new, a main queue for what was asked for again, and the memory of what left the small one, the ghosts. A scan
//! passes through the small queue and leaves the main one alone. A hit costs a counter, no list is touched.
//!
//! What is different here: requests come in smaller pieces than blocks, so several in a row for the same block are one
//! visit, and a hit counts only when other blocks were asked for in between.

mod heat;
mod queues;

pub use heat::Heat;

use queues::{Queue, Queues};

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

    /// How hot a slot is that has a block.
    fn heat(&self, slot: u32) -> Heat;

    /// Makes a slot that has a block as hot as this, from another run: it is older than all that is as hot, or, if its age
    /// is zero, newer.
    fn place(&mut self, slot: u32, heat: Heat);

    /// As [`remove`](Self::remove), of a slot whose block makes room for a hotter one.
    fn displace(&mut self, slot: u32, block: u64);
}

/// How many slots are looked at for one that may make room.
const LOOKS: usize = 64;
/// The most hits that are counted.
const MOST_HITS: u8 = 3;
/// So many hits in the small queue are worth a place in the main one.
const WORTHY: u8 = 2;
/// Hits count when so many others lie between them, where the cache is large enough.
const VISIT: u32 = 16;

/// See the module's head.
#[derive(Debug)]
pub(super) struct S3Fifo {
    queues: Queues,
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
            queues: Queues::new(slots),
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
        for _ in 0..self.queues.length(Queue::Small) {
            if *looks == 0 {
                return None;
            }
            *looks -= 1;
            let slot = self.queues.pop_front(Queue::Small)?;
            let index = slot as usize;
            if self.hits[index] >= WORTHY {
                self.hits[index] = 0;
                self.queues.push_back(Queue::Main, slot);
                continue;
            }
            if may(slot) {
                self.ghosts.insert(block_of(slot));
                return Some(slot);
            }
            self.queues.push_back(Queue::Small, slot);
        }
        None
    }

    fn leave_main(&mut self, may: &mut dyn FnMut(u32) -> bool, looks: &mut usize) -> Option<u32> {
        while *looks > 0 {
            *looks -= 1;
            let slot = self.queues.pop_front(Queue::Main)?;
            let index = slot as usize;
            if self.hits[index] > 0 {
                self.hits[index] -= 1;
                // A hit is a reprieve and no look at a candidate.
                *looks += usize::from(self.hits[index] > 0);
                self.queues.push_back(Queue::Main, slot);
                continue;
            }
            if may(slot) {
                return Some(slot);
            }
            self.queues.push_back(Queue::Main, slot);
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
        self.queues.remove(slot);
        match self.is_ghost(block) {
            true => self.queues.push_back(Queue::Main, slot),
            false => self.queues.push_back(Queue::Small, slot),
        }
    }

    fn victim(&mut self, block_of: &dyn Fn(u32) -> u64, may: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        let mut looks = LOOKS;
        let (small, main) = (self.queues.length(Queue::Small), self.queues.length(Queue::Main));
        let small_first = small >= self.small_size || main == 0;
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
        self.queues.remove(slot);
    }

    fn heat(&self, slot: u32) -> Heat {
        let index = slot as usize;
        let requests_ago = self.requests.wrapping_sub(self.visited[index]);
        Heat::new(self.queues.of(slot), self.hits[index], requests_ago)
    }

    fn place(&mut self, slot: u32, heat: Heat) {
        let index = slot as usize;
        self.hits[index] = heat.hits;
        self.visited[index] = self.requests.wrapping_sub(heat.requests_ago());
        self.queues.remove(slot);
        match heat.age {
            0 => self.queues.push_back(heat.queue(), slot),
            _ => self.queues.push_front(heat.queue(), slot),
        }
    }

    fn displace(&mut self, slot: u32, block: u64) {
        if self.queues.of(slot) == Queue::Small {
            self.ghosts.insert(block);
        }
        self.queues.remove(slot);
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
