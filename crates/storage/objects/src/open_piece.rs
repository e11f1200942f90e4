//! The open piece of a zone: appended bytes that aren't uploaded yet, in chunks.
//!
//! # Promises
//! - Appended bytes can be read back until their piece is stored. Each is in memory once: a whole chunk as it
//!   will be in the object, compressed and sealed.
//! - A piece keeps the memory of its appends until it is dropped.
//! - The zone with the longest open piece is found without a look at all zones.
//!
//! Left to others: when a piece ends (`core::append`, `core::upload`).

use crate::compression::{Compressor, Index, chunk_length, decompress};
use crate::format::{CHUNK, ChunkSealer};
use block::{Buffer, Data};
use runtime::sync::Permit;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Bytes that are appended one after the other and become a piece.
#[derive(Debug)]
pub(crate) struct OpenPiece {
    /// Offset in the zone.
    pub offset: u64,
    /// Compressed if there is a compressor, and then sealed if there is a sealer.
    chunks: Vec<Data>,
    /// Bytes after the last whole chunk.
    rest: Vec<u8>,
    memory: Vec<Rc<Permit>>,
    compressor: Option<Rc<Compressor>>,
    sealer: Option<ChunkSealer>,
}

/// Bytes of a piece. Its memory is released when it is dropped, and the other pieces that share an append.
#[derive(Debug)]
pub(crate) struct EndedPiece {
    /// Offset in the zone.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Each but the last one has [`CHUNK`] bytes, before it was compressed and sealed.
    pub chunks: Vec<Data>,
    /// Index of the chunks, if some are compressed; sealed as they are.
    pub index: Option<Data>,
    /// Bytes of the object of a compressed piece; 0 without compression.
    pub compressed: u32,
    _memory: Vec<Rc<Permit>>,
    sealer: Option<ChunkSealer>,
}

impl OpenPiece {
    /// Returns an empty one, whose chunks are compressed and sealed as soon as they are whole.
    pub fn new(offset: u64, compressor: Option<Rc<Compressor>>, sealer: Option<ChunkSealer>) -> OpenPiece {
        OpenPiece { offset, chunks: Vec::new(), rest: Vec::new(), memory: Vec::new(), compressor, sealer }
    }

    /// Number of bytes.
    pub fn length(&self) -> u64 {
        (self.chunks.len() * CHUNK + self.rest.len()) as u64
    }

    /// Appends bytes, at most up to `limit` bytes altogether, and returns how many.
    pub fn push(&mut self, bytes: &[u8], limit: u64) -> usize {
        let left = limit.saturating_sub(self.length()) as usize;
        let taken = bytes.len().min(CHUNK - self.rest.len()).min(left);
        self.rest.extend_from_slice(&bytes[..taken]);
        if self.rest.len() == CHUNK {
            self.end_chunk();
        }
        taken
    }

    fn end_chunk(&mut self) {
        let number = self.chunks.len();
        let seal = |bytes: &[u8]| match &self.sealer {
            Some(sealer) => sealer.seal(number, bytes),
            None => Data::copy_of(bytes),
        };
        let chunk = match &self.compressor {
            Some(compressor) => compressor.compress(&self.rest, seal),
            None => seal(&self.rest),
        };
        self.chunks.push(chunk);
        self.rest.clear();
    }

    /// Keeps memory of an append until the piece is stored.
    pub fn keep(&mut self, memory: Rc<Permit>) {
        self.memory.push(memory);
    }

    /// Ends the piece.
    pub fn end(mut self) -> EndedPiece {
        let length = self.length();
        if !self.rest.is_empty() {
            self.end_chunk();
        }
        let OpenPiece { offset, chunks, memory, sealer, .. } = self;
        let (mut index, mut compressed) = (None, 0);
        if let Some(of) = Index::of(length, &chunks, sealer.is_some()) {
            let bytes = of.encode();
            index = Some(sealer.as_ref().map_or_else(|| Data::copy_of(&bytes), |to| to.seal_index(&bytes)));
            compressed = of.object_length() as u32;
        }
        EndedPiece { offset, length, chunks, index, compressed, _memory: memory, sealer }
    }

    /// The bytes from `from` on, at most `length`, relative to the start.
    pub fn slices(&self, from: u64, length: u64) -> Vec<Data> {
        let mut slices = slices(&self.chunks, u64::MAX, self.sealer.as_ref(), from, length);
        let whole = (self.chunks.len() * CHUNK) as u64;
        let (start, end) = (from.max(whole) - whole, (from + length).max(whole) - whole);
        let rest =
            &self.rest[start.min(self.rest.len() as u64) as usize..(end as usize).min(self.rest.len())];
        if !rest.is_empty() {
            slices.push(Data::copy_of(rest));
        }
        slices
    }
}

impl EndedPiece {
    /// As [`OpenPiece::slices`].
    pub fn slices(&self, from: u64, length: u64) -> Vec<Data> {
        slices(&self.chunks, self.length, self.sealer.as_ref(), from, length)
    }
}

