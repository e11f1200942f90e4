//! Benchmark of a map's lookups, changes and memory.
//!
//! The map is filled page by page in random order, so that neighbours in the volume aren't neighbours in
//! memory, as in an aged volume. Everything runs on one thread, pinned to one core, through the trait, as in
//! the device. Lookups are of random mapped blocks; the time includes generating the blocks' numbers (a
//! multiplication or two each).

use super::{Map, PAGE_BLOCKS, Physical, make};
use block::memory::GrowingWords;
use block::{Error, Result};
use runtime::{Random, now};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Contents of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Single blocks at random locations: the most that a map has to hold.
    Random,
    /// Contents of a log after sequential writes: extents of 255 blocks, one block apart.
    Sequential,
}

/// Lookups per second. Each rate is the median of many short rounds, which limits the influence of other
/// processes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Independent lookups, one call each.
    pub single: f64,
    /// Independent lookups in batches of [`BATCH`].
    pub batched: f64,
    /// Dependent lookups: each needs the result of the previous one.
    pub dependent: f64,
}

/// Result of [`measure`]. All rates are per second.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The map's name.
    pub map: &'static str,
    /// Number of blocks, all of them mapped.
    pub blocks: u64,
    /// Contents of the volume.
    pub contents: Contents,
    /// Pages loaded per second while the map was filled, including page faults.
    pub pages_loaded: f64,
    /// Rates of the map's lookups.
    pub lookups: Rates,
    /// Rates of a plain array of the same entries (4 bytes per block, in huge pages), measured in turns with
    /// the map. They are the limit of the memory, although a map smaller than the array can be faster.
    pub array: Rates,
    /// Changes of one random mapped block each.
    pub inserts: f64,
    /// Memory of the full map in bytes, as the map reports it.
    pub bytes: u64,
}

impl Measured {
    /// Returns the memory per mapped block, in bytes.
    pub fn bytes_per_block(&self) -> f64 {
        self.bytes as f64 / self.blocks as f64
    }
}

/// Number of lookups of a batch.
pub const BATCH: usize = 32;

/// Number of operations of a timed round: short enough that most rounds aren't interrupted.
const ROUND: u64 = 1 << 13;

/// Fills a map of `blocks` blocks, and an array of 4 bytes per block for comparison, and measures each kind
/// of lookup on both for at least `duration`.
///
/// # Errors
/// [`Error::Invalid`] for an unknown map, or if the volume has no whole page or more than 2^32 - 1 blocks;
/// [`Error::OutOfMemory`]; errors of [`runtime::run`].
pub fn measure(name: &str, blocks: u64, contents: Contents, duration: Duration) -> Result<Measured> {
    if blocks == 0 || !blocks.is_multiple_of(PAGE_BLOCKS) || blocks > u64::from(u32::MAX) {
        let text =
            format!("measuring a map of {blocks} blocks: expected a multiple of {PAGE_BLOCKS} below 2^32");
        return Err(Error::invalid(text));
    }
    let name = name.to_owned();
    runtime::run(runtime::Config::default().pinned(), move || async move {
        let map = make(&name, blocks)?;
        let array = GrowingWords::reserve(blocks as usize)?;
        array.grow(blocks as usize)?;
        let pages_loaded = fill(&*map, &array, contents);
        let bytes = map.bytes();
        let [lookups, array] = rates(&*map, &array, duration);
        Ok(Measured {
            map: map.name(),
            blocks,
            contents,
            pages_loaded,
            lookups,
            array,
            inserts: inserts(&*map, duration),
            bytes,
        })
    })?
}

/// Loads all pages in random order. Returns the number of pages per second.
fn fill(map: &dyn Map, array: &GrowingWords, contents: Contents) -> f64 {
    let mut random = Random::new(1);
    let mut pages: Vec<u32> = (0..(map.blocks() / PAGE_BLOCKS) as u32).collect();
    for at in (1..pages.len()).rev() {
        pages.swap(at, random.below(at as u64 + 1) as usize);
    }
    let mut entries = vec![0; PAGE_BLOCKS as usize];
    let mut took = Duration::ZERO;
    for page in &pages {
        let first = u64::from(*page) * PAGE_BLOCKS;
        for (block, entry) in (first..).zip(&mut entries) {
            *entry = match contents {
                Contents::Random => (random.next_u64() as u32).max(1),
                // A header before each extent.
                Contents::Sequential => (block + block / 255 + 1).max(1) as u32,
            };
        }
        let start = now();
        map.load_page((*page).into(), &entries);
        took += start.elapsed();
        for (word, entry) in array[first as usize..].iter().zip(&entries) {
            word.store(*entry, Ordering::Relaxed);
        }
    }
    pages.len() as f64 / took.as_secs_f64()
}

