//! The bytes of a map's home: where everything is, its header, and the transactions of its journal. The book's page "The
//! map's home" describes them byte by byte. Decoding takes any bytes.

use block::{Error, Result};
use crc_fast::{CrcAlgorithm, Digest};
use zerocopy::little_endian::U64;
use zones::bytes::{Reader, Writer};
use zones::on_device::format::Uuid;

/// The version of the format that this code writes and reads.
pub const VERSION: u32 = 1;
/// What changes as a whole, in bytes: a line of a processor's cache.
pub const LINE: usize = 64;
/// A slab of the map, in bytes.
pub const SLAB: u64 = 4096;
/// How long a slot of the header is, in bytes; there are two.
pub const SLOT: u64 = 4096;
/// How many bytes of a slot are used.
pub const HEADER: usize = 128;
/// How long the header of a transaction is, in bytes.
pub const TRANSACTION: usize = LINE;
const MAGIC: &[u8; 8] = b"SILTHOME";
const TRANSACTION_MAGIC: &[u8; 8] = b"SILTHTX1";
/// Read as a number of the machine: the words of the map are that, too.
const ORDER: u32 = 0x0102_0304;
/// What begins here can be mapped in huge pages.
const ALIGNMENT: u64 = 2 << 20;
/// Room for what is said of versions: their names, and 4 bytes per 4 GiB of each.
const VERSIONS: u64 = 64 << 20;
const SMALLEST_JOURNAL: u64 = 64 << 10;
const LARGEST_JOURNAL: u64 = 64 << 20;

/// A line: eight words, each of which is stored as a whole.
pub type Line = [u64; LINE / 8];

/// The words of these bytes, zeros behind their end.
pub fn line_of(bytes: &[u8]) -> Line {
    let mut padded = [0; LINE];
    padded[..bytes.len()].copy_from_slice(bytes);
    zerocopy::transmute!(padded)
}

/// The bytes of a line.
pub fn bytes_of(line: &Line) -> [u8; LINE] {
    zerocopy::transmute!(*line)
}

/// CRC32C of the log's key and these bytes: nothing that isn't of this log has it.
pub fn sum(key: u64, bytes: &[u8]) -> u32 {
    logkit::record::keyed_sum(key, &[bytes])
}

/// Pads to `length` bytes, the last four of which are [`sum`].
pub fn sealed(mut writer: Writer, length: usize, key: u64) -> Vec<u8> {
    writer.0.resize(length - 4, 0);
    let sum = sum(key, &writer.0);
    writer.u32(sum);
    writer.0
}

/// Whether the first `length` bytes are there and end with their [`sum`].
pub fn is_sealed(bytes: &[u8], length: usize, key: u64) -> bool {
    let split = bytes.get(..length).and_then(|bytes| bytes.split_last_chunk::<4>());
    split.is_some_and(|(content, own)| sum(key, content) == u32::from_le_bytes(*own))
}

/// CRC-64/NVME of the log's key and the body of a transaction. Lines of the state end with a CRC32C of their own, so another
/// CRC32C over them would be the same whatever they say: in a body that is half of one transaction and half of an older one, it
/// would miss exactly these.
pub fn body_sum(key: u64, body: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(&key.to_le_bytes());
    digest.update(body);
    digest.finalize()
}

/// Where the parts of a home are, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// The journal.
    pub journal: u64,
    /// See `journal`.
    pub journal_length: u64,
    /// The state: a line for all of it, a line per zone, the versions.
    pub state: u64,
    /// See `state`.
    pub state_length: u64,
    /// The words of the map: everything from here on.
    pub words: u64,
}

impl Places {
    /// For a log of so many zones and a volume of so many blocks.
    pub fn new(zones: u32, blocks: u64) -> Self {
        // A quarter of a map without runs: enough that most of it is changed several times before the journal is full.
        let journal_length = blocks.next_multiple_of(SLAB).clamp(SMALLEST_JOURNAL, LARGEST_JOURNAL);
        Self::with_journal(zones, journal_length)
    }

    /// With a journal of this length, a multiple of the size of a slab.
    pub fn with_journal(zones: u32, journal_length: u64) -> Self {
        let journal = 2 * SLOT;
        let state = (journal + journal_length).next_multiple_of(SLAB);
        let state_length = (LINE as u64 * (1 + u64::from(zones))).next_multiple_of(SLAB) + VERSIONS;
        let words = (state + state_length).next_multiple_of(ALIGNMENT);
        Places { journal, journal_length, state, state_length, words }
    }

