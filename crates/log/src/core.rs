//! The heart of a log, on its home shard: what was asked for and isn't written yet, and everything that changes.
//!
//! Writes of all shards come here whole and are numbered in the order in which they arrive, so overlapping ones need no
//! lock. Reads don't come here: they look into the map, which any shard may do.

mod admission;

use crate::buffered::Buffered;
use crate::flush::Flusher;
use crate::format::{CHECKPOINT, CLEANER, Change, USER, VersionId};
use crate::home::MapHome;
use crate::layout::Layout;
use crate::open_zone::OpenZone;
use crate::readers::Readers;
use crate::room::Images;
use crate::root::RootWriter;
use crate::stream::Stream;
use crate::table::{Usage, ZoneTable};
use crate::versions::Versions;
use block::{Error, Payload, Result, ZoneIndex, Zones};
use runtime::sync::{Notify, Semaphore};
use runtime::{RequestKey, Requests, TaskGroup};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use logkit::cleaning::Policy;
use logkit::record::{Header, Identity, StreamIndex};
use logkit::summary::Builder;

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledge {
    /// When its record is on the disk.
    Log,
    /// When it is in the buffer: a volatile cache.
    Buffer,
}

/// How a log works; none of it is on the medium.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many appends of users' writes are on their way at a time.
    pub appends_in_flight: u32,
    /// When a write is acknowledged.
    pub acknowledge: Acknowledge,
    /// How many blocks of users' writes may be in memory; writers wait beyond it.
    pub dirty_blocks: u64,
    /// How many blocks of data the log holds at most, if the volume has no snapshots.
    pub capacity: u64,
    /// The checkpoints for which `capacity` leaves room.
    pub reserved: Images,
    /// How many zones only the cleaner may take.
    pub cleaner_reserve: u32,
    /// How many bytes of log may be written between checkpoints, at least; more while a checkpoint would be large.
    pub checkpoint_bytes: u64,
    /// With fewer free zones than this share of all, cleaning gains on users' writes; 0 to 1, at least what it needs.
    pub low_watermark: f64,
    /// With fewer free zones than this share of all, cleaning goes along with users' writes; 0 to 1.
    pub high_watermark: f64,
    /// How many blocks of a volume are discarded, or given up by what was deleted, before others get their turn.
    pub blocks_at_once: u64,
}

/// One thing that was asked for: part of a record.
#[derive(Debug)]
pub struct Item {
    /// What.
    pub change: Change,
    /// Its data.
    pub payload: Payload,
    /// Who waits for it; none for the cleaner.
    pub request: Option<RequestKey>,
    /// How many blocks of room were set aside for it.
    pub growth: u32,
    /// Under which number its data is in the buffer, if it was acknowledged from there; else 0.
    pub ticket: u64,
}

/// The items of one record.
#[derive(Debug, Default)]
pub struct Group {
    /// In order.
    pub items: Vec<Item>,
    /// Where its first data block is.
    pub zone: u32,
    /// See `zone`.
    pub position: u32,
}

/// What is counted for people.
#[derive(Debug, Default)]
pub struct Counters {
    /// Data blocks that users wrote.
    pub user_blocks: AtomicU64,
    /// Data blocks that the cleaner moved.
    pub moved_blocks: AtomicU64,
    /// Blocks of headers, summaries, checkpoints and roots.
    pub overhead_blocks: AtomicU64,
    /// Of these, blocks of checkpoints.
    pub checkpoint_blocks: AtomicU64,
    /// Records of users' writes.
    pub user_records: AtomicU64,
    /// Zones that were cleaned.
    pub cleaned_zones: AtomicU64,
    /// Zones that were reset.
    pub reset_zones: AtomicU64,
    /// Checkpoints.
    pub checkpoints: AtomicU64,
    /// How often users' writes found no free zone, and waited for the cleaner.
    pub zone_waits: AtomicU64,
}

/// Adds to a counter that only this shard changes.
pub fn count(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed) + value, Ordering::Relaxed);
}