/// Times rounds of two functions in turn until the time is up for both. Returns the operations per second of
/// the median round of each.
fn rate_both(duration: Duration, mut rounds: [&mut dyn FnMut() -> u32; 2]) -> [f64; 2] {
    let mut took = [Vec::new(), Vec::new()];
    let start = now();
    while start.elapsed() < 2 * duration {
        for (round, took) in rounds.iter_mut().zip(&mut took) {
            // Several rounds in a row, so that each function warms up the caches for itself; the first isn't
            // counted.
            std::hint::black_box(round());
            for _ in 0..8 {
                let start = now();
                std::hint::black_box(round());
                took.push(start.elapsed());
            }
        }
    }
    took.map(|mut took| {
        took.sort_unstable();
        ROUND as f64 / took[took.len() / 2].as_secs_f64()
    })
}

/// Cheap pseudorandom numbers: a linear congruential generator (Knuth's MMIX constants), its upper bits
/// scaled to the limit.
#[derive(Debug)]
struct Blocks {
    state: u64,
    limit: u64,
}

impl Blocks {
    fn below(limit: u64) -> Self {
        Blocks { state: 1, limit }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 32) * self.limit) >> 32
    }
}

/// Returns the rates of lookups in the map and in the array.
fn rates(map: &dyn Map, array: &GrowingWords, duration: Duration) -> [Rates; 2] {
    let limit = map.blocks();
    let in_map = |block| map.lookup(block).0;
    let in_array = |block| array[block as usize].load(Ordering::Relaxed);
    let single = rate_both(duration, [&mut single(limit, in_map), &mut single(limit, in_array)]);
    let batch_in_map = |blocks: &[u64], found: &mut [Physical]| map.lookup_batch(blocks, found);
    let batch_in_array = |blocks: &[u64], found: &mut [Physical]| {
        blocks.iter().for_each(|block| array.prefetch(*block as usize));
        blocks.iter().zip(found).for_each(|(block, found)| found.0 = in_array(*block));
    };
    let batched =
        rate_both(duration, [&mut batched(limit, batch_in_map), &mut batched(limit, batch_in_array)]);
    let dependent = rate_both(duration, [&mut dependent(limit, in_map), &mut dependent(limit, in_array)]);
    [0, 1].map(|which| Rates { single: single[which], batched: batched[which], dependent: dependent[which] })
}

fn single(limit: u64, lookup: impl Fn(u64) -> u32) -> impl FnMut() -> u32 {
    let mut blocks = Blocks::below(limit);
    move || (0..ROUND).fold(0, |sum: u32, _| sum.wrapping_add(lookup(blocks.next())))
}

fn batched(limit: u64, lookup: impl Fn(&[u64], &mut [Physical])) -> impl FnMut() -> u32 {
    let mut blocks = Blocks::below(limit);
    let (mut batch, mut found) = ([0; BATCH], [Physical::NONE; BATCH]);
    move || {
        for _ in 0..ROUND / BATCH as u64 {
            batch.fill_with(|| blocks.next());
            lookup(&batch, &mut found);
            // Use of the results is not timed.
            std::hint::black_box(&mut found);
        }
        found[0].0
    }
}

fn dependent(limit: u64, lookup: impl Fn(u64) -> u32) -> impl FnMut() -> u32 {
    let mut blocks = Blocks::below(limit);
    let mut last = 0;
    move || {
        for _ in 0..ROUND {
            blocks.state ^= u64::from(last) << 32;
            last = lookup(blocks.next());
        }
        last
    }
}

/// Returns the changes of single blocks per second, with a grace period per round.
fn inserts(map: &dyn Map, duration: Duration) -> f64 {
    let mut blocks = Blocks::below(map.blocks());
    let mut round = || {
        let mut displaced = 0_u32;
        for _ in 0..ROUND {
            let block = blocks.next();
            let to = Physical((blocks.state as u32).max(1));
            map.insert(block..block + 1, to, &mut |piece| {
                displaced = displaced.wrapping_add(piece.physical.0)
            });
        }
        map.end_grace(map.begin_grace());
        displaced
    };
    rate_both(duration / 2, [&mut round, &mut || 0])[0]
}

#[cfg(test)]
mod tests {
    use super::super::NAMES;
    use super::*;

    #[test]
    fn every_map_can_be_measured() {
        for name in NAMES {
            for contents in [Contents::Random, Contents::Sequential] {
                let measured = measure(name, 8 * PAGE_BLOCKS, contents, Duration::from_millis(1)).unwrap();
                assert_eq!((measured.map, measured.blocks), (name, 8 * PAGE_BLOCKS));
                let Rates { single, batched, dependent } = measured.lookups;
                let rates = [single, batched, dependent];
                assert!(rates.iter().all(|rate| *rate > 0.0), "{measured:?}");
                assert!(measured.bytes_per_block() > 0.01, "{measured:?}");
            }
        }
        let short = Duration::from_millis(1);
        assert!(measure("tree", PAGE_BLOCKS, Contents::Random, short).is_err());
        assert!(measure("radix", PAGE_BLOCKS + 1, Contents::Random, short).is_err());
    }
}
