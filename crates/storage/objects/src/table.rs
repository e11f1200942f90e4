//! The zone table: state, generation and pieces of each zone, as the manifests have it.
//!
//! # Promises
//! - A change is applied only where it fits: pieces of a zone follow each other without a gap, a full or
//!   interrupted zone takes none, and a reset raises the generation by one. So a manifest that doesn't belong
//!   to the ones before is found.
//! - Decoding of arbitrary bytes is an error or a valid table, in memory proportional to the bytes and the
//!   number of zones.
//!
//! Left to others: manifests (`format`), and what is appended and not in a manifest yet (`core`).

use crate::names::PieceName;
use block::{Error, Result};
use std::ops::Range;
use zones::bytes::{Reader, Writer};

/// Most zones of a volume.
pub(crate) const MAX_ZONES: u32 = 1 << 20;
/// Largest zone, in bytes: offsets have twelve hexadecimal digits in keys.
pub(crate) const MAX_ZONE_SIZE: u64 = 1 << 40;

/// Stored bytes of a zone: an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub offset: u64,
    pub length: u32,
    pub epoch: u32,
    pub serial: u64,
}

/// State of a zone in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Empty,
    /// Takes more pieces. After a clean stop the zone is closed, else interrupted.
    Begun,
    Full,
    Interrupted,
}

impl State {
    fn code(self) -> u8 {
        match self {
            State::Empty => 0,
            State::Begun => 1,
            State::Full => 2,
            State::Interrupted => 3,
        }
    }

    fn from_code(code: u8) -> Option<State> {
        [State::Empty, State::Begun, State::Full, State::Interrupted].get(usize::from(code)).copied()
    }
}

/// A zone in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub generation: u64,
    pub state: State,
    /// In the order of their offsets, without gaps, from 0 on.
    pub pieces: Vec<Piece>,
}

impl Entry {
    fn new() -> Self {
        Entry { generation: 1, state: State::Empty, pieces: Vec::new() }
    }

    /// Numbers of the pieces, at least two, that have exactly these bytes.
    fn covered(&self, offset: u64, length: u32) -> Option<Range<usize>> {
        let first = self.pieces.binary_search_by_key(&offset, |piece| piece.offset).ok()?;
        let end = offset + u64::from(length);
        let last = self.pieces.partition_point(|piece| piece.offset < end);
        let after = self.pieces.get(last).map_or(self.end(), |piece| piece.offset);
        (last >= first + 2 && after == end).then_some(first..last)
    }

    /// Offset after the last piece.
    pub fn end(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.offset + u64::from(piece.length))
    }
}

/// Change of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// A piece of the writer's epoch follows those of the zone.
    Piece { zone: u32, offset: u64, length: u32, serial: u64 },
    /// The zone has another state.
    State { zone: u32, state: State },
    /// The zone is empty, in a new generation.
    Reset { zone: u32, generation: u64 },
    /// A piece of the writer's epoch has the bytes of several consecutive ones, and replaces them.
    Merge { zone: u32, offset: u64, length: u32, serial: u64 },
}

impl Change {
    fn zone(&self) -> u32 {
        let (Change::Piece { zone, .. }
        | Change::State { zone, .. }
        | Change::Reset { zone, .. }
        | Change::Merge { zone, .. }) = *self;
        zone
    }
}

/// All zones of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub zone_size: u64,
    pub zones: Vec<Entry>,
    /// Number of pieces, and their bytes.
    stored: (u64, u64),
    /// Whether the last change was a clean stop.
    pub is_clean: bool,
}

fn strange(zone: u32, what: &str) -> Error {
    Error::corrupt(format!(
        "a manifest changes zone {zone}, {what}: it doesn't follow the manifests before it"
    ))
}

impl Table {
    /// Returns empty zones.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a number or a size out of range.
    pub fn new(zones: u32, zone_size: u64) -> Result<Table> {
        if !(1..=MAX_ZONES).contains(&zones) {
            return Err(Error::invalid(format!("{zones} zones: expected 1 to {MAX_ZONES}")));
        }
        if zone_size == 0 || zone_size > MAX_ZONE_SIZE || !zone_size.is_multiple_of(512) {
            return Err(Error::invalid(format!(
                "zones of {zone_size} bytes: expected a multiple of 512 bytes, up to 1 TiB"
            )));
        }
        Ok(Table { zone_size, zones: vec![Entry::new(); zones as usize], stored: (0, 0), is_clean: true })
    }

