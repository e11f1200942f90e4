//! Model of the kernel's stochastic multi-queue policy (dm-cache-policy-smq.c, Linux 4.12 to 6.x), as far as
//! it affects hits on clean blocks that are read whole. An independent implementation without the kernel's
//! code.
//!
//! Cached blocks are kept in a queue of 64 levels. *Hotspots*, regions of 16 blocks, are kept in another one,
//! which only misses update. A hit moves an entry up and another one down in exchange: cached blocks by one
//! level, once a minute; hotspots by up to four levels, once a tick. At the end of a period (a minute for
//! blocks, a second for hotspots) the levels are filled evenly, in order. A missed block is promoted if its
//! hotspot's level reaches a threshold, which depends on the share of misses whose hotspots are in the upper
//! quarter. It enters at the top level. The victim is the oldest block of the lowest level of the lower half.
//! In a full cache the first miss evicts and the next one is promoted.
//!
//! The kernel's periods are in seconds; here a fixed number of requests counts as a second. A tick is as long
//! as a request in the kernel. Migrations take no time here.

use super::{Cache, SLOTS};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const LEVELS: usize = 64;
/// Number of blocks of a hotspot.
const REGION: u64 = 16;
/// Number of hotspots: a quarter of the number of cached blocks, at least 1024.
const HOTSPOTS: usize = if SLOTS / 4 > 1024 { SLOTS / 4 } else { 1024 };
/// Number of upper levels of hotspots, and their target number of entries together.
const TOP_LEVELS: usize = 8;
const IN_TOP_LEVELS: usize = {
    let (few, fewer) = (HOTSPOTS / LEVELS, SLOTS / REGION as usize);
    if few < fewer { few } else { fewer }
};
/// Level from which a miss in a hotspot is a correct prediction.
const UPPER: usize = LEVELS * 3 / 4;
/// A tick, in requests.
const TICK: usize = 8;
/// Period of cached blocks, in seconds.
const CACHE_PERIOD: usize = 60;

/// Lists of entries, the oldest first, one for each level.
struct Queue {
    levels: Vec<VecDeque<u64>>,
    /// The level of each entry.
    entries: BTreeMap<u64, usize>,
    top_levels: usize,
    in_top_levels: usize,
    /// Entries that were requested in this period.
    touched: BTreeSet<u64>,
}

impl Queue {
    fn new(top_levels: usize, in_top_levels: usize) -> Self {
        let (levels, touched) = (vec![VecDeque::new(); LEVELS], BTreeSet::new());
        Queue { levels, entries: BTreeMap::new(), top_levels, in_top_levels, touched }
    }

    fn push(&mut self, entry: u64, level: usize) {
        self.levels[level].push_back(entry);
        self.entries.insert(entry, level);
    }

    /// Removes the oldest entry of the lowest non-empty level below `below`. Returns it with its level.
    fn pop(&mut self, below: usize) -> Option<(u64, usize)> {
        let level = self.levels[..below].iter().position(|level| !level.is_empty())?;
        let entry = self.levels[level].pop_front()?;
        self.entries.remove(&entry);
        self.touched.remove(&entry);
        Some((entry, level))
    }

    /// Moves an entry `up` levels higher, to the end; the oldest entry there takes its place.
    fn requeue(&mut self, entry: u64, up: usize) {
        let old = self.entries[&entry];
        let new = (old + up).min(LEVELS - 1);
        if new > old
            && let Some(other) = self.levels[new].pop_front()
        {
            self.push(other, old);
        }
        let place = self.levels[old].iter().position(|other| *other == entry).unwrap();
        self.levels[old].remove(place);
        self.push(entry, new);
    }

    /// Target number of entries of a level.
    fn target(&self, level: usize) -> usize {
        let share =
            |entries: usize, of: usize, number: usize| entries / of + usize::from(number < entries % of);
        let lower = LEVELS - self.top_levels;
        match level < lower {
            true => share(self.entries.len().saturating_sub(self.in_top_levels), lower, level),
            false => share(self.in_top_levels, self.top_levels, level - lower),
        }
    }

