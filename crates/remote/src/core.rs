//! The device on its home shard: the map, staged blocks, the cache, zones and nodes.
//!
//! A page that is written is compressed and packed into a staged block, and acknowledged. A full block is
//! written to every node that has a copy of its zone. Consecutive writes to one part of the device are packed
//! into one block (`streams`), so that a read prefetches neighbours.
//!
//! Left to other modules: reads from nodes (`fetch`), moving pages out of zones (`cleaner`), copies
//! (`copies`).

use crate::arena::{Arena, BLOCK, BLOCK_GRANULES};
use crate::compression::{Compression, Compressor};
use crate::entry::{Entry, GENERATIONS, GRANULE, Place, lost, pieces_of};
use crate::fetch::{Fetches, Source};
use crate::frames::Frames;
use crate::nodes::{self, FreeRegions, Node};
use crate::slot::{self, Encoding, HEADER, PAGE, Slot, append_page};
use crate::staging::{Staging, Use};
use crate::zones::{Copy, Zones};
use block::{Buffer, Error, Payload, Result};
use logkit::cleaning::{CostBenefit, Policy};
use logkit::pool::{Usage, ZonePool};
use runtime::sync::{Notify, Semaphore, StopSource};
use runtime::{FailureRun, Random, TaskGroup};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Streams of users: parts of the device that are written at the same time.
pub const USER_STREAMS: usize = 4;
/// The cleaner's stream.
pub const CLEANER_STREAM: usize = USER_STREAMS;
/// Pages of a part of the device, whose pages go to one stream: 16 MiB.
const PART_PAGES: u32 = 4096;
/// Smallest number of staged blocks: each stream has an open one, and one that is being written.
pub const MIN_STAGED: u32 = 2 * (USER_STREAMS as u32 + 1) + 2;

/// Blocks that are written to nodes at a time: each takes 1 MiB beside the cache, and this many keep a
/// network busy.
const BLOCKS_IN_FLIGHT: usize = 4;

/// Settings of an open device.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Copies of each zone on nodes.
    pub copies: usize,
    /// Compression of pages.
    pub compression: Compression,
    /// Time limit of a request to a node.
    pub limit: Duration,
    /// Number of zones reserved for the cleaner.
    pub reserve: u32,
    /// Number of free zones below which zones are cleaned.
    pub low: u32,
}

/// Open block and zone of one write stream.
#[derive(Debug, Default)]
struct Stream {
    /// Part of the device.
    part: Cell<u32>,
    /// Number of the stream's last use, by which the least recently used stream is found.
    used: Cell<u64>,
    /// Open staged block.
    staged: Cell<Option<u32>>,
    /// Open zone.
    zone: Cell<Option<u32>>,
}

/// Counters for operators.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) reads: Cell<u64>,
    /// Reads that needed no node.
    pub(crate) hits: Cell<u64>,
    pub(crate) writes: Cell<u64>,
    pub(crate) discards: Cell<u64>,
    /// Pages that are filled with one pattern.
    pub(crate) same: Cell<u64>,
    /// Pages that are stored.
    pub(crate) stored: Cell<u64>,
    /// Pages that were written and stored, and their bytes after compression.
    pub(crate) packed: Cell<u64>,
    pub(crate) packed_bytes: Cell<u64>,
    /// Pages that were lost.
    pub(crate) lost: Cell<u64>,
    /// Pages that the cleaner moved.
    pub(crate) moved: Cell<u64>,
    /// Reads that were also sent to a second node, because the first one was slow.
    pub(crate) hedged: Cell<u64>,
    /// Copies that were made again.
    pub(crate) copied: Cell<u64>,
    /// Bytes read from nodes, and written to them.
    pub(crate) node_read: Cell<u64>,
    pub(crate) node_written: Cell<u64>,
}

impl Counters {
    /// Counter of pages with an entry of this kind; `None` for absent pages, which aren't counted.
    fn pages(&self, entry: Entry) -> Option<&Cell<u64>> {
        match entry {
            Entry::Absent => None,
            Entry::Same(_) => Some(&self.same),
            Entry::Stored(_) => Some(&self.stored),
            Entry::Lost => Some(&self.lost),
        }
    }
}

