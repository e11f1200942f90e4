//! The interpreter: one state machine for all chips, driven by bus clocks, pins, power and the time that the
//! caller passes in.
//!
//! - `changes`: parts of the array that changed since they were saved;
//! - `link`: the bus phases of a transaction, bit by bit, with fast paths for bytes and runs of bytes;
//! - `execute`: effects of commands when their transaction ends;
//! - `operation`: programs, erases and register writes that take time, their suspension, and their state
//!   after a cut;
//! - `protection`: programs, erases and register writes that the chip refuses.
//!
//! Nothing here reads a clock, draws from the system's randomness or does I/O: time comes from
//! [`Chip::advance`], randomness from the seed.

mod changes;
mod execute;
mod link;
mod operation;
mod protection;

use crate::action::{Action, Condition};
use crate::cells::{Aging, NonVolatile};
use crate::description::{Description, HoldPin, Meaning};
use crate::faults::Faults;
use crate::random::Random;
use crate::trace::Trace;
use changes::Changes;
use link::Link;
use operation::Operation;
use std::ffi::CStr;
use std::sync::Arc;

/// Memory that holds the array's bytes.
pub trait Storage: Send {
    /// Returns all bytes of the array.
    fn bytes(&self) -> &[u8];
    /// Returns all bytes of the array, mutably.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Storage for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Storage for Box<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Time for which an operation keeps the chip busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BusyTime {
    /// The typical time of the datasheet.
    Typical,
    /// The maximum time of the datasheet.
    Maximum,
    /// Until the busy bit was read this many times; 0 ends every operation at once.
    Polls(u32),
}

/// A pin that a test can drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// WP#.
    WriteProtect,
    /// HOLD# or RESET#, depending on the chip or its register.
    HoldReset,
}

/// State of the chip, in the datasheets' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No supply.
    PowerDown,
    /// Supply present, but tVSL has not passed.
    PowerUp,
    /// Ready.
    Standby,
    /// Ready with the write enable latch set.
    WriteEnabled,
    /// A program runs.
    Programming,
    /// An erase runs.
    Erasing,
    /// A register write runs.
    WritingRegister,
    /// Recovery from a reset, or entry to or release from deep power-down: no command is accepted.
    Recovering,
    /// A program is suspended.
    ProgramSuspended,
    /// An erase is suspended.
    EraseSuspended,
    /// Deep power-down.
    DeepPowerDown,
    /// The next transaction begins with an address, without an opcode.
    ContinuousRead,
    /// AAI programming mode.
    AaiProgramming,
}

macro_rules! refusals {
    ($($variant:ident $words:literal $doc:literal,)*) => {
        /// Reason for which the chip ignored a command.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Refusal {
            $(#[doc = $doc] $variant,)*
        }

        impl Refusal {
            /// All reasons.
            pub const ALL: &[Refusal] = &[$(Refusal::$variant,)*];

            /// Returns the reason in words.
            pub fn words(self) -> &'static str {
                match self {
                    $(Refusal::$variant => $words,)*
                }
            }

            /// Returns the reason in words, for C.
            pub fn c_words(self) -> &'static CStr {
                match self {
                    $(Refusal::$variant => {
                        const { c_text(concat!($words, "\0")) }
                    })*
                }
            }
        }
    };
}

const fn c_text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a text with one NUL, at its end"),
    }
}

refusals! {
    NoPower "no power" "Off, or still powering up.",
    UnknownOpcode "unknown opcode" "Unknown opcode.",
    Busy "busy" "An operation runs.",
    Suspended "suspended" "Not accepted while a program or an erase is suspended, or in that block.",
    NotSuspended "nothing to suspend or resume" "Not accepted outside the state it is for.",
    DeepPowerDown "deep power-down" "Deep power-down.",
    NotWriteEnabled "not write-enabled" "The write enable latch is 0.",
    NotQuadEnabled "not quad-enabled" "The quad enable bit is 0.",
    Protected "protected" "The area or the register is protected.",
    Incomplete "incomplete" "CS# rose within a byte, before all bytes were there, or after too many.",
    OutOfSequence "out of sequence" "Reset without reset-enable before it, or another command in AAI mode.",
}

