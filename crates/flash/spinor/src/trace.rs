//! The transactions that a chip saw, in bounded memory: as text, as JSON lines, and as a waveform.

use crate::chip::{Refusal, State};
use crate::description::Description;
use crate::hex;
use serde_json::json;
use std::collections::VecDeque;
use std::fmt::{self, Write};

/// Data bytes kept of each transaction.
pub(crate) const SAMPLE: usize = 16;

/// One transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Chip time in nanoseconds at its end.
    pub time: u64,
    /// Opcode; in continuous read mode the one that began it.
    pub opcode: u8,
    pub(crate) command: Option<u16>,
    /// Address, including one that the chip counts up itself in AAI programming; `None` for a command without
    /// one.
    pub address: Option<u32>,
    /// Bytes of the address phase.
    pub(crate) address_bytes: u8,
    /// Whether the opcode was on the bus: continuous reads have none.
    pub(crate) has_opcode: bool,
    /// Whether the chip was in QPI when it began.
    pub qpi: bool,
    /// Data bytes from the host.
    pub received: u64,
    /// Data bytes from the chip.
    pub sent: u64,
    pub(crate) sample: [u8; SAMPLE],
    pub(crate) sampled: u8,
    /// Reason for which the chip ignored the transaction; `None` if it was carried out.
    pub refusal: Option<Refusal>,
    /// Number of bytes whose program would set a bit that is 0 to 1.
    pub overwrites: u32,
    /// Number of clocks.
    pub clocks: u64,
    /// State of the chip after the transaction.
    pub state: State,
    /// Further equal transactions directly after it: status polls.
    pub repeats: u64,
}

impl Record {
    /// Returns the first data bytes, at most 16.
    pub fn data(&self) -> &[u8] {
        &self.sample[..usize::from(self.sampled)]
    }

    /// Returns the command's name, as in the datasheet; empty for an unknown opcode.
    pub fn name<'a>(&self, chip: &'a Description) -> &'a str {
        self.command.map_or("", |command| &chip.commands[usize::from(command)].name)
    }

    fn same_as(&self, other: &Record) -> bool {
        self.opcode == other.opcode
            && self.address == other.address
            && self.sampled == other.sampled
            && self.sample[..usize::from(self.sampled)] == other.sample[..usize::from(self.sampled)]
            && (self.received, self.sent) == (other.received, other.sent)
            && self.refusal == other.refusal
            && self.state == other.state
            && (self.qpi, self.clocks) == (other.qpi, other.clocks)
            && self.received == 0
    }

    /// Writes the transaction as one line of text.
    pub fn write_text(&self, chip: &Description, out: &mut impl Write) -> fmt::Result {
        let name = match self.name(chip) {
            "" => "unknown",
            name => name,
        };
        write!(out, "{:>14.3} us  {:02X}h {name}", self.time as f64 / 1e3, self.opcode)?;
        if let Some(address) = self.address {
            write!(out, " @{address:06X}h")?;
        }
        if self.received > 0 {
            write!(out, " write {}", self.received)?;
        }
        if self.sent > 0 {
            write!(out, " read {}", self.sent)?;
        }
        if self.sampled > 0 {
            write!(out, " [{}]", hex::text(self.data(), " "))?;
        }
        if self.overwrites > 0 {
            write!(out, " overwrites {}", self.overwrites)?;
        }
        if let Some(refusal) = self.refusal {
            write!(out, " REFUSED: {}", refusal.words())?;
        }
        if self.repeats > 0 {
            write!(out, " (and {} more)", self.repeats)?;
        }
        writeln!(out, " -> {:?}", self.state)
    }

    /// Writes the transaction as one line of JSON.
    pub fn write_json(&self, chip: &Description, out: &mut impl Write) -> fmt::Result {
        let line = json!({
            "time_ns": self.time,
            "opcode": self.opcode,
            "name": self.name(chip),
            "address": self.address,
            "written": self.received,
            "read": self.sent,
            "data": hex::text(self.data(), " "),
            "refused": self.refusal.map(Refusal::words),
            "overwrites": self.overwrites,
            "clocks": self.clocks,
            "repeats": self.repeats,
            "state": format!("{:?}", self.state),
        });
        writeln!(out, "{line}")
    }
}

