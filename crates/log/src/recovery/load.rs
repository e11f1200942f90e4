//! Making the maps of all versions from their pages, and counting what is live.
//!
//! Pages are taken as they lie on the medium, [`BATCH`] of them at a time: neighbours are read in one piece, into memory
//! that is used again; then a thread of its own checks them, changes them by the records that are replayed, counts and
//! hands them to the map, while others are read. A page takes 2.5 us of a processor, so two of them take 0.33 s for the
//! 2^18 pages of 1 TiB, about what reading 1 GiB takes.

use crate::directory::{Directory, PageTable};
use crate::layout::Layout;
use crate::map::{self, Map, PAGE_BLOCKS, Physical};
use crate::recovery::Recovered;
use crate::recovery::gathered::Gathered;
use crate::versions::{Version, Versions};
use block::{Buffer, Error, Result, Zones};
use logkit::ZonePool;
use logkit::layout::ROOT_ZONES;
use logkit::record::sum_of;
use logkit::recovery::gone;
use std::sync::{Arc, Mutex, PoisonError};

/// How many pages are taken over at a time.
const BATCH: usize = 256;
/// Fewer of them aren't worth a thread.
const WORTH_A_THREAD: usize = 32;
/// How many batches are on their way at a time.
const BATCHES: usize = 6;
/// Of a page, so many places are looked at to tell whether it was written at random.
const LOOKED_AT: usize = 64;
/// Pages that are so far apart are still read together, in blocks.
const GAP: u32 = 8;

/// A page, and where it is. Sorted, they are in the order of their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PageAt {
    physical: Physical,
    page: u64,
    sum: u32,
}

/// Makes the maps of all versions from their pages, and counts what is live. With `gathered`, which there is only for a log
/// of one version, they are as they will be once its records have been replayed.
///
/// # Errors
/// [`Error::Corrupt`] for damaged pages; what reading says.
pub(crate) async fn load(
    zones: &dyn Zones,
    layout: &Layout,
    directory: &Directory,
    pool: &ZonePool,
    map: &str,
    gathered: Option<Gathered>,
    recovered: &mut Recovered,
) -> Result<Versions> {
    let mut versions = Versions { next: directory.next_version, ..Versions::default() };
    let mut counted = Vec::new();
    let gathered = gathered.map(Arc::new);
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
            None => map::make(map, entry.blocks)?,
        };
        let mut pages = Vec::new();
        for (page, place) in entry.table.iter() {
            if page >= entry.blocks.div_ceil(PAGE_BLOCKS) {
                return Err(Error::corrupt("a page of a map stands behind the end of its version"));
            }
            if parent.is_none_or(|parent| parent.table.get(page) != place) {
                pages.push(PageAt { physical: place.physical, page, sum: place.sum });
                counted.push(place.physical);
            }
        }
        // What the parent has and the version has not.
        if let Some(parent) = parent {
            let gone = parent.table.iter().filter(|(page, _)| !entry.table.get(*page).physical.is_mapped());
            let zeros = vec![0; PAGE_BLOCKS as usize];
            gone.for_each(|(page, _)| map.load_page(page, &zeros));
        }
        pages.sort_unstable();
        recovered.pages += pages.len() as u64;
        let mut version = Version::new(entry.clone(), map.clone());
        let loader = Arc::new(Loader {
            layout: *layout,
            map,
            parent: parent_map,
            gathered: gathered.clone(),
            tallies: Mutex::default(),
            order: Mutex::default(),
        });
        loader.load(zones, &pages, &entry.table).await?;
        loader.tell(pool, &mut version);
        versions.list.push(version);
    }
    // Clones of one snapshot may have the same page, and the snapshot another one.
    counted.sort_unstable();
    counted.dedup();
    counted.iter().for_each(|page: &Physical| pool.add_live(layout.place(*page).0, 1));
    Ok(versions)
}

/// What threads share that load one version.
struct Loader {
    layout: Layout,
    map: Arc<dyn Map>,
    parent: Option<Arc<dyn Map>>,
    gathered: Option<Arc<Gathered>>,
    /// Those that no thread is using.
    tallies: Mutex<Vec<Tally>>,
    /// Changes of a map are for its caller to order.
    order: Mutex<()>,
}

/// What one thread at a time counts.
#[derive(Debug, Default)]
struct Tally {
    /// How much is live in each zone; in that of block 0, which holds roots, also what isn't mapped.
    live: Vec<u32>,
    /// One more than the clock when a block of each zone died last; 0 if none did.
    changed: Vec<u64>,
    /// Pages that aren't as they are on the medium.
    dirty: Vec<u64>,
}

