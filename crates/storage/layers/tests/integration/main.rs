//! The layers: each one's promises, and the suites of their contracts.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod cache;
mod cache_conformance;
mod cache_cost;
mod cache_parts;
mod cache_warm;
mod common;
mod conformance;
mod conformance_pairs;
mod extents;
mod fault;
mod kinds;
mod mirror;
mod mirror_races;
mod model;
mod only_in_cache;
mod record;
mod replay;
mod stats;
mod stuck;
mod takeover;
mod timeline;
mod writecache;
mod writecache_burst;
mod writecache_cost;
