//! Profiles: parameters of emulated drives, from TOML. The head of `profiles.toml` describes them.

use block::{Error, Result};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use std::collections::BTreeMap;

/// Built-in profiles.
const KNOWN: &str = include_str!("profiles.toml");
/// Limit of the dies of a drive.
const MAX_DIES: u32 = 4096;

/// Effect of a finish on the rest of the zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The rest of the zone is programmed.
    Pad,
    /// The rest of the zone remains erased.
    Close,
}

/// Parameters of a drive. Times in nanoseconds, sizes in bytes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Description.
    pub title: String,
    /// Sources of the figures.
    pub sources: Vec<String>,
    /// Bits of a cell.
    pub cell_bits: u32,
    /// Number of channels.
    pub channels: u32,
    /// Dies on each channel.
    pub dies_per_channel: u32,
    /// Dies of a zone; `None`: all.
    pub dies_per_zone: Option<u32>,
    /// Bytes of a page.
    #[serde(deserialize_with = "size")]
    pub page: u64,
    /// Bytes that a die programs at a time.
    #[serde(deserialize_with = "size")]
    pub program_unit: u64,
    /// Read of a page.
    #[serde(deserialize_with = "time")]
    pub read: u64,
    /// Read of at most 4 KiB of a page.
    #[serde(deserialize_with = "time")]
    pub read_4k: u64,
    /// Program of a unit.
    #[serde(deserialize_with = "time")]
    pub program: u64,
    /// Erase of a block.
    #[serde(deserialize_with = "time")]
    pub erase: u64,
    /// Bytes per second of a channel; 0: transfers take no time.
    #[serde(default)]
    pub channel: u64,
    /// Bytes per second of the host's link; 0: transfers take no time.
    #[serde(default)]
    pub link: u64,
    /// The controller's time for a read.
    #[serde(default, deserialize_with = "time")]
    pub read_overhead: u64,
    /// The controller's time for a read of at most 4 KiB.
    #[serde(default, deserialize_with = "time")]
    pub read_4k_overhead: u64,
    /// The controller's time for a write.
    #[serde(default, deserialize_with = "time")]
    pub write_overhead: u64,
    /// The controller's time for each 4 KiB of a write.
    #[serde(default, deserialize_with = "time")]
    pub write_4k_overhead: u64,
    /// Bytes of a zone that may wait for their program; 0: writes are acknowledged when they are programmed.
    #[serde(deserialize_with = "size")]
    pub buffer: u64,
    /// Whether the buffer survives a power cut.
    pub protected: bool,
    /// Effect of a finish.
    pub finish: Finish,
    /// Erases of a block that the manufacturer guarantees.
    pub endurance: u32,
    /// Factor of the raw bit error rate.
    pub error_scale: f64,
}

impl Profile {
    /// Returns the built-in profile of this name.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the known names.
    pub fn named(name: &str) -> Result<Profile> {
        let mut all = Self::all()?;
        all.remove(name).ok_or_else(|| {
            let known = all.keys().map(String::as_str).collect::<Vec<_>>();
            let near = stack::did_you_mean(name, known.iter().copied());
            Error::not_found(format!(
                "profile \"{name}\": unknown{near}; expected one of {}",
                known.join(", ")
            ))
        })
    }

    /// Returns all built-in profiles.
    pub fn all() -> Result<BTreeMap<String, Profile>> {
        let all: BTreeMap<String, Profile> =
            toml::from_str(KNOWN).map_err(|error| Error::invalid(format!("built-in profiles: {error}")))?;
        all.iter().try_for_each(|(name, profile)| profile.check(name))?;
        Ok(all)
    }

    fn check(&self, name: &str) -> Result<()> {
        let dies = self.channels.saturating_mul(self.dies_per_channel);
        let wrong = |what: String| Err(Error::invalid(format!("profile \"{name}\": {what}")));
        if dies == 0 || dies > MAX_DIES {
            return wrong(format!("{dies} dies: expected 1 to {MAX_DIES}"));
        }
        let per_zone = self.dies_per_zone();
        if per_zone == 0 || !dies.is_multiple_of(per_zone) || per_zone > crate::format::MAX_BLOCKS {
            return wrong(format!(
                "dies_per_zone {per_zone}: expected a divisor of {dies} up to {}",
                crate::format::MAX_BLOCKS
            ));
        }
        if self.page == 0 || !self.page.is_multiple_of(4096) || !self.program_unit.is_multiple_of(self.page) {
            return wrong(format!(
                "page {} and program_unit {}: expected multiples of 4 KiB, the unit one of the page",
                self.page, self.program_unit
            ));
        }
        if self.program_unit == 0 || (self.buffer != 0 && self.buffer < self.program_unit) {
            return wrong(format!("buffer {}: expected 0 or at least {}", self.buffer, self.program_unit));
        }
        Ok(())
    }

    /// Number of dies.
    pub fn dies(&self) -> u32 {
        self.channels * self.dies_per_channel
    }

    /// Number of dies of a zone.
    pub fn dies_per_zone(&self) -> u32 {
        self.dies_per_zone.unwrap_or(self.dies())
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Plain(u64),
    Text(String),
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match Number::deserialize(deserializer)? {
        Number::Plain(bytes) => Ok(bytes),
        Number::Text(text) => stack::parse_size(&text).map_err(D::Error::custom),
    }
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let duration = stack::parse_duration(&text).map_err(D::Error::custom)?;
    u64::try_from(duration.as_nanos()).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_profiles_are_sound_and_name_their_sources() {
        let all = Profile::all().unwrap();
        assert_eq!(all.len(), 6);
        for (name, profile) in all {
            assert!(!profile.sources.is_empty(), "{name}");
        }
        let error = Profile::named("zn541").unwrap_err().to_string();
        assert!(error.contains("zn540") && error.contains("femu-tlc"), "{error}");
    }
}
