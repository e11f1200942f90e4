//! Contents of the workload's writes: every sector of 512 bytes holds its block, its sector and the number of
//! its write, with a checksum, so that any contents that are found later can be identified.

use block::{BlockRange, BlockSize, Buffer, Data};
use runtime::Random;
use std::fmt::Write;

const SECTOR: usize = 512;
const MAGIC: [u8; 8] = *b"SILTBLCK";

/// Identity of a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    block: u64,
    sequence: u64,
    sector: u32,
}

impl Stamp {
    fn write(self, sector: &mut [u8]) {
        let mut random = Random::new(self.sequence ^ self.block << 40 ^ u64::from(self.sector) << 56);
        random.fill(sector);
        sector[0..8].copy_from_slice(&MAGIC);
        sector[8..16].copy_from_slice(&self.block.to_le_bytes());
        sector[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        sector[24..28].copy_from_slice(&self.sector.to_le_bytes());
        sector[28..32].fill(0);
        let sum = layers::record::format::crc(sector);
        sector[28..32].copy_from_slice(&sum.to_le_bytes());
    }

    fn read(sector: &[u8]) -> Option<Self> {
        let number = |from: usize| Some(u64::from_le_bytes(sector.get(from..from + 8)?.try_into().ok()?));
        let stamp = Stamp { block: number(8)?, sequence: number(16)?, sector: number(24)? as u32 };
        let mut expected = vec![0; sector.len()];
        stamp.write(&mut expected);
        (expected == sector).then_some(stamp)
    }
}

/// Data of write number `sequence` to these blocks.
pub fn stamped(range: BlockRange, sequence: u64, size: BlockSize) -> Data {
    let mut buffer = Buffer::zeroed(size.bytes_of(range.count) as usize);
    let per_block = size.bytes() as usize / SECTOR;
    for (index, sector) in buffer.filled_mut().chunks_mut(SECTOR).enumerate() {
        let block = range.start.0 + (index / per_block) as u64;
        Stamp { block, sequence, sector: (index % per_block) as u32 }.write(sector);
    }
    buffer.freeze()
}

/// Describes these bytes in one line, with equal sectors of a write combined.
pub fn describe(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut last = String::new();
    for sector in bytes.chunks(SECTOR) {
        let words = match Stamp::read(sector) {
            Some(stamp) => format!("write {} to block {}", stamp.sequence, stamp.block),
            None if sector.iter().all(|byte| *byte == 0) => "zeros".to_owned(),
            None => "damaged data".to_owned(),
        };
        if words != last {
            let comma = if text.is_empty() { "" } else { ", then " };
            write!(text, "{comma}{words}").expect("writing to a string can't fail");
            last = words;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_told_apart() {
        let mut data = stamped(BlockRange::new(3, 2), 7, BlockSize::default()).to_vec();
        assert_eq!(describe(&data), "write 7 to block 3, then write 7 to block 4");
        data[512..1024].fill(0);
        data[5000] ^= 1;
        assert_eq!(
            describe(&data[..4608]),
            "write 7 to block 3, then zeros, then write 7 to block 3, then write 7 to block 4"
        );
        assert_eq!(describe(&data[4608..5120]), "damaged data");
    }
}
