//! State of one zone of a drive, and the part of it that survives a power cut.

use crate::format::{Block, Stored, ZoneHeader};
use crate::machine::{self, State};
use block::ZoneState;
use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use runtime::Random;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zones::gate::Gate;

/// Bytes of a page that are programmed at the same time.
const PROGRAM_GROUP: usize = 64;

/// A zone and the tasks that wait for it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) zone: Mutex<Zone>,
    pub(crate) gate: Gate,
}

impl Slot {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Zone> {
        self.zone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A program of a unit that had not ended when it was recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    /// First byte of the zone that it programs.
    pub(crate) from: u64,
    /// End of the bytes that it programs.
    pub(crate) to: u64,
    /// Start on the die, in nanoseconds.
    pub(crate) begin: u64,
    /// End, in nanoseconds.
    pub(crate) end: u64,
}

/// State of one zone.
#[derive(Debug)]
pub(crate) struct Zone {
    pub(crate) machine: machine::Zone,
    /// Begun before an unclean stop, or left with a hole by a failure.
    pub(crate) interrupted: bool,
    /// Whether an opening, a finish or a reset owns the zone; other calls wait.
    pub(crate) owned: bool,
    pub(crate) in_flight: u32,
    pub(crate) generation: u64,
    /// Whether the cells have contents of an earlier generation.
    pub(crate) stale: bool,
    /// Time of the drive's clock at which the zone was begun, in seconds.
    pub(crate) begun: u64,
    pub(crate) key: [u8; 32],
    pub(crate) blocks: Vec<Block>,
    /// Number of erases after which each block fails.
    pub(crate) last_erases: Vec<u32>,
    /// Contents in memory, up to the highest written byte; empty for a drive on a file.
    pub(crate) cells: Vec<u8>,
    /// Programs that may not have ended, in order.
    pub(crate) programs: VecDeque<Program>,
    /// End of the bytes whose program has begun.
    pub(crate) programmed: u64,
    /// End of the bytes that survive a power cut.
    pub(crate) durable: u64,
    /// Start and end of an erase in progress, in nanoseconds.
    pub(crate) erasing: Option<(u64, u64)>,
    /// Whether the zone is stored as full on the medium.
    pub(crate) sealed: bool,
    /// Reason for which the zone is read-only, offline or interrupted.
    pub(crate) trouble: Option<String>,
}

impl Zone {
    /// Returns the zone with the state that the medium stores.
    pub(crate) fn stored(
        header: &ZoneHeader,
        blocks: Vec<Block>,
        last_erases: Vec<u32>,
        clean: bool,
        capacity: u64,
    ) -> Zone {
        let (state, interrupted) = header.state.state(clean);
        // After an unclean stop the write pointer is unknown: the capacity is its upper bound.
        let write_pointer =
            if interrupted && header.state == Stored::Begun { capacity } else { header.write_pointer };
        Zone {
            machine: machine::Zone { state, write_pointer },
            interrupted,
            owned: false,
            in_flight: 0,
            generation: header.generation,
            stale: header.stale,
            begun: header.begun,
            key: header.key,
            blocks,
            last_erases,
            cells: Vec::new(),
            programs: VecDeque::new(),
            programmed: write_pointer,
            durable: write_pointer,
            erasing: None,
            sealed: header.state == Stored::Full,
            trouble: None,
        }
    }

    /// Header for the medium. A full zone is stored as begun until it is sealed.
    pub(crate) fn header(&self) -> ZoneHeader {
        let state = match self.machine.state {
            State::Full if !self.sealed && !self.interrupted => Stored::Begun,
            state => Stored::of(state, self.interrupted),
        };
        ZoneHeader {
            state,
            stale: self.stale,
            generation: self.generation,
            write_pointer: self.machine.write_pointer,
            begun: self.begun,
            key: self.key,
        }
    }

    /// State in a report.
    pub(crate) fn state(&self) -> ZoneState {
        match self.machine.state {
            _ if self.interrupted => ZoneState::Interrupted,
            State::Empty => ZoneState::Empty,
            State::ImplicitlyOpened => ZoneState::ImplicitlyOpen,
            State::ExplicitlyOpened => ZoneState::ExplicitlyOpen,
            State::Closed => ZoneState::Closed,
            State::Full => ZoneState::Full,
            State::ReadOnly => ZoneState::ReadOnly,
            State::Offline => ZoneState::Offline,
        }
    }

