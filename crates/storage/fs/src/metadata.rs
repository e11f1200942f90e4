//! The metadata of a shard: the items of its inode groups, and the allocated inode numbers.
//!
//! Only `Metadata::apply` changes the trees, both for new operations and for replay.

pub mod attributes;
pub mod change;
pub mod directory;
pub(crate) mod extents;
pub(crate) mod forest;
pub mod inode;
pub(crate) mod shared;
pub(crate) mod stripes;
pub mod versions;

use crate::metadata::change::{Attributes, Change, KEEP_TIMES};

use crate::metadata::extents::{Blocks, Extent, Moved, visit_missing};
use crate::metadata::forest::{Forest, InodeGroup};
use crate::metadata::inode::{BLOCK, Inode, InodeNumber, ROOT, Time, Value, kind};
use crate::metadata::versions::{Snapshots, move_in};
use crate::tree::{Key, Tree};
use block::{Error, Result, ZoneBlock};
use smallvec::SmallVec;

/// Most items of a removed inode that are removed at a time.
const REMOVED_AT_ONCE: usize = 8;

/// Inode counts of an inode group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inodes {
    /// Number of the next new inode.
    pub next: InodeNumber,
    /// Number of inodes.
    pub count: u64,
}

impl Inodes {
    /// Returns the counts of an inode group without inodes. The numbers of an inode group's inodes are
    /// congruent to its own, modulo the number of inode groups.
    pub fn none(group: InodeGroup, groups: u32) -> Self {
        let (group, groups) = (u64::from(group), u64::from(groups));
        let next = if group > ROOT { group } else { group + groups };
        Inodes { next: if next > ROOT { next } else { ROOT + groups }, count: 0 }
    }
}

/// The metadata of a shard.
#[derive(Debug, Clone)]
pub(crate) struct Metadata {
    /// All items.
    pub items: Forest,
    /// Inode counts of each inode group.
    inodes: Vec<Inodes>,
    /// Number of inodes of all shards.
    count: u64,
    /// Number of preallocated blocks.
    pub preallocated: u64,
    /// Snapshots of these inode groups.
    pub snapshots: Snapshots,
}

/// Counts preallocated blocks, and forwards other blocks, except dead ones that a snapshot keeps alive.
struct Preallocated<'a, B> {
    count: &'a mut u64,
    newest: Option<&'a Forest>,
    failed: Result<()>,
    others: &'a mut B,
}

impl<B: Blocks> Blocks for Preallocated<'_, B> {
    fn live(&mut self, zone: u32, blocks: u32) {
        match zone {
            0 => *self.count += u64::from(blocks),
            _ => self.others.live(zone, blocks),
        }
    }

    fn dead(&mut self, zone: u32, blocks: u32) {
        match zone {
            0 => *self.count = self.count.saturating_sub(blocks.into()),
            _ => self.others.dead(zone, blocks),
        }
    }

    fn lost(&mut self, inode: InodeNumber, gone: &Extent) {
        match self.newest {
            Some(newest) if !gone.is_preallocated() => {
                let missing = visit_missing(newest, inode, gone, |part| {
                    self.others.dead(part.place.zone.0, part.blocks)
                });
                if missing.is_err() {
                    self.failed = missing;
                }
            }
            _ => self.dead(gone.place.zone.0, gone.blocks),
        }
    }
}

impl Metadata {
    /// Returns the metadata of a new file system, with a root directory.
    pub fn new(items: Forest, now: Time) -> Self {
        let mut metadata = Metadata::empty(items);
        metadata.put(&Inode::key(ROOT), &Inode::root_directory(now).encode());
        metadata
    }

    /// Returns metadata without items, not even a root directory.
    pub fn empty(items: Forest) -> Self {
        let groups = items.groups();
        let inodes = (0..groups).map(|group| Inodes::none(group, groups)).collect();
        let snapshots = Snapshots::default();
        Metadata { items, inodes, count: 0, preallocated: 0, snapshots }
    }

