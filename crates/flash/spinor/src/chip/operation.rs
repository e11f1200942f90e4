//! Operations that take time: programs, erases, register writes. Their ends, their suspension, and their
//! state after a cut.

use super::{BusyTime, Chip, State};
use crate::description::Span;
use std::ops::Range;

/// Effect of an operation on the cells when it completes.
pub(super) enum Work {
    /// Program of the array.
    Program { address: u32, data: Vec<u8>, aai: bool },
    /// Program of the security registers.
    ProgramSecurity { offset: usize, data: Vec<u8> },
    /// Erase of one security register.
    EraseSecurity { range: Range<usize> },
    /// Erase of a part or the whole of the array.
    Erase { range: Range<u32> },
    /// Register write: indexes and values.
    WriteRegisters { values: Vec<(usize, u8)>, volatile: bool },
    /// Wait for the suspended state (tSUS).
    Suspend,
    /// Wait without an effect, in which no command is accepted.
    Recover,
}

/// A running or suspended operation.
pub(super) struct Operation {
    pub(super) work: Work,
    started: u64,
    /// Duration in nanoseconds.
    total: u64,
    /// Nanoseconds done before the last suspension.
    done: u64,
    /// Time at which it completes; `None` if polls complete it, or nothing does.
    pub(super) ends: Option<u64>,
    /// Polls left and in total.
    polls: Option<(u32, u32)>,
}

impl Operation {
    pub(super) fn is_program(&self) -> bool {
        matches!(self.work, Work::Program { .. } | Work::ProgramSecurity { .. })
    }

    /// Returns whether not even the status can be read.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.work, Work::Recover)
    }

    pub(super) fn is_suspending(&self) -> bool {
        matches!(self.work, Work::Suspend)
    }

    pub(super) fn state(&self) -> State {
        match self.work {
            Work::Program { .. } | Work::ProgramSecurity { .. } => State::Programming,
            Work::Erase { .. } | Work::EraseSecurity { .. } | Work::Suspend => State::Erasing,
            Work::WriteRegisters { .. } => State::WritingRegister,
            Work::Recover => State::Recovering,
        }
    }

    /// Returns the array's bytes that the operation changes.
    pub(super) fn range(&self) -> Range<u32> {
        match &self.work {
            Work::Program { address, data, .. } => *address..*address + data.len() as u32,
            Work::Erase { range } => range.clone(),
            _ => 0..0,
        }
    }

    /// Returns the fraction of the operation that is done, 0.0 to 1.0.
    fn progress(&self, now: u64) -> f64 {
        if let Some((left, total)) = self.polls {
            return 1.0 - f64::from(left) / f64::from(total.max(1));
        }
        let done = self.done.saturating_add(now.saturating_sub(self.started));
        (done as f64 / self.total.max(1) as f64).min(1.0)
    }
}

impl Chip {
    /// Begins an operation.
    pub(super) fn start(&mut self, work: Work, span: Span) {
        let counts = !matches!(work, Work::Suspend | Work::Recover);
        let total = if self.busy_time == BusyTime::Maximum { span.maximum } else { span.typical };
        let polls = match self.busy_time {
            BusyTime::Polls(polls) if !matches!(work, Work::Recover) => Some((polls, polls)),
            BusyTime::Polls(_) => Some((0, 1)),
            _ => None,
        };
        let ends = if polls.is_none() { Some(self.now.saturating_add(total)) } else { None };
        self.operation = Some(Operation { work, started: self.now, total, done: 0, ends, polls });
        if counts {
            self.counters.operations += 1;
            if self.fail_operation() {
                return;
            }
        }
        match polls {
            Some((0, _)) if self.operation.as_ref().is_some_and(|o| o.polls.is_some()) => self.complete(),
            _ => self.settle(),
        }
    }

    /// Applies the faults that strike a beginning operation. Returns whether the power was cut.
    fn fail_operation(&mut self) -> bool {
        match &mut self.faults.stuck_busy {
            Some(0) => {
                self.faults.stuck_busy = None;
                if let Some(operation) = &mut self.operation {
                    operation.ends = None;
                    operation.polls = None;
                }
            }
            Some(left) => *left -= 1,
            None => {}
        }
        let Some(fraction) = self.faults.operation_cuts() else { return false };
        if let Some(operation) = self.operation.take() {
            self.leave_partly(operation, fraction);
        }
        self.power_off();
        true
    }

    /// Completes the running operation if its time is over.
    pub(super) fn settle(&mut self) {
        if self.operation.as_ref().is_some_and(|o| o.ends.is_some_and(|ends| ends <= self.now)) {
            self.complete();
        }
    }

