//! The bus: phases of a transaction, bit by bit.
//!
//! The master drives IO0 (MOSI) and samples IO1 (MISO) on one line, and shares the lines on two or four. The
//! chip samples and drives lines by its own phase. If the two disagree, both see the levels of the wires;
//! undriven lines are pulled up.

use super::{Chip, HoldPin, Power, Refusal};
use crate::action::{Action, Condition};
use crate::description::{AddressWidth, Continuous, Description, MAX_PAGE, Meaning, Protocol};
use crate::trace::{Record, SAMPLE};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Opcode,
    Address,
    Mode,
    Dummy,
    /// Data from the host.
    Input,
    /// Data from the chip.
    Output,
    /// The command is complete; further clocks make it invalid.
    Complete,
    /// The command was refused: the chip waits for CS# to rise.
    Ignored,
}

/// Source of the output phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Memory,
    Registers,
    AnyRegister,
    JedecId,
    LegacyId,
    ElectronicId,
    UniqueId,
    Sfdp,
    Security,
    BlockLock,
}

/// State of one transaction.
pub(super) struct Link {
    pub(super) selected: bool,
    pub(super) phase: Phase,
    shift: u8,
    bits: u8,
    lines: u8,
    /// Remaining address bytes or dummy clocks.
    left: u16,
    pub(super) opcode: u8,
    pub(super) command: Option<u16>,
    /// Next address; reads and FRAM writes advance it.
    pub(super) address: u32,
    /// Address that the host sent, or at which AAI programming continues; `None` for a command without one.
    first_address: Option<u32>,
    address_bytes: u8,
    /// Whether the chip was in QPI when CS# fell.
    qpi: bool,
    /// Whether the transaction began with an opcode: continuous reads have none.
    has_opcode: bool,
    mode_byte: u8,
    pub(super) source: Source,
    /// Wrap length of the read in bytes.
    pub(super) wrap: Option<u32>,
    /// Data of the input phase: a page for programs, else the first bytes.
    pub(super) page: Vec<u8>,
    pub(super) received: u64,
    sent: u64,
    pub(super) refusal: Option<Refusal>,
    overrun: bool,
    clocks: u64,
    /// First bytes of the data phase, for the trace.
    sample: [u8; SAMPLE],
    sampled: u8,
    pub(super) overwrites: u32,
}

impl Link {
    pub(super) fn new(description: &Description) -> Link {
        // Chips that write in place have the whole array as their page, and use the buffer for security
        // registers only.
        let page = description.page.clamp(16, MAX_PAGE);
        Link {
            selected: false,
            phase: Phase::Opcode,
            shift: 0,
            bits: 0,
            lines: 1,
            left: 0,
            opcode: 0,
            command: None,
            address: 0,
            first_address: None,
            address_bytes: 0,
            qpi: false,
            has_opcode: true,
            mode_byte: 0,
            source: Source::Memory,
            wrap: None,
            page: vec![0xFF; page as usize],
            received: 0,
            sent: 0,
            refusal: None,
            overrun: false,
            clocks: 0,
            sample: [0; SAMPLE],
            sampled: 0,
            overwrites: 0,
        }
    }

    /// Ends the transaction without effect: power was lost or the chip was reset.
    pub(super) fn abandon(&mut self) {
        self.phase = Phase::Ignored;
    }

    fn enter(&mut self, phase: Phase, lines: u8) {
        self.phase = phase;
        self.lines = lines;
        self.bits = 0;
        self.shift = 0;
    }

    fn note(&mut self, byte: u8) {
        if usize::from(self.sampled) < SAMPLE {
            self.sample[usize::from(self.sampled)] = byte;
            self.sampled += 1;
        }
    }
}

impl Chip {
    /// Lowers CS#: a transaction begins.
    pub fn select(&mut self) {
        if self.link.selected {
            self.deselect();
        }
        let link = &mut self.link;
        link.selected = true;
        link.command = None;
        link.refusal = None;
        link.overrun = false;
        link.clocks = 0;
        link.sampled = 0;
        link.received = 0;
        link.sent = 0;
        link.overwrites = 0;
        link.address = 0;
        link.first_address = None;
        link.address_bytes = 0;
        link.opcode = 0;
        link.qpi = self.modes.qpi;
        link.has_opcode = true;
        match self.modes.continuous {
            Some(command) if self.operation.is_none() => {
                link.has_opcode = false;
                link.command = Some(command);
                link.opcode = self.description.commands[usize::from(command)].opcode;
                self.enter_address();
            }
            _ => link.enter(Phase::Opcode, if self.modes.qpi { 4 } else { 1 }),
        }
    }

