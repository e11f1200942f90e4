//! Reads: choice of the leg, blocks in which legs may differ, and repair after errors.
//!
//! Promises: data that was read once doesn't change until it is written, also when any leg is lost: blocks in
//! which legs may differ are read from the source, and copied to the others before the next read of them. A
//! read that one leg fails is answered by another, and the unreadable blocks are rewritten on the leg that
//! failed.

use crate::core::Core;
use crate::leg::{Change, LegCounters, Mask, each};
use block::{Buffer, Data, Durability, Error, ReadOutcome, Result};
use runtime::Instant;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Number of reads per probe: a read of another leg in the background that measures its latency.
const PROBE_EVERY: u64 = 512;
/// A sequential read stays on its leg unless another leg is expected to take less than 1/`STAY` of its time.
const STAY: u64 = 2;

/// Chooses the leg with the least expected latency; a read that continues a leg's last one prefers that leg.
pub fn choose(legs: &[LegCounters], among: Mask, block: u64) -> usize {
    let first = among.trailing_zeros() as usize;
    if among & (among - 1) == 0 {
        return first;
    }
    let (mut best, mut least, mut stays) = (first, u64::MAX, None);
    for leg in each(among) {
        let expected = legs[leg].expected();
        if expected < least {
            (best, least) = (leg, expected);
        }
        if legs[leg].next.load(Ordering::Relaxed) == block {
            stays = Some((leg, expected));
        }
    }
    match stays {
        Some((leg, expected)) if expected / STAY <= least => leg,
        _ => best,
    }
}

/// Returns a leg to probe with every [`PROBE_EVERY`]th read, each in turn.
pub fn probe(reads: u64, among: Mask, chosen: usize) -> Option<usize> {
    if !reads.is_multiple_of(PROBE_EVERY) || among.count_ones() < 2 {
        return None;
    }
    let others: Mask = among & !(1 << chosen);
    each(others).nth((reads / PROBE_EVERY % u64::from(others.count_ones())) as usize)
}

/// A read in flight, counted by its leg.
pub struct Timed<'a> {
    leg: &'a LegCounters,
    began: Instant,
}

impl<'a> Timed<'a> {
    /// Begins a read that ends before block `end`.
    pub fn begin(leg: &'a LegCounters, end: u64) -> Self {
        leg.in_flight.fetch_add(1, Ordering::Relaxed);
        leg.next.store(end, Ordering::Relaxed);
        Timed { leg, began: runtime::now() }
    }

