//! What is certain and what is possible at a cut.
//!
//! The device is kept as intervals of bytes in which all units have had the same operations: their number
//! follows from the operations, not from their lengths, so that discarding a terabyte costs one. Moving to the next
//! cut touches only what its event touches.

use super::history::{History, Operation, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A version that a piece of the device may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Version {
    pub operation: usize,
    pub certain: bool,
}

/// Bytes that have had the same operations.
#[derive(Debug, Clone)]
pub(super) struct Interval {
    pub end: u64,
    /// What was there before all versions; none is the zeros of the beginning. Possible where none is certain.
    pub base: Option<usize>,
    /// Not superseded; in the order of their submissions.
    pub versions: Vec<Version>,
}

impl Interval {
    pub fn has_certain(&self) -> bool {
        self.versions.iter().any(|version| version.certain)
    }
}

/// A place in the history of a device: the cut before event [`cut`](Self::cut).
#[derive(Debug, Clone)]
pub struct Cursor {
    history: Arc<History>,
    step: usize,
    cut: u64,
    pub(super) intervals: BTreeMap<u64, Interval>,
    /// Where the intervals begin that have versions.
    active: BTreeSet<u64>,
    /// Completed without error and not yet certain.
    unflushed: BTreeSet<usize>,
}

impl Cursor {
    /// The cut before everything: the device is all zeros.
    pub fn new(history: Arc<History>) -> Self {
        Cursor {
            history,
            step: 0,
            cut: 0,
            intervals: BTreeMap::new(),
            active: BTreeSet::new(),
            unflushed: BTreeSet::new(),
        }
    }

    /// The history that this is a place in.
    pub fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// How many events have happened.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Moves on to a later cut.
    pub fn advance_to(&mut self, cut: u64) {
        let history = self.history.clone();
        while let Some((event, step)) = history.steps.get(self.step).filter(|(event, _)| *event < cut) {
            self.step += 1;
            self.cut = event + 1;
            match *step {
                Step::Submit(index) => self.submit(index),
                Step::Complete(index) => self.complete(index),
                Step::Flushed { began } => {
                    let durable =
                        |index: &usize| self.operation(*index).completed.is_some_and(|at| at < began);
                    let certain: Vec<usize> = self.unflushed.iter().copied().filter(durable).collect();
                    certain.into_iter().for_each(|index| self.settle(index));
                }
            }
        }
        self.cut = self.cut.max(cut);
    }

    /// The next cut behind this one at which other states are possible; none behind the last.
    pub fn next_change(&self) -> Option<u64> {
        let changes = |step: &Step| match *step {
            Step::Complete(index) => self.is_certain_when_complete(self.operation(index)),
            Step::Submit(_) | Step::Flushed { .. } => true,
        };
        let mut later = self.history.steps[self.step..].iter();
        later.find(|(_, step)| changes(step)).map(|(event, _)| event + 1)
    }

    pub(super) fn operation(&self, index: usize) -> &Operation {
        &self.history.operations[index]
    }

    fn is_certain_when_complete(&self, operation: &Operation) -> bool {
        operation.succeeded && (operation.durable || !self.history.geometry().volatile_cache)
    }

    fn submit(&mut self, index: usize) {
        let range = self.operation(index).range.clone();
        self.split(range.start);
        self.split(range.end);
        let mut at = range.start;
        while at < range.end {
            let next =
                self.intervals.range(at..).next().map_or(range.end, |(start, _)| (*start).min(range.end));
            if next > at {
                self.intervals.insert(at, Interval { end: next, base: None, versions: Vec::new() });
            }
            if let Some(interval) = self.intervals.get_mut(&at) {
                interval.versions.push(Version { operation: index, certain: false });
                self.active.insert(at);
                at = interval.end;
            }
        }
    }

    /// Makes an interval begin here, if one lies across.
    fn split(&mut self, at: u64) {
        let Some((start, interval)) = self.intervals.range_mut(..at).next_back() else { return };
        if interval.end <= at {
            return;
        }
        let (start, rest) = (*start, interval.clone());
        interval.end = at;
        self.intervals.insert(at, rest);
        if self.active.contains(&start) {
            self.active.insert(at);
        }
    }

    fn complete(&mut self, index: usize) {
        let operation = self.operation(index);
        if self.is_certain_when_complete(operation) {
            self.settle(index);
        } else if operation.succeeded {
            self.unflushed.insert(index);
        }
    }

    /// The operation is certain from now on.
    fn settle(&mut self, index: usize) {
        self.unflushed.remove(&index);
        let history = self.history.clone();
        let certain = &history.operations[index];
        for (start, interval) in self.intervals.range_mut(certain.range.clone()) {
            let versions = &mut interval.versions;
            let Some(place) = versions.iter().position(|version| version.operation == index) else {
                continue;
            };
            versions[place].certain = true;
            versions.retain(|version| !history.operations[version.operation].is_before(certain));
            // What came later than a certain version stands on it as on a base; a concurrent one doesn't.
            let alone = versions.iter().all(|version| {
                version.operation == index || certain.is_before(&history.operations[version.operation])
            });
            if alone {
                interval.base = Some(index);
                versions.retain(|version| version.operation != index);
            }
            if versions.is_empty() {
                self.active.remove(start);
            }
        }
    }

    /// The operations of which something is possible and not certain, in the order of their submissions: their
    /// places in [`History::operations`].
    pub fn possible(&self) -> Vec<usize> {
        let active = self.active.iter().filter_map(|start| self.intervals.get(start));
        let open = active.flat_map(|interval| &interval.versions).filter(|version| !version.certain);
        open.map(|version| version.operation).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Checks what was found on a device after this cut, from byte `offset` on: each piece of a unit must be
    /// one of the versions that are possible there, whole.
    ///
    /// # Errors
    /// The first piece that isn't.
    pub fn check(&self, offset: u64, found: &[u8]) -> Result<(), Mismatch> {
        let end = offset + found.len() as u64;
        let unit = u64::from(self.history.geometry().atomic_write);
        let mut at = offset;
        while at < end {
            let around = self.intervals.range(..=at).next_back().filter(|(_, interval)| interval.end > at);
            let border = match around {
                Some((_, interval)) => interval.end,
                None => self.intervals.range(at..).next().map_or(end, |(start, _)| *start),
            };
            let piece = at..border.min(end).min((at / unit + 1) * unit);
            let bytes = &found[(piece.start - offset) as usize..(piece.end - offset) as usize];
            self.check_piece(around.map(|(_, interval)| interval), piece.clone(), bytes)?;
            at = piece.end;
        }
        Ok(())
    }

    fn check_piece(
        &self,
        interval: Option<&Interval>,
        piece: Range<u64>,
        found: &[u8],
    ) -> Result<(), Mismatch> {
        let legal = match interval {
            Some(interval) => {
                let base = (!interval.has_certain()).then_some(interval.base);
                let versions = interval.versions.iter().map(|version| Some(version.operation));
                versions.chain(base).collect()
            }
            None => vec![None],
        };
        let mut expected = vec![0; found.len()];
        for version in &legal {
            match version {
                Some(index) => self.operation(*index).copy_to(piece.start, &mut expected),
                None => expected.fill(0),
            }
            if expected == found {
                return Ok(());
            }
        }
        Err(Mismatch { range: piece, found: found.to_vec(), legal })
    }
}

/// Something was found that can't be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Which bytes of the device.
    pub range: Range<u64>,
    /// What was found there.
    pub found: Vec<u8>,
    /// The operations whose data may be there (none: the zeros of the beginning).
    pub legal: Vec<Option<usize>>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.range;
        write!(
            formatter,
            "bytes {start}..{end} hold none of the {} versions that may be there",
            self.legal.len()
        )
    }
}