impl Loader {
    /// Loads pages, sorted by where they are, and those that only records know.
    async fn load(self: &Arc<Self>, zones: &dyn Zones, pages: &[PageAt], table: &PageTable) -> Result<()> {
        let batches = pages.chunks(BATCH).map(|batch| self.load_batch(zones, batch));
        runtime::join_limited(BATCHES, batches).await.into_iter().collect::<Result<()>>()?;
        let mut new = self.gathered.as_ref().map_or(Vec::new(), |gathered| gathered.pages());
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

    /// Reads some pages, and takes them over.
    async fn load_batch(self: &Arc<Self>, zones: &dyn Zones, batch: &[PageAt]) -> Result<()> {
        let layout = &self.layout;
        let runs: Vec<&[PageAt]> = batch
            .chunk_by(|before, here| {
                here.physical.0 - before.physical.0 <= GAP
                    && layout.place(here.physical).0 == layout.place(before.physical).0
            })
            .collect();
        let reads = runs.iter().map(|run| {
            let first = run[0].physical;
            let (zone, position) = layout.place(first);
            let blocks = (run[run.len() - 1].physical.0 - first.0 + 1) as usize;
            zones.read(layout.address(zone, position), Buffer::new(blocks << layout.block_size.shift()))
        });
        let mut read = Vec::with_capacity(runs.len());
        for ((outcome, buffer), run) in runtime::join_all(reads).await.into_iter().zip(&runs) {
            outcome.map_err(|error| gone(error, "a page"))?;
            read.push((buffer, run.to_vec()));
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

    fn tally(&self) -> Tally {
        let spare = self.tallies.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let zones = self.layout.zones as usize;
        spare.unwrap_or_else(|| Tally { live: vec![0; zones], changed: vec![0; zones], dirty: Vec::new() })
    }

    fn put_back(&self, tally: Tally) {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner).push(tally);
    }

    /// Has the map make memory ready for those pages that look as if they were written at random.
    fn expect(&self, read: &[(Buffer, Vec<PageAt>)]) {
        let mut pages = Vec::new();
        for (buffer, run) in read {
            for PageAt { physical, page, .. } in run {
                let at = ((physical.0 - run[0].physical.0) as usize) << self.layout.block_size.shift();
                let places = buffer.filled()[at..][..4 * LOOKED_AT].as_chunks::<4>().0;
                let place = |at: usize| u32::from_le_bytes(places[at]);
                let breaks = (1..LOOKED_AT).filter(|at| place(*at) != place(at - 1).wrapping_add(1)).count();
                if breaks > LOOKED_AT / 4 {
                    pages.push(*page);
                }
            }
        }
        pages.sort_unstable();
        self.map.expect_pages(&pages);
    }

    /// Takes over the pages of a run, which were read in one piece.
    fn take_run(&self, tally: &mut Tally, buffer: &Buffer, run: &[PageAt]) -> Result<()> {
        let mut places = [0_u32; PAGE_BLOCKS as usize];
        for PageAt { physical, page, sum } in run {
            let at = ((physical.0 - run[0].physical.0) as usize) << self.layout.block_size.shift();
            let bytes = &buffer.filled()[at..at + self.layout.block_bytes()];
            if sum_of(bytes) != *sum {
                let (zone, position) = self.layout.place(*physical);
                return Err(Error::corrupt(format!(
                    "page {page} of a map is damaged: zone {zone}, block {position}"
                )));
            }
            for (place, bytes) in places.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *place = u32::from_le_bytes(*bytes);
            }
            self.take(tally, *page, &mut places, false)?;
        }
        Ok(())
    }

    /// Takes over a page with these places. One that is new is nothing if it stays empty.
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
            return Err(Error::corrupt(format!("page {page} of a map names block {highest}, of {most}")));
        }
        if let Some(gathered) = &self.gathered {
            let Tally { changed, dirty, .. } = tally;
            let has_changed = gathered.change(page, places, &mut |physical, clock| {
                let changed = &mut changed[self.layout.place(physical).0 as usize];
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
            None => places.iter().for_each(|place| live[self.layout.place(Physical(*place)).0 as usize] += 1),
            Some(parent) => {
                let mut shared = [0; PAGE_BLOCKS as usize];
                if page * PAGE_BLOCKS < parent.blocks() {
                    parent.save_page(page, &mut shared);
                }
                let own = places.iter().zip(&shared).filter(|(place, shared)| place != shared);
                own.for_each(|(place, _)| live[self.layout.place(Physical(*place)).0 as usize] += 1);
            }
        }
        let _alone = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.map.load_page(page, places);
        Ok(())
    }

    /// Tells what was counted.
    fn tell(&self, pool: &ZonePool, version: &mut Version) {
        let tallies = std::mem::take(&mut *self.tallies.lock().unwrap_or_else(PoisonError::into_inner));
        for page in tallies.iter().flat_map(|tally| &tally.dirty) {
            version.dirty.insert(*page);
        }
        // What isn't mapped was counted as block 0.
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

/// Does this on a thread of its own, if it is about so many pages that it is worth it.
async fn elsewhere(pages: usize, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    match pages < WORTH_A_THREAD {
        true => work(),
        false => runtime::blocking(work).await,
    }
}
