//! What compaction, and the flush of a memtable, keep of the entries that they merge.
//!
//! The live snapshots divide sequences into *stripes*: an entry's stripe is the lowest snapshot that sees it, or the present. Of the
//! entries of a key in one stripe, readers see the newest at most; the others of the stripe are *hidden* by it. An entry is hidden, too,
//! by a range tombstone of its stripe that deletes it. A value that isn't hidden and has expired is taken for a tombstone of the time at
//! which it expired. If deletes have a deadline, so is a hidden value: it may have expired before it was overwritten, and no other tombstone brings down
//! the versions below.
//!
//! 1. A value that isn't hidden and hasn't expired is kept.
//! 2. Another hidden value is dropped.
//! 3. Of tombstones of a key without a kept value between them, the oldest is kept: they hide the same. It keeps the earliest time of the
//!    deletions. It is kept even if it is hidden: the versions below are to be gone by its deadline, and the value that hides it has none.
//! 4. A tombstone is dropped at the bottom, if no older value of its key is kept. At the bottom means that no older version of the key is
//!    in any table or memtable that isn't merged.
//! 5. A range tombstone is dropped at the bottom, if no snapshot is older than it: then the entries that it deletes are all hidden. At the
//!    bottom means the same for all keys of its range.
//!
//! So a compaction without live snapshots, in which all keys are at the bottom, leaves no tombstone, no older version, no expired value.
//!
//! What is required:
//! - Of the versions of a key and the range tombstones over it, a newer one is never in a deeper level than an older one, and the merged
//!   levels follow each other.
//! - A snapshot taken during a compaction has a sequence that isn't below the highest one of the merged entries.
//! - The time of readers isn't behind that of a compaction, or values are missing until it is.

#[cfg(test)]
mod tests;

use crate::entry::{Entry, RangeTombstone, Sequence, Timestamp, Value};
use crate::visible::RangeTombstones;

/// Decides what is kept of merged entries, which come in order.
#[derive(Debug)]
pub struct Retention {
    /// Live snapshots, rising.
    snapshots: Vec<Sequence>,
    /// Range tombstones of each stripe, that of the present last.
    ranges: Vec<RangeTombstones>,
    now: Timestamp,
    /// Whether deletes have a deadline.
    has_deadline: bool,
    /// The present number of operations, where a deadline counts these.
    operations: Option<Timestamp>,
    /// Milliseconds that the clock of deadlines is ahead of `now`.
    ahead: u64,
    /// Key of the entries that come.
    key: Vec<u8>,
    /// The key before it, whose tombstone may be returned with the first entry of the next.
    key_before: Vec<u8>,
    /// Stripe of the key's entry before; `None` before the first entry of a key.
    stripe: Option<usize>,
    /// Tombstone of the key that is kept if something older is, or if the key isn't at the bottom.
    tombstone: Option<Tombstone>,
}

#[derive(Debug, Clone, Copy)]
struct Tombstone {
    sequence: Sequence,
    deleted: Timestamp,
    is_bottom: bool,
}

impl Tombstone {
    fn entry(self, key: &[u8]) -> Entry<'_> {
        Entry { key, sequence: self.sequence, value: Value::Tombstone { deleted: self.deleted } }
    }
}

/// Entries to be written, in order.
pub type Kept<'a> = std::iter::Flatten<std::array::IntoIter<Option<Entry<'a>>, 2>>;

impl Retention {
    /// Creates it for these live snapshots and range tombstones. The tombstones are those of the merged tables; those of shallower levels
    /// may be among them.
    pub fn new(
        mut snapshots: Vec<Sequence>,
        tombstones: impl IntoIterator<Item = RangeTombstone>,
        now: Timestamp,
        has_deadline: bool,
    ) -> Self {
        snapshots.sort_unstable();
        snapshots.dedup();
        let mut of_stripes = vec![Vec::new(); snapshots.len() + 1];
        for tombstone in tombstones {
            of_stripes[stripe(&snapshots, tombstone.sequence)].push(tombstone);
        }
        let ranges = of_stripes.into_iter().map(RangeTombstones::from_iter).collect();
        Retention {
            snapshots,
            ranges,
            now,
            has_deadline,
            operations: None,
            ahead: 0,
            key: Vec::new(),
            key_before: Vec::new(),
            stripe: None,
            tombstone: None,
        }
    }

    /// Where a deadline counts operations, values that have expired count as deleted now, with this number.
    pub fn counting(self, operations: Option<Timestamp>) -> Self {
        Retention { operations, ..self }
    }

    /// Values that have expired count as deleted at that time, by a clock of deadlines that is so many milliseconds ahead.
    pub fn ahead(self, ahead: u64) -> Self {
        Retention { ahead, ..self }
    }

    /// Takes the next entry, and returns the entries that are to be written now. `is_bottom` says whether the key is at the bottom.
    pub fn feed<'a>(&'a mut self, entry: Entry<'a>, is_bottom: impl FnOnce(&[u8]) -> bool) -> Kept<'a> {
        let mut tombstone_before = None;
        if self.stripe.is_none() || entry.key != self.key {
            tombstone_before = self.tombstone.take().filter(|tombstone| !tombstone.is_bottom);
            std::mem::swap(&mut self.key, &mut self.key_before);
            self.key.clear();
            self.key.extend_from_slice(entry.key);
            self.stripe = None;
        }
        let stripe = stripe(&self.snapshots, entry.sequence);
        let is_hidden = self.stripe.replace(stripe) == Some(stripe)
            || self.ranges[stripe].covers(entry.key, entry.sequence, Sequence::MAX).is_some();
        let deleted = match entry.value {
            Value::Tombstone { deleted } => Some(deleted),
            Value::Put { expires: Some(expires), .. }
                if expires <= self.now && (!is_hidden || self.has_deadline) =>
            {
                Some(self.operations.unwrap_or(expires.saturating_add(self.ahead)))
            }
            Value::Put { .. } => None,
        };

        let mut kept = [tombstone_before.map(|tombstone| tombstone.entry(&self.key_before)), None];
        if let Some(deleted) = deleted {
            self.tombstone = Some(match self.tombstone {
                Some(newer) => Tombstone {
                    sequence: entry.sequence,
                    deleted: newer.deleted.min(deleted),
                    is_bottom: newer.is_bottom,
                },
                None => Tombstone { sequence: entry.sequence, deleted, is_bottom: is_bottom(entry.key) },
            });
        } else if !is_hidden {
            if let Some(tombstone) = self.tombstone.take() {
                kept[0] = Some(tombstone.entry(&self.key));
            }
            kept[1] = Some(entry);
        }
        kept.into_iter().flatten()
    }

    /// Returns the entry that is to be written after the last one was taken.
    pub fn finish(&mut self) -> Option<Entry<'_>> {
        let tombstone = self.tombstone.take().filter(|tombstone| !tombstone.is_bottom);
        self.stripe = None;
        tombstone.map(|tombstone| tombstone.entry(&self.key))
    }

    /// Whether a range tombstone of the merged tables is kept. `is_bottom` says whether its range is at the bottom.
    pub fn keeps_range(&self, tombstone: &RangeTombstone, is_bottom: bool) -> bool {
        !is_bottom || stripe(&self.snapshots, tombstone.sequence) > 0
    }
}

/// Returns the number of the lowest snapshot that sees a sequence, or the number of snapshots.
fn stripe(snapshots: &[Sequence], sequence: Sequence) -> usize {
    snapshots.partition_point(|snapshot| *snapshot < sequence)
}
