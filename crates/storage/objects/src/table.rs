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

use crate::compression::Size;
use crate::names::PieceName;
use block::{Error, Result};
use std::ops::Range;
use zones::bytes::{Reader, Writer};

/// Most zones of a volume.
pub(crate) const MAX_ZONES: u32 = 1 << 20;
/// Largest zone, in bytes: offsets have twelve hexadecimal digits in keys.
pub(crate) const MAX_ZONE_SIZE: u64 = 1 << 40;

/// Bit of a length in a base: that of the compressed object follows.
const COMPRESSED: u32 = 1 << 31;

/// Stored bytes of a zone: an object. Without padding, as a volume has many of them in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(4))]
pub(crate) struct Piece {
    pub offset: u64,
    pub length: u32,
    /// Bytes of the object of a compressed piece; 0 without compression.
    pub compressed: u32,
    pub epoch: u32,
    pub serial: u64,
}

impl Piece {
    /// Bytes of the piece and of its object.
    pub fn size(&self) -> Size {
        Size { length: self.length.into(), compressed: self.compressed }
    }
}

/// Sums of pieces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Number of pieces, and their bytes.
    pub pieces: u64,
    pub bytes: u64,
    /// Number of those that are compressed.
    compressed: u64,
    /// Bytes of all objects without encryption, and with it.
    objects: [u64; 2],
}

impl Sums {
    fn of(pieces: &[Piece]) -> Sums {
        let mut sums = Sums::default();
        pieces.iter().for_each(|piece| sums.add(piece));
        sums
    }

    fn add(&mut self, piece: &Piece) {
        let size = piece.size();
        self.pieces += 1;
        self.bytes = self.bytes.saturating_add(size.length);
        self.compressed += u64::from(size.is_compressed());
        for (sum, is_sealed) in self.objects.iter_mut().zip([false, true]) {
            *sum = sum.saturating_add(size.object(is_sealed));
        }
    }

    fn remove(&mut self, pieces: &[Piece]) {
        let removed = Sums::of(pieces);
        self.pieces -= removed.pieces;
        self.bytes -= removed.bytes;
        self.compressed -= removed.compressed;
        for (sum, removed) in self.objects.iter_mut().zip(removed.objects) {
            *sum -= removed;
        }
    }

    /// Whether some are compressed.
    pub fn has_compressed(&self) -> bool {
        self.compressed > 0
    }

    /// Bytes of the objects.
    pub fn object_bytes(&self, is_sealed: bool) -> u64 {
        self.objects[usize::from(is_sealed)]
    }
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
    /// A piece of the writer's epoch follows those of the zone. `compressed` as in [`Piece`].
    Piece { zone: u32, offset: u64, length: u32, compressed: u32, serial: u64 },
    /// The zone has another state.
    State { zone: u32, state: State },
    /// The zone is empty, in a new generation.
    Reset { zone: u32, generation: u64 },
    /// A piece of the writer's epoch has the bytes of several consecutive ones, and replaces them.
    Merge { zone: u32, offset: u64, length: u32, compressed: u32, serial: u64 },
}

impl Change {
    /// Whether it names a compressed piece.
    pub fn is_compressed(&self) -> bool {
        matches!(self, Change::Piece { compressed: 1.., .. } | Change::Merge { compressed: 1.., .. })
    }