    /// Counts a status read of the host, which ends operations with [`BusyTime::Polls`].
    pub(super) fn poll(&mut self) {
        let Some(Operation { polls: Some((left, _)), .. }) = &mut self.operation else { return };
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.complete();
        }
    }

    /// Waits for a time in which no command is accepted.
    pub(super) fn recover(&mut self, time: u64) {
        self.start(Work::Recover, Span { typical: time, maximum: time });
    }

    fn complete(&mut self) {
        let Some(operation) = self.operation.take() else { return };
        match operation.work {
            Work::Program { address, data, aai } => {
                self.changes.mark(address..address + data.len() as u32);
                let start = address as usize;
                let cells = &mut self.memory.bytes_mut()[start..start + data.len()];
                self.cells.program_all(address, cells, &data);
                self.modes.write_enabled &= aai;
            }
            Work::ProgramSecurity { offset, data } => {
                for (cell, data) in self.cells.security[offset..].iter_mut().zip(&data) {
                    *cell &= data;
                }
                self.modes.write_enabled = false;
            }
            Work::EraseSecurity { range } => {
                self.cells.security[range].fill(0xFF);
                self.modes.write_enabled = false;
            }
            Work::Erase { range } => {
                self.changes.mark(range.clone());
                let sector = self.description.sector();
                let endurance = self.faults.wear.then_some(self.description.endurance);
                self.cells.wear(range.clone(), sector, endurance, self.seed, &mut self.random);
                let cells = &mut self.memory.bytes_mut()[range.start as usize..range.end as usize];
                if !self.cells.erase(range.start, cells) {
                    self.modes.erase_fail = true;
                }
                self.modes.write_enabled = false;
            }
            Work::WriteRegisters { values, volatile } => {
                self.store_registers(&values, volatile);
                self.modes.write_enabled = false;
                self.modes.volatile_enabled = false;
            }
            Work::Suspend => self.modes.write_enabled = false,
            Work::Recover => {}
        }
    }

    pub(super) fn store_registers(&mut self, values: &[(usize, u8)], volatile: bool) {
        for &(index, value) in values {
            let register = &self.description.registers[index];
            let kept = register.non_volatile;
            // One-time bits are programmed in non-volatile cells only, and never go back to 0.
            let set = self.registers[index] & register.one_time;
            let writable = if volatile { register.writable & !register.one_time } else { register.writable };
            let merged = (self.registers[index] & !writable) | (value & writable) | set;
            self.registers[index] = merged;
            if !volatile {
                self.cells.registers[index] = self.cells.registers[index] & !kept | merged & kept;
            }
        }
    }

    /// Completes the running operation at once, then a suspended one, regardless of their times; a stuck
    /// operation stays.
    pub fn finish_operations(&mut self) {
        loop {
            if let Some(time) = self.busy_for() {
                self.advance(time);
            }
            if self.operation.as_ref().is_some_and(|operation| operation.polls.is_some()) {
                self.complete();
            }
            if self.operation.is_some() || !self.resume() {
                return;
            }
        }
    }

    /// Suspends the running program or erase. Returns whether there was one that can be suspended.
    pub(super) fn suspend(&mut self) -> bool {
        let whole = self.description.size;
        let can = self.suspended.is_none()
            && self.operation.as_ref().is_some_and(|operation| match &operation.work {
                Work::Program { aai, .. } => !aai,
                Work::Erase { range } => range.len() as u32 != whole,
                _ => false,
            });
        if !can {
            return false;
        }
        let Some(mut operation) = self.operation.take() else { return false };
        operation.done =
            operation.done.saturating_add(self.now.saturating_sub(operation.started)).min(operation.total);
        self.suspended = Some(operation);
        let time = self.description.times.suspend;
        self.start(Work::Suspend, Span { typical: time, maximum: time });
        true
    }

    /// Resumes the suspended operation. Returns whether there was one.
    pub(super) fn resume(&mut self) -> bool {
        let Some(mut operation) = self.suspended.take() else { return false };
        operation.started = self.now;
        if operation.ends.is_some() {
            operation.ends = Some(self.now.saturating_add(operation.total - operation.done));
        }
        self.operation = Some(operation);
        self.settle();
        true
    }

    /// Ends all operations in their present state: power loss or reset.
    pub(super) fn abort(&mut self) {
        if let Some(operation) = self.suspended.take() {
            let fraction = operation.progress(operation.started);
            self.leave_partly(operation, fraction);
        }
        if let Some(operation) = self.operation.take() {
            let fraction = operation.progress(self.now);
            self.leave_partly(operation, fraction);
        }
    }

    fn leave_partly(&mut self, operation: Operation, fraction: f64) {
        match operation.work {
            Work::Program { address, data, .. } => {
                self.changes.mark(address..address + data.len() as u32);
                let (from, to) = (address as usize, address as usize + data.len());
                let cells = &mut self.memory.bytes_mut()[from..to];
                self.cells.program_partly(address, cells, &data, fraction, &mut self.random);
            }
            Work::Erase { range } => {
                self.changes.mark(range.clone());
                let sector = self.description.sector();
                self.cells.wear(range.clone(), sector, None, self.seed, &mut self.random);
                let cells = &mut self.memory.bytes_mut()[range.start as usize..range.end as usize];
                self.cells.erase_partly(range.start, cells, fraction, &mut self.random);
            }
            Work::ProgramSecurity { offset, data } => {
                let done = (data.len() as f64 * fraction) as usize;
                for (cell, data) in self.cells.security[offset..].iter_mut().zip(&data[..done]) {
                    *cell &= data;
                }
            }
            Work::EraseSecurity { range } => {
                for cell in &mut self.cells.security[range] {
                    let draw = self.random.byte();
                    *cell = if self.random.unit() < fraction { 0xFF } else { draw };
                }
            }
            Work::WriteRegisters { values, volatile } => {
                // Chips write status registers through a shadow cell: the old or the new value, decided late
                // in the cycle.
                if !volatile && fraction > 0.5 {
                    self.store_registers(&values, false);
                }
            }
            Work::Suspend | Work::Recover => {}
        }
    }
}
