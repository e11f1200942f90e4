//! The versions of a volume: the volume itself, its snapshots, and clones of them.
//!
//! Versions form a tree: a snapshot stands between a version and the parent that it had; a clone hangs below a
//! snapshot. Only leaves are written. A physical block is live as long as any version maps it. Because a version's
//! parent is older than it and doesn't change, a block that a version gives up is dead exactly if the parent doesn't
//! have it at the same place of the volume: had an older ancestor or another branch it, so would the parent.
//!
//! What two versions share below a snapshot, only that snapshot is known to have. So one that is deleted while several
//! versions hang below it stays, without a name and without the blocks that none of them has, until one is left.

use crate::directory::PageTable;
use crate::format::VersionId;
use crate::map::{Map, Mapping, PAGE_BLOCKS, Physical};
use block::{Error, Result};
use std::sync::Arc;

/// A set of pages of a map.
#[derive(Debug, Clone, Default)]
pub struct PageSet {
    words: Vec<u64>,
    count: u64,
}

impl PageSet {
    /// Adds the pages of these blocks.
    #[inline]
    pub fn insert_blocks(&mut self, block: u64, count: u64) {
        for page in block / PAGE_BLOCKS..(block + count).div_ceil(PAGE_BLOCKS) {
            self.insert(page);
        }
    }

    /// Adds one page.
    #[inline]
    pub fn insert(&mut self, page: u64) {
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        if self.words[word] & bit == 0 {
            self.words[word] |= bit;
            self.count += 1;
        }
    }

    /// The pages of both.
    pub fn with(&self, other: &PageSet) -> PageSet {
        let mut all = self.clone();
        other.iter().for_each(|page| all.insert(page));
        all
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let words = self.words.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(number, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| number as u64 * 64 + bit)
        })
    }
}

/// One version.
#[derive(Debug)]
pub struct Version {
    /// Its number.
    pub id: VersionId,
    /// What it began as a copy of, if that still exists.
    pub parent: Option<VersionId>,
    /// Whether it takes writes.
    pub writable: bool,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// How many blocks it has.
    pub blocks: u64,
    /// Its name; empty for the volume itself, and for a snapshot that was deleted and has to stay.
    pub name: String,
    /// Where its blocks are.
    pub map: Arc<dyn Map>,
    /// Pages of the map that aren't on the medium as they are now.
    pub dirty: PageSet,
    /// Those of them that a checkpoint has taken and may not have written yet.
    pub writing: PageSet,
    /// How many pages differed from those on the medium when it was made, until a checkpoint has written them.
    pub unsaved: u64,
    /// Where the pages are on the medium.
    pub table: PageTable,
}

impl Version {
    /// Whether it was deleted and has to stay.
    pub fn is_deleted(&self) -> bool {
        is_deleted(self.id, &self.name)
    }
}

/// Whether the version with this number and name was deleted and has to stay.
pub fn is_deleted(id: VersionId, name: &str) -> bool {
    name.is_empty() && id != VersionId::HEAD
}

/// All versions, parents before their children.
#[derive(Debug, Default)]
pub struct Versions {
    /// In order.
    pub list: Vec<Version>,
    /// The number of the next one.
    pub next: u32,
    /// How many versions have been made and deleted, since the log was opened.
    pub changes: u64,
    /// Pages of versions that were deleted, which the durable checkpoint still names.
    pub orphaned: Vec<(u64, Physical)>,
}

impl Versions {
    /// Where a version stands in the list.
    #[inline]
    pub fn position(&self, id: VersionId) -> Option<usize> {
        self.list.iter().position(|version| version.id == id)
    }

    /// A version by its number.
    pub fn get(&self, id: VersionId) -> Option<&Version> {
        self.list.iter().find(|version| version.id == id)
    }

    /// The version with this name.
    pub fn by_name(&self, name: &str) -> Option<&Version> {
        self.list.iter().find(|version| !name.is_empty() && version.name == name)
    }

    /// The versions whose parent this is.
    pub fn children(&self, id: VersionId) -> impl Iterator<Item = &Version> {
        self.list.iter().filter(move |version| version.parent == Some(id))
    }

    /// Changes the mapping of a version. `died` is told of each physical block that no version has any more.
    pub fn insert(
        &mut self,
        position: usize,
        block: u64,
        count: u64,
        to: Physical,
        died: &mut dyn FnMut(Physical, u64),
    ) {
        let parent = self.list[position].parent.and_then(|id| self.get(id)).map(|parent| parent.map.clone());
        let Version { map, dirty, .. } = &mut self.list[position];
        let range = block..block + count;
        // Where nothing was mapped, unmapping changes no page.
        let unmaps = !to.is_mapped();
        if !unmaps {
            dirty.insert_blocks(block, count);
        }
        map.insert(range, to, &mut |gone| {
            if unmaps {
                dirty.insert_blocks(gone.block, gone.count);
            }
            match &parent {
                None => died(gone.physical, gone.count),
                Some(parent) => unshared(&**parent, gone, &mut |piece| died(piece.physical, piece.count)),
            }
        });
    }

