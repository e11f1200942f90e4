//! Layers: devices and zones that are made of other devices or zones.
//!
//! On either contract:
//! - [`stats`] counts and times calls;
//! - [`fault`] injects faults by rule and seed;
//! - [`record`] records operations, from which every state that a power cut could leave can be constructed.
//!
//! On devices:
//! - [`model`] gives a device the latencies of another one;
//! - [`linear`](mod@linear) concatenates devices, [`stripe`](mod@stripe) stripes over them (RAID0),
//!   [`mirror`](mod@mirror) mirrors them (RAID1);
//! - [`cache`] keeps hot blocks of a slow device on a fast one;
//! - [`writecache`] is a write-back cache that destages writes to a slow device in flush order.
//!
//! Each passes the conformance suite of its contract. Leaves are in `disks` and `zones`; parsing and
//! composing is left to `stack`.
#![doc = include_str!("../DESIGN.md")]

pub mod cache;
mod clear_stats;
mod extents;
pub mod fault;
pub mod linear;
pub mod mirror;
pub mod model;
pub mod record;
mod spread;
pub mod stats;
pub mod stripe;
mod table;
mod time_limit;
pub mod writecache;
