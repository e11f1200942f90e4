//! Encoding of version 1 of a drive's file. The book's page "An emulated ZNS drive" among the formats
//! describes the bytes.
//!
//! Decoding accepts any bytes and never panics; invalid bytes are an error that names them.

use crate::machine::State;
use block::{Buffer, Error, Result};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
use zones::sector::{self, Format, Head, SECTOR};

/// Version that this code writes and reads.
pub const VERSION: u32 = 1;
/// Bytes of a superblock's or a zone's area.
pub const AREA: u64 = 4096;
/// Blocks in one sector of the block table.
const BLOCKS_IN_A_SECTOR: usize = 31;
/// Most blocks of a zone: those that fit the zone's area after its header.
pub const MAX_BLOCKS: u32 = (BLOCKS_IN_A_SECTOR * (AREA as usize / SECTOR - 1)) as u32;
/// Longest name of a profile, in bytes.
const PROFILE_NAME: usize = 32;

const SUPERBLOCK: Format = Format { magic: *b"SILTZNSS", version: VERSION };
const ZONE: Format = Format { magic: *b"SILTZNSZ", version: VERSION };
const BLOCKS: Format = Format { magic: *b"SILTZNSB", version: VERSION };

const CLEAN: u32 = 1;
const ENCRYPTED: u32 = 2;

/// Fields of a superblock.
#[derive(Debug, Clone, PartialEq)]
pub struct Superblock {
    /// UUID of the drive.
    pub uuid: Uuid,
    /// Sequence number, raised by every write; copy `sequence % 2` holds it.
    pub sequence: u64,
    /// Number of zones.
    pub zones: u32,
    /// Distance between two zones in the address space, in bytes.
    pub zone_size: u64,
    /// Writable bytes of a zone.
    pub zone_capacity: u64,
    /// Start of the cells of zone 0 in the file.
    pub first_zone: u64,
    /// Seed of block failures and bit errors.
    pub seed: u64,
    /// Seconds that the drive has aged.
    pub clock: u64,
    /// Guaranteed erases of a block.
    pub endurance: u32,
    /// Name of the profile.
    pub profile: String,
    /// Whether each zone has a key.
    pub encrypted: bool,
    /// Whether the drive was closed cleanly.
    pub clean: bool,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    head: Head,
    zones: U32,
    uuid: [u8; 16],
    sequence: U64,
    zone_size: U64,
    zone_capacity: U64,
    first_zone: U64,
    seed: U64,
    clock: U64,
    endurance: U32,
    flags: U32,
    profile: [u8; PROFILE_NAME],
    reserved: [u8; 388],
    crc: U32,
}

/// State of a zone on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// Empty.
    Empty,
    /// Written since its reset; closed, with its write pointer, after a clean stop.
    Begun,
    /// Begun before an unclean stop.
    Interrupted,
    /// Full.
    Full,
    /// Read only.
    ReadOnly,
    /// Offline.
    Offline,
}

impl Stored {
    const ALL: [Stored; 6] =
        [Stored::Empty, Stored::Begun, Stored::Interrupted, Stored::Full, Stored::ReadOnly, Stored::Offline];

    /// The stored form of a zone's state.
    pub fn of(state: State, interrupted: bool) -> Stored {
        match state {
            _ if interrupted => Stored::Interrupted,
            State::Empty => Stored::Empty,
            State::ImplicitlyOpened | State::ExplicitlyOpened | State::Closed => Stored::Begun,
            State::Full => Stored::Full,
            State::ReadOnly => Stored::ReadOnly,
            State::Offline => Stored::Offline,
        }
    }

    /// Returns the zone's state after a stop, and whether it is interrupted.
    pub fn state(self, clean: bool) -> (State, bool) {
        match self {
            Stored::Empty => (State::Empty, false),
            Stored::Begun => (State::Closed, !clean),
            Stored::Interrupted => (State::Closed, true),
            Stored::Full => (State::Full, false),
            Stored::ReadOnly => (State::ReadOnly, false),
            Stored::Offline => (State::Offline, false),
        }
    }
}

