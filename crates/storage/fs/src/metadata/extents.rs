//! Places of the blocks of files, as items of the tree: one item for each extent, keyed by its first block in
//! the file.
//!
//! Blocks are those of the log, of 4 KiB. A block without an extent is a hole. The blocks of a *preallocated*
//! extent aren't written: they read as zeros, and count as blocks of the file. A *shared* extent has blocks
//! that other files may also have; [`shared`] holds their owners.

use crate::metadata::forest::Forest;
use crate::metadata::inode::{BLOCK, InodeNumber, MAX_FILE, kind};
use crate::metadata::shared;

use crate::tree::Key;
use block::{Result, ZoneBlock};
use logkit::Layout;
use logkit::layout::ROOT_ZONES;
use logkit::leb128::{Numbers, put};
use smallvec::SmallVec;
use std::ops::Range;

/// Flag in the zone number of an extent whose blocks are lost, because its zone was reset after the
/// checkpoint that was read. No zone has such a number, so reading the extent is an error and doesn't return
/// the data that is in the zone now.
pub(crate) const GONE: u32 = 1 << 31;
/// Most extents that are changed at a time.
pub(crate) const AT_ONCE: usize = 32;
/// Last number in the item of a shared extent; absent in other extents.
const SHARED: u64 = 1;

/// Blocks that are contiguous in a file and in a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First block of the file.
    pub block: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// Place of the first block; in zone 0, a zone of roots, for preallocated blocks.
    pub place: ZoneBlock,
    /// Whether other files, or other blocks of this file, may have the same blocks.
    pub is_shared: bool,
}

/// Observer of blocks of zones that files get and lose; preallocated blocks are in zone 0.
pub trait Blocks {
    /// Notes that a file got `blocks` blocks of a zone.
    fn live(&mut self, zone: u32, blocks: u32);
    /// Notes that `blocks` blocks of a zone have lost their last owner.
    fn dead(&mut self, zone: u32, blocks: u32);
    /// Notes that an extent has lost its last owner. It has the blocks of the file that it was written for.
    fn lost(&mut self, _inode: InodeNumber, gone: &Extent) {
        self.dead(gone.place.zone.0, gone.blocks);
    }
}

impl Extent {
    /// Block of the file after the extent.
    pub fn end(&self) -> u64 {
        self.block + u64::from(self.blocks)
    }

    /// Place after the last block.
    pub fn end_place(&self) -> ZoneBlock {
        self.place.after(self.blocks)
    }

    /// Whether the blocks are preallocated and not written.
    pub fn is_preallocated(&self) -> bool {
        self.place.zone.0 == 0
    }

    /// Whether the extent is preallocated, or lies within a zone other than one of roots.
    pub fn is_within(&self, layout: &Layout) -> bool {
        let end = u64::from(self.place.block) + u64::from(self.blocks);
        let has_place =
            (ROOT_ZONES..layout.zones).contains(&self.place.zone.0) && end <= layout.zone_blocks.into();
        self.is_preallocated() || has_place
    }

    /// Value of the extent's item with the zone number marked by `bit`.
    pub fn marked(&self, bit: u32) -> Vec<u8> {
        Extent { place: ZoneBlock::new(self.place.zone.0 | bit, self.place.block), ..*self }.encode().to_vec()
    }

    /// Returns the part of the extent within a range, which must overlap it.
    #[must_use]
    pub fn part(&self, range: &Range<u64>) -> Self {
        let (from, to) = (self.block.max(range.start), self.end().min(range.end));
        let skipped = (from - self.block) as u32;
        let first = if self.is_preallocated() { 0 } else { self.place.block + skipped };
        let place = ZoneBlock { block: first, ..self.place };
        Extent { block: from, blocks: (to - from) as u32, place, ..*self }
    }

