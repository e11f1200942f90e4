//! Encodings on a leg, version 1: superblock and sectors of the bitmap. The book's page "A mirror's legs"
//! describes them byte by byte.
//!
//! Decoders accept any bytes: they never panic, and refuse invalid bytes with an error that names them.

use block::{Buffer, Error, Payload, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
pub use zones::on_device::format::{Uuid, draw_uuid};
use zones::sector::{self, Format, Head};

/// The version of the format that this code writes and reads.
pub const VERSION: u32 = 1;
/// Length of a superblock and of a sector of the bitmap, in bytes.
pub const RECORD: usize = sector::SECTOR;
/// The first bytes of a superblock.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"SILTMIRR";
/// The first bytes of a sector of the bitmap.
pub const BITMAP_MAGIC: [u8; 8] = *b"SILTMBIT";
/// Largest number of legs of a mirror.
pub const MAX_LEGS: usize = 16;
/// Number of bytes of bits in a sector of the bitmap.
pub const BITMAP_BYTES: usize = 472;
/// Number of chunks of a sector of the bitmap.
pub const BITMAP_BITS: u64 = BITMAP_BYTES as u64 * 8;
/// Bound of valid event counts; larger values are damage.
const MAX_EVENTS: u64 = 1 << 62;
const SUPERBLOCK: Format = Format { magic: SUPERBLOCK_MAGIC, version: VERSION };
const BITMAP: Format = Format { magic: BITMAP_MAGIC, version: VERSION };

/// State of a slot of a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// The leg has all data, except in chunks whose bit is set.
    Active,
    /// The leg gets all changes, and lacks chunks whose bit is set.
    Rebuilding,
    /// The leg is faulty, after an error or an operator's message.
    Failed,
    /// The faulty leg was removed by an operator.
    Removed,
}

impl SlotState {
    const ALL: [SlotState; 4] =
        [SlotState::Active, SlotState::Rebuilding, SlotState::Failed, SlotState::Removed];

    /// Returns mdadm's name of the state.
    pub fn word(self) -> &'static str {
        match self {
            SlotState::Active => "active",
            SlotState::Rebuilding => "rebuilding",
            SlotState::Failed => "faulty",
            SlotState::Removed => "removed",
        }
    }
}

/// A slot of a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Identity of the slot's leg, drawn when the leg joins.
    pub leg: Uuid,
    /// State of the slot.
    pub state: SlotState,
    /// Whether reads avoid the leg, and it may lag.
    pub write_mostly: bool,
    /// Whether the leg has a complete bitmap.
    pub has_bitmap: bool,
}

