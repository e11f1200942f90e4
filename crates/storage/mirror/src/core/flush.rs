//! Flushes of the legs.

use super::Core;
use crate::format::SlotState;
use crate::leg::{Mask, on_legs};
use block::{Error, Result};
use std::rc::Rc;

impl Core {
    /// Makes all acknowledged changes durable.
    ///
    /// # Errors
    /// The last active leg's error. After it, and after the last leg has failed an outstanding write, every
    /// flush fails.
    pub async fn flush(self: Rc<Self>) -> Result<()> {
        let lagging = self.lagging();
        let leaves_out = self.setup.settings.fast_flush && self.members.active() & !lagging != 0;
        if !leaves_out {
            self.behind.drained().await;
        }
        // A leg that is being rebuilt may be the only active leg when this returns.
        let members = self.members.all();
        let legs = if leaves_out { members & !lagging } else { members };
        let (mut done, mut failed) = self.flush_legs(legs).await;
        let others = self.members.active() & !legs;
        if done & self.members.active() == 0 && others != 0 {
            self.behind.drained().await;
            let (more, errors) = self.flush_legs(others).await;
            done |= more;
            failed.extend(errors);
        }
        self.handle_failed_flush(done, failed)?;
        if !self.superblocks.are_current() {
            self.write_superblocks().await?;
        }
        self.loss.check()
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
        let is_durable = done & self.members.active() != 0;
        let mut first = None;
        for (leg, error) in failed {
            match self.members.is_active(leg) && !is_durable {
                true => first = first.or(Some(error)),
                // A leg that is being rebuilt may have lost copied data.
                false => self.mark_faulty(leg, error, SlotState::Failed)?,
            }
        }
        if is_durable {
            return Ok(());
        }
        let Some(error) = first else { return Err(Error::io("mirror: no active leg could be flushed")) };
        if self.members.active().count_ones() > 1 {
            self.chunks.dirty_differ();
        }
        if self.members.rebuilding() != 0 {
            self.chunks.dirty_lacking();
        }
        self.loss.note(self.setup.array, "a flush failed on all legs", &error);
        self.publish();
        self.upkeep.wake();
        Err(error)
    }

    /// Flushes these legs. Returns those that completed it, and those that failed.
    pub async fn flush_legs(&self, legs: Mask) -> (Mask, Vec<(usize, Error)>) {
        on_legs(legs, |leg| self.legs[leg].device.flush()).await
    }
}
