//! Metadata of LUKS2: the JSON text of key slots, segments and digests.
//!
//! What this program can't open is refused with a reason: volumes during a reencryption, with integrity tags,
//! of several segments, with another cipher than AES-XTS. A key slot of another type, which no passphrase
//! opens, is left out; one with an unknown cipher or derivation is kept with the reason. Numbers are checked
//! against limits before they are used, and lists are bounded by [`MAX_ENTRIES`]; an unknown field takes no
//! memory.

use crate::device::Segment;
use base64ct::{Base64, Encoding};
use block::{Error, Result};
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// Most entries of a list: LUKS2 has at most 32 key slots.
const MAX_ENTRIES: usize = 32;
/// Stripes of the anti-forensic splitter; LUKS2 permits no other number.
pub const STRIPES: usize = 4000;
/// The only cipher.
const CIPHER: &str = "aes-xts-plain64";
/// Longest salt or digest, in bytes.
const MAX_BYTES: usize = 64;

/// Hash function of a key slot or digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The functions' names.
pub enum Hash {
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    const ALL: [(&str, Hash); 4] =
        [("sha1", Hash::Sha1), ("sha256", Hash::Sha256), ("sha384", Hash::Sha384), ("sha512", Hash::Sha512)];

    fn named(name: &str) -> Option<Hash> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, hash)| *hash)
    }
}

/// Derivation of a key from a passphrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kdf {
    /// Argon2, version 1.3.
    Argon2 {
        /// Whether it is Argon2id; otherwise Argon2i.
        is_id: bool,
        /// Passes over the memory.
        time: u32,
        /// Memory in KiB.
        memory: u32,
        /// Lanes.
        lanes: u32,
        /// Salt.
        salt: Vec<u8>,
    },
    /// PBKDF2 (RFC 8018).
    Pbkdf2 {
        /// Hash function of its HMAC.
        hash: Hash,
        /// Iterations.
        iterations: u32,
        /// Salt.
        salt: Vec<u8>,
    },
}

/// A key slot: the volume key, split and encrypted with a key that a passphrase gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Number of the slot.
    pub number: u8,
    /// Bytes of the volume key: 32 or 64.
    pub key_size: usize,
    /// Hash function of the anti-forensic splitter.
    pub hash: Hash,
    /// Offset of the encrypted material, in bytes.
    pub offset: u64,
    /// Bytes of the key that encrypts the material: 32 or 64.
    pub area_key_size: usize,
    /// Derivation of that key.
    pub kdf: Kdf,
}

/// PBKDF2 of the volume key, by which the right key is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    /// Hash function of its HMAC.
    pub hash: Hash,
    /// Iterations.
    pub iterations: u32,
    /// Salt.
    pub salt: Vec<u8>,
    /// The digest.
    pub digest: Vec<u8>,
}

/// Metadata of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Key slots that this program can open, in the order in which they are tried.
    pub slots: Vec<Slot>,
    /// Numbers of slots that can't be tried, and what is wrong.
    pub refused: Vec<(u8, Error)>,
    /// Digest of the volume key.
    pub digest: Digest,
    /// The encrypted data.
    pub segment: Segment,
    /// Whether the volume permits discards.
    pub discards: bool,
}

/// Entries `"0"`, `"1"`, … of an object, at most [`MAX_ENTRIES`].
struct Numbered<T>(BTreeMap<u8, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Numbered<T> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> std::result::Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Numbered<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "at most {MAX_ENTRIES} numbered entries")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> std::result::Result<Self::Value, M::Error> {
                let mut entries = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let number = key.parse().map_err(|_| de::Error::custom("an entry without a number"))?;
                    let replaced = entries.insert(number, map.next_value()?);
                    if replaced.is_some() || entries.len() > MAX_ENTRIES {
                        return Err(de::Error::custom(format!(
                            "expected at most {MAX_ENTRIES} different entries"
                        )));
                    }
                }
                Ok(Numbered(entries))
            }
        }
        source.deserialize_map(Entries(PhantomData))
    }
}

#[derive(serde::Deserialize)]
struct Document {
    keyslots: Numbered<SlotEntry>,
    segments: Numbered<SegmentEntry>,
    digests: Numbered<DigestEntry>,
    config: Config,
}

