//! Counters for operators.

use crate::entry::Entry;
use std::cell::Cell;

/// Counters for operators.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) reads: Cell<u64>,
    /// Reads that needed no node.
    pub(crate) hits: Cell<u64>,
    pub(crate) writes: Cell<u64>,
    pub(crate) discards: Cell<u64>,
    /// Pages that are filled with one pattern.
    pub(crate) same: Cell<u64>,
    /// Pages that are stored.
    pub(crate) stored: Cell<u64>,
    /// Pages that were written and stored, and their bytes after compression.
    pub(crate) packed: Cell<u64>,
    pub(crate) packed_bytes: Cell<u64>,
    /// Pages that were lost.
    pub(crate) lost: Cell<u64>,
    /// Pages that the cleaner moved.
    pub(crate) moved: Cell<u64>,
    /// Reads that were also sent to a second node, because the first one was slow.
    pub(crate) hedged: Cell<u64>,
    /// Copies that were made again.
    pub(crate) copied: Cell<u64>,
    /// Bytes read from nodes, and written to them.
    pub(crate) node_read: Cell<u64>,
    pub(crate) node_written: Cell<u64>,
}

impl Counters {
    /// Counter of pages with an entry of this kind; `None` for absent pages, which aren't counted.
    pub(super) fn pages(&self, entry: Entry) -> Option<&Cell<u64>> {
        match entry {
            Entry::Absent => None,
            Entry::Same(_) => Some(&self.same),
            Entry::Stored(_) => Some(&self.stored),
            Entry::Lost => Some(&self.lost),
        }
    }
}

pub(crate) fn add(counter: &Cell<u64>, value: u64) {
    counter.set(counter.get() + value);
}

pub(super) fn subtract(counter: &Cell<u64>, value: u64) {
    counter.set(counter.get().saturating_sub(value));
}
