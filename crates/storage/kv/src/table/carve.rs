//! Carving: finding blocks in bytes of a table whose index may be lost. Used by the audit of erased cells.
//!
//! A stored block contains neither its start nor its length. Its checksum covers its bytes and its place, so
//! blocks are found by trial: from a known start, the length at which the checksum matches. The next block
//! begins there.

use super::block::Block;
use super::stored::{BlockHandle, TRAILER_BYTES, place_of_checksum};
use super::summary::{FOOTER_BYTES, MAGIC};
use block::Result;

/// Maximum length of blocks that are searched for at each byte if no start is known.
const WINDOW: usize = 24 << 10;

/// Steps of CRC-32C (Castagnoli), a byte at a time.
const STEPS: [u32; 256] = {
    let mut steps = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ 0x82F6_3B78 } else { value >> 1 };
            bit += 1;
        }
        steps[byte] = value;
        byte += 1;
    }
    steps
};

/// Length of the block at the start of `bytes`, which are at `offset` of the table; `None` if there is no
/// block of up to `most` bytes.
fn length_of(bytes: &[u8], offset: u64, salt: u32, most: usize) -> Option<usize> {
    let place = place_of_checksum(offset, salt);
    let mut sum = u32::MAX;
    for (at, byte) in bytes.iter().take(most).enumerate() {
        sum = STEPS[((sum ^ u32::from(*byte)) & 0xFF) as usize] ^ sum >> 8;
        let is_code = (0x10..0x60).contains(byte) && byte & 0xF < 2;
        let found = is_code.then(|| bytes.get(at + 1..)?.first_chunk::<4>()).flatten();
        if found.is_some_and(|found| u32::from_le_bytes(*found) == !sum ^ place) {
            return Some(at + TRAILER_BYTES);
        }
    }
    None
}

/// Visits the blocks in `bytes`, which are at `offset` of a table. Returns the number of bytes outside
/// blocks.
pub fn blocks(bytes: &[u8], offset: u64, salt: u32, mut visit: impl FnMut(Result<Block>)) -> usize {
    let (mut at, mut unknown) = (0, 0);
    let mut is_beginning = true;
    while at < bytes.len() {
        let place = offset + at as u64;
        let most = if is_beginning { usize::MAX } else { WINDOW };
        match length_of(&bytes[at..], place, salt, most) {
            Some(length) => {
                let handle = BlockHandle { offset: place, length: length as u32, salt };
                visit(Block::decode(&bytes[at..at + length], handle));
                at += length;
                is_beginning = true;
            }
            None if bytes[at..].starts_with(MAGIC) => {
                at += FOOTER_BYTES.min(bytes.len() - at);
                is_beginning = true;
            }
            None => {
                at += 1;
                unknown += 1;
                is_beginning = false;
            }
        }
    }
    unknown
}
