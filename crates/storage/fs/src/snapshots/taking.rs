//! Taking and deleting snapshots, and work at one point in time on all shards.
//!
//! A snapshot is taken in two steps:
//! 1. All shards keep their trees of one point in time, while their [gates](crate::snapshots::gate) are
//!    shut, by cloning each tree.
//! 2. A checkpoint that includes the snapshot becomes durable. Before that, the snapshot doesn't exist.
//!
//! It is also deleted in two steps:
//! 1. A checkpoint without it becomes durable.
//! 2. Each shard removes its trees. Blocks that only the snapshot had *are dying*, and die with the next
//!    checkpoint: the removal of a file may not be written yet, and a replay of the first checkpoint would
//!    find the file.

use crate::broken::if_broken;
use crate::core::Core;
use crate::core::shards::shard_of;
use crate::metadata::Metadata;
use crate::metadata::forest::InodeGroup;
use crate::metadata::versions::{Snapshot, SnapshotInfo, SnapshotNumber};
use crate::snapshots::list::Stage;
use block::{Error, Result};
use runtime::sync::oneshot;
use std::rc::Rc;

/// Runs a task to completion, even if its caller is dropped.
async fn to_the_end<T: 'static>(core: &Core, task: impl Future<Output = Result<T>> + 'static) -> Result<T> {
    core.check_open()?;
    let (sender, mut receiver) = oneshot();
    let run = async move {
        // The caller may have been dropped.
        sender.send(task.await).ok();
    };
    core.kit.tasks.spawn(run).detach();
    let outcome = receiver.receive().await;
    outcome.unwrap_or_else(|| Err(Error::closed("the file system is closed; open it again")))
}

/// Takes a snapshot, which is durable when this returns. Runs on the home.
///
/// # Errors
/// [`Error::AlreadyExists`], [`Error::Invalid`] or ENAMETOOLONG for the name; [`Error::NoSpace`]; the
/// failure of the log.
pub(crate) async fn create(core: &Rc<Core>, name: String) -> Result<SnapshotInfo> {
    let own = core.clone();
    to_the_end(core, async move {
        let core = &own;
        let _alone = core.snapshot_list.alone.acquire(1).await;
        core.check_open()?;
        let info = core.snapshot_list.new_snapshot(&name)?;
        // All pages may have to be copied and written.
        let copied = match core.metadata.borrow().snapshots.is_empty() {
            true => 3 * core.totals().sum(|used| &used.pages),
            false => 1,
        };
        core.admission.check_space(copied)?;
        let number = info.number;
        let kept = keep_versions(core, number).await;
        if kept.is_ok() {
            core.snapshot_list.add(info.clone());
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
        drop_versions(core, number).await?;
        outcome.map(|()| info)
    })
    .await
}

/// Makes all shards keep their trees of one point in time.
async fn keep_versions(core: &Core, number: SnapshotNumber) -> Result<()> {
    let mut outcome = shut_gates(core).await;
    for each in core.shards().all() {
        if_broken!(SlowSnapshots, runtime::sleep(std::time::Duration::from_millis(1)).await);
        if outcome.is_ok() {
            outcome = each
                .with(move |core: Rc<Core>| async move {
                    keep_version(&core, number);
                    Ok(())
                })
                .await;
        }
    }
    open_gates(core).await.and(outcome)
}

/// Shuts the gates of all shards, one after another. Afterwards no operation is in progress.
///
/// # Errors
/// [`Error::NoSpace`] while an operation on several shards waits for space.
async fn shut_gates(core: &Core) -> Result<()> {
    if_broken!(OpenGates, return Ok(()));
    let mut outcome = Ok(());
    for each in core.shards().all() {
        let shut = |core: Rc<Core>| async move {
            // An operation that was answered with ENOSPC may wait for space forever.
            core.admission.gate.shut(|| core.kit.space.check()).await
        };
        outcome = outcome.and(each.with(shut).await);
    }
    outcome
}

async fn open_gates(core: &Core) -> Result<()> {
    let mut outcome = Ok(());
    for each in core.shards().all() {
        let open = |core: Rc<Core>| async move {
            core.admission.gate.open();
            Ok(())
        };
        outcome = each.with(open).await.and(outcome);
    }
    outcome
}

/// Runs `work` while no operation is in progress on any shard and all records are written. Runs on the
/// home.
///
/// # Errors
/// The failure of the log; errors of `work`.
pub(crate) async fn at_one_moment<R: 'static>(
    core: &Rc<Core>,
    work: impl AsyncFnOnce(&Rc<Core>) -> Result<R> + 'static,
) -> Result<R> {
    let own = core.clone();
    to_the_end(core, async move {
        let core = &own;
        let _alone = core.snapshot_list.alone.acquire(1).await;
        let mut outcome = shut_gates(core).await;
        for each in core.shards().all() {
            outcome = outcome.and(each.with(|core: Rc<Core>| async move { core.sync_all().await }).await);
        }
        let found = match outcome {
            Ok(()) => work(core).await,
            Err(error) => Err(error),
        };
        open_gates(core).await.and(found)
    })
    .await
}

