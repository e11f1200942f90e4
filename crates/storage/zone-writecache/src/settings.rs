//! Settings of a write cache of zones.

use block::{Error, Result};
use stack::{format_duration, format_size, parse_duration, parse_size};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Permitted values of [`MaxLag::bytes`].
const LAG_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 40;
/// Permitted values of [`MaxLag::age`].
const LAG_TIME: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(24 * 3600);

/// Limits of the origin's lag behind the fast device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxLag {
    /// Limit of the appended bytes that the origin lacks.
    pub bytes: u64,
    /// Limit of the age of the oldest operation that it lacks.
    pub age: Duration,
}

impl Default for MaxLag {
    fn default() -> Self {
        MaxLag { bytes: 64 << 20, age: Duration::from_secs(5) }
    }
}

impl MaxLag {
    /// Parses `64MiB or 5s`, in either order; a limit that isn't given has its default.
    ///
    /// # Errors
    /// [`Error::Invalid`] for any other text, and for limits out of range.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!(
                "max_lag \"{text}\": expected a size, a duration or both, such as \"64MiB or 5s\""
            ))
        };
        let (mut bytes, mut age) = (None, None);
        for word in text.split(" or ").map(str::trim) {
            match (parse_duration(word), parse_size(word)) {
                (Ok(duration), _) if age.is_none() => age = Some(duration),
                (Err(_), Ok(size)) if bytes.is_none() => bytes = Some(size),
                _ => return Err(wrong()),
            }
        }
        let default = MaxLag::default();
        let lag = MaxLag { bytes: bytes.unwrap_or(default.bytes), age: age.unwrap_or(default.age) };
        if !LAG_BYTES.contains(&lag.bytes) {
            let [given, least, most] = [lag.bytes, *LAG_BYTES.start(), *LAG_BYTES.end()].map(format_size);
            return Err(Error::invalid(format!("max_lag {given}: expected {least} to {most}")));
        }
        if !LAG_TIME.contains(&lag.age) {
            let [given, least, most] = [lag.age, *LAG_TIME.start(), *LAG_TIME.end()].map(format_duration);
            return Err(Error::invalid(format!("max_lag {given}: expected {least} to {most}")));
        }
        Ok(lag)
    }
}

/// Moment at which a flush, a finish and a reset return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ack {
    /// Once everything before them is durable on the fast device.
    #[default]
    Fast,
    /// Once everything before them is durable at the origin as well.
    Origin,
}

impl Ack {
    /// Words of the key `ack`.
    pub const WORDS: [&'static str; 2] = ["fast", "origin"];

    /// Returns the moment that a word of the key names.
    pub fn of_word(word: &str) -> Self {
        if word == Self::WORDS[1] { Ack::Origin } else { Ack::Fast }
    }

    /// Word of the key.
    pub fn word(self) -> &'static str {
        Self::WORDS[usize::from(self == Ack::Origin)]
    }
}

/// Options of opening a write cache of zones.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Create the cache from scratch; data that only the fast device has is lost.
    pub format: bool,
    /// Create the cache if the fast device is empty, over the present state of the origin.
    pub new_fast: bool,
    /// Number of another writer's claim, after which the origin may be claimed. Data that only the fast
    /// device has is discarded then.
    pub take_over: Option<u64>,
    /// Moment at which flushes return.
    pub ack: Ack,
    /// Limit of the lag of the origin.
    pub max_lag: MaxLag,
    /// Bytes of the fast device for the read cache; by default half of what the log doesn't need.
    pub read_cache: Option<u64>,
    /// Time limit of a request to the fast device.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            format: false,
            new_fast: false,
            take_over: None,
            ack: Ack::Fast,
            max_lag: MaxLag::default(),
            read_cache: None,
            timeout: Duration::from_secs(120),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_in_any_order() {
        let seconds = Duration::from_secs;
        assert_eq!(MaxLag::parse("64MiB or 5s"), Ok(MaxLag::default()));
        assert_eq!(MaxLag::parse("2s or 1GiB"), Ok(MaxLag { bytes: 1 << 30, age: seconds(2) }));
        assert_eq!(MaxLag::parse("1m"), Ok(MaxLag { age: seconds(60), ..MaxLag::default() }));
        assert_eq!(MaxLag::parse("2MiB"), Ok(MaxLag { bytes: 2 << 20, ..MaxLag::default() }));
        for wrong in ["", "5s or 6s", "1MiB or 2MiB", "1MiB and 5s", "fast", "1KiB", "1ms", "48h"] {
            assert!(MaxLag::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
