//! What takes the place of checkpoints where the map is at home: a transaction of the home at each flush, and roots that say
//! how old a home may be.
//!
//! A transaction is collected at one moment, between two commits. Then the zones are flushed, so that every record whose
//! effect it holds is durable; then it is committed. From then on it is the checkpoint that covers those records: zones may
//! be reset because of it. Before that happens a root demands it, so that an older home is never taken for the right one.

use crate::core::{Core, count};
use crate::format::{CLEANER, USER};
use crate::home::{MapHome, Moment};
use crate::root::Root;
use crate::versions::PageSet;
use block::{Error, Result};
use std::rc::Rc;

impl Core {
    /// Makes durable what was acknowledged by now, and brings the map's home there, so that opening has nothing to replay.
    /// Those who ask at the same time share a transaction.
    ///
    /// # Errors
    /// What flushing the zones says. Where only the home has no room, that is warned about: what was written is durable in
    /// the log, and is replayed.
    pub async fn flush_home(self: &Rc<Self>) -> Result<()> {
        // Only one that begins from here on has everything.
        let wanted = self.home_turns.get().0 + 1;
        let core = self.clone();
        // Whoever drops the call doesn't stop it half-way.
        let task = self.tasks.spawn(async move {
            let _alone = core.admin.acquire(1).await;
            match core.home_turns.get().1 >= wanted {
                true => Ok(()),
                false => core.transact(false).await,
            }
        });
        match task.await {
            Err(Error::NoSpace(detail)) if self.failure().is_none() => {
                tracing::warn!("the map's home is left as it was: {detail}");
                self.flush().await
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
        let task = self.tasks.spawn(async move {
            let _alone = core.admin.acquire(1).await;
            core.transact(clean).await
        });
        let outcome = task.await;
        if let Err(error) = &outcome {
            tracing::warn!("a transaction of the map's home failed: {error}");
        }
        self.cleaner.notify_all();
        outcome
    }

    async fn transact(self: &Rc<Self>, clean: bool) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        let Some(home) = &self.home else { return Ok(()) };
        let (turn, ended) = (self.home_turns.get().0 + 1, self.home_turns.get().1);
        self.home_turns.set((turn, ended));
        self.transact_now(home, clean).await?;
        // Whoever waits for one that failed finds out by taking the next.
        self.home_turns.set((turn, turn));
        Ok(())
    }

    async fn transact_now(self: &Rc<Self>, home: &MapHome, clean: bool) -> Result<()> {
        // What the home says is live is believed when it is opened: nothing may be half given up at its moment.
        while self.give_up_some() {
            runtime::yield_now().await;
        }
        let since = self.since_checkpoint.replace(0);
        let collected = {
            let mut versions = self.versions.borrow_mut();
            for version in &mut versions.list {
                version.dirty = PageSet::default();
            }
            versions.orphaned.clear();
            let committed =
                |stream: logkit::record::StreamIndex| self.streams[usize::from(stream.0)].borrow().committed();
            let moment = Moment {
                epoch: self.epoch,
                clock: self.clock.get(),
                covered: [committed(USER), committed(CLEANER)],
                next_version: versions.next,
                slabs: 0,
            };
            home.collect(&versions, &self.table, moment)
        };
        // What the transaction holds must survive whatever it survives.
        if let Err(error) = self.flush().await {
            if let Some(collected) = &collected {
                home.give_back(collected, &self.table);
            }
            self.since_checkpoint.set(self.since_checkpoint.get() + since);
            return Err(error);
        }
        if let Some(collected) = collected {
            let Moment { clock, covered, .. } = *collected.moment();
            if let Err(error) = home.commit(collected, &self.table).await {
                self.since_checkpoint.set(self.since_checkpoint.get() + since);
                if home.is_broken() {
                    self.fail(&error);
                }
                return Err(error);
            }
            let mut durable = self.checkpoint.borrow_mut();
            durable.root = Root {
                clean: false,
                covered,
                clock,
                boundaries: Vec::new(),
                epoch: self.epoch,
                ..durable.root.clone()
            };
            count(&self.counters.checkpoints, 1);
        }
        if clean {
            let root = Root { clean, home: Some(home.sequence()), ..self.checkpoint.borrow().root.clone() };
            self.write_root(&root).await?;
            self.checkpoint.borrow_mut().root = root;
        }
        Ok(())
    }

    /// Has the newest root demand the newest transaction, if it doesn't: what follows relies on it.
    ///
    /// # Errors
    /// What writing the root says; the log has failed then.
    pub async fn demand_home(self: &Rc<Self>) -> Result<()> {
        let Some(home) = &self.home else { return Ok(()) };
        let _alone = self.admin.acquire(1).await;
        let root = Root { home: Some(home.sequence()), ..self.checkpoint.borrow().root.clone() };
        if self.checkpoint.borrow().root.home != root.home {
            self.write_root(&root).await?;
            self.checkpoint.borrow_mut().root = root;
        }
        Ok(())
    }
}
