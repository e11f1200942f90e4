//! Stored blocks: compressed bytes, their kind, and a checksum that depends on the block's place.

use super::Compression;
use block::{Error, Result};
use crc_fast::{CrcAlgorithm, checksum};
use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

/// Maximum size of a decoded block, in bytes.
pub(super) const MAX_BLOCK_BYTES: usize = 128 << 20;
/// Number of bytes after the contents: kind and compression, checksum.
pub(super) const TRAILER_BYTES: usize = 5;
/// Maximum number of decoded bytes per compressed one: a match of LZ4 grows by 255 for each byte.
const MAX_GROWTH: usize = 255;
/// Size in bytes above which buffers are freed after use.
const KEPT_BYTES: usize = 1 << 20;

/// Place of a stored block in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHandle {
    /// Offset in the table, in bytes.
    pub offset: u64,
    /// Stored length, in bytes.
    pub length: u32,
    /// Salt of the table.
    pub salt: u32,
}

impl BlockHandle {
    /// Offset of the first byte after the block.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.length))
    }
}

/// Kind of a block's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockKind {
    Data = 1,
    Index = 2,
    Filter = 3,
    RangeTombstones = 4,
    Properties = 5,
}

impl BlockKind {
    /// Whether blocks of this kind may be compressed; false for those that are larger decoded than stored.
    fn may_be_compressed(self) -> bool {
        matches!(self, BlockKind::Data | BlockKind::Index)
    }
}

/// Returns [`Error::Corrupt`] for the block at `offset` of a table.
#[cold]
pub(super) fn corrupt(offset: u64, what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("table block at {offset}: {what}"))
}

/// Checksum of a block: CRC32C of its contents, kind and compression, XOR the salt, XOR bits of its offset.
fn checksum_of(bytes: &[u8], offset: u64, salt: u32) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32 ^ place_of_checksum(offset, salt)
}

/// Part of a checksum that depends on the table and the place.
pub(super) fn place_of_checksum(offset: u64, salt: u32) -> u32 {
    salt ^ (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

/// Appends blocks to the output of a table.
#[derive(Debug)]
pub(super) struct Sealer {
    compression: Compression,
    salt: u32,
    /// Finished bytes that weren't taken.
    pub(super) output: Vec<u8>,
    /// Number of finished bytes, including taken ones.
    pub(super) offset: u64,
    compressed: Vec<u8>,
}

impl Sealer {
    pub(super) fn new(compression: Compression, salt: u32) -> Self {
        Sealer { compression, salt, output: Vec::new(), offset: 0, compressed: Vec::new() }
    }

    /// Appends a block with these contents; compresses them if that saves an eighth.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than [`MAX_BLOCK_BYTES`].
    pub(super) fn seal(&mut self, kind: BlockKind, contents: &[u8]) -> Result<BlockHandle> {
        if contents.len() > MAX_BLOCK_BYTES {
            let length = contents.len();
            return Err(Error::invalid(format!(
                "table block of {length} bytes; expected at most {MAX_BLOCK_BYTES}"
            )));
        }
        let begin = self.output.len();
        let most = contents.len() - contents.len() / 8;
        let code = match self.compress(kind, contents) {
            Some(length) if 4 + length < most => {
                self.output.extend_from_slice(&(contents.len() as u32).to_le_bytes());
                self.output.extend_from_slice(&self.compressed[..length]);
                Compression::Lz4
            }
            _ => {
                self.output.extend_from_slice(contents);
                Compression::None
            }
        };
        if self.compressed.len() > KEPT_BYTES {
            self.compressed = Vec::new();
        }
        self.output.push((kind as u8) << 4 | code as u8);
        let checksum = checksum_of(&self.output[begin..], self.offset, self.salt);
        self.output.extend_from_slice(&checksum.to_le_bytes());
        let length = self.output.len() - begin;
        let handle = BlockHandle { offset: self.offset, length: length as u32, salt: self.salt };
        self.offset += length as u64;
        Ok(handle)
    }

    /// Compresses `contents`; returns the length of the result, or `None` if the block is to be stored
    /// uncompressed.
    fn compress(&mut self, kind: BlockKind, contents: &[u8]) -> Option<usize> {
        if self.compression == Compression::None || !kind.may_be_compressed() {
            return None;
        }
        let most = get_maximum_output_size(contents.len());
        if self.compressed.len() < most {
            self.compressed.resize(most, 0);
        }
        compress_into(contents, &mut self.compressed).ok()
    }
}

/// Checks a stored block; returns its kind and decompressed contents.
///
/// # Errors
/// [`Error::Corrupt`] for anything that [`Sealer::seal`] doesn't write.
pub(super) fn open(stored: &[u8], handle: BlockHandle) -> Result<(BlockKind, Vec<u8>)> {
    let corrupt = |what: &dyn std::fmt::Display| Err(corrupt(handle.offset, what));
    if stored.len() != handle.length as usize {
        return corrupt(&format_args!("{} bytes; expected {}", stored.len(), handle.length));
    }
    let Some((covered, found)) = stored.split_last_chunk::<4>() else {
        return corrupt(&format_args!("{} bytes; expected at least {TRAILER_BYTES}", stored.len()));
    };
    let (found, expected) = (u32::from_le_bytes(*found), checksum_of(covered, handle.offset, handle.salt));
    if found != expected {
        return corrupt(&format_args!("checksum {found:#010x}; expected {expected:#010x}"));
    }
    let Some((&code, contents)) = covered.split_last() else {
        return corrupt(&format_args!("{} bytes; expected at least {TRAILER_BYTES}", stored.len()));
    };
    let kind = match code >> 4 {
        1 => BlockKind::Data,
        2 => BlockKind::Index,
        3 => BlockKind::Filter,
        4 => BlockKind::RangeTombstones,
        5 => BlockKind::Properties,
        other => return corrupt(&format_args!("kind {other}; expected 1 to 5")),
    };
    match code & 0xF {
        0 if contents.len() <= MAX_BLOCK_BYTES => Ok((kind, contents.to_vec())),
        0 => corrupt(&format_args!("{} bytes; expected at most {MAX_BLOCK_BYTES}", contents.len())),
        1 if kind.may_be_compressed() => match decompress(contents) {
            Ok(contents) => Ok((kind, contents)),
            Err(what) => corrupt(&what),
        },
        other => {
            corrupt(&format_args!("compression {other} of kind {}; expected 0, or 1 of 1 and 2", code >> 4))
        }
    }
}

/// Decodes the length of the contents and LZ4; a failure returns its description.
fn decompress(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let Some((length, compressed)) = bytes.split_first_chunk::<4>() else {
        return Err(format!("{} compressed bytes; expected at least 4", bytes.len()));
    };
    let length = u32::from_le_bytes(*length) as usize;
    let most = MAX_BLOCK_BYTES.min(compressed.len().saturating_mul(MAX_GROWTH));
    if length > most {
        return Err(format!("decompressed length {length}; expected at most {most}"));
    }
    let mut contents = vec![0; length];
    match decompress_into(compressed, &mut contents) {
        Ok(found) if found == length => Ok(contents),
        Ok(found) => Err(format!("{found} decompressed bytes; expected {length}")),
        Err(error) => Err(format!("LZ4: {error}")),
    }
}
