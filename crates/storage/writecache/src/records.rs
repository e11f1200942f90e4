//! Records in flight to the cache device.
//!
//! They complete in any order and take effect in the order of their numbers. In steady state a record
//! allocates the list of its slices, and nothing else: its own lists are reused.

use crate::queue::Item;
use crate::ring::Ring;
use block::{Payload, Result};
use std::cell::RefCell;
use std::collections::VecDeque;
use zones::record::StreamId;
use zones::record::{Header, Identity, Kind, sum_of};

/// A record in flight.
#[derive(Debug)]
pub struct Record {
    /// Number of the record.
    pub number: u64,
    /// Address of the record's header.
    pub address: u64,
    /// Address after the record.
    pub end: u64,
    /// Flush epoch in which the record was formed; all its writes belong to this epoch.
    pub flush_epoch: u64,
    /// Changes of the record.
    pub items: Vec<Item>,
    /// Checksums of the data blocks, once the record is encoded.
    pub sums: Vec<u32>,
    /// Outcome of the write, once it has completed.
    outcome: Option<Result<()>>,
}

/// Header fields of a record that come from the cache's state.
#[derive(Debug, Clone, Copy)]
pub struct Stamp<'a> {
    /// Identity of the cache.
    pub identity: &'a Identity,
    /// Number of the epoch from this open to the next.
    pub epoch: u64,
    /// Number of the last durable record.
    pub durable_record: u64,
}

impl Record {
    /// Address of the first data block.
    pub fn data(&self) -> u64 {
        self.address + 1
    }

    /// Encodes the record, and computes the checksums of its data. `meta` is scratch memory. The data isn't
    /// copied.
    fn encode(&mut self, ring: &Ring, stamp: Stamp<'_>, meta: &mut Vec<u8>) -> Payload {
        let size = ring.bytes(1);
        meta.clear();
        meta.extend_from_slice(&self.flush_epoch.to_le_bytes());
        debug_assert_eq!(meta.len(), crate::format::PREFIX);
        self.sums.clear();
        let mut slices = 1;
        for item in &self.items {
            item.entry.encode(meta);
            slices += item.payload.slices().len();
            push_sums(&mut self.sums, &item.payload, size);
        }
        let header = Header {
            kind: Kind::WriteCache,
            stream: StreamId(0),
            class: 0,
            epoch: stamp.epoch,
            sequence: self.number,
            durable: stamp.durable_record,
            clock: runtime::wall_clock().as_millis() as u64,
            zone: 0,
            generation: self.address,
            position: 0,
            blocks: self.sums.len() as u32,
        };
        let block = header.encode_block(stamp.identity, &[], &self.sums, meta, size);
        let mut payload = Payload::with_capacity(slices);
        payload.push(block.freeze());
        for item in &self.items {
            for slice in item.payload.slices() {
                payload.push(slice.clone());
            }
        }
        payload
    }
}

/// Appends the checksums of the blocks of a payload. A slice may end inside a block: the payload is copied
/// then.
fn push_sums(sums: &mut Vec<u32>, payload: &Payload, block_size: usize) {
    match payload.slices() {
        [one] => sums.extend(one.chunks_exact(block_size).map(sum_of)),
        slices if slices.iter().all(|slice| slice.len().is_multiple_of(block_size)) => {
            for slice in slices {
                sums.extend(slice.chunks_exact(block_size).map(sum_of));
            }
        }
        _ => sums.extend(payload.to_data().chunks_exact(block_size).map(sum_of)),
    }
}

/// Lists of a record, empty.
type Lists = (Vec<Item>, Vec<u32>);

/// Records in flight, in the order of their numbers.
#[derive(Debug, Default)]
pub struct Records {
    in_flight: RefCell<VecDeque<Record>>,
    spare: RefCell<Vec<Lists>>,
}

impl Records {
    /// Whether none is in flight.
    pub fn is_empty(&self) -> bool {
        self.in_flight.borrow().is_empty()
    }

    /// An empty list for the items of the next record.
    pub fn spare_lists(&self) -> Lists {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// Begins a record with the lists that [`spare_lists`](Self::spare_lists) returned. Its number follows
    /// the one before it.
    pub fn begin(&self, number: u64, address: u64, end: u64, flush_epoch: u64, (items, sums): Lists) {
        let record = Record { number, address, end, flush_epoch, items, sums, outcome: None };
        self.in_flight.borrow_mut().push_back(record);
    }

    /// Encodes the record with this number. `meta` is scratch memory.
    pub fn encode(&self, number: u64, ring: &Ring, stamp: Stamp<'_>, meta: &mut Vec<u8>) -> Payload {
        let mut in_flight = self.in_flight.borrow_mut();
        let Some(record) = in_flight.iter_mut().find(|record| record.number == number) else {
            unreachable!("a record stays in flight until it has completed");
        };
        record.encode(ring, stamp, meta)
    }

    /// Notes the outcome of the write of this record.
    pub fn completed(&self, number: u64, outcome: Result<()>) {
        let mut in_flight = self.in_flight.borrow_mut();
        if let Some(record) = in_flight.iter_mut().find(|record| record.number == number) {
            record.outcome = Some(outcome);
        }
    }

    /// Takes the first record, if its write has completed, with the outcome.
    pub fn pop_completed(&self) -> Option<(Record, Result<()>)> {
        let mut in_flight = self.in_flight.borrow_mut();
        let outcome = in_flight.front_mut()?.outcome.take()?;
        Some((in_flight.pop_front()?, outcome))
    }

    /// Keeps the lists of a record for the next one. They are empty, or cleared on their next use.
    pub fn recycle(&self, record: Record) {
        debug_assert!(record.items.is_empty());
        self.spare.borrow_mut().push((record.items, record.sums));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Error;

    #[test]
    fn records_leave_in_the_order_of_their_numbers() {
        let records = Records::default();
        records.begin(1, 10, 12, 0, records.spare_lists());
        records.begin(2, 12, 14, 0, records.spare_lists());
        records.completed(2, Ok(()));
        assert!(records.pop_completed().is_none());
        records.completed(1, Err(Error::io("lost")));
        let numbers: Vec<_> = std::iter::from_fn(|| {
            let (record, outcome) = records.pop_completed()?;
            Some((record.number, outcome.is_ok()))
        })
        .collect();
        assert_eq!(numbers, [(1, false), (2, true)]);
        assert!(records.is_empty());
    }
}
