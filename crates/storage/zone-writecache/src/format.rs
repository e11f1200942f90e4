//! Encodings on the fast device, version 1. The book's page "Write cache of zones" describes the bytes.
//!
//! Decoding accepts any bytes: it never panics, and refuses every deviation from the format.

use block::{Buffer, Error, Payload, Result, ZoneIndex, ZoneState};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
use zones::on_device::format::Uuid;
use zones::record::{Identity, keyed_sum};
use zones::sector::{self, Format, Head};

/// Version of the format that this code writes and reads.
pub const VERSION: u32 = 1;
/// First bytes of a superblock.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"SILTZWSB";
/// First bytes of a record.
pub const RECORD_MAGIC: [u8; 8] = *b"SILTZWRC";
/// First bytes of a page of a checkpoint.
pub const PAGE_MAGIC: [u8; 8] = *b"SILTZWCP";
/// Length of a record's header without its entries, in bytes.
pub const FIXED: usize = size_of::<RawHeader>();
/// Length of an entry, in bytes.
pub const ENTRY: usize = size_of::<RawEntry>();
/// Limit of the entries of a record.
pub const MAX_ENTRIES: usize = 256;
/// Length of a page of a checkpoint, in bytes.
pub const PAGE: usize = 4096;
/// Zones of a page of a checkpoint.
pub const ZONES_OF_PAGE: usize = (PAGE - size_of::<RawPage>()) / size_of::<RawZone>();
const CLEAN: u32 = 1;
/// Reserved bytes of a superblock: zeros.
const RESERVED: usize = 284;
const FORMAT: Format = Format { magic: SUPERBLOCK_MAGIC, version: VERSION };
/// Limit of numbers that only grow: larger ones are damage.
const MAX_COUNT: u64 = 1 << 62;

/// State of one zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone {
    /// State in the zone state machine.
    pub state: ZoneState,
    /// End of the appended bytes.
    pub write_pointer: u64,
    /// Number of resets.
    pub generation: u64,
}

/// Position in the log: an entry of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// Address of the record, or before it where the record is at the start of the next lap.
    pub address: u64,
    /// Number of the record.
    pub record: u64,
    /// Number of entries of the record before the position.
    pub entry: u32,
}

/// Longest name of a writer, in bytes.
const MAX_NAME: usize = 64;

/// Name of a writer for operators, truncated to [`MAX_NAME`] bytes of whole characters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WriterName([u8; MAX_NAME]);

impl WriterName {
    /// Name without bytes.
    pub const EMPTY: WriterName = WriterName([0; MAX_NAME]);

    /// Truncates a name.
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; MAX_NAME];
        let end = (0..=name.len().min(MAX_NAME)).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        WriterName(bytes)
    }
}

impl std::fmt::Debug for WriterName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "\"{self}\"")
    }
}

impl std::fmt::Display for WriterName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(MAX_NAME);
        write!(formatter, "{}", String::from_utf8_lossy(&self.0[..end]).escape_debug())
    }
}

/// Fields of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Unit of the log in bytes: block size of the fast device when it was formatted, at least 512.
    pub block_size: u32,
    /// Identity of the cache, which binds its records to it.
    pub identity: Identity,
    /// Raised by every write of a superblock; copy `sequence % 2` holds it.
    pub sequence: u64,
    /// Zones of the origin.
    pub zones: u32,
    /// Capacity of a zone of the origin, in bytes.
    pub zone_capacity: u64,
    /// Bytes of the ring.
    pub ring: u64,
    /// Number of the epoch: raised by every open.
    pub epoch: u64,
    /// Number of the first record of the epoch.
    pub first_of_epoch: u64,
    /// Number of the checkpoint, which is in slot `number % 2`.
    pub checkpoint: u64,
    /// Position of the state in the checkpoint.
    pub checkpoint_at: Position,
    /// Position up to which all operations are durable at the origin.
    pub tail: Position,
    /// Number of a record up to which all records are durable.
    pub durable: u64,
    /// Whether the cache was closed cleanly.
    pub clean: bool,
    /// Number of claims of the origin that this cache has begun.
    pub claims: u64,
    /// Number of its last claim at the origin; 0 for an origin without claims.
    pub claim: u64,
    /// Writer of that claim.
    pub writer: WriterName,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPosition {
    address: U64,
    record: U64,
    entry: U32,
}

impl From<Position> for RawPosition {
    fn from(position: Position) -> Self {
        let Position { address, record, entry } = position;
        RawPosition { address: address.into(), record: record.into(), entry: entry.into() }
    }
}

