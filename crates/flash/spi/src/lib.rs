//! The doors of an emulated SPI NOR flash chip.
//!
//! - [`serprog`]: flashrom's serial programmer protocol, without waiting: bytes in, actions out;
//! - [`Board`]: surroundings of the chip: clock, pins, supply, rules over the transactions;
//! - [`Server`]: programmers connected through TCP, unix sockets and a pseudo-terminal ([`pty`]);
//! - [`image`]: the file with the array, and the state file beside it;
//! - [`rules`]: assertions over the transactions, from TOML;
//! - [`operator`]: requests of operators: power, pins, status, dump, trace, wear.
//!
//! The chip is in the crate `spinor`; tasks, sockets, files and time are in `runtime`. A board, its server
//! and its image belong to one shard.

mod board;
pub mod image;
pub mod operator;
pub mod pty;
pub mod rules;
pub mod serprog;
mod server;

pub use board::{Board, BusTaken, HOLD_LIMIT, Programmer, Time};
pub use operator::{Closed, ServedChip};
pub use server::{MAX_PROGRAMMERS, Server};
