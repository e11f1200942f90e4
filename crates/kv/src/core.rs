//! A shard of the store: an owner of the log kit, with write buffers and a tree of tables.
//!
//! A write is appended to the log, and takes effect in the active buffer when its record commits. A full
//! buffer is frozen, and written as a table of level 0; compaction merges tables of one level with those of
//! the next. An edit of the manifest adds and removes tables, in one record.
//!
//! Elsewhere: the log kit's interface for owners (`owner`), flushes and compactions (`jobs`), reads
//! (`reads`), recovery (`recovery`), and clients (`store`).

mod checkpoint;
mod cleaning;
mod cross_shard;
mod eraser;
mod gate;
mod jobs;
mod manual_compaction;
pub mod open_zones;
mod owner;
mod reads;
mod reclaim;
mod reserve;
mod snapshot;
mod status;
mod uncommitted;
mod write_controller;

pub(crate) use checkpoint::CheckpointSize;
pub(crate) use cross_shard::{BatchCondition, Parts};
pub use snapshot::Snapshot;
pub use status::TableFacts;

use crate::batch::{Batch, Write};
use crate::entry::{Entry, RangeTombstone, Sequence, Value};
use crate::erasure::Erasure;
use crate::log_entry::{Body, KvEntry, MAX_META, Part, encode_parts};
use crate::memory::buffer::Flushed;
use crate::memory::buffer::WriteBuffer;
use crate::memory::memtable::Memtable;
use crate::policy::{Compaction, Lifetimes, Placement};
use crate::replay::{RecoveredShard, ReplayedWrites};
use crate::settings::{Acknowledge, Settings};
use crate::tree::levels::Levels;
use crate::tree::manifest::{TableId, table_stream, write_stream};
use crate::tree::salvage::{self, Lost};
use crate::tree::tables::salt_of;
use crate::tree::tables::{BlockCache, Table, TableFile};
use block::{Error, Result};
use gate::{Entered, KeyGate};
use logkit::cleaning::Policy;
use logkit::readers::ShardReads;
use logkit::recovery::Goal;
use logkit::{Appender, Kit, Mover, Owner, flusher, lane};
use open_zones::{LANES, OpenZones};
use runtime::sync::{Notify, Semaphore};
use runtime::{Home, RequestKey, Requests};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use write_controller::WriteController;

/// Maximum bytes of writes that are acknowledged or queued before they are in a record.
const MAX_PENDING: usize = 4 << 20;
/// Bytes of acknowledged writes, and longest delay, after which these are put into a record: the headers of
/// smaller records would be larger than the writes.
const BUFFERED_BYTES: usize = 256 << 10;
const BUFFERED_TIME: Duration = Duration::from_millis(10);
/// Interval of checks whether the log has failed.
const FAILURE_LOOK: Duration = Duration::from_millis(200);
/// Maximum number of frozen buffers; with as many, writes wait for a flush.
pub(crate) const MAX_FROZEN: usize = 3;

/// Writes queued for the next record.
#[derive(Debug, Default)]
struct Pending {
    /// Encoded writes.
    bytes: Vec<u8>,
    /// Requests to complete.
    requests: SmallVec<[RequestKey; 8]>,
    /// Whether all of the writes are in the memtable and were acknowledged.
    is_applied: bool,
    /// Whether all of the writes are deletes.
    frees: bool,
    /// Time of the first acknowledged write.
    since: Option<runtime::Instant>,
}

/// Counters for the status.
#[derive(Debug, Default)]
pub struct Work {
    /// Bytes of tables that flushes wrote.
    pub flushed_bytes: Cell<u64>,
    /// Bytes of tables that compactions read.
    pub compacted_bytes: Cell<u64>,
    /// Bytes of tables that compactions wrote.
    pub written_bytes: Cell<u64>,
    /// Bytes of keys and values that clients wrote.
    pub client_bytes: Cell<u64>,
    /// Bytes of tables that the cleaner moved.
    pub moved_bytes: Cell<u64>,
    /// Number of compactions.
    pub compactions: Cell<u64>,
    /// Number of waits of writes for a flush or a compaction.
    pub stalls: Cell<u64>,
    /// Number of writes that were slowed because level 0 has many tables.
    pub slowed: Cell<u64>,
}

/// Adds to a counter.
pub(crate) fn add(counter: &Cell<u64>, value: u64) {
    counter.set(counter.get() + value);
}

