//! The command line, run as a program.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod check;
mod common;
mod embedded;
mod log_on_zones;
mod memory_node;
mod operators;
mod report;
mod runs;
mod spi;
mod stacks;
mod stuck;
mod top;
mod trace;
mod warm;
mod wrong;
mod zns;