    /// Whether `next` is contiguous with this extent, in the file and in the zone.
    fn is_before(&self, next: &Extent) -> bool {
        let is_next = self.is_preallocated() || self.place.block + self.blocks == next.place.block;
        self.end() == next.block
            && self.place.zone == next.place.zone
            && self.is_shared == next.is_shared
            && is_next
            && self.blocks.checked_add(next.blocks).is_some()
    }

    /// Key of the extent whose first block is `block`.
    pub fn key(inode: InodeNumber, block: u64) -> Key {
        Key { inode, kind: kind::EXTENT, offset: block }
    }

    fn encode(&self) -> SmallVec<[u8; 16]> {
        let mut value = Vec::with_capacity(16);
        put(&mut value, u64::from(self.blocks));
        put(&mut value, u64::from(self.place.zone.0));
        put(&mut value, u64::from(self.place.block));
        if self.is_shared {
            put(&mut value, SHARED);
        }
        SmallVec::from_vec(value)
    }

    /// Decodes an item.
    ///
    /// # Errors
    /// [`Error::Corrupt`](block::Error::Corrupt) for bytes that aren't an extent.
    pub fn decode(key: Key, value: &[u8]) -> Result<Self> {
        let mut numbers = Numbers::new(value, "an extent");
        let (blocks, zone, position) = (numbers.take_u32()?, numbers.take_u32()?, numbers.take_u32()?);
        let is_shared = !numbers.rest().is_empty();
        if is_shared && (numbers.take()? != SHARED || zone == 0) {
            return Err(numbers.strange("has an unknown mark"));
        }
        numbers.end()?;
        let end = key.offset.checked_add(u64::from(blocks));
        let is_in_range = end.is_some_and(|end| end <= MAX_FILE.div_ceil(BLOCK));
        match blocks > 0 && is_in_range && position.checked_add(blocks).is_some() {
            true => Ok(Extent { block: key.offset, blocks, place: ZoneBlock::new(zone, position), is_shared }),
            false => Err(numbers.strange(&format!(
                "is out of bounds: {blocks} blocks from block {} of a file on, at block {position} of zone {zone}",
                key.offset
            ))),
        }
    }
}

/// Extents of a file that overlap a range, not clipped, in order.
pub fn extents(
    items: &Forest,
    inode: InodeNumber,
    range: Range<u64>,
) -> impl Iterator<Item = Result<Extent>> + '_ {
    let first = Extent::key(inode, range.start);
    let is_own = move |key: &Key| key.inode == inode && key.kind == kind::EXTENT;
    // An extent that begins before the range may overlap it.
    let before = items.last_before(&first).filter(|(key, _)| is_own(key) && key.offset < range.start);
    let before = before.map(|(key, value)| Extent::decode(key, value));
    let before =
        before.filter(|it| it.as_ref().is_ok_and(|extent| extent.end() > range.start) || it.is_err());
    let rest = items.range(&first).take_while(move |(key, _)| is_own(key) && key.offset < range.end);
    before.into_iter().chain(rest.map(|(key, value)| Extent::decode(key, value)))
}

/// Unmaps blocks of a file. Returns the number of blocks that it has lost.
///
/// # Errors
/// [`Error::Corrupt`](block::Error::Corrupt) for a damaged item.
pub fn unmap(
    items: &mut Forest,
    inode: InodeNumber,
    range: Range<u64>,
    blocks: &mut impl Blocks,
) -> Result<u64> {
    cut(items, inode, range, |items, gone| match gone.is_shared {
        true => shared::lose(items, inode, gone, blocks),
        false => {
            blocks.lost(inode, gone);
            Ok(())
        }
    })
}

