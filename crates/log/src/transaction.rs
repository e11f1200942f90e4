//! What takes the place of checkpoints where the map is at home: a transaction of the home at each flush, and roots that say
//! how old a home may be.
//!
//! A transaction is collected at one moment, between two commits. Then the zones are flushed, so that every record whose
//! effect it holds is durable; then it is committed. From then on it is the checkpoint that covers those records: zones may
//! be reset because of it. Before that happens a root demands it, so that an older home is never taken for the right one.

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
    /// Makes durable what was acknowledged by now, and brings the map's home there, so that opening has nothing to replay.
    /// Those who ask at the same time share a transaction.
    ///
    /// # Errors
    /// What flushing the zones says. Where only the home has no room, that is warned about: what was written is durable in
    /// the log, and is replayed.
    pub async fn flush_home(self: &Rc<Self>) -> Result<()> {
        // Only one that begins from here on has everything.
        let wanted = self.transactions.begun.get() + 1;
        let core = self.clone();
        // Whoever drops the call doesn't stop it half-way.
        let task = self.kit().tasks.spawn(async move {
            let _alone = core.kit().checkpointing.acquire(1).await;
            match core.transactions.durable.get() >= wanted {
                true => Ok(()),
                false => core.transact(false).await,
            }
        });
        match task.await {
            Err(Error::NoSpace(detail)) if self.kit().failure().is_none() => {
                tracing::warn!("the map's home is left as it was: {detail}");
                self.kit().flush().await
            }
            outcome => outcome,
        }
    }

    /// The same in place of a checkpoint. With `clean`, it is the last one before the log is closed.
    ///
    /// # Errors
    /// What flushing, the home, and for the last one the root say.
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
        // A call that waits for one that failed takes the next.
        self.transactions.durable.set(number);
        Ok(())
    }

    async fn write_transaction(self: &Rc<Self>, home: &MapHome, clean: bool) -> Result<()> {
        // What the home says is live is believed when it is opened: nothing may be half given up at its moment.
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
        // What the transaction holds must survive whatever it survives.
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

    /// Has the newest root demand the newest transaction, if it doesn't: what follows relies on it.
    ///
    /// # Errors
    /// What writing the root says; the log has failed then.
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
