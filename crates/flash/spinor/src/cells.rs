//! The non-volatile cells: state that survives without power, wear, and reads after interrupted operations.
//!
//! - *Interrupted programs and erases*: cells whose threshold voltage lies near the reference read as 0 or 1
//!   from one read to the next. Sources: H.-W. Tseng, L. Grupp, S. Swanson, "Understanding the Impact of
//!   Power Loss on Flash Memory", DAC 2011; the "unstable bits" of the UBIFS documentation
//!   (linux-mtd.infradead.org). The order of an erase, preprogram, erase pulses, recovery of over-erased
//!   cells, is that of R. Bez et al., "Introduction to Flash Memory", Proc. IEEE 91(4), 2003.
//! - *Wear*: the datasheet's endurance is the guaranteed number of cycles; the excess until a sector's first
//!   bad bit is drawn from an exponential distribution, as is each further one. A bad bit sticks at 0: it no
//!   longer erases (Bez 2003, section V).
//! - *Retention*: programmed cells lose charge and read as 1. The rate follows the Arrhenius law with 1.1 eV
//!   (JEDEC JEP122, JESD22-A117) and grows with the erase count.
//! - *Read disturb*: cells of a sector that is read gain charge and read as 0 (Bez 2003, section V).

use crate::random::Random;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// State of the chip that survives without power, besides the array.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct NonVolatile {
    /// Non-volatile register values.
    pub registers: Vec<u8>,
    /// Contents of the security registers, one after another.
    pub security: Vec<u8>,
    /// The unique ID, drawn from the seed.
    pub unique_id: Vec<u8>,
    /// Erase counts per sector, the smallest erasable unit.
    pub erase_counts: Vec<u32>,
    /// Bits that no longer erase, by address.
    pub stuck: BTreeMap<u32, u8>,
    /// Bits that read differently from one read to the next, by address.
    pub marginal: BTreeMap<u32, Marginal>,
}

/// Unstable bits of a byte.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq)]
pub struct Marginal {
    /// The unstable bits.
    pub mask: u8,
    /// Probability in 1/256 that such a bit reads as 1.
    pub ones: u8,
}

/// Bytes that are programmed at the same time within a page.
const PROGRAM_GROUP: usize = 32;
/// Part of an erase that programs all cells first, so that none is over-erased.
const PREPROGRAM: f64 = 0.3;
/// Part of an erase after which all cells read as 1 and only the recovery of over-erased cells is left.
const RECOVERY: f64 = 0.85;

impl NonVolatile {
    /// Returns a byte as one read sees it.
    pub(crate) fn read(&self, address: u32, stored: u8, random: &mut Random) -> u8 {
        match self.marginal.get(&address) {
            None => stored,
            Some(marginal) => {
                let mut value = stored & !marginal.mask;
                for bit in 0..8 {
                    let one = random.byte() < marginal.ones;
                    if marginal.mask >> bit & 1 == 1 && one {
                        value |= 1 << bit;
                    }
                }
                value
            }
        }
    }

    /// Returns whether any byte of the range reads unstably.
    pub(crate) fn is_unstable(&self, range: Range<u32>) -> bool {
        !self.marginal.is_empty() && self.marginal.range(range).next().is_some()
    }

    /// Programs a byte completely: bits only go from 1 to 0, and bits that were programmed are stable.
    pub(crate) fn program(&mut self, address: u32, cell: &mut u8, data: u8) {
        *cell &= data;
        if !self.marginal.is_empty()
            && let Some(marginal) = self.marginal.get_mut(&address)
        {
            marginal.mask &= data;
            if marginal.mask == 0 {
                self.marginal.remove(&address);
            }
        }
    }

    /// Programs the bytes that begin at an address completely.
    pub(crate) fn program_all(&mut self, start: u32, cells: &mut [u8], data: &[u8]) {
        if self.marginal.is_empty() {
            cells.iter_mut().zip(data).for_each(|(cell, data)| *cell &= data);
            return;
        }
        for (n, (cell, data)) in cells.iter_mut().zip(data).enumerate() {
            self.program(start + n as u32, cell, *data);
        }
    }

