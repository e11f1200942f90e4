//! Numbered writes to an export, of which every prefix is distinguishable: the blocks that are left of a
//! seed's writes say how many of them there were.
//!
//! A client in the guest makes them, one at a time; a test on the host, which knows the seed, reads what is
//! left. Write `n` goes to a random block and stamps all of it. After a cut, a volume that keeps order holds
//! the result of the writes 1 to `n`, for some `n`.

use crate::foreign::{Command, RawClient};
use std::io::{Error, Result};
use std::path::Path;

/// Number of blocks that are written to.
pub const BLOCKS: u64 = 256;
/// Size of a block in bytes.
pub const BLOCK: usize = 4096;

fn block_of(seed: u64, number: u64) -> u64 {
    runtime::Random::new(seed << 32 ^ number).below(BLOCKS)
}

fn stamped(block: u64, number: u64) -> Vec<u8> {
    [block, number].map(u64::to_le_bytes).concat().repeat(BLOCK / 16)
}

/// Makes the writes with these numbers, flushes after each multiple of `flush_every`, and reports the last
/// flushed number.
///
/// # Errors
/// Errors of the connection, or an error number from the server.
pub fn write(
    socket: &Path,
    seed: u64,
    numbers: std::ops::Range<u64>,
    flush_every: u64,
    mut flushed: impl FnMut(u64),
) -> Result<()> {
    let mut client = RawClient::open(socket)?;
    let answered = |error: u32, what: &str| match error {
        0 => Ok(()),
        number => Err(Error::other(format!("{what} was answered with error {number}"))),
    };
    for number in numbers {
        let block = block_of(seed, number);
        let data = stamped(block, number);
        answered(client.call(Command::Write, block * BLOCK as u64, BLOCK as u32, &data)?, "a write")?;
        if number.is_multiple_of(flush_every) {
            answered(client.call(Command::Flush, 0, 0, &[])?, "a flush")?;
            flushed(number);
        }
    }
    Ok(())
}

/// Reads these blocks of an export.
///
/// # Errors
/// Errors of the connection.
pub fn read(socket: &Path) -> Result<Vec<u8>> {
    let mut client = RawClient::open(socket)?;
    let mut all = Vec::new();
    for block in 0..BLOCKS {
        all.extend(client.read(block * BLOCK as u64, BLOCK as u32)?);
    }
    Ok(all)
}

/// Number of the seed's writes, counted from the first, whose result is exactly this.
///
/// # Errors
/// The result of no prefix; the text says where it differs.
pub fn count(seed: u64, found: &[u8]) -> std::result::Result<u64, String> {
    let blocks = found.chunks(BLOCK).map(|block| {
        let number = block[8..16].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        (number, block)
    });
    let last = blocks.clone().map(|(number, _)| number).max().unwrap_or(0);
    // A test can't have made more writes: such a number isn't a stamp.
    if found.len() as u64 != BLOCKS * BLOCK as u64 || last > 1 << 20 {
        return Err(format!("{} bytes, of which one block says that it is write {last}", found.len()));
    }
    let mut expected = vec![0; BLOCKS as usize];
    (1..=last).for_each(|number| expected[block_of(seed, number) as usize] = number);
    for (block, (number, bytes)) in blocks.enumerate() {
        let wanted = expected[block];
        let is_right = match wanted {
            0 => bytes.iter().all(|byte| *byte == 0),
            wanted => bytes == stamped(block as u64, wanted),
        };
        if !is_right {
            return Err(format!(
                "write {last} is there, so block {block} should hold write {wanted}; it says {number}: {:?}",
                &bytes[..32]
            ));
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_by(numbers: impl Iterator<Item = u64>) -> Vec<u8> {
        let mut bytes = vec![0; BLOCKS as usize * BLOCK];
        for number in numbers {
            let block = block_of(7, number);
            bytes[block as usize * BLOCK..][..BLOCK].copy_from_slice(&stamped(block, number));
        }
        bytes
    }

    #[test]
    fn only_prefixes_are_counted() {
        for last in [0, 1, 2, 700] {
            assert_eq!(count(7, &left_by(1..=last)), Ok(last));
        }
        let without = |lost: u64| count(7, &left_by((1..=700).filter(|number| *number != lost)));
        // A lost write can't be noticed if a later one went to the same block.
        let lost = (1..=700).filter(|lost| without(*lost).is_err()).count() as u64;
        assert!(lost > BLOCKS / 2, "{lost} of the lost writes were found");
        assert!(without(640).is_err(), "{:?}", without(640));
        let mut torn = left_by(1..=700);
        torn[block_of(7, 700) as usize * BLOCK + 512..][..512].fill(0);
        assert!(count(7, &torn).is_err());
        assert!(count(8, &left_by(1..=700)).is_err(), "another seed's writes");
        assert!(count(7, &[]).is_err());
    }
}
