//! Formatting and opening a write cache.
//!
//! Opening follows the records from the tail, segment by segment and many segments at a time, to the first
//! missing record. If later records or the superblock show that a record was durable, only its header is
//! checked; otherwise its data is checked as well. A missing record that was durable is corruption, which is
//! refused, and not the end of the log. The records are entered into the index, and a new epoch begins
//! durably, so that records after the end of the log are invalid.

use crate::format::{Action, Superblock};
use crate::index::{BITS, Index};
use crate::log::Position;
use crate::ring::Ring;
use crate::scan::{Expect, Found};
use block::{BlockIndex, BlockSize, Buffer, Device, Durability, Error, Result};
use runtime::JoinHandle;
use std::collections::VecDeque;
use std::rc::Rc;
use zones::record::{Identity, Parsed, sum_of};
use zones::sector;

/// Limit to the segments that are followed at a time.
const AHEAD: usize = 32;

/// Outcome of opening.
#[derive(Debug)]
pub struct Recovered {
    /// Layout of the cache device.
    pub ring: Ring,
    /// Superblock that was written for this epoch.
    pub superblock: Superblock,
    /// Index of the cached blocks.
    pub index: Index,
    /// End of the log.
    pub head: Position,
    /// First flush epoch without a record.
    pub flush_epoch: u64,
    /// Wall-clock time at which the first record was written, in ms; `None` without records.
    pub oldest: Option<u64>,
}

/// Formats an empty cache for an origin of this many blocks. The former contents of the device are lost.
///
/// # Errors
/// Errors of the device; [`Error::Invalid`] for a device that is too small.
pub async fn format(fast: &dyn Device, block_size: BlockSize, origin_blocks: u64) -> Result<()> {
    let ring = Ring::for_device(fast.geometry(), block_size)?;
    let superblock = Superblock {
        block_size: block_size.bytes() as u32,
        identity: Identity::draw(),
        sequence: 0,
        origin_blocks,
        ring_start: ring.start as u32,
        segment_blocks: ring.segment as u32,
        segments: ring.segments as u32,
        epoch: 0,
        first_of_epoch: 1,
        tail: ring.first_address(),
        tail_record: 1,
        durable: 0,
    };
    for sequence in [0, 1] {
        let superblock = Superblock { sequence, ..superblock };
        fast.write(ring.superblock(sequence), superblock.encode(), Durability::Durable).await?;
    }
    Ok(())
}

/// Reads the newer of the two superblocks.
async fn read_superblock(fast: &dyn Device, block_size: BlockSize) -> Result<Superblock> {
    let device = fast.geometry().block_size;
    let step = block_size.bytes().max(device.bytes());
    let mut begin = Vec::new();
    let mut copies = Vec::with_capacity(2);
    for copy in 0..2 {
        let buffer = Buffer::new(step as usize);
        let at = BlockIndex((copy * step) >> device.shift());
        let (outcome, buffer) = fast.read(at, buffer).await;
        outcome.map_err(|error| error.in_context("reading a superblock of the write cache"))?;
        copies.push(Superblock::decode(buffer.filled()));
        begin.extend_from_slice(buffer.filled());
    }
    let advice = "the origin alone may be an older state; `siltstone format` formats an empty cache, and loses the cached blocks";
    sector::newest(copies, |superblock| superblock.sequence).map_err(|error| match error {
        Error::NotFound(_) => Error::protocol(format!(
            "no write cache begins here; {advice} (the device holds {})",
            sector::describe(&begin)
        )),
        error => error.with_detail(format!("{}; {advice}", error.detail())),
    })
}

