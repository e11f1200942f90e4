//! Resets of zones: those without live pages, and victims whose live pages are moved first.
//!
//! The kit's pool knows how much of each zone is live, and its cost-benefit policy chooses the zone to clean.
//! Pages are moved without decompressing them.

use super::{CLEANER_STREAM, Core, add};
use crate::arena::{BLOCK, BLOCK_GRANULES};
use crate::entry::{Entry, Place};
use crate::nodes::Node;
use crate::slot::{self, Encoding, GRANULE, PAGE};
use block::{Error, Result};
use logkit::cleaning::Pressure;
use logkit::stream::Sequences;
use std::rc::Rc;
use std::time::Duration;

/// Longest time between two passes without an event.
const LOOK: Duration = Duration::from_millis(500);
/// Pause after a zone that couldn't be read.
const RETRY: Duration = Duration::from_millis(200);
/// Time for which a zone isn't chosen again after a pass that left live pages in it.
const AVOID: Duration = Duration::from_secs(10);

/// A live slot: its page, its offset in the block, the length of its bytes, its encoding and its place.
struct Live {
    page: u32,
    at: usize,
    bytes: usize,
    encoding: Encoding,
    place: Place,
}

/// Outcome of moving the pages of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// All live pages were moved.
    All,
    /// Live pages are left, and may be readable later.
    Partly,
    /// Every copy was read, and all of them lack some pages.
    LackingPages,
}

impl Moved {
    /// Outcome by the number of live granules that are left, and by whether every copy that the zone may have
    /// was read.
    fn of(live: u32, were_all_read: bool) -> Self {
        match (live, were_all_read) {
            (0, _) => Moved::All,
            (_, true) => Moved::LackingPages,
            (_, false) => Moved::Partly,
        }
    }
}

impl Core {
    /// Resets zones without live pages, until the device is closed.
    pub(crate) async fn run_releases(self: Rc<Self>) {
        while !self.is_closing.get() {
            let work = self.work.notified();
            if !self.release_dead().await {
                // A pass without an event costs little.
                let _elapsed = runtime::timeout(LOOK, work).await;
            }
        }
    }

    /// Cleans while few zones are free, until the device is closed.
    pub(crate) async fn run_cleaner(self: Rc<Self>) {
        while !self.is_closing.get() {
            let work = self.work.notified();
            let outcome = match self.pool.free() < self.settings.low {
                true => self.clean_one().await,
                false => Ok(false),
            };
            match outcome {
                Ok(true) => {
                    self.failed_cleaning.ended("cleaning");
                    self.stuck.replace(None);
                    continue;
                }
                Ok(false) => self.note_stuck(),
                Err(error) => {
                    self.failed_cleaning.failed(format_args!("cleaning: {error}"));
                    self.note_stuck();
                    runtime::sleep(RETRY).await;
                }
            }
            // A pass without an event costs little.
            let _elapsed = runtime::timeout(LOOK, work).await;
        }
        self.freed.notify_all();
    }

    /// Updates `stuck`, the error of writes while no zone is free and none can be cleaned.
    fn note_stuck(&self) {
        let is_up = self.nodes.iter().any(Node::is_up);
        let has_region = self.nodes.iter().any(|node| node.is_up() && node.free_regions() > 0);
        // A zone that is being reset, or may be after a write in flight, returns its regions.
        let comes = self.pool.free_soon() > self.pool.free() || self.is_writing();
        let stuck = match (self.pool.free() > self.settings.reserve, has_region) {
            _ if is_up && comes => None,
            (true, true) => None,
            (_, false) => Some(self.no_region()),
            (false, true) => {
                Some(Error::no_space("the memory nodes are full; add nodes or memory, or store less"))
            }
        };
        self.stuck.replace(stuck);
        self.freed.notify_all();
    }

    /// Resets the zones without live pages. Returns whether there was one.
    async fn release_dead(&self) -> bool {
        let dead = self.pool.take_dead();
        let mut count = 0;
        for zone in &dead {
            if self.zones.get(*zone).is_copied {
                self.pool.return_dead(vec![*zone]);
                continue;
            }
            self.release(*zone).await;
            self.pool.end_resetting(1);
            count += 1;
        }
        if count > 0 {
            self.freed.notify_all();
        }
        count > 0
    }

