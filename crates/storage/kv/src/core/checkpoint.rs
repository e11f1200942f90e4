//! Checkpoints of a store: the manifests of all shards, and the zones that must be erased.

use crate::core::Core;
use crate::erasure::Stale;
use crate::tree::manifest::{State, cover};
use block::{Error, Result};
use logkit::Sequences;
use logkit::checkpoint::{self, Cut};
use std::rc::Rc;
use std::sync::atomic::Ordering;

impl Core {
    /// Notes the size of the last checkpoint. Runs on the home.
    pub(crate) fn note_directory(&self) {
        let blocks = self.kit.checkpoints.directory_blocks(&self.kit.layout);
        self.peers.space.directory.store(blocks, Ordering::Relaxed);
    }

    /// Writes a checkpoint. Runs on the home. With `clean`, all buffers are in tables.
    pub(crate) async fn write_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        let homes = self.peers.homes();
        let write = async || {
            let mut cut = Cut { covered: Sequences::default(), clock: self.kit.clock() };
            let (clock, resets) = (self.erasure.clock().now(), self.erasure.resets());
            let mut state = State { shards: Vec::new(), stale: Vec::new(), clock, resets };
            // Taken before the cuts: the next opening finds zones that become stale by later edits.
            let stale: Vec<Stale> = self.erasure.all();
            self.erasure.begin_cut();
            for (shard, home) in (0..).zip(&homes) {
                let own = home.with(|core: Rc<Core>| async move { Ok(core.cut()) }).await?;
                cover(&mut cut.covered, shard, own.writes, own.tables);
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
