//! Unreadable parts of a log that is opened to be salvaged.
//!
//! Such a log accepts no changes, and none of its background work runs. The location of a block is unknown if
//! its page of the map is unreadable, or its zone has been reset since. Reads of such a block fail and name
//! the cause. In the map it has a location in a root zone, where no data ever is: one for each cause.

use crate::changes::Replayable;
use crate::format::{Change, VersionId};
use crate::layout::Layout;
use crate::map::{PAGE_BLOCKS, Physical};
use crate::versions::Versions;
use block::{Error, ZoneBlock, ZoneIndex, ZoneReport, ZoneState};
use logkit::ZonePool;
use logkit::layout::ROOT_ZONES;
use logkit::pool::Usage;
use logkit::recovery::LostParts;
use std::collections::BTreeMap;

/// Limit of memory for appends to the zones of such a log: none are permitted.
pub(crate) const MAX_BYTES: u64 = 0;
/// Most blocks of a map that are examined between two yields to other tasks, and whose locations are held in
/// memory.
const AT_ONCE: u64 = 1 << 16;
/// Cause for the last location, once several losses share it.
const FURTHER: &str = "a part of the map can't be read; status lists the first of them";

/// Losses of a log that were found when it was opened.
#[derive(Debug)]
pub struct Lost {
    parts: LostParts,
    /// Reasons why locations are unknown, in the order of the blocks of the root zones, starting at block 1.
    causes: Vec<String>,
    most_causes: usize,
}

impl Lost {
    /// Creates an empty list for a log with this layout.
    pub(crate) fn new(layout: &Layout) -> Self {
        let most_causes = (ROOT_ZONES * layout.zone_blocks) as usize - 1;
        Lost { parts: LostParts::default(), causes: Vec::new(), most_causes }
    }

    /// Notes a loss, and logs it if it is one of the first.
    pub(crate) fn note(&mut self, line: String) {
        let told = line.clone();
        if self.parts.note(line) {
            tracing::error!("salvaging the log: {told}");
        }
    }

    /// Adds losses that were found earlier.
    pub(crate) fn append(&mut self, parts: LostParts) {
        parts.lines.iter().for_each(|line| tracing::error!("salvaging the log: {line}"));
        self.parts.append(parts);
    }

    /// Notes that the locations of some blocks are unknown. Returns the location of these blocks in the map.
    pub(crate) fn note_unknown(&mut self, line: String) -> Physical {
        let place = self.begin_unknown();
        self.end_unknown(place, line);
        place
    }

    /// Returns a location for blocks whose locations are unknown; [`end_unknown`](Self::end_unknown) sets the
    /// reason.
    fn begin_unknown(&mut self) -> Physical {
        if self.causes.len() < self.most_causes {
            self.causes.push(String::new());
        } else if let Some(last) = self.causes.last_mut() {
            // No location is left: all further losses share the last one, with a common cause.
            FURTHER.clone_into(last);
        }
        Physical(self.causes.len() as u32)
    }

    fn end_unknown(&mut self, place: Physical, line: String) {
        let cause = (place.0 as usize).checked_sub(1).and_then(|number| self.causes.get_mut(number));
        if let Some(cause) = cause.filter(|cause| *cause != FURTHER) {
            line.clone_into(cause);
        }
        self.note(line);
    }

    /// Logs the number of losses.
    pub(crate) fn tell(&self) {
        match self.parts.count {
            0 => tracing::info!("salvaging the log: everything could be read that opening it reads"),
            count => tracing::error!(
                "salvaging the log: {count} losses, of which the first {} are listed; status has the list, too",
                self.parts.lines.len()
            ),
        }
    }

    /// Descriptions of the first losses.
    pub fn lines(&self) -> &[String] {
        &self.parts.lines
    }

    /// Number of losses.
    pub fn count(&self) -> u64 {
        self.parts.count
    }

    /// Reasons why locations are unknown, by location, starting at block 1.
    pub(crate) fn causes(&self) -> Vec<String> {
        self.causes.clone()
    }
}

/// Returns the error for a change of a log that is salvaged.
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

