//! State in a map's home in addition to the words of the map: a line for the moment, a line per zone, then
//! the versions. For the journal these are lines like all others.

use super::format::{LINE, Line, Places, is_sealed, line_of, sealed, sum};
use crate::directory::{Directory, VersionEntry, check_versions};
use crate::format::{CLEANER, STREAMS, USER};
use crate::map::radix::at_home::OpenVersion;
use crate::versions::Versions;
use block::{Error, Result};
use logkit::directory::ZoneEntry;
use logkit::{Usage, Zone, ZonePool};
use zerocopy::little_endian::U64;
use zones::bytes::{Reader, Writer};

const MAGIC: &[u8; 8] = b"SILTHST1";
const VERSION_BYTES: usize = 4 + 4 + 1 + 8 + 8 + 1 + 4;

/// Position of a home's state in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Epoch of the log.
    pub epoch: u64,
    /// Clock at the moment.
    pub clock: u64,
    /// Last committed record of each stream.
    pub covered: [u64; STREAMS],
    /// Number of the next version.
    pub next_version: u32,
    /// Number of slabs of the map that have been used.
    pub slabs: u32,
}

/// Encodes the line of the moment of transaction `sequence`, with the number `versions` of bytes of versions.
pub fn encode_moment(moment: &Moment, sequence: u64, versions: usize, key: u64) -> Line {
    let mut writer = Writer::default();
    writer.u64(sequence);
    writer.u64(moment.epoch);
    writer.u64(moment.clock);
    writer.put(&moment.covered.map(U64::new));
    writer.u32(moment.next_version);
    writer.u32(moment.slabs);
    writer.u32(versions as u32);
    line_of(&sealed(writer, LINE, key ^ u64::from_le_bytes(*MAGIC)))
}

/// Decodes the line of the moment. Returns the transaction, the moment, and the number of bytes of versions.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged line.
pub fn decode_moment(line: &[u8], key: u64) -> Result<(u64, Moment, usize)> {
    let mut reader = Reader::new(line, "the state at the map's home");
    if !is_sealed(line, LINE, key ^ u64::from_le_bytes(*MAGIC)) {
        return Err(reader.strange("is damaged"));
    }
    let (sequence, epoch, clock) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let covered = reader.u64s()?;
    let (next_version, slabs, versions) = (reader.u32()?, reader.u32()?, reader.u32()? as usize);
    Ok((sequence, Moment { epoch, clock, covered, next_version, slabs }, versions))
}

/// Encodes the line of a zone.
pub fn encode_zone(number: u32, zone: &Zone, key: u64) -> Line {
    let mut writer = Writer::default();
    let is_used = !matches!(zone.usage, Usage::Free | Usage::Root);
    let is_full = !matches!(zone.usage, Usage::Open | Usage::Damaged);
    writer.u64(zone.generation);
    writer.u64(zone.opened);
    writer.u64(zone.changed);
    writer.put(&[USER, CLEANER].map(|stream| U64::new(zone.last.of(stream))));
    writer.u32(zone.live);
    writer.u32(zone.written);
    writer.u32(zone.committed);
    writer.u8(zone.class);
    writer.u8(is_used.into());
    writer.u8((is_used && is_full).into());
    line_of(&sealed(writer, LINE, key ^ u64::from(number)))
}

/// Recorded state of a zone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownZone {
    /// The zone as in a directory.
    pub entry: ZoneEntry,
    /// Number of the zone's blocks that the map references.
    pub live: u32,
    /// Block of the zone before which all records had committed.
    pub committed: u32,
}

