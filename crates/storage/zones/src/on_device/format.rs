//! Encoding of version 2 on the medium: superblock and zone header. The book's page "Zones on a device"
//! describes the bytes.
//!
//! Decoding accepts any bytes: it never panics, and refuses invalid bytes with an error that names them.

use crate::sector::{self, Format, Head};
use block::{Error, Payload, Result, ZoneState};
pub use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format that this code writes and reads.
pub const VERSION: u32 = 2;
/// Length of a record (superblock or zone header), in bytes.
pub const RECORD: usize = sector::SECTOR;
/// First bytes of a superblock.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"SILTZSUP";
/// First bytes of a zone header.
pub const HEADER_MAGIC: [u8; 8] = *b"SILTZHDR";
/// Flag of a superblock: the volume was closed cleanly.
const CLEAN: u32 = 1;
const SUPERBLOCK: Format = Format { magic: SUPERBLOCK_MAGIC, version: VERSION };
const HEADER: Format = Format { magic: HEADER_MAGIC, version: VERSION };
/// Limit of sequences and generations: larger ones are damage.
const MAX_COUNT: u64 = 1 << 62;

/// Draws the identity of a volume, of a log or of a mirror: a random UUID (RFC 9562, section 5.4) from the
/// runtime's source of randomness.
pub fn draw_uuid() -> Uuid {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&runtime::random_u64().to_le_bytes());
    bytes[8..].copy_from_slice(&runtime::random_u64().to_le_bytes());
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

/// Fields of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Block size of the device when it was formatted, in bytes.
    pub block_size: u32,
    /// UUID of the volume.
    pub uuid: Uuid,
    /// Raised by every write of a superblock; copy `sequence % 2` holds it.
    pub sequence: u64,
    /// Distance between two zones, in bytes.
    pub zone_size: u64,
    /// Start of zone 0, in bytes from the start of the device.
    pub first_zone: u64,
    /// Number of zones.
    pub zones: u32,
    /// Size of the staging area before zone 0, in bytes; 0 without one. A program without staging refuses
    /// other values, instead of ignoring writes in the area.
    pub staging: u32,
    /// Whether the headers of open zones hold their write pointers, because the volume was closed cleanly.
    pub clean: bool,
}

/// Fields of a zone header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneHeader {
    /// UUID of the volume.
    pub uuid: Uuid,
    /// Index of the zone.
    pub zone: u32,
    /// Empty, Open, Closed or Full.
    pub state: ZoneState,
    /// Generation: random at a format, raised by every reset.
    pub generation: u64,
    /// Write pointer, in bytes from the start of the data; its meaning depends on the state and on a clean
    /// close.
    pub write_pointer: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    head: Head,
    block_size: U32,
    uuid: [u8; 16],
    sequence: U64,
    zone_size: U64,
    first_zone: U64,
    zones: U32,
    flags: U32,
    staging: U32,
    reserved: [u8; 440],
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    head: Head,
    state: U32,
    uuid: [u8; 16],
    zone: U32,
    padding: U32,
    generation: U64,
    write_pointer: U64,
    reserved: [u8; 452],
    crc: U32,
}

impl Superblock {
    /// Encodes the superblock as a block.
    pub fn encode(&self) -> Payload {
        let raw = RawSuperblock {
            head: SUPERBLOCK.head(),
            block_size: self.block_size.into(),
            uuid: self.uuid.into_bytes(),
            sequence: self.sequence.into(),
            zone_size: self.zone_size.into(),
            first_zone: self.first_zone.into(),
            zones: self.zones.into(),
            flags: u32::from(self.clean).into(),
            staging: self.staging.into(),
            reserved: [0; 440],
            crc: 0.into(),
        };
        sector::block_of(&raw, self.block_size as usize).into()
    }