    /// Names of the pieces of a zone.
    pub fn names(&self, zone: u32) -> impl Iterator<Item = PieceName> + '_ {
        let entry = &self.zones[zone as usize];
        entry.pieces.iter().map(move |piece| PieceName {
            zone,
            generation: entry.generation,
            epoch: piece.epoch,
            offset: piece.offset,
            serial: piece.serial,
        })
    }

    /// Names of the pieces that a change replaces or removes.
    pub fn replaced(&self, change: &Change) -> Vec<PieceName> {
        match *change {
            Change::Reset { zone, .. } => self.names(zone).collect(),
            Change::Merge { zone, offset, length, .. } => {
                let merged = self.zones.get(zone as usize).and_then(|entry| entry.covered(offset, length));
                let merged = merged.unwrap_or_default();
                self.names(zone).skip(merged.start).take(merged.len()).collect()
            }
            Change::Piece { .. } | Change::State { .. } => Vec::new(),
        }
    }

    /// Whether a zone has several consecutive pieces with exactly these bytes.
    pub fn has_run(&self, zone: u32, offset: u64, length: u32) -> bool {
        self.zones.get(zone as usize).is_some_and(|entry| entry.covered(offset, length).is_some())
    }

    /// Whether a zone has this piece.
    pub fn has(&self, name: &PieceName) -> bool {
        let Some(entry) = self.zones.get(name.zone as usize) else { return false };
        let at = entry.pieces.binary_search_by_key(&name.offset, |piece| piece.offset);
        at.is_ok_and(|at| {
            let piece = entry.pieces[at];
            (entry.generation, piece.epoch, piece.serial) == (name.generation, name.epoch, name.serial)
        })
    }

    /// Number of pieces, and their bytes.
    pub fn stored(&self) -> (u64, u64) {
        self.stored
    }

    /// After an unclean stop, zones that were begun are interrupted.
    pub fn interrupt(&mut self) {
        if !self.is_clean {
            let begun = self.zones.iter_mut().filter(|entry| entry.state == State::Begun);
            begun.for_each(|entry| entry.state = State::Interrupted);
        }
    }

    /// Applies a change of a writer of this epoch.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it doesn't fit.
    pub fn apply(&mut self, change: &Change, epoch: u32) -> Result<()> {
        let zone = change.zone();
        let zone_size = self.zone_size;
        let count = self.zones.len();
        let entry = self.zones.get_mut(zone as usize);
        let entry = entry.ok_or_else(|| strange(zone, &format!("of {count}")))?;
        match *change {
            Change::Piece { offset, length, serial, .. } => {
                let follows = offset == entry.end() && length > 0 && offset + u64::from(length) <= zone_size;
                if !follows || !matches!(entry.state, State::Empty | State::Begun) {
                    return Err(strange(zone, &format!("by {length} bytes at {offset}")));
                }
                entry.pieces.push(Piece { offset, length, epoch, serial });
                entry.state = State::Begun;
                self.stored = (self.stored.0 + 1, self.stored.1 + u64::from(length));
            }
            Change::State { state, .. } => {
                let fits = match state {
                    State::Empty => false,
                    State::Begun => entry.state != State::Full,
                    State::Full => entry.state != State::Full,
                    State::Interrupted => entry.state == State::Begun,
                };
                if !fits {
                    return Err(strange(zone, &format!("from {:?} to {state:?}", entry.state)));
                }
                entry.state = state;
            }
            Change::Reset { generation, .. } => {
                if entry.generation.checked_add(1) != Some(generation) {
                    return Err(strange(
                        zone,
                        &format!("from generation {} to {generation}", entry.generation),
                    ));
                }
                let removed = (entry.pieces.len() as u64, entry.end());
                self.stored = (self.stored.0 - removed.0, self.stored.1 - removed.1);
                *entry = Entry { generation, ..Entry::new() };
            }
            Change::Merge { offset, length, serial, .. } => {
                let Some(merged) = entry.covered(offset, length) else {
                    return Err(strange(zone, &format!("by a merge of {length} bytes at {offset}")));
                };
                self.stored.0 -= merged.len() as u64 - 1;
                entry.pieces.splice(merged, [Piece { offset, length, epoch, serial }]);
                if entry.pieces.capacity() > 2 * entry.pieces.len() {
                    entry.pieces.shrink_to_fit();
                }
            }
        }
        Ok(())
    }

    /// Encodes the whole table, for a base.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(self.zones.len() as u32);
        writer.u64(self.zone_size);
        let changed = || (0_u32..).zip(&self.zones).filter(|(_, entry)| **entry != Entry::new());
        writer.u32(changed().count() as u32);
        for (zone, entry) in changed() {
            writer.u32(zone);
            writer.u64(entry.generation);
            writer.u8(entry.state.code());
            writer.u32(entry.pieces.len() as u32);
            for piece in &entry.pieces {
                writer.u32(piece.length);
                writer.u32(piece.epoch);
                writer.u64(piece.serial);
            }
        }
        writer.0
    }

    /// Most bytes that [`encode`](Self::encode) may return.
    pub fn longest_encoding(&self) -> usize {
        16 + 17 * self.zones.len() + 16 * self.stored.0 as usize
    }

    /// Decodes a table.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that aren't one.
    pub fn decode(bytes: &[u8]) -> Result<Table> {
        let mut reader = Reader::new(bytes, "the zone table of a base manifest");
        let (zones, zone_size) = (reader.u32()?, reader.u64()?);
        let mut table =
            Table::new(zones, zone_size).map_err(|error| Error::corrupt(error.detail().to_owned()))?;
        for _ in 0..reader.count(17)? {
            let (zone, generation) = (reader.u32()?, reader.u64()?);
            let state =
                State::from_code(reader.u8()?).ok_or_else(|| reader.strange("has an unknown state"))?;
            let mut entry = Entry { generation, state, pieces: Vec::new() };
            for _ in 0..reader.count(16)? {
                let (length, epoch, serial) = (reader.u32()?, reader.u32()?, reader.u64()?);
                let offset = entry.end();
                if length == 0 || offset + u64::from(length) > zone_size {
                    return Err(reader.strange("has a piece outside of its zone"));
                }
                entry.pieces.push(Piece { offset, length, epoch, serial });
            }
            if generation == 0 || (state == State::Empty && !entry.pieces.is_empty()) {
                return Err(reader.strange("has a zone that can't be"));
            }
            table.stored =
                (table.stored.0 + entry.pieces.len() as u64, table.stored.1.saturating_add(entry.end()));
            let slot = table.zones.get_mut(zone as usize);
            let slot = slot.filter(|slot| **slot == Entry::new());
            *slot.ok_or_else(|| reader.strange("has a zone twice, or one that doesn't exist"))? = entry;
        }
        reader.end()?;
        Ok(table)
    }
}

