//! Raw bit errors, wear and the limit of the error correction.
//!
//! *Rate*: the model of B. S. Kim, J. Choi, S. L. Min, "Design Tradeoffs for SSD Reliability", FAST 2019: the
//! raw bit error rate is ε + α·cycles^k + β·cycles^m·hours^n + γ·cycles^p·reads^q; `reads` is the reads of
//! the block divided by its pages. The coefficients are the fit for 72-layer TLC as other simulators
//! reproduce it; they were not compared with the paper. Other cells: the profile's `error_scale`.
//!
//! *Page and layer*: pages of a cell, and layers, differ (Y. Luo et al., "Improving 3D NAND Flash Memory
//! Lifetime by Tolerating Early Retention Loss and Process Variation", SIGMETRICS 2018, finds layers to
//! differ). Shapes and amplitudes ([`PAGE_SPREAD`], [`LAYER_SPREAD`]) are assumptions, and so is that of
//! blocks, [`BLOCK_SPREAD`].
//!
//! *Written value*: charge is lost, so programmed cells have more errors than erased ones (Y. Cai et al.,
//! "Error Patterns in MLC NAND Flash Memory", DATE 2012: most retention errors are losses from the higher
//! states). A bit that was written as 0 is wrong [`ZERO_WEIGHT`] times as often as one written as 1, an
//! assumption; the mean over equally many of both is the rate.
//!
//! *Correction*: [`CORRECTABLE`] bits of each [`CODEWORD`] bytes, an assumption that is usual for TLC.
//!
//! Errors are drawn from the seed, the block, the page and its erase count: a page has the same wrong bits at
//! every read, and more of them as its rate grows.

use crate::profile::Profile;
use runtime::Random;

/// Bytes of a codeword.
pub const CODEWORD: usize = 1024;
/// Correctable bits of a codeword.
pub const CORRECTABLE: u32 = 72;
/// Ratio of the rates of the uppermost and the lowest page of a cell.
pub const PAGE_SPREAD: f64 = 2.0;
/// Ratio of the rates of the worst and the best layer.
pub const LAYER_SPREAD: f64 = 3.0;
/// Standard deviation of a block's factor.
pub const BLOCK_SPREAD: f64 = 0.1;
/// Ratio of the rates of bits written as 0 and as 1.
pub const ZERO_WEIGHT: f64 = 1.5;
/// Mean excess of a block's erases over the guaranteed ones before it fails, as a share of the endurance.
const EXCESS: f64 = 0.5;

/// Identity of a page, for random draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageId {
    /// Die.
    pub die: u32,
    /// Row of blocks.
    pub block: u32,
    /// Page of the block.
    pub page: u32,
    /// Pages of the block.
    pub pages: u32,
}

/// Stress on a page.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stress {
    /// Erases of the block.
    pub cycles: u32,
    /// Hours since the program.
    pub hours: f64,
    /// Reads of the block since its erase.
    pub reads: u32,
}

/// Model of one drive.
#[derive(Debug, Clone)]
pub struct Reliability {
    seed: u64,
    scale: f64,
    cell_bits: u32,
    endurance: u32,
}

fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0x243F_6A88_85A3_08D3, |state, part| {
        let mut z = (state ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z ^ (z >> 31)
    })
}

impl Reliability {
    /// Creates the model of a drive with this profile, seed and endurance.
    pub fn new(profile: &Profile, seed: u64, endurance: u32) -> Reliability {
        Reliability { seed, scale: profile.error_scale, cell_bits: profile.cell_bits, endurance }
    }

    fn random(&self, what: u64, die: u32, block: u32, rest: &[u64]) -> Random {
        let mut parts = vec![self.seed, what, u64::from(die), u64::from(block)];
        parts.extend_from_slice(rest);
        Random::new(mix(&parts))
    }

    /// Erases after which a block fails: the endurance and an exponential excess.
    pub fn last_erase(&self, die: u32, block: u32) -> u32 {
        let draw = self.random(1, die, block, &[]).unit();
        let excess = -(1.0 - draw).ln() * EXCESS * f64::from(self.endurance);
        self.endurance.saturating_add(excess as u32)
    }

