//! A set of range tombstones.

use crate::key_version::{RangeTombstone, Sequence};
use std::collections::BTreeMap;
use std::ops::Bound;

/// A set of range tombstones, with lookups of the keys that they delete.
///
/// The ranges are divided into disjoint fragments, each with the newest tombstone that covers it. There are
/// at most twice as many fragments as tombstones; fragments with all their tombstones could have the square
/// of that size. A lookup for a snapshot that sees the fragment's tombstone is one search; for an older
/// snapshot the tombstones between the entry and the snapshot are searched linearly.
#[derive(Debug, Clone, Default)]
pub struct RangeTombstones {
    /// Tombstones in the order of their sequences.
    tombstones: Vec<RangeTombstone>,
    /// Fragments by first key.
    fragments: BTreeMap<Vec<u8>, Fragment>,
    bytes: usize,
}

#[derive(Debug, Clone)]
struct Fragment {
    /// First key after the fragment.
    to: Vec<u8>,
    /// Index of the newest tombstone that covers the fragment.
    newest: usize,
}

/// Memory of a tombstone in addition to its keys, in bytes: two fragments and the overhead of allocations.
const OVERHEAD: usize = 256;

impl RangeTombstones {
    /// Adds a tombstone. Returns false, without a change, if the same one exists, or if its range is empty.
    pub fn insert(&mut self, tombstone: RangeTombstone) -> bool {
        if tombstone.from >= tombstone.to {
            return false;
        }
        let place = self.tombstones.partition_point(|other| other.sequence < tombstone.sequence);
        let same_sequence =
            self.tombstones[place..].iter().take_while(|other| other.sequence == tombstone.sequence);
        if same_sequence.clone().any(|other| *other == tombstone) {
            return false;
        }
        let place = place + same_sequence.count();
        // A tombstone adds up to two fragments with two keys each.
        self.bytes += OVERHEAD + 3 * (tombstone.from.len() + tombstone.to.len());
        self.tombstones.insert(place, tombstone);
        if place + 1 < self.tombstones.len() {
            // Replay may insert a tombstone that is older than others: its fragments must be below theirs.
            self.fragments.clear();
            (0..self.tombstones.len()).for_each(|number| self.cover(number));
        } else {
            self.cover(place);
        }
        true
    }

    /// Adds the fragment of a tombstone that is newer than all covered ones.
    fn cover(&mut self, number: usize) {
        let RangeTombstone { from, to, .. } = &self.tombstones[number];
        // A fragment that begins before the range is cut at the start of the range; its part after the range
        // becomes a fragment.
        let crossing = self
            .fragments
            .range_mut::<[u8], _>((Bound::Unbounded, Bound::Excluded(from.as_slice())))
            .next_back();
        if let Some((_, fragment)) = crossing
            && fragment.to > *from
        {
            let rest =
                Fragment { to: std::mem::replace(&mut fragment.to, from.clone()), newest: fragment.newest };
            if rest.to > *to {
                self.fragments.insert(to.clone(), rest);
            }
        }
        while let Some((start, _)) = self
            .fragments
            .range::<[u8], _>((Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice())))
            .next()
        {
            let start = start.clone();
            if let Some(fragment) = self.fragments.remove(&start)
                && fragment.to > *to
            {
                self.fragments.insert(to.clone(), fragment);
            }
        }
        self.fragments.insert(from.clone(), Fragment { to: to.clone(), newest: number });
    }

    /// Returns a tombstone that a snapshot sees and that deletes the entry of this key and sequence: the
    /// tombstone's sequence is higher, and at most that of the snapshot.
    #[inline]
    pub fn covers(&self, key: &[u8], sequence: Sequence, snapshot: Sequence) -> Option<&RangeTombstone> {
        if self.tombstones.is_empty() {
            return None;
        }
        let at_or_before = (Bound::Unbounded, Bound::Included(key));
        let (_, fragment) = self.fragments.range::<[u8], _>(at_or_before).next_back()?;
        if fragment.to.as_slice() <= key {
            return None;
        }
        let newest = &self.tombstones[fragment.newest];
        if newest.sequence <= snapshot {
            return (newest.sequence > sequence).then_some(newest);
        }
        let visible = self.tombstones.partition_point(|tombstone| tombstone.sequence <= snapshot);
        let newest_first = self.tombstones[..visible].iter().rev();
        newest_first
            .take_while(|tombstone| tombstone.sequence > sequence)
            .find(|tombstone| tombstone.deletes(key, sequence))
    }

    /// Returns the first key after `key` that may have an undeleted entry, among entries with sequences up to
    /// `newest`; `None` if `key` itself may have one.
    pub fn skip_to(&self, key: &[u8], newest: Sequence, snapshot: Sequence) -> Option<&[u8]> {
        let covers = |key: &[u8]| self.covers(key, newest, snapshot);
        let ranges = std::iter::successors(covers(key), |range| covers(&range.to));
        ranges.last().map(|range| range.to.as_slice())
    }

    /// Returns the first key of the deleted range that contains `key`: no entry in that range up to `key` is
    /// undeleted, among entries with sequences up to `newest`; `None` if no range contains `key`.
    pub fn skip_back_to(&self, key: &[u8], newest: Sequence, snapshot: Sequence) -> Option<&[u8]> {
        self.covers(key, newest, snapshot).map(|range| range.from.as_slice())
    }

    /// Whether there is a tombstone with a sequence above `newest` and at most `snapshot`.
    pub fn has_between(&self, newest: Sequence, snapshot: Sequence) -> bool {
        let after = self.tombstones.partition_point(|tombstone| tombstone.sequence <= newest);
        self.tombstones.get(after).is_some_and(|tombstone| tombstone.sequence <= snapshot)
    }

    /// Iterates over the tombstones, oldest first.
    pub fn iter(&self) -> std::slice::Iter<'_, RangeTombstone> {
        self.tombstones.iter()
    }

    /// Number of tombstones.
    pub fn len(&self) -> usize {
        self.tombstones.len()
    }

    /// Whether there are no tombstones.
    pub fn is_empty(&self) -> bool {
        self.tombstones.is_empty()
    }

    /// Approximate memory of the set, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl FromIterator<RangeTombstone> for RangeTombstones {
    fn from_iter<I: IntoIterator<Item = RangeTombstone>>(tombstones: I) -> Self {
        let mut sorted: Vec<_> = tombstones.into_iter().collect();
        sorted.sort_unstable_by_key(|tombstone| tombstone.sequence);
        let mut set = RangeTombstones::default();
        for tombstone in sorted {
            set.insert(tombstone);
        }
        set
    }
}

impl<'a> IntoIterator for &'a RangeTombstones {
    type Item = &'a RangeTombstone;
    type IntoIter = std::slice::Iter<'a, RangeTombstone>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