    /// Raises CS#: the command of the transaction takes effect.
    pub fn deselect(&mut self) {
        if !self.link.selected {
            return;
        }
        self.link.selected = false;
        if self.link.clocks == 0 {
            return;
        }
        self.counters.transactions += 1;
        self.check_clock();
        // A command ends at a byte's end, or the chip ignores it; reads end anywhere.
        let command = self.link.command.map(usize::from);
        let reads = command.is_some_and(|command| self.action(command).reads());
        let begun = matches!(self.link.phase, Phase::Input | Phase::Complete | Phase::Output);
        let releases = command.is_some_and(|command| self.action(command) == Action::ReleasePowerDown);
        if self.link.refusal.is_none() && self.link.phase != Phase::Ignored {
            if !(begun || releases) || (!reads && (self.link.bits != 0 || self.link.overrun)) {
                self.link.refusal = Some(Refusal::Incomplete);
            } else if let Some(command) = command
                && let Err(refusal) = self.execute(command)
            {
                self.link.refusal = Some(refusal);
            }
        }
        if let Some(refusal) = self.link.refusal {
            self.counters.refused[refusal as usize] += 1;
        }
        let bus_time = match self.clock {
            Some(clock) if self.clock_passes_time => {
                self.link.clocks.saturating_mul(1_000_000_000) / u64::from(clock)
            }
            _ => 0,
        };
        if self.trace.is_on() {
            self.record(self.now.saturating_add(bus_time));
        }
        if bus_time > 0 {
            self.advance(bus_time);
        }
    }

    /// Returns the reason for which the last transaction was ignored.
    pub fn last_refusal(&self) -> Option<Refusal> {
        self.link.refusal
    }

    fn check_clock(&mut self) {
        if let (Some(clock), Some(command)) = (self.clock, self.link.command) {
            let limit = self.description.commands[usize::from(command)].max_clock;
            if limit != 0 && clock > limit {
                self.counters.too_fast += 1;
            }
        }
    }

    /// Appends the transaction to the trace; it ends at `time`.
    fn record(&mut self, time: u64) {
        let link = &self.link;
        let record = Record {
            time,
            opcode: link.opcode,
            command: link.command,
            address: link.first_address,
            address_bytes: link.address_bytes,
            has_opcode: link.has_opcode,
            qpi: link.qpi,
            received: link.received,
            sent: link.sent,
            sample: link.sample,
            sampled: link.sampled,
            refusal: link.refusal,
            overwrites: link.overwrites,
            clocks: link.clocks,
            state: self.state(),
            repeats: 0,
        };
        self.trace.push(record);
    }

    /// Returns whether HOLD# stops the clock.
    fn is_held(&self) -> bool {
        !self.hold_reset && self.hold_pin() == Some(HoldPin::Hold)
    }

    /// Returns whether RESET# holds the chip in reset.
    fn is_in_reset(&self) -> bool {
        !self.hold_reset && self.hold_pin() == Some(HoldPin::Reset)
    }

    /// Passes one clock. Bits 0 to 3 of `pins` are the levels of IO0 to IO3 that the master drives, 1 where
    /// it drives none; returns the levels that the chip drives, 1 where it drives none.
    pub fn clock(&mut self, pins: u8) -> u8 {
        if !self.link.selected || self.is_held() || self.is_in_reset() {
            return 0xF;
        }
        let link = &mut self.link;
        link.clocks += 1;
        match link.phase {
            Phase::Ignored => 0xF,
            Phase::Complete => {
                link.overrun = true;
                0xF
            }
            Phase::Dummy => {
                link.left = link.left.saturating_sub(1);
                if link.left == 0 {
                    self.enter_data();
                }
                0xF
            }
            Phase::Output => {
                if link.bits == 0 {
                    let byte = self.next_output();
                    self.link.shift = byte;
                }
                let link = &mut self.link;
                let out = link.shift >> (8 - link.lines);
                link.shift <<= link.lines;
                link.bits = (link.bits + link.lines) & 7;
                match link.lines {
                    1 => 0b1101 | out << 1,
                    2 => 0b1100 | out,
                    _ => out,
                }
            }
            Phase::Opcode | Phase::Address | Phase::Mode | Phase::Input => {
                link.shift = link.shift << link.lines | pins & ((1 << link.lines) - 1);
                link.bits += link.lines;
                if link.bits >= 8 {
                    link.bits = 0;
                    let byte = link.shift;
                    self.accept(byte);
                }
                0xF
            }
        }
    }

