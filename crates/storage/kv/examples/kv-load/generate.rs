//! Keys and values as `db_bench` generates them.

use crate::arguments::Job;
use runtime::Random;

/// Number of random bytes from which values are cut.
const BYTES: usize = 1 << 20;
/// Number of bytes that are generated together.
const PIECE: usize = 100;

/// Keys 0 to `count` - 1.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    pub count: u64,
}

impl Keys {
    /// Writes the key of a number; bytes after the eighth stay as they are.
    pub fn write(self, number: u64, key: &mut [u8]) {
        debug_assert!(number < self.count);
        key[..8].copy_from_slice(&number.to_be_bytes());
    }
}

/// Generator of values with a given compression ratio.
#[derive(Debug)]
pub struct Values {
    bytes: Vec<u8>,
    at: usize,
    length: usize,
}

impl Values {
    pub fn new(job: &Job, seed: u64) -> Self {
        let mut random = Random::new(seed.wrapping_add(301));
        let length = BYTES.max(job.value_size);
        let mut bytes = Vec::with_capacity(length + PIECE);
        let fresh = ((PIECE as f64 * job.compression_ratio) as usize).clamp(1, PIECE);
        while bytes.len() < length {
            let begin = bytes.len();
            // Printable characters, as in text.
            bytes.extend((0..fresh).map(|_| b' ' + random.below(95) as u8));
            while bytes.len() < begin + PIECE {
                let rest = (PIECE - (bytes.len() - begin)).min(fresh);
                bytes.extend_from_within(begin..begin + rest);
            }
        }
        Values { bytes, at: 0, length: job.value_size }
    }

    /// Returns the next value.
    pub fn next(&mut self) -> &[u8] {
        if self.at + self.length > self.bytes.len() {
            self.at = 0;
        }
        let value = &self.bytes[self.at..self.at + self.length];
        self.at += self.length;
        value
    }
}