/// Decodes the line of a zone; `None` for a zone without records and without referenced blocks.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged line.
pub fn decode_zone(number: u32, line: &[u8], key: u64) -> Result<Option<KnownZone>> {
    let mut reader = Reader::new(line, "the state of a zone at the map's home");
    if !is_sealed(line, LINE, key ^ u64::from(number)) {
        return Err(reader.strange(&format!("is damaged (zone {number})")));
    }
    let mut known = KnownZone::default();
    known.entry.zone = number;
    known.entry.generation = reader.u64()?;
    known.entry.opened = reader.u64()?;
    known.entry.changed = reader.u64()?;
    let last: [u64; STREAMS] = reader.u64s()?;
    known.entry.last = [USER, CLEANER].into_iter().zip(last).collect();
    (known.live, known.entry.written, known.committed) = (reader.u32()?, reader.u32()?, reader.u32()?);
    known.entry.class = reader.u8()?;
    let is_used = reader.u8()? != 0;
    known.entry.full = reader.u8()? != 0;
    Ok((is_used || known.live > 0).then_some(known))
}

/// Encodes all versions.
pub fn encode_versions(versions: &Versions, key: u64) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u32(0);
    writer.u32(versions.list.len() as u32);
    let mut roots = Vec::new();
    for version in &versions.list {
        roots.clear();
        version.map.roots(&mut roots);
        version.entry().encode(&mut writer);
        writer.u32(roots.len() as u32);
        roots.iter().for_each(|root| writer.u32(*root));
    }
    let sum = sum(key, &writer.0[4..]);
    writer.0[..4].copy_from_slice(&sum.to_le_bytes());
    writer.0
}

/// Decodes all versions, with the words that open their maps; parents precede their children.
///
/// # Errors
/// [`Error::Corrupt`] for damaged versions.
pub fn decode_versions(bytes: &[u8], next: u32, key: u64) -> Result<Vec<(VersionEntry, OpenVersion)>> {
    let mut reader = Reader::new(bytes, "the list of versions at the map's home");
    let own = reader.u32()?;
    if sum(key, &bytes[4..]) != own {
        return Err(reader.strange("is damaged"));
    }
    let mut versions: Vec<(VersionEntry, OpenVersion)> = Vec::new();
    for _ in 0..reader.count(VERSION_BYTES)? {
        let entry = VersionEntry::decode(&mut reader)?;
        let mut roots = Vec::new();
        for _ in 0..reader.count(4)? {
            roots.push(reader.u32()?);
        }
        let blocks = entry.blocks;
        versions.push((entry, OpenVersion { blocks, roots }));
    }
    check_versions(versions.iter().map(|(version, _)| version), next, &reader)?;
    Ok(versions)
}

/// State of a home in addition to the words of the map.
#[derive(Debug, Clone)]
pub struct Known {
    /// Last transaction.
    pub sequence: u64,
    /// Position of the state in the log.
    pub moment: Moment,
    /// The versions, with the words that open their maps.
    pub versions: Vec<(VersionEntry, OpenVersion)>,
    /// The zones with recorded state.
    pub zones: Vec<KnownZone>,
}

impl Known {
    /// Decodes the state from untrusted bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that no version of this program writes.
    pub fn decode(bytes: &[u8], zones: u32, key: u64) -> Result<Known> {
        let (sequence, moment, length) = decode_moment(bytes, key)?;
        let line = |number: usize| bytes.get(number * LINE..(number + 1) * LINE).unwrap_or_default();
        let mut known = Vec::new();
        for zone in 0..zones {
            known.extend(decode_zone(zone, line(1 + zone as usize), key)?);
        }
        let start = (1 + zones as usize) * LINE;
        let versions = bytes.get(start..start.saturating_add(length)).ok_or_else(|| {
            Error::corrupt("the list of versions at the map's home exceeds its space: the file is damaged")
        })?;
        let versions = decode_versions(versions, moment.next_version, key)?;
        Ok(Known { sequence, moment, versions, zones: known })
    }

