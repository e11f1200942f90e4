//! Tests of the emulated drive as a whole.

mod conformance_suite;
mod erasing;
mod failures;
mod times;