/// See the module's head.
pub struct Core {
    /// The division into blocks.
    pub layout: Layout,
    /// How it works.
    pub settings: Settings,
    /// The zones, through this shard's handle.
    pub zones: Rc<dyn Zones>,
    /// What binds records to this log.
    pub identity: Identity,
    /// How often the log has been opened.
    pub epoch: u64,
    /// What is known of each zone.
    pub table: ZoneTable,
    /// Users' records, the cleaner's, and those of checkpoints.
    pub streams: [RefCell<Stream<Group>>; 3],
    /// How many data blocks users have written.
    pub clock: Cell<u64>,
    /// The maps.
    pub versions: RefCell<Versions>,
    /// Which zone to clean, and what goes where.
    pub policy: RefCell<Box<dyn Policy>>,
    /// Who is reading, on all shards.
    pub readers: Arc<Readers>,
    /// For people.
    pub counters: Arc<Counters>,
    /// What checkpoints may take.
    pub images: Cell<Images>,
    /// What makes appends durable.
    pub flusher: Flusher,
    /// Writes roots.
    pub root: RefCell<RootWriter>,
    /// One checkpoint at a time.
    pub admin: Rc<Semaphore>,
    /// Where the map is kept, if it is at home.
    pub home: Option<MapHome>,
    /// The number of the last transaction of the home that was begun, and of the last that is durable.
    pub home_turns: Cell<(u64, u64)>,
    /// The newest durable checkpoint.
    pub checkpoint: RefCell<crate::checkpoint::Durable>,
    /// Moves and checkpoints, which keep out of each other's way where there are several versions.
    pub turns: crate::checkpoint::Turns,
    /// How many blocks of log have been written since the last checkpoint.
    pub since_checkpoint: Cell<u64>,
    /// Something was queued, or an append has ended.
    pub work: Notify,
    /// A zone was freed, or won't be.
    pub freed: Notify,
    /// The cleaner should look whether there is something to do.
    pub cleaner: Notify,
    /// How fast it goes.
    pub pace: crate::pace::Pace,
    /// The space of the device below.
    pub space: crate::space::Space,
    /// Why the cleaner can't free anything at the moment, if so.
    pub stuck: RefCell<Option<Error>>,
    /// The log is being closed; what is queued is still written.
    pub is_closing: Cell<bool>,
    /// Snapshots and clones that are open as devices.
    pub views: RefCell<Vec<(VersionId, std::sync::Weak<crate::device::Shared>)>>,
    /// Number of handles that are open on this shard.
    pub handles: Cell<usize>,
    /// Lanes, the cleaner, what they have started, and calls of other shards.
    pub tasks: TaskGroup,
    /// What was acknowledged and hasn't committed, where that is allowed.
    pub buffer: Arc<Buffered>,
    /// Some of it has committed.
    pub buffer_changed: Notify,
    /// Room for dirty data.
    dirty: Rc<Semaphore>,
    /// Zones that may be sealed beside everything else.
    sealing: Rc<Semaphore>,
    queues: RefCell<Vec<VecDeque<Item>>>,
    queued_items: Cell<u64>,
    requests: Requests,
    /// Room that was set aside for what is queued or on its way.
    growing: Cell<u64>,
    /// Less room is set aside than before, or there is more of it.
    pub settled: Notify,
    /// Appends of users' writes that are on their way, and the items in them.
    flying: Cell<(u32, u32)>,
    failed: RefCell<Option<Error>>,
    spare_items: RefCell<Vec<Vec<Item>>>,
    spare_summaries: RefCell<Vec<Builder>>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Core({})", self.identity.uuid)
    }
}

/// What a log is opened with, beside its settings.
pub struct State {
    /// The division into blocks.
    pub layout: Layout,
    /// The zones.
    pub zones: Rc<dyn Zones>,
    /// What binds records to this log.
    pub identity: Identity,
    /// How often the log has been opened.
    pub epoch: u64,
    /// What is known of each zone.
    pub table: ZoneTable,
    /// The last record of each stream.
    pub last: [u64; 3],
    /// How many data blocks users have written.
    pub clock: u64,
    /// The maps.
    pub versions: Versions,
    /// Where roots go.
    pub root: RootWriter,
    /// The newest durable checkpoint.
    pub checkpoint: crate::checkpoint::Durable,
    /// Where the map is kept, if it is at home.
    pub home: Option<MapHome>,
}

