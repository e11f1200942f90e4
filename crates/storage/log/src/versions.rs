//! The versions of a volume: the volume itself, its snapshots, and clones of them.
//!
//! Versions form a tree: a snapshot is inserted between a version and that version's previous parent; a clone
//! is a child of a snapshot. Only leaves are written. A physical block is live as long as any version maps
//! it. A version's parent is older than the version and doesn't change. So a block that a version releases is
//! dead exactly if the parent doesn't map it at the same logical block: if an older ancestor or another
//! branch mapped it, so would the parent.
//!
//! The mappings that several versions share below a snapshot may be recorded in that snapshot alone. A
//! snapshot that is deleted while it has several children therefore stays, without a name, until one child is
//! left.
//!
//! A deleted version disappears at once from lookups and from checkpoints. The blocks that only this version
//! mapped are released in pieces ([`Versions::release`]), so that deleting a large volume doesn't stall other
//! requests. Until a piece is released, its blocks are live, and are moved, like those of any version:
//! [`Dying`] holds them. None of that is persistent: opening the log counts only the blocks of the remaining
//! versions, so a power cut during the release loses no data.

mod apply;
mod divide;

pub use apply::{Effect, apply};
pub use divide::VersionSeeds;

use crate::directory::{PageTable, VersionEntry};
use crate::format::VersionId;
use crate::map::{Map, Mapping, PAGE_BLOCKS, Physical};
use block::{Error, Result};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// A set of pages of a map.
#[derive(Debug, Clone, Default)]
pub struct PageSet {
    words: Vec<u64>,
    count: u64,
}

impl PageSet {
    /// Adds the pages that contain these blocks.
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

    /// Returns the union of both sets.
    pub fn with(&self, other: &PageSet) -> PageSet {
        let mut all = self.clone();
        other.iter().for_each(|page| all.insert(page));
        all
    }

    /// Returns the number of pages.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the pages in ascending order.
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
    /// Number of the version.
    pub id: VersionId,
    /// Version that this one was copied from, if that still exists.
    pub parent: Option<VersionId>,
    /// Whether the version takes writes.
    pub writable: bool,
    /// Creation time, in seconds since 1970.
    pub created: u64,
    /// Size in blocks.
    pub blocks: u64,
    /// Name; empty for the volume itself, and for a deleted snapshot that has to stay.
    pub name: String,
    /// Whether the version's deletion has begun, so that it can't be opened.
    pub is_leaving: bool,
    /// Map of the version's blocks.
    pub map: Arc<dyn Map>,
    /// Pages of the map that differ from those on the medium.
    pub dirty: PageSet,
    /// Pages that a checkpoint has taken and may not have written yet.
    pub writing: PageSet,
    /// Number of pages that differed from those on the medium at creation; 0 once a checkpoint has written
    /// them.
    pub unsaved: u64,
    /// Locations of the map's pages on the medium.
    pub table: PageTable,
}

impl Version {
    /// Returns a version with this map, which equals the map on the medium.
    pub fn new(entry: VersionEntry, map: Arc<dyn Map>) -> Self {
        let VersionEntry { id, parent, writable, created, blocks, name, table } = entry;
        let (dirty, writing) = (PageSet::default(), PageSet::default());
        Version {
            id,
            parent,
            writable,
            created,
            blocks,
            name,
            is_leaving: false,
            map,
            dirty,
            writing,
            unsaved: 0,
            table,
        }
    }

    /// Returns the version's entry in a directory or a home.
    pub fn entry(&self) -> VersionEntry {
        VersionEntry {
            id: self.id,
            parent: self.parent,
            writable: self.writable,
            created: self.created,
            blocks: self.blocks,
            name: self.name.clone(),
            table: self.table.clone(),
        }
    }

    /// Returns whether the version was deleted and has to stay.
    pub fn is_deleted(&self) -> bool {
        is_deleted(self.id, &self.name)
    }
}

/// Returns whether the version with this number and name was deleted and has to stay.
pub fn is_deleted(id: VersionId, name: &str) -> bool {
    name.is_empty() && id != VersionId::HEAD
}

/// A deleted version whose own blocks haven't all been released.
#[derive(Debug)]
pub struct Dying {
    /// Number of the version.
    pub id: VersionId,
    /// Parent of the version or, once that was removed, the nearest ancestor in the list.
    parent: Option<VersionId>,
    /// Size in blocks.
    pub blocks: u64,
    /// Map of the version's blocks; valid at and after block `released`.
    pub map: Arc<dyn Map>,
    /// First block that isn't released.
    pub released: u64,
}

/// A map that keeps blocks live, starting at block `from`.
#[derive(Debug, Clone)]
struct Keeper {
    map: Arc<dyn Map>,
    from: u64,
}

