//! The file system: behaviour for programs, and contents after power cuts.
#![allow(clippy::unwrap_used)] // All of this is test code, including shared functions.

extern crate siltstone_fs as fs;

mod broken;
mod classes;
mod clones;
mod damage;
mod embedded;
mod full;
mod geometry;
mod grids;
mod joint;
mod lives;
mod model;
mod mount;
mod mount_requests;
mod original;
mod promises;
mod quiet;
mod salvage;
mod salvage_grid;
mod sequences;
mod snapshots;
mod stripes;
mod thin;
mod world;