    /// Number of the next new inode of an inode group.
    pub fn next_inode(&self, group: InodeGroup) -> InodeNumber {
        self.inodes[group as usize].next
    }

    /// Inode counts of an inode group.
    pub fn inodes(&self, group: InodeGroup) -> Inodes {
        self.inodes[group as usize]
    }

    /// Allocates the number of the next inode of an inode group. It isn't allocated again, even if no such
    /// inode is created.
    pub fn take_number(&mut self, group: InodeGroup) -> InodeNumber {
        let groups = u64::from(self.items.groups());
        let next = &mut self.inodes[group as usize].next;
        std::mem::replace(next, next.saturating_add(groups))
    }

    /// Sets the tree of an inode group, read from the medium.
    pub fn set_group(&mut self, group: InodeGroup, tree: Tree, inodes: Inodes) {
        self.items.set_tree(group, tree);
        self.set_inodes(group, inodes);
    }

    /// Sets the next number and the count of the inodes of an inode group.
    pub(crate) fn set_inodes(&mut self, group: InodeGroup, inodes: Inodes) {
        let old = std::mem::replace(&mut self.inodes[group as usize], inodes);
        // Saturates because the medium may be damaged: `check` compares the counts with the inodes.
        self.count = self.count.saturating_sub(old.count).saturating_add(inodes.count);
    }

    /// Number of inodes.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Inserts an item, and counts it if it is an inode.
    pub(crate) fn put(&mut self, key: &Key, value: &[u8]) {
        let was_there = self.items.put(key, value);
        if key.kind == kind::INODE {
            let groups = u64::from(self.items.groups());
            let inodes = &mut self.inodes[self.items.group_of(key.inode) as usize];
            inodes.next = inodes.next.max(key.inode.saturating_add(groups));
            inodes.count = inodes.count.saturating_add(u64::from(!was_there));
            self.count = self.count.saturating_add(u64::from(!was_there));
        }
    }

    /// Returns an inode.
    ///
    /// # Errors
    /// ESTALE if it doesn't exist; [`Error::Corrupt`] for a damaged item.
    pub fn inode(&self, inode: InodeNumber) -> Result<Inode> {
        match self.items.get(&Inode::key(inode)) {
            Some(value) => Inode::decode(value),
            None => Err(Error::from_errno(libc::ESTALE, format!("inode {inode} doesn't exist any more"))),
        }
    }

    /// Changes an inode if it exists. In a replay, a later change may already have removed it.
    fn change_inode(&mut self, inode: InodeNumber, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let key = Inode::key(inode);
        let update = |value: &mut [u8]| -> Result<Option<Value>> {
            let mut inode = Inode::decode(value)?;
            change(&mut inode);
            let new = inode.encode();
            // Most changes keep the length.
            if value.len() == new.len() {
                value.copy_from_slice(&new);
                return Ok(None);
            }
            Ok(Some(new))
        };
        if let Some(other) = self.items.update(&key, update).transpose()?.flatten() {
            self.items.put(&key, &other);
        }
        Ok(())
    }

    fn exists(&self, inode: InodeNumber) -> bool {
        self.items.get(&Inode::key(inode)).is_some()
    }

    /// Applies a change. Its data, if it has any, begins at the place `data`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged item.
    pub fn apply(&mut self, change: &Change, data: ZoneBlock, blocks: &mut impl Blocks) -> Result<()> {
        if let Change::Move { inode, block, blocks: count, from } = change {
            let moved = Moved { inode: *inode, block: *block, blocks: *count, from: *from, to: data };
            return self.move_blocks(&moved, blocks);
        }
        let mut preallocated = self.preallocated;
        let snapshots = std::mem::take(&mut self.snapshots);
        let newest = snapshots.newest(self.items.group_of(change.inode()));
        let mut counting = Preallocated { count: &mut preallocated, newest, failed: Ok(()), others: blocks };
        let applied = self.apply_counting(change, data, &mut counting);
        let failed = counting.failed;
        (self.preallocated, self.snapshots) = (preallocated, snapshots);
        applied.and(failed)
    }

