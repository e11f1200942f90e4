//! The suites pass a right implementation and catch every wrong one.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod copies;
mod device;
mod zones;
