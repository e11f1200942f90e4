//! State of the pace of the cleaner ([`pace`](crate::pace) has the rule).

use crate::cleaning::{Candidate, Pacer};
use std::cell::{Cell, RefCell};

/// State of the pace. Belongs to the home shard.
#[derive(Debug)]
pub struct Pace {
    pub(crate) pacer: RefCell<Pacer>,
    /// Number of blocks that are due to be moved; negative if more were moved than were due.
    pub(crate) due: Cell<f64>,
    /// Blocks written by users when `due` was computed.
    pub(crate) counted: Cell<u64>,
    /// Number of data blocks of the victim that were passed; `None` without a victim.
    pub(crate) passed: Cell<Option<u64>>,
}

impl Pace {
    /// Creates the state for zones of `zone` data blocks.
    pub fn new(zone: u32) -> Self {
        Pace {
            pacer: RefCell::new(Pacer::new(u64::from(zone.max(1)))),
            due: Cell::new(0.0),
            counted: Cell::new(0),
            passed: Cell::new(None),
        }
    }

    /// Notes that the cleaning of a zone begins.
    pub fn begin(&self, victim: &Candidate) {
        self.pacer.borrow_mut().begin(victim);
    }

    /// Sets the number of data blocks of the victim that were passed; `None` after its end.
    pub fn pass(&self, blocks: Option<u64>) {
        self.passed.set(blocks);
    }

    /// Notes that blocks were moved.
    pub fn moved(&self, blocks: u32) {
        self.due.set(self.due.get() - f64::from(blocks));
    }
}
