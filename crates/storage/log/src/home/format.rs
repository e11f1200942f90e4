//! Format of a map's home: its layout, its header, and the transactions of its journal. The book's page "The
//! map's home" describes the format byte by byte. Decoding accepts untrusted bytes.

use block::{Error, Result};
use crc_fast::{CrcAlgorithm, Digest};
use zerocopy::little_endian::U64;
use zones::bytes::{Reader, Writer};
use zones::on_device::format::Uuid;

/// The version of the format that this code writes and reads.
pub const VERSION: u32 = 1;
/// Unit of change in bytes: a cache line.
pub const LINE: usize = 64;
/// Size of a slab of the map in bytes.
pub const SLAB: u64 = 4096;
/// Size of a slot of the header in bytes; there are two.
pub const SLOT: u64 = 4096;
/// Number of used bytes of a slot.
pub const HEADER: usize = 128;
/// Size of the header of a transaction in bytes.
pub const TRANSACTION: usize = LINE;
const MAGIC: &[u8; 8] = b"SILTHOME";
const TRANSACTION_MAGIC: &[u8; 8] = b"SILTHTX1";
/// Byte order mark in the machine's order, which is also that of the map's words.
const ORDER: u32 = 0x0102_0304;
/// Alignment of parts that can be mapped in huge pages.
const ALIGNMENT: u64 = 2 << 20;
/// Space for the versions: their names, and 4 bytes per 4 GiB of each.
const VERSIONS: u64 = 64 << 20;
const MIN_JOURNAL: u64 = 64 << 10;
const MAX_JOURNAL: u64 = 64 << 20;

/// A line: eight words, each of which is stored atomically.
pub type Line = [u64; LINE / 8];

/// Returns the words of these bytes, padded with zeros.
pub fn line_of(bytes: &[u8]) -> Line {
    let mut padded = [0; LINE];
    padded[..bytes.len()].copy_from_slice(bytes);
    zerocopy::transmute!(padded)
}

/// Returns the bytes of a line.
pub fn bytes_of(line: &Line) -> [u8; LINE] {
    zerocopy::transmute!(*line)
}

/// Returns the CRC32C of the log's key and these bytes, so that another log's bytes don't match.
pub fn sum(key: u64, bytes: &[u8]) -> u32 {
    logkit::record::keyed_sum(key, &[bytes])
}

/// Pads the bytes of `writer` to `length` bytes, the last four of which are their [`sum`].
pub fn sealed(mut writer: Writer, length: usize, key: u64) -> Vec<u8> {
    writer.0.resize(length - 4, 0);
    let sum = sum(key, &writer.0);
    writer.u32(sum);
    writer.0
}

/// Returns whether the first `length` bytes exist and end with their [`sum`].
pub fn is_sealed(bytes: &[u8], length: usize, key: u64) -> bool {
    let split = bytes.get(..length).and_then(|bytes| bytes.split_last_chunk::<4>());
    split.is_some_and(|(content, own)| sum(key, content) == u32::from_le_bytes(*own))
}

/// CRC-64/NVME of the log's key and the body of a transaction. Lines of the state end with a CRC32C of their
/// own, so a CRC32C over them is the same for all valid contents: it would miss a body that mixes lines of a
/// transaction with lines of an older one.
pub fn body_sum(key: u64, body: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&key.to_le_bytes());
    digest.update(body);
    digest.finalize()
}

/// Offsets of the parts of a home, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// The journal.
    pub journal: u64,
    /// Length of the journal.
    pub journal_length: u64,
    /// The state: one line for the moment, one line per zone, then the versions.
    pub state: u64,
    /// Length of the state.
    pub state_length: u64,
    /// The words of the map, to the end of the home.
    pub words: u64,
}

impl Places {
    /// Returns the layout for a log of `zones` zones and a volume of `blocks` blocks.
    pub fn new(zones: u32, blocks: u64) -> Self {
        // A quarter of the size of a map without runs, so most of the map changes several times before the
        // journal is full.
        let journal_length = blocks.next_multiple_of(SLAB).clamp(MIN_JOURNAL, MAX_JOURNAL);
        Self::with_journal(zones, journal_length)
    }

    /// Returns the layout with a journal of this length, a multiple of the size of a slab.
    pub fn with_journal(zones: u32, journal_length: u64) -> Self {
        let journal = 2 * SLOT;
        let state = (journal + journal_length).next_multiple_of(SLAB);
        let state_length = (LINE as u64 * (1 + u64::from(zones))).next_multiple_of(SLAB) + VERSIONS;
        let words = (state + state_length).next_multiple_of(ALIGNMENT);
        Places { journal, journal_length, state, state_length, words }
    }

