//! The parts of a log on one shard.
//!
//! The parts keep their state private. [`Kit`] holds one of each, and their common state: the failure of the
//! log, its closing, and the events by which tasks wake each other.

use crate::cleaning::Policy;
use crate::device_space::Space;
use crate::layout::Layout;
use crate::marks::Marks;
use crate::newest_checkpoint::Checkpoints;
use crate::pace_state::Pace;
use crate::pool::budget::Budget;
use crate::pool::{CHECKPOINT_CLASS, Usage, ZonePool};
use crate::readers::Readers;
use crate::record::Identity;
use crate::record::StreamId;
use crate::root::{Root, RootWriter};
use crate::shard_flusher::Flusher;
use crate::shared::{self, Event, Member, Shared};
pub use crate::shared::{Counters, count};
use crate::stream::Streams;
use crate::summary::Builder;
use crate::turns::Turns;
use crate::zone_writer::ZoneWriter;
use block::{Error, Result, Zones};
use runtime::TaskGroup;
use runtime::sync::{Notify, Semaphore};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Settings of an open log; none is stored on the medium.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Stream of users' records.
    pub user_stream: StreamId,
    /// Stream of the cleaner's moves.
    pub cleaner_stream: StreamId,
    /// Most appends of users' records in flight.
    pub appends_in_flight: u32,
    /// Number of data blocks in a zone that the cleaner fills.
    pub data_blocks: u32,
    /// Number of data blocks in a record whose entries have one block each.
    pub record_blocks: u32,
    /// Number of free zones that only the cleaner may take.
    pub cleaner_reserve: u32,
    /// Least number of blocks that are appended between checkpoints; more while a checkpoint would be large.
    pub checkpoint_blocks: u64,
    /// Share of free zones, 0 to 1, below which cleaning is faster than users' writes; at least the share
    /// that the cleaner needs.
    pub low_watermark: f64,
    /// Share of free zones, 0 to 1, below which cleaning is paced to users' writes.
    pub high_watermark: f64,
    /// Most [steps](crate::Entry::steps) of a record's entries.
    pub most_steps: u64,
    /// Fixed cost of a read of a victim, as the number of bytes that could be read in the same time: gaps
    /// between live data up to this length are read through. 0 reads only live data; `u64::MAX` reads
    /// everything between the first and the last live block of the zone.
    pub read_request_bytes: u64,
    /// Whether the next zones of lanes are [opened ahead](crate::prepare), so that no record of users waits
    /// for the opening of a zone.
    pub prepare_zones: bool,
}

/// Events by which tasks wake each other. A [`Notify`] wakes tasks of this shard, an [`Event`] those of all
/// shards.
#[derive(Debug)]
pub struct Events {
    /// An entry was queued, or an append has ended.
    pub work: Notify,
    /// A zone was freed, or none can be freed.
    pub freed: Event,
    /// The cleaner may have something to do.
    pub cleaner: Event,
    /// Capacity was returned.
    pub settled: Notify,
    /// Entries that had been acknowledged have committed, or never will.
    pub committed: Notify,
    /// A task asked for zones to be sealed.
    pub(crate) seals: Notify,
}

impl Events {
    fn new(member: &Rc<Member>) -> Self {
        Events {
            work: Notify::new(),
            freed: Event::new(member, shared::FREED),
            cleaner: Event::new(member, shared::CLEANER),
            settled: Notify::new(),
            committed: Notify::new(),
            seals: Notify::new(),
        }
    }

    /// Wakes every task that waits for any event.
    pub fn notify_all(&self) {
        let Events { work, freed, cleaner, settled, committed, seals } = self;
        [work, settled, committed, seals].into_iter().for_each(Notify::notify_all);
        [freed, cleaner].into_iter().for_each(Event::notify_all);
    }
}

/// Parts of a new kit: the recovered state, or that of a new log.
#[derive(Debug)]
pub struct Parts {
    /// Division of the zones.
    pub layout: Layout,
    /// Identity that binds records to this log.
    pub identity: Identity,
    /// Number of times that the log has been opened.
    pub epoch: u64,
    /// State of the zones.
    pub pool: Arc<ZonePool>,
    /// Watermarks of the streams.
    pub streams: Arc<Streams>,
    /// Number of data blocks that users have written.
    pub clock: u64,
    /// The newest checkpoint, and the location of the next root.
    pub checkpoints: Checkpoints,
}

