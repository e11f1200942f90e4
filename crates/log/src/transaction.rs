//! Transactions of a map's home, which replace checkpoints: one at each flush. A root names the oldest
//! transaction that a home may have.
//!
//! A transaction is collected atomically, between two commits. Then the zones are flushed, so that every
//! record whose effect the transaction holds is durable; then the transaction is committed. It now covers
//! those records like a checkpoint, and zones may be reset because of it. Before a zone is reset, a root
//! demands the transaction, so that an older home is refused.

use crate::core::Core;
use crate::format::{CLEANER, Own, USER};
use crate::home::{MapHome, Moment};
use crate::versions::PageSet;
use block::{Error, Result};
use logkit::checkpoint::write_root;
use logkit::root::Root;
use logkit::{Owner, Sequences, count};
use std::cell::Cell;
use std::rc::Rc;

/// Numbers of the transactions of a map's home, counted since the log was opened.
#[derive(Debug, Default)]
pub struct Transactions {
    begun: Cell<u64>,
    durable: Cell<u64>,
}

impl Core {
    /// Makes all acknowledged writes durable and commits a transaction of the map's home, so that opening has
    /// nothing to replay. Concurrent calls share a transaction.
    ///
    /// # Errors
    /// Errors of flushing the zones. If only the home has no space, that is logged as a warning: the writes
    /// are durable in the log and are replayed.
    pub async fn flush_home(self: &Rc<Self>) -> Result<()> {
        // Only a transaction that begins later includes every acknowledged write.
        let wanted = self.transactions.begun.get() + 1;
        let core = self.clone();
        // Dropping the call doesn't cancel the transaction.
        let task = self.kit().tasks.spawn(async move {
            let _alone = core.kit().checkpointing.acquire(1).await;
            match core.transactions.durable.get() >= wanted {
                true => Ok(()),
                false => core.transact(false).await,
            }
        });
        match task.await {
            Err(Error::NoSpace(detail)) if self.kit().failure().is_none() => {
                tracing::warn!("the map's home: no transaction was written: {detail}");
                self.kit().flush().await
            }
            outcome => outcome,
        }
    }

    /// Commits a transaction in place of a checkpoint. With `clean`, it is the last one before the log is
    /// closed.
    ///
    /// # Errors
    /// Errors of the flush and of the home, and of the root for the last one.
    pub async fn take_transaction(self: &Rc<Self>, clean: bool) -> Result<()> {
        let core = self.clone();
        let task = self.kit().tasks.spawn(async move {
            let _alone = core.kit().checkpointing.acquire(1).await;
            core.transact(clean).await
        });
        let outcome = task.await;
        if let Err(error) = &outcome {
            tracing::warn!("a transaction of the map's home failed: {error}");
        }
        self.kit().events.cleaner.notify_all();
        outcome
    }

    async fn transact(self: &Rc<Self>, clean: bool) -> Result<()> {
        if let Some(error) = self.kit().failure() {
            return Err(error);
        }
        let Some(home) = &self.home else { return Ok(()) };
        let number = self.transactions.begun.get() + 1;
        self.transactions.begun.set(number);
        self.write_transaction(home, clean).await?;
        // A call that waits for a failed transaction takes the next one.
        self.transactions.durable.set(number);
        Ok(())
    }

    async fn write_transaction(self: &Rc<Self>, home: &MapHome, clean: bool) -> Result<()> {
        // Opening trusts the home's live counts, so no version may be partly released in a transaction.
        while self.free_piece() {
            runtime::yield_now().await;
        }
        let kit = self.kit();
        let since = kit.begin_checkpoint();
        let collected = {
            let mut versions = self.versions.borrow_mut();
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
            home.collect(&versions, &kit.pool, moment)
        };
        // The records that the transaction covers must be durable before it is.
        if let Err(error) = self.kit().flush().await {
            if let Some(collected) = &collected {
                home.give_back(collected, &kit.pool);
            }
            kit.note_appended(since);
            return Err(error);
        }
        if let Some(collected) = collected {
            let Moment { clock, covered, .. } = *collected.moment();
            if let Err(error) = home.commit(collected, &kit.pool).await {
                kit.note_appended(since);
                if home.is_broken() {
                    self.fail(&error);
                }
                return Err(error);
            }
            let root = kit.checkpoints.root().clone();
            let covered = Sequences::new(&covered);
            let root =
                Root { clean: false, covered, clock, boundaries: Vec::new(), epoch: kit.epoch, ..root };
            kit.checkpoints.note(kit, root);
            count(&kit.counters.checkpoints, 1);
        }
        if clean {
            let own = Own { home: Some(home.sequence()) }.encode();
            let root = Root { clean, own, ..kit.checkpoints.root().clone() };
            write_root(&**self, root).await?;
        }
        Ok(())
    }

    /// Makes the newest root demand the newest transaction, unless it already does. The caller's next step
    /// depends on it.
    ///
    /// # Errors
    /// Errors of writing the root, after which the log has failed.
    pub async fn demand_home(self: &Rc<Self>) -> Result<()> {
        let Some(home) = &self.home else { return Ok(()) };
        let _alone = self.kit().checkpointing.acquire(1).await;
        let own = Own { home: Some(home.sequence()) }.encode();
        let root = self.kit().checkpoints.root().clone();
        match root.own == own {
            true => Ok(()),
            false => write_root(&**self, Root { own, ..root }).await,
        }
    }
}
