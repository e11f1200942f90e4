//! Comparison of zoned devices with the state machine of the emulated drive, [`zns::machine`]: both run the
//! same seeded sequence of commands, and must have the same answer, states and write pointers after each
//! command.
//!
//! - [`model`]: the device by the state machine, and the next command of a sequence.
//! - [`differences`]: known differences of a device, with the paragraph of the specification.
//!
//! Promises: a device whose answer is neither the model's nor that of a listed difference ends the comparison
//! with the command and those before it. A difference is checked each time that its condition holds: a device
//! that no longer differs ends the comparison as well. The caller decides what is compared:
//! `guest/zones/main.rs` for devices of a kernel, `tests/integration/zones_compared.rs` for the drive itself.

pub mod differences;
pub mod model;

use differences::{Difference, Seen};
use model::{Draw, Model, Shape, Step};
use runtime::Random;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use zns::machine::{Command, State, Zone};

/// Size of a block in bytes, on every device that is compared.
pub const BLOCK: usize = 4096;
/// Number of last commands that a failed comparison shows.
const SHOWN: usize = 12;

/// Contents of a block that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// All of the block has this stamp.
    Written(u64),
    /// All bytes are 00h, or all are FFh: the values that the specification permits for deallocated blocks.
    Deallocated,
    /// Anything else.
    Other,
}

/// Answer of a device to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Success.
    Done {
        /// Offset in the zone at which an append was written, in blocks; `None` if the device doesn't report
        /// it.
        at: Option<u64>,
        /// Blocks that were read.
        blocks: Vec<Found>,
    },
    /// Refusal, with status code type and status code (bits 10:0 of the Status Field); `None` if the device
    /// doesn't report them.
    Refused(Option<u16>),
}

impl Answer {
    /// Success of a command that returns nothing.
    pub fn done() -> Answer {
        Answer::Done { at: None, blocks: Vec::new() }
    }

    fn name(&self) -> String {
        match self {
            Answer::Done { .. } => "done".to_owned(),
            Answer::Refused(None) => "refused".to_owned(),
            Answer::Refused(Some(status)) => format!("{status:03X}h"),
        }
    }
}

/// Zone of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported {
    /// Number of the zone.
    pub zone: u32,
    /// State and write pointer.
    pub machine: Zone,
}

/// Report of zones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Number of zones that the device counted.
    pub count: u64,
    /// Zones that it described.
    pub zones: Vec<Reported>,
}

/// Device that is compared. Errors are those of the connection to it, not refusals: they end the comparison.
pub trait Subject {
    /// Carries out a command; blocks that are written have the stamps of `number`.
    ///
    /// # Errors
    /// If there is no answer.
    fn command(
        &mut self,
        zone: u32,
        command: Command,
        number: u64,
    ) -> impl Future<Output = Result<Answer, String>>;

    /// Puts a zone into the state Read Only or Offline, as a failure of the medium does.
    ///
    /// # Errors
    /// If the device can't do so.
    fn fail(&mut self, zone: u32, to: State) -> impl Future<Output = Result<(), String>>;

    /// Reports zones from `first` on: those in this state, or all; at most `most` are described. A partial
    /// report counts only the described zones.
    ///
    /// # Errors
    /// If there is no report, or an invalid one.
    fn report(
        &mut self,
        first: u32,
        state: Option<State>,
        partial: bool,
        most: u32,
    ) -> impl Future<Output = Result<Report, String>>;
}

/// Stamp of a block of a write: number of the command, and of the block in it. The place of an append isn't
/// known when it is sent.
pub fn stamp_of(number: u64, block: u64) -> u64 {
    number << 8 | block
}

fn stamped(zone: u32, stamp: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&u64::from(zone).to_le_bytes());
    bytes[8..].copy_from_slice(&stamp.to_le_bytes());
    bytes
}