/// Describes a version for operators.
pub(crate) fn name_of(name: &str, is_head: bool) -> String {
    match (is_head, name) {
        (true, _) => "the volume".to_owned(),
        (false, "") => "a deleted snapshot".to_owned(),
        (false, name) => format!("\"{name}\""),
    }
}

/// Describes the blocks of a page for operators.
pub(crate) fn blocks_of_page(page: u64, blocks: u64) -> String {
    let first = page * PAGE_BLOCKS;
    format!("{first}..{}", blocks.min(first + PAGE_BLOCKS))
}

/// Blocks of a version whose data is lost with a zone.
struct Gone {
    /// Location that the blocks get.
    to: Physical,
    first: u64,
    count: u64,
}

/// Gives an unknown location to blocks whose data isn't at the location in the maps: in zones that were reset
/// since the checkpoint, and after the end of zones. Without losses there are no such blocks: a zone is reset
/// only after all its blocks were written elsewhere, and the records that name the new locations are
/// replayed, unless an earlier one is missing.
///
/// A zone that was reset since has the blocks that replayed records have written.
pub(crate) async fn check_places(versions: &Versions, places: &Places<'_>, lost: &mut Lost) {
    for version in &versions.list {
        let mut gone: BTreeMap<u32, Gone> = BTreeMap::new();
        let mut at = 0;
        while at < version.blocks {
            let end = version.blocks.min(at + AT_ONCE);
            let mut found: Vec<(u32, u64)> = Vec::new();
            version.map.lookup_range(at..end, &mut |piece| {
                let mapped = if piece.physical.is_mapped() { piece.count } else { 0 };
                for number in 0..mapped {
                    let (block, physical) = (piece.block + number, piece.physical.offset(number));
                    let zone = places.layout.place(physical).zone.0;
                    if zone >= ROOT_ZONES && !places.is_there(version.id, physical, block) {
                        found.push((zone, block));
                    }
                }
            });
            for (zone, block) in found {
                let begin = || Gone { to: lost.begin_unknown(), first: block, count: 0 };
                let gone = gone.entry(zone).or_insert_with(begin);
                gone.count += 1;
                version.map.insert(block..block + 1, gone.to, &mut |_| {});
            }
            at = end;
            runtime::yield_now().await;
        }
        let name = name_of(&version.name, version.id == VersionId::HEAD);
        for (zone, Gone { to, first, count }) in gone {
            let line = format!(
                "{count} blocks of {name}, the first of them block {first}, lay in zone {zone}, which has been reset since, or lacks its end"
            );
            lost.end_unknown(to, line);
        }
    }
}

/// Notes the zones with unreadable blocks, except blocks that have an unknown location.
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

/// A block that a replayed record has written to a zone that was reset since the checkpoint.
struct Written {
    /// Version that has the block; `None` for a move, which versions share.
    version: Option<VersionId>,
    block: u64,
    /// Position of the change in the order of replay.
    order: u64,
}

