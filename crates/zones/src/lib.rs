//! The log kit: zones on any Device and in RAM.
//!
//! - [`on_device`]: cuts any [`Device`](block::Device) into zones, with a format of its own on the medium.
//! - [`ram`]: zones in memory that behave as badly as the contract allows: appends land out of order and are
//!   durable only once their zone is finished. What works on it works on an object store.
//! - [`record`]: what the owner of a log appends, told from anything else; [`summary`]: what a full zone says of its records.
//! - [`bytes`]: numbers and structures in a row, for formats without a fixed length.
//! - [`sector`]: superblocks and other records of one sector.
//! - [`cleaning`]: which zone is emptied next, and what is written beside what.
//!
//! Left to others: what the bytes in a zone mean (the log, the file system, the key-value store), and running
//! the calls (`runtime`).

pub mod bytes;
pub mod cleaning;
mod gate;
mod limits;
pub mod on_device;
pub mod ram;
pub mod record;
pub mod sector;
pub mod summary;

/// The error of an append at byte `wanted` of a zone whose write pointer is elsewhere.
#[cold]
fn misplaced(zone: block::ZoneIndex, wanted: u64, write_pointer: u64) -> block::Error {
    block::Error::misplaced(format!(
        "append at byte {wanted} of zone {zone}: expected its write pointer, byte {write_pointer}"
    ))
}

pub use on_device::OnDevice;
pub use ram::RamZones;
