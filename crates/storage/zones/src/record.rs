//! Records of a log: their format, and the checks that distinguish them from other data. The log kit appends
//! them to zones, the write cache to its ring, the table of the cache to its journal.
//!
//! A record is one block of header and the data blocks that follow it, in one append. The header names the
//! record's log, epoch, stream, zone and position. It holds a checksum of every data block, and the owner's
//! part (`meta`), which isn't interpreted here. A record with a mismatch in any of these is invalid: stale
//! data of an earlier use of the zone, data of another volume, a copied or forged record. The checksum also
//! covers a key that is generated when the log is created, is stored in its root and is not exposed to
//! clients.
//!
//! A copy of the first [`Header::length`] bytes of a header is also a valid header; summaries consist of such
//! copies.
//!
//! Decoding accepts untrusted bytes: it never panics, and refuses every deviation from the format.

use crate::on_device::format::{Uuid, draw_uuid};
use block::{Buffer, Error, Result};
use crc_fast::{CrcAlgorithm, Digest, checksum};
use smallvec::SmallVec;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a record, the same in all versions.
pub const MAGIC: [u8; 8] = *b"SILTREC1";
/// Version of the format that this code writes and reads.
pub const VERSION: u16 = 2;
/// Length of a header without links, checksums and meta, in bytes.
pub const FIXED: usize = size_of::<Raw>();
/// Length of a link, in bytes.
pub const LINK: usize = size_of::<RawLink>();
/// Most links of a record.
pub const MAX_LINKS: usize = 16;

/// Number of a stream of a log. Each stream counts its own records from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u16);

impl StreamId {
    /// Index into lists by stream.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Purpose of a record. Values are those on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Entries of an owner: part of its stream, replayed at opening.
    Entries = 1,
    /// Part of a checkpoint. It is never replayed: a root names the parts of the newest checkpoint.
    Checkpoint = 2,
    /// A root.
    Root = 3,
    /// Writes in a write cache. `generation` is the record's address on the cache, in bytes.
    WriteCache = 16,
    /// Changes of the table of a cache. `clock` is the number of the oldest record that is still needed.
    CacheTable = 17,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Entries, Kind::Checkpoint, Kind::Root, Kind::WriteCache, Kind::CacheTable];

    fn decode(value: u8) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|kind| *kind as u8 == value);
        known.ok_or_else(|| Error::corrupt(format!("record of unknown kind {value}")))
    }
}

/// Dependency of a record on another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Relation {
    /// The record follows the other one, and is part of the log only if that one is.
    Follows = 1,
    /// Both are the same record, numbered in both streams.
    Member = 2,
}

/// A record of another stream on which a record depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Link {
    /// Dependency on the record.
    pub relation: Relation,
    /// The other stream.
    pub stream: StreamId,
    /// Number of the record in that stream.
    pub sequence: u64,
}

/// The links of a record.
pub type Links = SmallVec<[Link; 1]>;

/// Identity of a log, which binds records to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// UUID of the log, which is public.
    pub uuid: Uuid,
    /// Random key, generated when the log is created. Without the key, data validates as a record only by
    /// chance (2⁻³²).
    pub key: u64,
}

impl Identity {
    /// Returns a new identity, from the runtime's source of randomness.
    pub fn draw() -> Self {
        Identity { uuid: draw_uuid(), key: runtime::random_u64() }
    }
}

/// Contents of a header, without checksums and meta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Purpose of the record.
    pub kind: Kind,
    /// Stream of the record; 0 for records of other kinds than [`Kind::Entries`].
    pub stream: StreamId,
    /// Class of the record's zone, chosen by the log's policy.
    pub class: u8,
    /// Epoch of the record: the number of times that the log had been opened.
    pub epoch: u64,
    /// Number of the record in its stream.
    pub sequence: u64,
    /// Every record of its stream up to this number was durable before this one was written.
    pub durable: u64,
    /// The owner's clock: the number of data units that users had written.
    pub clock: u64,
    /// Zone of the record.
    pub zone: u32,
    /// Number of times that the zone had been reset.
    pub generation: u64,
    /// Block of the zone that holds the header.
    pub position: u32,
    /// Number of data blocks that follow the header.
    pub blocks: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    checksum: U32,
    version: U16,
    kind: u8,
    class: u8,
    uuid: [u8; 16],
    epoch: U64,
    sequence: U64,
    durable: U64,
    clock: U64,
    generation: U64,
    zone: U32,
    position: U32,
    stream: U16,
    links: U16,
    reserved: U32,
    blocks: U32,
    meta_length: U32,
}

#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLink {
    stream: U16,
    relation: u8,
    reserved: [u8; 5],
    sequence: U64,
}

