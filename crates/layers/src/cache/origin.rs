//! What a cache remembers of its origin, so that it isn't used with another one, or with one that was written without it.
//!
//! Nothing can be written to the origin for that. So the cache keeps the origin's size, the name that it has in the stack,
//! and checksums of a few places of it, as they were when the cache was closed. After a close all of them must be the same.
//! After a power cut the origin may have changed anywhere: then only its size tells.

use crate::table::{Medium, OWNER};
use block::{Error, Result};
use logkit::record::sum_of;
use std::fmt::Write;

/// How many places are looked at.
const PLACES: usize = 16;
/// How much of each, in bytes, where the origin's blocks aren't larger.
const LENGTH: u64 = 4096;
/// The flag that says that the sums are those of a close.
const HAS_SUMS: u32 = 1;
const NAME: usize = 200;

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    /// In bytes.
    pub size: u64,
    /// The parts of the cache's blocks, in bytes: what a bit of the table means.
    pub part: u64,
    /// Where the origin's places were looked at.
    pub sums: Option<[u32; PLACES]>,
    pub name: String,
}

impl Origin {
    /// As the superblock keeps it: size, part (8 bytes each), flags, length of the name, sums (4 bytes each), the name.
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

    /// Reads what a superblock keeps.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for what can't be.
    pub fn decode(words: &[u8; OWNER]) -> Result<Self> {
        let wrong = || Error::corrupt("a table whose owner is no cache");
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

    /// Looks at the places of an origin of so many bytes.
    ///
    /// # Errors
    /// Those of the device.
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

    /// Refuses an origin that isn't the one that the cache was used with.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what doesn't fit, and what to do.
    pub async fn check(&self, slow: &Medium, name: &str, was_clean: bool) -> Result<()> {
        let size = slow.geometry().bytes();
        if size < self.size {
            return Err(self.refusal(
                name,
                &format!(
                    "it has {size} bytes, and the cache's own had {}; an origin may grow, never shrink",
                    self.size
                ),
            ));
        }
        let Some(sums) = self.sums.filter(|_| was_clean) else { return Ok(()) };
        match sums == Origin::sums_of(slow, self.size).await? {
            true => Ok(()),
            false => Err(self.refusal(
                name,
                "it is another device, or was written without the cache since that was last closed",
            )),
        }
    }

    fn refusal(&self, name: &str, why: &str) -> Error {
        let mut text = format!("\"{name}\" isn't the origin of this cache");
        if self.name != name {
            let _ = write!(text, ", which belongs to \"{}\"", self.name);
        }
        Error::invalid(format!(
            "{text}: {why}. If nothing in the cache is needed any more, make it anew with --format"
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
