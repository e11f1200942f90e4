//! Reading the records of one zone, from its summary or one by one.
//!
//! A zone without a summary is read to its end in steps, which are verified in the read buffer: memory is
//! reused and nothing is copied. All data is compared with its checksums, although much of it may be known to
//! be durable. Skipping that data would require reading header by header, each read waiting for the previous
//! one; with records of 16 blocks that takes longer than reading everything.
//!
//! The records of a zone are a set: a torn or damaged record doesn't end the scan, because a later record may
//! belong to another stream, or have been appended concurrently. The sequence numbers of the streams decide
//! which records are part of the log.
//!
//! A record with a valid header and wrong data is torn, or was complete and is damaged. The scan can't
//! distinguish these, and lists such records in [`Scanned::torn`]. Recovery decides by the records that later
//! ones name as durable.

use crate::layout::Layout;
use crate::record::{Header, Identity, Kind, Links, Parsed, sum_of};
use crate::stream::Sequences;
use crate::summary::{BlockAddress, Summary, blocks_of};
use block::{Buffer, ByteOffset, Error, Result, ZoneAddress, ZoneIndex, ZoneReport, ZoneState, Zones};
use std::ops::Range;

/// Bytes per read.
const STEP: usize = 512 << 10;
/// Number of reads in flight at a time. Several zones are read at once, and more buffers cost more page
/// faults than they save time.
const READS: usize = 2;

/// Bytes at the end of a full zone, per block of the zone, that are read at once to get its summary. Single
/// blocks that were written at random take 4 for a checksum and 24 for an extent, and a share of a header. A
/// longer summary takes another read.
const SUMMARY_OF_A_BLOCK: usize = 32;

/// A record with the contents of its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Header of the record.
    pub header: Header,
    /// Links of the record.
    pub links: Links,
    /// Checksums of the data blocks.
    pub sums: Vec<u32>,
    /// Owner's part of the header.
    pub meta: Vec<u8>,
}

/// The part of a record that a scan keeps.
pub trait Kept: Sized {
    /// Returns the part of a record to keep.
    fn new(parsed: &Parsed<'_>) -> Self;
    /// Returns the record's header.
    fn header(&self) -> &Header;
    /// Returns the record's links.
    fn links(&self) -> &Links;
}

impl Kept for Found {
    fn new(parsed: &Parsed<'_>) -> Self {
        Found {
            header: parsed.header,
            links: parsed.links(),
            sums: (0..parsed.header.blocks as usize).map(|number| parsed.sum(number)).collect(),
            meta: parsed.meta.to_vec(),
        }
    }

    fn header(&self) -> &Header {
        &self.header
    }

