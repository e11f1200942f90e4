//! Reads: what is cached from the cache device, the rest from the origin, what was discarded as zeros.

use super::core::{Core, count};
use super::index::Found;
use block::{BlockRange, Buffer, Call, Extent, ReadOutcome, Result};
use smallvec::SmallVec;
use std::rc::Rc;

/// Consecutive blocks that come from one place.
struct Piece {
    from: Found,
    /// The first block, and how many.
    block: u64,
    count: u64,
    /// The checksums of cached ones.
    sums: SmallVec<[u32; 4]>,
}

impl Core {
    /// Fills the buffer, which isn't empty, from this block on.
    pub fn read<'a>(self: &'a Rc<Self>, block: u64, buffer: Buffer) -> Call<'a, ReadOutcome> {
        let blocks = buffer.len() as u64 >> self.ring.block_size.shift();
        count(&self.counters.read_blocks, blocks);
        let index = self.index.borrow();
        if index.is_empty() || blocks == 1 && index.lookup(block) == Found::Origin {
            return self.read_origin(block, buffer);
        }
        drop(index);
        Call::new(async move {
            // Looked up and counted as a reader without waiting in between, so that it is still there.
            let _reading = self.readers.begin();
            if blocks == 1 {
                let found = self.index.borrow().lookup(block);
                let sums = SmallVec::from_iter(if let Found::At(_, sum) = found { Some(sum) } else { None });
                return self.read_piece(Piece { from: found, block, count: 1, sums }, buffer).await;
            }
            let pieces = self.pieces(block, blocks).into_iter();
            let pieces = pieces.map(|piece| (self.bytes_of(piece.count), piece));
            runtime::read_pieces(buffer, pieces, |piece, buffer| self.read_piece(piece, buffer)).await
        })
    }

    fn read_origin(&self, block: u64, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.note_use_of_origin();
        self.origin.read(self.on_origin(block), buffer)
    }

    fn pieces(&self, block: u64, blocks: u64) -> Vec<Piece> {
        let index = self.index.borrow();
        let mut pieces: Vec<Piece> = Vec::new();
        for block in block..block + blocks {
            let from = index.lookup(block);
            if let Some(last) = pieces.last_mut() {
                let goes_on = match (last.from, from) {
                    (Found::At(first, _), Found::At(address, sum)) if first + last.count == address => {
                        // Two addresses that follow each other may lie at both ends of the ring.
                        let is_behind = self.ring.left(address) != self.ring.segment;
                        if is_behind {
                            last.sums.push(sum);
                        }
                        is_behind
                    }
                    (Found::Zeros, Found::Zeros) | (Found::Origin, Found::Origin) => true,
                    _ => false,
                };
                if goes_on {
                    last.count += 1;
                    continue;
                }
            }
            let sums =
                if let Found::At(_, sum) = from { SmallVec::from_slice(&[sum]) } else { SmallVec::new() };
            pieces.push(Piece { from, block, count: 1, sums });
        }
        pieces
    }

    async fn read_piece(&self, piece: Piece, mut buffer: Buffer) -> ReadOutcome {
        match piece.from {
            Found::Origin => self.read_origin(piece.block, buffer).await,
            Found::Zeros => {
                count(&self.counters.read_hits, piece.count);
                buffer.clear();
                buffer.append_zeroes(buffer.missing());
                (Ok(()), buffer)
            }
            Found::At(address, _) => {
                count(&self.counters.read_hits, piece.count);
                self.read_cached(piece.block, address, &piece.sums, buffer).await
            }
        }
    }

    /// What is known about a range without reading it: what the origin knows, while nothing is cached.
    pub async fn extents(&self, range: BlockRange) -> Result<Vec<Extent>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        if self.origin_shift == 0 && self.index.borrow().is_empty() {
            return self.origin.extents(range).await;
        }
        Ok(vec![Extent { range, state: block::ExtentState::Data }])
    }
}
