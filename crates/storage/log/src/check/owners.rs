//! Owners of blocks: the maps compared with the contents of the zones.
//!
//! While a zone is walked, its blocks are looked up in the maps, and each version's matches are counted. If
//! these are all blocks that the version maps in the zone, the version is intact there. Otherwise the
//! findings are kept, and the maps are scanned for blocks in such zones, many zones at a time.

use super::zone::{Entry, Region, Sort, Walked};
use super::{Check, Finding, Loaded, can_come_from};
use crate::format::VersionId;
use crate::map::{Mapping, Physical};
use block::{ZoneBlock, ZoneIndex, ZoneReport, ZoneState};
use logkit::layout::ROOT_ZONES;
use std::collections::BTreeMap;

/// Number of suspect zones after which the maps are scanned.
const MAX_SUSPECTS: usize = 64;
/// Number of a map's blocks that are checked between two yields to other tasks.
const AT_ONCE: u64 = 1 << 20;

/// Findings of a suspect zone.
#[derive(Debug)]
struct Suspect {
    entries: Vec<Entry>,
    regions: Vec<Region>,
    /// Region, by position, of good blocks that a version maps as other blocks.
    misplaced: BTreeMap<u32, usize>,
    /// Findings by region.
    findings: BTreeMap<usize, Finding>,
    live: Vec<bool>,
}

pub(super) struct Owners {
    /// Number of blocks of each zone that each version maps.
    mapped: Vec<Vec<u32>>,
    /// Number of blocks of each zone that any version maps.
    pub(super) live: Vec<u32>,
    suspects: BTreeMap<ZoneIndex, Suspect>,
}

impl Owners {
    pub(super) fn new(check: &Check<'_>, state: &Loaded) -> Self {
        let zones = check.layout.zones as usize;
        let zone_blocks = u64::from(check.layout.zone_blocks);
        let mut mapped = Vec::new();
        for version in &state.versions.list {
            let mut counts = vec![0_u32; zones];
            version.map.lookup_range(0..version.blocks, &mut |piece| {
                let (mut at, end) = (u64::from(piece.physical.0), u64::from(piece.physical.0) + piece.count);
                while piece.physical.is_mapped() && at < end {
                    let zone = at / zone_blocks;
                    let next = end.min((zone + 1) * zone_blocks);
                    counts[zone as usize] += (next - at) as u32;
                    at = next;
                }
            });
            mapped.push(counts);
        }
        Owners { mapped, live: vec![0; zones], suspects: BTreeMap::new() }
    }

    /// Reports the findings of a walked zone, or keeps them until the maps are scanned.
    pub(super) async fn walked(
        &mut self,
        check: &mut Check<'_>,
        state: &Loaded,
        zone: ZoneIndex,
        walked: Walked,
    ) {
        for lost in &walked.lost {
            let mut finding =
                Finding::at(Some(ZoneBlock { zone, block: lost.position }), lost.blocks, lost.what.clone());
            for (version, block, count) in &lost.changes {
                finding.hit(version.0, name_of(state, *version), *block, u64::from(*count));
            }
            check.findings.damage(finding);
        }
        let mut live = vec![false; walked.entries.len()];
        let mut is_suspect = false;
        for (number, version) in state.versions.list.iter().enumerate() {
            let mut good = 0;
            let mut behind = 0;
            let follows = |one: &Entry, next: &Entry| {
                (one.version, one.region, one.block + 1) == (next.version, next.region, next.block)
            };
            for run in walked.entries.chunk_by(follows) {
                let (first, position) = (run[0], behind);
                behind += run.len();
                let end = version.blocks.min(first.block + run.len() as u64);
                if first.region != 0 || !can_come_from(version.id, first.version) || first.block >= end {
                    continue;
                }
                let at = check.layout.physical(ZoneBlock { zone, block: position as u32 });
                version.map.lookup_range(first.block..end, &mut |piece| {
                    let offset = piece.block - first.block;
                    if piece.physical.is_mapped() && piece.physical == at.offset(offset) {
                        good += piece.count as u32;
                        let from = position + offset as usize;
                        live[from..from + piece.count as usize].fill(true);
                    }
                });
            }
            check.checked.mapped_blocks += u64::from(good);
            is_suspect |= good != self.mapped[number][zone.0 as usize];
        }
        if !is_suspect {
            self.live[zone.0 as usize] = live.iter().filter(|live| **live).count() as u32;
            report_unowned(check, state, zone, &walked);
            return;
        }
        self.keep(check, state, zone, walked).await;
    }

    /// Checks a zone without records: no version may map a block there.
    pub(super) async fn not_walked(&mut self, check: &mut Check<'_>, state: &Loaded, report: &ZoneReport) {
        let zone = report.zone;
        let why = match report.state {
            _ if zone.0 < ROOT_ZONES => "the zone is for roots",
            ZoneState::Offline => "the zone is offline: its header is damaged",
            _ => "the zone is empty",
        };
        let is_needed =
            state.pages.needed.iter().any(|block| check.layout.place(Physical(*block)).zone == zone);
        if self.mapped.iter().all(|counts| counts[zone.0 as usize] == 0) {
            // The zone's pages have been reported as missing.
            if report.state == ZoneState::Offline && zone.0 >= ROOT_ZONES && !is_needed {
                let what = format!("{why}; nothing that is needed was in it");
                let finding = Finding::at(Some(ZoneBlock { zone, block: 0 }), 0, what);
                match state.is_unknown {
                    true => check.findings.damage(finding),
                    false => check.findings.note(finding),
                }
            }
            return;
        }
        let blocks = check.layout.zone_blocks;
        let region = Region { position: 0, blocks, what: why.to_owned(), sort: Sort::Data };
        let entry = Entry { region: 1, ..Entry::NONE };
        let walked =
            Walked { entries: vec![entry; blocks as usize], regions: vec![region], ..Walked::default() };
        self.keep(check, state, zone, walked).await;
    }

