//! SPI NOR flash chips, emulated from tables.
//!
//! - [`Description`]: a chip as data, from one TOML file ([`chip`] finds those that come with the crate,
//!   [`sfdp`] creates one from an
//!   SFDP dump);
//! - [`Chip`]: the interpreter, one state machine for all chips, driven by bus bytes or clocks, pins, power
//!   and virtual time;
//! - [`Faults`]: power cuts, wear, read disturb, bus errors, by seed and rule;
//! - [`Trace`]: the transactions that the chip saw.
//!
//! With the features of the same names, [`Bus`] is an `SpiDevice` of embedded-hal 1 and [`Nor`] a `NorFlash`
//! of embedded-storage.
//!
//! The chip reads no clock, starts no thread and does no I/O: the same calls with the same seed give the same
//! bytes.
//!
//! ```
//! use spinor::{Chip, chip};
//!
//! let description = chip("W25Q128JV").expect("a chip of this crate")?;
//! let mut flash = Chip::erased(description, 1);
//! flash.transact(&[0x06], &mut []);
//! flash.transact(&[0x02, 0, 0, 0, b'h', b'i'], &mut []);
//! flash.advance(3_000_000);
//! let mut read = [0; 2];
//! flash.transact(&[0x03, 0, 0, 0], &mut read);
//! assert_eq!(&read, b"hi");
//! # Ok::<(), spinor::DescriptionError>(())
//! ```
#![doc = include_str!("../DESIGN.md")]

mod action;
mod catalog;
mod cells;
mod chip;
mod description;
mod faults;
#[cfg(any(feature = "embedded-hal", feature = "embedded-storage"))]
mod hal;
pub mod hex;
mod random;
pub mod sfdp;
mod trace;

pub use action::{Action, Condition, Conditions};
pub use catalog::{CHIPS, chip};
pub use cells::{Aging, Marginal, NonVolatile};
pub use chip::{BusyTime, Chip, Counters, Pin, Refusal, SizeError, State, Storage};
pub use description::{
    AddressWidth, Command, Continuous, Description, DescriptionError, HoldPin, Latency, Locks, Meaning,
    Protection, Protocol, Register, Security, Span, Supply, Times,
};
pub use faults::{Cut, Faults};
#[cfg(feature = "embedded-hal")]
pub use hal::Bus;
#[cfg(feature = "embedded-storage")]
pub use hal::{Nor, NorError};
pub use trace::{Record, Trace, Waveform};
