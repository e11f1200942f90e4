//! Checkpoints of a store: the manifests of all shards, and the zones that must be erased.

use crate::core::Core;
use crate::erasure::Stale;
use crate::manifest::{State, cover};
use block::{Error, Result};
use logkit::Sequences;
use logkit::checkpoint::{self, Cut};
use std::rc::Rc;

impl Core {
    /// Takes a checkpoint, on the home. With `clean`, all buffers are in tables.
    pub(crate) async fn write_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        let homes = self.homes.borrow().clone();
        let write = async || {
            let mut cut = Cut { covered: Sequences::default(), clock: self.kit.clock() };
            let mut state = State { shards: Vec::new(), stale: Vec::new() };
            // Before the cuts: what becomes stale by a later edit is found at the next opening.
            let stale: Vec<Stale> = self.erasure.all();
            for (shard, home) in (0..).zip(&homes) {
                let own = home.with(|core: Rc<Core>| async move { Ok(core.cut()) }).await?;
                cover(&mut cut.covered, shard, &own.manifest.flushed, own.tables);
                state.shards.push(own.manifest);
            }
            state.stale = stale;
            checkpoint::commit(self, cut, &state.encode(), clean).await
        };
        checkpoint::take(self, write).await
    }

    /// Writes what was replayed as tables, so that a checkpoint covers it.
    pub(crate) async fn flush_replayed(self: &Rc<Self>) -> Result<()> {
        match self.flush_buffers().await {
            // A full store can be opened: what was replayed stays in memory and in the log.
            Err(Error::NoSpace(_)) => Ok(()),
            outcome => outcome,
        }
    }
}
