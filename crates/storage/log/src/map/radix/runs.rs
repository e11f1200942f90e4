//! A leaf of runs: pieces of consecutive blocks at consecutive locations, from the leaf's first block to its
//! last, unmapped pieces included.
//!
//! In memory a leaf is 64, 128, 256 or 512 bytes: its [`Class`]. It is immutable except for its first word:
//!
//! ```text
//! word 0               reference count, of middle nodes; used by the writer only
//! words 1 ..           16 bits per run: 0x8000 + its first block; 0xffff if there is no run
//! words 1 + C / 2 ..   location of each run, 0 for an unmapped one; C is the capacity in runs
//! ```
//!
//! A search needs no number of runs and has no data-dependent branch: there are no mispredictions, and the
//! processor starts the next lookups while the cache line is loading.

use super::memory::Word;
use crate::map::Physical;

/// Index of the word with the reference count.
pub(super) const REFERENCES: usize = 0;

/// Bit that is added to the start of a run.
const PRESENT: u32 = 0x8000;

/// The size of a leaf of runs: 16 words (64 bytes, a line of the processor's cache), or 2, 4 or 8 times as
/// much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(pub(super) u32);

impl Class {
    /// Number of classes.
    pub(super) const COUNT: usize = 4;

    /// Returns the smallest class for this number of runs, if there is one.
    pub(super) fn for_runs(runs: usize) -> Option<Class> {
        (0..Self::COUNT as u32).map(Class).find(|class| runs <= class.runs())
    }

    /// Returns the size in words.
    #[inline]
    pub(super) const fn words(self) -> usize {
        16 << self.0
    }

    /// Returns the capacity in runs; an even number.
    #[inline]
    pub(super) const fn runs(self) -> usize {
        (self.words() - 1) / 3 * 2
    }

    /// Returns the index of the word with the first location.
    #[inline]
    const fn places(self) -> usize {
        1 + self.runs() / 2
    }
}

/// Returns the 16 bits of a run.
#[inline]
fn half<W: Word>(words: &[W], run: usize) -> u32 {
    (words[1 + run / 2].get() >> (16 * (run % 2))) & 0xffff
}

/// Returns the start of run `run`; `None` if there is no such run.
#[inline]
fn start<W: Word>(words: &[W], class: Class, run: usize) -> Option<u32> {
    (run < class.runs()).then(|| half(words, run)).filter(|half| *half != 0xffff).map(|half| half - PRESENT)
}

/// Returns the location of a block of the leaf.
#[inline]
pub(super) fn find<W: Word>(words: &[W], class: Class, block: u32) -> Physical {
    // With constant sizes the compiler unrolls the loop.
    match class.0 {
        0 => find_in(&words[..Class(0).words()], Class(0), block),
        1 => find_in(&words[..Class(1).words()], Class(1), block),
        2 => find_in(&words[..Class(2).words()], Class(2), block),
        _ => find_in(&words[..Class(3).words()], Class(3), block),
    }
}

#[inline(always)]
fn find_in<W: Word>(words: &[W], class: Class, block: u32) -> Physical {
    let run = if class.0 < 2 { count(words, class, block) } else { halve(words, class, block) };
    let start = half(words, run) & !PRESENT;
    let place = words[class.places() + run].get();
    Physical(place.wrapping_add((block.wrapping_sub(start)) * u32::from(place != 0)))
}

/// Returns the last run that starts at or before a block: compares all runs, two per subtraction.
#[inline(always)]
fn count<W: Word>(words: &[W], class: Class, block: u32) -> usize {
    let behind = (block + 1) * 0x0001_0001;
    // In each half, the upper bit stays set if the run starts after the block.
    let later = words[1..class.places()]
        .iter()
        .fold(0, |later, word| later + ((word.get().wrapping_sub(behind) >> 15) & 0x0001_0001));
    class.runs() - 1 - ((later & 0xffff) + (later >> 16)) as usize
}

/// Returns the same as `count` by binary search, in a constant number of steps.
#[inline(always)]
fn halve<W: Word>(words: &[W], class: Class, block: u32) -> usize {
    let (mut run, mut left) = (0, class.runs());
    while left > 1 {
        let step = left / 2;
        run += step * usize::from(half(words, run + step) <= block + PRESENT);
        left -= step;
    }
    run
}

/// Calls `visit` for each run in these words, with its first block and its number of blocks, clipped to
/// blocks `low` to `high` - 1 of the leaf.
#[inline]
pub(super) fn visit<W: Word>(
    words: &[W],
    class: Class,
    low: u32,
    high: u32,
    mut visit: impl FnMut(u32, u32, Physical),
) {
    let mut from = 0;
    for (run, place) in words[class.places()..].iter().take(class.runs()).enumerate() {
        let end = start(words, class, run + 1).map_or(high, |start| start.min(high));
        let first = from.max(low);
        if first < end {
            visit(first, end - first, Physical(place.get()).offset(u64::from(first - from)));
        }
        if end >= high {
            break;
        }
        from = end;
    }
}

