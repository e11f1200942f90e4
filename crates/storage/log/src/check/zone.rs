//! The records of one zone: their headers, the summary, and all their data.

use super::{Window, name_of};
use crate::format::{Change, VersionId};
use crate::layout::Layout;
use block::{Error, Result, ZoneReport, ZoneState, Zones};
use logkit::Sequences;
use logkit::record::{Header, Identity, Kind, Parsed, sum_of};
use logkit::root::Root;
use logkit::scan::{self, Found, Kept};
use logkit::summary::{BlockAddress, Builder};
use std::collections::BTreeSet;

/// Most bytes in which a damaged summary differs from the expected one. With more, it may be another summary,
/// of an earlier use of the zone.
const FEW: usize = 8;

/// Last valid record of each stream, and last record known to have been durable.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    pub(super) end: Sequences,
    pub(super) durable: Sequences,
}

/// Data block as its record describes it; [`Entry::NONE`] if no record describes the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Version that the block was written to.
    pub(super) version: VersionId,
    /// Number of the block's region, starting at 1; 0 for a good block.
    pub(super) region: u32,
    /// Block of the version.
    pub(super) block: u64,
}

impl Entry {
    /// No record describes the block.
    pub(super) const NONE: Entry = Entry { version: VersionId(0), region: 0, block: 0 };
}

/// Blocks with the same fault.
#[derive(Debug, Clone)]
pub(super) struct Region {
    pub(super) position: u32,
    pub(super) blocks: u32,
    pub(super) what: String,
    pub(super) sort: Sort,
}

/// Meaning of a region if no version maps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    /// No fault: a power cut may have left it.
    Tail,
    /// Damage of data that had been durable.
    Data,
    /// Damage of redundant bytes: they have a second copy, or can be rebuilt.
    Spare,
}

/// An invalid record that had been durable.
#[derive(Debug, Clone)]
pub(super) struct Lost {
    pub(super) position: u32,
    pub(super) blocks: u32,
    pub(super) what: String,
    /// Changes that the record made: version, first block, count.
    pub(super) changes: Vec<(VersionId, u64, u32)>,
}

/// Contents of a zone.
#[derive(Debug, Default)]
pub(super) struct Walked {
    /// Entry of each block of the zone.
    pub(super) entries: Vec<Entry>,
    pub(super) regions: Vec<Region>,
    pub(super) lost: Vec<Lost>,
    pub(super) records: u64,
    pub(super) data_blocks: u64,
    pub(super) has_summary: bool,
    /// Number of records of a later epoch than that of the newest readable root.
    pub(super) newer: u64,
}

/// Scan of one zone.
pub(super) struct Walk<'a> {
    zones: &'a dyn Zones,
    layout: &'a Layout,
    root: &'a Root,
    report: &'a ZoneReport,
    tail: Tail,
    /// Called with the number of bytes of the zone that have been read.
    pub(super) on_read: Option<Box<dyn Fn(u64) + 'a>>,
    walked: Walked,
}

