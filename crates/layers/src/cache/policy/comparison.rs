//! The policy against LRU and an smq of this simulation's own: hit ratios on loads that show what is different.
//!
//! `cargo test -p siltstone-layers --lib policy -- --nocapture` prints the table that the book shows.

use super::{Policy, S3Fifo};
use runtime::Random;
use std::collections::{BTreeMap, VecDeque};

/// Blocks that the cache has.
const SLOTS: usize = 2000;
/// Requests of a load; the first quarter isn't counted.
const REQUESTS: usize = 400_000;

/// A cache of blocks, by block.
trait Cache {
    /// Says whether it was there.
    fn request(&mut self, block: u64) -> bool;
}

/// The policy of the cache, as the cache uses it: every miss comes in.
struct Ours {
    policy: S3Fifo,
    slots: BTreeMap<u64, u32>,
    blocks: Vec<u64>,
}

impl Ours {
    fn new() -> Self {
        Ours { policy: S3Fifo::new(SLOTS), slots: BTreeMap::new(), blocks: Vec::new() }
    }
}

impl Cache for Ours {
    fn request(&mut self, block: u64) -> bool {
        if let Some(slot) = self.slots.get(&block) {
            self.policy.hit(*slot);
            return true;
        }
        let slot = if self.blocks.len() < SLOTS {
            self.blocks.push(block);
            self.blocks.len() as u32 - 1
        } else {
            let blocks = &self.blocks;
            let mut found = None;
            while found.is_none() {
                found = self.policy.victim(&|slot| blocks[slot as usize], &mut |_| true);
            }
            let slot = found.unwrap();
            self.slots.remove(&self.blocks[slot as usize]);
            self.blocks[slot as usize] = block;
            slot
        };
        self.slots.insert(block, slot);
        self.policy.insert(slot, block);
        false
    }
}

/// The least recently used one goes.
#[derive(Default)]
struct Lru {
    used: BTreeMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    time: u64,
}

impl Cache for Lru {
    fn request(&mut self, block: u64) -> bool {
        self.time += 1;
        let before = self.used.insert(block, self.time);
        if let Some(before) = before {
            self.order.remove(&before);
        }
        self.order.insert(self.time, block);
        if self.used.len() > SLOTS
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.used.remove(&oldest);
        }
        before.is_some()
    }
}

const LEVELS: usize = 64;

/// A queue of levels, each of which gets its share of the entries at the end of a period.
struct Levels {
    levels: Vec<VecDeque<u64>>,
    /// Level, whether it was asked for in this period.
    entries: BTreeMap<u64, (usize, bool)>,
}

impl Levels {
    fn new() -> Self {
        Levels { levels: vec![VecDeque::new(); LEVELS], entries: BTreeMap::new() }
    }

    fn insert(&mut self, block: u64, level: usize) {
        self.levels[level].push_back(block);
        self.entries.insert(block, (level, false));
    }

    /// Moves an entry up, once in a period.
    fn touch(&mut self, block: u64, by: usize) {
        let Some((level, touched)) = self.entries.get_mut(&block) else { return };
        if std::mem::replace(touched, true) {
            return;
        }
        let next = (*level + by).min(LEVELS - 1);
        let place = self.levels[*level].iter().position(|other| *other == block).unwrap();
        self.levels[*level].remove(place);
        *level = next;
        self.levels[next].push_back(block);
    }

    fn pop_lowest(&mut self) -> Option<u64> {
        let level = self.levels.iter_mut().find(|level| !level.is_empty())?;
        let block = level.pop_front()?;
        self.entries.remove(&block);
        Some(block)
    }

    /// The end of a period: every level gets as many as the others, in order.
    fn share(&mut self) {
        let all: Vec<u64> = self.levels.iter_mut().flat_map(|level| level.drain(..)).collect();
        let each = all.len().div_ceil(LEVELS).max(1);
        // The top levels are the full ones, as in the kernel.
        let first = LEVELS - all.len().div_ceil(each).min(LEVELS);
        for (number, block) in all.into_iter().enumerate() {
            let level = (first + number / each).min(LEVELS - 1);
            self.levels[level].push_back(block);
            self.entries.insert(block, (level, false));
        }
    }
}

/// The kernel's stochastic multi-queue (dm-cache-policy-smq.c, Linux 6.x), as far as it decides about hits: a queue of 64 levels
/// for what is in the cache and one for hotspots, regions of 16 blocks; what is asked for moves up, once in a period; at
/// the end of periods levels are made equal; a block comes in when its hotspot has a high level, which depends on how many
/// hits come from the upper half of the queue. Periods are counted in requests, for there is no time here.
struct Smq {
    cache: Levels,
    hotspots: Levels,
    requests: usize,
    /// Hits in the upper half, and all, of hotspots.
    upper: u64,
    all: u64,
    threshold: usize,
}

const REGION: u64 = 16;
const HOTSPOTS: usize = SLOTS / 4;
const HOTSPOT_PERIOD: usize = 4096;
const CACHE_PERIOD: usize = 16384;

