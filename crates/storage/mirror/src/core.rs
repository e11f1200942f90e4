//! State of a mirror on its home shard; changes and flushes.
//!
//! A change locks its blocks from submission to acknowledgement, so that overlapping changes reach all legs
//! in one order. Its chunks' bits are durable before any leg gets it. On a lagging leg it is queued in the
//! leg's *lane* after the changes that it overlaps, and releases its blocks for the next change before the
//! leg has completed it.
//!
//! No change and no flush is acknowledged while a faulty leg isn't durably recorded on the others.

use crate::behind::Behind;
use crate::chunks::Chunks;
use crate::format::{Slot, SlotState, Uuid};
use crate::keeper::Scrub;
use crate::layout::Layout;
use crate::leg::{Change, Leg, Mask, each};
use crate::shared::Shared;
use block::{Call, Durability, Error, Result};
use runtime::range_lock::{RangeGuard, RangeLock};
use runtime::sync::{Notify, Semaphore};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

/// Settings of the stack, which may change from one opening to the next.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Legs that reads avoid.
    pub write_mostly: Mask,
    /// Limit of outstanding writes on write-mostly legs; 0: they don't lag.
    pub write_behind: u64,
    /// Limit of the bytes of outstanding writes.
    pub behind_bytes: u64,
    /// Whether flush and FUA leave out lagging legs.
    pub fast_flush: bool,
    /// Least time without writes before a chunk's bit is cleared.
    pub bitmap_delay: Duration,
    /// Limit of resync and scrub in bytes per second; 0: no limit.
    pub sync_speed_max: u64,
    /// Whether reads always go to the first leg, rather than by latency.
    pub first_leg: bool,
    /// Time within which a leg has to answer a request.
    pub timeout: Duration,
}

/// State of a mirror.
pub struct Core {
    /// Settings of the stack.
    pub settings: Settings,
    /// Layout of the legs.
    pub layout: Layout,
    /// Identity of the mirror.
    pub array: Uuid,
    /// State that other shards read.
    pub shared: Arc<Shared>,
    /// Legs that the stack names, in its order.
    pub legs: Vec<Leg>,
    /// All slots of the mirror.
    pub slots: RefCell<Vec<Slot>>,
    /// Legs that have all data, except in chunks that may differ.
    pub active: Cell<Mask>,
    /// Legs that get all changes, and lack some chunks.
    pub rebuilding: Cell<Mask>,
    /// Leg from which chunks that may differ are copied.
    pub source: Cell<usize>,
    /// Legs that may replace the source for unreadable blocks in chunks that may differ. A leg that lagged
    /// while flushes left it out isn't one of them: it may lack flushed data.
    pub trusted: Cell<Mask>,
    /// Legs with a complete bitmap.
    pub kept: Cell<Mask>,
    /// Number of joins of legs.
    pub joined: Cell<u64>,
    /// [`crate::format::Superblock::events`].
    pub events: Cell<u64>,
    /// [`crate::format::Superblock::cleared_events`].
    pub cleared_events: Cell<u64>,
    /// Whether the next superblock raises `cleared_events`.
    pub raise_cleared: Cell<bool>,
    /// Number of changes of the superblocks' contents in memory.
    pub superblock_changes: Cell<u64>,
    /// Number of these changes that are durable in the superblocks.
    pub superblock_written: Cell<u64>,
    /// Serialises writes of the superblocks.
    pub superblock_writer: Rc<Semaphore>,
    /// Serialises writes of the bitmap.
    pub bitmap_writer: Rc<Semaphore>,
    /// State of each chunk.
    pub chunks: Chunks,
    /// Number of copies from leg to leg in flight.
    pub copying: Cell<u64>,
    /// Whether a copy from leg to leg isn't covered by a flush yet.
    pub copied: Cell<bool>,
    /// Error after which acknowledged changes may be missing on all active legs. Flushes and the close return
    /// it until the mirror is opened again, and no bit is cleared.
    pub lost: RefCell<Option<Error>>,
    /// Locks of the blocks of changes and copies.
    pub locks: RangeLock,
    /// Outstanding write-behind writes.
    pub behind: Rc<Behind>,
    /// Wakes the keeper.
    pub work: Notify,
    /// Scrub in progress.
    pub scrub: RefCell<Option<Scrub>>,
    /// Whether the mirror is being closed.
    pub is_closing: Cell<bool>,
    /// Background tasks.
    pub tasks: RefCell<Vec<runtime::JoinHandle<()>>>,
}

