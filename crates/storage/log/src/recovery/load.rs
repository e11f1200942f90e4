//! Loading the maps of all versions from their pages, and counting live blocks.
//!
//! Pages are read in the order of their locations, in batches of [`BATCH`]: neighbours are read by one
//! request, into reused memory. A thread then verifies them, applies the replayed records, counts their
//! blocks and loads them into the map, while others are read. A page takes 2.5 us of a processor, so two
//! processors take 0.33 s for the 2^18 pages of 1 TiB, about the time of reading 1 GiB.
//!
//! In a log that is salvaged, unreadable pages are noted, and the locations of their blocks are unknown.

use crate::directory::{Directory, PageTable, VersionEntry};
use crate::format::VersionId;
use crate::layout::Layout;
use crate::map::{self, Map, PAGE_BLOCKS, Physical};
use crate::recovery::Recovered;
use crate::recovery::batched::Batched;
use crate::salvage::{self, Lost};
use crate::versions::{Version, Versions};
use block::{Buffer, Error, Result, ZoneBlock, Zones};
use logkit::ZonePool;
use logkit::layout::ROOT_ZONES;
use logkit::record::sum_of;
use logkit::recovery::gone;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of pages of a batch.
const BATCH: usize = 256;
/// Least number of pages for which a thread pays off.
const WORTH_A_THREAD: usize = 32;
/// Number of batches in flight at a time.
const BATCHES: usize = 6;
/// Number of a page's entries that are examined for random writes.
const EXAMINED_ENTRIES: usize = 64;
/// Most blocks between two pages that are read together.
const GAP: u32 = 8;

/// A page with its location; sorted by location.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PageAt {
    physical: Physical,
    page: u64,
    sum: u32,
}

/// Options of loading maps.
pub(crate) struct Loading<'a> {
    /// Name of the map's structure.
    pub(crate) map: &'a str,
    /// Changes of the replayed records that the maps are to include. Requires a log with one version.
    pub(crate) batched: Option<Batched>,
    /// Gets the unreadable parts; `None` makes damage an error.
    pub(crate) lost: Option<&'a mut Lost>,
}

/// Loads the maps of all versions from their pages, and counts live blocks.
///
/// # Errors
/// [`Error::Corrupt`] for damaged pages; errors of reading.
pub(crate) async fn load(
    zones: &dyn Zones,
    layout: &Layout,
    directory: &Directory,
    pool: &ZonePool,
    loading: Loading<'_>,
    recovered: &mut Recovered,
) -> Result<Versions> {
    let mut versions = Versions { next: directory.next_version, ..Versions::default() };
    let mut counted = Vec::new();
    let Loading { map: structure, batched, mut lost } = loading;
    let batched = batched.map(Arc::new);
    for entry in &directory.versions {
        let parent =
            entry.parent.and_then(|parent| directory.versions.iter().find(|other| other.id == parent));
        let parent_map = entry.parent.and_then(|id| versions.get(id)).map(|parent| parent.map.clone());
        let map = match &parent_map {
            Some(parent) => {
                let map = parent.snapshot();
                map.grow(entry.blocks);
                map
            }
            None => map::make_striped(structure, entry.blocks, layout.stripes)?,
        };
        let pages = own_pages(entry, parent, &mut lost)?;
        counted.extend(pages.iter().map(|page| page.physical));
        // Pages of the parent that the version doesn't have.
        if let Some(parent) = parent {
            let gone = parent.table.iter().filter(|(page, _)| !entry.table.get(*page).physical.is_mapped());
            let zeros = vec![0; PAGE_BLOCKS as usize];
            gone.for_each(|(page, _)| map.load_page(page, &zeros));
        }
        recovered.pages += pages.len() as u64;
        let mut version = Version::new(entry.clone(), map.clone());
        let loader = Arc::new(Loader {
            layout: *layout,
            map,
            parent: parent_map,
            batched: batched.clone(),
            tallies: Mutex::default(),
            order: Mutex::default(),
            lost: lost.is_some().then(Mutex::default),
        });
        loader.load(zones, &pages, &entry.table).await?;
        if let Some(lost) = &mut lost {
            loader.take_lost(entry, lost)?;
        }
        loader.tell(pool, &mut version);
        versions.list.push(version);
    }
    // Clones of one snapshot may share a page that the snapshot doesn't have.
    counted.sort_unstable();
    counted.dedup();
    counted.iter().for_each(|page: &Physical| pool.add_live(layout.place(*page).zone.0, 1));
    Ok(versions)
}

