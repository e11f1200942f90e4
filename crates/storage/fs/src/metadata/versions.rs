//! Snapshots of a shard: the trees of its inode groups as of one point in time, and the blocks that they
//! keep alive.
//!
//! The versions of an inode group are its snapshots, oldest first, and its present tree, the only one that
//! changes. A place in a zone is written once before the zone is reset, so the versions that have a block
//! of a file at a place are consecutive. Hence:
//! - A block that the present tree loses stays alive if the newest snapshot has it at the same place.
//! - A snapshot is the only owner of the blocks that neither the next older nor the next newer version has
//!   at the same place.
//! - A block that the cleaner moves is moved in all versions at once, and is counted once.
//!
//! A block is identified by the file and the block for which it was written. A version has a shared block
//! while one of its owners is left. An owner is added only if the present tree has the block, so the versions
//! with a shared block are also consecutive.

use crate::broken::if_broken;
use crate::metadata::extents::{self, Blocks, Extent, Lost, Moved, visit_at, visit_missing};
use crate::metadata::forest::{Forest, InodeGroup};
use crate::metadata::inode::{InodeNumber, Time, kind};
use crate::metadata::shared::{self, Run};
use crate::metadata::{Metadata, directory};
use crate::tree::{Key, Tree, visit_differences};
use block::{Error, Result, ZoneBlock};

/// Number of a snapshot, at least 1. Numbers increase, and aren't reused during the lifetime of the file
/// system.
pub type SnapshotNumber = u32;

/// Most snapshots of a file system.
pub const MAX_SNAPSHOTS: usize = 256;
/// Largest number of a snapshot.
pub const MAX_NUMBER: SnapshotNumber = u32::MAX - 1;

/// A snapshot of a shard.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Number of the snapshot.
    pub number: SnapshotNumber,
    /// Metadata as of the snapshot, without snapshots.
    pub(crate) metadata: Metadata,
    /// Inode groups whose tree has been removed, while the snapshot is being deleted.
    removed: Vec<bool>,
}

impl Snapshot {
    /// Returns a snapshot with this metadata.
    pub(crate) fn new(number: SnapshotNumber, metadata: Metadata) -> Self {
        let removed = vec![false; metadata.items.groups() as usize];
        Snapshot { number, metadata, removed }
    }

    fn has(&self, group: InodeGroup) -> bool {
        !self.removed[group as usize]
    }
}

/// Snapshots of a shard, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Snapshots {
    list: Vec<Snapshot>,
}

impl Snapshots {
    /// Whether there are no snapshots.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Snapshots, oldest first.
    pub fn all(&self) -> &[Snapshot] {
        &self.list
    }

    /// Adds a snapshot as the newest one.
    pub fn add(&mut self, snapshot: Snapshot) {
        self.list.push(snapshot);
    }

    /// Visits the mutable metadata of all snapshots.
    pub(crate) fn visit_all(&mut self, mut visit: impl FnMut(&mut Metadata)) {
        self.list.iter_mut().for_each(|snapshot| visit(&mut snapshot.metadata));
    }

