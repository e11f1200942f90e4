//! Transactions of a map's home, which replace checkpoints: one at each flush. A root names the oldest
//! transaction that a home may have.
//!
//! A transaction is collected atomically, between two commits. Then the zones are flushed, so that every
//! record whose effect the transaction holds is durable; then the transaction is committed. It now covers
//! those records like a checkpoint, and zones may be reset because of it. Before a zone is reset, a root
//! demands the transaction, so that an older home is refused.

use super::format::SLAB;
use super::{MapHome, Moment};
use crate::core::{Core, MapKeeper};
use crate::format::{CLEANER, Own, USER};
use crate::versions::PageSet;
use block::{Call, Error, Result};
use logkit::checkpoint::write_root;
use logkit::root::Root;
use logkit::{Owner, Sequences, count};
use serde_json::{Value, json};
use std::rc::Rc;

impl MapKeeper for MapHome {
    fn flush(self: Rc<Self>, core: Rc<Core>) -> Call<'static, Result<()>> {
        // Only a transaction that begins later includes every acknowledged write.
        let wanted = self.begun.get() + 1;
        let own = core.clone();
        // Dropping the call doesn't cancel the transaction.
        let task = core.kit().tasks.spawn(async move {
            let _alone = own.kit().checkpointing.acquire(1).await;
            match self.durable.get() >= wanted {
                true => Ok(()),
                false => self.transact(&own, false).await,
            }
        });
        Call::new(async move {
            match task.await {
                Err(Error::NoSpace(detail)) if core.kit().failure().is_none() => {
                    tracing::warn!("the map's home: no transaction was written: {detail}");
                    core.kit().flush().await
                }
                outcome => outcome,
            }
        })
    }

    fn checkpoint(self: Rc<Self>, core: Rc<Core>, clean: bool) -> Call<'static, Result<()>> {
        let own = core.clone();
        let task = core.kit().tasks.spawn(async move {
            let _alone = own.kit().checkpointing.acquire(1).await;
            self.transact(&own, clean).await
        });
        Call::new(async move {
            let outcome = task.await;
            if let Err(error) = &outcome {
                tracing::warn!("a transaction of the map's home failed: {error}");
            }
            core.kit().events.cleaner.notify_all();
            outcome
        })
    }

    fn demand(self: Rc<Self>, core: Rc<Core>) -> Call<'static, Result<()>> {
        Call::new(async move {
            let _alone = core.kit().checkpointing.acquire(1).await;
            let own = Own { home: Some(self.sequence()), stripes: None }.encode();
            let root = core.kit().checkpoints.root().clone();
            match root.own == own {
                true => Ok(()),
                false => write_root(&*core, Root { own, ..root }).await,
            }
        })
    }

    fn status(&self) -> Value {
        json!({
            "file": self.medium.name(),
            "durable_by": self.medium.durable_by(),
            "transactions": self.sequence.get(),
            "lines": self.lines.get(),
            "bytes_written": self.bytes.get(),
            "journal_bytes": self.position.get(),
            "journal_size": self.places.journal_length,
            "map_bytes": u64::from(self.family.used()) * SLAB,
            "private_bytes": self.family.private() * SLAB,
        })
    }
}

impl MapHome {
    async fn transact(&self, core: &Rc<Core>, clean: bool) -> Result<()> {
        if let Some(error) = core.kit().failure() {
            return Err(error);
        }
        let number = self.begun.get() + 1;
        self.begun.set(number);
        self.write_transaction(core, clean).await?;
        // A call that waits for a failed transaction takes the next one.
        self.durable.set(number);
        Ok(())
    }

    async fn write_transaction(&self, core: &Rc<Core>, clean: bool) -> Result<()> {
        // Opening trusts the home's live counts, so no version may be partly released in a transaction.
        while core.free_piece() {
            runtime::yield_now().await;
        }
        let kit = core.kit();
        let since = kit.begin_checkpoint();
        let collected = {
            let mut versions = core.versions.borrow_mut();
            for version in &mut versions.list {
                version.dirty = PageSet::default();
            }
            versions.orphaned.clear();
            let moment = Moment {
                epoch: kit.epoch,
                clock: kit.clock(),
                covered: [USER, CLEANER].map(|stream| kit.streams.committed(stream)),
                next_version: versions.next,
                slabs: 0,
            };
            self.collect(&versions, &kit.pool, moment)
        };
        // The records that the transaction covers must be durable before it is.
        if let Err(error) = kit.flush().await {
            if let Some(collected) = &collected {
                self.give_back(collected, &kit.pool);
            }
            kit.note_appended(since);
            return Err(error);
        }
        if let Some(collected) = collected {
            let Moment { clock, covered, .. } = *collected.moment();
            if let Err(error) = self.commit(collected, &kit.pool).await {
                kit.note_appended(since);
                if self.is_broken() {
                    core.fail(&error);
                }
                return Err(error);
            }
            let root = kit.checkpoints.root().clone();
            let covered = Sequences::new(&covered);
            let root =
                Root { clean: false, covered, clock, boundaries: Vec::new(), epoch: kit.epoch, ..root };
            kit.checkpoints.note(&kit.streams, root);
            count(&kit.counters.checkpoints, 1);
        }
        if clean {
            let own = Own { home: Some(self.sequence()), stripes: None }.encode();
            let root = Root { clean, own, ..kit.checkpoints.root().clone() };
            write_root(&**core, root).await?;
        }
        Ok(())
    }
}