    /// Moves the blocks that are at the old place to the new one, in all versions.
    fn move_blocks(&mut self, moved: &Moved, blocks: &mut impl Blocks) -> Result<()> {
        let mut runs = Vec::new();
        move_in(&mut self.items, moved, &mut runs)?;
        if !self.snapshots.is_empty() {
            self.snapshots.move_blocks(&self.items, moved, &mut runs)?;
        }
        for (_, count) in runs {
            blocks.live(moved.to.zone.0, count);
            blocks.dead(moved.from.zone.0, count);
        }
        Ok(())
    }

    /// Number of blocks that die if a file loses this extent.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged item.
    pub fn freed_by(&self, inode: InodeNumber, extent: &Extent) -> Result<u64> {
        let newest = self.snapshots.newest(self.items.group_of(inode));
        let mut freed = 0;
        shared::visit_sole(&self.items, inode, extent, |inode, part| match newest {
            // Blocks that a snapshot also has stay alive.
            Some(newest) if !part.is_preallocated() => {
                visit_missing(newest, inode, &part, |part| freed += u64::from(part.blocks))
            }
            _ => {
                freed += u64::from(part.blocks);
                Ok(())
            }
        })?;
        Ok(freed)
    }

    /// Returns the present version without snapshots, as a snapshot stores it.
    pub fn version(&self) -> Self {
        let (items, inodes) = (self.items.clone(), self.inodes.clone());
        let (count, preallocated) = (self.count, self.preallocated);
        Metadata { items, inodes, count, preallocated, snapshots: Snapshots::default() }
    }

    fn apply_counting(&mut self, change: &Change, data: ZoneBlock, blocks: &mut impl Blocks) -> Result<()> {
        match change {
            Change::Put { key, value } => {
                self.put(key, value);
            }
            Change::Delete { key } => {
                self.items.remove(key);
            }
            Change::Set { inode, attributes } => {
                self.change_inode(*inode, |inode| set(inode, attributes))?;
            }
            Change::Touch { inode, time } => {
                self.change_inode(*inode, |inode| (inode.modified, inode.changed) = (*time, *time))?;
            }
            Change::Map { inode, block, blocks: count, size, modified } => {
                if !self.exists(*inode) {
                    return Ok(());
                }
                let extent = Extent { block: *block, blocks: *count, place: data, is_shared: false };
                let more = extents::map(&mut self.items, *inode, extent, blocks)?;
                self.change_inode(*inode, |inode| wrote(inode, more, *size, *modified))?;
            }
            Change::Unmap { inode, from, to } => {
                let fewer = extents::unmap(&mut self.items, *inode, *from..*to, blocks)?;
                self.change_inode(*inode, |inode| inode.blocks = inode.blocks.saturating_sub(fewer))?;
            }
            Change::Preallocate { inode, from, to } => {
                if self.exists(*inode) {
                    let more = extents::preallocate(&mut self.items, *inode, *from..*to, blocks)?;
                    self.change_inode(*inode, |inode| inode.blocks = inode.blocks.saturating_add(more))?;
                }
            }
            Change::Share { inode, block, count, from_inode, from_block, size, modified } => {
                if !self.exists(*inode) {
                    return Ok(());
                }
                let from = (*from_inode, *from_block..*from_block + count);
                let more = shared::share(&mut self.items, from, (*inode, *block), blocks)?;
                self.change_inode(*inode, |inode| wrote(inode, more, *size, *modified))?;
            }
            Change::Grow { inode, size } => {
                self.change_inode(*inode, |inode| inode.size = inode.size.max(*size))?;
            }
            Change::Remove { inode } => self.remove(*inode, blocks)?,
            // Moves apply to all versions.
            Change::Move { .. } => {}
        }
        Ok(())
    }

