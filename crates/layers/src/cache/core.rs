//! The heart of a cache, on its home shard: what all the ways through it share.

use super::counters::Counters;
use super::shape::Shape;
use super::state::{EXCLUSIVE, Entry, HOT, LEAVING, MARKING, Slot, State};
use crate::table::{Medium, Table};
use block::{Error, Result};
use runtime::TaskGroup;
use runtime::range_lock::RangeLock;
use runtime::sync::Notify;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// How writes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// To the cache, and to the origin later.
    Writeback,
    /// To both.
    Writethrough,
    /// To the origin; the cache forgets.
    Passthrough,
}

impl Mode {
    /// The words for them, as dm and lvm have them.
    pub const NAMES: [&'static str; 3] = ["writethrough", "writeback", "passthrough"];

    /// By its word.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "writeback" => Some(Mode::Writeback),
            "writethrough" => Some(Mode::Writethrough),
            "passthrough" => Some(Mode::Passthrough),
            _ => None,
        }
    }

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Writeback => "writeback",
            Mode::Writethrough => "writethrough",
            Mode::Passthrough => "passthrough",
        }
    }
}

/// Which changes of a device a flush of it has covered. Time is the number of flushes that have begun.
#[derive(Debug)]
pub(super) struct Epochs {
    now: Cell<u64>,
    flushed: Cell<u64>,
    changed: Cell<u64>,
}

impl Epochs {
    pub fn new() -> Self {
        Epochs { now: Cell::new(1), flushed: Cell::new(0), changed: Cell::new(0) }
    }

    /// A change has ended; says when.
    #[inline]
    pub fn note(&self) -> u64 {
        self.changed.set(self.now.get());
        self.now.get()
    }

    /// The time.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// A flush begins.
    pub fn begin(&self) -> u64 {
        let now = self.now.get();
        self.now.set(now + 1);
        now
    }

    /// The flush that began then has returned.
    pub fn done(&self, began: u64) {
        self.flushed.set(self.flushed.get().max(began));
    }

    /// Whether there is something that no flush has covered.
    pub fn is_dirty(&self) -> bool {
        self.changed.get() > self.flushed.get()
    }

    pub fn covers(&self, epoch: u64) -> bool {
        epoch <= self.flushed.get()
    }
}

/// What was asked of the committer, and what it has done.
#[derive(Debug, Default)]
pub(super) struct Tickets {
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

/// What is asked of the committer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// That slots are being written, or their blocks gone; and what is to be told soon.
    Marks,
    /// All that a flush has to make durable, the data included.
    All,
}

/// See the module's head.
pub(super) struct Core {
    pub fast: Rc<Medium>,
    pub slow: Medium,
    pub shape: Shape,
    pub table: Table,
    pub state: RefCell<State>,
    /// Bytes of the origin that are being written or zeroed, in the cache or past it.
    pub writing: RangeLock,
    /// What the stack asks for, or a message.
    pub mode: Cell<Mode>,
    pub is_detaching: Cell<bool>,
    /// In bytes.
    pub migration_threshold: Cell<u64>,
    /// In bytes; 0 for none.
    pub sequential_threshold: Cell<u64>,
    /// How many bytes are being moved between the two.
    pub migrating: Cell<u64>,
    pub slow_epochs: Epochs,
    pub fast_epochs: Epochs,
    pub marks: Tickets,
    pub all: Tickets,
    /// In how many slots the table still says that the cache counts for what was discarded, because the origin hasn't been
    /// flushed since.
    pub undone: Cell<usize>,
    /// The committer is at it.
    pub is_committing: Cell<bool>,
    pub failure: RefCell<Option<Error>>,
    /// When the table failed, it said, or may have said, of something that the cache counts.
    pub still_counts: Cell<bool>,
    /// For the committer.
    pub work: Notify,
    /// For the evictor and the cleaner.
    pub upkeep: Notify,
    /// Something has changed for which somebody may wait.
    pub changed: Notify,
    /// Requests are refused, whoever sends them late.
    pub is_closed: Cell<bool>,
    /// The evictor and the cleaner end.
    pub is_idling: Cell<bool>,
    /// The committer does.
    pub is_closing: Cell<bool>,
    /// Nobody could make room because all is dirty.
    pub wants_clean: Cell<bool>,
    /// Clients' requests, to notice when there are none.
    pub requests: Cell<u64>,
    pub counters: Arc<Counters>,
    /// Requests of clients and operators that a close waits for: all changes, and the reads of other shards. Reads through an open
    /// handle of the home shard are left to the handle's owner.
    pub calls: TaskGroup,
    /// The evictor and the cleaner.
    pub upkeepers: TaskGroup,
    /// The task of the committer.
    pub committer: TaskGroup,
}

impl Core {
    /// How writes go at the moment.
    #[inline]
    pub fn writes(&self) -> Mode {
        match (self.is_detaching.get(), self.mode.get()) {
            (true, Mode::Writeback) => Mode::Writethrough,
            (_, mode) => mode,
        }
    }

    /// Whether blocks may come into the cache.
    pub fn takes_blocks(&self) -> bool {
        !self.is_detaching.get() && self.mode.get() != Mode::Passthrough && self.failure.borrow().is_none()
    }

