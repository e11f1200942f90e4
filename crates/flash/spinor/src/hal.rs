//! The traits of embedded drivers over a chip.

#[cfg(feature = "embedded-hal")]
use crate::chip::Chip;

/// An SPI bus with one chip, as the driver under test sees it. Waits advance the chip's virtual time.
#[cfg(feature = "embedded-hal")]
#[derive(Clone)]
pub struct Bus<'a>(std::rc::Rc<std::cell::RefCell<&'a mut Chip>>);

#[cfg(feature = "embedded-hal")]
impl<'a> Bus<'a> {
    /// Connects a chip. Clones share it: one for the driver's bus, one for its delay, one for the test.
    pub fn new(chip: &'a mut Chip) -> Bus<'a> {
        Bus(std::rc::Rc::new(std::cell::RefCell::new(chip)))
    }

    /// Lends the chip, for checks or faults between two transactions.
    pub fn with<R>(&self, look: impl FnOnce(&mut Chip) -> R) -> R {
        look(&mut self.0.borrow_mut())
    }
}

#[cfg(feature = "embedded-hal")]
mod bus {
    use super::Bus;
    use embedded_hal::delay::DelayNs;
    use embedded_hal::spi::{ErrorType, Operation, SpiDevice};
    use std::convert::Infallible;

    impl ErrorType for Bus<'_> {
        type Error = Infallible;
    }

    impl SpiDevice<u8> for Bus<'_> {
        fn transaction(&mut self, operations: &mut [Operation<'_, u8>]) -> Result<(), Infallible> {
            let mut guard = self.0.borrow_mut();
            let chip = &mut **guard;
            chip.select();
            for operation in operations {
                match operation {
                    Operation::Read(bytes) => chip.read(bytes, 1),
                    Operation::Write(bytes) => chip.write(bytes, 1),
                    Operation::TransferInPlace(bytes) => {
                        bytes.iter_mut().for_each(|byte| *byte = chip.transfer(*byte, 1));
                    }
                    Operation::Transfer(read, write) => {
                        for n in 0..read.len().max(write.len()) {
                            let reply = chip.transfer(write.get(n).copied().unwrap_or(0), 1);
                            if let Some(slot) = read.get_mut(n) {
                                *slot = reply;
                            }
                        }
                    }
                    Operation::DelayNs(nanoseconds) => chip.advance(u64::from(*nanoseconds)),
                }
            }
            chip.deselect();
            Ok(())
        }
    }

    impl DelayNs for Bus<'_> {
        fn delay_ns(&mut self, nanoseconds: u32) {
            self.0.borrow_mut().advance(u64::from(nanoseconds));
        }
    }
}

#[cfg(feature = "embedded-storage")]
mod nor {
    use crate::action::Action;
    use crate::chip::{Chip, Refusal, State};
    use crate::description::{AddressWidth, Meaning, Protocol};
    use embedded_storage::nor_flash::{
        ErrorType, MultiwriteNorFlash, NorFlash, NorFlashError, NorFlashErrorKind, ReadNorFlash,
    };