    /// Metadata of all snapshots, the newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &Metadata> {
        self.list.iter().rev().map(|snapshot| &snapshot.metadata)
    }

    /// The metadata of a snapshot.
    ///
    /// # Errors
    /// ESTALE for a deleted snapshot.
    pub(crate) fn get(&self, number: SnapshotNumber) -> Result<&Metadata> {
        let found = self.list.iter().find(|it| it.number == number && !it.removed.contains(&true));
        found.map(|it| &it.metadata).ok_or_else(|| {
            Error::from_errno(libc::ESTALE, format!("snapshot {number} of the file system was deleted"))
        })
    }

    /// Newest version of an inode group before the present one.
    pub fn newest(&self, group: InodeGroup) -> Option<&Forest> {
        if_broken!(ForgetsSnapshots, return None);
        self.list.iter().rev().find(|it| it.has(group)).map(|it| &it.metadata.items)
    }

    /// Removes the tree of an inode group from a snapshot. Returns the blocks that only this snapshot kept
    /// alive.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged item.
    pub fn remove_group(
        &mut self,
        number: SnapshotNumber,
        group: InodeGroup,
        present: &Forest,
    ) -> Result<Lost> {
        let mut lost = Lost::default();
        let Some(at) = self.list.iter().position(|it| it.number == number) else { return Ok(lost) };
        let older = self.list[..at].iter().rev().find(|it| it.has(group)).map(|it| &it.metadata.items);
        let newer =
            self.list[at + 1..].iter().find(|it| it.has(group)).map_or(present, |it| &it.metadata.items);
        let own = self.list[at].metadata.items.tree(group);
        visit_own_blocks(own, newer, group, |inode, extent| match older {
            None => {
                lost.dead(extent.place.zone.0, extent.blocks);
                Ok(())
            }
            Some(older) => {
                visit_missing(older, inode, &extent, |part| lost.dead(part.place.zone.0, part.blocks))
            }
        })?;
        let snapshot = &mut self.list[at];
        snapshot.removed[group as usize] = true;
        let empty = snapshot.metadata.items.tree(group).beside();
        snapshot.metadata.items.set_tree(group, empty);
        Ok(lost)
    }

    /// Removes a snapshot from the list after all its inode groups have been removed.
    pub fn forget(&mut self, number: SnapshotNumber) {
        self.list.retain(|it| it.number != number);
    }

    /// Versions of all inode groups, newest first, each with the next newer version.
    pub fn with_newer<'a>(&'a self, present: &'a Forest) -> impl Iterator<Item = (&'a Forest, &'a Forest)> {
        let versions = || self.list.iter().rev().map(|it| &it.metadata.items);
        versions().zip(std::iter::once(present).chain(versions()))
    }

    /// Returns a snapshot that isn't being deleted, with the next newer version.
    ///
    /// # Errors
    /// As `get`.
    pub fn beside_newer<'a>(
        &'a self,
        number: SnapshotNumber,
        present: &'a Forest,
    ) -> Result<(&'a Forest, &'a Forest)> {
        let items = &self.get(number)?.items;
        let newer = self.list.iter().skip_while(|it| it.number != number).nth(1);
        Ok((items, newer.map_or(present, |it| &it.metadata.items)))
    }

    /// Moves blocks in the snapshots. `runs` has the runs that the present version had at the old place, and
    /// gets those of the snapshots. Pages that have become equal are shared.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged item.
    pub fn move_blocks(&mut self, present: &Forest, moved: &Moved, runs: &mut Vec<(u64, u32)>) -> Result<()> {
        let mut newer = present;
        for snapshot in self.list.iter_mut().rev() {
            let items = &mut snapshot.metadata.items;
            for key in move_in(items, moved, runs)? {
                items.share_way(newer, &key);
            }
            newer = items;
        }
        merge(runs);
        Ok(())
    }

    /// Visits the blocks that any version has at an expected place, of a file and of runs that were written
    /// for it, as `extents::visit_at` does.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged item.
    pub fn visit_at_any(
        &self,
        present: &Forest,
        inode: InodeNumber,
        range: (u64, u32),
        from: ZoneBlock,
        mut visit: impl FnMut(u64, u32),
    ) -> Result<()> {
        let mut runs = Vec::new();
        for items in std::iter::once(present).chain(self.list.iter().map(|it| &it.metadata.items)) {
            visit_at(items, inode, range, from, |first, count| runs.push((first, count)))?;
            if_broken!(IgnoresShared, continue);
            shared::visit_at(items, inode, range, from, |first, count| runs.push((first, count)))?;
        }
        merge(&mut runs);
        runs.into_iter().for_each(|(first, count)| visit(first, count));
        Ok(())
    }
}

