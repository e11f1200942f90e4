//! Manifests and pieces as bytes. `book/src/formats/objects.md` describes each of them.
//!
//! # Promises
//! - A manifest has a CRC-32C of all its bytes, and its own epoch and number: damaged or misplaced ones are
//!   errors, and so are unknown versions and flags.
//! - Each 64 KiB of a piece have a CRC-32C that covers the volume, zone, generation, epoch and offset as
//!   well: altered or misplaced bytes are never returned, whatever range is read.

use crate::names::PieceName;
use block::{Data, Error, Payload, Result};
use crc_fast::{CrcAlgorithm, Digest};
use std::ops::Range;
use zones::bytes::{Reader, Writer};

/// Bytes of a piece that one checksum covers.
pub(crate) const CHUNK: usize = 64 << 10;
/// Bytes of a checksum, after each chunk.
const CHECKSUM: usize = 4;
/// Bytes before the first chunk of a piece.
pub(crate) const PIECE_HEADER: usize = 64;
/// Longest name of a writer, in bytes.
const MAX_NAME: usize = 255;
/// Version of both formats.
const VERSION: u32 = 1;
const MANIFEST_MAGIC: &[u8; 8] = b"SltObjMf";
const PIECE_MAGIC: &[u8; 8] = b"SltObjPc";

/// Identity of a volume: random bytes.
pub(crate) type VolumeId = [u8; 16];

/// Purpose of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Number 0 of an epoch: whose it is.
    Claim,
    /// The whole zone table.
    Base,
    /// Changes since the manifest before.
    Delta,
    /// Number after the last one of an epoch, created by the next writer: the fence.
    Seal,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Claim, Kind::Base, Kind::Delta, Kind::Seal];
}

/// A writer of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Writers {
    /// Random number of this opening.
    pub id: [u8; 16],
    /// Name of the machine and the process, for operators.
    pub name: String,
}

/// A manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub volume: VolumeId,
    pub writer: Writers,
    pub epoch: u32,
    pub number: u64,
    pub kind: Kind,
    /// Whether a clean stop follows its changes.
    pub is_clean: bool,
    /// Number of the base from which a delta continues, its own number for a base, the epoch before for a
    /// claim, 0 for a seal.
    pub link: u64,
    /// Time of writing, in milliseconds since 1970.
    pub time: u64,
    pub body: Vec<u8>,
}

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The bytes of a manifest with the checksum that they should have in place of the last ones.
pub(crate) fn with_checksum(bytes: &[u8]) -> Vec<u8> {
    let covered = &bytes[..bytes.len().saturating_sub(CHECKSUM)];
    [covered, &checksum(covered).to_le_bytes()].concat()
}

impl Manifest {
    /// Encodes the manifest.
    pub fn encode(&self) -> Vec<u8> {
        let name = self.writer.name.as_bytes();
        let name = &name[..name.len().min(MAX_NAME)];
        let mut writer = Writer::default();
        writer.put(MANIFEST_MAGIC);
        writer.u32(VERSION);
        writer.u32(0);
        writer.put(&self.volume);
        writer.put(&self.writer.id);
        writer.u32(self.epoch);
        writer.u8(self.kind as u8);
        writer.u8(self.is_clean.into());
        writer.u8(name.len() as u8);
        writer.u8(0);
        writer.u64(self.number);
        writer.u64(self.link);
        writer.u64(self.time);
        writer.u32(self.body.len() as u32);
        writer.u32(0);
        writer.put(name);
        writer.put(&self.body[..]);
        writer.u32(checksum(&writer.0));
        writer.0
    }

