//! Manifests and pieces as bytes. `book/src/formats/objects.md` describes each of them.
//!
//! # Promises
//! - A manifest has a CRC-32C of all its bytes, and its own epoch and number: damaged or misplaced ones are
//!   errors, and so are unknown versions and flags.
//! - Each 64 KiB of a piece have a CRC-32C that covers the volume, zone, generation, epoch and offset as
//!   well: altered or misplaced bytes are never returned, whatever range is read. So has the index of a
//!   compressed piece.
//! - With keys, the chunks of pieces and all manifests but seals are sealed together with their place, so
//!   that holds for bytes that were altered on purpose as well.
//!
//! Left to others: the zone table and its changes (`table`), places of chunks (`chunks`), the cipher
//! (`seal`), requests (`manifests`, `core`).

use crate::chunks::{CHECKSUM, SEAL};
pub(crate) use crate::chunks::{CHUNK, ChunkRange, PIECE_HEADER, chunk_range, object_length, trailer};
use crate::compression::{Index, Size, decompress, head_length};
use crate::names::PieceName;
use crate::seal::{Keys, NONCE, Nonces, Sealer, TAG};
use block::{Buffer, ClaimToken, Data, Error, Payload, Result};
use crc_fast::{CrcAlgorithm, Digest};
use std::rc::Rc;
use zones::bytes::{self, Reader};

/// Longest name of a writer, in bytes.
const MAX_NAME: usize = 255;
/// Version of manifests, and that of sealed ones. Version 1 had neither bases beside the deltas nor merges,
/// and is read as version 2.
const VERSION: u32 = 2;
const SEALED_VERSION: u32 = 3;
/// Version of pieces, that of sealed ones, and that of compressed ones.
const PIECE_VERSION: u32 = 1;
const SEALED_PIECE_VERSION: u32 = 2;
const COMPRESSED_PIECE_VERSION: u32 = 3;
/// Flags: the contents are sealed, zones have secrets in a key store, and the piece, or one that the manifest
/// names, is compressed.
const SEALED: u32 = 1;
const HAS_STORE: u32 = 2;
const COMPRESSED: u32 = 4;
/// Number of a piece's index in the place of a chunk's number: in its nonce.
const INDEX: u32 = u32::MAX;
/// Bits of the serial number of a piece that count the attempts of its writer: enough for 3000 in each second
/// of ten years. In an encrypted volume those above are drawn at random for each writer, otherwise zeros.
pub(crate) const ATTEMPT_BITS: u32 = 40;
const MANIFEST_MAGIC: &[u8; 8] = b"SltObjMf";
const PIECE_MAGIC: &[u8; 8] = b"SltObjPc";

/// Identity of a volume: random bytes.
pub(crate) type VolumeId = [u8; 16];

/// Random bytes that name a volume or a writer, as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

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

    /// Whether keys protect manifests of this kind. A seal says nothing but that the epoch has ended, for
    /// writers with other keys as well, such as one that formats the volume.
    fn is_protected(self) -> bool {
        self != Kind::Seal
    }
}

/// A writer of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Writer {
    /// Random number of this opening.
    pub id: [u8; 16],
    /// Name of the machine and the process, for operators.
    pub name: String,
}

impl Writer {
    /// Returns a writer with this name, which has drawn its random number.
    pub fn new(name: String) -> Writer {
        let mut id = [0; 16];
        runtime::fill_secret(&mut id);
        Writer { id, name }
    }
}

