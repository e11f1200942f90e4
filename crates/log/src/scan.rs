//! Reading the records of one zone, from its summary or one by one.

use crate::layout::Layout;
use block::{Buffer, ByteOffset, Error, Result, ZoneAddress, ZoneIndex, ZoneReport, ZoneState, Zones};
use zones::record::{Header, Identity, Parsed};
use zones::summary::{Place, Summary, blocks_of};

/// How many bytes are read at a time.
const STEP: usize = 1 << 20;
/// How many of these reads are on their way at a time.
const READS: usize = 4;

/// A record that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its header.
    pub header: Header,
    /// The checksums of its data blocks.
    pub sums: Vec<u32>,
    /// The owner's words.
    pub meta: Vec<u8>,
}

impl Found {
    /// A copy of what was parsed.
    pub(crate) fn new(parsed: &Parsed<'_>) -> Self {
        Found {
            header: parsed.header,
            sums: (0..parsed.header.blocks as usize).map(|number| parsed.sum(number)).collect(),
            meta: parsed.meta.to_vec(),
        }
    }
}

/// What a zone holds.
#[derive(Debug, Default)]
pub struct Scanned {
    /// Its records, in order, up to the first place where none validates.
    pub records: Vec<Found>,
    /// Where that is.
    pub end: u32,
    /// Records before this block weren't looked at.
    pub first: u32,
    /// The highest sequence that any record of the zone says was durable, by stream, those behind `end` included.
    pub durable: [u64; 4],
    /// Whether a valid summary gave the records.
    pub by_summary: bool,
    /// Valid headers that stand behind `end`.
    pub stranded: u32,
}

/// Reads bytes of a zone, in several reads.
///
/// # Errors
/// What reading says.
pub async fn read(
    zones: &dyn Zones,
    layout: &Layout,
    zone: u32,
    position: u32,
    blocks: u32,
) -> Result<Vec<u8>> {
    let shift = layout.block_size.shift();
    let (from, to) = ((position as usize) << shift, ((position + blocks) as usize) << shift);
    let mut bytes = Vec::with_capacity(to - from);
    let mut at = from;
    while at < to {
        let starts = (0..READS).map(|number| at + number * STEP).filter(|start| *start < to);
        let reads = starts.map(|start| {
            let address = ZoneAddress { zone: ZoneIndex(zone), offset: ByteOffset(start as u64) };
            zones.read(address, Buffer::new(STEP.min(to - start)))
        });
        for (outcome, buffer) in runtime::join_all(reads).await {
            outcome.map_err(|error| error.in_context(format!("reading zone {zone}")))?;
            at += buffer.filled().len();
            bytes.extend_from_slice(buffer.filled());
        }
    }
    Ok(bytes)
}

/// The error for a zone that can't be read, and is needed.
///
/// # Errors
/// Always: what the zones say about it.
pub async fn refuse_offline(zones: &dyn Zones, zone: ZoneIndex) -> Result<()> {
    let unit = zones.geometry().read_granularity as usize;
    let address = ZoneAddress { zone, offset: ByteOffset(0) };
    let (outcome, _) = zones.read(address, Buffer::new(unit)).await;
    let unknown = || Error::corrupt(format!("zone {zone} is offline"));
    let trouble = outcome.err().unwrap_or_else(unknown);
    Err(trouble.in_context("the log can't be opened without knowing what is in each of its zones"))
}

/// The summary of a zone that is full.
///
/// # Errors
/// [`Error::Protocol`] without one, [`Error::Corrupt`] for a damaged one; what reading says.
pub async fn summary(
    zones: &dyn Zones,
    layout: &Layout,
    identity: &Identity,
    report: &ZoneReport,
) -> Result<(Summary, u32)> {
    let end = (report.write_pointer >> layout.block_size.shift()) as u32;
    if report.state != ZoneState::Full || end == 0 {
        return Err(Error::protocol("a zone that isn't full has no summary"));
    }
    let last = read(zones, layout, report.zone.0, end - 1, 1).await?;
    let blocks = blocks_of(&last)?;
    if blocks > end {
        return Err(Error::protocol("a summary that is longer than its zone"));
    }
    let position = end - blocks;
    let bytes = read(zones, layout, report.zone.0, position, blocks).await?;
    let place = Place { zone: report.zone.0, generation: report.generation, position };
    let summary = Summary::decode(&bytes, place, identity, layout.block_bytes())?;
    Ok((summary, position))
}

/// Finds the records of a zone. Where no summary gives them, every header from block `first` on is looked at, where a record
/// begins or none is, and, with `check_data`, all data, too; and behind the end of what validates, headers are looked for
/// that say what had been durable.
///
/// # Errors
/// What reading says.
pub async fn scan(
    zones: &dyn Zones,
    layout: &Layout,
    identity: &Identity,
    report: &ZoneReport,
    first: u32,
    check_data: bool,
) -> Result<Scanned> {
    match summary(zones, layout, identity, report).await {
        Ok((summary, position)) => {
            let mut scanned = Scanned { end: position, by_summary: true, ..Scanned::default() };
            for parsed in summary.records(identity) {
                scanned.note(&parsed.header);
                scanned.records.push(Found::new(&parsed));
            }
            return Ok(scanned);
        }
        Err(Error::Protocol(_) | Error::Corrupt(_)) => {}
        Err(error) => return Err(error),
    }
    let blocks = (report.write_pointer >> layout.block_size.shift()) as u32;
    let first = first.min(blocks);
    let bytes = read(zones, layout, report.zone.0, first, blocks - first).await?;
    let place = Place { zone: report.zone.0, generation: report.generation, position: first };
    Ok(scan_bytes(&bytes, layout, identity, place, check_data))
}

/// Finds the records in the bytes of a zone from this place on.
pub fn scan_bytes(
    bytes: &[u8],
    layout: &Layout,
    identity: &Identity,
    place: Place,
    check_data: bool,
) -> Scanned {
    let Place { zone, generation, position: first } = place;
    let block = layout.block_bytes();
    let blocks = first + (bytes.len() / block) as u32;
    let mut scanned = Scanned { first, end: first, ..Scanned::default() };
    let parsed_at = |position: u32| {
        let start = (position - first) as usize * block;
        let parsed = Parsed::decode(&bytes[start..start + block], identity).ok()?;
        parsed.check_place(zone, generation, position).ok()?;
        Some(parsed)
    };
    while scanned.end < blocks {
        let position = scanned.end;
        let Some(parsed) = parsed_at(position) else { break };
        let start = ((position - first) as usize + 1) * block;
        let data = bytes.get(start..start + parsed.header.blocks as usize * block);
        let Some(data) = data else { break };
        if check_data && parsed.check_data(data, block).is_err() {
            break;
        }
        scanned.note(&parsed.header);
        scanned.records.push(Found::new(&parsed));
        scanned.end = position + 1 + parsed.header.blocks;
    }
    for position in scanned.end..blocks {
        if let Some(parsed) = parsed_at(position) {
            scanned.note(&parsed.header);
            scanned.stranded += 1;
        }
    }
    scanned
}

impl Scanned {
    fn note(&mut self, header: &Header) {
        let durable = &mut self.durable[usize::from(header.stream.0) & 3];
        *durable = (*durable).max(header.durable);
    }
}
