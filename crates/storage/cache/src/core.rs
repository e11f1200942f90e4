//! State of a cache on its home shard that reads, writes, the committer, the evictor and the cleaner share.

use crate::counters::Counters;
use crate::shape::Shape;
use crate::state::{EVICTING, EXCLUSIVE, Entry, MARKED, MARKING, Slot, State};
use crate::table::{Medium, Table};
use block::{Error, Result};
use runtime::TaskGroup;
use runtime::range_lock::RangeLock;
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Destination of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The cache; the origin later.
    Writeback,
    /// Both devices.
    Writethrough,
    /// The origin; the cached block is evicted.
    Passthrough,
}

impl Mode {
    /// Names of the modes, as in dm-cache and lvmcache.
    pub const NAMES: [&'static str; 3] = ["writethrough", "writeback", "passthrough"];

    /// Returns the mode of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "writeback" => Some(Mode::Writeback),
            "writethrough" => Some(Mode::Writethrough),
            "passthrough" => Some(Mode::Passthrough),
            _ => None,
        }
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Writeback => "writeback",
            Mode::Writethrough => "writethrough",
            Mode::Passthrough => "passthrough",
        }
    }
}

/// Tracks which changes of a device a flush has covered. The epoch counts flushes that have begun.
#[derive(Debug)]
pub(crate) struct Epochs {
    now: Cell<u64>,
    flushed: Cell<u64>,
    changed: Cell<u64>,
}

impl Epochs {
    /// Begins without changes.
    pub fn new() -> Self {
        Epochs { now: Cell::new(1), flushed: Cell::new(0), changed: Cell::new(0) }
    }

    /// Begins with changes of unknown number, which no flush covers: a process that was killed may have left
    /// them.
    pub fn unflushed() -> Self {
        let epochs = Epochs::new();
        epochs.note();
        epochs
    }

    /// Notes a completed change. Returns its epoch.
    #[inline]
    pub fn note(&self) -> u64 {
        self.changed.set(self.now.get());
        self.now.get()
    }

    /// Returns the current epoch.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// Begins a flush. Returns the epoch that the flush covers.
    pub fn begin(&self) -> u64 {
        let now = self.now.get();
        self.now.set(now + 1);
        now
    }

    /// Notes that the flush that `began` in this epoch has succeeded.
    pub fn done(&self, began: u64) {
        self.flushed.set(self.flushed.get().max(began));
    }

    /// Whether a change is not covered by a flush yet.
    pub fn is_dirty(&self) -> bool {
        self.changed.get() > self.flushed.get()
    }

    pub fn covers(&self, epoch: u64) -> bool {
        epoch <= self.flushed.get()
    }
}

/// Number of the last commit that was requested, and of the last one that is done.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    pub asked: Cell<u64>,
    pub done: Cell<u64>,
}

impl Tickets {
    fn ask(&self) -> u64 {
        self.asked.set(self.asked.get() + 1);
        self.asked.get()
    }

    pub fn is_open(&self) -> bool {
        self.asked.get() > self.done.get()
    }
}

/// Changes that a commit covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Marks, evictions, and the slots of the cleaner's next batch.
    Marks,
    /// All changes that a flush has to make durable, after the cache's data.
    All,
}