    async fn keep(&mut self, check: &mut Check<'_>, state: &Loaded, zone: ZoneIndex, walked: Walked) {
        let live = vec![false; walked.entries.len()];
        let Walked { entries, regions, .. } = walked;
        let suspect =
            Suspect { entries, regions, misplaced: BTreeMap::new(), findings: BTreeMap::new(), live };
        self.suspects.insert(zone, suspect);
        if self.suspects.len() >= MAX_SUSPECTS {
            self.settle(check, state).await;
        }
    }

    /// Scans the maps for blocks in the suspect zones, and reports them.
    pub(super) async fn settle(&mut self, check: &mut Check<'_>, state: &Loaded) {
        if self.suspects.is_empty() {
            return;
        }
        for version in &state.versions.list {
            let mut at = 0;
            while at < version.blocks {
                let end = version.blocks.min(at + AT_ONCE);
                version.map.lookup_range(at..end, &mut |piece: Mapping| {
                    if !piece.physical.is_mapped() {
                        return;
                    }
                    for number in 0..piece.count {
                        let at = check.layout.place(piece.physical.offset(number));
                        if let Some(suspect) = self.suspects.get_mut(&at.zone) {
                            suspect.judge(version.id, &version.name, piece.block + number, at);
                        }
                    }
                });
                at = end;
                runtime::yield_now().await;
            }
        }
        for (zone, suspect) in std::mem::take(&mut self.suspects) {
            self.live[zone.0 as usize] = suspect.live.iter().filter(|live| **live).count() as u32;
            let Suspect { entries, regions, findings, .. } = suspect;
            let left: Vec<Region> = regions
                .iter()
                .enumerate()
                .filter(|(number, _)| !findings.contains_key(number))
                .map(|(_, region)| region.clone())
                .collect();
            findings.into_values().for_each(|finding| check.findings.damage(finding));
            let walked = Walked { entries, regions: left, ..Walked::default() };
            report_unowned(check, state, zone, &walked);
        }
    }
}

impl Suspect {
    /// Classifies a block of the zone that a version maps.
    fn judge(&mut self, id: VersionId, name: &str, block: u64, at: ZoneBlock) {
        let ZoneBlock { zone, block: position } = at;
        self.live[position as usize] = true;
        let entry = self.entries[position as usize];
        let is_described = entry.block == block && can_come_from(id, entry.version);
        if entry.region == 0 && is_described {
            return;
        }
        let number = match entry.region.checked_sub(1) {
            Some(region) => region as usize,
            None => self.misplaced_region(entry, position),
        };
        let region = &self.regions[number];
        let finding = self.findings.entry(number).or_insert_with(|| {
            Finding::at(Some(ZoneBlock { zone, block: region.position }), region.blocks, region.what.clone())
        });
        finding.hit(id.0, name, block, 1);
    }

    /// Returns a region for a good block that a version maps as another block.
    fn misplaced_region(&mut self, entry: Entry, position: u32) -> usize {
        if let Some(known) = self.misplaced.get(&position) {
            return *known;
        }
        let what = match entry.version.0 {
            0 => "a map leads here, and no record says what is here".to_owned(),
            version => format!(
                "a map leads here, and the record says that this is block {} of version {version}",
                entry.block
            ),
        };
        // Consecutive blocks with the same mismatch are reported together.
        let before = position.checked_sub(1).and_then(|before| self.misplaced.get(&before)).copied();
        let number = match before {
            Some(before)
                if self.regions[before].what == what
                    && self.regions[before].position + self.regions[before].blocks == position =>
            {
                self.regions[before].blocks += 1;
                if let Some(finding) = self.findings.get_mut(&before) {
                    finding.blocks += 1;
                }
                before
            }
            _ => {
                self.regions.push(Region { position, blocks: 1, what, sort: Sort::Data });
                self.regions.len() - 1
            }
        };
        self.misplaced.insert(position, number);
        number
    }
}

/// Reports the findings of a zone that affect no version.
fn report_unowned(check: &mut Check<'_>, state: &Loaded, zone: ZoneIndex, walked: &Walked) {
    for region in &walked.regions {
        let place = ZoneBlock { zone, block: region.position };
        let finding = |more: &str| Finding::at(Some(place), region.blocks, format!("{}{more}", region.what));
        let first = check.layout.physical(place).0;
        let is_told = |number: u32| state.pages.needed.binary_search(&(first + number)).is_ok();
        match region.sort {
            Sort::Tail => {}
            Sort::Spare => check.findings.note(finding("")),
            // Pages and parts of the directory have been reported already.
            Sort::Data if (0..region.blocks).all(is_told) => {}
            Sort::Data if state.is_unknown => {
                check.findings.damage(finding("; without the directory it is unknown whether it is needed"));
            }
            Sort::Data if walked.may_be_needed(region, &state.pages.lost) => {
                let more = "; it may be needed: the page of the map that would say so is lost";
                check.findings.damage(finding(more));
            }
            Sort::Data => check.findings.note(finding("; nothing needs it")),
        }
    }
}

fn name_of(state: &Loaded, version: VersionId) -> &str {
    state.versions.get(version).map_or("", |version| &version.name)
}