/// A manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub volume: VolumeId,
    pub writer: Writer,
    pub epoch: u32,
    pub number: u64,
    pub kind: Kind,
    /// Whether a clean stop follows its changes.
    pub is_clean: bool,
    /// Whether its body names compressed pieces, which earlier programs don't know.
    pub is_compressed: bool,
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
    /// Encodes the manifest, and seals it with the keys of its volume, if there are some.
    pub fn encode(&self, keys: Option<&Keys>) -> Vec<u8> {
        let keys = keys.filter(|_| self.kind.is_protected());
        let (version, flags, id) = protection(keys);
        let name = self.writer.name.as_bytes();
        let name = &name[..name.len().min(MAX_NAME)];
        let mut writer = bytes::Writer::default();
        writer.put(MANIFEST_MAGIC);
        writer.u32(version);
        writer.u32(if self.is_compressed { flags | COMPRESSED } else { flags });
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
        writer.put(&id);
        writer.put(name);
        let place = writer.0.len();
        writer.put(&self.body[..]);
        if let Some(keys) = keys {
            let nonce = Nonces::draw().of(0);
            let (place, body) = writer.0.split_at_mut(place);
            let tag = keys.manifests().seal(&nonce, place, body);
            writer.put(&nonce);
            writer.put(&tag);
        }
        writer.u32(checksum(&writer.0));
        writer.0
    }

    /// Decodes a manifest, which must have this epoch and number, and opens its contents with the keys.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for other bytes; [`Error::Unsupported`] for another version, and for contents that
    /// weren't sealed with these keys.
    pub fn decode(bytes: &[u8], epoch: u32, number: u64, keys: Option<&Keys>) -> Result<Manifest> {
        let mut reader = Reader::new(bytes, "a manifest");
        if reader.bytes(8)? != MANIFEST_MAGIC {
            return Err(reader.strange("begins with other bytes; expected SltObjMf"));
        }
        let (version, flags) = (reader.u32()?, reader.u32()?);
        let is_sealed = check_version((version, flags))?;
        let sum = bytes.len().checked_sub(CHECKSUM).and_then(|at| bytes.split_at_checked(at));
        match sum {
            Some((covered, sum)) if checksum(covered).to_le_bytes() == sum => {}
            _ => return Err(reader.strange("has another checksum than its bytes")),
        }
        let (volume, id) = (*reader.take::<VolumeId>()?, *reader.take::<[u8; 16]>()?);
        let found_epoch = reader.u32()?;
        let (kind, is_clean, name, _) = (reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?);
        let [found_number, link, time] = reader.u64s()?;
        let (body, key_id) = (reader.u32()?, *reader.take::<[u8; 4]>()?);
        let name = String::from_utf8_lossy(reader.bytes(name.into())?).into_owned();
        let place = &bytes[..bytes.len() - reader.remaining()];
        let mut body = reader.bytes(body as usize)?.to_vec();
        let seal = match is_sealed {
            true => Some((reader.take::<[u8; NONCE]>()?, reader.take::<[u8; TAG]>()?)),
            false => None,
        };
        reader.u32()?;
        reader.end()?;
        let kind = Kind::ALL.get(usize::from(kind)).ok_or_else(|| reader.strange("has an unknown kind"))?;
        if (found_epoch, found_number) != (epoch, number) {
            return Err(reader.strange(&format!(
                "of epoch {found_epoch} and number {found_number} is at epoch {epoch} and number {number}"
            )));
        }
        match kind.is_protected() {
            true => check_keys(keys, flags & !COMPRESSED, key_id)?,
            false if flags != 0 || !body.is_empty() => return Err(reader.strange("of an end has contents")),
            false => {}
        }
        if let Some((keys, (nonce, tag))) = keys.zip(seal)
            && !keys.manifests().open(nonce, place, &mut body, tag)
        {
            return Err(reader.strange("was altered: its seal doesn't fit its bytes and its place"));
        }
        let (writer, is_clean) = (Writer { id, name }, is_clean != 0);
        let is_compressed = flags & COMPRESSED > 0;
        let kind = *kind;
        Ok(Manifest { volume, writer, epoch, number, kind, is_clean, is_compressed, link, time, body })
    }
}

