//! One of the states that are possible at a cut, by name.
//!
//! A choice says, for each possible operation and each unit, whether it got there and, where several did, in
//! which order: the last one stays. It has a textual form, so that a state that broke something can be
//! made again by hand.

use super::cursor::{Cursor, Interval};
use super::history::Operation;
use super::image::Piece;
use block::{Error, Result};
use runtime::Random;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// The units of a scattered operation are taken together so that there are at most about this many groups.
const MOST_GROUPS: u64 = 256;

/// Which of what is possible happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// Only what is certain.
    Nothing,
    /// All of it, in the order of submission.
    Everything,
    /// Only the operation submitted in this event.
    Only(u64),
    /// All but the operation submitted in this event.
    AllBut(u64),
    /// Operations by chance, concurrent ones in an order by chance.
    Subset(u64),
    /// As a subset, and of one or two of the operations only a part: the first units, the last, or some between.
    Torn(u64),
    /// Every unit of every operation by chance, and its order too.
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

/// A number by chance that depends on these numbers alone.
fn mixed(seed: u64, a: u64, b: u64) -> u64 {
    let first = Random::new(seed ^ a.wrapping_mul(0x9E37_79B9_7F4A_7C15)).next_u64();
    Random::new(first ^ b).next_u64()
}

/// A choice, worked out for a cut.
pub(super) struct Chooser<'a> {
    cursor: &'a Cursor,
    choice: Choice,
    unit: u64,
    /// Of a torn state: operations of which only these bytes got there.
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

    /// How many units a range touches.
    fn units(&self, range: &Range<u64>) -> u64 {
        range.end.div_ceil(self.unit) - range.start / self.unit
    }

    /// So many bytes of an operation are chosen together where units are.
    fn group(&self, operation: &Operation) -> u64 {
        self.unit * (self.units(&operation.range) / MOST_GROUPS).max(1).next_power_of_two()
    }

    /// Puts the pieces of an interval, of which each holds one version, behind the others.
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

    /// Up to where the bytes from `at` on hold the same version.
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

    /// When the operation took effect: at some moment between its submission and its completion, so that
    /// ordered operations stay in order and concurrent ones come in any. The beginning and the end of that time are
    /// taken as often as all between, so that a short operation can well come after a long one.
    fn moment(&self, index: usize, at: u64) -> u128 {
        /// An event is divided so finely that two operations hardly ever meet.
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