    /// Whether a worn block fails in a program, rather than in an erase.
    pub fn fails_in_program(&self, die: u32, block: u32) -> bool {
        self.random(2, die, block, &[]).below(2) == 0
    }

    /// Raw bit error rate of a page with equally many bits of both values.
    pub fn rate(&self, page: PageId, stress: Stress) -> f64 {
        let block = self.block_rate(page.die, page.block, page.pages, stress);
        (block * self.page_factor(page.page, page.pages)).clamp(0.0, 0.5)
    }

    /// Mean rate of the pages of a block.
    pub fn block_rate(&self, die: u32, block: u32, pages: u32, stress: Stress) -> f64 {
        // A block that was never erased counts as programmed once.
        let (cycles, reads) =
            (f64::from(stress.cycles.max(1)), f64::from(stress.reads) / f64::from(pages.max(1)));
        let mean = 1.48e-3
            + 3.90e-10 * cycles.powf(2.05)
            + 6.28e-5 * cycles.powf(0.14) * stress.hours.max(0.0).powf(0.54)
            + 3.73e-9 * cycles.powf(0.33) * reads.powf(1.71);
        let mut random = self.random(3, die, block, &[]);
        let normal = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
        mean * self.scale * (1.0 + BLOCK_SPREAD * normal).max(0.1)
    }

    /// Ratio of a page's rate to the mean of its block: by its level in the cell, and by its layer.
    pub fn page_factor(&self, page: u32, pages: u32) -> f64 {
        let bits = self.cell_bits.max(1);
        let level = f64::from(page % bits) / f64::from((bits - 1).max(1));
        let level =
            if bits == 1 { 1.0 } else { 2.0 * (1.0 + (PAGE_SPREAD - 1.0) * level) / (1.0 + PAGE_SPREAD) };
        // The middle layers have the most errors, the outer ones the fewest.
        let height = (f64::from(page) + 0.5) / f64::from(pages.max(1));
        let hump = 1.0 - (2.0 * height - 1.0).powi(2);
        level * (1.0 + (LAYER_SPREAD - 1.0) * hump) / (1.0 + (LAYER_SPREAD - 1.0) * 2.0 / 3.0)
    }

    /// Number of erroneous bits of a codeword with these bytes. `codeword` is its number within the page.
    pub fn errors(&self, page: PageId, stress: Stress, rate: f64, codeword: u32, bytes: &[u8]) -> u32 {
        let bits = bytes.len() as f64 * 8.0;
        let ones = bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
        let one_rate = 2.0 * rate / (1.0 + ZERO_WEIGHT);
        let mean = one_rate * (f64::from(ones) + ZERO_WEIGHT * (bits - f64::from(ones)));
        let rest = [u64::from(page.page), u64::from(stress.cycles), u64::from(codeword)];
        poisson(mean, self.random(4, page.die, page.block, &rest).unit())
    }

    /// Flips the erroneous bits of a codeword, as in a read of the raw cells.
    pub fn disturb(&self, page: PageId, stress: Stress, rate: f64, codeword: u32, bytes: &mut [u8]) -> u32 {
        let errors = self.errors(page, stress, rate, codeword, bytes).min(bytes.len() as u32 * 4);
        let rest = [u64::from(page.page), u64::from(stress.cycles), u64::from(codeword)];
        let mut random = self.random(5, page.die, page.block, &rest);
        let original = bytes.to_vec();
        let mut flipped = 0;
        while flipped < errors {
            let at = random.below(bytes.len() as u64 * 8) as usize;
            let bit = 1 << (at % 8);
            // Bits of 1 are skipped in proportion.
            let is_one = original[at / 8] & bit != 0;
            let passed = is_one && random.unit() * ZERO_WEIGHT > 1.0;
            if passed && random.below(64) != 0 || (original[at / 8] ^ bytes[at / 8]) & bit != 0 {
                continue;
            }
            bytes[at / 8] ^= bit;
            flipped += 1;
        }
        flipped
    }
}

