//! Model of a device: decides which contents are legal from the writes that were submitted, acknowledged and
//! flushed.
//!
//! Time is a counter that every step raises. Of two operations on a unit (the `atomic_write` bytes that the
//! device writes whole), the one that had completed before the other was submitted is older; otherwise they
//! are concurrent, and either may be the last.
//! the last.

use std::collections::{BTreeMap, BTreeSet};

/// Contents of a unit: the number of the write that wrote it; 0 is zeros.
pub type Version = u64;

#[derive(Debug, Clone, Copy)]
struct Operation {
    version: Version,
    submitted: u64,
    completed: Option<u64>,
    /// Time since which it survives a power cut.
    certain: Option<u64>,
}

/// Submitted, acknowledged and flushed operations of a device.
#[derive(Debug)]
pub struct Model {
    time: u64,
    next_version: Version,
    operations: Vec<Operation>,
    /// Operations of each unit, in the order of their submissions; from [`Model::since`] on, those since the
    /// device was opened.
    units: Vec<Vec<usize>>,
    since: Vec<usize>,
    /// First operation since the device was opened.
    first: usize,
    /// Operations that had completed before this time are also on the devices that may lag behind.
    arrived: u64,
    /// After a power cut, if an operation is visible, all that had completed before it was submitted are
    /// visible.
    is_ordered: bool,
}

/// Stop of the device before its contents are read again. Later variants leave less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Close of the device, or end of its process: all acknowledged operations are there.
    Orderly,
    /// Power cut: all flushed operations are there.
    PowerCut,
    /// Only a lagging device is left: its state is one that a power cut at this or any earlier moment could
    /// have left.
    Older,
    /// Only a device that lags without any order is left: each unit has some version.
    Mixed,
    /// Nothing is promised.
    Unknown,
}

impl Model {
    /// Creates a model of `units` units of zeros. If it is ordered, a power cut leaves a prefix of all
    /// operations.
    pub fn new(units: u64, is_ordered: bool) -> Self {
        let mut model = Model {
            time: 0,
            next_version: 1,
            operations: Vec::new(),
            units: Vec::new(),
            since: Vec::new(),
            first: 0,
            arrived: 0,
            is_ordered,
        };
        model.begin_anew(&vec![0; units as usize]);
        model
    }

