//! Log entries queued for a shard's stream of the log: the changes of an operation, with their data.

use crate::classes::Turn;
use crate::metadata::change::{Change, Changes};
use crate::metadata::extents::Lost;
use block::Payload;
use logkit::{Entry, StreamId};
use runtime::RequestKey;
use runtime::range_lock::RangeGuard;
use runtime::sync::Permit;
use smallvec::SmallVec;

/// Most blocks of a write that is atomic over a power cut.
pub const ATOMIC_BLOCKS: u32 = 16;

/// Source of a log entry, which decides when its changes take effect.
#[derive(Debug)]
pub enum EntrySource {
    /// An operation on names or attributes. It has taken effect and was acknowledged.
    Submitted {
        /// Blocks that die when the record is written.
        lost: Lost,
        /// Encoded changes, which take less memory: thousands of entries may be queued.
        meta: Vec<u8>,
        /// Number of changes.
        count: u32,
        /// Permit that bounds the number of entries in memory.
        _permit: Option<Permit>,
    },
    /// A write. It takes effect when its record is written.
    Write {
        /// Request to complete.
        request: RequestKey,
        /// Blocks of capacity that are reserved for it.
        growth: u32,
        /// Lock on the range of the file that the write changes. It is released when the write has taken
        /// effect, even if the caller has been dropped.
        held: Option<RangeGuard>,
        /// Turn of the write's class, held until its request is completed.
        _turn: Option<Turn>,
    },
    /// An operation on inodes of several shards. It takes effect on each shard when its record commits there.
    Joint {
        /// Request to complete.
        request: RequestKey,
        /// Streams of the other shards.
        joins: SmallVec<[StreamId; 4]>,
    },
    /// This shard's part of a joint operation whose record another shard has written, or a joint operation
    /// whose request was completed with an error.
    Shared,
    /// A move of the cleaner.
    Move,
    /// A write whose request was completed with an error, and which may still take effect.
    Answered {
        /// Lock on a range, as in [`Write`](Self::Write).
        held: Option<RangeGuard>,
    },
}

/// Changes that take effect together, with their data.
#[derive(Debug)]
pub struct FsEntry {
    /// Changes; empty for [`EntrySource::Submitted`].
    pub changes: Changes,
    /// Data of the changes that have blocks.
    pub data: Payload,
    /// Source of the changes.
    pub source: EntrySource,
    /// Number of the operation on its shard; 0 for moves.
    pub ticket: u64,
}

impl Entry for FsEntry {
    #[inline]
    fn blocks(&self) -> u32 {
        self.changes.iter().map(Change::blocks).sum()
    }

    #[inline]
    fn payload(&self) -> &Payload {
        &self.data
    }

    #[inline]
    fn meta_length(&self) -> usize {
        match &self.source {
            EntrySource::Submitted { meta, .. } => meta.len(),
            _ => self.changes.iter().map(Change::length).sum(),
        }
    }

    fn encode_meta(&self, meta: &mut Vec<u8>) {
        match &self.source {
            EntrySource::Submitted { meta: changes, .. } => meta.extend_from_slice(changes),
            _ => self.changes.iter().for_each(|change| change.encode(meta)),
        }
    }

    /// Whether the entry has no data: such an entry is written even if no zone takes data.
    fn only_frees(&self) -> bool {
        self.data.is_empty()
    }

    fn is_moved(&self) -> bool {
        matches!(self.source, EntrySource::Move)
    }

    fn is_atomic(&self) -> bool {
        match self.source {
            EntrySource::Submitted { .. } | EntrySource::Joint { .. } | EntrySource::Shared => true,
            EntrySource::Write { .. } => self.changes.len() > 1 || self.blocks() <= ATOMIC_BLOCKS,
            EntrySource::Move => false,
            EntrySource::Answered { .. } => true,
        }
    }

    fn joins(&self) -> &[StreamId] {
        match &self.source {
            EntrySource::Joint { joins, .. } => joins,
            _ => &[],
        }
    }

    fn is_acknowledged(&self) -> bool {
        matches!(self.source, EntrySource::Submitted { .. })
    }
}

impl FsEntry {
    /// Splits off the first `blocks` blocks of an entry with one change.
    pub fn cut(&mut self, blocks: u32, block_bytes: usize) -> FsEntry {
        let bytes = blocks as usize * block_bytes;
        let first = self.data.slice(0..bytes);
        self.data = self.data.slice(bytes..self.data.len());
        let mut change = self.changes[0].clone();
        match (&mut change, &mut self.changes[0]) {
            (
                Change::Map { block: from, blocks: front, size, .. },
                Change::Map { block, blocks: rest, size: end, .. },
            ) => {
                (*front, *rest) = (blocks, *rest - blocks);
                *block += u64::from(blocks);
                *size = (*block * block_bytes as u64).min(*end);
                debug_assert!(*from < *block);
            }
            (Change::Move { blocks: front, .. }, Change::Move { block, blocks: rest, from, .. }) => {
                (*front, *rest) = (blocks, *rest - blocks);
                *block += u64::from(blocks);
                from.block += blocks;
            }
            (other, _) => unreachable!("{other:?} has no blocks to divide"),
        }
        let source = match &mut self.source {
            // The reserved capacity is returned with the last part.
            EntrySource::Write { request, .. } => {
                EntrySource::Write { request: *request, growth: 0, held: None, _turn: None }
            }
            _ => EntrySource::Move,
        };
        // The operation has committed when its last part has, so the other parts have no number.
        FsEntry { changes: Changes::from_elem(change, 1), data: first, source, ticket: 0 }
    }
}
