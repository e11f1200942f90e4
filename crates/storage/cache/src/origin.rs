//! Identification of the origin, so that a cache is not used with another device, or with an origin that was
//! written without the cache.
//!
//! The cache writes no identification to the origin. Instead the superblock keeps the origin's size, its name
//! in the stack, and checksums of samples of its contents at the last close. After a clean close the samples
//! must be unchanged and the origin not smaller. After a power cut any sample may have changed, so only the
//! size is checked.

use crate::table::{Medium, OWNER};
use block::{Error, Result};
use std::fmt::Write;
use zones::record::sum_of;

/// Number of samples.
const PLACES: usize = 16;
/// Length of a sample in bytes; a block of the origin if that is larger.
const LENGTH: u64 = 4096;
/// Flag for checksums that were taken at a clean close.
const HAS_SUMS: u32 = 1;
/// Largest length of the name, in bytes.
const NAME: usize = 200;

/// Identification of an origin, as the superblock keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Size in bytes.
    pub size: u64,
    /// Size of a part of a cache block in bytes: one bit of an entry of the table.
    pub part: u64,
    /// Checksums of the samples at the last clean close.
    pub sums: Option<[u32; PLACES]>,
    pub name: String,
}

impl Origin {
    /// Encodes for the superblock: size, part (8 bytes each), flags, length of the name, checksums (4 bytes
    /// each), the name.
    pub fn encode(&self) -> [u8; OWNER] {
        let mut words = [0; OWNER];
        words[..8].copy_from_slice(&self.size.to_le_bytes());
        words[8..16].copy_from_slice(&self.part.to_le_bytes());
        let flags = if self.sums.is_some() { HAS_SUMS } else { 0 };
        words[16..20].copy_from_slice(&flags.to_le_bytes());
        let mut length = self.name.len().min(NAME);
        while !self.name.is_char_boundary(length) {
            length -= 1;
        }
        words[20..24].copy_from_slice(&(length as u32).to_le_bytes());
        for (place, sum) in words[24..].chunks_exact_mut(4).zip(self.sums.unwrap_or_default()) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        words[24 + 4 * PLACES..][..length].copy_from_slice(&self.name.as_bytes()[..length]);
        words
    }

    /// Decodes from the superblock.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for fields out of range.
    pub fn decode(words: &[u8; OWNER]) -> Result<Self> {
        let wrong = || Error::corrupt("superblock of the table: its owner's fields are not those of a cache");
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| words[at + index]));
        let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| words[at + index]));
        let (size, part, flags, length) = (long(0), long(8), short(16), short(20) as usize);
        if size == 0 || !part.is_power_of_two() || flags & !HAS_SUMS != 0 || length > NAME {
            return Err(wrong());
        }
        let sums = std::array::from_fn(|number| short(24 + 4 * number));
        let name = std::str::from_utf8(&words[24 + 4 * PLACES..][..length]).map_err(|_| wrong())?;
        Ok(Origin { size, part, sums: (flags & HAS_SUMS != 0).then_some(sums), name: name.to_owned() })
    }

    /// Computes the checksums of the samples of an origin of `size` bytes. A sample of zeros has the
    /// checksum 0.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn sums_of(medium: &Medium, size: u64) -> Result<[u32; PLACES]> {
        let length = LENGTH.max(medium.geometry().block_size.bytes()).min(size);
        let last = size / length - 1;
        let mut sums = [0; PLACES];
        for (number, sum) in sums.iter_mut().enumerate() {
            let place = (u128::from(last) * number as u128 / (PLACES as u128 - 1)) as u64;
            let bytes = medium.bytes(place * length, length).await?;
            *sum = match bytes.filled().iter().all(|byte| *byte == 0) {
                true => 0,
                false => sum_of(bytes.filled()).max(1),
            };
        }
        Ok(sums)
    }

    /// Checks that this is the origin that the cache was used with.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the origin is smaller, or was changed since a clean close.
    pub async fn check(&self, slow: &Medium, name: &str, was_clean: bool) -> Result<()> {
        let size = slow.geometry().bytes();
        if size < self.size {
            return Err(self.refusal(
                name,
                &format!(
                    "its size is {size} bytes; expected at least {}: an origin may grow, never shrink",
                    self.size
                ),
            ));
        }
        let Some(sums) = self.sums.filter(|_| was_clean) else { return Ok(()) };
        match sums == Origin::sums_of(slow, self.size).await? {
            true => Ok(()),
            false => Err(self.refusal(
                name,
                "it is another device, or was written without the cache since the last close",
            )),
        }
    }

    fn refusal(&self, name: &str, why: &str) -> Error {
        let mut text = format!("\"{name}\" isn't the origin of this cache");
        if self.name != name {
            let _ = write!(text, ", which belongs to \"{}\"", self.name);
        }
        Error::invalid(format!(
            "{text}: {why}; if the cache's contents are not needed, create an empty one with --format"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        for sums in [None, Some(std::array::from_fn(|number| number as u32))] {
            let origin = Origin { size: 1 << 40, part: 4096, sums, name: "the slow one".into() };
            assert_eq!(Origin::decode(&origin.encode()).unwrap(), origin);
        }
        assert!(Origin::decode(&[0; OWNER]).is_err());
    }
}