/// Shared state of a log, for another shard to [join](Kit::join).
#[derive(Debug, Clone)]
pub struct Peer {
    layout: Layout,
    identity: Identity,
    epoch: u64,
    root: Root,
    shared: Arc<Shared>,
}

/// The parts of a log on one shard.
pub struct Kit {
    /// Division of the zones.
    pub layout: Layout,
    /// Settings of the log.
    pub settings: Settings,
    /// The zones, through this shard's handle.
    pub zones: Rc<dyn Zones>,
    /// Identity that binds records to this log.
    pub identity: Identity,
    /// Number of times that the log has been opened.
    pub epoch: u64,
    /// State of the zones.
    pub pool: Arc<ZonePool>,
    /// Watermarks of the streams.
    pub streams: Arc<Streams>,
    /// Reads in progress, on all shards.
    pub readers: Arc<Readers>,
    /// Numbers for operators.
    pub counters: Arc<Counters>,
    /// Makes appends durable.
    pub flusher: Rc<Flusher>,
    /// Policy that chooses victims and the class of each write.
    pub policy: RefCell<Box<dyn Policy>>,
    /// Pace of the cleaner's moves.
    pub pace: Pace,
    /// Space of the device below.
    pub space: Space,
    /// Events by which tasks wake each other.
    pub events: Events,
    /// The newest checkpoint, and the location of the next root.
    pub checkpoints: Checkpoints,
    /// Keeps moves out of checkpoints.
    pub turns: Turns,
    /// Held while a checkpoint is written, since there is at most one.
    pub checkpointing: Rc<Semaphore>,
    /// Lanes, the cleaner, tasks that they started, and calls of other shards.
    pub tasks: TaskGroup,
    /// Marks of durable records while this shard is idle.
    pub(crate) marks: Marks,
    shared: Arc<Shared>,
    member: Rc<Member>,
    is_closing: Cell<bool>,
    /// Zones that the owner asked the lanes of this shard to seal, with their generations.
    to_seal: RefCell<BTreeSet<(u32, u64)>>,
    /// Number of resets of dead zones that are running.
    resets: Cell<u32>,
    /// Permits of zones that are sealed in the background.
    pub(crate) sealing: Rc<Semaphore>,
    spare_summaries: RefCell<Vec<Builder>>,
    /// For each class of users, a reference for each zone that a lane of this shard holds, and this one.
    zones_of_lanes: Box<[Rc<()>]>,
}

impl std::fmt::Debug for Kit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Kit({})", self.identity.uuid)
    }
}

/// Guard of a reset of dead zones in progress.
#[derive(Debug)]
pub(crate) struct Resetting<'a>(&'a Kit);

impl Drop for Resetting<'_> {
    fn drop(&mut self) {
        self.0.resets.set(self.0.resets.get() - 1);
        self.0.events.freed.notify_all();
    }
}

impl Kit {
    /// Returns the kit of the home shard of a log, which writes the streams `own`.
    pub fn new(
        parts: Parts,
        zones: Rc<dyn Zones>,
        settings: Settings,
        policy: Box<dyn Policy>,
        own: &[StreamId],
    ) -> Rc<Self> {
        let Parts { layout, identity, epoch, pool, streams, clock, checkpoints } = parts;
        let root = checkpoints.root().clone();
        let peer = Peer { layout, identity, epoch, root, shared: Shared::new(pool, streams, clock) };
        Self::with(peer, checkpoints, zones, settings, policy, own)
    }

    /// Returns the kit of another shard of a log, which writes the streams `own`. It has the newest root at
    /// the time of the join, and takes no checkpoints. All shards join before lanes and the cleaner are
    /// started.
    pub fn join(
        peer: Peer,
        zones: Rc<dyn Zones>,
        settings: Settings,
        policy: Box<dyn Policy>,
        own: &[StreamId],
    ) -> Rc<Self> {
        let checkpoints = Checkpoints::new(peer.root.clone(), RootWriter::first());
        Self::with(peer, checkpoints, zones, settings, policy, own)
    }

