//! A chip as data: the values of its datasheet, read from one TOML file and checked.
//!
//! Every error has the file, the line and the column. The behaviour of chips is left to the interpreter,
//! [`crate::Chip`].

mod file;
mod units;

use crate::action::{Action, Conditions};
use std::fmt;
use std::sync::Arc;

/// Largest page that is programmed at once, in bytes.
pub(crate) const MAX_PAGE: u32 = 65536;

/// Properties of one type of chip that the interpreter needs.
#[derive(Debug, Clone)]
pub struct Description {
    /// Name of the part, as on the datasheet.
    pub name: String,
    /// Manufacturer.
    pub maker: String,
    /// Datasheet with the values.
    pub datasheet: String,
    /// Size of the memory array in bytes.
    pub size: u32,
    /// Size of a page in bytes, a power of two.
    pub page: u32,
    /// Answer to 9Fh.
    pub jedec_id: Vec<u8>,
    /// Answer to 90h: manufacturer and device; its last byte is the answer to ABh. Empty if the chip has
    /// none.
    pub legacy_id: Vec<u8>,
    /// Length of the unique ID in bytes; 0 if the chip has none.
    pub unique_id: u32,
    /// The SFDP area, beginning at address 0; empty if the chip has none.
    pub sfdp: Vec<u8>,
    /// Source of the SFDP area: `none`, `derived` from this description, `dump` of a real part, `dump of`
    /// another chip, adapted.
    pub sfdp_source: String,
    /// Whether the chip has non-volatile cells that need no erase: FRAM.
    pub writes_in_place: bool,
    /// Whether the chip powers up in the 4-byte address mode.
    pub four_byte_at_power_up: bool,
    /// Function of the HOLD#/RESET# pin where no register bit chooses it.
    pub hold_pin: HoldPin,
    /// Rule by which the mode byte of a read begins and ends the continuous read mode.
    pub continuous: Continuous,
    /// Erase cycles per sector that the datasheet guarantees.
    pub endurance: u64,
    /// Durations.
    pub times: Times,
    /// Supply voltages.
    pub supply: Supply,
    /// Registers in the order of the file.
    pub registers: Vec<Register>,
    /// Block protection by register bits.
    pub protection: Protection,
    /// Individual block locks; `None` if the chip has none.
    pub locks: Option<Locks>,
    /// Security registers or OTP area; `None` if the chip has none.
    pub security: Option<Security>,
    /// Commands in the order of the file.
    pub commands: Vec<Command>,
    by_opcode: Box<[[u16; 256]; 2]>,
}

/// Function of the HOLD#/RESET# pin. It has none while the quad enable bit is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldPin {
    /// A low level pauses the bus.
    Hold,
    /// A low level resets the chip.
    Reset,
}

/// Rule of the mode byte after a read's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuous {
    /// The mode byte has no effect.
    None,
    /// Bits 5 and 4 are 1 and 0 (Winbond, GigaDevice: M5-4 = 10b).
    Bits54,
    /// The high nibble is the complement of the low one (Macronix: P7-4 and P3-0 toggle).
    Toggle,
    /// The high nibble is Ah (Infineon: Axh).
    NibbleA,
}

/// Durations in nanoseconds, typical and maximum.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// Program of a whole page (tPP).
    pub page_program: Span,
    /// Typical program of the first byte (tBP1) and of each further one (tBP2); `None` where the datasheet
    /// has only tPP.
    pub byte_program: Option<(u64, u64)>,
    /// Write of a non-volatile register (tW).
    pub write_register: Span,
    /// Erases by size in bytes.
    pub erases: Vec<(u32, Span)>,
    /// Erase of the whole array (tCE).
    pub chip_erase: Span,
    /// From the suspend command to the suspended state (tSUS).
    pub suspend: u64,
    /// From the deep power-down command to that state (tDP).
    pub deep_power_down: u64,
    /// From the release command to standby (tRES1).
    pub release: u64,
    /// Recovery after a software reset (tRST).
    pub reset: u64,
    /// From power-on to the first read command (tVSL).
    pub power_up_read: u64,
    /// From power-on to the first write command (tPUW).
    pub power_up_write: u64,
}

