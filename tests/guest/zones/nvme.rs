//! A zoned namespace by passthrough.

use crate::ioctl::{self, Passthrough};
use block::{Buffer, Error, Result};
use siltstone_tests::zoned::model::Shape;
use siltstone_tests::zoned::{Answer, BLOCK, Report, Reported, Subject, found_all, stamp_all};
use std::fs::{File, OpenOptions};
use zns::machine::{Command, State, Zone};

const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const MANAGEMENT_SEND: u8 = 0x79;
const MANAGEMENT_RECEIVE: u8 = 0x7A;
const APPEND: u8 = 0x7D;
/// Length of the head of a report, and of a zone descriptor.
const DESCRIPTOR: usize = 64;

/// Zoned namespace.
pub struct Namespace {
    device: File,
    path: String,
    identifier: u32,
    shape: Shape,
    data: Buffer,
}

impl Namespace {
    pub fn open(path: &str, shape: Shape) -> Result<Namespace> {
        let failed = |error: std::io::Error| Error::from_io(&error, &format!("opening the namespace {path}"));
        let device = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        let identifier = ioctl::namespace(&device).map_err(failed)?;
        let data = Buffer::zeroed((crate::LONGEST as usize * BLOCK).max(1 << 16));
        Ok(Namespace { device, path: path.to_owned(), identifier, shape, data })
    }

    /// Sends a command with `bytes` bytes of data.
    fn send(
        &mut self,
        opcode: u8,
        lba: u64,
        [dword12, dword13]: [u32; 2],
        bytes: usize,
    ) -> Result<(u16, u64), String> {
        let command = Passthrough { opcode, namespace: self.identifier, lba, dword12, dword13 };
        let data = &mut self.data.filled_mut()[..bytes];
        let sent = ioctl::pass_through(&self.device, command, data);
        sent.map_err(|error| format!("{}: {command:X?} with {bytes} bytes: {error}", self.path))
    }

    /// Zone Management Send.
    fn manage(&mut self, start: u64, action: u32) -> Result<Answer, String> {
        let (status, _) = self.send(MANAGEMENT_SEND, start, [0, action], 0)?;
        Ok(if status == 0 { Answer::done() } else { Answer::Refused(Some(status)) })
    }

    fn transfer(
        &mut self,
        opcode: u8,
        zone: u32,
        [at, length]: [u64; 2],
        number: u64,
    ) -> Result<Answer, String> {
        let (start, bytes) = (u64::from(zone) * self.shape.size, length as usize * BLOCK);
        let data = &mut self.data.filled_mut()[..bytes];
        match opcode {
            READ => data.fill(0xA5),
            _ => stamp_all(zone, number, data),
        }
        let (status, result) = self.send(opcode, start + at, [length as u32 - 1, 0], bytes)?;
        if status != 0 {
            return Ok(Answer::Refused(Some(status)));
        }
        let blocks = match opcode {
            READ => found_all(zone, &self.data.filled()[..bytes]),
            _ => Vec::new(),
        };
        let at = (opcode == APPEND).then(|| result.wrapping_sub(start));
        Ok(Answer::Done { at, blocks })
    }
}

impl Subject for Namespace {
    async fn command(&mut self, zone: u32, command: Command, number: u64) -> Result<Answer, String> {
        let start = u64::from(zone) * self.shape.size;
        match command {
            Command::Write { at, length } => self.transfer(WRITE, zone, [at, length], number),
            Command::Append { at, length } => self.transfer(APPEND, zone, [at, length], number),
            Command::Read { at, length } => self.transfer(READ, zone, [at, length], number),
            Command::Close => self.manage(start, 1),
            Command::Finish => self.manage(start, 2),
            Command::Open => self.manage(start, 3),
            Command::Reset => self.manage(start, 4),
            Command::Offline => self.manage(start, 5),
        }
    }

    async fn fail(&mut self, zone: u32, to: State) -> Result<(), String> {
        Err(format!("{}: zone {zone} can't be made {to:?}: no NVMe command does so", self.path))
    }

    async fn report(
        &mut self,
        first: u32,
        state: Option<State>,
        partial: bool,
        most: u32,
    ) -> Result<Report, String> {
        // Zone Receive Action Specific: the states in the order of the specification, where Read Only comes
        // after Full.
        let listed = match state {
            None => 0,
            Some(State::Empty) => 1,
            Some(State::ImplicitlyOpened) => 2,
            Some(State::ExplicitlyOpened) => 3,
            Some(State::Closed) => 4,
            Some(State::Full) => 5,
            Some(State::ReadOnly) => 6,
            Some(State::Offline) => 7,
        };
        let bytes = DESCRIPTOR * (1 + most as usize);
        self.data.filled_mut()[..bytes].fill(0);
        let words = [bytes as u32 / 4 - 1, listed << 8 | u32::from(partial) << 16];
        let lba = u64::from(first) * self.shape.size;
        let (status, _) = self.send(MANAGEMENT_RECEIVE, lba, words, bytes)?;
        if status != 0 {
            return Err(format!("{}: a report of zones is refused with {status:X}h", self.path));
        }
        let (head, descriptors) = self.data.filled()[..bytes].split_at(DESCRIPTOR);
        let count = number(&head[..8]);
        let described = count.min(most.into()) as usize;
        let zones = descriptors.chunks_exact(DESCRIPTOR).take(described);
        let zones = zones.map(|bytes| self.described(bytes)).collect::<Result<_, String>>()?;
        Ok(Report { count, zones })
    }
}

impl Namespace {
    /// Reads a zone descriptor.
    fn described(&self, bytes: &[u8]) -> Result<Reported, String> {
        let (capacity, start, pointer) =
            (number(&bytes[8..16]), number(&bytes[16..24]), number(&bytes[24..32]));
        let state = State::ALL.into_iter().find(|state| state.number() == bytes[1] >> 4);
        let is_whole = start.is_multiple_of(self.shape.size);
        match state {
            Some(state) if bytes[0] == 2 && capacity == self.shape.capacity && is_whole => Ok(Reported {
                zone: (start / self.shape.size) as u32,
                machine: Zone { state, write_pointer: pointer.wrapping_sub(start) },
            }),
            _ => Err(format!("{}: zone descriptor {bytes:X?}, expected {:?}", self.path, self.shape)),
        }
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
