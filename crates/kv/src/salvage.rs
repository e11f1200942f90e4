//! Salvage of a damaged store: read-only access to its intact keys, and a list of the losses.
//!
//! Such a store takes no writes, and none of its background work runs. A read of a key whose newest version may be in a part that
//! can't be read fails, and names that part. A scan goes on behind it, and notes it here: keys may be missing there, and older values
//! or deleted keys may show, since what was newer is unknown.

use crate::manifest::TableId;
use crate::table::Summary;
use block::Error;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Limit of what opening a store writes, which stays in memory: roots.
pub const MOST_BYTES: u64 = 64 << 20;
/// Most parts that are described; others are counted.
const MOST_LINES: usize = 1000;

/// The parts of a shard that couldn't be read so far.
#[derive(Debug, Default)]
pub struct Lost {
    lines: RefCell<Vec<String>>,
    count: Cell<u64>,
    /// Blocks that are noted already: table, and offset in it.
    noted: RefCell<BTreeSet<(TableId, u64)>>,
}

impl Lost {
    /// With what was found when the store was opened.
    pub fn new(found: Vec<String>) -> Self {
        let lost = Lost::default();
        found.into_iter().for_each(|line| lost.note(line));
        lost
    }

    fn note(&self, line: String) {
        self.count.set(self.count.get() + 1);
        let mut lines = self.lines.borrow_mut();
        if lines.len() < MOST_LINES {
            tracing::error!("salvaging the store: {line}");
            lines.push(line);
        }
    }

    /// Notes a block of a table, once.
    pub fn note_block(&self, (table, offset): (TableId, u64), summary: &Summary, error: &Error) {
        let mut noted = self.noted.borrow_mut();
        if noted.len() >= MOST_LINES && !noted.contains(&(table, offset)) {
            // Some of these may be counted twice.
            self.count.set(self.count.get() + 1);
        } else if noted.insert((table, offset)) {
            self.note(format!(
                "a block of keys between \"{}\" and \"{}\": {}",
                summary.smallest.escape_ascii(),
                summary.largest.escape_ascii(),
                error.detail()
            ));
        }
    }

    /// The parts, as far as they are described.
    pub fn lines(&self) -> Vec<String> {
        self.lines.borrow().clone()
    }

    /// Number of parts.
    pub fn count(&self) -> u64 {
        self.count.get()
    }
}

/// Refuses a change of a store that is salvaged.
pub fn refusal() -> Error {
    Error::read_only(
        "the store is open to be salvaged, and takes no writes; copy what it has with siltstone kv backup",
    )
}
