//! Compression of pieces: each chunk alone, and an index of the lengths of the stored chunks.
//!
//! # Promises
//! - A chunk is compressed only if that saves an eighth. A piece without such a chunk has the format of
//!   pieces that aren't compressed, and no index.
//! - A stored chunk never becomes longer than its bytes in the zone, whatever it has, and lengths that don't
//!   fit the object are refused. So memory is bounded by what was asked for.
//!
//! Left to others: checksums and seals of chunks and of the index (`format`), indexes in memory
//! (`indexes`).

use crate::chunks::{CHUNK, ChunkRange, PIECE_HEADER, object_length, trailer};
use block::{Data, Error, Result};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// Compression of new objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// LZ4.
    Lz4,
}

/// Names of [`Compression`] in stacks.
pub(crate) const NAMES: [&str; 2] = ["lz4", "none"];

impl Compression {
    /// The compression of a name in [`NAMES`].
    pub(crate) fn from_name(name: &str) -> Compression {
        if name == "lz4" { Compression::Lz4 } else { Compression::None }
    }

    /// The name in stacks.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Compression::Lz4 => "lz4",
            Compression::None => "none",
        }
    }
}

/// Bytes of a piece, and of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub length: u64,
    /// Bytes of the object of a compressed piece; 0 without compression.
    pub compressed: u32,
}

impl Size {
    /// Whether the object has an index.
    pub fn is_compressed(self) -> bool {
        self.compressed > 0
    }

    /// Number of bytes of the object.
    pub fn object(self, is_sealed: bool) -> u64 {
        match self.compressed {
            0 => object_length(self.length, is_sealed),
            compressed => compressed.into(),
        }
    }
}

/// Compresses one chunk at a time, with memory that all of them share.
pub(crate) struct Compressor(RefCell<(CompressTable, Vec<u8>)>);

impl fmt::Debug for Compressor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LZ4")
    }
}

impl Compressor {
    pub fn new() -> Compressor {
        Compressor(RefCell::new((CompressTable::large(), vec![0; get_maximum_output_size(CHUNK)])))
    }

    /// Passes on the bytes as which a chunk is stored: itself, unless compression saves an eighth.
    pub fn compress<R>(&self, chunk: &[u8], take: impl FnOnce(&[u8]) -> R) -> R {
        let (table, output) = &mut *self.0.borrow_mut();
        match compress_into_with_table(chunk, output, table) {
            Ok(length) if length < chunk.len() - chunk.len() / 8 => take(&output[..length]),
            _ => take(chunk),
        }
    }
}

/// Decompresses a stored chunk into all of `chunk`; false, with arbitrary bytes, if it has other ones.
#[must_use]
pub(crate) fn decompress(stored: &[u8], chunk: &mut [u8]) -> bool {
    decompress_into(stored, chunk).is_ok_and(|length| length == chunk.len())
}

/// Lengths of the stored chunks of a compressed piece, without what seals them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Index {
    /// Bytes of the piece.
    length: u64,
    is_sealed: bool,
    /// Each less one.
    stored: Box<[u16]>,
}

/// Number of chunks of a piece of `length` bytes.
fn chunks(length: u64) -> usize {
    length.div_ceil(CHUNK as u64) as usize
}

/// Bytes of the chunk of this number, of a piece of `length` bytes.
pub(crate) fn chunk_length(length: u64, number: usize) -> usize {
    length.saturating_sub((number * CHUNK) as u64).min(CHUNK as u64) as usize
}

/// Bytes of the index of a piece of `length` bytes, with what seals it.
fn index_length(length: u64, is_sealed: bool) -> usize {
    2 * chunks(length) + trailer(is_sealed)
}

/// Bytes before the first chunk of a compressed piece of `length` bytes.
pub(crate) fn head_length(length: u64, is_sealed: bool) -> usize {
    PIECE_HEADER + index_length(length, is_sealed)
}

/// Most bytes from the start of a compressed object that have the wanted bytes of its piece.
pub(crate) fn reach(size: Size, wanted_end: u64, is_sealed: bool) -> usize {
    let end = wanted_end.next_multiple_of(CHUNK as u64).min(size.length);
    let most =
        head_length(size.length, is_sealed) as u64 + object_length(end, is_sealed) - PIECE_HEADER as u64;
    most.min(size.compressed.into()) as usize
}

impl Index {
    /// Index of the chunks of a piece as they are stored; `None` if none of them is compressed.
    pub fn of(length: u64, chunks: &[Data], is_sealed: bool) -> Option<Index> {
        let seal = if is_sealed { trailer(true) } else { 0 };
        let lengths = || chunks.iter().map(|chunk| chunk.len() - seal);
        let is_compressed =
            lengths().enumerate().any(|(number, stored)| stored < chunk_length(length, number));
        let stored = || lengths().map(|stored| stored.saturating_sub(1) as u16).collect();
        is_compressed.then(|| Index { length, is_sealed, stored: stored() })
    }

    /// Bytes of the object.
    pub fn object_length(&self) -> u64 {
        let chunks: u64 = (0..self.stored.len()).map(|number| self.span(number) as u64).sum();
        head_length(self.length, self.is_sealed) as u64 + chunks
    }

    pub fn encode(&self) -> Vec<u8> {
        self.stored.iter().flat_map(|stored| stored.to_le_bytes()).collect()
    }

    /// Decodes the index of a piece.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for lengths that don't fit the chunks or the object.
    pub fn decode(bytes: &[u8], size: Size, is_sealed: bool) -> Result<Index> {
        let stored: Box<[u16]> = bytes.chunks_exact(2).map(|of| u16::from_le_bytes([of[0], of[1]])).collect();
        let index = Index { length: size.length, is_sealed, stored };
        let fits = |number| index.stored(number) <= chunk_length(size.length, number);
        let is_sound = index.stored.len() == chunks(size.length)
            && (0..index.stored.len()).all(fits)
            && index.object_length() == u64::from(size.compressed);
        match is_sound {
            true => Ok(index),
            false => Err(Error::corrupt(format!(
                "its index has lengths of chunks that don't fit {} bytes of data in {} bytes",
                size.length, size.compressed
            ))),
        }
    }