fn keep_version(core: &Core, number: SnapshotNumber) {
    let mut metadata = core.metadata.borrow_mut();
    let version = metadata.version();
    metadata.snapshots.add(Snapshot::new(number, version));
    drop(metadata);
    core.publish();
}

/// Deletes a snapshot. Space that only it used is free when this returns. Runs on the home.
///
/// # Errors
/// [`Error::NotFound`]; the failure of the log; [`Error::NoSpace`], after which the snapshot still
/// exists.
pub(crate) async fn delete(core: &Rc<Core>, name: String) -> Result<()> {
    let own = core.clone();
    to_the_end(core, async move {
        let core = &own;
        let _alone = core.snapshot_list.alone.acquire(1).await;
        core.check_open()?;
        let number = core.snapshot_list.find(&name)?.number;
        core.snapshot_list.set_stage(number, Stage::Deleted);
        if let Err(error) = core.write_checkpoint(false).await {
            core.snapshot_list.set_stage(number, Stage::There);
            return Err(error);
        }
        core.snapshot_list.remove(number);
        drop_versions(core, number).await?;
        // This checkpoint frees the blocks and pages of the snapshot.
        core.write_checkpoint(false).await
    })
    .await
}

async fn drop_versions(core: &Core, number: SnapshotNumber) -> Result<()> {
    for each in core.shards().all() {
        each.with(move |core: Rc<Core>| async move { drop_version(&core, number).await }).await?;
    }
    Ok(())
}

/// Removes the trees of a snapshot, inode group by inode group.
async fn drop_version(core: &Core, number: SnapshotNumber) -> Result<()> {
    let groups = core.metadata.borrow().items.groups();
    for group in (0..groups).filter(|group| shard_of(*group, core.totals().shards()) == core.index()) {
        drop_group(core, number, group)?;
        runtime::yield_now().await;
    }
    core.metadata.borrow_mut().snapshots.forget(number);
    core.publish();
    Ok(())
}

/// Removes the tree of an inode group of a snapshot. Blocks that only this tree had start dying.
fn drop_group(core: &Core, number: SnapshotNumber, group: InodeGroup) -> Result<()> {
    let removed = {
        let mut metadata = core.metadata.borrow_mut();
        let Metadata { items, snapshots, .. } = &mut *metadata;
        snapshots.remove_group(number, group, items)
    };
    let lost = removed.inspect_err(|error| logkit::Owner::fail(core, error))?;
    let mut accounts = core.kit.pool.accounts();
    for (zone, count) in lost.0 {
        accounts.begin_dying(zone, count);
        core.checkpointer.drop_blocks(zone, count);
    }
    Ok(())
}