    /// Fills the levels evenly, beginning with the lowest one.
    fn redistribute(&mut self) {
        for level in 0..LEVELS - 1 {
            let target = self.target(level);
            while self.levels[level].len() < target {
                let Some(from) = (level + 1..LEVELS).find(|from| !self.levels[*from].is_empty()) else {
                    break;
                };
                let Some(entry) = self.levels[from].pop_front() else { break };
                self.push(entry, level);
            }
            while self.levels[level].len() > target {
                let Some(entry) = self.levels[level].pop_back() else { break };
                self.push(entry, level + 1);
            }
        }
    }
}

/// Quality of the hotspots' predictions.
#[derive(Clone, Copy)]
enum Performance {
    Poor,
    Fair,
    Well,
}

/// Model of the smq policy.
pub struct Smq {
    cache: Queue,
    hotspots: Queue,
    /// Number of requests per second.
    rate: usize,
    requests: usize,
    /// Number of misses whose hotspots were in the upper quarter, and of all misses.
    upper: usize,
    all: usize,
    level_jump: usize,
    promote_level: usize,
}

impl Smq {
    /// Creates the model with `rate` requests per second.
    pub fn new(rate: usize) -> Self {
        Smq {
            cache: Queue::new(0, 0),
            hotspots: Queue::new(TOP_LEVELS, IN_TOP_LEVELS),
            rate,
            requests: 0,
            upper: 0,
            all: 0,
            level_jump: 1,
            promote_level: LEVELS,
        }
    }

    fn performance(&self) -> Performance {
        match self.upper * 256 / self.all.max(1) {
            ..16 => Performance::Poor,
            16..32 => Performance::Fair,
            _ => Performance::Well,
        }
    }

    fn tick(&mut self) {
        self.hotspots.touched.clear();
        // The kernel takes the maximum of this and a term of the cache's hits, which is smaller.
        let levels = match self.performance() {
            Performance::Poor => LEVELS / 4,
            Performance::Fair => LEVELS / 2,
            Performance::Well => LEVELS,
        };
        self.promote_level = LEVELS - levels;
        if self.requests.is_multiple_of(self.rate.next_multiple_of(TICK)) {
            self.level_jump = match self.performance() {
                Performance::Poor => 4,
                Performance::Fair => 2,
                Performance::Well => 1,
            };
            self.hotspots.redistribute();
            (self.upper, self.all) = (0, 0);
        }
        if self.requests.is_multiple_of(CACHE_PERIOD * self.rate.next_multiple_of(TICK)) {
            self.cache.touched.clear();
            self.cache.redistribute();
        }
    }

    /// Notes a miss in a hotspot. Returns the hotspot's level.
    fn hotspot(&mut self, region: u64) -> usize {
        self.all += 1;
        match self.hotspots.entries.get(&region) {
            Some(level) => {
                self.upper += usize::from(*level >= UPPER);
                let up = if self.hotspots.touched.insert(region) { self.level_jump } else { 0 };
                self.hotspots.requeue(region, up);
            }
            None => {
                // A new hotspot inherits the level of the one that it replaces.
                let is_full = self.hotspots.entries.len() >= HOTSPOTS;
                let replaced = if is_full { self.hotspots.pop(LEVELS) } else { None };
                self.hotspots.push(region, replaced.map_or(0, |(_, level)| level));
            }
        }
        self.hotspots.entries[&region]
    }
}

impl Cache for Smq {
    fn request(&mut self, block: u64) -> bool {
        self.requests += 1;
        if self.requests.is_multiple_of(TICK) {
            self.tick();
        }
        if self.cache.entries.contains_key(&block) {
            if self.cache.touched.insert(block) {
                self.cache.requeue(block, 1);
            }
            return true;
        }
        if self.hotspot(block / REGION) >= self.promote_level {
            match self.cache.entries.len() < SLOTS {
                true => self.cache.push(block, LEVELS - 1),
                false => drop(self.cache.pop(LEVELS / 2)),
            }
        }
        false
    }
}
