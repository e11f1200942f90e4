//! Checkpoints: the maps on the medium, so that a mount replays little and zones can be used again.
//!
//! Pages that changed are written while writes go on, each as it is at its moment; so the image as a whole is of no
//! moment. It is made right by replay: the root names the records that had committed when the checkpoint began, and
//! everything behind them is replayed over the image. For that, every record whose effect a page may show must be
//! durable before the root is: the zones are flushed in between. And no version may be made or deleted between the
//! first page and the directory: the pages would be of both sides of it. Where that happens the checkpoint begins again;
//! what it has written stays.
//!
//! Nor may a block be moved meanwhile that several versions have ([`Turns`]): the page of one would show it here, the page
//! of another there, and who loads them can't tell that it is one block. With one version, moves go on.

use crate::core::{Core, count};
use crate::directory::{Directory, PagePlace, ZoneEntry};
use crate::format::{CHECKPOINT, CLEANER, USER, VersionId};
use crate::map::{PAGE_BLOCKS, Physical};
use crate::open_zone::OpenZone;
use crate::root::{MOST_PIECES, Piece, Root};
use crate::table::{CHECKPOINT_CLASS, Usage};
use crate::versions::{PageSet, Version};
use block::{Buffer, Error, Payload, Result};
use runtime::sync::Notify;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use logkit::record::{Header, sum_of};

/// How many bytes of meta name a page in a record: version and page.
const PAGE_NAME: usize = 8;
/// So often a checkpoint begins again because versions were made or deleted meanwhile.
const MOST_ATTEMPTS: u32 = 100;
/// After so many pages others get their turn.
const PAGES_AT_ONCE: usize = 4;

/// The newest durable root, and what the next one makes free.
#[derive(Debug)]
pub struct Durable {
    /// What it says.
    pub root: Root,
    /// Pages that aren't part of the maps any more and are part of the durable checkpoint.
    pub superseded: Vec<(u64, Physical)>,
    /// The zone into which checkpoints are being written.
    pub zone: Option<OpenZone>,
    /// How many blocks the last checkpoint took.
    pub blocks: u64,
}

impl Durable {
    /// With this root.
    pub fn new(root: Root) -> Self {
        Durable { root, superseded: Vec::new(), zone: None, blocks: 0 }
    }
}

/// Who keeps out of whose way: see the module's head.
#[derive(Debug, Default)]
pub struct Turns {
    is_checkpointing: Cell<bool>,
    is_moving: Cell<bool>,
    changed: Notify,
}

/// A record of moves is on its way; until this is dropped.
#[derive(Debug)]
pub struct Moving<'a>(&'a Turns);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.is_moving.set(false);
        self.0.changed.notify_all();
    }
}

impl Core {
    /// Whether moves have to wait for a checkpoint. At its end the cleaner is woken.
    pub fn moves_wait(&self) -> bool {
        self.turns.is_checkpointing.get() && self.versions.borrow().list.len() > 1
    }

    /// Begins a record of moves, as soon as that may be.
    pub async fn begin_moves(&self) -> Moving<'_> {
        while self.moves_wait() {
            self.turns.changed.notified().await;
        }
        self.turns.is_moving.set(true);
        Moving(&self.turns)
    }

    /// Waits until no record of moves is on its way if there are several versions; none follows before the checkpoint ends.
    async fn wait_for_moves(&self) {
        while self.turns.is_moving.get() && self.moves_wait() {
            self.turns.changed.notified().await;
        }
    }
}

/// One page to be written.
#[derive(Debug, Clone, Copy)]
struct Job {
    page: u64,
    version: VersionId,
}

impl Core {
    /// How many blocks a checkpoint would take now, about.
    pub fn checkpoint_cost(&self) -> u64 {
        if self.home.is_some() {
            // A transaction takes a line for a block, or a few.
            return 0;
        }
        let dirty: u64 = self.versions.borrow().list.iter().map(|version| version.dirty.len()).sum();
        // What versions share is written once.
        let dirty = dirty.min(self.most_pages());
        let directory = self.checkpoint.borrow().root.directory_length >> self.layout.block_size.shift();
        dirty + dirty / 64 + directory + 2
    }