impl RawPosition {
    fn decode(&self) -> Position {
        Position { address: self.address.get(), record: self.record.get(), entry: self.entry.get() }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    head: Head,
    block_size: U32,
    uuid: [u8; 16],
    key: U64,
    sequence: U64,
    zones: U32,
    flags: U32,
    zone_capacity: U64,
    ring: U64,
    epoch: U64,
    first_of_epoch: U64,
    checkpoint: U64,
    checkpoint_at: RawPosition,
    tail: RawPosition,
    durable: U64,
    claims: U64,
    claim: U64,
    writer: [u8; MAX_NAME],
    reserved: [u8; RESERVED],
    checksum: U32,
}

impl Superblock {
    /// Encodes the superblock as one block.
    pub fn encode(&self) -> Payload {
        let raw = RawSuperblock {
            head: FORMAT.head(),
            block_size: self.block_size.into(),
            uuid: self.identity.uuid.into_bytes(),
            key: self.identity.key.into(),
            sequence: self.sequence.into(),
            zones: self.zones.into(),
            flags: (if self.clean { CLEAN } else { 0 }).into(),
            zone_capacity: self.zone_capacity.into(),
            ring: self.ring.into(),
            epoch: self.epoch.into(),
            first_of_epoch: self.first_of_epoch.into(),
            checkpoint: self.checkpoint.into(),
            checkpoint_at: self.checkpoint_at.into(),
            tail: self.tail.into(),
            durable: self.durable.into(),
            claims: self.claims.into(),
            claim: self.claim.into(),
            writer: self.writer.0,
            reserved: [0; RESERVED],
            checksum: 0.into(),
        };
        sector::block_of(&raw, self.block_size as usize).into()
    }

    /// Decodes the superblock at the start of these bytes.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Protocol`] and [`Error::Corrupt`] as [`Format::read`] returns them;
    /// [`Error::Corrupt`] for fields out of range.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let raw: &RawSuperblock = FORMAT.read(bytes, "superblock of a write cache of zones")?;
        let (flags, block_size) = (raw.flags.get(), raw.block_size.get());
        let superblock = Superblock {
            block_size,
            identity: Identity { uuid: Uuid::from_bytes(raw.uuid), key: raw.key.get() },
            sequence: raw.sequence.get(),
            zones: raw.zones.get(),
            zone_capacity: raw.zone_capacity.get(),
            ring: raw.ring.get(),
            epoch: raw.epoch.get(),
            first_of_epoch: raw.first_of_epoch.get(),
            checkpoint: raw.checkpoint.get(),
            checkpoint_at: raw.checkpoint_at.decode(),
            tail: raw.tail.decode(),
            durable: raw.durable.get(),
            clean: flags & CLEAN != 0,
            claims: raw.claims.get(),
            claim: raw.claim.get(),
            writer: WriterName(raw.writer),
        };
        let Superblock { sequence, ring, epoch, first_of_epoch, checkpoint_at, tail, durable, .. } =
            superblock;
        let Superblock { claims, claim, .. } = superblock;
        let counts = [
            sequence,
            epoch,
            first_of_epoch,
            checkpoint_at.record,
            tail.address,
            tail.record,
            durable,
            claims,
            claim,
        ];
        let is_block = block_size.is_power_of_two() && (512..=1 << 20).contains(&block_size);
        let entries = checkpoint_at.entry.max(tail.entry) as usize;
        if !is_block
            || flags & !CLEAN != 0
            || ring == 0
            || ring % u64::from(block_size) != 0
            || counts.iter().any(|count| *count > MAX_COUNT)
            || ring > MAX_COUNT
            || checkpoint_at > tail
            || entries > MAX_ENTRIES
            || raw.reserved != [0; RESERVED]
        {
            return Err(Error::corrupt(format!(
                "superblock of a write cache of zones: field out of range: flags={flags}, {superblock:?}"
            )));
        }
        Ok(superblock)
    }
}

/// Operation of an entry. Values are those on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// Data was appended to a zone.
    Append = 1,
    /// A zone was finished.
    Finish = 2,
    /// A zone was reset.
    Reset = 3,
    /// A zone was opened explicitly.
    Open = 4,
    /// A zone was closed.
    Close = 5,
    /// The cache was opened after an unclean stop: all begun zones are interrupted.
    Unclean = 6,
    /// The cache was opened after a clean stop: all open zones are closed.
    Clean = 7,
}

impl Action {
    const ALL: [Action; 7] = [
        Action::Append,
        Action::Finish,
        Action::Reset,
        Action::Open,
        Action::Close,
        Action::Unclean,
        Action::Clean,
    ];
}

