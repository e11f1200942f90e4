//! Encodings on the medium: superblock, page, and the changes in a journal record. The book's page "A table
//! on a device" describes them byte by byte.
//!
//! Decoders accept any bytes: they never panic, and refuse invalid bytes with an error that names them.

use super::Words;
use block::{Buffer, Error, Payload, Result};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};
use zones::on_device::format::Uuid;
use zones::record::{FIXED, Identity, keyed_sum};
use zones::sector::{self, Format, Head};

/// Version of the format that this code writes and reads.
pub(crate) const VERSION: u32 = 3;
/// Number of bytes of a superblock that belong to the table's owner.
pub(crate) const OWNER: usize = 320;
const SUPERBLOCK: Format = Format { magic: *b"SILTTSUP", version: VERSION };
const PAGE_MAGIC: [u8; 8] = *b"SILTTPAG";
/// Flag of a superblock: the table was closed cleanly.
const CLEAN: u32 = 1;
/// Smallest unit of the table on the medium, in bytes; on devices with larger blocks the unit is a block.
pub(crate) const MIN_UNIT: u64 = 4096;
/// Length of a page's header, in bytes.
pub(crate) const PAGE_HEAD: usize = size_of::<RawPage>();
/// Length of an entry, in bytes.
pub(crate) const ENTRY: usize = size_of::<RawEntry>();
const CHANGE: usize = size_of::<RawChange>();
/// Bound of valid sequence numbers, epochs and sizes; larger values are damage.
pub(super) const MAX_COUNT: u64 = 1 << 62;

/// Contents of a superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub identity: Identity,
    /// Unit of the table on the medium, in bytes.
    pub unit: u32,
    /// Raised by every write of a superblock; copy `sequence % 2` holds it.
    pub sequence: u64,
    /// Number of opens.
    pub epoch: u64,
    /// Number of the last valid record of earlier epochs; later records of those epochs are invalid.
    pub last: u64,
    /// Number of the first record with a change that isn't in its page.
    pub tail: u64,
    pub entries: u64,
    /// Number of bytes of the device that belong to each entry.
    pub entry_bytes: u64,
    /// Number of units of the journal.
    pub journal: u32,
    pub clean: bool,
    /// The owner's bytes.
    pub owner: [u8; OWNER],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    head: Head,
    unit: U32,
    uuid: [u8; 16],
    key: U64,
    sequence: U64,
    epoch: U64,
    last: U64,
    tail: U64,
    entries: U64,
    entry_bytes: U64,
    journal: U32,
    flags: U32,
    owner: [u8; OWNER],
    reserved: [u8; 92],
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPage {
    magic: [u8; 8],
    crc: U32,
    version: U32,
    uuid: [u8; 16],
    page: U64,
    sequence: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawEntry([U64; 3]);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawChange {
    entry: U64,
    words: RawEntry,
}

const _: () = assert!(size_of::<RawPage>() == 48);

impl Superblock {
    /// Encodes into a unit.
    pub fn encode(&self) -> Payload {
        let raw = RawSuperblock {
            head: SUPERBLOCK.head(),
            unit: self.unit.into(),
            uuid: self.identity.uuid.into_bytes(),
            key: self.identity.key.into(),
            sequence: self.sequence.into(),
            epoch: self.epoch.into(),
            last: self.last.into(),
            tail: self.tail.into(),
            entries: self.entries.into(),
            entry_bytes: self.entry_bytes.into(),
            journal: self.journal.into(),
            flags: u32::from(self.clean).into(),
            owner: self.owner,
            reserved: [0; 92],
            crc: 0.into(),
        };
        sector::block_of(&raw, self.unit as usize).into()
    }

    /// Decodes the first bytes of a unit.
    ///
    /// # Errors
    /// Errors of [`Format::read`]; [`Error::Protocol`] for unknown flags or fields; [`Error::Corrupt`] for
    /// fields out of range.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let raw: &RawSuperblock = SUPERBLOCK.read(bytes, "superblock of a table")?;
        if raw.flags.get() & !CLEAN != 0 || raw.reserved.iter().any(|byte| *byte != 0) {
            return Err(Error::protocol(
                "superblock of a table: flags or reserved fields are set that this version doesn't define",
            ));
        }
        let counts = [raw.sequence, raw.epoch, raw.last, raw.tail, raw.entries, raw.entry_bytes];
        let unit = raw.unit.get();
        if counts.iter().any(|count| count.get() > MAX_COUNT)
            || !unit.is_power_of_two()
            || u64::from(unit) < MIN_UNIT
            || raw.journal.get() == 0
            || raw.tail.get() > raw.last.get() + 1
        {
            return Err(Error::corrupt(format!(
                "superblock of a table: field out of range: unit={unit}, journal={}, tail={}, last={}",
                raw.journal, raw.tail, raw.last
            )));
        }
        Ok(Superblock {
            identity: Identity { uuid: Uuid::from_bytes(raw.uuid), key: raw.key.get() },
            unit,
            sequence: raw.sequence.get(),
            epoch: raw.epoch.get(),
            last: raw.last.get(),
            tail: raw.tail.get(),
            entries: raw.entries.get(),
            entry_bytes: raw.entry_bytes.get(),
            journal: raw.journal.get(),
            clean: raw.flags.get() & CLEAN != 0,
            owner: raw.owner,
        })
    }
}

