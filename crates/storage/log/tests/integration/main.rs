//! The log device: its contract, maps, damage and recovery.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod check;
mod classic;
mod conformance;
mod damage;
mod full;
mod geometry;
mod homes;
mod host_full;
mod life;
mod log_cost;
mod long_operations;
mod map_home;
mod map_property;
mod map_threads;
mod on_zones;
mod opening;
mod pacing;
mod quiet;
mod salvage;
mod snapshots;
mod stuck;
