//! Decisions about merging: which pieces of a zone are written again as one, and when. Without I/O.
//!
//! # Promises
//! - A run that is merged has at least [`MIN_PIECES`] pieces, so each merge removes eight objects: of `n`
//!   uploaded pieces come at most `n / 8` merged ones, however often a zone is merged.
//! - A finished zone of `z` bytes whose runs are all merged has at most `24 * z / t + 8` pieces for a target
//!   of `t` bytes, and `z / t + 1` if its pieces were equal and small.
//! - Bytes are moved only at the expense of uploads ([`Budget`]): without uploads no merge begins.
//!
//! Left to others: reading, uploading and the manifest (`core::merge`).

use crate::table::{Entry, Piece, State};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Fewest pieces of a run.
pub(crate) const MIN_PIECES: usize = 9;
/// Fewest pieces at the end of a zone that still grows, each shorter than the target by [`TAIL_SHARE`]: what
/// they become is at most a sixteenth of it, and is merged with others later.
const MIN_TAIL: usize = 64;
const TAIL_SHARE: u64 = 1024;
/// Most runs of a job: a manifest names all of them.
const MAX_RUNS: usize = 64;
/// Most zones that are remembered as worth merging.
const MAX_CANDIDATES: usize = 4096;
/// Bytes that an upload counts beside its own: the connection's capacity for a request's latency, which it
/// has used (20 ms at 200 Mbit/s).
const REQUEST: u64 = 512 << 10;
/// Most credit, in targets.
const MAX_CREDIT: u64 = 4;
/// Numbers of pieces of the volume between which the budget rises from [`SHARE`] to all that is uploaded: 12
/// and 24 MiB of memory.
const PRESSURE: Range<u64> = 1 << 19..1 << 20;
/// Percentage of the uploads that merging may move.
const SHARE: u64 = 10;

/// Pieces that become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// Number of its first piece in the zone.
    pub first: usize,
    /// Number of pieces.
    pub pieces: usize,
    /// Offset in the zone, and bytes.
    pub offset: u64,
    pub length: u64,
}

impl Run {
    fn new(first: usize, pieces: &[Piece]) -> Run {
        let length = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        Run { first, pieces: pieces.len(), offset: pieces.first().map_or(0, |piece| piece.offset), length }
    }

    /// Bytes that are moved for each object that is saved.
    fn cost(&self) -> u64 {
        self.length / (self.pieces as u64 - 1).max(1)
    }
}

/// Largest merged piece: merging holds one in memory, beside appends.
pub(crate) fn target(piece_size: u64, memory: u64) -> u64 {
    piece_size.min(memory / 4)
}

/// Piece of such a length that moving it costs more than the object that it saves.
fn is_large(piece: &Piece, target: u64) -> bool {
    u64::from(piece.length) > target / 8
}

/// Adds the pieces without the large ones at both ends, if there are enough.
fn add_run(runs: &mut Vec<Run>, pieces: &[Piece], range: Range<usize>, target: u64) {
    let of = &pieces[range.clone()];
    let Some(from) = of.iter().position(|piece| !is_large(piece, target)) else { return };
    let to = of.iter().rposition(|piece| !is_large(piece, target)).map_or(from, |last| last + 1);
    if to - from >= MIN_PIECES {
        runs.push(Run::new(range.start + from, &of[from..to]));
    }
}

/// Runs of a zone's pieces that are worth merging into pieces of at most `target` bytes, the cheapest for
/// each object that it saves first. Pieces at the end of a zone that grows wait for those that follow, unless
/// there are many short ones: so most bytes are moved once or twice.
pub(crate) fn runs(pieces: &[Piece], is_growing: bool, target: u64) -> Vec<Run> {
    let mut runs = Vec::new();
    let (mut first, mut length) = (0, 0);
    for (at, piece) in pieces.iter().enumerate() {
        if length + u64::from(piece.length) > target {
            add_run(&mut runs, pieces, first..at, target);
            (first, length) = (at, 0);
        }
        length += u64::from(piece.length);
    }
    if is_growing {
        let rest = &pieces[first..];
        let short = |piece: &&Piece| u64::from(piece.length) < target / TAIL_SHARE;
        let tail = rest.iter().rev().take_while(short).count();
        first = if tail >= MIN_TAIL { pieces.len() - tail } else { pieces.len() };
    }
    add_run(&mut runs, pieces, first..pieces.len(), target);
    runs.sort_by_key(Run::cost);
    runs
}

