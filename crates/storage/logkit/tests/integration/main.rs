//! The log kit: cleaning policies, and single parts with a minimal owner.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod bare;
mod busy_drive;
mod cleaning_policies;
mod cleaning_simulation;
mod failing;
mod full_log;
mod idle;
mod moves;
mod open_zones;
mod permits;
mod prepare;
mod scarce_drive;
mod sums;
