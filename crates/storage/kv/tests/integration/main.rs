//! The key-value store through its interface for programs, in simulated runs.

#![allow(clippy::unwrap_used)]

extern crate siltstone_kv as kv;

mod basic;
mod common;
mod crash_model;
mod crash_oracle;
mod crashes;
mod damage;
mod embedded;
mod erasure;
mod full;
mod geometry;
mod model;
mod persistence;
mod quiet;
mod slow_zones;
mod staging;
mod stalls;