    /// Programs a page up to a fraction of its time; the cells of the group being programmed are left
    /// half-done.
    pub(crate) fn program_partly(
        &mut self,
        start: u32,
        cells: &mut [u8],
        data: &[u8],
        fraction: f64,
        random: &mut Random,
    ) {
        let groups = cells.len().div_ceil(PROGRAM_GROUP) as f64;
        let done = (fraction.clamp(0.0, 1.0) * groups).floor();
        let within = fraction.clamp(0.0, 1.0) * groups - done;
        for (n, (cell, data)) in cells.iter_mut().zip(data).enumerate() {
            let address = start + n as u32;
            let group = (n / PROGRAM_GROUP) as f64;
            if group < done {
                self.program(address, cell, *data);
            } else if group == done {
                let mut unstable = 0;
                let wanted = *cell & !*data;
                for bit in (0..8).map(|bit| 1u8 << bit).filter(|bit| wanted & bit != 0) {
                    // Cells pass the reference at different times around the middle of the pulses.
                    let reached = within + (random.unit() - 0.5) * 0.5;
                    match reached {
                        x if x > 0.6 => *cell &= !bit,
                        x if x > 0.4 => unstable |= bit,
                        _ => {}
                    }
                }
                self.make_marginal(address, unstable, ((1.0 - within) * 255.0) as u8);
            }
        }
    }

    fn make_marginal(&mut self, address: u32, mask: u8, ones: u8) {
        if mask != 0 {
            let entry = self.marginal.entry(address).or_insert(Marginal { mask: 0, ones: 0 });
            entry.mask |= mask;
            entry.ones = ones.clamp(16, 240);
        }
    }

    fn forget(&mut self, range: Range<u32>) {
        let gone: Vec<u32> = self.marginal.range(range).map(|(address, _)| *address).collect();
        for address in gone {
            self.marginal.remove(&address);
        }
    }

    /// Erases cells completely. Returns whether all of them read FFh.
    pub(crate) fn erase(&mut self, start: u32, cells: &mut [u8]) -> bool {
        cells.fill(0xFF);
        let range = start..start + cells.len() as u32;
        self.forget(range.clone());
        let mut clean = true;
        for (address, mask) in self.stuck.range(range) {
            cells[(address - start) as usize] &= !mask;
            clean = false;
        }
        clean
    }

    /// Erases cells up to a fraction of the time.
    pub(crate) fn erase_partly(&mut self, start: u32, cells: &mut [u8], fraction: f64, random: &mut Random) {
        self.forget(start..start + cells.len() as u32);
        if fraction < PREPROGRAM {
            let done = fraction / PREPROGRAM;
            for cell in cells.iter_mut() {
                // Preprogramming goes through the block in order in small groups; a rough draw per byte shows
                // the same.
                if random.unit() < done {
                    *cell = 0;
                }
            }
            return;
        }
        let pulses = ((fraction - PREPROGRAM) / (RECOVERY - PREPROGRAM)).clamp(0.0, 1.0);
        // Few cells per sector are unstable, so that a large block costs bounded memory.
        let unstable = (64.0 / cells.len().max(1) as f64).min(0.02);
        for (n, cell) in cells.iter_mut().enumerate() {
            *cell = if pulses >= 1.0 {
                0xFF
            } else {
                let draw = random.next();
                let mut value = 0;
                for bit in 0..8 {
                    if ((draw >> (8 * bit)) as u8) < (pulses * 256.0) as u8 {
                        value |= 1 << bit;
                    }
                }
                value
            };
            if random.chance(unstable) {
                let mask = 1 << random.below(8);
                self.make_marginal(start + n as u32, mask, (pulses * 255.0) as u8);
            }
        }
        for (address, mask) in self.stuck.range(start..start + cells.len() as u32) {
            cells[(address - start) as usize] &= !mask;
        }
    }

