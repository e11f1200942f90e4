//! Flushes, finishes and resets: changes of zones that return once a manifest names them.
//!
//! # Promises
//! - A flush uploads the open pieces of its zones, and returns after a manifest names all their bytes below
//!   the write pointers of its beginning. A finish does that for its zone, and marks it full.
//! - A reset returns after its manifest, and with a key store after the zone's key is destroyed.
//! - Several changes can be in one batch of the manifests, so that a crash leaves all or nothing of them.
//! - On demand changes are in the manifests in the order in which they began (`order`).
//! - A manifest names only pieces that are stored.
//!
//! Left to others: uploads (`upload`), manifests (`manifest_log`), keys (`keys`).

use super::Core;
use super::order::Turn;
use super::zone::{Pending, Zone};
use crate::names::Name;
use crate::table::{Change, State};
use block::{Error, Result, ZoneChange, ZoneIndex, ZoneState};
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
        let flushes: Vec<ZoneChange> = indices.into_iter().map(ZoneChange::Flush).collect();
        self.commit(&flushes).await
    }

    /// Finishes a zone.
    pub async fn finish(self: Rc<Self>, index: ZoneIndex) -> Result<()> {
        self.change_together(vec![ZoneChange::Finish(index)]).await
    }

    /// Resets a zone, and returns its new generation.
    pub async fn reset(self: Rc<Self>, index: ZoneIndex) -> Result<u64> {
        self.clone().change_together(vec![ZoneChange::Reset(index)]).await?;
        Ok(self.zones.borrow()[index.0 as usize].generation)
    }

    /// Flushes, finishes and resets zones, each named once, in one batch of the manifests. With a key store a
    /// reset is alone.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a zone that is named twice; nothing is changed then. Errors of the log and of
    /// the key store.
    pub async fn change_together(self: Rc<Self>, mut changes: Vec<ZoneChange>) -> Result<()> {
        // Two calls that lock several zones don't wait for each other.
        changes.sort_unstable_by_key(|change| change.zone());
        if let Some(two) = changes.windows(2).find(|two| two[0].zone() == two[1].zone()) {
            return Err(Error::invalid(format!(
                "zone {} is named twice among changes that become durable together; expected each zone once",
                two[0].zone()
            )));
        }
        let mut locked = Vec::with_capacity(changes.len());
        let mut outcome = Ok(());
        for change in changes {
            let is_needed = match change {
                ZoneChange::Flush(_) => Ok(true),
                ZoneChange::Finish(zone) => self.lock_zone(zone, Some(ZoneState::Full)).await,
                ZoneChange::Reset(zone) => self.lock_zone(zone, None).await,
            };
            match is_needed {
                Ok(true) => locked.push(change),
                Ok(false) => {}
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if outcome.is_ok() {
            outcome = self.commit(&locked).await;
        }
        for change in locked {
            outcome = self.end_change(change, outcome).await;
        }
        outcome
    }

    /// Commits changes, in this order. The zones that they finish and reset are locked.
    async fn commit(self: &Rc<Self>, changes: &[ZoneChange]) -> Result<()> {
        let turn = self.order.begin();
        let begun: Vec<(u64, u64)> = changes.iter().map(|change| self.begin_change(*change)).collect();
        for (change, (resets, _)) in changes.iter().zip(&begun) {
            match change {
                ZoneChange::Flush(zone) | ZoneChange::Finish(zone) => {
                    self.wait_until_stored(*zone, *resets).await?;
                }
                ZoneChange::Reset(zone) => self.check_renewable(*zone).await?,
            }
        }
        self.wait_for_turn(&turn).await?;
        let mut batch = 0;
        for (change, (resets, end)) in changes.iter().zip(begun) {
            batch = batch.max(self.queue_change(*change, resets, end));
        }
        drop(turn);
        self.log.wait_until_durable(batch).await
    }

    /// Begins the upload of a zone's open piece, unless the zone is reset. Returns the number of its resets,
    /// and its write pointer.
    fn begin_change(self: &Rc<Self>, change: ZoneChange) -> (u64, u64) {
        let index = change.zone();
        let zone = &mut self.zones.borrow_mut()[index.0 as usize];
        if !matches!(change, ZoneChange::Reset(_)) {
            self.upload(zone, index);
        }
        (zone.resets, zone.write_pointer)
    }

    /// Puts a change into the next batch, and returns the batch; 0 for a flush of a zone that was reset
    /// since.
    fn queue_change(&self, change: ZoneChange, resets: u64, end: u64) -> u64 {
        let index = change.zone();
        let zone = &mut self.zones.borrow_mut()[index.0 as usize];
        match change {
            ZoneChange::Flush(_) if zone.resets != resets => return 0,
            ZoneChange::Flush(_) => self.queue_pieces(zone, index, end),
            ZoneChange::Finish(_) => {
                self.queue_pieces(zone, index, u64::MAX);
                zone.batch = self.log.push([Change::State { zone: index.0, state: State::Full }]);
            }
            ZoneChange::Reset(_) => {
                zone.resets += 1;
                if let Some(piece) = zone.open_piece.take() {
                    self.open_pieces.borrow_mut().changed(index.0, piece.length(), 0);
                }
                // Pieces that are stored and in no batch are in no manifest ever; uploads that are in
                // progress find that their zone was reset.
                let stored = zone.pending.iter().filter(|piece| piece.ended.is_none() && !piece.is_queued);
                let names =
                    stored.map(|piece| Name::Piece(self.name(zone, index, piece.offset, piece.serial)));
                self.garbage.add(names);
                zone.pending.clear();
                zone.notify_flushes();
                zone.batch =
                    self.log.push([Change::Reset { zone: index.0, generation: zone.generation + 1 }]);
            }
        }
        zone.batch
    }

    /// Unlocks a zone that was finished or reset, and destroys the key of the earlier generations of one that
    /// was reset.
    ///
    /// # Errors
    /// The outcome of the change, and errors of the key store.
    async fn end_change(&self, change: ZoneChange, mut outcome: Result<()>) -> Result<()> {
        let index = change.zone();
        match change {
            ZoneChange::Flush(_) => {}
            ZoneChange::Finish(_) => {
                self.unlock_zone(index, |zone| {
                    if outcome.is_ok() {
                        (zone.state, zone.write_pointer) = (ZoneState::Full, zone.end);
                        zone.pending.clear();
                    }
                });
                self.note_finished(index);
            }
            ZoneChange::Reset(_) => {
                let generation = self.zones.borrow()[index.0 as usize].generation + 1;
                if outcome.is_ok() {
                    // Only now: a crash before would leave data without its key.
                    outcome = self.renew(index, generation).await;
                }
                self.unlock_zone(index, |zone| {
                    if outcome.is_ok() {
                        (zone.state, zone.generation) = (ZoneState::Empty, generation);
                        (zone.write_pointer, zone.end) = (0, 0);
                    }
                });
                self.merging.forget(index);
            }
        }
        outcome
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