fn page_crc(key: u64, bytes: &[u8]) -> u32 {
    keyed_sum(key, &[&bytes[12..]])
}

/// Encodes a page with these entries into a unit; the page contains all changes up to record `sequence`.
pub(crate) fn encode_page(
    identity: &Identity,
    unit: u64,
    page: u64,
    sequence: u64,
    entries: &[Words],
) -> Buffer {
    let mut buffer = Buffer::zeroed(unit as usize);
    let raw = RawPage {
        magic: PAGE_MAGIC,
        crc: 0.into(),
        version: VERSION.into(),
        uuid: identity.uuid.into_bytes(),
        page: page.into(),
        sequence: sequence.into(),
    };
    let bytes = buffer.filled_mut();
    bytes[..PAGE_HEAD].copy_from_slice(raw.as_bytes());
    for (place, words) in bytes[PAGE_HEAD..].chunks_exact_mut(ENTRY).zip(entries) {
        place.copy_from_slice(RawEntry(words.map(U64::new)).as_bytes());
    }
    let crc = page_crc(identity.key, bytes);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    buffer
}

/// Decodes a page into `entries`. Returns the number of the record up to which it contains all changes. A
/// page of zeros was never written: all of its entries are free.
///
/// # Errors
/// [`Error::Corrupt`] for any other bytes.
pub(crate) fn decode_page(
    bytes: &[u8],
    identity: &Identity,
    page: u64,
    entries: &mut [Words],
) -> Result<u64> {
    if bytes.iter().all(|byte| *byte == 0) {
        entries.fill([0; 3]);
        return Ok(0);
    }
    let wrong =
        || Error::corrupt(format!("page {page} of the table: torn, damaged, or of another page or table"));
    let (raw, rest) = RawPage::ref_from_prefix(bytes).map_err(|_| wrong())?;
    let right = raw.magic == PAGE_MAGIC
        && raw.version.get() == VERSION
        && raw.uuid == identity.uuid.into_bytes()
        && raw.page.get() == page
        && raw.crc.get() == page_crc(identity.key, bytes);
    if !right || rest.len() < entries.len() * ENTRY {
        return Err(wrong());
    }
    for (words, place) in entries.iter_mut().zip(rest.chunks_exact(ENTRY)) {
        let raw = RawEntry::ref_from_bytes(place).map_err(|_| wrong())?;
        *words = raw.0.map(|word| word.get());
    }
    Ok(raw.sequence.get())
}

/// Largest number of changes of a record of `unit` bytes.
pub(crate) const fn changes_per_record(unit: u64) -> usize {
    (unit as usize - FIXED) / CHANGE
}

/// Encodes changes as the metadata of a record.
pub(crate) fn encode_changes(changes: &[(u32, Words)]) -> Vec<u8> {
    let mut meta = Vec::with_capacity(changes.len() * CHANGE);
    for (entry, words) in changes {
        let words = RawEntry(words.map(U64::new));
        meta.extend_from_slice(RawChange { entry: u64::from(*entry).into(), words }.as_bytes());
    }
    meta
}

