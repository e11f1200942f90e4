//! Checkpoints of a store: the manifests of all shards, and the zones that must be erased.

use crate::core::Core;
use crate::erasure::Stale;
use crate::manifest::{State, cover};
use block::{Error, Result};
use logkit::checkpoint::{self, Cut};
use logkit::Sequences;
use std::rc::Rc;

impl Core {
    /// Takes a checkpoint, on the home. With `clean`, all buffers are in tables.
    pub(crate) async fn write_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        let homes = self.homes.borrow().clone();
        for home in &homes {
            // A checkpoint covers all records of earlier epochs.
            let check = |core: Rc<Core>| async move {
                match core.replayed.get() {
                    0 => Ok(()),
                    left => Err(core.background_error.borrow().clone().unwrap_or_else(|| {
                        Error::busy(format!("{left} buffers of writes before the store was opened aren't in tables yet"))
                    })),
                }
            };
            home.with(check).await?;
        }
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

    /// Writes what was replayed as tables, so that the store may take checkpoints.
    pub(crate) async fn begin_replayed(self: &Rc<Self>) -> Result<()> {
        self.replayed.set(self.frozen.borrow().len() + usize::from(!self.active.borrow().is_empty()));
        self.freeze();
        let outcome = self.flush_buffers().await;
        match outcome {
            // A full store can be opened: what was replayed stays in memory.
            Err(Error::NoSpace(_)) => Ok(()),
            outcome => outcome,
        }
    }
}