    /// A driver of the chip behind the traits of embedded-storage, for file systems and stores on it.
    ///
    /// It sends the chip's own commands over its bus and waits by advancing virtual time: each write and
    /// erase returns when the chip is ready. `ERASE` is the erase size in bytes, one that the chip has a
    /// command for.
    pub struct Nor<'a, const ERASE: usize = 4096> {
        chip: &'a mut Chip,
        read: u8,
        program: u8,
        erase: u8,
        status: u8,
        /// Bit of the status register, and its value when ready.
        ready: (u8, bool),
        four_bytes: bool,
    }

    /// Failure of a [`Nor`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum NorError {
        /// Outside the array.
        OutOfBounds,
        /// Not on a multiple of the unit.
        NotAligned,
        /// The chip ignored the command.
        Refused(Refusal),
        /// The power is off.
        PowerDown,
        /// The chip stayed busy longer than its datasheet allows.
        Timeout,
    }

    impl NorFlashError for NorError {
        fn kind(&self) -> NorFlashErrorKind {
            match self {
                NorError::OutOfBounds => NorFlashErrorKind::OutOfBounds,
                NorError::NotAligned => NorFlashErrorKind::NotAligned,
                _ => NorFlashErrorKind::Other,
            }
        }
    }

    impl<'a, const ERASE: usize> Nor<'a, ERASE> {
        /// Takes a chip; `None` if it lacks single-line read, page program, an erase of `ERASE` bytes or a
        /// busy bit.
        pub fn new(chip: &'a mut Chip) -> Option<Nor<'a, ERASE>> {
            let description = chip.description().clone();
            let four_bytes = chip.is_four_byte();
            let find = |action: Action, size: u32| {
                description.commands.iter().find(|c| {
                    c.action == action
                        && c.protocol != Protocol::Qpi
                        && c.lines == [1, 1, 1]
                        && c.size == size
                        && c.dummy == 0
                        && (c.address == AddressWidth::Mode
                            || c.address == AddressWidth::Bytes(if four_bytes { 4 } else { 3 }))
                })
            };
            let (register, bit, ready) = description
                .bit(Meaning::Wip)
                .map(|(register, bit)| (register, bit, false))
                .or_else(|| description.bit(Meaning::Ready).map(|(register, bit)| (register, bit, true)))?;
            let status = description.commands.iter().find(|c| {
                c.action == Action::ReadRegisters && c.registers.first() == Some(&(register as u8))
            })?;
            Some(Nor {
                read: find(Action::Read, 0)?.opcode,
                program: find(Action::Program, 0)?.opcode,
                erase: find(Action::Erase, ERASE as u32)?.opcode,
                status: status.opcode,
                ready: (bit, ready),
                four_bytes,
                chip,
            })
        }

        /// Lends the chip, for checks or faults.
        pub fn chip(&mut self) -> &mut Chip {
            self.chip
        }

        fn command(&mut self, opcode: u8, address: u32, data: &[u8], read: &mut [u8]) {
            let bytes = address.to_be_bytes();
            self.chip.select();
            self.chip.write(&[opcode], 1);
            self.chip.write(if self.four_bytes { &bytes } else { &bytes[1..] }, 1);
            self.chip.write(data, 1);
            self.chip.read(read, 1);
            self.chip.deselect();
        }

        fn check(&self, from: u32, length: usize, unit: usize) -> Result<(), NorError> {
            let size = u64::from(self.chip.description().size);
            match u64::from(from).checked_add(length as u64) {
                Some(end) if end <= size => {}
                _ => return Err(NorError::OutOfBounds),
            }
            let aligned = (from as usize).is_multiple_of(unit) && length.is_multiple_of(unit);
            if aligned { Ok(()) } else { Err(NorError::NotAligned) }
        }

        /// Sends write enable and a command, and waits until the chip is ready.
        fn run(&mut self, opcode: u8, address: u32, data: &[u8]) -> Result<(), NorError> {
            let operations = self.chip.counters().operations;
            self.chip.transact(&[0x06], &mut []);
            self.command(opcode, address, data, &mut []);
            if self.chip.state() == State::PowerDown {
                return Err(NorError::PowerDown);
            }
            if self.chip.counters().operations == operations {
                return Err(NorError::Refused(self.chip.last_refusal().unwrap_or(Refusal::Incomplete)));
            }
            let (bit, ready) = self.ready;
            for _ in 0..1_000_000 {
                let mut status = [0];
                self.chip.transact(&[self.status], &mut status);
                if self.chip.state() == State::PowerDown {
                    return Err(NorError::PowerDown);
                }
                if (status[0] >> bit & 1 == 1) == ready {
                    return Ok(());
                }
                match self.chip.busy_for() {
                    Some(time) => self.chip.advance(time),
                    None => self.chip.advance(1000),
                }
            }
            Err(NorError::Timeout)
        }
    }

    impl<const ERASE: usize> ErrorType for Nor<'_, ERASE> {
        type Error = NorError;
    }

    impl<const ERASE: usize> ReadNorFlash for Nor<'_, ERASE> {
        const READ_SIZE: usize = 1;

        fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), NorError> {
            self.check(offset, bytes.len(), 1)?;
            self.command(self.read, offset, &[], bytes);
            if self.chip.state() == State::PowerDown { Err(NorError::PowerDown) } else { Ok(()) }
        }

        fn capacity(&self) -> usize {
            self.chip.description().size as usize
        }
    }

    impl<const ERASE: usize> NorFlash for Nor<'_, ERASE> {
        const WRITE_SIZE: usize = 1;
        const ERASE_SIZE: usize = ERASE;

        fn erase(&mut self, from: u32, to: u32) -> Result<(), NorError> {
            let length = to.checked_sub(from).ok_or(NorError::OutOfBounds)?;
            self.check(from, length as usize, ERASE)?;
            (from..to).step_by(ERASE).try_for_each(|address| self.run(self.erase, address, &[]))
        }

        fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), NorError> {
            self.check(offset, bytes.len(), 1)?;
            let page = self.chip.description().page as usize;
            let (mut address, mut rest) = (offset, bytes);
            while !rest.is_empty() {
                let length = rest.len().min(page - address as usize % page);
                let (now, tail) = rest.split_at(length);
                self.run(self.program, address, now)?;
                address += length as u32;
                rest = tail;
            }
            Ok(())
        }
    }

    impl<const ERASE: usize> MultiwriteNorFlash for Nor<'_, ERASE> {}
}

#[cfg(feature = "embedded-storage")]
pub use nor::{Nor, NorError};
