//! The non-volatile cells: what survives without power, how cells wear, and how half-done operations read.
//!
//! - *Interrupted programs and erases*: cells whose threshold voltage lies near the reference read as 0 or 1 from one read to
//!   the next. Sources: H.-W. Tseng, L. Grupp, S. Swanson, "Understanding the Impact of Power Loss on Flash Memory", DAC 2011;
//!   the "unstable bits" of the UBIFS documentation (linux-mtd.infradead.org). The order of an erase, preprogram, erase pulses,
//!   recovery of over-erased cells, is that of R. Bez et al., "Introduction to Flash Memory", Proc. IEEE 91(4), 2003.
//! - *Wear*: the datasheet's endurance is the guaranteed number of cycles; the excess until a sector's first bad bit is drawn from
//!   an exponential distribution, as is each further one. A bad bit sticks at 0: it no longer erases (Bez 2003, section V).
//! - *Retention*: programmed cells lose charge and read as 1. The rate follows the Arrhenius law with 1.1 eV (JEDEC JEP122,
//!   JESD22-A117) and grows with the erase count.
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

    /// Programs a page up to a fraction of its time; the cells of the group being programmed are left half-done.
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
                // Preprogramming goes through the block in order in small groups; a rough draw per byte shows the same.
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
            // Each sector has a limit of its own, the same whenever the seed is the same.
            let excess = Random::new(seed ^ (n as u64).wrapping_mul(0xA24B_AED4_963E_E407)).exponential();
            let limit = endurance as f64 * (1.0 + excess);
            if f64::from(*count) > limit && random.chance(20.0 / endurance as f64) {
                let address = n as u32 * sector + random.below(u64::from(sector)) as u32;
                *self.stuck.entry(address).or_insert(0) |= 1 << random.below(8);
            }
        }
    }

    /// Ages the cells by a time at a temperature. Returns the number of bits that lost their charge.
    ///
    /// `rate` is the fraction of programmed bits of an unworn sector that is lost per year at 55 °C.
    pub(crate) fn age(
        &mut self,
        cells: &mut [u8],
        sector: u32,
        aging: Aging,
        endurance: u64,
        random: &mut Random,
    ) -> u64 {
        const BOLTZMANN: f64 = 8.617e-5;
        const ACTIVATION: f64 = 1.1;
        let kelvin = |celsius: f64| celsius + 273.15;
        let acceleration =
            (ACTIVATION / BOLTZMANN * (1.0 / kelvin(55.0) - 1.0 / kelvin(aging.celsius.max(-200.0)))).exp();
        let mut lost = 0;
        for (n, cells) in cells.chunks_mut(sector.max(256) as usize).enumerate() {
            let worn = self.erase_counts.get(n).map_or(0.0, |count| f64::from(*count) / endurance as f64);
            let rate = aging.rate * acceleration * aging.years * (1.0 + worn);
            let programmed: u64 = cells.iter().map(|cell| u64::from(cell.count_zeros())).sum();
            let expected = programmed as f64 * rate.clamp(0.0, 1.0);
            let mut flips = expected.floor() as u64 + u64::from(random.chance(expected.fract()));
            flips = flips.min(programmed);
            lost += flips;
            while flips > 0 {
                let cell = &mut cells[random.below(cells.len() as u64) as usize];
                let bit = 1 << random.below(8);
                if *cell & bit == 0 {
                    *cell |= bit;
                    flips -= 1;
                }
            }
        }
        lost
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