/// A writer of chunks, counted until this is dropped.
struct Writing {
    core: Rc<Core>,
    blocks: Range<u64>,
}

impl Writing {
    fn another(&self) -> Writing {
        self.core.chunks.begin_another(&self.blocks);
        Writing { core: self.core.clone(), blocks: self.blocks.clone() }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.core.chunks.end(&self.blocks);
    }
}

/// Outcome of a change: legs that completed it, and legs that failed it.
struct Outcome {
    done: Mask,
    failed: Vec<(usize, Error)>,
}

impl Core {
    /// Legs that may lag; none if no other active leg is left.
    pub fn lagging(&self) -> Mask {
        let lag = self.lanes() & !(1 << self.source.get());
        if self.active.get() & !lag == 0 { 0 } else { lag }
    }

    /// Legs on which changes are queued in lanes.
    pub fn lanes(&self) -> Mask {
        if self.settings.write_behind == 0 { 0 } else { self.settings.write_mostly }
    }

    /// Whether the superblocks durably contain the current state.
    #[inline]
    pub fn superblocks_are_current(&self) -> bool {
        self.superblock_written.get() == self.superblock_changes.get()
    }

    /// Changes blocks on all legs.
    ///
    /// # Errors
    /// The last active leg's error.
    pub async fn change(
        self: Rc<Self>,
        change: Change,
        blocks: Range<u64>,
        durability: Durability,
    ) -> Result<()> {
        let _held = self.locks.ask(blocks.clone()).await;
        let is_marked = self.chunks.begin(&blocks);
        let writing = Writing { core: self.clone(), blocks: blocks.clone() };
        if !is_marked || !self.superblocks_are_current() {
            self.mark(&blocks).await?;
        }
        let members = self.active.get() | self.rebuilding.get();
        let lanes = members & self.lanes();
        let mut lagging = None;
        let mut queued: SmallVec<[_; 2]> = SmallVec::new();
        if lanes != 0 {
            let may_lag = self.lagging();
            let waits = durability == Durability::Durable && !self.settings.fast_flush;
            if !waits && lanes & !may_lag == 0 {
                lagging = self.behind.enter(change.bytes()).map(Rc::new);
            }
            for leg in each(lanes) {
                // A write-mostly leg that doesn't lag, because no other leg is left, gets the requested
                // durability.
                let theirs = if waits || may_lag & 1 << leg == 0 { durability } else { Durability::Visible };
                // The position in the lane is taken here, before the task starts.
                let asked = self.legs[leg].lane.ask(blocks.clone());
                let (writing, lagging, change) = (writing.another(), lagging.clone(), change.clone());
                let lane = async move {
                    let held = asked.await;
                    let core = writing.core.clone();
                    let outcome = core.clone().change_queued(leg, &change, &writing.blocks, theirs).await;
                    if let (Err(error), Some(lagging)) = (&outcome, &lagging)
                        && core.active.get() & 1 << leg != 0
                        && lagging.fail(error)
                    {
                        core.lose_acknowledged(
                            "the last leg failed a write that was outstanding (write_behind)",
                            error,
                        );
                    }
                    drop((held, lagging, writing));
                    core.publish_behind();
                    outcome
                };
                queued.push((leg, runtime::spawn(lane)));
            }
            self.publish_behind();
        }
        let mut outcome = self.change_directly(members & !lanes, &change, &blocks, durability).await;
        if lagging.is_none() || outcome.done & self.active.get() == 0 {
            for (leg, lane) in queued {
                match lane.await {
                    Ok(true) => outcome.done |= 1 << leg,
                    Ok(false) => {}
                    Err(error) => outcome.failed.push((leg, error)),
                }
            }
        }
        self.handle_failures(outcome, &blocks, lagging.is_none()).await?;
        lagging.map_or(Ok(()), |lagging| lagging.acknowledge())
    }