    /// Decodes a manifest, which must have this epoch and number.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for other bytes; [`Error::Unsupported`] for another version.
    pub fn decode(bytes: &[u8], epoch: u32, number: u64) -> Result<Manifest> {
        let mut reader = Reader::new(bytes, "a manifest");
        if reader.bytes(8)? != MANIFEST_MAGIC {
            return Err(reader.strange("begins with other bytes; expected SltObjMf"));
        }
        let (version, flags) = (reader.u32()?, reader.u32()?);
        if (version, flags) != (VERSION, 0) {
            return Err(Error::unsupported(format!(
                "a manifest of version {version} with flags {flags:#x}; expected version {VERSION} without flags: use a newer siltstone"
            )));
        }
        let sum = bytes.len().checked_sub(CHECKSUM).and_then(|at| bytes.split_at_checked(at));
        match sum {
            Some((covered, sum)) if checksum(covered).to_le_bytes() == sum => {}
            _ => return Err(reader.strange("has another checksum than its bytes")),
        }
        let (volume, id) = (*reader.take::<VolumeId>()?, *reader.take::<[u8; 16]>()?);
        let found_epoch = reader.u32()?;
        let (kind, is_clean, name, _) = (reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?);
        let [found_number, link, time] = reader.u64s()?;
        let (body, _) = (reader.u32()?, reader.u32()?);
        let name = String::from_utf8_lossy(reader.bytes(name.into())?).into_owned();
        let body = reader.bytes(body as usize)?.to_vec();
        reader.u32()?;
        reader.end()?;
        let kind = Kind::ALL.get(usize::from(kind)).ok_or_else(|| reader.strange("has an unknown kind"))?;
        if (found_epoch, found_number) != (epoch, number) {
            return Err(reader.strange(&format!(
                "of epoch {found_epoch} and number {found_number} is at epoch {epoch} and number {number}"
            )));
        }
        let (writer, is_clean) = (Writers { id, name }, is_clean != 0);
        Ok(Manifest { volume, writer, epoch, number, kind: *kind, is_clean, link, time, body })
    }
}

/// Number of bytes of the object of a piece of `length` bytes.
pub(crate) fn object_length(length: u64) -> u64 {
    PIECE_HEADER as u64 + length + CHECKSUM as u64 * length.div_ceil(CHUNK as u64)
}

/// Digest that has taken the place of the chunk that begins at byte `chunk` of a piece.
fn chunk_digest(volume: &VolumeId, name: &PieceName, chunk: u64) -> Digest {
    let mut place = [0; 40];
    place[..16].copy_from_slice(volume);
    place[16..20].copy_from_slice(&name.zone.to_le_bytes());
    place[20..24].copy_from_slice(&name.epoch.to_le_bytes());
    place[24..32].copy_from_slice(&name.generation.to_le_bytes());
    place[32..].copy_from_slice(&(name.offset + chunk).to_le_bytes());
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&place);
    digest
}

fn chunk_checksum(volume: &VolumeId, name: &PieceName, chunk: u64, bytes: &[u8]) -> [u8; CHECKSUM] {
    let mut digest = chunk_digest(volume, name, chunk);
    digest.update(bytes);
    (digest.finalize() as u32).to_le_bytes()
}

/// Contents of the object of a piece. Each chunk but the last one has [`CHUNK`] bytes; they aren't copied.
pub(crate) fn piece_object(volume: &VolumeId, name: &PieceName, chunks: &[Data]) -> Payload {
    let length: usize = chunks.iter().map(|chunk| chunk.len()).sum();
    let mut writer = Writer::default();
    writer.put(PIECE_MAGIC);
    writer.u32(VERSION);
    writer.u32(0);
    writer.put(volume);
    writer.u32(name.zone);
    writer.u32(name.epoch);
    writer.u64(name.generation);
    writer.u64(name.offset);
    writer.u32(length as u32);
    writer.u32(checksum(&writer.0));
    let mut payload = Payload::with_capacity(1 + 2 * chunks.len());
    payload.push(Data::copy_of(&writer.0));
    for (number, chunk) in (0_u64..).zip(chunks) {
        payload.push(chunk.clone());
        payload.push(Data::copy_of(&chunk_checksum(volume, name, number * CHUNK as u64, chunk)));
    }
    payload
}

/// Range of whole chunks of a piece that has some wanted bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkRange {
    /// Offset in the object, and number of bytes there.
    pub at: u64,
    pub bytes: usize,
    /// Offset of the first chunk in the piece.
    first: u64,
    /// Wanted bytes, relative to the first chunk.
    wanted: Range<usize>,
}

/// Chunks of a piece of `length` bytes with the bytes `wanted` of it, which aren't empty.
pub(crate) fn chunk_range(length: u64, wanted: Range<u64>) -> ChunkRange {
    let chunk = CHUNK as u64;
    let first = wanted.start / chunk * chunk;
    let end = wanted.end.next_multiple_of(chunk).min(length);
    let at = |offset: u64| PIECE_HEADER as u64 + offset + CHECKSUM as u64 * offset.div_ceil(chunk);
    ChunkRange {
        at: at(first),
        bytes: (at(end) - at(first)) as usize,
        first,
        wanted: (wanted.start - first) as usize..(wanted.end - first) as usize,
    }
}