pub(crate) fn add(counter: &Cell<u64>, value: u64) {
    counter.set(counter.get() + value);
}

fn subtract(counter: &Cell<u64>, value: u64) {
    counter.set(counter.get().saturating_sub(value));
}

/// The device.
pub struct Core {
    pub(crate) arena: Arena,
    pub(crate) settings: Settings,
    pub(crate) nodes: Vec<Node>,
    /// Backup device, on which the region of a zone has the zone's number.
    pub(crate) backup: Option<Node>,
    pub(crate) zones: Zones,
    pub(crate) pool: ZonePool,
    pub(crate) staging: RefCell<Staging>,
    pub(crate) frames: RefCell<Frames>,
    pub(crate) fetches: Fetches,
    pub(crate) policy: RefCell<Box<dyn Policy>>,
    streams: [Stream; USER_STREAMS + 1],
    /// Held while a stream's next block is opened.
    opening: [Rc<Semaphore>; USER_STREAMS + 1],
    generation: Cell<u32>,
    /// Live granules of each block.
    block_live: Vec<Cell<u32>>,
    /// Granules that were written: the clock of the cleaning policy.
    pub(crate) clock: Cell<u64>,
    uses: Cell<u64>,
    /// A permit for each block that is written to nodes.
    writing: Rc<Semaphore>,
    compressor: RefCell<Compressor>,
    /// Buffer from which a slot is decoded.
    scratch: RefCell<Box<[u8]>>,
    pub(crate) random: RefCell<Random>,
    /// Notified when a staged block or a zone becomes available, or a state changes.
    pub(crate) freed: Notify,
    /// Notified when a zone may have to be cleaned or reset.
    pub(crate) work: Notify,
    /// Error of writes while no zone is available.
    pub(crate) stuck: RefCell<Option<Error>>,
    /// Zones that the cleaner couldn't read, with the time of the attempt.
    pub(crate) unreadable: RefCell<BTreeMap<u32, runtime::Instant>>,
    pub(crate) is_closing: Cell<bool>,
    /// Stops the background tasks when the device is closed.
    closing: StopSource,
    /// Stops writes in flight, a request's time limit after the close began.
    late: StopSource,
    pub(crate) tasks: TaskGroup,
    pub(crate) counters: Counters,
    /// Failed writes of blocks, and failed cleaning, for the log.
    failed_writes: FailureRun,
    pub(crate) failed_cleaning: FailureRun,
}

impl Core {
    /// Creates the device from the contents of the arena.
    pub fn new(
        (arena, is_used): (Arena, bool),
        settings: Settings,
        nodes: Vec<Node>,
        backup: Option<Node>,
        seed: u64,
    ) -> Rc<Self> {
        let sizes = *arena.sizes();
        let zones = Zones::new(&arena);
        let pool = ZonePool::new(sizes.zones);
        let core = Core {
            staging: RefCell::new(Staging::new(&arena)),
            frames: RefCell::new(Frames::new(&arena)),
            fetches: Fetches::new(),
            policy: RefCell::new(Box::new(CostBenefit)),
            streams: Default::default(),
            opening: std::array::from_fn(|_| Semaphore::new(1)),
            generation: Cell::new((seed % u64::from(GENERATIONS)) as u32),
            block_live: vec![Cell::new(0); (arena.sizes().zones * arena.sizes().zone_blocks) as usize],
            clock: Cell::new(1),
            uses: Cell::new(0),
            writing: Semaphore::new(BLOCKS_IN_FLIGHT),
            compressor: RefCell::new(Compressor::new(settings.compression)),
            scratch: RefCell::new(vec![0; usize::from(slot::granules_of(PAGE)) * GRANULE].into()),
            random: RefCell::new(Random::new(seed)),
            freed: Notify::new(),
            work: Notify::new(),
            stuck: RefCell::default(),
            unreadable: RefCell::default(),
            is_closing: Cell::new(false),
            closing: StopSource::new(),
            late: StopSource::new(),
            tasks: TaskGroup::default(),
            counters: Counters::default(),
            failed_writes: FailureRun::default(),
            failed_cleaning: FailureRun::default(),
            arena,
            settings,
            nodes,
            backup,
            zones,
            pool,
        };
        core.restore(is_used);
        Rc::new(core)
    }

