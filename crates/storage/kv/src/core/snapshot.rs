//! Snapshots: of all shards, and those of a shard.

use super::Core;
use crate::key_version::Sequence;
use runtime::Home;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A consistent view of all shards. It must be dropped on a shard of the runtime: otherwise it is held until
/// the store is closed.
#[derive(Debug)]
pub struct Snapshot {
    homes: Arc<[Home<Core>]>,
    sequences: Vec<Sequence>,
}

impl Snapshot {
    /// Returns a snapshot without sequences of shards.
    pub(crate) fn of(homes: Arc<[Home<Core>]>) -> Self {
        Snapshot { homes, sequences: Vec::new() }
    }

    /// Sequence of a shard.
    pub(crate) fn sequence(&self, shard: usize) -> Sequence {
        self.sequences[shard]
    }

    /// Adds the sequence of the next shard.
    pub(crate) fn add(&mut self, sequence: Sequence) {
        self.sequences.push(sequence);
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if !runtime::is_on_shard() {
            return;
        }
        for (home, sequence) in self.homes.iter().cloned().zip(self.sequences.iter().copied()) {
            let release = move |core: Rc<Core>| async move {
                core.release_snapshot(sequence);
                Ok(())
            };
            // A closed store has no snapshots.
            runtime::spawn(async move { home.with(release).await.ok() }).detach();
        }
    }
}

/// Sequences of the snapshots of a shard, with the number of snapshots of each.
#[derive(Debug, Default)]
pub(crate) struct Snapshots(RefCell<BTreeMap<Sequence, u32>>);

impl Snapshots {
    /// Keeps the versions that `sequence` sees, until [`release`](Self::release).
    pub fn hold(&self, sequence: Sequence) {
        *self.0.borrow_mut().entry(sequence).or_insert(0) += 1;
    }

    /// Ends a snapshot.
    pub fn release(&self, sequence: Sequence) {
        let mut snapshots = self.0.borrow_mut();
        if let Some(count) = snapshots.get_mut(&sequence) {
            *count -= 1;
            if *count == 0 {
                snapshots.remove(&sequence);
            }
        }
    }

    /// Sequences of the snapshots, in ascending order.
    pub fn sequences(&self) -> Vec<Sequence> {
        self.0.borrow().keys().copied().collect()
    }

    /// Whether there is a snapshot with a lower sequence.
    pub fn has_before(&self, sequence: Sequence) -> bool {
        self.0.borrow().range(..sequence).next().is_some()
    }

    /// Whether there is no snapshot.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Number of snapshots.
    pub fn count(&self) -> u64 {
        self.0.borrow().values().map(|count| u64::from(*count)).sum()
    }
}

impl Core {
    /// Ends a snapshot of this shard.
    pub(crate) fn release_snapshot(&self, sequence: Sequence) {
        self.tables.snapshots.release(sequence);
        // Versions that only this snapshot saw may be dropped now.
        self.compactions.may_purge();
        self.may_be_reclaimed();
        self.events.changed.notify_all();
    }
}
