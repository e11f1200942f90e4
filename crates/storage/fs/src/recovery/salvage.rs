//! Salvage of a damaged file system: read-only access to intact files, and a list of the losses.
//!
//! A salvaged file system refuses changes and runs no background work. An unreadable page of metadata loses
//! its items: names, attributes or blocks of files. Each loss is listed. The remaining files are accessible
//! as follows:
//! - Reads of blocks in zones that were reset after the checkpoint are errors: such zones may have other
//!   data now ([`GONE`]).
//! - A file or directory whose attributes are lost gets default ones.
//! - A file or directory whose name is lost gets a name in `lost+found`.
//!
//! In other modules: reading the trees (`recovery`), and pages (`tree`).

use crate::core::Core;
use crate::core::shards::Shards;
use crate::format::BLOCK;
use crate::metadata::extents::{Extent, GONE};
use crate::metadata::forest::Forest;
use crate::metadata::inode::{FileType, Inode, InodeNumber, ROOT, kind};
use crate::metadata::shared::{FIRST_KEEPER, Run};
use crate::metadata::{Metadata, directory};
use crate::tree::Key;
use block::{Result, ZoneBlock};
use logkit::Layout;
use logkit::recovery::LostParts;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// Most bytes that opening may write; they stay in memory: roots.
pub(crate) const MAX_BYTES: u64 = 64 << 20;

/// Directory in the root for files whose names are lost; each is named `#` and its inode number.
const LOST_AND_FOUND: &str = "lost+found";

/// Most blocks of an extent for lost blocks.
const MAX_GONE: u64 = 1 << 30;

/// Most extents for lost blocks on a shard, in addition to one for each hole: the size of a damaged inode may
/// be any number.
pub(crate) const MAX_MARKS: u64 = 1 << 16;

/// Marks the extents and runs of a version in zones that were reset after the checkpoint, or outside of the
/// zones. Returns errors of items that can't be decoded.
pub(crate) fn mark_gone(items: &mut Forest, layout: &Layout, reset_since: &[u32]) -> Vec<String> {
    let is_gone = |extent: &Extent| {
        let is_reset = !extent.is_preallocated() && reset_since.binary_search(&extent.place.zone.0).is_ok();
        extent.place.zone.0 & GONE == 0 && (is_reset || !extent.is_within(layout))
    };
    let (mut marked, mut strange) = (Vec::new(), Vec::new());
    for (key, value) in items.items() {
        match key.kind {
            kind::EXTENT if key.inode != 0 => match Extent::decode(key, value) {
                Ok(extent) if is_gone(&extent) => marked.push((key, key, extent.marked(GONE))),
                Ok(_) => {}
                Err(error) => strange.push(format!("blocks of inode {}: {}", key.inode, error.detail())),
            },
            kind::SHARED => match Run::decode(key, value) {
                Ok(run) if is_gone(&run.extent_of(run.written).1) => {
                    let moved = Key { offset: key.offset | u64::from(GONE) << 32, ..key };
                    marked.push((key, moved, value.to_vec()));
                }
                Ok(_) => {}
                Err(error) => strange.push(error.detail().to_owned()),
            },
            _ => {}
        }
    }
    for (old, new, value) in marked {
        if old != new {
            items.remove(&old);
        }
        items.put(&new, &value);
    }
    strange
}

/// Returns an extent of a file with blocks that can't be read: in an offline zone, or [`GONE`]. Holes that
/// may be lost blocks are told with their file.
fn unreadable(key: Key, value: &[u8], offline: &[u32]) -> Option<Extent> {
    let extent = Extent::decode(key, value).ok()?;
    let is_lost = extent.place.zone.0 & GONE != 0 || offline.binary_search(&extent.place.zone.0).is_ok();
    (is_lost && extent.place.zone.0 != GONE && !extent.is_preallocated()).then_some(extent)
}

/// Number of the blocks of a file's extent that the file has at the same place in another version.
fn in_both(other: &Forest, inode: InodeNumber, extent: &Extent) -> u64 {
    let begin = Extent::key(inode, extent.block);
    let at_begin = other.last_before(&begin).into_iter();
    let overlap = |(key, value): (Key, &[u8])| {
        let its = Extent::decode(key, value).ok()?;
        let distance = |it: &Extent| it.block.wrapping_sub(it.place.block.into());
        let blocks = its.end().min(extent.end()).saturating_sub(its.block.max(extent.block));
        (its.place.zone == extent.place.zone && distance(&its) == distance(extent)).then_some(blocks)
    };
    let is_of_file = |key: &Key| (key.inode, key.kind) == (inode, kind::EXTENT);
    let next = Extent::key(inode, extent.block + 1);
    let following = other.range(&next).take_while(|(key, _)| is_of_file(key) && key.offset < extent.end());
    at_begin.filter(|(key, _)| is_of_file(key)).chain(following).filter_map(overlap).sum()
}