    /// Bytes of memory, about.
    pub fn memory(&self) -> usize {
        size_of::<Index>() + 2 * self.stored.len()
    }

    /// Bytes of a stored chunk.
    fn stored(&self, number: usize) -> usize {
        self.stored.get(number).map_or(0, |stored| usize::from(*stored) + 1)
    }

    /// Bytes of a stored chunk with what seals it, and the bytes that it has in the zone.
    pub fn chunk(&self, number: usize) -> (usize, usize) {
        (self.span(number), chunk_length(self.length, number))
    }

    fn span(&self, number: usize) -> usize {
        self.stored(number) + trailer(self.is_sealed)
    }

    /// Chunks with the bytes `wanted` of the piece, which aren't empty.
    pub fn range(&self, wanted: Range<u64>) -> ChunkRange {
        let (first, end) = (wanted.start as usize / CHUNK, (wanted.end as usize).div_ceil(CHUNK));
        let spans = |range: Range<usize>| range.map(|number| self.span(number)).sum::<usize>();
        let at = head_length(self.length, self.is_sealed) + spans(0..first);
        ChunkRange::new(at as u64, spans(first..end), (first * CHUNK) as u64, wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_compressed_if_that_saves_an_eighth() {
        let compressor = Compressor::new();
        let mut random = runtime::Random::new(1);
        for (noise, is_compressed) in [(0, true), (50, true), (86, true), (90, false), (100, false)] {
            for length in [512, 4096, CHUNK] {
                let mut chunk = vec![7; length];
                random.fill(&mut chunk[..length * noise / 100]);
                let stored = compressor.compress(&chunk, <[u8]>::to_vec);
                // Of short ones the heads of the format are a larger part.
                if length == CHUNK {
                    assert_eq!(stored.len() < length, is_compressed, "{noise} %");
                }
                if stored.len() == length {
                    assert_eq!(stored, chunk);
                    continue;
                }
                let mut found = vec![0; length];
                assert!(decompress(&stored, &mut found) && found == chunk);
                assert!(!decompress(&stored, &mut vec![0; length - 1]), "longer than the chunk");
                assert!(!decompress(&stored, &mut vec![0; length + 1]), "shorter than the chunk");
            }
        }
    }

    /// Prints the throughput: `cargo test --release -p siltstone-objects --lib chunks_are -- --nocapture`.
    #[test]
    fn chunks_are_compressed_one_by_one() {
        let (compressor, mut random, count) = (Compressor::new(), runtime::Random::new(1), 100);
        for (what, noise) in [("bytes that shrink", 16), ("random bytes", 64)] {
            // Runs of 64 bytes, of which the first ones are random.
            let mut chunk = vec![7; CHUNK];
            chunk.chunks_mut(64).for_each(|run| random.fill(&mut run[..noise]));
            let begun = runtime::thread_cpu_time();
            let stored = (0..count).map(|_| compressor.compress(&chunk, <[u8]>::to_vec)).last().unwrap();
            let compressed = runtime::thread_cpu_time();
            let mut found = chunk.clone();
            if stored.len() < CHUNK {
                assert!((0..count).all(|_| decompress(&stored, &mut found)));
            }
            let speed = |time: std::time::Duration| (count * CHUNK) as f64 / time.as_nanos() as f64;
            let (to, from) = (speed(compressed - begun), speed(runtime::thread_cpu_time() - compressed));
            println!(
                "{what}: {} bytes, {to:.2} GB/s, back {from:.2} GB/s of the processor's time",
                stored.len()
            );
            assert_eq!(found, chunk);
        }
    }

    #[test]
    fn indexes_that_do_not_fit_are_refused() {
        let length = 2 * CHUNK as u64 + 1000;
        for is_sealed in [false, true] {
            let seal = if is_sealed { trailer(true) } else { 0 };
            let data = |stored: usize| Data::copy_of(&vec![0; stored + seal]);
            assert_eq!(Index::of(length, &[data(CHUNK), data(CHUNK), data(1000)], is_sealed), None);
            let index = Index::of(length, &[data(5000), data(CHUNK), data(1)], is_sealed).unwrap();
            let sum = head_length(length, is_sealed) + 5001 + CHUNK + 3 * trailer(is_sealed);
            assert_eq!(index.object_length(), sum as u64);
            let size = Size { length, compressed: sum as u32 };
            let bytes = index.encode();
            assert_eq!(Index::decode(&bytes, size, is_sealed).as_ref(), Ok(&index));
            let refused = |bytes: &[u8], size: Size| {
                let error = Index::decode(bytes, size, is_sealed).unwrap_err();
                assert!(matches!(&error, Error::Corrupt(text) if text.contains("don't fit")), "{error}");
            };
            refused(&bytes[2..], size);
            refused(&[&bytes[..], &[0, 0]].concat(), size);
            refused(&bytes, Size { compressed: size.compressed + 1, ..size });
            refused(&bytes, Size { length: length - 1000, ..size });
            // The last chunk longer than its bytes, and the first one so much shorter.
            let moved = |first: u16, last: u16| {
                let middle = &bytes[2..4];
                [&(first - 1).to_le_bytes()[..], middle, &(last - 1).to_le_bytes()].concat()
            };
            assert!(Index::decode(&moved(4001, 1000), size, is_sealed).is_ok());
            refused(&moved(4000, 1001), size);
        }
    }
}