/// An operation of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The operation.
    pub action: Action,
    /// Zone of the operation.
    pub zone: ZoneIndex,
    /// Generation of the zone before the operation.
    pub generation: u64,
    /// Offset of an append, in bytes.
    pub offset: u64,
    /// Bytes of an append.
    pub length: u32,
    /// Keyed checksum of the appended data.
    pub sum: u32,
}

impl Entry {
    /// An entry without data.
    pub fn of(action: Action, zone: ZoneIndex, generation: u64) -> Self {
        Entry { action, zone, generation, offset: 0, length: 0, sum: 0 }
    }

    /// Bytes of an append.
    pub fn length(&self) -> u64 {
        u64::from(self.length)
    }

    /// End of an append in its zone, in bytes.
    pub fn end(&self) -> u64 {
        self.offset + self.length()
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    action: u8,
    reserved: [u8; 3],
    zone: U32,
    generation: U64,
    offset: U64,
    length: U32,
    sum: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    checksum: U32,
    version: U32,
    uuid: [u8; 16],
    epoch: U64,
    record: U64,
    address: U64,
    durable: U64,
    flush_epoch: U64,
    written: U64,
    entries: U32,
    reserved: U32,
}

/// Header of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Epoch in which the record was written.
    pub epoch: u64,
    /// Number of the record.
    pub record: u64,
    /// Address of the record.
    pub address: u64,
    /// All records up to this number were durable before this one was written.
    pub durable: u64,
    /// Number of flushes by users before the record.
    pub flush_epoch: u64,
    /// Time of writing, in ms since 1970.
    pub written: u64,
    /// The operations.
    pub entries: Vec<Entry>,
}

/// Bytes of a header with this number of entries, in whole blocks.
pub fn header_bytes(entries: usize, block_size: u64) -> u64 {
    ((FIXED + entries * ENTRY) as u64).next_multiple_of(block_size)
}

impl Header {
    /// Bytes of the header on the device.
    pub fn bytes(&self, block_size: u64) -> u64 {
        header_bytes(self.entries.len(), block_size)
    }

    /// Address of the data of the first append.
    pub fn data_address(&self, block_size: u64) -> u64 {
        self.address + self.bytes(block_size)
    }

    /// Bytes of the record on the device: header, data of the appends one after another, padding.
    pub fn record_bytes(&self, block_size: u64) -> u64 {
        let data: u64 = self.entries.iter().map(Entry::length).sum();
        self.bytes(block_size) + data.next_multiple_of(block_size)
    }

    /// Encodes the header in whole blocks.
    pub fn encode(&self, identity: &Identity, block_size: u64) -> Buffer {
        let raw = RawHeader {
            magic: RECORD_MAGIC,
            checksum: 0.into(),
            version: VERSION.into(),
            uuid: identity.uuid.into_bytes(),
            epoch: self.epoch.into(),
            record: self.record.into(),
            address: self.address.into(),
            durable: self.durable.into(),
            flush_epoch: self.flush_epoch.into(),
            written: self.written.into(),
            entries: (self.entries.len() as u32).into(),
            reserved: 0.into(),
        };
        let mut buffer = Buffer::new(self.bytes(block_size) as usize);
        buffer.append(raw.as_bytes());
        for entry in &self.entries {
            let raw = RawEntry {
                action: entry.action as u8,
                reserved: [0; 3],
                zone: entry.zone.0.into(),
                generation: entry.generation.into(),
                offset: entry.offset.into(),
                length: entry.length.into(),
                sum: entry.sum.into(),
            };
            buffer.append(raw.as_bytes());
        }
        let sum = keyed_sum(identity.key, &[&buffer.filled()[12..]]);
        buffer.filled_mut()[8..12].copy_from_slice(&sum.to_le_bytes());
        buffer.append_zeroes(buffer.missing());
        buffer
    }

    /// Returns the length of the header at the start of these bytes, at least [`FIXED`] of them, without
    /// verifying it; `None` if they don't begin with a record of this version.
    pub fn length(bytes: &[u8]) -> Option<usize> {
        let (raw, _) = RawHeader::ref_from_prefix(bytes).ok()?;
        let entries = raw.entries.get() as usize;
        let is_one = raw.magic == RECORD_MAGIC && raw.version.get() == VERSION && entries <= MAX_ENTRIES;
        is_one.then_some(FIXED + entries * ENTRY)
    }