/// Whether a manifest that can't be decoded may be a seal. It isn't one if its checksum fits and it names
/// another kind: it was encrypted with another key.
pub(crate) fn may_be_seal(bytes: &[u8]) -> bool {
    let kind = || {
        let mut reader = Reader::new(bytes, "a manifest");
        reader.bytes(8)?;
        check_version((reader.u32()?, reader.u32()?))?;
        reader.bytes(size_of::<VolumeId>() + 16 + 4)?;
        reader.u8()
    };
    let is_intact = bytes
        .split_last_chunk::<CHECKSUM>()
        .is_some_and(|(covered, sum)| checksum(covered).to_le_bytes() == *sum);
    let is_other = kind().is_ok_and(|kind| usize::from(kind) != Kind::Seal as usize);
    !(is_intact && is_other)
}

/// Body of a claim: the token of the layer that made it, or nothing.
pub(crate) fn encode_token(token: Option<ClaimToken>) -> Vec<u8> {
    let Some(ClaimToken { owner, count }) = token else { return Vec::new() };
    let mut writer = bytes::Writer::default();
    writer.put(&owner);
    writer.u64(count);
    writer.0
}

/// Decodes the body of a claim.
///
/// # Errors
/// [`Error::Corrupt`] for another length.
pub(crate) fn decode_token(body: &[u8]) -> Result<Option<ClaimToken>> {
    if body.is_empty() {
        return Ok(None);
    }
    let mut reader = Reader::new(body, "a claim");
    let (owner, count) = (*reader.take::<[u8; 16]>()?, reader.u64()?);
    reader.end()?;
    Ok(Some(ClaimToken { owner, count }))
}

/// Version, flags, and name of the operator's key, of bytes that are sealed with keys.
fn protection(keys: Option<&Keys>) -> (u32, u32, [u8; 4]) {
    match keys {
        Some(keys) if keys.has_store() => (SEALED_VERSION, SEALED | HAS_STORE, keys.id()),
        Some(keys) => (SEALED_VERSION, SEALED, keys.id()),
        None => (VERSION, 0, [0; 4]),
    }
}

/// Whether the contents of a manifest of this version and these flags are sealed.
///
/// # Errors
/// [`Error::Unsupported`] for other ones.
fn check_version((version, flags): (u32, u32)) -> Result<bool> {
    match (version, flags) {
        (1, 0) | (VERSION, 0 | COMPRESSED) => Ok(false),
        (SEALED_VERSION, flags) if flags & SEALED > 0 && flags & !(SEALED | HAS_STORE | COMPRESSED) == 0 => {
            Ok(true)
        }
        _ => Err(Error::unsupported(format!(
            "a manifest of version {version} with flags {flags:#x}; expected version 1 or {VERSION} without flags or with {COMPRESSED}, \
             or version {SEALED_VERSION} with the flags 1, 3, 5 or 7: use a newer siltstone"
        ))),
    }
}

/// Checks that a manifest has the flags of these keys, and was sealed with them.
fn check_keys(keys: Option<&Keys>, flags: u32, key_id: [u8; 4]) -> Result<()> {
    let (_, expected_flags, expected_id) = protection(keys);
    let text = match keys {
        _ if (expected_flags, expected_id) == (flags, key_id) => return Ok(()),
        Some(keys) if expected_id == key_id && flags > 0 && keys.fit(flags & HAS_STORE > 0) => return Ok(()),
        None if flags & HAS_STORE > 0 => "the volume is encrypted; expected key_file and key_store",
        None => "the volume is encrypted; expected key_file",
        Some(_) if flags == 0 => "the volume isn't encrypted; leave key_file out, or format",
        Some(_) if expected_id != key_id => {
            "the volume is encrypted with another key than that of key_file, unless this object was altered; expected the key with which \
             it was formatted"
        }
        Some(_) if flags & HAS_STORE > 0 => {
            "the keys of zones are in a key store; expected key_store: its device, or for a reader a copy of it"
        }
        Some(_) => "the volume has no key store; leave key_store out, or format",
    };
    Err(Error::unsupported(text))
}