    fn links(&self) -> &Links {
        &self.links
    }
}

/// A record with a valid header, some of whose data blocks differ from their checksums: it is torn or
/// damaged.
#[derive(Debug)]
pub struct Torn<K> {
    /// The record.
    pub record: K,
    /// Blocks of the zone with wrong data.
    pub blocks: Vec<u32>,
}

/// Result of scanning a zone.
#[derive(Debug)]
pub struct Scanned<K> {
    /// Complete records of the zone, in order.
    pub records: Vec<K>,
    /// Block after the last complete record.
    pub end: u32,
    /// Records before this block weren't read.
    pub first: u32,
    /// Highest sequence by stream that any record of the zone names as durable, torn records included; only
    /// for the requested streams.
    pub durable: Sequences,
    /// Records with a valid header and wrong data, in order; records that exceed the zone are excluded.
    pub torn: Vec<Torn<K>>,
    /// Whether the zone's summary lists its records: then it holds no others.
    pub has_summary: bool,
}

/// Reads blocks of a zone, in several reads.
///
/// # Errors
/// Errors of reading.
pub async fn read(
    zones: &dyn Zones,
    layout: &Layout,
    zone: u32,
    position: u32,
    blocks: u32,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity((blocks as usize) << layout.block_size.shift());
    read_in_steps(zones, layout, zone, position..position + blocks, |step| bytes.extend_from_slice(step))
        .await?;
    Ok(bytes)
}

/// Reads blocks of a zone and passes them to `show` in order, a few at a time.
async fn read_in_steps(
    zones: &dyn Zones,
    layout: &Layout,
    zone: u32,
    blocks: Range<u32>,
    mut show: impl FnMut(&[u8]),
) -> Result<()> {
    let shift = layout.block_size.shift();
    let (mut at, to) = ((blocks.start as usize) << shift, (blocks.end as usize) << shift);
    while at < to {
        let starts = (0..READS).map(|number| at + number * STEP).filter(|start| *start < to);
        let reads = starts.map(|start| {
            let address = ZoneAddress { zone: ZoneIndex(zone), offset: ByteOffset(start as u64) };
            zones.read(address, Buffer::new(STEP.min(to - start)))
        });
        for (outcome, buffer) in runtime::join_all(reads).await {
            outcome.map_err(|error| error.in_context(format!("reading zone {zone}")))?;
            at += buffer.filled().len();
            show(buffer.filled());
        }
    }
    Ok(())
}

/// Refuses an offline zone that may hold `what`.
///
/// # Errors
/// Always [`Error::Corrupt`], whatever is wrong with the zone, with the description of the zones' own error.
pub async fn refuse_offline(zones: &dyn Zones, zone: ZoneIndex, what: &str) -> Result<()> {
    let unit = zones.geometry().read_granularity as usize;
    let address = ZoneAddress { zone, offset: ByteOffset(0) };
    let (outcome, _) = zones.read(address, Buffer::new(unit)).await;
    let trouble = outcome.err().map(|error| format!(" ({})", error.detail())).unwrap_or_default();
    Err(Error::corrupt(format!(
        "zone {zone} is offline and may hold {what}{trouble}; restore the disk, or salvage what can be read"
    )))
}

/// Reads the summary of a full zone.
///
/// # Errors
/// [`Error::Protocol`] if there is none, [`Error::Corrupt`] for a damaged one; errors of reading.
pub async fn summary(
    zones: &dyn Zones,
    layout: &Layout,
    identity: &Identity,
    report: &ZoneReport,
) -> Result<(Summary, u32)> {
    let end = (report.write_pointer >> layout.block_size.shift()) as u32;
    if report.state != ZoneState::Full || end == 0 {
        return Err(Error::protocol("no summary: the zone isn't full"));
    }
    let block = layout.block_bytes();
    let mut guess = end.min((layout.zone_blocks as usize * SUMMARY_OF_A_BLOCK).div_ceil(block) as u32);
    let mut bytes = match read(zones, layout, report.zone.0, end - guess, guess).await {
        Ok(bytes) => bytes,
        // The unreadable blocks may be data, which isn't needed here.
        Err(_) => {
            guess = 1;
            read(zones, layout, report.zone.0, end - guess, guess).await?
        }
    };
    let blocks = blocks_of(&bytes[bytes.len() - block..])?;
    if blocks > end {
        return Err(Error::protocol("summary longer than its zone"));
    }
    let position = end - blocks;
    if blocks > guess {
        let mut all = read(zones, layout, report.zone.0, position, blocks - guess).await?;
        all.extend_from_slice(&bytes);
        bytes = all;
    } else {
        bytes.drain(..(guess - blocks) as usize * block);
    }
    let place = BlockAddress { zone: report.zone.0, generation: report.generation, position };
    let summary = Summary::decode(bytes, place, identity, layout.block_bytes())?;
    Ok((summary, position))
}

/// Finds the records of a zone without verifying their data, for callers that verify it when they read it.
/// Without a usable summary, every header is read.
///
/// # Errors
/// Errors of reading.
pub async fn headers(
    zones: &dyn Zones,
    layout: &Layout,
    identity: &Identity,
    report: &ZoneReport,
) -> Result<Scanned<Found>> {
    collect(zones, layout, identity, report, Reading::HEADERS).await
}

/// Passes the records of a zone of a log to `visit`, in order and without verifying their data, as
/// [`headers`] finds them. Memory holds one record at a time, and the zone's summary. The result has no
/// records.
///
/// # Errors
/// [`Error::Corrupt`] for records that overlap or exceed the zone; errors of reading; errors of `visit`. All
/// of them name the zone.
pub async fn visit(
    zones: &dyn Zones,
    layout: &Layout,
    identity: &Identity,
    report: &ZoneReport,
    mut visit: impl FnMut(Found) -> Result<()>,
) -> Result<Scanned<Found>> {
    let (mut free_from, mut outcome) = (0, Ok(()));
    let take = |found: Found| {
        if outcome.is_err() {
            return;
        }
        let Header { position, blocks, .. } = found.header;
        let end = u64::from(position) + 1 + u64::from(blocks);
        if u64::from(position) < free_from || end > u64::from(layout.zone_blocks) {
            outcome = Err(Error::corrupt(format!(
                "the record at block {position} has {blocks} blocks of data; expected one from block {free_from} on that ends by block {}",
                layout.zone_blocks
            )));
            return;
        }
        free_from = end;
        outcome = visit(found);
    };
    let scanned = scan(zones, layout, identity, report, Reading::HEADERS, take).await;
    let scanned = scanned.and_then(|scanned| outcome.map(|()| scanned));
    scanned.map_err(|error| error.in_context(format!("records of zone {}", report.zone)))
}

/// Finds the complete records of a zone in a log with `streams` streams. Without a usable summary, every
/// block at or after `first` that may be a header is examined, and all data is verified.
///
/// # Errors
/// Errors of reading.
pub async fn replayable<K: Kept>(
    zones: &dyn Zones,
    layout: &Layout,
    identity: &Identity,
    report: &ZoneReport,
    streams: usize,
    first: u32,
) -> Result<Scanned<K>> {
    collect(zones, layout, identity, report, Reading { streams, first, check_data: true }).await
}

/// Options of a scan.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// Number of streams of the log.
    streams: usize,
    /// First block that is examined, without a summary.
    first: u32,
    /// Verify all data.
    check_data: bool,
}