    /// Moves blocks in all versions that have them there. Returns how many blocks have moved, each counted once.
    pub fn relocate(&mut self, block: u64, count: u64, from: Physical, to: Physical) -> u64 {
        if let [only] = self.list.as_mut_slice() {
            let mut moved = 0;
            only.map.compare_and_move(block..block + count, from, to, &mut |piece| moved += piece.count);
            if moved > 0 {
                only.dirty.insert_blocks(block, count);
            }
            return moved;
        }
        let mut has_moved = vec![false; count as usize];
        for version in &mut self.list {
            let end = (block + count).min(version.blocks);
            if block >= end {
                continue;
            }
            version.map.compare_and_move(block..end, from, to, &mut |_| {});
            // Maps that share parts see each other's moves; so what counts is where the blocks are now.
            let mut any = false;
            version.map.lookup_range(block..end, &mut |piece| {
                for number in 0..piece.count {
                    let offset = piece.block + number - block;
                    if piece.physical.is_mapped() && piece.physical.offset(number) == to.offset(offset) {
                        has_moved[offset as usize] = true;
                        any = true;
                    }
                }
            });
            if any {
                version.dirty.insert_blocks(block, end - block);
            }
        }
        has_moved.iter().filter(|moved| **moved).count() as u64
    }

    /// Visits the blocks of a place in the log, said to be `block..` of a volume, that any version maps there: runs of
    /// offsets from the first.
    pub fn live(&self, block: u64, count: u64, at: Physical, visit: &mut dyn FnMut(u64, u64)) {
        if let [only] = self.list.as_slice() {
            let end = (block + count).min(only.blocks);
            if block < end {
                only.map.lookup_range(block..end, &mut |piece| {
                    let offset = piece.block - block;
                    // A piece is either all at this place or not at all.
                    if piece.physical.is_mapped() && piece.physical == at.offset(offset) {
                        visit(offset, piece.count);
                    }
                });
            }
            return;
        }
        let mut is_live = vec![false; count as usize];
        for version in &self.list {
            let end = (block + count).min(version.blocks);
            if block < end {
                version.map.lookup_range(block..end, &mut |piece| {
                    let offset = piece.block - block;
                    if piece.physical.is_mapped() && piece.physical == at.offset(offset) {
                        is_live[offset as usize..(offset + piece.count) as usize].fill(true);
                    }
                });
            }
        }
        let mut offset = 0;
        for run in is_live.chunk_by(|one, other| one == other) {
            if run[0] {
                visit(offset, run.len() as u64);
            }
            offset += run.len() as u64;
        }
    }

    /// Adds a version with what `parent` has now. A snapshot of a version that can be written takes its place in the
    /// tree, and the version goes on below it; a clone hangs below its parent, which is a snapshot.
    ///
    /// # Errors
    /// [`Error::NotFound`] without the parent, [`Error::AlreadyExists`] for a number or name that is taken.
    pub fn create(
        &mut self,
        id: VersionId,
        parent: VersionId,
        writable: bool,
        created: u64,
        name: &str,
    ) -> Result<()> {
        if self.position(id).is_some() || self.by_name(name).is_some() {
            return Err(Error::already_exists(format!("a version with the name \"{name}\"")));
        }
        let position = self
            .position(parent)
            .ok_or_else(|| Error::not_found(format!("version {} of the volume", parent.0)))?;
        let origin = &mut self.list[position];
        let is_below = writable;
        // What a checkpoint is about to write, it writes for the origin alone.
        let dirty = origin.dirty.with(&origin.writing);
        let version = Version {
            id,
            parent: if is_below { Some(parent) } else { origin.parent },
            writable,
            created,
            blocks: origin.blocks,
            name: name.to_owned(),
            map: origin.map.snapshot(),
            unsaved: dirty.len(),
            dirty,
            writing: PageSet::default(),
            table: origin.table.clone(),
        };
        if is_below {
            self.list.push(version);
        } else {
            origin.parent = Some(id);
            self.list.insert(position, version);
        }
        self.next = self.next.max(id.0 + 1);
        self.changes += 1;
        Ok(())
    }

