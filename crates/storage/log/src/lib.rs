//! The log-structured device and its maps.
//!
//! - [`map`]: the location of each block of a volume: one trait, with several structures to compare.
//! - `home`, with the feature `map-home`: the map kept in persistent memory.
//! - [`mod@check`] checks a whole log for damage, [`dump`] shows the contents of the medium; both write
//!   nothing.
//!
//! Left to others: records, group commit, cleaning, checkpoints and recovery (`logkit`), zones (`zones`), and
//! the execution of calls (`runtime`).
//!
//! ```
//! use block::{BlockIndex, Buffer, DevicePart as _, Durability, Part as _};
//!
//! let disk = std::sync::Arc::new(disks::ram::RamPart::new(64 << 20, block::BlockSize::new(4096)?)?);
//! let options = log::kind::Options { format: true, ..Default::default() };
//! runtime::run(runtime::Config::default(), || async move {
//!     let log = log::kind::open(disk, &options).await?;
//!     let volume = log.open().await?;
//!     volume.write(BlockIndex(7), Buffer::copy_of(&[42; 4096]).into(), Durability::Durable).await?;
//!     let (outcome, buffer) = volume.read(BlockIndex(7), Buffer::new(4096)).await;
//!     assert_eq!(buffer.filled(), [42; 4096]);
//!     outcome.and(log.close().await)
//! })??;
//! # Ok::<(), block::Error>(())
//! ```
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
mod full_warning;
#[cfg(feature = "map-home")]
pub mod home;
pub mod kind;
pub mod layout;
pub mod map;
pub mod recovery;
pub mod salvage;
pub mod snapshot;
mod status;
pub mod stripes;
mod versions;

pub use device::LogPart;
pub use kind::KIND;
pub use snapshot::KIND as SNAPSHOT_KIND;
