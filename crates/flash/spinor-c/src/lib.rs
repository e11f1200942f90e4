//! The chips of the crate `spinor` for programs in C: `libsiltstone_spinor.a` and `.so`, with
//! `include/siltstone_spinor.h`.
//!
//! - this file: opening, the bus with lines per phase, time, power, faults, state and counters of the chip;
//! - [`block`]: littlefs-shaped block functions, which drive the bus as a driver does.
//!
//! # Safety
//! The contract of every function here: a `chip` is NULL, or was returned by [`spinor_open`] or
//! [`spinor_open_toml`], hasn't been closed, and isn't used by another thread at the same time; a pointer to
//! bytes is NULL, or points to as many bytes as the length after it; a text is NULL or ends with a NUL.
//! Everything else is checked: NULL, lengths and numbers out of range are errors. Panics are caught;
//! afterwards the chip is unusable and its functions return their error. (Build with the profile `library`:
//! in the workspace's profile `release` a panic ends the process.)
#![allow(unsafe_code)] // The border to C: names that C links to, pointers from C. Each block has its reason.
#![allow(non_camel_case_types)] // The names of C.
#![allow(clippy::missing_safety_doc)] // The module's head has it, for all functions.

pub mod block;

use spinor::{BusyTime, Chip, Cut, Description, Faults, Pin, State};
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Success.
pub const SPINOR_OK: i32 = 0;
/// The chip is off, refused the command or remains busy; LFS_ERR_IO of littlefs.
pub const SPINOR_ERR_IO: i32 = -5;
/// A pointer is NULL, or a number out of range; LFS_ERR_INVAL of littlefs.
pub const SPINOR_ERR_INVALID: i32 = -22;
/// The chip doesn't support this, such as the erase of a block of an FRAM.
pub const SPINOR_ERR_UNSUPPORTED: i32 = -95;
/// Time of a chip that isn't busy, or whose operation doesn't end by time.
pub const SPINOR_NEVER: u64 = 0xFFFF_FFFF_FFFF_FFFF;

/// A flash chip.
pub struct spinor_chip {
    chip: Chip,
    is_broken: bool,
}

/// Active faults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct spinor_faults {
    /// Cut the power after this number of further bytes on the bus; negative: never.
    pub cut_bus_byte: i64,
    /// Cut the power during an operation, after this number of further ones; negative: never.
    pub cut_operation: i64,
    /// Share of that operation's time that passes before the cut, 0 to 1.
    pub cut_fraction: f64,
    /// Probability that a byte from the host arrives with one bit flipped.
    pub flip_in: f64,
    /// Probability that a byte from the chip arrives with one bit flipped.
    pub flip_out: f64,
    /// After this number of further operations, one never ends; negative: never.
    pub stuck_busy: i64,
    /// Whether cells wear beyond the chip's endurance.
    pub wear: bool,
    /// Mean number of bytes read in a sector for one read-disturb bit flip in it; 0 for none.
    pub read_disturb: u64,
}

/// Counters of the chip.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct spinor_counters {
    /// Transactions with at least one clock.
    pub transactions: u64,
    /// Bytes on the bus.
    pub bus_bytes: u64,
    /// Bytes read from the array.
    pub bytes_read: u64,
    /// Programs, erases and register writes.
    pub operations: u64,
    /// Status reads while busy.
    pub busy_polls: u64,
    /// Bytes whose program contained a 1 for a cell that is 0.
    pub overwrites: u64,
    /// Transactions faster than the command allows.
    pub too_fast: u64,
    /// Bits flipped by faults.
    pub flipped_bits: u64,
    /// Refused commands.
    pub refused: u64,
}

/// State of the chip.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum spinor_state {
    /// `chip` was NULL, or a panic broke it.
    SPINOR_INVALID = -1,
    /// No supply.
    SPINOR_POWER_DOWN = 0,
    /// Supply present, but tVSL has not passed.
    SPINOR_POWER_UP = 1,
    /// Ready.
    SPINOR_STANDBY = 2,
    /// Ready with the write enable latch set.
    SPINOR_WRITE_ENABLED = 3,
    /// A program runs.
    SPINOR_PROGRAMMING = 4,
    /// An erase runs.
    SPINOR_ERASING = 5,
    /// A register write runs.
    SPINOR_WRITING_REGISTER = 6,
    /// No command is accepted: after a reset, or while entering or leaving deep power-down.
    SPINOR_RECOVERING = 7,
    /// A program is suspended.
    SPINOR_PROGRAM_SUSPENDED = 8,
    /// An erase is suspended.
    SPINOR_ERASE_SUSPENDED = 9,
    /// Deep power-down.
    SPINOR_DEEP_POWER_DOWN = 10,
    /// The next transaction begins with an address.
    SPINOR_CONTINUOUS_READ = 11,
    /// AAI programming mode.
    SPINOR_AAI_PROGRAMMING = 12,
}

