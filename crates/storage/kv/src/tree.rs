//! Trees of tables in zones.
//!
//! `tables`: tables and the block cache; `extents`: places of their blocks; `levels`: tables by level;
//! `level_cursor`: cursors of levels; `manifest`: the tables of a tree on the medium; `salvage`: losses of a
//! damaged store.

pub mod extents;
pub mod level_cursor;
pub mod levels;
pub mod manifest;
pub mod salvage;
pub mod tables;
