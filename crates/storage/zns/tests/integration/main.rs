//! Tests of the emulated drive as a whole.
#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

mod conformance_suite;
mod erasing;
mod failures;
mod host_crashes;
mod times;