    /// Computes the state that isn't in the arena: accounts of zones and nodes, counters.
    fn restore(&self, is_used: bool) {
        let sizes = *self.arena.sizes();
        let mut live = vec![0_u32; sizes.zones as usize];
        if is_used {
            for page in 0..sizes.pages as u32 {
                let entry = self.arena.entry(page);
                if let Entry::Stored(place) = entry {
                    live[self.zone_at(place) as usize] += u32::from(place.granules);
                    self.add_block_live(place);
                }
                self.counters.pages(entry).into_iter().for_each(|count| add(count, 1));
            }
        }
        let mut pending = vec![0_u32; sizes.zones as usize];
        for staged in self.staging.borrow().full() {
            let block = self.staging.borrow().get(staged).block;
            pending[self.zone_of(block).0 as usize] += 1;
        }
        let mut free: Vec<FreeRegions> = self.nodes.iter().map(FreeRegions::all).collect();
        for (zone, (live, pending)) in (0..).zip(live.into_iter().zip(pending)) {
            let known = self.zones.get(zone);
            if known.blocks == 0 && pending == 0 {
                self.pool.set_free(zone, known.generation.into());
                continue;
            }
            self.pool.restore(zone, |entry| {
                entry.usage = Usage::Open;
                entry.generation = known.generation.into();
                (entry.written, entry.opened, entry.changed) = (self.zone_granules() as u32, 1, 1);
            });
            self.pool.add_live(zone, live);
            self.zones.change(&self.arena, zone, |entry| {
                (entry.is_closed, entry.pending) = (true, pending);
                // A process that was killed during a change may have left a copy whose region isn't its own.
                entry.copies.retain(|copy| {
                    free.get_mut(usize::from(copy.node)).is_some_and(|free| free.take(copy.region))
                });
            });
        }
        self.nodes.iter().zip(free).for_each(|(node, free)| node.set_free(free));
        self.pool.recount();
    }

    /// Starts the background tasks.
    pub fn start(self: &Rc<Self>) {
        let full = self.staging.borrow().full();
        for zone in 0..self.arena.sizes().zones {
            self.close_if_done(zone);
        }
        for staged in full {
            self.spawn_write(staged);
        }
        self.run(self.clone().run_cleaner());
        self.run(self.clone().run_releases());
        let backup = self.backup.iter().map(|_| None);
        for number in (0..self.nodes.len() as u8).map(Some).chain(backup) {
            self.run(self.clone().run_node(number));
        }
        self.run(self.clone().run_copies());
    }

    /// Starts a task that is dropped when the device is closed, at any await.
    fn run(&self, task: impl Future<Output = ()> + 'static) {
        let closing = self.closing.token();
        self.tasks.spawn(async move { closing.unless_stopped(task).await }).detach();
    }

    /// Starts a write of a full block to the nodes. A close waits for it no longer than the time limit of a
    /// request.
    fn spawn_write(self: &Rc<Self>, staged: u32) {
        let (write, late) = (self.clone().write_out(staged), self.late.token());
        self.tasks.spawn(async move { late.unless_stopped(write).await }).detach();
    }

    /// Granules of a zone.
    pub(crate) fn zone_granules(&self) -> u64 {
        u64::from(self.arena.sizes().zone_blocks) * BLOCK_GRANULES
    }

    /// Zone and byte offset in it of a block.
    pub(crate) fn zone_of(&self, block: u64) -> (u32, u64) {
        let zone_blocks = u64::from(self.arena.sizes().zone_blocks);
        ((block / zone_blocks) as u32, block % zone_blocks * BLOCK as u64)
    }

