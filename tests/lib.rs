//! Shared code of the tests that cross crates.
#![doc = include_str!("DESIGN.md")]

pub mod engine;
pub mod foreign;
pub mod guest;
pub mod halves;
pub mod key_value;
pub mod oracle;
pub mod stacked;
pub mod worlds;
pub mod zoned;