impl Reading {
    /// All headers, without verifying data.
    const HEADERS: Reading = Reading { streams: 0, first: 0, check_data: false };
}

async fn collect<K: Kept>(
    zones: &dyn Zones,
    layout: &Layout,
    identity: &Identity,
    report: &ZoneReport,
    reading: Reading,
) -> Result<Scanned<K>> {
    let mut records = Vec::new();
    let scanned = scan(zones, layout, identity, report, reading, |found| records.push(found)).await?;
    Ok(Scanned { records, ..scanned })
}

/// Scans a zone and passes its records to `take`; the result has no records.
async fn scan<K: Kept>(
    zones: &dyn Zones,
    layout: &Layout,
    identity: &Identity,
    report: &ZoneReport,
    reading: Reading,
    mut take: impl FnMut(K),
) -> Result<Scanned<K>> {
    let Reading { streams, first, check_data } = reading;
    match summary(zones, layout, identity, report).await {
        Ok((summary, position)) => {
            let mut scanned = Scanned { end: position, has_summary: true, ..Scanned::default() };
            for parsed in summary.records(identity) {
                scanned.note(&parsed.header, streams);
                take(K::new(&parsed));
            }
            return Ok(scanned);
        }
        Err(Error::Protocol(_) | Error::Corrupt(_)) => {}
        Err(error) => return Err(error),
    }
    let end = (report.write_pointer >> layout.block_size.shift()) as u32;
    let first = first.min(end);
    let place = BlockAddress { zone: report.zone.0, generation: report.generation, position: first };
    let mut walk = Walk::new(layout, identity, place, end, check_data, take);
    walk.streams = streams;
    read_in_steps(zones, layout, report.zone.0, first..end, |step| walk.go_on(step)).await?;
    Ok(walk.finish())
}

/// Reads the first header of a zone; `None` for a zone that was opened and finished without an append.
///
/// # Errors
/// Errors of reading.
pub async fn first_header(
    zones: &dyn Zones,
    layout: &Layout,
    identity: &Identity,
    report: &ZoneReport,
) -> Result<Option<Header>> {
    if report.write_pointer < layout.block_bytes() as u64 {
        return Ok(None);
    }
    let buffer = Buffer::new(layout.block_bytes());
    let (outcome, buffer) = zones.read(layout.address(report.zone.0, 0), buffer).await;
    outcome.map_err(|error| error.in_context(format!("reading zone {}", report.zone)))?;
    let place = BlockAddress { zone: report.zone.0, generation: report.generation, position: 0 };
    Ok(header_at(buffer.filled(), identity, place, 0).map(|parsed| parsed.header))
}

