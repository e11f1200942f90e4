//! The log kit: cleaning policies.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod cleaning_policies;
mod cleaning_simulation;