/// Pages of a version that its parent doesn't share, in the order of their places.
fn own_pages(
    entry: &VersionEntry,
    parent: Option<&VersionEntry>,
    lost: &mut Option<&mut Lost>,
) -> Result<Vec<PageAt>> {
    let mut pages = Vec::new();
    for (page, place) in entry.table.iter() {
        if page >= entry.blocks.div_ceil(PAGE_BLOCKS) {
            let error = Error::corrupt(format!(
                "page {page} of a map is past the end of its version, which has {} blocks",
                entry.blocks
            ));
            match lost {
                Some(lost) => lost.note(error.detail().to_owned()),
                None => return Err(error),
            }
        } else if parent.is_none_or(|parent| parent.table.get(page) != place) {
            pages.push(PageAt { physical: place.physical, page, sum: place.sum });
        }
    }
    pages.sort_unstable();
    Ok(pages)
}

/// State shared by the threads that load one version.
struct Loader {
    layout: Layout,
    map: Arc<dyn Map>,
    parent: Option<Arc<dyn Map>>,
    batched: Option<Arc<Batched>>,
    /// Tallies that no thread is using.
    tallies: Mutex<Vec<Tally>>,
    /// Serializes changes of the map, as its contract requires of the caller.
    order: Mutex<()>,
    /// Unreadable pages, with the reason; `None` if such a page is an error.
    lost: Option<Mutex<Vec<(u64, String)>>>,
}

/// Counts of one thread at a time.
#[derive(Debug, Default)]
struct Tally {
    /// Live blocks by zone; the zone of block 0, which holds roots, also counts unmapped blocks.
    live: Vec<u32>,
    /// Clock of the latest death of a block, plus one, by zone; 0 if none died.
    changed: Vec<u64>,
    /// Pages that differ from those on the medium.
    dirty: Vec<u64>,
}

impl Loader {
    /// Loads pages, sorted by location, and the pages that only records have.
    async fn load(self: &Arc<Self>, zones: &dyn Zones, pages: &[PageAt], table: &PageTable) -> Result<()> {
        let batches = pages.chunks(BATCH).map(|batch| self.load_batch(zones, batch));
        runtime::join_limited(BATCHES, batches).await.into_iter().collect::<Result<()>>()?;
        let mut new = self.batched.as_ref().map_or(Vec::new(), |batched| batched.pages());
        new.retain(|page| !table.get(*page).physical.is_mapped());
        let batches = new.chunks(BATCH).map(|batch| {
            let (loader, batch) = (self.clone(), batch.to_vec());
            elsewhere(batch.len(), move || {
                let mut tally = loader.tally();
                let all = batch.iter().try_for_each(|page| {
                    loader.take(&mut tally, *page, &mut [0; PAGE_BLOCKS as usize], true)
                });
                loader.put_back(tally);
                all
            })
        });
        runtime::join_limited(BATCHES, batches).await.into_iter().collect()
    }

