//! The journal: units of the ring in use, pages with changes that wait to be written, and recovery.

use super::format::{self, MAX_COUNT, Superblock};
use super::layout::Layout;
use super::medium::Medium;
use super::{PAGES_IN_FLIGHT, Words};
use block::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use zones::record::{Header, Parsed};

/// Size of reads of the journal, in bytes.
const READ: u64 = 1 << 20;

/// A page that is to be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page {
    pub number: u64,
    /// Copy to write: not the newest one.
    pub copy: u64,
}

/// Work before the next append.
pub(super) struct Plan {
    /// Number of pages to write, those with the oldest changes first.
    pub pages: usize,
    /// Whether the journal lacks free units for the append.
    pub is_tight: bool,
}

#[derive(Debug)]
pub(super) struct Journal {
    units: u64,
    /// Number of the next record.
    pub next: u64,
    /// Tail of the last durable record or superblock.
    durable_tail: u64,
    /// By page: the first record with a change that isn't in the page; 0 for none.
    since: Vec<u64>,
    /// By page: the newest copy.
    newest: Vec<u8>,
    /// Pages with changes, in the order of their first change.
    waiting: VecDeque<(u64, u32)>,
}

impl Journal {
    pub fn new(layout: &Layout, recovered: Recovered) -> Self {
        let mut waiting: Vec<(u64, u32)> = recovered.since.iter().copied().zip(0..).collect();
        waiting.retain(|(since, _)| *since > 0);
        waiting.sort_unstable();
        Journal {
            units: layout.journal,
            next: recovered.last + 1,
            durable_tail: recovered.tail,
            since: recovered.since,
            newest: recovered.newest,
            waiting: waiting.into(),
        }
    }

    /// Number of the first record with a change that isn't in its page.
    pub fn tail(&self) -> u64 {
        self.waiting.front().map_or(self.next, |(since, _)| *since)
    }

    pub fn used(&self) -> u64 {
        self.next - self.durable_tail
    }

    /// Plans an append of this number of records. Once a quarter of the ring is in use, pages are written in
    /// proportion to appends, so that all pages waiting now are written before another quarter is full.
    pub fn plan(&self, records: u64) -> Plan {
        let free = self.units - self.used();
        // One unit is reserved for an empty record with a new tail.
        let is_tight = free < records + 1;
        let quarter = self.units / 4;
        let all = self.waiting.len() as u64;
        let pages = match () {
            () if is_tight => all.div_ceil(4).max(64),
            () if self.next - self.tail() > quarter => (all * records).div_ceil(quarter),
            () => 0,
        };
        Plan { pages: pages as usize, is_tight }
    }

    /// Notes durable records with this tail, and the pages that they change, each with its record's number.
    pub fn appended(&mut self, records: u64, tail: u64, pages: impl Iterator<Item = (u64, u64)>) {
        self.next += records;
        self.durable_tail = tail;
        for (sequence, page) in pages {
            let since = &mut self.since[page as usize];
            if *since == 0 {
                *since = sequence;
                self.waiting.push_back((sequence, page as u32));
            }
        }
    }

    pub fn oldest_pages(&self, count: usize) -> Vec<Page> {
        let page = |(_, page): &(u64, u32)| Page {
            number: u64::from(*page),
            copy: u64::from(self.newest[*page as usize] ^ 1),
        };
        self.waiting.iter().take(count).map(page).collect()
    }

    /// Notes that these pages, the oldest ones, have been written.
    pub fn written(&mut self, pages: &[Page]) {
        for page in pages {
            self.waiting.pop_front();
            self.since[page.number as usize] = 0;
            self.newest[page.number as usize] ^= 1;
        }
    }
}

/// Result of recovery.
#[derive(Debug)]
pub(super) struct Recovered {
    /// Number of the last valid record.
    pub last: u64,
    pub tail: u64,
    /// By page: the first record with a change that isn't in the page; 0 for none.
    pub since: Vec<u64>,
    /// By page: the newest copy.
    pub newest: Vec<u8>,
}

struct Record {
    tail: u64,
    durable: u64,
    changes: Vec<(u32, Words)>,
}

/// Reads pages and journal. If the superblock is doubtful, a newer one may have been lost: then every unit of
/// the journal has to be a valid record of this superblock's epochs or zeros.
pub(super) async fn recover(
    medium: &Medium,
    layout: &Layout,
    superblock: &Superblock,
    is_doubtful: bool,
    entries: &mut [Words],
) -> Result<Recovered> {
    let records = read_journal(medium, layout, superblock, is_doubtful).await?;
    let (last, tail) = find_end(&records, superblock)?;
    let pages = read_pages(medium, layout, superblock, entries).await?;
    let mut since = vec![0; pages.len()];
    for (sequence, record) in records.range(tail..last + 1) {
        for (entry, words) in &record.changes {
            entries[*entry as usize] = *words;
            let page = u64::from(*entry) / layout.per_page;
            let first = &mut since[page as usize];
            if *first == 0 && *sequence > pages[page as usize].sequence {
                *first = *sequence;
            }
        }
    }
    for (number, page) in pages.iter().enumerate() {
        // A power cut tears a page only while the journal still has its changes.
        if page.is_damaged && since[number] == 0 {
            return Err(Error::corrupt(format!(
                "page {number} of the table: one of its copies is damaged, and the journal has no changes to restore it; \
                 the device is damaged"
            )));
        }
    }
    let newest = pages.iter().map(|page| page.copy).collect();
    Ok(Recovered { last, tail, since, newest })
}

