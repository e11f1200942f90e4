//! The log kit: cleaning policies, and single parts with a minimal owner.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod bare;
mod cleaning_policies;
mod cleaning_simulation;
mod idle;
mod moves;
mod open_zones;
mod prepare;
mod sums;