/// Decodes the metadata of a record.
///
/// # Errors
/// [`Error::Corrupt`] for a partial change, or an entry number not below `entries`.
pub(crate) fn decode_changes(meta: &[u8], entries: u64) -> Result<Vec<(u32, Words)>> {
    let wrong = || {
        Error::corrupt(format!(
            "record of the table's journal: change out of range 0..{entries}, or cut short"
        ))
    };
    if !meta.len().is_multiple_of(CHANGE) {
        return Err(wrong());
    }
    let change = |bytes| {
        let raw = RawChange::ref_from_bytes(bytes).map_err(|_| wrong())?;
        let entry = raw.entry.get();
        match entry < entries && u32::try_from(entry).is_ok() {
            true => Ok((entry as u32, raw.words.0.map(|word| word.get()))),
            false => Err(wrong()),
        }
    };
    meta.chunks_exact(CHANGE).map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDENTITY: Identity = Identity { uuid: Uuid::from_bytes([7; 16]), key: 99 };

    fn superblock() -> Superblock {
        Superblock {
            identity: IDENTITY,
            unit: 4096,
            sequence: 3,
            epoch: 4,
            last: 5,
            tail: 6,
            entries: 7,
            entry_bytes: 65536,
            journal: 16,
            clean: true,
            owner: [8; OWNER],
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = superblock().encode().to_data();
        assert_eq!(Superblock::decode(&bytes).unwrap(), superblock());
        let entries = [[1, 2, 3], [u64::MAX, 0, 7]];
        let page = encode_page(&IDENTITY, 4096, 9, 10, &entries);
        let mut found = [[0; 3]; 2];
        assert_eq!(decode_page(page.filled(), &IDENTITY, 9, &mut found).unwrap(), 10);
        assert_eq!(found, entries);
        assert!(decode_page(page.filled(), &IDENTITY, 8, &mut found).is_err(), "another page's");
        let other = Identity { key: 98, ..IDENTITY };
        assert!(decode_page(page.filled(), &other, 9, &mut found).is_err(), "another table's");
        let changes = vec![(3, [1, 2, 3]), (4, [0, 0, 0])];
        assert_eq!(decode_changes(&encode_changes(&changes), 5).unwrap(), changes);
        assert!(decode_changes(&encode_changes(&changes), 4).is_err());
    }

    #[test]
    fn other_versions_are_refused() {
        let with_version = |version: u32, bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes[8..12].copy_from_slice(&version.to_le_bytes());
            sector::seal(&mut bytes);
            bytes
        };
        let bytes = superblock().encode().to_data();
        assert_eq!(Superblock::decode(&with_version(VERSION, &bytes)).unwrap(), superblock());
        for version in [0, 1, 2, 4] {
            let refused = Superblock::decode(&with_version(version, &bytes)).unwrap_err();
            assert!(matches!(refused, Error::Protocol(_)), "{refused}");
        }
        for (version, is_read) in [(0, false), (1, false), (2, false), (3, true), (4, false)] {
            let mut page = encode_page(&IDENTITY, 4096, 9, 10, &[[1, 2, 3]]);
            let bytes = page.filled_mut();
            bytes[12..16].copy_from_slice(&u32::to_le_bytes(version));
            let crc = page_crc(IDENTITY.key, bytes);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(decode_page(bytes, &IDENTITY, 9, &mut [[0; 3]]).is_ok(), is_read, "version {version}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]

        #[test]
        fn every_changed_bit_is_noticed(byte in 0_usize..512, bit in 0_u8..8) {
            let mut bytes = superblock().encode().to_data().to_vec();
            bytes[byte] ^= 1 << bit;
            prop_assert!(Superblock::decode(&bytes).is_err());
            let mut page = encode_page(&IDENTITY, 4096, 9, 10, &[[1, 2, 3]]);
            page.filled_mut()[byte] ^= 1 << bit;
            prop_assert!(decode_page(page.filled(), &IDENTITY, 9, &mut [[0; 3]]).is_err());
        }

        #[test]
        fn any_bytes_are_taken(mut bytes in prop::collection::vec(any::<u8>(), 0..600), magic in any::<bool>()) {
            if magic && bytes.len() >= 16 {
                bytes[..8].copy_from_slice(&SUPERBLOCK.magic);
                bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
            }
            prop_assert!(Superblock::decode(&bytes).is_err());
            let _ = decode_page(&bytes, &IDENTITY, 0, &mut [[0; 3]; 4]);
            let _ = decode_changes(&bytes, 1 << 40);
        }
    }
}