impl Core {
    /// A log in this state.
    pub fn new(state: State, settings: Settings, policy: Box<dyn Policy>) -> Rc<Self> {
        let classes = usize::from(policy.classes());
        let stream = |index: StreamIndex| RefCell::new(Stream::behind(state.last[usize::from(index.0)]));
        let core = Rc::new(Core {
            layout: state.layout,
            zones: state.zones,
            identity: state.identity,
            epoch: state.epoch,
            table: state.table,
            streams: [stream(USER), stream(CLEANER), stream(CHECKPOINT)],
            clock: Cell::new(state.clock),
            versions: RefCell::new(state.versions),
            policy: RefCell::new(policy),
            readers: Arc::default(),
            counters: Arc::default(),
            images: Cell::default(),
            flusher: Flusher::default(),
            root: RefCell::new(state.root),
            admin: Semaphore::new(1),
            home: state.home,
            home_turns: Cell::default(),
            checkpoint: RefCell::new(state.checkpoint),
            turns: crate::checkpoint::Turns::default(),
            since_checkpoint: Cell::new(0),
            work: Notify::new(),
            freed: Notify::new(),
            cleaner: Notify::new(),
            pace: crate::pace::Pace::new(state.layout.data_blocks()),
            space: crate::space::Space::default(),
            stuck: RefCell::default(),
            is_closing: Cell::new(false),
            views: RefCell::default(),
            handles: Cell::new(0),
            tasks: TaskGroup::default(),
            buffer: Arc::default(),
            buffer_changed: Notify::new(),
            dirty: Semaphore::new(settings.dirty_blocks as usize),
            sealing: Semaphore::new(settings.appends_in_flight as usize),
            queues: RefCell::new((0..classes).map(|_| VecDeque::new()).collect()),
            queued_items: Cell::new(0),
            requests: Requests::default(),
            growing: Cell::new(0),
            settled: Notify::new(),
            flying: Cell::new((0, 0)),
            failed: RefCell::default(),
            spare_items: RefCell::default(),
            spare_summaries: RefCell::default(),
            settings,
        });
        core.measure_images();
        core
    }

    /// Why the log takes no writes, if so.
    pub fn failure(&self) -> Option<Error> {
        self.failed.borrow().clone()
    }

    /// The log takes no more writes: what is queued or can't commit fails with this.
    pub fn fail(&self, error: &Error) {
        let told = Error::read_only(format!("the log takes no more writes: {}", error.detail()));
        tracing::error!("{told}");
        self.failed.borrow_mut().get_or_insert(told.clone());
        let mut items = Vec::new();
        self.queues.borrow_mut().iter_mut().for_each(|queue| items.extend(queue.drain(..)));
        self.queued_items.set(0);
        for stream in &self.streams {
            let waiting = stream.borrow_mut().take_waiting();
            items.extend(waiting.into_iter().flat_map(|group| group.items));
        }
        items.iter().for_each(|item| self.item_done(item, Err(told.clone())));
        self.buffer_changed.notify_all();
        self.work.notify_all();
        self.freed.notify_all();
        self.settled.notify_all();
        self.cleaner.notify_all();
    }

    /// Makes everything durable that was acknowledged by now.
    ///
    /// # Errors
    /// What made the log fail; what flushing says.
    pub async fn flush_acknowledged(self: &Rc<Self>) -> Result<()> {
        self.drain_buffer().await?;
        match self.home.is_some() {
            true => self.flush_home().await,
            false => self.flush().await,
        }
    }

    async fn drain_buffer(&self) -> Result<()> {
        let ticket = self.buffer.last_ticket();
        while !self.buffer.has_committed(ticket) {
            if let Some(error) = self.failure() {
                return Err(error);
            }
            self.space.check()?;
            self.buffer_changed.notified().await;
        }
        Ok(())
    }

    /// Whether an append lane should take something from a queue now, and from which one.
    ///
    /// While other appends are on their way it waits until as much has gathered as they have: so the appends share what
    /// a client keeps in flight, however it arrives.
    pub fn ready_class(&self) -> Option<u8> {
        let queues = self.queues.borrow();
        let (class, queue) = queues.iter().enumerate().max_by_key(|(_, queue)| queue.len())?;
        if queue.is_empty() {
            return None;
        }
        let (appends, items) = self.flying.get();
        let gathered = self.queued_items.get();
        (appends == 0 || gathered * u64::from(appends) >= u64::from(items)).then_some(class as u8)
    }