/// Shared state of a cache.
pub(crate) struct Core {
    pub fast: Rc<Medium>,
    pub slow: Medium,
    pub shape: Shape,
    pub table: Table,
    pub state: RefCell<State>,
    /// Byte ranges of the origin with a write, discard or zeroing in flight, on either device.
    pub writing: RangeLock,
    /// Mode that the stack or the last message set.
    pub mode: Cell<Mode>,
    pub is_detaching: Cell<bool>,
    /// Limit of bytes in flight between the two devices.
    pub migration_threshold: Cell<u64>,
    /// Length in bytes from which sequential runs bypass the cache; 0: never.
    pub sequential_threshold: Cell<u64>,
    /// Bytes in flight between the two devices.
    pub migrating: Cell<u64>,
    pub slow_epochs: Epochs,
    pub fast_epochs: Epochs,
    pub marks: Tickets,
    pub all: Tickets,
    /// Number of slots whose discarded parts are still dirty in the table, because the origin hasn't been
    /// flushed since.
    pub undurable_discards: Cell<usize>,
    /// Whether the committer is working.
    pub is_committing: Cell<bool>,
    /// Error that made the table read-only.
    pub failure: RefCell<Option<Error>>,
    /// Whether the table recorded, or may have recorded, a dirty part when it failed.
    pub had_dirty_parts: Cell<bool>,
    /// Wakes the committer.
    pub work: Notify,
    /// Wakes the evictor and the cleaner.
    pub upkeep: Notify,
    /// Wakes requests that wait for a slot or a commit.
    pub changed: Notify,
    /// Whether new requests are refused.
    pub is_closed: Cell<bool>,
    /// Tells the evictor and the cleaner to end.
    pub upkeep_ends: Cell<bool>,
    /// Tells the committer to end.
    pub committer_ends: Cell<bool>,
    /// Whether the evictor lacks clean slots.
    pub wants_clean: Cell<bool>,
    /// Number of clients' requests, by which the cleaner detects idleness.
    pub requests: Cell<u64>,
    pub counters: Arc<Counters>,
    /// Requests of clients and operators that a close waits for: all changes, and the reads of other shards.
    /// A close doesn't wait for reads through a handle of the home shard.
    pub calls: TaskGroup,
    /// The evictor and the cleaner.
    pub upkeepers: TaskGroup,
    /// The task of the committer.
    pub committer: TaskGroup,
}

impl Core {
    /// Mode of writes at the moment: during a detach, writeback becomes writethrough.
    #[inline]
    pub fn writes(&self) -> Mode {
        match (self.is_detaching.get(), self.mode.get()) {
            (true, Mode::Writeback) => Mode::Writethrough,
            (_, mode) => mode,
        }
    }

    /// Whether blocks may be promoted.
    pub fn may_promote(&self) -> bool {
        !self.is_detaching.get() && self.mode.get() != Mode::Passthrough && self.failure.borrow().is_none()
    }

    /// Returns a slot's entry of the table, including changes of a commit in flight.
    #[inline]
    pub fn entry(&self, slot: u32) -> Entry {
        Entry::from_words(self.table.get(slot))
    }

    /// Returns the entry that the table may record for a slot now, by the rules in the head of the module
    /// `cache`. With `marks_only` it leaves out parts that would need the cache's data to be durable first.
    pub fn target(&self, number: u32, slot: &Slot, marks_only: bool) -> Entry {
        let old = self.entry(number);
        if slot.block == crate::state::FREE || slot.has(EVICTING) {
            return Entry::FREE;
        }
        let (clean, is_flushed) = (slot.clean(), self.slow_epochs.covers(slot.epoch));
        let (mut valid, mut dirty) = (slot.dirty, slot.dirty);
        let as_before = |parts: u64, valid: &mut u64, dirty: &mut u64| {
            *valid |= parts & old.valid;
            *dirty |= parts & old.dirty;
        };
        if slot.has(MARKED) {
            if self.writes() == Mode::Writeback {
                // The cache becomes authoritative.
                valid |= clean & old.valid;
                dirty |= clean & old.valid;
            } else if !is_flushed {
                // The origin is authoritative now, except for parts that the table has as dirty: until the
                // origin is flushed, a power cut may leave an older version there.
                as_before(clean & old.dirty, &mut valid, &mut dirty);
            }
        } else if slot.writers == 0 && !slot.has(EXCLUSIVE) && is_flushed {
            valid |= clean;
        } else {
            as_before(clean, &mut valid, &mut dirty);
        }
        if !is_flushed {
            // Discarded parts: the origin becomes authoritative once it has been flushed.
            let gone = !slot.valid & old.dirty;
            as_before(gone, &mut valid, &mut dirty);
        }
        if marks_only {
            valid &= old.valid;
            dirty &= old.valid;
        }
        match valid {
            0 => Entry::FREE,
            _ => Entry { block: slot.block, valid, dirty },
        }
    }

    /// Requests a commit and waits until it is durable.
    pub async fn commit(&self, level: Level) -> Result<()> {
        let tickets = match level {
            Level::Marks => &self.marks,
            Level::All => &self.all,
        };
        let ticket = tickets.ask();
        self.work.notify_all();
        loop {
            if let Some(error) = self.failure.borrow().clone() {
                return Err(error);
            }
            if tickets.done.get() >= ticket {
                return Ok(());
            }
            self.changed.notified().await;
        }
    }