#[derive(serde::Deserialize)]
struct Config {
    #[serde(default)]
    flags: Vec<String>,
    requirements: Option<Requirements>,
}

#[derive(serde::Deserialize)]
struct Requirements {
    #[serde(default)]
    mandatory: Vec<String>,
}

#[derive(serde::Deserialize)]
struct SlotEntry {
    #[serde(rename = "type")]
    kind: String,
    key_size: Option<usize>,
    af: Option<Splitter>,
    area: Option<Area>,
    kdf: Option<KdfEntry>,
    priority: Option<u8>,
}

#[derive(serde::Deserialize)]
struct Splitter {
    #[serde(rename = "type")]
    kind: String,
    stripes: usize,
    hash: String,
}

#[derive(serde::Deserialize)]
struct Area {
    #[serde(rename = "type")]
    kind: String,
    offset: String,
    size: String,
    encryption: Option<String>,
    key_size: Option<usize>,
}

#[derive(serde::Deserialize)]
struct KdfEntry {
    #[serde(rename = "type")]
    kind: String,
    salt: String,
    time: Option<u32>,
    memory: Option<u32>,
    cpus: Option<u32>,
    hash: Option<String>,
    iterations: Option<u32>,
}

#[derive(serde::Deserialize)]
struct SegmentEntry {
    #[serde(rename = "type")]
    kind: String,
    offset: String,
    size: String,
    iv_tweak: Option<String>,
    encryption: Option<String>,
    sector_size: Option<usize>,
    integrity: Option<de::IgnoredAny>,
}

#[derive(serde::Deserialize)]
struct DigestEntry {
    #[serde(rename = "type")]
    kind: String,
    keyslots: Vec<String>,
    segments: Vec<String>,
    hash: Option<String>,
    iterations: Option<u32>,
    salt: Option<String>,
    digest: Option<String>,
}

fn corrupt(what: impl fmt::Display) -> Error {
    Error::corrupt(format!("the LUKS2 metadata: {what}"))
}

fn unsupported(what: impl fmt::Display) -> Error {
    Error::unsupported(format!("the LUKS2 volume: {what}; open it with cryptsetup"))
}

fn number(text: &str, what: &str) -> Result<u64> {
    text.parse().map_err(|_| corrupt(format_args!("{what}: expected a number")))
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    (text.len() <= 2 * MAX_BYTES)
        .then(|| Base64::decode_vec(text).ok())
        .flatten()
        .filter(|it| it.len() <= MAX_BYTES)
}

fn is_key_size(size: usize) -> bool {
    size == 32 || size == 64
}

/// Parses the metadata of a volume whose two headers have `header` bytes each.
///
/// # Errors
/// [`Error::Corrupt`] for a text that isn't LUKS2 metadata; [`Error::Unsupported`] for a volume that this
/// program can't open.
pub fn parse(json: &[u8], header: u64) -> Result<Volume> {
    let document: Document = serde_json::from_slice(json).map_err(corrupt)?;
    if let Some(first) = document.config.requirements.iter().flat_map(|it| &it.mandatory).next() {
        return Err(unsupported(format_args!("it requires \"{}\"", first.escape_debug())));
    }
    let (name, segment) = match document.segments.0.into_iter().collect::<Vec<_>>() {
        mut one if one.len() == 1 => one.remove(0),
        several => return Err(unsupported(format_args!("it has {} segments; expected one", several.len()))),
    };
    let segment = segment_of(segment, header)?;
    let is_of = |list: &[String], number: u8| list.iter().any(|entry| *entry == number.to_string());
    let mut digests = document.digests.0.into_values().filter(|it| is_of(&it.segments, name));
    let entry = digests.next().ok_or_else(|| corrupt("no digest belongs to the segment"))?;
    let (mut slots, mut refused) = (Vec::new(), Vec::new());
    for (number, slot) in document.keyslots.0 {
        // Priority 0 takes a slot out of use, 2 prefers it.
        let priority = slot.priority.unwrap_or(1);
        if priority > 0 && is_of(&entry.keyslots, number) {
            match slot_of(number, slot, header, segment.offset) {
                Ok(slot) => slots.extend(slot.map(|slot| (priority, slot))),
                Err(error) => refused.push((number, error)),
            }
        }
    }
    slots.sort_by_key(|(priority, slot)| (std::cmp::Reverse(*priority), slot.number));
    let discards = document.config.flags.iter().any(|flag| flag == "allow-discards");
    let slots = slots.into_iter().map(|(_, slot)| slot).collect();
    Ok(Volume { slots, refused, digest: digest_of(entry)?, segment, discards })
}

