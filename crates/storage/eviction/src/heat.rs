//! Heat of a block in the policy, as text for messages of operators and as bits for a table on a medium.
//!
//! Heat consists of the queue, the number of hits since the block was last considered for eviction, and the
//! age of the last hit. Queue and hits give a *level* from 1 to 7: a block may displace blocks of lower
//! levels. The age orders blocks of one level only. It is rounded to powers of two, so that blocks that are
//! neighbours on the disk often have the same heat.

use crate::queues::Queue;
use crate::{MAX_HITS, PROMOTION_HITS};
use std::fmt;

/// Heat of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heat {
    /// Whether the block is in the main queue rather than in the small one.
    pub is_main: bool,
    /// Number of hits since the block was last considered for eviction, at most three.
    pub hits: u8,
    /// Binary logarithm of the number of requests since the last one for the block: 0 for none, n for 2^(n-1)
    /// to 2^n - 1.
    pub age: u8,
}

impl Heat {
    /// Heat of a prefetched block: above blocks with a single request, below all blocks of the main queue.
    pub const PREFETCHED: Heat = Heat { is_main: false, hits: 1, age: 0 };
    /// Largest age: request numbers have 32 bits.
    const OLDEST: u8 = 32;

    /// Creates the heat of a slot from its queue, hits, and number of requests since its last one.
    pub(crate) fn new(queue: Queue, hits: u8, requests_ago: u32) -> Self {
        let age = (u32::BITS - requests_ago.leading_zeros()) as u8;
        Heat { is_main: queue == Queue::Main, hits, age }
    }

    /// Returns the queue.
    pub(crate) fn queue(self) -> Queue {
        if self.is_main { Queue::Main } else { Queue::Small }
    }

    /// Returns the least number of requests since the last one for the block.
    pub(crate) fn requests_ago(self) -> u32 {
        match self.age {
            0 => 0,
            age => 1 << (age - 1),
        }
    }

    /// Returns the level, from 1 for a block with a single request to 7; lower levels are evicted first. A
    /// block of the small queue with enough hits moves to the end of the main queue, so its level is above
    /// that of main blocks without hits.
    pub fn level(self) -> u8 {
        match (self.is_main, self.hits) {
            (false, hits) if hits >= PROMOTION_HITS => 4,
            (false, hits) => 1 + hits,
            (true, 0) => 3,
            (true, hits) => 4 + hits,
        }
    }

    /// Encodes as nine bits for the table: age, hits, main queue. Zero is unknown heat.
    pub fn bits(self) -> u64 {
        u64::from(self.age) | u64::from(self.hits) << 6 | u64::from(self.is_main) << 8
    }

    /// Decodes the bits; `None` if a field is out of range.
    pub fn from_bits(bits: u64) -> Option<Self> {
        let (age, hits) = ((bits & 0x3F) as u8, (bits >> 6 & 3) as u8);
        let heat = Heat { is_main: bits >> 8 == 1, hits, age };
        (age <= Heat::OLDEST && bits >> 9 == 0).then_some(heat)
    }

    /// Parses text such as `main/3/12`; `None` if it isn't a heat.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split('/');
        let is_main = match words.next()? {
            "main" => true,
            "small" => false,
            _ => return None,
        };
        let mut number = |most: u8| {
            let word = words.next()?;
            let is_plain = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
            word.parse::<u8>().ok().filter(|number| is_plain && *number <= most)
        };
        let (hits, age) = (number(MAX_HITS)?, number(Heat::OLDEST)?);
        words.next().is_none().then_some(Heat { is_main, hits, age })
    }
}

/// Formats as `main/3/12`: queue, hits, age.
impl fmt::Display for Heat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = if self.is_main { "main" } else { "small" };
        write!(formatter, "{queue}/{}/{}", self.hits, self.age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for is_main in [true, false] {
            for hits in 0..=MAX_HITS {
                for age in 0..=Heat::OLDEST {
                    let heat = Heat { is_main, hits, age };
                    assert_eq!(Heat::parse(&heat.to_string()), Some(heat));
                    let again = Heat::new(heat.queue(), hits, heat.requests_ago());
                    assert_eq!(again, heat, "it is what it was after a save and a load");
                    assert_eq!(Heat::from_bits(heat.bits()), Some(heat));
                }
            }
        }
        for wrong in
            ["", "main", "main/1", "main/4/0", "main/1/33", "main/+1/0", "main/1/0/0", "big/1/1", "main//1"]
        {
            assert_eq!(Heat::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Heat::new(Queue::Small, 0, u32::MAX).age, Heat::OLDEST);
        assert_eq!(Heat::parse("small/0/0").unwrap().bits(), 0, "as a table without heat has it");
        assert_eq!([Heat::from_bits(33), Heat::from_bits(1 << 9), Heat::from_bits(u64::MAX)], [None; 3]);
    }

    #[test]
    fn levels() {
        let level = |text: &str| Heat::parse(text).unwrap().level();
        let rising = ["small/0/0", "small/1/0", "main/0/0", "small/2/0", "main/1/0", "main/2/0", "main/3/0"];
        assert_eq!(rising.map(level), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(level("small/3/0"), 4);
    }
}
