//! Profiles: parameters of modelled devices, from TOML. The head of `profiles.toml` describes them.

use block::{Error, Result};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use std::collections::BTreeMap;
use std::time::Duration;

/// Built-in profiles.
const KNOWN: &str = include_str!("profiles.toml");

/// Parameters of a modelled device.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "medium", rename_all = "kebab-case")]
pub enum Profile {
    /// Solid-state device.
    SolidState(SolidState),
    /// Disk with one arm.
    Disk(Disk),
}

/// A solid-state device.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SolidState {
    /// Description of the device.
    pub title: String,
    /// Number of operations of one kind that are served at a time.
    pub parallelism: u32,
    /// Standard deviation of latencies, as a ratio to the mean; at most 1.
    #[serde(default)]
    pub spread: f64,
    /// Whether the device reports a volatile write cache.
    pub volatile_cache: bool,
    /// Latency of a flush.
    #[serde(deserialize_with = "duration")]
    pub flush: Duration,
    /// Reads.
    pub read: Service,
    /// Writes, discards and zeroings.
    pub write: Service,
    /// Buffer of fast writes.
    pub write_buffer: Option<WriteBuffer>,
}

/// Service of operations of one kind.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Mean latency of a single operation.
    #[serde(deserialize_with = "duration")]
    pub latency: Duration,
    /// Bytes per second of all operations together.
    #[serde(deserialize_with = "size")]
    pub bandwidth: u64,
    /// Number of operations that are served at a time; default: the device's.
    pub parallelism: Option<u32>,
}

/// A write buffer that is faster than the medium.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteBuffer {
    /// Size in bytes.
    #[serde(deserialize_with = "size")]
    pub size: u64,
    /// Bytes per second that drain to the medium.
    #[serde(deserialize_with = "size")]
    pub drain: u64,
}

/// A disk with one arm.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Description of the device.
    pub title: String,
    /// Revolutions per minute.
    pub rpm: u32,
    /// Time of a seek to the next track.
    #[serde(deserialize_with = "duration")]
    pub track_seek: Duration,
    /// Time of a seek over all tracks.
    #[serde(deserialize_with = "duration")]
    pub full_seek: Duration,
    /// Bytes per second below the head.
    #[serde(deserialize_with = "size")]
    pub bandwidth: u64,
    /// Time of a command besides positioning and transfer.
    #[serde(deserialize_with = "duration")]
    pub interface: Duration,
    /// Number of reads in the disk's queue.
    pub queue_depth: u32,
    /// Number of writes that the disk acknowledges before they are on the platter.
    pub write_buffer: u32,
    /// Whether the disk reports a volatile write cache.
    pub volatile_cache: bool,
}

impl Profile {
    /// Returns the description of the device.
    pub fn title(&self) -> &str {
        match self {
            Profile::SolidState(profile) => &profile.title,
            Profile::Disk(profile) => &profile.title,
        }
    }

    /// Whether the device reports a volatile write cache.
    pub fn volatile_cache(&self) -> bool {
        match self {
            Profile::SolidState(profile) => profile.volatile_cache,
            Profile::Disk(profile) => profile.volatile_cache,
        }
    }

    /// Formats as a TOML table with this name.
    pub fn to_toml(&self, name: &str) -> String {
        let (time, size) = (stack::format_duration, stack::format_size);
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let mut lines = vec![format!("[{}]", toml_key(name)), format!("title = {}", quoted(self.title()))];
        match self {
            Profile::SolidState(profile) => {
                let service = |name: &str, service: &Service| {
                    let Service { latency, bandwidth, parallelism } = service;
                    let own = parallelism.map(|own| format!(", parallelism = {own}")).unwrap_or_default();
                    format!(
                        "{name} = {{ latency = \"{}\", bandwidth = \"{}\"{own} }}",
                        time(*latency),
                        size(*bandwidth)
                    )
                };
                lines.push("medium = \"solid-state\"".to_owned());
                lines.push(format!("parallelism = {}", profile.parallelism));
                lines.push(format!("spread = {:?}", profile.spread));
                lines.push(format!("volatile_cache = {}", profile.volatile_cache));
                lines.push(format!("flush = \"{}\"", time(profile.flush)));
                lines.push(service("read", &profile.read));
                lines.push(service("write", &profile.write));
                if let Some(WriteBuffer { size: bytes, drain }) = &profile.write_buffer {
                    let (bytes, drain) = (size(*bytes), size(*drain));
                    lines.push(format!("write_buffer = {{ size = \"{bytes}\", drain = \"{drain}\" }}"));
                }
            }
            Profile::Disk(profile) => {
                lines.push("medium = \"disk\"".to_owned());
                lines.push(format!("rpm = {}", profile.rpm));
                lines.push(format!("track_seek = \"{}\"", time(profile.track_seek)));
                lines.push(format!("full_seek = \"{}\"", time(profile.full_seek)));
                lines.push(format!("bandwidth = \"{}\"", size(profile.bandwidth)));
                lines.push(format!("interface = \"{}\"", time(profile.interface)));
                lines.push(format!("queue_depth = {}", profile.queue_depth));
                lines.push(format!("write_buffer = {}", profile.write_buffer));
                lines.push(format!("volatile_cache = {}", profile.volatile_cache));
            }
        }
        lines.join("\n") + "\n"
    }