/// Quantile of the Poisson distribution; grows with the mean for the same `draw`.
fn poisson(mean: f64, draw: f64) -> u32 {
    if mean > 500.0 {
        // The normal approximation, with a logistic quantile: such means are far beyond any correction.
        let draw = draw.clamp(1e-9, 1.0 - 1e-9);
        return (mean + mean.sqrt() * (draw / (1.0 - draw)).ln() * 0.551).max(0.0) as u32;
    }
    let (mut term, mut sum, mut count) = ((-mean).exp(), (-mean).exp(), 0_u32);
    while sum < draw && count < 2000 {
        count += 1;
        term *= mean / f64::from(count);
        sum += term;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Reliability {
        Reliability::new(&Profile::named("zn540").unwrap(), 1, 3000)
    }

    const PAGES: u32 = 96;

    fn page(number: u32) -> PageId {
        PageId { die: number % 7, block: number / 7 % 5, page: number % PAGES, pages: PAGES }
    }

    fn mean_rate(stress: Stress) -> f64 {
        let model = model();
        (0..20_000).map(|number| model.rate(page(number), stress)).sum::<f64>() / 20_000.0
    }

    /// The mean over pages, layers and blocks equals the published fit.
    #[test]
    fn the_mean_rate_is_that_of_the_source() {
        for (cycles, hours, reads, expected) in [
            (0, 0.0, 0, 1.48e-3),
            (3000, 0.0, 0, 1.48e-3 + 3.90e-10 * 3000_f64.powf(2.05)),
            (1000, 720.0, 0, 1.48e-3 + 5.51e-4 + 6.28e-5 * 1000_f64.powf(0.14) * 720_f64.powf(0.54)),
        ] {
            let rate = mean_rate(Stress { cycles, hours, reads });
            assert!((rate / expected - 1.0).abs() < 0.08, "{cycles} {hours}: {rate} {expected}");
        }
        let read = |reads| mean_rate(Stress { cycles: 1000, hours: 1.0, reads });
        assert!(read(1_000_000) > 1.05 * read(0));
    }

    /// A codeword's errors follow its rate; zeros have more errors; errors don't decrease as the rate grows.
    #[test]
    fn errors_follow_rate_and_value_and_only_grow() {
        let model = model();
        let stress = Stress { cycles: 10, ..Stress::default() };
        let count = |byte: u8, rate: f64| {
            let bytes = [byte; CODEWORD];
            (0..2000).map(|number| model.errors(page(number), stress, rate, number, &bytes)).sum::<u32>()
                as f64
                / 2000.0
        };
        let expected = 2e-3 * CODEWORD as f64 * 8.0;
        assert!((count(0x0F, 2e-3) / expected - 1.0).abs() < 0.05);
        let ratio = count(0, 2e-3) / count(0xFF, 2e-3);
        assert!((ratio / ZERO_WEIGHT - 1.0).abs() < 0.05, "{ratio}");
        for number in 0..200 {
            let of = |rate| model.errors(page(number), stress, rate, 0, &[0x0F; CODEWORD]);
            assert!(of(1e-3) <= of(2e-3) && of(2e-3) <= of(4e-3));
        }
        let mut bytes = [0x0F; CODEWORD];
        let flipped = model.disturb(page(3), stress, 5e-3, 0, &mut bytes);
        let differs: u32 = bytes.iter().map(|byte| (byte ^ 0x0F).count_ones()).sum();
        assert_eq!(flipped, differs);
        assert_eq!(flipped, model.errors(page(3), stress, 5e-3, 0, &[0x0F; CODEWORD]));
    }

    #[test]
    fn blocks_fail_after_their_endurance() {
        let model = model();
        let ends: Vec<u32> = (0..500).map(|block| model.last_erase(3, block)).collect();
        assert!(ends.iter().all(|end| *end >= 3000));
        let mean = ends.iter().map(|end| f64::from(*end)).sum::<f64>() / 500.0;
        assert!((mean / 4500.0 - 1.0).abs() < 0.1, "{mean}");
    }
}
