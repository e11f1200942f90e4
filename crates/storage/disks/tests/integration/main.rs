//! The leaves on real and simulated files.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod block_devices;
mod creation;
mod disks;
mod file;