/// Decodes the header in these bytes; `None` unless it belongs to block `position` of the zone.
fn header_at<'a>(
    bytes: &'a [u8],
    identity: &Identity,
    place: BlockAddress,
    position: u32,
) -> Option<Parsed<'a>> {
    let parsed = Parsed::decode(bytes, identity).ok()?;
    parsed.check_place(place.zone, place.generation, position).ok()?;
    Some(parsed)
}

/// Scan of the blocks of a zone, which are passed to it in order.
struct Walk<'a, K, F> {
    identity: &'a Identity,
    block: usize,
    /// Place of the first block.
    place: BlockAddress,
    /// End of the walk, in blocks.
    to: u32,
    check_data: bool,
    /// Number of streams of the log.
    streams: usize,
    /// Position of the next block.
    position: u32,
    /// Record whose data is being verified.
    record: Option<Data<K>>,
    /// Record with wrong data, and its wrong blocks, until its end or the next header.
    torn: Option<(Data<K>, Vec<u32>)>,
    /// Called with each complete record.
    take: F,
    /// Result without records.
    scanned: Scanned<K>,
}

/// Record whose data isn't verified completely.
struct Data<K> {
    found: K,
    sums: Vec<u32>,
    seen: u32,
}

impl<'a, K: Kept, F: FnMut(K)> Walk<'a, K, F> {
    fn new(
        layout: &Layout,
        identity: &'a Identity,
        place: BlockAddress,
        to: u32,
        check_data: bool,
        take: F,
    ) -> Self {
        let scanned = Scanned { first: place.position, end: place.position, ..Scanned::default() };
        let (block, position) = (layout.block_bytes(), place.position);
        let streams = usize::MAX;
        let (record, torn) = (None, None);
        Walk { identity, block, place, to, check_data, streams, position, record, torn, take, scanned }
    }

    /// Examines the next blocks.
    fn go_on(&mut self, bytes: &[u8]) {
        for block in bytes.chunks_exact(self.block) {
            match self.record.take() {
                Some(record) => self.look_at_data(record, block),
                None => self.look_for_header_in_torn(block),
            }
            self.position += 1;
        }
    }

    fn look_at_data(&mut self, mut record: Data<K>, block: &[u8]) {
        if self.check_data && sum_of(block) != record.sums[record.seen as usize] {
            // The durable record that the header names is valid nevertheless.
            self.scanned.note(record.found.header(), self.streams);
            self.torn = Some((record, Vec::new()));
            return self.look_for_header_in_torn(block);
        }
        record.seen += 1;
        match record.seen == record.found.header().blocks {
            true => self.take(record.found),
            false => self.record = Some(record),
        }
    }

    /// Examines a block that may be data of a record with wrong data. If it is a header, this record was
    /// never complete.
    fn look_for_header_in_torn(&mut self, block: &[u8]) {
        let torn = self.torn.take();
        if self.look_for_header(block) {
            return;
        }
        let Some((mut data, mut blocks)) = torn else { return };
        if sum_of(block) != data.sums[data.seen as usize] {
            blocks.push(self.position);
        }
        data.seen += 1;
        match data.seen == data.found.header().blocks {
            true => self.scanned.torn.push(Torn { record: data.found, blocks }),
            false => self.torn = Some((data, blocks)),
        }
    }

    /// Returns whether a header of this zone is in the block.
    fn look_for_header(&mut self, block: &[u8]) -> bool {
        let parsed = header_at(block, self.identity, self.place, self.position);
        let Some(parsed) = parsed else { return false };
        if parsed.header.blocks >= self.to - self.position {
            self.scanned.note(&parsed.header, self.streams);
            return true;
        }
        let found = K::new(&parsed);
        if parsed.header.blocks == 0 {
            self.take(found);
            return true;
        }
        let sums = match self.check_data {
            true => (0..parsed.header.blocks as usize).map(|number| parsed.sum(number)).collect(),
            false => Vec::new(),
        };
        self.record = Some(Data { found, sums, seen: 0 });
        true
    }

