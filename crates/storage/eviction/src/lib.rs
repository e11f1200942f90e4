//! Eviction policy of caches on a fast device, without tunables, and the index of their blocks.
//!
//! S3-FIFO (Yang, Zhang, Qiu, Yue and Vinayak, "FIFO queues are all you need for cache eviction", SOSP 2023):
//! a small queue for new blocks, a main queue for blocks with further hits, and a ghost queue of blocks that
//! left the small one. A scan passes through the small queue and leaves the main one unchanged. A hit raises
//! a counter and moves nothing in a queue.
//!
//! Difference to the paper: requests are smaller than blocks, so consecutive requests for the same block are
//! one visit. A hit is counted only if requests for other blocks came in between.

mod heat;
mod index;
mod queues;

pub use heat::Heat;
pub use index::Index;

use queues::{Queue, Queues};

/// Chooses the blocks to evict.
pub trait Policy {
    /// Notes a request for the block in this slot.
    fn hit(&mut self, slot: u32);

    /// Notes that a block was promoted into this slot.
    fn insert(&mut self, slot: u32, block: u64);

    /// Chooses a slot for which `may_evict` returns true, and removes it; `block_of` returns the block of a
    /// slot. Returns `None` after a bounded number of slots that may not be evicted; the next call examines
    /// others.
    fn victim(
        &mut self,
        block_of: &dyn Fn(u32) -> u64,
        may_evict: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32>;

    /// Removes a slot whose block was evicted by other means.
    fn remove(&mut self, slot: u32);

    /// Returns the heat of the block in a slot.
    fn heat(&self, slot: u32) -> Heat;

    /// Gives the block in a slot a recorded heat. The block becomes the oldest of its queue or, with age
    /// zero, the newest.
    fn restore(&mut self, slot: u32, heat: Heat);

    /// Removes a slot whose block is evicted for a hotter one, and remembers the block as
    /// [`victim`](Self::victim) does.
    fn displace(&mut self, slot: u32, block: u64);
}

/// Largest number of slots that one search for a victim examines.
const MAX_EXAMINED: usize = 64;
/// Largest number of counted hits.
const MAX_HITS: u8 = 3;
/// Number of hits with which a block moves from the small queue to the main one.
const PROMOTION_HITS: u8 = 2;
/// Number of other requests after which a further hit of a block is counted; fewer in a small cache.
const MAX_VISIT_GAP: u32 = 16;

/// S3-FIFO over slots.
#[derive(Debug)]
pub struct S3Fifo {
    queues: Queues,
    hits: Vec<u8>,
    /// Number of the last request for each slot.
    last_visit: Vec<u32>,
    requests: u32,
    /// Number of other requests after which a further hit of a block is counted.
    visit_gap: u32,
    /// Length of the small queue at which blocks are evicted from it first: a tenth of the slots.
    small_size: usize,
    ghosts: Ghosts,
}

impl S3Fifo {
    /// Creates the policy for this number of slots.
    pub fn new(slots: usize) -> Self {
        S3Fifo {
            queues: Queues::new(slots),
            hits: vec![0; slots],
            last_visit: vec![0; slots],
            requests: 0,
            visit_gap: MAX_VISIT_GAP.min(slots as u32 / 32),
            small_size: (slots / 10).max(1),
            ghosts: Ghosts::new(slots),
        }
    }

    fn is_ghost(&self, block: u64) -> bool {
        self.ghosts.has(block)
    }

    /// Evicts from the small queue, and moves the slots with enough hits that it examines to the main queue.
    /// `budget` is the number of slots that may still be examined.
    fn evict_from_small(
        &mut self,
        block_of: &dyn Fn(u32) -> u64,
        may_evict: &mut dyn FnMut(u32) -> bool,
        budget: &mut usize,
    ) -> Option<u32> {
        for _ in 0..self.queues.length(Queue::Small) {
            if *budget == 0 {
                return None;
            }
            *budget -= 1;
            let slot = self.queues.pop_front(Queue::Small)?;
            let index = slot as usize;
            if self.hits[index] >= PROMOTION_HITS {
                self.hits[index] = 0;
                self.queues.push_back(Queue::Main, slot);
                continue;
            }
            if may_evict(slot) {
                self.ghosts.insert(block_of(slot));
                return Some(slot);
            }
            self.queues.push_back(Queue::Small, slot);
        }
        None
    }