    fn remove(&mut self, inode: InodeNumber, blocks: &mut impl Blocks) -> Result<()> {
        let first = Key { inode, kind: 0, offset: 0 };
        loop {
            let own = self.items.range(&first).map(|(key, _)| key).take_while(|key| key.inode == inode);
            let keys: SmallVec<[Key; REMOVED_AT_ONCE]> = own.take(REMOVED_AT_ONCE).collect();
            if keys.iter().any(|key| key.kind == kind::EXTENT) {
                extents::unmap(&mut self.items, inode, 0..u64::MAX, blocks)?;
            }
            for key in keys.iter().filter(|key| key.kind != kind::EXTENT) {
                self.items.remove(key);
                if key.kind == kind::INODE {
                    let of_group = &mut self.inodes[self.items.group_of(inode) as usize];
                    of_group.count = of_group.count.saturating_sub(1);
                    self.count = self.count.saturating_sub(1);
                }
            }
            if keys.len() < REMOVED_AT_ONCE {
                return Ok(());
            }
        }
    }

    /// Inodes without names, which were open.
    pub(crate) fn orphans(&self) -> Vec<InodeNumber> {
        self.named_by(kind::ORPHAN)
    }

    /// Striped directories.
    pub fn striped_directories(&self) -> Vec<InodeNumber> {
        self.named_by(kind::STRIPES)
    }

    /// Inodes in the offsets of the items of inode 0 of this kind.
    fn named_by(&self, kind: u8) -> Vec<InodeNumber> {
        let mut inodes = Vec::new();
        for group in 0..self.items.groups() {
            let first = Key { inode: 0, kind, offset: 0 };
            let items = self.items.tree(group).range(&first);
            let own = items.take_while(|(key, _)| (key.inode, key.kind) == (0, kind));
            inodes.extend(own.map(|(key, _)| key.offset));
        }
        inodes
    }
}

/// Key of the item that marks an inode as an orphan, without names.
pub(crate) fn orphan(inode: InodeNumber) -> Key {
    Key { inode: 0, kind: kind::ORPHAN, offset: inode }
}

/// Updates an inode for data that its file got.
fn wrote(inode: &mut Inode, more: i64, size: u64, modified: Time) {
    inode.blocks = inode.blocks.saturating_add_signed(more);
    inode.size = inode.size.max(size);
    if modified != KEEP_TIMES {
        // A later time may have been set since the write was submitted.
        inode.modified = inode.modified.max(modified);
        inode.changed = inode.changed.max(modified);
    }
}

fn set(inode: &mut Inode, attributes: &Attributes) {
    let Attributes { mode, links, uid, gid, size, accessed, modified, changed, parent } = *attributes;
    inode.mode = mode.unwrap_or(inode.mode);
    inode.links = links.unwrap_or(inode.links);
    inode.uid = uid.unwrap_or(inode.uid);
    inode.gid = gid.unwrap_or(inode.gid);
    inode.size = size.unwrap_or(inode.size);
    inode.accessed = accessed.unwrap_or(inode.accessed);
    inode.modified = modified.unwrap_or(inode.modified);
    inode.changed = changed.unwrap_or(inode.changed);
    inode.parent = parent.unwrap_or(inode.parent);
}

/// First offset of a file at or after `offset` with data (`SEEK_DATA`) or, if `data` is false, in a hole
/// (`SEEK_HOLE`).
///
/// # Errors
/// ENXIO if `offset` isn't below the size of the file, or if no data follows.
pub(crate) fn seek(metadata: &Metadata, inode: InodeNumber, offset: u64, data: bool) -> Result<u64> {
    let size = metadata.inode(inode)?.size;
    let none =
        || Error::from_errno(libc::ENXIO, format!("inode {inode} ends at byte {size}, before {offset}"));
    if offset >= size {
        return Err(none());
    }
    let mut at = offset;
    for extent in extents::extents(&metadata.items, inode, offset / BLOCK..size.div_ceil(BLOCK)) {
        let extent = extent?;
        if extent.is_preallocated() {
            continue;
        }
        let (from, to) = (extent.block * BLOCK, extent.end() * BLOCK);
        if data && to > at {
            return Ok(from.max(at));
        }
        if !data && from > at {
            return Ok(at);
        }
        at = at.max(to);
    }
    match data {
        true => Err(none()),
        false => Ok(at.min(size)),
    }
}