/// One shard of an open store.
pub struct Core {
    /// Number of the shard.
    pub shard: u16,
    /// Number of shards of the store.
    pub shards: u16,
    pub(crate) homes: RefCell<Vec<Home<Core>>>,
    pub(crate) kit: Rc<Kit>,
    appender: Appender<KvEntry>,
    pub(crate) requests: Requests,
    pub(crate) reads: Arc<ShardReads>,
    pub(crate) settings: Settings,
    pub(crate) cache: Rc<BlockCache>,
    pub(crate) active: RefCell<Rc<WriteBuffer>>,
    /// Frozen buffers, oldest first.
    pub(crate) frozen: RefCell<Vec<Rc<WriteBuffer>>>,
    pub(crate) levels: RefCell<Rc<Levels>>,
    /// Tables that have a user: the tree, a reader or a job.
    pub(crate) files: RefCell<BTreeMap<TableId, Weak<TableFile>>>,
    pub(crate) flushed: Cell<Flushed>,
    /// Sequence of the newest write.
    pub(crate) sequence: Cell<Sequence>,
    next_table: Cell<TableId>,
    /// Sequences of snapshots, with the number of snapshots of each.
    pub(crate) snapshots: RefCell<BTreeMap<Sequence, u32>>,
    /// Permit for the open zones of tables; held while a record is appended.
    pub(crate) mover: Rc<Semaphore>,
    pub(crate) zones: RefCell<Mover>,
    pub(crate) open_zones: OpenZones,
    pub(crate) compaction: Box<dyn Compaction>,
    /// Held during a compaction: at most one runs.
    pub(crate) compacting: Rc<Semaphore>,
    pub(crate) controller: WriteController,
    pub(crate) placement: Box<dyn Placement>,
    pub(crate) lifetimes: RefCell<Lifetimes>,
    /// Notified when buffers or tables have changed.
    pub(crate) changed: Notify,
    pending: RefCell<Pending>,
    has_pending: Notify,
    uncommitted: RefCell<uncommitted::Uncommitted>,
    /// KvEntry whose last part hasn't committed.
    pub(crate) incomplete: RefCell<Option<Incomplete>>,
    /// Whether the committing record gave the active buffer another zone.
    pub(crate) has_new_zone: Cell<bool>,
    /// Bytes of the items of writes in flight.
    unwritten: Cell<u64>,
    /// Estimated size of a checkpoint, shared by all shards.
    pub(crate) checkpoint_size: Arc<CheckpointSize>,
    /// Numbers of items of writes that were submitted, and that have ended.
    submitted: Cell<u64>,
    ended: Cell<u64>,
    pub(crate) gate: KeyGate,
    pub(crate) work: Work,
    /// Whether a compaction runs.
    pub(crate) is_compacting: Cell<bool>,
    /// Whether a flush has written range tombstones since the last search for tables that they delete
    /// completely.
    pub(crate) has_new_ranges: Cell<bool>,
    /// Sequence and time of the last search for tables to purge.
    pub(crate) purged: Cell<(Sequence, Option<runtime::Instant>)>,
    /// Error of the last flush; `None` if it succeeded.
    pub(crate) flush_error: RefCell<Option<Error>>,
    /// Error of the last compaction; `None` if it succeeded.
    pub(crate) compaction_error: RefCell<Option<Error>>,
    /// Zones that must be reset in time.
    pub(crate) erasure: Arc<Erasure>,
    /// Notified when the store is being closed.
    pub(crate) stopping: Notify,
    /// Permits of batches for several shards; used on the home.
    pub(crate) cross_shard: Rc<Semaphore>,
    pub(crate) next_cross_shard: Cell<u64>,
    /// Permits of the gate that batches for several shards hold, by number of the batch.
    pub(crate) entered: RefCell<BTreeMap<u64, Entered>>,
    /// Unreadable parts of a salvaged store; `None` for a store in normal use.
    pub(crate) lost: Option<Rc<Lost>>,
}

