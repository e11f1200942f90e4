//! Capacity of a log for data, in addition to the checkpoints of all its versions.
//!
//! The zones that are reserved for checkpoints ([`Reserve`](crate::layout::Reserve)) are enough for a volume
//! alone. Pages of snapshots and clones, and those of a sparse thin volume, take more. The additional space
//! is subtracted from the capacity, so that a write is refused before it is acknowledged.
//!
//! Neither writes nor the cleaner raise the bound: a writable version is counted as if it shared no page with
//! any other. So a discard, which takes a page of its own and no capacity for data, is always admitted, and
//! admitted data keeps its capacity. Creating a version raises the bound, and is refused if live data needs
//! the capacity. A version larger than the disk would take too much under that rule, so its pages are counted
//! one by one.

use crate::core::Core;
use crate::directory::{self, PageTable};
use crate::format::VersionId;
use crate::layout::Layout;
use crate::map::PAGE_BLOCKS;
use crate::versions::Versions;
use block::{Error, Result};
use logkit::Owner;

/// Space that the checkpoints of all versions may take, in blocks, without the share that depends on writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Images {
    /// Pages of maps.
    pages: u64,
    /// The directory.
    directory: u64,
    /// Pages and directory chunks that versions larger than the disk have now.
    thin: u64,
    /// Most pages and directory chunks that versions larger than the disk can have.
    thin_most: u64,
}

/// A version that is about to be created.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    /// Version that the new one is a copy of.
    pub parent: VersionId,
    /// Whether the version takes writes.
    pub writable: bool,
}

fn pages_of(blocks: u64) -> u64 {
    blocks.div_ceil(PAGE_BLOCKS)
}

impl Images {
    /// Returns the space for a volume alone that is no larger than the disk.
    pub fn of_volume(layout: &Layout, blocks: u64) -> Images {
        let pages = pages_of(blocks);
        Images { pages, directory: directory::blocks_at_most(layout, pages), ..Images::default() }
    }

    /// Returns the space for all versions, and for one planned version.
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

    /// Returns the most zones that checkpoints take while `dirty` pages of thin versions are not on the
    /// medium: the durable image at its loosest packing, and another image in flight.
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
    /// Recomputes the space that checkpoints may take, after versions were created, deleted or saved.
    pub fn measure_images(&self) {
        let versions = self.versions.borrow();
        let images = Images::of(&versions, None, &self.layout);
        self.images.set((images, images.zones(&self.layout, 0)));
        self.kit().events.settled.notify_all();
    }

    /// Returns the most pages that a checkpoint writes: a dirty page that versions share is dirty in each.
    pub fn most_pages(&self) -> u64 {
        let images = self.images.get().0;
        images.pages + images.thin_most
    }

    /// Returns the most blocks of data that the log holds with `more` additional blocks in flight.
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

    /// Returns the most blocks of data if checkpoints take `zones` zones.
    fn capacity_beside(&self, zones: u64) -> u64 {
        let taken = match self.home {
            // A log with a map home writes no checkpoint.
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

    /// Returns whether a checkpoint may raise the capacity: pages that have become empty are found only when
    /// they are saved.
    pub fn checkpoint_may_help(&self) -> bool {
        self.images.get().0.thin_most > 0 && self.dirty_thin_pages() > 0
    }

    /// Checks that there is capacity for another version. No write may be in flight.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is none.
    pub fn admit_version(&self, planned: Planned) -> Result<()> {
        let images = Images::of(&self.versions.borrow(), Some(planned), &self.layout);
        let capacity = self.capacity_with(images, 0);
        match self.kit().pool.live_data() <= capacity {
            true => Ok(()),
            false => Err(Error::no_space(format!(
                "the log has {} blocks of data; expected at most {capacity} with another version, which needs a map of its \
                 own; discard some data, delete snapshots, or grow the disk",
                self.kit().pool.live_data(),
            ))),
        }
    }
}