    /// What the log is busy with, for people.
    pub fn occupation(&self) -> String {
        let (appends, items) = self.flying.get();
        let requests = self.requests.len();
        format!(
            "{} changes queued, {appends} appends with {items} changes on their way, {requests} requests not answered, \
             {} zones free, {} dead",
            self.queued_items.get(),
            self.table.free(),
            self.table.dead()
        )
    }

    /// Whether anything is queued.
    pub fn has_work(&self) -> bool {
        self.queued_items.get() > 0
    }

    /// Takes items for one record from a queue: no more than fit the zone and the lane's share.
    pub fn take_group(&self, class: u8, zone: &OpenZone) -> Group {
        let mut group =
            Group { items: self.spare_items.borrow_mut().pop().unwrap_or_default(), ..Group::default() };
        let mut queues = self.queues.borrow_mut();
        let queue = &mut queues[usize::from(class)];
        let lanes = self.settings.appends_in_flight as usize;
        let share = match self.flying.get().0 {
            0 if queue.len() > lanes => queue.len().div_ceil(lanes),
            _ => queue.len(),
        };
        let (mut blocks, mut meta, mut unmapped) = (0_u32, 0_usize, 0_u64);
        while group.items.len() < share {
            let Some(item) = queue.front_mut() else { break };
            let (wanted, words) = (item.change.data_blocks(), item.change.encoded_length());
            // All of a record takes effect at once.
            if let Change::Unmap { count, .. } = &item.change {
                unmapped += u64::from(*count);
                if unmapped > self.settings.blocks_at_once && !group.items.is_empty() {
                    break;
                }
            }
            if zone.takes(&self.layout, blocks + wanted, meta + words) {
                blocks += wanted;
                meta += words;
                group.items.extend(queue.pop_front());
                continue;
            }
            // The beginning of a large write may fit, where there is nothing else in the record to wait for it.
            let is_worth_cutting = group.items.is_empty() || wanted > self.layout.max_append / 2;
            let most = blocks + wanted.saturating_sub(1);
            let room = zone.room(&self.layout, most, |_| meta + words).saturating_sub(blocks);
            if room > 0 && is_worth_cutting {
                group.items.push(self.cut(item, room));
            }
            break;
        }
        let taken = group.items.len() as u64;
        self.queued_items.set(self.queued_items.get().saturating_sub(taken));
        group
    }

    /// Whether nothing of this class is queued.
    pub fn queue_is_empty(&self, class: u8) -> bool {
        self.queues.borrow()[usize::from(class)].is_empty()
    }

    /// What is queued under this class can't be written, for want of a zone. What only takes data away gets one of those
    /// that are the cleaner's: else a full log could never be emptied.
    pub fn refuse_queued(&self, class: u8, error: &Error) -> Option<OpenZone> {
        let mut items: Vec<Item> = self.queues.borrow_mut()[usize::from(class)].drain(..).collect();
        let takes_away = |item: &Item| matches!(item.change, Change::Unmap { .. } | Change::Delete { .. });
        let is_worth_it = items.iter().any(takes_away);
        let zone = if is_worth_it { self.try_open_zone(class, self.zones_for_checkpoint()) } else { None };
        if zone.is_some() {
            let kept = items.extract_if(.., |item| takes_away(item)).collect::<VecDeque<Item>>();
            self.queues.borrow_mut()[usize::from(class)] = kept;
        }
        self.queued_items.set(self.queued_items.get() - items.len() as u64);
        items.iter().for_each(|item| self.item_done(item, Err(error.clone())));
        // What was acknowledged can't be taken back: reads find it as long as the log is open, and nothing is added.
        if items.iter().any(|item| item.ticket != 0) {
            self.fail(&error.in_context("acknowledged writes can't be written"));
        }
        zone
    }

    /// Whether something is queued under this class that was acknowledged from the buffer.
    pub fn has_acknowledged(&self, class: u8) -> bool {
        self.queues.borrow()[usize::from(class)].iter().any(|item| item.ticket != 0)
    }

