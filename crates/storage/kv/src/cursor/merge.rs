//! Merge of several cursors.
//!
//! A binary heap has the cursors that are at an entry, with the next one in the merge's direction on top. A
//! change of the direction seeks all cursors to the other side of the entry, as in LevelDB's merging
//! iterator. Seeks of several cursors run concurrently, so that a seek costs about as much as the slowest of
//! them.
//!
//! An entry that several cursors have, with the same key and sequence, is returned once.

#[cfg(test)]
mod tests;

use crate::cursor::Cursor;
use crate::key_version::{KeyVersion, Sequence, order};
use block::Result;
use std::cmp::Ordering;

/// A cursor over the entries of several cursors.
///
/// After an error, or after a future was dropped before its completion, the cursor is at no entry; a seek
/// makes it usable again.
#[derive(Debug)]
pub struct Merge<C> {
    cursors: Vec<C>,
    /// Heap of the cursors that are at an entry; empty during a call.
    heap: Vec<Head>,
    direction: Direction,
    /// Buffer for the key at which the direction changes.
    key: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// A cursor in the heap.
#[derive(Debug, Clone, Copy)]
struct Head {
    /// First bytes of the cursor's key, padded with zeros: different prefixes order the keys.
    prefix: u64,
    cursor: usize,
}

/// Target of a seek.
#[derive(Debug, Clone, Copy)]
enum Goal<'a> {
    First,
    Last,
    AtOrAfter(&'a [u8], Sequence),
    Before(&'a [u8], Sequence),
}

impl Goal<'_> {
    fn direction(self) -> Direction {
        match self {
            Goal::First | Goal::AtOrAfter(..) => Direction::Forward,
            Goal::Last | Goal::Before(..) => Direction::Backward,
        }
    }

    async fn seek(self, cursor: &mut impl Cursor) -> Result<()> {
        match self {
            Goal::First => cursor.seek_first().await,
            Goal::Last => cursor.seek_last().await,
            Goal::AtOrAfter(key, sequence) => cursor.seek(key, sequence).await,
            Goal::Before(key, sequence) => cursor.seek_before(key, sequence).await,
        }
    }
}

impl<C: Cursor> Merge<C> {
    /// Creates a merge of `cursors`, positioned at no entry.
    pub fn new(cursors: Vec<C>) -> Self {
        let heap = Vec::with_capacity(cursors.len());
        Merge { cursors, heap, direction: Direction::Forward, key: Vec::new() }
    }

    async fn seek_all(&mut self, goal: Goal<'_>) -> Result<()> {
        self.heap.clear();
        self.direction = goal.direction();
        match self.cursors.as_mut_slice() {
            [cursor] => goal.seek(cursor).await?,
            cursors => {
                let seeks = cursors.iter_mut().map(|cursor| goal.seek(cursor));
                runtime::join_all(seeks).await.into_iter().collect::<Result<()>>()?;
            }
        }
        let mut heap = std::mem::take(&mut self.heap);
        heap.extend((0..self.cursors.len()).filter_map(|cursor| self.head(cursor)));
        for at in (0..heap.len() / 2).rev() {
            self.sift_down(&mut heap, at);
        }
        self.heap = heap;
        Ok(())
    }

    /// Moves by one entry in the present direction.
    async fn step(&mut self, direction: Direction) -> Result<()> {
        if self.heap.is_empty() {
            return Ok(());
        }
        if self.direction != direction {
            return self.turn(direction).await;
        }
        // A single cursor needs no comparison. While the heap is empty, the merge is at no entry.
        if let [head] = self.heap[..] {
            self.heap.clear();
            let cursor = &mut self.cursors[head.cursor];
            match direction {
                Direction::Forward => cursor.next().await?,
                Direction::Backward => cursor.previous().await?,
            }
            if cursor.entry().is_some() {
                self.heap.push(head);
            }
            return Ok(());
        }
        // While the heap is taken out, the merge is at no entry.
        let mut heap = std::mem::take(&mut self.heap);
        // Other cursors at the same entry are children of the top, or descendants of such children.
        while let Some(child) = [1, 2].into_iter().find(|&child| self.same(&heap, 0, child)) {
            self.advance(&mut heap, child, direction).await?;
        }
        self.advance(&mut heap, 0, direction).await?;
        self.heap = heap;
        Ok(())
    }

