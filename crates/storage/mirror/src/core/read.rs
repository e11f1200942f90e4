//! Reads on the home shard: blocks in which legs may differ, and repair after errors.
//!
//! Promises: data that was read once doesn't change until it is written, also when any leg is lost: blocks in
//! which legs may differ are read from the source, and copied to the others before the next read of them. A
//! read that one leg fails is answered by another, and the unreadable blocks are rewritten on the leg that
//! failed.

use super::Core;
use crate::balance::{Timed, choose};
use crate::leg::{Change, Mask, each, on_legs};
use block::{Buffer, Data, Durability, Error, ReadOutcome, Result};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// A copy from leg to leg, in flight until this is dropped. Reads of its blocks wait for it.
pub struct Copying(Rc<Core>);

impl Copying {
    /// Begins a copy.
    pub fn begin(core: &Rc<Core>) -> Self {
        core.copies.begin();
        Copying(core.clone())
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        if self.0.copies.end() && self.0.chunks.differ() == 0 {
            self.0.publish();
        }
    }
}

impl Core {
    /// Reads on the home shard; `failed` is a leg that has failed the read already, with its error.
    pub async fn read(
        self: Rc<Self>,
        blocks: Range<u64>,
        buffer: Buffer,
        failed: Option<(usize, Error)>,
    ) -> ReadOutcome {
        let mut tried = 0;
        if let Some((leg, error)) = failed {
            tried = 1 << leg;
            self.fail_if_silent(leg, &error).await;
        }
        if self.members.active().count_ones() > 1 && self.chunks.blocks_differ(&blocks) {
            return self.read_differing(blocks, buffer).await;
        }
        if self.copies.are_in_flight() {
            drop(self.hold(&blocks).await);
        }
        let (outcome, mut buffer) = self.read_from_any(&blocks, buffer, tried).await;
        let Err(first) = outcome else { return (Ok(()), buffer) };
        if blocks.end - blocks.start < 2 || self.members.active().count_ones() < 2 {
            return (Err(first), buffer);
        }
        // Each leg may fail another block of the range.
        for block in blocks {
            let one = Buffer::new(self.bytes_of(&(block..block + 1)));
            let (outcome, one) = self.read_from_any(&(block..block + 1), one, 0).await;
            if outcome.is_err() {
                buffer.clear();
                return (outcome, buffer);
            }
            buffer.append(one.filled());
        }
        (Ok(()), buffer)
    }

    /// Marks a leg faulty that didn't answer within the time limit: every further request would wait as long.
    /// The last active leg stays active.
    async fn fail_if_silent(&self, leg: usize, error: &Error) {
        if matches!(error, Error::TimedOut(_))
            && let Err(error) = self.fail(leg, error.clone()).await
        {
            tracing::warn!("mirror {}: {error}", self.setup.array);
        }
    }

    /// Reads from one leg after the other until one succeeds; the range is then repaired on the legs that
    /// failed.
    async fn read_from_any(
        self: &Rc<Self>,
        blocks: &Range<u64>,
        mut buffer: Buffer,
        mut tried: Mask,
    ) -> ReadOutcome {
        let mut first_error = None;
        loop {
            let left = self.members.active() & !tried;
            let among = self.members.prefer_fast(left);
            if among == 0 {
                buffer.clear();
                let error =
                    first_error.unwrap_or_else(|| Error::io("mirror: no active leg is left for a read"));
                return (Err(error), buffer);
            }
            let leg = self.choose(among, blocks.start);
            // Outstanding writes of these blocks have to complete first.
            let _held = match self.lanes() & 1 << leg {
                0 => None,
                _ => Some(self.legs[leg].lane.ask(blocks.clone()).await),
            };
            let timed = Timed::begin(&self.shared.legs[leg], blocks.end);
            let (outcome, same) = self.legs[leg].device.read(blocks.start, buffer).await;
            timed.end(&outcome);
            buffer = same;
            match outcome {
                Ok(()) => {
                    for leg in each(tried & self.members.active()) {
                        runtime::spawn(self.clone().repair(leg, blocks.clone())).detach();
                    }
                    return (Ok(()), buffer);
                }
                Err(error) => {
                    tracing::warn!("mirror {}: leg {}: {error}", self.setup.array, self.legs[leg].name);
                    tried |= 1 << leg;
                    self.fail_if_silent(leg, &error).await;
                    first_error = first_error.or(Some(error));
                }
            }
        }
    }

    /// Chooses one of these legs to read from.
    pub fn choose(&self, among: Mask, block: u64) -> usize {
        match self.setup.settings.first_leg {
            true => among.trailing_zeros() as usize,
            false => choose(&self.shared.legs, among, block),
        }
    }