/// Calls a function with the chip; returns `failed` for NULL, and after a panic.
fn with<R>(chip: *mut spinor_chip, failed: R, call: impl FnOnce(&mut Chip) -> R) -> R {
    // SAFETY: by the contract of this crate's functions it is NULL or an open chip without other users now.
    let Some(chip) = (unsafe { chip.as_mut() }) else { return failed };
    if chip.is_broken {
        return failed;
    }
    match catch_unwind(AssertUnwindSafe(|| call(&mut chip.chip))) {
        Ok(value) => value,
        Err(_) => {
            chip.is_broken = true;
            failed
        }
    }
}

/// Returns the bytes at a C pointer; `None` for NULL or an impossible length. NULL with length 0 is empty.
///
/// # Safety
/// `bytes` is NULL or points to `length` bytes that don't change while the result lives.
unsafe fn input<'a>(bytes: *const u8, length: usize) -> Option<&'a [u8]> {
    if length == 0 {
        return Some(&[]);
    }
    if bytes.is_null() || isize::try_from(length).is_err() {
        return None;
    }
    // SAFETY: the caller's contract; it isn't NULL, and an object can have the length.
    Some(unsafe { std::slice::from_raw_parts(bytes, length) })
}

/// Returns the bytes at a C pointer, for writing; `None` for NULL or an impossible length.
///
/// # Safety
/// `bytes` is NULL or points to `length` bytes without other users while the result lives.
unsafe fn output<'a>(bytes: *mut u8, length: usize) -> Option<&'a mut [u8]> {
    if length == 0 {
        return Some(&mut []);
    }
    if bytes.is_null() || isize::try_from(length).is_err() {
        return None;
    }
    // SAFETY: the caller's contract; it isn't NULL, and an object can have the length. Bytes that C has not
    // initialized have some value, as memory of a foreign allocation does; they are only written.
    Some(unsafe { std::slice::from_raw_parts_mut(bytes, length) })
}

/// Returns the text at a C pointer; `None` for NULL or bytes that aren't UTF-8.
///
/// # Safety
/// `text` is NULL or ends with a NUL, and doesn't change while the result lives.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's contract; it isn't NULL.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Copies a text to C, truncated to the buffer and ended with a NUL. Returns its whole length, as snprintf
/// does.
fn put_text(from: &str, to: &mut [u8]) -> usize {
    if let Some(room) = to.len().checked_sub(1) {
        let length = from.len().min(room);
        to[..length].copy_from_slice(&from.as_bytes()[..length]);
        to[length] = 0;
    }
    from.len()
}

fn opened(made: impl FnOnce() -> Result<Chip, String>, error: &mut [u8]) -> *mut spinor_chip {
    match catch_unwind(AssertUnwindSafe(made)) {
        Ok(Ok(chip)) => Box::into_raw(Box::new(spinor_chip { chip, is_broken: false })),
        Ok(Err(problem)) => {
            put_text(&problem, error);
            std::ptr::null_mut()
        }
        Err(_) => {
            put_text("internal error", error);
            std::ptr::null_mut()
        }
    }
}

/// Opens an erased chip of the library, such as "W25Q128JV". The seed determines the unique ID and all
/// randomness. Returns NULL for an unknown name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_open(name: *const c_char, seed: u64) -> *mut spinor_chip {
    // SAFETY: the contract of this crate's functions.
    let name = unsafe { text(name) };
    opened(
        || match name.and_then(spinor::chip) {
            Some(Ok(description)) => Ok(Chip::erased(description, seed)),
            _ => Err(String::new()),
        },
        &mut [],
    )
}