    /// Zone that contains a place.
    pub(crate) fn zone_at(&self, place: Place) -> u32 {
        (place.granule / self.zone_granules()) as u32
    }

    /// Numbers of the first blocks of a zone, over all zones.
    pub(crate) fn blocks_of(&self, zone: u32, count: u32) -> Range<u64> {
        let first = u64::from(zone) * u64::from(self.arena.sizes().zone_blocks);
        first..first + u64::from(count)
    }

    fn add_block_live(&self, place: Place) {
        let live = &self.block_live[(place.granule / BLOCK_GRANULES) as usize];
        live.set(live.get() + u32::from(place.granules));
    }

    /// Live granules of a block.
    pub(crate) fn block_live(&self, block: u64) -> u32 {
        self.block_live[block as usize].get()
    }

    /// Sets the entry of a page, and updates counters and live granules for the old and the new entry.
    pub(crate) fn replace(&self, page: u32, entry: Entry) {
        let before = self.arena.entry(page);
        self.arena.set_entry(page, entry);
        self.counters.pages(before).into_iter().for_each(|count| subtract(count, 1));
        self.counters.pages(entry).into_iter().for_each(|count| add(count, 1));
        if let Entry::Stored(place) = before {
            let live = &self.block_live[(place.granule / BLOCK_GRANULES) as usize];
            live.set(live.get() - u32::from(place.granules));
            self.pool.remove_live(self.zone_at(place), place.granules.into(), self.clock.get());
            if self.pool.dead() > 0 {
                self.work.notify_all();
            }
        }
        if let Entry::Stored(place) = entry {
            self.add_block_live(place);
            self.pool.add_live(self.zone_at(place), place.granules.into());
        }
    }

    /// Stream for a page: the one that has the page's part of the device, or else the least recently used
    /// one.
    fn stream_of(&self, page: u32) -> usize {
        let part = page / PART_PAGES;
        let users = &self.streams[..USER_STREAMS];
        let known = users.iter().position(|stream| stream.used.get() > 0 && stream.part.get() == part);
        let oldest = || (0..USER_STREAMS).min_by_key(|number| users[*number].used.get()).unwrap_or(0);
        let chosen = known.unwrap_or_else(oldest);
        add(&self.uses, 1);
        users[chosen].part.set(part);
        users[chosen].used.set(self.uses.get());
        chosen
    }

    /// Writes a page.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the nodes have no space; [`Error::Disconnected`] if none answers.
    pub async fn write_page(self: &Rc<Self>, page: u32, data: &[u8; PAGE]) -> Result<()> {
        add(&self.counters.writes, 1);
        if let Some(pattern) = slot::pattern_of(data) {
            self.replace(page, Entry::Same(pattern));
            return Ok(());
        }
        let stream = self.stream_of(page);
        loop {
            if self.store(stream, page, data) {
                return Ok(());
            }
            self.open_next(stream).await?;
        }
    }

    /// Compresses a page and stores it in the open block of a stream. Returns false if it doesn't fit.
    fn store(&self, stream: usize, page: u32, data: &[u8; PAGE]) -> bool {
        let mut compressor = self.compressor.borrow_mut();
        let is_smaller = |bytes: &[u8]| slot::granules_of(bytes.len()) < slot::granules_of(PAGE);
        let compressed = compressor.compress(data).filter(|(_, bytes)| is_smaller(bytes));
        let (encoding, bytes) = compressed.unwrap_or((Encoding::Plain, data));
        let is_stored = self.store_slot(stream, page, encoding, bytes);
        if is_stored {
            add(&self.counters.packed, 1);
            add(&self.counters.packed_bytes, bytes.len() as u64);
        }
        is_stored
    }