    /// Removes a version; and its parent, if that had been deleted and needn't stay any longer. `died` is told of each block
    /// that no version has any more.
    ///
    /// # Errors
    /// [`Error::NotFound`] without it.
    pub fn delete(&mut self, id: VersionId, died: &mut dyn FnMut(Physical, u64)) -> Result<()> {
        let position = self
            .position(id)
            .filter(|_| id != VersionId::HEAD)
            .ok_or_else(|| Error::not_found(format!("version {} of the volume", id.0)))?;
        self.changes += 1;
        let mut version = self.list.remove(position);
        if self.children(id).count() > 1 {
            version.name.clear();
            let Version { parent, map, dirty, .. } = &mut version;
            self.own_blocks(&**map, *parent, id, &mut |block, physical| {
                map.insert(block..block + 1, Physical::NONE, &mut |_| {});
                dirty.insert_blocks(block, 1);
                died(physical, 1);
            });
            self.list.insert(position, version);
            return Ok(());
        }
        self.own_blocks(&*version.map, version.parent, id, &mut |_, physical| died(physical, 1));
        self.list.iter_mut().filter(|other| other.parent == Some(id)).for_each(|child| {
            child.parent = version.parent;
        });
        self.orphaned.extend(version.table.iter().map(|(page, place)| (page, place.physical)));
        let parent = version.parent.and_then(|id| self.get(id));
        match parent.filter(|parent| parent.is_deleted() && self.children(parent.id).count() <= 1) {
            Some(parent) => self.delete(parent.id, died),
            None => Ok(()),
        }
    }

    /// Visits the blocks of a version, with their places, that neither its parent nor a child has at the same place.
    fn own_blocks(
        &self,
        map: &dyn Map,
        parent: Option<VersionId>,
        id: VersionId,
        visit: &mut dyn FnMut(u64, Physical),
    ) {
        let relatives = self.relatives(parent, id);
        let mut own = vec![0; PAGE_BLOCKS as usize];
        for page in 0..map.blocks().div_ceil(PAGE_BLOCKS) {
            own_page(map, &relatives, page, &mut own);
            for (entry, block) in own.iter().zip(page * PAGE_BLOCKS..).filter(|(entry, _)| **entry != 0) {
                visit(block, Physical(*entry));
            }
        }
    }

    /// The maps of a version's parent and children.
    pub fn relatives(&self, parent: Option<VersionId>, id: VersionId) -> Vec<Arc<dyn Map>> {
        let parent = parent.and_then(|id| self.get(id));
        let children = self.children(id);
        parent.into_iter().chain(children).map(|relative| relative.map.clone()).collect()
    }

    /// Gives a version more blocks.
    ///
    /// # Errors
    /// [`Error::NotFound`] without it, [`Error::Invalid`] for fewer blocks than it has.
    pub fn grow(&mut self, id: VersionId, blocks: u64) -> Result<()> {
        let position =
            self.position(id).ok_or_else(|| Error::not_found(format!("version {} of the volume", id.0)))?;
        let version = &mut self.list[position];
        if blocks < version.blocks {
            return Err(Error::invalid(format!(
                "{blocks} blocks: the version has {}, and none is taken away",
                version.blocks
            )));
        }
        version.map.grow(blocks);
        version.blocks = blocks;
        Ok(())
    }

    /// How many blocks of a range a write would add to what is live: those that aren't mapped, and those that
    /// the parent keeps.
    pub fn growth(&self, position: usize, block: u64, count: u64) -> u64 {
        let version = &self.list[position];
        let mut growth = 0;
        let parent = version.parent.and_then(|id| self.get(id));
        version.map.lookup_range(
            block..block + count,
            &mut |piece| match (piece.physical.is_mapped(), parent) {
                (false, _) => growth += piece.count,
                (true, None) => {}
                (true, Some(parent)) => {
                    let mut own = 0;
                    unshared(&*parent.map, piece, &mut |piece| own += piece.count);
                    growth += piece.count - own;
                }
            },
        );
        growth
    }
}

/// Copies a page of a map, with 0 where one of the others has the same block at the same place.
pub fn own_page(map: &dyn Map, others: &[Arc<dyn Map>], page: u64, own: &mut [u32]) {
    map.save_page(page, own);
    let mut other = [0; PAGE_BLOCKS as usize];
    for relative in others {
        if own.iter().all(|entry| *entry == 0) {
            return;
        }
        if page * PAGE_BLOCKS < relative.blocks() {
            relative.save_page(page, &mut other);
            let same = own.iter_mut().zip(&other).filter(|(own, other)| own == other);
            same.for_each(|(own, _)| *own = 0);
        }
    }
}

/// Visits the parts of a mapping that `other` doesn't have at the same blocks.
pub fn unshared(other: &dyn Map, mapping: Mapping, visit: &mut dyn FnMut(Mapping)) {
    let end = (mapping.block + mapping.count).min(other.blocks());
    if mapping.block < end {
        other.lookup_range(mapping.block..end, &mut |piece| {
            // Both go on block by block, so a piece that begins elsewhere shares nothing.
            let physical = mapping.physical.offset(piece.block - mapping.block);
            if piece.physical != physical {
                visit(Mapping { physical, ..piece });
            }
        });
    }
    let behind = mapping.block + mapping.count;
    let start = end.max(mapping.block);
    if start < behind {
        let physical = mapping.physical.offset(start - mapping.block);
        visit(Mapping { block: start, count: behind - start, physical });
    }
}