/// Settings of the kit for a shard.
pub fn kit_settings(
    settings: &Settings,
    layout: &logkit::Layout,
    (shard, shards): (u16, u16),
    open_zones: OpenZones,
) -> logkit::Settings {
    let table_blocks = layout.blocks_in(settings.table_bytes);
    let cleaner_reserve = reserve::cleaner_reserve(shards);
    // Two zones are for checkpoints.
    let buffered = cleaner_reserve + 2 + zones_of_buffered(layout, settings.buffer_bytes * MAX_FROZEN as u64);
    let low_watermark = 0.05_f64.max(f64::from(buffered) / f64::from(layout.zones)).min(0.3);
    logkit::Settings {
        user_stream: write_stream(shard),
        cleaner_stream: table_stream(shard),
        appends_in_flight: open_zones.lanes,
        data_blocks: layout.data_blocks(MAX_META),
        record_blocks: layout.record_blocks(MAX_META),
        // The pieces of a victim go to zones of each shard. A flush of a buffer must be possible, or zones of
        // the log can't be freed.
        cleaner_reserve,
        checkpoint_blocks: (4 * layout.blocks_in(settings.buffer_bytes)).max(4 * table_blocks),
        low_watermark,
        high_watermark: low_watermark + 0.1,
        most_steps: u64::MAX,
        read_request_bytes: logkit::READ_REQUEST_BYTES,
        prepare_zones: false,
    }
}

/// An item in several records, the last of which hasn't committed.
pub(crate) struct Incomplete {
    pub body: Rc<Body>,
    /// Number of the item's first record.
    pub record: u64,
    /// Zones of the item's parts.
    pub zones: SmallVec<[u32; 2]>,
}

impl Core {
    /// Returns a shard with this state. The caller starts lanes, jobs and the cleaner.
    pub(crate) fn new(
        (shard, shards, open_zones): (u16, u16, OpenZones),
        kit: impl FnOnce(Box<dyn Policy>) -> Rc<Kit>,
        settings: &Settings,
        found: RecoveredShard,
        erasure: impl FnOnce(&Rc<Kit>) -> Arc<Erasure>,
        checkpoint_size: &Arc<CheckpointSize>,
    ) -> Result<Rc<Self>> {
        let placement = settings.placement()?;
        let policy = cleaning::TableCleaning::new(placement.classes());
        let classes = policy.classes();
        let kit = kit(Box::new(policy));
        let erasure = erasure(&kit);
        let own = [write_stream(shard), table_stream(shard)];
        let (lanes, steps) = (kit.settings.appends_in_flight, kit.settings.most_steps);
        let RecoveredShard { manifest, writes, lost } = found;
        let lost = (settings.goal == Goal::Salvage).then(|| Rc::new(Lost::new(lost)));
        if !erasure.counts_operations() {
            manifest.tables.iter().for_each(|table| erasure.clock().raise(table.created));
        }
        let core = Rc::new(Core {
            shard,
            shards,
            homes: RefCell::default(),
            appender: Appender::new(kit.layout, classes, lanes, steps, &kit.streams, &own),
            requests: Requests::default(),
            reads: kit.readers.here(),
            cache: Rc::new(BlockCache::new(settings.cache_bytes / u64::from(shards))),
            active: RefCell::new(WriteBuffer::new(&kit.pool, buffer_bytes(settings, shards))),
            frozen: RefCell::default(),
            levels: RefCell::default(),
            files: RefCell::default(),
            flushed: Cell::new(manifest.flushed),
            sequence: Cell::new(manifest.flushed.sequence),
            next_table: Cell::new(manifest.next_table),
            snapshots: RefCell::default(),
            mover: Semaphore::new(1),
            zones: RefCell::new(Mover::new(classes)),
            open_zones,
            compaction: settings.compaction(shards, u64::from(kit.layout.zones) * zone_bytes(&kit.layout))?,
            compacting: Semaphore::new(1),
            controller: WriteController::of(settings, shards),
            placement,
            lifetimes: RefCell::default(),
            changed: Notify::new(),
            pending: RefCell::default(),
            has_pending: Notify::new(),
            uncommitted: RefCell::default(),
            incomplete: RefCell::default(),
            has_new_zone: Cell::new(false),
            unwritten: Cell::new(0),
            checkpoint_size: checkpoint_size.clone(),
            submitted: Cell::new(0),
            ended: Cell::new(0),
            gate: KeyGate::default(),
            work: Work::default(),
            is_compacting: Cell::new(false),
            has_new_ranges: Cell::new(true),
            purged: Cell::new((0, None)),
            flush_error: RefCell::default(),
            compaction_error: RefCell::default(),
            erasure: erasure.clone(),
            stopping: Notify::new(),
            cross_shard: Semaphore::new(cross_shard::MAX_CROSS_SHARD),
            next_cross_shard: Cell::new(0),
            entered: RefCell::default(),
            lost,
            settings: settings.clone(),
            kit,
        });
        let tables = manifest.tables.into_iter().map(|meta| {
            let file = TableFile::with(meta.id, &core.kit, &core.erasure, meta.extents.clone());
            core.files.borrow_mut().insert(meta.id, Rc::downgrade(&file));
            Table::new(meta, file, &core.cache, &core.reads, core.lost.as_ref())
        });
        let tables: Vec<_> = tables.collect();
        let deletes = tables.iter().filter_map(|table| core.erasure.oldest_delete(&table.meta.summary));
        deletes.for_each(|at| core.erasure.deleted(at));
        core.set_levels(tables);
        core.replay(writes)?;
        // Replayed writes were already counted before the crash.
        core.work.client_bytes.set(0);
        Ok(core)
    }

