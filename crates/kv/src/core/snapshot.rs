//! Snapshots of all shards.

use super::Core;
use crate::entry::Sequence;
use runtime::Home;
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