/// A typical and a maximum duration in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// Typical.
    pub typical: u64,
    /// Maximum.
    pub maximum: u64,
}

/// Supply voltages in millivolts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Supply {
    /// Lowest voltage of normal operation (VCC minimum).
    pub minimum: u32,
    /// Below this voltage writes are inhibited and the chip resets (VWI).
    pub write_inhibit: u32,
}

/// Meaning of a register bit to the interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Meaning {
    /// Reserved, or a setting without effect on the model.
    Plain,
    /// Write in progress.
    Wip,
    /// Ready: the inverse of write in progress.
    Ready,
    /// Write enable latch.
    Wel,
    /// Block protect bit of this weight.
    Bp(u8),
    /// Top or bottom of the block protection.
    Tb,
    /// 4-KiB sectors instead of blocks in the block protection.
    Sec,
    /// Complement of the block protection.
    Cmp,
    /// Status register protect by the WP# pin.
    Srp,
    /// Status register lock.
    Srl,
    /// Quad enable.
    Qe,
    /// A program or an erase is suspended.
    Suspended,
    /// A program is suspended.
    ProgramSuspended,
    /// An erase is suspended.
    EraseSuspended,
    /// Lock of a security register.
    SecurityLock(u8),
    /// Individual block locks instead of the block protection.
    Wps,
    /// Current address mode: 1 is 4-byte.
    Ads,
    /// Address mode after power-up: 1 is 4-byte.
    Adp,
    /// Address bit from 24 upwards, in the extended address register.
    ExtendedAddress(u8),
    /// Function of the HOLD#/RESET# pin: 1 is RESET#.
    HoldReset,
    /// The last program failed.
    ProgramFail,
    /// The last erase failed.
    EraseFail,
    /// The last program or erase was of a protected area.
    ProtectFail,
    /// AAI programming mode.
    Aai,
    /// QPI mode.
    Qpi,
    /// The individual security area is permanently locked.
    OtpLocked,
}

/// A status, configuration or security register of eight bits.
#[derive(Debug, Clone)]
pub struct Register {
    /// Name, as in the datasheet.
    pub name: String,
    /// Names of the bits, bit 0 first; `-` is reserved.
    pub bits: Vec<String>,
    /// Meanings of the bits, bit 0 first.
    pub meanings: [Meaning; 8],
    /// Bits that a register write changes.
    pub writable: u8,
    /// Bits that keep their value without power. A subset of `writable`.
    pub non_volatile: u8,
    /// Bits that can be set but never cleared.
    pub one_time: u8,
    /// Value on delivery, and value of volatile bits after power-up.
    pub factory: u8,
    /// Address of the value in force for `read-any-register` and `write-any-register`.
    pub address: Option<u32>,
    /// Address of the value that is kept without power, for the same commands.
    pub kept_address: Option<u32>,
}

/// Block protection by the BP bits.
#[derive(Debug, Clone, Default)]
pub struct Protection {
    /// Number of BP bits; 0 for none.
    pub bits: u8,
    /// Bytes protected when BP is 1. Each further step doubles it.
    pub unit: u32,
    /// Bytes protected when BP is 1, with SEC = 1.
    pub sector_unit: u32,
    /// Largest area with SEC = 1.
    pub sector_limit: u32,
    /// SRP = 1 with SRL = 1 locks the registers permanently.
    pub lock_for_ever: bool,
    /// A refused program or erase clears WEL (Macronix) instead of leaving it set.
    pub refusal_clears_wel: bool,
}

/// Individual block locks.
#[derive(Debug, Clone)]
pub struct Locks {
    /// Bytes per lock.
    pub block: u32,
    /// Bytes per lock in the first and the last block.
    pub edge: u32,
    /// Whether all blocks are locked after power-up.
    pub locked_at_power_up: bool,
    /// Whether the locks apply only while the WPS bit is 1, and replace the BP bits then.
    pub by_wps: bool,
}

/// Security registers.
#[derive(Debug, Clone)]
pub struct Security {
    /// Number of registers.
    pub registers: u32,
    /// Bytes of each.
    pub size: u32,
    /// Address of the first.
    pub first: u32,
    /// Distance of their addresses.
    pub step: u32,
    /// Whether the last byte is the control byte: while its bit 0 is 0, the registers are locked.
    pub control_byte: bool,
}

