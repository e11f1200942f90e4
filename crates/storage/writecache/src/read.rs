//! Reads: cached blocks from the cache device, checked; discarded ones as zeros; all others from the origin.

use crate::core::Core;
use crate::counters::count;
use crate::index::Found;
use block::extents;
use block::{BlockRange, Buffer, Call, Error, Extent, ExtentState, ReadOutcome, Result};
use smallvec::SmallVec;
use std::rc::Rc;

/// Consecutive blocks from one source.
struct Piece {
    from: Found,
    block: u64,
    count: u64,
    /// Checksums of cached blocks.
    sums: SmallVec<[u32; 4]>,
}

impl Piece {
    fn new(block: u64, from: Found) -> Self {
        let sum = if let Found::At(_, sum) = from { Some(sum) } else { None };
        Piece { from, block, count: 1, sums: SmallVec::from_iter(sum) }
    }

    /// Adds the next block, if it comes from the same source, and follows the last one in the ring where that
    /// is the source.
    fn extend(&mut self, from: Found, is_consecutive: impl FnOnce(u64) -> bool) -> bool {
        match (self.from, from) {
            (Found::At(first, _), Found::At(address, sum))
                if first + self.count == address && is_consecutive(address) =>
            {
                self.sums.push(sum);
            }
            (Found::Zeros, Found::Zeros) | (Found::Origin, Found::Origin) => {}
            _ => return false,
        }
        self.count += 1;
        true
    }
}

/// Number of the first block whose data doesn't have its checksum.
fn first_corrupt(data: &[u8], block_size: usize, sums: &[u32]) -> Option<usize> {
    data.chunks_exact(block_size).zip(sums).position(|(data, sum)| zones::record::sum_of(data) != *sum)
}

impl Core {
    /// Fills the buffer, which isn't empty, from this block on.
    pub fn read_blocks<'a>(self: &'a Rc<Self>, block: u64, buffer: Buffer) -> Call<'a, ReadOutcome> {
        let blocks = self.ring.blocks_in(buffer.len());
        count(&self.counters.read_blocks, blocks);
        let index = self.index.borrow();
        if index.is_empty() || blocks == 1 && index.lookup(block) == Found::Origin {
            return self.read_origin(block, buffer);
        }
        drop(index);
        Call::new(async move {
            // Entered before the look-up, without waiting in between, so that the space isn't reused.
            let _reading = self.readers.enter();
            if blocks == 1 {
                let found = self.index.borrow().lookup(block);
                return self.read_piece(Piece::new(block, found), buffer).await;
            }
            let pieces = self.pieces(block, blocks).into_iter();
            let pieces = pieces.map(|piece| (self.ring.bytes(piece.count), piece));
            runtime::read_pieces(buffer, pieces, |piece, buffer| self.read_piece(piece, buffer)).await
        })
    }

    fn read_origin(&self, block: u64, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.origin.note_use();
        self.origin.device().read(self.origin.block(block), buffer)
    }

    fn pieces(&self, block: u64, blocks: u64) -> Vec<Piece> {
        let index = self.index.borrow();
        // Two consecutive addresses may lie at both ends of the ring.
        let is_consecutive = |address| !self.ring.begins_segment(address);
        let mut pieces: Vec<Piece> = Vec::new();
        for block in block..block + blocks {
            let from = index.lookup(block);
            if !pieces.last_mut().is_some_and(|last| last.extend(from, is_consecutive)) {
                pieces.push(Piece::new(block, from));
            }
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

    /// Reads consecutive blocks of the ring, and checks them.
    async fn read_cached(&self, block: u64, address: u64, sums: &[u32], buffer: Buffer) -> ReadOutcome {
        let _reading = self.readers.enter();
        let (outcome, mut buffer) = self.fast.read(self.ring.place(address), buffer).await;
        if outcome.is_err() {
            return (outcome, buffer);
        }
        let Some(number) = first_corrupt(buffer.filled(), self.ring.bytes(1), sums) else {
            return (Ok(()), buffer);
        };
        buffer.clear();
        let error = Error::corrupt(format!(
            "block {} in the write cache, at address {}: its checksum is wrong",
            block + number as u64,
            address + number as u64
        ));
        (Err(error), buffer)
    }

    /// Returns the state of a range: cached blocks are data, discarded ones holes, and all others as on the
    /// origin.
    pub async fn known_extents(&self, range: BlockRange) -> Result<Vec<Extent>> {
        // The index is examined before the origin: a block that is written back in between is data in both.
        let mut runs = Vec::new();
        {
            let index = self.index.borrow();
            let is_empty = index.is_empty();
            let count = if is_empty { range.count.0 } else { range.count.0.min(MAX_LOOKED_UP) };
            let step = if is_empty { count } else { 1 };
            for block in (range.start.0..range.start.0 + count).step_by(step as usize) {
                let state = match index.lookup(block) {
                    _ if is_empty => None,
                    Found::At(..) => Some(ExtentState::Data),
                    Found::Zeros => Some(ExtentState::Hole),
                    Found::Origin => None,
                };
                extents::add_run(&mut runs, BlockRange::new(block, step), state);
            }
        }
        let origin = async |range: BlockRange| {
            let below = self.origin.range(range.start.0, range.count.0);
            let found = self.origin.device().extents(below).await?;
            Ok(extents::in_blocks(range, below.start.0, self.origin.shift(), &found))
        };
        extents::of_runs(runs, origin).await
    }
}

/// Limit of blocks that are looked up for one answer about extents.
const MAX_LOOKED_UP: u64 = 1 << 18;
