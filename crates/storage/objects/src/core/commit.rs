//! Flushes, finishes and resets: changes of zones that return once a manifest names them.
//!
//! # Promises
//! - A flush uploads the open pieces of its zones, and returns after a manifest names all their bytes below
//!   the write pointers of its beginning. A finish does that for its zone, and marks it full.
//! - A reset returns after its manifest, and with a key store after the zone's key is destroyed.
//! - On demand these changes are in the manifests in the order in which they began (`order`).
//! - A manifest names only pieces that are stored.
//!
//! Left to others: uploads (`upload`), manifests (`manifest_log`), keys (`keys`).

use super::Core;
use super::order::Turn;
use super::zone::{Pending, Zone};
use crate::names::Name;
use crate::table::{Change, State};
use block::{Result, ZoneIndex, ZoneState};
use std::rc::Rc;

impl Core {
    /// Makes all completed appends durable.
    ///
    /// # Errors
    /// Errors of [`flush`](Self::flush).
    pub async fn flush_all(self: Rc<Self>) -> Result<()> {
        let begun = self.begun();
        self.flush(begun).await
    }

    /// Makes the completed appends to these zones durable.
    pub async fn flush(self: Rc<Self>, indices: Vec<ZoneIndex>) -> Result<()> {
        self.check()?;
        self.upload_and_commit(indices).await
    }

    pub(super) async fn upload_and_commit(self: Rc<Self>, indices: Vec<ZoneIndex>) -> Result<()> {
        let turn = self.order.begin();
        let mut targets = Vec::with_capacity(indices.len());
        for index in indices {
            let zone = &mut self.zones.borrow_mut()[index.0 as usize];
            self.upload(zone, index);
            targets.push((index, zone.resets, zone.write_pointer));
        }
        for (index, resets, _) in &targets {
            self.wait_until_stored(*index, *resets).await?;
        }
        self.wait_for_turn(&turn).await?;
        let mut batch = 0;
        for (index, resets, end) in targets {
            let zone = &mut self.zones.borrow_mut()[index.0 as usize];
            if zone.resets == resets {
                self.queue_pieces(zone, index, end);
                batch = batch.max(zone.batch);
            }
        }
        drop(turn);
        self.log.wait_until_durable(batch).await
    }

    /// Finishes a zone.
    pub async fn finish(self: Rc<Self>, index: ZoneIndex) -> Result<()> {
        if !self.lock_zone(index, Some(ZoneState::Full)).await? {
            return Ok(());
        }
        let finished = self.finish_locked(index).await;
        self.unlock_zone(index, |zone| {
            if finished.is_ok() {
                (zone.state, zone.write_pointer) = (ZoneState::Full, zone.end);
                zone.pending.clear();
            }
        });
        self.note_finished(index);
        finished
    }

    async fn finish_locked(self: &Rc<Self>, index: ZoneIndex) -> Result<()> {
        let turn = self.order.begin();
        let resets = {
            let zone = &mut self.zones.borrow_mut()[index.0 as usize];
            self.upload(zone, index);
            zone.resets
        };
        self.wait_until_stored(index, resets).await?;
        self.wait_for_turn(&turn).await?;
        let batch = {
            let zone = &mut self.zones.borrow_mut()[index.0 as usize];
            self.queue_pieces(zone, index, u64::MAX);
            zone.batch = self.log.push([Change::State { zone: index.0, state: State::Full }]);
            zone.batch
        };
        drop(turn);
        self.log.wait_until_durable(batch).await
    }

    /// Resets a zone, and returns its new generation.
    pub async fn reset(self: Rc<Self>, index: ZoneIndex) -> Result<u64> {
        self.lock_zone(index, None).await?;
        let raised = self.reset_locked(index).await;
        self.unlock_zone(index, |zone| {
            if let Ok(generation) = raised {
                (zone.state, zone.generation) = (ZoneState::Empty, generation);
                (zone.write_pointer, zone.end) = (0, 0);
            }
        });
        raised
    }

    async fn reset_locked(&self, index: ZoneIndex) -> Result<u64> {
        let turn = self.order.begin();
        self.check_renewable(index).await?;
        self.wait_for_turn(&turn).await?;
        let (generation, batch) = {
            let zone = &mut self.zones.borrow_mut()[index.0 as usize];
            zone.resets += 1;
            if let Some(piece) = zone.open_piece.take() {
                self.open_pieces.borrow_mut().changed(index.0, piece.length(), 0);
            }
            // Pieces that are stored and in no batch are in no manifest ever; uploads that are in progress
            // find that their zone was reset.
            let stored = zone.pending.iter().filter(|piece| piece.ended.is_none() && !piece.is_queued);
            let names = stored.map(|piece| Name::Piece(self.name(zone, index, piece.offset, piece.serial)));
            self.garbage.add(names);
            zone.pending.clear();
            zone.notify_flushes();
            let generation = zone.generation + 1;
            zone.batch = self.log.push([Change::Reset { zone: index.0, generation }]);
            (generation, zone.batch)
        };
        drop(turn);
        let raised = match self.log.wait_until_durable(batch).await {
            // Only now: a crash before would leave data without its key.
            Ok(()) => self.renew(index, generation).await,
            failed => failed,
        };
        self.merging.forget(index);
        raised.map(|()| generation)
    }

    /// Waits until a change may be added to the manifests.
    ///
    /// # Errors
    /// Errors of a log that has ended.
    async fn wait_for_turn(&self, turn: &Turn<'_>) -> Result<()> {
        self.log.unless_ended(turn.wait()).await
    }

    /// Waits until all pieces of a zone that have ended are stored, or the zone was reset.
    async fn wait_until_stored(&self, index: ZoneIndex, resets: u64) -> Result<()> {
        let last = {
            let zones = self.zones.borrow();
            let zone = &zones[index.0 as usize];
            zone.pending.back().map(|piece| piece.offset)
        };
        let Some(last) = last else { return Ok(()) };
        loop {
            let stored = {
                let zone = &mut self.zones.borrow_mut()[index.0 as usize];
                let waits = |piece: &Pending| piece.offset <= last && piece.ended.is_some();
                if zone.resets != resets || !zone.pending.iter().any(waits) {
                    return Ok(());
                }
                zone.stored.get_or_insert_default().clone()
            };
            self.log.check()?;
            stored.notified().await;
        }
    }

    /// Puts the stored pieces of a zone below `end` into the next batch, in order, and forgets those that are
    /// durable.
    fn queue_pieces(&self, zone: &mut Zone, index: ZoneIndex, end: u64) {
        let named = self.log.with_table(|table| table.zones[index.0 as usize].end());
        // A reset empties the list, and appends begin after its manifest: the table has this generation.
        while zone.pending.front().is_some_and(|piece| piece.is_queued && piece.offset < named) {
            zone.pending.pop_front();
        }
        let mut changes = Vec::new();
        for piece in zone.pending.iter_mut().skip_while(|piece| piece.is_queued) {
            if piece.ended.is_some() || piece.offset >= end {
                break;
            }
            piece.is_queued = true;
            changes.push(Change::Piece {
                zone: index.0,
                offset: piece.offset,
                length: piece.length as u32,
                compressed: piece.compressed,
                serial: piece.serial,
            });
        }
        if !changes.is_empty() {
            zone.batch = self.log.push(changes);
            self.note(index);
        }
    }
}
