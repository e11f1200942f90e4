//! Checkpoints of a store: the manifests of all shards, and the zones that must be erased.

use crate::core::Core;
use crate::erasure::Stale;
use crate::tree::manifest::{State, cover};
use block::{Error, Result};
use logkit::Sequences;
use logkit::checkpoint::{self, Cut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Estimated size of a checkpoint, shared by all shards, so that each keeps the same number of zones free for
/// it.
#[derive(Debug)]
pub(crate) struct CheckpointSize {
    /// Bytes of the manifest of each shard.
    manifests: Box<[AtomicU64]>,
    /// Number of blocks of the last checkpoint.
    directory: AtomicU64,
    /// Number of zones that running jobs may still fill; space for checkpoints must exist beyond these.
    pub claimed: AtomicU32,
    /// Shards that found nothing to reclaim since their last write, one bit per shard.
    pub exhausted: AtomicU32,
}

impl CheckpointSize {
    /// Returns the size for a store of `shards` shards without tables.
    pub fn new(shards: u16) -> Arc<Self> {
        let manifests = (0..shards).map(|_| AtomicU64::new(0)).collect();
        Arc::new(CheckpointSize {
            manifests,
            directory: AtomicU64::new(0),
            claimed: AtomicU32::new(0),
            exhausted: AtomicU32::new(0),
        })
    }

    /// Sets the size of a shard's manifest in bytes.
    pub fn set_manifest(&self, shard: u16, bytes: u64) {
        self.manifests[usize::from(shard)].store(bytes, Ordering::Relaxed);
    }

    /// Bytes of all manifests.
    pub fn manifest_bytes(&self) -> u64 {
        self.manifests.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// Number of blocks of the last checkpoint.
    pub fn directory_blocks(&self) -> u64 {
        self.directory.load(Ordering::Relaxed)
    }
}

impl Core {
    /// Notes the size of the last checkpoint. Runs on the home.
    pub(crate) fn note_directory(&self) {
        let blocks = self.kit.checkpoints.directory_blocks(&self.kit);
        self.checkpoint_size.directory.store(blocks, Ordering::Relaxed);
    }

    /// Writes a checkpoint. Runs on the home. With `clean`, all buffers are in tables.
    pub(crate) async fn write_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        let homes = self.homes.borrow().clone();
        let write = async || {
            let mut cut = Cut { covered: Sequences::default(), clock: self.kit.clock() };
            let (clock, resets) = (self.erasure.clock().now(), self.erasure.resets());
            let mut state = State { shards: Vec::new(), stale: Vec::new(), clock, resets };
            // Taken before the cuts: the next opening finds zones that become stale by later edits.
            let stale: Vec<Stale> = self.erasure.all();
            self.erasure.begin_cut();
            for (shard, home) in (0..).zip(&homes) {
                let own = home.with(|core: Rc<Core>| async move { Ok(core.cut()) }).await?;
                cover(&mut cut.covered, shard, &own.manifest.flushed, own.tables);
                state.shards.push(own.manifest);
            }
            state.stale = stale;
            checkpoint::commit(self, cut, &state.encode(), clean).await
        };
        let taken = checkpoint::take(self, write).await;
        self.note_directory();
        taken.inspect(|()| self.erasure.wrote_history())
    }

    /// Writes replayed writes to tables, so that a checkpoint covers them.
    pub(crate) async fn flush_replayed(self: &Rc<Self>) -> Result<()> {
        match self.flush_buffers().await {
            // A full store can still be opened: the replayed writes stay in memory and in the log.
            Err(Error::NoSpace(_)) => Ok(()),
            outcome => outcome,
        }
    }
}
