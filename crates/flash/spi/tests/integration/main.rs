//! The doors of a flash chip, as programmers and operators use them.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod common;
mod flashrom;
mod hostile;
mod image;
mod server;
mod time;