    /// Clears the state of the contents after a reset.
    pub(crate) fn emptied(&mut self) {
        self.machine.write_pointer = 0;
        self.interrupted = false;
        self.sealed = false;
        self.trouble = None;
        self.programs.clear();
        (self.programmed, self.durable) = (0, 0);
    }

    /// Removes programs that have ended.
    pub(crate) fn settle(&mut self, now: u64) {
        while let Some(program) = self.programs.front().filter(|program| program.end <= now) {
            self.durable = self.durable.max(program.to);
            self.programs.pop_front();
        }
    }

    /// Ranges of bytes that a power cut loses or leaves half-programmed, with the elapsed share of their
    /// program.
    pub(crate) fn losses(&mut self, now: u64) -> Vec<Loss> {
        self.settle(now);
        let end = self.machine.write_pointer;
        let mut losses = Vec::new();
        for program in &self.programs {
            let from = program.from.max(self.durable);
            if from >= program.to || program.end <= now {
                continue;
            }
            let passed = now.saturating_sub(program.begin) as f64;
            let part =
                if now <= program.begin { 0.0 } else { passed / (program.end - program.begin).max(1) as f64 };
            losses.push(Loss { from, to: program.to, part });
        }
        let from = self.programmed.max(self.durable);
        if from < end {
            losses.push(Loss { from, to: end, part: 0.0 });
        }
        losses
    }
}

/// Bytes of a zone that weren't durable at a power cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loss {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Elapsed share of the program, 0.0 to 1.0.
    pub(crate) part: f64,
}

/// Leaves cells as an interrupted program does: done up to a point, one group half-done, the rest erased.
pub(crate) fn half_program(bytes: &mut [u8], part: f64, random: &mut Random) {
    let done = (bytes.len() as f64 * part.clamp(0.0, 1.0)) as usize / PROGRAM_GROUP * PROGRAM_GROUP;
    let middle = (done + PROGRAM_GROUP).min(bytes.len());
    if part > 0.0 {
        // Programming changes ones to zeros; some cells haven't passed the threshold yet.
        bytes[done..middle].iter_mut().for_each(|byte| *byte |= random.next_u64() as u8);
        bytes[middle..].fill(0xFF);
    } else {
        bytes[done..].fill(0xFF);
    }
}

/// Leaves cells as an interrupted erase does: a random part of the zeros has become ones.
pub(crate) fn half_erase(bytes: &mut [u8], part: f64, random: &mut Random) {
    for byte in bytes {
        if random.chance(part) {
            *byte |= random.next_u64() as u8;
        }
    }
}

/// Encrypts or decrypts bytes of a zone, which begin at `offset`, with ChaCha20 under the zone's key. A key
/// is used for one generation, in which every offset is written at most once, so no part of its stream is
/// reused.
pub(crate) fn apply_key(key: &[u8; 32], offset: u64, bytes: &mut [u8]) {
    let mut cipher = ChaCha20::new(key.into(), &[0; 12].into());
    cipher.seek(offset);
    cipher.apply_keystream(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_from_any_offset_and_no_other_does() {
        let plain: Vec<u8> = (0..1000_u32).map(|number| number as u8).collect();
        let mut cells = plain.clone();
        apply_key(&[1; 32], 8192, &mut cells);
        assert_ne!(cells, plain);
        let mut part = cells[100..300].to_vec();
        apply_key(&[1; 32], 8292, &mut part);
        assert_eq!(part, plain[100..300]);
        apply_key(&[0; 32], 8192, &mut cells);
        assert_ne!(cells, plain);
    }

    #[test]
    fn a_half_done_program_keeps_a_prefix() {
        let mut random = Random::new(1);
        let mut bytes = vec![0; 1024];
        half_program(&mut bytes, 0.5, &mut random);
        assert!(bytes[..512].iter().all(|byte| *byte == 0));
        assert!(bytes[512..576].iter().any(|byte| *byte != 0 && *byte != 0xFF));
        assert!(bytes[576..].iter().all(|byte| *byte == 0xFF));
        let mut bytes = vec![0; 1024];
        half_program(&mut bytes, 0.0, &mut random);
        assert!(bytes.iter().all(|byte| *byte == 0xFF));
        let mut bytes = vec![0; 1024];
        half_erase(&mut bytes, 0.5, &mut random);
        let touched = bytes.iter().filter(|byte| **byte != 0).count();
        assert!((400..600).contains(&touched), "{touched}");
    }
}