    /// Stores the bytes of a slot in the open block of a stream, and makes the map name it. Returns false if
    /// it doesn't fit.
    pub(crate) fn store_slot(&self, stream: usize, page: u32, encoding: Encoding, bytes: &[u8]) -> bool {
        let Some(staged) = self.streams[stream].staged.get() else { return false };
        let granules = slot::granules_of(bytes.len());
        let mut staging = self.staging.borrow_mut();
        let Some(first) = staging.reserve(&self.arena, staged, granules) else { return false };
        let block = staging.get(staged).block;
        drop(staging);
        let generation = (self.generation.get() + 1) % GENERATIONS;
        self.generation.set(generation);
        let slot = Slot { page, generation, encoding, bytes };
        let (at, end) = (first as usize * GRANULE, (first as usize + usize::from(granules)) * GRANULE);
        let header = slot.header(self.zones.generation(self.zone_of(block).0));
        self.arena.write_staged(staged, at, &header);
        self.arena.write_staged(staged, at + HEADER, bytes);
        let padding = end - at - HEADER - bytes.len();
        self.arena.write_staged(staged, end - padding, &[0; GRANULE][..padding]);
        add(&self.clock, granules.into());
        let place = Place { granule: block * BLOCK_GRANULES + u64::from(first), granules, generation };
        self.replace(page, Entry::Stored(place));
        true
    }

    /// Opens the next block of a stream, after the open one has become full.
    pub(crate) async fn open_next(self: &Rc<Self>, stream: usize) -> Result<()> {
        let before = self.streams[stream].staged.get();
        let _alone = self.opening[stream].acquire(1).await;
        if self.streams[stream].staged.get() != before {
            return Ok(());
        }
        self.close_staged(stream);
        // The last staged blocks are reserved for the cleaner.
        let kept = if stream == CLEANER_STREAM { 0 } else { 2 };
        while self.staging.borrow().available() <= kept {
            self.check()?;
            self.freed.notified().await;
        }
        let zone = self.zone_for(stream).await?;
        // Other streams may have taken the staged blocks while this one waited for a zone.
        if self.staging.borrow().available() <= kept {
            return Ok(());
        }
        let zone_blocks = self.arena.sizes().zone_blocks;
        let number = self.zones.change(&self.arena, zone, |entry| {
            entry.blocks += 1;
            entry.pending += 1;
            entry.is_closed = entry.blocks == zone_blocks;
            entry.blocks - 1
        });
        if number + 1 == zone_blocks {
            self.streams[stream].zone.set(None);
        }
        let block = self.blocks_of(zone, 0).start + u64::from(number);
        let staged = self.staging.borrow_mut().open(&self.arena, block);
        self.streams[stream].staged.set(staged);
        Ok(())
    }

    /// Closes the open block of a stream, and starts its write to the nodes.
    fn close_staged(self: &Rc<Self>, stream: usize) {
        if let Some(staged) = self.streams[stream].staged.take() {
            self.staging.borrow_mut().close(&self.arena, staged);
            self.spawn_write(staged);
        }
    }

    /// Closes the open zone of a stream.
    fn leave_zone(&self, stream: usize, zone: u32) {
        self.streams[stream].zone.set(None);
        self.zones.change(&self.arena, zone, |entry| entry.is_closed = true);
        self.close_if_done(zone);
    }

    /// Closes the open block and zone of a stream if the zone lacks a copy that can be made. Only closed
    /// zones are copied, and without writes this one would stay open.
    pub(crate) fn leave_zone_without_copy(self: &Rc<Self>, stream: usize) {
        let in_zone = || {
            let staged = self.streams[stream].staged.get();
            let of_block = staged.map(|staged| self.zone_of(self.staging.borrow().get(staged).block).0);
            let both = [self.streams[stream].zone.get(), of_block];
            both.into_iter().flatten().any(|zone| {
                let known = self.zones.get(zone);
                self.lacks_copy(&known) && self.node_for_copy(&known).is_some()
            })
        };
        // A stream that waits for a zone checks its copies itself.
        let Some(_alone) = self.opening[stream].try_acquire(1) else { return };
        if in_zone() {
            self.close_staged(stream);
            if let Some(zone) = self.streams[stream].zone.get() {
                self.leave_zone(stream, zone);
            }
        }
    }