    /// Counts an erase of the sectors in `range` and wears their cells.
    pub(crate) fn wear(
        &mut self,
        range: Range<u32>,
        sector: u32,
        endurance: Option<u64>,
        seed: u64,
        random: &mut Random,
    ) {
        let sectors = (range.start / sector) as usize..(range.end / sector) as usize;
        for n in sectors {
            let Some(count) = self.erase_counts.get_mut(n) else { continue };
            *count = count.saturating_add(1);
            let Some(endurance) = endurance else { continue };
            // Each sector has a limit of its own, which depends on the seed and the sector's number only.
            let excess = Random::new(seed ^ (n as u64).wrapping_mul(0xA24B_AED4_963E_E407)).exponential();
            let limit = endurance as f64 * (1.0 + excess);
            if f64::from(*count) > limit && random.chance(20.0 / endurance as f64) {
                let address = n as u32 * sector + random.below(u64::from(sector)) as u32;
                *self.stuck.entry(address).or_insert(0) |= 1 << random.below(8);
            }
        }
    }

    /// Ages the cells by a time at a temperature, and calls `changed` with each range that has lost charge.
    /// Returns the number of bits that lost it.
    ///
    /// `rate` is the fraction of programmed bits of an unworn sector that is lost per year at 55 °C. The cost
    /// is a pass over the cells that counts programmed bits, and a draw for each bit that is lost.
    pub(crate) fn age(
        &self,
        cells: &mut [u8],
        sector: u32,
        aging: Aging,
        endurance: u64,
        random: &mut Random,
        mut changed: impl FnMut(Range<u32>),
    ) -> u64 {
        const BOLTZMANN: f64 = 8.617e-5;
        const ACTIVATION: f64 = 1.1;
        let kelvin = |celsius: f64| celsius + 273.15;
        let acceleration =
            (ACTIVATION / BOLTZMANN * (1.0 / kelvin(55.0) - 1.0 / kelvin(aging.celsius.max(-200.0)))).exp();
        let (mut lost, mut start) = (0, 0);
        let mut chosen = BitSet::default();
        for (n, cells) in cells.chunks_mut(sector.max(256) as usize).enumerate() {
            let range = start..start + cells.len() as u32;
            start = range.end;
            let worn = self.erase_counts.get(n).map_or(0.0, |count| f64::from(*count) / endurance as f64);
            let rate = aging.rate * acceleration * aging.years * (1.0 + worn);
            let programmed = programmed_bits(cells);
            let expected = programmed as f64 * rate.clamp(0.0, 1.0);
            let flips = expected.floor() as u64 + u64::from(random.chance(expected.fract()));
            let flips = flips.min(programmed);
            if flips > 0 {
                chosen.choose(flips, programmed, random);
                discharge(cells, &chosen);
                changed(range);
                lost += flips;
            }
        }
        lost
    }
}

/// Returns the number of bits that are 0.
fn programmed_bits(cells: &[u8]) -> u64 {
    let (words, rest) = cells.as_chunks::<8>();
    let of_words: u64 = words.iter().map(|word| u64::from(u64::from_ne_bytes(*word).count_zeros())).sum();
    of_words + rest.iter().map(|cell| u64::from(cell.count_zeros())).sum::<u64>()
}

/// Sets programmed bits to 1: those whose numbers, counted over the programmed bits from 0, are chosen.
fn discharge(cells: &mut [u8], chosen: &BitSet) {
    let mut numbers = chosen.iter();
    let Some(mut next) = numbers.next() else { return };
    // Number of the cell's first programmed bit.
    let mut number = 0;
    for cell in cells {
        let end = number + u64::from(cell.count_zeros());
        let stored = *cell;
        let (mut left, mut at) = (!stored, number);
        while next < end {
            // Skip the programmed bits before the chosen one.
            while at < next {
                left &= left - 1;
                at += 1;
            }
            *cell |= left & left.wrapping_neg();
            match numbers.next() {
                Some(number) => next = number,
                None => return,
            }
        }
        number = end;
    }
}

/// A set of numbers below a bound.
#[derive(Default)]
struct BitSet {
    words: Vec<u64>,
}

