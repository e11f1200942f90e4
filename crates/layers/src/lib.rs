//! Layers: what stands between a door and a leaf and does one thing to every call that passes.
//!
//! - [`stats`] counts and times;
//! - [`fault`] makes things go wrong, by rule and seed;
//! - [`record`] writes down what happens, so that every state that a power cut could leave can be made again.
//!
//! Each is there for both contracts, and passes the conformance suite of either. What they stand on is left
//! to leaves (`disks`, `zones`), how they are named and composed to `stack`.

pub mod fault;
pub mod record;
pub mod stats;
