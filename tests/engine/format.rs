//! Format of counters on the medium: the block of a value, the meta of a record, and the state in a
//! checkpoint.

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

/// Entry of a record for one of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The counter.
    pub counter: u32,
    /// Place from which the cleaner moved the block: the change has an effect only if the counter is still
    /// there. Nowhere for a value that was set.
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

    /// Decodes the changes of a record.
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

/// Checks that a counter belongs to a shard, of `shards`, and is below the `number` of counters there.
///
/// # Errors
/// [`Error::Corrupt`] with the counter's number, if it isn't.
pub fn check_counter(counter: u32, (shard, shards): (u32, u32), number: usize) -> Result<()> {
    match counter % shards == shard && ((counter / shards) as usize) < number {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "a record of shard {shard} names counter {counter}, which isn't there"
        ))),
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Places of the counters of each shard, in rising order of the counters.
    pub places: Vec<Vec<Place>>,
}

impl State {
    /// State of `shards` shards without counters.
    pub fn new(shards: u32) -> Self {
        State { places: vec![Vec::new(); shards as usize] }
    }

    /// State of `counters` counters that were never set.
    pub fn never_set(counters: u32, shards: u32) -> Self {
        let number = |shard| (shard..counters).step_by(shards as usize).count();
        State { places: (0..shards).map(|shard| vec![Place::NOWHERE; number(shard)]).collect() }
    }

    /// Number of counters.
    pub fn counters(&self) -> u32 {
        self.places.iter().map(Vec::len).sum::<usize>() as u32
    }

    /// Encodes the state.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(self.places.len() as u32);
        for places in &self.places {
            writer.u32(places.len() as u32);
            places.iter().for_each(|place| place.encode(&mut writer));
        }
        writer.0
    }

    /// Decodes a state.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that no version of this program writes.
    pub fn decode(bytes: &[u8]) -> Result<State> {
        let mut reader = Reader::new(bytes, "the state of counters");
        let mut places = Vec::new();
        for _ in 0..reader.count(4)? {
            let number = reader.count(8)?;
            places.push((0..number).map(|_| Place::decode(&mut reader)).collect::<Result<_>>()?);
        }
        Ok(State { places })
    }
}