    /// Replaces the tree by these tables.
    pub(crate) fn set_levels(&self, tables: Vec<Rc<Table>>) {
        let bytes = |table: &Rc<Table>| {
            200 + 16 * table.meta.extents.len()
                + table.meta.summary.smallest.len()
                + table.meta.summary.largest.len()
        };
        self.checkpoint_size.set_manifest(self.shard, tables.iter().map(bytes).sum::<usize>() as u64);
        self.levels.replace(Rc::new(Levels::of(tables)));
    }

    /// Applies writes of the log that aren't in a table.
    fn replay(&self, writes: Vec<ReplayedWrites>) -> Result<()> {
        // For each item, the first record that it or a later item needs.
        let mut needed: Vec<u64> = Vec::with_capacity(writes.len());
        for replayed in writes.iter().rev() {
            let after = needed.last().copied().unwrap_or(u64::MAX);
            needed.push(after.min(replayed.first));
        }
        needed.reverse();
        for (number, replayed) in writes.iter().enumerate() {
            let buffer = self.active.borrow().clone();
            replayed.zones.iter().for_each(|zone| _ = buffer.note_zone(*zone));
            self.apply(&replayed.bytes)?;
            let later = needed.get(number + 1).map(|first| first - 1);
            let record = later.unwrap_or(u64::MAX).min(replayed.record);
            buffer.note_last(Flushed { record, sequence: self.sequence.get() });
            if buffer.memtable.bytes() >= self.buffer_bytes() {
                self.push_frozen();
            }
        }
        Ok(())
    }

    /// Sets the homes of all shards.
    pub(crate) fn set_homes(&self, homes: Vec<Home<Core>>) {
        self.homes.replace(homes);
    }

    /// Starts the tasks of this shard, except the lanes.
    pub(crate) fn start_tasks(self: &Rc<Self>) {
        let tasks = &self.kit.tasks;
        tasks.spawn(self.clone().run_commits()).detach();
        tasks.spawn(self.clone().run_flushes()).detach();
        tasks.spawn(self.clone().run_compactions()).detach();
        if self.shard == 0 {
            tasks.spawn(self.clone().run_eraser()).detach();
        }
        // A failure of the log, also on another shard, wakes all waiting tasks of this shard, and so does a
        // lack of space on the device below.
        let core = Rc::downgrade(self);
        let watch = async move {
            while let Some(core) = core.upgrade().filter(|core| !core.kit.is_closing()) {
                if core.kit.failure().is_some() {
                    core.wake();
                }
                if let Err(error) = core.kit.space.check() {
                    core.refuse_pending(&error);
                }
                drop(core);
                runtime::sleep(FAILURE_LOOK).await;
            }
        };
        runtime::spawn(watch).detach();
    }

    /// Seals the open zones of tables; the caller holds the permit to append.
    pub(crate) async fn close_zones(&self) {
        let mut zones = self.zones.borrow_mut().take_open();
        zones.close(self).await;
    }

    /// Options of the format of a new table.
    pub(crate) fn table_options(&self, id: TableId) -> crate::table::Options {
        crate::table::Options { salt: salt_of(id, self.shard), ..self.settings.table }
    }

    /// Home of a shard, which may be this one.
    pub(crate) fn at(&self, shard: u16) -> Home<Core> {
        self.homes.borrow()[usize::from(shard)].clone()
    }

    /// Creates a table with the next number.
    pub(crate) fn new_table(&self) -> Rc<TableFile> {
        let id = self.next_table.replace(self.next_table.get() + 1);
        let file = TableFile::new(id, &self.kit, &self.erasure);
        let mut files = self.files.borrow_mut();
        if files.len() > 64 && files.len().is_power_of_two() {
            files.retain(|_, file| file.strong_count() > 0);
        }
        files.insert(id, Rc::downgrade(&file));
        file
    }

