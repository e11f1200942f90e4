//! List of the snapshots of a file system, with their creation and deletion. The list is on the home.
//!
//! A snapshot is taken in two steps:
//! 1. All cores keep their trees of one point in time, while their [gates](crate::snapshots::gate) are shut, by
//!    cloning each tree.
//! 2. A checkpoint that includes the snapshot becomes durable. Before that, the snapshot doesn't exist.
//!
//! It is also deleted in two steps:
//! 1. A checkpoint without it becomes durable.
//! 2. Each core removes its trees. Blocks that only the snapshot had *are dying*, and die with the next
//!    checkpoint: the removal of a file may not be written yet, and a replay of the first checkpoint would
//!    find the file.

use crate::core::cores::core_of;
use crate::core::{Broken, Core, now};
use crate::metadata::Metadata;
use crate::metadata::directory::show;
use crate::metadata::forest::Shard;
use crate::metadata::versions::{
    MAX_NUMBER, MAX_SNAPSHOTS, Snapshot, SnapshotInfo, SnapshotNumber, check_name,
};
use block::{Error, Result};
use runtime::sync::{Semaphore, oneshot};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// State of a snapshot on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The next checkpoint will include it.
    New,
    /// The durable checkpoint includes it.
    There,
    /// The next checkpoint won't include it.
    Deleted,
}

/// Snapshots of a file system, oldest first.
#[derive(Debug)]
pub struct SnapshotList {
    all: RefCell<Vec<(SnapshotInfo, Stage)>>,
    /// Number of the next snapshot.
    next: Cell<SnapshotNumber>,
    /// Serializes taking and deleting snapshots.
    alone: Rc<Semaphore>,
}

impl Default for SnapshotList {
    fn default() -> Self {
        SnapshotList { all: RefCell::default(), next: Cell::new(1), alone: Semaphore::new(1) }
    }
}

impl SnapshotList {
    /// Sets the snapshots of the newest checkpoint, and the number of the next one.
    pub fn set(&self, found: impl Iterator<Item = SnapshotInfo>, next: SnapshotNumber) {
        self.next.set(next);
        *self.all.borrow_mut() = found.map(|info| (info, Stage::There)).collect();
    }

    /// Returns the snapshots on the medium, oldest first.
    pub fn there(&self) -> Vec<SnapshotInfo> {
        let all = self.all.borrow();
        all.iter().filter(|(_, stage)| *stage == Stage::There).map(|(info, _)| info.clone()).collect()
    }

    /// Returns the snapshots that a checkpoint includes if it begins now.
    pub fn of_checkpoint(&self) -> Vec<SnapshotInfo> {
        let all = self.all.borrow();
        all.iter().filter(|(_, stage)| *stage != Stage::Deleted).map(|(info, _)| info.clone()).collect()
    }

    /// Number of the next snapshot, larger than those of all earlier ones.
    pub fn next_number(&self) -> SnapshotNumber {
        self.next.get()
    }

    /// Notes that a checkpoint with these snapshots is durable.
    pub fn are_durable(&self, written: &[SnapshotInfo]) {
        for (info, stage) in self.all.borrow_mut().iter_mut().filter(|(_, stage)| *stage == Stage::New) {
            if written.iter().any(|it| it.number == info.number) {
                *stage = Stage::There;
            }
        }
    }

    /// Finds a snapshot by its name.
    ///
    /// # Errors
    /// [`Error::NotFound`] with the existing names.
    pub fn find(&self, name: &str) -> Result<SnapshotInfo> {
        let there = self.there();
        there.iter().find(|it| it.name == name).cloned().ok_or_else(|| {
            let names: Vec<&str> = there.iter().map(|it| it.name.as_str()).collect();
            Error::not_found(match names.is_empty() {
                true => format!("snapshot \"{name}\" doesn't exist: the file system has no snapshots"),
                false => format!("snapshot \"{name}\" doesn't exist; expected one of {}", names.join(", ")),
            })
        })
    }

    fn set_stage(&self, number: SnapshotNumber, new: Stage) {
        let mut all = self.all.borrow_mut();
        all.iter_mut().filter(|(info, _)| info.number == number).for_each(|(_, stage)| *stage = new);
    }

    fn stage(&self, number: SnapshotNumber) -> Option<Stage> {
        self.all.borrow().iter().find(|(info, _)| info.number == number).map(|(_, stage)| *stage)
    }

    fn remove(&self, number: SnapshotNumber) {
        self.all.borrow_mut().retain(|(info, _)| info.number != number);
    }

