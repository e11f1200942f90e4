//! Capacity of a log for data, in addition to the checkpoints of all its versions.
//!
//! The zones that are reserved for checkpoints ([`Reserve`]) are enough for a volume alone. Pages of
//! snapshots and clones, and those of a sparse thin volume, take more. The additional space is subtracted
//! from the capacity, so that a write is refused before it is acknowledged.
//!
//! Neither writes nor the cleaner raise the bound: a writable version is counted as if it shared no page with
//! any other. So a discard, which takes a page of its own and no capacity for data, is always admitted, and
//! admitted data keeps its capacity. Creating a version raises the bound, and is refused if live data needs
//! the capacity. A version larger than the disk would take too much under that rule, so its pages are counted
//! one by one.

use crate::directory::{self, PageTable};
use crate::format::VersionId;
use crate::layout::Layout;
use crate::map::PAGE_BLOCKS;
use crate::versions::Versions;
use logkit::layout::ROOT_ZONES;

/// Largest share of the capacity for data that a volume may take, in percent. With less free space the
/// cleaner would move more than 16 blocks for each written one.
pub const MAX_SHARE: u64 = 97;

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
    /// Number of pages of the parent that no checkpoint has.
    pub unsaved: u64,
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
            Some((parent, planned.writable, planned.unsaved))
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

    /// Returns the most pages that a checkpoint writes.
    pub(crate) fn most_pages(&self) -> u64 {
        self.pages + self.thin_most
    }

    /// Returns whether there is a version larger than the disk.
    pub(crate) fn has_thin(&self) -> bool {
        self.thin_most > 0
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

/// Zones that a log reserves in addition to users' data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve {
    /// Users' and the cleaner's open zones, and those that are being sealed.
    pub open: u32,
    /// Free zones with which the cleaner always makes progress.
    pub cleaner: u32,
    /// Zones of the checkpoints of this volume's map.
    pub checkpoints: u32,
}

impl Reserve {
    /// Returns the reserve for a volume of `blocks` blocks with `open` open zones.
    pub fn new(layout: &Layout, blocks: u64, open: u32) -> Self {
        let pages = blocks.div_ceil(PAGE_BLOCKS);
        // Two complete images with their directories may exist at a time: the durable one and the next one.
        let image = pages + directory::blocks_at_most(layout, pages);
        let per_zone = u64::from(layout.zone_blocks.saturating_sub(2 + layout.zone_blocks / 64).max(1));
        let checkpoints = (2 * image).div_ceil(per_zone) as u32 + 2;
        // The cleaner has a zone that is being sealed. On each shard it fills one, and discards in a full log
        // take one.
        Reserve { open, cleaner: 1 + 2 * layout.stripes.shards(), checkpoints }
    }

    /// Number of all reserved zones.
    pub fn zones(&self) -> u32 {
        self.open.saturating_add(self.cleaner).saturating_add(self.checkpoints).saturating_add(ROOT_ZONES)
    }
}

/// Returns the capacity for data of a log with this reserve, in blocks.
pub fn capacity(layout: &Layout, reserve: &Reserve) -> u64 {
    u64::from(layout.zones.saturating_sub(reserve.zones())) * u64::from(layout.data_blocks())
}
