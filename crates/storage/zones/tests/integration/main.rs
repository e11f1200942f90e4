//! Zones on devices and in memory.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod common;
mod conformance;
mod hostile;
mod kinds;
mod rewind;
mod usage;
