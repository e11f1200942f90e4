//! Zones in an object store: on a simulated store with faults, and on real ones.

#![allow(clippy::unwrap_used)]

mod bases;
mod claim;
mod common;
mod compression;
mod conformance;
mod cost;
mod crash;
mod damage;
mod encryption;
mod fence;
mod hostile;
mod key_store;
mod merge;
mod offline;
mod outage;
mod overtaken;
mod reader;
mod real;
mod rewind;
#[path = "../../../object-store/tests/integration/servers.rs"]
mod servers;
mod sizes;
mod stores;
mod together;
mod worlds;