impl BitSet {
    /// Becomes a random subset of `count` of the numbers below `limit`, each subset as likely as another:
    /// algorithm F2 of R. Floyd, in J. Bentley, "Programming Pearls: A sample of brilliance", CACM
    /// 30(9), 1987. One draw for each number.
    fn choose(&mut self, count: u64, limit: u64, random: &mut Random) {
        self.words.clear();
        self.words.resize(limit.div_ceil(64) as usize, 0);
        for last in limit - count..limit {
            let drawn = random.below(last + 1);
            let number = if self.contains(drawn) { last } else { drawn };
            self.words[(number / 64) as usize] |= 1 << (number % 64);
        }
    }

    fn contains(&self, number: u64) -> bool {
        self.words[(number / 64) as usize] >> (number % 64) & 1 == 1
    }

    /// Returns the numbers in order.
    fn iter(&self) -> impl Iterator<Item = u64> {
        self.words.iter().zip(0u64..).flat_map(|(word, n)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                left &= left.wrapping_sub(1);
                (bit < 64).then_some(n * 64 + u64::from(bit))
            })
        })
    }
}

/// Time and temperature for [`crate::Chip::age`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aging {
    /// Time in years.
    pub years: f64,
    /// Temperature in degrees Celsius.
    pub celsius: f64,
    /// Fraction of the programmed bits of an unworn sector that is lost per year at 55 °C.
    pub rate: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unworn(size: usize) -> NonVolatile {
        NonVolatile {
            registers: Vec::new(),
            security: Vec::new(),
            unique_id: Vec::new(),
            erase_counts: vec![0; size / 4096],
            stuck: BTreeMap::new(),
            marginal: BTreeMap::new(),
        }
    }

    fn year(rate: f64) -> Aging {
        Aging { years: 1.0, celsius: 55.0, rate }
    }

    #[test]
    fn aging_loses_the_expected_number_of_programmed_bits_and_no_other() {
        let seed = 5;
        for rate in [0.0, 0.001, 0.3, 0.9, 1.0] {
            let mut random = Random::new(seed);
            let before: Vec<u8> = (0..16384).map(|_| random.byte() | random.byte()).collect();
            let mut cells = before.clone();
            let mut changed = Vec::new();
            let aged = unworn(cells.len());
            let lost =
                aged.age(&mut cells, 4096, year(rate), 100_000, &mut random, |range| changed.push(range));
            assert!(before.iter().zip(&cells).all(|(before, after)| before & !after == 0), "rate {rate}");
            let flipped: u32 =
                before.iter().zip(&cells).map(|(before, after)| (before ^ after).count_ones()).sum();
            assert_eq!(u64::from(flipped), lost, "rate {rate}");
            let expected = programmed_bits(&before) as f64 * rate;
            assert!((lost as f64 - expected).abs() <= 4.0, "rate {rate}: {lost}, expected {expected}");
            let sectors = [0..4096, 4096..8192, 8192..12288, 12288..16384];
            assert_eq!(changed, if rate == 0.0 { &[] } else { &sectors[..] });
        }
    }

    #[test]
    fn aging_draws_once_for_each_lost_bit_however_few_bits_are_programmed() {
        let mut random = Random::new(6);
        let mut cells = vec![0xFF; 1 << 20];
        cells.iter_mut().step_by(4096).for_each(|cell| *cell = 0xFE);
        let before = random.clone();
        let lost = unworn(cells.len()).age(&mut cells, 4096, year(1.0), 100_000, &mut random, |_| {});
        assert_eq!((lost, random.draws_since(&before)), (256, 256));
        assert!(cells.iter().all(|cell| *cell == 0xFF));
    }

    /// Every programmed bit is lost about as often as any other.
    #[test]
    fn aging_prefers_no_bit() {
        let mut random = Random::new(7);
        let mut counts = [0u32; 256];
        for _ in 0..2000 {
            let mut cells = [0x0Fu8; 256];
            unworn(0).age(&mut cells, 256, year(0.25), 100_000, &mut random, |_| {});
            for (n, count) in counts.iter_mut().enumerate() {
                *count += u32::from(cells[n] & 0x10 != 0);
            }
        }
        // 500 on average, with a standard deviation of 19.
        assert!(counts.iter().all(|count| (400..600).contains(count)), "{counts:?}");
    }
}
