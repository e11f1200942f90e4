//! The metadata of a shard: a tree of items, and the numbers of inodes that were given.
//!
//! [`Metadata::apply`] is the only thing that changes the tree, when operations run and when they are replayed.

use crate::change::{Attributes, Change, KEEP_TIMES};
use crate::extents::{self, Blocks, Extent, Place};
use crate::inode::{FileType, Inode, InodeNumber, ROOT, Time, kind};
use crate::tree::{Key, Tree};
use block::{Error, Result};

/// The metadata of a shard.
#[derive(Debug, Clone)]
pub struct Metadata {
    /// All items.
    pub tree: Tree,
    /// The number that the next inode gets.
    pub next_inode: InodeNumber,
    /// Number of inodes.
    pub inodes: u64,
    /// Number of preallocated blocks.
    pub preallocated: u64,
}

/// Counts preallocated blocks, and passes the others on.
struct Preallocated<'a, B> {
    count: &'a mut u64,
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
}

impl Metadata {
    /// Metadata with a root directory, of a new file system.
    pub fn new(tree: Tree, now: Time) -> Self {
        let root = Inode {
            mode: FileType::Directory as u32 | 0o755,
            links: 2,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            device: 0,
            parent: ROOT,
        };
        let mut metadata = Metadata { tree, next_inode: ROOT + 1, inodes: 1, preallocated: 0 };
        metadata.tree.put(&Inode::key(ROOT), &root.encode());
        metadata
    }

    /// An inode.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none, [`Error::Corrupt`] for a damaged one.
    pub fn inode(&self, inode: InodeNumber) -> Result<Inode> {
        match self.tree.get(&Inode::key(inode)) {
            Some(value) => Inode::decode(value),
            None => Err(Error::from_errno(libc::ESTALE, format!("there is no inode {inode} any more"))),
        }
    }

    /// Changes an inode, if there is one: when it is replayed, a later change may have removed it already.
    fn change_inode(&mut self, inode: InodeNumber, change: impl FnOnce(&mut Inode)) -> Result<()> {
        let key = Inode::key(inode);
        let Some(value) = self.tree.get(&key) else { return Ok(()) };
        let old = Inode::decode(value)?;
        let mut new = old;
        change(&mut new);
        if new != old {
            let value = new.encode();
            // Most changes keep the length.
            let is_put = self.tree.update(&key, |place| match place.len() == value.len() {
                true => {
                    place.copy_from_slice(&value);
                    true
                }
                false => false,
            });
            if is_put != Some(true) {
                self.tree.put(&key, &value);
            }
        }
        Ok(())
    }

    fn exists(&self, inode: InodeNumber) -> bool {
        self.tree.get(&Inode::key(inode)).is_some()
    }

    /// Lets a change take effect. Its data, if it has any, begins at block `data`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged item.
    pub fn apply(&mut self, change: &Change, data: Place, blocks: &mut impl Blocks) -> Result<()> {
        let mut preallocated = self.preallocated;
        let mut counting = Preallocated { count: &mut preallocated, others: blocks };
        let applied = self.apply_counting(change, data, &mut counting);
        self.preallocated = preallocated;
        applied
    }

    fn apply_counting(&mut self, change: &Change, data: Place, blocks: &mut impl Blocks) -> Result<()> {
        match change {
            Change::Put { key, value } => {
                let was_there = self.tree.put(key, value);
                if key.kind == kind::INODE {
                    self.next_inode = self.next_inode.max(key.inode.saturating_add(1));
                    self.inodes += u64::from(!was_there);
                }
            }
            Change::Delete { key } => {
                self.tree.remove(key);
            }
            Change::Set { inode, attributes } => {
                self.change_inode(*inode, |inode| set(inode, attributes))?;
            }
            Change::Map { inode, block, blocks: count, size, modified } => {
                if !self.exists(*inode) {
                    return Ok(());
                }
                let Place { zone, position } = data;
                let extent = Extent { block: *block, blocks: *count, zone, position };
                let more = extents::map(&mut self.tree, *inode, extent, blocks)?;
                self.change_inode(*inode, |inode| {
                    inode.blocks = inode.blocks.saturating_add_signed(more);
                    inode.size = inode.size.max(*size);
                    if *modified != KEEP_TIMES {
                        inode.modified = *modified;
                        // Attributes may have been set since the write was submitted.
                        inode.changed = inode.changed.max(*modified);
                    }
                })?;
            }
            Change::Unmap { inode, from, to } => {
                let fewer = extents::unmap(&mut self.tree, *inode, *from..*to, blocks)?;
                self.change_inode(*inode, |inode| inode.blocks = inode.blocks.saturating_sub(fewer))?;
            }
            Change::Preallocate { inode, from, to } => {
                if self.exists(*inode) {
                    let more = extents::preallocate(&mut self.tree, *inode, *from..*to, blocks)?;
                    self.change_inode(*inode, |inode| inode.blocks += more)?;
                }
            }
            Change::Remove { inode } => self.remove(*inode, blocks)?,
            Change::Move { inode, block, blocks: count, from } => {
                let mut runs = Vec::new();
                let range = (*block, *count);
                extents::visit_at(&self.tree, *inode, range, *from, |first, count| {
                    runs.push((first, count))
                })?;
                for (first, count) in runs {
                    let position = data.position + (first - block) as u32;
                    let extent = Extent { block: first, blocks: count, zone: data.zone, position };
                    extents::map(&mut self.tree, *inode, extent, blocks)?;
                }
            }
        }
        Ok(())
    }

    fn remove(&mut self, inode: InodeNumber, blocks: &mut impl Blocks) -> Result<()> {
        extents::unmap(&mut self.tree, inode, 0..u64::MAX, blocks)?;
        self.inodes -= u64::from(self.exists(inode));
        let first = Key { inode, kind: 0, offset: 0 };
        loop {
            let own = self.tree.range(&first).take_while(|(key, _)| key.inode == inode).take(64);
            let keys: Vec<Key> = own.map(|(key, _)| key).collect();
            keys.iter().for_each(|key| {
                self.tree.remove(key);
            });
            if keys.is_empty() {
                return Ok(());
            }
        }
    }

    /// Inodes that have no names and were open.
    pub fn orphans(&self) -> Vec<InodeNumber> {
        let first = Key { inode: 0, kind: kind::ORPHAN, offset: 0 };
        let orphans =
            self.tree.range(&first).take_while(|(key, _)| (key.inode, key.kind) == (0, kind::ORPHAN));
        orphans.map(|(key, _)| key.offset).collect()
    }
}

/// Key of the item that says that an inode has no names.
pub fn orphan(inode: InodeNumber) -> Key {
    Key { inode: 0, kind: kind::ORPHAN, offset: inode }
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