/// Removes a range from the extents of a file, and calls `taken` with each removed part. Returns the number
/// of blocks.
fn cut(
    items: &mut Forest,
    inode: InodeNumber,
    range: Range<u64>,
    mut taken: impl FnMut(&mut Forest, &Extent) -> Result<()>,
) -> Result<u64> {
    let mut count = 0;
    loop {
        let found = extents(items, inode, range.clone()).take(AT_ONCE);
        let found = found.collect::<Result<SmallVec<[Extent; AT_ONCE]>>>()?;
        for extent in &found {
            let gone = extent.part(&range);
            count += u64::from(gone.blocks);
            if extent.block < gone.block {
                let rest = extent.part(&(extent.block..gone.block));
                items.put(&Extent::key(inode, rest.block), &rest.encode());
            } else {
                items.remove(&Extent::key(inode, extent.block));
            }
            if gone.end() < extent.end() {
                let rest = extent.part(&(gone.end()..extent.end()));
                items.put(&Extent::key(inode, rest.block), &rest.encode());
            }
            taken(items, &gone)?;
        }
        if found.len() < AT_ONCE {
            return Ok(count);
        }
    }
}

/// Maps an extent into a file, replacing the blocks there. Returns by how many blocks the file has grown.
///
/// # Errors
/// As [`unmap`].
pub fn map(items: &mut Forest, inode: InodeNumber, extent: Extent, blocks: &mut impl Blocks) -> Result<i64> {
    let taken = unmap(items, inode, extent.block..extent.end(), blocks)?;
    blocks.live(extent.place.zone.0, extent.blocks);
    insert(items, inode, extent)?;
    Ok(i64::from(extent.blocks) - taken as i64)
}

/// Changes the place of blocks of a file, without changing counts or the owners of shared blocks.
///
/// # Errors
/// As [`unmap`].
pub fn replace(items: &mut Forest, inode: InodeNumber, extent: Extent) -> Result<()> {
    cut(items, inode, extent.block..extent.end(), |_, _| Ok(()))?;
    insert(items, inode, extent)
}

/// Inserts an extent where the file has none, and merges it with its neighbours.
fn insert(items: &mut Forest, inode: InodeNumber, extent: Extent) -> Result<()> {
    let mut whole = extent;
    let key = Extent::key(inode, extent.block);
    if let Some((before, value)) = items.last_before(&key)
        && (before.inode, before.kind) == (inode, kind::EXTENT)
    {
        let before = Extent::decode(before, value)?;
        if before.is_before(&whole) {
            whole = Extent { blocks: before.blocks + whole.blocks, ..before };
        }
    }
    let after = Extent::key(inode, extent.end());
    if let Some(value) = items.get(&after) {
        let next = Extent::decode(after, value)?;
        if whole.is_before(&next) {
            whole.blocks += next.blocks;
            items.remove(&after);
        }
    }
    items.put(&Extent::key(inode, whole.block), &whole.encode());
    Ok(())
}

/// Preallocates the unmapped blocks of a range. Returns their number.
///
/// # Errors
/// As [`unmap`].
pub fn preallocate(
    items: &mut Forest,
    inode: InodeNumber,
    range: Range<u64>,
    blocks: &mut impl Blocks,
) -> Result<u64> {
    let (mut at, mut added) = (range.start, 0);
    while at < range.end {
        let next = extents(items, inode, at..range.end).next().transpose()?;
        let (from, to) = next.map_or((range.end, range.end), |next| (next.block.max(at), next.end()));
        while at < from {
            let count = (from - at).min(1 << 30) as u32;
            let extent = Extent { block: at, blocks: count, place: ZoneBlock::new(0, 0), is_shared: false };
            map(items, inode, extent, blocks)?;
            added += u64::from(count);
            at += u64::from(count);
        }
        at = to;
    }
    Ok(added)
}

