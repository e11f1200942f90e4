//! Records that wait for replay, with their changes in a third of the memory of their encoding on the medium.
//!
//! A volume of 1 TiB may have 2^24 blocks of log after its checkpoint, each with an extent of its own.
//! Touching memory for the first time costs as much as reading that memory's contents from the medium (the
//! kernel clears it), so opening the log uses little. A write or an unmapping of the volume itself takes one
//! word, a move two; every other change is kept in its encoded form. Changes aren't validated here:
//! undecodable bytes are also kept, and replay refuses them.

use crate::format::{Change, EXTENT, VersionId};
use crate::map::Physical;
use block::Result;
use logkit::record::{Header, Links, Parsed};
use logkit::scan::Kept;

/// The changes of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// First word of each change: the kind in the lowest bits, then the number of blocks minus one, then the
    /// first block.
    words: Box<[u64]>,
    /// Bytes of the changes that aren't encoded in words, in order.
    others: Box<[u8]>,
}

const KIND_BITS: u32 = 2;
const COUNT_BITS: u32 = 22;
/// A write to the volume itself.
const WRITE: u64 = 0;
/// An unmapping in the volume itself.
const UNMAP: u64 = 1;
/// A move. The next word has the version in its high half and the source block in its low half.
const MOVE: u64 = 2;
/// A number of bytes of `others`, in the bits that hold the first block for the other kinds.
const OTHER: u64 = 3;

fn word(kind: u64, block: u64, count: u32) -> Option<u64> {
    let count = u64::from(count - 1);
    let fits = count >> COUNT_BITS == 0 && block >> (64 - KIND_BITS - COUNT_BITS) == 0;
    fits.then_some(kind | count << KIND_BITS | block << (KIND_BITS + COUNT_BITS))
}

impl Changes {
    /// Encodes the changes of a record with this meta, which is untrusted.
    pub fn new(meta: &[u8]) -> Self {
        let mut words = Vec::with_capacity(meta.len().div_ceil(EXTENT));
        let mut others = Vec::new();
        let mut rest = meta;
        while !rest.is_empty() {
            let before = rest;
            let change = Change::decode(&mut rest);
            let one = match &change {
                Ok(Change::Write { version: VersionId::HEAD, block, count }) => word(WRITE, *block, *count),
                Ok(Change::Unmap { version: VersionId::HEAD, block, count }) => word(UNMAP, *block, *count),
                Ok(Change::Move { block, count, .. }) => word(MOVE, *block, *count),
                _ => None,
            };
            match (one, change) {
                (Some(one), Ok(Change::Move { version, from, .. })) => {
                    words.push(one);
                    words.push(u64::from(version.0) << 32 | u64::from(from.0));
                }
                (Some(one), _) => words.push(one),
                (None, change) => {
                    // Nothing can be decoded after bytes that can't be.
                    let length = if change.is_ok() { before.len() - rest.len() } else { before.len() };
                    rest = &before[length..];
                    others.extend_from_slice(&before[..length]);
                    words.push(OTHER | (length as u64) << (KIND_BITS + COUNT_BITS));
                }
            }
        }
        Changes { words: words.into_boxed_slice(), others: others.into_boxed_slice() }
    }

    /// Returns all changes, up to and including the first that can't be decoded.
    pub fn iter(&self) -> impl Iterator<Item = Result<Change>> + '_ {
        let mut words = self.words.iter();
        let mut others = &*self.others;
        std::iter::from_fn(move || {
            let word = *words.next()?;
            let block = word >> (KIND_BITS + COUNT_BITS);
            let count = (word >> KIND_BITS & ((1 << COUNT_BITS) - 1)) as u32 + 1;
            let version = VersionId::HEAD;
            Some(match word & ((1 << KIND_BITS) - 1) {
                WRITE => Ok(Change::Write { version, block, count }),
                UNMAP => Ok(Change::Unmap { version, block, count }),
                MOVE => {
                    let second = *words.next()?;
                    let (version, from) = (VersionId((second >> 32) as u32), Physical(second as u32));
                    Ok(Change::Move { version, block, count, from })
                }
                _ => {
                    let (mut one, rest) = others.split_at(block as usize);
                    others = rest;
                    Change::decode(&mut one)
                }
            })
        })
    }
}

/// A record that can be replayed: its data is already verified.
#[derive(Debug, Clone)]
pub struct Replayable {
    /// Header of the record.
    pub header: Header,
    /// Links of the record.
    pub links: Links,
    /// Changes of the record.
    pub changes: Changes,
}

impl Kept for Replayable {
    fn new(parsed: &Parsed<'_>) -> Self {
        Replayable { header: parsed.header, links: parsed.links(), changes: Changes::new(parsed.meta) }
    }

    fn header(&self) -> &Header {
        &self.header
    }

    fn links(&self) -> &Links {
        &self.links
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(meta: &[u8]) -> Vec<Result<Change>> {
        Change::decode_each(meta).collect()
    }

    fn kept(meta: &[u8]) -> Vec<Result<Change>> {
        Changes::new(meta).iter().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..Default::default() })]

        /// Extents of any kind, some followed by names, and undecodable bytes in the middle.
        #[test]
        fn what_is_kept_is_what_was_decoded(
            extents in prop::collection::vec((0_u8..8, 0_u32..3, any::<u64>(), 0_u32..40, any::<u32>(), 0_u32..32), 0..20),
            cut in 0_usize..900,
        ) {
            let mut meta = Vec::new();
            for (kind, version, block, shift, other, count) in extents {
                let name = if kind == 4 { 16 } else { 0 };
                meta.extend_from_slice(&[kind, 0, name, 0]);
                meta.extend_from_slice(&version.to_le_bytes());
                meta.extend_from_slice(&(block >> (24 + shift % 40)).to_le_bytes());
                meta.extend_from_slice(&(u32::MAX >> count).to_le_bytes());
                meta.extend_from_slice(&other.to_le_bytes());
                meta.extend_from_slice(&b"sixteen letters!"[..name.into()]);
            }
            prop_assert_eq!(kept(&meta), decoded(&meta));
            meta.truncate(cut);
            prop_assert_eq!(kept(&meta), decoded(&meta));
        }
    }

    #[test]
    fn what_users_write_takes_a_word_and_what_is_moved_two() {
        let version = VersionId::HEAD;
        let last = (1 << 40) - 1;
        let many = [
            Change::Write { version, block: 0, count: 1 },
            Change::Write { version, block: last, count: 1 },
            Change::Unmap { version, block: 7, count: 1 << COUNT_BITS },
            Change::Move { version: VersionId(9), block: last, count: 1, from: Physical(u32::MAX) },
            Change::Unmap { version, block: 7, count: (1 << COUNT_BITS) + 1 },
            Change::Write { version: VersionId(2), block: 1, count: 1 },
        ];
        let mut meta = Vec::new();
        many.iter().for_each(|change| change.encode(&mut meta));
        let changes = Changes::new(&meta);
        assert_eq!(changes.iter().collect::<Result<Vec<_>>>().expect("they are ours"), many);
        assert_eq!((changes.words.len(), changes.others.len()), (7, 2 * EXTENT));
    }
}
