//! What is said in the end: what was looked at, what is damaged, and what is worth a note.

use crate::recovery::Recovered;
use logkit::root::FoundRoot;
use serde::Serialize;

/// More findings of a sort than this are counted and not listed.
const MOST_FINDINGS: usize = 1000;
/// More ranges of blocks than this are counted and not listed, per finding.
const MOST_HITS: usize = 100;

/// The whole report.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    /// The log.
    pub uuid: String,
    /// Whether it had been closed cleanly.
    pub clean: bool,
    /// How often it had been opened.
    pub epoch: u64,
    /// The number of the root that counts.
    pub root: u64,
    /// Records behind the checkpoint that were replayed.
    pub replayed: u64,
    /// Records behind the end of what counts, which a power cut leaves.
    pub discarded: u64,
    /// What was looked at.
    pub checked: Checked,
    /// How many blocks are damaged: each counted once for every version that has it.
    pub damaged_blocks: u64,
    /// What is wrong, and something is lost.
    pub damage: Vec<Finding>,
    /// What is wrong, and nothing is lost.
    pub notes: Vec<Finding>,
    /// How many of each there are beyond those that are listed.
    pub not_listed: (u64, u64),
}

impl CheckReport {
    /// Whether anything is lost.
    pub fn is_damaged(&self) -> bool {
        !self.damage.is_empty()
    }
}

/// How much was looked at.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Checked {
    /// Zones that hold records.
    pub zones: u64,
    /// Records in them, roots not included.
    pub records: u64,
    /// Zones whose records a good summary lists, too.
    pub summaries: u64,
    /// Data blocks whose checksums were compared.
    pub data_blocks: u64,
    /// Pages of maps.
    pub pages: u64,
    /// The volume, its snapshots and clones.
    pub versions: u64,
    /// Mapped blocks that were held against the records, once for each version.
    pub mapped_blocks: u64,
    /// Roots.
    pub roots: u64,
}

/// One thing that is wrong.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The zone, if it has one.
    pub zone: Option<u32>,
    /// The first block of the zone that it is about.
    pub block: Option<u32>,
    /// How many blocks of the zone it is about; 0 if it isn't about blocks.
    pub blocks: u32,
    /// What it is, in words.
    pub what: String,
    /// Who has lost what: ranges of blocks.
    pub hits: Vec<Hit>,
    /// How many blocks are hit beyond those that are listed.
    pub hits_not_listed: u64,
}

/// Blocks of a version that are lost, or may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hit {
    /// The number of the version.
    pub version: u32,
    /// Its name; empty for the volume itself; in brackets for a snapshot that was deleted and is still needed.
    pub name: String,
    /// The first block.
    pub block: u64,
    /// How many.
    pub count: u64,
}

impl Finding {
    /// About something in words, at a place if it has one.
    pub(super) fn at(place: Option<(u32, u32)>, blocks: u32, what: String) -> Self {
        Finding {
            zone: place.map(|(zone, _)| zone),
            block: place.map(|(_, block)| block),
            blocks,
            what,
            hits: Vec::new(),
            hits_not_listed: 0,
        }
    }

    /// Adds blocks that are hit; blocks that follow each other are joined.
    pub(super) fn hit(&mut self, version: u32, name: &str, block: u64, count: u64) {
        let is_full = self.hits.len() >= MOST_HITS;
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

/// What has been found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    damage: Vec<Finding>,
    notes: Vec<Finding>,
    not_listed: (u64, u64),
    damaged_blocks: u64,
}

impl Findings {
    /// Something is lost.
    pub(super) fn damage(&mut self, finding: Finding) {
        let hits: u64 = finding.hits.iter().map(|hit| hit.count).sum();
        self.damaged_blocks += hits + finding.hits_not_listed;
        match self.damage.len() < MOST_FINDINGS {
            true => self.damage.push(finding),
            false => self.not_listed.0 += 1,
        }
    }

    /// Something is wrong, and nothing is lost.
    pub(super) fn note(&mut self, finding: Finding) {
        match self.notes.len() < MOST_FINDINGS {
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