/// Fills the blocks of a write with their stamps.
pub fn stamp_all(zone: u32, number: u64, bytes: &mut [u8]) {
    for (index, block) in (0..).zip(bytes.chunks_exact_mut(BLOCK)) {
        let stamp = stamped(zone, stamp_of(number, index));
        block.as_chunks_mut().0.fill(stamp);
    }
}

/// Identifies the blocks of a read.
pub fn found_all(zone: u32, bytes: &[u8]) -> Vec<Found> {
    bytes.chunks_exact(BLOCK).map(|block| found(zone, block)).collect()
}

fn found(zone: u32, block: &[u8]) -> Found {
    let is_all = |piece: [u8; 16]| block.as_chunks::<16>().0.iter().all(|it| *it == piece);
    if is_all([0x00; 16]) || is_all([0xFF; 16]) {
        return Found::Deallocated;
    }
    let stamp = block[8..16].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    if is_all(stamped(zone, stamp)) { Found::Written(stamp) } else { Found::Other }
}

/// A running comparison, and the answers and differences that occurred.
pub struct Comparison<'a> {
    model: Model,
    random: Random,
    draw: Draw,
    differences: &'a [Difference],
    met: Vec<u64>,
    answers: BTreeMap<String, u64>,
    last: VecDeque<String>,
    number: u64,
}

