//! Byte ranges of the origin in the messages that warm a cache.

use block::Result;
use eviction::Heat;
use stack::{FromWords, Words};
use std::ops::Range;

/// Byte range of the origin with a heat to set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmRange {
    /// The bytes.
    pub bytes: Range<u64>,
    /// Their heat.
    pub heat: Heat,
}

/// Byte ranges of the origin. A range takes the last heat before it, or [`Heat::PREFETCHED`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmRanges(pub Vec<WarmRange>);

impl FromWords for WarmRanges {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        let (mut heat, mut ranges) = (Heat::PREFETCHED, Vec::new());
        while !words.is_empty() || ranges.is_empty() {
            let expected = "OFFSET+LENGTH in bytes, or a heat such as main/3/12 before them";
            let bytes = words.read(expected, |word| match Heat::parse(word) {
                Some(found) => {
                    heat = found;
                    Some(None)
                }
                None => ByteRange::parse(word).map(Some),
            })?;
            ranges.extend(bytes.map(|bytes| WarmRange { bytes, heat }));
        }
        Ok(WarmRanges(ranges))
    }
}

/// A range of bytes of the origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ByteRange(pub Range<u64>);

impl ByteRange {
    fn parse(word: &str) -> Option<Range<u64>> {
        let (from, length) = word.split_once('+')?;
        let (from, length) = (from.parse::<u64>().ok()?, length.parse::<u64>().ok()?);
        (length > 0).then_some(from..from.checked_add(length)?)
    }
}

impl FromWords for ByteRange {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        words.read("OFFSET+LENGTH in bytes", ByteRange::parse).map(ByteRange)
    }
}
