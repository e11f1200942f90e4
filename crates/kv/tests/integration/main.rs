//! The key-value store as programs use it, in simulated runs.

#![allow(clippy::unwrap_used)]

mod basic;
mod common;
mod erasure;
mod model;