/// Protocol in which an opcode is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Opcode on one line.
    Spi,
    /// Opcode on four lines.
    Qpi,
    /// Both.
    Both,
}

/// Width of a command's address phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressWidth {
    /// No address.
    None,
    /// This many bytes in every mode.
    Bytes(u8),
    /// 3 or 4 bytes by the address mode.
    Mode,
}

/// One command of the chip and its bus phases.
#[derive(Debug, Clone)]
pub struct Command {
    /// Opcode.
    pub opcode: u8,
    /// Name, as in the datasheet.
    pub name: String,
    /// Effect of the command.
    pub action: Action,
    /// Protocol in which the opcode is valid.
    pub protocol: Protocol,
    /// Width of the address.
    pub address: AddressWidth,
    /// Lines of opcode, address (with mode and dummy) and data.
    pub lines: [u8; 3],
    /// Whether a mode byte follows the address.
    pub mode: bool,
    /// Dummy clocks before the data.
    pub dummy: u8,
    /// Dummy clocks in QPI, mode byte included; `None` is as set by `set-read-parameters`.
    pub qpi_dummy: Option<u8>,
    /// Dummy clocks that a register selects, in place of `dummy` and `qpi_dummy`; the mode byte is not
    /// included.
    pub latency: Option<Latency>,
    /// Highest clock in hertz; 0 if unknown.
    pub max_clock: u32,
    /// Whether the write enable latch must be set.
    pub write_enable: bool,
    /// Whether the quad enable bit must be set, on chips that have one; not in QPI.
    pub quad_enable: bool,
    /// Whether reads wrap as set by `set-burst-wrap`.
    pub wraps: bool,
    /// Conditions in which the command is accepted.
    pub conditions: Conditions,
    /// Bytes that an erase erases.
    pub size: u32,
    /// Indexes of the registers that the command reads or writes.
    pub registers: Vec<u8>,
}

/// Dummy clocks selected by bits of a register.
#[derive(Debug, Clone)]
pub struct Latency {
    /// Register, as an index.
    pub register: u8,
    /// Lowest of the bits.
    pub shift: u8,
    /// Dummy clocks for each value of the bits; a power of two of them.
    pub clocks: Vec<u8>,
}

/// Error in a chip file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescriptionError {
    /// Name of the file.
    pub file: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// The problem, the expected value, and the remedy.
    pub message: String,
}

impl fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)
    }
}

impl std::error::Error for DescriptionError {}

impl Description {
    /// Reads and checks the text of a chip file. `file` is its name for errors.
    ///
    /// # Errors
    /// The first problem, with line and column.
    pub fn parse(file: &str, text: &str) -> Result<Arc<Description>, DescriptionError> {
        file::parse(file, text).map(Arc::new)
    }

    /// Returns the command of an opcode in SPI or QPI.
    pub fn command(&self, opcode: u8, qpi: bool) -> Option<&Command> {
        self.commands.get(self.index_of(opcode, qpi)?)
    }

    pub(crate) fn index_of(&self, opcode: u8, qpi: bool) -> Option<usize> {
        match self.by_opcode[usize::from(qpi)][usize::from(opcode)] {
            u16::MAX => None,
            index => Some(usize::from(index)),
        }
    }

    /// Returns the smallest erasable size in bytes; 0 for chips without erase.
    pub fn sector(&self) -> u32 {
        self.times.erases.iter().map(|(size, _)| *size).min().unwrap_or(0)
    }

    /// Returns the register and the bit with a meaning.
    pub fn bit(&self, meaning: Meaning) -> Option<(usize, u8)> {
        self.registers.iter().enumerate().find_map(|(index, register)| {
            register.meanings.iter().position(|m| *m == meaning).map(|bit| (index, bit as u8))
        })
    }

    /// Returns the time of an erase of `size` bytes.
    pub(crate) fn erase_time(&self, size: u32) -> Span {
        self.times.erases.iter().find(|(known, _)| *known == size).map_or(Span::default(), |(_, span)| *span)
    }
}
