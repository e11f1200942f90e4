//! Messages of operators to an open cache.

use crate::mode::Mode;
use crate::ranges::{ByteRange, WarmRanges};
use block::Result;
use stack::{FromWords, Words};
use std::ops::Range;

stack::messages! {
    /// A message to a cache.
    Message;
    "mode MODE" => Mode(Mode), "set the mode until the stack is closed: writethrough, writeback or passthrough";
    "migration_threshold SECTORS" => MigrationThreshold(u64),
        "limit data in flight between cache and origin, in sectors of 512 bytes";
    "sequential_threshold BYTES" => SequentialThreshold(u64),
        "bypass the cache with sequential runs of at least this length; 0: never bypass";
    "invalidate FROM-TO…" => Invalidate(Vec<CacheBlocks>), "evict clean blocks by cache block number; TO is exclusive";
    "invalidate_cblocks FROM-TO…" => InvalidateCblocks(Vec<CacheBlocks>), "same as invalidate, under dm-cache's name";
    "detach" => Detach, "write everything back, evict all blocks and promote nothing";
    "cancel" => Cancel, "end or undo a detach";
    "warm list FROM COUNT" => WarmList(u32, u32), "list COUNT slots with their heat, starting at slot FROM, as JSON";
    "warm fetch [HEAT] OFFSET+LENGTH…" => WarmFetch(WarmRanges), "promote ranges of the origin and set their heat";
    "warm heat [HEAT] OFFSET+LENGTH…" => WarmHeat(WarmRanges), "set the heat of cached ranges of the origin";
    "warm evict OFFSET+LENGTH…" => WarmEvict(Vec<ByteRange>), "evict clean blocks of ranges of the origin";
}

/// A range of cache block numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheBlocks(pub Range<u32>);

/// Parses cache block numbers as dm-cache does: `BLOCK`, or `FROM-TO` with an exclusive end.
impl FromWords for CacheBlocks {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        words.read("a cache block number, or FROM-TO with FROM below TO (exclusive)", |word| {
            let number = |word: &str| word.parse::<u32>().ok();
            let found = match word.split_once('-') {
                Some((from, to)) => number(from)?..number(to)?,
                None => number(word)?..number(word)?.checked_add(1)?,
            };
            (!found.is_empty()).then_some(CacheBlocks(found))
        })
    }
}

impl FromWords for Mode {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        words.read(format_args!("one of {}", Mode::NAMES.join(", ")), Mode::from_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KIND;
    use block::Error;
    use stack::Message as _;

    #[test]
    fn messages_are_read() {
        assert_eq!(Message::parse(&KIND, "mode writeback").unwrap(), Message::Mode(Mode::Writeback));
        assert_eq!(
            Message::parse(&KIND, "invalidate 3 5-9").unwrap(),
            Message::Invalidate(vec![CacheBlocks(3..4), CacheBlocks(5..9)])
        );
        for wrong in ["mode fast", "invalidate 9-5", "invalidate x", "migration_threshold -1"] {
            assert!(matches!(Message::parse(&KIND, wrong), Err(Error::Invalid(_))), "{wrong}");
        }
    }
}
