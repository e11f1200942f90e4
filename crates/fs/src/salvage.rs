//! Salvage of a damaged file system: read-only access to its intact files, and a list of the losses.
//!
//! Such a file system takes no changes, and none of its background work runs. A page of metadata that can't be read costs the items in
//! it: names, attributes or blocks of files. Each is told. What is left is reachable:
//! - Blocks in zones that were reset after the checkpoint that was read are errors, and never what is there now ([`GONE`]).
//! - A file or directory without attributes gets some.
//! - A file or directory without a name gets one in `lost+found`.
//!
//! Left to others: reading the trees (`recovery`), and pages (`tree`).

use crate::core::Core;
use crate::directory;
use crate::extents::Extent;
use crate::file_system::FileSystem;
use crate::forest::Forest;
use crate::format::BLOCK;
use crate::inode::{FileType, Inode, InodeNumber, ROOT, kind};
use crate::metadata::Metadata;
use crate::shared::{FIRST_KEEPER, Run};
use crate::tree::Key;
use block::Result;
use logkit::Layout;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// Limit of what opening writes, which stays in memory: roots.
pub(crate) const MOST_BYTES: u64 = 64 << 20;

/// Most parts that are described; others are counted.
const MOST_LINES: usize = 1000;

/// Directory in the root with the files whose names can't be read, each named `#` and its inode.
const LOST_AND_FOUND: &str = "lost+found";

/// Bit of the zone of an extent whose blocks are gone: its zone was reset after the checkpoint that was read. No zone has it, so a
/// read of the extent is an error, and not the data that is in the zone now.
pub(crate) const GONE: u32 = 1 << 31;

/// Most blocks of an extent for blocks that are lost.
const MOST_GONE: u64 = 1 << 30;

/// Most extents for lost blocks on a core, beside one for each hole: the size of a damaged inode may be any number.
pub(crate) const MOST_MARKS: u64 = 1 << 16;

/// The parts that couldn't be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LostParts {
    /// The first of them, in words.
    pub lines: Vec<String>,
    /// Number of all.
    pub count: u64,
}

impl LostParts {
    /// Adds a part.
    pub fn note(&mut self, line: String) {
        self.count += 1;
        if self.lines.len() < MOST_LINES {
            self.lines.push(line);
        }
    }

    /// Adds other parts.
    pub fn append(&mut self, others: LostParts) {
        let described = others.lines.len() as u64;
        others.lines.into_iter().for_each(|line| self.note(line));
        self.count += others.count - described;
    }
}

