//! Choice of one of the possible states at a cut.
//!
//! A choice decides for each possible operation and each unit whether its data is on the medium and, if
//! several are, which one is the last. It has a textual form, so that a failing state can be constructed
//! again.

use super::cursor::{Cursor, Interval};
use super::history::Operation;
use super::image::Piece;
use block::{Error, Result};
use runtime::Random;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Approximate bound of the number of groups of units of a scattered operation.
const MAX_GROUPS: u64 = 256;

/// Choice among the possible operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// None: only certain operations.
    Nothing,
    /// All, in the order of submission.
    Everything,
    /// Only the operation submitted in this event.
    Only(u64),
    /// All but the operation submitted in this event.
    AllBut(u64),
    /// A random subset; concurrent operations in random order.
    Subset(u64),
    /// A random subset, with only a part of one or two operations: the first units, the last ones, or a range
    /// between.
    Torn(u64),
    /// A random subset and order for each unit of each operation.
    Scattered(u64),
}

impl fmt::Display for Choice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Nothing => formatter.write_str("nothing"),
            Choice::Everything => formatter.write_str("everything"),
            Choice::Only(event) => write!(formatter, "only:{event}"),
            Choice::AllBut(event) => write!(formatter, "all-but:{event}"),
            Choice::Subset(seed) => write!(formatter, "subset:{seed}"),
            Choice::Torn(seed) => write!(formatter, "torn:{seed}"),
            Choice::Scattered(seed) => write!(formatter, "scattered:{seed}"),
        }
    }
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (word, number) = text.split_once(':').unwrap_or((text, ""));
        let wrong = || {
            Error::invalid(format!(
                "choice \"{text}\": expected nothing, everything, only:EVENT, all-but:EVENT, subset:SEED, torn:SEED or scattered:SEED"
            ))
        };
        let parsed: Result<u64> = number.parse().map_err(|_| wrong());
        Ok(match (word, number) {
            ("nothing", "") => Choice::Nothing,
            ("everything", "") => Choice::Everything,
            ("only", _) => Choice::Only(parsed?),
            ("all-but", _) => Choice::AllBut(parsed?),
            ("subset", _) => Choice::Subset(parsed?),
            ("torn", _) => Choice::Torn(parsed?),
            ("scattered", _) => Choice::Scattered(parsed?),
            _ => return Err(wrong()),
        })
    }
}

/// Returns a pseudorandom number that depends only on the arguments.
fn mixed(seed: u64, a: u64, b: u64) -> u64 {
    let first = Random::new(seed ^ a.wrapping_mul(0x9E37_79B9_7F4A_7C15)).next_u64();
    Random::new(first ^ b).next_u64()
}

/// A choice applied to a cut.
pub(super) struct Chooser<'a> {
    cursor: &'a Cursor,
    choice: Choice,
    unit: u64,
    /// Torn operations, with the bytes of each that are on the medium.
    torn: Vec<(usize, Range<u64>)>,
}

impl<'a> Chooser<'a> {
    pub fn new(cursor: &'a Cursor, choice: Choice) -> Self {
        let unit = u64::from(cursor.history().geometry().atomic_write);
        let mut chooser = Chooser { cursor, choice, unit, torn: Vec::new() };
        if let Choice::Torn(seed) = choice {
            chooser.tear(seed);
        }
        chooser
    }

    fn tear(&mut self, seed: u64) {
        let mut random = Random::new(seed);
        let long = |index: &usize| self.units(&self.cursor.operation(*index).range) > 1;
        let mut candidates: Vec<usize> = self.cursor.possible().into_iter().filter(long).collect();
        for _ in 0..1 + random.below(2) {
            if candidates.is_empty() {
                break;
            }
            let index = candidates.swap_remove(random.below(candidates.len() as u64) as usize);
            let range = &self.cursor.operation(index).range;
            let mut border =
                || (range.start / self.unit + 1 + random.below(self.units(range) - 1)) * self.unit;
            let (one, other) = (border(), border());
            let kept = match random.below(3) {
                0 => range.start..one,
                1 => one..range.end,
                _ => one.min(other)..one.max(other),
            };
            self.torn.push((index, kept));
        }
    }

