//! Zones on any Device and in memory, and encoding of their formats.
//!
//! - [`on_device`]: divides any [`Device`](block::Device) into zones, with a format of its own on the medium.
//! - [`ram`]: zones in memory with the weakest guarantees of the contract: appends land out of order and are
//!   durable only once their zone is finished. A part that works on it works on an object store.
//! - [`overlay`]: zones whose changes stay in memory, to open zones without changing them.
//! - [`bytes`]: encoding and decoding of formats without a fixed length.
//! - [`record`]: records of a log, with checksums under a key of the log.
//! - [`limits`]: counts of open and active zones. [`errors`]: errors that several implementations return.
//! - [`sector`]: superblocks and other records of one sector.
//!
//! Left to others: group commit, cleaning and recovery (`logkit`), and running the calls
//! (`runtime`).

pub mod bytes;
pub mod errors;
pub mod gate;
pub mod limits;
pub mod on_device;
pub mod overlay;
pub mod ram;
pub mod record;
pub mod sector;

pub use errors::misplaced;
pub use on_device::OnDevice;
pub use overlay::Overlay;
pub use ram::RamZones;