    /// Takes the items of one record without data from a queue, those that `is_wanted` chooses, and refuses all others.
    pub fn take_without_data(&self, class: u8, error: &Error, is_wanted: impl Fn(&Item) -> bool) -> Group {
        let mut group =
            Group { items: self.spare_items.borrow_mut().pop().unwrap_or_default(), ..Group::default() };
        let mut refused = Vec::new();
        let mut queues = self.queues.borrow_mut();
        let queue = &mut queues[usize::from(class)];
        let before = queue.len();
        let (mut meta, mut unmapped) = (0, 0);
        let mut kept = VecDeque::new();
        for item in queue.drain(..) {
            if !is_wanted(&item) {
                refused.push(item);
                continue;
            }
            meta += item.change.encoded_length();
            if let Change::Unmap { count, .. } = &item.change {
                unmapped += u64::from(*count);
            }
            let fits = Header::length(0, meta) <= self.layout.block_bytes()
                && (group.items.is_empty() || unmapped <= self.settings.blocks_at_once);
            match fits && kept.is_empty() {
                true => group.items.push(item),
                false => kept.push_back(item),
            }
        }
        *queue = kept;
        let left = queue.len();
        drop(queues);
        self.queued_items.set(self.queued_items.get().saturating_sub((before - left) as u64));
        refused.iter().for_each(|item| self.item_done(item, Err(error.clone())));
        group
    }

    /// Completes an item's request with an error; the item itself may still be committed later.
    pub fn answer(&self, item: &mut Item, error: &Error) {
        if let Some(request) = item.request.take() {
            self.requests.item_ended(request, &Err(error.clone()));
        }
    }

    /// Fails all queued items that were not acknowledged, and the requests of records that can't commit because an earlier record is
    /// missing.
    pub fn refuse_waiting(&self, error: &Error) {
        let mut refused = Vec::new();
        for queue in self.queues.borrow_mut().iter_mut() {
            let (kept, rest): (VecDeque<Item>, VecDeque<Item>) =
                queue.drain(..).partition(|item| item.ticket != 0);
            *queue = kept;
            refused.extend(rest);
        }
        self.queued_items.set(self.queued_items.get().saturating_sub(refused.len() as u64));
        refused.iter().for_each(|item| self.item_done(item, Err(error.clone())));
        for stream in &self.streams {
            let waiting: Vec<RequestKey> = stream
                .borrow_mut()
                .waiting_mut()
                .flat_map(|group| &mut group.items)
                .filter_map(|item| item.request.take())
                .collect();
            waiting.into_iter().for_each(|request| self.requests.item_ended(request, &Err(error.clone())));
        }
        self.settled.notify_all();
        self.buffer_changed.notify_all();
        self.freed.notify_all();
    }

    /// Cuts the first blocks off an item that is too large for one record.
    fn cut(&self, item: &mut Item, blocks: u32) -> Item {
        let bytes = (blocks as usize) << self.layout.block_size.shift();
        let payload = item.payload.slice(0..bytes);
        item.payload = item.payload.slice(bytes..item.payload.len());
        let growth = item.growth.min(blocks);
        item.growth -= growth;
        let Change::Write { version, block, count } = &mut item.change else {
            unreachable!("only writes are larger than a record");
        };
        let change = Change::Write { version: *version, block: *block, count: blocks };
        *block += u64::from(blocks);
        *count -= blocks;
        if let Some(request) = item.request {
            self.requests.item_was_cut(request);
        }
        // The queue has one item more than before: the caller counts what it took.
        self.queued_items.set(self.queued_items.get() + 1);
        Item { change, payload, request: item.request, growth, ticket: item.ticket }
    }

    /// An append of users' writes is on its way.
    pub fn took_off(&self, items: usize) {
        let (appends, flying) = self.flying.get();
        self.flying.set((appends + 1, flying + items as u32));
    }

    /// It has ended.
    pub fn landed(&self, items: usize) {
        let (appends, flying) = self.flying.get();
        self.flying.set((appends - 1, flying - items as u32));
        self.work.notify_one();
    }

    /// An item has committed, or failed: its room is given back, and whoever waits is told.
    pub fn item_done(&self, item: &Item, outcome: Result<()>) {
        if item.growth > 0 {
            self.growing.set(self.growing.get() - u64::from(item.growth));
            self.settled.notify_all();
        }
        if let Some(request) = item.request {
            self.requests.item_ended(request, &outcome);
        }
    }

    /// Memory for the items of a group, to be used again.
    pub fn recycle(&self, mut items: Vec<Item>) {
        items.clear();
        let mut spare = self.spare_items.borrow_mut();
        if spare.len() < 8 {
            spare.push(items);
        }
    }

