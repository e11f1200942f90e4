//! Self-describing contents: every sector that the suites write differs from every other one.

use block::{Buffer, Data, Payload};
use runtime::Random;

/// Unit of the comparison of devices, in bytes: writes are atomic at least for it.
pub(crate) const SECTOR: usize = 512;
/// Operation number of zeros.
pub(crate) const ZEROES: u64 = 0;

/// Fills a sector with the contents that operation `operation` of this run writes to sector `sector`.
fn stamp(bytes: &mut [u8], seed: u64, operation: u64, sector: u64) {
    if operation == ZEROES {
        return bytes.fill(0);
    }
    bytes[..8].copy_from_slice(&operation.to_le_bytes());
    bytes[8..16].copy_from_slice(&sector.to_le_bytes());
    let mut word =
        seed ^ operation.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ sector.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    for chunk in bytes[16..].chunks_mut(8) {
        word = (word ^ (word >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9).wrapping_add(1);
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

/// Whether a sector has exactly the contents that this operation writes there.
pub(crate) fn is_stamp(bytes: &[u8], seed: u64, operation: u64, sector: u64) -> bool {
    let mut expected = [0; SECTOR];
    stamp(&mut expected, seed, operation, sector);
    bytes == expected
}

/// Whether each byte of a sector is one that one of these operations writes there.
pub(crate) fn is_mixture(
    bytes: &[u8],
    seed: u64,
    operations: impl Iterator<Item = u64>,
    sector: u64,
) -> bool {
    let stamps: Vec<[u8; SECTOR]> = operations
        .map(|operation| {
            let mut expected = [0; SECTOR];
            stamp(&mut expected, seed, operation, sector);
            expected
        })
        .collect();
    bytes.iter().enumerate().all(|(index, byte)| stamps.iter().any(|stamp| stamp[index] == *byte))
}

/// Describes the contents of a sector for an error message.
pub(crate) fn describe(bytes: &[u8], seed: u64) -> String {
    if bytes.iter().all(|byte| *byte == 0) {
        return "zeros".into();
    }
    let number = |range: std::ops::Range<usize>| {
        bytes[range].try_into().map(u64::from_le_bytes).expect("eight bytes of a sector")
    };
    let (operation, sector) = (number(0..8), number(8..16));
    match is_stamp(bytes, seed, operation, sector) {
        true => format!("what operation {operation} wrote to sector {sector}"),
        false => "bytes that no operation wrote, or a mixture".into(),
    }
}

/// Payload of operation `operation` for consecutive sectors, in slices of random lengths and alignments.
pub(crate) fn sectors_payload(
    random: &mut Random,
    seed: u64,
    operation: u64,
    first: u64,
    count: u64,
) -> Payload {
    let mut bytes = vec![0; count as usize * SECTOR];
    for (index, sector) in bytes.chunks_mut(SECTOR).enumerate() {
        stamp(sector, seed, operation, first + index as u64);
    }
    scattered(random, &bytes)
}

/// The bytes in one to six slices of random lengths and alignments; in a quarter of the cases as one aligned
/// slice.
pub(crate) fn scattered(random: &mut Random, bytes: &[u8]) -> Payload {
    if random.below(4) == 0 || bytes.is_empty() {
        return Data::copy_of(bytes).into();
    }
    let mut cuts: Vec<usize> =
        (0..random.below(6)).map(|_| random.below(bytes.len() as u64) as usize).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|cut| {
            let (piece, before) = (&bytes[cut[0]..cut[1]], random.below(70) as usize);
            let mut buffer = Buffer::new(before + piece.len());
            buffer.append(&vec![0xEE; before]);
            buffer.append(piece);
            buffer.freeze().slice(before..before + piece.len())
        })
        .collect()
}

/// Bytes of append number `id`.
pub(crate) fn append_bytes(seed: u64, id: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Random::new(seed ^ id.wrapping_mul(0x9E37_79B9_7F4A_7C15)).fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_differ_and_survive_scattering() {
        let mut random = Random::new(5);
        for _ in 0..50 {
            let data = sectors_payload(&mut random, 5, 7, 10, 3).to_data();
            let sectors: Vec<&[u8]> = data.chunks(SECTOR).collect();
            assert!(is_stamp(sectors[1], 5, 7, 11) && !is_stamp(sectors[1], 5, 8, 11));
            assert!(!is_stamp(sectors[1], 5, 7, 12) && !is_stamp(sectors[1], 6, 7, 11));
            assert_eq!(describe(sectors[2], 5), "what operation 7 wrote to sector 12");
        }
        assert_eq!(describe(&[0; SECTOR], 5), "zeros");
        assert!(describe(&[3; SECTOR], 5).contains("mixture"));
    }
}
