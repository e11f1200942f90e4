//! Layers: devices and zones that are made of other devices or zones.
//!
//! On either contract:
//! - [`stats`] counts and times calls;
//! - [`fault`] injects faults by rule and seed;
//! - [`record`] records operations, from which every state that a power cut could leave can be constructed.
//!
//! On devices:
//! - [`model`] gives a device the latencies of another one;
//! - [`linear`](mod@linear) concatenates devices, [`stripe`](mod@stripe) stripes over them (RAID0).
//!
//! [`observation`] is no layer of a stack: it does what `stats` does for each part of a stack that is served,
//! on demand.
//!
//! Each layer passes the conformance suite of its contract. Layers with a format of their own are crates:
//! `cache`, `writecache`, `mirror`. Leaves are in `disks` and `zones`; parsing and composing is left to
//! `stack`.
#![doc = include_str!("../DESIGN.md")]

mod clear_stats;
pub mod fault;
pub mod linear;
pub mod model;
pub mod observation;
pub mod record;
mod spread;
pub mod stats;
pub mod stripe;