/// Opens the cache of an origin of this many blocks.
///
/// # Errors
/// [`Error::Protocol`] for a device without a cache, [`Error::Corrupt`] for lost data that was acknowledged
/// as durable, [`Error::Invalid`] for an origin or a device that doesn't fit.
pub async fn open(fast: &Rc<dyn Device>, block_size: BlockSize, origin_blocks: u64) -> Result<Recovered> {
    let superblock = read_superblock(&**fast, block_size).await?;
    if u64::from(superblock.block_size) != block_size.bytes() {
        return Err(Error::invalid(format!(
            "the write cache was formatted with blocks of {} bytes: origin and cache device have blocks of up to {}; attach \
             the devices that it was formatted with",
            superblock.block_size, block_size
        )));
    }
    if origin_blocks < superblock.origin_blocks || origin_blocks >= 1 << BITS {
        return Err(Error::invalid(format!(
            "the write cache was formatted for an origin of {} blocks of {block_size} bytes: this origin has \
             {origin_blocks}; attach its own origin, or one that has grown",
            superblock.origin_blocks
        )));
    }
    let ring = Ring::of(&superblock, fast.geometry())?;
    let mut scan = Scan::new(fast.clone(), ring, superblock);
    scan.follow().await?;
    let Scan { index, head, next_record, flush_epoch, oldest, .. } = scan;
    // The records must be durable before the superblock says so.
    fast.flush().await?;
    let superblock = Superblock {
        sequence: superblock.sequence + 1,
        epoch: superblock.epoch + 1,
        first_of_epoch: next_record,
        durable: next_record - 1,
        origin_blocks,
        ..superblock
    };
    fast.write(ring.superblock(superblock.sequence), superblock.encode(), Durability::Durable).await?;
    let head = Position { address: head, record: next_record };
    Ok(Recovered { ring, superblock, index, head, flush_epoch: flush_epoch + 1, oldest })
}

/// A record, with its address.
type Record = (u64, Found);

/// Consecutive records of one segment.
struct Chain {
    records: Vec<Record>,
    /// Whether the last record ends with the segment.
    is_whole: bool,
}

/// The log as far as it has been followed.
struct Scan {
    fast: Rc<dyn Device>,
    ring: Ring,
    superblock: Superblock,
    index: Index,
    head: u64,
    next_record: u64,
    flush_epoch: u64,
    oldest: Option<u64>,
    /// Number of the last record that is known to be durable.
    durable: u64,
    /// Records after that one, not applied yet.
    unsure: VecDeque<Record>,
}

impl Scan {
    fn new(fast: Rc<dyn Device>, ring: Ring, superblock: Superblock) -> Self {
        Scan {
            fast,
            ring,
            superblock,
            index: Index::new(ring.blocks()),
            head: superblock.tail,
            next_record: superblock.tail_record,
            flush_epoch: 0,
            oldest: None,
            durable: superblock.durable,
            unsure: VecDeque::new(),
        }
    }

    fn begin(&self, address: u64) -> JoinHandle<Result<Chain>> {
        runtime::spawn(follow_segment(self.fast.clone(), self.ring, self.superblock, address))
    }

    /// Follows the log to its end.
    async fn follow(&mut self) -> Result<()> {
        let tail = self.superblock.tail;
        let end = tail + self.ring.blocks();
        let first = tail + self.ring.left(tail);
        let mut starts = std::iter::once(tail).chain((first..end).step_by(self.ring.segment as usize));
        let mut ahead: VecDeque<JoinHandle<Result<Chain>>> = VecDeque::new();
        let (mut expected, mut is_missing) = (self.next_record, None);
        loop {
            while ahead.len() < AHEAD
                && let Some(start) = starts.next()
            {
                ahead.push_back(self.begin(start));
            }
            let Some(chain) = ahead.pop_front() else { break };
            let chain = chain.await?;
            for (address, found) in chain.records {
                let number = found.header.sequence;
                if is_missing.is_some() || number != expected {
                    // A record after the end; its header may still show that the missing record was durable.
                    is_missing.get_or_insert(expected);
                    if number > expected {
                        self.durable = self.durable.max(found.header.durable);
                    }
                    continue;
                }
                expected += 1;
                self.durable = self.durable.max(found.header.durable);
                self.unsure.push_back((address, found));
                self.apply_sure();
            }
            if !chain.is_whole && is_missing.is_none() {
                is_missing = Some(expected);
            }
        }
        let missing = is_missing.unwrap_or(expected);
        self.check_unsure().await?;
        if self.next_record <= self.durable && self.next_record <= missing {
            return Err(Error::corrupt(format!(
                "record {} of the write cache, at address {}, was acknowledged as durable and is missing or corrupt; formatting \
                 the cache again loses it and all later records",
                self.next_record, self.head
            )));
        }
        Ok(())
    }