    /// Notes the end of the read.
    pub fn end(self, outcome: &Result<()>) {
        match outcome {
            Ok(()) => {
                self.leg.reads.fetch_add(1, Ordering::Relaxed);
                self.leg.took(self.began.elapsed().as_nanos() as u64);
            }
            Err(_) => drop(self.leg.read_errors.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.leg.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A copy from leg to leg, in flight until this is dropped. Reads of its blocks wait for it.
pub struct Copying(Rc<Core>);

impl Copying {
    /// Begins a copy.
    pub fn begin(core: &Rc<Core>) -> Self {
        core.copying.set(core.copying.get() + 1);
        Copying(core.clone())
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.0.copying.set(self.0.copying.get() - 1);
        if self.0.copying.get() == 0 && self.0.chunks.differ() == 0 {
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
        if self.active.get().count_ones() > 1 && self.chunks.blocks_differ(&blocks) {
            return self.read_differing(blocks, buffer).await;
        }
        if self.copying.get() > 0 {
            drop(self.hold(&blocks).await);
        }
        let (outcome, mut buffer) = self.read_from_any(&blocks, buffer, tried).await;
        let Err(first) = outcome else { return (Ok(()), buffer) };
        if blocks.end - blocks.start < 2 || self.active.get().count_ones() < 2 {
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
            tracing::warn!("mirror {}: {error}", self.array);
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
            let left = self.active.get() & !tried;
            let fast = left & !self.settings.write_mostly;
            let among = if fast != 0 { fast } else { left };
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
                    for leg in each(tried & self.active.get()) {
                        runtime::spawn(self.clone().repair(leg, blocks.clone())).detach();
                    }
                    return (Ok(()), buffer);
                }
                Err(error) => {
                    tracing::warn!("mirror {}: leg {}: {error}", self.array, self.legs[leg].name);
                    tried |= 1 << leg;
                    self.fail_if_silent(leg, &error).await;
                    first_error = first_error.or(Some(error));
                }
            }
        }
    }

    /// Chooses one of these legs to read from.
    pub fn choose(&self, among: Mask, block: u64) -> usize {
        match self.settings.first_leg {
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
            core.copy_to(core.active.get() & !has_it, has_it, &blocks, data).await;
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
        let source = self.source.get();
        let first = match self.read_leg(source, blocks).await {
            Ok(data) => return Ok((data, 1 << source)),
            Err(error) => error,
        };
        // Block by block: each leg may fail another block.
        let mut whole = Buffer::new(self.bytes_of(blocks));
        for block in blocks.clone() {
            let one = block..block + 1;
            let mut found = None;
            for leg in
                std::iter::once(source).chain(each(self.active.get() & self.trusted.get() & !(1 << source)))
            {
                if let Ok(data) = self.read_leg(leg, &one).await {
                    found = Some(data);
                    break;
                }
            }
            whole.append(&found.ok_or_else(|| first.clone())?);
        }
        Ok((whole.freeze(), 0))
    }

    /// Length of these blocks in bytes.
    pub fn bytes_of(&self, blocks: &Range<u64>) -> usize {
        ((blocks.end - blocks.start) << self.layout.block_size.shift()) as usize
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

    /// Writes data of the legs `has_it` to the legs `legs`. The caller has locked the blocks.
    pub async fn copy_to(&self, legs: Mask, has_it: Mask, blocks: &Range<u64>, data: Data) {
        let change = Change::Write(data.into());
        let (_, failed) = crate::core::on_legs(legs, |leg| {
            self.legs[leg].device.change(blocks, &change, Durability::Visible)
        })
        .await;
        self.shared.copied_bytes.fetch_add(change.bytes(), Ordering::Relaxed);
        self.copied.set(true);
        if self.active.get() & has_it == 0 {
            // The leg that has the data durably became faulty meanwhile, or no leg has it durably.
            self.flush_copies().await;
        }
        for (leg, error) in failed {
            if let Err(error) = self.fail(leg, error.in_context("copying to it")).await {
                tracing::warn!("mirror {}: {error}", self.array);
            }
        }
    }

    /// Makes copies durable that no flush has covered.
    pub async fn flush_copies(&self) {
        if !self.copied.replace(false) {
            return;
        }
        if let Err(error) = self.make_durable(self.active.get()).await {
            self.copied.set(true);
            tracing::warn!("mirror {}: flush after a copy from leg to leg failed: {error}", self.array);
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
            let is_active = self.active.get() & 1 << leg != 0;
            if !is_active || self.read_leg(leg, &one).await.is_ok() {
                continue;
            }
            let mut good = None;
            for other in each(self.active.get() & !(1 << leg)) {
                if let Ok(data) = self.read_leg(other, &one).await {
                    good = Some(data);
                    break;
                }
            }
            // A block that no leg can read stays unreadable.
            let Some(data) = good else { continue };
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
                tracing::warn!("mirror {}: {error}", self.array);
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn legs(latencies: &[u64]) -> Vec<LegCounters> {
        let leg = |latency: &u64| {
            let counters = LegCounters::default();
            counters.latency.store(*latency, Ordering::Relaxed);
            counters
        };
        latencies.iter().map(leg).collect()
    }

    #[test]
    fn a_slow_leg_takes_only_what_it_answers_sooner() {
        let legs = legs(&[100, 1000]);
        let mut chosen = Vec::new();
        let timed: Vec<Timed<'_>> = (0..12)
            .map(|number| {
                // No read continues another one.
                let leg = choose(&legs, 0b11, 1000 + 10 * number);
                chosen.push(leg);
                Timed::begin(&legs[leg], 0)
            })
            .collect();
        // With nine reads in flight on the fast leg, a tenth one would take there as long as on the slow leg.
        assert_eq!(chosen.iter().filter(|leg| **leg == 1).count(), 1, "{chosen:?}");
        assert_eq!(chosen[..9], [0; 9]);
        drop(timed);
        assert_eq!(legs[0].in_flight.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_goes_on_stays_where_it_is() {
        let legs = legs(&[100, 150]);
        legs[1].next.store(64, Ordering::Relaxed);
        assert_eq!((choose(&legs, 0b11, 64), choose(&legs, 0b11, 65)), (1, 0));
        // But a leg that takes twice the time isn't preferred.
        legs[1].latency.store(300, Ordering::Relaxed);
        assert_eq!(choose(&legs, 0b11, 64), 0);
    }

    #[test]
    fn others_are_asked_now_and_then() {
        let probes: Vec<usize> = (0..4 * PROBE_EVERY).filter_map(|reads| probe(reads, 0b1011, 0)).collect();
        assert_eq!(probes, [1, 3, 1, 3]);
        assert_eq!(probe(0, 0b1, 0), None);
    }
}
