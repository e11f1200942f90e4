//! The two contracts of Siltstone's parts, and the types that they use.
//!
//! - [`Device`]: numbered blocks, read and written in place. Their number may grow, and never shrinks.
//! - [`Zones`]: append-only zones, read anywhere, reset as a whole.
//!
//! An implementation of a contract is a *part*: built once, shared by all shards ([`DevicePart`],
//! [`ZonesPart`]), and opened once per shard into a *handle* (`Rc<dyn Device>`, `Rc<dyn Zones>`) that the I/O
//! path calls. Calls go one way, from the door down to the leaf; a part has no access to the parts above it.
//!
//! The crate also has distinct address types ([`address`]), buffers passed by ownership ([`buffer`]), large
//! zeroed memory ([`memory`]), the use of a part's space ([`fullness`]), wrappers of parts and handles
//! ([`layer`]), extents of layers ([`extents`]), the boxed future of a call, which needs no allocation
//! ([`Call`]), geometry, and the one error type.
//! Execution is in the crate `runtime`, storage in `disks`.
#![doc = include_str!("../DESIGN.md")]

pub mod address;
pub mod buffer;
pub mod call;
pub mod claim;
pub mod device;
pub mod error;
pub mod extents;
pub mod fullness;
pub mod geometry;
pub mod growing;
pub mod layer;
pub mod memory;
pub mod part;
pub mod zones;

pub use address::{BlockCount, BlockIndex, BlockRange, ByteOffset, ZoneAddress, ZoneBlock, ZoneIndex};
pub use buffer::{Buffer, Data, Payload};
pub use call::Call;
pub use claim::{Claim, ClaimToken};
pub use device::{CachedBytes, Device, Durability, Extent, ExtentState, ReadOutcome, ZeroMode};
pub use error::{Error, Result};
pub use fullness::Fullness;
pub use geometry::{BlockSize, DeviceGeometry, Durable, EraseGuarantee, ZoneGeometry};
pub use growing::GrowingGeometry;
pub use part::{DevicePart, Part, PartUse, Status, View, ZonesPart, zones_of_store};
pub use zones::{Staging, ZoneChange, ZoneReport, ZoneState, Zones, without_cached};