    /// Returns the offset of a zone's line.
    pub fn zone(&self, zone: u32) -> u64 {
        self.state + LINE as u64 * (1 + u64::from(zone))
    }

    /// Returns the offset of the versions of a log with this number of zones.
    pub fn versions(&self, zones: u32) -> u64 {
        self.zone(zones)
    }

    /// Returns the offset of a slab of the map.
    pub fn slab(&self, slab: u32) -> u64 {
        self.words + SLAB * u64::from(slab)
    }

    /// Returns whether a transaction may change the line at this offset.
    fn holds(&self, offset: u64) -> bool {
        (self.state..self.state + self.state_length).contains(&offset)
            || (self.words..self.words + (1 << 44)).contains(&offset)
    }

    fn is_possible(&self) -> bool {
        let ends = |start: u64, length: u64| start.checked_add(length).filter(|end| *end <= 1 << 62);
        let (Some(journal), Some(state)) =
            (ends(self.journal, self.journal_length), ends(self.state, self.state_length))
        else {
            return false;
        };
        let aligned = [self.journal, self.journal_length, self.state, self.state_length, self.words]
            .iter()
            .all(|place| place.is_multiple_of(SLAB));
        aligned
            && self.journal >= 2 * SLOT
            && journal <= self.state
            && state <= self.words
            && self.words <= 1 << 62
    }
}

/// Contents of a header slot. The valid slot with the highest number is authoritative; the next header is
/// written to the other slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// UUID of the log.
    pub uuid: Uuid,
    /// Number of zones of the log.
    pub zones: u32,
    /// Offsets of the parts.
    pub places: Places,
    /// Number of slots that have been written.
    pub number: u64,
    /// Last transaction whose lines are stored; the journal begins after it.
    pub base: u64,
}

impl Header {
    /// Returns the offset of the slot that this header is written to.
    pub fn offset(&self) -> u64 {
        self.number % 2 * SLOT
    }

    /// Encodes the header in [`HEADER`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put(MAGIC);
        writer.u32(VERSION);
        writer.put(&ORDER.to_ne_bytes());
        writer.put(self.uuid.as_bytes());
        writer.u32(self.zones);
        writer.u32(0);
        let Places { journal, journal_length, state, state_length, words } = self.places;
        let numbers = [journal, journal_length, state, state_length, words, self.number, self.base];
        writer.put(&numbers.map(U64::new));
        sealed(writer, HEADER, 0)
    }

    /// Decodes a header from untrusted bytes.
    ///
    /// # Errors
    /// [`Error::Protocol`] if there is no header, or one of another format version; [`Error::Corrupt`] for a
    /// damaged one.
    pub fn decode(bytes: &[u8]) -> Result<Header> {
        let mut reader = Reader::new(bytes, "the header of a map's home");
        if reader.bytes(8)? != MAGIC {
            return Err(Error::protocol(
                "not a map's home: other magic; expected the file that map_home names",
            ));
        }
        let version = reader.u32()?;
        let order = reader.bytes(4)? == ORDER.to_ne_bytes();
        if version != VERSION || !order {
            // The version is read in either byte order; damaged bytes would give a meaningless version.
            let found = if order {
                format!("version {version} of the format")
            } else {
                "another byte order".to_owned()
            };
            return Err(Error::protocol(format!(
                "a map's home of {found}; expected version {VERSION} in the byte order of this machine; use the program that \
                 wrote it"
            )));
        }
        if !is_sealed(bytes, HEADER, 0) {
            return Err(reader.strange("is damaged"));
        }
        let uuid = Uuid::from_bytes(*reader.take()?);
        let zones = reader.u32()?;
        reader.u32()?;
        let [journal, journal_length, state, state_length, words, number, base] = reader.u64s()?;
        let places = Places { journal, journal_length, state, state_length, words };
        if !places.is_possible() || places.versions(zones) > places.state + places.state_length {
            return Err(reader.strange("has offsets out of range"));
        }
        Ok(Header { uuid, zones, places, number, base })
    }
}

/// Header of a transaction, with the location of its lines. They follow the header or, if they don't fit in
/// the journal, are stored after the words in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transaction {
    /// Number of the transaction.
    pub sequence: u64,
    /// Number of lines that the transaction changes.
    pub lines: u32,
    /// Offset of the body; 0 if it follows the header.
    pub elsewhere: u64,
    /// Checksum of the body.
    pub body_sum: u64,
}

/// Returns the size in bytes of the body of a transaction with this number of lines.
pub fn body_length(lines: u32) -> u64 {
    (8 * u64::from(lines)).next_multiple_of(LINE as u64) + LINE as u64 * u64::from(lines)
}