/// Notes the blocks of files that are [`GONE`] or in offline zones, a line for each file and zone; not those
/// that the file has in the `newer` version, too.
pub(crate) fn tell_unreadable(
    items: &Forest,
    newer: Option<&Forest>,
    offline: &[u32],
    version: &str,
    lost: &mut LostParts,
) {
    let mut tell = |inode: InodeNumber, zones: &mut BTreeMap<u32, u64>| {
        for (zone, blocks) in std::mem::take(zones) {
            let why = match zone & GONE {
                0 => "is offline",
                _ => "was reset after the checkpoint that was read",
            };
            let zone = zone & !GONE;
            lost.note_with(|| {
                format!("{version}{blocks} blocks of inode {inode} in zone {zone}, which {why}")
            });
        }
    };
    // Blocks of one file by zone: the items of a file follow one another.
    let (mut inode, mut zones) = (0, BTreeMap::new());
    for (key, value) in items.items().filter(|(key, _)| key.kind == kind::EXTENT && key.inode != 0) {
        if key.inode != inode {
            tell(inode, &mut zones);
            inode = key.inode;
        }
        if let Some(extent) = unreadable(key, value, offline) {
            let told = newer.map_or(0, |newer| in_both(newer, inode, &extent));
            let blocks = u64::from(extent.blocks).saturating_sub(told);
            if blocks > 0 {
                *zones.entry(extent.place.zone.0).or_default() += blocks;
            }
        }
    }
    tell(inode, &mut zones);
}

/// Remaining parts of an inode.
struct Remains {
    inode: Option<Inode>,
    /// Type of the file by other items, if the inode is missing.
    file_type: FileType,
    /// Blocks of the file, in ascending order.
    present: Vec<Range<u64>>,
}

/// Adds missing inodes that have names or blocks: a directory, or a file with a size that covers its blocks.
/// If a file has fewer blocks than its inode counts, any of its holes may be lost blocks. Each hole then
/// becomes an extent that is [`GONE`]; a long hole takes more of these, limited by `marks`, after which the
/// file is truncated. Returns descriptions. `has_root` is true if these inode groups include the root
/// directory.
pub(crate) fn replace_missing(metadata: &mut Metadata, has_root: bool, marks: &mut u64) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, Remains { inode, file_type, present }) in remains(metadata, has_root) {
        let has: u64 = present.iter().map(|range| range.end - range.start).sum();
        let is_whole = match &inode {
            Some(inode) => inode.file_type() != FileType::Regular || has >= inode.blocks,
            None => file_type != FileType::Regular,
        };
        let lost = inode.as_ref().map_or(0, |inode| inode.blocks.saturating_sub(has));
        let inode = inode.unwrap_or_else(|| {
            let what = match file_type {
                FileType::Directory => "directory",
                FileType::Link => "symbolic link",
                _ => "file",
            };
            lines
                .push(format!("attributes of inode {number}, a {what}: it is shown with those of a new one"));
            let size = present.last().map_or(0, |last| last.end.saturating_mul(BLOCK));
            let inode = Inode { mode: file_type as u32 | 0o700, size, ..Inode::root_directory(0) };
            metadata.put(&Inode::key(number), &inode.encode());
            inode
        });
        if is_whole {
            continue;
        }
        lines.push(format!(
            "blocks of inode {number}, at least {lost}: its holes may be these and can't be read"
        ));
        lines.extend(mark_holes(metadata, number, inode, present, marks));
    }
    lines
}

/// Remaining parts of each inode; the root is among them with `has_root`.
fn remains(metadata: &Metadata, has_root: bool) -> BTreeMap<InodeNumber, Remains> {
    let nothing = |file_type| Remains { inode: None, file_type, present: Vec::new() };
    let mut found: BTreeMap<InodeNumber, Remains> = BTreeMap::new();
    if has_root {
        found.insert(ROOT, nothing(FileType::Directory));
    }
    for (key, value) in metadata.items.items().filter(|(key, _)| (1..FIRST_KEEPER).contains(&key.inode)) {
        let remains = found.entry(key.inode).or_insert_with(|| nothing(FileType::Regular));
        match key.kind {
            kind::INODE => remains.inode = Inode::decode(value).ok(),
            kind::TARGET => remains.file_type = FileType::Link,
            kind::ENTRY => remains.file_type = FileType::Directory,
            kind::EXTENT => {
                let blocks = Extent::decode(key, value).map_or(1, |extent| extent.blocks);
                remains.present.push(key.offset..key.offset.saturating_add(blocks.into()));
            }
            _ => {}
        }
    }
    found
}