    /// Resets a zone: removes it from the staged blocks and the read cache, and frees its regions.
    async fn release(&self, zone: u32) {
        for block in self.blocks_of(zone, self.arena.sizes().zone_blocks) {
            let staged = self.staging.borrow().of_block(block);
            if let Some(staged) = staged {
                self.staging.borrow_mut().forget(&self.arena, staged);
            }
            let pieces = (BLOCK / PAGE) as u64;
            self.frames.borrow_mut().forget(&self.arena, block * pieces..(block + 1) * pieces);
        }
        // Copies of a zone without blocks are ignored: if the process is killed between the two changes, no
        // region is given out twice.
        self.zones.change(&self.arena, zone, |entry| {
            entry.generation = entry.generation.wrapping_add(1);
            (entry.blocks, entry.is_closed, entry.has_backup) = (0, false, false);
        });
        let copies = self.zones.change(&self.arena, zone, |entry| std::mem::take(&mut entry.copies));
        for copy in copies {
            self.nodes[usize::from(copy.node)].free_region(copy.region).await;
        }
        self.pool.set_reset(zone, self.zones.generation(zone).into());
    }

    /// Cleans the zone that the policy chooses. Returns false if there is none: zones with more than 63/64 of
    /// their granules live are skipped, because moving them frees next to nothing, and cleaning would never
    /// end.
    async fn clean_one(self: &Rc<Self>) -> Result<bool> {
        let granules = self.zone_granules() as u32;
        let most_live = granules / 64 * 63;
        let total = self.arena.sizes().zones;
        let pressure =
            Pressure { free: self.pool.free(), total, low: self.settings.low, high: self.settings.low };
        let now = self.clock.get();
        self.unreadable.borrow_mut().retain(|_, since| since.elapsed() < AVOID);
        let (chosen, _) = self.pool.choose((most_live, granules), &Sequences::default(), |candidates| {
            let unreadable = self.unreadable.borrow();
            let mut readable = candidates.filter(|candidate| {
                !unreadable.contains_key(&candidate.zone.0) && !self.sources(candidate.zone.0).is_empty()
            });
            self.policy.borrow_mut().choose(&mut readable, pressure, now)
        });
        let Some(victim) = chosen else { return Ok(false) };
        let zone = victim.zone.0;
        let moved = self.move_zone(zone).await;
        // The zone is full again, and dead if no page in it is live.
        self.pool.set_full(zone);
        moved.map(|()| true)
    }

    /// Moves the live pages of a zone. Pages that no copy has are lost.
    async fn move_zone(self: &Rc<Self>, zone: u32) -> Result<()> {
        if self.move_pages(zone).await? == Moved::LackingPages {
            self.lose(&[zone]).await;
        }
        Ok(())
    }

    /// Moves the live pages of a zone that any copy has. Unless these are all, the zone isn't chosen again at
    /// once: another pass would gain nothing, and cleaning would never end.
    pub(crate) async fn move_pages(self: &Rc<Self>, zone: u32) -> Result<Moved> {
        let blocks = self.blocks_of(zone, self.zones.get(zone).blocks);
        let sources = self.sources(zone);
        let mut failure = None;
        // Each copy is read twice: the bytes may have been damaged in transit.
        for copy in 0..2 * sources.len().max(1) {
            for block in blocks.clone() {
                if self.block_live(block) == 0 {
                    continue;
                }
                match self.block(block, copy).await {
                    Ok(bytes) => self.move_slots(block, &bytes).await?,
                    Err(error) => failure = Some(error),
                }
            }
        }
        let were_all_read = failure.is_none()
            && !sources.is_empty()
            && self.sources(zone) == sources
            && self.unreachable(zone).is_none();
        let moved = Moved::of(self.pool.live(zone), were_all_read);
        if moved != Moved::Partly {
            return Ok(moved);
        }
        self.unreadable.borrow_mut().insert(zone, runtime::now());
        failure.map_or(Ok(moved), Err)
    }