    /// Table with this number if it has a user.
    pub(crate) fn file(&self, id: TableId) -> Option<Rc<TableFile>> {
        self.files.borrow().get(&id)?.upgrade()
    }

    /// Applies writes to the active buffer.
    pub(crate) fn apply(&self, writes: &[u8]) -> Result<()> {
        let buffer = self.active.borrow().clone();
        let mut sequence = self.sequence.get();
        let mut bytes = 0;
        Write::decode_all(writes, |write| {
            sequence += 1;
            bytes += apply_write(&buffer.memtable, &write, sequence, &self.erasure);
        })?;
        self.erasure.took(sequence - self.sequence.replace(sequence));
        add(&self.work.client_bytes, bytes);
        Ok(())
    }

    /// Freezes the active buffer if its records take much more space than its writes, or if it got another
    /// zone while free zones are scarce.
    pub(crate) fn freeze_if_wasteful(&self) {
        let zone_bytes = zone_bytes(&self.kit.layout);
        let log_bytes = self.active.borrow().zones() as u64 * zone_bytes;
        let is_short = self.kit.pool.free() <= self.kept_zones() + 2 * u32::from(self.shards);
        let is_wasteful = log_bytes > 2 * zone_bytes + 4 * self.buffer_bytes() as u64;
        if is_wasteful || is_short && self.frozen.borrow().is_empty() {
            self.freeze();
        }
    }

    /// Freezes the active buffer if it has reached its size.
    pub(crate) fn freeze_if_full(&self) {
        if self.active.borrow().memtable.bytes() >= self.buffer_bytes() {
            self.freeze();
        }
    }

    /// Size in bytes at which the active buffer is frozen.
    fn buffer_bytes(&self) -> usize {
        buffer_bytes(&self.settings, self.shards)
    }

    /// Freezes the active buffer unless it is empty.
    pub(crate) fn freeze(&self) {
        if self.active.borrow().is_empty() {
            return;
        }
        // An item whose last part hasn't committed is replayed as a whole.
        let incomplete = self.incomplete.borrow().as_ref().map(|incomplete| incomplete.record - 1);
        let record = incomplete.unwrap_or_else(|| self.appender.committed(write_stream(self.shard)));
        self.active.borrow().note_last(Flushed { record, sequence: self.committed_sequence() });
        self.push_frozen();
    }

    /// Freezes the active buffer, and replaces it by a new one.
    fn push_frozen(&self) {
        let next = WriteBuffer::new(&self.kit.pool, self.buffer_bytes());
        if let Some(incomplete) = &*self.incomplete.borrow() {
            incomplete.zones.iter().for_each(|zone| _ = next.note_zone(*zone));
        }
        self.carry_over(&self.active.borrow(), &next);
        let full = self.active.replace(next);
        self.frozen.borrow_mut().push(full);
        self.changed.notify_all();
    }