    /// Returns the number of bytes of state, given its first line.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged line.
    pub fn length(line: &[u8], zones: u32, places: &Places, key: u64) -> Result<usize> {
        let (_, _, versions) = decode_moment(line, key)?;
        let length = (1 + zones as usize) * LINE + versions;
        match length as u64 <= places.state_length {
            true => Ok(length),
            false => Err(Error::corrupt(format!(
                "the state at the map's home exceeds its space: {length} bytes of {}: the file is damaged",
                places.state_length
            ))),
        }
    }

    /// Returns zones and versions as in a directory, for comparison with those on the disk.
    pub fn directory(&self) -> (Vec<ZoneEntry>, Directory) {
        let versions = self.versions.iter().map(|(version, _)| version.clone()).collect();
        let directory = Directory { versions, next_version: self.moment.next_version, damaged: Vec::new() };
        (self.zones.iter().map(|zone| zone.entry.clone()).collect(), directory)
    }

    /// Restores the zones' live counts, and the blocks before which records had committed.
    pub fn restore(&self, pool: &ZonePool) {
        for known in &self.zones {
            pool.restore(known.entry.zone, |zone| {
                // Zones that were reset since also get the count: replaying the records that emptied them
                // subtracts these counts.
                zone.live = known.live;
                if zone.generation == known.entry.generation {
                    zone.committed = known.committed;
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::bytes_of;
    use super::*;

    /// A torn body of the journal: some lines are those of an older transaction, each complete.
    #[test]
    fn the_sum_of_a_body_sees_lines_that_are_right_in_themselves_and_older() {
        use super::super::format::{body_sum, encode_body};
        let moment = Moment { epoch: 3, clock: 4, covered: [5, 6], next_version: 7, slabs: 8 };
        let body = |sequence| encode_body(&[(4096, encode_moment(&moment, sequence, 100, 11))]);
        assert_eq!(super::sum(11, &body(9)), super::sum(11, &body(10)), "CRC32C doesn't see it");
        assert_ne!(body_sum(11, &body(9)), body_sum(11, &body(10)));
    }

    #[test]
    fn what_was_written_is_read_and_damage_is_noticed() {
        let moment = Moment { epoch: 3, clock: 4, covered: [5, 6], next_version: 7, slabs: 8 };
        let line = bytes_of(&encode_moment(&moment, 9, 100, 11));
        assert_eq!(sum(0, &line), 1_327_782_545);
        assert_eq!(decode_moment(&line, 11), Ok((9, moment, 100)));
        let zone = Zone {
            dying: 0,
            usage: Usage::Full,
            class: 3,
            generation: 9,
            live: 12,
            written: 13,
            moved: 0,
            end: 14,
            committed: 15,
            opened: 16,
            changed: 17,
            last: [(USER, 18), (CLEANER, 19)].into_iter().collect(),
            space: 0,
            has_failed: false,
        };
        let known = bytes_of(&encode_zone(5, &zone, 11));
        assert_eq!(sum(0, &known), 402_589_426);
        let read = decode_zone(5, &known, 11).unwrap().unwrap();
        let entry = ZoneEntry {
            zone: 5,
            generation: 9,
            class: 3,
            full: true,
            written: 13,
            opened: 16,
            changed: 17,
            last: [(USER, 18), (CLEANER, 19)].into_iter().collect(),
        };
        assert_eq!(read, KnownZone { entry, live: 12, committed: 15 });
        assert!(decode_zone(6, &known, 11).is_err(), "the line of another zone");
        let free = Zone { usage: Usage::Free, live: 0, ..zone };
        assert_eq!(decode_zone(5, &bytes_of(&encode_zone(5, &free, 11)), 11), Ok(None));
        for bit in 0..8 * LINE {
            let flipped = |line: &[u8; LINE]| {
                let mut damaged = *line;
                damaged[bit / 8] ^= 1 << (bit % 8);
                damaged
            };
            assert!(decode_moment(&flipped(&line), 11).is_err(), "bit {bit}");
            assert!(decode_zone(5, &flipped(&known), 11).is_err(), "bit {bit}");
        }
    }
}
