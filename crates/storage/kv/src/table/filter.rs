//! Filters of tables: a key that a filter excludes isn't in the table.
//!
//! A blocked Bloom filter (Putze, Sanders, Singler, "Cache-, Hash- and Space-Efficient Bloom Filters", 2007):
//! all bits of a key are in one line of 64 bytes, so that a probe costs one cache miss.

use super::stored::{MAX_BLOCK_BYTES, corrupt};
use block::Result;

/// Size of a line, in bytes.
const LINE_BYTES: usize = 64;
/// Maximum number of bits that a key sets.
const MAX_PROBES: u8 = 22;
/// Maximum number of filter bits per key.
pub(super) const MAX_BITS: u32 = 32;

/// Hash of a key for filters; a read computes it once for all tables.
///
/// It is part of the format. The shard of a key must depend on other bits: otherwise the filters of a shard
/// would lose these bits.
pub fn key_hash(key: &[u8]) -> u64 {
    let (chunks, rest) = key.as_chunks::<16>();
    let mut state = (key.len() as u64) ^ 0x243F_6A88_85A3_08D3;
    for chunk in chunks {
        state = mix(state, chunk);
    }
    let mut last = [0; 16];
    last[..rest.len()].copy_from_slice(rest);
    let state = mix(state, &last);
    fold(state ^ 0xA409_3822_299F_31D0, 0x9E37_79B9_7F4A_7C15)
}

#[inline]
fn mix(state: u64, chunk: &[u8; 16]) -> u64 {
    let words = u128::from_le_bytes(*chunk);
    fold(words as u64 ^ state, (words >> 64) as u64 ^ 0x1319_8A2E_0370_7344)
}

/// Exclusive or of the halves of a product.
#[inline]
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}

/// Index of a key's line, from the high half of its hash, scaled.
#[inline]
fn line_of(hash: u64, lines: usize) -> usize {
    ((u128::from(hash >> 32) * lines as u128) >> 32) as usize
}

/// Bits of a key in its line, from the low half of its hash.
#[inline]
fn bits_of(hash: u64, probes: u8) -> impl Iterator<Item = usize> {
    let mut state = hash as u32;
    (0..probes).map(move |_| {
        state = state.wrapping_mul(0x9E37_79B9);
        (state >> 23) as usize
    })
}

/// Length in bytes of the block with a filter of `keys` keys, without its trailer.
pub(super) fn encoded_bytes(keys: usize, bits: u32) -> usize {
    match bits {
        0 => 0,
        _ => lines(keys, bits) * LINE_BYTES + 1,
    }
}

fn lines(keys: usize, bits: u32) -> usize {
    keys.saturating_mul(bits as usize).div_ceil(LINE_BYTES * 8).clamp(1, MAX_BLOCK_BYTES / LINE_BYTES - 1)
}

/// Builds the filter of the keys with these hashes.
pub(super) fn encode(hashes: &[u64], bits: u32) -> Vec<u8> {
    let lines = lines(hashes.len(), bits);
    // ln 2 · bits, rounded down: lines that are fuller than average need fewer probes.
    let probes = (bits * 693 / 1000).clamp(1, u32::from(MAX_PROBES)) as u8;
    let mut bytes = vec![0; lines * LINE_BYTES];
    for &hash in hashes {
        let begin = line_of(hash, lines) * LINE_BYTES;
        let line = &mut bytes[begin..begin + LINE_BYTES];
        for bit in bits_of(hash, probes) {
            line[bit / 8] |= 1 << (bit % 8);
        }
    }
    bytes.push(probes);
    bytes
}

/// A cache line of the processor.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line([u64; 8]);

/// A decoded filter.
#[derive(Debug)]
pub(super) struct Filter {
    lines: Vec<Line>,
    probes: u8,
}