    /// Opens a zone for a class, if more than `keep` are free.
    pub fn try_open_zone(&self, class: u8, keep: u32) -> Option<OpenZone> {
        let zone = self.table.take(class, keep, self.clock.get())?;
        let summary = self.spare_summaries.borrow_mut().pop().unwrap_or_default();
        let capacity = match self.table.is_only_backed() {
            true => self.layout.backed_blocks(),
            false => self.layout.zone_blocks,
        };
        Some(OpenZone::new(zone, self.table.get(zone).generation, class, capacity, summary))
    }

    /// Opens a zone for users' writes, once there is one; none if nothing is queued for it any more.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the cleaner can't free any; what made the log fail.
    pub async fn open_zone_for_users(self: &Rc<Self>, class: u8) -> Result<Option<OpenZone>> {
        let mut has_waited = false;
        loop {
            if let Some(error) = self.failure() {
                return Err(error);
            }
            if self.queue_is_empty(class) {
                return Ok(None);
            }
            self.look_for_space();
            if let Some(zone) = self.try_open_zone(class, self.kept_zones()) {
                self.cleaner.notify_all();
                return Ok(Some(zone));
            }
            if let Some(error) = &*self.stuck.borrow() {
                return Err(error.clone());
            }
            let freed = self.freed.notified();
            count(&self.counters.zone_waits, u64::from(!std::mem::replace(&mut has_waited, true)));
            self.cleaner.notify_all();
            freed.await;
        }
    }

    /// Something may be freed that couldn't be before: nobody is told otherwise before the cleaner has looked.
    pub fn look_again(&self) {
        *self.stuck.borrow_mut() = None;
        self.cleaner.notify_all();
    }

    /// Seals a zone in a task of its own: summary, finish. Returns once that has begun, which waits while as many are
    /// being sealed as there are lanes: zones may have a limit on how many are open.
    pub async fn seal(self: &Rc<Self>, zone: OpenZone) {
        let permit = self.sealing.acquire(1).await;
        let core = self.clone();
        let sealing = async move {
            core.seal_now(zone).await;
            drop(permit);
        };
        self.tasks.spawn(sealing).detach();
    }

    /// Seals a zone: summary, finish. A zone for which that fails keeps its records and takes no more.
    pub async fn seal_now(self: &Rc<Self>, zone: OpenZone) {
        let number = zone.zone;
        if zone.position == 0 {
            self.table.put_back(number);
            return;
        }
        let end = zone.position;
        match zone.seal(&*self.zones, &self.layout, &self.identity).await {
            Ok((blocks, summary)) => {
                count(&self.counters.overhead_blocks, u64::from(blocks - end));
                // The blocks after the summary were not written, so they may have no space.
                let is_backed = blocks >= self.layout.backed_blocks() || self.table.get(number).backed;
                self.table.change(number, |entry| (entry.end, entry.backed) = (blocks, is_backed));
                self.spare_summaries.borrow_mut().push(summary);
                self.table.set_full(number);
                self.look_again();
            }
            Err(error) => {
                tracing::warn!("sealing zone {number}: {error}");
                self.abandon(number, end).await;
                self.note_no_space(&error);
            }
        }
    }

    /// A zone to which an append failed: finished as it is, so that what is in it can be read and cleaned.
    pub async fn abandon(self: &Rc<Self>, zone: u32, end: u32) {
        self.table.change(zone, |entry| (entry.end, entry.backed) = (end, false));
        match self.zones.finish(ZoneIndex(zone)).await {
            Ok(()) => {
                self.table.set_full(zone);
                self.look_again();
            }
            Err(error) => {
                tracing::warn!(
                    "finishing zone {zone}: {error}; it isn't used again before the log is reopened"
                );
                self.set_damaged(zone);
            }
        }
    }

    /// A zone is left as it is until the log is opened again.
    pub fn set_damaged(&self, zone: u32) {
        self.table.change(zone, |entry| entry.usage = Usage::Damaged);
        self.measure_images();
    }

    /// Whether there is such a version and it takes writes.
    pub fn version_is_writable(&self, id: VersionId) -> bool {
        self.versions.borrow().get(id).is_some_and(|version| version.writable)
    }
}

/// The changes of one request; nearly always one.
pub type Vec1 = smallvec::SmallVec<[Change; 1]>;
