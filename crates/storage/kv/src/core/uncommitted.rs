//! Writes that were acknowledged before their records are written, and whose records haven't committed yet.
//!
//! They have taken effect in the active buffer, and must not get into a table: if a power cut loses their
//! records, replay would apply older records over the table, so that older values would hide newer ones, or a
//! batch would be present in part. So tables have only writes whose records have committed. When a buffer is
//! frozen, its uncommitted writes are copied to the next one, with the same sequences, and the flush of the
//! frozen buffer omits them.

use crate::batch::Write;
use crate::key_version::Sequence;
use crate::log_entry::{Body, decode_parts};
use crate::memory::buffer::WriteBuffer;
use block::Result;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Uncommitted writes of a shard.
#[derive(Debug, Default)]
pub(super) struct Uncommitted {
    /// Log entries in flight in the order of the log, each with the number of its writes.
    log_entries: RefCell<VecDeque<(Rc<Body>, u64)>>,
    /// Number of writes that are queued for the next log entry.
    pending: Cell<u64>,
}

impl Uncommitted {
    /// Adds queued writes.
    pub fn add(&self, writes: u64) {
        self.pending.set(self.pending.get() + writes);
    }

    /// Number of writes that are queued for the next log entry.
    pub fn pending(&self) -> u64 {
        self.pending.get()
    }

    /// Notes that the queued writes were submitted in a log entry.
    pub fn submitted(&self, body: &Rc<Body>) {
        self.log_entries.borrow_mut().push_back((body.clone(), self.pending.take()));
    }

    /// Notes that the first log entry has committed.
    pub fn note_committed(&self) {
        self.log_entries.borrow_mut().pop_front();
    }

    /// Sequence of the newest write whose record has committed; `newest` is that of the newest write.
    pub fn committed_sequence(&self, newest: Sequence) -> Sequence {
        newest - self.pending.get() - self.log_entries.borrow().iter().map(|(_, writes)| writes).sum::<u64>()
    }

    /// Copies the uncommitted writes of a full buffer to the next one. `pending` has the queued writes.
    pub fn carry_over(&self, (full, next): (&WriteBuffer, &WriteBuffer), pending: &[u8], newest: Sequence) {
        let first = self.committed_sequence(newest);
        let mut sequence = first;
        let mut copy = |writes: &[u8]| -> Result<()> {
            Write::decode_all(writes, |write| {
                sequence += 1;
                if let Write::Put { key, .. } | Write::Delete { key, .. } = write {
                    full.memtable.get(key, sequence, |entry| entry.map(|entry| next.memtable.insert(entry)));
                }
            })
        };
        for (body, _) in &*self.log_entries.borrow() {
            decode_parts(&body.bytes, |part| copy(part.bytes)).expect("a log entry of this shard");
        }
        if self.pending.get() > 0 {
            copy(pending).expect("writes of this shard");
        }
        debug_assert_eq!(sequence, newest, "of all uncommitted writes");
        for range in full.memtable.range_tombstones().iter().filter(|range| range.sequence > first) {
            next.memtable.insert_range_tombstone(range.clone());
        }
    }
}