    /// Reads a batch of pages, and loads them.
    async fn load_batch(self: &Arc<Self>, zones: &dyn Zones, batch: &[PageAt]) -> Result<()> {
        let layout = &self.layout;
        let runs: Vec<&[PageAt]> = batch
            .chunk_by(|before, here| {
                here.physical.0 - before.physical.0 <= GAP
                    && layout.place(here.physical).zone == layout.place(before.physical).zone
            })
            .collect();
        let reads = runs.iter().map(|run| {
            let first = run[0].physical;
            let at = layout.place(first);
            let blocks = (run[run.len() - 1].physical.0 - first.0 + 1) as usize;
            zones.read(layout.address(at.zone.0, at.block), Buffer::new(blocks << layout.block_size.shift()))
        });
        let mut read = Vec::with_capacity(runs.len());
        for ((outcome, buffer), run) in runtime::join_all(reads).await.into_iter().zip(&runs) {
            match outcome {
                Ok(()) => read.push((buffer, run.to_vec())),
                Err(error) if self.lost.is_none() => return Err(gone(error, "a page")),
                Err(_) => self.read_alone(zones, run, &mut read).await?,
            }
        }
        let loader = self.clone();
        elsewhere(batch.len(), move || {
            loader.expect(&read);
            let mut tally = loader.tally();
            let all = read.iter().try_for_each(|(buffer, run)| loader.take_run(&mut tally, buffer, run));
            loader.put_back(tally);
            all
        })
        .await
    }

    /// Reads the pages of a run one by one, because some can't be read.
    async fn read_alone(
        &self,
        zones: &dyn Zones,
        run: &[PageAt],
        read: &mut Vec<(Buffer, Vec<PageAt>)>,
    ) -> Result<()> {
        for at in run {
            let ZoneBlock { zone, block } = self.layout.place(at.physical);
            let buffer = Buffer::new(self.layout.block_bytes());
            match zones.read(self.layout.address(zone.0, block), buffer).await {
                (Ok(()), buffer) => read.push((buffer, vec![*at])),
                (Err(error), _) => self.lose(at.page, gone(error, "a page"))?,
            }
        }
        Ok(())
    }