    /// Decodes the header of a record of this cache at the start of these bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that [`encode`](Self::encode) doesn't write for this cache.
    pub fn decode(bytes: &[u8], identity: &Identity) -> Result<Self> {
        let wrong = || Error::corrupt("not a record of this write cache of zones");
        let length = Self::length(bytes).ok_or_else(wrong)?;
        let bytes = bytes.get(..length).ok_or_else(wrong)?;
        let (raw, rest) = RawHeader::ref_from_prefix(bytes).map_err(|_| wrong())?;
        let is_whole = keyed_sum(identity.key, &[&bytes[12..]]) == raw.checksum.get();
        if !is_whole || raw.uuid != identity.uuid.into_bytes() || raw.reserved.get() != 0 {
            return Err(wrong());
        }
        let list = <[RawEntry]>::ref_from_bytes(rest).map_err(|_| wrong())?;
        let mut entries = Vec::with_capacity(list.len());
        for raw in list {
            let action =
                Action::ALL.into_iter().find(|action| *action as u8 == raw.action).ok_or_else(wrong)?;
            let entry = Entry {
                action,
                zone: ZoneIndex(raw.zone.get()),
                generation: raw.generation.get(),
                offset: raw.offset.get(),
                length: raw.length.get(),
                sum: raw.sum.get(),
            };
            let is_append = action == Action::Append;
            if raw.reserved != [0; 3]
                || entry.offset > MAX_COUNT
                || entry.generation > MAX_COUNT
                || is_append != (entry.length != 0)
            {
                return Err(wrong());
            }
            entries.push(entry);
        }
        let header = Header {
            epoch: raw.epoch.get(),
            record: raw.record.get(),
            address: raw.address.get(),
            durable: raw.durable.get(),
            flush_epoch: raw.flush_epoch.get(),
            written: raw.written.get(),
            entries,
        };
        let counts = [header.epoch, header.record, header.address, header.durable, header.flush_epoch];
        match counts.iter().all(|count| *count <= MAX_COUNT) {
            true => Ok(header),
            false => Err(wrong()),
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPage {
    magic: [u8; 8],
    checksum: U32,
    version: U32,
    checkpoint: U64,
    page: U32,
    zones: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawZone {
    generation: U64,
    write_pointer: U64,
    state: U32,
}

fn state_code(state: ZoneState) -> u32 {
    match state {
        ZoneState::Empty => 0,
        ZoneState::ImplicitlyOpen => 1,
        ZoneState::ExplicitlyOpen => 2,
        ZoneState::Closed => 3,
        ZoneState::Interrupted => 4,
        ZoneState::Full => 5,
        ZoneState::ReadOnly => 6,
        ZoneState::Offline => 7,
    }
}

const STATES: [ZoneState; 8] = [
    ZoneState::Empty,
    ZoneState::ImplicitlyOpen,
    ZoneState::ExplicitlyOpen,
    ZoneState::Closed,
    ZoneState::Interrupted,
    ZoneState::Full,
    ZoneState::ReadOnly,
    ZoneState::Offline,
];

/// Appends a page of a checkpoint to the buffer, which has space for it.
pub fn append_page(identity: &Identity, checkpoint: u64, page: u32, zones: &[Zone], buffer: &mut Buffer) {
    let from = buffer.filled().len();
    let raw = RawPage {
        magic: PAGE_MAGIC,
        checksum: 0.into(),
        version: VERSION.into(),
        checkpoint: checkpoint.into(),
        page: page.into(),
        zones: (zones.len() as u32).into(),
    };
    buffer.append(raw.as_bytes());
    for zone in zones {
        let raw = RawZone {
            generation: zone.generation.into(),
            write_pointer: zone.write_pointer.into(),
            state: state_code(zone.state).into(),
        };
        buffer.append(raw.as_bytes());
    }
    buffer.append_zeroes(from + PAGE - buffer.filled().len());
    let page = &mut buffer.filled_mut()[from..];
    let sum = keyed_sum(identity.key, &[identity.uuid.as_bytes(), &page[12..]]);
    page[8..12].copy_from_slice(&sum.to_le_bytes());
}

/// Decodes a page of a checkpoint.
///
/// # Errors
/// [`Error::Corrupt`] for any other bytes.
pub fn decode_page(bytes: &[u8], identity: &Identity, checkpoint: u64, page: u32) -> Result<Vec<Zone>> {
    let wrong = || {
        Error::corrupt(format!(
            "write cache of zones: page {page} of checkpoint {checkpoint} on the fast device is damaged; expected a page of \
             this cache; restore the device, or give an empty one with new_fast=true, which continues with the older state \
             of the origin"
        ))
    };
    let (raw, rest) = RawPage::ref_from_prefix(bytes).map_err(|_| wrong())?;
    let sum = keyed_sum(identity.key, &[identity.uuid.as_bytes(), &bytes[12..]]);
    let is_it = raw.magic == PAGE_MAGIC
        && raw.version.get() == VERSION
        && raw.checkpoint.get() == checkpoint
        && raw.page.get() == page;
    if !is_it || raw.checksum.get() != sum || raw.zones.get() as usize > ZONES_OF_PAGE {
        return Err(wrong());
    }
    let zones = &rest[..raw.zones.get() as usize * size_of::<RawZone>()];
    let zones = <[RawZone]>::ref_from_bytes(zones).map_err(|_| wrong())?;
    let decode = |raw: &RawZone| {
        let state = *STATES.get(raw.state.get() as usize).ok_or_else(wrong)?;
        let (write_pointer, generation) = (raw.write_pointer.get(), raw.generation.get());
        match write_pointer <= MAX_COUNT && generation <= MAX_COUNT {
            true => Ok(Zone { state, write_pointer, generation }),
            false => Err(wrong()),
        }
    };
    zones.iter().map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDENTITY: Identity = Identity { uuid: Uuid::from_bytes([3; 16]), key: 4 };

    #[test]
    fn names_of_writers_are_truncated_between_characters() {
        assert_eq!(WriterName::new("host, process 12").to_string(), "host, process 12");
        let long = "ü".repeat(50);
        assert_eq!(WriterName::new(&long).to_string(), "ü".repeat(32));
        assert_eq!(WriterName::new(&format!("h{long}")).to_string(), format!("h{}", "ü".repeat(31)));
        assert_eq!(WriterName::EMPTY.to_string(), "");
    }

    fn superblock() -> Superblock {
        Superblock {
            block_size: 4096,
            identity: IDENTITY,
            sequence: 5,
            zones: 6,
            zone_capacity: 7 << 20,
            ring: 8 << 20,
            epoch: 9,
            first_of_epoch: 10,
            checkpoint: 11,
            checkpoint_at: Position { address: 12 << 12, record: 13, entry: 14 },
            tail: Position { address: 15 << 12, record: 16, entry: 17 },
            durable: 18,
            clean: true,
            claims: 3,
            claim: 5,
            writer: WriterName::new("host, process 12"),
        }
    }

    fn header() -> Header {
        let append = Entry {
            action: Action::Append,
            zone: ZoneIndex(1),
            generation: 2,
            offset: 512,
            length: 1024,
            sum: 5,
        };
        let entries = vec![append, Entry::of(Action::Reset, ZoneIndex(9), 3)];
        Header { epoch: 1, record: 2, address: 4096, durable: 1, flush_epoch: 7, written: 8, entries }
    }

    #[test]
    fn a_superblock_is_read_as_written_and_every_changed_bit_is_noticed() {
        let bytes = superblock().encode().to_data().to_vec();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
        for bit in 0..sector::SECTOR * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_header_is_read_as_written_and_every_changed_bit_is_noticed() {
        let bytes = header().encode(&IDENTITY, 512).filled().to_vec();
        assert_eq!(bytes.len(), 512);
        assert_eq!(Header::decode(&bytes, &IDENTITY), Ok(header()));
        assert_eq!(header().record_bytes(512), 512 + 1024);
        let other = Identity { key: 5, ..IDENTITY };
        assert!(Header::decode(&bytes, &other).is_err(), "of another cache");
        for bit in 0..(FIXED + 2 * ENTRY) * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes, &IDENTITY).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_page_is_read_as_written_and_every_changed_bit_is_noticed() {
        let zone =
            |at: u64| Zone { state: STATES[at as usize % 8], write_pointer: at * 512, generation: at + 1 };
        let zones: Vec<Zone> = (0..ZONES_OF_PAGE as u64).map(zone).collect();
        let mut buffer = Buffer::new(PAGE);
        append_page(&IDENTITY, 7, 1, &zones, &mut buffer);
        let bytes = buffer.filled().to_vec();
        assert_eq!(decode_page(&bytes, &IDENTITY, 7, 1), Ok(zones));
        assert!(decode_page(&bytes, &IDENTITY, 8, 1).is_err(), "of another checkpoint");
        for bit in 0..PAGE * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_page(&bytes, &IDENTITY, 7, 1).is_err(), "bit {bit}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]

        #[test]
        fn any_bytes_are_decoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            prop_assert!(Superblock::decode(&bytes).is_err());
            prop_assert!(Header::decode(&bytes, &IDENTITY).is_err());
            prop_assert!(decode_page(&bytes, &IDENTITY, 1, 0).is_err());
            let mut one = RECORD_MAGIC.to_vec();
            one.extend_from_slice(&bytes);
            prop_assert!(Header::decode(&one, &IDENTITY).is_err());
        }
    }
}
