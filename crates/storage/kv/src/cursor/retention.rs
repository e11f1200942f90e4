//! Retention: which of the merged entries a compaction, or the flush of a memtable, keeps.
//!
//! The live snapshots divide sequences into *stripes*: an entry's stripe is the lowest snapshot that sees it,
//! or the present. Of the entries of a key in one stripe, readers see at most the newest; it *hides* the
//! others of the stripe. A range tombstone hides the entries of its stripe that it deletes. An expired value
//! that isn't hidden is treated as a tombstone with the time of its expiry. If deletes have a deadline, this
//! also applies to a hidden value: it may have expired before it was overwritten, and no other tombstone
//! would move down to the versions below.
//!
//! 1. A value that isn't hidden and hasn't expired is kept.
//! 2. Any other hidden value is dropped.
//! 3. Of the tombstones of a key without a kept value between them, the oldest is kept, with the earliest
//!    time of the deletions: it hides the same versions. It is kept even if it is hidden: the versions below
//!    must be dropped by its deadline, and the value that hides it has none.
//! 4. A tombstone is dropped at the bottom, if no older value of its key is kept. A key is at the bottom if
//!    no table or memtable outside the merge has an older version of it.
//! 5. A range tombstone is dropped at the bottom, if no snapshot is older than it: then all entries that it
//!    deletes are hidden. A range is at the bottom if all its keys are.
//!
//! So a compaction without live snapshots in which all keys are at the bottom leaves no tombstones, older
//! versions or expired values.
//!
//! Requirements:
//! - Of the versions of a key and the range tombstones over it, a newer one is never in a deeper level than
//!   an older one, and the merged levels are consecutive.
//! - A snapshot that is taken during a compaction has at least the highest sequence of the merged entries.
//! - The clock of readers isn't behind that of a compaction; otherwise values are missing until it catches
//!   up.

#[cfg(test)]
mod tests;

use crate::cursor::visible::RangeTombstones;
use crate::key_version::{KeyVersion, RangeTombstone, Sequence, Timestamp, Value};

/// Decides which merged entries are kept; entries are fed in order.
#[derive(Debug)]
pub struct Retention {
    /// Sequences of the live snapshots, in ascending order.
    snapshots: Vec<Sequence>,
    /// Range tombstones of each stripe; the present is the last stripe.
    ranges: Vec<RangeTombstones>,
    now: Timestamp,
    /// Whether deletes have a deadline.
    has_deadline: bool,
    /// Present number of operations, if the deadline counts operations.
    operations: Option<Timestamp>,
    /// Lead of the deadline clock over `now`, in milliseconds.
    ahead: u64,
    /// Key of the present entry.
    key: Vec<u8>,
    /// Previous key; its tombstone may be returned with the first entry of the next key.
    key_before: Vec<u8>,
    /// Stripe of the key's previous entry; `None` before its first one.
    stripe: Option<usize>,
    /// Tombstone of the key that is kept if an older version is kept, or if the key isn't at the bottom.
    tombstone: Option<Tombstone>,
}

#[derive(Debug, Clone, Copy)]
struct Tombstone {
    sequence: Sequence,
    deleted: Timestamp,
    is_bottom: bool,
}

impl Tombstone {
    fn entry(self, key: &[u8]) -> KeyVersion<'_> {
        KeyVersion { key, sequence: self.sequence, value: Value::Tombstone { deleted: self.deleted } }
    }
}

/// Entries to be written, in order.
pub type Kept<'a> = std::iter::Flatten<std::array::IntoIter<Option<KeyVersion<'a>>, 2>>;

impl Retention {
    /// Creates the decision for these live snapshots and range tombstones. The tombstones include those of
    /// the merged tables, and may include those of shallower levels.
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

    /// Sets the present number of operations, if the deadline counts operations: expired values then count as
    /// deleted at this number.
    pub fn counting(self, operations: Option<Timestamp>) -> Self {
        Retention { operations, ..self }
    }

    /// Sets the lead of the deadline clock in milliseconds: expired values count as deleted at their expiry
    /// plus this lead.
    pub fn ahead(self, ahead: u64) -> Self {
        Retention { ahead, ..self }
    }

    /// Feeds the next entry; returns the entries to write now. `is_bottom` returns whether the key is at the
    /// bottom.
    pub fn feed<'a>(&'a mut self, entry: KeyVersion<'a>, is_bottom: impl FnOnce(&[u8]) -> bool) -> Kept<'a> {
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

    /// Returns the remaining entry to write after the last one was fed; `None` if there is none.
    pub fn finish(&mut self) -> Option<KeyVersion<'_>> {
        let tombstone = self.tombstone.take().filter(|tombstone| !tombstone.is_bottom);
        self.stripe = None;
        tombstone.map(|tombstone| tombstone.entry(&self.key))
    }

    /// Whether a range tombstone of the merged tables is kept; `is_bottom` is whether its range is at the
    /// bottom.
    pub fn keeps_range(&self, tombstone: &RangeTombstone, is_bottom: bool) -> bool {
        !is_bottom || stripe(&self.snapshots, tombstone.sequence) > 0
    }
}

/// Returns the index of the lowest snapshot that sees a sequence, or the number of snapshots if none does.
fn stripe(snapshots: &[Sequence], sequence: Sequence) -> usize {
    snapshots.partition_point(|snapshot| *snapshot < sequence)
}