/// Returns the error for a log or a record of another version of the format.
pub fn other_version(what: &str, version: u32) -> Error {
    Error::protocol(format!(
        "{what} of version {version} of the format; expected version {VERSION}; use the program that wrote it, or format the \
         log again and lose its contents"
    ))
}

/// Returns the checksum of a data block.
#[inline]
pub fn sum_of(block: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, block) as u32
}

/// CRC-32C over `key` followed by `pieces`. Clients don't know the key, so data that they write validates
/// only by chance (2⁻³²). Not a MAC: CRC is linear.
pub fn keyed_sum(key: u64, pieces: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&key.to_le_bytes());
    pieces.iter().for_each(|piece| digest.update(piece));
    digest.finalize() as u32
}

/// Checksum of a header, which covers the bytes after the checksum itself.
fn checksum_of(key: u64, header: &[u8]) -> u32 {
    keyed_sum(key, &[&header[12..]])
}

impl Header {
    /// Returns the length of a header without links, with these numbers of checksums and of bytes of meta, in
    /// bytes. Each link adds [`LINK`].
    pub const fn length(blocks: usize, meta: usize) -> usize {
        FIXED + 4 * blocks + meta
    }

    /// Returns a block of `size` bytes with the header at its start, and zeros after it.
    ///
    /// # Panics
    /// In the cases of [`encode`](Self::encode).
    pub fn encode_block(
        &self,
        identity: &Identity,
        links: &[Link],
        sums: &[u32],
        meta: &[u8],
        size: usize,
    ) -> Buffer {
        let length = Header::length(sums.len(), meta.len()) + links.len() * LINK;
        let mut block = Buffer::new(size);
        block.append_zeroes(length);
        self.encode(identity, links, sums, meta, block.filled_mut());
        block.append_zeroes(size - length);
        block
    }

    /// Writes the header to the start of `target`, which is one block of zeros or at least as long as the
    /// header; returns the header's length in bytes.
    ///
    /// # Panics
    /// If it doesn't fit, has more than [`MAX_LINKS`] links, or the numbers of checksums and blocks differ.
    pub fn encode(
        &self,
        identity: &Identity,
        links: &[Link],
        sums: &[u32],
        meta: &[u8],
        target: &mut [u8],
    ) -> usize {
        assert_eq!(sums.len(), self.blocks as usize, "one checksum per data block");
        assert!(links.len() <= MAX_LINKS, "{} links; expected up to {MAX_LINKS}", links.len());
        let length = Header::length(sums.len(), meta.len()) + links.len() * LINK;
        let raw = Raw {
            magic: MAGIC,
            checksum: 0.into(),
            version: VERSION.into(),
            kind: self.kind as u8,
            class: self.class,
            uuid: identity.uuid.into_bytes(),
            epoch: self.epoch.into(),
            sequence: self.sequence.into(),
            durable: self.durable.into(),
            clock: self.clock.into(),
            generation: self.generation.into(),
            zone: self.zone.into(),
            position: self.position.into(),
            stream: self.stream.0.into(),
            links: (links.len() as u16).into(),
            reserved: 0.into(),
            blocks: self.blocks.into(),
            meta_length: (meta.len() as u32).into(),
        };
        let target = &mut target[..length];
        target[..FIXED].copy_from_slice(raw.as_bytes());
        let (places, rest) = target[FIXED..].split_at_mut(links.len() * LINK);
        for (place, link) in places.chunks_exact_mut(LINK).zip(links) {
            let raw = RawLink {
                stream: link.stream.0.into(),
                relation: link.relation as u8,
                reserved: [0; 5],
                sequence: link.sequence.into(),
            };
            place.copy_from_slice(raw.as_bytes());
        }
        let (places, rest) = rest.split_at_mut(4 * sums.len());
        for (place, sum) in places.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
            *place = sum.to_le_bytes();
        }
        rest.copy_from_slice(meta);
        let sum = checksum_of(identity.key, target);
        target[8..12].copy_from_slice(&sum.to_le_bytes());
        length
    }
}

/// A valid header with its checksums and meta.
#[derive(Debug, Clone, Copy)]
pub struct Parsed<'a> {
    /// Fixed part of the header.
    pub header: Header,
    /// Bytes of the whole header.
    pub bytes: &'a [u8],
    links: &'a [RawLink],
    sums: &'a [u8],
    /// Owner's part of the header.
    pub meta: &'a [u8],
}

impl<'a> Parsed<'a> {
    /// Decodes a header of this log from the start of `bytes`.
    ///
    /// # Errors
    /// [`Error::Protocol`] if there is no record of this log and version, [`Error::Corrupt`] for one with a
    /// wrong checksum.
    pub fn decode(bytes: &'a [u8], identity: &Identity) -> Result<Self> {
        let Some((parsed, raw)) = Self::decode_unchecked(bytes)? else {
            return Err(Error::protocol("not a record: other magic, or cut short"));
        };
        match parsed.is_of(raw, identity)? {
            true => Ok(parsed),
            false => Err(Error::protocol("record of another log")),
        }
    }