/// Byte of the zone at which a chunk begins that is at byte `chunk` of a piece.
fn at_chunk(name: &PieceName, chunk: u64) -> u64 {
    name.offset + chunk
}

/// Number in place of [`at_chunk`] for the index of a piece. No chunk and no other piece has it.
fn at_index(name: &PieceName) -> u64 {
    !name.offset
}

/// Place of the chunk that begins at byte `at` of the zone, or of an index.
fn chunk_place(volume: &VolumeId, name: &PieceName, at: u64) -> [u8; 40] {
    let mut place = [0; 40];
    place[..16].copy_from_slice(volume);
    place[16..20].copy_from_slice(&name.zone.to_le_bytes());
    place[20..24].copy_from_slice(&name.epoch.to_le_bytes());
    place[24..32].copy_from_slice(&name.generation.to_le_bytes());
    place[32..].copy_from_slice(&at.to_le_bytes());
    place
}

/// Place of a sealed chunk. It has the bits of the serial number that the piece's writer has drawn, so chunks
/// of two histories of a volume, after one that was rolled back, aren't exchanged.
fn sealed_place(volume: &VolumeId, name: &PieceName, at: u64) -> [u8; 48] {
    let mut place = [0; 48];
    place[..40].copy_from_slice(&chunk_place(volume, name, at));
    place[40..].copy_from_slice(&(name.serial >> ATTEMPT_BITS).to_le_bytes());
    place
}

fn chunk_checksum(volume: &VolumeId, name: &PieceName, at: u64, bytes: &[u8]) -> [u8; CHECKSUM] {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&chunk_place(volume, name, at));
    digest.update(bytes);
    (digest.finalize() as u32).to_le_bytes()
}

/// Seals the chunks of a piece and its index, each once.
#[derive(Debug)]
pub(crate) struct ChunkSealer {
    volume: VolumeId,
    /// The piece, with the serial number of any attempt.
    name: PieceName,
    key: Rc<Sealer>,
    nonces: Nonces,
}

impl ChunkSealer {
    /// Returns the sealer of a piece that hasn't been sealed before.
    pub fn new(volume: VolumeId, name: PieceName, key: Rc<Sealer>) -> ChunkSealer {
        ChunkSealer { volume, name, key, nonces: Nonces::draw() }
    }

    /// Seals the chunk of this number, as it is in the object.
    pub fn seal(&self, number: usize, bytes: &[u8]) -> Data {
        self.seal_at(number as u32, at_chunk(&self.name, (number * CHUNK) as u64), bytes)
    }

    /// Seals the index.
    pub fn seal_index(&self, bytes: &[u8]) -> Data {
        self.seal_at(INDEX, at_index(&self.name), bytes)
    }

    fn seal_at(&self, number: u32, at: u64, bytes: &[u8]) -> Data {
        let mut buffer = Buffer::new(bytes.len() + SEAL);
        buffer.append(bytes);
        let place = sealed_place(&self.volume, &self.name, at);
        let nonce = self.nonces.of(number);
        let tag = self.key.seal(&nonce, &place, buffer.filled_mut());
        buffer.append(&nonce);
        buffer.append(&tag);
        buffer.freeze()
    }

    /// Opens the chunk of this number, which [`seal`](Self::seal) has returned.
    pub fn open(&self, number: usize, sealed: &[u8]) -> Data {
        let mut buffer = Buffer::copy_of(sealed);
        let at = at_chunk(&self.name, (number * CHUNK) as u64);
        let bytes = verified(&self.volume, &self.name, Some(&self.key), at, buffer.filled_mut());
        let length = bytes.expect("memory has what was sealed").len();
        buffer.freeze().slice(0..length)
    }
}

