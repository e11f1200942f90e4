//! Places of a piece's chunks in its object: a header, and after each chunk a checksum, or with keys a seal.
//!
//! # Promises
//! - A range of chunks is inside its object, and has at most two chunks more than the wanted bytes.
//!
//! Left to others: compressed pieces (`compression`), and the bytes of headers and checksums (`format`).

use crate::seal::{NONCE, TAG};
use std::ops::Range;

/// Bytes of a piece that one checksum covers.
pub(crate) const CHUNK: usize = 64 << 10;
/// Bytes of a checksum, after each chunk.
pub(crate) const CHECKSUM: usize = 4;
/// Bytes before the first chunk of a piece.
pub(crate) const PIECE_HEADER: usize = 64;
/// Bytes after sealed ones.
pub(crate) const SEAL: usize = NONCE + TAG;

/// Bytes after each chunk of a piece.
pub(crate) fn trailer(is_sealed: bool) -> usize {
    if is_sealed { SEAL } else { CHECKSUM }
}

/// Number of bytes of the object of a piece of `length` bytes.
pub(crate) fn object_length(length: u64, is_sealed: bool) -> u64 {
    PIECE_HEADER as u64 + length + trailer(is_sealed) as u64 * length.div_ceil(CHUNK as u64)
}

/// Range of whole chunks of a piece that has some wanted bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkRange {
    /// Offset in the object, and number of bytes there.
    pub at: u64,
    pub bytes: usize,
    /// Offset of the first chunk in the piece.
    pub first: u64,
    /// Wanted bytes, relative to the first chunk.
    pub wanted: Range<usize>,
}

impl ChunkRange {
    /// Returns these bytes of an object, whose first chunk begins at byte `first` of the piece.
    pub fn new(at: u64, bytes: usize, first: u64, wanted: Range<u64>) -> ChunkRange {
        let wanted = (wanted.start - first) as usize..(wanted.end - first) as usize;
        ChunkRange { at, bytes, first, wanted }
    }
}

/// Chunks of a piece of `length` bytes, without compression, with the bytes `wanted` of it, which aren't
/// empty.
pub(crate) fn chunk_range(length: u64, wanted: Range<u64>, is_sealed: bool) -> ChunkRange {
    let chunk = CHUNK as u64;
    let first = wanted.start / chunk * chunk;
    let end = wanted.end.next_multiple_of(chunk).min(length);
    let trailer = trailer(is_sealed) as u64;
    let at = |offset: u64| PIECE_HEADER as u64 + offset + trailer * offset.div_ceil(chunk);
    ChunkRange::new(at(first), (at(end) - at(first)) as usize, first, wanted)
}