/// Moves the blocks of one version that are at the old place, and adds them to `runs`. Returns the keys of
/// items that may have changed.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item.
pub fn move_in(items: &mut Forest, moved: &Moved, runs: &mut Vec<(u64, u32)>) -> Result<Vec<Key>> {
    let mut touched = Vec::new();
    shared::move_runs(items, moved, runs, &mut touched)?;
    // Blocks that only their written owner has.
    let before = runs.len();
    visit_at(items, moved.inode, (moved.block, moved.blocks), moved.from, |first, count| {
        runs.push((first, count));
    })?;
    for (first, count) in &runs[before..] {
        let place = ZoneBlock { block: moved.to.block + (first - moved.block) as u32, ..moved.to };
        let extent = Extent { block: *first, blocks: *count, place, is_shared: false };
        extents::replace(items, moved.inode, extent)?;
        // The extent that has the run may begin before it, and the one after it may have changed.
        touched.extend([extent.block, extent.end()].map(|block| Extent::key(moved.inode, block)));
    }
    Ok(touched)
}

/// Sorts runs of blocks, and merges those that overlap.
fn merge(runs: &mut Vec<(u64, u32)>) {
    runs.sort_unstable();
    let mut merged: Vec<(u64, u32)> = Vec::with_capacity(runs.len());
    for (first, count) in runs.drain(..) {
        let end = first + u64::from(count);
        match merged.last_mut() {
            Some((start, length)) if *start + u64::from(*length) >= first => {
                *length = (*length).max((end - *start) as u32);
            }
            _ => merged.push((first, count)),
        }
    }
    *runs = merged;
}

/// Visits the blocks with data of an inode group that a newer version doesn't have at the same place, each
/// block once, with the file for which it was written.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item; errors of `visit`.
pub fn visit_own_blocks(
    tree: &Tree,
    newer: &Forest,
    group: InodeGroup,
    mut visit: impl FnMut(InodeNumber, Extent) -> Result<()>,
) -> Result<()> {
    let mut outcome = Ok(());
    let mut look = |key: &Key, value: &[u8]| {
        let Some((inode, extent)) = own_blocks(key, value)? else { return Ok(()) };
        let mut visited = Ok(());
        visit_missing(newer, inode, &extent, |part| {
            if visited.is_ok() {
                visited = visit(inode, part);
            }
        })?;
        visited
    };
    visit_differences(tree, newer.tree(group), |key, value| {
        if outcome.is_ok() {
            outcome = look(key, value);
        }
    });
    outcome
}

/// Returns the blocks with data that are counted for an item: those of an extent that isn't shared, or of a
/// run. The inode is the file for which they were written.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item.
pub fn own_blocks(key: &Key, value: &[u8]) -> Result<Option<(InodeNumber, Extent)>> {
    match key.kind {
        kind::EXTENT if key.inode != 0 => {
            let extent = Extent::decode(*key, value)?;
            Ok((!extent.is_preallocated() && !extent.is_shared).then_some((key.inode, extent)))
        }
        kind::SHARED => {
            let run = Run::decode(*key, value)?;
            Ok(Some(run.extent_of(run.written)))
        }
        _ => Ok(None),
    }
}

/// Name, number and time of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Number of the snapshot, by which shards identify it.
    pub number: SnapshotNumber,
    /// Name of the snapshot.
    pub name: String,
    /// Time at which it was taken.
    pub created: Time,
}

/// Refuses an invalid name of a snapshot.
///
/// # Errors
/// ENAMETOOLONG, [`Error::Invalid`].
pub fn check_name(name: &str) -> Result<()> {
    directory::check_name(name.as_bytes())?;
    match name.contains(char::is_control) {
        true => Err(Error::invalid(format!(
            "snapshot {name:?}: expected a name of 1 to {} bytes without / and control characters",
            directory::MAX_NAME
        ))),
        false => Ok(()),
    }
}