/// Contents of a superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Block size of the mirror, in bytes.
    pub block_size: u32,
    /// Identity of the mirror.
    pub array: Uuid,
    /// Event count: raised by every change of the superblocks.
    pub events: u64,
    /// Event count since which no bit was cleared without a leg: a leg with at least this count lacks only
    /// chunks whose bit is set.
    pub cleared_events: u64,
    /// Offset of the data on a leg, in bytes.
    pub data_offset: u64,
    /// Length of the data, in bytes.
    pub data_bytes: u64,
    /// Offset of the bitmap, in bytes.
    pub bitmap_offset: u64,
    /// Size of the chunk of one bit, in bytes.
    pub bitmap_chunk: u64,
    /// This leg's slot.
    pub own: usize,
    /// Slot of the source, from which chunks whose bit is set are copied.
    pub source: usize,
    /// Whether flushes left out write-mostly legs.
    pub fast_flush: bool,
    /// All slots.
    pub slots: Vec<Slot>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawSlot {
    leg: [u8; 16],
    state: u8,
    flags: u8,
    padding: [u8; 2],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    head: Head,
    block_size: U32,
    array: [u8; 16],
    events: U64,
    cleared_events: U64,
    data_offset: U64,
    data_bytes: U64,
    bitmap_offset: U64,
    bitmap_chunk: U64,
    legs: U32,
    own: U32,
    source: U32,
    flags: U32,
    slots: [RawSlot; MAX_LEGS],
    reserved: [u8; 92],
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBitmap {
    head: Head,
    index: U32,
    array: [u8; 16],
    bits: [u8; BITMAP_BYTES],
    padding: [u8; 4],
    crc: U32,
}

const FAST_FLUSH: u32 = 1;
const WRITE_MOSTLY: u8 = 1;
const HAS_BITMAP: u8 = 2;

impl Superblock {
    /// Encodes at the beginning of a block of `block_bytes` bytes.
    pub fn encode(&self, block_bytes: usize) -> Payload {
        let empty = RawSlot { leg: [0; 16], state: 0, flags: 0, padding: [0; 2] };
        let mut slots = [empty; MAX_LEGS];
        for (raw, slot) in slots.iter_mut().zip(&self.slots) {
            let state = SlotState::ALL.iter().position(|state| *state == slot.state).unwrap_or(0);
            let flags =
                (u8::from(slot.write_mostly) * WRITE_MOSTLY) | (u8::from(slot.has_bitmap) * HAS_BITMAP);
            *raw = RawSlot { leg: slot.leg.into_bytes(), state: state as u8, flags, padding: [0; 2] };
        }
        let raw = RawSuperblock {
            head: SUPERBLOCK.head(),
            block_size: self.block_size.into(),
            array: self.array.into_bytes(),
            events: self.events.into(),
            cleared_events: self.cleared_events.into(),
            data_offset: self.data_offset.into(),
            data_bytes: self.data_bytes.into(),
            bitmap_offset: self.bitmap_offset.into(),
            bitmap_chunk: self.bitmap_chunk.into(),
            legs: (self.slots.len() as u32).into(),
            own: (self.own as u32).into(),
            source: (self.source as u32).into(),
            flags: (u32::from(self.fast_flush) * FAST_FLUSH).into(),
            slots,
            reserved: [0; 92],
            crc: 0.into(),
        };
        sector::block_of(&raw, block_bytes).into()
    }

    /// Decodes the first bytes of a block.
    ///
    /// # Errors
    /// Errors of [`Format::read`]; [`Error::Protocol`] for unknown flags or fields; [`Error::Corrupt`] for
    /// fields out of range.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let raw: &RawSuperblock = SUPERBLOCK.read(bytes, "superblock of a mirror")?;
        let legs = raw.legs.get() as usize;
        let is_known = raw.flags.get() & !FAST_FLUSH == 0 && raw.reserved.iter().all(|byte| *byte == 0);
        if !is_known {
            return Err(Error::protocol(
                "superblock of a mirror: flags or reserved fields are set that version 1 doesn't define",
            ));
        }
        let (own, source) = (raw.own.get() as usize, raw.source.get() as usize);
        let (events, cleared_events) = (raw.events.get(), raw.cleared_events.get());
        if !(2..=MAX_LEGS).contains(&legs) || own >= legs || source >= legs {
            return Err(Error::corrupt(format!(
                "superblock of a mirror: field out of range: legs={legs}, own={own}, source={source}"
            )));
        }
        if events > MAX_EVENTS || cleared_events > events {
            return Err(Error::corrupt(format!(
                "superblock of a mirror: field out of range: events={events}, cleared_events={cleared_events}"
            )));
        }
        let mut slots = Vec::with_capacity(legs);
        for raw in &raw.slots[..legs] {
            let state = SlotState::ALL.get(usize::from(raw.state)).copied();
            let state = state.ok_or_else(|| {
                Error::corrupt(format!("superblock of a mirror: unknown state of a slot: {}", raw.state))
            })?;
            if raw.flags & !(WRITE_MOSTLY | HAS_BITMAP) != 0 {
                return Err(Error::protocol(
                    "superblock of a mirror: flags of a slot are set that version 1 doesn't define",
                ));
            }
            let (write_mostly, has_bitmap) = (raw.flags & WRITE_MOSTLY != 0, raw.flags & HAS_BITMAP != 0);
            slots.push(Slot { leg: Uuid::from_bytes(raw.leg), state, write_mostly, has_bitmap });
        }
        Ok(Superblock {
            block_size: raw.block_size.get(),
            array: Uuid::from_bytes(raw.array),
            events,
            cleared_events,
            data_offset: raw.data_offset.get(),
            data_bytes: raw.data_bytes.get(),
            bitmap_offset: raw.bitmap_offset.get(),
            bitmap_chunk: raw.bitmap_chunk.get(),
            own,
            source,
            fast_flush: raw.flags.get() & FAST_FLUSH != 0,
            slots,
        })
    }
}

