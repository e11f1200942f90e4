//! Hit ratios of the policy, of LRU and of a model of the kernel's smq, on loads that show their differences.
//!
//! `cargo test -p siltstone-eviction --lib -- --nocapture` prints the table that the book shows.

mod smq;

use super::{Policy, S3Fifo};
use runtime::Random;
use smq::Smq;
use std::collections::BTreeMap;

/// Blocks that the cache has.
const SLOTS: usize = 2000;
/// Number of requests of a load; the first quarter warms the cache and isn't counted.
const REQUESTS: usize = 400_000;

/// A cache of blocks, by block.
trait Cache {
    /// Requests a block. Returns whether it was a hit.
    fn request(&mut self, block: u64) -> bool;
}

/// The cache's policy as the cache uses it: every miss is promoted.
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

/// Least recently used.
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

/// Zipf distribution of blocks: cumulative shares of the ranks, and the block of each rank.
struct Zipf {
    sums: Vec<f64>,
    blocks: Vec<u64>,
}

impl Zipf {
    /// Creates a distribution over `blocks` blocks. Runs of `neighbours` blocks have consecutive ranks; the
    /// runs are shuffled.
    fn new(blocks: u64, exponent: f64, neighbours: u64) -> Self {
        let mut sum = 0.0;
        let shares = (1..=blocks).map(|rank| (rank as f64).powf(-exponent));
        let sums = shares.map(|share| {
            sum += share;
            sum
        });
        let sums = sums.collect();
        let mut random = Random::new(2);
        let mut runs: Vec<u64> = (0..blocks / neighbours).collect();
        for last in (1..runs.len()).rev() {
            runs.swap(last, random.below(last as u64 + 1) as usize);
        }
        let blocks = runs.iter().flat_map(|run| run * neighbours..(run + 1) * neighbours).collect();
        Zipf { sums, blocks }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let sought = random.unit() * self.sums.last().unwrap();
        self.blocks[self.sums.partition_point(|sum| *sum < sought)]
    }
}

type Load = fn(usize, &mut Random, &Zipf) -> u64;

const BLOCKS: u64 = 40_000;
/// Number of blocks of one of smq's hotspots.
const NEIGHBOURS: u64 = 16;

/// Name, number of neighbours with consecutive ranks, and function of a load, which returns the block of
/// request `number`.
const LOADS: [(&str, u64, Load); 6] = [
    ("zipf 0.9", 1, |_, random, zipf| zipf.draw(random)),
    ("zipf 0.9, neighbours alike", NEIGHBOURS, |_, random, zipf| zipf.draw(random)),
    // Every other ten thousand requests, half of them are a scan.
    ("zipf 0.9, with scans", 1, |number, random, zipf| match number / 10_000 % 2 == 1 && number % 2 == 0 {
        true => 1_000_000 + number as u64,
        false => zipf.draw(random),
    }),
    // A loop over 1.25 times the cache's size.
    ("loop over 125 % of the cache", 1, |number, _, _| (number % (SLOTS * 5 / 4)) as u64),
    // A loop over three times the cache's size; every third request goes to a small hot set.
    ("loop over 300 %, and a third for a hot set", 1, |number, random, _| match random.below(3) {
        0 => 1_000_000 + random.below(SLOTS as u64 / 2),
        _ => (number % (3 * SLOTS)) as u64,
    }),
    // The popular blocks change.
    ("zipf 0.9 that shifts every 50 000 requests", 1, |number, random, zipf| {
        (zipf.draw(random) + (number / 50_000 * 12_345) as u64) % BLOCKS
    }),
];

/// Returns each cache's ratio of hits, of a load's requests after the first quarter.
fn ratios<const N: usize>(caches: [Box<dyn Cache>; N], load: Load, zipf: &Zipf) -> [f64; N] {
    let first = REQUESTS / 4;
    caches.map(|mut cache| {
        let mut random = Random::new(1);
        let hits = (0..REQUESTS).filter(|number| {
            let hit = cache.request(load(*number, &mut random, zipf));
            hit && *number >= first
        });
        hits.count() as f64 / (REQUESTS - first) as f64
    })
}

#[test]
fn hit_ratios() {
    println!("| load | s3-fifo | LRU | smq, 100/s | smq, 1000/s |\n|---|---|---|---|---|");
    let budget = conformance::budget::Budget::of(4);
    for (name, neighbours, load) in LOADS {
        if !budget.allows_more(LOADS.len() as u64) {
            break;
        }
        let zipf = Zipf::new(BLOCKS, 0.9, neighbours);
        let caches: [Box<dyn Cache>; 4] =
            [Box::new(Ours::new()), Box::<Lru>::default(), Box::new(Smq::new(100)), Box::new(Smq::new(1000))];
        let ratios = ratios(caches, load, &zipf);
        println!("| {name} |{}", ratios.map(|ratio| format!(" {:.1} % |", 100.0 * ratio)).concat());
        let [ours, lru, ..] = ratios;
        assert!(ours > lru, "{name}: {ours} where LRU has {lru}");
    }
}

#[test]
fn a_zipf_has_every_block() {
    for neighbours in [1, NEIGHBOURS] {
        let zipf = Zipf::new(BLOCKS, 0.9, neighbours);
        let mut blocks = zipf.blocks.clone();
        let run = neighbours as usize;
        assert!(blocks.chunks(run).all(|run| run.windows(2).all(|pair| pair[1] == pair[0] + 1)));
        blocks.sort_unstable();
        assert_eq!(blocks, (0..BLOCKS).collect::<Vec<_>>(), "neighbours: {neighbours}");
    }
}