/// The last transactions of a chip.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    records: VecDeque<Record>,
    capacity: usize,
    dropped: u64,
    /// Number of the oldest record, counted from the first one that was ever pushed.
    first: u64,
}

impl Trace {
    pub(crate) fn new(capacity: usize) -> Trace {
        Trace { records: VecDeque::new(), capacity, dropped: 0, first: 0 }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.capacity > 0
    }

    pub(crate) fn push(&mut self, record: Record) {
        if let Some(last) = self.records.back_mut()
            && record.same_as(last)
        {
            last.repeats += 1;
            return;
        }
        if self.records.len() == self.capacity {
            self.records.pop_front();
            self.dropped += 1;
            self.first += 1;
        }
        self.records.push_back(record);
    }

    /// Returns the records, oldest first.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    /// Returns the newest record.
    pub fn last(&self) -> Option<&Record> {
        self.records.back()
    }

    /// Returns the number of records that were dropped for newer ones.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Removes and returns the oldest record.
    pub fn take(&mut self) -> Option<Record> {
        let record = self.records.pop_front()?;
        self.first += 1;
        Some(record)
    }

    /// Returns the numbers of the records, counted from 0 for the first one ever: a reader can continue where
    /// it stopped, and sees how many were dropped.
    pub fn numbers(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.records.len() as u64
    }

    /// Returns the records with at least this number, the oldest first.
    pub fn records_from(&self, number: u64) -> impl Iterator<Item = &Record> {
        let skipped = number.saturating_sub(self.first).min(self.records.len() as u64);
        self.records.range(skipped as usize..)
    }

    /// Writes all records as text, a line each.
    pub fn write_text(&self, chip: &Description, out: &mut impl Write) -> fmt::Result {
        self.records.iter().try_for_each(|record| record.write_text(chip, out))
    }

    /// Writes all records as JSON lines.
    pub fn write_json(&self, chip: &Description, out: &mut impl Write) -> fmt::Result {
        self.records.iter().try_for_each(|record| record.write_json(chip, out))
    }

    /// Writes all records as a value change dump of the bus, with a clock period of `period` ns; see
    /// [`Waveform`].
    pub fn write_vcd(&self, chip: &Description, period: u64, out: &mut impl Write) -> fmt::Result {
        let mut waveform = Waveform::new(period);
        waveform.write_header(chip, out)?;
        self.records.iter().try_for_each(|record| waveform.write(record, chip, out))
    }
}

/// Writer of a value change dump (IEEE 1364-2005, clause 18) of CS#, CLK and IO0 to IO3, record by record.
///
/// Of each transaction it shows opcode, address and the first data bytes; mode and dummy clocks show the
/// lines undriven. Every transaction begins and ends with the same levels (CS# high, CLK low, IO undriven),
/// so that a dump can be continued from the time at which its last part ended.
#[derive(Debug, Clone)]
pub struct Waveform {
    /// Clock period in nanoseconds.
    period: u64,
    /// Time in nanoseconds up to which the dump is written.
    end: u64,
}

impl Waveform {
    /// Returns a writer with a clock period of `period` ns, at least 2, for a dump that begins at time 0.
    pub fn new(period: u64) -> Waveform {
        Waveform::resume(period, 0)
    }

    /// Returns a writer that continues a dump, whose last part ended at the time `end`.
    pub fn resume(period: u64, end: u64) -> Waveform {
        Waveform { period: period.max(2), end }
    }

    /// Returns the time in nanoseconds up to which the dump is written.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Writes the declarations and the levels at time 0.
    pub fn write_header(&self, chip: &Description, out: &mut impl Write) -> fmt::Result {
        write!(out, "$timescale 1 ns $end\n$scope module {} $end\n", chip.name)?;
        for (id, name) in ["cs_n", "clk", "io0", "io1", "io2", "io3"].iter().enumerate() {
            writeln!(out, "$var wire 1 {} {name} $end", signal(id))?;
        }
        out.write_str("$upscope $end\n$enddefinitions $end\n#0\n1!\n0\"\nz#\nz$\nz%\nz&\n")
    }

