//! Zones on devices and in memory, and the kit's records and cleaning policies.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod cleaning_policies;
mod cleaning_simulation;
mod common;
mod conformance;
mod hostile;
mod kinds;