    /// Carries out a change on a lagging leg. Returns whether the leg completed it: a leg that became faulty
    /// meanwhile didn't.
    async fn change_queued(
        self: Rc<Self>,
        leg: usize,
        change: &Change,
        blocks: &Range<u64>,
        durability: Durability,
    ) -> Result<bool> {
        if (self.active.get() | self.rebuilding.get()) & 1 << leg == 0 {
            return Ok(false);
        }
        let done = self.legs[leg].device.change(blocks, change, durability).await;
        self.shared.legs[leg].writes.fetch_add(1, Ordering::Relaxed);
        let Err(error) = done else { return Ok(true) };
        if let Err(error) = self.mark_faulty(leg, error, SlotState::Failed) {
            self.note_undecided(blocks);
            return Err(error);
        }
        self.write_superblocks().await.map(|()| false)
    }

    /// Carries out a change on legs that don't lag.
    async fn change_directly(
        &self,
        legs: Mask,
        change: &Change,
        blocks: &Range<u64>,
        durability: Durability,
    ) -> Outcome {
        let done = on_legs(legs, |leg| {
            self.shared.legs[leg].writes.fetch_add(1, Ordering::Relaxed);
            self.legs[leg].device.change(blocks, change, durability)
        });
        let (done, failed) = done.await;
        Outcome { done, failed }
    }

    /// Marks legs faulty that failed a change that an active leg completed.
    async fn handle_failures(&self, outcome: Outcome, blocks: &Range<u64>, all_ended: bool) -> Result<()> {
        if outcome.done & self.active.get() == 0 {
            self.note_undecided(blocks);
            let first = outcome.failed.into_iter().next().map(|(_, error)| error);
            return Err(first.unwrap_or_else(|| Error::io("mirror: no active leg completed a change")));
        }
        // All failed legs become faulty before the superblocks are written, so that none stays active if that
        // fails.
        for (leg, error) in outcome.failed {
            self.mark_faulty(leg, error, SlotState::Failed)?;
        }
        if !self.superblocks_are_current() {
            self.write_superblocks().await?;
        }
        if all_ended {
            self.chunks.blocks_are_equal(blocks);
        }
        Ok(())
    }

    /// Notes that no active leg is known to have the last change of these blocks and that legs may differ in
    /// them, so that they are copied from the source.
    fn note_undecided(&self, blocks: &Range<u64>) {
        if self.active.get().count_ones() > 1 {
            self.chunks.may_differ(blocks);
        }
        if self.rebuilding.get() != 0 {
            self.chunks.are_lacking(blocks);
        }
        self.publish();
        self.work.notify_all();
    }

    /// Notes that acknowledged changes may be on no active leg.
    fn lose_acknowledged(&self, why: &str, error: &Error) {
        let text = format!(
            "mirror {}: acknowledged writes may be lost: {why}: {}; open the mirror again and check its data",
            self.array,
            error.detail()
        );
        tracing::error!("{text}");
        self.lost.borrow_mut().get_or_insert_with(|| error.with_detail(text));
    }

    /// Checks that no acknowledged changes may be missing on all active legs.
    ///
    /// # Errors
    /// The error by which they may have been lost.
    pub fn check_nothing_lost(&self) -> Result<()> {
        self.lost.borrow().clone().map_or(Ok(()), Err)
    }

