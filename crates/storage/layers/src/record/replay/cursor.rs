//! A cut, with the certain and possible operations there.
//!
//! The device is kept as intervals of bytes whose units all have the same operations. Their number depends on
//! the number of operations, not on their lengths: a discard of a terabyte is one interval. Advancing to the
//! next cut touches only the intervals of its event.

use super::history::{History, Operation, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A version that an interval of the device may contain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Version {
    pub operation: usize,
    pub certain: bool,
}

/// Bytes with the same operations.
#[derive(Debug, Clone)]
pub(super) struct Interval {
    pub end: u64,
    /// Operation whose data is older than all versions; `None` for the initial zeros. Possible if no version
    /// is certain.
    pub base: Option<usize>,
    /// Versions that aren't superseded, in the order of submission.
    pub versions: Vec<Version>,
}

impl Interval {
    pub fn has_certain(&self) -> bool {
        self.versions.iter().any(|version| version.certain)
    }
}

/// A cut in the history of a device, before event [`cut`](Self::cut).
#[derive(Debug, Clone)]
pub struct Cursor {
    history: Arc<History>,
    step: usize,
    cut: u64,
    pub(super) intervals: BTreeMap<u64, Interval>,
    /// Starts of the intervals that have versions.
    active: BTreeSet<u64>,
    /// Operations that completed without error and aren't certain.
    unflushed: BTreeSet<usize>,
}

impl Cursor {
    /// Creates the cut before all events, at which the device is zeros.
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

    /// Returns the history.
    pub fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// Number of events before the cut.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Advances to a later cut.
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

    /// Returns the next cut with other possible states; `None` after the last one.
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

    /// Splits the interval that contains this offset, if there is one.
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

    /// Makes an operation certain.
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
            // Versions after the certain one replace it as their base; concurrent ones don't.
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

    /// Returns the indices in [`History::operations`] of operations that are possible and not certain
    /// somewhere, in the order of submission.
    pub fn possible(&self) -> Vec<usize> {
        let active = self.active.iter().filter_map(|start| self.intervals.get(start));
        let open = active.flat_map(|interval| &interval.versions).filter(|version| !version.certain);
        open.map(|version| version.operation).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Checks data that was read from a device after this cut and begins at byte `offset`: each unit's bytes
    /// have to be those of one version that is possible there.
    ///
    /// # Errors
    /// The first bytes that match no version.
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

/// Bytes that match no possible version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Range of bytes of the device.
    pub range: Range<u64>,
    /// The bytes that were read.
    pub found: Vec<u8>,
    /// Operations whose data may be there; `None` for the initial zeros.
    pub legal: Vec<Option<usize>>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.range;
        write!(
            formatter,
            "bytes {start}..{end}: they match none of the {} possible versions",
            self.legal.len()
        )
    }
}
