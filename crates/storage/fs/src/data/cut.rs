//! Bytes that are removed from a file: the blocks that are unmapped, and those that lose a part.

use crate::format::BLOCK;
use std::ops::Range;

/// Bytes to remove from a file. Blocks that lose a part are rewritten with zeros in this part.
#[derive(Debug, Clone)]
pub(crate) enum Cut {
    /// All bytes from this offset, which becomes the size.
    From(u64),
    /// The bytes of a range.
    Range(Range<u64>),
}

impl Cut {
    /// Blocks that are unmapped.
    pub fn blocks(&self) -> Range<u64> {
        match self {
            Cut::From(size) => size.div_ceil(BLOCK)..u64::MAX,
            Cut::Range(range) => {
                let first = range.start.div_ceil(BLOCK);
                first..(range.end / BLOCK).max(first)
            }
        }
    }

    /// Blocks that change.
    pub fn touched(&self) -> Range<u64> {
        match self {
            Cut::From(size) => size / BLOCK..u64::MAX,
            Cut::Range(range) => range.start / BLOCK..range.end.div_ceil(BLOCK),
        }
    }

    /// Blocks that lose a part, with the range of bytes that become zeros.
    pub fn edges(&self) -> impl Iterator<Item = (u64, Range<usize>)> {
        let within = |range: Range<u64>| {
            let block = range.start / BLOCK;
            (block, (range.start - block * BLOCK) as usize..(range.end - block * BLOCK) as usize)
        };
        let (first, last) = match self {
            Cut::From(size) => (Some(*size..size.div_ceil(BLOCK) * BLOCK), None),
            Cut::Range(range) if range.start / BLOCK == range.end / BLOCK => (Some(range.clone()), None),
            Cut::Range(range) => {
                let head = range.start..range.start.div_ceil(BLOCK) * BLOCK;
                (Some(head), Some(range.end / BLOCK * BLOCK..range.end))
            }
        };
        first.into_iter().chain(last).filter(|range| !range.is_empty()).map(within)
    }

    pub fn size(&self) -> Option<u64> {
        match self {
            Cut::From(size) => Some(*size),
            Cut::Range(_) => None,
        }
    }
}
