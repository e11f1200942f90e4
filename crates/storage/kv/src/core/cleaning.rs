//! Victim selection of a store's cleaner: the zone of tables with the best ratio of space gained to data
//! moved (cost-benefit: Rosenblum, Ousterhout, "The Design and Implementation of a Log-Structured File
//! System", 1992). Zones of the write-ahead log become free without cleaning.

use crate::core::WRITE_CLASS;
use block::ZoneIndex;
use logkit::cleaning::{Candidate, Policy, Pressure};

/// Policy of the cleaner; its classes are the write-ahead log and those of tables.
#[derive(Debug)]
pub struct TableCleaning {
    classes: u8,
}

impl TableCleaning {
    /// Returns a policy with `classes` classes, the write-ahead log included.
    pub fn new(classes: u8) -> Self {
        TableCleaning { classes }
    }
}

fn benefit(candidate: &Candidate, now: u64) -> f64 {
    let live = candidate.live_share();
    let age = now.saturating_sub(candidate.changed).max(1) as f64;
    (1.0 - live) * age / (1.0 + live)
}

impl Policy for TableCleaning {
    fn name(&self) -> &'static str {
        "tables"
    }

    fn classes(&self) -> u8 {
        self.classes
    }

    fn choose(
        &mut self,
        candidates: &mut dyn Iterator<Item = Candidate>,
        pressure: Pressure,
        now: u64,
    ) -> Option<ZoneIndex> {
        if !pressure.is_asked() {
            return None;
        }
        let tables = candidates.filter(|candidate| candidate.class != WRITE_CLASS && candidate.gains());
        tables.max_by(|a, b| benefit(a, now).total_cmp(&benefit(b, now))).map(|candidate| candidate.zone)
    }
}