    /// How many free zones a checkpoint may need: nobody else takes the last ones.
    pub fn zones_for_checkpoint(&self) -> u32 {
        if self.home.is_some() {
            return 0;
        }
        let per_zone = u64::from(self.layout.zone_blocks - 3).max(1);
        let cost = self.checkpoint_cost();
        // What is dirty now, and a quarter for what becomes dirty before the checkpoint begins.
        (cost + cost / 4).div_ceil(per_zone) as u32 + 1
    }

    /// Whether enough has been written since the last one that another is worth its cost.
    ///
    /// 64 times its cost: so checkpoints take 1.6 % of what is written, and as much again is left for headers and summaries
    /// under the 3.4 % that all metadata may take. Opening pays for it: 1 TiB that is written at random has 2^18 pages,
    /// so at most 2^24 blocks, 64 GiB of log, are replayed: 0.5 GiB of summaries are read. Half as much on the average.
    pub fn wants_checkpoint(&self) -> bool {
        let written = self.since_checkpoint.get();
        let least = self.settings.checkpoint_bytes >> self.layout.block_size.shift();
        written >= least && written >= 64 * self.checkpoint_cost()
    }

    /// Writes a checkpoint. With `clean`, it is the last one before the log is closed.
    ///
    /// # Errors
    /// What writing says. The log goes on with the checkpoint before; unless it was the root that failed: then nobody
    /// knows which one counts, and the log takes no more writes.
    pub async fn take_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        if self.home.is_some() {
            return self.take_transaction(clean).await;
        }
        let _alone = self.admin.acquire(1).await;
        if let Some(error) = self.failure() {
            return Err(error);
        }
        let since = self.since_checkpoint.replace(0);
        self.compact_checkpoints();
        self.turns.is_checkpointing.set(true);
        let knew_of_no_space = self.space.is_short();
        let mut outcome = self.write_all(clean).await;
        if matches!(outcome, Err(Error::NoSpace(_))) && !knew_of_no_space && self.space.is_short() {
            // There is space in zones that are backed.
            outcome = self.write_all(clean).await;
        }
        self.turns.is_checkpointing.set(false);
        self.turns.changed.notify_all();
        self.versions.borrow_mut().list.iter_mut().for_each(|version| version.writing = PageSet::default());
        if let Err(error) = &outcome {
            self.since_checkpoint.set(self.since_checkpoint.get() + since);
            tracing::warn!("a checkpoint failed: {error}");
        }
        self.cleaner.notify_all();
        outcome
    }

    fn take_dirty(&self) -> Vec<Job> {
        let mut versions = self.versions.borrow_mut();
        let mut jobs = Vec::new();
        for version in &mut versions.list {
            let dirty = std::mem::take(&mut version.dirty);
            jobs.extend(dirty.iter().map(|page| Job { page, version: version.id }));
            version.writing = dirty;
        }
        drop(versions);
        // Stable: of one page, parents come before their children, whose images are often the same.
        jobs.sort_by_key(|job| job.page);
        jobs
    }

    /// Pages that were to be written and may not have been.
    fn give_back(&self, jobs: &[Job]) {
        let mut versions = self.versions.borrow_mut();
        for job in jobs {
            if let Some(position) = versions.position(job.version) {
                versions.list[position].dirty.insert(job.page);
            }
        }
    }

    /// Marks pages as dirty that lie in zones with few live ones, so that checkpoints don't spread.
    fn compact_checkpoints(&self) {
        let mut zones: Vec<(u32, u32)> = self
            .table
            .list()
            .into_iter()
            .filter(|(_, zone)| zone.class == CHECKPOINT_CLASS && zone.usage == Usage::Full)
            .map(|(number, zone)| (zone.live, number))
            .collect();
        zones.sort_unstable();
        let live: u64 = zones.iter().map(|(live, _)| u64::from(*live)).sum();
        let per_zone = u64::from(self.layout.zone_blocks);
        // As many as would do with a third of them empty; the emptiest beyond that are rewritten.
        let enough = (live + live / 2).div_ceil(per_zone) as usize + 1;
        let emptiest: Vec<u32> =
            zones.iter().take(zones.len().saturating_sub(enough)).map(|(_, zone)| *zone).collect();
        if emptiest.is_empty() {
            return;
        }
        for version in &mut self.versions.borrow_mut().list {
            let pages = version.table.iter();
            let here = pages.filter(|(_, place)| emptiest.contains(&self.layout.place(place.physical).0));
            let here: Vec<u64> = here.map(|(page, _)| page).collect();
            here.into_iter().for_each(|page| version.dirty.insert(page));
        }
    }

    async fn write_all(self: &Rc<Self>, clean: bool) -> Result<()> {
        let committed =
            |stream: logkit::record::StreamIndex| self.streams[usize::from(stream.0)].borrow().committed();
        let before = self.counters.checkpoint_blocks.load(std::sync::atomic::Ordering::Relaxed);
        let mut attempts = 0;
        let (covered, clock, directory, freed, saved) = loop {
            attempts += 1;
            self.wait_for_moves().await;
            let changes = self.versions.borrow().changes;
            let covered = [committed(USER), committed(CLEANER)];
            let clock = self.clock.get();
            let jobs = self.take_dirty();
            // What a page shows must survive whatever the root survives.
            let written = self.write_pages(&jobs).await;
            if let Err(error) = match written {
                Ok(()) => self.flush().await,
                failed => failed,
            } {
                self.give_back(&jobs);
                return Err(error);
            }
            let mut versions = self.versions.borrow_mut();
            if versions.changes == changes {
                let orphaned = std::mem::take(&mut versions.orphaned);
                let saved: Vec<VersionId> = versions.list.iter().map(|version| version.id).collect();
                drop(versions);
                // What this directory doesn't name; a version that is deleted before the root is written is still in it.
                break (covered, clock, self.directory().encode(), self.freed_pages(orphaned), saved);
            }
            if attempts == MOST_ATTEMPTS {
                return Err(Error::busy(
                    "snapshots are made and deleted faster than a checkpoint can be written",
                ));
            }
        };
        let mut pieces = Vec::new();
        let written = match self.write_directory(directory, clean, &mut pieces).await {
            Ok(length) => self.flush().await.map(|()| length),
            failed => failed,
        };
        let length = match written {
            Ok(length) => length,
            Err(error) => {
                self.forget(&pieces);
                self.checkpoint.borrow_mut().superseded.extend(freed);
                return Err(error);
            }
        };
        let old = self.checkpoint.borrow().root.clone();
        let root = Root {
            clean,
            covered,
            checkpoint: committed(CHECKPOINT),
            clock,
            boundaries: Vec::new(),
            directory_length: length,
            directory: pieces,
            epoch: self.epoch,
            ..old.clone()
        };
        if let Err(error) = self.write_root(&root).await {
            // If the log has failed, it is unknown which root counts, so both directories stay.
            if self.failure().is_none() {
                self.forget(&root.directory);
                self.checkpoint.borrow_mut().superseded.extend(freed);
            }
            return Err(error);
        }
        self.forget(&old.directory);
        {
            let mut durable = self.checkpoint.borrow_mut();
            durable.root = root;
            let after = self.counters.checkpoint_blocks.load(std::sync::atomic::Ordering::Relaxed);
            durable.blocks = after - before;
        }
        for (_, physical) in freed {
            self.table.remove_live(self.layout.place(physical).0, 1, self.clock.get());
        }
        for version in
            self.versions.borrow_mut().list.iter_mut().filter(|version| saved.contains(&version.id))
        {
            version.unsaved = 0;
        }
        self.measure_images();
        count(&self.counters.checkpoints, 1);
        Ok(())
    }

    /// The pages that are part of the durable checkpoint and of no version as it is now.
    fn freed_pages(&self, orphaned: Vec<(u64, Physical)>) -> Vec<(u64, Physical)> {
        let mut freed = std::mem::take(&mut self.checkpoint.borrow_mut().superseded);
        freed.extend(orphaned);
        // Versions with the same old page gave it up one after the other.
        freed.sort_unstable();
        freed.dedup();
        let versions = self.versions.borrow();
        freed.retain(|(page, physical)| {
            versions.list.iter().all(|version| version.table.get(*page).physical != *physical)
        });
        freed
    }

    /// Writes a root, durably. If that fails it is unknown which root is authoritative, and the log fails.
    ///
    /// # Errors
    /// [`Error::NoSpace`] before anything is written: the log goes on with the root before. All others are the log's failure.
    pub async fn write_root(&self, root: &Root) -> Result<()> {
        let mut writer = self.root.replace(crate::root::RootWriter::first());
        let prepared = writer.prepare(&*self.zones, &self.layout).await;
        if let Err(error @ Error::NoSpace(_)) = prepared {
            self.root.replace(writer);
            return Err(error);
        }
        let written = match prepared {
            Ok(()) => writer.write(&*self.zones, &self.layout, root).await,
            failed => failed,
        };
        self.root.replace(writer);
        count(&self.counters.overhead_blocks, 1);
        if let Err(error) = &written {
            self.fail(&error.in_context("the root can't be written"));
        }
        written
    }

    /// Writes pages, as many to a record as fit.
    async fn write_pages(self: &Rc<Self>, jobs: &[Job]) -> Result<()> {
        let block = self.layout.block_bytes();
        let mut entries = vec![0_u32; PAGE_BLOCKS as usize];
        let mut at = 0;
        // What was saved of the page that is being saved, for versions that have the same.
        let mut same_page: (u64, Vec<(PagePlace, Vec<u8>)>) = (u64::MAX, Vec::new());
        while at < jobs.len() {
            let mut zone = self.checkpoint_zone().await?;
            let wanted = u32::try_from(jobs.len() - at).unwrap_or(u32::MAX);
            let room = zone.room(&self.layout, wanted, |pages| pages as usize * PAGE_NAME);
            if room == 0 {
                self.seal_now(zone).await;
                continue;
            }
            let first = self.layout.physical(zone.zone, zone.position + 1);
            let mut data = Buffer::new((1 + room as usize) * block);
            data.append_zeroes(block);
            let (mut sums, mut meta) = (Vec::new(), Vec::new());
            let mut places: Vec<(Job, PagePlace)> = Vec::new();
            while sums.len() < room as usize && at < jobs.len() {
                let job = jobs[at];
                at += 1;
                let Some(map) = self.versions.borrow().get(job.version).map(|version| version.map.clone())
                else {
                    continue;
                };
                // A map that looks up block by block takes long for a page; others get their turn.
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
            if !sums.is_empty() {
                zone = self.append_checkpoint(zone, data, &sums, &meta).await?;
            }
            self.checkpoint.borrow_mut().zone = Some(zone);
            if !self.note_places(&places, first..first.offset(room.into())) {
                // A place of which nobody took note doesn't count as live.
                same_page.1.clear();
            }
        }
        Ok(())
    }

    /// Notes where pages are now; counts those that were just written, here. Returns whether all versions are still there.
    fn note_places(&self, places: &[(Job, PagePlace)], here: Range<Physical>) -> bool {
        let mut versions = self.versions.borrow_mut();
        let mut durable = self.checkpoint.borrow_mut();
        let mut counted = BTreeSet::new();
        let mut all = true;
        for (job, place) in places {
            let Some(position) = versions.position(job.version) else {
                all = false;
                continue;
            };
            let old = versions.list[position].table.set(job.page, *place);
            if old.physical.is_mapped() {
                durable.superseded.push((job.page, old.physical));
            }
            // Several versions may have it.
            if here.contains(&place.physical) && counted.insert(place.physical) {
                self.table.add_live(self.layout.place(place.physical).0, 1);
            }
        }
        all
    }

    /// These pieces of a directory don't count any more, or never will.
    fn forget(&self, pieces: &[Piece]) {
        for piece in pieces {
            let (zone, _) = self.layout.place(piece.physical);
            self.table.remove_live(zone, piece.blocks, self.clock.get());
        }
    }

    /// Writes the directory; returns its length in bytes. What was written of it is in `pieces`, also after a failure.
    async fn write_directory(
        self: &Rc<Self>,
        bytes: Vec<u8>,
        clean: bool,
        pieces: &mut Vec<Piece>,
    ) -> Result<u64> {
        let block = self.layout.block_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let zone = self.checkpoint_zone().await?;
            let wanted = u32::try_from((bytes.len() - at).div_ceil(block)).unwrap_or(u32::MAX);
            let room = zone.room(&self.layout, wanted, |_| 0) as usize;
            if room == 0 {
                self.seal_now(zone).await;
                continue;
            }
            let part = &bytes[at..(at + room * block).min(bytes.len())];
            at += part.len();
            let mut data = Buffer::new((1 + room) * block);
            data.append_zeroes(block);
            data.append(part);
            data.append_zeroes(data.missing());
            let sums: Vec<u32> = data.filled()[block..].chunks_exact(block).map(sum_of).collect();
            let physical = self.layout.physical(zone.zone, zone.position + 1);
            let sum = sum_of(&data.filled()[block..]);
            let number = zone.zone;
            let zone = self.append_checkpoint(zone, data, &sums, &[]).await?;
            self.table.add_live(number, room as u32);
            pieces.push(Piece { physical, blocks: room as u32, sum });
            self.checkpoint.borrow_mut().zone = Some(zone);
        }
        if pieces.len() > MOST_PIECES {
            return Err(Error::no_space(format!(
                "the directory takes {} pieces, {MOST_PIECES} at most: make the log with larger zones",
                pieces.len()
            )));
        }
        let last = self.checkpoint.borrow_mut().zone.take();
        match last {
            Some(zone) if clean => self.seal_now(zone).await,
            other => self.checkpoint.borrow_mut().zone = other,
        }
        Ok(bytes.len() as u64)
    }

    fn directory(&self) -> Directory {
        let versions = self.versions.borrow();
        let used = self
            .table
            .list()
            .into_iter()
            .filter(|(_, zone)| !matches!(zone.usage, Usage::Free | Usage::Root));
        let zones = used.map(|(number, zone)| ZoneEntry {
            zone: number,
            generation: zone.generation,
            class: zone.class,
            full: !matches!(zone.usage, Usage::Open | Usage::Damaged),
            written: zone.written,
            opened: zone.opened,
            changed: zone.changed,
            last: zone.last,
        });
        Directory {
            versions: versions.list.iter().map(Version::entry).collect(),
            next_version: versions.next,
            zones: zones.collect(),
        }
    }

    /// The zone into which checkpoints are written, with room or without.
    async fn checkpoint_zone(self: &Rc<Self>) -> Result<OpenZone> {
        let open = self.checkpoint.borrow_mut().zone.take();
        if let Some(zone) = open.or_else(|| self.try_open_zone(CHECKPOINT_CLASS, 0)) {
            return Ok(zone);
        }
        // The cleaner may not have come to reset what is dead, or have ended.
        Box::pin(self.reset_dead()).await?;
        while self.table.free() == 0 && self.back_reserve().await {}
        self.try_open_zone(CHECKPOINT_CLASS, 0)
            .ok_or_else(|| Error::no_space("no zone is free for a checkpoint"))
    }

    /// Appends a record of checkpoint data: the buffer begins with an empty block for the header.
    async fn append_checkpoint(
        self: &Rc<Self>,
        mut zone: OpenZone,
        mut data: Buffer,
        sums: &[u32],
        meta: &[u8],
    ) -> Result<OpenZone> {
        let stream = &self.streams[usize::from(CHECKPOINT.0)];
        let sequence = stream.borrow_mut().issue();
        let header = Header {
            stream: CHECKPOINT,
            class: CHECKPOINT_CLASS,
            epoch: self.epoch,
            sequence,
            after: 0,
            durable: stream.borrow().durable(),
            clock: self.clock.get(),
            zone: zone.zone,
            generation: zone.generation,
            position: zone.position,
            blocks: sums.len() as u32,
        };
        let length = header.encode(&self.identity, sums, meta, data.filled_mut());
        let bytes = data.filled()[..length].to_vec();
        let blocks = sums.len() as u64 + 1;
        let outcome = zone.append(&*self.zones, &self.layout, &bytes, Payload::from(data)).await;
        self.flusher.appended(zone.zone);
        // A number that was not written is never looked for: roots name what counts.
        self.written(CHECKPOINT, sequence, crate::core::Group::default());
        if let Err(error) = outcome {
            self.abandon(zone.zone, zone.position).await;
            self.note_no_space(&error);
            return Err(error.in_context("a record of a checkpoint"));
        }
        self.table.change(zone.zone, |entry| entry.written += blocks as u32 - 1);
        count(&self.counters.overhead_blocks, blocks);
        count(&self.counters.checkpoint_blocks, blocks);
        Ok(zone)
    }
}