async fn read_journal(
    medium: &Medium,
    layout: &Layout,
    superblock: &Superblock,
    is_doubtful: bool,
) -> Result<BTreeMap<u64, Record>> {
    let mut records = BTreeMap::new();
    let step = (READ / layout.unit).max(1);
    let mut position = 0;
    while position < layout.journal {
        let units = step.min(layout.journal - position);
        let place = layout.journal_start() + position * layout.unit;
        let bytes = medium.bytes(place, units * layout.unit).await?;
        for (unit, position) in bytes.filled().chunks_exact(layout.unit as usize).zip(position..) {
            // Bytes that aren't a valid record of this table are skipped.
            let Ok(parsed) = Parsed::decode(unit, &superblock.identity) else {
                if is_doubtful && unit.iter().any(|byte| *byte != 0) {
                    return Err(Error::corrupt(format!(
                        "a superblock of the table and unit {position} of its journal are both invalid: the device is damaged"
                    )));
                }
                continue;
            };
            let header = &parsed.header;
            if header.epoch > superblock.epoch {
                return Err(Error::corrupt(format!(
                    "newest superblock of the table is missing: the journal has a record of epoch {}; the superblock \
                     that was found has epoch {}",
                    header.epoch, superblock.epoch
                )));
            }
            let sequence = header.sequence;
            let is_placed = parsed.check_place(0, 0, position as u32).is_ok();
            let is_valid = match header.epoch {
                epoch if epoch == superblock.epoch => sequence > superblock.last,
                epoch => epoch < superblock.epoch && sequence <= superblock.last,
            };
            if is_placed && sequence % layout.journal == position && is_valid {
                check_numbers(header)?;
                let changes = format::decode_changes(parsed.meta, layout.entries)?;
                records.insert(sequence, Record { tail: header.clock, durable: header.durable, changes });
            }
        }
        position += units;
    }
    Ok(records)
}

/// Refuses a record with numbers out of range: its tail is at most its own number, and the last durable
/// record is before it.
fn check_numbers(header: &Header) -> Result<()> {
    let &Header { sequence, clock: tail, durable, .. } = header;
    match sequence <= MAX_COUNT && tail <= sequence && durable < sequence {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "record {sequence} of the table's journal: field out of range: tail={tail}, durable={durable}; expected tail at \
             most and durable below the record's number; the device is damaged"
        ))),
    }
}

/// Finds the last valid record, and the tail.
fn find_end(records: &BTreeMap<u64, Record>, superblock: &Superblock) -> Result<(u64, u64)> {
    let all_there =
        |from: u64, to: u64| from > to || records.range(from..to + 1).count() as u64 == to - from + 1;
    let newer = || records.range(superblock.last + 1..).rev();
    // Only the newest record is checked: units that an older one required may have been reused since.
    if let Some((sequence, record)) = newer().next()
        && !all_there(superblock.tail.max(record.tail), record.durable)
    {
        return Err(Error::corrupt(format!(
            "journal of the table: records before record {sequence} are missing: the device is damaged"
        )));
    }
    for (sequence, record) in newer() {
        let tail = superblock.tail.max(record.tail);
        if all_there(tail, *sequence) {
            return Ok((*sequence, tail));
        }
    }
    match all_there(superblock.tail, superblock.last) {
        true => Ok((superblock.last, superblock.tail)),
        false => Err(Error::corrupt(format!(
            "journal of the table: records are missing between {} and {}: the device is damaged",
            superblock.tail, superblock.last
        ))),
    }
}

struct FoundPage {
    sequence: u64,
    copy: u8,
    is_damaged: bool,
}

async fn read_pages(
    medium: &Medium,
    layout: &Layout,
    superblock: &Superblock,
    entries: &mut [Words],
) -> Result<Vec<FoundPage>> {
    let reads = (0..layout.pages()).map(|page| medium.bytes(layout.page(page), 2 * layout.unit));
    let mut found = Vec::with_capacity(layout.pages() as usize);
    // Read in batches to bound the memory.
    let mut reads = reads.peekable();
    while reads.peek().is_some() {
        let piece: Vec<_> = reads.by_ref().take(8 * PAGES_IN_FLIGHT).collect();
        for bytes in runtime::join_limited(PAGES_IN_FLIGHT, piece).await {
            let page = found.len() as u64;
            let bytes = bytes?;
            let (first, second) = bytes.filled().split_at(layout.unit as usize);
            let range = layout.entries_of(page);
            let mut other = vec![[0; 3]; range.len()];
            let entries = &mut entries[range];
            let copies = [
                format::decode_page(first, &superblock.identity, page, entries),
                format::decode_page(second, &superblock.identity, page, &mut other),
            ];
            found.push(match copies {
                [Ok(first), Ok(second)] if first >= second => {
                    FoundPage { sequence: first, copy: 0, is_damaged: false }
                }
                [Ok(_), Ok(second)] => {
                    entries.copy_from_slice(&other);
                    FoundPage { sequence: second, copy: 1, is_damaged: false }
                }
                [Ok(first), Err(_)] => FoundPage { sequence: first, copy: 0, is_damaged: true },
                [Err(_), Ok(second)] => {
                    entries.copy_from_slice(&other);
                    FoundPage { sequence: second, copy: 1, is_damaged: true }
                }
                [Err(error), Err(_)] => return Err(error),
            });
        }
    }
    Ok(found)
}