/// Counts of events since the chip was created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Transactions with at least one clock.
    pub transactions: u64,
    /// Bytes on the bus, in both directions.
    pub bus_bytes: u64,
    /// Bytes read from the array.
    pub bytes_read: u64,
    /// Operations begun: programs, erases, register writes.
    pub operations: u64,
    /// Reads of a register with the busy bit while busy.
    pub busy_polls: u64,
    /// Number of bytes whose program would set a bit that is 0 to 1.
    pub overwrites: u64,
    /// Transactions faster than the command's maximal clock.
    pub too_fast: u64,
    /// Bits that faults flipped: bus, read disturb, aging.
    pub flipped_bits: u64,
    refused: [u64; Refusal::ALL.len()],
}

impl Counters {
    /// Returns the number of commands refused for a reason.
    pub fn refused(&self, reason: Refusal) -> u64 {
        self.refused[reason as usize]
    }

    /// Returns the number of all refused commands.
    pub fn all_refused(&self) -> u64 {
        self.refused.iter().sum()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    Off,
    On { since: u64 },
}

/// Volatile state besides the registers.
#[derive(Debug, Clone, Default)]
struct Modes {
    write_enabled: bool,
    volatile_enabled: bool,
    reset_enabled: bool,
    qpi: bool,
    four_byte: bool,
    deep_power_down: bool,
    otp: bool,
    /// Command index of the continuous read.
    continuous: Option<u16>,
    /// Next address of AAI programming.
    aai: Option<u32>,
    /// Wrap length of reads in bytes, as set by `set-burst-wrap`.
    wrap: Option<u32>,
    /// Wrap length of QPI burst reads, as set by `set-read-parameters`.
    qpi_wrap: u32,
    /// Dummy clocks of QPI reads.
    qpi_dummy: u8,
    program_fail: bool,
    erase_fail: bool,
    protect_fail: bool,
}

/// Bits of a register that are computed when it is read.
#[derive(Debug, Clone, Copy, Default)]
struct Masks {
    stored: u8,
    wip: u8,
    ready: u8,
    wel: u8,
    suspended: u8,
    program_suspended: u8,
    erase_suspended: u8,
    ads: u8,
    aai: u8,
    qpi: u8,
    program_fail: u8,
    erase_fail: u8,
    protect_fail: u8,
}

/// Error: the image or the saved state has another size than the chip's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeError(String);

impl std::fmt::Display for SizeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SizeError {}

/// A flash chip.
pub struct Chip {
    description: Arc<Description>,
    memory: Box<dyn Storage>,
    cells: NonVolatile,
    registers: Vec<u8>,
    masks: Vec<Masks>,
    /// Individual locks: bit 0 is the lock, bit 1 the lock-down.
    locks: Vec<u8>,
    seed: u64,
    random: Random,
    now: u64,
    power: Power,
    write_protect: bool,
    hold_reset: bool,
    link: Link,
    modes: Modes,
    operation: Option<Operation>,
    suspended: Option<Operation>,
    busy_time: BusyTime,
    clock: Option<u32>,
    clock_passes_time: bool,
    faults: Faults,
    disturbed: Vec<u64>,
    changes: Changes,
    trace: Trace,
    counters: Counters,
}

impl Chip {
    /// Creates a chip with the given contents of its array, powered on with its start-up time passed.
    ///
    /// `seed` decides the unique ID, the wear limits and all randomness of faults.
    ///
    /// # Errors
    /// The array has another size than the description gives.
    pub fn new(
        description: Arc<Description>,
        memory: impl Storage + 'static,
        seed: u64,
    ) -> Result<Chip, SizeError> {
        let length = memory.bytes().len();
        if length as u64 != u64::from(description.size) {
            return Err(SizeError(format!(
                "image for chip \"{}\": wrong size: {length} bytes; expected {} bytes",
                description.name, description.size
            )));
        }
        let mut random = Random::new(seed);
        let unique_id = (0..description.unique_id).map(|_| random.byte()).collect();
        let security = description.security.as_ref().map_or(0, |s| s.registers * s.size);
        let sectors = description.size.checked_div(description.sector()).unwrap_or(0) as usize;
        let cells = NonVolatile {
            registers: description.registers.iter().map(|r| r.factory).collect(),
            security: vec![0xFF; security as usize],
            unique_id,
            erase_counts: vec![0; sectors],
            stuck: Default::default(),
            marginal: Default::default(),
        };
        let masks = description.registers.iter().map(|r| Masks::of(&r.meanings)).collect();
        let mut chip = Chip {
            registers: vec![0; description.registers.len()],
            masks,
            locks: vec![0; protection::lock_count(&description)],
            link: Link::new(&description),
            memory: Box::new(memory),
            cells,
            seed,
            random,
            now: 0,
            power: Power::Off,
            write_protect: true,
            hold_reset: true,
            modes: Modes::default(),
            operation: None,
            suspended: None,
            busy_time: BusyTime::Typical,
            clock: None,
            clock_passes_time: false,
            faults: Faults::default(),
            disturbed: vec![0; sectors],
            changes: Changes::new(description.size),
            trace: Trace::default(),
            counters: Counters::default(),
            description,
        };
        chip.power_on();
        chip.now = chip.description.times.power_up_read.max(chip.description.times.power_up_write);
        Ok(chip)
    }

