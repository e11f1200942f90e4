//! The file system: what programs see, and what is left after power cuts.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

mod broken;
mod classes;
mod clones;
mod damage;
mod full;
mod geometry;
mod grids;
mod joint;
mod lives;
mod model;
mod mount;
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
