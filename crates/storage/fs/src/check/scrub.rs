//! Scrub: reads all blocks of files and pages of trees on the medium and verifies their checksums, while the
//! file system is in use.
//!
//! A shared block is read once, for one of its owners. Damage is reported, not repaired. For a file system
//! that isn't mounted, [`check`](mod@crate::check) also checks the rules for items.

use crate::classes::fair_queue::BACKGROUND;
use crate::core::Core;
use crate::core::checkpoint::unseal;
use crate::format::BLOCK;
use crate::metadata::extents::Extent;
use crate::metadata::inode::InodeNumber;
use crate::metadata::shared;
use crate::metadata::versions::{SnapshotNumber, own_blocks, visit_own_blocks};
use crate::names::path_of::{self, OpenVersion};
use crate::tree::{Key, PAGE};
use block::{Buffer, Error, Result, ZoneBlock};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most extents of one lookup.
const AT_ONCE: usize = 64;
/// Pages that are looked up and read at a time; no zone is reset meanwhile.
const PAGES_AT_ONCE: usize = 16;
/// Most blocks of one read.
const BLOCKS_AT_ONCE: u32 = 256;
/// Most problems that are described; further ones are only counted.
const MAX_DESCRIBED: usize = 100;

/// Result of a scrub.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scrubbed {
    /// Number of blocks of files that were read.
    pub blocks: u64,
    /// Number of pages of trees that were read.
    pub pages: u64,
    /// Descriptions of the first blocks and pages that are damaged or can't be read.
    pub damage: Vec<String>,
    /// Number of blocks and pages that are damaged or can't be read.
    pub damaged: u64,
}

/// Result of a shard, with the files of its damage.
#[derive(Debug, Default)]
struct Findings {
    scrubbed: Scrubbed,
    files: Vec<DamagedFile>,
}

/// File that a description of damage concerns.
#[derive(Debug)]
struct DamagedFile {
    /// Index of the description.
    described: usize,
    version: Option<SnapshotNumber>,
    inode: InodeNumber,
    /// Description after the file.
    rest: String,
}

impl Findings {
    fn note(&mut self, error: &Error) {
        self.note_text(error.detail().to_owned());
    }

    fn note_text(&mut self, text: String) {
        let found = &mut self.scrubbed;
        found.damaged += 1;
        if found.damage.len() < MAX_DESCRIBED {
            found.damage.push(text);
        }
    }

    /// Notes that blocks of a file at and after `block` can't be read.
    fn note_file(&mut self, version: Option<SnapshotNumber>, inode: InodeNumber, block: u64, error: &Error) {
        let own = format!("inode {inode}, ");
        let rest = match error.detail().strip_prefix(&own) {
            // Errors about checksums include the block.
            Some(rest) => rest.to_owned(),
            None => format!("from block {block} on: {}", error.detail()),
        };
        let described = self.scrubbed.damage.len();
        if described < MAX_DESCRIBED {
            self.files.push(DamagedFile { described, version, inode, rest: rest.clone() });
        }
        self.note_text(own + &rest);
    }
}

impl Scrubbed {
    /// Adds the result of another shard.
    pub fn add(&mut self, other: Scrubbed) {
        self.blocks += other.blocks;
        self.pages += other.pages;
        self.damaged += other.damaged;
        let left = MAX_DESCRIBED.saturating_sub(self.damage.len());
        self.damage.extend(other.damage.into_iter().take(left));
    }
}

/// Reads all blocks and pages of this shard on the medium. Adds the number of blocks read to `progress`.
///
/// # Errors
/// [`Error::Closed`] if the file system is being closed. Damage is part of the result, not an error.
pub async fn scrub(core: &Rc<Core>, progress: &AtomicU64) -> Result<Scrubbed> {
    let mut found = Findings::default();
    let groups = core.metadata.borrow().items.groups();
    for group in 0..groups {
        scrub_pages(core, None, group, &mut found).await?;
        let mut from = Some(Key::MIN);
        while let Some(first) = from {
            let extents;
            (extents, from) = extents_from(core, group, &first, &mut found);
            for (inode, extent) in extents {
                core.admission.check_alive()?;
                scrub_extent(core, None, inode, &extent, progress, &mut found).await;
            }
            // There may be many items without data.
            runtime::yield_now().await;
        }
        let snapshots: Vec<SnapshotNumber> =
            core.metadata.borrow().snapshots.all().iter().map(|it| it.number).collect();
        for number in snapshots {
            scrub_snapshot(core, number, group, progress, &mut found).await?;
        }
    }
    name_files(core, &mut found).await?;
    Ok(found.scrubbed)
}

/// Adds the paths of files to the descriptions of damage, if names refer to the files.
async fn name_files(core: &Core, found: &mut Findings) -> Result<()> {
    let versions: BTreeSet<_> = found.files.iter().map(|it| it.version).collect();
    for version in versions {
        let of_version = || found.files.iter().filter(|it| it.version == version);
        let inodes = of_version().map(|it| it.inode).collect();
        // A snapshot may have been deleted meanwhile.
        let Ok(paths) = path_of::paths_of(&OpenVersion(core, version), &inodes).await else {
            core.admission.check_alive()?;
            continue;
        };
        let of = match version {
            None => String::new(),
            Some(number) => show_snapshot(core, number).await?,
        };
        for file in of_version() {
            if let Some(path) = paths.get(&file.inode) {
                found.scrubbed.damage[file.described] =
                    format!("{of}file \"{path}\" (inode {}): {}", file.inode, file.rest);
            }
        }
    }
    Ok(())
}