    /// Moves by one entry against the present direction.
    async fn turn(&mut self, direction: Direction) -> Result<()> {
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        let Some(KeyVersion { key: from, sequence, .. }) = self.entry() else { return Ok(()) };
        key.extend_from_slice(from);
        let result = match direction {
            Direction::Backward => self.seek_all(Goal::Before(&key, sequence)).await,
            // The position after an entry is the next lower sequence; after the lowest one, the key with an
            // appended zero byte.
            Direction::Forward => match sequence.checked_sub(1) {
                Some(sequence) => self.seek_all(Goal::AtOrAfter(&key, sequence)).await,
                None => {
                    key.push(0);
                    self.seek_all(Goal::AtOrAfter(&key, Sequence::MAX)).await
                }
            },
        };
        self.key = key;
        result
    }

    /// Steps the cursor at index `at` of the heap, and restores the heap's order.
    async fn advance(&mut self, heap: &mut Vec<Head>, at: usize, direction: Direction) -> Result<()> {
        let index = heap[at].cursor;
        let cursor = &mut self.cursors[index];
        match direction {
            Direction::Forward => cursor.next().await?,
            Direction::Backward => cursor.previous().await?,
        }
        match self.head(index) {
            Some(head) => heap[at] = head,
            None => {
                heap.swap_remove(at);
            }
        }
        self.sift_down(heap, at);
        Ok(())
    }

    #[inline]
    fn head(&self, cursor: usize) -> Option<Head> {
        let key = self.cursors[cursor].entry()?.key;
        let prefix = match key.first_chunk::<8>() {
            Some(bytes) => u64::from_be_bytes(*bytes),
            None => {
                let mut bytes = [0; 8];
                bytes[..key.len()].copy_from_slice(key);
                u64::from_be_bytes(bytes)
            }
        };
        Some(Head { prefix, cursor })
    }

    /// Order of two cursors in the heap by their entries.
    #[inline]
    fn compare(&self, left: Head, right: Head) -> Ordering {
        left.prefix.cmp(&right.prefix).then_with(|| {
            match (self.cursors[left.cursor].entry(), self.cursors[right.cursor].entry()) {
                (Some(left), Some(right)) => order((left.key, left.sequence), (right.key, right.sequence)),
                (left, right) => left.is_none().cmp(&right.is_none()),
            }
        })
    }

    /// Whether the cursors at two indices of the heap are at the same entry.
    #[inline]
    fn same(&self, heap: &[Head], left: usize, right: usize) -> bool {
        right < heap.len() && self.compare(heap[left], heap[right]).is_eq()
    }

    #[inline]
    fn sift_down(&self, heap: &mut [Head], mut at: usize) {
        let sooner = match self.direction {
            Direction::Forward => Ordering::Less,
            Direction::Backward => Ordering::Greater,
        };
        loop {
            let mut child = 2 * at + 1;
            if child >= heap.len() {
                return;
            }
            if child + 1 < heap.len() && self.compare(heap[child + 1], heap[child]) == sooner {
                child += 1;
            }
            if self.compare(heap[child], heap[at]) != sooner {
                return;
            }
            heap.swap(at, child);
            at = child;
        }
    }
}

impl<C: Cursor> Cursor for Merge<C> {
    #[inline]
    fn entry(&self) -> Option<KeyVersion<'_>> {
        self.cursors[self.heap.first()?.cursor].entry()
    }

    async fn seek_first(&mut self) -> Result<()> {
        self.seek_all(Goal::First).await
    }

    async fn seek_last(&mut self) -> Result<()> {
        self.seek_all(Goal::Last).await
    }

    async fn seek(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        self.seek_all(Goal::AtOrAfter(key, sequence)).await
    }

    async fn seek_before(&mut self, key: &[u8], sequence: Sequence) -> Result<()> {
        self.seek_all(Goal::Before(key, sequence)).await
    }

    async fn next(&mut self) -> Result<()> {
        self.step(Direction::Forward).await
    }

    async fn previous(&mut self) -> Result<()> {
        self.step(Direction::Backward).await
    }
}