/// Marks the holes of a file as lost, the first one of each hole for free. Where no mark is left, the file is
/// cut, and a line about it is returned.
fn mark_holes(
    metadata: &mut Metadata,
    number: InodeNumber,
    mut inode: Inode,
    present: Vec<Range<u64>>,
    marks: &mut u64,
) -> Option<String> {
    let size = inode.size;
    let mut at = 0;
    for next in present.into_iter().chain(std::iter::once(size.div_ceil(BLOCK)..u64::MAX)) {
        let hole = at;
        while at < next.start {
            if at > hole {
                let Some(left) = marks.checked_sub(1) else {
                    inode.size = at.saturating_mul(BLOCK);
                    metadata.put(&Inode::key(number), &inode.encode());
                    return Some(format!(
                        "inode {number} from byte {} to {size}: its holes are longer than a salvage marks as lost",
                        inode.size
                    ));
                };
                *marks = left;
            }
            let blocks = (next.start - at).min(MAX_GONE) as u32;
            let gone = Extent { block: at, blocks, place: ZoneBlock::new(GONE, 0), is_shared: false };
            metadata.put(&Extent::key(number, at), &gone.marked(GONE));
            at += u64::from(blocks);
        }
        at = at.max(next.end);
    }
    None
}

/// Inodes of a shard, and the inodes that names in its directories refer to.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Inodes that should have a name, with their types.
    inodes: Vec<(InodeNumber, FileType)>,
    /// Inodes that have a name.
    named: BTreeSet<InodeNumber>,
}

impl Names {
    /// Returns the inodes and names of these items.
    pub fn of(items: &Forest) -> Self {
        let mut names = Names::default();
        for (key, value) in items.items() {
            match key.kind {
                kind::INODE if key.inode != ROOT => match Inode::decode(value) {
                    Ok(inode) if inode.is_stripe() || inode.links == 0 => {}
                    Ok(inode) => names.inodes.push((key.inode, inode.file_type())),
                    Err(_) => {}
                },
                kind::ENTRY => names.named.extend(directory::decode(value).map(|(inode, ..)| inode)),
                _ => {}
            }
        }
        names
    }

    /// Adds the inodes and names of another shard.
    pub fn append(&mut self, mut other: Names) {
        self.inodes.append(&mut other.inodes);
        self.named.append(&mut other.named);
    }

    /// Returns the inodes without a name.
    pub fn unnamed(self) -> Vec<(InodeNumber, FileType)> {
        let Names { mut inodes, named } = self;
        inodes.retain(|(inode, _)| !named.contains(inode));
        inodes
    }
}

/// Creates an empty directory without a name in the inode group of the root, in memory. Returns its inode.
pub(crate) fn make_directory(metadata: &mut Metadata) -> InodeNumber {
    let group = metadata.items.group_of(ROOT);
    // The next number may be in use, if the stored one is damaged.
    let mut directory = metadata.take_number(group);
    while metadata.inode(directory).is_ok() {
        directory = metadata.take_number(group);
    }
    let inode = Inode { mode: FileType::Directory as u32 | 0o700, ..Inode::root_directory(0) };
    metadata.put(&Inode::key(directory), &inode.encode());
    directory
}

/// Adds a name of a file to a directory, in memory. Returns false if the name exists, without changing it.
///
/// # Errors
/// [`block::Error::Corrupt`] for damaged items of the directory; [`block::Error::NoSpace`] for too many names
/// with one hash.
pub(crate) fn put_name(
    metadata: &mut Metadata,
    directory: InodeNumber,
    name: &[u8],
    (inode, file_type): (InodeNumber, FileType),
) -> Result<bool> {
    let vacant = directory::find_or_vacant(&metadata.items, directory, name)?.err();
    if let Some(key) = vacant {
        metadata.put(&key, &directory::encode(inode, file_type.code(), name));
    }
    Ok(vacant.is_some())
}