/// Text for a snapshot in a message, before a file of it; its number if it has been deleted.
async fn show_snapshot(core: &Core, number: SnapshotNumber) -> Result<String> {
    let list = |core: Rc<Core>| async move { Ok(core.snapshot_list.there()) };
    let there = core.shards().first().with(list).await?;
    let name = there.into_iter().find(|it| it.number == number).map(|it| it.name);
    Ok(format!("snapshot \"{}\": ", name.unwrap_or_else(|| number.to_string())))
}

/// Reads the blocks and pages of an inode group that a snapshot has and the next newer version doesn't. The
/// snapshot may be deleted meanwhile.
async fn scrub_snapshot(
    core: &Core,
    number: SnapshotNumber,
    group: u32,
    progress: &AtomicU64,
    found: &mut Findings,
) -> Result<()> {
    scrub_pages(core, Some(number), group, found).await?;
    let Some(extents) = own_of(core, number, group, found) else { return Ok(()) };
    for (inode, extent) in extents {
        core.admission.check_alive()?;
        scrub_extent(core, Some(number), inode, &extent, progress, found).await;
    }
    Ok(())
}

/// Returns extents of a snapshot that the next newer version doesn't have, with their inodes; `None` if
/// the snapshot was deleted.
fn own_of(
    core: &Core,
    number: SnapshotNumber,
    group: u32,
    found: &mut Findings,
) -> Option<Vec<(InodeNumber, Extent)>> {
    let mut extents = Vec::new();
    let metadata = core.metadata.borrow();
    let (items, newer) = metadata.snapshots.beside_newer(number, &metadata.items).ok()?;
    let visited = visit_own_blocks(items.tree(group), newer, group, |inode, extent| {
        shared::visit_owned(items, inode, extent, |inode, extent| extents.push((inode, extent)))
    });
    if let Err(error) = visited {
        found.note(&error);
    }
    Some(extents)
}

/// Returns the next extents with data of an inode group, and the key at which to continue; `None` at the end.
fn extents_from(
    core: &Core,
    group: u32,
    from: &Key,
    found: &mut Findings,
) -> (Vec<(InodeNumber, Extent)>, Option<Key>) {
    let metadata = core.metadata.borrow();
    let (mut extents, mut next) = (Vec::new(), None);
    for (key, value) in metadata.items.tree(group).range(from).take(AT_ONCE) {
        next = key.next();
        let owned = match own_blocks(&key, value) {
            Ok(Some((inode, extent))) => {
                let push = |inode, extent| extents.push((inode, extent));
                shared::visit_owned(&metadata.items, inode, extent, push)
            }
            other => other.map(drop),
        };
        if let Err(error) = owned {
            found.note(&error);
        }
    }
    (extents, next)
}

/// Reads the present contents of a file in the blocks of an extent.
async fn scrub_extent(
    core: &Core,
    version: Option<SnapshotNumber>,
    inode: InodeNumber,
    extent: &Extent,
    progress: &AtomicU64,
    found: &mut Findings,
) {
    let mut block = extent.block;
    while block < extent.end() {
        let count = (extent.end() - block).min(BLOCKS_AT_ONCE.into());
        let length = (count * BLOCK) as usize;
        match core.read_in(BACKGROUND, version, inode, block * BLOCK, length).await {
            Ok(_) => {}
            // The file was removed meanwhile.
            Err(_) if core.in_version(version, |metadata| metadata.inode(inode)).is_err() => return,
            Err(error) => found.note_file(version, inode, block, &error),
        }
        found.scrubbed.blocks += count;
        progress.fetch_add(count, Ordering::Relaxed);
        block += count;
    }
}

/// Reads the pages of a tree on the medium; for a snapshot, those that the next newer version doesn't
/// have. The snapshot may be deleted meanwhile.
async fn scrub_pages(
    core: &Core,
    version: Option<SnapshotNumber>,
    group: u32,
    found: &mut Findings,
) -> Result<()> {
    let mut from = Some(Key::MIN);
    while let Some(first) = from {
        core.admission.check_alive()?;
        // The turn is taken before zones are kept from being reset: writes that wait for zones hold
        // turns.
        let _turn = core.admission.classes.take(BACKGROUND, (PAGES_AT_ONCE * PAGE) as u64).await;
        // No zone with these pages is reset until they are read. Writers may wait for that.
        let _reading = core.reader.reads.begin();
        let mut places = Vec::with_capacity(PAGES_AT_ONCE);
        from = places_from(core, version, group, &first, &mut places);
        for place in places {
            found.scrubbed.pages += 1;
            if let Err(error) = scrub_page(core, place).await {
                found.note(&error);
            }
        }
    }
    Ok(())
}

/// Finds the next pages of a tree to read. Returns the key at which to continue; `None` at the end.
fn places_from(
    core: &Core,
    version: Option<SnapshotNumber>,
    group: u32,
    from: &Key,
    places: &mut Vec<ZoneBlock>,
) -> Option<Key> {
    let metadata = core.metadata.borrow();
    let (items, newer) = match version {
        None => (&metadata.items, None),
        Some(number) => {
            let (items, newer) = metadata.snapshots.beside_newer(number, &metadata.items).ok()?;
            (items, Some(newer.tree(group)))
        }
    };
    items.tree(group).visit_own_places_from(newer, from, PAGES_AT_ONCE, |place| places.push(place))
}

async fn scrub_page(core: &Core, place: ZoneBlock) -> Result<()> {
    let layout = &core.kit.layout;
    let address = layout.address(place.zone.0, place.block);
    let (outcome, mut buffer) = core.kit.zones.read(address, Buffer::new(layout.block_bytes())).await;
    outcome?;
    let page: &mut [u8; PAGE] = buffer
        .filled_mut()
        .try_into()
        .map_err(|_| Error::io(format!("tree page \"{place}\": read in part")))?;
    unseal(page, &core.kit.identity, place)
}