/// Opens an erased chip from the text of a chip file. Returns NULL for an error, which is written to `error`
/// with line and column.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_open_toml(
    toml: *const c_char,
    seed: u64,
    error: *mut c_char,
    error_size: usize,
) -> *mut spinor_chip {
    // SAFETY: the contract of this crate's functions.
    let (toml, error) = unsafe { (text(toml), output(error.cast(), error_size)) };
    let error = error.unwrap_or_default();
    opened(
        || {
            let toml = toml.ok_or("toml: NULL or not UTF-8; expected the text of a chip file")?;
            let description = Description::parse("chip", toml).map_err(|error| error.to_string())?;
            Ok(Chip::erased(description, seed))
        },
        error,
    )
}

/// Closes a chip. Does nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_close(chip: *mut spinor_chip) {
    if !chip.is_null() {
        // SAFETY: by the contract it came from a Box, and isn't used any more.
        let chip = unsafe { Box::from_raw(chip) };
        // A panic of a drop must not reach C.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(chip)));
    }
}

/// Returns the size of the array in bytes; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_size(chip: *mut spinor_chip) -> u32 {
    with(chip, 0, |chip| chip.description().size)
}

/// Returns the array's raw cells, spinor_size() bytes, valid until the next call with this chip; NULL for
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_memory(chip: *mut spinor_chip) -> *const u8 {
    with(chip, std::ptr::null(), |chip| chip.memory().as_ptr())
}

/// Replaces the array's cells; `length` must be the chip's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_load(chip: *mut spinor_chip, bytes: *const u8, length: usize) -> i32 {
    // SAFETY: the contract of this crate's functions.
    let bytes = unsafe { input(bytes, length) };
    with(chip, SPINOR_ERR_INVALID, |chip| match bytes {
        Some(bytes) if bytes.len() == chip.memory().len() => {
            chip.memory_mut().copy_from_slice(bytes);
            SPINOR_OK
        }
        _ => SPINOR_ERR_INVALID,
    })
}

/// Lowers CS#: a transaction begins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_select(chip: *mut spinor_chip) {
    with(chip, (), Chip::select);
}

/// Raises CS#: the command takes effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_deselect(chip: *mut spinor_chip) {
    with(chip, (), Chip::deselect);
}

fn are_lines(lines: u8) -> bool {
    matches!(lines, 1 | 2 | 4)
}

/// Exchanges a byte on 1, 2 or 4 lines: full duplex on one line, otherwise returns the chip's byte while it
/// drives the lines. Returns FFh for an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_transfer(chip: *mut spinor_chip, byte: u8, lines: u8) -> u8 {
    with(chip, 0xFF, |chip| if are_lines(lines) { chip.transfer(byte, lines) } else { 0xFF })
}

/// Sends bytes on 1, 2 or 4 lines: a phase of a transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_write(
    chip: *mut spinor_chip,
    bytes: *const u8,
    length: usize,
    lines: u8,
) -> i32 {
    // SAFETY: the contract of this crate's functions.
    let bytes = unsafe { input(bytes, length) };
    with(chip, SPINOR_ERR_INVALID, |chip| match bytes {
        Some(bytes) if are_lines(lines) => {
            chip.write(bytes, lines);
            SPINOR_OK
        }
        _ => SPINOR_ERR_INVALID,
    })
}

/// Reads bytes on 1, 2 or 4 lines: a phase of a transaction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_read(
    chip: *mut spinor_chip,
    bytes: *mut u8,
    length: usize,
    lines: u8,
) -> i32 {
    // SAFETY: the contract of this crate's functions.
    let bytes = unsafe { output(bytes, length) };
    with(chip, SPINOR_ERR_INVALID, |chip| match bytes {
        Some(bytes) if are_lines(lines) => {
            chip.read(bytes, lines);
            SPINOR_OK
        }
        _ => SPINOR_ERR_INVALID,
    })
}

/// Passes dummy clocks, during which the master drives no line.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_dummy(chip: *mut spinor_chip, clocks: u32) {
    with(chip, (), |chip| {
        for _ in 0..clocks {
            chip.clock(0xF);
        }
    });
}

/// Passes one clock: bits 0 to 3 of `pins` are the levels of IO0 to IO3 from the master, 1 for lines that it
/// doesn't drive. Returns the levels from the chip, 1 for lines that it doesn't drive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_clock(chip: *mut spinor_chip, pins: u8) -> u8 {
    with(chip, 0xF, |chip| chip.clock(pins & 0xF))
}

