//! Decoded blocks.

use super::entries::Entries;
use super::filter::Filter;
use super::stored::{BlockHandle, BlockKind, corrupt, open};
use super::summary::Summary;
use super::{entries, range_tombstones};
use crate::key_version::{RangeTombstone, Value};
use block::{Error, Result};
use std::sync::Arc;

/// A decoded and checked block of a table: the unit of a block cache.
#[derive(Debug)]
pub struct Block {
    offset: u64,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    Data(Entries),
    Index(Entries),
    Filter(Filter),
    RangeTombstones(Arc<[RangeTombstone]>),
    Properties(Box<Summary>),
}

impl Block {
    /// Decodes the stored bytes of a block.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that aren't a block at this place of this table.
    pub fn decode(stored: &[u8], handle: BlockHandle) -> Result<Self> {
        let offset = handle.offset;
        let (kind, bytes) = open(stored, handle)?;
        let contents = match kind {
            BlockKind::Data => Contents::Data(Entries::decode(bytes, offset)?),
            BlockKind::Index => Contents::Index(Entries::decode(bytes, offset)?),
            BlockKind::Filter => Contents::Filter(Filter::decode(&bytes, offset)?),
            BlockKind::RangeTombstones => {
                Contents::RangeTombstones(range_tombstones::decode(&bytes, offset)?.into())
            }
            BlockKind::Properties => {
                let summary =
                    Summary::decode_whole(&bytes).map_err(|error| corrupt(offset, error.detail()))?;
                Contents::Properties(Box::new(summary))
            }
        };
        Ok(Block { offset, contents })
    }

    /// Visits the keys of the block: of its entries, children, or range tombstones.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for inconsistent entries.
    pub fn for_each_key(&self, mut visit: impl FnMut(&[u8])) -> Result<()> {
        match &self.contents {
            Contents::Data(entries) | Contents::Index(entries) => entries.for_each_key(visit),
            Contents::RangeTombstones(ranges) => {
                ranges.iter().flat_map(|range| [&range.from, &range.to]).for_each(|key| visit(key));
                Ok(())
            }
            Contents::Properties(summary) => {
                [&summary.smallest, &summary.largest].into_iter().for_each(|key| visit(key));
                Ok(())
            }
            Contents::Filter(_) => Ok(()),
        }
    }

    /// Memory of the block, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let contents = match &self.contents {
            Contents::Data(entries) | Contents::Index(entries) => entries.memory_bytes(),
            Contents::Filter(filter) => filter.memory_bytes(),
            Contents::RangeTombstones(tombstones) => range_tombstones::memory_bytes(tombstones),
            Contents::Properties(summary) => {
                size_of::<Summary>() + summary.smallest.len() + summary.largest.len()
            }
        };
        size_of::<Self>() + contents
    }

    /// Summary of the table, from the block that the footer refers to.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a block of another kind.
    pub fn summary(&self) -> Result<&Summary> {
        match &self.contents {
            Contents::Properties(summary) => Ok(summary),
            _ => Err(self.other_kind("properties")),
        }
    }

    #[inline]
    pub(super) fn data(&self) -> Result<&Entries> {
        match &self.contents {
            Contents::Data(entries) => Ok(entries),
            _ => Err(self.other_kind("data")),
        }
    }

    #[inline]
    pub(super) fn index(&self) -> Result<&Entries> {
        match &self.contents {
            Contents::Index(entries) => Ok(entries),
            _ => Err(self.other_kind("index")),
        }
    }

    #[inline]
    pub(super) fn filter(&self) -> Result<&Filter> {
        match &self.contents {
            Contents::Filter(filter) => Ok(filter),
            _ => Err(self.other_kind("filter")),
        }
    }

    pub(super) fn range_tombstones(&self) -> Result<&Arc<[RangeTombstone]>> {
        match &self.contents {
            Contents::RangeTombstones(tombstones) => Ok(tombstones),
            _ => Err(self.other_kind("range tombstones")),
        }
    }

    /// Value of an entry of this block; empty if this isn't a data block.
    #[inline]
    pub(super) fn value(&self, body: &entries::Body) -> Value<'_> {
        match &self.contents {
            Contents::Data(entries) => entries.value(body),
            _ => Value::Put { bytes: &[], expires: None },
        }
    }

    #[cold]
    fn other_kind(&self, expected: &str) -> Error {
        let kind = match &self.contents {
            Contents::Data(_) => "data",
            Contents::Index(_) => "index",
            Contents::Filter(_) => "filter",
            Contents::RangeTombstones(_) => "range tombstones",
            Contents::Properties(_) => "properties",
        };
        corrupt(self.offset, format_args!("kind {kind}; expected {expected}"))
    }
}