    /// Makes all acknowledged changes durable.
    ///
    /// # Errors
    /// The last active leg's error. After it, and after the last leg has failed an outstanding write, every
    /// flush fails.
    pub async fn flush(self: Rc<Self>) -> Result<()> {
        let lagging = self.lagging();
        let leaves_out = self.settings.fast_flush && self.active.get() & !lagging != 0;
        if !leaves_out {
            self.behind.drained().await;
        }
        // A leg that is being rebuilt may be the only active leg when this returns.
        let members = self.active.get() | self.rebuilding.get();
        let legs = if leaves_out { members & !lagging } else { members };
        let (mut done, mut failed) = self.flush_legs(legs).await;
        let others = self.active.get() & !legs;
        if done & self.active.get() == 0 && others != 0 {
            self.behind.drained().await;
            let (more, errors) = self.flush_legs(others).await;
            done |= more;
            failed.extend(errors);
        }
        self.handle_failed_flush(done, failed)?;
        if !self.superblocks_are_current() {
            self.write_superblocks().await?;
        }
        self.check_nothing_lost()
    }

    /// Flushes these legs, and marks legs faulty that fail it.
    ///
    /// # Errors
    /// The first active leg's error, if no active leg was flushed.
    pub async fn make_durable(&self, legs: Mask) -> Result<()> {
        let (done, failed) = self.flush_legs(legs).await;
        self.handle_failed_flush(done, failed)
    }

    /// Marks legs faulty in memory that failed a flush, if another active leg completed it; the caller writes
    /// the superblocks next.
    ///
    /// # Errors
    /// The first active leg's error, if no active leg completed the flush. No active leg becomes faulty then,
    /// but each may have lost different data: all dirty chunks are copied from the source.
    fn handle_failed_flush(&self, done: Mask, failed: Vec<(usize, Error)>) -> Result<()> {
        let is_durable = done & self.active.get() != 0;
        let mut first = None;
        for (leg, error) in failed {
            match self.active.get() & 1 << leg != 0 && !is_durable {
                true => first = first.or(Some(error)),
                // A leg that is being rebuilt may have lost copied data.
                false => self.mark_faulty(leg, error, SlotState::Failed)?,
            }
        }
        if is_durable {
            return Ok(());
        }
        let Some(error) = first else { return Err(Error::io("mirror: no active leg could be flushed")) };
        if self.active.get().count_ones() > 1 {
            self.chunks.dirty_differ();
        }
        if self.rebuilding.get() != 0 {
            self.chunks.dirty_lacking();
        }
        self.lose_acknowledged("a flush failed on all legs", &error);
        self.publish();
        self.work.notify_all();
        Err(error)
    }

    /// Flushes these legs. Returns those that completed it, and those that failed.
    pub async fn flush_legs(&self, legs: Mask) -> (Mask, Vec<(usize, Error)>) {
        on_legs(legs, |leg| self.legs[leg].device.flush()).await
    }

    /// Locks these blocks on all legs, after all changes that were submitted before.
    pub async fn hold(&self, blocks: &Range<u64>) -> Holding {
        let mut held = vec![self.locks.ask(blocks.clone()).await];
        for leg in each(self.lanes()) {
            held.push(self.legs[leg].lane.ask(blocks.clone()).await);
        }
        Holding { _held: held }
    }
}

/// Blocks that are locked against changes and copies until this is dropped.
pub struct Holding {
    _held: Vec<RangeGuard>,
}

/// Begins a call on each of these legs, and waits for all. Allocates only if a leg fails.
pub async fn on_legs<'a>(
    legs: Mask,
    mut begin: impl FnMut(usize) -> Call<'a, Result<()>>,
) -> (Mask, Vec<(usize, Error)>) {
    let mut calls: [Option<Call<'a, Result<()>>>; crate::format::MAX_LEGS] = [const { None }; _];
    let (mut waiting, mut done, mut failed) = (0, 0, Vec::new());
    for leg in each(legs) {
        calls[leg] = Some(begin(leg));
        waiting |= 1 << leg;
    }
    poll_fn(|context| {
        for leg in each(waiting) {
            let Some(call) = &mut calls[leg] else { continue };
            if let Poll::Ready(outcome) = Pin::new(call).poll(context) {
                waiting &= !(1 << leg);
                calls[leg] = None;
                match outcome {
                    Ok(()) => done |= 1 << leg,
                    Err(error) => failed.push((leg, error)),
                }
            }
        }
        if waiting == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (done, failed)
}
