//! Shared blocks: blocks of zones with several owners, as a result of cloning files.
//!
//! A block of a zone is written for one block of a file, which the record's header names: its *written
//! owner*. Moves of the cleaner don't change it. Usually this is the only owner. Contiguous blocks that have,
//! or had, several owners are a *run*: an item keyed by its place, in the tree of the inode group of all its
//! owners, with the written owner and the present owners. The extents of the present owners are marked
//! (`Extent::is_shared`), so files that weren't cloned need no lookup of runs.
//!
//! Invariants, in each version of an inode group:
//! - The marked extents are exactly those of the owners of runs, and no other extent has a block of a run.
//! - A run has 1 to [`MAX_OWNERS`] owners, all different. Its written owner needn't be one of them:
//!   blocks are found by their place.
//! - A block dies with its last owner. A run whose owners are reduced to one is still a run, and its
//!   extents are still marked.
//!
//! So a version has a block at a place if the written owner has an extent there, or if a run covers the
//! place. `extents::visit_missing` checks only these two.

#[cfg(test)]
mod tests;

use crate::broken::if_broken;
use crate::metadata::extents::{AT_ONCE, Blocks, Extent, Moved, extents, replace, unmap};
use crate::metadata::forest::Forest;
use crate::metadata::inode::{InodeNumber, kind};
use crate::tree::Key;
use block::{Error, Result, ZoneBlock};
use logkit::leb128::{Numbers, put};
use smallvec::SmallVec;
use std::ops::Range;

/// Most owners of a block; for a further one, the block is copied.
pub const MAX_OWNERS: usize = 16;

/// First inode number of the keepers, larger than those of files. An inode group's keeper is the inode of
/// the items of its runs.
pub const FIRST_KEEPER: InodeNumber = 1 << 62;

/// A block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockOwner {
    /// Inode of the file.
    pub inode: InodeNumber,
    /// Number of the block in the file.
    pub block: u64,
}

/// Contiguous blocks of a zone with the same owners. An owner is given by its first block; its other blocks
/// are consecutive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Place of the first block.
    pub place: ZoneBlock,
    /// Number of blocks.
    pub blocks: u32,
    /// Owner for which the blocks were written.
    pub written: BlockOwner,
    /// Present owners, in ascending order.
    pub owners: SmallVec<[BlockOwner; 2]>,
}

impl BlockOwner {
    fn after(self, blocks: u32) -> Self {
        BlockOwner { block: self.block + u64::from(blocks), ..self }
    }
}

impl Run {
    fn end(&self) -> u32 {
        self.place.block + self.blocks
    }

    /// Returns the part of the run at these positions, which must overlap it.
    fn part(&self, positions: &Range<u32>) -> Self {
        let (from, to) = (self.place.block.max(positions.start), self.end().min(positions.end));
        let skipped = from - self.place.block;
        Run {
            place: ZoneBlock { block: from, ..self.place },
            blocks: to - from,
            written: self.written.after(skipped),
            owners: self.owners.iter().map(|owner| owner.after(skipped)).collect(),
        }
    }

    /// Whether `next` continues this run.
    fn is_before(&self, next: &Run) -> bool {
        self.place.zone == next.place.zone
            && self.end() == next.place.block
            && self.written.after(self.blocks) == next.written
            && self.owners.iter().map(|owner| owner.after(self.blocks)).eq(next.owners.iter().copied())
    }

    /// Returns the blocks of the run as an extent of an owner.
    pub fn extent_of(&self, owner: BlockOwner) -> (InodeNumber, Extent) {
        let extent = Extent { block: owner.block, blocks: self.blocks, place: self.place, is_shared: true };
        (owner.inode, extent)
    }

    fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(32);
        put(&mut value, self.blocks.into());
        for owner in std::iter::once(&self.written).chain(&self.owners) {
            put(&mut value, owner.inode);
            put(&mut value, owner.block);
        }
        value
    }

    /// Decodes an item.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for bytes that aren't a run.
    pub fn decode(key: Key, value: &[u8]) -> Result<Self> {
        let mut numbers = Numbers::new(value, "a run of shared blocks");
        let place = ZoneBlock::new((key.offset >> 32) as u32, key.offset as u32);
        let blocks = numbers.take_u32()?;
        let mut owner = || Ok::<_, Error>(BlockOwner { inode: numbers.take()?, block: numbers.take()? });
        let written = owner()?;
        let mut owners = SmallVec::new();
        owners.push(owner()?);
        while !numbers.rest().is_empty() {
            owners.push(BlockOwner { inode: numbers.take()?, block: numbers.take()? });
        }
        let run = Run { place, blocks, written, owners };
        let is_sorted = run.owners.is_sorted_by(|one, next| one < next);
        let mut all = std::iter::once(&written).chain(&run.owners);
        let has_ends = all.all(|owner| owner.block.checked_add(blocks.into()).is_some());
        let is_within = place.block.checked_add(blocks).is_some() && has_ends;
        match is_sorted && is_within && blocks > 0 && run.owners.len() <= MAX_OWNERS {
            true => Ok(run),
            false => Err(numbers.strange(&format!(
                "is invalid: {blocks} blocks at {place} with {} owners; expected blocks within a zone and 1 to 16 owners in rising order",
                run.owners.len()
            ))),
        }
    }
}

/// Keeper of the inode group of an inode.
fn keeper(items: &Forest, inode: InodeNumber) -> InodeNumber {
    let groups = u64::from(items.groups());
    FIRST_KEEPER.next_multiple_of(groups) + inode % groups
}

/// Whether an item is a run of the inode group that contains it.
pub fn is_run(items: &Forest, key: &Key) -> bool {
    key.kind == kind::SHARED && key.inode == keeper(items, key.inode)
}

fn key(keeper: InodeNumber, place: ZoneBlock) -> Key {
    Key::new(keeper, kind::SHARED, u64::from(place.zone.0) << 32 | u64::from(place.block))
}

fn positions(place: ZoneBlock, blocks: u32) -> Range<u32> {
    place.block..place.block.saturating_add(blocks)
}

/// Returns the runs of an inode's inode group that overlap a range of a zone, not clipped, in order.
pub fn runs(
    items: &Forest,
    inode: InodeNumber,
    place: ZoneBlock,
    blocks: u32,
) -> impl Iterator<Item = Result<Run>> + '_ {
    let keeper = keeper(items, inode);
    let first = key(keeper, place);
    let end = positions(place, blocks).end;
    let is_own = move |key: &Key| {
        key.inode == keeper && key.kind == kind::SHARED && key.offset >> 32 == u64::from(place.zone.0)
    };
    // A run that begins before the range may overlap it.
    let before = items.last_before(&first).filter(|(key, _)| is_own(key) && *key < first);
    let before = before.map(|(key, value)| Run::decode(key, value));
    let before = before.filter(|run| run.as_ref().is_ok_and(|run| run.end() > place.block) || run.is_err());
    let rest = items.range(&first).take_while(move |(key, _)| is_own(key) && (key.offset as u32) < end);
    before.into_iter().chain(rest.map(|(key, value)| Run::decode(key, value)))
}

/// Changes the parts of runs in a range of a zone, and removes parts without owners. Returns the number of
/// blocks of these parts.
fn change(
    items: &mut Forest,
    inode: InodeNumber,
    (place, blocks): (ZoneBlock, u32),
    mut change: impl FnMut(&mut Run) -> Result<()>,
) -> Result<u32> {
    let (keeper, range) = (keeper(items, inode), positions(place, blocks));
    let found = runs(items, inode, place, blocks).collect::<Result<SmallVec<[Run; 4]>>>()?;
    let mut parts: SmallVec<[Run; 4]> = SmallVec::new();
    let mut count = 0;
    for run in &found {
        if run.place.block < range.start {
            parts.push(run.part(&(0..range.start)));
        }
        let mut part = run.part(&range);
        count += part.blocks;
        change(&mut part)?;
        if !part.owners.is_empty() {
            parts.push(part);
        }
        if run.end() > range.end {
            parts.push(run.part(&(range.end..u32::MAX)));
        }
    }
    found.iter().for_each(|run| {
        items.remove(&key(keeper, run.place));
    });
    parts.into_iter().try_for_each(|part| insert(items, keeper, part))?;
    Ok(count)
}

/// Inserts a run that doesn't overlap others, and merges it with its neighbours.
fn insert(items: &mut Forest, keeper: InodeNumber, run: Run) -> Result<()> {
    let (at, mut whole) = (key(keeper, run.place), run);
    if let Some((before, value)) = items.last_before(&at).filter(|(key, _)| key.inode == keeper) {
        let before = Run::decode(before, value)?;
        if before.is_before(&whole) {
            whole = Run { blocks: before.blocks + whole.blocks, ..before };
        }
    }
    let after = key(keeper, ZoneBlock { block: whole.end(), ..whole.place });
    if let Some(value) = items.get(&after) {
        let next = Run::decode(after, value)?;
        if whole.is_before(&next) {
            whole.blocks += next.blocks;
            items.remove(&after);
        }
    }
    items.put(&key(keeper, whole.place), &whole.encode());
    Ok(())
}