    /// Returns the state that another shard needs to join the log.
    pub fn peer(&self) -> Peer {
        let root = self.checkpoints.root().clone();
        let Kit { layout, identity, epoch, shared, .. } = self;
        Peer { layout: *layout, identity: *identity, epoch: *epoch, root, shared: shared.clone() }
    }

    fn with(
        peer: Peer,
        checkpoints: Checkpoints,
        zones: Rc<dyn Zones>,
        settings: Settings,
        policy: Box<dyn Policy>,
        own: &[StreamId],
    ) -> Rc<Self> {
        let tasks = TaskGroup::default();
        let Peer { layout, identity, epoch, shared, .. } = peer;
        let (pool, streams) = (shared.pool.clone(), shared.streams.clone());
        pool.set_backed_blocks(layout.backed_blocks());
        let member = Member::new(shared.clone());
        let streams_of_marks = streams.clone();
        Rc::new(Kit {
            layout,
            flusher: Flusher::new(zones.clone(), streams.clone(), own, tasks.clone()),
            zones,
            identity,
            epoch,
            pool,
            streams,
            readers: shared.readers.clone(),
            counters: shared.counters.clone(),
            pace: Pace::new(settings.data_blocks),
            space: Space::new(shared.space.clone()),
            events: Events::new(&member),
            checkpoints,
            turns: Turns::default(),
            checkpointing: Semaphore::new(1),
            marks: Marks::new(&streams_of_marks, [settings.user_stream, settings.cleaner_stream]),
            tasks,
            shared,
            member,
            is_closing: Cell::new(false),
            to_seal: RefCell::default(),
            resets: Cell::new(0),
            sealing: Semaphore::new(settings.appends_in_flight as usize),
            spare_summaries: RefCell::default(),
            zones_of_lanes: std::iter::repeat_with(Rc::default).take(usize::from(policy.classes())).collect(),
            policy: RefCell::new(policy),
            settings,
        })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn member(&self) -> &Member {
        &self.member
    }

    /// Number of data blocks that users have written.
    #[inline]
    pub fn clock(&self) -> u64 {
        self.shared.clock.load(Ordering::Relaxed)
    }

    /// Counts blocks that users wrote.
    #[inline]
    pub fn note_user_blocks(&self, blocks: u64) {
        self.shared.clock.fetch_add(blocks, Ordering::Relaxed);
        count(&self.counters.user_blocks, blocks);
    }

    /// Number of blocks that were appended since the last checkpoint began.
    pub fn since_checkpoint(&self) -> u64 {
        self.shared.since_checkpoint.load(Ordering::Relaxed)
    }

    /// Counts appended blocks, which recovery replays unless a checkpoint covers them.
    pub fn note_appended(&self, blocks: u64) {
        self.shared.since_checkpoint.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Resets the count of appended blocks for the next checkpoint, and returns the previous count. The
    /// caller [adds it again](Self::note_appended) if the checkpoint fails.
    pub fn begin_checkpoint(&self) -> u64 {
        self.shared.since_checkpoint.swap(0, Ordering::Relaxed)
    }

    /// Error of a log that has failed and takes no writes.
    pub fn failure(&self) -> Option<Error> {
        self.shared.failed.get()
    }

    /// Fails the log unless it has failed before. Returns the error for its users.
    pub(crate) fn set_failed(&self, error: &Error) -> Error {
        let told = Error::read_only(format!("the log takes no more writes: {}", error.detail()));
        tracing::error!("{told}");
        self.shared.failed.set_first(&told);
        self.member.notify_others(shared::FAILED);
        told
    }

    /// Whether the log is being closed. Queued entries are still written.
    pub fn is_closing(&self) -> bool {
        self.is_closing.get()
    }

    /// Asks the lanes of this shard to seal those of these zones that they have open, each between two
    /// records, for an owner that must erase their contents.
    pub fn seal_lanes(&self, zones: impl IntoIterator<Item = u32>) {
        let is_open = |zone: u32| Some(self.pool.get(zone)).filter(|state| state.usage == Usage::Open);
        let mut asked = self.to_seal.borrow_mut();
        // Zones that others have sealed since.
        asked
            .retain(|(zone, generation)| is_open(*zone).is_some_and(|state| state.generation == *generation));
        let before = asked.len();
        asked.extend(zones.into_iter().filter_map(|zone| Some((zone, is_open(zone)?.generation))));
        let is_new = asked.len() > before;
        drop(asked);
        if is_new {
            self.wake_holders();
        }
    }

    /// Wakes the holders of zones on this shard, which look for [requests to seal](crate::seals) then.
    pub(crate) fn wake_holders(&self) {
        self.events.work.notify_all();
        self.events.cleaner.here.notify_all();
        self.events.seals.notify_all();
    }

    /// Whether the owner asked for this zone to be sealed.
    #[inline]
    pub(crate) fn is_to_seal(&self, zone: u32, generation: u64) -> bool {
        let asked = self.to_seal.borrow();
        !asked.is_empty() && asked.contains(&(zone, generation))
    }

    /// Begins to close the log: lanes and cleaner end once nothing is queued.
    pub fn begin_closing(&self) {
        self.is_closing.set(true);
        self.marks.wake();
        self.events.work.notify_all();
        self.events.cleaner.notify_all();
        self.events.freed.notify_all();
    }

    /// Reason why the cleaner can't free any zone at the moment; `None` if it can.
    pub fn stuck(&self) -> Option<Error> {
        self.shared.stuck.get()
    }

    /// Whether the cleaner can't free any zone at the moment.
    pub fn is_stuck(&self) -> bool {
        self.shared.stuck.is_set()
    }

    /// Sets the reason why the cleaner can't free any zone.
    pub fn set_stuck(&self, error: Option<Error>) {
        self.shared.stuck.set(error);
    }

    /// Whether dead zones are being reset.
    pub(crate) fn is_resetting(&self) -> bool {
        self.resets.get() > 0
    }

    /// Notes that dead zones are being reset, until the guard is dropped.
    pub(crate) fn begin_reset(&self) -> Resetting<'_> {
        self.resets.set(self.resets.get() + 1);
        Resetting(self)
    }

    /// Notes that the cleaner may be able to free a zone again: writers aren't refused before it has tried.
    pub fn look_again(&self) {
        self.set_stuck(None);
        self.events.cleaner.notify_all();
    }

    /// Makes the present appends of this shard durable. If records join streams of several shards, clients
    /// need [`flusher::flush`](crate::flusher::flush).
    ///
    /// # Errors
    /// Errors of flushing the zones.
    pub async fn flush(&self) -> Result<()> {
        self.flusher.flush().await
    }

    /// Whether lanes write zones of this class.
    pub(crate) fn is_users(&self, class: u8) -> bool {
        class != CHECKPOINT_CLASS && self.policy.borrow().is_users(class)
    }

    /// Counts a zone among those that the lanes of this shard hold.
    pub(crate) fn count_of_lanes(&self, zone: &mut ZoneWriter) {
        zone.count_among(&self.zones_of_lanes[usize::from(zone.class())]);
    }

    /// Whether a lane of this shard holds a zone of a class that isn't being sealed.
    pub(crate) fn lanes_have(&self, class: u8) -> bool {
        Rc::strong_count(&self.zones_of_lanes[usize::from(class)]) > 1
    }

    /// Budget of open zones, which all shards share.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.shared.budget
    }

    /// Returns memory for a zone's summary.
    pub(crate) fn take_summary(&self) -> Builder {
        self.spare_summaries.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps the memory of a summary for the next zone.
    pub(crate) fn keep_summary(&self, summary: Builder) {
        self.spare_summaries.borrow_mut().push(summary);
    }

    /// Excludes a zone from use until the log is opened again.
    pub fn set_damaged(&self, zone: u32) {
        self.pool.set_damaged(zone);
        self.events.settled.notify_all();
    }
}