impl Keeper {
    fn of(version: &Version) -> Self {
        Keeper { map: version.map.clone(), from: 0 }
    }

    fn of_dying(dying: &Dying) -> Self {
        Keeper { map: dying.map.clone(), from: dying.released }
    }
}

/// All versions; parents precede their children.
#[derive(Debug, Default)]
pub struct Versions {
    /// Versions in that order.
    pub list: Vec<Version>,
    /// Number of the next version.
    pub next: u32,
    /// Number of versions that have been created and deleted since the log was opened.
    pub changes: u64,
    /// Pages of deleted versions that the durable checkpoint still references.
    pub orphaned: Vec<(u64, Physical)>,
    /// Deleted versions, in order of release.
    pub dying: Vec<Dying>,
}

impl Versions {
    /// Returns the index of a version in the list.
    #[inline]
    pub fn position(&self, id: VersionId) -> Option<usize> {
        self.list.iter().position(|version| version.id == id)
    }

    /// Returns a version by number.
    pub fn get(&self, id: VersionId) -> Option<&Version> {
        self.list.iter().find(|version| version.id == id)
    }

    /// Returns the version with this name.
    pub fn by_name(&self, name: &str) -> Option<&Version> {
        self.list.iter().find(|version| !name.is_empty() && version.name == name)
    }

    /// Returns the versions whose parent this is.
    pub fn children(&self, id: VersionId) -> impl Iterator<Item = &Version> {
        self.list.iter().filter(move |version| version.parent == Some(id))
    }

    /// Returns the other maps that may map a block at the same logical block after a version has released it.
    #[inline]
    fn keepers(&self, parent: Option<VersionId>) -> SmallVec<[Keeper; 1]> {
        if parent.is_none() && self.dying.is_empty() {
            return SmallVec::new();
        }
        let parent = parent.and_then(|id| self.get(id)).map(Keeper::of);
        parent.into_iter().chain(self.dying.iter().map(Keeper::of_dying)).collect()
    }

    /// Changes the mapping of a version. Calls `died` for each physical block that is no longer mapped by any
    /// version.
    pub fn insert(
        &mut self,
        position: usize,
        block: u64,
        count: u64,
        to: Physical,
        died: &mut impl FnMut(Physical, u64),
    ) {
        let keepers = self.keepers(self.list[position].parent);
        let Version { map, dirty, .. } = &mut self.list[position];
        // A page without mapped blocks stays clean, so discarding a large empty range adds nothing to the
        // next checkpoint.
        let unmaps = !to.is_mapped();
        if !unmaps {
            dirty.insert_blocks(block, count);
        }
        map.insert(block..block + count, to, &mut |gone| {
            if unmaps {
                dirty.insert_blocks(gone.block, gone.count);
            }
            match keepers.as_slice() {
                [] => died(gone.physical, gone.count),
                keepers => unshared(keepers, gone, &mut |piece| died(piece.physical, piece.count)),
            }
        });
    }

    /// Moves blocks in all versions that map them at `from`. Returns the number of moved blocks, each counted
    /// once.
    pub fn relocate(&mut self, block: u64, count: u64, from: Physical, to: Physical) -> u64 {
        if let ([only], []) = (self.list.as_mut_slice(), self.dying.as_slice()) {
            let mut moved = 0;
            only.map.compare_and_move(block..block + count, from, to, &mut |piece| moved += piece.count);
            if moved > 0 {
                only.dirty.insert_blocks(block, count);
            }
            return moved;
        }
        let mut has_moved = vec![false; count as usize];
        let mut relocate_in = |map: &dyn Map, range: Range<u64>| {
            if range.is_empty() {
                return false;
            }
            let offset = range.start - block;
            map.compare_and_move(range.clone(), from.offset(offset), to.offset(offset), &mut |_| {});
            // Maps that share nodes see each other's moves, so the current location of the blocks decides.
            let mut any = false;
            map.lookup_range(range, &mut |piece| {
                for number in 0..piece.count {
                    let offset = piece.block + number - block;
                    if piece.physical.is_mapped() && piece.physical.offset(number) == to.offset(offset) {
                        has_moved[offset as usize] = true;
                        any = true;
                    }
                }
            });
            any
        };
        for version in &mut self.list {
            let end = (block + count).min(version.blocks);
            if relocate_in(&*version.map, block..end) {
                version.dirty.insert_blocks(block, end - block);
            }
        }
        for dying in &self.dying {
            relocate_in(&*dying.map, block.max(dying.released)..(block + count).min(dying.blocks));
        }
        has_moved.iter().filter(|moved| **moved).count() as u64
    }