/// A chunk of this number, of a piece of `whole` bytes, as it was appended.
fn appended(chunk: &Data, number: usize, whole: u64, sealer: Option<&ChunkSealer>) -> Data {
    let chunk = sealer.map_or_else(|| chunk.clone(), |sealer| sealer.open(number, chunk));
    let length = chunk_length(whole, number);
    if chunk.len() == length {
        return chunk;
    }
    let mut buffer = Buffer::zeroed(length);
    assert!(decompress(&chunk, buffer.filled_mut()), "memory has what was compressed");
    buffer.freeze()
}

/// Bytes of the chunks of a piece of `whole` bytes.
fn slices(chunks: &[Data], whole: u64, sealer: Option<&ChunkSealer>, from: u64, length: u64) -> Vec<Data> {
    let (mut from, mut left) = (from as usize, length as usize);
    let mut slices = Vec::new();
    for (number, chunk) in chunks.iter().enumerate().skip(from / CHUNK) {
        if left == 0 {
            break;
        }
        let chunk = appended(chunk, number, whole, sealer);
        let start = (from % CHUNK).min(chunk.len());
        let end = chunk.len().min(start + left);
        if start < end {
            slices.push(chunk.slice(start..end));
        }
        left -= end - start;
        from = 0;
    }
    slices
}

/// Zones with an open piece, by the power of two of its length: a zone moves only when that changes, so
/// appends cost nothing here, and a long one is found without a look at all zones.
#[derive(Debug)]
pub(crate) struct OpenPieces(Vec<BTreeSet<u32>>);

/// Zones of the longest class that are compared.
const COMPARED: usize = 64;

impl OpenPieces {
    /// Returns none.
    pub fn new() -> OpenPieces {
        OpenPieces(vec![BTreeSet::new(); u64::BITS as usize + 1])
    }

    fn class(length: u64) -> usize {
        (u64::BITS - length.leading_zeros()) as usize
    }

    /// Notes that the open piece of a zone has another length; 0 for none.
    pub fn changed(&mut self, zone: u32, before: u64, now: u64) {
        let (before, now) = (Self::class(before), Self::class(now));
        if before != now {
            self.0[before].remove(&zone);
            if now > 0 {
                self.0[now].insert(zone);
            }
        }
    }

    /// Zones whose open pieces have at least half of the greatest length.
    pub fn longest(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().rev().find(|class| !class.is_empty()).into_iter().flatten().take(COMPARED).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_with_most_bytes_are_found() {
        let mut open_pieces = OpenPieces::new();
        let longest = |open_pieces: &OpenPieces| open_pieces.longest().collect::<Vec<u32>>();
        assert!(longest(&open_pieces).is_empty());
        for (zone, before, now) in [(7, 0, 512), (8, 0, 700), (9, 0, 1500), (9, 1500, 1700), (7, 512, 1024)] {
            open_pieces.changed(zone, before, now);
        }
        assert_eq!(longest(&open_pieces), [7, 9]);
        open_pieces.changed(9, 1700, 0);
        open_pieces.changed(7, 1024, 0);
        assert_eq!(longest(&open_pieces), [8]);
        open_pieces.changed(8, 700, 0);
        assert!(longest(&open_pieces).is_empty());
    }

    #[test]
    fn all_bytes_are_read_where_they_were_appended() {
        let name = crate::names::PieceName { zone: 1, generation: 1, epoch: 1, offset: 0, serial: 0 };
        let key = Rc::new(crate::seal::Sealer::new(&[1; crate::seal::KEY]));
        let test = || async move {
            for compressor in [None, Some(Rc::new(Compressor::new()))] {
                check_reads(compressor.clone(), None);
                check_reads(compressor, Some(ChunkSealer::new([1; 16], name, key.clone())));
            }
        };
        runtime::simulate(runtime::Simulation::new(1), test).unwrap();
    }

    fn check_reads(compressor: Option<Rc<Compressor>>, sealer: Option<ChunkSealer>) {
        let mut random = runtime::Random::new(3);
        let mut bytes = vec![0; 3 * CHUNK + 1000];
        // A chunk that doesn't shrink, others that do, in part or as a whole.
        random.fill(&mut bytes[..CHUNK + 5000]);
        let is_compressed = compressor.is_some();
        let mut piece = OpenPiece::new(0, compressor, sealer);
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + 1 + random.below(2 * CHUNK as u64) as usize);
            at += piece.push(&bytes[at..end], bytes.len() as u64);
        }
        assert_eq!(piece.push(&[1], bytes.len() as u64), 0, "the limit");
        let ranges: Vec<(u64, u64)> = (0..100)
            .map(|_| {
                let from = random.below(bytes.len() as u64);
                (from, random.below(bytes.len() as u64 - from) + 1)
            })
            .collect();
        let check = |read: &dyn Fn(u64, u64) -> Vec<Data>| {
            for (from, length) in &ranges {
                let found: Vec<u8> = read(*from, *length).iter().flat_map(|data| data.to_vec()).collect();
                assert_eq!(found, bytes[*from as usize..(from + length) as usize]);
            }
        };
        check(&|from, length| piece.slices(from, length));
        let ended = piece.end();
        assert_eq!(ended.length, bytes.len() as u64);
        assert_eq!((ended.index.is_some(), ended.compressed > 0), (is_compressed, is_compressed));
        check(&|from, length| ended.slices(from, length));
    }
}