fn segment_of(entry: SegmentEntry, header: u64) -> Result<Segment> {
    let is_right = entry.kind == "crypt" && entry.encryption.as_deref() == Some(CIPHER);
    if !is_right || entry.integrity.is_some() {
        return Err(unsupported(format_args!(
            "expected one encrypted with {CIPHER}, without integrity tags"
        )));
    }
    let offset = number(&entry.offset, "offset of the segment")?;
    let bytes = match &*entry.size {
        "dynamic" => None,
        size => Some(number(size, "size of the segment")?),
    };
    let tweak = entry.iv_tweak.as_deref().map_or(Ok(0), |tweak| number(tweak, "iv_tweak"))?;
    let sector_size = entry.sector_size.unwrap_or(0);
    if ![512, 1024, 2048, 4096].contains(&sector_size) || offset < 2 * header {
        return Err(corrupt("sector size or offset of the segment out of range"));
    }
    Ok(Segment { offset, bytes, tweak, sector_size })
}

/// Returns a slot, or `None` for one of another type, which isn't for passphrases.
fn slot_of(number: u8, entry: SlotEntry, header: u64, data: u64) -> Result<Option<Slot>> {
    if entry.kind != "luks2" {
        return Ok(None);
    }
    let (Some(splitter), Some(area), Some(kdf)) = (entry.af, entry.area, entry.kdf) else {
        return Err(corrupt("a field is missing"));
    };
    check_word("type of the splitter", &splitter.kind, &["luks1"])?;
    check_word("type of the area", &area.kind, &["raw"])?;
    check_word("cipher", area.encryption.as_deref().unwrap_or_default(), &[CIPHER])?;
    let (hash, kdf) = (hash_of(&splitter.hash)?, kdf_of(kdf)?);
    let sizes = [entry.key_size, area.key_size].map(Option::unwrap_or_default);
    let (offset, bytes) = (
        self::number(&area.offset, "offset of a key slot")?,
        self::number(&area.size, "size of a key slot")?,
    );
    let fits = splitter.stripes == STRIPES
        && sizes.into_iter().all(is_key_size)
        && bytes >= (STRIPES * sizes[0]) as u64
        && offset >= 2 * header
        && offset.checked_add(bytes).is_some_and(|end| end <= data);
    match fits {
        true => Ok(Some(Slot { number, key_size: sizes[0], hash, offset, area_key_size: sizes[1], kdf })),
        false => Err(corrupt("a size or offset is out of range")),
    }
}

/// Refuses a word that this program doesn't know.
fn check_word(what: &str, word: &str, known: &[&str]) -> Result<()> {
    match known.contains(&word) {
        true => Ok(()),
        false => {
            let word: String = word.chars().take(40).collect();
            let (word, known) = (word.escape_debug(), known.join(", "));
            Err(unsupported(format_args!("{what} \"{word}\"; expected {known}")))
        }
    }
}

fn hash_of(name: &str) -> Result<Hash> {
    check_word("hash function", name, &Hash::ALL.map(|(known, _)| known))?;
    Hash::named(name).ok_or_else(|| corrupt("a hash function"))
}

fn kdf_of(entry: KdfEntry) -> Result<Kdf> {
    check_word("key derivation", &entry.kind, &["argon2id", "argon2i", "pbkdf2"])?;
    let incomplete = || corrupt("a number or the salt of the key derivation is missing or out of range");
    let salt = bytes_of(&entry.salt).ok_or_else(incomplete)?;
    if entry.kind == "pbkdf2" {
        let hash = hash_of(entry.hash.as_deref().unwrap_or_default())?;
        let iterations = entry.iterations.ok_or_else(incomplete)?;
        return Ok(Kdf::Pbkdf2 { hash, iterations, salt });
    }
    let numbers = entry.time.zip(entry.memory).zip(entry.cpus);
    let ((time, memory), lanes) = numbers.ok_or_else(incomplete)?;
    Ok(Kdf::Argon2 { is_id: entry.kind == "argon2id", time, memory, lanes, salt })
}