    /// Checks that all values are in range.
    fn check(&self) -> std::result::Result<(), String> {
        let positive = |name: &str, value: u64| match value {
            0 => Err(format!("{name} 0: expected at least 1")),
            _ => Ok(()),
        };
        match self {
            Profile::SolidState(profile) => {
                positive("parallelism", profile.parallelism.into())?;
                for (name, service) in [("read", &profile.read), ("write", &profile.write)] {
                    positive(&format!("{name}.bandwidth"), service.bandwidth)?;
                    positive(&format!("{name}.parallelism"), service.parallelism.unwrap_or(1).into())?;
                }
                if let Some(buffer) = &profile.write_buffer {
                    positive("write_buffer.drain", buffer.drain)?;
                }
                match (0.0..=1.0).contains(&profile.spread) {
                    true => Ok(()),
                    false => Err(format!("spread {}: expected a ratio from 0 to 1", profile.spread)),
                }
            }
            Profile::Disk(profile) => {
                positive("rpm", profile.rpm.into())?;
                positive("bandwidth", profile.bandwidth)?;
                positive("queue_depth", profile.queue_depth.into())?;
                match profile.track_seek <= profile.full_seek {
                    true => Ok(()),
                    false => Err("full_seek: less than track_seek; expected at least as much".to_owned()),
                }
            }
        }
    }
}

/// Formats a name as a TOML key: bare if possible.
fn toml_key(name: &str) -> String {
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    match !name.is_empty() && name.chars().all(is_bare) {
        true => name.to_owned(),
        false => toml::Value::String(name.to_owned()).to_string(),
    }
}

/// Parses profiles.
///
/// # Errors
/// [`Error::Invalid`] with the position and the problem.
pub fn parse(text: &str) -> Result<BTreeMap<String, Profile>> {
    let profiles: BTreeMap<String, Profile> =
        toml::from_str(text).map_err(|error| Error::invalid(error.to_string().trim_end().to_owned()))?;
    for (name, profile) in &profiles {
        profile.check().map_err(|detail| Error::invalid(format!("profile \"{name}\": {detail}")))?;
    }
    Ok(profiles)
}

/// Returns the built-in profiles.
///
/// # Errors
/// None; a test parses the built-in profiles.
pub fn known() -> Result<BTreeMap<String, Profile>> {
    parse(KNOWN)
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    stack::parse_duration(&text).map_err(|error| D::Error::custom(error.detail()))
}

fn size<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    stack::parse_size(&text).map_err(|error| D::Error::custom(error.detail()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_right() {
        let known = known().expect("all of them");
        assert!(
            ["optane-900p", "as2280p4u", "wd43purz", "sata-ssd", "qlc"]
                .iter()
                .all(|name| known.contains_key(*name))
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (name, profile) in known().expect("all of them") {
            for name in [name.as_str(), "a \"disk\" of mine"] {
                let again = parse(&profile.to_toml(name)).expect("it is right").remove(name);
                assert_eq!(again.as_ref(), Some(&profile), "{}", profile.to_toml(name));
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |from: &str, to: &str| {
            let text = KNOWN.replacen(from, to, 1);
            assert_ne!(text, KNOWN, "{from}");
            parse(&text).expect_err(to).to_string()
        };
        for (from, to, expected) in [
            ("rpm = 5400", "rpm = 0", "profile \"wd43purz\": rpm 0"),
            ("track_seek = \"850us\"", "track_seek = \"1s\"", "full_seek"),
            ("spread = 0.3", "spread = 3.0", "spread 3"),
            ("\"11us\"", "\"11 parsecs\"", "11 parsecs"),
            ("\"2500MiB\"", "\"0MiB\"", "read.bandwidth 0"),
            ("interface =", "interfaec =", "interfaec"),
            ("\"disk\"\nrpm", "\"tape\"\nrpm", "tape"),
        ] {
            let error = refused(from, to);
            assert!(error.contains(expected), "{to}: {error}");
        }
    }
}
