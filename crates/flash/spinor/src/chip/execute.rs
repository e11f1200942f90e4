//! Effects of commands: of each data byte, and when CS# rises.

use super::operation::Work;
use super::{Chip, Refusal};
use crate::action::Action;
use crate::description::{Meaning, Span};

impl Chip {
    /// Takes a byte of the input phase.
    pub(super) fn input(&mut self, byte: u8) {
        let Some(command) = self.link.command else { return };
        let position = self.link.received;
        self.link.received += 1;
        match self.action(usize::from(command)) {
            Action::Program => {
                let page = u64::from(self.description.page);
                let at = (u64::from(self.link.address) + position) % page;
                self.link.page[at as usize] = byte;
            }
            Action::ProgramSecurity => {
                let chunk = u64::from(self.security_chunk());
                let start = u64::from(self.security_offset(self.link.address).unwrap_or(0) as u32);
                let at = (start + position) % chunk.max(1);
                self.link.page[at as usize] = byte;
            }
            Action::WriteMemory => {
                let address = (u64::from(self.link.address) + position) as u32 & (self.description.size - 1);
                if self.is_protected(address..address + 1) {
                    self.link.refusal = Some(Refusal::Protected);
                } else {
                    self.memory.bytes_mut()[address as usize] = byte;
                    self.changes.mark(address..address + 1);
                }
            }
            _ => {
                if let Some(slot) = self.link.page.get_mut(position as usize) {
                    *slot = byte;
                }
            }
        }
    }

    /// Returns the next byte of the array, as this read sees it, and advances the address.
    pub(super) fn next_from_array(&mut self) -> u8 {
        let address = self.link.address;
        let mask = self.description.size - 1;
        self.link.address = match self.link.wrap {
            Some(length) => address & !(length - 1) | (address + 1) & (length - 1),
            None => address.wrapping_add(1) & mask,
        };
        self.counters.bytes_read += 1;
        if self.modes.otp {
            let length = self.cells.security.len().max(1);
            return self.cells.security.get(address as usize % length).copied().unwrap_or(0xFF);
        }
        if self.suspended.as_ref().is_some_and(|operation| operation.range().contains(&address)) {
            // Datasheets leave the data of a suspended block undefined.
            return self.random.byte();
        }
        self.disturb(address);
        let stored = self.memory.bytes()[address as usize];
        self.cells.read(address, stored, &mut self.random)
    }

    /// Lets a read disturb a cell of the sector.
    fn disturb(&mut self, address: u32) {
        let every = self.faults.read_disturb;
        let sector = self.description.sector();
        if every == 0 || sector == 0 {
            return;
        }
        self.disturbed[(address / sector) as usize] += 1;
        if self.random.below(every) == 0 {
            let victim = (address / sector * sector + self.random.below(u64::from(sector)) as u32) as usize;
            let bit = 1 << self.random.below(8);
            let cell = &mut self.memory.bytes_mut()[victim];
            if *cell & bit != 0 {
                *cell &= !bit;
                self.counters.flipped_bits += 1;
                self.changes.mark(victim as u32..victim as u32 + 1);
            }
        }
    }

    /// Returns the bytes that one program of the security registers can reach.
    fn security_chunk(&self) -> u32 {
        self.description.security.as_ref().map_or(1, |security| security.size.min(self.description.page))
    }

    /// Returns the register's number and the offset of an address within all security bytes.
    fn security_place(&self, address: u32) -> Option<(u32, usize)> {
        let security = self.description.security.as_ref()?;
        let distance = address.checked_sub(security.first)?;
        let (register, offset) = (distance / security.step, distance % security.step);
        (register < security.registers && offset < security.size)
            .then(|| (register, (register * security.size + offset) as usize))
    }

    fn security_offset(&self, address: u32) -> Option<usize> {
        self.security_place(address).map(|(_, offset)| offset)
    }