/// Encodes changes, for a delta.
pub(crate) fn encode_changes(changes: &[Change]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u32(changes.len() as u32);
    for change in changes {
        match *change {
            Change::Piece { zone, offset, length, serial } => {
                writer.u8(1);
                writer.u32(zone);
                writer.u64(offset);
                writer.u32(length);
                writer.u64(serial);
            }
            Change::State { zone, state } => {
                writer.u8(2);
                writer.u32(zone);
                writer.u8(state.code());
            }
            Change::Reset { zone, generation } => {
                writer.u8(3);
                writer.u32(zone);
                writer.u64(generation);
            }
            Change::Merge { zone, offset, length, serial } => {
                writer.u8(4);
                writer.u32(zone);
                writer.u64(offset);
                writer.u32(length);
                writer.u64(serial);
            }
        }
    }
    writer.0
}

/// Decodes changes.
///
/// # Errors
/// [`Error::Corrupt`] for bytes that aren't changes.
pub(crate) fn decode_changes(bytes: &[u8]) -> Result<Vec<Change>> {
    let mut reader = Reader::new(bytes, "a delta manifest");
    let mut changes = Vec::new();
    for _ in 0..reader.count(6)? {
        let kind = reader.u8()?;
        let zone = reader.u32()?;
        changes.push(match kind {
            1 => Change::Piece { zone, offset: reader.u64()?, length: reader.u32()?, serial: reader.u64()? },
            2 => {
                let state = State::from_code(reader.u8()?);
                Change::State { zone, state: state.ok_or_else(|| reader.strange("has an unknown state"))? }
            }
            3 => Change::Reset { zone, generation: reader.u64()? },
            4 => Change::Merge { zone, offset: reader.u64()?, length: reader.u32()?, serial: reader.u64()? },
            _ => return Err(reader.strange(&format!("has a change of the unknown kind {kind}"))),
        });
    }
    reader.end()?;
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(zone: u32, offset: u64, length: u32) -> Change {
        Change::Piece { zone, offset, length, serial: offset }
    }

    #[test]
    fn changes_apply_only_where_they_fit() {
        let mut table = Table::new(4, 4096).unwrap();
        let full = Change::State { zone: 1, state: State::Full };
        for change in [piece(1, 0, 512), piece(1, 512, 1024), full, Change::Reset { zone: 2, generation: 2 }]
        {
            table.apply(&change, 3).unwrap();
        }
        for refused in [
            piece(1, 1536, 512),
            piece(0, 512, 512),
            piece(0, 0, 8192),
            piece(4, 0, 512),
            full,
            Change::State { zone: 0, state: State::Empty },
            Change::State { zone: 0, state: State::Interrupted },
            Change::Reset { zone: 2, generation: 2 },
            Change::Reset { zone: 2, generation: 4 },
        ] {
            let before = table.clone();
            assert!(matches!(table.apply(&refused, 3), Err(Error::Corrupt(_))), "{refused:?}");
            assert_eq!(table, before);
        }
        assert_eq!(table.stored(), (2, 1536));
        assert!(table.names(1).all(|name| table.has(&name)));
        assert!(!table.has(&PieceName { zone: 1, generation: 2, epoch: 3, offset: 0, serial: 0 }));
    }

    #[test]
    fn tables_and_changes_are_decoded_as_they_were_encoded() {
        let mut table = Table::new(1000, 1 << 30).unwrap();
        let changes = [
            piece(7, 0, 4096),
            piece(7, 4096, 8192),
            Change::State { zone: 8, state: State::Begun },
            Change::Reset { zone: 999, generation: 2 },
        ];
        changes.iter().for_each(|change| table.apply(change, 5).unwrap());
        assert_eq!(Table::decode(&table.encode()).unwrap(), table);
        assert!(table.encode().len() <= table.longest_encoding());
        assert_eq!(decode_changes(&encode_changes(&changes)).unwrap(), changes);
        table.is_clean = false;
        table.interrupt();
        assert_eq!(
            [7, 8, 999].map(|zone| table.zones[zone].state),
            [State::Interrupted, State::Interrupted, State::Empty]
        );
    }

    /// Every change of one byte, and every shorter text, is an error or another valid table.
    #[test]
    fn arbitrary_bytes_are_refused_or_valid() {
        let mut table = Table::new(3, 1 << 20).unwrap();
        let changes = [piece(0, 0, 4096), piece(2, 0, 512), Change::State { zone: 2, state: State::Full }];
        changes.iter().for_each(|change| table.apply(change, 5).unwrap());
        let (bytes, delta) = (table.encode(), encode_changes(&changes));
        let mut random = runtime::Random::new(1);
        for round in 0..20_000_usize {
            let (mut bytes, mut delta) = (bytes.clone(), delta.clone());
            for bytes in [&mut bytes, &mut delta] {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
                bytes.truncate(if round % 3 == 0 { at } else { bytes.len() });
            }
            if let Ok(decoded) = Table::decode(&bytes) {
                assert_eq!(Table::decode(&decoded.encode()).unwrap(), decoded);
            }
            for change in decode_changes(&delta).unwrap_or_default() {
                let _ = table.clone().apply(&change, 1);
            }
        }
    }
}
