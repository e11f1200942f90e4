//! Writes that were acknowledged before their records are written, and whose records haven't committed yet.
//!
//! They have taken effect in the active buffer, and must not get into a table: if a power cut loses their
//! records, replay would apply older records over the table, so that older values would hide newer ones, or a
//! batch would be present in part. So tables have only writes whose records have committed. When a buffer is
//! frozen, its uncommitted writes are copied to the next one, with the same sequences, and the flush of the
//! frozen buffer omits them.

use super::Core;
use crate::batch::Write;
use crate::entry::Sequence;
use crate::log_entry::{Body, decode_parts};
use crate::memory::buffer::WriteBuffer;
use block::Result;
use std::collections::VecDeque;
use std::rc::Rc;

/// Uncommitted writes of a shard.
#[derive(Debug, Default)]
pub(crate) struct Uncommitted {
    /// Items in flight in the order of the log, each with the number of its writes.
    items: VecDeque<(Rc<Body>, u64)>,
    /// Number of writes that are queued for the next item.
    pending: u64,
}

impl Core {
    /// Applies writes before they are in an item.
    pub(super) fn apply_early(&self, writes: &[u8]) -> Result<()> {
        let before = self.sequence.get();
        self.apply(writes)?;
        self.uncommitted.borrow_mut().pending += self.sequence.get() - before;
        Ok(())
    }

    /// Notes that the queued writes were submitted in an item.
    pub(super) fn early_submitted(&self, body: &Rc<Body>) {
        let mut uncommitted = self.uncommitted.borrow_mut();
        let writes = std::mem::take(&mut uncommitted.pending);
        uncommitted.items.push_back((body.clone(), writes));
    }

    /// Notes that the first item has committed.
    pub(super) fn early_committed(&self) {
        self.uncommitted.borrow_mut().items.pop_front();
    }

    /// Sequence of the newest write whose record has committed.
    pub(super) fn committed_sequence(&self) -> Sequence {
        let uncommitted = self.uncommitted.borrow();
        let writes = uncommitted.pending + uncommitted.items.iter().map(|(_, writes)| writes).sum::<u64>();
        self.sequence.get() - writes
    }

    /// Copies the uncommitted writes of a buffer to the next one.
    pub(super) fn carry_over(&self, full: &WriteBuffer, next: &WriteBuffer) {
        let first = self.committed_sequence();
        let mut sequence = first;
        let mut copy = |writes: &[u8]| {
            Write::decode_all(writes, |write| {
                sequence += 1;
                if let Write::Put { key, .. } | Write::Delete { key, .. } = write {
                    full.memtable.get(key, sequence, |entry| entry.map(|entry| next.memtable.insert(entry)));
                }
            })
        };
        let uncommitted = self.uncommitted.borrow();
        for (body, _) in &uncommitted.items {
            decode_parts(&body.bytes, |part| copy(part.bytes)).expect("an item of this shard");
        }
        if uncommitted.pending > 0 {
            copy(&self.pending.borrow().bytes).expect("writes of this shard");
        }
        debug_assert_eq!(sequence, self.sequence.get(), "of all uncommitted writes");
        for range in full.memtable.range_tombstones().iter().filter(|range| range.sequence > first) {
            next.memtable.insert_range_tombstone(range.clone());
        }
    }
}