    /// Returns a byte of the security register at the transaction's address; reads wrap within the register.
    pub(super) fn security_byte(&self, position: u64) -> u8 {
        let (Some((register, offset)), Some(security)) =
            (self.security_place(self.link.address), &self.description.security)
        else {
            return 0xFF;
        };
        let start = u64::from(register * security.size);
        let within = (offset as u64 - start + position) % u64::from(security.size);
        self.cells.security.get((start + within) as usize).copied().unwrap_or(0xFF)
    }

    /// Executes a command when CS# rises.
    pub(super) fn execute(&mut self, index: usize) -> Result<(), Refusal> {
        use Action::*;
        let address = self.link.address & (self.description.size - 1);
        match self.action(index) {
            Read | ReadRegisters | ReadAnyRegister | ReadJedecId | ReadLegacyId | ReadUniqueId | ReadSfdp
            | ReadSecurity | ReadBlockLock => {}
            WriteEnable => self.modes.write_enabled = true,
            WriteDisable => {
                self.modes.write_enabled = false;
                self.modes.aai = None;
            }
            VolatileWriteEnable => self.modes.volatile_enabled = true,
            WriteRegisters => {
                let registers = self.description.commands[index].registers.clone();
                let volatile = self.modes.volatile_enabled && !self.modes.write_enabled;
                return self.write_registers(&registers, volatile);
            }
            WriteAnyRegister => {
                let Some((register, is_kept)) = self.register_at(self.link.address) else {
                    return Err(Refusal::Incomplete);
                };
                return self.write_registers(&[register as u8], !is_kept);
            }
            Program if self.modes.otp => return self.program_security(self.link.address, true),
            Program => return self.program(address),
            AaiProgram => return self.program_word(address),
            WriteMemory => {
                self.modes.write_enabled = false;
                return if self.link.received == 0 { Err(Refusal::Incomplete) } else { Ok(()) };
            }
            Erase => {
                let size = self.description.commands[index].size;
                let start = address & !(size - 1);
                return self.erase(start..start + size, self.description.erase_time(size));
            }
            ChipErase => return self.erase(0..self.description.size, self.description.times.chip_erase),
            Suspend if !self.suspend() => return Err(Refusal::NotSuspended),
            Resume if !self.resume() => return Err(Refusal::NotSuspended),
            Suspend | Resume => {}
            ResetEnable => self.modes.reset_enabled = true,
            Reset => self.reset(),
            ModeReset => self.modes.continuous = None,
            EnterQpi => self.modes.qpi = true,
            ExitQpi => {
                self.modes.qpi = false;
                self.modes.continuous = None;
            }
            EnterFourByte => self.modes.four_byte = true,
            ExitFourByte => self.modes.four_byte = false,
            SetReadParameters => {
                self.expect_one_byte()?;
                let parameters = self.link.page[0];
                self.modes.qpi_dummy = 2 * (1 + (parameters >> 4 & 3));
                self.modes.qpi_wrap = 8 << (parameters & 3);
            }
            SetBurstWrap => {
                self.expect_one_byte()?;
                let wrap = self.link.page[0];
                self.modes.wrap = (wrap & 0x10 == 0).then_some(8 << (wrap >> 5 & 3));
            }
            LockBlock => return self.lock(address, 1),
            UnlockBlock => return self.lock(address, 0),
            WriteBlockLock => {
                self.expect_one_byte()?;
                return self.lock(address, self.link.page[0]);
            }
            LockAll | UnlockAll => {
                self.set_all_locks(u8::from(self.action(index) == LockAll));
                self.modes.write_enabled = false;
            }
            ProgramSecurity => return self.program_security(self.link.address, false),
            EraseSecurity => return self.erase_security(),
            EnterOtp => self.modes.otp = true,
            ExitOtp => self.modes.otp = false,
            LockSecurity => {
                if let Some((register, bit)) = self.description.bit(Meaning::OtpLocked) {
                    self.cells.registers[register] |= 1 << bit;
                    self.registers[register] |= 1 << bit;
                }
                self.modes.write_enabled = false;
            }
            ClearFlags => {
                self.modes.program_fail = false;
                self.modes.erase_fail = false;
                self.modes.protect_fail = false;
            }
            DeepPowerDown => {
                self.modes.deep_power_down = true;
                self.recover(self.description.times.deep_power_down);
            }
            ReleasePowerDown => {
                if std::mem::take(&mut self.modes.deep_power_down) {
                    self.recover(self.description.times.release);
                }
            }
        }
        Ok(())
    }