    /// Decodes the header of a root, which holds the log's identity: `identity` extracts it from the meta.
    /// Returns both; `None` if `bytes` don't begin with a record, or the record has no identity.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a record of another version, [`Error::Corrupt`] for a damaged one; errors of
    /// `identity`.
    pub fn decode_with(
        bytes: &'a [u8],
        identity: impl FnOnce(&[u8]) -> Result<Option<Identity>>,
    ) -> Result<Option<(Self, Identity)>> {
        let Some((parsed, raw)) = Self::decode_unchecked(bytes)? else { return Ok(None) };
        let Some(identity) = identity(parsed.meta)? else { return Ok(None) };
        Ok(parsed.is_of(raw, &identity)?.then_some((parsed, identity)))
    }

    /// Decodes a header of any log without verifying its checksum, for an audit of erased cells; `None` if
    /// `bytes` don't begin with a record.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a record of another version, [`Error::Corrupt`] for a truncated one.
    pub fn decode_any(bytes: &'a [u8]) -> Result<Option<Self>> {
        Ok(Self::decode_unchecked(bytes)?.map(|(parsed, _)| parsed))
    }

    /// Whether the record belongs to the log with this identity.
    fn is_of(&self, raw: &Raw, identity: &Identity) -> Result<bool> {
        if raw.uuid != identity.uuid.into_bytes() {
            return Ok(false);
        }
        match checksum_of(identity.key, self.bytes) == raw.checksum.get() {
            true => Ok(true),
            false => {
                Err(Error::corrupt("header of a record: wrong checksum: torn, damaged, or of another log"))
            }
        }
    }

    /// Decodes a header of any log, without verifying its checksum; `None` if `bytes` don't begin with a
    /// record.
    fn decode_unchecked(bytes: &'a [u8]) -> Result<Option<(Self, &'a Raw)>> {
        let Some((raw, _)) = Raw::ref_from_prefix(bytes).ok().filter(|(raw, _)| raw.magic == MAGIC) else {
            return Ok(None);
        };
        if raw.version.get() != VERSION {
            return Err(other_version("record", raw.version.get().into()));
        }
        let (blocks, meta) = (raw.blocks.get() as usize, raw.meta_length.get() as usize);
        let links = usize::from(raw.links.get());
        let length =
            blocks.checked_mul(4).and_then(|sums| sums.checked_add(meta)?.checked_add(FIXED + links * LINK));
        let Some(bytes) = length.and_then(|length| bytes.get(..length)) else {
            return Err(Error::corrupt("header of a record: longer than its block"));
        };
        let header = Header {
            kind: Kind::decode(raw.kind)?,
            stream: StreamId(raw.stream.get()),
            class: raw.class,
            epoch: raw.epoch.get(),
            sequence: raw.sequence.get(),
            durable: raw.durable.get(),
            clock: raw.clock.get(),
            zone: raw.zone.get(),
            generation: raw.generation.get(),
            position: raw.position.get(),
            blocks: raw.blocks.get(),
        };
        let (links, rest) = bytes[FIXED..].split_at(links * LINK);
        let links = <[RawLink]>::ref_from_bytes(links)
            .map_err(|_| Error::corrupt("header of a record: links cut short"))?;
        if links.len() > MAX_LINKS || !links.iter().all(|link| matches!(link.relation, 1 | 2)) {
            return Err(Error::corrupt(format!(
                "header of a record: {} links, or one of an unknown relation; expected up to {MAX_LINKS}",
                links.len()
            )));
        }
        let (sums, meta) = rest.split_at(4 * blocks);
        Ok(Some((Parsed { header, bytes, links, sums, meta }, raw)))
    }

    /// Returns the links.
    pub fn links(&self) -> Links {
        let link = |raw: &RawLink| Link {
            relation: if raw.relation == Relation::Member as u8 {
                Relation::Member
            } else {
                Relation::Follows
            },
            stream: StreamId(raw.stream.get()),
            sequence: raw.sequence.get(),
        };
        self.links.iter().map(link).collect()
    }

