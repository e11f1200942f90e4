//! Contents of the blocks of a verified job, and the record of its writes.
//!
//! The first 40 bytes of a block (the smallest request size of the job) are a magic number, the byte offset
//! of the block, the sequence number of the write, the seed of the job, and a CRC over the whole block. The
//! rest is generated from these. The check detects blocks that are torn, damaged, misplaced, from another
//! job, or older than the last acknowledged write.

use crate::job::Job;
use block::{Error, Result};
use runtime::Random;

const MAGIC: u64 = 0x5349_4c54_5645_5249;
const HEADER: usize = 40;

/// Refuses jobs that can't be verified.
pub(crate) fn check_job(job: &Job) -> Result<()> {
    if job.numjobs > 1 && job.rw.writes() {
        return Err(Error::invalid(format!(
            "job {}: verify with numjobs={}: the clones would overwrite each other's blocks; take numjobs=1, or \
             several jobs with an offset each",
            job.name, job.numjobs
        )));
    }
    let unit = job.smallest_request();
    if unit < HEADER as u64 || job.used_block_sizes().any(|sizes| !sizes.min.is_multiple_of(unit)) {
        return Err(Error::invalid(format!(
            "job {}: verify needs request sizes that are multiples of the smallest one, which is {unit}",
            job.name
        )));
    }
    Ok(())
}

/// Blocks of a job's region, with the expected write of each.
pub struct Ledger {
    seed: u64,
    start: u64,
    unit: u64,
    /// Sequence number of the last write of each block; 0 for unwritten blocks.
    sequences: Vec<u32>,
    last: u32,
}

impl Ledger {
    /// Ledger of a region of `length` bytes at `start`, in blocks of `unit` bytes.
    pub fn new(seed: u64, start: u64, length: u64, unit: u64) -> Ledger {
        Ledger { seed, start, unit, sequences: vec![0; (length / unit) as usize], last: 0 }
    }

    fn blocks(&self, offset: u64, length: u64) -> std::ops::Range<usize> {
        let first = (offset - self.start) / self.unit;
        first as usize..(first + length / self.unit) as usize
    }

    /// Records a write, as if it were acknowledged, and returns its number.
    pub fn begin_write(&mut self, offset: u64, length: u64) -> u32 {
        self.last += 1;
        let blocks = self.blocks(offset, length);
        self.sequences[blocks].fill(self.last);
        self.last
    }

    /// Records a discard: the contents of the blocks are unknown.
    pub fn forget(&mut self, offset: u64, length: u64) {
        let blocks = self.blocks(offset, length);
        self.sequences[blocks].fill(0);
    }

    /// Number of written blocks.
    pub fn written(&self) -> usize {
        self.sequences.iter().filter(|sequence| **sequence > 0).count()
    }

    /// First written block at or after number `from`: its number and its offset in bytes.
    pub fn next_written(&self, from: usize) -> Option<(usize, u64)> {
        let found =
            self.sequences[from.min(self.sequences.len())..].iter().position(|sequence| *sequence > 0)?;
        Some((from + found, self.start + (from + found) as u64 * self.unit))
    }

    /// Fills bytes with the contents of a write with this number at this offset.
    pub fn stamp(&self, bytes: &mut [u8], offset: u64, sequence: u32) {
        for (index, block) in bytes.chunks_exact_mut(self.unit as usize).enumerate() {
            let offset = offset + index as u64 * self.unit;
            Random::new(self.seed ^ offset ^ (u64::from(sequence) << 40)).fill(&mut block[HEADER..]);
            for (field, value) in [MAGIC, offset, u64::from(sequence), self.seed].into_iter().enumerate() {
                block[field * 8..field * 8 + 8].copy_from_slice(&value.to_le_bytes());
            }
            let sum = checksum(block);
            block[32..HEADER].copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// Compares bytes that were read at `offset` with the expected ones. With `all`, blocks that this job
    /// hasn't written are also checked.
    ///
    /// # Errors
    /// Description of the first bad block.
    pub fn check(&self, bytes: &[u8], offset: u64, all: bool) -> std::result::Result<(), String> {
        let expected = &self.sequences[self.blocks(offset, bytes.len() as u64)];
        for (index, block) in bytes.chunks_exact(self.unit as usize).enumerate() {
            if expected[index] > 0 || all {
                self.check_block(block, offset + index as u64 * self.unit, expected[index])?;
            }
        }
        Ok(())
    }

    fn check_block(&self, block: &[u8], offset: u64, expected: u32) -> std::result::Result<(), String> {
        let field = |index: usize| {
            let bytes = block[index * 8..index * 8 + 8].try_into();
            u64::from_le_bytes(bytes.expect("a field has eight bytes"))
        };
        let at = format!("verify: block at byte {offset}");
        if field(0) != MAGIC {
            let zeros = block.iter().all(|byte| *byte == 0);
            return Err(format!("{at}: {}", if zeros { "it is all zeros" } else { "it has no stamp" }));
        }
        if field(4) != checksum(block) {
            return Err(format!("{at}: wrong checksum: torn or damaged"));
        }
        if field(1) != offset {
            return Err(format!("{at}: it belongs at byte {}", field(1)));
        }
        if field(3) != self.seed {
            return Err(format!(
                "{at}: another job wrote it (seed {:#x} and not {:#x})",
                field(3),
                self.seed
            ));
        }
        if expected > 0 && field(2) != u64::from(expected) {
            return Err(format!("{at}: it holds write {} and not {expected}, the last one", field(2)));
        }
        Ok(())
    }
}

/// CRC32C over the block without the checksum's own field, in 64 bits with the length.
fn checksum(block: &[u8]) -> u64 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&block[..32]);
    digest.update(&block[HEADER..]);
    digest.finalize() ^ (block.len() as u64) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_wrong_block_is_found_out() {
        let mut ledger = Ledger::new(7, 8192, 16 * 512, 512);
        let mut bytes = vec![0; 1024];
        let sequence = ledger.begin_write(8192 + 512, 1024);
        ledger.stamp(&mut bytes, 8192 + 512, sequence);
        let error = |ledger: &Ledger, bytes: &[u8], offset| ledger.check(bytes, offset, true).unwrap_err();
        assert_eq!(ledger.check(&bytes, 8192 + 512, true), Ok(()));
        assert!(error(&ledger, &bytes, 8192 + 1024).contains("belongs at byte 8704"));
        let mut torn = bytes.clone();
        torn[900] ^= 1;
        assert!(error(&ledger, &torn, 8192 + 512).contains("block at byte 9216: wrong checksum"));
        assert!(error(&ledger, &[0; 512], 8192).contains("all zeros"));
        assert!(error(&ledger, &[1; 512], 8192).contains("no stamp"));
        assert_eq!(ledger.check(&[1; 512], 8192, false), Ok(()), "it wasn't written");
        let other = Ledger::new(8, 8192, 16 * 512, 512);
        assert!(error(&other, &bytes, 8192 + 512).contains("another job"));
        ledger.begin_write(8192 + 512, 512);
        assert!(error(&ledger, &bytes, 8192 + 512).contains("write 1 and not 2"));
        assert_eq!(ledger.next_written(0), Some((1, 8192 + 512)));
        ledger.forget(8192, 1024);
        assert_eq!((ledger.next_written(0), ledger.written()), (Some((2, 8192 + 1024)), 1));
    }
}
