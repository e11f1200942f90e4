//! Salvage of a damaged store: read-only access to its intact keys, and a list of the losses.
//!
//! A salvaged store takes no writes, and its background jobs don't run. A read of a key whose newest version
//! may be in an unreadable part fails, and the error names the part. A scan skips the part, and notes it
//! here: keys may be missing in the result, and older values or deleted keys may appear, since newer versions
//! are unknown.

use crate::table::Summary;
use crate::tree::manifest::TableId;
use block::Error;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// Maximum bytes that opening a store writes; they stay in memory. They are roots.
pub const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of described parts; others are only counted.
const MAX_LINES: usize = 1000;

/// Unreadable parts of a shard that were found so far.
#[derive(Debug, Default)]
pub struct Lost {
    lines: RefCell<Vec<String>>,
    count: Cell<u64>,
    /// Noted blocks: table, and offset in it.
    noted: RefCell<BTreeSet<(TableId, u64)>>,
}

impl Lost {
    /// Returns the list with the parts that were found when the store was opened.
    pub fn new(found: Vec<String>) -> Self {
        let lost = Lost::default();
        found.into_iter().for_each(|line| lost.note(line));
        lost
    }

    fn note(&self, line: String) {
        self.count.set(self.count.get() + 1);
        let mut lines = self.lines.borrow_mut();
        if lines.len() < MAX_LINES {
            tracing::error!("salvaging the store: {line}");
            lines.push(line);
        }
    }

    /// Notes a block of a table, once.
    pub fn note_block(&self, (table, offset): (TableId, u64), summary: &Summary, error: &Error) {
        let mut noted = self.noted.borrow_mut();
        if noted.len() >= MAX_LINES && !noted.contains(&(table, offset)) {
            // Beyond the limit a block may be counted more than once.
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

    /// Descriptions of the parts, up to the maximum.
    pub fn lines(&self) -> Vec<String> {
        self.lines.borrow().clone()
    }

    /// Number of parts.
    pub fn count(&self) -> u64 {
        self.count.get()
    }
}

/// Error for a change of a salvaged store.
pub fn refusal() -> Error {
    Error::read_only(
        "the store is open to be salvaged, and takes no writes; copy what it has with siltstone kv backup",
    )
}