/// Adds names in the directory `lost+found` for inodes whose names are lost, in memory. If that exists,
/// the directory is `lost+found.1` and so on.
pub(crate) async fn name_lost(shards: &Shards) -> Result<()> {
    let mut names = Names::default();
    for core in shards.all() {
        let of_shard = |core: Rc<Core>| async move { Ok(Names::of(&core.metadata.borrow().items)) };
        names.append(core.with(of_shard).await?);
    }
    let unnamed = names.unnamed();
    if unnamed.is_empty() {
        return Ok(());
    }
    let make = |core: Rc<Core>| async move { Ok(make_directory(&mut core.metadata.borrow_mut())) };
    let directory = shards.of(ROOT).with(make).await?;
    let mut number = 0;
    let path = loop {
        let name = match number {
            0 => LOST_AND_FOUND.to_owned(),
            number => format!("{LOST_AND_FOUND}.{number}"),
        };
        let holder = shards.holder(ROOT, name.as_bytes()).inode;
        let (named, given) = ((directory, FileType::Directory), name.clone());
        let put = move |core: Rc<Core>| async move {
            put_name(&mut core.metadata.borrow_mut(), holder, given.as_bytes(), named)
        };
        if shards.of(holder).with(put).await? {
            break name;
        }
        number += 1;
    };
    let fill = move |core: Rc<Core>| async move {
        let mut metadata = core.metadata.borrow_mut();
        for (inode, file_type) in unnamed {
            let name = format!("#{inode}");
            put_name(&mut metadata, directory, name.as_bytes(), (inode, file_type))?;
            let mut lost = core.opened.lost.borrow_mut();
            lost.note_with(|| format!("the name of inode {inode}: it is {path}/{name}"));
        }
        Ok(())
    };
    shards.of(directory).with(fill).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Released;

    #[test]
    fn sizes_that_are_damaged_take_no_more_marks_than_a_shard_has() {
        const FILES: u64 = 40;
        let mut metadata = Metadata::empty(Forest::new(1, &Released::new()));
        for number in 2..2 + FILES {
            // One block is missing.
            let mode = FileType::Regular as u32 | 0o600;
            let inode = Inode { mode, size: u64::MAX >> 1, blocks: 1, ..Inode::root_directory(0) };
            metadata.put(&Inode::key(number), &inode.encode());
        }
        let mut marks = 1000;
        let lines = replace_missing(&mut metadata, false, &mut marks);
        let extents = metadata.items.items().filter(|(key, _)| key.kind == kind::EXTENT).count() as u64;
        assert_eq!((marks, extents), (0, 1000 + FILES));
        assert_eq!(lines.iter().filter(|line| line.contains("marks as lost")).count() as u64, FILES);
        for number in 2..2 + FILES {
            let size = metadata.inode(number).unwrap().size;
            assert!((1..u64::MAX >> 1).contains(&size), "inode {number}: {size}");
        }
    }

    fn forest(extents: &[(InodeNumber, Extent)]) -> Forest {
        let mut items = Forest::new(1, &Released::new());
        for (inode, extent) in extents {
            items.put(&Extent::key(*inode, extent.block), &extent.marked(extent.place.zone.0 & GONE));
        }
        items
    }

    fn extent(block: u64, blocks: u32, zone: u32, position: u32) -> Extent {
        Extent { block, blocks, place: ZoneBlock::new(zone, position), is_shared: false }
    }

    fn told(items: &Forest, newer: Option<&Forest>) -> Vec<String> {
        let mut lost = LostParts::default();
        tell_unreadable(items, newer, &[1, 8], "", &mut lost);
        assert_eq!(lost.count, lost.lines.len() as u64);
        lost.lines
    }

    #[test]
    fn blocks_in_offline_zones_are_told_once() {
        let items =
            forest(&[(2, extent(0, 5, 7, 0)), (3, extent(0, 5, 8, 0)), (4, extent(0, 5, GONE | 9, 0))]);
        assert_eq!(
            told(&items, None),
            [
                "5 blocks of inode 3 in zone 8, which is offline",
                "5 blocks of inode 4 in zone 9, which was reset after the checkpoint that was read"
            ]
        );
        assert!(told(&items, Some(&items)).is_empty());
    }

    #[test]
    fn other_blocks_of_a_file_in_a_snapshot_are_told_though_they_are_in_the_same_zone() {
        // Blocks 4 to 6 were overwritten since, and inode 3 was removed.
        let present = forest(&[
            (2, extent(0, 4, 8, 100)),
            (2, extent(4, 2, 8, 500)),
            (2, extent(6, 4, 8, 106)),
            (4, extent(0, 1, 8, 300)),
        ]);
        let snapshot =
            forest(&[(2, extent(0, 10, 8, 100)), (3, extent(0, 3, 8, 200)), (4, extent(0, 1, 8, 300))]);
        assert_eq!(
            told(&snapshot, Some(&present)),
            [
                "2 blocks of inode 2 in zone 8, which is offline",
                "3 blocks of inode 3 in zone 8, which is offline"
            ]
        );
        assert_eq!(
            told(&present, Some(&snapshot)),
            ["2 blocks of inode 2 in zone 8, which is offline"],
            "the middle one"
        );
    }

    #[test]
    fn lines_beyond_the_most_are_counted_and_not_kept() {
        let files = 1100;
        let items = forest(&(2..2 + files).map(|inode| (inode, extent(0, 1, 8, 0))).collect::<Vec<_>>());
        let mut lost = LostParts::default();
        tell_unreadable(&items, None, &[8], "", &mut lost);
        assert_eq!(lost.count, files);
        assert!(lost.count > lost.lines.len() as u64);
    }
}