/// A job: runs of a zone that one change replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub zone: u32,
    pub generation: u64,
    pub runs: Vec<Run>,
}

/// Decision about a zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    Merge(Job),
    /// The zone has runs, and the budget isn't enough for the first one yet.
    Wait,
    /// The zone has no run.
    Pass,
}

/// Zone that is to be merged next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Candidate {
    Zone(u32),
    /// None is known, and some were dropped at the limit: all zones have to be noted again. Returned once.
    Dropped,
    None,
}

/// Zones that may be worth merging, by the average length of their pieces.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    zones: BTreeSet<(u64, u32)>,
    /// Average under which each zone is known, by zone.
    averages: BTreeMap<u32, u64>,
    /// Whether some were dropped.
    is_partial: bool,
    /// Zones whose pieces can't be read.
    refused: BTreeSet<u32>,
    /// Zones without runs when they were looked at, with their number of pieces: they are looked at again
    /// when it differs by [`MIN_PIECES`], so that a zone that grows isn't after each upload.
    passed: BTreeMap<u32, usize>,
}

impl Candidates {
    /// Notes the present pieces of a zone.
    pub fn note(&mut self, zone: u32, pieces: usize, bytes: u64, target: u64) {
        self.remove(zone);
        let superfluous = (pieces as u64).saturating_sub(bytes / target);
        let is_passed = self.passed.get(&zone).is_some_and(|known| known.abs_diff(pieces) < MIN_PIECES);
        if superfluous < MIN_PIECES as u64 - 1 || is_passed || self.refused.contains(&zone) {
            return;
        }
        let average = bytes / pieces as u64;
        if self.zones.len() >= MAX_CANDIDATES {
            self.is_partial = true;
            match self.zones.last().copied() {
                Some((longest, last)) if longest > average => self.remove(last),
                _ => return,
            }
        }
        self.zones.insert((average, zone));
        self.averages.insert(zone, average);
    }

    /// Forgets a zone until it is noted again.
    pub fn remove(&mut self, zone: u32) {
        if let Some(average) = self.averages.remove(&zone) {
            self.zones.remove(&(average, zone));
        }
    }

    /// Forgets a zone without runs until it has several pieces more or fewer than these.
    pub fn pass(&mut self, zone: u32, pieces: usize) {
        self.remove(zone);
        if self.passed.len() >= MAX_CANDIDATES && !self.passed.contains_key(&zone) {
            self.passed.pop_first();
        }
        self.passed.insert(zone, pieces);
    }

    /// Looks at a zone again when it is noted.
    pub fn reconsider(&mut self, zone: u32) {
        self.passed.remove(&zone);
    }

    /// Forgets a zone until it is reset: its pieces can't be read.
    pub fn refuse(&mut self, zone: u32) {
        self.remove(zone);
        if self.refused.len() < MAX_CANDIDATES {
            self.refused.insert(zone);
        }
    }

    /// Forgets a zone that was reset.
    pub fn forget(&mut self, zone: u32) {
        self.remove(zone);
        self.reconsider(zone);
        self.refused.remove(&zone);
    }

    /// Returns the zone with the shortest pieces.
    pub fn first(&mut self) -> Candidate {
        match self.zones.first() {
            Some((_, zone)) => Candidate::Zone(*zone),
            None if std::mem::take(&mut self.is_partial) => Candidate::Dropped,
            None => Candidate::None,
        }
    }
}

/// Bytes that may be moved: a tenth of what was uploaded, each upload with [`REQUEST`] more; more of it if
/// the memory of the volume's pieces matters.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    credit: u64,
    /// Credit below which nothing begins, since the next run costs as much.
    needed: u64,
}

/// Percentage of the uploads that merging may move in a volume with this number of pieces.
fn share(pieces: u64) -> u64 {
    let above = pieces.clamp(PRESSURE.start, PRESSURE.end) - PRESSURE.start;
    SHARE + (100 - SHARE) * above / (PRESSURE.end - PRESSURE.start)
}