    fn expect_one_byte(&self) -> Result<(), Refusal> {
        if self.link.received == 1 { Ok(()) } else { Err(Refusal::Incomplete) }
    }

    fn lock(&mut self, address: u32, value: u8) -> Result<(), Refusal> {
        let open = self.set_lock(address, value);
        self.modes.write_enabled = false;
        if open { Ok(()) } else { Err(Refusal::Protected) }
    }

    /// Writes the data bytes to these registers; with `volatile`, only to the values in force.
    fn write_registers(&mut self, registers: &[u8], volatile: bool) -> Result<(), Refusal> {
        let count = self.link.received as usize;
        if count == 0 || count > registers.len() {
            return Err(Refusal::Incomplete);
        }
        let values: Vec<(usize, u8)> = registers
            .iter()
            .map(|index| usize::from(*index))
            .zip(self.link.page[..count].iter().copied())
            .collect();
        if values.iter().any(|(register, _)| self.is_register_locked(*register)) {
            return self.refuse_protected(None);
        }
        let instant =
            volatile || values.iter().all(|(n, _)| self.description.registers[*n].non_volatile == 0);
        if instant {
            // Volatile bits change within tSHSL2, before the next command.
            self.store_registers(&values, volatile);
            self.modes.write_enabled = false;
            self.modes.volatile_enabled = false;
        } else {
            self.start(Work::WriteRegisters { values, volatile }, self.description.times.write_register);
        }
        Ok(())
    }

    /// Refuses a program (`Some(true)`), an erase (`Some(false)`) or a register write of something protected.
    fn refuse_protected(&mut self, program: Option<bool>) -> Result<(), Refusal> {
        if self.description.protection.refusal_clears_wel {
            self.modes.write_enabled = false;
        }
        match program {
            Some(true) => self.modes.program_fail = true,
            Some(false) => self.modes.erase_fail = true,
            None => {}
        }
        self.modes.protect_fail = program.is_some();
        Err(Refusal::Protected)
    }

    fn check_array(&mut self, range: std::ops::Range<u32>, program: bool) -> Result<(), Refusal> {
        if let Some(suspended) = &self.suspended {
            let busy = suspended.range();
            if busy.start < range.end && range.start < busy.end {
                return Err(Refusal::Suspended);
            }
        }
        if self.is_protected(range) {
            return self.refuse_protected(Some(program));
        }
        self.modes.program_fail &= !program;
        self.modes.erase_fail &= program;
        Ok(())
    }

    fn count_overwrites(&mut self, base: u32, length: u32) {
        let cells = &self.memory.bytes()[base as usize..(base + length) as usize];
        let length = length as usize;
        let written = self.link.received.min(length as u64) as usize;
        let first = self.link.address as usize % length;
        let end = first + written;
        let count = |range: std::ops::Range<usize>| {
            let pairs = cells[range.clone()].iter().zip(&self.link.page[range]);
            pairs.map(|(cell, data)| u32::from(data & !cell != 0)).sum::<u32>()
        };
        // After the page's end the data continues at its start.
        let overwrites = count(first..end.min(length)) + count(0..end.saturating_sub(length));
        self.link.overwrites = overwrites;
        self.counters.overwrites += u64::from(overwrites);
    }