    /// Exchanges one byte on 1, 2 or 4 lines: full duplex on one line, else the master sends `out` or samples
    /// what the chip drives.
    pub fn transfer(&mut self, out: u8, lines: u8) -> u8 {
        let lines = match lines {
            2 | 4 => lines,
            _ => 1,
        };
        self.counters.bus_bytes += 1;
        if !self.faults.touches_bytes() {
            return self.exchange(out, lines);
        }
        if self.faults.bus_byte_cuts() {
            self.power_off();
            return 0xFF;
        }
        let out = self.flip(out, self.faults.flip_in);
        let reply = self.exchange(out, lines);
        self.flip(reply, self.faults.flip_out)
    }

    fn flip(&mut self, byte: u8, probability: f64) -> u8 {
        if self.random.chance(probability) {
            self.counters.flipped_bits += 1;
            return byte ^ 1 << self.random.below(8);
        }
        byte
    }

    fn exchange(&mut self, out: u8, lines: u8) -> u8 {
        if !self.link.selected {
            return 0xFF;
        }
        let link = &mut self.link;
        let clocks = 8 / lines;
        if link.bits == 0 && self.hold_reset {
            match link.phase {
                Phase::Ignored => {
                    link.clocks += u64::from(clocks);
                    return 0xFF;
                }
                Phase::Output if link.lines == lines => {
                    link.clocks += u64::from(clocks);
                    return self.next_output();
                }
                Phase::Dummy if link.left >= u16::from(clocks) => {
                    link.clocks += u64::from(clocks);
                    link.left -= u16::from(clocks);
                    if link.left == 0 {
                        self.enter_data();
                    }
                    return 0xFF;
                }
                Phase::Opcode | Phase::Address | Phase::Mode | Phase::Input if link.lines == lines => {
                    link.clocks += u64::from(clocks);
                    self.accept(out);
                    return 0xFF;
                }
                _ => {}
            }
        }
        let mut reply = 0;
        for step in 0..clocks {
            let bits = out >> (8 - lines * (step + 1)) & ((1 << lines) - 1);
            let (pins, shift) = match lines {
                1 => (0b1110 | bits, 1),
                2 => (0b1100 | bits, 0),
                _ => (bits, 0),
            };
            let seen = self.clock(pins) >> shift & ((1 << lines) - 1);
            reply = reply << lines | seen;
        }
        reply
    }

    /// Sends bytes on 1, 2 or 4 lines. The data of a page program is one copy.
    pub fn write(&mut self, bytes: &[u8], lines: u8) {
        let mut rest = bytes;
        while let Some((first, tail)) = rest.split_first() {
            if self.link.phase == Phase::Input && self.takes_page(lines) {
                return self.input_page(rest, lines);
            }
            self.transfer(*first, lines);
            rest = tail;
        }
    }

    /// Returns whether bytes of the input phase are copied whole and unchanged to the page buffer.
    fn takes_page(&self, lines: u8) -> bool {
        let command = self.link.command.map(usize::from);
        self.link.selected
            && self.link.bits == 0
            && self.link.lines == lines
            && self.hold_reset
            && !self.faults.touches_bytes()
            && command.is_some_and(|command| self.action(command) == Action::Program)
    }