/// Removes one owner of shared blocks. Blocks whose last owner is removed are reported as lost.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item, or if the file isn't an owner.
pub fn lose(items: &mut Forest, inode: InodeNumber, gone: &Extent, blocks: &mut impl Blocks) -> Result<()> {
    let first = BlockOwner { inode, block: gone.block };
    let found = change(items, inode, (gone.place, gone.blocks), |run| {
        let own = first.after(run.place.block - gone.place.block);
        let at = run.owners.binary_search(&own).map_err(|_| without_owner(inode, gone))?;
        run.owners.remove(at);
        if run.owners.is_empty() {
            let (inode, extent) = run.extent_of(run.written);
            blocks.lost(inode, &extent);
        }
        Ok(())
    })?;
    match found == gone.blocks {
        true => Ok(()),
        false => Err(without_owner(inode, gone)),
    }
}

#[cold]
fn without_owner(inode: InodeNumber, extent: &Extent) -> Error {
    Error::corrupt(format!(
        "inode {inode}, block {}: marked as shared, and no run at {} names it as an owner",
        extent.block, extent.place
    ))
}

/// Shares the blocks of a range of a file with a file of the same inode group, or with the same file,
/// beginning at `block`. They replace the blocks there. Holes and preallocated blocks become holes. Returns
/// by how many blocks the file has grown.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item, for files of different inode groups, and for more than
/// [`MAX_OWNERS`] owners.
pub fn share(
    items: &mut Forest,
    from: (InodeNumber, Range<u64>),
    to: (InodeNumber, u64),
    blocks: &mut impl Blocks,
) -> Result<i64> {
    let ((source, range), (inode, block)) = (from, to);
    if items.group_of(source) != items.group_of(inode) {
        return Err(Error::corrupt(format!(
            "inodes {source} and {inode} share blocks and are in different inode groups; expected files of one inode group"
        )));
    }
    let taken = unmap(items, inode, block..block + (range.end - range.start), blocks)?;
    let (mut at, mut given) = (range.start, 0);
    loop {
        let found = extents(items, source, at..range.end).take(AT_ONCE);
        let found = found.collect::<Result<SmallVec<[Extent; AT_ONCE]>>>()?;
        for extent in &found {
            let part = extent.part(&(at..range.end));
            if !part.is_preallocated() {
                let new = Extent { block: block + (part.block - range.start), is_shared: true, ..part };
                give(items, (source, part), (inode, new))?;
                given += i64::from(part.blocks);
            }
        }
        match found.last() {
            Some(last) if found.len() == AT_ONCE => at = last.end(),
            _ => return Ok(given - taken as i64),
        }
    }
}

/// Shares the blocks of an extent with another file as its extent `new`; the file has no blocks there.
fn give(
    items: &mut Forest,
    (source, part): (InodeNumber, Extent),
    (inode, new): (InodeNumber, Extent),
) -> Result<()> {
    if !part.is_shared {
        // The written owner is the only owner so far.
        let written = BlockOwner { inode: source, block: part.block };
        let owners = SmallVec::from_elem(written, 1);
        let run = Run { place: part.place, blocks: part.blocks, written, owners };
        insert(items, keeper(items, inode), run)?;
        mark_shared(items, source, part)?;
    }
    let first = BlockOwner { inode, block: new.block };
    let found = change(items, inode, (part.place, part.blocks), |run| {
        let own = first.after(run.place.block - part.place.block);
        match run.owners.binary_search(&own) {
            Err(at) if run.owners.len() < MAX_OWNERS => run.owners.insert(at, own),
            _ => {
                return Err(Error::corrupt(format!(
                    "shared blocks with {} owners get another one, or one that they have; expected at most {MAX_OWNERS} different owners",
                    run.owners.len()
                )));
            }
        }
        Ok(())
    })?;
    match found == part.blocks {
        true => replace(items, inode, new),
        false => Err(without_owner(source, &part)),
    }
}

/// Marks an extent of a file whose blocks get another owner.
fn mark_shared(items: &mut Forest, inode: InodeNumber, part: Extent) -> Result<()> {
    if_broken!(ForgetsSource, return Ok(()));
    replace(items, inode, Extent { is_shared: true, ..part })
}