    /// Number of units that a range touches.
    fn units(&self, range: &Range<u64>) -> u64 {
        range.end.div_ceil(self.unit) - range.start / self.unit
    }

    /// Bytes of an operation that are chosen together in a scattered state.
    fn group(&self, operation: &Operation) -> u64 {
        self.unit * (self.units(&operation.range) / MAX_GROUPS).max(1).next_power_of_two()
    }

    /// Appends the pieces of an interval, each with one version.
    pub fn pieces(&self, start: u64, interval: &Interval, pieces: &mut Vec<Piece>) {
        let mut at = start;
        while at < interval.end {
            let end = self.border(at, interval);
            let version = self.version(at, interval);
            let source = version.filter(|index| !self.cursor.operation(*index).is_zeros());
            match pieces.last_mut() {
                Some(last) if last.end == at && last.source == source => last.end = end,
                _ => pieces.push(Piece { start: at, end, source }),
            }
            at = end;
        }
    }

    /// End of the run of bytes with the same version that begins at `at`.
    fn border(&self, at: u64, interval: &Interval) -> u64 {
        let mut end = interval.end;
        for version in &interval.versions {
            if let Choice::Scattered(_) = self.choice {
                let group = self.group(self.cursor.operation(version.operation));
                end = end.min((at / group + 1) * group);
            }
            for (_, kept) in self.torn.iter().filter(|(torn, _)| *torn == version.operation) {
                for border in [kept.start, kept.end] {
                    end = if border > at { end.min(border) } else { end };
                }
            }
        }
        end
    }

    fn version(&self, at: u64, interval: &Interval) -> Option<usize> {
        let arrived =
            interval.versions.iter().filter(|version| version.certain || self.arrived(version.operation, at));
        let last = arrived.max_by_key(|version| (self.moment(version.operation, at), version.operation));
        last.map_or(interval.base, |version| Some(version.operation))
    }

    fn arrived(&self, index: usize, at: u64) -> bool {
        let operation = self.cursor.operation(index);
        let (name, event) = (index as u64, operation.submitted);
        match self.choice {
            Choice::Nothing => false,
            Choice::Everything => true,
            Choice::Only(only) => event == only,
            Choice::AllBut(but) => event != but,
            Choice::Subset(seed) => mixed(seed, name, 1) & 1 == 1,
            Choice::Torn(seed) => match self.torn.iter().find(|(torn, _)| *torn == index) {
                Some((_, kept)) => kept.contains(&at),
                None => mixed(seed, name, 1) & 1 == 1,
            },
            Choice::Scattered(seed) => mixed(seed, name, 1 + at / self.group(operation)) & 1 == 1,
        }
    }

    /// Draws the time at which the operation takes effect, between its submission and its completion, so that
    /// ordered operations stay in order and concurrent ones get any order. The ends of the interval are drawn
    /// as often as its inside, so that a short operation often comes after a long one.
    fn moment(&self, index: usize, at: u64) -> u128 {
        /// Number of steps between two events, large enough that two operations rarely get the same time.
        const FRACTIONS: u32 = 32;
        let operation = self.cursor.operation(index);
        let submitted = u128::from(operation.submitted) << FRACTIONS;
        let (seed, place) = match self.choice {
            Choice::Subset(seed) | Choice::Torn(seed) => (seed, 0),
            Choice::Scattered(seed) => (seed, at / self.group(operation)),
            _ => return submitted,
        };
        let cut = self.cursor.cut();
        let until = operation.completed.map_or(cut, |completed| completed.min(cut));
        let events = until.saturating_sub(operation.submitted).clamp(1, u64::from(u32::MAX));
        let mut random = Random::new(mixed(seed, !(index as u64), place));
        let fraction = u128::from(random.below(1 << FRACTIONS));
        submitted
            + match random.below(3) {
                0 => fraction,
                1 => (u128::from(events - 1) << FRACTIONS) + fraction,
                _ => (u128::from(random.below(events)) << FRACTIONS) + fraction,
            }
    }
}