/// Marks the extents and runs of a version that are in zones that were reset since, or out of the bounds of the zones. Returns what is
/// wrong with items that can't be decoded.
pub(crate) fn mark_gone(items: &mut Forest, layout: &Layout, reset_since: &[u32]) -> Vec<String> {
    let is_gone = |extent: &Extent| {
        let is_reset = !extent.is_preallocated() && reset_since.binary_search(&extent.zone).is_ok();
        extent.zone & GONE == 0 && (is_reset || !extent.is_within(layout))
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

/// Blocks of files that are [`GONE`] or in offline zones, in words, a line for each file and zone; not those that were `told` before.
pub(crate) fn tell_unreadable(
    items: &Forest,
    offline: &[u32],
    told: &mut BTreeSet<(InodeNumber, u32)>,
) -> Vec<String> {
    let mut unreadable: BTreeMap<(InodeNumber, u32), u64> = BTreeMap::new();
    for (key, value) in items.items().filter(|(key, _)| key.kind == kind::EXTENT && key.inode != 0) {
        if let Ok(extent) = Extent::decode(key, value)
            // Holes that may be lost blocks are told with their file.
            && extent.zone != GONE
            && !extent.is_preallocated()
            && (extent.zone & GONE != 0 || offline.binary_search(&extent.zone).is_ok())
        {
            *unreadable.entry((key.inode, extent.zone)).or_default() += u64::from(extent.blocks);
        }
    }
    let line = |((inode, zone), blocks)| {
        let why = match zone & GONE {
            0 => "is offline",
            _ => "was reset after the checkpoint that was read",
        };
        format!("{blocks} blocks of inode {inode} in zone {}, which {why}", zone & !GONE)
    };
    unreadable.into_iter().filter(|(place, _)| told.insert(*place)).map(line).collect()
}

/// What is left of an inode.
struct Remains {
    inode: Option<Inode>,
    /// Its type by other items, where the inode is missing.
    file_type: FileType,
    /// The blocks that it has, in rising order.
    present: Vec<Range<u64>>,
}

/// Puts inodes where they are missing and their names or blocks aren't: a directory, or a file as long as its blocks. Where a file has
/// fewer blocks than it should have, its holes can't be told from lost blocks, and become [`GONE`]: an extent for each hole, and more for long ones
/// as long as there are `marks`; then the file is cut off. Returns all of that in words. With `has_root`, the root directory is of these shards.
pub(crate) fn replace_missing(metadata: &mut Metadata, has_root: bool, marks: &mut u64) -> Vec<String> {
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
    let mut lines = Vec::new();
    for (number, Remains { inode, file_type, present }) in found {
        let has: u64 = present.iter().map(|range| range.end - range.start).sum();
        let (size, is_whole) = match &inode {
            Some(inode) => (inode.size, inode.file_type() != FileType::Regular || has >= inode.blocks),
            None => (
                present.last().map_or(0, |last| last.end.saturating_mul(BLOCK)),
                file_type != FileType::Regular,
            ),
        };
        if inode.is_none() {
            let what = match file_type {
                FileType::Directory => "directory",
                FileType::Link => "symbolic link",
                _ => "file",
            };
            lines
                .push(format!("attributes of inode {number}, a {what}: it is shown with those of a new one"));
        }
        let lost = inode.as_ref().map_or(0, |inode| inode.blocks.saturating_sub(has));
        let is_new = inode.is_none();
        let mut inode = inode.unwrap_or_else(|| Inode {
            mode: file_type as u32 | 0o700,
            size,
            ..Inode::root_directory(0)
        });
        if is_new {
            metadata.put(&Inode::key(number), &inode.encode());
        }
        if is_whole {
            continue;
        }
        lines.push(format!(
            "blocks of inode {number}, at least {lost}: its holes may be these and can't be read"
        ));
        let mut at = 0;
        'file: for next in present.into_iter().chain(std::iter::once(size.div_ceil(BLOCK)..u64::MAX)) {
            let hole = at;
            while at < next.start {
                if at > hole {
                    match marks.checked_sub(1) {
                        Some(left) => *marks = left,
                        None => {
                            inode.size = at.saturating_mul(BLOCK);
                            metadata.put(&Inode::key(number), &inode.encode());
                            lines.push(format!(
                                "inode {number} from byte {} to {size}: its holes are longer than a salvage marks as lost",
                                inode.size
                            ));
                            break 'file;
                        }
                    }
                }
                let blocks = (next.start - at).min(MOST_GONE) as u32;
                let gone = Extent { block: at, blocks, zone: GONE, position: 0, is_shared: false };
                metadata.put(&Extent::key(number, at), &gone.marked(GONE));
                at += u64::from(blocks);
            }
            at = at.max(next.end);
        }
    }
    lines
}

/// Inodes of a core, and the inodes that its directories name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Inodes that should have a name, with their types.
    inodes: Vec<(InodeNumber, FileType)>,
    /// Inodes that have one.
    named: BTreeSet<InodeNumber>,
}

impl Names {
    /// The inodes and names of these items.
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

    /// Adds those of another core.
    pub fn append(&mut self, mut other: Names) {
        self.inodes.append(&mut other.inodes);
        self.named.append(&mut other.named);
    }

    /// Inodes without a name.
    pub fn unnamed(self) -> Vec<(InodeNumber, FileType)> {
        let Names { mut inodes, named } = self;
        inodes.retain(|(inode, _)| !named.contains(inode));
        inodes
    }
}

