//! Result of a check: the checked amounts, damage and notes.

use crate::recovery::Recovered;
use block::ZoneBlock;
use logkit::root::FoundRoot;
use serde::Serialize;

/// Most listed findings of damage, and of notes; the others are counted.
const MAX_FINDINGS: usize = 1000;
/// Most ranges of blocks per finding that are listed; the others are counted.
const MAX_HITS: usize = 100;

/// The complete report.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    /// UUID of the log.
    pub uuid: String,
    /// Whether the log had been closed cleanly.
    pub clean: bool,
    /// Number of times that the log had been opened.
    pub epoch: u64,
    /// Number of the authoritative root.
    pub root: u64,
    /// Number of records after the checkpoint that were replayed.
    pub replayed: u64,
    /// Number of records after the end of the log, which a power cut leaves.
    pub discarded: u64,
    /// Checked amounts.
    pub checked: Checked,
    /// Number of damaged blocks, each counted once per version that maps it.
    pub damaged_blocks: u64,
    /// Findings by which something is lost.
    pub damage: Vec<Finding>,
    /// Findings by which nothing is lost.
    pub notes: Vec<Finding>,
    /// Numbers of findings beyond the listed ones: damage and notes.
    pub not_listed: (u64, u64),
}

impl CheckReport {
    /// Returns whether anything is lost.
    pub fn is_damaged(&self) -> bool {
        !self.damage.is_empty()
    }
}

/// Checked amounts.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Checked {
    /// Number of zones with records.
    pub zones: u64,
    /// Number of records in these zones, roots excluded.
    pub records: u64,
    /// Number of zones whose records are also listed by a valid summary.
    pub summaries: u64,
    /// Number of data blocks whose checksums were compared.
    pub data_blocks: u64,
    /// Number of pages of maps.
    pub pages: u64,
    /// Number of versions: the volume, its snapshots and clones.
    pub versions: u64,
    /// Number of mapped blocks that were compared with the records, counted once per version.
    pub mapped_blocks: u64,
    /// Number of roots.
    pub roots: u64,
}

/// One finding.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The zone, if the finding is about one.
    pub zone: Option<u32>,
    /// First block of the zone that the finding is about.
    pub block: Option<u32>,
    /// Number of blocks of the zone that the finding is about; 0 if it isn't about blocks.
    pub blocks: u32,
    /// Description for operators.
    pub what: String,
    /// Affected ranges of blocks of versions.
    pub hits: Vec<Hit>,
    /// Number of affected blocks beyond the listed ranges.
    pub hits_not_listed: u64,
}

/// Blocks of a version that are lost, or may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hit {
    /// Number of the version.
    pub version: u32,
    /// Name of the version; empty for the volume itself; in brackets for a snapshot that was deleted and is
    /// still needed.
    pub name: String,
    /// First block.
    pub block: u64,
    /// Number of blocks.
    pub count: u64,
}

impl Finding {
    /// Returns a finding with this description, at a location if there is one.
    pub(super) fn at(place: Option<ZoneBlock>, blocks: u32, what: String) -> Self {
        Finding {
            zone: place.map(|place| place.zone.0),
            block: place.map(|place| place.block),
            blocks,
            what,
            hits: Vec::new(),
            hits_not_listed: 0,
        }
    }

    /// Adds affected blocks; consecutive ones are merged.
    pub(super) fn hit(&mut self, version: u32, name: &str, block: u64, count: u64) {
        let is_full = self.hits.len() >= MAX_HITS;
        match self.hits.last_mut() {
            Some(last) if last.version == version && last.block + last.count == block => last.count += count,
            _ if !is_full => {
                let name = match crate::versions::is_deleted(crate::format::VersionId(version), name) {
                    true => format!("[deleted snapshot {version}]"),
                    false => name.to_owned(),
                };
                self.hits.push(Hit { version, name, block, count });
            }
            _ => self.hits_not_listed += count,
        }
    }
}

/// Findings so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    damage: Vec<Finding>,
    notes: Vec<Finding>,
    not_listed: (u64, u64),
    damaged_blocks: u64,
}

impl Findings {
    /// Adds a finding by which something is lost.
    pub(super) fn damage(&mut self, finding: Finding) {
        let hits: u64 = finding.hits.iter().map(|hit| hit.count).sum();
        self.damaged_blocks += hits + finding.hits_not_listed;
        match self.damage.len() < MAX_FINDINGS {
            true => self.damage.push(finding),
            false => self.not_listed.0 += 1,
        }
    }

    /// Adds a finding by which nothing is lost.
    pub(super) fn note(&mut self, finding: Finding) {
        match self.notes.len() < MAX_FINDINGS {
            true => self.notes.push(finding),
            false => self.not_listed.1 += 1,
        }
    }

    pub(super) fn into_report(
        self,
        found: &FoundRoot,
        checked: Checked,
        recovered: &Recovered,
    ) -> CheckReport {
        CheckReport {
            uuid: found.root.identity.uuid.to_string(),
            clean: found.root.clean,
            epoch: found.root.epoch,
            root: found.number,
            replayed: recovered.replayed,
            discarded: recovered.discarded,
            checked,
            damaged_blocks: self.damaged_blocks,
            damage: self.damage,
            notes: self.notes,
            not_listed: self.not_listed,
        }
    }
}