    /// Implements [`Device::flush`](block::Device::flush).
    pub async fn flush(&self) -> Result<()> {
        self.flush_origin().await?;
        loop {
            // After a failure of the table the lists no longer name all undurable changes.
            if let Some(error) = self.failure.borrow().clone() {
                return if self.runs_without_cache() { Ok(()) } else { Err(error) };
            }
            let is_needed = self.is_committing.get()
                || self.fast_epochs.is_dirty()
                || !self.state.borrow().for_flush.is_empty();
            if !is_needed {
                return self.flush_unrecorded_discards().await;
            }
            self.commit(Level::All).await?;
            // A later discard in the same slot may have raised the slot's epoch; then parts that were
            // discarded before are also still dirty in the table.
            if self.undurable_discards.get() == 0 {
                return self.flush_unrecorded_discards().await;
            }
            self.flush_origin_now().await?;
        }
    }

    /// Makes discards durable of dirty parts that the table never recorded as dirty. For these parts the
    /// table names the origin as authoritative, which may return an older version after a power cut until the
    /// discard is durable. Discarded parts that the table recorded as dirty stay dirty there until the origin
    /// is flushed.
    pub async fn flush_unrecorded_discards(&self) -> Result<()> {
        let unrecorded_discard = self.state.borrow().unrecorded_discard;
        match self.slow_epochs.covers(unrecorded_discard) {
            true => Ok(()),
            false => self.flush_origin_now().await,
        }
    }

    /// Whether the cache has failed and the origin alone has all data: the table recorded no dirty part when
    /// it failed, and no part is dirty in memory.
    pub fn runs_without_cache(&self) -> bool {
        self.failure.borrow().is_some()
            && self.writes() != Mode::Writeback
            && !self.had_dirty_parts.get()
            && self.state.borrow().dirty_slots == 0
    }

    /// Flushes the origin if it has changes that no flush covers.
    pub async fn flush_origin(&self) -> Result<()> {
        match self.slow_epochs.is_dirty() {
            true => self.flush_origin_now().await,
            false => Ok(()),
        }
    }

    /// Flushes the origin.
    pub async fn flush_origin_now(&self) -> Result<()> {
        let began = self.slow_epochs.begin();
        self.slow.flush().await?;
        self.slow_epochs.done(began);
        Ok(())
    }

    /// Requests a mark if a touched part is clean in the table. Returns whether the caller has to wait for
    /// it.
    pub fn mark(&self, state: &mut State, slot: u32, touched: u64) -> bool {
        let flags = state.slot(slot).flags;
        if flags & MARKING != 0 {
            return true;
        }
        if self.entry(slot).clean() & touched == 0 {
            return false;
        }
        state.slot(slot).flags |= MARKED | MARKING;
        state.marks.push(slot);
        // The commit is requested here because a caller that is dropped no longer waits, while other writes
        // do.
        self.marks.ask();
        self.work.notify_all();
        true
    }

    /// Refuses requests after the close.
    pub fn check_open(&self) -> Result<()> {
        match self.is_closed.get() {
            false => Ok(()),
            true => Err(Error::closed("cache: it is closed; open it again")),
        }
    }

    /// Number of free slots below which the evictor works.
    pub fn low_water(&self) -> usize {
        (self.state.borrow().slots.len() / 16).clamp(1, 256)
    }

    /// Wakes the evictor after an allocation of a slot, or a failed one, if `left` free slots may be too few.
    #[inline]
    pub fn slot_was_taken(&self, left: usize) {
        // The largest value of `low_water`, because the state may be borrowed here.
        if left < 256 {
            self.upkeep.notify_all();
        }
    }

    /// Byte offset of a block on the origin.
    #[inline]
    pub fn on_slow(&self, block: u64) -> u64 {
        block * self.shape.block
    }

    /// Whether `bytes` more may be in flight between the devices. One request is always allowed.
    pub fn may_migrate(&self, bytes: u64) -> bool {
        let moving = self.migrating.get();
        moving == 0 || moving + bytes <= self.migration_threshold.get()
    }

    /// Wakes requests that wait for a slot.
    #[inline]
    pub fn slot_changed(&self) {
        self.changed.notify_all();
    }
}
