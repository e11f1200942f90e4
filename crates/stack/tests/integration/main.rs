//! What the crate promises, tried with small kinds of the tests' own.
#![allow(clippy::unwrap_used)]

mod building;
mod errors;
mod fixtures;
mod forms;
mod pictures;
mod wild;