    /// Decodes the first bytes of a block.
    ///
    /// # Errors
    /// As [`Format::read`]; [`Error::Protocol`] and [`Error::Corrupt`] also for fields out of range.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let raw: &RawSuperblock = SUPERBLOCK.read(bytes, "superblock of zones")?;
        let flags = raw.flags.get();
        if flags & !CLEAN != 0 || raw.reserved != [0; 440] {
            return Err(Error::protocol("superblock of zones: flags or fields that version 2 doesn't have"));
        }
        if raw.sequence.get() > MAX_COUNT {
            return Err(Error::corrupt(format!(
                "superblock of zones: field out of range: sequence={}",
                raw.sequence
            )));
        }
        let superblock = Superblock {
            block_size: raw.block_size.get(),
            uuid: Uuid::from_bytes(raw.uuid),
            sequence: raw.sequence.get(),
            zone_size: raw.zone_size.get(),
            first_zone: raw.first_zone.get(),
            zones: raw.zones.get(),
            staging: raw.staging.get(),
            clean: flags & CLEAN != 0,
        };
        Ok(superblock)
    }
}

fn state_number(state: ZoneState) -> u32 {
    match state {
        ZoneState::Empty => 0,
        // The zone was begun. Open zones are known only in memory.
        ZoneState::Closed | ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen => 1,
        ZoneState::Interrupted => 2,
        ZoneState::Full => 3,
        ZoneState::ReadOnly => 4,
        ZoneState::Offline => 5,
    }
}

impl ZoneHeader {
    /// Encodes the header as a block.
    pub fn encode(&self, block_size: u64) -> Payload {
        let raw = RawHeader {
            head: HEADER.head(),
            state: state_number(self.state).into(),
            uuid: self.uuid.into_bytes(),
            zone: self.zone.into(),
            padding: 0.into(),
            generation: self.generation.into(),
            write_pointer: self.write_pointer.into(),
            reserved: [0; 452],
            crc: 0.into(),
        };
        sector::block_of(&raw, block_size as usize).into()
    }

    /// Decodes the header of zone `zone` of volume `uuid` from the first bytes of a block; `capacity` is that
    /// of a zone, in bytes, in units of `granularity`.
    ///
    /// # Errors
    /// [`Error::Protocol`] for other bytes or another version, [`Error::Corrupt`] for a damaged header or
    /// that of another zone.
    pub fn decode(bytes: &[u8], uuid: Uuid, zone: u32, capacity: u64, granularity: u64) -> Result<Self> {
        let what = format_args!("header of zone {zone}");
        // Other bytes are an error: every zone has a header.
        let raw: &RawHeader = HEADER.read(bytes, what).map_err(|error| match error {
            Error::NotFound(detail) => Error::Protocol(detail),
            error => error,
        })?;
        if raw.padding.get() != 0 || raw.reserved != [0; 452] {
            return Err(Error::protocol(format!("{what}: fields that version 2 doesn't have")));
        }
        if raw.uuid != uuid.into_bytes() {
            let found = Uuid::from_bytes(raw.uuid);
            return Err(Error::corrupt(format!("{what}: of volume {found}; this volume is {uuid}")));
        }
        if raw.zone.get() != zone {
            return Err(Error::corrupt(format!("{what}: it is the header of zone {}", raw.zone)));
        }
        let state = match raw.state.get() {
            0 => ZoneState::Empty,
            1 => ZoneState::Closed,
            2 => ZoneState::Interrupted,
            3 => ZoneState::Full,
            other => return Err(Error::corrupt(format!("{what}: field out of range: state={other}"))),
        };
        let (generation, write_pointer) = (raw.generation.get(), raw.write_pointer.get());
        if generation == 0 || generation > MAX_COUNT {
            return Err(Error::corrupt(format!("{what}: field out of range: generation={generation}")));
        }
        let possible = write_pointer <= capacity && write_pointer % granularity == 0;
        if !possible || (state == ZoneState::Empty && write_pointer != 0) {
            return Err(Error::corrupt(format!("{what}: field out of range: write_pointer={write_pointer}")));
        }
        Ok(ZoneHeader { uuid, zone, state, generation, write_pointer })
    }
}