impl Budget {
    /// Notes an uploaded piece.
    pub fn earn(&mut self, bytes: u64, pieces: u64, target: u64) {
        let earned = (bytes + REQUEST) * share(pieces) / 100;
        self.credit = (self.credit + earned).min(MAX_CREDIT * target);
    }

    /// Whether a merge may begin.
    pub fn is_ready(&self) -> bool {
        self.credit > 0 && self.credit >= self.needed
    }

    /// Takes the first runs that the credit is enough for. Without any, nothing begins until it is.
    pub fn take(&mut self, runs: Vec<Run>) -> Vec<Run> {
        self.needed = 0;
        let mut taken = Vec::new();
        for run in runs.into_iter().take(MAX_RUNS) {
            if run.length > self.credit {
                if taken.is_empty() {
                    self.needed = run.length;
                }
                break;
            }
            self.credit -= run.length;
            taken.push(run);
        }
        taken
    }
}

/// Decides whether a zone is merged, with as many runs as the budget is enough for.
pub(crate) fn decide(budget: &mut Budget, zone: u32, entry: &Entry, target: u64) -> Decision {
    let found = runs(&entry.pieces, entry.state == State::Begun, target);
    let has_runs = !found.is_empty();
    match budget.take(found) {
        runs if !runs.is_empty() => Decision::Merge(Job { zone, generation: entry.generation, runs }),
        _ if has_runs => Decision::Wait,
        _ => Decision::Pass,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Random;

    const TARGET: u64 = 8 << 20;

    fn pieces(lengths: impl IntoIterator<Item = u64>) -> Vec<Piece> {
        let mut offset = 0;
        let piece = |(serial, length): (usize, u64)| {
            offset += length;
            Piece {
                offset: offset - length,
                length: length as u32,
                compressed: 0,
                epoch: 1,
                serial: serial as u64,
            }
        };
        lengths.into_iter().enumerate().map(piece).collect()
    }

    /// Merges all runs, and returns their number.
    fn merge(pieces: &mut Vec<Piece>, is_growing: bool, target: u64) -> usize {
        let mut runs = runs(pieces, is_growing, target);
        runs.sort_by_key(|run| std::cmp::Reverse(run.first));
        for run in &runs {
            assert!(run.length <= target && run.pieces >= MIN_PIECES, "{run:?}");
            let piece =
                Piece { offset: run.offset, length: run.length as u32, compressed: 0, epoch: 2, serial: 0 };
            assert_eq!({ pieces[run.first].offset }, run.offset);
            pieces.splice(run.first..run.first + run.pieces, [piece]);
        }
        runs.len()
    }

    #[test]
    fn equal_small_pieces_become_pieces_of_the_target() {
        let mut finished = pieces(vec![4096; 32768]);
        assert_eq!(merge(&mut finished, false, TARGET), 16);
        assert!(finished.len() == 16 && finished.iter().all(|piece| u64::from(piece.length) == TARGET));
        assert!(runs(&finished, false, TARGET).is_empty());
        // Of a zone that grows: what is complete, and a long tail.
        let grown = |count: usize| runs(&pieces(vec![4096; count]), true, TARGET);
        assert!(grown(63).is_empty());
        assert_eq!(grown(64)[0], Run { first: 0, pieces: 64, offset: 0, length: 256 << 10 });
        assert_eq!(grown(2049), [Run { first: 0, pieces: 2048, offset: 0, length: TARGET }]);
        assert_eq!(grown(2112).len(), 2);
        let merged_tails = pieces((0..31).map(|_| 256 << 10).chain([4096; 10]));
        assert!(runs(&merged_tails, true, TARGET).is_empty(), "they wait for those that follow");
    }

    #[test]
    fn the_cheapest_runs_are_first_and_large_pieces_stay() {
        let of = pieces([7 << 20].into_iter().chain([4096; 20]).chain([7 << 20]).chain([64 << 10; 9]));
        let found = runs(&of, false, TARGET);
        let places: Vec<_> = found.iter().map(|run| (run.first, run.pieces)).collect();
        assert_eq!(places, [(1, 20), (22, 9)]);
        assert!(runs(&pieces([4096; 8]), false, TARGET).is_empty(), "too few");
    }

    #[test]
    fn merges_end_with_few_pieces_and_are_few() {
        let mut random = Random::new(1);
        for _ in 0..40 {
            let target = 512 << random.below(15);
            let longest = 1 + random.below(target / 512);
            let lengths: Vec<u64> = (0..random.below(2000))
                .map(|_| 512 * (1 + random.below(random.clone().below(longest) + 1)))
                .collect();
            let (mut left, mut merges) = (pieces(lengths.clone()), 0);
            // While it grows, and when it is finished.
            let mut grown = Vec::new();
            for piece in left.drain(..) {
                grown.push(piece);
                merges += merge(&mut grown, true, target);
            }
            loop {
                let count = merge(&mut grown, false, target);
                merges += count;
                if count == 0 {
                    break;
                }
            }
            let bytes: u64 = lengths.iter().sum();
            assert_eq!(grown.iter().map(|piece| u64::from(piece.length)).sum::<u64>(), bytes);
            assert!(merges * 8 <= lengths.len(), "{merges} merges of {} pieces", lengths.len());
            let limit = 24 * bytes / target + 8;
            assert!(grown.len() as u64 <= limit, "{} pieces, {limit} permitted", grown.len());
        }
    }

    #[test]
    fn merging_moves_a_tenth_of_the_uploads() {
        let runs = || runs(&pieces(vec![64 << 10; 1280]), false, TARGET);
        let mut budget = Budget::default();
        assert!(!budget.is_ready(), "without an upload nothing begins");
        let (mut uploaded, mut moved) = (0, 0);
        for _ in 0..10_000 {
            budget.earn(1 << 20, 0, TARGET);
            uploaded += (1 << 20) + REQUEST;
            if budget.is_ready() {
                moved += budget.take(runs()).iter().map(|run| run.length).sum::<u64>();
                assert!(moved <= uploaded / 10, "{moved} of {uploaded}");
            }
        }
        assert!(moved > uploaded / 11, "{moved} of {uploaded}");
        // The credit of a long time is that of a few merges.
        (0..100_000).for_each(|_| budget.earn(1 << 20, 0, TARGET));
        assert_eq!(budget.take(runs()).len() as u64, MAX_CREDIT);
        assert!(budget.take(runs()).is_empty() && !budget.is_ready());
        assert_eq!([0, 1 << 19, 3 << 18, 1 << 20, 1 << 30].map(share), [10, 10, 55, 100, 100]);
    }

    #[test]
    fn candidates_are_bounded_and_the_shortest_pieces_are_first() {
        let mut candidates = Candidates::default();
        for zone in 0..3 * MAX_CANDIDATES as u32 {
            candidates.note(zone, 100, u64::from(zone + 1) * 100, TARGET);
        }
        candidates.note(5, 100, 1 << 30, TARGET);
        assert_eq!(candidates.zones.len(), MAX_CANDIDATES - 1, "few for its bytes");
        assert_eq!(candidates.first(), Candidate::Zone(0));
        candidates.refuse(0);
        candidates.note(0, 100, 100, TARGET);
        assert_eq!(candidates.first(), Candidate::Zone(1));
        candidates.forget(0);
        candidates.note(0, 100, 100, TARGET);
        assert_eq!(candidates.first(), Candidate::Zone(0));
        // One without runs grows.
        for (pieces, expected) in [(100, 1), (100 + MIN_PIECES - 1, 1), (100 + MIN_PIECES, 0)] {
            candidates.pass(0, 100);
            candidates.note(0, pieces, 100, TARGET);
            assert_eq!(candidates.first(), Candidate::Zone(expected), "{pieces} pieces");
        }
        candidates.pass(0, 100);
        candidates.reconsider(0);
        candidates.note(0, 100, 100, TARGET);
        assert_eq!(candidates.first(), Candidate::Zone(0), "finished");
        (0..3 * MAX_CANDIDATES as u32).for_each(|zone| candidates.pass(zone, 1));
        assert_eq!(candidates.passed.len(), MAX_CANDIDATES);
        (0..3 * MAX_CANDIDATES as u32).for_each(|zone| candidates.remove(zone));
        assert_eq!((candidates.first(), candidates.first()), (Candidate::Dropped, Candidate::None));
    }
}
