//! The mirror: its promises, and races of its changes.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod promises;
mod races;
