//! `remote`: memory of other machines as one volatile device, for swap and scratch space.
//!
//! # Promises
//! - An acknowledged write is read back, or reading fails: never zeros, another page's bytes or older ones. Each page lies in a slot with its number, the number of the
//!   write and a checksum, and the map says which one is meant.
//! - With two copies, or a backup device, the loss of a node loses no page. Without either, pages on a lost node are errors until they are written again.
//! - Where the memory of this part is kept by another process (`kept`), the end of this one loses nothing.
//! - Memory is bounded, and stated: the map has 8 bytes a page, and the cache has the size that it is given.
//!
//! It is volatile: a flush does nothing, and power cuts lose everything.
//!
//! # Structure
//! Pages are compressed and packed into blocks of 1 MiB; a zone is some blocks, in one contiguous region of each node that has a copy of it. Zones and cleaning policies are
//! those of the log kit. Nodes are devices: NBD servers, for example.
//!
//! `compression`: of pages. `slot`: a page in a block. `entry`: the map's entries. `arena`: all state that outlives the process. `staging`: blocks that are filled and
//! written. `frames`: the read cache. `zones`: zones and their copies. `nodes`: nodes and their regions. `core`: the device. `fetch`: reads from
//! nodes. `cleaner`: resets and cleaning. `copies`: copies that are made again. `watch`: nodes that answer
//! or don't. `part`: the device's contract.
#![doc = include_str!("../DESIGN.md")]

mod arena;
mod cleaner;
mod compression;
mod config;
mod copies;
mod core;
mod entry;
mod fetch;
mod frames;
pub mod kept;
mod kind;
mod nodes;
mod part;
mod slot;
mod staging;
mod watch;
mod zones;

pub use compression::{Compression, Compressor};
pub use config::Config;
pub use kind::KIND;
pub use part::RemotePart;
pub use slot::Encoding;
