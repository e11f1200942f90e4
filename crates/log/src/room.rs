//! How much data a log has room for, with the checkpoints of all its versions.
//!
//! The zones that are kept for checkpoints ([`Reserve`](crate::layout::Reserve)) are enough for a volume alone. Pages of
//! snapshots and clones, and those of a thin volume whose blocks lie far apart, take more, and what they take comes off
//! the capacity, so that a write is refused before it is acknowledged and not when no zone is left for it.
//!
//! The bound is one that writes don't raise, nor does the cleaner: a version that can be written counts as if it shared
//! no page with any other. So a discard, which takes a page of its own and no room for data, always goes through, and
//! what was admitted keeps its room. Making a version raises the bound, and is refused where what is live needs the
//! room. Only a version that is larger than the disk would take too much so: its pages are counted one by one.

use crate::core::Core;
use crate::directory::{self, PageTable};
use crate::format::VersionId;
use crate::layout::Layout;
use crate::map::PAGE_BLOCKS;
use crate::versions::Versions;
use block::{Error, Result};
use logkit::Owner;

/// What the checkpoints of all versions may take, in blocks, as far as writes don't change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Images {
    /// Pages of maps.
    pages: u64,
    /// The directory.
    directory: u64,
    /// Pages and chunks of the directory that versions larger than the disk have now, and can have at most.
    thin: u64,
    /// See `thin`.
    thin_most: u64,
}

/// A version that is about to be made.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    /// What it begins as a copy of.
    pub parent: VersionId,
    /// Whether it takes writes.
    pub writable: bool,
}

fn pages_of(blocks: u64) -> u64 {
    blocks.div_ceil(PAGE_BLOCKS)
}

impl Images {
    /// Those of a volume alone that is no larger than the disk.
    pub fn of_volume(layout: &Layout, blocks: u64) -> Images {
        let pages = pages_of(blocks);
        Images { pages, directory: directory::blocks_at_most(layout, pages), ..Images::default() }
    }

    /// Those of all versions, and of one more.
    pub fn of(versions: &Versions, planned: Option<Planned>, layout: &Layout) -> Images {
        let mut images = Images::default();
        let mut frozen: Vec<&PageTable> = Vec::new();
        let (mut chunks, mut entries) = (0, 0);
        let there = versions.list.iter().map(|version| (version, version.writable, version.unsaved));
        let planned = planned.and_then(|planned| {
            let parent = versions.get(planned.parent)?;
            Some((parent, planned.writable, parent.dirty.with(&parent.writing).len()))
        });
        for (version, writable, unsaved) in there.chain(planned) {
            let (pages, all) = (pages_of(version.blocks), directory::chunks_of(version.blocks));
            entries += directory::entry_bytes(version.blocks, version.name.len());
            match (writable, version.blocks > layout.blocks()) {
                (true, false) => (images.pages, chunks) = (images.pages + pages, chunks + all),
                (true, true) => {
                    let (now, parts) = directory::count_distinct(&[&version.table]);
                    images.thin += now + parts;
                    images.thin_most += pages + all;
                }
                (false, _) => {
                    frozen.push(&version.table);
                    images.pages += unsaved;
                    chunks += unsaved.min(all);
                }
            }
        }
        let (pages, parts) = directory::count_distinct(&frozen);
        images.pages += pages;
        images.directory = directory::blocks(layout, chunks + parts, entries);
        images
    }

    /// How many zones checkpoints take at most while `dirty` pages of thin versions are not on the medium: the durable
    /// image, as loosely as it may be packed, and another that is being written.
    pub(crate) fn zones(&self, layout: &Layout, dirty: u64) -> u64 {
        let thin = (self.thin + 2 * dirty).min(self.thin_most);
        let blocks = self.pages + self.directory + thin;
        let zone = u64::from(layout.zone_blocks);
        let packed = (blocks + blocks / 2).div_ceil(zone);
        let written = blocks + blocks / 64 + 2;
        packed + (written + written / 4).div_ceil((zone - 3).max(1))
    }
}

impl Core {
    /// Computes again what checkpoints may take: versions were made, deleted or saved.
    pub fn measure_images(&self) {
        let versions = self.versions.borrow();
        let images = Images::of(&versions, None, &self.layout);
        self.images.set((images, images.zones(&self.layout, 0)));
        self.kit().events.settled.notify_all();
    }

    /// How many pages a checkpoint writes at most, whichever are dirty: a page that versions share is dirty in each.
    pub fn most_pages(&self) -> u64 {
        let images = self.images.get().0;
        images.pages + images.thin_most
    }

    /// Most blocks of data that the log holds while so many more than now are in flight.
    pub fn capacity(&self, more: u64) -> u64 {
        let (images, zones) = self.images.get();
        match images.thin_most {
            0 => self.capacity_beside(zones),
            _ => self.capacity_with(images, more),
        }
    }

    fn capacity_with(&self, images: Images, more: u64) -> u64 {
        let dirty = match images.thin_most {
            0 => 0,
            // Each block in flight may be the first of its page.
            _ => more + self.dirty_thin_pages(),
        };
        self.capacity_beside(images.zones(&self.layout, dirty))
    }

    /// Most blocks of data beside checkpoints that take so many zones.
    fn capacity_beside(&self, zones: u64) -> u64 {
        let taken = match self.home {
            // No checkpoint is ever written.
            Some(_) => 0,
            None => zones,
        };
        let missing =
            taken.saturating_sub(self.settings.reserved_zones) + u64::from(self.kit().pool.damaged());
        self.settings.capacity.saturating_sub(missing * u64::from(self.kit().settings.data_blocks))
    }

    fn dirty_thin_pages(&self) -> u64 {
        let versions = self.versions.borrow();
        let thin =
            versions.list.iter().filter(|version| version.writable && version.blocks > self.layout.blocks());
        thin.map(|version| version.dirty.len() + version.writing.len()).sum()
    }

    /// Whether the room may be larger than it seems: which pages are empty by now is known once they are saved.
    pub fn checkpoint_may_help(&self) -> bool {
        self.images.get().0.thin_most > 0 && self.dirty_thin_pages() > 0
    }

    /// Says whether there is room for another version. No write is on its way.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where there is none.
    pub fn admit_version(&self, planned: Planned) -> Result<()> {
        let images = Images::of(&self.versions.borrow(), Some(planned), &self.layout);
        let capacity = self.capacity_with(images, 0);
        match self.kit().pool.live_data() <= capacity {
            true => Ok(()),
            false => Err(Error::no_space(format!(
                "the log holds {} blocks of data and would have room for {capacity}, as another version needs a map of \
                 its own: discard some, delete snapshots, or grow the disk",
                self.kit().pool.live_data(),
            ))),
        }
    }
}