/// Decodes the header in a block of a zone, if it names this location.
///
/// # Errors
/// Errors of [`Parsed::decode`] and [`Parsed::check_place`].
pub(crate) fn header_at<'a>(
    bytes: &'a [u8],
    identity: &Identity,
    report: &ZoneReport,
    position: u32,
) -> Result<Parsed<'a>> {
    let parsed = Parsed::decode(bytes, identity)?;
    parsed.check_place(report.zone.0, report.generation, position)?;
    Ok(parsed)
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        zones: &'a dyn Zones,
        layout: &'a Layout,
        root: &'a Root,
        report: &'a ZoneReport,
        tail: Tail,
    ) -> Self {
        let entries = vec![Entry::NONE; layout.zone_blocks as usize];
        let walked = Walked { entries, ..Walked::default() };
        Walk { zones, layout, root, report, tail, on_read: None, walked }
    }

    pub(super) async fn run(mut self) -> Walked {
        let end = (self.report.write_pointer >> self.layout.block_size.shift()) as u32;
        let mut window = Window::new(self.zones, self.layout, self.report.zone, end);
        window.on_read = self.on_read.take();
        let summary = match self.report.state {
            ZoneState::Full => {
                Some(scan::summary(self.zones, self.layout, &self.root.identity, self.report).await)
            }
            _ => None,
        };
        match summary {
            Some(Ok((summary, position))) => {
                self.walked.has_summary = true;
                let records: Vec<Found> =
                    summary.records(&self.root.identity).map(|parsed| Found::new(&parsed)).collect();
                self.with_summary(&mut window, &records, position).await;
            }
            other => {
                let trouble = other.and_then(Result::err);
                self.without_summary(&mut window, end, trouble).await;
            }
        }
        self.walked
    }

    /// Everything in a zone with a summary was durable before the summary was valid, so nothing in it may be
    /// torn.
    async fn with_summary(&mut self, window: &mut Window<'_>, records: &[Found], summary: u32) {
        let mut position = 0;
        for found in records {
            let header = &found.header;
            let is_next = header.position == position
                && (header.zone, header.generation) == (self.report.zone.0, self.report.generation);
            let behind = u64::from(position) + 1 + u64::from(header.blocks);
            if !is_next || behind > u64::from(summary) {
                break;
            }
            let bytes = window.blocks(position, 1).await;
            let trouble = match header_at(bytes, &self.root.identity, self.report, position) {
                Ok(parsed) if *found == Found::new(&parsed) => None,
                Ok(_) => Some("it isn't the record that the summary has there".to_owned()),
                Err(error) => Some(error.detail().to_owned()),
            };
            if let Some(trouble) = trouble {
                let trouble =
                    window.unreadable.get(&position).map_or(trouble, |error| error.detail().to_owned());
                let what = format!(
                    "the header of record {} of {} is damaged ({trouble}); the summary of the zone has it, too",
                    header.sequence,
                    name_of(header)
                );
                self.region(position, 1, what, Sort::Spare);
            }
            self.record(window, found, Sort::Data).await;
            position = behind as u32;
        }
        if position < summary {
            let what = "the summary of the zone doesn't say what is here".to_owned();
            self.region(position, summary - position, what, Sort::Data);
        }
    }

    async fn without_summary(&mut self, window: &mut Window<'_>, end: u32, trouble: Option<Error>) {
        let mut summary = Builder::default();
        let mut position = 0;
        let mut unbroken = None;
        while position < end {
            let bytes = window.blocks(position, 1).await;
            let found = header_at(bytes, &self.root.identity, self.report, position);
            let found = found.map(|parsed| {
                let room = parsed.header.blocks < end - position;
                if unbroken.is_none() {
                    summary.push(parsed.bytes);
                }
                (Found::new(&parsed), room)
            });
            let why = match found {
                Ok((found, true)) => {
                    self.record(window, &found, Sort::Tail).await;
                    position += 1 + found.header.blocks;
                    continue;
                }
                Ok((_, false)) => "a record that is longer than what was written".to_owned(),
                Err(error) => error.detail().to_owned(),
            };
            unbroken.get_or_insert(position);
            let why = window.unreadable.get(&position).map_or(why, |error| error.detail().to_owned());
            let start = position;
            position += 1;
            while position < end {
                let bytes = window.blocks(position, 1).await;
                if header_at(bytes, &self.root.identity, self.report, position).is_ok() {
                    break;
                }
                position += 1;
            }
            self.region(start, position - start, format!("no record can be read here: {why}"), Sort::Tail);
        }
        let unbroken = unbroken.unwrap_or(end);
        self.judge_summary(window, &summary, unbroken, end, trouble).await;
    }

    /// Reports the bytes after the records of a full zone if they are a damaged summary.
    async fn judge_summary(
        &mut self,
        window: &mut Window<'_>,
        summary: &Builder,
        unbroken: u32,
        end: u32,
        trouble: Option<Error>,
    ) {
        if self.report.state != ZoneState::Full {
            return;
        }
        let block = self.layout.block_bytes();
        let blocks = summary.blocks_with(0, block) as u32;
        let mut why = trouble.filter(|error| !matches!(error, Error::Protocol(_)));
        if why.is_none() && end.checked_sub(unbroken) == Some(blocks) {
            // The length matches: compare the bytes with the expected summary.
            let mut expected = vec![0; blocks as usize * block];
            let zone = self.report.zone.0;
            let place = BlockAddress { zone, generation: self.report.generation, position: unbroken };
            summary.encode(place, &self.root.identity, block, &mut expected);
            let bytes = window.blocks(unbroken, blocks).await;
            let differing = bytes.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
            if differing <= FEW {
                why = Some(Error::corrupt(format!("{differing} bytes differ from the expected summary")));
            }
        }
        if let Some(why) = why {
            let what = format!(
                "the summary of the zone is unusable ({}): its records are read one by one",
                why.detail()
            );
            let is_it = |region: &mut Region| region.position == unbroken && unbroken + blocks == end;
            self.walked.regions.pop_if(is_it);
            let start = if end.saturating_sub(unbroken) == blocks { unbroken } else { end - 1 };
            self.region(start, end - start, what, Sort::Spare);
        }
    }

    /// Notes the entries of a record, and verifies its data.
    async fn record(&mut self, window: &mut Window<'_>, found: &Found, sort: Sort) {
        let header = &found.header;
        self.walked.records += 1;
        self.walked.newer += u64::from(header.epoch > self.root.epoch);
        let first = header.position + 1;
        let changes =
            match header.kind == Kind::Entries && header.stream.index() < self.layout.stripes.streams() {
                true => self.note_changes(found),
                false => Vec::new(),
            };
        let block = self.layout.block_bytes();
        let mut bad: Vec<(u32, String)> = Vec::new();
        if header.blocks > 0 {
            let data = window.blocks(first, header.blocks).await;
            for (number, (bytes, sum)) in data.chunks_exact(block).zip(&found.sums).enumerate() {
                if sum_of(bytes) != *sum {
                    bad.push((first + number as u32, "its checksum is wrong".to_owned()));
                }
            }
        }
        self.walked.data_blocks += u64::from(header.blocks);
        for (position, why) in &mut bad {
            if let Some(error) = window.unreadable.get(position) {
                *why = error.detail().to_owned();
            }
        }
        for run in bad.chunk_by(|one, next| one.0 + 1 == next.0 && one.1 == next.1) {
            let which = match run.len() {
                1 => format!("data block {}", run[0].0 - first),
                _ => format!("data blocks {} to {}", run[0].0 - first, run[run.len() - 1].0 - first),
            };
            let name = name_of(header);
            let what = format!("{which} of record {} of {name} can't be used: {}", header.sequence, run[0].1);
            self.region(run[0].0, run.len() as u32, what, sort);
        }
        self.note_lost(header, !bad.is_empty(), changes);
    }

    /// Notes the version and block of each data block.
    fn note_changes(&mut self, found: &Found) -> Vec<(VersionId, u64, u32)> {
        let header = &found.header;
        let name = name_of(header);
        let first = header.position + 1;
        let changes = match Change::decode_all(&found.meta) {
            Ok(changes) => changes,
            Err(error) => {
                let what = format!("record {} of {name}: {}", header.sequence, error.detail());
                self.region(header.position, 1 + header.blocks, what, Sort::Data);
                return Vec::new();
            }
        };
        let named: u64 = changes.iter().map(|change| u64::from(change.data_blocks())).sum();
        if named != u64::from(header.blocks) {
            let what = format!(
                "record {} of {name} has {} data blocks and names {named}",
                header.sequence, header.blocks
            );
            self.region(header.position, 1 + header.blocks, what, Sort::Data);
            return Vec::new();
        }
        let mut position = first as usize;
        let mut changed = Vec::new();
        for change in changes {
            match change {
                Change::Write { version, block, count } | Change::Move { version, block, count, .. } => {
                    for (number, entry) in
                        self.walked.entries[position..position + count as usize].iter_mut().enumerate()
                    {
                        *entry = Entry { version, block: block + number as u64, ..*entry };
                    }
                    position += count as usize;
                    changed.push((version, block, count));
                }
                Change::Unmap { version, block, count } => changed.push((version, block, count)),
                Change::Create { .. } | Change::Delete { .. } | Change::Grow { .. } => {}
            }
        }
        changed
    }

    /// Notes a record that must be valid and isn't, because it or an earlier one is damaged.
    fn note_lost(&mut self, header: &Header, is_bad: bool, changes: Vec<(VersionId, u64, u32)>) {
        if header.kind != Kind::Entries {
            return;
        }
        let (end, durable) = (self.tail.end.of(header.stream), self.tail.durable.of(header.stream));
        if header.sequence <= end || header.sequence > durable || !self.root.admits(header) {
            return;
        }
        let name = name_of(header);
        let why = if is_bad { "is damaged" } else { "is good, and doesn't count without those before it" };
        let what = format!("record {} of {name} had been durable, {why}", header.sequence);
        self.walked.lost.push(Lost { position: header.position, blocks: 1 + header.blocks, what, changes });
    }

    fn region(&mut self, position: u32, blocks: u32, what: String, sort: Sort) {
        self.walked.regions.push(Region { position, blocks, what, sort });
        let number = self.walked.regions.len() as u32;
        for entry in &mut self.walked.entries[position as usize..(position + blocks) as usize] {
            entry.region = number;
        }
    }
}

impl Walked {
    /// Returns whether blocks of these lost pages may be in a region.
    pub(super) fn may_be_needed(&self, region: &Region, lost: &BTreeSet<(VersionId, u64)>) -> bool {
        let entries = &self.entries[region.position as usize..(region.position + region.blocks) as usize];
        entries.iter().filter(|entry| entry.version.0 > 0).any(|entry| {
            let page = entry.block / crate::map::PAGE_BLOCKS;
            lost.iter()
                .any(|(version, other)| *other == page && super::can_come_from(*version, entry.version))
        })
    }
}