    /// Writes the changes of one transaction.
    pub fn write(&mut self, record: &Record, chip: &Description, out: &mut impl Write) -> fmt::Result {
        let clocks = record.waveform(chip);
        // Records carry the time of their end; without bus time several can carry the same.
        let length = (clocks.len() as u64 + 2).saturating_mul(self.period);
        let start = record.time.saturating_sub(length).max(self.end.saturating_add(self.period));
        writeln!(out, "#{start}\n0!")?;
        let mut now = start;
        let (mut is_high, mut shown) = (false, UNDRIVEN);
        for levels in clocks {
            if is_high || levels != shown {
                writeln!(out, "#{}", now.saturating_add(self.period / 2))?;
                if is_high {
                    out.write_str("0\"\n")?;
                }
                write_changes(&shown, &levels, out)?;
            }
            now = now.saturating_add(self.period);
            writeln!(out, "#{now}\n1\"")?;
            (is_high, shown) = (true, levels);
        }
        now = now.saturating_add(self.period);
        writeln!(out, "#{now}")?;
        if is_high {
            out.write_str("0\"\n")?;
        }
        out.write_str("1!\n")?;
        write_changes(&shown, &UNDRIVEN, out)?;
        self.end = now;
        Ok(())
    }
}

/// Largest number of mode and dummy clocks that a waveform shows.
const MAX_BETWEEN: u64 = 64;

/// Levels of IO0 to IO3 between transactions.
const UNDRIVEN: [char; 4] = ['z'; 4];

fn write_changes(shown: &[char; 4], levels: &[char; 4], out: &mut impl Write) -> fmt::Result {
    for (line, (before, level)) in shown.iter().zip(levels).enumerate() {
        if before != level {
            writeln!(out, "{level}{}", signal(2 + line))?;
        }
    }
    Ok(())
}

impl Record {
    /// Returns the levels of IO0 to IO3 at each clock of the record.
    fn waveform(&self, chip: &Description) -> Vec<[char; 4]> {
        let command = self.command.map(|command| &chip.commands[usize::from(command)]);
        let [opcode, address, data] = match command {
            Some(command) if !self.qpi => command.lines,
            Some(_) => [4; 3],
            None => [1; 3],
        };
        let mut clocks = Vec::new();
        if self.has_opcode {
            append(&mut clocks, &[self.opcode], opcode, false);
        }
        let bytes = self.address.unwrap_or(0).to_be_bytes();
        append(&mut clocks, &bytes[bytes.len() - usize::from(self.address_bytes)..], address, false);
        // Mode and dummy clocks are the remaining clocks. The bytes of a refused command are unknown.
        let data_clocks = (self.received + self.sent).saturating_mul(u64::from(8 / data));
        if data_clocks > 0 {
            let between = self.clocks.saturating_sub(clocks.len() as u64).saturating_sub(data_clocks);
            clocks.extend((0..between.min(MAX_BETWEEN)).map(|_| UNDRIVEN));
        }
        append(&mut clocks, self.data(), data, self.sent > 0);
        clocks.truncate(usize::try_from(self.clocks).unwrap_or(usize::MAX));
        clocks
    }
}

fn append(clocks: &mut Vec<[char; 4]>, bytes: &[u8], lines: u8, from_chip: bool) {
    for byte in bytes {
        for step in (0..8 / lines).rev() {
            let mut levels = UNDRIVEN;
            for line in 0..lines {
                let level = if byte >> (step * lines + line) & 1 == 1 { '1' } else { '0' };
                let io = if lines == 1 && from_chip { 1 } else { line };
                levels[usize::from(io)] = level;
            }
            clocks.push(levels);
        }
    }
}

fn signal(id: usize) -> char {
    char::from(b'!' + id as u8)
}