/// A run: its first block in the leaf, and that block's location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u32,
    pub(super) physical: Physical,
}

/// The runs of one leaf, for changes. Contiguous neighbours are always merged.
#[derive(Debug)]
pub(super) struct Runs {
    list: Vec<Run>,
    /// Buffer that [`replace`](Self::replace) reuses.
    other: Vec<Run>,
    /// Number of blocks of the leaf.
    blocks: u32,
}

impl Runs {
    /// Returns an unmapped leaf of this number of blocks.
    pub(super) fn new(blocks: u32) -> Self {
        let mut runs = Runs { list: Vec::new(), other: Vec::new(), blocks };
        runs.reset(Physical::NONE);
        runs
    }

    /// Returns the memory outside of the value itself, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        ((self.list.capacity() + self.other.capacity()) * size_of::<Run>()) as u64
    }

    /// Replaces all runs by one that starts at this location, or is unmapped.
    pub(super) fn reset(&mut self, physical: Physical) {
        self.list.clear();
        self.list.push(Run { start: 0, physical });
    }

    /// Returns the runs in order; there is at least one.
    pub(super) fn list(&self) -> &[Run] {
        &self.list
    }

    /// Returns whether nothing is mapped.
    pub(super) fn is_unmapped(&self) -> bool {
        self.list.len() == 1 && !self.list[0].physical.is_mapped()
    }

    /// Returns the end of run `number`.
    pub(super) fn end(&self, number: usize) -> u32 {
        self.list.get(number + 1).map_or(self.blocks, |next| next.start)
    }

    /// Appends a run.
    fn push(list: &mut Vec<Run>, run: Run) {
        if let Some(last) = list.last()
            && continues(*last, run)
        {
            return;
        }
        list.push(run);
    }

    /// Maps blocks `low` to `high` - 1 to `to` and the locations after it, or unmaps them.
    pub(super) fn replace(&mut self, low: u32, high: u32, to: Physical) {
        let mut new = std::mem::take(&mut self.other);
        new.clear();
        new.extend(self.list.iter().take_while(|run| run.start < low));
        Self::push(&mut new, Run { start: low, physical: to });
        for number in 0..self.list.len() {
            if self.end(number) > high {
                let run = self.list[number];
                let start = run.start.max(high);
                let physical = run.physical.offset(u64::from(start - run.start));
                Self::push(&mut new, Run { start, physical });
            }
        }
        self.other = std::mem::replace(&mut self.list, new);
    }

    /// Reads the leaf in these words.
    pub(super) fn read<W: Word>(&mut self, words: &[W], class: Class) {
        self.list.clear();
        for (run, place) in words[class.places()..].iter().take(class.runs()).enumerate() {
            let Some(start) = start(words, class, run) else { break };
            self.list.push(Run { start, physical: Physical(place.get()) });
        }
    }

    /// Writes the leaf to these words, with a reference count of 0. All runs must fit.
    pub(super) fn write<W: Word>(&self, words: &[W], class: Class) {
        debug_assert!(self.list.len() <= class.runs(), "{} runs into {class:?}", self.list.len());
        words[REFERENCES].set(0);
        let half = |run: usize| self.list.get(run).map_or(0xffff, |run| run.start | PRESENT);
        for (pair, word) in words[1..class.places()].iter().enumerate() {
            word.set(half(2 * pair) | half(2 * pair + 1) << 16);
        }
        for (run, word) in self.list.iter().zip(&words[class.places()..]) {
            word.set(run.physical.0);
        }
    }

    /// Calls `place` with the location of each block.
    pub(super) fn spread(&self, mut place: impl FnMut(usize, u32)) {
        for (number, run) in self.list.iter().enumerate() {
            for block in run.start..self.end(number) {
                place(block as usize, run.physical.offset(u64::from(block - run.start)).0);
            }
        }
    }

    /// Builds the leaf from the locations of its blocks. Returns whether it has at most `most` runs;
    /// otherwise the contents are invalid.
    pub(super) fn try_build(&mut self, places: impl Iterator<Item = u32>, most: usize) -> bool {
        self.list.clear();
        let mut expected = None;
        for (block, place) in places.enumerate() {
            if expected != Some(place) {
                if self.list.len() == most {
                    return false;
                }
                self.list.push(Run { start: block as u32, physical: Physical(place) });
            }
            // The largest location has no successor, so a run ends there.
            expected = if place == 0 { Some(0) } else { place.checked_add(1) };
        }
        true
    }
}

/// Returns whether `next` is contiguous with `run`.
fn continues(run: Run, next: Run) -> bool {
    if run.physical.is_mapped() {
        u64::from(next.physical.0) == u64::from(run.physical.0) + u64::from(next.start - run.start)
    } else {
        !next.physical.is_mapped()
    }
}