    /// Where the line of a zone is.
    pub fn zone(&self, zone: u32) -> u64 {
        self.state + LINE as u64 * (1 + u64::from(zone))
    }

    /// Where the versions are, of a log of so many zones.
    pub fn versions(&self, zones: u32) -> u64 {
        self.zone(zones)
    }

    /// Where a slab of the map is.
    pub fn slab(&self, slab: u32) -> u64 {
        self.words + SLAB * u64::from(slab)
    }

    /// Whether a transaction may change a line here.
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

/// What a slot of the header says. The valid one with the highest number counts; the next one goes to the other slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The log whose map this is.
    pub uuid: Uuid,
    /// How many zones it has.
    pub zones: u32,
    /// Where everything is.
    pub places: Places,
    /// How many slots have been written.
    pub number: u64,
    /// All transactions up to this one are in place; the journal begins behind it.
    pub base: u64,
}

impl Header {
    /// Where the slot is that this header goes to.
    pub fn offset(&self) -> u64 {
        self.number % 2 * SLOT
    }

    /// As bytes, [`HEADER`] of them.
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

    /// From bytes, which may be anything.
    ///
    /// # Errors
    /// [`Error::Protocol`] for no header, or one of another version; [`Error::Corrupt`] for a damaged one.
    pub fn decode(bytes: &[u8]) -> Result<Header> {
        let mut reader = Reader::new(bytes, "the header of a map's home");
        if reader.bytes(8)? != MAGIC {
            return Err(Error::protocol("it is no map's home"));
        }
        let version = reader.u32()?;
        let order = reader.bytes(4)? == ORDER.to_ne_bytes();
        if version != VERSION || !order {
            // The version is read on any machine; damage would give nonsense here, too.
            let found = if order {
                format!("version {version} of the format")
            } else {
                "another byte order".to_owned()
            };
            return Err(Error::protocol(format!(
                "it is a map's home of {found}; this program reads version {VERSION} in the byte order of this machine: use \
                 the program that wrote it"
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
            return Err(reader.strange("names places that can't be"));
        }
        Ok(Header { uuid, zones, places, number, base })
    }
}

/// The header of a transaction: how its lines are found. They follow it, or, where there are more than the journal has room
/// for, lie behind the words in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transaction {
    /// Its number.
    pub sequence: u64,
    /// How many lines it changes.
    pub lines: u32,
    /// Where its body is if it doesn't follow the header; else 0.
    pub elsewhere: u64,
    /// The checksum of the body.
    pub body_sum: u64,
}

/// How long the body of a transaction of so many lines is, in bytes.
pub fn body_length(lines: u32) -> u64 {
    (8 * u64::from(lines)).next_multiple_of(LINE as u64) + LINE as u64 * u64::from(lines)
}

/// The body of a transaction: where its lines go, in lines of the home, and the lines.
pub fn encode_body(lines: &[(u64, Line)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body_length(lines.len() as u32) as usize);
    lines.iter().for_each(|(offset, _)| bytes.extend_from_slice(&(offset / LINE as u64).to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(LINE), 0);
    lines.iter().for_each(|(_, line)| bytes.extend_from_slice(&bytes_of(line)));
    bytes
}

/// The lines of a body whose checksum is right.
///
/// # Errors
/// [`Error::Corrupt`] for lines outside of what transactions change.
pub fn decode_body(bytes: &[u8], lines: u32, places: &Places) -> Result<Vec<(u64, Line)>> {
    let count = lines as usize;
    let (numbers, rest) = bytes.split_at((8 * count).next_multiple_of(LINE).min(bytes.len()));
    let (numbers, lines) = (numbers.as_chunks::<8>().0, rest.as_chunks::<LINE>().0);
    let mut all = Vec::with_capacity(count);
    for (number, line) in numbers.iter().zip(lines).take(count) {
        let offset = u64::from_le_bytes(*number).saturating_mul(LINE as u64);
        if !places.holds(offset) {
            return Err(Error::corrupt(format!("a transaction of the map's home changes byte {offset}")));
        }
        all.push((offset, line_of(line)));
    }
    Ok(all)
}

impl Transaction {
    /// As bytes, [`TRANSACTION`] of them.
    pub fn encode(&self, key: u64) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put(TRANSACTION_MAGIC);
        writer.put(&[self.sequence, self.elsewhere, self.body_sum].map(U64::new));
        writer.u32(self.lines);
        sealed(writer, TRANSACTION, key)
    }

    /// From bytes, which may be anything; none if they are no transaction of this log.
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