    /// Reads from the source, and copies the data to the other legs.
    async fn read_differing(self: Rc<Self>, blocks: Range<u64>, mut buffer: Buffer) -> ReadOutcome {
        let holding = self.hold(&blocks).await;
        buffer.clear();
        let (data, has_it) = match self.read_best(&blocks).await {
            Ok(found) => found,
            Err(error) => return (Err(error), buffer),
        };
        buffer.append(&data);
        // The caller doesn't wait for the copy: the blocks stay locked until it is done.
        let copying = Copying::begin(&self);
        let copy = async move {
            let core = copying.0.clone();
            core.copy_to(core.members.active() & !has_it, has_it, &blocks, data).await;
            core.chunks.blocks_are_equal(&blocks);
            drop((holding, copying));
        };
        runtime::spawn(copy).detach();
        (Ok(()), buffer)
    }

    /// Reads the source's data, and that of trusted legs for blocks that the source can't read. Also returns
    /// the leg that already has all of it and needs no copy, because the source may change before the copy.
    ///
    /// # Errors
    /// The source's error, if no leg could read some block.
    pub async fn read_best(&self, blocks: &Range<u64>) -> Result<(Data, Mask)> {
        let source = self.members.source();
        let first = match self.read_leg(source, blocks).await {
            Ok(data) => return Ok((data, 1 << source)),
            Err(error) => error,
        };
        // Block by block: each leg may fail another block.
        let mut whole = Buffer::new(self.bytes_of(blocks));
        for block in blocks.clone() {
            let one = block..block + 1;
            let legs = std::iter::once(source).chain(each(self.members.substitutes()));
            let found = self.read_first(legs, &one).await;
            whole.append(&found.ok_or_else(|| first.clone())?);
        }
        Ok((whole.freeze(), 0))
    }

    /// Reads from one leg.
    pub async fn read_leg(&self, leg: usize, blocks: &Range<u64>) -> Result<Data> {
        let buffer = Buffer::new(self.bytes_of(blocks));
        let (outcome, buffer) = self.legs[leg].device.read(blocks.start, buffer).await;
        if let Err(error) = &outcome {
            self.shared.legs[leg].read_errors.fetch_add(1, Ordering::Relaxed);
            self.fail_if_silent(leg, error).await;
        }
        outcome.map(|()| buffer.freeze())
    }

    /// Reads from the first of these legs that can.
    async fn read_first(&self, legs: impl Iterator<Item = usize>, blocks: &Range<u64>) -> Option<Data> {
        for leg in legs {
            if let Ok(data) = self.read_leg(leg, blocks).await {
                return Some(data);
            }
        }
        None
    }

    /// Writes data of the legs `has_it` to the legs `legs`. The caller has locked the blocks.
    pub async fn copy_to(&self, legs: Mask, has_it: Mask, blocks: &Range<u64>, data: Data) {
        let change = Change::Write(data.into());
        let (_, failed) =
            on_legs(legs, |leg| self.legs[leg].device.change(blocks, &change, Durability::Visible)).await;
        self.shared.copied_bytes.fetch_add(change.bytes(), Ordering::Relaxed);
        self.copies.note_unflushed();
        if self.members.active() & has_it == 0 {
            // The leg that has the data durably became faulty meanwhile, or no leg has it durably.
            self.flush_copies().await;
        }
        for (leg, error) in failed {
            if let Err(error) = self.fail(leg, error.in_context("copying to it")).await {
                tracing::warn!("mirror {}: {error}", self.setup.array);
            }
        }
    }

    /// Makes copies durable that no flush has covered.
    pub async fn flush_copies(&self) {
        if !self.copies.take_unflushed() {
            return;
        }
        if let Err(error) = self.make_durable(self.members.active()).await {
            self.copies.note_unflushed();
            tracing::warn!("mirror {}: flush after a copy from leg to leg failed: {error}", self.setup.array);
        }
    }

    /// Rewrites the unreadable blocks of a range on a leg with another leg's data; the leg becomes faulty if
    /// that fails.
    pub async fn repair(self: Rc<Self>, leg: usize, blocks: Range<u64>) {
        let _holding = self.hold(&blocks).await;
        self.repair_held(leg, &blocks).await;
    }

    /// As [`repair`](Self::repair), for blocks that the caller has locked.
    pub async fn repair_held(&self, leg: usize, blocks: &Range<u64>) {
        for block in blocks.clone() {
            let one = block..block + 1;
            let is_active = self.members.is_active(leg);
            if !is_active || self.read_leg(leg, &one).await.is_ok() {
                continue;
            }
            let others = each(self.members.active() & !(1 << leg));
            // A block that no leg can read stays unreadable.
            let Some(data) = self.read_first(others, &one).await else { continue };
            let change = Change::Write(data.clone().into());
            let written = self.legs[leg].device.change(&one, &change, Durability::Visible).await;
            let again = match written {
                Ok(()) => self.read_leg(leg, &one).await,
                Err(error) => Err(error),
            };
            let failed = match again {
                Ok(found) if found == data => {
                    self.shared.legs[leg].corrected.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Ok(_) => Error::corrupt(format!("block {block}: other data was read than written")),
                Err(error) => error.in_context("rewriting an unreadable block"),
            };
            if let Err(error) = self.fail(leg, failed).await {
                tracing::warn!("mirror {}: {error}", self.setup.array);
            }
            return;
        }
    }
}