    /// Zone that is changed.
    pub fn zone(&self) -> u32 {
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
    stored: Sums,
    /// Whether the last change was a clean stop.
    pub is_clean: bool,
}

fn invalid_change(zone: u32, what: &str) -> Error {
    Error::corrupt(format!(
        "a manifest changes zone {zone}, {what}: expected a change that follows the manifests before it; restore them"
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
        Ok(Table {
            zone_size,
            zones: vec![Entry::new(); zones as usize],
            stored: Sums::default(),
            is_clean: true,
        })
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

    /// Sums of all pieces.
    pub fn stored(&self) -> Sums {
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
        let entry = entry.ok_or_else(|| invalid_change(zone, &format!("of {count}")))?;
        match *change {
            Change::Piece { offset, length, compressed, serial, .. } => {
                let follows = offset == entry.end()
                    && (1..COMPRESSED).contains(&length)
                    && offset + u64::from(length) <= zone_size;
                if !follows || !matches!(entry.state, State::Empty | State::Begun) {
                    return Err(invalid_change(zone, &format!("by {length} bytes at {offset}")));
                }
                let piece = Piece { offset, length, compressed, epoch, serial };
                entry.pieces.push(piece);
                entry.state = State::Begun;
                self.stored.add(&piece);
            }
            Change::State { state, .. } => {
                let fits = match state {
                    State::Empty => false,
                    State::Begun => entry.state != State::Full,
                    State::Full => entry.state != State::Full,
                    State::Interrupted => entry.state == State::Begun,
                };
                if !fits {
                    return Err(invalid_change(zone, &format!("from {:?} to {state:?}", entry.state)));
                }
                entry.state = state;
            }
            Change::Reset { generation, .. } => {
                if entry.generation.checked_add(1) != Some(generation) {
                    return Err(invalid_change(
                        zone,
                        &format!("from generation {} to {generation}", entry.generation),
                    ));
                }
                self.stored.remove(&entry.pieces);
                *entry = Entry { generation, ..Entry::new() };
            }
            Change::Merge { offset, length, compressed, serial, .. } => {
                let merged = entry.covered(offset, length).filter(|_| length < COMPRESSED);
                let Some(merged) = merged else {
                    return Err(invalid_change(zone, &format!("by a merge of {length} bytes at {offset}")));
                };
                let piece = Piece { offset, length, compressed, epoch, serial };
                self.stored.remove(&entry.pieces[merged.clone()]);
                self.stored.add(&piece);
                entry.pieces.splice(merged, [piece]);
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
                if piece.compressed > 0 {
                    writer.u32(piece.length | COMPRESSED);
                    writer.u32(piece.compressed);
                } else {
                    writer.u32(piece.length);
                }
                writer.u32(piece.epoch);
                writer.u64(piece.serial);
            }
        }
        writer.0
    }

    /// Most bytes that [`encode`](Self::encode) may return.
    pub fn longest_encoding(&self) -> usize {
        16 + 17 * self.zones.len() + (16 * self.stored.pieces + 4 * self.stored.compressed) as usize
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
                let length = reader.u32()?;
                let compressed = match length & COMPRESSED {
                    0 => 0,
                    _ => compressed_length(&mut reader)?,
                };
                let (length, epoch, serial) = (length & !COMPRESSED, reader.u32()?, reader.u64()?);
                let offset = entry.end();
                if length == 0 || offset + u64::from(length) > zone_size {
                    return Err(reader.strange("has a piece outside of its zone"));
                }
                let piece = Piece { offset, length, compressed, epoch, serial };
                entry.pieces.push(piece);
                table.stored.add(&piece);
            }
            if generation == 0 || (state == State::Empty && !entry.pieces.is_empty()) {
                return Err(reader.strange("has a zone that can't be"));
            }
            let slot = table.zones.get_mut(zone as usize);
            let slot = slot.filter(|slot| **slot == Entry::new());
            *slot.ok_or_else(|| reader.strange("has a zone twice, or one that doesn't exist"))? = entry;
        }
        reader.end()?;
        Ok(table)
    }
}

/// Decodes the length of a compressed object.
fn compressed_length(reader: &mut Reader<'_>) -> Result<u32> {
    match reader.u32()? {
        0 => Err(reader.strange("has a compressed object without bytes")),
        bytes => Ok(bytes),
    }
}

fn put_piece(writer: &mut Writer, zone: u32, offset: u64, (length, compressed): (u32, u32), serial: u64) {
    writer.u32(zone);
    writer.u64(offset);
    writer.u32(length);
    if compressed > 0 {
        writer.u32(compressed);
    }
    writer.u64(serial);
}

/// Encodes changes, for a delta.
pub(crate) fn encode_changes(changes: &[Change]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u32(changes.len() as u32);
    for change in changes {
        match *change {
            Change::Piece { zone, offset, length, compressed, serial } => {
                writer.u8(if compressed > 0 { 5 } else { 1 });
                put_piece(&mut writer, zone, offset, (length, compressed), serial);
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
            Change::Merge { zone, offset, length, compressed, serial } => {
                writer.u8(if compressed > 0 { 6 } else { 4 });
                put_piece(&mut writer, zone, offset, (length, compressed), serial);
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
            1 | 5 => {
                let (offset, length) = (reader.u64()?, reader.u32()?);
                let compressed = if kind == 5 { compressed_length(&mut reader)? } else { 0 };
                Change::Piece { zone, offset, length, compressed, serial: reader.u64()? }
            }
            2 => {
                let state = State::from_code(reader.u8()?);
                Change::State { zone, state: state.ok_or_else(|| reader.strange("has an unknown state"))? }
            }
            3 => Change::Reset { zone, generation: reader.u64()? },
            4 | 6 => {
                let (offset, length) = (reader.u64()?, reader.u32()?);
                let compressed = if kind == 6 { compressed_length(&mut reader)? } else { 0 };
                Change::Merge { zone, offset, length, compressed, serial: reader.u64()? }
            }
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
        Change::Piece { zone, offset, length, compressed: 0, serial: offset }
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
        assert_eq!((table.stored().pieces, table.stored().bytes), (2, 1536));
        let mut large = Table::new(1, 1 << 40).unwrap();
        assert!(large.apply(&piece(0, 0, 1 << 31), 3).is_err(), "a base has no bit for it");
        assert!(large.apply(&piece(0, 0, 1 << 30), 3).is_ok());
        assert!(table.names(1).all(|name| table.has(&name)));
        assert!(!table.has(&PieceName { zone: 1, generation: 2, epoch: 3, offset: 0, serial: 0 }));
    }

    #[test]
    fn tables_and_changes_are_decoded_as_they_were_encoded() {
        let mut table = Table::new(1000, 1 << 30).unwrap();
        let changes = [
            piece(7, 0, 4096),
            piece(7, 4096, 8192),
            Change::Piece { zone: 7, offset: 12288, length: 4096, compressed: 700, serial: 3 },
            Change::Piece { zone: 9, offset: 0, length: 4096, compressed: 800, serial: 4 },
            Change::Merge { zone: 7, offset: 4096, length: 12288, compressed: 900, serial: 5 },
            Change::State { zone: 8, state: State::Begun },
            Change::Reset { zone: 999, generation: 2 },
        ];
        changes.iter().for_each(|change| table.apply(change, 5).unwrap());
        let sums = table.stored();
        assert_eq!((sums.pieces, sums.bytes, sums.has_compressed()), (3, 20480, true));
        assert_eq!(sums.object_bytes(false), 4096 + 64 + 4 + 800 + 900);
        assert_eq!(sums.object_bytes(true), 4096 + 64 + 40 + 800 + 900);
        assert_eq!(Table::decode(&table.encode()).unwrap(), table);
        let mut without = table.clone();
        for zone in [7, 9] {
            without.apply(&Change::Reset { zone, generation: 2 }, 6).unwrap();
        }
        assert_eq!(without.stored(), Sums::default());
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
        let compressed = Change::Piece { zone: 2, offset: 512, length: 512, compressed: 99, serial: 1 };
        let full = Change::State { zone: 2, state: State::Full };
        let changes = [piece(0, 0, 4096), piece(2, 0, 512), compressed, full];
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
