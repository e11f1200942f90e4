//! Addresses of operations.
//!
//! - Sequential: each direction goes through the region from its start, repeatedly.
//! - Uniform: every block once before any is repeated, by a permutation that needs no memory (a Feistel
//!   network over the next power of four, walked until it falls inside: Black and Rogaway, "Ciphers with
//!   arbitrary finite domains", 2002); with `norandommap`, independent draws.
//! - Zipf: ranks by rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates
//!   from monotone discrete distributions", 1996); the rank of each block is given by such a permutation.

use crate::job::{BlockSizes, Distribution, Job, Region};
use runtime::Random;

/// Direction of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
    /// A discard.
    Trim,
}

/// One operation; offset and length in bytes of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Direction.
    pub direction: Direction,
    /// Offset.
    pub offset: u64,
    /// Length.
    pub length: u64,
}

/// Generator of requests, determined by its seed.
pub struct Addresses {
    random: Random,
    region: Region,
    mixed_reads: Option<u32>,
    fixed: Direction,
    sizes: [BlockSizes; 3],
    pattern: AccessPattern,
}

enum AccessPattern {
    /// Next offset of each direction.
    Sequential([u64; 3]),
    /// Blocks of `unit` bytes in a drawn order, repeatedly.
    Permuted {
        unit: u64,
        order: Permutation,
        next: u64,
        seed: u64,
    },
    Independent {
        unit: u64,
        count: u64,
    },
    Zipf {
        unit: u64,
        ranks: Zipf,
        order: Permutation,
    },
}

impl Addresses {
    /// Generator for a clone of a job with this seed.
    pub fn new(job: &Job, region: &Region, seed: u64) -> Addresses {
        let per = &job.block_size;
        let unit = job.smallest_request();
        let count = (region.length / unit).max(1);
        let pattern = match job.random_distribution {
            _ if !job.rw.is_random() => AccessPattern::Sequential([0; 3]),
            Distribution::Zipf { theta } => AccessPattern::Zipf {
                unit,
                ranks: Zipf::new(count, theta),
                order: Permutation::new(count, seed),
            },
            Distribution::Uniform if job.norandommap => AccessPattern::Independent { unit, count },
            Distribution::Uniform => {
                AccessPattern::Permuted { unit, order: Permutation::new(count, seed), next: 0, seed }
            }
        };
        let fixed = match (job.rw.reads(), job.rw.writes()) {
            (_, true) => Direction::Write,
            (true, false) => Direction::Read,
            (false, false) => Direction::Trim,
        };
        Addresses {
            random: Random::new(seed),
            region: *region,
            mixed_reads: job.rw.is_mixed().then_some(job.rwmixread),
            fixed,
            sizes: [per.read, per.write, per.trim],
            pattern,
        }
    }

    /// Whether all requests are reads.
    pub fn only_reads(&self) -> bool {
        self.mixed_reads.is_none() && self.fixed == Direction::Read
    }

    /// Draws the next request.
    #[inline]
    pub fn draw(&mut self) -> Request {
        let direction = match self.mixed_reads {
            None => self.fixed,
            Some(percent) if self.random.below(100) < u64::from(percent) => Direction::Read,
            Some(_) => Direction::Write,
        };
        let sizes = self.sizes[direction as usize];
        let length = match sizes.is_fixed() {
            true => sizes.min,
            false => sizes.min * (1 + self.random.below(sizes.max / sizes.min)),
        };
        let (random, region) = (&mut self.random, &self.region);
        let offset = match &mut self.pattern {
            AccessPattern::Sequential(positions) => {
                let position = &mut positions[direction as usize];
                if *position + length > region.length {
                    *position = 0;
                }
                let offset = *position;
                *position += length;
                offset
            }
            AccessPattern::Permuted { unit, order, next, seed } => {
                if *next == order.count {
                    *seed = seed.wrapping_add(1);
                    (*order, *next) = (Permutation::new(order.count, *seed), 0);
                }
                *next += 1;
                order.at(*next - 1) * *unit
            }
            AccessPattern::Independent { unit, count } => random.below(*count) * *unit,
            AccessPattern::Zipf { unit, ranks, order } => order.at(ranks.draw(random)) * *unit,
        };
        // A long request near the end is moved back, so that it fits.
        let offset = offset.min(region.length - length.min(region.length));
        Request { direction, offset: region.offset + offset, length: length.min(region.length) }
    }
}