/// Executes a whole transaction on one line: selects, sends, reads, deselects.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_transact(
    chip: *mut spinor_chip,
    sent: *const u8,
    sent_length: usize,
    received: *mut u8,
    received_length: usize,
) -> i32 {
    // SAFETY: the contract of this crate's functions.
    let (sent, received) = unsafe { (input(sent, sent_length), output(received, received_length)) };
    with(chip, SPINOR_ERR_INVALID, |chip| match (sent, received) {
        (Some(sent), Some(received)) => {
            chip.transact(sent, received);
            SPINOR_OK
        }
        _ => SPINOR_ERR_INVALID,
    })
}

/// Advances the chip's time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_advance(chip: *mut spinor_chip, nanoseconds: u64) {
    with(chip, (), |chip| chip.advance(nanoseconds));
}

/// Returns the chip's time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_now(chip: *mut spinor_chip) -> u64 {
    with(chip, 0, |chip| chip.now())
}

/// Returns the time until the running operation ends; SPINOR_NEVER if none runs, or if it ends by polls or
/// never.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_busy_for(chip: *mut spinor_chip) -> u64 {
    with(chip, SPINOR_NEVER, |chip| chip.busy_for().unwrap_or(SPINOR_NEVER))
}

/// Sets whether operations take the typical or the maximum time of the datasheet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_set_busy_time(chip: *mut spinor_chip, maximum: bool) {
    with(chip, (), |chip| {
        chip.set_busy_time(if maximum { BusyTime::Maximum } else { BusyTime::Typical });
    });
}

/// Makes operations end after this number of polls of the status; 0 ends them at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_set_busy_polls(chip: *mut spinor_chip, polls: u32) {
    with(chip, (), |chip| chip.set_busy_time(BusyTime::Polls(polls)));
}

/// Sets the bus clock in hertz; 0 if unknown. With `passes_time`, its clocks advance the chip's time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_set_clock(chip: *mut spinor_chip, hertz: u32, passes_time: bool) {
    with(chip, (), |chip| chip.set_clock(Some(hertz), passes_time));
}

/// Switches the supply. Off leaves a running operation half-done; after on, the start-up times have to pass.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_power(chip: *mut spinor_chip, on: bool) {
    with(chip, (), if on { Chip::power_on } else { Chip::power_off });
}

/// Sets the supply voltage in millivolts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_set_supply(chip: *mut spinor_chip, millivolts: u32) {
    with(chip, (), |chip| chip.set_supply(millivolts));
}

/// Drives WP#.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_set_wp(chip: *mut spinor_chip, high: bool) {
    with(chip, (), |chip| chip.set_pin(Pin::WriteProtect, high));
}

/// Drives HOLD# or RESET#, whichever the chip has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_set_hold_reset(chip: *mut spinor_chip, high: bool) {
    with(chip, (), |chip| chip.set_pin(Pin::HoldReset, high));
}

/// Returns faults that never occur.
#[unsafe(no_mangle)]
pub extern "C" fn spinor_no_faults() -> spinor_faults {
    spinor_faults {
        cut_bus_byte: -1,
        cut_operation: -1,
        cut_fraction: 0.0,
        flip_in: 0.0,
        flip_out: 0.0,
        stuck_busy: -1,
        wear: false,
        read_disturb: 0,
    }
}

/// Sets the active faults; NULL for none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_set_faults(chip: *mut spinor_chip, faults: *const spinor_faults) -> i32 {
    // SAFETY: by the contract it is NULL or points to faults.
    let faults = unsafe { faults.as_ref() }.copied().unwrap_or_else(|| spinor_no_faults());
    let is_part = |value: f64| (0.0..=1.0).contains(&value);
    if ![faults.cut_fraction, faults.flip_in, faults.flip_out].into_iter().all(is_part) {
        return SPINOR_ERR_INVALID;
    }
    let bus_byte = u64::try_from(faults.cut_bus_byte).ok().map(Cut::BusByte);
    let operation = u64::try_from(faults.cut_operation).ok();
    let operation = operation.map(|after| Cut::Operation { after, fraction: faults.cut_fraction });
    with(chip, SPINOR_ERR_INVALID, |chip| {
        chip.set_faults(Faults {
            cuts: bus_byte.into_iter().chain(operation).collect(),
            flip_in: faults.flip_in,
            flip_out: faults.flip_out,
            stuck_busy: u64::try_from(faults.stuck_busy).ok(),
            wear: faults.wear,
            read_disturb: faults.read_disturb,
        });
        SPINOR_OK
    })
}