    /// The entry of a slot, as it will be in the table when what is being committed is.
    #[inline]
    pub fn entry(&self, slot: u32) -> Entry {
        Entry::from_words(self.table.get(slot))
    }

    /// What the table is to say of a slot now, and may: see the rules in the head of the module `cache`. With `marks_only` it
    /// gives up what it can't say without the cache's data being durable.
    pub fn target(&self, number: u32, slot: &Slot, marks_only: bool) -> Entry {
        let old = self.entry(number);
        if slot.block == super::state::FREE || slot.has(LEAVING) {
            return Entry::FREE;
        }
        let (clean, is_flushed) = (slot.clean(), self.slow_epochs.covers(slot.epoch));
        let (mut valid, mut dirty) = (slot.dirty, slot.dirty);
        let as_before = |parts: u64, valid: &mut u64, dirty: &mut u64| {
            *valid |= parts & old.valid;
            *dirty |= parts & old.dirty;
        };
        if slot.has(HOT) {
            if self.writes() == Mode::Writeback {
                // The cache counts.
                valid |= clean & old.valid;
                dirty |= clean & old.valid;
            } else if !is_flushed {
                // The origin is authoritative now, except for parts that the table has as dirty: until the origin is flushed, a
                // power cut may leave an older version there.
                as_before(clean & old.dirty, &mut valid, &mut dirty);
            }
        } else if slot.writers == 0 && !slot.has(EXCLUSIVE) && is_flushed {
            valid |= clean;
        } else {
            as_before(clean, &mut valid, &mut dirty);
        }
        if !is_flushed {
            // What was discarded: the origin counts once it has been flushed.
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

    /// Waits until the table has it.
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

    /// What this answers to [`Device::flush`](block::Device::flush).
    pub async fn flush(&self) -> Result<()> {
        self.flush_origin().await?;
        loop {
            // What was to be told to a table that failed waits in no list any more.
            if let Some(error) = self.failure.borrow().clone() {
                return if self.goes_on_without_cache() { Ok(()) } else { Err(error) };
            }
            let is_needed = self.is_committing.get()
                || self.fast_epochs.is_dirty()
                || !self.state.borrow().must.is_empty();
            if !is_needed {
                return self.flush_unsaid().await;
            }
            self.commit(Level::All).await?;
            // Something else may have been discarded in a slot meanwhile; then the table still says that the cache counts for
            // what had been discarded before, too.
            if self.undone.get() == 0 {
                return self.flush_unsaid().await;
            }
            self.flush_origin_now().await?;
        }
    }

    /// What was dirty when a flush began, and was discarded before the table could be told, is in neither: the table says that
    /// the origin counts, and that may have an older version again after a power cut. So the discard has to be durable. Of
    /// what is discarded after the table was told, it says that the cache counts until then.
    pub async fn flush_unsaid(&self) -> Result<()> {
        let unsaid = self.state.borrow().unsaid;
        match self.slow_epochs.covers(unsaid) {
            true => Ok(()),
            false => self.flush_origin_now().await,
        }
    }

    /// The cache has failed, and nothing that counts is in it, whatever of its table is found later: neither what the table said
    /// when it failed, nor what was written to the cache alone after that, while the mode was writeback.
    pub fn goes_on_without_cache(&self) -> bool {
        self.failure.borrow().is_some()
            && self.writes() != Mode::Writeback
            && !self.still_counts.get()
            && self.state.borrow().dirty_slots == 0
    }

    /// Flushes the origin if something was written there.
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

    /// Asks for the table to be told that a slot is being written. Returns whether it has to be waited for.
    pub fn mark(&self, state: &mut State, slot: u32, touched: u64) -> bool {
        let flags = state.slot(slot).flags;
        if flags & MARKING != 0 {
            return true;
        }
        if self.entry(slot).clean() & touched == 0 {
            return false;
        }
        state.slot(slot).flags |= HOT | MARKING;
        state.marks.push(slot);
        // Whoever asks for it may not wait for it, and others do.
        self.marks.ask();
        self.work.notify_all();
        true
    }

    /// Refuses what comes after the close.
    pub fn check_open(&self) -> Result<()> {
        match self.is_closed.get() {
            false => Ok(()),
            true => Err(Error::closed("the cache is closed")),
        }
    }

    /// How many free slots there should be.
    pub fn low_water(&self) -> usize {
        (self.state.borrow().slots.len() / 16).clamp(1, 256)
    }

    /// Somebody took a slot, or would have liked to.
    #[inline]
    pub fn slot_was_taken(&self, left: usize) {
        // As `low_water`, without another look at the state.
        if left < 256 {
            self.upkeep.notify_all();
        }
    }

    /// The origin's bytes that a block begins with.
    #[inline]
    pub fn on_slow(&self, block: u64) -> u64 {
        block * self.shape.block
    }

    /// Whether so many bytes more may be moved at the moment.
    pub fn may_migrate(&self, bytes: u64) -> bool {
        let moving = self.migrating.get();
        moving == 0 || moving + bytes <= self.migration_threshold.get()
    }

    /// Wakes everybody who may wait for a slot.
    #[inline]
    pub fn slot_changed(&self) {
        self.changed.notify_all();
    }
}
