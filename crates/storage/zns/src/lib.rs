//! An emulated drive with zoned namespaces: a leaf of contract Zones, in memory or on a file.
//!
//! - [`machine`]: zone states, commands and status codes of the specification, without I/O.
//! - [`flash`]: placement of zones on dies and blocks, and the schedule of operations on them.
//! - [`profile`]: figures of drives, with their sources.
//! - [`reliability`]: bit errors by wear, retention, reads, page, layer and value; failing blocks.
//! - [`mod@format`]: the bytes of a drive's file.
//! - `zone`, `drive`, `manage`, `power`: the drive itself, and its power cuts.
//! - `part`, `kind`, `look`: the drive in a stack, and views of it for operators.
//!
//! # Promises
//! - Promises of [`block::Zones`], also after any power cut of the drive ([`Zns::power_off`]) and, on a file,
//!   after a crash of its host.
//! - Operations take the profile's time: exactly under the simulated runtime; under the real one, times of at
//!   least 20 us are met to some microseconds on a shard without long work.
//! - A reset with the guarantee "deallocated" leaves the cells unchanged until the next opening of the zone,
//!   which erases them; "erased" erases them; "key" destroys the zone's key, and the cells keep ciphertext.
//! - The same seed fails the same blocks and flips the same bits.
//!
//! On a file, the drive can't erase copies of overwritten blocks that the host's disk or file system keeps.
#![doc = include_str!("../DESIGN.md")]

mod drive;
pub mod flash;
pub mod format;
mod kind;
mod look;
pub mod machine;
mod manage;
mod part;
mod power;
pub mod profile;
pub mod reliability;
mod zone;

pub use drive::Faults;
pub use kind::{KIND, ZnsMessage};
pub use look::MAX_RAW;
pub use part::{Settings, Shape, Zns, geometry};