    /// Marks the pages that are still in these zones as lost. The caller ensures that the zones aren't reset
    /// meanwhile.
    pub(crate) async fn lose(&self, zones: &[u32]) {
        if zones.is_empty() {
            return;
        }
        let mut is_among = vec![false; self.arena.sizes().zones as usize];
        zones.iter().for_each(|zone| is_among[*zone as usize] = true);
        for page in 0..self.arena.sizes().pages as u32 {
            if matches!(self.arena.entry(page), Entry::Stored(place) if is_among[self.zone_at(place) as usize])
            {
                self.replace(page, Entry::Lost);
            }
            if page % 65_536 == 65_535 {
                runtime::yield_now().await;
            }
        }
    }

    /// Bytes of a block: as staged, or else from the first readable copy, beginning with number `copy`.
    pub(crate) async fn block(&self, block: u64, copy: usize) -> Result<Vec<u8>> {
        let staged = self.staging.borrow().of_block(block);
        if let Some(staged) = staged {
            let mut bytes = vec![0; BLOCK];
            let fill = self.staging.borrow().get(staged).fill as usize * GRANULE;
            self.arena.read_staged(staged, 0, &mut bytes[..fill]);
            return Ok(bytes);
        }
        let (zone, offset) = self.zone_of(block);
        let mut failure = Error::io(format!("zone {zone}: no copy can be read"));
        let mut sources = self.sources(zone);
        let count = sources.len().max(1);
        sources.rotate_left(copy % count);
        for source in sources {
            match self.node_of(source).read(source.1, offset, BLOCK).await {
                Ok(buffer) => {
                    add(&self.counters.node_read, BLOCK as u64);
                    return Ok(buffer.filled().to_vec());
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Live pages among the slots of a block.
    fn live_slots(&self, block: u64, bytes: &[u8]) -> Vec<Live> {
        let zone = self.zone_of(block).0;
        let mut live: Vec<Live> = Vec::new();
        slot::each(bytes, self.zones.generation(zone), |granule, slot| {
            let place = Place {
                granule: block * BLOCK_GRANULES + granule as u64,
                granules: slot.granules(),
                generation: slot.generation,
            };
            if u64::from(slot.page) < self.arena.sizes().pages
                && self.arena.entry(slot.page) == Entry::Stored(place)
            {
                let at = granule * GRANULE + slot::HEADER;
                live.push(Live {
                    page: slot.page,
                    at,
                    bytes: slot.bytes.len(),
                    encoding: slot.encoding,
                    place,
                });
            }
        });
        live
    }

    /// Number of live granules of a block.
    pub(crate) fn live_granules(&self, block: u64, bytes: &[u8]) -> u32 {
        self.live_slots(block, bytes).iter().map(|live| u32::from(live.place.granules)).sum()
    }

    /// Moves the live pages of a block, read from copy number `copy` at first.
    pub(crate) async fn move_block(self: &Rc<Self>, block: u64, copy: usize) -> Result<()> {
        let bytes = self.block(block, copy).await?;
        self.move_slots(block, &bytes).await
    }

    /// Moves the live pages among the slots of a block.
    async fn move_slots(self: &Rc<Self>, block: u64, bytes: &[u8]) -> Result<()> {
        for Live { page, at, bytes: length, encoding, place } in self.live_slots(block, bytes) {
            loop {
                // No await between this check and the store.
                if self.arena.entry(page) != Entry::Stored(place) {
                    break;
                }
                if self.store_slot(CLEANER_STREAM, page, encoding, &bytes[at..at + length]) {
                    add(&self.counters.moved, 1);
                    break;
                }
                self.open_next(CLEANER_STREAM).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_lost_only_if_every_copy_was_read() {
        assert_eq!(Moved::of(0, false), Moved::All);
        assert_eq!(Moved::of(0, true), Moved::All);
        assert_eq!(Moved::of(1, false), Moved::Partly);
        assert_eq!(Moved::of(1, true), Moved::LackingPages);
    }
}