    fn program(&mut self, address: u32) -> Result<(), Refusal> {
        if self.link.received == 0 {
            return Err(Refusal::Incomplete);
        }
        let page = self.description.page;
        let base = address & !(page - 1);
        self.check_array(base..base + page, true)?;
        self.count_overwrites(base, page);
        let data = self.link.page[..page as usize].to_vec();
        let span = self.program_time(self.link.received.min(u64::from(page)));
        self.start(Work::Program { address: base, data, aai: false }, span);
        Ok(())
    }

    /// Returns the time of a program of `bytes` bytes: tBP1 and tBP2 per further byte where the datasheet has
    /// them, at most tPP. The maximum is that of a page in the same proportion.
    fn program_time(&self, bytes: u64) -> Span {
        let whole = self.description.times.page_program;
        match self.description.times.byte_program {
            Some((first, next)) if bytes < u64::from(self.description.page) => {
                let rest = next.saturating_mul(bytes.saturating_sub(1));
                let typical = first.saturating_add(rest).min(whole.typical);
                let maximum =
                    u128::from(whole.maximum) * u128::from(typical) / u128::from(whole.typical.max(1));
                Span { typical, maximum: u64::try_from(maximum).unwrap_or(whole.maximum) }
            }
            _ => whole,
        }
    }

    /// Programs two bytes in AAI mode (SST25VF032B datasheet, "Auto Address Increment (AAI) Word-Program").
    fn program_word(&mut self, address: u32) -> Result<(), Refusal> {
        if self.link.received != 2 {
            return Err(Refusal::Incomplete);
        }
        let address = self.modes.aai.unwrap_or(address) & !1;
        if let Err(refusal) = self.check_array(address..address + 2, true) {
            self.modes.aai = None;
            self.modes.write_enabled = false;
            return Err(refusal);
        }
        let data = self.link.page[..2].to_vec();
        let cells = &self.memory.bytes()[address as usize..][..2];
        let overwrites = cells.iter().zip(&data).filter(|(cell, data)| *data & !*cell != 0).count();
        self.link.overwrites = overwrites as u32;
        self.counters.overwrites += overwrites as u64;
        let next = (address + 2) & (self.description.size - 1);
        // The mode ends by itself at the last address, with the write enable latch.
        self.modes.aai = (next != 0).then_some(next);
        let aai = self.modes.aai.is_some();
        self.start(Work::Program { address, data, aai }, self.description.times.page_program);
        Ok(())
    }

    fn erase(&mut self, range: std::ops::Range<u32>, span: Span) -> Result<(), Refusal> {
        if self.modes.otp {
            return Err(Refusal::OutOfSequence);
        }
        self.check_array(range.clone(), false)?;
        self.start(Work::Erase { range }, span);
        Ok(())
    }

    fn program_security(&mut self, address: u32, otp: bool) -> Result<(), Refusal> {
        if self.link.received == 0 {
            return Err(Refusal::Incomplete);
        }
        let place = if otp {
            let length = self.cells.security.len().max(1);
            Some((0, address as usize % length))
        } else {
            self.security_place(address)
        };
        let Some((register, offset)) = place else { return Err(Refusal::Protected) };
        if self.is_security_locked(register) {
            return self.refuse_protected(Some(true));
        }
        let chunk = if otp { self.description.page } else { self.security_chunk() } as usize;
        let base = offset / chunk * chunk;
        let length = chunk.min(self.cells.security.len() - base);
        let data = self.link.page[..length].to_vec();
        self.start(Work::ProgramSecurity { offset: base, data }, self.description.times.page_program);
        Ok(())
    }

    fn erase_security(&mut self) -> Result<(), Refusal> {
        let (Some((register, _)), Some(security)) =
            (self.security_place(self.link.address), &self.description.security)
        else {
            return Err(Refusal::Protected);
        };
        if self.is_security_locked(register) {
            return self.refuse_protected(Some(false));
        }
        let size = security.size as usize;
        let start = register as usize * size;
        let span = self.description.erase_time(self.description.sector());
        self.start(Work::EraseSecurity { range: start..start + size }, span);
        Ok(())
    }
}