    fn input_page(&mut self, bytes: &[u8], lines: u8) {
        if self.trace.is_on() {
            bytes.iter().take(SAMPLE).for_each(|byte| self.link.note(*byte));
        }
        let page = self.description.page as usize;
        let link = &mut self.link;
        let mut rest = bytes;
        while !rest.is_empty() {
            // After the page's end the data continues at its start.
            let at = ((u64::from(link.address) + link.received) % page as u64) as usize;
            let (now, tail) = rest.split_at(rest.len().min(page - at));
            link.page[at..at + now.len()].copy_from_slice(now);
            link.received += now.len() as u64;
            rest = tail;
        }
        link.clocks += bytes.len() as u64 * u64::from(8 / lines);
        self.counters.bus_bytes += bytes.len() as u64;
    }

    /// Reads bytes on 1, 2 or 4 lines. A run of bytes from the array is one copy.
    pub fn read(&mut self, bytes: &mut [u8], lines: u8) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let from = self.link.address;
            let length = rest.len().min((self.description.size - from.min(self.description.size)) as usize);
            let direct = self.link.selected
                && self.link.phase == Phase::Output
                && self.link.source == Source::Memory
                && self.link.bits == 0
                && self.link.lines == lines
                && self.hold_reset
                && self.is_plain()
                && !self.cells.is_unstable(from..from.saturating_add(length as u32));
            if !direct {
                let (first, tail) = rest.split_first_mut().expect("not empty");
                *first = self.transfer(0xFF, lines);
                rest = tail;
                continue;
            }
            let from = from as usize;
            let memory = self.memory.bytes();
            let (now, tail) = rest.split_at_mut(length);
            now.copy_from_slice(&memory[from..from + length]);
            let end = ((from + length) % memory.len()) as u32;
            if self.trace.is_on() {
                now.iter().take(SAMPLE).for_each(|byte| self.link.note(*byte));
            }
            let link = &mut self.link;
            link.address = end;
            link.sent += length as u64;
            link.clocks += length as u64 * u64::from(8 / lines.clamp(1, 8));
            self.counters.bytes_read += length as u64;
            self.counters.bus_bytes += length as u64;
            rest = tail;
        }
    }

    /// Does a whole transaction on one line: selects, sends, reads, deselects.
    pub fn transact(&mut self, sent: &[u8], received: &mut [u8]) {
        self.select();
        self.write(sent, 1);
        self.read(received, 1);
        self.deselect();
    }

    /// Returns whether the bytes of the array read in the order of addresses and, unstable bits aside, as
    /// they are stored.
    fn is_plain(&self) -> bool {
        self.suspended.is_none()
            && self.link.wrap.is_none()
            && !self.modes.otp
            && self.faults.read_disturb == 0
            && !self.faults.touches_bytes()
    }

    fn accept(&mut self, byte: u8) {
        match self.link.phase {
            Phase::Opcode => self.begin(byte),
            Phase::Address => {
                self.link.address = self.link.address << 8 | u32::from(byte);
                self.link.first_address = Some(self.link.address);
                self.link.left -= 1;
                if self.link.left == 0 {
                    self.after_address();
                }
            }
            Phase::Mode => {
                self.link.mode_byte = byte;
                let stays = match self.description.continuous {
                    Continuous::None => false,
                    Continuous::Bits54 => byte & 0x30 == 0x20,
                    Continuous::Toggle => byte >> 4 == !byte & 0xF,
                    Continuous::NibbleA => byte >> 4 == 0xA,
                };
                self.modes.continuous = if stays { self.link.command } else { None };
                self.enter_dummy(true);
            }
            Phase::Input => {
                if self.trace.is_on() {
                    self.link.note(byte);
                }
                self.input(byte);
            }
            _ => {}
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.link.refusal = Some(refusal);
        self.link.phase = Phase::Ignored;
    }

    /// Decodes an opcode and checks whether the chip accepts the command now.
    fn begin(&mut self, opcode: u8) {
        self.link.opcode = opcode;
        let reset_enabled = std::mem::take(&mut self.modes.reset_enabled);
        let Power::On { since } = self.power else { return self.refuse(Refusal::NoPower) };
        if self.now < since.saturating_add(self.description.times.power_up_read) {
            return self.refuse(Refusal::NoPower);
        }
        let Some(index) = self.description.index_of(opcode, self.modes.qpi) else {
            return self.refuse(Refusal::UnknownOpcode);
        };
        self.link.command = Some(index as u16);
        let command = &self.description.commands[index];
        let action = command.action;
        if !matches!(action, Action::WriteRegisters | Action::ReadRegisters | Action::VolatileWriteEnable)
            && self.modes.volatile_enabled
        {
            self.modes.volatile_enabled = false;
        }
        let condition = self.condition();
        if !command.conditions.contains(condition) || self.operation.as_ref().is_some_and(|o| o.is_silent()) {
            let for_suspension = matches!(action, Action::Suspend | Action::Resume);
            return self.refuse(match condition {
                Condition::Busy => Refusal::Busy,
                Condition::DeepPowerDown => Refusal::DeepPowerDown,
                _ if for_suspension => Refusal::NotSuspended,
                _ => Refusal::Suspended,
            });
        }
        let in_aai = matches!(action, Action::AaiProgram | Action::WriteDisable | Action::ReadRegisters);
        if self.modes.aai.is_some() && !in_aai {
            return self.refuse(Refusal::OutOfSequence);
        }
        if action == Action::Reset && !reset_enabled {
            return self.refuse(Refusal::OutOfSequence);
        }
        let volatile = action == Action::WriteRegisters && self.modes.volatile_enabled;
        if command.write_enable && !self.modes.write_enabled && !volatile {
            return self.refuse(Refusal::NotWriteEnabled);
        }
        if command.write_enable && self.now < since.saturating_add(self.description.times.power_up_write) {
            return self.refuse(Refusal::NoPower);
        }
        let quad = command.quad_enable && !self.modes.qpi;
        if quad && self.description.bit(Meaning::Qe).is_some() && !self.is_set(Meaning::Qe) {
            return self.refuse(Refusal::NotQuadEnabled);
        }
        self.enter_address();
    }

    fn phase_lines(&self, phase: usize) -> u8 {
        match self.link.command {
            Some(command) if !self.modes.qpi => self.description.commands[usize::from(command)].lines[phase],
            _ => 4,
        }
    }

    fn enter_address(&mut self) {
        let Some(command) = self.link.command else { return };
        let command = &self.description.commands[usize::from(command)];
        let bytes = match command.address {
            AddressWidth::None => 0,
            // After the first word, AAI takes the address from its counter.
            _ if command.action == Action::AaiProgram && self.modes.aai.is_some() => {
                self.link.first_address = self.modes.aai;
                0
            }
            AddressWidth::Bytes(bytes) => bytes,
            AddressWidth::Mode if self.modes.four_byte => 4,
            AddressWidth::Mode => 3,
        };
        self.link.address_bytes = bytes;
        self.link.left = u16::from(bytes);
        if bytes == 0 {
            return self.enter_dummy(false);
        }
        let lines = self.phase_lines(1);
        self.link.enter(Phase::Address, lines);
    }

    fn after_address(&mut self) {
        if self.link.address_bytes == 3 && self.link.source_is_array(&self.description) {
            for bit in 0..8 {
                self.link.address |= u32::from(self.is_set(Meaning::ExtendedAddress(bit))) << (24 + bit);
            }
        }
        self.link.first_address = Some(self.link.address);
        let mode =
            self.link.command.is_some_and(|command| self.description.commands[usize::from(command)].mode);
        if mode {
            let lines = self.phase_lines(1);
            self.link.enter(Phase::Mode, lines);
        } else {
            self.enter_dummy(false);
        }
    }

    fn enter_dummy(&mut self, after_mode: bool) {
        let Some(index) = self.link.command else { return };
        let command = &self.description.commands[usize::from(index)];
        let clocks = if let Some(latency) = &command.latency {
            let value = self.registers[usize::from(latency.register)] >> latency.shift;
            latency.clocks[usize::from(value) & (latency.clocks.len() - 1)]
        } else if !self.modes.qpi {
            command.dummy
        } else {
            // In QPI the number includes the two clocks of the mode byte.
            let mode = if after_mode { 2 } else { 0 };
            let set = if command.action == Action::Read { self.modes.qpi_dummy } else { command.dummy };
            command.qpi_dummy.unwrap_or(set).saturating_sub(mode)
        };
        if clocks == 0 {
            return self.enter_data();
        }
        self.link.left = u16::from(clocks);
        let lines = self.phase_lines(1);
        self.link.enter(Phase::Dummy, lines);
    }

    fn enter_data(&mut self) {
        let Some(index) = self.link.command else { return };
        let command = &self.description.commands[usize::from(index)];
        let action = command.action;
        self.link.wrap = match command.protocol {
            _ if !command.wraps => None,
            Protocol::Qpi => Some(self.modes.qpi_wrap),
            _ => self.modes.wrap,
        };
        let lines = self.phase_lines(2);
        if action.reads() {
            self.link.source = match action {
                Action::ReadRegisters => Source::Registers,
                Action::ReadAnyRegister => Source::AnyRegister,
                Action::ReadJedecId => Source::JedecId,
                Action::ReadLegacyId => Source::LegacyId,
                Action::ReleasePowerDown => Source::ElectronicId,
                Action::ReadUniqueId => Source::UniqueId,
                Action::ReadSfdp => Source::Sfdp,
                Action::ReadSecurity => Source::Security,
                Action::ReadBlockLock => Source::BlockLock,
                _ => Source::Memory,
            };
            if self.link.source == Source::Memory {
                self.link.address &= self.description.size - 1;
            }
            self.link.enter(Phase::Output, lines);
        } else if action.takes_data() {
            self.link.page.fill(0xFF);
            self.link.enter(Phase::Input, lines);
        } else {
            self.link.enter(Phase::Complete, lines);
        }
    }

    /// Returns the next byte of the output phase.
    fn next_output(&mut self) -> u8 {
        let position = self.link.sent;
        self.link.sent += 1;
        let nth = |bytes: &[u8], first: u64| match bytes.len() as u64 {
            0 => 0xFF,
            length => bytes[((first + position) % length) as usize],
        };
        let byte = match self.link.source {
            Source::Memory => self.next_from_array(),
            Source::Registers => self.next_register(position),
            Source::AnyRegister => match self.register_at(self.link.address) {
                None => 0xFF,
                Some((register, true)) => self.cells.registers[register],
                Some((register, false)) => self.status_byte(register),
            },
            Source::JedecId => nth(&self.description.jedec_id, 0),
            Source::LegacyId => nth(&self.description.legacy_id, u64::from(self.link.address & 1)),
            Source::ElectronicId => self.description.legacy_id.last().copied().unwrap_or(0xFF),
            Source::UniqueId => nth(&self.cells.unique_id, 0),
            Source::Sfdp => {
                let at = (self.link.address & 0xFF_FFFF) as usize + position as usize;
                self.description.sfdp.get(at).copied().unwrap_or(0xFF)
            }
            Source::Security => self.security_byte(position),
            Source::BlockLock => self.lock_at(self.link.address & (self.description.size - 1)),
        };
        if self.trace.is_on() {
            self.link.note(byte);
        }
        byte
    }

    fn next_register(&mut self, position: u64) -> u8 {
        let Some(command) = self.link.command else { return 0xFF };
        let registers = &self.description.commands[usize::from(command)].registers;
        let Some(index) = registers.get(position as usize % registers.len().max(1)) else { return 0xFF };
        self.status_byte(usize::from(*index))
    }

    /// Returns the register that has this address, and whether the address is that of its kept value.
    pub(super) fn register_at(&self, address: u32) -> Option<(usize, bool)> {
        let mut registers = self.description.registers.iter().enumerate();
        registers.find_map(|(index, register)| match Some(address) {
            address if address == register.address => Some((index, false)),
            address if address == register.kept_address => Some((index, true)),
            _ => None,
        })
    }

    /// Returns a register's value; a read of a bit that shows whether the chip is busy counts as a poll.
    fn status_byte(&mut self, index: usize) -> u8 {
        let value = self.register_value(index);
        if self.operation.is_some() && self.masks[index].wip | self.masks[index].ready != 0 {
            self.counters.busy_polls += 1;
            self.poll();
        }
        value
    }
}

impl Link {
    /// Returns whether the address is one of the array, to which the extended address register applies.
    fn source_is_array(&self, description: &Description) -> bool {
        use Action::*;
        self.command.is_some_and(|command| {
            let action = description.commands[usize::from(command)].action;
            matches!(
                action,
                Read | Program
                    | AaiProgram
                    | WriteMemory
                    | Erase
                    | LockBlock
                    | UnlockBlock
                    | ReadBlockLock
                    | WriteBlockLock
            )
        })
    }
}