    /// Evicts from the main queue; a slot with hits loses one, and moves to the end.
    fn evict_from_main(&mut self, may_evict: &mut dyn FnMut(u32) -> bool, budget: &mut usize) -> Option<u32> {
        while *budget > 0 {
            *budget -= 1;
            let slot = self.queues.pop_front(Queue::Main)?;
            let index = slot as usize;
            if self.hits[index] > 0 {
                self.hits[index] -= 1;
                // A slot with hits left isn't a candidate and isn't charged to the search.
                *budget += usize::from(self.hits[index] > 0);
                self.queues.push_back(Queue::Main, slot);
                continue;
            }
            if may_evict(slot) {
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
        if self.requests.wrapping_sub(self.last_visit[index]) > self.visit_gap && self.hits[index] < MAX_HITS
        {
            self.hits[index] += 1;
        }
        self.last_visit[index] = self.requests;
    }

    fn insert(&mut self, slot: u32, block: u64) {
        let index = slot as usize;
        self.requests = self.requests.wrapping_add(1);
        self.last_visit[index] = self.requests;
        self.hits[index] = 0;
        self.queues.remove(slot);
        match self.is_ghost(block) {
            true => self.queues.push_back(Queue::Main, slot),
            false => self.queues.push_back(Queue::Small, slot),
        }
    }

    fn victim(
        &mut self,
        block_of: &dyn Fn(u32) -> u64,
        may_evict: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        let mut budget = MAX_EXAMINED;
        let (small, main) = (self.queues.length(Queue::Small), self.queues.length(Queue::Main));
        let small_first = small >= self.small_size || main == 0;
        let found = match small_first {
            true => self.evict_from_small(block_of, may_evict, &mut budget),
            false => self.evict_from_main(may_evict, &mut budget),
        };
        found.or_else(|| match small_first {
            true => self.evict_from_main(may_evict, &mut budget),
            false => self.evict_from_small(block_of, may_evict, &mut budget),
        })
    }

    fn remove(&mut self, slot: u32) {
        self.queues.remove(slot);
    }

    fn heat(&self, slot: u32) -> Heat {
        let index = slot as usize;
        let requests_ago = self.requests.wrapping_sub(self.last_visit[index]);
        Heat::new(self.queues.of(slot), self.hits[index], requests_ago)
    }

    fn restore(&mut self, slot: u32, heat: Heat) {
        let index = slot as usize;
        self.hits[index] = heat.hits;
        self.last_visit[index] = self.requests.wrapping_sub(heat.requests_ago());
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

/// Ghost queue: fingerprints of blocks that left the small queue lately. An entry expires by age or is
/// overwritten.
#[derive(Debug)]
struct Ghosts {
    /// Fingerprint in the upper half, time of insertion in the lower one.
    entries: Vec<u64>,
    /// Number of insertions.
    clock: u32,
    /// Age in insertions at which an entry expires.
    capacity: u32,
}

impl Ghosts {
    fn new(slots: usize) -> Self {
        let entries = (slots * 2).next_power_of_two().max(8);
        Ghosts { entries: vec![0; entries], clock: 0, capacity: slots.max(1) as u32 }
    }

    /// Returns the bucket and the fingerprint of a block.
    fn bucket(&self, block: u64) -> (usize, u64) {
        let mut mixed = block.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^= mixed >> 29;
        mixed = mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed as usize) & (self.entries.len() - 1), mixed >> 32 | 1)
    }

    fn has(&self, block: u64) -> bool {
        let (bucket, fingerprint) = self.bucket(block);
        let found = self.entries[bucket];
        found >> 32 == fingerprint && self.clock.wrapping_sub(found as u32) < self.capacity
    }

    fn insert(&mut self, block: u64) {
        let (bucket, fingerprint) = self.bucket(block);
        self.clock = self.clock.wrapping_add(1);
        self.entries[bucket] = fingerprint << 32 | u64::from(self.clock);
    }
}

#[cfg(test)]
mod comparison;
