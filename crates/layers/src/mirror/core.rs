//! The home of a mirror: changes and flushes, and who has what.
//!
//! A change holds its blocks from when it is given until it is acknowledged, so that changes that overlap reach all legs in
//! one order. Its chunks' bits are durable before a leg gets it. On a leg that may lag it stands in that leg's own line,
//! behind those that it overlaps, and the next one that overlaps it need not wait for that.
//!
//! No change and no flush is acknowledged as long as there is a leg that was left behind and the others don't durably know it.

use super::behind::Behind;
use super::chunks::Chunks;
use super::format::{Slot, SlotState, Uuid};
use super::keeper::Scrub;
use super::layout::Layout;
use super::leg::{Change, Leg, Mask, each};
use super::shared::Shared;
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

/// What the stack asks for, and may change from one opening to the next.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Legs that reads avoid.
    pub write_mostly: Mask,
    /// How many writes may be behind on those; 0 is none.
    pub write_behind: u64,
    /// How many bytes these may hold.
    pub behind_bytes: u64,
    /// Whether flush and FUA leave out legs that may lag.
    pub fast_flush: bool,
    /// How long a chunk is quiet before its bit is cleared, at least.
    pub bitmap_delay: Duration,
    /// How fast is copied and compared, in bytes per second; 0 is without a limit.
    pub sync_speed_max: u64,
    /// Whether reads go to the first leg always, rather than by latency.
    pub first_leg: bool,
}

/// See the module's head.
pub struct Core {
    /// What the stack asks for.
    pub settings: Settings,
    /// What lies where.
    pub layout: Layout,
    /// The mirror.
    pub array: Uuid,
    /// What other shards see.
    pub shared: Arc<Shared>,
    /// The legs that the stack gave, in its order.
    pub legs: Vec<Leg>,
    /// All places of the mirror.
    pub slots: RefCell<Vec<Slot>>,
    /// Legs that have everything, but for what differs.
    pub active: Cell<Mask>,
    /// Legs that get everything new, and lack something.
    pub rebuilding: Cell<Mask>,
    /// The leg from which what differs is copied.
    pub source: Cell<usize>,
    /// Legs that may answer for the source where legs differ. One that lagged while flushes left it out may lack what was flushed.
    pub trusted: Cell<Mask>,
    /// Legs whose bitmap is kept.
    pub kept: Cell<Mask>,
    /// Raised whenever a leg joins.
    pub joined: Cell<u64>,
    /// See [`super::format::Superblock::events`].
    pub events: Cell<u64>,
    /// See [`super::format::Superblock::cleared_events`].
    pub cleared_events: Cell<u64>,
    /// The next superblock says that bits are cleared from now on.
    pub raise_cleared: Cell<bool>,
    /// How often something changed that superblocks say.
    pub wanted: Cell<u64>,
    /// Up to which of these changes they say it, durably.
    pub noted: Cell<u64>,
    /// One writes superblocks at a time.
    pub noting: Rc<Semaphore>,
    /// One writes the bitmap at a time.
    pub paging: Rc<Semaphore>,
    /// What is known of each chunk.
    pub chunks: Chunks,
    /// How many pieces are being copied from leg to leg.
    pub copying: Cell<u64>,
    /// Something was copied from leg to leg that no flush has covered.
    pub copied: Cell<bool>,
    /// Why acknowledged changes may be on no active leg; `None` as long as they are. Flushes and the close answer it until the
    /// mirror is opened again, and no bit is cleared.
    pub lost: RefCell<Option<Error>>,
    /// Who changes which blocks.
    pub locks: RangeLock,
    /// Writes that are behind.
    pub behind: Rc<Behind>,
    /// There is something for the keeper to do, or it is to end.
    pub work: Notify,
    /// The comparison of all legs that was asked for.
    pub scrub: RefCell<Option<Scrub>>,
    /// The mirror is being closed.
    pub is_closing: Cell<bool>,
    /// The tasks that run beside requests.
    pub tasks: RefCell<Vec<runtime::JoinHandle<()>>>,
}

/// Writers of chunks are counted until this is dropped.
struct Writing {
    core: Rc<Core>,
    blocks: Range<u64>,
}