    /// Returns a new snapshot with this name. Its number isn't reused, even if the snapshot isn't taken.
    fn new_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        check_name(name)?;
        let all = self.all.borrow();
        if all.iter().any(|(info, _)| info.name == name) {
            return Err(Error::already_exists(format!(
                "snapshot \"{}\": there is one of this name; choose another name, or delete it first",
                show(name.as_bytes())
            )));
        }
        if all.len() >= MAX_SNAPSHOTS {
            return Err(Error::no_space(format!(
                "snapshot \"{name}\": the file system has {} snapshots; expected less than {MAX_SNAPSHOTS}: delete some",
                all.len()
            )));
        }
        drop(all);
        let number = self.next.get();
        if number > MAX_NUMBER {
            return Err(Error::no_space(format!(
                "snapshot \"{name}\": the file system has had {MAX_NUMBER} snapshots, the most that there can be; copy the files to a new file system"
            )));
        }
        self.next.set(number + 1);
        Ok(SnapshotInfo { number, name: name.to_owned(), created: now() })
    }
}

impl Core {
    /// Runs a task to completion, even if its caller is dropped.
    async fn to_the_end<T: 'static>(&self, task: impl Future<Output = Result<T>> + 'static) -> Result<T> {
        self.check_open()?;
        let (sender, mut receiver) = oneshot();
        let run = async move {
            // The caller may have been dropped.
            sender.send(task.await).ok();
        };
        self.kit.tasks.spawn(run).detach();
        let outcome = receiver.receive().await;
        outcome.unwrap_or_else(|| Err(Error::closed("the file system is closed; open it again")))
    }

    /// Takes a snapshot, which is durable when this returns. Runs on the home.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::Invalid`] or ENAMETOOLONG for the name; [`Error::NoSpace`]; the
    /// failure of the log.
    pub(crate) async fn create_snapshot(self: &Rc<Self>, name: String) -> Result<SnapshotInfo> {
        let core = self.clone();
        self.to_the_end(async move {
            let _alone = core.snapshot_list.alone.acquire(1).await;
            core.check_open()?;
            let info = core.snapshot_list.new_snapshot(&name)?;
            // All pages may have to be copied and written.
            let copied = match core.metadata.borrow().snapshots.is_empty() {
                true => 3 * core.totals().sum(|used| &used.pages),
                false => 1,
            };
            core.check_space(copied)?;
            let number = info.number;
            let kept = core.keep_versions(number).await;
            if kept.is_ok() {
                core.snapshot_list.all.borrow_mut().push((info.clone(), Stage::New));
            }
            let outcome = match kept {
                Ok(()) => core.write_checkpoint(false).await,
                Err(error) => Err(error),
            };
            // A checkpoint in progress may include the snapshot.
            let _ended = core.kit.checkpointing.acquire(1).await;
            if core.snapshot_list.stage(number) == Some(Stage::There) {
                return Ok(info);
            }
            core.snapshot_list.remove(number);
            core.drop_versions(number).await?;
            outcome.map(|()| info)
        })
        .await
    }

    /// Makes all cores keep their trees of one point in time.
    async fn keep_versions(&self, number: SnapshotNumber) -> Result<()> {
        let mut outcome = match self.breaks(Broken::SnapshotsApart) {
            true => Ok(()),
            false => self.shut_gates().await,
        };
        for core in self.cores().all() {
            if self.breaks(Broken::SnapshotsApart) || self.breaks(Broken::SlowSnapshots) {
                runtime::sleep(std::time::Duration::from_millis(1)).await;
            }
            if outcome.is_ok() {
                outcome = core
                    .with(move |core: Rc<Core>| async move {
                        core.keep_version(number);
                        Ok(())
                    })
                    .await;
            }
        }
        self.open_gates().await.and(outcome)
    }

    /// Shuts the gates of all cores, one after another. Afterwards no operation is in progress.
    ///
    /// # Errors
    /// [`Error::NoSpace`] while an operation on several cores waits for space.
    async fn shut_gates(&self) -> Result<()> {
        let mut outcome = Ok(());
        for core in self.cores().all() {
            let shut = |core: Rc<Core>| async move {
                // An operation that was answered with ENOSPC may wait for space forever.
                core.admission.gate.shut(|| core.kit.space.check()).await
            };
            outcome = outcome.and(core.with(shut).await);
        }
        outcome
    }

    async fn open_gates(&self) -> Result<()> {
        let mut outcome = Ok(());
        for core in self.cores().all() {
            let open = |core: Rc<Core>| async move {
                core.admission.gate.open();
                Ok(())
            };
            outcome = core.with(open).await.and(outcome);
        }
        outcome
    }

    /// Runs `work` while no operation is in progress on any core and all records are written. Runs on the
    /// home.
    ///
    /// # Errors
    /// The failure of the log; errors of `work`.
    pub(crate) async fn at_one_moment<R: 'static>(
        self: &Rc<Self>,
        work: impl AsyncFnOnce(&Rc<Core>) -> Result<R> + 'static,
    ) -> Result<R> {
        let core = self.clone();
        self.to_the_end(async move {
            let _alone = core.snapshot_list.alone.acquire(1).await;
            let mut outcome = core.shut_gates().await;
            for each in core.cores().all() {
                outcome = outcome.and(each.with(|core: Rc<Core>| async move { core.sync_all().await }).await);
            }
            let found = match outcome {
                Ok(()) => work(&core).await,
                Err(error) => Err(error),
            };
            core.open_gates().await.and(found)
        })
        .await
    }

    fn keep_version(&self, number: SnapshotNumber) {
        let mut metadata = self.metadata.borrow_mut();
        let version = metadata.version();
        metadata.snapshots.add(Snapshot::new(number, version));
        drop(metadata);
        self.publish();
    }

    /// Deletes a snapshot. Space that only it used is free when this returns. Runs on the home.
    ///
    /// # Errors
    /// [`Error::NotFound`]; the failure of the log; [`Error::NoSpace`], after which the snapshot still
    /// exists.
    pub(crate) async fn delete_snapshot(self: &Rc<Self>, name: String) -> Result<()> {
        let core = self.clone();
        self.to_the_end(async move {
            let _alone = core.snapshot_list.alone.acquire(1).await;
            core.check_open()?;
            let number = core.snapshot_list.find(&name)?.number;
            core.snapshot_list.set_stage(number, Stage::Deleted);
            if let Err(error) = core.write_checkpoint(false).await {
                core.snapshot_list.set_stage(number, Stage::There);
                return Err(error);
            }
            core.snapshot_list.remove(number);
            core.drop_versions(number).await?;
            // This checkpoint frees the blocks and pages of the snapshot.
            core.write_checkpoint(false).await
        })
        .await
    }

    async fn drop_versions(&self, number: SnapshotNumber) -> Result<()> {
        for core in self.cores().all() {
            core.with(move |core: Rc<Core>| async move { core.drop_version(number).await }).await?;
        }
        Ok(())
    }

    /// Removes the trees of a snapshot, shard by shard.
    async fn drop_version(&self, number: SnapshotNumber) -> Result<()> {
        let shards = self.metadata.borrow().items.shards();
        for shard in (0..shards).filter(|shard| core_of(*shard, self.totals().cores()) == self.index()) {
            self.drop_shard(number, shard)?;
            runtime::yield_now().await;
        }
        self.metadata.borrow_mut().snapshots.forget(number);
        self.publish();
        Ok(())
    }

    /// Removes the tree of a shard of a snapshot. Blocks that only this tree had start dying.
    fn drop_shard(&self, number: SnapshotNumber, shard: Shard) -> Result<()> {
        let removed = {
            let mut metadata = self.metadata.borrow_mut();
            let Metadata { items, snapshots, .. } = &mut *metadata;
            snapshots.remove_shard(number, shard, items)
        };
        let lost = removed.inspect_err(|error| logkit::Owner::fail(self, error))?;
        let mut accounts = self.kit.pool.accounts();
        for (zone, count) in lost.0 {
            accounts.begin_dying(zone, count);
            self.checkpointer.drop_blocks(zone, count);
        }
        Ok(())
    }

    /// Runs `work` with the metadata of a snapshot; `None` for the present version.
    ///
    /// # Errors
    /// ESTALE for a deleted snapshot; errors of `work`.
    pub(crate) fn in_version<R>(
        &self,
        version: Option<SnapshotNumber>,
        work: impl FnOnce(&Metadata) -> Result<R>,
    ) -> Result<R> {
        let metadata = self.metadata.borrow();
        match version {
            None => work(&metadata),
            Some(number) => work(metadata.snapshots.get(number)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(number: SnapshotNumber, name: &str) -> SnapshotInfo {
        SnapshotInfo { number, name: name.to_owned(), created: 0 }
    }

    #[test]
    fn names_and_numbers_are_given_once() {
        let list = SnapshotList::default();
        list.set([info(7, "a"), info(8, "b"), info(11, "c")].into_iter(), 12);
        let refused = |name: &str| list.new_snapshot(name).err();
        assert!(matches!(refused("a"), Some(Error::AlreadyExists(_))));
        for name in ["", "a/b", "..", "a\nb"] {
            assert!(matches!(refused(name), Some(Error::Invalid(_))), "{name:?}");
        }
        assert!(list.find("d").unwrap_err().detail().contains("a, b, c"));
        let number = |name: &str| list.new_snapshot(name).unwrap().number;
        assert_eq!((number("d"), number("d"), list.next_number()), (12, 13, 14), "a number was reused");
        list.set(std::iter::empty(), MAX_NUMBER);
        assert_eq!(number("d"), MAX_NUMBER);
        assert!(matches!(refused("e"), Some(Error::NoSpace(_))));
    }
}
