//! What of a log can't be read, where it is opened to be salvaged.
//!
//! Such a log takes no changes, and none of its background work runs. The location of a block is unknown if the page of the map that
//! says so can't be read, or if its zone has been reset since. A read of such a block fails and names the cause. In the map it has a
//! location in a root zone, where no data ever is: one for each cause.

use crate::layout::Layout;
use crate::map::{PAGE_BLOCKS, Physical};
use crate::recovery::Replayable;
use crate::versions::{Version, Versions};
use block::{Error, ZoneReport, ZoneState};
use logkit::ZonePool;
use logkit::directory::ZoneEntry;
use logkit::layout::ROOT_ZONES;
use logkit::pool::Usage;
use std::collections::BTreeMap;

/// Limit of what is appended to the zones of such a log, in memory: nothing.
pub(crate) const MOST_BYTES: u64 = 0;
/// Most losses that are described; others are counted.
const MOST_LINES: usize = 100;
/// Most blocks of a map that are looked at before other tasks get their turn.
const AT_ONCE: u64 = 1 << 20;

/// Losses of a log, as far as they were found when it was opened.
#[derive(Debug)]
pub struct Lost {
    lines: Vec<String>,
    count: u64,
    /// Why locations are unknown, in the order of the blocks of the root zones from block 1 on.
    causes: Vec<String>,
    most_causes: usize,
}

impl Lost {
    /// No losses of a log with this layout.
    pub(crate) fn new(layout: &Layout) -> Self {
        let most_causes = (ROOT_ZONES * layout.zone_blocks) as usize - 1;
        Lost { lines: Vec::new(), count: 0, causes: Vec::new(), most_causes }
    }

    /// Notes a loss, and logs it if it is one of the first.
    pub(crate) fn note(&mut self, line: String) {
        self.count += 1;
        if self.lines.len() < MOST_LINES {
            tracing::error!("salvaging the log: {line}");
            self.lines.push(line);
        }
    }

    /// Notes that the locations of some blocks are unknown. Returns the location that these blocks get in the map.
    pub(crate) fn note_unknown(&mut self, line: String) -> Physical {
        match self.causes.len() < self.most_causes {
            true => self.causes.push(line.clone()),
            // Of all further ones.
            false => {
                if let Some(last) = self.causes.last_mut() {
                    "a part of the map can't be read; status lists the first of them".clone_into(last);
                }
            }
        }
        self.note(line);
        Physical(self.causes.len() as u32)
    }

    /// Logs how many losses there are.
    pub(crate) fn tell(&self) {
        match self.count {
            0 => tracing::info!("salvaging the log: everything could be read that opening it reads"),
            count => tracing::error!(
                "salvaging the log: {count} losses, of which the first {} are listed; status has the list, too",
                self.lines.len()
            ),
        }
    }

    /// The losses that are described.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Number of losses.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Why locations are unknown, by location from block 1 on.
    pub(crate) fn causes(&self) -> Vec<String> {
        self.causes.clone()
    }
}

/// Refuses a change of a log that is salvaged.
pub(crate) fn refusal() -> Error {
    Error::read_only("log: it is open to be salvaged and takes no changes; copy its blocks to another volume")
}

/// Adds to an error of opening a damaged log that the log can be salvaged.
pub(crate) fn advise(error: Error) -> Error {
    let advice = |detail: &str| format!("{detail}; salvage = true opens what can be read, to copy it");
    match &error {
        Error::Corrupt(detail) => Error::corrupt(advice(detail)),
        Error::Io(detail) => Error::io(advice(detail)),
        _ => error,
    }
}

/// Name of a version, for operators.
pub(crate) fn name_of(name: &str, is_head: bool) -> String {
    match (is_head, name) {
        (true, _) => "the volume".to_owned(),
        (false, "") => "a deleted snapshot".to_owned(),
        (false, name) => format!("\"{name}\""),
    }
}

/// The blocks of a page, for operators.
pub(crate) fn blocks_of_page(page: u64, blocks: u64) -> String {
    let first = page * PAGE_BLOCKS;
    format!("{first}..{}", blocks.min(first + PAGE_BLOCKS))
}

