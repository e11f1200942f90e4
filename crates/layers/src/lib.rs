//! Layers: what stands between a door and a leaf.
//!
//! Some do one thing to every call that passes, on either contract:
//! - [`stats`] counts and times;
//! - [`fault`] makes things go wrong, by rule and seed;
//! - [`record`] writes down what happens, so that every state that a power cut could leave can be made again.
//!
//! [`model`] makes a device as slow as another one. Others make one device of several:
//! - [`linear`](mod@linear) one behind the other, [`stripe`](mod@stripe) in turn; [`mirror`](mod@mirror) the same on each.
//!
//! And some put one device in front of another:
//! - [`cache`] keeps there what is asked for again;
//! - [`writecache`] takes the writes and gives them to a slower device in order.
//!
//! Each passes the conformance suite of its contract. What they stand on is left to leaves (`disks`, `zones`), how they
//! are named and composed to `stack`.

pub mod cache;
mod clear_stats;
mod distant;
pub mod fault;
pub mod linear;
pub mod mirror;
pub mod model;
pub mod record;
mod spread;
pub mod stats;
pub mod stripe;
mod table;
pub mod writecache;
