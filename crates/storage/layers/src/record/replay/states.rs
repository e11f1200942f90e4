//! Iteration over the cuts of a history and a selection of the possible states at each.

use super::choice::Choice;
use super::cursor::Cursor;
use super::history::History;
use super::image::{Image, Piece};
use runtime::Random;
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Number of states to try at each cut, besides `nothing` and `everything`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search {
    /// Seed of random choices.
    pub seed: u64,
    /// Largest number of possible operations up to which each is tried alone, and left out alone.
    pub single: usize,
    /// Number of random subsets.
    pub subsets: u32,
    /// Number of torn states.
    pub torn: u32,
    /// Number of scattered states.
    pub scattered: u32,
}

impl Search {
    /// A few states of each kind.
    pub fn new(seed: u64) -> Self {
        Search { seed, single: 4, subsets: 3, torn: 3, scattered: 3 }
    }

    /// One state of each kind.
    pub fn brief(seed: u64) -> Self {
        Search { seed, single: 1, subsets: 1, torn: 1, scattered: 1 }
    }
}

/// A state in which a power cut could have left a device.
#[derive(Debug, Clone)]
pub struct CrashState {
    /// Consecutive cuts at which this choice gives this image.
    pub cuts: RangeInclusive<u64>,
    /// The choice.
    pub choice: Choice,
    /// Contents of the device.
    pub image: Image,
}

/// Iterator over the states of a device in the order of their cuts.
pub struct CrashStates {
    cursor: Cursor,
    search: Search,
    last: u64,
    cuts: RangeInclusive<u64>,
    /// Remaining choices at this cut, the next one last.
    choices: Vec<Choice>,
    /// Images that were returned at this cut.
    given: BTreeSet<Vec<Piece>>,
    done: bool,
}

impl CrashStates {
    /// Creates an iterator over the states of all cuts in a range; `0..=history.events()` covers all.
    pub fn new(history: Arc<History>, cuts: Range<u64>, search: Search) -> Self {
        let mut cursor = Cursor::new(history);
        cursor.advance_to(cuts.start);
        let last = cuts.end.saturating_sub(1);
        let done = cuts.is_empty();
        let first = cuts.start;
        let mut states = CrashStates {
            cursor,
            search,
            last,
            cuts: first..=first,
            choices: Vec::new(),
            given: BTreeSet::new(),
            done,
        };
        states.prepare(first);
        states
    }

    /// Returns the cursor at the cut of the next states.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    fn prepare(&mut self, first: u64) {
        let until = self.cursor.next_change().map_or(self.last, |change| (change - 1).min(self.last));
        self.cuts = first..=until.max(first);
        self.given.clear();
        let possible = self.cursor.possible();
        let mut choices = vec![Choice::Nothing];
        if !possible.is_empty() {
            choices.push(Choice::Everything);
            if possible.len() > 1 && possible.len() <= self.search.single {
                let events =
                    possible.iter().map(|index| self.cursor.history().operations()[*index].submitted);
                choices.extend(events.flat_map(|event| [Choice::Only(event), Choice::AllBut(event)]));
            }
            let mut random = Random::new(self.search.seed ^ first.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            choices.extend((0..self.search.subsets).map(|_| Choice::Subset(random.next_u64())));
            choices.extend((0..self.search.torn).map(|_| Choice::Torn(random.next_u64())));
            choices.extend((0..self.search.scattered).map(|_| Choice::Scattered(random.next_u64())));
        }
        choices.reverse();
        self.choices = choices;
    }
}

impl Iterator for CrashStates {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        while !self.done {
            while let Some(choice) = self.choices.pop() {
                let image = Image::new(&self.cursor, choice);
                if self.given.insert(image.pieces.clone()) {
                    return Some(CrashState { cuts: self.cuts.clone(), choice, image });
                }
            }
            let next = self.cuts.end() + 1;
            if next > self.last {
                self.done = true;
                break;
            }
            self.cursor.advance_to(next);
            self.prepare(next);
        }
        None
    }
}