/// Returns the chip's state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_get_state(chip: *mut spinor_chip) -> spinor_state {
    use spinor_state::*;
    with(chip, SPINOR_INVALID, |chip| match chip.state() {
        State::PowerDown => SPINOR_POWER_DOWN,
        State::PowerUp => SPINOR_POWER_UP,
        State::Standby => SPINOR_STANDBY,
        State::WriteEnabled => SPINOR_WRITE_ENABLED,
        State::Programming => SPINOR_PROGRAMMING,
        State::Erasing => SPINOR_ERASING,
        State::WritingRegister => SPINOR_WRITING_REGISTER,
        State::Recovering => SPINOR_RECOVERING,
        State::ProgramSuspended => SPINOR_PROGRAM_SUSPENDED,
        State::EraseSuspended => SPINOR_ERASE_SUSPENDED,
        State::DeepPowerDown => SPINOR_DEEP_POWER_DOWN,
        State::ContinuousRead => SPINOR_CONTINUOUS_READ,
        State::AaiProgramming => SPINOR_AAI_PROGRAMMING,
    })
}

/// Writes the counters to `counters`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_get_counters(chip: *mut spinor_chip, counters: *mut spinor_counters) -> i32 {
    if counters.is_null() {
        return SPINOR_ERR_INVALID;
    }
    let found = with(chip, None, |chip| {
        let c = chip.counters();
        Some(spinor_counters {
            transactions: c.transactions,
            bus_bytes: c.bus_bytes,
            bytes_read: c.bytes_read,
            operations: c.operations,
            busy_polls: c.busy_polls,
            overwrites: c.overwrites,
            too_fast: c.too_fast,
            flipped_bits: c.flipped_bits,
            refused: c.all_refused(),
        })
    });
    match found {
        Some(found) => {
            // SAFETY: by the contract it points to memory for counters; it isn't NULL.
            unsafe { counters.write(found) };
            SPINOR_OK
        }
        None => SPINOR_ERR_INVALID,
    }
}

/// Returns the erase count of the sector at an address; 0 for an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_erase_count(chip: *mut spinor_chip, address: u32) -> u32 {
    with(chip, 0, |chip| {
        let index = address.checked_div(chip.description().sector()).unwrap_or(u32::MAX);
        chip.erase_counts().get(index as usize).copied().unwrap_or(0)
    })
}

/// Returns a register's value by its name in the datasheet, such as "SR1"; SPINOR_ERR_INVALID for an unknown
/// name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_register(chip: *mut spinor_chip, name: *const c_char) -> i32 {
    // SAFETY: the contract of this crate's functions.
    let name = unsafe { text(name) };
    with(chip, SPINOR_ERR_INVALID, |chip| {
        name.and_then(|name| chip.register(name)).map_or(SPINOR_ERR_INVALID, i32::from)
    })
}

/// Returns the reason for which the last transaction was ignored, as a text that is never freed; NULL if it
/// wasn't ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_refusal(chip: *mut spinor_chip) -> *const c_char {
    with(chip, std::ptr::null(), |chip| {
        chip.last_refusal().map_or(std::ptr::null(), |refusal| refusal.c_words().as_ptr())
    })
}

/// Keeps the last transactions for spinor_trace(); 0 keeps none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_set_trace(chip: *mut spinor_chip, transactions: usize) {
    with(chip, (), |chip| chip.set_trace(transactions));
}

/// Writes the kept transactions as text: 't', JSON lines: 'j', or a value change dump of the bus: 'v'.
/// Returns the length of the whole text, as snprintf does; a negative number for an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinor_trace(
    chip: *mut spinor_chip,
    form: c_char,
    buffer: *mut c_char,
    size: usize,
) -> i64 {
    // SAFETY: the contract of this crate's functions.
    let Some(buffer) = (unsafe { output(buffer.cast(), size) }) else { return SPINOR_ERR_INVALID.into() };
    with(chip, SPINOR_ERR_INVALID.into(), |chip| {
        let (trace, description, mut text) = (chip.trace(), chip.description(), String::new());
        let written = match form as u8 {
            b't' => trace.write_text(description, &mut text),
            b'j' => trace.write_json(description, &mut text),
            b'v' => trace.write_vcd(description, 20, &mut text),
            _ => return SPINOR_ERR_INVALID.into(),
        };
        match written {
            Ok(()) => put_text(&text, buffer) as i64,
            Err(_) => SPINOR_ERR_INVALID.into(),
        }
    })
}