    /// Visits the blocks that any version maps at this location, among `count` blocks recorded as `block..`
    /// of the volume: runs of offsets from the first block.
    pub fn live(&self, block: u64, count: u64, at: Physical, visit: &mut dyn FnMut(u64, u64)) {
        if let ([only], []) = (self.list.as_slice(), self.dying.as_slice()) {
            let end = (block + count).min(only.blocks);
            if block < end {
                only.map.lookup_range(block..end, &mut |piece| {
                    let offset = piece.block - block;
                    // A piece is mapped at this location as a whole or not at all.
                    if piece.physical.is_mapped() && piece.physical == at.offset(offset) {
                        visit(offset, piece.count);
                    }
                });
            }
            return;
        }
        let mut is_live = vec![false; count as usize];
        let versions = self.list.iter().map(|version| (&version.map, block..version.blocks));
        let dying = self.dying.iter().map(|dying| (&dying.map, block.max(dying.released)..dying.blocks));
        for (map, range) in versions.chain(dying) {
            let range = range.start..range.end.min(block + count);
            if range.is_empty() {
                continue;
            }
            map.lookup_range(range, &mut |piece| {
                let offset = piece.block - block;
                if piece.physical.is_mapped() && piece.physical == at.offset(offset) {
                    is_live[offset as usize..(offset + piece.count) as usize].fill(true);
                }
            });
        }
        let mut offset = 0;
        for run in is_live.chunk_by(|one, other| one == other) {
            if run[0] {
                visit(offset, run.len() as u64);
            }
            offset += run.len() as u64;
        }
    }