/// Bytes of a chunk or an index, before its checksum, or opened in place with a key; `None` if they aren't
/// those that were written there.
fn verified<'b>(
    volume: &VolumeId,
    name: &PieceName,
    key: Option<&Sealer>,
    at: u64,
    part: &'b mut [u8],
) -> Option<&'b [u8]> {
    let Some(key) = key else {
        let (bytes, sum) = part.split_at_checked(part.len().checked_sub(CHECKSUM)?)?;
        return (chunk_checksum(volume, name, at, bytes) == sum).then_some(bytes);
    };
    let (rest, tag) = part.split_last_chunk_mut::<TAG>()?;
    let (bytes, nonce) = rest.split_last_chunk_mut::<NONCE>()?;
    key.open(nonce, &sealed_place(volume, name, at), bytes, tag).then_some(&*bytes)
}

/// Contents of the object of a piece with `length` bytes. Each chunk but the last one has [`CHUNK`] of them,
/// before they were compressed and sealed; they aren't copied. A compressed piece has an index, sealed as its
/// chunks.
pub(crate) fn piece_object(
    volume: &VolumeId,
    name: &PieceName,
    length: u64,
    (index, chunks): (Option<&Data>, &[Data]),
    is_sealed: bool,
) -> Payload {
    let (version, flags) = match (index, is_sealed) {
        (None, true) => (SEALED_PIECE_VERSION, SEALED),
        (None, false) => (PIECE_VERSION, 0),
        (Some(_), true) => (COMPRESSED_PIECE_VERSION, COMPRESSED | SEALED),
        (Some(_), false) => (COMPRESSED_PIECE_VERSION, COMPRESSED),
    };
    let mut writer = bytes::Writer::default();
    writer.put(PIECE_MAGIC);
    writer.u32(version);
    writer.u32(flags);
    writer.put(volume);
    writer.u32(name.zone);
    writer.u32(name.epoch);
    writer.u64(name.generation);
    writer.u64(name.offset);
    writer.u32(length as u32);
    writer.u32(checksum(&writer.0));
    let mut payload = Payload::with_capacity(3 + 2 * chunks.len());
    payload.push(Data::copy_of(&writer.0));
    let mut add = |at: u64, part: &Data| {
        payload.push(part.clone());
        if !is_sealed {
            payload.push(Data::copy_of(&chunk_checksum(volume, name, at, part)));
        }
    };
    index.iter().for_each(|index| add(at_index(name), index));
    for (number, chunk) in (0_u64..).zip(chunks) {
        add(at_chunk(name, number * CHUNK as u64), chunk);
    }
    payload
}

/// Index of a compressed piece, from the first bytes of its object.
///
/// # Errors
/// [`Error::Corrupt`] for other bytes than those that were written there.
pub(crate) fn open_index(
    volume: &VolumeId,
    name: &PieceName,
    size: Size,
    key: Option<&Sealer>,
    object: &mut [u8],
) -> Result<Index> {
    let is_sealed = key.is_some();
    let part = object.get_mut(PIECE_HEADER..head_length(size.length, is_sealed));
    let bytes = part.and_then(|part| verified(volume, name, key, at_index(name), part));
    let what = if is_sealed { "seal" } else { "checksum" };
    let bytes = bytes.ok_or_else(|| {
        Error::corrupt(format!(
            "its index, of the {} bytes with byte {} of zone {}, has another {what} than was written there",
            size.length, name.offset, name.zone
        ))
    })?;
    Index::decode(bytes, size, is_sealed)
}