impl<'a> Comparison<'a> {
    /// Creates a comparison with an empty device of this shape, with these known differences.
    pub fn new(seed: u64, shape: Shape, draw: Draw, differences: &'a [Difference]) -> Comparison<'a> {
        Comparison {
            model: Model::new(shape),
            random: Random::new(seed),
            draw,
            differences,
            met: vec![0; differences.len()],
            answers: BTreeMap::new(),
            last: VecDeque::new(),
            number: 0,
        }
    }

    /// Runs `steps` steps.
    ///
    /// # Errors
    /// If the device differs; the text has the last steps.
    pub async fn run(&mut self, subject: &mut impl Subject, steps: u64) -> Result<(), String> {
        for _ in 0..steps {
            self.number += 1;
            let step = self.draw.next(&self.model, &mut self.random);
            self.last.push_back(format!("{}: {step:?}", self.number));
            if self.last.len() > SHOWN {
                self.last.pop_front();
            }
            let compared = match step {
                Step::Command { zone, command } => self.command(subject, zone, command).await,
                Step::Fail { zone, to } => {
                    self.model.fail(zone, to);
                    *self.answers.entry(format!("Fail {to:?}")).or_default() += 1;
                    match subject.fail(zone, to).await {
                        Ok(()) => self.compare_states(subject).await,
                        failed => failed,
                    }
                }
                Step::Report { first, state, partial, most } => {
                    self.report(subject, first, state, partial, most).await
                }
            };
            compared.map_err(|why| {
                let last: Vec<&str> = self.last.iter().map(String::as_str).collect();
                format!("{why}\nthe last steps:\n{}", last.join("\n"))
            })?;
        }
        Ok(())
    }

    /// Counts of the comparison: steps, answers by command, differences by name.
    pub fn summary(&self) -> Value {
        let met: BTreeMap<_, _> = self.differences.iter().map(|it| it.name).zip(&self.met).collect();
        json!({"steps": self.number, "answers": self.answers, "differences": met})
    }

    async fn command(
        &mut self,
        subject: &mut impl Subject,
        zone: u32,
        command: Command,
    ) -> Result<(), String> {
        let mut expected = self.model.clone();
        let machine = expected.apply(zone, command, self.number);
        let answer = subject.command(zone, command, self.number).await?;
        let name = format!("{command:?}");
        let name = name.split(' ').next().unwrap_or_default();
        *self.answers.entry(format!("{name} {}", answer.name())).or_default() += 1;
        let states = self.states(subject).await?;
        let seen = Seen {
            before: &self.model,
            zone,
            command,
            number: self.number,
            machine,
            answer: &answer,
            states: &states,
        };
        let applicable = self.differences.iter().position(|it| (it.applies)(&seen));
        let Some(index) = applicable else {
            seen.agrees_with(&expected, machine)?;
            self.model = expected;
            return Ok(());
        };
        let difference = &self.differences[index];
        if seen.agrees_with(&expected, machine).is_ok() {
            return Err(format!(
                "the device no longer differs: {difference}: take the difference from the list"
            ));
        }
        self.model = (difference.explain)(&seen)
            .map_err(|why| format!("the device differs otherwise than {difference}: {why}"))?;
        self.met[index] += 1;
        Ok(())
    }

    async fn states(&self, subject: &mut impl Subject) -> Result<Vec<Zone>, String> {
        let count = self.model.shape.zones;
        let report = subject.report(0, None, false, count).await?;
        let all = report.zones.iter().map(|it| it.zone).eq(0..count) && report.count == u64::from(count);
        match all {
            true => Ok(report.zones.iter().map(|it| it.machine).collect()),
            false => Err(format!("a report of all zones has {report:?}")),
        }
    }

    async fn compare_states(&self, subject: &mut impl Subject) -> Result<(), String> {
        self.model.compare(&self.states(subject).await?)
    }

    async fn report(
        &mut self,
        subject: &mut impl Subject,
        first: u32,
        state: Option<State>,
        partial: bool,
        most: u32,
    ) -> Result<(), String> {
        let found = subject.report(first, state, partial, most).await?;
        let matching: Vec<u32> = (first..self.model.shape.zones)
            .filter(|zone| state.is_none_or(|state| self.model.zones[*zone as usize].state == state))
            .collect();
        let described = matching.len().min(most as usize);
        let count = if partial { described } else { matching.len() } as u64;
        let zones: Vec<u32> = found.zones.iter().map(|it| it.zone).collect();
        if (found.count, zones.as_slice()) != (count, &matching[..described]) {
            return Err(format!(
                "expected {count} zones, described: {:?}; found {found:?}",
                &matching[..described]
            ));
        }
        for it in found.zones {
            self.model.compare_zone(it.zone, &it.machine)?;
        }
        *self.answers.entry("Report done".to_owned()).or_default() += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::differences::{DRIVE, NULL_BLK, QEMU_AUTO_TRANSITION, status_field};
    use super::*;

    const SHAPE: Shape = Shape { zones: 8, size: 24, capacity: 16, max_open: 2, max_active: 3 };

    /// The model as a device, which may be wrong on purpose.
    struct Memory {
        model: Model,
        is_wrong: fn(Command) -> Option<Wrong>,
    }

    #[derive(Clone, Copy)]
    enum Wrong {
        Status,
        State,
        Pointer,
        Data,
        Place,
    }

    impl Subject for Memory {
        async fn command(&mut self, zone: u32, command: Command, number: u64) -> Result<Answer, String> {
            let wrong = (self.is_wrong)(command);
            let machine = self.model.apply(zone, command, number);
            let answer = match (machine, command) {
                (Err(status), _) => {
                    let shift = u16::from(matches!(wrong, Some(Wrong::Status)));
                    Answer::Refused(Some(status_field(status) + shift))
                }
                (Ok(_), Command::Read { at, length }) => {
                    let mut blocks = self.model.contents(zone, at, length);
                    if matches!(wrong, Some(Wrong::Data)) {
                        blocks[0] = Found::Other;
                    }
                    Answer::Done { at: None, blocks }
                }
                (Ok(at), _) => {
                    let at = at + u64::from(matches!(wrong, Some(Wrong::Place)));
                    Answer::Done { at: Some(at), blocks: Vec::new() }
                }
            };
            let mut zones = self.model.zones.clone();
            match wrong {
                Some(Wrong::State) => zones[0].state = State::Offline,
                Some(Wrong::Pointer) => zones[1].write_pointer += 1,
                _ => {}
            }
            self.model.adopt(&zones);
            Ok(answer)
        }

        async fn fail(&mut self, zone: u32, to: State) -> Result<(), String> {
            self.model.fail(zone, to);
            Ok(())
        }

        async fn report(
            &mut self,
            first: u32,
            state: Option<State>,
            partial: bool,
            most: u32,
        ) -> Result<Report, String> {
            let zones = (0..).zip(&self.model.zones).skip(first as usize);
            let matching = zones.filter(|(_, zone)| state.is_none_or(|state| zone.state == state));
            let mut zones: Vec<_> = matching.map(|(zone, it)| Reported { zone, machine: *it }).collect();
            let all = zones.len();
            zones.truncate(most as usize);
            let count = if partial { zones.len() } else { all } as u64;
            Ok(Report { count, zones })
        }
    }

    fn compare(
        known: &'static [Difference],
        is_wrong: fn(Command) -> Option<Wrong>,
    ) -> Result<Value, String> {
        let main = move || async move {
            let draw = Draw {
                appends: true,
                nvme: true,
                crossing: true,
                failures: &[State::Empty, State::Full, State::Closed],
                longest: 8,
            };
            let mut comparison = Comparison::new(3, SHAPE, draw, known);
            let mut memory = Memory { model: Model::new(SHAPE), is_wrong };
            comparison.run(&mut memory, 3000).await.map(|()| comparison.summary())
        };
        runtime::simulate(runtime::Simulation::new(3), main).unwrap().value
    }

    #[test]
    fn the_model_agrees_with_itself() {
        let summary = compare(&[], |_| None).unwrap();
        for answer in
            ["Read done", "Write 1BEh", "Append 1BDh", "Offline done", "Reset 1BFh", "Fail ReadOnly"]
        {
            assert!(summary["answers"][answer].as_u64() > Some(0), "{answer}: {summary}");
        }
    }

    #[test]
    fn a_wrong_device_is_found_out() {
        let close = |command| (command == Command::Close).then_some(Wrong::State);
        assert!(compare(&[], close).unwrap_err().contains("Offline"));
        let finish = |command| (command == Command::Finish).then_some(Wrong::Pointer);
        assert!(compare(&[], finish).unwrap_err().contains("zone 1"));
        let write = |command| matches!(command, Command::Write { .. }).then_some(Wrong::Status);
        assert!(compare(&[], write).unwrap_err().contains("found Refused"));
        let read = |command| matches!(command, Command::Read { .. }).then_some(Wrong::Data);
        assert!(compare(&[], read).unwrap_err().contains("Other"));
        let append = |command| matches!(command, Command::Append { .. }).then_some(Wrong::Place);
        assert!(compare(&[], append).unwrap_err().contains("found Done"));
    }

    #[test]
    fn a_difference_that_is_gone_is_found_out() {
        for known in [DRIVE, QEMU_AUTO_TRANSITION, NULL_BLK].into_iter().flat_map(|known| known.chunks(1)) {
            assert!(compare(known, |_| None).unwrap_err().contains("no longer differs"), "{known:?}");
        }
    }

    #[test]
    fn stamps_are_recognised() {
        let mut bytes = vec![0; 4 * BLOCK];
        stamp_all(3, 77, &mut bytes[..2 * BLOCK]);
        bytes[3 * BLOCK..].fill(0xFF);
        let written = [0, 1].map(|block| Found::Written(stamp_of(77, block)));
        let deallocated = [Found::Deallocated; 2];
        assert_eq!(found_all(3, &bytes), [written, deallocated].concat());
        assert_eq!(found_all(2, &bytes)[..2], [Found::Other; 2], "another zone's");
        bytes[BLOCK - 1] ^= 1;
        bytes[3 * BLOCK] = 0;
        assert_eq!(found_all(3, &bytes), [Found::Other, written[1], Found::Deallocated, Found::Other]);
    }
}
