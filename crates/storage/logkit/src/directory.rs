//! The directory of a checkpoint: the zones with records, and the owner's part. The root names its location.

use crate::pool::{LastRecords, Usage, Zone, ZonePool};
use crate::record::StreamId;
use block::Result;
use zones::bytes::{Reader, Writer};

const MAGIC: &[u8; 8] = b"SILTDIR2";
/// Bytes of an entry without its last records.
const FIXED: usize = 4 + 8 + 1 + 1 + 4 + 8 + 8 + 1;
/// Bytes of the last record of a stream.
const LAST: usize = 2 + 8;

/// Entry of a zone with records, at the time of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ZoneEntry {
    /// The zone.
    pub zone: u32,
    /// Generation: number of resets of the zone.
    pub generation: u64,
    /// Class of the zone's records.
    pub class: u8,
    /// Whether the zone is sealed.
    pub full: bool,
    /// Number of data blocks that were written to the zone.
    pub written: u32,
    /// Clock when the zone was opened.
    pub opened: u64,
    /// Clock of the latest death of one of the zone's blocks.
    pub changed: u64,
    /// The zone's last record of each replayed stream.
    pub last: LastRecords,
}

impl ZoneEntry {
    /// Returns the entry of a zone; `None` if the zone has no records.
    pub fn of(number: u32, zone: &Zone) -> Option<Self> {
        let is_used = !matches!(zone.usage, Usage::Free | Usage::Root);
        is_used.then(|| ZoneEntry {
            zone: number,
            generation: zone.generation,
            class: zone.class,
            full: zone.usage != Usage::Open,
            written: zone.written,
            opened: zone.opened,
            changed: zone.changed,
            last: zone.last.clone(),
        })
    }

    /// Returns the entries of all zones of a pool with records.
    pub fn all_of(pool: &ZonePool) -> Vec<Self> {
        pool.select(Self::of)
    }
}

/// Returns the largest size in bytes of a directory of `zones` zones with records of `streams` streams,
/// without the owner's part.
pub fn bytes_at_most(zones: u32, streams: usize) -> u64 {
    12 + u64::from(zones) * (FIXED + streams * LAST) as u64
}

/// Encodes a directory.
pub fn encode(zones: &[ZoneEntry], own: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.put(MAGIC);
    writer.u32(zones.len() as u32);
    for zone in zones {
        writer.u32(zone.zone);
        writer.u64(zone.generation);
        writer.u8(zone.class);
        writer.u8(zone.full.into());
        writer.u32(zone.written);
        writer.u64(zone.opened);
        writer.u64(zone.changed);
        writer.u8(zone.last.iter().count() as u8);
        for (stream, last) in zone.last.iter() {
            writer.put(&stream.0.to_le_bytes());
            writer.u64(last);
        }
    }
    writer.put(own);
    writer.0
}

/// Decodes a directory from untrusted bytes; returns the zones and the owner's part.
///
/// # Errors
/// [`block::Error::Corrupt`] for bytes that no version of this program writes.
pub fn decode(bytes: &[u8]) -> Result<(Vec<ZoneEntry>, &[u8])> {
    let mut reader = Reader::new(bytes, "the directory of a checkpoint");
    if reader.bytes(8)? != MAGIC {
        return Err(reader.strange("has no magic number"));
    }
    let mut zones = Vec::new();
    for _ in 0..reader.count(FIXED)? {
        let mut zone = ZoneEntry {
            zone: reader.u32()?,
            generation: reader.u64()?,
            class: reader.u8()?,
            full: reader.u8()? != 0,
            written: reader.u32()?,
            opened: reader.u64()?,
            changed: reader.u64()?,
            last: LastRecords::default(),
        };
        for _ in 0..reader.u8()? {
            let stream = StreamId(u16::from_le_bytes(*reader.take()?));
            zone.last.note(stream, reader.u64()?);
        }
        zones.push(zone);
    }
    let own = reader.bytes(reader.remaining())?;
    Ok((zones, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones() -> Vec<ZoneEntry> {
        let last =
            |numbers: &[(u16, u64)]| numbers.iter().map(|(stream, it)| (StreamId(*stream), *it)).collect();
        vec![
            ZoneEntry { zone: 4, generation: 9, last: last(&[(0, 7), (1, 8)]), ..ZoneEntry::default() },
            ZoneEntry {
                zone: 5,
                class: 3,
                full: true,
                written: 6,
                opened: 7,
                changed: 8,
                ..ZoneEntry::default()
            },
        ]
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = encode(&zones(), b"the owner's part");
        assert!(bytes.len() as u64 <= bytes_at_most(2, 2) + 16);
        assert_eq!(decode(&bytes), Ok((zones(), b"the owner's part".as_slice())));
        (0..bytes.len() - 16).for_each(|length| assert!(decode(&bytes[..length]).is_err(), "{length} bytes"));
    }

    #[test]
    fn damaged_bytes_never_panic() {
        let bytes = encode(&zones(), &[]);
        let mut random = runtime::Random::new(1);
        for _ in 0..2000 {
            let mut damaged = bytes.clone();
            damaged[random.below(bytes.len() as u64) as usize] ^= 1 << random.below(8);
            damaged.truncate(random.below(bytes.len() as u64 + 1) as usize);
            let _ = decode(&damaged);
        }
    }
}