/// Verifies the chunks of a range, and passes the wanted bytes on, in order. With a key the chunks are
/// opened, in place, and with the index of a compressed piece those that are compressed are decompressed.
///
/// # Errors
/// [`Error::Corrupt`] for other bytes than those that were written there.
pub(crate) fn verify(
    volume: &VolumeId,
    name: &PieceName,
    range: &ChunkRange,
    (index, key): (Option<&Index>, Option<&Sealer>),
    object: &mut [u8],
    mut take: impl FnMut(&[u8]),
) -> Result<()> {
    let (mut at, mut rest, mut decompressed) = (0, object, Vec::new());
    while !rest.is_empty() {
        let chunk = range.first + at as u64;
        let (span, whole) = match index {
            Some(index) => index.chunk(chunk as usize / CHUNK),
            None => (CHUNK + trailer(key.is_some()), 0),
        };
        let (part, after) = rest.split_at_mut(span.min(rest.len()));
        rest = after;
        let (length, chunk_at) = (part.len(), at_chunk(name, chunk));
        let mut bytes = verified(volume, name, key, chunk_at, part).ok_or_else(|| {
            Error::corrupt(format!(
                "the {length} bytes with byte {chunk_at} of zone {} have another {} than those that were written there",
                name.zone,
                if key.is_some() { "seal" } else { "checksum" }
            ))
        })?;
        if bytes.len() < whole {
            decompressed.resize(whole, 0);
            if !decompress(bytes, &mut decompressed) {
                return Err(Error::corrupt(format!(
                    "the {length} bytes with byte {chunk_at} of zone {} aren't {whole} compressed ones",
                    name.zone
                )));
            }
            bytes = &decompressed;
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
            writer: Writer { id: [9; 16], name: "host, process 12".to_owned() },
            epoch: 3,
            number: 17,
            kind: Kind::Delta,
            is_clean: true,
            is_compressed: false,
            link: 4,
            time: 1_700_000_000_000,
            body: b"changes".to_vec(),
        }
    }

    #[test]
    fn manifests_are_decoded_as_they_were_encoded_and_nowhere_else() {
        let decode = |bytes: &[u8], epoch, number| Manifest::decode(bytes, epoch, number, None);
        let bytes = manifest().encode(None);
        assert_eq!(decode(&bytes, 3, 17).unwrap(), manifest());
        assert_eq!(bytes.len(), 88 + manifest().writer.name.len() + 7 + 4);
        for (epoch, number) in [(3, 16), (2, 17)] {
            assert!(matches!(decode(&bytes, epoch, number), Err(Error::Corrupt(_))));
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(decode(&changed, 3, 17).is_err(), "byte {at}");
            assert!(decode(&bytes[..at], 3, 17).is_err(), "{at} bytes");
        }
        let mut other = bytes;
        for (at, value) in [(8, 4), (8, 3), (8, 0), (12, 1)] {
            let kept = std::mem::replace(&mut other[at], value);
            let error = decode(&other, 3, 17).unwrap_err();
            assert!(
                matches!(&error, Error::Unsupported(text) if text.contains("newer siltstone")),
                "{error}"
            );
            other[at] = kept;
        }
        other[8] = 1;
        assert_eq!(decode(&with_checksum(&other), 3, 17).unwrap(), manifest());
        let compressed = Manifest { is_compressed: true, ..manifest() };
        let mut bytes = compressed.encode(None);
        assert_eq!((bytes[12], decode(&bytes, 3, 17).unwrap()), (4, compressed));
        bytes[8] = 1;
        assert!(matches!(decode(&with_checksum(&bytes), 3, 17), Err(Error::Unsupported(_))));
    }

    /// Runs a test in a simulated world, which has the source of random bits.
    fn world(test: impl FnOnce() + 'static) {
        runtime::simulate(runtime::Simulation::new(3), || async { test() }).unwrap();
    }

    #[test]
    fn sealed_manifests_open_only_where_they_were_and_with_their_keys() {
        world(|| {
            let keys = [(1, false), (1, true), (2, false)]
                .map(|(key, has_store)| Some(Keys::new(&[key; crate::seal::KEY], has_store).unwrap()));
            let decode = |bytes: &[u8], epoch, number, keys: &Option<Keys>| {
                Manifest::decode(bytes, epoch, number, keys.as_ref())
            };
            for kind in Kind::ALL {
                let body = if matches!(kind, Kind::Claim | Kind::Seal) { Vec::new() } else { vec![77; 100] };
                let manifest = Manifest { kind, body, ..manifest() };
                let bytes = manifest.encode(keys[0].as_ref());
                assert_eq!(decode(&bytes, 3, 17, &keys[0]).unwrap(), manifest);
                assert!(!bytes.windows(10).any(|bytes| bytes == [77; 10]), "{kind:?}: its body can be read");
                let (is_seal, plain) = (kind == Kind::Seal, manifest.encode(None));
                assert_eq!(decode(&plain, 3, 17, &keys[0]).is_ok(), is_seal, "an unprotected {kind:?}");
                for others in [&keys[1], &keys[2], &None] {
                    let found = decode(&bytes, 3, 17, others);
                    match is_seal {
                        true => assert_eq!(found.unwrap(), manifest),
                        false => assert!(matches!(found, Err(Error::Unsupported(_))), "{found:?}"),
                    }
                }
                if is_seal {
                    let other = Manifest { body: vec![77; 100], ..manifest };
                    for keys in [&keys[0], &None] {
                        let found = decode(&other.encode(keys.as_ref()), 3, 17, keys);
                        assert!(matches!(found, Err(Error::Corrupt(_))), "a seal with contents: {found:?}");
                    }
                    continue;
                }
                assert_ne!(bytes, manifest.encode(keys[0].as_ref()), "the same nonce");
                for at in 0..bytes.len() - CHECKSUM {
                    let mut changed = bytes.clone();
                    changed[at] ^= 0x10;
                    let found = decode(&with_checksum(&changed), 3, 17, &keys[0]);
                    let is_of_protection = (8..16).contains(&at) || (84..88).contains(&at);
                    match found {
                        Err(Error::Unsupported(_)) if is_of_protection => {}
                        found => assert!(matches!(found, Err(Error::Corrupt(_))), "byte {at}: {found:?}"),
                    }
                    if at >= CHECKSUM {
                        let shorter = with_checksum(&bytes[..at]);
                        assert!(decode(&shorter, 3, 17, &keys[0]).is_err(), "{at} bytes");
                    }
                }
                // Its own bytes at another place, which are resealed nowhere.
                let moved = [(52, 1, "kind"), (53, 1, "clean stop"), (64, 1, "link"), (32, 1, "writer")];
                for (at, change, what) in moved {
                    let mut changed = bytes.clone();
                    changed[at] ^= change;
                    assert!(decode(&with_checksum(&changed), 3, 17, &keys[0]).is_err(), "{what}");
                }
                let mut elsewhere = bytes.clone();
                elsewhere[56] = 18;
                assert!(matches!(
                    decode(&with_checksum(&elsewhere), 3, 18, &keys[0]),
                    Err(Error::Corrupt(_))
                ));
            }
        });
    }

    #[test]
    fn tokens_of_claims_are_decoded_as_they_were_encoded() {
        let token = Some(ClaimToken { owner: [3; 16], count: 1 << 40 });
        let body = encode_token(token);
        assert_eq!((body.len(), decode_token(&body).unwrap()), (24, token));
        assert_eq!(decode_token(&encode_token(None)).unwrap(), None);
        assert!(decode_token(&body[1..]).is_err());
        assert!(decode_token(&[body, vec![0]].concat()).is_err());
    }

    #[test]
    fn ranges_of_pieces_are_verified_and_altered_bytes_are_found() {
        let mut random = runtime::Random::new(2);
        let name = PieceName { zone: 3, generation: 5, epoch: 2, offset: 1 << 20, serial: 8 };
        for length in [512, CHUNK, CHUNK + 512, 3 * CHUNK + 40 * 512] {
            let mut bytes = vec![0; length];
            random.fill(&mut bytes);
            let chunks: Vec<Data> = bytes.chunks(CHUNK).map(Data::copy_of).collect();
            let object = piece_object(&[1; 16], &name, length as u64, (None, &chunks), false).to_data();
            assert_eq!(object.len() as u64, object_length(length as u64, false));
            for _ in 0..50 {
                let start = random.below(length as u64);
                let end = start + 1 + random.below(length as u64 - start);
                let range = chunk_range(length as u64, start..end, false);
                let mut part = object[range.at as usize..][..range.bytes].to_vec();
                let mut found = Vec::new();
                let read = |part: &[u8], name: &PieceName, found: &mut Vec<u8>| {
                    let mut part = part.to_vec();
                    verify(&[1; 16], name, &range, (None, None), &mut part, |bytes| {
                        found.extend_from_slice(bytes)
                    })
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

    /// Every alteration of a sealed piece is noticed, whatever range is read.
    #[test]
    fn altered_bytes_of_sealed_pieces_are_found() {
        world(|| {
            let (volume, mut random) = ([1; 16], runtime::Random::new(2));
            let name = PieceName { zone: 3, generation: 5, epoch: 2, offset: 1 << 20, serial: 0 };
            let key = Rc::new(Sealer::new(&[9; crate::seal::KEY]));
            for length in [512, CHUNK, CHUNK + 512, 3 * CHUNK + 40 * 512] {
                let mut bytes = vec![0; length];
                random.fill(&mut bytes);
                let seal = |bytes: &[u8]| {
                    let sealer = ChunkSealer::new(volume, name, key.clone());
                    let chunks: Vec<Data> =
                        bytes.chunks(CHUNK).enumerate().map(|(at, chunk)| sealer.seal(at, chunk)).collect();
                    assert!(
                        bytes
                            .chunks(CHUNK)
                            .zip(&chunks)
                            .enumerate()
                            .all(|(at, (chunk, sealed))| { sealer.open(at, sealed)[..] == *chunk })
                    );
                    piece_object(&volume, &name, length as u64, (None, &chunks), true).to_data()
                };
                let object = seal(&bytes);
                assert_eq!(object.len() as u64, object_length(length as u64, true));
                for _ in 0..20 {
                    let start = random.below(length as u64);
                    let end = start + 1 + random.below(length as u64 - start);
                    let range = chunk_range(length as u64, start..end, true);
                    let mut part = object[range.at as usize..][..range.bytes].to_vec();
                    let read = |part: &[u8], name: &PieceName, key: &Sealer| {
                        let (mut part, mut found) = (part.to_vec(), Vec::new());
                        let take = |bytes: &[u8]| found.extend_from_slice(bytes);
                        verify(&volume, name, &range, (None, Some(key)), &mut part, take).map(|()| found)
                    };
                    assert_eq!(read(&part, &name, &key).unwrap(), bytes[start as usize..end as usize]);
                    // The number of the attempt isn't a part of the place.
                    assert!(read(&part, &PieceName { serial: 9, ..name }, &key).is_ok());
                    for elsewhere in [
                        PieceName { zone: 4, ..name },
                        PieceName { generation: 4, ..name },
                        PieceName { epoch: 1, ..name },
                        PieceName { serial: 1 << ATTEMPT_BITS, ..name },
                        PieceName { offset: name.offset + CHUNK as u64, ..name },
                    ] {
                        let found = read(&part, &elsewhere, &key);
                        assert!(matches!(found, Err(Error::Corrupt(_))), "{elsewhere:?}");
                    }
                    assert!(matches!(read(&part, &name, &Sealer::new(&[8; 32])), Err(Error::Corrupt(_))));
                    assert!(read(&part[..part.len() - 1], &name, &key).is_err());
                    let stride = CHUNK + SEAL;
                    if part.len() > 2 * stride {
                        let swapped =
                            [&part[stride..2 * stride], &part[..stride], &part[2 * stride..]].concat();
                        assert!(matches!(read(&swapped, &name, &key), Err(Error::Corrupt(_))));
                    }
                    let at = random.below(part.len() as u64) as usize;
                    part[at] ^= 1;
                    assert!(matches!(read(&part, &name, &key), Err(Error::Corrupt(_))), "byte {at}");
                }
                assert_ne!(object, seal(&bytes), "the same nonces");
            }
        });
    }
}
