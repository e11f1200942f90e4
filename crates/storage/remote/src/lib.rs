//! `remote`: memory of other machines as one volatile device, for swap and scratch space.
//!
//! # Promises
//! - A read returns the last acknowledged write, or fails; it never returns zeros, another page's bytes or
//!   older ones. Each page lies in a slot with its number, the number of the write and a checksum, and the
//!   map has the number of the valid write.
//! - With two copies, or a backup device, the loss of a node loses no page. Otherwise pages on a lost node
//!   are errors until they are written again.
//! - If another process keeps the memory of this part (`kept`), the end of this process loses no page.
//! - Memory is bounded: the map takes 8 bytes per page, and the cache its configured size.
//!
//! The device is volatile: a flush does nothing, and a power cut loses all pages.
//!
//! # Structure
//! Pages are compressed and packed into blocks of 1 MiB; a zone is a group of blocks, in one contiguous
//! region of each node that has a copy of it. Zones and cleaning policies are those of the log kit. Nodes are
//! devices: NBD servers, for example.
//!
//! `compression`: compression of pages. `slot`: a page in a block. `entry`: the map's entries. `arena`: all
//! state that outlives the process. `staging`: blocks that are filled and written. `frames`: the read cache.
//! `zones`: zones and their copies. `nodes`: nodes and their regions. `core`: the device, with reads from
//! nodes, cleaning, recopying of zones and monitoring of nodes. `part`: the device's contract.
#![doc = include_str!("../DESIGN.md")]

mod arena;
mod compression;
mod config;
mod core;
mod entry;
mod frames;
pub mod kept;
mod kind;
mod nodes;
mod part;
mod slot;
mod staging;
mod zones;

pub use compression::{Compression, Compressor};
pub use config::Config;
pub use kind::KIND;
pub use part::RemotePart;
pub use slot::Encoding;