fn digest_of(entry: DigestEntry) -> Result<Digest> {
    let known = (|| {
        let hash = Hash::named(&entry.hash?)?;
        let digest = bytes_of(&entry.digest?).filter(|digest| digest.len() >= 20)?;
        Some(Digest { hash, iterations: entry.iterations?, salt: bytes_of(&entry.salt?)?, digest })
    })();
    known.filter(|_| entry.kind == "pbkdf2").ok_or_else(|| unsupported("expected a digest by PBKDF2"))
}

/// JSON text of a volume with one key slot, whose material has `bytes` bytes, and `keyslots` bytes for slots
/// after the headers of `header` bytes each. The slot has Argon2id.
pub fn write(volume: &Volume, header: u64, bytes: u64, keyslots: u64) -> String {
    let encoded = |bytes: &[u8]| Base64::encode_string(bytes);
    let slots = volume.slots.iter().filter_map(|slot| match &slot.kdf {
        Kdf::Argon2 { time, memory, lanes, salt, .. } => Some((
            slot.number.to_string(),
            json!({
                "type": "luks2",
                "key_size": slot.key_size,
                "af": {"type": "luks1", "stripes": STRIPES, "hash": "sha256"},
                "area": {
                    "type": "raw",
                    "offset": slot.offset.to_string(),
                    "size": bytes.to_string(),
                    "encryption": CIPHER,
                    "key_size": slot.area_key_size,
                },
                "kdf": {"type": "argon2id", "time": time, "memory": memory, "cpus": lanes, "salt": encoded(salt)},
            }),
        )),
        Kdf::Pbkdf2 { .. } => None,
    });
    let flags: &[&str] = if volume.discards { &["allow-discards"] } else { &[] };
    let numbers: Vec<String> = volume.slots.iter().map(|slot| slot.number.to_string()).collect();
    let document = json!({
        "keyslots": serde_json::Map::from_iter(slots),
        "tokens": {},
        "segments": {"0": {
            "type": "crypt",
            "offset": volume.segment.offset.to_string(),
            "size": "dynamic",
            "iv_tweak": volume.segment.tweak.to_string(),
            "encryption": CIPHER,
            "sector_size": volume.segment.sector_size,
        }},
        "digests": {"0": {
            "type": "pbkdf2",
            "keyslots": numbers,
            "segments": ["0"],
            "hash": "sha256",
            "iterations": volume.digest.iterations,
            "salt": encoded(&volume.digest.salt),
            "digest": encoded(&volume.digest.digest),
        }},
        "config": {
            "json_size": (header - super::header::BINARY as u64).to_string(),
            "keyslots_size": keyslots.to_string(),
            "flags": flags,
        },
    });
    document.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn volume() -> Volume {
        let kdf = Kdf::Argon2 { is_id: true, time: 4, memory: 65536, lanes: 1, salt: vec![1; 32] };
        let hash = Hash::Sha256;
        let slot = Slot { number: 0, key_size: 64, hash, offset: 32768, area_key_size: 64, kdf };
        Volume {
            slots: vec![slot],
            refused: Vec::new(),
            digest: Digest { hash, iterations: 1000, salt: vec![2; 32], digest: vec![3; 32] },
            segment: Segment { offset: 16 << 20, bytes: None, tweak: 0, sector_size: 4096 },
            discards: true,
        }
    }

    fn text() -> String {
        write(&volume(), 16 << 10, 258_048, 16_744_448)
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(parse(text().as_bytes(), 16 << 10).unwrap(), volume());
    }

    #[test]
    fn what_cant_be_opened_is_named() {
        for (from, to, expected) in [
            (
                "\"flags\"",
                "\"requirements\":{\"mandatory\":[\"online-reencrypt-v2\"]},\"flags\"",
                "online-reencrypt-v2",
            ),
            ("\"sector_size\":4096", "\"sector_size\":4096,\"integrity\":{\"type\":\"hmac\"}", "integrity"),
            ("\"type\":\"crypt\"", "\"type\":\"linear\"", "expected one encrypted with aes-xts-plain64"),
            ("\"sector_size\":4096", "\"sector_size\":8192", "out of range"),
            ("\"offset\":\"16777216\"", "\"offset\":\"4096\"", "out of range"),
            ("\"segments\":[\"0\"]", "\"segments\":[\"1\"]", "no digest"),
            ("\"size\":\"dynamic\"", "\"size\":\"-1\"", "expected a number"),
            ("\"segments\":{\"0\":", "\"segments\":{\"x\":", "without a number"),
        ] {
            let changed = text().replace(from, to);
            assert_ne!(changed, text(), "{from}");
            let error = parse(changed.as_bytes(), 16 << 10).unwrap_err().to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
        // Others may open the volume.
        for (from, to) in [
            ("\"offset\":\"32768\"", "\"offset\":\"16384\""),
            ("\"offset\":\"32768\"", "\"offset\":\"18446744073709551615\""),
            ("\"stripes\":4000", "\"stripes\":4001"),
            ("\"key_size\":64,\"af\"", "\"key_size\":63,\"af\""),
            ("\"size\":\"258048\"", "\"size\":\"4096\""),
        ] {
            let volume = parse(text().replace(from, to).as_bytes(), 16 << 10).unwrap();
            assert_eq!(volume.slots, [], "{to}");
            assert!(
                matches!(&volume.refused[..], [(0, Error::Corrupt(text))] if text.contains("out of range")),
                "{to}"
            );
        }
        for (from, to, expected) in [
            (
                "\"argon2id\"",
                "\"scrypt\"",
                "key derivation \"scrypt\"; expected argon2id, argon2i, pbkdf2; open it",
            ),
            (
                "\"encryption\":\"aes-xts-plain64\",\"key_size\"",
                "\"encryption\":\"serpent-xts-plain64\",\"key_size\"",
                "cipher \"serpent-",
            ),
            (
                "\"stripes\":4000,\"hash\":\"sha256\"",
                "\"stripes\":4000,\"hash\":\"whirlpool\"",
                "hash function \"whirlpool\"",
            ),
            ("\"type\":\"raw\"", "\"type\":\"checksum\"", "type of the area \"checksum\""),
        ] {
            let changed = text().replace(from, to);
            assert_ne!(changed, text(), "{from}");
            let volume = parse(changed.as_bytes(), 16 << 10).unwrap();
            assert_eq!(volume.slots, [], "{to}");
            assert!(
                matches!(&volume.refused[..], [(0, Error::Unsupported(text))] if text.contains(expected)),
                "{:?}",
                volume.refused
            );
        }
        // Slots that no passphrase opens, or that aren't in use, are left out.
        for (from, to) in [
            ("\"type\":\"luks2\"", "\"type\":\"reencrypt\""),
            ("\"keyslots\":[\"0\"]", "\"keyslots\":[]"),
            ("\"keyslots\":{\"0\":{", "\"keyslots\":{\"0\":{\"priority\":0,"),
        ] {
            let volume = parse(text().replace(from, to).as_bytes(), 16 << 10).unwrap();
            assert!(volume.slots.is_empty() && volume.refused.is_empty(), "{to}");
        }
    }

    #[test]
    fn lists_are_bounded() {
        let slots: Vec<String> =
            (0..=MAX_ENTRIES).map(|slot| format!("\"{slot}\":{{\"type\":\"x\"}}")).collect();
        let with = |slots: &str| text().replacen("\"keyslots\":{", &format!("\"keyslots\":{{{slots},"), 1);
        let error = parse(with(&slots.join(",")).as_bytes(), 16 << 10).unwrap_err().to_string();
        assert!(error.contains("at most 32 different entries"), "{error}");
        let twice = with("\"0\":{\"type\":\"x\"}");
        assert!(parse(twice.as_bytes(), 16 << 10).is_err(), "{twice}");
        let deep = "[".repeat(100_000);
        assert!(parse(with(&format!("\"x\":{deep}")).as_bytes(), 16 << 10).is_err());
    }

    proptest! {
        #[test]
        fn any_change_is_parsed_or_refused(at in any::<prop::sample::Index>(), with in "[\\PC]{0,4}", length in 0_usize..8) {
            let text = text();
            let (at, mut changed) = (at.index(text.len()), text.clone());
            changed.replace_range(at..(at + length).min(text.len()), &with);
            let _ = parse(changed.as_bytes(), 16 << 10);
        }
    }
}