    /// Creates an erased chip.
    pub fn erased(description: Arc<Description>, seed: u64) -> Chip {
        let value = if description.writes_in_place { 0 } else { 0xFF };
        let image = vec![value; description.size as usize];
        Chip::new(description, image, seed).expect("the image has the chip's size")
    }

    /// Returns the chip's description.
    pub fn description(&self) -> &Arc<Description> {
        &self.description
    }

    /// Returns the array as stored, without faults of reading.
    pub fn memory(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Returns the array mutably, for changes without the bus.
    pub fn memory_mut(&mut self) -> &mut [u8] {
        self.changes.mark(0..self.description.size);
        self.memory.bytes_mut()
    }

    /// Returns the state that survives without power besides the array, for saving.
    pub fn non_volatile(&self) -> &NonVolatile {
        &self.cells
    }

    /// Restores state that [`Chip::non_volatile`] returned, and cycles the power.
    ///
    /// # Errors
    /// The state is from another type of chip.
    pub fn restore(&mut self, saved: NonVolatile) -> Result<(), SizeError> {
        let same = |a: usize, b: usize| a == b;
        let fits = same(saved.registers.len(), self.cells.registers.len())
            && same(saved.security.len(), self.cells.security.len())
            && same(saved.erase_counts.len(), self.cells.erase_counts.len())
            && same(saved.unique_id.len(), self.cells.unique_id.len())
            && [saved.stuck.keys().last(), saved.marginal.keys().last()]
                .into_iter()
                .flatten()
                .all(|address| *address < self.description.size);
        if !fits {
            return Err(SizeError(format!(
                "saved state for chip \"{}\": made for another chip; expected its own sizes",
                self.description.name
            )));
        }
        self.power_off();
        self.cells = saved;
        self.power_on();
        Ok(())
    }

    /// Returns the erase counts per sector.
    pub fn erase_counts(&self) -> &[u32] {
        &self.cells.erase_counts
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the trace.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Keeps the last `transactions` transactions in the trace; 0 keeps none.
    pub fn set_trace(&mut self, transactions: usize) {
        self.trace = Trace::new(transactions);
    }

    /// Sets the time for which later operations keep the chip busy.
    pub fn set_busy_time(&mut self, busy_time: BusyTime) {
        self.busy_time = busy_time;
    }

    /// Sets the bus clock in hertz; `None` if unknown. Transactions faster than a command allows are counted.
    ///
    /// With `passes_time` the clocks of a transaction advance the chip's time when it ends.
    pub fn set_clock(&mut self, hertz: Option<u32>, passes_time: bool) {
        self.clock = hertz.filter(|hertz| *hertz > 0);
        self.clock_passes_time = passes_time;
    }

    /// Sets the faults in force.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Returns the faults in force.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Returns the chip's time in nanoseconds since it was created.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Lets time pass. An operation whose time is over completes.
    pub fn advance(&mut self, nanoseconds: u64) {
        self.now = self.now.saturating_add(nanoseconds);
        self.settle();
    }

    /// Returns the time in nanoseconds until the running operation ends; `None` if none runs, or if it
    /// doesn't end by time.
    pub fn busy_for(&self) -> Option<u64> {
        self.operation.as_ref()?.ends.map(|ends| ends.saturating_sub(self.now))
    }

    /// Drives a pin. Both are high at first.
    pub fn set_pin(&mut self, pin: Pin, high: bool) {
        match pin {
            Pin::WriteProtect => self.write_protect = high,
            Pin::HoldReset => {
                let falls = self.hold_reset && !high;
                self.hold_reset = high;
                if falls && self.is_on() && self.hold_pin() == Some(HoldPin::Reset) {
                    self.reset();
                }
            }
        }
    }

    /// Returns the function of the HOLD#/RESET# pin; `None` while the quad enable bit gives it to the bus.
    fn hold_pin(&self) -> Option<HoldPin> {
        if self.modes.qpi || self.is_set(Meaning::Qe) {
            return None;
        }
        match self.description.bit(Meaning::HoldReset) {
            Some(_) if self.is_set(Meaning::HoldReset) => Some(HoldPin::Reset),
            Some(_) => Some(HoldPin::Hold),
            None => Some(self.description.hold_pin),
        }
    }

    fn is_on(&self) -> bool {
        self.power != Power::Off
    }

    /// Cuts the power. A running or suspended operation is left half-done.
    pub fn power_off(&mut self) {
        if !self.is_on() {
            return;
        }
        self.abort();
        self.power = Power::Off;
        self.modes = Modes::default();
        self.link.abandon();
        if self.link.selected {
            self.link.refusal = Some(Refusal::NoPower);
        }
    }

    /// Applies the power. Commands are accepted once the start-up times have passed. Does nothing while it is
    /// on.
    pub fn power_on(&mut self) {
        if self.is_on() {
            return;
        }
        self.power = Power::On { since: self.now };
        self.reload(true);
        // A transaction that began without power has no effect.
        if self.link.selected {
            self.link.abandon();
            self.link.refusal = Some(Refusal::NoPower);
        }
    }

    /// Sets the supply voltage in millivolts: below the write inhibit voltage the chip loses power, and at or
    /// above the minimum voltage it gains power. In between nothing changes.
    pub fn set_supply(&mut self, millivolts: u32) {
        let supply = self.description.supply;
        if millivolts < supply.write_inhibit {
            self.power_off();
        } else if millivolts >= supply.minimum {
            self.power_on();
        }
    }

    /// Loads volatile state as after power-up, or as after a reset if not `cold`.
    fn reload(&mut self, cold: bool) {
        if cold && self.is_set_in(&self.cells.registers, Meaning::Srl) {
            // Power supply lock-down ends with a power cycle and clears SRL, unless SRP = 1 makes it
            // permanent.
            let for_ever = self.description.protection.lock_for_ever
                && self.is_set_in(&self.cells.registers, Meaning::Srp);
            if !for_ever && let Some((register, bit)) = self.description.bit(Meaning::Srl) {
                self.cells.registers[register] &= !(1 << bit);
            }
        }
        for (n, register) in self.description.registers.iter().enumerate() {
            let kept = register.non_volatile;
            self.registers[n] = self.cells.registers[n] & kept | register.factory & !kept;
        }
        self.modes = Modes { qpi_dummy: 2, qpi_wrap: 8, ..Modes::default() };
        self.modes.four_byte = self.description.four_byte_at_power_up || self.is_set(Meaning::Adp);
        if cold {
            let locked = self.description.locks.as_ref().is_some_and(|locks| locks.locked_at_power_up);
            self.locks.fill(u8::from(locked));
        }
    }

    /// Resets the chip: ends every mode, aborts every operation, takes tRST.
    fn reset(&mut self) {
        self.abort();
        self.link.abandon();
        self.reload(false);
        let reset = self.description.times.reset;
        self.recover(reset);
    }

    fn is_set_in(&self, registers: &[u8], meaning: Meaning) -> bool {
        self.description.bit(meaning).is_some_and(|(register, bit)| registers[register] >> bit & 1 == 1)
    }

    /// Returns whether the stored bit with this meaning is 1.
    fn is_set(&self, meaning: Meaning) -> bool {
        self.is_set_in(&self.registers, meaning)
    }

    /// Returns the value of a register as the bus would read it; `None` for an unknown name.
    pub fn register(&self, name: &str) -> Option<u8> {
        let index = self.description.registers.iter().position(|r| r.name == name)?;
        Some(self.register_value(index))
    }

    fn register_value(&self, index: usize) -> u8 {
        let masks = &self.masks[index];
        let pick = |condition: bool, mask: u8| if condition { mask } else { 0 };
        let busy = self.operation.is_some();
        let suspended = self.suspended.as_ref();
        let program = suspended.is_some_and(Operation::is_program);
        let mut value = self.registers[index] & masks.stored;
        value |= if busy { masks.wip } else { masks.ready };
        value |= pick(self.modes.write_enabled, masks.wel);
        value |= pick(suspended.is_some(), masks.suspended);
        value |= pick(program, masks.program_suspended);
        value |= pick(suspended.is_some() && !program, masks.erase_suspended);
        value |= pick(self.modes.four_byte, masks.ads);
        value |= pick(self.modes.aai.is_some(), masks.aai);
        value |= pick(self.modes.qpi, masks.qpi);
        value |= pick(self.modes.program_fail, masks.program_fail);
        value |= pick(self.modes.erase_fail, masks.erase_fail);
        value | pick(self.modes.protect_fail, masks.protect_fail)
    }

    /// Returns the chip's state.
    pub fn state(&self) -> State {
        match self.power {
            Power::Off => return State::PowerDown,
            Power::On { since } if self.now < since.saturating_add(self.description.times.power_up_read) => {
                return State::PowerUp;
            }
            Power::On { .. } => {}
        }
        if let Some(operation) = &self.operation {
            return match &self.suspended {
                // Within tSUS the chip still runs the operation that it suspends.
                Some(suspended) if operation.is_suspending() => suspended.state(),
                _ => operation.state(),
            };
        }
        if self.modes.deep_power_down {
            return State::DeepPowerDown;
        }
        match &self.suspended {
            Some(operation) if operation.is_program() => State::ProgramSuspended,
            Some(_) => State::EraseSuspended,
            None if self.modes.continuous.is_some() => State::ContinuousRead,
            None if self.modes.aai.is_some() => State::AaiProgramming,
            None if self.modes.write_enabled => State::WriteEnabled,
            None => State::Standby,
        }
    }

    /// Returns whether the chip is in QPI.
    pub fn is_qpi(&self) -> bool {
        self.modes.qpi
    }

    /// Returns whether the chip is in the 4-byte address mode.
    pub fn is_four_byte(&self) -> bool {
        self.modes.four_byte
    }

    fn condition(&self) -> Condition {
        if self.modes.deep_power_down {
            return Condition::DeepPowerDown;
        }
        if self.operation.is_some() {
            return Condition::Busy;
        }
        match &self.suspended {
            Some(operation) if operation.is_program() => Condition::ProgramSuspended,
            Some(_) => Condition::EraseSuspended,
            None => Condition::Ready,
        }
    }

    /// Ages the cells by a time at a temperature: programmed bits lose their charge. Returns the number of
    /// flipped bits.
    pub fn age(&mut self, aging: Aging) -> u64 {
        if self.description.writes_in_place {
            return 0;
        }
        let sector = self.description.sector();
        let endurance = self.description.endurance;
        let (cells, changes) = (&self.cells, &mut self.changes);
        let lost = cells.age(self.memory.bytes_mut(), sector, aging, endurance, &mut self.random, |range| {
            changes.mark(range);
        });
        self.counters.flipped_bits += lost;
        lost
    }

    fn action(&self, command: usize) -> Action {
        self.description.commands[command].action
    }
}

impl Masks {
    fn of(meanings: &[Meaning; 8]) -> Masks {
        let mut masks = Masks { stored: 0xFF, ..Masks::default() };
        for (bit, meaning) in meanings.iter().enumerate() {
            let slot = match meaning {
                Meaning::Wip => &mut masks.wip,
                Meaning::Ready => &mut masks.ready,
                Meaning::Wel => &mut masks.wel,
                Meaning::Suspended => &mut masks.suspended,
                Meaning::ProgramSuspended => &mut masks.program_suspended,
                Meaning::EraseSuspended => &mut masks.erase_suspended,
                Meaning::Ads => &mut masks.ads,
                Meaning::Aai => &mut masks.aai,
                Meaning::Qpi => &mut masks.qpi,
                Meaning::ProgramFail => &mut masks.program_fail,
                Meaning::EraseFail => &mut masks.erase_fail,
                Meaning::ProtectFail => &mut masks.protect_fail,
                _ => continue,
            };
            *slot |= 1 << bit;
            masks.stored &= !(1 << bit);
        }
        masks
    }
}