impl Smq {
    fn new() -> Self {
        let (cache, hotspots) = (Levels::new(), Levels::new());
        Smq { cache, hotspots, requests: 0, upper: 0, all: 0, threshold: LEVELS - LEVELS / 16 }
    }
}

impl Cache for Smq {
    fn request(&mut self, block: u64) -> bool {
        self.requests += 1;
        let region = block / REGION;
        if let Some((level, _)) = self.hotspots.entries.get(&region) {
            self.all += 1;
            self.upper += u64::from(*level >= LEVELS / 2);
            self.hotspots.touch(region, 8);
        } else {
            self.all += 1;
            if self.hotspots.entries.len() >= HOTSPOTS {
                self.hotspots.pop_lowest();
            }
            self.hotspots.insert(region, 0);
        }
        if self.requests.is_multiple_of(HOTSPOT_PERIOD) {
            self.hotspots.share();
            let share = self.upper * 100 / self.all.max(1);
            // "Well", "fair" and "poor" in the kernel.
            let below = if share >= 75 {
                4
            } else if share >= 50 {
                8
            } else {
                16
            };
            self.threshold = LEVELS - LEVELS / below;
            (self.upper, self.all) = (0, 0);
        }
        if self.requests.is_multiple_of(CACHE_PERIOD) {
            self.cache.share();
        }
        if self.cache.entries.contains_key(&block) {
            self.cache.touch(block, 1);
            return true;
        }
        let is_hot = self.hotspots.entries.get(&region).is_some_and(|(level, _)| *level >= self.threshold);
        // As long as there is room, all comes in.
        if self.cache.entries.len() < SLOTS || is_hot {
            if self.cache.entries.len() >= SLOTS {
                self.cache.pop_lowest();
            }
            self.cache.insert(block, LEVELS / 2);
        }
        false
    }
}

/// Ranks by Zipf's law with this exponent, by a table of sums.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(blocks: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let mut sums: Vec<f64> = Vec::with_capacity(blocks);
        for rank in 1..=blocks {
            sum += (rank as f64).powf(-exponent);
            sums.push(sum);
        }
        Zipf(sums)
    }

    /// A block; the ranks are scattered over all of them.
    fn draw(&self, random: &mut Random) -> u64 {
        let sought = random.unit() * self.0.last().unwrap();
        let rank = self.0.partition_point(|sum| *sum < sought) as u64;
        rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.0.len() as u64
    }
}

type Load = fn(usize, &mut Random, &Zipf) -> u64;

const BLOCKS: usize = 40_000;

/// Names and loads. A load says which block request `number` is for.
const LOADS: [(&str, Load); 5] = [
    ("zipf 0.9", |_, random, zipf| zipf.draw(random)),
    // Every other ten thousand requests, half of them are a scan.
    ("zipf 0.9 with scans", |number, random, zipf| match number / 10_000 % 2 == 1 && number % 2 == 0 {
        true => 1_000_000 + number as u64,
        false => zipf.draw(random),
    }),
    // A loop over a quarter more than the cache has.
    ("loop over 125 %", |number, _, _| (number % (SLOTS * 5 / 4)) as u64),
    // A loop over three times as much, and a third of the requests for a few hot ones.
    ("loop and hot set", |number, random, _| match random.below(3) {
        0 => 1_000_000 + random.below(SLOTS as u64 / 2),
        _ => (number % (3 * SLOTS)) as u64,
    }),
    // What is popular changes every 50000 requests.
    ("shifting zipf 0.9", |number, random, zipf| {
        (zipf.draw(random) + (number / 50_000 * 12_345) as u64) % BLOCKS as u64
    }),
];

fn ratio(mut cache: impl Cache, load: Load) -> f64 {
    let (zipf, mut random) = (Zipf::new(BLOCKS, 0.9), Random::new(1));
    let mut hits = 0;
    for number in 0..REQUESTS {
        let hit = cache.request(load(number, &mut random, &zipf));
        hits += usize::from(hit && number >= REQUESTS / 4);
    }
    hits as f64 / (REQUESTS - REQUESTS / 4) as f64
}

#[test]
fn hit_ratios() {
    println!("| load | s3-fifo | LRU | smq |\n|---|---|---|---|");
    let mut table = BTreeMap::new();
    for (name, load) in LOADS {
        let (ours, lru, smq) =
            (ratio(Ours::new(), load), ratio(Lru::default(), load), ratio(Smq::new(), load));
        println!("| {name} | {:.1} % | {:.1} % | {:.1} % |", 100.0 * ours, 100.0 * lru, 100.0 * smq);
        table.insert(name, (ours, lru));
    }
    // Scans and loops are what it is there for.
    for name in ["zipf 0.9", "zipf 0.9 with scans", "loop and hot set", "shifting zipf 0.9"] {
        let (ours, lru) = table[name];
        assert!(ours > lru, "{name}: {ours} where LRU has {lru}");
    }
}