    /// Refuses changes of a device that is being closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        match self.is_closing.get() {
            true => Err(Error::closed("the device is being closed")),
            false => Ok(()),
        }
    }

    /// Ends the tasks, within the limit of a request. Stored pages stay in place, for a process that gets the
    /// kept memory.
    pub(crate) async fn close(&self) {
        self.is_closing.set(true);
        self.closing.stop();
        let begin = runtime::now();
        while !self.tasks.is_empty() {
            if begin.elapsed() >= self.settings.limit {
                self.late.stop();
            }
            self.work.notify_all();
            self.freed.notify_all();
            runtime::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Checks that pages can be written: the device is open, and zones are available.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_open()?;
        self.stuck.borrow().clone().map_or(Ok(()), Err)
    }

    /// Returns the zone for a stream's next block.
    async fn zone_for(self: &Rc<Self>, stream: usize) -> Result<u32> {
        let usable = |zone: &u32| {
            let zone = self.zones.get(*zone);
            zone.copies
                .iter()
                .filter(|copy| {
                    copy.is_whole && self.nodes[usize::from(copy.node)].state() == nodes::State::Up
                })
                .count()
                >= self.copies_now().min(zone.copies.len())
        };
        if let Some(zone) = self.streams[stream].zone.get() {
            if usable(&zone) {
                return Ok(zone);
            }
            self.leave_zone(stream, zone);
        }
        let is_cleaner = stream == CLEANER_STREAM;
        let keep = if is_cleaner { 0 } else { self.settings.reserve };
        // Zones that users write have class 0, zones that the cleaner writes class 1.
        loop {
            if let Some(taken) = self.pool.take(u8::from(is_cleaner), keep, false, self.clock.get()) {
                match self.place(taken.zone) {
                    Ok(()) => {
                        self.streams[stream].zone.set(Some(taken.zone));
                        if self.pool.free() < self.settings.low {
                            self.work.notify_all();
                        }
                        return Ok(taken.zone);
                    }
                    Err(error) => {
                        self.pool.put_back(taken.zone);
                        self.stuck.borrow_mut().get_or_insert(error);
                    }
                }
            }
            self.work.notify_all();
            self.check()?;
            // Only the cleaner frees zones, so it can't wait for one unless a reset or a write in flight
            // ends.
            let comes = self.pool.free_soon() > 0 || self.is_writing();
            if is_cleaner && !comes {
                return Err(self.no_region());
            }
            self.freed.notified().await;
        }
    }

    /// Number of copies of new zones: fewer while too few nodes are up.
    fn copies_now(&self) -> usize {
        let up = self.nodes.iter().filter(|node| node.state() == nodes::State::Up).count();
        self.settings.copies.min(up.max(1))
    }

    /// Takes regions for a zone.
    fn place(&self, zone: u32) -> Result<()> {
        let mut copies: SmallVec<[Copy; crate::zones::MAX_COPIES]> = SmallVec::new();
        let mut others: SmallVec<[u8; 4]> = SmallVec::new();
        while copies.len() < self.settings.copies {
            // The zone itself is no longer among the free ones.
            let zones = self.pool.free() + 1;
            let Some(node) = nodes::choose(&self.nodes, &others, zones, &mut self.random.borrow_mut()) else {
                break;
            };
            others.push(node);
            if let Some(region) = self.nodes[usize::from(node)].take_region() {
                copies.push(Copy { node, region, is_whole: true });
            }
        }
        if copies.is_empty() {
            return Err(self.no_region());
        }
        self.zones.change(&self.arena, zone, |entry| {
            entry.has_backup = self.backup.is_some();
            entry.copies = copies;
            (entry.blocks, entry.pending, entry.is_closed) = (0, 0, false);
        });
        Ok(())
    }

    /// Error while no region is available.
    pub(crate) fn no_region(&self) -> Error {
        match self.nodes.iter().any(Node::is_up) {
            true => {
                Error::no_space("the memory nodes have no free region; add nodes or memory, or store less")
            }
            false => Error::disconnected("no memory node answers"),
        }
    }

    /// Writes a full block to every copy of its zone.
    pub(crate) async fn write_out(self: Rc<Self>, staged: u32) {
        let tag = self.staging.borrow().get(staged);
        let (zone, offset) = self.zone_of(tag.block);
        let used = (tag.fill as usize * GRANULE).next_multiple_of(PAGE).min(BLOCK);
        let mut is_anywhere = false;
        if used > 0 {
            let _permit = self.writing.acquire(1).await;
            let mut buffer = Buffer::new(used);
            self.arena.append_staged(staged, used, &mut buffer);
            is_anywhere = self.write_copies(zone, offset, buffer.freeze().into()).await;
        }
        if !is_anywhere && used > 0 && self.pool.live(zone) > 0 {
            // The pages go to another zone.
            if let Err(error) = self.move_block(tag.block, 0).await {
                let block = tag.block;
                self.failed_writes.failed(format_args!("block {block}: {error}; it is tried again"));
                runtime::sleep(Duration::from_millis(200)).await;
                if !self.is_closing.get() {
                    self.spawn_write(staged);
                }
                return;
            }
            self.failed_writes.ended("writing to memory nodes");
            self.staging.borrow_mut().forget(&self.arena, staged);
        } else {
            if is_anywhere {
                self.failed_writes.ended("writing to memory nodes");
            }
            self.staging.borrow_mut().written(&self.arena, staged);
        }
        self.block_done(zone);
        self.freed.notify_all();
    }

    /// Notes that a block of a zone is on the nodes, or isn't needed there.
    fn block_done(&self, zone: u32) {
        self.zones.change(&self.arena, zone, |entry| entry.pending -= 1);
        self.close_if_done(zone);
    }

    /// Marks a closed zone as full once all its blocks are on the nodes.
    fn close_if_done(&self, zone: u32) {
        let known = self.zones.get(zone);
        if known.is_closed && known.pending == 0 && self.pool.get(zone).usage == Usage::Open {
            if self.pool.set_full(zone) {
                self.work.notify_all();
            }
            self.freed.notify_all();
        }
    }

    /// Writes to all whole copies of a zone at once, including the one on the backup device. Returns whether
    /// any write succeeded.
    async fn write_copies(&self, zone: u32, offset: u64, payload: Payload) -> bool {
        let known = self.zones.get(zone);
        let whole = known.copies.iter().filter(|copy| copy.is_whole);
        let backup = known.has_backup.then_some((None, zone));
        let targets = whole.map(|copy| (Some(copy.node), copy.region)).chain(backup);
        let write = |target: Source| {
            let payload = payload.clone();
            async move { (target, self.node_of(target).write(target.1, offset, payload).await) }
        };
        let mut failed: SmallVec<[Source; 4]> = SmallVec::new();
        let mut succeeded = 0;
        for (target, outcome) in runtime::join_all(targets.map(write)).await {
            match outcome {
                Ok(()) => {
                    succeeded += 1;
                    let on_nodes = if target.0.is_some() { payload.len() as u64 } else { 0 };
                    add(&self.counters.node_written, on_nodes);
                }
                Err(error) => {
                    // The node has logged that it is down, or its error.
                    tracing::debug!("zone {zone}: {error}");
                    failed.push(target);
                }
            }
        }
        // A block that no copy has goes to another zone, so that the copies stay whole.
        if succeeded > 0 {
            failed.into_iter().for_each(|copy| self.set_not_whole(zone, copy));
        }
        succeeded > 0
    }

    /// Notes that a copy of a zone lacks data that was written to the zone.
    pub(crate) fn set_not_whole(&self, zone: u32, (node, region): Source) {
        self.zones.change(&self.arena, zone, |entry| {
            let mut copies = entry.copies.iter_mut();
            match node {
                Some(_) => copies
                    .find(|copy| (Some(copy.node), copy.region) == (node, region))
                    .into_iter()
                    .for_each(|copy| copy.is_whole = false),
                None => entry.has_backup = false,
            }
        });
    }

    /// Reads a page that needs no node into `page`. Returns false if it needs one.
    ///
    /// # Errors
    /// [`Error::Io`] for a page that was lost.
    fn read_here(&self, number: u32, page: &mut [u8; PAGE]) -> Result<bool> {
        match self.arena.entry(number) {
            Entry::Absent => page.fill(0),
            Entry::Same(pattern) => {
                page.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&pattern.to_le_bytes()))
            }
            Entry::Stored(place) => {
                let packed = &mut *self.scratch.borrow_mut();
                let bytes = &mut packed[..usize::from(place.granules) * GRANULE];
                if !self.read_local(place, bytes) {
                    return Ok(false);
                }
                let is_whole =
                    self.slot_at(number, place, bytes).is_some_and(|slot| self.unpack(&slot, page));
                if !is_whole {
                    let (first, end) = pieces_of(place);
                    self.frames.borrow_mut().forget(&self.arena, first..end);
                }
                return Ok(is_whole);
            }
            Entry::Lost => return Err(lost(number)),
        }
        Ok(true)
    }

    /// Copies the granules of a place from a staged block or from frames. Returns false if some are only on
    /// nodes.
    fn read_local(&self, place: Place, target: &mut [u8]) -> bool {
        let at = (place.granule % BLOCK_GRANULES) as usize * GRANULE;
        if let Some(staged) = self.staging.borrow().place(place.granule / BLOCK_GRANULES) {
            self.arena.read_staged(staged, at, target);
            return true;
        }
        let (first, end) = pieces_of(place);
        let mut frames = self.frames.borrow_mut();
        let (mut done, mut offset) = (0, at % PAGE);
        for piece in first..end {
            let Some(frame) = frames.get(&self.arena, piece) else { return false };
            let count = (PAGE - offset).min(target.len() - done);
            self.arena.read_frame(frame, offset, &mut target[done..done + count]);
            (done, offset) = (done + count, 0);
        }
        true
    }

    /// Slot of a page in the bytes of its place; `None` if it isn't there, is damaged, or has another
    /// generation than the map's.
    pub(crate) fn slot_at<'a>(&self, number: u32, place: Place, bytes: &'a [u8]) -> Option<Slot<'a>> {
        let slot = Slot::parse(bytes, self.zones.generation(self.zone_at(place)))?;
        (slot.page == number && slot.generation == place.generation).then_some(slot)
    }

    /// Decodes the page of a slot into `page`. Returns false if the bytes aren't a page.
    pub(crate) fn unpack(&self, slot: &Slot<'_>, page: &mut [u8; PAGE]) -> bool {
        self.compressor.borrow_mut().decompress(slot.encoding, slot.bytes, page).is_ok()
    }

    /// Reads a page, and appends it to a buffer. `ahead` is the number of pages that the request reads after
    /// it.
    ///
    /// # Errors
    /// [`Error::Io`] for a page that was lost; errors of the nodes.
    pub async fn read_page(self: &Rc<Self>, number: u32, ahead: u32, buffer: &mut Buffer) -> Result<()> {
        add(&self.counters.reads, 1);
        if self.append_here(number, buffer)? {
            add(&self.counters.hits, 1);
            return Ok(());
        }
        self.fetch(number, ahead, buffer).await
    }

    /// Appends a page that needs no node to a buffer. Returns false if it needs one.
    pub(crate) fn append_here(&self, number: u32, buffer: &mut Buffer) -> Result<bool> {
        append_page(buffer, |page| self.read_here(number, page))
    }

    /// Discards a page: it reads as zeros.
    pub fn discard_page(&self, page: u32) {
        if self.arena.entry(page) != Entry::Absent {
            add(&self.counters.discards, 1);
            self.replace(page, Entry::Absent);
        }
    }

    /// Whether a staged block is being written.
    pub(crate) fn is_writing(&self) -> bool {
        self.staging.borrow().count(Use::Full) > 0
    }
}