    /// Applies the records that are known to be durable.
    fn apply_sure(&mut self) {
        while self.unsure.front().is_some_and(|(_, found)| found.header.sequence <= self.durable) {
            if let Some(record) = self.unsure.pop_front() {
                self.apply(&record);
            }
        }
    }

    /// Applies the other records, up to the first with wrong data.
    async fn check_unsure(&mut self) -> Result<()> {
        while let Some(record) = self.unsure.pop_front() {
            let (address, found) = &record;
            if found.header.sequence > self.durable && !self.is_whole(*address, found).await? {
                break;
            }
            self.apply(&record);
        }
        Ok(())
    }

    async fn is_whole(&self, address: u64, found: &Found) -> Result<bool> {
        let size = self.ring.block_size.bytes() as usize;
        if found.sums.is_empty() {
            return Ok(true);
        }
        let buffer = Buffer::new(found.sums.len() * size);
        let (outcome, buffer) = self.fast.read(self.ring.place(address + 1), buffer).await;
        outcome?;
        Ok(buffer.filled().chunks_exact(size).zip(&found.sums).all(|(data, sum)| sum_of(data) == *sum))
    }

    fn apply(&mut self, (address, found): &Record) {
        let data = address + 1;
        for (entry, number) in found.changes() {
            match entry.action {
                Action::Write => {
                    for at in 0..entry.count {
                        let sum = found.sums[(number + at) as usize];
                        self.index.write(entry.block + at, data + number + at, sum);
                    }
                }
                Action::Discard | Action::Zero => {
                    self.index.discard(entry.block, entry.count, data + number);
                }
            }
        }
        self.oldest.get_or_insert(found.header.clock);
        self.flush_epoch = found.meta.flush_epoch;
        self.head = address + found.length(self.ring.left(*address));
        self.next_record = found.header.sequence + 1;
    }
}

/// Whether this block begins a record that was written after a newer superblock than this one: a record of a
/// later epoch, or of a later lap of the ring. The superblock is durable before such a record.
fn is_ahead(block: &[u8], address: u64, superblock: &Superblock) -> bool {
    Parsed::decode(block, &superblock.identity)
        .is_ok_and(|parsed| parsed.header.epoch > superblock.epoch || parsed.header.generation > address)
}

/// Follows the records from this address to the end of its segment, or to the first missing one.
async fn follow_segment(
    fast: Rc<dyn Device>,
    ring: Ring,
    superblock: Superblock,
    start: u64,
) -> Result<Chain> {
    let end = start + ring.left(start);
    let expect = Expect { identity: &superblock.identity, origin_blocks: superblock.origin_blocks };
    let mut chain = Chain { records: Vec::new(), is_whole: true };
    let mut at = start;
    while at < end {
        let buffer = Buffer::new(ring.block_size.bytes() as usize);
        let (outcome, buffer) = fast.read(ring.place(at), buffer).await;
        outcome?;
        if is_ahead(buffer.filled(), at, &superblock) {
            return Err(Error::corrupt(format!(
                "the record of the write cache at address {at} is newer than the superblock: the newer superblock is corrupt; \
                 formatting the cache again loses all cached blocks"
            )));
        }
        let found = Found::decode(buffer.filled(), at, &expect).ok().filter(|found| {
            let header = &found.header;
            let is_older = header.epoch < superblock.epoch && header.sequence < superblock.first_of_epoch;
            let follows = chain
                .records
                .last()
                .is_none_or(|(_, before): &Record| before.header.sequence + 1 == header.sequence);
            (is_older || header.epoch == superblock.epoch) && follows
        });
        let Some(found) = found else {
            chain.is_whole = false;
            break;
        };
        let length = found.length(end - at);
        chain.records.push((at, found));
        at += length;
    }
    Ok(chain)
}