/// Number of blocks from the beginning of an extent that may get another owner.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item.
pub fn shareable(items: &Forest, inode: InodeNumber, extent: &Extent) -> Result<u32> {
    if extent.is_shared {
        for run in runs(items, inode, extent.place, extent.blocks) {
            let run = run?;
            if run.owners.len() >= MAX_OWNERS {
                return Ok(run.place.block.saturating_sub(extent.place.block));
            }
        }
    }
    Ok(extent.blocks)
}

/// Number of blocks from the beginning of an extent that already have [`MAX_OWNERS`] owners.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item.
pub fn unshareable(items: &Forest, inode: InodeNumber, extent: &Extent) -> Result<u32> {
    let mut end = extent.place.block;
    if extent.is_shared {
        for run in runs(items, inode, extent.place, extent.blocks) {
            let run = run?;
            if run.owners.len() < MAX_OWNERS {
                break;
            }
            end = run.end();
        }
    }
    Ok((end - extent.place.block).min(extent.blocks))
}

/// Visits the parts of an extent without other owners, as the file and the blocks for which they were
/// written.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item.
pub fn visit_sole(
    items: &Forest,
    inode: InodeNumber,
    extent: &Extent,
    mut visit: impl FnMut(InodeNumber, Extent) -> Result<()>,
) -> Result<()> {
    if !extent.is_shared {
        return visit(inode, *extent);
    }
    for run in runs(items, inode, extent.place, extent.blocks) {
        let run = run?;
        if run.owners.len() == 1 {
            let part = run.part(&positions(extent.place, extent.blocks));
            let (inode, extent) = part.extent_of(part.written);
            visit(inode, extent)?;
        }
    }
    Ok(())
}

/// Visits the blocks of runs that were written for a file and are at an expected place, as
/// `extents::visit_at` does for extents.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item.
pub fn visit_at(
    items: &Forest,
    inode: InodeNumber,
    (block, count): (u64, u32),
    from: ZoneBlock,
    mut visit: impl FnMut(u64, u32),
) -> Result<()> {
    for part in parts_at(items, inode, (block, count), from)? {
        visit(part.written.block, part.blocks);
    }
    Ok(())
}

fn parts_at(
    items: &Forest,
    inode: InodeNumber,
    (block, count): (u64, u32),
    from: ZoneBlock,
) -> Result<SmallVec<[Run; 4]>> {
    let first = BlockOwner { inode, block };
    let mut parts = SmallVec::new();
    for run in runs(items, inode, from, count) {
        let part = run?.part(&positions(from, count));
        if part.written == first.after(part.place.block - from.block) {
            parts.push(part);
        }
    }
    Ok(parts)
}

/// Moves the blocks of runs that are at the old place. Adds them to the moved runs, as blocks of the file for
/// which they were written, and the keys of changed items to `touched`.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item.
pub fn move_runs(
    items: &mut Forest,
    moved: &Moved,
    found: &mut Vec<(u64, u32)>,
    touched: &mut Vec<Key>,
) -> Result<()> {
    let keeper = keeper(items, moved.inode);
    for part in parts_at(items, moved.inode, (moved.block, moved.blocks), moved.from)? {
        change(items, moved.inode, (part.place, part.blocks), |run| {
            run.owners.clear();
            Ok(())
        })?;
        let position = moved.to.block + (part.place.block - moved.from.block);
        let new = Run { place: ZoneBlock { block: position, ..moved.to }, ..part.clone() };
        for owner in &new.owners {
            let (inode, extent) = new.extent_of(*owner);
            replace(items, inode, extent)?;
            touched.extend([extent.block, extent.end()].map(|block| Extent::key(inode, block)));
        }
        touched.extend([part.place, ZoneBlock { block: part.end(), ..part.place }].map(|at| key(keeper, at)));
        touched.push(key(keeper, new.place));
        found.push((part.written.block, part.blocks));
        insert(items, keeper, new)?;
    }
    Ok(())
}

/// Visits the blocks of an extent as blocks of their written owner, each with a present owner.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged item.
pub fn visit_owned(
    items: &Forest,
    inode: InodeNumber,
    extent: Extent,
    mut visit: impl FnMut(InodeNumber, Extent),
) -> Result<()> {
    if !extent.is_shared {
        visit(inode, extent);
        return Ok(());
    }
    for part in parts_at(items, inode, (extent.block, extent.blocks), extent.place)? {
        let (inode, extent) = part.extent_of(part.owners[0]);
        visit(inode, extent);
    }
    Ok(())
}
