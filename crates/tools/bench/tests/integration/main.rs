//! Promises of the benchmark: jobs on real devices, logs of requests.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod engine;
mod iolog;
