//! Disjoint pieces of a range in order, in chunks of bounded size: found by binary search, inserted and removed by moving part of one
//! chunk. Chunks that become empty are used again, so that nothing is allocated once there have been as many.

/// Pieces per chunk at most. What is moved fits a few cache lines on average.
const CHUNK: usize = 64;

/// Blocks of which one request was the last to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub start: u64,
    pub end: u64,
    pub number: u32,
}

/// Place of a piece, or behind the last one. Valid until the next change.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    chunk: usize,
    index: usize,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Pieces {
    /// None of them is empty.
    chunks: Vec<Vec<Piece>>,
    /// Empty chunks with their memory.
    spare: Vec<Vec<Piece>>,
}

impl Pieces {
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The first piece that ends behind `at`.
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

    /// The next position in order.
    pub fn next(&self, position: Position) -> Position {
        match self.chunks.get(position.chunk).is_some_and(|pieces| position.index + 1 < pieces.len()) {
            true => Position { index: position.index + 1, ..position },
            false => Position { chunk: position.chunk + 1, index: 0 },
        }
    }

    /// Inserts a piece before the one at this position, which [`seek`](Self::seek) gave for its start.
    #[inline]
    pub fn insert(&mut self, position: Position, piece: Piece) {
        let Position { mut chunk, mut index } = position;
        if chunk == self.chunks.len() {
            // Behind all others: at the end of the last chunk.
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

    /// Removes the piece at this position, where there is one.
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