impl Writing {
    fn again(&self) -> Writing {
        self.core.chunks.begin_again(&self.blocks);
        Writing { core: self.core.clone(), blocks: self.blocks.clone() }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.core.chunks.end(&self.blocks);
    }
}

/// What became of a change on each leg.
struct Outcome {
    done: Mask,
    failed: Vec<(usize, Error)>,
}

impl Core {
    /// Legs that may lag, if there is one that doesn't.
    pub fn lagging(&self) -> Mask {
        let lag = self.lanes() & !(1 << self.source.get());
        if self.active.get() & !lag == 0 { 0 } else { lag }
    }

    /// Legs on which changes stand in line.
    pub fn lanes(&self) -> Mask {
        if self.settings.write_behind == 0 { 0 } else { self.settings.write_mostly }
    }

    /// Whether superblocks say how things are, durably.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.noted.get() == self.wanted.get()
    }

    /// Changes blocks on all legs.
    ///
    /// # Errors
    /// That of the last leg.
    pub async fn change(
        self: Rc<Self>,
        change: Change,
        blocks: Range<u64>,
        durability: Durability,
    ) -> Result<()> {
        let _held = self.locks.ask(blocks.clone()).await;
        let is_marked = self.chunks.begin(&blocks);
        let writing = Writing { core: self.clone(), blocks: blocks.clone() };
        if !is_marked || !self.is_settled() {
            self.mark(&blocks).await?;
        }
        let members = self.active.get() | self.rebuilding.get();
        let lanes = members & self.lanes();
        let mut lagging = None;
        let mut in_line: SmallVec<[_; 2]> = SmallVec::new();
        if lanes != 0 {
            let may_lag = self.lagging();
            let waits = durability == Durability::Durable && !self.settings.fast_flush;
            if !waits && lanes & !may_lag == 0 {
                lagging = self.behind.enter(change.bytes()).map(Rc::new);
            }
            for leg in each(lanes) {
                // One that doesn't lag, because the others are lost, has what is to be durable.
                let theirs = if waits || may_lag & 1 << leg == 0 { durability } else { Durability::Visible };
                // Their place in the line is the one of now.
                let asked = self.legs[leg].lane.ask(blocks.clone());
                let (writing, lagging, change) = (writing.again(), lagging.clone(), change.clone());
                let lane = async move {
                    let held = asked.await;
                    let core = writing.core.clone();
                    let outcome = core.clone().change_in_line(leg, &change, &writing.blocks, theirs).await;
                    if let (Err(error), Some(lagging)) = (&outcome, &lagging)
                        && core.active.get() & 1 << leg != 0
                        && lagging.fail(error)
                    {
                        core.lose_acknowledged("the last leg failed a change that was behind", error);
                    }
                    drop((held, lagging, writing));
                    core.publish_behind();
                    outcome
                };
                in_line.push((leg, runtime::spawn(lane)));
            }
            self.publish_behind();
        }
        let mut outcome = self.change_directly(members & !lanes, &change, &blocks, durability).await;
        if lagging.is_none() || outcome.done & self.active.get() == 0 {
            for (leg, lane) in in_line {
                match lane.await {
                    Ok(true) => outcome.done |= 1 << leg,
                    Ok(false) => {}
                    Err(error) => outcome.failed.push((leg, error)),
                }
            }
        }
        self.judge(outcome, &blocks, lagging.is_none()).await?;
        lagging.map_or(Ok(()), |lagging| lagging.acknowledge())
    }

    /// On one leg, when its turn has come. Whether it has it: a leg that was left behind meanwhile doesn't.
    async fn change_in_line(
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
        if let Err(error) = self.lose(leg, error, SlotState::Failed) {
            self.leave_undecided(blocks);
            return Err(error);
        }
        self.note().await.map(|()| false)
    }

    /// On legs that don't lag, at once.
    async fn change_directly(
        &self,
        legs: Mask,
        change: &Change,
        blocks: &Range<u64>,
        durability: Durability,
    ) -> Outcome {
        let done = gather(legs, |leg| {
            self.shared.legs[leg].writes.fetch_add(1, Ordering::Relaxed);
            self.legs[leg].device.change(blocks, change, durability)
        });
        let (done, failed) = done.await;
        Outcome { done, failed }
    }

    /// Leaves legs behind that failed where others did not.
    async fn judge(&self, outcome: Outcome, blocks: &Range<u64>, all_ended: bool) -> Result<()> {
        if outcome.done & self.active.get() == 0 {
            self.leave_undecided(blocks);
            let first = outcome.failed.into_iter().next().map(|(_, error)| error);
            return Err(first.unwrap_or_else(|| Error::io("no leg of the mirror took a change")));
        }
        // All of them before the others are told: whether that goes well or not, none of them may count.
        for (leg, error) in outcome.failed {
            self.lose(leg, error, SlotState::Failed)?;
        }
        if !self.is_settled() {
            self.note().await?;
        }
        if all_ended {
            self.chunks.blocks_are_equal(blocks);
        }
        Ok(())
    }

    /// Notes that no active leg surely has the last change of these blocks, and that each leg may have something else: they are
    /// copied.
    fn leave_undecided(&self, blocks: &Range<u64>) {
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

    /// Refuses to call anything durable once acknowledged changes may be on no active leg.
    ///
    /// # Errors
    /// What was lost, and why.
    pub fn check_nothing_lost(&self) -> Result<()> {
        self.lost.borrow().clone().map_or(Ok(()), Err)
    }

    /// Makes everything durable that was acknowledged.
    ///
    /// # Errors
    /// That of the last leg. From then on, and once the last leg failed a change that was behind, every flush fails.
    pub async fn flush(self: Rc<Self>) -> Result<()> {
        let lagging = self.lagging();
        let leaves_out = self.settings.fast_flush && self.active.get() & !lagging != 0;
        if !leaves_out {
            self.behind.drained().await;
        }
        // One that is being rebuilt may be active, and all that is left, when this returns.
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
        self.judge_flush(done, failed)?;
        if !self.is_settled() {
            self.note().await?;
        }
        self.check_nothing_lost()
    }

    /// Flushes these legs, and judges that.
    ///
    /// # Errors
    /// As [`judge_flush`](Self::judge_flush).
    pub async fn make_durable(&self, legs: Mask) -> Result<()> {
        let (done, failed) = self.flush_legs(legs).await;
        self.judge_flush(done, failed)
    }

    /// Leaves legs behind, here, that failed a flush where another one did not: [`note`](Self::note) has to follow.
    ///
    /// # Errors
    /// That of the first active leg, where none did it. None of these is left behind then, but each may have lost something
    /// else: what was written since the last look at the bitmap is copied from the source.
    fn judge_flush(&self, done: Mask, failed: Vec<(usize, Error)>) -> Result<()> {
        let is_durable = done & self.active.get() != 0;
        let mut first = None;
        for (leg, error) in failed {
            match self.active.get() & 1 << leg != 0 && !is_durable {
                true => first = first.or(Some(error)),
                // On one that is being rebuilt what was copied to it may be lost.
                false => self.lose(leg, error, SlotState::Failed)?,
            }
        }
        if is_durable {
            return Ok(());
        }
        let Some(error) = first else { return Err(Error::io("no leg of the mirror could be flushed")) };
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

    /// Flushes these; says which did, and which failed.
    pub async fn flush_legs(&self, legs: Mask) -> (Mask, Vec<(usize, Error)>) {
        gather(legs, |leg| self.legs[leg].device.flush()).await
    }

    /// Holds these blocks on all legs, behind all that was given before.
    pub async fn hold(&self, blocks: &Range<u64>) -> Holding {
        let mut held = vec![self.locks.ask(blocks.clone()).await];
        for leg in each(self.lanes()) {
            held.push(self.legs[leg].lane.ask(blocks.clone()).await);
        }
        Holding { _held: held }
    }
}

/// Blocks that nobody else changes or copies until this is dropped.
pub struct Holding {
    _held: Vec<RangeGuard>,
}

/// Does the same on several legs at once, and waits for all; without an allocation where none fails.
pub async fn gather<'a>(
    legs: Mask,
    mut begin: impl FnMut(usize) -> Call<'a, Result<()>>,
) -> (Mask, Vec<(usize, Error)>) {
    let mut calls: [Option<Call<'a, Result<()>>>; super::format::MOST_LEGS] = [const { None }; _];
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