/// Contents of the zones.
pub(crate) struct Places<'a> {
    layout: &'a Layout,
    /// Number of readable blocks of each zone.
    ends: Vec<u32>,
    /// Zones that were reset since the checkpoint, in order.
    reset_since: &'a [u32],
    /// Blocks in these zones, by location.
    written: BTreeMap<Physical, Written>,
    /// Versions that replayed records have created: the parent of each, and the position in the order of
    /// replay.
    made: BTreeMap<VersionId, (VersionId, u64)>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(
        layout: &'a Layout,
        reports: &[ZoneReport],
        reset_since: &'a [u32],
        records: &[Replayable],
    ) -> Self {
        let ends = reports.iter().map(|report| match report.state {
            // Reads of an offline zone fail anyway.
            ZoneState::Offline => layout.zone_blocks,
            ZoneState::Empty => 0,
            _ => layout.blocks_in(report.write_pointer) as u32,
        });
        let (written, made) = (BTreeMap::new(), BTreeMap::new());
        let mut places = Places { layout, ends: ends.collect(), reset_since, written, made };
        let mut order = 0;
        for record in records {
            places.note(record, &mut order);
        }
        places
    }

    fn was_reset(&self, zone: u32) -> bool {
        self.reset_since.binary_search(&zone).is_ok()
    }

    fn note(&mut self, record: &Replayable, order: &mut u64) {
        let zone = record.header.zone;
        let was_reset = self.was_reset(zone);
        let (mut position, mut left) = (record.header.position + 1, record.header.blocks);
        for change in record.changes.iter() {
            // Replaying the record has already reported the damage.
            let Ok(change) = change else { return };
            *order += 1;
            let count = change.data_blocks();
            let version = match &change {
                Change::Create { version, parent, .. } => {
                    self.made.insert(*version, (*parent, *order));
                    continue;
                }
                Change::Write { version, .. } => Some(*version),
                _ => None,
            };
            let Some(block) = change.first_block() else { continue };
            // A record whose entries exceed its data isn't replayed.
            let Some(rest) = left.checked_sub(count) else { return };
            if was_reset {
                let at = self.layout.physical(ZoneBlock { zone: ZoneIndex(zone), block: position });
                let order = *order;
                self.written.extend((0..u64::from(count)).map(|number| {
                    (at.offset(number), Written { version, block: block.saturating_add(number), order })
                }));
            }
            left = rest;
            position += count;
        }
    }

    /// Whether a block of a version is at the location in its map.
    fn is_there(&self, version: VersionId, physical: Physical, block: u64) -> bool {
        let ZoneBlock { zone, block: position } = self.layout.place(physical);
        if self.ends.get(zone.0 as usize).is_none_or(|end| position >= *end) {
            return false;
        }
        if !self.was_reset(zone.0) {
            return true;
        }
        // A version that wasn't written there may name it in its map of the checkpoint, from before the
        // reset.
        self.written.get(&physical).is_some_and(|written| {
            written.block == block
                && written.version.is_none_or(|writer| self.has_from(version, writer, written.order))
        })
    }

    /// Whether a version has the data that another one wrote at this position in the order: it is that
    /// version, or a later copy of it.
    fn has_from(&self, mut version: VersionId, writer: VersionId, order: u64) -> bool {
        let mut before = u64::MAX;
        while version != writer {
            match self.made.get(&version) {
                Some((parent, made)) if (order + 1..before).contains(made) => {
                    (version, before) = (*parent, *made);
                }
                _ => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_what_it_or_its_origin_wrote_before_it_was_made() {
        let layout = crate::layout::Layout::of(logkit::Layout {
            block_size: block::BlockSize::default(),
            zone_blocks: 64,
            zones: 8,
            max_append: 32,
        });
        let layout = layout.expect("a layout");
        let mut places = Places::new(&layout, &[], &[4], &[]);
        let (head, old, new, newer) = (VersionId::HEAD, VersionId(7), VersionId(8), VersionId(9));
        places.ends = vec![64; 8];
        places.made = BTreeMap::from([(new, (head, 10)), (newer, (new, 20))]);
        let at = layout.physical(ZoneBlock { zone: ZoneIndex(4), block: 3 });
        let there =
            |places: &Places<'_>| [head, old, new, newer].map(|version| places.is_there(version, at, 5));
        assert_eq!(there(&places), [false; 4], "nothing was written there since the reset");
        for (order, versions) in [(9, [true, false, true, true]), (11, [true, false, false, false])] {
            places.written.insert(at, Written { version: Some(head), block: 5, order });
            assert_eq!(there(&places), versions, "written at {order}");
        }
        places.written.insert(at, Written { version: Some(new), block: 5, order: 15 });
        assert_eq!(there(&places), [false, false, true, true]);
        // Possible only in a damaged log.
        places.made.insert(new, (newer, 30));
        assert!(!places.is_there(newer, at, 5) || !places.is_there(head, at, 5));
        places.written.insert(at, Written { version: None, block: 5, order: 15 });
        assert_eq!(there(&places), [true; 4], "moved for all versions");
        assert!(!places.is_there(head, at, 6));
    }
}
