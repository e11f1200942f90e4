//! The cache: its promises, and the suite of the contract.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod cost;
mod parts;
mod promises;
mod suite;
mod warm;