    /// Notes an unreadable page.
    fn lose(&self, page: u64, error: Error) -> Result<()> {
        match &self.lost {
            Some(lost) if !matches!(error, Error::OutOfMemory(_) | Error::Closed(_)) => {
                let mut lost = lost.lock().unwrap_or_else(PoisonError::into_inner);
                lost.push((page, error.detail().to_owned()));
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Gives the blocks of unreadable pages an unknown location.
    fn take_lost(&self, version: &VersionEntry, lost: &mut Lost) -> Result<()> {
        let pages = self.lost.as_ref().map(|pages| pages.lock().unwrap_or_else(PoisonError::into_inner));
        let mut pages = pages.map_or(Vec::new(), |mut pages| std::mem::take(&mut *pages));
        pages.sort_unstable();
        let name = salvage::name_of(&version.name, version.id == VersionId::HEAD);
        for (page, error) in pages {
            let blocks = salvage::blocks_of_page(page, version.blocks);
            let to =
                lost.note_unknown(format!("blocks {blocks} of {name}: where they lie is unknown: {error}"));
            let mut places = [0; PAGE_BLOCKS as usize];
            let count = (version.blocks - page * PAGE_BLOCKS).min(PAGE_BLOCKS);
            places[..count as usize].fill(to.0);
            let mut tally = self.tally();
            let taken = self.take(&mut tally, page, &mut places, false);
            self.put_back(tally);
            taken?;
        }
        Ok(())
    }

    fn tally(&self) -> Tally {
        let spare = self.tallies.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let zones = self.layout.zones as usize;
        spare.unwrap_or_else(|| Tally { live: vec![0; zones], changed: vec![0; zones], dirty: Vec::new() })
    }

    fn put_back(&self, tally: Tally) {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner).push(tally);
    }

    /// Announces to the map the pages that seem randomly written, so that it can prepare memory.
    fn expect(&self, read: &[(Buffer, Vec<PageAt>)]) {
        let mut pages = Vec::new();
        for (buffer, run) in read {
            for PageAt { physical, page, .. } in run {
                let at = ((physical.0 - run[0].physical.0) as usize) << self.layout.block_size.shift();
                let places = buffer.filled()[at..][..4 * EXAMINED_ENTRIES].as_chunks::<4>().0;
                let place = |at: usize| u32::from_le_bytes(places[at]);
                let breaks =
                    (1..EXAMINED_ENTRIES).filter(|at| place(*at) != place(at - 1).wrapping_add(1)).count();
                if breaks > EXAMINED_ENTRIES / 4 {
                    pages.push(*page);
                }
            }
        }
        pages.sort_unstable();
        self.map.expect_pages(&pages);
    }

    /// Loads the pages of a run that were read in one piece.
    fn take_run(&self, tally: &mut Tally, buffer: &Buffer, run: &[PageAt]) -> Result<()> {
        for page in run {
            if let Err(error) = self.take_page(tally, buffer, run[0].physical, *page) {
                self.lose(page.page, error)?;
            }
        }
        Ok(())
    }

    /// Loads a page from a buffer that begins at block `first`.
    fn take_page(&self, tally: &mut Tally, buffer: &Buffer, first: Physical, at: PageAt) -> Result<()> {
        let mut places = [0_u32; PAGE_BLOCKS as usize];
        let PageAt { physical, page, sum } = at;
        let at = ((physical.0 - first.0) as usize) << self.layout.block_size.shift();
        let bytes = &buffer.filled()[at..at + self.layout.block_bytes()];
        if sum_of(bytes) != sum {
            let ZoneBlock { zone, block } = self.layout.place(physical);
            return Err(Error::corrupt(format!(
                "page {page} of a map: wrong checksum: zone {zone}, block {block} is damaged"
            )));
        }
        for (place, bytes) in places.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *place = u32::from_le_bytes(*bytes);
        }
        self.take(tally, page, &mut places, false)
    }

    /// Loads a page with these entries; skips a new page that stays empty.
    fn take(
        &self,
        tally: &mut Tally,
        page: u64,
        places: &mut [u32; PAGE_BLOCKS as usize],
        is_new: bool,
    ) -> Result<()> {
        let most = self.layout.zones * self.layout.zone_blocks;
        let highest = places.iter().copied().max().unwrap_or(0);
        if highest >= most {
            return Err(Error::corrupt(format!(
                "page {page} of a map: block {highest} out of range 0..{most}"
            )));
        }
        if let Some(batched) = &self.batched {
            let Tally { changed, dirty, .. } = tally;
            let has_changed = batched.change(page, places, &mut |physical, clock| {
                let changed = &mut changed[self.layout.place(physical).zone.0 as usize];
                *changed = (*changed).max(clock + 1);
            });
            match has_changed {
                true => dirty.push(page),
                false if is_new => return Ok(()),
                false => {}
            }
        }
        let live = &mut tally.live;
        match &self.parent {
            None => {
                places.iter().for_each(|place| live[self.layout.place(Physical(*place)).zone.0 as usize] += 1)
            }
            Some(parent) => {
                let mut shared = [0; PAGE_BLOCKS as usize];
                if page * PAGE_BLOCKS < parent.blocks() {
                    parent.save_page(page, &mut shared);
                }
                let own = places.iter().zip(&shared).filter(|(place, shared)| place != shared);
                own.for_each(|(place, _)| live[self.layout.place(Physical(*place)).zone.0 as usize] += 1);
            }
        }
        let _alone = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.map.load_page(page, places);
        Ok(())
    }

    /// Adds the counts to the pool and to the version.
    fn tell(&self, pool: &ZonePool, version: &mut Version) {
        let tallies = std::mem::take(&mut *self.tallies.lock().unwrap_or_else(PoisonError::into_inner));
        for page in tallies.iter().flat_map(|tally| &tally.dirty) {
            version.dirty.insert(*page);
        }
        // Unmapped blocks were counted as block 0.
        for zone in ROOT_ZONES..self.layout.zones {
            let live = tallies.iter().map(|tally| tally.live[zone as usize]).sum();
            if live > 0 {
                pool.add_live(zone, live);
            }
            let last = tallies.iter().map(|tally| tally.changed[zone as usize]).max();
            if let Some(clock) = last.and_then(|last| last.checked_sub(1)) {
                pool.restore(zone, |entry| entry.changed = clock);
            }
        }
    }
}

/// Runs `work` on a thread if there are enough pages to pay off.
async fn elsewhere(pages: usize, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    match pages < WORTH_A_THREAD {
        true => work(),
        false => runtime::blocking(work).await,
    }
}
