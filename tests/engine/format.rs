//! What counters have on the medium: the block of a value, the meta of a record, and the state in a checkpoint.

use block::{Buffer, Error, Result};
use runtime::Random;
use zones::bytes::{Reader, Writer};

/// A block of a zone. Zone 0 holds roots, so no counter is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The zone.
    pub zone: u32,
    /// Block of the zone.
    pub position: u32,
}

impl Place {
    /// Place of a counter that was never set.
    pub const NOWHERE: Place = Place { zone: 0, position: 0 };

    fn encode(self, writer: &mut Writer) {
        writer.u32(self.zone);
        writer.u32(self.position);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Place { zone: reader.u32()?, position: reader.u32()? })
    }
}

/// What a record says of one of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The counter.
    pub counter: u32,
    /// Where the cleaner moved it from: it only counts if the counter is still there. Nowhere for a value that was set.
    pub from: Place,
}

impl Change {
    /// Length in bytes.
    pub const LENGTH: usize = 12;

    /// Appends the change to a record's meta.
    pub fn encode(&self, meta: &mut Vec<u8>) {
        [self.counter, self.from.zone, self.from.position]
            .iter()
            .for_each(|number| meta.extend_from_slice(&number.to_le_bytes()));
    }

    /// Reads the changes of a record.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that aren't whole changes.
    pub fn decode_all(meta: &[u8]) -> Result<Vec<Change>> {
        let mut reader = Reader::new(meta, "a record of counters");
        let mut changes = Vec::new();
        while reader.remaining() > 0 {
            changes.push(Change { counter: reader.u32()?, from: Place::decode(&mut reader)? });
        }
        Ok(changes)
    }
}

/// Refuses a counter that isn't there.
///
/// # Errors
/// [`Error::Corrupt`] with its number.
pub fn check_counter(counter: u32, number: usize) -> Result<()> {
    match (counter as usize) < number {
        true => Ok(()),
        false => Err(Error::corrupt(format!("counter {counter} out of range 0..{number} in a record"))),
    }
}

/// Block of a value: the counter, the value, and a pattern made of both.
pub fn block(counter: u32, value: u64, length: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(length);
    fill(counter, value, buffer.filled_mut());
    buffer
}

fn fill(counter: u32, value: u64, bytes: &mut [u8]) {
    Random::new(value ^ u64::from(counter) << 40).fill(bytes);
    bytes[..4].copy_from_slice(&counter.to_le_bytes());
    bytes[4..12].copy_from_slice(&value.to_le_bytes());
}

/// Value in a block of this counter.
///
/// # Errors
/// [`Error::Corrupt`] for any other block.
pub fn value(counter: u32, found: &[u8]) -> Result<u64> {
    let value = u64::from_le_bytes(std::array::from_fn(|at| found[4 + at]));
    let mut expected = vec![0; found.len()];
    fill(counter, value, &mut expected);
    match expected == found {
        true => Ok(value),
        false => Err(Error::corrupt(format!("the block of counter {counter} is damaged, or another one's"))),
    }
}

/// The owner's part of a checkpoint's directory: all places.
pub fn encode_state(places: &[Place]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u32(places.len() as u32);
    places.iter().for_each(|place| place.encode(&mut writer));
    writer.0
}

/// Reads the owner's part of a directory.
///
/// # Errors
/// [`Error::Corrupt`] for bytes that no version of this program writes.
pub fn decode_state(bytes: &[u8]) -> Result<Vec<Place>> {
    let mut reader = Reader::new(bytes, "the state of counters");
    let number = reader.count(8)?;
    (0..number).map(|_| Place::decode(&mut reader)).collect()
}