    /// Refuses writes if the store has failed or is being closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if let Some(error) = self.kit.failure() {
            return Err(error);
        }
        if self.kit.is_closing() {
            return Err(Error::closed("the store is closed"));
        }
        if self.lost.is_some() {
            return Err(salvage::refusal());
        }
        self.kit.space.check()
    }

    /// Writes to this shard; all writes of the batch take effect atomically. Returns when they have reached
    /// the state `acknowledge`.
    pub(crate) async fn write(self: &Rc<Self>, batch: Batch, acknowledge: Acknowledge) -> Result<()> {
        self.check_open()?;
        let held = self.gate.enter(&batch).await;
        let written = self.write_entered(batch, acknowledge).await;
        drop(held);
        written?;
        match acknowledge {
            Acknowledge::Flushed => flusher::flush(&**self).await,
            _ => Ok(()),
        }
    }

    /// Writes to this shard without a flush; the caller has entered the gate.
    pub(crate) async fn write_entered(self: &Rc<Self>, batch: Batch, acknowledge: Acknowledge) -> Result<()> {
        let frees = batch.only_deletes();
        self.until_there_is_space(frees, async || self.write_once(&batch, frees, acknowledge).await).await
    }

    async fn write_once(&self, batch: &Batch, frees: bool, acknowledge: Acknowledge) -> Result<()> {
        self.stall(frees, batch.bytes().len()).await?;
        while self.pending.borrow().bytes.len() >= MAX_PENDING {
            self.check_open()?;
            self.changed.notified().await;
        }
        self.check_open()?;
        // A write isn't acknowledged early while an earlier one hasn't taken effect: both may change the same
        // key, and replay has them in this order.
        let is_alone = self.requests.is_empty() && self.entered.borrow().is_empty();
        let is_buffered = acknowledge == Acknowledge::Buffered && is_alone && self.has_zones();
        if is_buffered {
            self.kit.check_known_space(self.kept_zones())?;
            self.apply_early(batch.bytes())?;
        }
        let is_other_kind = |pending: &Pending| {
            !pending.bytes.is_empty()
                && (pending.is_applied != is_buffered || pending.frees != frees && self.is_low())
        };
        // An item has either acknowledged or waiting writes, and no puts together with deletes if only
        // deletes may take the last zones.
        if is_other_kind(&self.pending.borrow()) {
            self.submit();
        }
        let request = (!is_buffered).then(|| self.requests.begin(1, None));
        self.add_pending(batch.bytes(), frees, is_buffered, request);
        match request {
            Some(request) => self.requests.wait(request).await,
            None => Ok(()),
        }
    }

    /// Adds writes to those queued for the next record.
    fn add_pending(&self, bytes: &[u8], frees: bool, is_applied: bool, request: Option<RequestKey>) {
        let mut pending = self.pending.borrow_mut();
        pending.frees = frees && (pending.bytes.is_empty() || pending.frees);
        pending.is_applied = is_applied;
        pending.bytes.extend_from_slice(bytes);
        pending.requests.extend(request);
        let is_due = pending.bytes.len() >= BUFFERED_BYTES;
        let is_told = is_applied && pending.since.is_some() && !is_due;
        if is_applied {
            pending.since.get_or_insert_with(runtime::now);
        }
        drop(pending);
        if !is_told {
            self.has_pending.notify_one();
        }
    }

    /// Refuses queued writes, unless they were acknowledged, when earlier records find no space on the device
    /// below.
    fn refuse_pending(&self, error: &Error) {
        if !self.pending.borrow().is_applied {
            let Pending { requests, .. } = self.pending.take();
            let outcome = Err(error.clone());
            requests.into_iter().for_each(|request| self.requests.item_ended(request, &outcome));
        }
        self.changed.notify_all();
    }

    /// Submits the queued writes as one item.
    pub(crate) fn submit(&self) {
        let Pending { mut bytes, requests, is_applied, frees, .. } = self.pending.take();
        if bytes.is_empty() {
            return;
        }
        let body = encode_parts([Part { shard: self.shard, bytes: &bytes }].into_iter());
        add(&self.submitted, 1);
        add(&self.unwritten, body.len() as u64);
        let item =
            KvEntry::writes(body, SmallVec::new(), requests, is_applied, self.kit.layout.block_bytes())
                .freeing(frees);
        // The allocation is reused.
        bytes.clear();
        self.pending.borrow_mut().bytes = bytes;
        if is_applied {
            self.early_submitted(&item.body);
        }
        lane::push(self, WRITE_CLASS, item);
        self.kit.events.work.notify_one();
    }

    /// Notes the end of an item of writes.
    pub(crate) fn submitted_ended(&self, bytes: u64) {
        self.unwritten.set(self.unwritten.get().saturating_sub(bytes));
        add(&self.ended, 1);
        self.has_pending.notify_one();
        self.changed.notify_all();
    }

    /// Time until the queued writes are put into an item; `None` if that is now.
    fn wait_of_pending(&self) -> Option<Duration> {
        let pending = self.pending.borrow();
        let since =
            pending.since.filter(|_| pending.bytes.len() < BUFFERED_BYTES && !self.kit.is_closing())?;
        BUFFERED_TIME.checked_sub(since.elapsed()).filter(|wait| !wait.is_zero())
    }

    /// Makes items of queued writes: group commit, with two items in flight.
    pub(crate) async fn run_commits(self: Rc<Self>) {
        loop {
            let has_bytes = !self.pending.borrow().bytes.is_empty();
            if has_bytes && self.in_flight() < 2 && self.kit.failure().is_none() {
                match self.wait_of_pending() {
                    // Further writes end the wait early.
                    Some(wait) => drop(runtime::timeout(wait, self.has_pending.notified()).await),
                    None => self.submit(),
                }
                continue;
            }
            if self.kit.failure().is_some() {
                let Pending { requests, .. } = self.pending.take();
                let error = self.kit.failure().unwrap_or_else(|| Error::closed("the store is closed"));
                requests
                    .into_iter()
                    .for_each(|request| self.requests.item_ended(request, &Err(error.clone())));
                self.changed.notify_all();
                return;
            }
            if self.kit.is_closing() && !has_bytes && self.in_flight() == 0 {
                return;
            }
            self.has_pending.notified().await;
            // Writes that other clients submit in the same turn join the item.
            runtime::yield_now().await;
        }
    }

    /// Wakes tasks that wait for the store to close or fail.
    pub(crate) fn wake(&self) {
        self.stopping.notify_all();
        self.has_pending.notify_one();
        self.changed.notify_all();
    }

    /// Number of items of writes in flight.
    fn in_flight(&self) -> u64 {
        self.submitted.get() - self.ended.get()
    }

    /// Waits until every write that is acknowledged or queued at the call has taken effect. Items end in the
    /// order of their submission.
    pub(crate) async fn settle(&self) -> Result<()> {
        self.submit();
        let last = self.submitted.get();
        while self.ended.get() < last {
            if let Some(error) = self.kit.failure() {
                return Err(error);
            }
            self.kit.space.check()?;
            self.changed.notified().await;
        }
        // The log has failed if it refuses acknowledged writes.
        self.kit.failure().map_or(Ok(()), Err)
    }

    /// Whether enough zones are free for all acknowledged and earlier writes that aren't in records yet: the
    /// log can't refuse these.
    fn has_zones(&self) -> bool {
        // Flushes take zones before they free those of the log.
        let frozen: usize = self.frozen.borrow().iter().map(|buffer| buffer.memtable.bytes()).sum();
        let buffers = (self.active.borrow().memtable.bytes() + frozen) as u64;
        let bytes = self.unwritten.get() + self.pending.borrow().bytes.len() as u64 + buffers;
        self.kit.pool.free() > self.kept_zones() + zones_of_buffered(&self.kit.layout, bytes)
    }

    /// Sequences of the live snapshots, in ascending order.
    pub(crate) fn snapshot_sequences(&self) -> Vec<Sequence> {
        self.snapshots.borrow().keys().copied().collect()
    }
}

