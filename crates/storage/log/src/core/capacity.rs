//! Capacity of the log in its present state, by the rules of [`crate::capacity`].

use super::Core;
use crate::capacity::{Images, Planned};
use block::{Error, Result};
use logkit::Owner;

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
        self.images.get().0.most_pages()
    }

    /// Returns the most blocks of data that the log holds with `more` additional blocks in flight.
    pub fn capacity(&self, more: u64) -> u64 {
        let (images, zones) = self.images.get();
        match images.has_thin() {
            false => self.capacity_beside(zones),
            true => self.capacity_with(images, more),
        }
    }

    fn capacity_with(&self, images: Images, more: u64) -> u64 {
        let dirty = match images.has_thin() {
            false => 0,
            // Each block in flight may be the first of its page.
            true => more + self.dirty_thin_pages(),
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
        self.images.get().0.has_thin() && self.dirty_thin_pages() > 0
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
