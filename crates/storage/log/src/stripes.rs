//! Division of a volume's blocks among the home shards of a log.
//!
//! The volume is divided into stripes of equal length; stripe `i` belongs to shard `i` modulo the number of
//! shards. Every entry of a record is within one stripe, so each block has one shard that numbers its
//! changes. A log with one shard has one stripe.

use block::{Error, Result};
use logkit::StreamId;
use logkit::record::MAX_LINKS;
use std::ops::Range;

/// Largest number of shards of a log. A snapshot is a record of all shards, with a link to each but one.
pub const MAX_SHARDS: u32 = MAX_LINKS as u32;
/// Default length of a stripe in blocks: a page of the map (4 MiB), so a page has changes of one shard.
pub const STRIPE_BLOCKS: u32 = 1024;

/// Division of the blocks of a volume among shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stripes {
    shards: u32,
    /// Binary logarithm of the number of blocks of a stripe.
    shift: u32,
}

impl Stripes {
    /// All blocks belong to one shard.
    pub const ONE: Stripes = Stripes { shards: 1, shift: 31 };

    /// Divides volumes among `shards` shards in stripes of `blocks` blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no shard or too many, or a length that isn't a power of two.
    pub fn new(shards: u32, blocks: u32) -> Result<Self> {
        if shards == 0 || shards > MAX_SHARDS || !blocks.is_power_of_two() {
            return Err(Error::invalid(format!(
                "{shards} shards with stripes of {blocks} blocks: expected 1 to {MAX_SHARDS} shards, and a power of two"
            )));
        }
        match shards {
            1 => Ok(Stripes::ONE),
            _ => Ok(Stripes { shards, shift: blocks.trailing_zeros() }),
        }
    }

    /// Number of shards and of blocks of a stripe, as a root names them; `None` for one shard.
    pub fn in_root(self) -> Option<(u32, u32)> {
        (self.shards > 1).then_some((self.shards, 1 << self.shift))
    }

    /// Number of shards.
    #[inline]
    pub fn shards(self) -> u32 {
        self.shards
    }

    /// Number of streams: each shard has one of users' writes and one of the cleaner's moves.
    pub fn streams(self) -> usize {
        2 * self.shards as usize
    }

    /// Whether every page of `blocks` blocks, a power of two, belongs to one shard as a whole.
    pub fn has_whole_pages(self, blocks: u64) -> bool {
        1 << self.shift >= blocks
    }

    /// Shard that has a block.
    #[inline]
    pub fn shard_of(self, block: u64) -> u32 {
        match self.shards {
            1 => 0,
            // Volumes have fewer than 2^32 blocks.
            shards => ((block >> self.shift) as u32) % shards,
        }
    }

    /// Number of a block among the blocks of its shard.
    #[inline]
    pub fn local(self, block: u64) -> u64 {
        match self.shards {
            1 => block,
            shards => {
                let stripe = u64::from((block >> self.shift) as u32 / shards);
                (stripe << self.shift) | (block & ((1 << self.shift) - 1))
            }
        }
    }

    /// Number of blocks of a volume of `blocks` blocks that a shard has.
    pub fn blocks_of(self, shard: u32, blocks: u64) -> u64 {
        let round = u64::from(self.shards) << self.shift;
        let rest = (blocks % round).saturating_sub(u64::from(shard) << self.shift);
        ((blocks / round) << self.shift) + rest.min(1 << self.shift)
    }

    /// First block after the stripe of a block.
    #[inline]
    pub fn end_of_stripe(self, block: u64) -> u64 {
        match self.shards {
            1 => u64::MAX,
            _ => ((block >> self.shift) + 1) << self.shift,
        }
    }

    /// Divides a range into runs of blocks of one stripe, in order.
    pub fn runs(self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let run = at..range.end.min(self.end_of_stripe(at));
            at = run.end;
            (!run.is_empty()).then_some(run)
        })
    }
}

/// Stream of the writes that users send to a shard.
pub fn user_stream(shard: u32) -> StreamId {
    StreamId(2 * shard as u16)
}

/// Stream of a shard's blocks that the cleaner moves.
pub fn cleaner_stream(shard: u32) -> StreamId {
    StreamId(2 * shard as u16 + 1)
}

/// Streams of users of all shards but the first one.
static JOINED: [StreamId; MAX_LINKS] = {
    let mut streams = [StreamId(0); MAX_LINKS];
    let mut at = 0;
    while at < MAX_LINKS {
        streams[at] = StreamId(2 * (at as u16 + 1));
        at += 1;
    }
    streams
};

/// Streams of users of `others` shards, beginning with the second one.
pub fn joined(others: u8) -> &'static [StreamId] {
    &JOINED[..usize::from(others)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_one_shard_and_one_number_there() {
        for (shards, blocks) in [(1, 8), (2, 8), (3, 4), (7, 1), (16, 1024)] {
            let stripes = Stripes::new(shards, blocks).expect("a division");
            for volume in [1, 7, 8, 9, 100, 5000] {
                let mut seen: Vec<Vec<u64>> = (0..shards).map(|_| Vec::new()).collect();
                (0..volume)
                    .for_each(|block| seen[stripes.shard_of(block) as usize].push(stripes.local(block)));
                for (shard, seen) in (0..).zip(&seen) {
                    let expected: Vec<u64> = (0..stripes.blocks_of(shard, volume)).collect();
                    assert_eq!(*seen, expected, "{stripes:?}, {volume} blocks, shard {shard}");
                }
            }
        }
    }

    #[test]
    fn runs_cover_a_range_and_stay_in_a_stripe() {
        let stripes = Stripes::new(3, 8).expect("a division");
        for (start, end) in [(0, 0), (3, 5), (7, 9), (0, 64), (13, 51)] {
            let runs: Vec<Range<u64>> = stripes.runs(start..end).collect();
            assert_eq!(
                runs.iter().flat_map(Clone::clone).collect::<Vec<_>>(),
                (start..end).collect::<Vec<_>>()
            );
            assert!(runs.iter().all(|run| run.start / 8 == (run.end - 1) / 8));
        }
        assert!(Stripes::ONE.runs(5..5000).eq(std::iter::once(5..5000)));
    }

    #[test]
    fn a_division_that_no_log_has_is_refused() {
        for (shards, blocks) in [(0, 8), (17, 8), (2, 7), (2, 0)] {
            assert!(Stripes::new(shards, blocks).is_err(), "{shards} shards, {blocks} blocks");
        }
        assert_eq!(Stripes::new(7, 256).map(Stripes::in_root), Ok(Some((7, 256))));
        assert_eq!(Stripes::new(1, 256), Ok(Stripes::ONE));
        assert_eq!(Stripes::ONE.in_root(), None);
        assert_eq!(joined(2), [StreamId(2), StreamId(4)]);
    }
}
