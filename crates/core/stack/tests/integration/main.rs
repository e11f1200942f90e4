//! Promises of the crate, tested with small kinds of these tests.
#![allow(clippy::unwrap_used)]

mod building;
mod errors;
mod fixtures;
mod forms;
mod pictures;
mod wild;