    /// Number of units.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.units.len() as u64
    }

    /// Sets whether a power cut leaves a prefix from now on.
    pub fn set_ordered(&mut self, is_ordered: bool) {
        self.is_ordered = is_ordered;
    }

    /// The device has these contents, they are durable, and no device lags behind them.
    pub fn begin_anew(&mut self, found: &[Version]) {
        self.operations.clear();
        self.units = vec![Vec::new(); found.len()];
        (self.time, self.arrived, self.first) = (0, 0, 0);
        self.restart(found);
    }

    /// The device has these contents, and they are durable; a lagging device may still be older.
    pub fn restart(&mut self, found: &[Version]) {
        assert_eq!(found.len(), self.units.len(), "all units");
        // Operations that were not acknowledged have happened by now, or never will.
        let over = self.tick();
        for operation in &mut self.operations[self.first..] {
            operation.completed.get_or_insert(over);
        }
        let now = Some(self.tick());
        self.first = self.operations.len();
        self.since = self.units.iter().map(Vec::len).collect();
        for (unit, version) in self.units.iter_mut().zip(found) {
            unit.push(self.operations.len());
            let submitted = self.time;
            self.operations.push(Operation { version: *version, submitted, completed: now, certain: now });
        }
    }

    /// Sets the next version, so that no other device's contents can be mistaken for this one's.
    pub fn number_from(&mut self, version: Version) {
        self.next_version = version;
    }

    /// The device may have grown, by zeros.
    pub fn grow(&mut self, units: u64) {
        let (submitted, certain) = (self.time, Some(self.time));
        while self.len() < units {
            self.units.push(vec![self.operations.len()]);
            self.since.push(0);
            self.operations.push(Operation { version: 0, submitted, completed: certain, certain });
        }
    }

    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// Returns a new version, for a write.
    pub fn draw_version(&mut self) -> Version {
        self.next_version += 1;
        self.next_version - 1
    }

    /// Notes a write of this version to these units. Returns its number for `completed`.
    pub fn submit(&mut self, unit: u64, count: u64, version: Version) -> usize {
        let submitted = self.tick();
        self.operations.push(Operation { version, submitted, completed: None, certain: None });
        let number = self.operations.len() - 1;
        for unit in unit..unit + count {
            self.units[unit as usize].push(number);
        }
        number
    }

    /// Notes that an operation was acknowledged.
    pub fn completed(&mut self, number: usize, durable: bool) {
        let time = self.tick();
        let operation = &mut self.operations[number];
        operation.completed = Some(time);
        if durable {
            operation.certain.get_or_insert(time);
        }
    }

    /// Notes the start of a flush or a read. Returns the time for `flushed` or `check_read`.
    pub fn begin(&mut self) -> u64 {
        self.tick()
    }

    /// Notes that a flush which began at this time has returned.
    pub fn flushed(&mut self, began: u64) {
        let now = self.tick();
        let done = |operation: &&mut Operation| operation.completed.is_some_and(|time| time < began);
        self.operations[self.first..].iter_mut().filter(done).for_each(|operation| {
            operation.certain.get_or_insert(now);
        });
    }

    /// Operations that had completed before this time are now also on the devices that may lag behind.
    pub fn arrived(&mut self, began: u64) {
        self.arrived = self.arrived.max(began);
    }

    /// Checks that a unit holds one of its legal versions, given which operations surely happened. An error
    /// lists the legal versions.
    fn check_unit(
        &self,
        unit: u64,
        found: Version,
        all: &[usize],
        counts: impl Fn(&Operation) -> bool,
    ) -> Result<(), String> {
        let all = || all.iter().map(|number| &self.operations[*number]);
        let last = all().filter(|operation| counts(operation)).map(|operation| operation.submitted).max();
        let is_gone = |operation: &Operation| operation.completed.is_some_and(|time| Some(time) < last);
        if all().any(|operation| operation.version == found && !is_gone(operation)) {
            return Ok(());
        }
        let legal: BTreeMap<Version, &Operation> = all()
            .filter(|operation| !is_gone(operation))
            .map(|operation| (operation.version, operation))
            .collect();
        let history: Vec<&Operation> = all().collect();
        Err(format!(
            "unit {unit} holds version {found}; legal: {legal:?}; all that happened to it: {history:?}"
        ))
    }

    /// Operations on a unit since the device was opened.
    fn recent(&self, unit: usize) -> &[usize] {
        &self.units[unit][self.since[unit]..]
    }

    /// Whether an operation on the unit is in flight, or it is unknown whether one is.
    pub fn is_open(&self, unit: u64) -> bool {
        self.recent(unit as usize).iter().any(|number| self.operations[*number].completed.is_none())
    }

    /// Checks the version that a read which began at this time found in a unit.
    ///
    /// # Errors
    /// The legal versions.
    pub fn check_read(&self, unit: u64, found: Version, began: u64) -> Result<(), String> {
        let is_before = |operation: &Operation| operation.completed.is_some_and(|time| time < began);
        self.check_unit(unit, found, self.recent(unit as usize), is_before)
    }

    /// Checks the contents of a device that was opened again after such a stop.
    ///
    /// # Errors
    /// The first unit whose version isn't legal.
    pub fn check_stopped(&self, found: &[Version], stop: Stop) -> Result<(), String> {
        let found: Vec<Option<Version>> = found.iter().copied().map(Some).collect();
        self.check_found(&found, stop)
    }

    /// Like [`check_stopped`](Self::check_stopped), where some units could not be read.
    ///
    /// # Errors
    /// The first unit whose version isn't legal.
    pub fn check_found(&self, found: &[Option<Version>], stop: Stop) -> Result<(), String> {
        assert_eq!(found.len(), self.units.len(), "all units");
        let units = || found.iter().enumerate().filter_map(|(unit, version)| Some((unit, (*version)?)));
        match stop {
            Stop::Orderly => units().try_for_each(|(unit, version)| {
                let counts = |operation: &Operation| operation.completed.is_some();
                self.check_unit(unit as u64, version, self.recent(unit), counts)
            }),
            Stop::PowerCut => self.check_cut(found),
            Stop::Older => self.check_older(found),
            Stop::Unknown => Ok(()),
            Stop::Mixed => units().try_for_each(|(unit, version)| {
                let counts =
                    |operation: &Operation| operation.completed.is_some_and(|time| time < self.arrived);
                self.check_unit(unit as u64, version, &self.units[unit], counts)
            }),
        }
        .map_err(|broken| format!("{broken}; after {stop:?}"))
    }

    fn check_cut(&self, found: &[Option<Version>]) -> Result<(), String> {
        // Prefix consistency: if an operation is visible, all that had completed before it was submitted are
        // visible. Zeros may be the result of several operations, and so prove nothing.
        let submitted = |(unit, version): (usize, &Option<Version>)| {
            let version = version.filter(|version| *version != 0)?;
            let operations = self.recent(unit).iter().map(|number| &self.operations[*number]);
            let wrote = operations.filter(|operation| operation.version == version);
            wrote.map(|operation| operation.submitted).max()
        };
        let last = match self.is_ordered {
            true => found.iter().enumerate().filter_map(submitted).max().unwrap_or(0),
            false => 0,
        };
        for (unit, version) in found.iter().enumerate() {
            let Some(version) = version else { continue };
            let counts = |operation: &Operation| {
                operation.certain.is_some() || operation.completed.is_some_and(|time| time < last)
            };
            self.check_unit(unit as u64, *version, self.recent(unit), counts)
                .map_err(|broken| format!("{broken}; something submitted at {last} is there"))?;
        }
        Ok(())
    }

    /// As `oracle/older.rs`: the earliest cut that could have left the contents is right after the submission
    /// of the newest visible write; zeros don't identify a write, so later cuts are tried as well.
    fn check_older(&self, found: &[Option<Version>]) -> Result<(), String> {
        let mut earliest = self.arrived;
        for (unit, version) in found.iter().enumerate() {
            let Some(version) = version.filter(|version| *version != 0) else { continue };
            let operations = self.units[unit].iter().map(|number| &self.operations[*number]);
            let first = operations
                .filter(|operation| operation.version == version)
                .map(|operation| operation.submitted)
                .min();
            earliest = earliest.max(first.map_or(0, |submitted| submitted + 1));
        }
        // Between two changes of the certain operations, the latest moment permits most.
        let mut cuts: BTreeSet<u64> =
            self.operations.iter().filter_map(|operation| operation.certain).collect();
        cuts.extend([earliest, self.time + 1]);
        let mut broken = Ok(());
        for cut in cuts.range(earliest..).copied() {
            let outcome = self.check_older_at(found, cut);
            if outcome.is_ok() {
                return Ok(());
            }
            broken = outcome;
        }
        broken.map_err(|broken| {
            let newest = earliest.saturating_sub(1);
            format!("at no cut behind {newest}, when something was submitted that is there; at the last one: {broken}")
        })
    }

    fn check_older_at(&self, found: &[Option<Version>], cut: u64) -> Result<(), String> {
        for (unit, version) in found.iter().enumerate() {
            let Some(version) = version else { continue };
            let all = &self.units[unit];
            let before = all.iter().take_while(|number| self.operations[**number].submitted < cut).count();
            let counts = |operation: &Operation| {
                operation.certain.is_some_and(|time| time < cut)
                    || operation.completed.is_some_and(|time| time < self.arrived)
            };
            self.check_unit(unit as u64, *version, &all[..before.max(1)], counts)
                .map_err(|broken| format!("{broken}; at the cut {cut}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One unit is written and flushed, and then the other one is written.
    fn one_after_the_other() -> Model {
        let mut model = Model::new(2, true);
        for unit in [0, 1] {
            let version = model.draw_version();
            let write = model.submit(unit, 1, version);
            model.completed(write, false);
            let began = model.begin();
            model.flushed(began);
        }
        model
    }

    #[test]
    fn what_was_flushed_is_there() {
        let model = one_after_the_other();
        for stop in [Stop::Orderly, Stop::PowerCut] {
            assert_eq!(model.check_stopped(&[1, 2], stop), Ok(()));
            assert!(model.check_stopped(&[1, 0], stop).is_err(), "{stop:?}");
            assert!(model.check_found(&[None, Some(0)], stop).is_err(), "{stop:?}");
        }
    }

    #[test]
    fn an_older_state_is_one_that_was() {
        let mut model = one_after_the_other();
        // Contents that were found since don't exclude older ones on a lagging device.
        model.restart(&[1, 2]);
        for found in [[0, 0], [1, 0], [1, 2]] {
            assert_eq!(model.check_stopped(&found, Stop::Older), Ok(()), "{found:?}");
        }
        assert!(model.check_stopped(&[0, 2], Stop::Older).is_err(), "the flush between them was not kept");
        assert_eq!(model.check_stopped(&[0, 2], Stop::Mixed), Ok(()));
        assert!(model.check_stopped(&[2, 2], Stop::Mixed).is_err(), "it was never there");
        let began = model.begin();
        model.arrived(began);
        assert!(model.check_stopped(&[1, 0], Stop::Older).is_err(), "it had arrived");
        assert!(model.check_stopped(&[1, 0], Stop::Mixed).is_err(), "it had arrived");
    }

    #[test]
    fn what_was_lost_does_not_come_back() {
        let mut model = Model::new(1, true);
        let version = model.draw_version();
        model.submit(0, 1, version);
        assert_eq!(model.check_stopped(&[1], Stop::PowerCut), Ok(()));
        model.restart(&[0]);
        assert!(model.check_stopped(&[1], Stop::PowerCut).is_err());
        assert!(model.check_stopped(&[1], Stop::Orderly).is_err());
    }

    #[test]
    fn a_prefix_is_asked_for_where_there_is_an_order() {
        let mut model = Model::new(2, true);
        for unit in [0, 1] {
            let version = model.draw_version();
            let write = model.submit(unit, 1, version);
            model.completed(write, false);
        }
        assert!(model.check_stopped(&[0, 2], Stop::PowerCut).is_err());
        model.set_ordered(false);
        assert_eq!(model.check_stopped(&[0, 2], Stop::PowerCut), Ok(()));
    }
}