/// Fields of a zone's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneHeader {
    /// State.
    pub state: Stored,
    /// Whether the cells still have contents of an earlier generation.
    pub stale: bool,
    /// Generation.
    pub generation: u64,
    /// Write pointer, in bytes.
    pub write_pointer: u64,
    /// Time of the drive's clock at which the zone was begun, in seconds.
    pub begun: u64,
    /// Key of this generation; zeros without encryption and after a reset.
    pub key: [u8; 32],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawZone {
    head: Head,
    zone: U32,
    uuid: [u8; 16],
    state: U32,
    flags: U32,
    generation: U64,
    write_pointer: U64,
    begun: U64,
    key: [u8; 32],
    reserved: [u8; 412],
    crc: U32,
}

/// State of an erase block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Block {
    /// Number of erases.
    pub erases: u32,
    /// Number of reads since the last erase.
    pub reads: u32,
    /// Whether a program or an erase of the block has failed.
    pub failed: bool,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawBlock {
    erases: U32,
    reads: U32,
    flags: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBlocks {
    head: Head,
    blocks: [RawBlock; BLOCKS_IN_A_SECTOR],
    crc: U32,
}

impl Superblock {
    /// Encodes the superblock as an area.
    pub fn encode(&self) -> Buffer {
        let mut profile = [0; PROFILE_NAME];
        let name = &self.profile.as_bytes()[..self.profile.len().min(PROFILE_NAME)];
        profile[..name.len()].copy_from_slice(name);
        let flags = u32::from(self.clean) * CLEAN + u32::from(self.encrypted) * ENCRYPTED;
        let raw = RawSuperblock {
            head: SUPERBLOCK.head(),
            zones: self.zones.into(),
            uuid: self.uuid.into_bytes(),
            sequence: self.sequence.into(),
            zone_size: self.zone_size.into(),
            zone_capacity: self.zone_capacity.into(),
            first_zone: self.first_zone.into(),
            seed: self.seed.into(),
            clock: self.clock.into(),
            endurance: self.endurance.into(),
            flags: flags.into(),
            profile,
            reserved: [0; 388],
            crc: 0.into(),
        };
        sector::block_of(&raw, AREA as usize)
    }

    /// Decodes the first bytes of an area.
    ///
    /// # Errors
    /// As [`Format::read`]; [`Error::Protocol`] and [`Error::Corrupt`] also for fields out of range.
    pub fn decode(bytes: &[u8]) -> Result<Superblock> {
        let raw: &RawSuperblock = SUPERBLOCK.read(bytes, "superblock of an emulated ZNS drive")?;
        let flags = raw.flags.get();
        if flags & !(CLEAN | ENCRYPTED) != 0 || raw.reserved != [0; 388] {
            return Err(Error::protocol(
                "superblock of an emulated ZNS drive: flags or fields that version 1 doesn't have",
            ));
        }
        let length = raw.profile.iter().position(|byte| *byte == 0).unwrap_or(PROFILE_NAME);
        let profile = std::str::from_utf8(&raw.profile[..length]).map(str::to_owned).map_err(|_| {
            Error::corrupt("superblock of an emulated ZNS drive: the profile's name isn't UTF-8")
        })?;
        let superblock = Superblock {
            uuid: Uuid::from_bytes(raw.uuid),
            sequence: raw.sequence.get(),
            zones: raw.zones.get(),
            zone_size: raw.zone_size.get(),
            zone_capacity: raw.zone_capacity.get(),
            first_zone: raw.first_zone.get(),
            seed: raw.seed.get(),
            clock: raw.clock.get(),
            endurance: raw.endurance.get(),
            profile,
            encrypted: flags & ENCRYPTED != 0,
            clean: flags & CLEAN != 0,
        };
        let Superblock { zones, zone_capacity, zone_size, first_zone, sequence, .. } = superblock;
        let cells = u128::from(zone_capacity) * u128::from(zones) + u128::from(first_zone);
        let fits = zones > 0
            && (1..=zone_size).contains(&zone_capacity)
            && zone_capacity.is_multiple_of(AREA)
            && first_zone == Self::first_zone(zones)
            && cells < 1 << 62
            && sequence < 1 << 62;
        if !fits {
            return Err(Error::corrupt(format!(
                "superblock of an emulated ZNS drive: field out of range: zones={zones}, zone_size={zone_size}, \
                 zone_capacity={zone_capacity}, first_zone={first_zone}, sequence={sequence}"
            )));
        }
        Ok(superblock)
    }

    /// Start of the cells of zone 0, on a drive with `zones` zones.
    pub fn first_zone(zones: u32) -> u64 {
        (2 + u64::from(zones)) * AREA
    }

    /// Start of the area of a zone.
    pub fn zone_area(zone: u32) -> u64 {
        (2 + u64::from(zone)) * AREA
    }

    /// Start of the cells of a zone.
    pub fn cells(&self, zone: u32) -> u64 {
        self.first_zone + u64::from(zone) * self.zone_capacity
    }
}

/// Encodes a zone's header and its blocks as an area.
pub fn encode_zone(uuid: Uuid, zone: u32, header: &ZoneHeader, blocks: &[Block]) -> Buffer {
    let mut area = Buffer::new(AREA as usize);
    let state = Stored::ALL.iter().position(|state| *state == header.state).unwrap_or_default();
    let raw = RawZone {
        head: ZONE.head(),
        zone: zone.into(),
        uuid: uuid.into_bytes(),
        state: (state as u32).into(),
        flags: u32::from(header.stale).into(),
        generation: header.generation.into(),
        write_pointer: header.write_pointer.into(),
        begun: header.begun.into(),
        key: header.key,
        reserved: [0; 412],
        crc: 0.into(),
    };
    sector::append(&raw, &mut area);
    for some in blocks.chunks(BLOCKS_IN_A_SECTOR) {
        let mut raw = RawBlocks {
            head: BLOCKS.head(),
            blocks: [RawBlock { erases: 0.into(), reads: 0.into(), flags: 0.into(), reserved: 0.into() };
                BLOCKS_IN_A_SECTOR],
            crc: 0.into(),
        };
        for (raw, block) in raw.blocks.iter_mut().zip(some) {
            raw.erases = block.erases.into();
            raw.reads = block.reads.into();
            raw.flags = u32::from(block.failed).into();
        }
        sector::append(&raw, &mut area);
    }
    area.append_zeroes(area.missing());
    area
}

/// Decodes the area of a zone with this number of blocks.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged area or that of another zone or drive, [`Error::Protocol`] for other
/// bytes or another version.
pub fn decode_zone(
    bytes: &[u8],
    uuid: Uuid,
    zone: u32,
    capacity: u64,
    blocks: u32,
) -> Result<(ZoneHeader, Vec<Block>)> {
    let what = format_args!("header of zone {zone}");
    let missing = |error: Error| match error {
        Error::NotFound(detail) => Error::Protocol(detail),
        error => error,
    };
    let raw: &RawZone = ZONE.read(bytes, what).map_err(missing)?;
    if raw.uuid != uuid.into_bytes() || raw.zone.get() != zone {
        let found = Uuid::from_bytes(raw.uuid);
        return Err(Error::corrupt(format!(
            "{what}: it is of zone {} of drive {found}, expected {uuid}",
            raw.zone
        )));
    }
    let state = Stored::ALL.get(raw.state.get() as usize);
    let (Some(state), true) = (state, raw.flags.get() <= 1 && raw.reserved == [0; 412]) else {
        return Err(Error::protocol(format!("{what}: state, flags or fields that version 1 doesn't have")));
    };
    if raw.write_pointer.get() > capacity || raw.generation.get() >= 1 << 62 {
        return Err(Error::corrupt(format!(
            "{what}: field out of range: write_pointer={}, generation={}",
            raw.write_pointer, raw.generation
        )));
    }
    let header = ZoneHeader {
        state: *state,
        stale: raw.flags.get() == 1,
        generation: raw.generation.get(),
        write_pointer: raw.write_pointer.get(),
        begun: raw.begun.get(),
        key: raw.key,
    };
    let mut table = Vec::with_capacity(blocks as usize);
    for number in 0..(blocks as usize).div_ceil(BLOCKS_IN_A_SECTOR) {
        let rest = bytes.get((number + 1) * SECTOR..).unwrap_or_default();
        let raw: &RawBlocks = BLOCKS.read(rest, format_args!("blocks of zone {zone}")).map_err(missing)?;
        for raw in raw.blocks.iter().take(blocks as usize - table.len()) {
            table.push(Block {
                erases: raw.erases.get(),
                reads: raw.reads.get(),
                failed: raw.flags.get() & 1 != 0,
            });
        }
    }
    Ok((header, table))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            uuid: Uuid::from_bytes([7; 16]),
            sequence: 3,
            zones: 5,
            zone_size: 1 << 20,
            zone_capacity: 1 << 19,
            first_zone: 7 * AREA,
            seed: 9,
            clock: 11,
            endurance: 3000,
            profile: "zn540".into(),
            encrypted: true,
            clean: true,
        }
    }

    fn zone() -> (ZoneHeader, Vec<Block>) {
        let header = ZoneHeader {
            state: Stored::Full,
            stale: true,
            generation: 12,
            write_pointer: 4096,
            begun: 77,
            key: [3; 32],
        };
        let block = |number| Block { erases: number, reads: 2 * number, failed: number % 5 == 0 };
        (header, (0..40).map(block).collect())
    }

    #[test]
    fn what_is_written_is_read_back_from_the_documented_places() {
        let bytes = superblock().encode();
        assert_eq!(Superblock::decode(bytes.filled()).unwrap(), superblock());
        assert_eq!(bytes.filled()[..12], *b"SILTZNSS\x01\0\0\0");
        assert_eq!(bytes.filled()[32..40], 3_u64.to_le_bytes());
        assert_eq!(bytes.filled()[88..93], *b"zn540");
        let (header, blocks) = zone();
        let bytes = encode_zone(Uuid::from_bytes([7; 16]), 4, &header, &blocks);
        let decoded = decode_zone(bytes.filled(), Uuid::from_bytes([7; 16]), 4, 8192, 40).unwrap();
        assert_eq!(decoded, (header, blocks));
        assert_eq!(bytes.filled()[64..96], [3; 32]);
        assert_eq!(bytes.filled()[512 + 12 + 16..512 + 12 + 20], 1_u32.to_le_bytes());
    }

    #[test]
    fn every_flipped_bit_and_other_drives_are_refused() {
        let uuid = Uuid::from_bytes([7; 16]);
        let (header, blocks) = zone();
        let good = encode_zone(uuid, 4, &header, &blocks);
        for bit in 0..3 * SECTOR * 8 {
            let mut bytes = good.filled().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_zone(&bytes, uuid, 4, 8192, 40).is_err(), "bit {bit}");
        }
        for bit in 0..SECTOR * 8 {
            let mut bytes = superblock().encode().filled().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
        }
        assert!(decode_zone(good.filled(), uuid, 3, 8192, 40).is_err());
        assert!(decode_zone(good.filled(), Uuid::from_bytes([8; 16]), 4, 8192, 40).is_err());
        assert!(decode_zone(good.filled(), uuid, 4, 2048, 40).is_err());
        assert!(decode_zone(&good.filled()[..1000], uuid, 4, 8192, 40).is_err());
        let other = Superblock { first_zone: 4096, ..superblock() };
        assert!(Superblock::decode(other.encode().filled()).is_err());
    }
}