/// Visits the blocks of a file that are at an expected place: of `count` blocks from `block`, those that are
/// as far from the place `from` as from `block`. Calls `visit` with the first block and the number of blocks
/// of each run.
///
/// # Errors
/// As [`unmap`].
pub fn visit_at(
    items: &Forest,
    inode: InodeNumber,
    (block, count): (u64, u32),
    from: ZoneBlock,
    mut visit: impl FnMut(u64, u32),
) -> Result<()> {
    let range = block..block + u64::from(count);
    for extent in extents(items, inode, range.clone()) {
        let part = extent?.part(&range);
        let expected = u64::from(from.block) + (part.block - block);
        if part.place.zone == from.zone && u64::from(part.place.block) == expected {
            visit(part.block, part.blocks);
        }
    }
    Ok(())
}

/// Visits the parts of an extent with data that these items don't have at the same place. The extent is one
/// of the file that the blocks were written for. The items have a block if this file has it at this place, or
/// if a shared run covers the place.
///
/// # Errors
/// As [`unmap`].
pub fn visit_missing(
    items: &Forest,
    inode: InodeNumber,
    extent: &Extent,
    mut visit: impl FnMut(Extent),
) -> Result<()> {
    let (range, place) = ((extent.block, extent.blocks), extent.place);
    let mut there: SmallVec<[(u64, u32); 8]> = SmallVec::new();
    visit_at(items, inode, range, place, |from, count| there.push((from, count)))?;
    if there.as_slice() == [range] {
        return Ok(());
    }
    shared::visit_at(items, inode, range, place, |from, count| there.push((from, count)))?;
    there.sort_unstable();
    let mut at = extent.block;
    for (from, count) in there {
        if at < from {
            visit(extent.part(&(at..from)));
        }
        at = at.max(from + u64::from(count));
    }
    if at < extent.end() {
        visit(extent.part(&(at..extent.end())));
    }
    Ok(())
}

/// Blocks that files lost when an operation was submitted: zones and numbers of blocks. They die when its
/// record is written, so that no zone is reused before.
#[derive(Debug, Default)]
pub struct Lost(pub SmallVec<[(u32, u32); 2]>);

impl Blocks for Lost {
    fn live(&mut self, _zone: u32, _blocks: u32) {}

    fn dead(&mut self, zone: u32, blocks: u32) {
        match self.0.iter_mut().find(|(other, _)| *other == zone) {
            Some((_, count)) => *count += blocks,
            None => self.0.push((zone, blocks)),
        }
    }
}

/// Blocks that the cleaner has moved from one place to another.
#[derive(Debug, Clone, Copy)]
pub struct Moved {
    /// Inode of the file.
    pub inode: InodeNumber,
    /// First block of the file.
    pub block: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// Old place of the first block.
    pub from: ZoneBlock,
    /// New place of the first block.
    pub to: ZoneBlock,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Metadata;
    use crate::metadata::inode::{Inode, ROOT};
    use crate::metadata::seek;
    use crate::tree::Released;

    #[test]
    fn extents_behind_the_end_of_the_largest_file_are_refused() {
        let end = MAX_FILE.div_ceil(BLOCK);
        let with_end = |end: u64| Extent::decode(Extent::key(7, end - 3), &[3, 2, 1]);
        assert!(with_end(end).is_ok() && with_end(end + 1).is_err() && with_end(u64::MAX).is_err());
    }

    #[test]
    fn a_size_that_no_file_has_is_an_error() {
        let mut metadata = Metadata::new(Forest::new(1, &Released::new()), 1);
        let root = metadata.inode(ROOT).expect("the root directory exists");
        for (size, is_right) in [(MAX_FILE, true), (MAX_FILE + 1, false), (u64::MAX, false)] {
            let file = Inode { mode: libc::S_IFREG, size, ..root };
            metadata.put(&Inode::key(7), &file.encode());
            let last = size / BLOCK - 1;
            metadata.put(&Extent::key(7, last), &[3, 2, 1]);
            assert!(seek(&metadata, 7, 0, true).is_err(), "an extent beyond the end of the largest file");
            metadata.items.remove(&Extent::key(7, last));
            assert_eq!(seek(&metadata, 7, 0, false).is_ok(), is_right, "{size}");
        }
    }
}
