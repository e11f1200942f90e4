//! The device on its home shard: the map, staged blocks, the cache, zones and nodes.
//!
//! A page that is written is compressed and packed into a staged block, and acknowledged. A full block is
//! written to every node that has a copy of its zone. Consecutive writes to one part of the device are packed
//! into one block (`streams`), so that a read prefetches neighbours.
//!
//! The parts of [`Core`]: `write`, `read`, `regions` of zones on nodes, reads from nodes (`fetch`), moves of
//! pages out of zones (`cleaner`), `copies` of zones, monitoring of nodes (`watch`).

mod cleaner;
mod copies;
mod counters;
mod fetch;
mod read;
mod regions;
mod streams;
mod watch;
mod write;

use crate::arena::{Arena, BLOCK, BLOCK_GRANULES};
use crate::compression::{Compression, Compressor};
use crate::entry::{Entry, Place};
use crate::frames::Frames;
use crate::nodes::{FreeRegions, Node};
use crate::slot::{self, GENERATIONS, GRANULE, PAGE};
use crate::staging::Staging;
use crate::zones::ZoneTable;
use block::{Error, Result};
use counters::subtract;
pub(crate) use counters::{Counters, add};
use fetch::Fetches;
use logkit::cleaning::{CostBenefit, Policy};
use logkit::pool::{Usage, ZonePool};
use runtime::sync::{Notify, Semaphore, StopSource};
use runtime::{FailureRun, Random, TaskGroup};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use streams::PackStreams;
pub use streams::{CLEANER_STREAM, USER_STREAMS};

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

/// The device.
pub struct Core {
    pub(crate) arena: Arena,
    pub(crate) settings: Settings,
    pub(crate) nodes: Vec<Node>,
    /// Backup device, on which the region of a zone has the zone's number.
    pub(crate) backup: Option<Node>,
    pub(crate) zones: ZoneTable,
    pub(crate) pool: ZonePool,
    pub(crate) staging: RefCell<Staging>,
    pub(crate) frames: RefCell<Frames>,
    pub(crate) fetches: Fetches,
    pub(crate) policy: RefCell<Box<dyn Policy>>,
    streams: PackStreams,
    generation: Cell<u32>,
    /// Live granules of each block.
    block_live: Vec<Cell<u32>>,
    /// Granules that were written: the clock of the cleaning policy.
    pub(crate) clock: Cell<u64>,
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
    /// Error of the last block that no node took: that of a node without memory, if there was one.
    refusal: RefCell<Option<Error>>,
    /// Zones in which a pass left live pages, with the time of the pass.
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
        let zones = ZoneTable::new(&arena);
        let pool = ZonePool::new(sizes.zones);
        let core = Core {
            staging: RefCell::new(Staging::new(&arena)),
            frames: RefCell::new(Frames::new(&arena)),
            fetches: Fetches::new(),
            policy: RefCell::new(Box::new(CostBenefit)),
            streams: PackStreams::new(),
            generation: Cell::new((seed % u64::from(GENERATIONS)) as u32),
            block_live: vec![Cell::new(0); (arena.sizes().zones * arena.sizes().zone_blocks) as usize],
            clock: Cell::new(1),
            writing: Semaphore::new(BLOCKS_IN_FLIGHT),
            compressor: RefCell::new(Compressor::new(settings.compression)),
            scratch: RefCell::new(vec![0; usize::from(slot::granules_of(PAGE)) * GRANULE].into()),
            random: RefCell::new(Random::new(seed)),
            freed: Notify::new(),
            work: Notify::new(),
            stuck: RefCell::default(),
            refusal: RefCell::default(),
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

    /// Whether the end of a write of a block may free a zone. A block that the nodes have refused may be
    /// written again for as long as they have no memory, so nothing waits for that.
    pub(crate) fn is_writing(&self) -> bool {
        self.staging.borrow().is_writing()
    }
}
