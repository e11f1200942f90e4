//! State of a cache on its home shard: one owner for each concern, and the decisions that need several of
//! them.
//!
//! The modules of this folder carry out requests ([`read`], [`write`], [`zero`], [`warm`]) and the background
//! work ([`commit`], [`evict`], [`clean`]) on this state; [`orders`] are the messages of operators.

mod clean;
mod commit;
mod device;
mod evict;
mod hold;
pub(crate) mod orders;
mod read;
mod warm;
mod write;
mod zero;

use crate::Options;
use crate::calls::Calls;
use crate::commits::{Commits, Level};
use crate::control::Control;
use crate::counters::Counters;
use crate::mode::Mode;
use crate::origin::Origin;
use crate::shape::Shape;
use crate::side::Side;
use crate::state::{EVICTING, EXCLUSIVE, Entry, FREE, MARKED, MARKING, Slot, State};
use crate::table::{Medium, Table};
use crate::upkeep::Upkeep;
use block::Result;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// State of a cache.
pub(crate) struct Core {
    fast: Side,
    slow: Side,
    shape: Shape,
    table: Table,
    state: RefCell<State>,
    control: Arc<Control>,
    commits: Commits,
    upkeep: Upkeep,
    calls: Calls,
    counters: Arc<Counters>,
}

impl Core {
    /// Creates the state from that of the table, and starts the background tasks.
    pub fn start(
        [fast, slow]: [Rc<Medium>; 2],
        (table, shape): (Table, Shape),
        state: State,
        control: Arc<Control>,
        counters: Arc<Counters>,
        options: &Options,
    ) -> Rc<Self> {
        let core = Rc::new(Core {
            // Opening the table has flushed the fast device.
            fast: Side::new(fast),
            slow: Side::unflushed(slow),
            shape,
            table,
            state: RefCell::new(state),
            control,
            commits: Commits::new(),
            upkeep: Upkeep::new(),
            calls: Calls::new(),
            counters,
        });
        core.commits.start(commit::run(core.clone()));
        core.upkeep.start(evict::run(core.clone()));
        core.upkeep.start(clean::run(core.clone(), options.settle_every));
        core
    }

    /// Whether blocks may be promoted.
    pub fn may_promote(&self) -> bool {
        !self.control.is_detaching() && self.control.mode() != Mode::Passthrough && !self.commits.has_failed()
    }

    /// Returns a slot's entry of the table, including changes of a commit in flight.
    #[inline]
    pub fn entry(&self, slot: u32) -> Entry {
        Entry::from_words(self.table.get(slot))
    }

    /// Returns the entry that the table may record for a slot now, by the rules in the head of the
    /// crate. With `marks_only` it leaves out parts that would need the cache's data to be durable first.
    pub fn target(&self, number: u32, slot: &Slot, marks_only: bool) -> Entry {
        let old = self.entry(number);
        if slot.block == FREE || slot.has(EVICTING) {
            return Entry::FREE;
        }
        let (clean, is_flushed) = (slot.clean(), self.slow.covers(slot.epoch));
        let (mut valid, mut dirty) = (slot.dirty, slot.dirty);
        let as_before = |parts: u64, valid: &mut u64, dirty: &mut u64| {
            *valid |= parts & old.valid;
            *dirty |= parts & old.dirty;
        };
        if slot.has(MARKED) {
            if self.control.writes() == Mode::Writeback {
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
        let ticket = self.commits.request(level);
        while !self.commits.is_done(level, ticket)? {
            self.calls.changed().await;
        }
        Ok(())
    }

    /// Implements [`Device::flush`](block::Device::flush).
    pub async fn make_durable(&self) -> Result<()> {
        self.slow.flush().await?;
        loop {
            // After a failure of the table the lists no longer name all undurable changes.
            if let Err(error) = self.commits.check() {
                return if self.runs_without_cache() { Ok(()) } else { Err(error) };
            }
            let is_needed = self.commits.is_committing()
                || self.fast.is_dirty()
                || !self.state.borrow().for_flush.is_empty();
            if !is_needed {
                return self.flush_unrecorded_discards().await;
            }
            self.commit(Level::All).await?;
            // A later discard in the same slot may have raised the slot's epoch; then parts that were
            // discarded before are also still dirty in the table.
            if !self.commits.has_undurable_discards() {
                return self.flush_unrecorded_discards().await;
            }
            self.slow.flush_now().await?;
        }
    }

    /// Makes discards durable of dirty parts that the table never recorded as dirty. For these parts the
    /// table names the origin as authoritative, which may return an older version after a power cut until the
    /// discard is durable. Discarded parts that the table recorded as dirty stay dirty there until the origin
    /// is flushed.
    pub async fn flush_unrecorded_discards(&self) -> Result<()> {
        let unrecorded_discard = self.state.borrow().unrecorded_discard;
        match self.slow.covers(unrecorded_discard) {
            true => Ok(()),
            false => self.slow.flush_now().await,
        }
    }

    /// Whether the cache has failed and the origin alone has all data: the table recorded no dirty part when
    /// it failed, and no part is dirty in memory.
    pub fn runs_without_cache(&self) -> bool {
        self.commits.has_failed()
            && self.control.writes() != Mode::Writeback
            && !self.commits.had_dirty_parts()
            && self.state.borrow().dirty_slots == 0
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
        self.commits.request(Level::Marks);
        true
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
            self.upkeep.wake();
        }
    }

    /// Byte offset of a block on the origin.
    #[inline]
    pub fn on_slow(&self, block: u64) -> u64 {
        block * self.shape.block
    }

    /// Ends all tasks, makes all data durable, and records a clean stop in the superblock.
    ///
    /// # Errors
    /// Errors of the devices; the failure of the table.
    pub async fn close(self: Rc<Self>) -> Result<()> {
        // Open handles don't delay the close: a client may keep one forever.
        self.calls.close().await;
        self.upkeep.stop().await;
        let outcome = self.stop_cleanly().await;
        self.commits.stop().await;
        // Notices that a device doesn't answer before the stack closes it.
        let _ = runtime::join_all([self.slow.medium().flush(), self.fast.medium().flush()]).await;
        outcome
    }

    async fn stop_cleanly(self: &Rc<Self>) -> Result<()> {
        if self.runs_without_cache() {
            return self.slow.flush().await;
        }
        self.make_durable().await?;
        self.settle(true).await;
        self.make_durable().await?;
        self.record_heat().await?;
        let mut origin = Origin::decode(&self.table.owner_words())?;
        origin.sums = Origin::sums_of(self.slow.medium(), origin.size).await.ok();
        self.table.set_owner(origin.encode(), true).await
    }
}