/// Encodes the body of a transaction: the line numbers in the home, then the lines.
pub fn encode_body(lines: &[(u64, Line)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body_length(lines.len() as u32) as usize);
    lines.iter().for_each(|(offset, _)| bytes.extend_from_slice(&(offset / LINE as u64).to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(LINE), 0);
    lines.iter().for_each(|(_, line)| bytes.extend_from_slice(&bytes_of(line)));
    bytes
}

/// Decodes the lines of a body whose checksum is valid.
///
/// # Errors
/// [`Error::Corrupt`] for lines that transactions never change.
pub fn decode_body(bytes: &[u8], lines: u32, places: &Places) -> Result<Vec<(u64, Line)>> {
    let count = lines as usize;
    let (numbers, rest) = bytes.split_at((8 * count).next_multiple_of(LINE).min(bytes.len()));
    let (numbers, lines) = (numbers.as_chunks::<8>().0, rest.as_chunks::<LINE>().0);
    let mut all = Vec::with_capacity(count);
    for (number, line) in numbers.iter().zip(lines).take(count) {
        let offset = u64::from_le_bytes(*number).saturating_mul(LINE as u64);
        if !places.holds(offset) {
            return Err(Error::corrupt(format!(
                "transaction of the map's home: offset {offset} out of range"
            )));
        }
        all.push((offset, line_of(line)));
    }
    Ok(all)
}

impl Transaction {
    /// Encodes the header in [`TRANSACTION`] bytes.
    pub fn encode(&self, key: u64) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put(TRANSACTION_MAGIC);
        writer.put(&[self.sequence, self.elsewhere, self.body_sum].map(U64::new));
        writer.u32(self.lines);
        sealed(writer, TRANSACTION, key)
    }

    /// Decodes a header from untrusted bytes; `None` unless they are a transaction of this log.
    pub fn decode(bytes: &[u8], key: u64) -> Option<Transaction> {
        if !bytes.starts_with(TRANSACTION_MAGIC) || !is_sealed(bytes, TRANSACTION, key) {
            return None;
        }
        let mut reader = Reader::new(&bytes[8..], "a transaction");
        let [sequence, elsewhere, body_sum] = reader.u64s().ok()?;
        Some(Transaction { sequence, lines: reader.u32().ok()?, elsewhere, body_sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            uuid: Uuid::from_bytes([9; 16]),
            zones: 300,
            places: Places::new(300, 1 << 20),
            number: 5,
            base: 17,
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = header().encode();
        assert_eq!((bytes.len(), sum(0, &bytes)), (HEADER, 1_214_729_159), "the bytes of version {VERSION}");
        assert_eq!(Header::decode(&bytes), Ok(header()));
        (0..HEADER).for_each(|length| assert!(Header::decode(&bytes[..length]).is_err(), "{length} bytes"));
        for bit in 0..8 * HEADER {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&damaged).is_err(), "bit {bit}");
        }
        let places = Places::new(300, 1 << 20);
        let lines: Vec<(u64, Line)> = (0..11)
            .map(|number| (places.slab(3) + number * 192, [number, 1, 2, 3, 4, 5, 6, u64::MAX]))
            .collect();
        let body = encode_body(&lines);
        assert_eq!(body.len() as u64, body_length(11));
        assert_eq!(decode_body(&body, 11, &places), Ok(lines));
        assert!(
            decode_body(&encode_body(&[(0, [0; 8])]), 1, &places).is_err(),
            "the header isn't changed so"
        );
        let transaction = Transaction { sequence: 3, lines: 11, elsewhere: 0, body_sum: body_sum(7, &body) };
        let bytes = transaction.encode(7);
        assert_eq!(
            (bytes.len(), sum(0, &bytes)),
            (TRANSACTION, 3_848_099_365),
            "the bytes of version {VERSION}"
        );
        assert_eq!(Transaction::decode(&bytes, 7), Some(transaction));
        assert_eq!(Transaction::decode(&bytes, 8), None, "of another log");
        for bit in 0..8 * TRANSACTION {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Transaction::decode(&damaged, 7), None, "bit {bit}");
        }
    }

    #[test]
    fn places_have_room() {
        for (zones, blocks) in [(8, 1), (300, 1 << 18), (1 << 20, u64::from(u32::MAX))] {
            let places = Places::new(zones, blocks);
            assert!(places.is_possible());
            assert!(places.versions(zones) + (1 << 20) < places.words);
            assert!(places.words.is_multiple_of(2 << 20));
        }
    }
}
