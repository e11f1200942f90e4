//! Checkpoints of the maps ([`logkit::checkpoint`] has the rules): dirty pages, their contents and their
//! locations.
//!
//! No version may be created or deleted between the first page and the directory, as pages would then be of
//! different sets of versions. If that happens, the checkpoint starts over; pages that it has written stay
//! valid. If the shards have different versions from the start, nothing is written, and each shard marks the
//! pages that it gave up as dirty again, in its own versions: it may have a version that the home doesn't
//! have yet. While several versions exist, no block is moved during a checkpoint
//! ([`Core::moves_exclude_checkpoints`](logkit::Owner::moves_exclude_checkpoints)).

use super::Core;
use crate::directory::{Directory, PagePlace};
use crate::format::VersionId;
use crate::map::{Map, PAGE_BLOCKS, Physical};
use crate::versions::{PageSet, Version};
use block::{Buffer, Error, Result, ZoneBlock, ZoneIndex};
use logkit::checkpoint::{self, Cut};
use logkit::moves::wait_for_moves;
use logkit::pool::{CHECKPOINT_CLASS, Usage, Zone};
use logkit::record::sum_of;
use logkit::{Owner, Sequences, StreamId};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of metadata per page of a record: version and page.
const PAGE_NAME: usize = 8;
/// Largest number of restarts of a checkpoint because versions were created or deleted meanwhile.
const MAX_ATTEMPTS: u32 = 100;
/// Number of pages between two yields to other tasks.
const PAGES_AT_ONCE: usize = 4;
/// Time until all shards have the same versions.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(1);

/// Pages that are part of the durable checkpoint and no longer of the maps. The next checkpoint frees them.
#[derive(Debug, Default)]
pub struct Superseded(RefCell<Vec<(u64, Physical)>>);

impl Superseded {
    fn add(&self, pages: impl IntoIterator<Item = (u64, Physical)>) {
        self.0.borrow_mut().extend(pages);
    }
}

/// State of a version for a checkpoint: its dirty pages, and its map.
type FrozenVersion = (VersionId, PageSet, Arc<dyn Map>);

/// State of a shard at the time when its dirty pages were taken.
struct Frozen {
    /// Number of versions that the shard has created and deleted.
    changes: u64,
    /// Last records that had taken effect.
    committed: [(StreamId, u64); 2],
    /// The versions, parents before their children.
    dirty: Vec<FrozenVersion>,
}

/// Versions whose pages are all on the medium, for a checkpoint that names them.
struct Written {
    cut: Cut,
    /// The owner's part of the directory.
    directory: Vec<u8>,
    /// Pages that this directory doesn't name.
    freed: Vec<(u64, Physical)>,
    versions: Vec<VersionId>,
}

/// State of all shards for a checkpoint.
struct FrozenVersions {
    changes: u64,
    /// Whether all shards had the same versions.
    is_consistent: bool,
    cut: Cut,
    dirty: Vec<FrozenVersion>,
}

/// The pages to write, in order.
fn jobs_of(dirty: &[FrozenVersion]) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    for (version, pages, _) in dirty {
        jobs.extend(pages.iter().map(|page| Job { page, version: *version }));
    }
    // Stable sort: for each page, parents come before their children, whose images are often identical.
    jobs.sort_by_key(|job| job.page);
    jobs
}

/// A page to write.
#[derive(Debug, Clone, Copy)]
struct Job {
    page: u64,
    version: VersionId,
}

impl Core {
    /// Approximate number of blocks that a checkpoint would take now.
    pub(crate) fn pages_cost(&self) -> u64 {
        if self.home.is_some() {
            // A transaction takes only a few lines per block.
            return 0;
        }
        // A page that versions share is written once.
        let dirty = self.dirty_pages().min(self.most_pages());
        let directory = match self.peers.index() {
            0 => self.kit().checkpoints.directory_blocks(&self.kit().layout),
            _ => self.peers.directory(),
        };
        dirty + dirty / 64 + directory + 2
    }

    /// Number of free zones that a checkpoint may need.
    pub(crate) fn zones_for_checkpoint(&self) -> u32 {
        if self.home.is_some() {
            return 0;
        }
        let per_zone = u64::from(self.layout.zone_blocks - 3).max(1);
        let cost = self.pages_cost();
        // The dirty pages, and a quarter for pages that become dirty before the checkpoint begins.
        (cost + cost / 4).div_ceil(per_zone) as u32 + 1
    }

