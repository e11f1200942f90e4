//! Capacity of the log in its present state, by the rules of [`crate::capacity`].

use super::Core;
use crate::capacity::{Images, Planned};
use block::{Error, Result};
use logkit::Owner;
use std::rc::Rc;

impl Core {
    /// Recomputes the space that checkpoints may take, after versions were created, deleted or saved.
    pub fn measure_images(&self) {
        let images = Images::of(&self.versions.borrow(), None, &self.layout);
        self.images_number.set(self.images_number.get() + 1);
        self.set_images((images, images.zones(&self.layout, 0)));
    }

    fn set_images(&self, images: (Images, u64)) {
        self.images.set(images);
        // Whether dirty pages of large versions are counted depends on the images.
        self.publish_dirty();
        self.kit().events.settled.notify_all();
    }

    /// Recomputes the space that checkpoints may take after a change of versions, and passes it on to the
    /// other shards in a task: the call that made the change may have ended before it took effect.
    pub(super) fn versions_changed(&self) {
        self.measure_images();
        if self.peers.is_alone() {
            return;
        }
        let Ok(core) = self.peers.first().get() else { return };
        let publish = async move {
            // This fails only for a shard that has ended.
            let _ended = core.publish_images().await;
        };
        self.kit().tasks.spawn(publish).detach();
    }

    /// Passes the space that checkpoints may take, as the home has computed it, on to the other shards.
    ///
    /// # Errors
    /// [`Error::Closed`] for a shard that has ended.
    pub async fn publish_images(&self) -> Result<()> {
        let (images, number) = (self.images.get(), self.images_number.get());
        let set = move |core: Rc<Core>| async move {
            // Another message may have brought newer ones.
            if number > core.images_number.get() {
                core.images_number.set(number);
                core.set_images(images);
            }
            Ok(())
        };
        self.peers.each_other(set).await.map(drop)
    }

    /// Publishes the number of blocks of the newest directory, on the home.
    pub(super) fn publish_directory(&self) {
        self.peers.publish_directory(self.kit().checkpoints.directory_blocks(&self.layout));
    }

    /// Publishes the number of dirty pages of this shard, if others need it.
    pub(super) fn publish_dirty(&self) {
        if self.peers.is_alone() {
            return;
        }
        let thin = if self.images.get().0.has_thin() { self.dirty_thin_pages_here() } else { 0 };
        self.peers.publish_dirty(self.dirty_pages_here(), thin);
    }

    fn dirty_pages_here(&self) -> u64 {
        self.versions.borrow().list.iter().map(|version| version.dirty.len()).sum()
    }

    /// Number of pages of all versions that no checkpoint has, on all shards.
    pub fn dirty_pages(&self) -> u64 {
        match self.peers.is_alone() {
            true => self.dirty_pages_here(),
            false => self.dirty_pages_here() + self.peers.dirty_of_others().0,
        }
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
        match self.peers.is_alone() {
            true => self.dirty_thin_pages_here(),
            false => self.dirty_thin_pages_here() + self.peers.dirty_of_others().1,
        }
    }

    fn dirty_thin_pages_here(&self) -> u64 {
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
