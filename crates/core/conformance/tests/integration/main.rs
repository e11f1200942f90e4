//! The suites accept a correct implementation and reject every faulty one.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod copies;
mod device;
mod zones;