/// Appends sector `index` of a mirror's bitmap to `page`; `bit` returns whether a chunk is dirty.
pub fn encode_bitmap(page: &mut Buffer, array: Uuid, index: u32, mut bit: impl FnMut(u64) -> bool) {
    let mut raw = RawBitmap {
        head: BITMAP.head(),
        index: index.into(),
        array: array.into_bytes(),
        bits: [0; BITMAP_BYTES],
        padding: [0; 4],
        crc: 0.into(),
    };
    let first = u64::from(index) * BITMAP_BITS;
    for (number, byte) in raw.bits.iter_mut().enumerate() {
        for place in 0..8 {
            *byte |= u8::from(bit(first + number as u64 * 8 + place)) << place;
        }
    }
    sector::append(&raw, page);
}

/// Decodes the bits of sector `index` of a mirror's bitmap; the first chunk has the lowest bit.
///
/// # Errors
/// Errors of [`Format::read`]; [`Error::Corrupt`] for a sector of another mirror or with another index.
pub fn decode_bitmap(bytes: &[u8], array: Uuid, index: u32) -> Result<[u8; BITMAP_BYTES]> {
    let what = format!("sector {index} of the bitmap");
    let raw: &RawBitmap = BITMAP.read(bytes, &what)?;
    if raw.array != array.into_bytes() {
        let found = Uuid::from_bytes(raw.array);
        return Err(Error::corrupt(format!("{what}: belongs to mirror {found}; expected {array}")));
    }
    if raw.index.get() != index {
        return Err(Error::corrupt(format!("{what}: has index {}; expected {index}", raw.index)));
    }
    Ok(raw.bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn superblock() -> Superblock {
        let slot = |number: u8, state| Slot {
            leg: Uuid::from_bytes([number; 16]),
            state,
            write_mostly: number == 2,
            has_bitmap: number == 1,
        };
        Superblock {
            block_size: 4096,
            array: Uuid::from_bytes([7; 16]),
            events: 9,
            cleared_events: 5,
            data_offset: 1 << 20,
            data_bytes: 1 << 30,
            bitmap_offset: 8192,
            bitmap_chunk: 64 << 20,
            own: 1,
            source: 0,
            fast_flush: true,
            slots: vec![
                slot(1, SlotState::Active),
                slot(2, SlotState::Rebuilding),
                slot(3, SlotState::Failed),
            ],
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = superblock().encode(4096).to_data();
        assert_eq!(Superblock::decode(&bytes).expect("it is one"), superblock());
        let mut page = Buffer::new(1024);
        encode_bitmap(&mut page, Uuid::from_bytes([7; 16]), 3, |chunk| chunk % 5 == 0);
        let bits = decode_bitmap(page.filled(), Uuid::from_bytes([7; 16]), 3).expect("it is one");
        for chunk in 0..BITMAP_BITS {
            let is_set = bits[chunk as usize / 8] >> (chunk % 8) & 1 == 1;
            assert_eq!(is_set, (3 * BITMAP_BITS + chunk).is_multiple_of(5), "chunk {chunk}");
        }
        assert!(decode_bitmap(page.filled(), Uuid::from_bytes([7; 16]), 4).is_err());
        assert!(decode_bitmap(page.filled(), Uuid::from_bytes([8; 16]), 3).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert!(Superblock::decode(&bytes).is_err());
            prop_assert!(decode_bitmap(&bytes, Uuid::from_bytes([7; 16]), 0).is_err());
        }

        /// Bytes that a writer sealed, of any contents: nothing of it leads to a panic.
        #[test]
        fn sealed_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 500)) {
            let mut record = [0; RECORD];
            record[..500].copy_from_slice(&bytes);
            record[..8].copy_from_slice(&SUPERBLOCK_MAGIC);
            record[8..12].copy_from_slice(&VERSION.to_le_bytes());
            sector::seal(&mut record);
            let _ = Superblock::decode(&record);
            record[..8].copy_from_slice(&BITMAP_MAGIC);
            sector::seal(&mut record);
            let _ = decode_bitmap(&record, Uuid::from_bytes([0; 16]), 0);
        }

        #[test]
        fn a_flipped_bit_is_noticed(bit in 0..RECORD * 8) {
            let mut bytes = superblock().encode(RECORD).to_data().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Superblock::decode(&bytes).is_err());
        }
    }
}