impl Filter {
    pub(super) fn decode(bytes: &[u8], offset: u64) -> Result<Self> {
        let (&probes, bytes) = bytes.split_last().ok_or_else(|| corrupt(offset, "filter without bytes"))?;
        if probes == 0 || probes > MAX_PROBES {
            let what = format_args!("filter with {probes} probes; expected 1 to {MAX_PROBES}");
            return Err(corrupt(offset, what));
        }
        let (chunks, rest) = bytes.as_chunks::<LINE_BYTES>();
        if chunks.is_empty() || !rest.is_empty() {
            let what = format_args!("filter of {} bytes; expected a multiple of {LINE_BYTES}", bytes.len());
            return Err(corrupt(offset, what));
        }
        let line = |chunk: &[u8; LINE_BYTES]| {
            let (words, _) = chunk.as_chunks::<8>();
            Line(std::array::from_fn(|index| u64::from_le_bytes(words[index])))
        };
        Ok(Filter { lines: chunks.iter().map(line).collect(), probes })
    }

    /// Whether the table may contain the key with this hash.
    #[inline]
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        let Line(line) = &self.lines[line_of(hash, self.lines.len())];
        bits_of(hash, self.probes).all(|bit| line[bit / 64] >> (bit % 64) & 1 == 1)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected share of false positives: keys per line follow a Poisson distribution (Putze et al., section
    /// 2.2).
    fn expected(bits: u32, probes: u8) -> f64 {
        let mean = 512.0 / f64::from(bits);
        let mut probability = (-mean).exp();
        let mut sum = 0.0;
        for keys in 0..2000 {
            let set = 1.0 - (1.0 - 1.0 / 512.0f64).powi(keys * i32::from(probes));
            sum += probability * set.powi(i32::from(probes));
            probability *= mean / f64::from(keys + 1);
        }
        sum
    }

    #[test]
    fn false_positives_are_as_many_as_the_paper_says() {
        for (bits, keys) in [(4, 20_000u64), (10, 20_000), (16, 20_000), (32, 5_000)] {
            let hash = |key: u64| key_hash(format!("key{key:09}").as_bytes());
            let hashes: Vec<u64> = (0..keys).map(hash).collect();
            let filter = Filter::decode(&encode(&hashes, bits), 0).unwrap();
            assert!(hashes.iter().all(|&hash| filter.may_contain(hash)), "no false negatives");
            let tries = 200_000;
            let found = (keys..keys + tries).filter(|&key| filter.may_contain(hash(key))).count();
            let (found, expected) = (found as f64 / tries as f64, expected(bits, filter.probes));
            // 0.00005 for random deviation where few false positives are expected.
            assert!(found < expected * 1.1 + 0.000_05, "{bits} bits: {found}, expected {expected}");
        }
        assert!(expected(10, 6) < 0.0105, "the default: about one in a hundred");
    }

    #[test]
    fn hashes_differ_with_length_and_each_bit() {
        for length in 0..70 {
            let mut key = vec![0u8; length];
            let first = key_hash(&key);
            assert_ne!(first, key_hash(&vec![0; length + 1]));
            for bit in 0..length * 8 {
                key[bit / 8] ^= 1 << (bit % 8);
                let changed = (key_hash(&key) ^ first).count_ones();
                assert!((10..54).contains(&changed), "bit {bit} of {length} bytes changes {changed} bits");
                key[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn hashes_are_those_of_the_format() {
        let hashes = [0x167B_B8BC_E5B8_FECF, 0x135C_5EF4_3C92_1148, 0xAB24_5935_0BD9_67F2];
        assert_eq!([&b""[..], b"a", b"0123456789abcdefXYZ"].map(key_hash), hashes);
    }

    #[test]
    fn other_lengths_are_refused() {
        for (length, probes) in [(0, 7), (63, 7), (64, 0), (64, 23), (65, 7)] {
            let mut bytes = vec![0; length];
            bytes.push(probes);
            assert!(Filter::decode(&bytes, 0).is_err(), "{length} bytes, {probes} probes");
        }
        assert!(Filter::decode(&[], 0).is_err());
    }
}
