//! Ordered list of disjoint pieces, in chunks of bounded size: a piece is found by binary search, and
//! inserted or removed by moving part of one chunk. Empty chunks are reused, so that nothing is allocated
//! below the largest number of chunks so far.

/// Most pieces of a chunk: moving half of them, the average, touches a few cache lines.
const CHUNK: usize = 64;

/// Neighbouring blocks that the same request asked for last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub start: u64,
    pub end: u64,
    pub number: u32,
}

/// Position of a piece, or the end of the list. Valid until the next change.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    chunk: usize,
    index: usize,
}

/// Ordered list of disjoint pieces.
#[derive(Debug, Default)]
pub struct Pieces {
    /// Chunks in order; none is empty.
    chunks: Vec<Vec<Piece>>,
    /// Empty chunks, kept for their memory.
    spare: Vec<Vec<Piece>>,
}

impl Pieces {
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Position of the first piece that ends after `at`.
    #[inline]
    pub fn seek(&self, at: u64) -> Position {
        let is_before = |pieces: &Vec<Piece>| pieces.last().is_some_and(|last| last.end <= at);
        let chunk = self.chunks.partition_point(is_before);
        let index =
            self.chunks.get(chunk).map_or(0, |pieces| pieces.partition_point(|piece| piece.end <= at));
        Position { chunk, index }
    }

    #[inline]
    pub fn get(&self, position: Position) -> Option<Piece> {
        self.chunks.get(position.chunk)?.get(position.index).copied()
    }

    /// Position of the next piece, or the end.
    pub fn next(&self, position: Position) -> Position {
        match self.chunks.get(position.chunk).is_some_and(|pieces| position.index + 1 < pieces.len()) {
            true => Position { index: position.index + 1, ..position },
            false => Position { chunk: position.chunk + 1, index: 0 },
        }
    }

    /// Inserts a piece before the one at this position, which [`seek`](Self::seek) returned for the start of
    /// the new piece.
    #[inline]
    pub fn insert(&mut self, position: Position, piece: Piece) {
        let Position { mut chunk, mut index } = position;
        if chunk == self.chunks.len() {
            // After all others: at the end of the last chunk.
            match self.chunks.last() {
                Some(last) => (chunk, index) = (chunk - 1, last.len()),
                None => self.add_chunk(0),
            }
        }
        if self.chunks[chunk].len() == CHUNK {
            self.add_chunk(chunk + 1);
            let (low, high) = self.chunks.split_at_mut(chunk + 1);
            high[0].extend(low[chunk].drain(CHUNK / 2..));
            if index > CHUNK / 2 {
                (chunk, index) = (chunk + 1, index - CHUNK / 2);
            }
        }
        self.chunks[chunk].insert(index, piece);
    }

    fn add_chunk(&mut self, at: usize) {
        let chunk = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK));
        self.chunks.insert(at, chunk);
    }

    /// Removes the piece at this position, which must not be the end.
    #[inline]
    pub fn remove(&mut self, position: Position) -> Piece {
        let chunk = &mut self.chunks[position.chunk];
        let piece = chunk.remove(position.index);
        if chunk.is_empty() {
            let chunk = self.chunks.remove(position.chunk);
            self.spare.push(chunk);
        }
        piece
    }
}
