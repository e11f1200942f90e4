//! A leaf as runs: pieces of consecutive blocks at consecutive places, from the leaf's first block to its last,
//! unmapped pieces included.
//!
//! In memory a leaf of `n` runs is 1 + ceil(n / 2) + n words and never changes, but for its first word:
//!
//! ```text
//! word 0                how many middle nodes refer to it; only the writer looks at it
//! words 1 ..            16 bits each: n, then where runs 1 to n - 1 start (run 0 starts at 0)
//! words 1 + ceil(n/2) ..   where each run lies, 0 for an unmapped one
//! ```

use super::growing::Word;
use crate::map::Physical;

/// The word in which references are counted.
pub(super) const REFERENCES: usize = 0;

/// How many words `runs` runs take.
pub(super) const fn words_for(runs: usize) -> usize {
    1 + runs.div_ceil(2) + runs
}

/// How many runs fit into `words` words.
pub(super) const fn runs_in(words: usize) -> usize {
    let mut runs = 0;
    while words_for(runs + 1) <= words {
        runs += 1;
    }
    runs
}

/// How many runs the leaf in these words has.
#[inline]
pub(super) fn count<W: Word>(words: &[W]) -> usize {
    (words[1].get() & 0xffff) as usize
}

/// The 16 bits at a position: of position 0, the count; of `i`, where run `i` starts.
#[inline]
fn half<W: Word>(words: &[W], position: usize) -> u32 {
    (words[1 + position / 2].get() >> (16 * (position % 2))) & 0xffff
}

/// Up to so many runs are looked through one by one, which the processor predicts well; more are halved.
const LINEAR: usize = 20;

/// Where a block of the leaf lies.
#[inline]
pub(super) fn find<W: Word>(words: &[W], block: u32) -> Physical {
    let first = words[1].get();
    let count = (first & 0xffff) as usize;
    let (mut low, mut start) = (0, 0);
    if count <= LINEAR {
        let mut halves = first >> 16;
        for run in 1..count {
            if run % 2 == 0 {
                halves = words[1 + run / 2].get();
            } else if run > 1 {
                halves >>= 16;
            }
            let here = halves & 0xffff;
            if here > block {
                break;
            }
            (low, start) = (run, here);
        }
    } else {
        let mut high = count;
        while high - low > 1 {
            let middle = low.midpoint(high);
            let here = half(words, middle);
            if here <= block { (low, start) = (middle, here) } else { high = middle }
        }
    }
    let physical = Physical(words[1 + count.div_ceil(2) + low].get());
    physical.offset(u64::from(block - start))
}

/// Calls `visit` for each run in these words, with its first block and how many it has, clipped to blocks `low` to
/// `high` - 1 of the leaf.
#[inline]
pub(super) fn visit<W: Word>(words: &[W], low: u32, high: u32, mut visit: impl FnMut(u32, u32, Physical)) {
    let count = count(words);
    let places = &words[1 + count.div_ceil(2)..][..count];
    let mut start = 0;
    for (number, place) in places.iter().enumerate() {
        let end = if number + 1 == count { high } else { half(words, number + 1).min(high) };
        let first = start.max(low);
        if first < end {
            visit(first, end - first, Physical(place.get()).offset(u64::from(first - start)));
        }
        if end >= high {
            break;
        }
        start = end;
    }
}

/// A run: its first block in the leaf, and where that lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u32,
    pub(super) physical: Physical,
}

/// The runs of one leaf, to be changed. Neighbours that continue each other are always joined.
#[derive(Debug)]
pub(super) struct Runs {
    list: Vec<Run>,
    /// Reused by [`replace`](Self::replace).
    other: Vec<Run>,
    /// How many blocks the leaf has.
    blocks: u32,
}

impl Runs {
    /// An unmapped leaf of so many blocks.
    pub(super) fn new(blocks: u32) -> Self {
        let mut runs = Runs { list: Vec::new(), other: Vec::new(), blocks };
        runs.reset(Physical::NONE);
        runs
    }

    /// Memory outside of the value itself, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        ((self.list.capacity() + self.other.capacity()) * size_of::<Run>()) as u64
    }

    /// Makes it one run.
    pub(super) fn reset(&mut self, physical: Physical) {
        self.list.clear();
        self.list.push(Run { start: 0, physical });
    }

    /// The runs, in order; there is at least one.
    pub(super) fn list(&self) -> &[Run] {
        &self.list
    }

    /// Whether nothing is mapped.
    pub(super) fn is_unmapped(&self) -> bool {
        self.list.len() == 1 && !self.list[0].physical.is_mapped()
    }

    /// Where run `number` ends.
    pub(super) fn end(&self, number: usize) -> u32 {
        self.list.get(number + 1).map_or(self.blocks, |next| next.start)
    }

    /// Adds a run behind the others.
    fn push(list: &mut Vec<Run>, run: Run) {
        if let Some(last) = list.last()
            && continues(*last, run)
        {
            return;
        }
        list.push(run);
    }

    /// Maps blocks `low` to `high` - 1 to `to` and the places behind it, or unmaps them.
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
    pub(super) fn read<W: Word>(&mut self, words: &[W]) {
        self.list.clear();
        let count = count(words);
        let places = &words[1 + count.div_ceil(2)..];
        for (number, place) in places.iter().take(count).enumerate() {
            let start = if number == 0 { 0 } else { half(words, number) };
            self.list.push(Run { start, physical: Physical(place.get()) });
        }
    }

    /// Writes the leaf to these words, without references.
    pub(super) fn write<W: Word>(&self, words: &[W]) {
        words[REFERENCES].set(0);
        let count = self.list.len();
        for position in (0..count).step_by(2) {
            let low = if position == 0 { count as u32 } else { self.list[position].start };
            let high = self.list.get(position + 1).map_or(0, |run| run.start);
            words[1 + position / 2].set(low | high << 16);
        }
        for (run, word) in self.list.iter().zip(&words[1 + count.div_ceil(2)..]) {
            word.set(run.physical.0);
        }
    }

    /// Writes where each block lies to `places`.
    pub(super) fn spread(&self, mut place: impl FnMut(usize, u32)) {
        for (number, run) in self.list.iter().enumerate() {
            for block in run.start..self.end(number) {
                place(block as usize, run.physical.offset(u64::from(block - run.start)).0);
            }
        }
    }

    /// Takes the leaf from where each of its blocks lies, if it has at most `most` runs; else it holds nonsense.
    pub(super) fn gather(&mut self, places: impl Iterator<Item = u32>, most: usize) -> bool {
        self.list.clear();
        let mut expected = None;
        for (block, place) in places.enumerate() {
            if expected != Some(place) {
                if self.list.len() == most {
                    return false;
                }
                self.list.push(Run { start: block as u32, physical: Physical(place) });
            }
            // Behind the last place of all there is none, and so a mapped run ends.
            expected = if place == 0 { Some(0) } else { place.checked_add(1) };
        }
        true
    }
}

/// Whether `next` only continues what `run` says.
fn continues(run: Run, next: Run) -> bool {
    if run.physical.is_mapped() {
        u64::from(next.physical.0) == u64::from(run.physical.0) + u64::from(next.start - run.start)
    } else {
        !next.physical.is_mapped()
    }
}
