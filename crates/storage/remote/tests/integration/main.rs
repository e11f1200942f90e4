//! Tests of remote memory: the contract's suite, and a model check with nodes that fail in every way.

#![allow(clippy::unwrap_used)]

mod cleaning;
mod conformance_suite;
mod errors;
mod full;
mod geometry;
mod kept;
mod model;
mod node;
mod quiet;
mod recopy;
mod stuck;