    /// Returns the checksum of data block `number`.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn sum(&self, number: usize) -> u32 {
        u32::from_le_bytes(self.sums.as_chunks().0[number])
    }

    /// Checks that the record is at the location that its header names.
    ///
    /// # Errors
    /// [`Error::Protocol`] with the header's location.
    pub fn check_place(&self, zone: u32, generation: u64, position: u32) -> Result<()> {
        let header = &self.header;
        if (header.zone, header.generation, header.position) == (zone, generation, position) {
            return Ok(());
        }
        Err(Error::protocol(format!(
            "record of zone {} generation {} block {}; expected zone {zone} generation {generation} block {position}",
            header.zone, header.generation, header.position
        )))
    }

    /// Verifies the data, whose length must match the header.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first block that has a wrong checksum.
    pub fn check_data(&self, data: &[u8], block_size: usize) -> Result<()> {
        debug_assert_eq!(data.len(), self.header.blocks as usize * block_size);
        for (number, block) in data.chunks_exact(block_size).enumerate() {
            if sum_of(block) != self.sum(number) {
                return Err(Error::corrupt(format!(
                    "record {} of stream {}: data block {number} of {} has a wrong checksum: torn or damaged",
                    self.header.sequence, self.header.stream.0, self.header.blocks
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDENTITY: Identity = Identity { uuid: Uuid::from_bytes([7; 16]), key: 99 };

    fn header(blocks: u32) -> Header {
        Header {
            kind: Kind::Entries,
            stream: StreamId(1),
            class: 2,
            epoch: 3,
            sequence: 4,
            durable: 6,
            clock: 7,
            zone: 8,
            generation: 9,
            position: 10,
            blocks,
        }
    }

    const LINKS: [Link; 2] = [
        Link { relation: Relation::Follows, stream: StreamId(0), sequence: 5 },
        Link { relation: Relation::Member, stream: StreamId(700), sequence: 1 << 40 },
    ];

    fn encoded(meta: &[u8]) -> Vec<u8> {
        let mut block = vec![0; 4096];
        header(3).encode(&IDENTITY, &LINKS, &[11, 12, 13], meta, &mut block);
        block
    }

    #[test]
    fn what_was_written_is_read() {
        let block = encoded(b"words");
        let parsed = Parsed::decode(&block, &IDENTITY).expect("it is a record");
        assert_eq!((parsed.header, parsed.meta), (header(3), b"words".as_slice()));
        assert_eq!(parsed.links().as_slice(), LINKS);
        assert_eq!((FIXED, LINK), (96, 16), "as the book says");
        assert_eq!([parsed.sum(0), parsed.sum(1), parsed.sum(2)], [11, 12, 13]);
        assert!(
            Parsed::decode(parsed.bytes, &IDENTITY).is_ok(),
            "a copy without the padding is a header, too"
        );
        assert!(parsed.check_place(8, 9, 10).is_ok() && parsed.check_place(8, 9, 11).is_err());
    }

    #[test]
    fn without_the_key_no_record_can_be_made() {
        let block = encoded(b"words");
        let other = Identity { key: 98, ..IDENTITY };
        assert!(matches!(Parsed::decode(&block, &other), Err(Error::Corrupt(_))));
        let other = Identity { uuid: Uuid::from_bytes([8; 16]), ..IDENTITY };
        assert!(matches!(Parsed::decode(&block, &other), Err(Error::Protocol(_))));
    }

    #[test]
    fn what_no_version_of_this_program_writes_is_refused_with_its_value() {
        // The checksum is valid, as in a header that another program wrote.
        let with = |at: usize, value: u8| {
            let mut block = encoded(b"");
            block[at] = value;
            let sum = checksum_of(IDENTITY.key, &block[..FIXED + 2 * LINK + 12]);
            block[8..12].copy_from_slice(&sum.to_le_bytes());
            Parsed::decode(&block, &IDENTITY).map(|_| ()).expect_err("it is refused").to_string()
        };
        assert!(with(12, 1).contains("version 1"), "{}", with(12, 1));
        assert!(with(14, 9).contains("kind 9"), "{}", with(14, 9));
        assert!(with(FIXED + 2, 3).contains("relation"), "{}", with(FIXED + 2, 3));
    }

    #[test]
    #[should_panic(expected = "17 links; expected up to 16")]
    fn more_links_than_can_be_read_are_not_written() {
        header(0).encode_block(&IDENTITY, &[LINKS[0]; MAX_LINKS + 1], &[], b"", 4096);
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]

        #[test]
        fn every_changed_bit_is_noticed(byte in 0_usize..(FIXED + 2 * LINK + 12 + 5), bit in 0_u8..8) {
            let mut block = encoded(b"words");
            block[byte] ^= 1 << bit;
            prop_assert!(Parsed::decode(&block, &IDENTITY).is_err());
        }

        #[test]
        fn any_bytes_are_taken(mut bytes in prop::collection::vec(any::<u8>(), 0..300), magic in any::<bool>()) {
            if magic && bytes.len() >= 16 {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[12..14].copy_from_slice(&VERSION.to_le_bytes());
            }
            prop_assert!(Parsed::decode(&bytes, &IDENTITY).is_err());
        }
    }
}