    /// Writes a checkpoint. With `clean`, it is the last one before the log is closed.
    ///
    /// # Errors
    /// Errors of writing. The previous checkpoint stays authoritative, unless the root failed: then it is
    /// unknown which root is authoritative, and the log takes no more writes.
    pub async fn write_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        if let Some(home) = &self.home {
            return home.clone().checkpoint(self.clone(), clean).await;
        }
        let write = async || {
            self.compact_checkpoints();
            let written = self.write_versions().await;
            let is_written = written.is_ok();
            let outcome = match written {
                Ok(written) => self.commit_versions(written, clean).await,
                Err(error) => Err(error),
            };
            self.thaw(is_written);
            let thaw = move |core: Rc<Core>| async move {
                core.thaw(is_written);
                core.kit().turns.end_checkpoint();
                Ok(())
            };
            outcome.and(self.peers.each_other(thaw).await.map(drop))
        };
        checkpoint::take(self, write).await
    }

    /// Writes a checkpoint, on the home.
    ///
    /// # Errors
    /// Errors of [`write_checkpoint`](Self::write_checkpoint).
    pub async fn checkpoint_at_home(self: &Rc<Self>) -> Result<()> {
        if self.peers.is_alone() {
            return self.write_checkpoint(false).await;
        }
        self.peers.first().with(|core: Rc<Core>| async move { core.write_checkpoint(false).await }).await
    }

    /// Takes the dirty pages of this shard for a checkpoint, with the last records that they include: nothing
    /// is awaited in between.
    fn freeze(&self) -> Frozen {
        let kit = self.kit();
        let own = [kit.settings.user_stream, kit.settings.cleaner_stream];
        let mut versions = self.versions.borrow_mut();
        let mut dirty = Vec::with_capacity(versions.list.len());
        for version in &mut versions.list {
            let pages = std::mem::take(&mut version.dirty);
            // A version that is created from this one has them, and those of an earlier attempt.
            version.writing = version.writing.with(&pages);
            dirty.push((version.id, pages, version.map.clone()));
        }
        let frozen = Frozen {
            changes: versions.changes,
            committed: own.map(|stream| (stream, self.appender().committed(stream))),
            dirty,
        };
        drop(versions);
        self.publish_dirty();
        frozen
    }

    /// Freezes this shard once its moves permit it, as on the home.
    async fn freeze_for_home(&self) -> Result<Frozen> {
        self.kit().turns.begin_checkpoint();
        wait_for_moves(self).await;
        Ok(self.freeze())
    }

    /// Ends a checkpoint, or an attempt that has written nothing, on this shard. Pages that may not be
    /// written are dirty again in the same turn, so that a version that is created later has them.
    fn thaw(&self, is_written: bool) {
        let mut versions = self.versions.borrow_mut();
        for version in &mut versions.list {
            let pages = std::mem::take(&mut version.writing);
            if !is_written {
                version.dirty = version.dirty.with(&pages);
            }
        }
        drop(versions);
        self.publish_dirty();
    }

    /// Marks the pages of an attempt as dirty again, on all shards.
    async fn take_back(&self) -> Result<()> {
        self.thaw(false);
        let thaw = |core: Rc<Core>| async move {
            core.thaw(false);
            Ok(())
        };
        self.peers.each_other(thaw).await.map(drop)
    }

    /// Freezes all shards, each at a time of its own.
    async fn freeze_all(self: &Rc<Self>) -> Result<FrozenVersions> {
        wait_for_moves(&**self).await;
        let clock = self.kit().clock();
        let own = self.freeze();
        let freeze = |core: Rc<Core>| async move { core.freeze_for_home().await };
        let others = self.peers.each_other(freeze).await?;
        let mut cut = Cut { covered: Sequences::default(), clock };
        let changes = own.changes;
        let all = || std::iter::once(&own).chain(&others);
        for (stream, last) in all().flat_map(|frozen| &frozen.committed) {
            cut.covered.set(*stream, *last);
        }
        let is_consistent = others.iter().all(|frozen| frozen.changes == changes);
        let mut dirty = Vec::new();
        for (id, pages, map) in &own.dirty {
            let of_others =
                others.iter().filter_map(|other| other.dirty.iter().find(|(other, ..)| other == id));
            let (mut pages, mut maps) = (pages.clone(), vec![map]);
            for (_, more, map) in of_others {
                pages = pages.with(more);
                maps.push(map);
            }
            let map = match self.peers.is_alone() {
                true => map.clone(),
                false => self.join_maps(maps.into_iter()),
            };
            dirty.push((*id, pages, map));
        }
        Ok(FrozenVersions { changes, is_consistent, cut, dirty })
    }

    /// Whether no shard has created or deleted a version since this number of changes.
    async fn has_same_versions(&self, changes: u64) -> Result<bool> {
        let count = |core: Rc<Core>| async move { Ok(core.versions.borrow().changes) };
        Ok(self.peers.each_other(count).await?.into_iter().all(|other| other == changes))
    }

    /// Marks the pages of zones with few live pages as dirty, so that checkpoints stay compact.
    fn compact_checkpoints(&self) {
        let is_full = |zone: &Zone| zone.class == CHECKPOINT_CLASS && zone.usage == Usage::Full;
        let mut zones = self.kit().pool.select(|number, zone| is_full(zone).then_some((zone.live, number)));
        zones.sort_unstable();
        let live: u64 = zones.iter().map(|(live, _)| u64::from(*live)).sum();
        let per_zone = u64::from(self.layout.zone_blocks);
        // Number of zones at which a third of their space is unused; the emptiest of the further zones are
        // rewritten.
        let enough = (live + live / 2).div_ceil(per_zone) as usize + 1;
        let emptiest: Vec<u32> =
            zones.iter().take(zones.len().saturating_sub(enough)).map(|(_, zone)| *zone).collect();
        if emptiest.is_empty() {
            return;
        }
        for version in &mut self.versions.borrow_mut().list {
            let pages = version.table.iter();
            let here =
                pages.filter(|(_, place)| emptiest.contains(&self.layout.place(place.physical).zone.0));
            let here: Vec<u64> = here.map(|(page, _)| page).collect();
            here.into_iter().for_each(|page| version.dirty.insert(page));
        }
    }

    /// Writes the dirty pages of all versions.
    ///
    /// # Errors
    /// Errors of writing; [`Error::Busy`] if versions are created and deleted all the time. The caller ends
    /// the last attempt in any case.
    async fn write_versions(self: &Rc<Self>) -> Result<Written> {
        for _ in 0..MAX_ATTEMPTS {
            if let Some(written) = self.try_versions().await? {
                return Ok(written);
            }
        }
        Err(Error::busy(
            "checkpoint: snapshots are created and deleted faster than it can be written; try again later",
        ))
    }

    /// Writes the dirty pages of all versions; `None` if not all shards had the same versions all the time.
    async fn try_versions(self: &Rc<Self>) -> Result<Option<Written>> {
        let FrozenVersions { changes, is_consistent, cut, dirty } = self.freeze_all().await?;
        if !is_consistent {
            // A change of versions takes effect on the other shards at once.
            runtime::sleep(BETWEEN_ATTEMPTS).await;
            self.take_back().await?;
            return Ok(None);
        }
        self.write_pages(&jobs_of(&dirty), &dirty).await?;
        // Records whose effects the pages include have to be durable before the root.
        self.flush_all().await?;
        let is_same = self.has_same_versions(changes).await?;
        let mut versions = self.versions.borrow_mut();
        if !is_same || versions.changes != changes {
            return Ok(None);
        }
        let orphaned = std::mem::take(&mut versions.orphaned);
        let saved = versions.list.iter().map(|version| version.id).collect();
        drop(versions);
        // A version that is deleted before the root is written is still in this directory.
        let (directory, freed) = (self.directory().encode(), self.freed_pages(orphaned));
        Ok(Some(Written { cut, directory, freed, versions: saved }))
    }

    /// Writes the directory and the root of versions whose pages are written.
    async fn commit_versions(self: &Rc<Self>, written: Written, clean: bool) -> Result<()> {
        let kit = self.kit();
        let Written { cut, directory, freed, versions: saved } = written;
        if let Err(error) = checkpoint::commit(self, cut, &directory, clean).await {
            // If the log has failed, it is unknown which root is authoritative, so the pages of both stay.
            if kit.failure().is_none() {
                self.superseded.add(freed);
            }
            return Err(error);
        }
        for (_, physical) in freed {
            kit.pool.remove_live(self.layout.place(physical).zone.0, 1, kit.clock());
        }
        for version in
            self.versions.borrow_mut().list.iter_mut().filter(|version| saved.contains(&version.id))
        {
            version.unsaved = 0;
        }
        self.measure_images();
        self.publish_directory();
        self.publish_images().await
    }

    /// Returns the pages that are part of the durable checkpoint and no longer of any version.
    fn freed_pages(&self, orphaned: Vec<(u64, Physical)>) -> Vec<(u64, Physical)> {
        let mut freed = self.superseded.0.take();
        freed.extend(orphaned);
        // Several versions may have released the same old page.
        freed.sort_unstable();
        freed.dedup();
        let versions = self.versions.borrow();
        freed.retain(|(page, physical)| {
            versions.list.iter().all(|version| version.table.get(*page).physical != *physical)
        });
        freed
    }

    /// Writes pages, as many per record as fit.
    async fn write_pages(self: &Rc<Self>, jobs: &[Job], dirty: &[FrozenVersion]) -> Result<()> {
        let block = self.layout.block_bytes();
        let mut entries = vec![0_u32; PAGE_BLOCKS as usize];
        let mut at = 0;
        // Images of the current page that have been written, for versions with the same contents.
        let mut same_page: (u64, Vec<(PagePlace, Vec<u8>)>) = (u64::MAX, Vec::new());
        while at < jobs.len() {
            let wanted = (jobs.len() - at) as u64;
            let space = checkpoint::space(self, wanted, |pages| pages as usize * PAGE_NAME).await?;
            let most = space.blocks;
            let first =
                self.layout.physical(ZoneBlock { zone: ZoneIndex(space.zone()), block: space.position() });
            let mut data = Buffer::new((1 + most as usize) * block);
            data.append_zeroes(block);
            let (mut sums, mut meta) = (Vec::new(), Vec::new());
            let mut places: Vec<(Job, PagePlace)> = Vec::new();
            while sums.len() < most as usize && at < jobs.len() {
                let job = jobs[at];
                at += 1;
                if self.versions.borrow().position(job.version).is_none() {
                    continue;
                }
                let Some((.., map)) = dirty.iter().find(|(version, ..)| *version == job.version) else {
                    continue;
                };
                // Maps with lookups of single blocks take long for a page, so other tasks run in between.
                if at.is_multiple_of(PAGES_AT_ONCE) {
                    runtime::yield_now().await;
                }
                map.save_page(job.page, &mut entries);
                if entries.iter().all(|entry| *entry == 0) {
                    places.push((job, PagePlace::default()));
                    continue;
                }
                let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
                let sum = sum_of(&bytes);
                if same_page.0 != job.page {
                    same_page = (job.page, Vec::new());
                }
                let same = same_page.1.iter().find(|(place, other)| place.sum == sum && *other == bytes);
                if let Some((place, _)) = same {
                    places.push((job, *place));
                    continue;
                }
                data.append(&bytes);
                let physical = first.offset(sums.len() as u64);
                sums.push(sum);
                meta.extend_from_slice(&job.version.0.to_le_bytes());
                meta.extend_from_slice(&(job.page as u32).to_le_bytes());
                let place = PagePlace { physical, sum };
                same_page.1.push((place, bytes));
                places.push((job, place));
            }
            match sums.is_empty() {
                true => checkpoint::give_back(&**self, space),
                false => checkpoint::append(self, space, data, &sums, &meta).await?,
            }
            if !self.note_places(&places, first..first.offset(most.into())) {
                // Pages whose location wasn't recorded are dead.
                same_page.1.clear();
            }
        }
        Ok(())
    }

    /// Records the locations of pages, and counts those in the range `here`, which were just written, as
    /// live. Returns whether all versions still exist.
    fn note_places(&self, places: &[(Job, PagePlace)], here: Range<Physical>) -> bool {
        let mut versions = self.versions.borrow_mut();
        let mut counted = BTreeSet::new();
        let mut all = true;
        for (job, place) in places {
            let Some(position) = versions.position(job.version) else {
                all = false;
                continue;
            };
            let old = versions.list[position].table.set(job.page, *place);
            if old.physical.is_mapped() {
                self.superseded.add([(job.page, old.physical)]);
            }
            // Several versions may share the page.
            if here.contains(&place.physical) && counted.insert(place.physical) {
                self.kit().pool.add_live(self.layout.place(place.physical).zone.0, 1);
            }
        }
        all
    }

    fn directory(&self) -> Directory {
        let versions = self.versions.borrow();
        Directory {
            versions: versions.list.iter().map(Version::entry).collect(),
            next_version: versions.next,
            damaged: self.damaged.list(),
        }
    }
}
