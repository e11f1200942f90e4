//! The runtime: the real ring, the simulated world, synchronisation.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod embedded;
mod message_device;
mod ring;
mod signals;
mod simulated;
mod sync;