/// Verifies the chunks of a range, and passes the wanted bytes on, in order.
///
/// # Errors
/// [`Error::Corrupt`] for other bytes than those that were written there.
pub(crate) fn verify(
    volume: &VolumeId,
    name: &PieceName,
    range: &ChunkRange,
    object: &[u8],
    mut take: impl FnMut(&[u8]),
) -> Result<()> {
    let mut at = 0;
    for part in object.chunks(CHUNK + CHECKSUM) {
        let (bytes, sum) = part.split_at(part.len().saturating_sub(CHECKSUM));
        if chunk_checksum(volume, name, range.first + at as u64, bytes) != sum {
            return Err(Error::corrupt(format!(
                "the {} bytes at byte {} of zone {} have another checksum than those that were written there",
                bytes.len(),
                name.offset + range.first + at as u64,
                name.zone
            )));
        }
        let from = range.wanted.start.clamp(at, at + bytes.len()) - at;
        let to = range.wanted.end.clamp(at, at + bytes.len()) - at;
        take(&bytes[from..to]);
        at += bytes.len();
    }
    match at >= range.wanted.end {
        true => Ok(()),
        false => Err(Error::corrupt(format!("a piece of zone {} is too short", name.zone))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            volume: [7; 16],
            writer: Writers { id: [9; 16], name: "host, process 12".to_owned() },
            epoch: 3,
            number: 17,
            kind: Kind::Delta,
            is_clean: true,
            link: 4,
            time: 1_700_000_000_000,
            body: b"changes".to_vec(),
        }
    }

    #[test]
    fn manifests_are_decoded_as_they_were_encoded_and_nowhere_else() {
        let bytes = manifest().encode();
        assert_eq!(Manifest::decode(&bytes, 3, 17).unwrap(), manifest());
        assert_eq!(bytes.len(), 88 + manifest().writer.name.len() + 7 + 4);
        for (epoch, number) in [(3, 16), (2, 17)] {
            assert!(matches!(Manifest::decode(&bytes, epoch, number), Err(Error::Corrupt(_))));
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(Manifest::decode(&changed, 3, 17).is_err(), "byte {at}");
            assert!(Manifest::decode(&bytes[..at], 3, 17).is_err(), "{at} bytes");
        }
        let mut other = bytes;
        other[8] = 2;
        assert!(matches!(Manifest::decode(&other, 3, 17), Err(Error::Unsupported(_))));
    }

    #[test]
    fn ranges_of_pieces_are_verified_and_altered_bytes_are_found() {
        let mut random = runtime::Random::new(2);
        let name = PieceName { zone: 3, generation: 5, epoch: 2, offset: 1 << 20, serial: 8 };
        for length in [512, CHUNK, CHUNK + 512, 3 * CHUNK + 40 * 512] {
            let mut bytes = vec![0; length];
            random.fill(&mut bytes);
            let chunks: Vec<Data> = bytes.chunks(CHUNK).map(Data::copy_of).collect();
            let object = piece_object(&[1; 16], &name, &chunks).to_data();
            assert_eq!(object.len() as u64, object_length(length as u64));
            for _ in 0..50 {
                let start = random.below(length as u64);
                let end = start + 1 + random.below(length as u64 - start);
                let range = chunk_range(length as u64, start..end);
                let mut part = object[range.at as usize..][..range.bytes].to_vec();
                let mut found = Vec::new();
                let read = |part: &[u8], name: &PieceName, found: &mut Vec<u8>| {
                    verify(&[1; 16], name, &range, part, |bytes| found.extend_from_slice(bytes))
                };
                read(&part, &name, &mut found).unwrap();
                assert_eq!(found, bytes[start as usize..end as usize]);
                let elsewhere = PieceName { generation: 6, ..name };
                assert!(matches!(read(&part, &elsewhere, &mut found), Err(Error::Corrupt(_))));
                assert!(read(&part[..part.len() - 1], &name, &mut found).is_err());
                let at = random.below(part.len() as u64) as usize;
                part[at] ^= 1;
                assert!(matches!(read(&part, &name, &mut found), Err(Error::Corrupt(_))), "byte {at}");
            }
        }
    }
}
