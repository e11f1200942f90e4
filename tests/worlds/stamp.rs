//! Data of clients of a simulated world: each unit is filled with its number and the version of its write.

use super::model::Version;
use block::{Buffer, Data};

fn stamp(unit: u64, version: Version, bytes: &mut [u8]) {
    for word in bytes.as_chunks_mut::<16>().0 {
        word[..8].copy_from_slice(&(unit ^ 0x5117).to_le_bytes());
        word[8..].copy_from_slice(&version.to_le_bytes());
    }
}

/// Contents of `count` units of `bytes` bytes, beginning with this unit, with this version.
pub fn stamped(bytes: usize, unit: u64, count: u64, version: Version) -> Data {
    let mut buffer = Buffer::zeroed(count as usize * bytes);
    for (bytes, unit) in buffer.filled_mut().chunks_exact_mut(bytes).zip(unit..) {
        stamp(unit, version, bytes);
    }
    buffer.freeze()
}

/// Version of a unit with these bytes.
///
/// # Errors
/// If they are no version of this unit.
pub fn version_of(unit: u64, bytes: &[u8]) -> Result<Version, String> {
    let version = u64::from_le_bytes(std::array::from_fn(|at| bytes[8 + at]));
    let mut expected = vec![0; bytes.len()];
    if version != 0 {
        stamp(unit, version, &mut expected);
    }
    match bytes == expected {
        true => Ok(version),
        false => Err(format!("unit {unit} is torn, damaged, or another unit's: {:?}", &bytes[..16])),
    }
}