    fn take(&mut self, found: K) {
        let header = found.header();
        self.scanned.note(header, self.streams);
        self.scanned.end = header.position + 1 + header.blocks;
        (self.take)(found);
    }

    fn finish(self) -> Scanned<K> {
        debug_assert!(self.position == self.to && self.record.is_none(), "all blocks were shown");
        self.scanned
    }
}

impl<K> Default for Scanned<K> {
    fn default() -> Self {
        Scanned {
            records: Vec::new(),
            end: 0,
            first: 0,
            durable: Sequences::default(),
            torn: Vec::new(),
            has_summary: false,
        }
    }
}

impl<K> Scanned<K> {
    fn note(&mut self, header: &Header, streams: usize) {
        // A header may name any stream number, and a list up to the largest would be long.
        if header.kind == Kind::Entries && header.stream.index() < streams {
            self.durable.raise(header.stream, header.durable);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::StreamId;
    use block::{BlockSize, Durable, EraseGuarantee, ZoneGeometry};
    use zones::on_device::format::Uuid;

    const IDENTITY: Identity = Identity { uuid: Uuid::from_bytes([7; 16]), key: 99 };
    const BLOCK: usize = 4096;
    const PLACE: BlockAddress = BlockAddress { zone: 3, generation: 4, position: 0 };

    fn layout() -> Layout {
        let geometry = ZoneGeometry {
            zones: 9,
            zone_size: 1 << 20,
            zone_capacity: 1 << 20,
            append_granularity: 4096,
            read_granularity: 4096,
            max_append: 1 << 20,
            max_open: 0,
            max_active: 0,
            durable: Durable::OnFlush,
            erase: EraseGuarantee::None,
        };
        Layout::new(&geometry, BlockSize::default()).expect("zones for a log")
    }

    /// Creates a zone with records of these numbers of data blocks; record n names n as durable. A few empty
    /// blocks follow.
    fn zone(records: &[u32]) -> Vec<u8> {
        let mut bytes: Vec<u8> = Vec::new();
        for (number, blocks) in (1..).zip(records) {
            let data: Vec<u8> =
                (0..*blocks as usize * BLOCK).map(|at| (at / BLOCK) as u8 ^ number as u8).collect();
            let sums: Vec<u32> = data.chunks_exact(BLOCK).map(sum_of).collect();
            let header = Header {
                kind: Kind::Entries,
                stream: StreamId(0),
                class: 0,
                epoch: 1,
                sequence: number + 1,
                durable: number,
                clock: 0,
                zone: PLACE.zone,
                generation: PLACE.generation,
                position: (bytes.len() / BLOCK) as u32,
                blocks: *blocks,
            };
            let mut block = vec![0; BLOCK];
            header.encode(&IDENTITY, &[], &sums, b"meta", &mut block);
            bytes.extend_from_slice(&block);
            bytes.extend_from_slice(&data);
        }
        bytes.resize(bytes.len() + 5 * BLOCK, 0);
        bytes
    }

    fn walk(bytes: &[u8], step: usize) -> Scanned<Found> {
        let to = (bytes.len() / BLOCK) as u32;
        let mut records = Vec::new();
        let take = |found| records.push(found);
        let mut walk = Walk::new(&layout(), &IDENTITY, PLACE, to, true, take);
        bytes.chunks(step * BLOCK).for_each(|bytes| walk.go_on(bytes));
        let scanned = walk.finish();
        Scanned { records, ..scanned }
    }

    #[test]
    fn a_torn_record_is_left_out_wherever_it_is_torn_and_all_others_are_found() {
        let lengths = [3, 0, 7, 1, 5];
        let whole = zone(&lengths);
        let starts: Vec<u32> = lengths
            .iter()
            .scan(0, |next, blocks| Some(std::mem::replace(next, *next + 1 + blocks)))
            .collect();
        // The result doesn't depend on the size of the read steps.
        for step in [1, 2, 3, 8, 100] {
            let all = walk(&whole, step);
            assert_eq!(
                (all.records.len(), all.end, all.torn.len(), all.durable.of(StreamId(0))),
                (5, 21, 0, 5),
                "step {step}"
            );
            for (number, (start, blocks)) in starts.iter().zip(lengths).enumerate() {
                for torn in 0..=blocks {
                    let mut bytes = whole.clone();
                    bytes[(start + torn) as usize * BLOCK + 50] ^= 1;
                    let scanned = walk(&bytes, step);
                    let what = format!("record {number}, block {torn}, step {step}");
                    let found: Vec<u64> =
                        scanned.records.iter().map(|found| found.header.sequence - 1).collect();
                    let expected: Vec<u64> = (1..=5).filter(|it| *it != number as u64 + 1).collect();
                    assert_eq!(found, expected, "{what}");
                    let end = if number == 4 { *start } else { 21 };
                    assert_eq!(scanned.end, end, "{what}");
                    // A record with a damaged header isn't listed.
                    let listed: Vec<(u64, &[u32])> = scanned
                        .torn
                        .iter()
                        .map(|it| (it.record.header.sequence - 1, &it.blocks[..]))
                        .collect();
                    match torn {
                        0 => assert_eq!(listed, [], "{what}"),
                        _ => assert_eq!(listed, [(number as u64 + 1, &[start + torn][..])], "{what}"),
                    }
                    let heard = if number == 4 && torn == 0 { 4 } else { 5 };
                    assert_eq!(scanned.durable.of(StreamId(0)), heard, "{what}");
                }
            }
        }
    }

    #[test]
    fn a_record_that_would_reach_behind_the_zone_is_none() {
        let bytes = zone(&[2, 4]);
        let scanned = walk(&bytes[..7 * BLOCK], 3);
        assert_eq!((scanned.records.len(), scanned.end, scanned.torn.len()), (1, 3, 0));
        assert_eq!(scanned.durable.of(StreamId(0)), 2, "its mark is valid nevertheless");
    }

    #[test]
    fn a_record_in_whose_blocks_another_one_begins_was_never_whole() {
        let mut bytes = zone(&[4, 0, 0]);
        // The third record overwrites the last block of the first one.
        let third = bytes[6 * BLOCK..7 * BLOCK].to_vec();
        let parsed = Parsed::decode(&third, &IDENTITY).expect("a record");
        let mut moved = vec![0; BLOCK];
        Header { position: 4, ..parsed.header }.encode(&IDENTITY, &[], &[], b"meta", &mut moved);
        bytes[4 * BLOCK..5 * BLOCK].copy_from_slice(&moved);
        bytes[BLOCK] ^= 1;
        let scanned = walk(&bytes, 3);
        assert_eq!((scanned.records.len(), scanned.torn.len()), (3, 0));
    }

    /// State after an opening that completes a finish which a power cut interrupted.
    #[test]
    fn a_zone_that_ended_empty_has_no_records() {
        let main = || async {
            let options = zones::ram::Options { zone_size: 1 << 20, ..Default::default() };
            let part = zones::ram::RamZones::new(options).expect("zones");
            let zones = block::ZonesPart::open(&part).await.expect("zones open");
            // A log doesn't flush such zones; here it only reads.
            let geometry =
                block::ZoneGeometry { durable: block::Durable::OnFlush, ..zones.geometry().clone() };
            let layout = Layout::new(&geometry, BlockSize::default()).expect("zones for a log");
            zones.finish(ZoneIndex(3)).await.expect("an empty zone can be finished");
            let report = zones.report(ZoneIndex(3), 1).await.expect("a report")[0];
            assert_eq!((report.state, report.write_pointer), (ZoneState::Full, 0));
            let first = first_header(&*zones, &layout, &IDENTITY, &report).await;
            assert_eq!(first.expect("nothing is read"), None);
            let scanned = replayable::<Found>(&*zones, &layout, &IDENTITY, &report, 1, 0)
                .await
                .expect("nothing is read");
            assert_eq!((scanned.records.len(), scanned.end), (0, 0));
        };
        runtime::run(runtime::Config::default(), main).expect("the runtime starts");
    }
}
