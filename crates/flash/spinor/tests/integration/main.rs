//! Chips from their tables: descriptions, commands in every state, protection, power cuts, hostile bytes,
//! drivers.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod common;
mod corners;
mod descriptions;
mod drivers;
mod hostile;
mod model;
mod modes;
mod opcodes;
mod power;
mod protection;
mod stores;
mod tracing;