/// Number of zones that must be free for `bytes` bytes of writes that are acknowledged before they are in the
/// log.
fn zones_of_buffered(layout: &logkit::Layout, bytes: u64) -> u32 {
    LANES + 3 + (2 * bytes / zone_bytes(layout)) as u32
}

/// Size of a zone in bytes.
fn zone_bytes(layout: &logkit::Layout) -> u64 {
    u64::from(layout.zone_blocks) * layout.block_size.bytes()
}

/// Size in bytes at which the active buffer of one of `shards` shards is frozen.
fn buffer_bytes(settings: &Settings, shards: u16) -> usize {
    (settings.buffer_bytes / u64::from(shards)) as usize
}

/// Applies a write to a memtable; returns the bytes of its keys and value.
fn apply_write(memtable: &Memtable, write: &Write<'_>, sequence: Sequence, erasure: &Erasure) -> u64 {
    match *write {
        Write::Put { key, value, expires } => {
            memtable.insert(Entry { key, sequence, value: Value::Put { bytes: value, expires } });
            if let Some(expires) = expires {
                erasure.deleted(erasure.stamp(expires));
            }
            (key.len() + value.len()) as u64
        }
        Write::Delete { key, deleted } => {
            let deleted = erasure.stamp(deleted);
            memtable.insert(Entry { key, sequence, value: Value::Tombstone { deleted } });
            erasure.deleted(deleted);
            key.len() as u64
        }
        Write::DeleteRange { from, to, deleted } => {
            let deleted = erasure.stamp(deleted);
            let range = RangeTombstone { from: from.to_vec(), to: to.to_vec(), sequence, deleted };
            memtable.insert_range_tombstone(range);
            erasure.deleted(deleted);
            (from.len() + to.len()) as u64
        }
    }
}

/// Class of the zones of the write-ahead log.
pub const WRITE_CLASS: u8 = crate::policy::placement::LOG;
/// Class of zones for edits without new tables, as of trivial moves and dropped tables: the edit itself needs
/// a zone.
pub const TABLE_CLASS: u8 = WRITE_CLASS + 1;