/// Random order of the numbers below a count.
struct Permutation {
    count: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Permutation {
    fn new(count: u64, seed: u64) -> Permutation {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        let mut random = Random::new(seed ^ 0x7065_726d);
        let keys = [random.next_u64(), random.next_u64(), random.next_u64(), random.next_u64()];
        Permutation { count, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// Number at this index.
    #[inline]
    fn at(&self, index: u64) -> u64 {
        let mut value = index;
        loop {
            value = self.encrypt(value);
            if value < self.count {
                return value;
            }
        }
    }

    #[inline]
    fn encrypt(&self, value: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            let mixed = (right ^ key).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            (left, right) = (right, left ^ ((mixed >> 29) & mask));
        }
        left << self.half_bits | right
    }
}

/// Zipf distribution: ranks from 0 to `count` - 1, rank k with probability proportional to (k + 1)^-theta.
struct Zipf {
    count: f64,
    theta: f64,
    low: f64,
    high: f64,
    shortcut: f64,
}

impl Zipf {
    fn new(count: u64, theta: f64) -> Zipf {
        let mut zipf = Zipf { count: count as f64, theta, low: 0.0, high: 0.0, shortcut: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.count + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn density(&self, x: f64) -> f64 {
        x.powf(-self.theta)
    }

    /// Integral of the density, starting at 1; the logarithm close to theta = 1.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let exponent = (1.0 - self.theta) * log;
        if exponent.abs() < 1e-8 { log } else { exponent.exp_m1() / (1.0 - self.theta) }
    }

    fn inverse(&self, y: f64) -> f64 {
        let scaled = (y * (1.0 - self.theta)).max(-1.0);
        if scaled.abs() < 1e-8 { y.exp() } else { (scaled.ln_1p() / (1.0 - self.theta)).exp() }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let u = self.high + random.unit() * (self.low - self.high);
            let x = self.inverse(u);
            let rank = x.round().clamp(1.0, self.count);
            if rank - x <= self.shortcut || u >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{PerDirection, ReadWrite};
    use proptest::prelude::*;

    fn job(rw: ReadWrite) -> Job {
        let mut job = Job::new("x");
        job.rw = rw;
        job
    }

    fn region(bytes: u64) -> Region {
        Region { offset: 1 << 20, length: bytes, transfer: bytes }
    }

    proptest! {
        #[test]
        fn a_permutation_gives_every_number_once(count in 1_u64..5000, seed in any::<u64>()) {
            let order = Permutation::new(count, seed);
            let mut numbers: Vec<u64> = (0..count).map(|index| order.at(index)).collect();
            numbers.sort_unstable();
            prop_assert!(numbers.into_iter().eq(0..count));
        }

        #[test]
        fn requests_stay_inside(seed in any::<u64>(), kind in 0_usize..9, blocks in 16_u64..2000) {
            let mut job = job(ReadWrite::NAMES[kind].1);
            job.block_size = PerDirection::all(BlockSizes { min: 4096, max: 65536 });
            let region = region(blocks * 4096);
            let mut addresses = Addresses::new(&job, &region, seed);
            for _ in 0..1000 {
                let request = addresses.draw();
                prop_assert!(request.offset >= region.offset);
                prop_assert!(request.offset + request.length <= region.offset + region.length);
                prop_assert!(request.length >= 4096 && request.offset.is_multiple_of(4096));
            }
        }
    }

    #[test]
    fn uniform_covers_the_region_before_it_repeats() {
        let mut addresses = Addresses::new(&job(ReadWrite::RandRead), &region(1000 * 4096), 5);
        for _ in 0..3 {
            let mut offsets: Vec<u64> = (0..1000).map(|_| addresses.draw().offset).collect();
            let in_order = offsets.is_sorted();
            offsets.sort_unstable();
            offsets.dedup();
            assert_eq!((offsets.len(), in_order), (1000, false));
        }
    }

    #[test]
    fn zipf_has_its_probabilities() {
        for theta in [0.5, 0.99, 1.0 + 1e-9, 1.2] {
            let (count, draws) = (1000_u64, 400_000);
            let zipf = Zipf::new(count, theta);
            let mut random = Random::new(11);
            let mut seen = vec![0_u32; count as usize];
            (0..draws).for_each(|_| seen[zipf.draw(&mut random) as usize] += 1);
            let sum: f64 = (1..=count).map(|rank| (rank as f64).powf(-theta)).sum();
            for rank in [1_usize, 2, 3, 10, 100] {
                let expected = (rank as f64).powf(-theta) / sum * f64::from(draws);
                let found = f64::from(seen[rank - 1]);
                // Six standard deviations of a binomial count.
                assert!(
                    (found - expected).abs() < 6.0 * expected.sqrt(),
                    "{theta} {rank}: {found} {expected}"
                );
            }
        }
    }

    #[test]
    fn mixes_have_their_share_and_sequences_go_on() {
        let mut mixed = job(ReadWrite::RandMixed);
        mixed.rwmixread = 70;
        let mut addresses = Addresses::new(&mixed, &region(1 << 20), 3);
        let reads = (0..10_000).filter(|_| addresses.draw().direction == Direction::Read).count();
        assert!((6700..7300).contains(&reads), "{reads}");
        let mut addresses = Addresses::new(&job(ReadWrite::Write), &region(3 * 4096), 3);
        let offsets: Vec<u64> = (0..4).map(|_| addresses.draw().offset - (1 << 20)).collect();
        assert_eq!(offsets, [0, 4096, 8192, 0]);
    }
}
