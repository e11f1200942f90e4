//! The two contracts that everything in Siltstone is one or the other of, and what they are made of.
//!
//! - [`Device`]: a fixed number of blocks, read and written in place.
//! - [`Zones`]: append-only zones, read anywhere, reset as a whole.
//!
//! A thing that implements a contract is a *part*: built once, shared by all shards ([`DevicePart`],
//! [`ZonesPart`]), and opened once per shard into a *handle* (`Rc<dyn Device>`, `Rc<dyn Zones>`) that the I/O
//! path calls. A call goes one way, from the door down to the leaf; nothing below knows what is above it.
//!
//! What lives here besides: addresses that can't be mixed up ([`address`]), buffers that travel by
//! ownership ([`buffer`]), large zeroed memory ([`memory`]), the boxed future of a call that costs no allocation
//! ([`Call`]), geometry, and the one error type. What is left to others: executing anything (`runtime`), storing anything (`disks`).

pub mod address;
pub mod buffer;
pub mod call;
pub mod device;
pub mod error;
pub mod geometry;
pub mod memory;
pub mod part;
pub mod zones;

pub use address::{BlockCount, BlockIndex, BlockRange, ByteOffset, ZoneAddress, ZoneIndex};
pub use buffer::{Buffer, Data, Payload};
pub use call::Call;
pub use device::{Device, Durability, Extent, ExtentState, ReadOutcome, ZeroMode};
pub use error::{Error, Result};
pub use geometry::{BlockSize, DeviceGeometry, Durable, EraseGuarantee, ZoneGeometry};
pub use part::{DevicePart, Part, Status, ZonesPart};
pub use zones::{ZoneReport, ZoneState, Zones};