/// Gives blocks an unknown location whose data isn't where the maps say: in zones that were reset since the checkpoint, and after the
/// end of zones. Without losses there are none: a zone is reset once all its blocks were written elsewhere, and the records that say
/// so are replayed, unless one before them is missing.
///
/// In a zone that was reset since, blocks are there that the replayed records have written.
pub(crate) async fn check_places(
    versions: &Versions,
    layout: &Layout,
    reports: &[ZoneReport],
    known: &[ZoneEntry],
    records: &[Replayable],
    lost: &mut Lost,
) {
    let places = Places::new(layout, reports, known, records);
    for version in &versions.list {
        let mut gone: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        let mut at = 0;
        while at < version.blocks {
            let end = version.blocks.min(at + AT_ONCE);
            version.map.lookup_range(at..end, &mut |piece| {
                let mapped = if piece.physical.is_mapped() { piece.count } else { 0 };
                for number in 0..mapped {
                    let (block, physical) = (piece.block + number, piece.physical.offset(number));
                    let (zone, _) = layout.place(physical);
                    if zone < ROOT_ZONES || places.is_there(physical, block) {
                        continue;
                    }
                    let ranges = gone.entry(zone).or_default();
                    match ranges.last_mut() {
                        Some((first, count)) if *first + *count == block => *count += 1,
                        _ => ranges.push((block, 1)),
                    }
                }
            });
            at = end;
            runtime::yield_now().await;
        }
        for (zone, ranges) in gone {
            set_unknown(version, zone, &ranges, lost);
        }
    }
}

/// Notes the zones with blocks that can't be read, except those whose blocks have got an unknown location.
pub(crate) fn note_zones(pool: &ZonePool, lost: &mut Lost) {
    for (zone, entry) in pool.list() {
        if zone >= ROOT_ZONES && entry.usage == Usage::Damaged && entry.live > 0 {
            lost.note(format!(
                "zone {zone} is offline or was reset: {} blocks in it can't be read",
                entry.live
            ));
        }
    }
}

fn set_unknown(version: &Version, zone: u32, ranges: &[(u64, u64)], lost: &mut Lost) {
    let count: u64 = ranges.iter().map(|(_, count)| count).sum();
    let first = ranges.first().map_or(0, |(first, _)| *first);
    let name = name_of(&version.name, version.id == crate::format::VersionId::HEAD);
    let to = lost.note_unknown(format!(
        "{count} blocks of {name}, the first of them block {first}, lay in zone {zone}, which has been reset since, or lacks its end"
    ));
    for block in ranges.iter().flat_map(|(first, count)| *first..first + count) {
        version.map.insert(block..block + 1, to, &mut |_| {});
    }
}

/// What is in the zones.
struct Places<'a> {
    layout: &'a Layout,
    /// Number of blocks that can be read of each zone.
    ends: Vec<u32>,
    /// Whether a zone has been reset since the checkpoint.
    was_reset: Vec<bool>,
    /// Blocks that replayed records have written to these zones, by location.
    written: BTreeMap<Physical, u64>,
}

impl<'a> Places<'a> {
    fn new(layout: &'a Layout, reports: &[ZoneReport], known: &[ZoneEntry], records: &[Replayable]) -> Self {
        let ends = reports.iter().map(|report| match report.state {
            // Reads of it fail.
            ZoneState::Offline => layout.zone_blocks,
            ZoneState::Empty => 0,
            _ => layout.blocks_in(report.write_pointer) as u32,
        });
        let mut was_reset: Vec<bool> =
            reports.iter().map(|report| report.state != ZoneState::Offline).collect();
        for entry in known {
            if let Some(report) = reports.get(entry.zone as usize)
                && report.generation == entry.generation
            {
                was_reset[entry.zone as usize] = false;
            }
        }
        let mut written = BTreeMap::new();
        for record in records.iter().filter(|record| was_reset[record.header.zone as usize]) {
            let mut position = record.header.position + 1;
            for change in record.changes.iter() {
                // Replaying the record has told about damage.
                let Ok(change) = change else { break };
                if let Some(block) = change.first_block() {
                    let at = layout.physical(record.header.zone, position);
                    written.extend((0..u64::from(change.data_blocks())).map(|n| (at.offset(n), block + n)));
                }
                position = position.saturating_add(change.data_blocks());
            }
        }
        Places { layout, ends: ends.collect(), was_reset, written }
    }

    fn is_there(&self, physical: Physical, block: u64) -> bool {
        let (zone, position) = self.layout.place(physical);
        let is_written = self.ends.get(zone as usize).is_some_and(|end| position < *end);
        is_written && (!self.was_reset[zone as usize] || self.written.get(&physical) == Some(&block))
    }
}
