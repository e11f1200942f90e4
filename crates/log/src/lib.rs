//! The log-structured device and its maps.
//!
//! - [`map`]: the location of each block of a volume: one trait, with several structures to compare.
//! - `home`, with the feature `map-home`: the map kept in persistent memory.
//! - [`mod@check`] checks a whole log for damage, [`dump`] shows the contents of the medium; both write
//!   nothing.
//!
//! Left to others: records, group commit, cleaning, checkpoints and recovery (`logkit`), zones (`zones`), and
//! the execution of calls (`runtime`).
#![doc = include_str!("../DESIGN.md")]

mod buffered;
mod capacity;
pub mod changes;
pub mod check;
pub mod core;
pub mod damaged;
pub mod device;
pub mod directory;
pub mod dump;
mod entry;
pub mod format;
mod fullness;
#[cfg(feature = "map-home")]
pub mod home;
pub mod kind;
pub mod layout;
pub mod map;
pub mod recovery;
pub mod salvage;
pub mod snapshot;
mod status;
mod versions;

pub use device::LogPart;
pub use kind::KIND;
pub use snapshot::KIND as SNAPSHOT_KIND;