/// Makes an empty directory without a name in the shard of the root, in memory. Returns its inode.
pub(crate) fn make_directory(metadata: &mut Metadata) -> InodeNumber {
    let shard = metadata.items.shard_of(ROOT);
    // The next number may be one that is taken: what says so may be damaged.
    let mut directory = metadata.take_number(shard);
    while metadata.inode(directory).is_ok() {
        directory = metadata.take_number(shard);
    }
    let inode = Inode { mode: FileType::Directory as u32 | 0o700, ..Inode::root_directory(0) };
    metadata.put(&Inode::key(directory), &inode.encode());
    directory
}

/// Gives a file a name in a directory, in memory. Returns false where the name is there, which stays.
///
/// # Errors
/// [`block::Error::Corrupt`] for damaged items of the directory; [`block::Error::NoSpace`] for too many of one hash.
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

impl FileSystem {
    /// Gives inodes whose names can't be read names in the directory `lost+found`, in memory; in `lost+found.1` and so on where there is one.
    pub(crate) async fn name_lost(&self) -> Result<()> {
        let mut names = Names::default();
        for core in self.cores().all() {
            let of_core = |core: Rc<Core>| async move { Ok(Names::of(&core.metadata.borrow().items)) };
            names.append(core.with(of_core).await?);
        }
        let unnamed = names.unnamed();
        if unnamed.is_empty() {
            return Ok(());
        }
        let make = |core: Rc<Core>| async move { Ok(make_directory(&mut core.metadata.borrow_mut())) };
        let directory = self.cores().of(ROOT).with(make).await?;
        let mut number = 0;
        let path = loop {
            let name = match number {
                0 => LOST_AND_FOUND.to_owned(),
                number => format!("{LOST_AND_FOUND}.{number}"),
            };
            let holder = self.cores().holder(ROOT, name.as_bytes()).inode;
            let (named, given) = ((directory, FileType::Directory), name.clone());
            let put = move |core: Rc<Core>| async move {
                put_name(&mut core.metadata.borrow_mut(), holder, given.as_bytes(), named)
            };
            if self.cores().of(holder).with(put).await? {
                break name;
            }
            number += 1;
        };
        let fill = move |core: Rc<Core>| async move {
            let mut metadata = core.metadata.borrow_mut();
            for (inode, file_type) in unnamed {
                let name = format!("#{inode}");
                put_name(&mut metadata, directory, name.as_bytes(), (inode, file_type))?;
                core.lost.borrow_mut().note(format!("the name of inode {inode}: it is {path}/{name}"));
            }
            Ok(())
        };
        self.cores().of(directory).with(fill).await
    }

    /// Whether it is open to be salvaged.
    ///
    /// # Errors
    /// [`block::Error::Closed`].
    pub async fn is_salvaged(&self) -> Result<bool> {
        self.with(|core: Rc<Core>| async move { Ok(core.is_salvaged) }).await
    }

    /// What can't be read of a file system that is open to be salvaged.
    ///
    /// # Errors
    /// [`block::Error::Closed`].
    pub async fn lost(&self) -> Result<LostParts> {
        let mut all = LostParts::default();
        for core in self.cores().all() {
            all.append(core.with(|core: Rc<Core>| async move { Ok(core.lost.borrow().clone()) }).await?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Released;

    #[test]
    fn sizes_that_are_damaged_take_no_more_marks_than_a_core_has() {
        const FILES: u64 = 40;
        let mut metadata = Metadata::empty(Forest::new(1, &Released::new()));
        for number in 2..2 + FILES {
            // A block is missing.
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

    #[test]
    fn blocks_in_offline_zones_are_told_once() {
        let mut items = Forest::new(1, &Released::new());
        for (inode, zone) in [(2, 7), (3, 8), (4, GONE | 9)] {
            let extent = Extent { block: 0, blocks: 5, zone, position: 0, is_shared: false };
            items.put(&Extent::key(inode, 0), &extent.marked(0));
        }
        let mut told = BTreeSet::new();
        let lines = tell_unreadable(&items, &[1, 8], &mut told);
        assert_eq!(
            lines,
            [
                "5 blocks of inode 3 in zone 8, which is offline",
                "5 blocks of inode 4 in zone 9, which was reset after the checkpoint that was read"
            ]
        );
        assert!(tell_unreadable(&items, &[1, 8], &mut told).is_empty());
    }
}
