//! Pieces of the ring in memory: write-back reads the ring in large pieces, in the order of the log.
//!
//! A piece lies in one segment. If a read fails, its blocks are read one by one: unreadable ones are zeros,
//! and their errors are kept.

use crate::ring::Ring;
use block::{Buffer, Data, Device, Error, Result};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Limit to a piece, in blocks.
const LONGEST: u64 = 256;

/// Consecutive blocks of the ring: the address of the first one, and their data.
pub type Piece = (u64, Data);

/// A block in memory: the number of its piece, and the number of the block in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    piece: u32,
    at: u32,
}

impl Slot {
    /// Whether this block lies `distance` blocks after another one, in the same piece.
    pub fn follows(self, first: Slot, distance: u32) -> bool {
        self.piece == first.piece && self.at == first.at + distance
    }
}

/// Pieces of the ring in memory.
pub struct Pieces {
    device: Rc<dyn Device>,
    ring: Ring,
    /// Address before which the ring may be read.
    limit: u64,
    /// Pieces in the order of their addresses.
    pieces: Vec<Piece>,
    /// Last piece of the previous batch, which wasn't used up.
    kept: Option<Piece>,
    /// Errors of unreadable blocks, by address.
    unreadable: BTreeMap<u64, Error>,
}

impl Pieces {
    /// Creates the list with the piece that the previous batch [kept](Self::last_from), if any. Blocks before
    /// the limit may be read.
    pub fn new(device: Rc<dyn Device>, ring: Ring, limit: u64, kept: Option<Piece>) -> Self {
        Pieces { device, ring, limit, pieces: Vec::new(), kept, unreadable: BTreeMap::new() }
    }

    #[inline]
    fn contains(&self, (start, data): &Piece, address: u64) -> bool {
        (*start..start + self.ring.blocks_in(data.len())).contains(&address)
    }

    /// Slot of the block at this address, if it lies in the last piece.
    #[inline]
    pub fn in_memory(&self, address: u64) -> Option<Slot> {
        let last = self.pieces.last().filter(|piece| self.contains(piece, address))?;
        Some(Slot { piece: self.pieces.len() as u32 - 1, at: (address - last.0) as u32 })
    }

    /// Slot of the block at this address, read if it isn't in memory. Calls pass addresses in rising order.
    ///
    /// # Errors
    /// Errors of the cache device; unreadable blocks are no error.
    pub async fn block(&mut self, address: u64) -> Result<Slot> {
        if let Some(slot) = self.in_memory(address) {
            return Ok(slot);
        }
        let piece = match self.kept.take() {
            Some(piece) if self.contains(&piece, address) => piece,
            _ => self.read(address).await?,
        };
        let at = (address - piece.0) as u32;
        self.pieces.push(piece);
        Ok(Slot { piece: self.pieces.len() as u32 - 1, at })
    }

    async fn read(&mut self, address: u64) -> Result<Piece> {
        let blocks = LONGEST.min(self.ring.left(address)).min(self.limit - address);
        let buffer = Buffer::new(self.ring.bytes(blocks));
        let (outcome, buffer) = self.device.read(self.ring.place(address), buffer).await;
        match outcome {
            Ok(()) => Ok((address, buffer.freeze())),
            Err(Error::Io(_)) => Ok((address, self.read_one_by_one(address, blocks).await?)),
            Err(error) => Err(error.in_context("reading the write cache back")),
        }
    }

    async fn read_one_by_one(&mut self, address: u64, blocks: u64) -> Result<Data> {
        let mut all = Buffer::new(self.ring.bytes(blocks));
        for address in address..address + blocks {
            let buffer = Buffer::new(self.ring.bytes(1));
            match self.device.read(self.ring.place(address), buffer).await {
                (Ok(()), buffer) => all.append(buffer.filled()),
                (Err(error @ Error::Io(_)), _) => {
                    self.unreadable.insert(address, error.in_context("reading the write cache back"));
                    all.append_zeroes(self.ring.bytes(1));
                }
                (Err(error), _) => return Err(error.in_context("reading the write cache back")),
            }
        }
        Ok(all.freeze())
    }

    /// The slot of an address that lies in one of the pieces.
    pub fn slot_of(&self, address: u64) -> Slot {
        let piece = self.pieces.partition_point(|(start, _)| *start <= address) - 1;
        Slot { piece: piece as u32, at: (address - self.pieces[piece].0) as u32 }
    }

    /// Bytes of one block.
    pub fn bytes(&self, slot: Slot) -> &[u8] {
        let at = u64::from(slot.at);
        &self.pieces[slot.piece as usize].1[self.ring.bytes(at)..self.ring.bytes(at + 1)]
    }

    /// Data of consecutive blocks of one piece.
    pub fn slice(&self, slot: Slot, count: usize) -> Data {
        let (start, end) = (u64::from(slot.at), u64::from(slot.at) + count as u64);
        self.pieces[slot.piece as usize].1.slice(self.ring.bytes(start)..self.ring.bytes(end))
    }

    /// Error of an unreadable block.
    pub fn error_at(&self, address: u64) -> Option<&Error> {
        self.unreadable.get(&address)
    }

    /// Addresses of unreadable blocks.
    pub fn unreadable(&self) -> impl Iterator<Item = u64> + '_ {
        self.unreadable.keys().copied()
    }

    /// The last piece, if it continues after this address and all of it is readable: the next batch begins
    /// with it.
    pub fn last_from(&self, address: u64) -> Option<Piece> {
        let last = self.pieces.last().filter(|(start, data)| {
            let end = start + self.ring.blocks_in(data.len());
            address < end && self.unreadable.range(*start..end).next().is_none()
        });
        last.cloned()
    }

    /// Releases the memory of all pieces.
    pub fn release(&mut self) {
        self.pieces = Vec::new();
    }
}
