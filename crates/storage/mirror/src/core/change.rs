//! Changes. A change locks its blocks from submission to acknowledgement, so that overlapping changes reach
//! all legs in one order. Its chunks' bits are durable before any leg gets it. On a lagging leg it is queued
//! in the leg's *lane* after the changes that it overlaps, and releases its blocks for the next change before
//! the leg has completed it.

use super::Core;
use crate::behind::Lagging;
use crate::format::SlotState;
use crate::leg::{Change, Mask, each, on_legs};
use block::{Durability, Error, Result};
use runtime::JoinHandle;
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering;

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

/// Tasks of a change in the lanes of legs; each returns whether its leg completed it.
type Queued = SmallVec<[(usize, JoinHandle<Result<bool>>); 2]>;

/// Outcome of a change: legs that completed it, and legs that failed it.
struct Outcome {
    done: Mask,
    failed: Vec<(usize, Error)>,
}

impl Core {
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
        if !is_marked || !self.superblocks.are_current() {
            self.mark(&blocks).await?;
        }
        let members = self.members.all();
        let lanes = members & self.lanes();
        let (lagging, queued) = match lanes {
            0 => (None, SmallVec::new()),
            lanes => self.queue_in_lanes(lanes, &change, &writing, durability),
        };
        let mut outcome = self.change_directly(members & !lanes, &change, &blocks, durability).await;
        if lagging.is_none() || outcome.done & self.members.active() == 0 {
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

    /// Queues a change in the lanes of these legs. Returns their tasks, and the change's share of the writes
    /// behind if it needn't wait for them.
    fn queue_in_lanes(
        &self,
        lanes: Mask,
        change: &Change,
        writing: &Writing,
        durability: Durability,
    ) -> (Option<Rc<Lagging>>, Queued) {
        let may_lag = self.lagging();
        let waits = durability == Durability::Durable && !self.setup.settings.fast_flush;
        let lagging = match !waits && lanes & !may_lag == 0 {
            true => self.behind.enter(change.bytes()).map(Rc::new),
            false => None,
        };
        let queue = |leg: usize| {
            // A write-mostly leg that doesn't lag, because no other leg is left, gets the requested
            // durability.
            let theirs = if waits || may_lag & 1 << leg == 0 { durability } else { Durability::Visible };
            // The position in the lane is taken here, before the task starts.
            let asked = self.legs[leg].lane.ask(writing.blocks.clone());
            let (writing, lagging, change) = (writing.another(), lagging.clone(), change.clone());
            let lane = async move {
                let held = asked.await;
                let core = writing.core.clone();
                let outcome = core.clone().change_queued(leg, &change, &writing.blocks, theirs).await;
                if let (Err(error), Some(lagging)) = (&outcome, &lagging)
                    && core.members.is_active(leg)
                    && lagging.fail(error)
                {
                    core.loss.note(
                        core.setup.array,
                        "the last leg failed a write that was outstanding (write_behind)",
                        error,
                    );
                }
                drop((held, lagging, writing));
                core.publish_behind();
                outcome
            };
            (leg, runtime::spawn(lane))
        };
        let queued = each(lanes).map(queue).collect();
        self.publish_behind();
        (lagging, queued)
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
        if self.members.all() & 1 << leg == 0 {
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
        if outcome.done & self.members.active() == 0 {
            self.note_undecided(blocks);
            let first = outcome.failed.into_iter().next().map(|(_, error)| error);
            return Err(first.unwrap_or_else(|| Error::io("mirror: no active leg completed a change")));
        }
        // All failed legs become faulty before the superblocks are written, so that none stays active if that
        // fails.
        for (leg, error) in outcome.failed {
            self.mark_faulty(leg, error, SlotState::Failed)?;
        }
        if !self.superblocks.are_current() {
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
        if self.members.active().count_ones() > 1 {
            self.chunks.may_differ(blocks);
        }
        if self.members.rebuilding() != 0 {
            self.chunks.are_lacking(blocks);
        }
        self.publish();
        self.upkeep.wake();
    }
}