    /// Adds a version with the current contents of `parent`. A snapshot of a writable version takes that
    /// version's place in the tree and becomes its parent. A clone becomes a child of its parent, which is a
    /// snapshot.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the parent doesn't exist, [`Error::AlreadyExists`] for a number or name that is
    /// in use.
    pub fn create(
        &mut self,
        id: VersionId,
        parent: VersionId,
        writable: bool,
        created: u64,
        name: &str,
    ) -> Result<()> {
        if self.position(id).is_some() || self.by_name(name).is_some() {
            return Err(Error::already_exists(format!(
                "version {} or the name \"{name}\" exists already",
                id.0
            )));
        }
        let position = self
            .position(parent)
            .ok_or_else(|| Error::not_found(format!("version {} of the volume doesn't exist", parent.0)))?;
        let origin = &mut self.list[position];
        let is_below = writable;
        // Pages that a running checkpoint is about to write are written for the origin alone.
        let dirty = origin.dirty.with(&origin.writing);
        let version = Version {
            id,
            parent: if is_below { Some(parent) } else { origin.parent },
            writable,
            created,
            blocks: origin.blocks,
            name: name.to_owned(),
            is_leaving: false,
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

    /// Removes a version, and its parent if that was deleted and no longer has to stay. Their own blocks are
    /// released later by [`release`](Self::release). A snapshot with several children stays, without its
    /// name.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such version.
    pub fn delete(&mut self, id: VersionId) -> Result<()> {
        let position = self
            .position(id)
            .filter(|_| id != VersionId::HEAD)
            .ok_or_else(|| Error::not_found(format!("version {} of the volume doesn't exist", id.0)))?;
        self.changes += 1;
        if self.children(id).count() > 1 {
            self.list[position].name.clear();
            return Ok(());
        }
        let version = self.list.remove(position);
        let parents = self.list.iter_mut().map(|other| &mut other.parent);
        let parents = parents.chain(self.dying.iter_mut().map(|other| &mut other.parent));
        parents.filter(|parent| **parent == Some(id)).for_each(|parent| *parent = version.parent);
        self.orphaned.extend(version.table.iter().map(|(page, place)| (page, place.physical)));
        let Version { parent, blocks, map, .. } = version;
        self.dying.push(Dying { id, parent, blocks, map, released: 0 });
        let stays = |parent: &&Version| !parent.is_deleted() || self.children(parent.id).count() > 1;
        match parent.and_then(|id| self.get(id)).filter(|parent| !stays(parent)) {
            Some(parent) => self.delete(parent.id),
            None => Ok(()),
        }
    }

    /// Releases the next `most` blocks of a deleted version. Calls `died` for each physical block that is no
    /// longer mapped by any version. Returns whether there was a deleted version.
    ///
    /// Its parent, the parent's current children (its own child among them) and other deleted versions may
    /// map a block of it at the same logical block. Any further version maps the block only if one of these
    /// does, as for versions that aren't deleted.
    pub fn release(&mut self, most: u64, died: &mut dyn FnMut(Physical)) -> bool {
        let Some((dying, others)) = self.dying.split_first() else { return false };
        let siblings = self.list.iter().filter(|version| version.parent == dying.parent);
        let parent = dying.parent.and_then(|id| self.get(id));
        let keepers = parent.into_iter().chain(siblings).map(Keeper::of);
        let keepers: Vec<Keeper> = keepers.chain(others.iter().map(Keeper::of_dying)).collect();
        let end = dying.blocks.min(dying.released.saturating_add(most));
        let mut own = [0; PAGE_BLOCKS as usize];
        let mut at = dying.released;
        while at < end {
            let page = at / PAGE_BLOCKS;
            let first = page * PAGE_BLOCKS;
            let next = end.min(first + PAGE_BLOCKS);
            own_page(&*dying.map, keepers.iter().map(|keeper| (&*keeper.map, keeper.from)), page, &mut own);
            let own = &own[(at - first) as usize..(next - first) as usize];
            own.iter().filter(|entry| **entry != 0).for_each(|entry| died(Physical(*entry)));
            at = next;
        }
        match end == dying.blocks {
            true => drop(self.dying.remove(0)),
            false => self.dying[0].released = end,
        }
        true
    }

    /// Returns whether a version was deleted and isn't released completely.
    pub fn is_dying(&self, id: VersionId) -> bool {
        self.dying.iter().any(|dying| dying.id == id)
    }

    /// Returns a version's parent and children.
    pub fn relatives(&self, version: &Version) -> impl Iterator<Item = &Version> {
        let parent = version.parent.and_then(|id| self.get(id));
        parent.into_iter().chain(self.children(version.id))
    }

    /// Extends a version to this number of blocks.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such version, [`Error::Invalid`] for fewer blocks than the version
    /// has.
    pub fn grow(&mut self, id: VersionId, blocks: u64) -> Result<()> {
        let position = self
            .position(id)
            .ok_or_else(|| Error::not_found(format!("version {} of the volume doesn't exist", id.0)))?;
        let version = &mut self.list[position];
        if blocks < version.blocks {
            return Err(Error::invalid(format!(
                "version {}: resize to {blocks} blocks; expected at least {}: it can't shrink",
                id.0, version.blocks
            )));
        }
        version.map.grow(blocks);
        version.blocks = blocks;
        Ok(())
    }

    /// Returns the number of live blocks that a write to this range would add: blocks that are unmapped, and
    /// blocks that another version keeps live.
    pub fn growth(&self, position: usize, block: u64, count: u64) -> u64 {
        let version = &self.list[position];
        let keepers = self.keepers(version.parent);
        let mut growth = count;
        version.map.lookup_range(block..block + count, &mut |piece| {
            if piece.physical.is_mapped() {
                unshared(&keepers, piece, &mut |piece| growth -= piece.count);
            }
        });
        growth
    }
}

/// Copies a page of a map, with 0 for blocks that one of the others, each starting at its start block, maps
/// at the same location.
pub fn own_page<'a>(
    map: &dyn Map,
    others: impl IntoIterator<Item = (&'a dyn Map, u64)>,
    page: u64,
    own: &mut [u32],
) {
    map.save_page(page, own);
    let mut other = [0; PAGE_BLOCKS as usize];
    let first = page * PAGE_BLOCKS;
    for (relative, from) in others {
        if own.iter().all(|entry| *entry == 0) {
            return;
        }
        if first < relative.blocks() && from < first + PAGE_BLOCKS {
            relative.save_page(page, &mut other);
            let kept = own.iter_mut().zip(&other).skip(from.saturating_sub(first) as usize);
            kept.filter(|(own, other)| own == other).for_each(|(own, _)| *own = 0);
        }
    }
}

/// Visits the parts of a mapping that none of the others shares at the same blocks.
fn unshared(others: &[Keeper], mapping: Mapping, visit: &mut dyn FnMut(Mapping)) {
    let Some((other, others)) = others.split_first() else { return visit(mapping) };
    let behind = mapping.block + mapping.count;
    let part = |range: Range<u64>| {
        let physical = mapping.physical.offset(range.start - mapping.block);
        Mapping { block: range.start, count: range.end - range.start, physical }
    };
    let start = other.from.clamp(mapping.block, behind);
    let end = other.map.blocks().clamp(start, behind);
    if mapping.block < start {
        unshared(others, part(mapping.block..start), visit);
    }
    if start < end {
        other.map.lookup_range(start..end, &mut |piece| {
            // Physical blocks advance with logical blocks in both maps, so a piece with another start shares
            // nothing.
            let own = part(piece.block..piece.block + piece.count);
            if piece.physical != own.physical {
                unshared(others, own, visit);
            }
        });
    }
    if end < behind {
        unshared(others, part(end..behind), visit);
    }
}
