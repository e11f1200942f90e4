//! Uploads of pieces, and the memory of bytes that aren't uploaded.
//!
//! # Promises
//! - A piece is uploaded until the store has taken it, each attempt under another name; a name whose outcome
//!   isn't known is garbage.
//! - Appends get memory in the order of their arrival. Without memory the longest open piece is
//!   uploaded.
//! - Waits for memory and uploads end with the log, and with the reset of their zone.
//!
//! Left to others: manifests that name the pieces (`commit`), bytes of an object (`format`).

use super::Core;
use super::zone::{Pending, Zone};
use crate::format::piece_object;
use crate::names::{Name, PieceName};
use crate::open_piece::EndedPiece;
use crate::retry::Pause;
use block::{Error, Result, ZoneIndex};
use object_store::{Condition, Put};
use runtime::sync::{Permit, Semaphore};
use runtime::{FailureRun, TaskGroup};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Pieces that are uploaded at the same time.
const MAX_UPLOADS: usize = 16;

/// State of the uploads.
pub(super) struct Uploads {
    pub slots: Rc<Semaphore>,
    pub tasks: TaskGroup,
    /// Serial number of the next attempt.
    pub next: Cell<u64>,
    /// Attempts whose outcome isn't in the table, in a zone or in the garbage yet.
    pub attempts: RefCell<Vec<u64>>,
    /// Appends that wait for memory.
    pub waiting: Cell<usize>,
    /// Bytes of pieces that are being uploaded.
    pub in_flight: Cell<u64>,
    pub failures: FailureRun,
}

impl Uploads {
    /// Returns no uploads; the first attempt gets the serial number `next`.
    pub fn new(next: u64) -> Uploads {
        Uploads {
            slots: Semaphore::new(MAX_UPLOADS),
            tasks: TaskGroup::default(),
            next: Cell::new(next),
            attempts: RefCell::default(),
            waiting: Cell::new(0),
            in_flight: Cell::new(0),
            failures: FailureRun::default(),
        }
    }
}

/// An attempt to store a piece, until its outcome is known to the zone, the table or the garbage.
pub(super) struct Attempt {
    core: Rc<Core>,
    pub serial: u64,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.core.uploads.attempts.borrow_mut().retain(|serial| *serial != self.serial);
    }
}

impl Core {
    /// Takes memory for an append. If there is none, the longest open piece is uploaded.
    ///
    /// # Errors
    /// Errors of a log that has ended.
    pub(super) async fn take_memory(self: &Rc<Self>, bytes: usize) -> Result<Permit> {
        if let Some(memory) = self.memory.try_acquire(bytes) {
            return Ok(memory);
        }
        let waiting = &self.uploads.waiting;
        waiting.set(waiting.get() + 1);
        self.upload_longest();
        let memory = self.log.unless_ended(self.memory.acquire(bytes)).await;
        waiting.set(waiting.get() - 1);
        memory
    }

    /// Uploads the longest open piece, unless half of the memory is being uploaded: what that releases
    /// lets the others become longer, so that a slow store doesn't get many small pieces.
    fn upload_longest(self: &Rc<Self>) {
        if self.uploads.in_flight.get() >= self.settings.memory / 2 {
            return;
        }
        let mut zones = self.zones.borrow_mut();
        let length =
            |index: &u32| zones[*index as usize].open_piece.as_ref().map_or(0, |piece| piece.length());
        let longest = self.open_pieces.borrow().longest().max_by_key(length);
        if let Some(index) = longest {
            self.upload(&mut zones[index as usize], ZoneIndex(index));
        }
    }

    /// Name of a piece of a zone, by this writer.
    pub(super) fn name(&self, zone: &Zone, index: ZoneIndex, offset: u64, serial: u64) -> PieceName {
        let epoch = self.log.identity().epoch;
        PieceName { zone: index.0, generation: zone.generation, epoch, offset, serial }
    }

    /// Ends the open piece of a zone, if there is one, and uploads it.
    pub(super) fn upload(self: &Rc<Self>, zone: &mut Zone, index: ZoneIndex) {
        let Some(piece) = zone.open_piece.take() else { return };
        let ended = Rc::new(piece.end());
        let (offset, length) = (ended.offset, ended.length);
        self.open_pieces.borrow_mut().changed(index.0, length, 0);
        let name = self.name(zone, index, offset, 0);
        let (kept, in_flight) = (Some(ended.clone()), &self.uploads.in_flight);
        in_flight.set(in_flight.get() + length);
        let compressed = ended.compressed;
        zone.pending.push_back(Pending {
            offset,
            length,
            compressed,
            ended: kept,
            serial: 0,
            is_queued: false,
        });
        let own = self.clone();
        let task = async move {
            let stored = own.upload_piece(name, &ended).await;
            own.end_upload(name, ended, stored);
        };
        self.uploads.tasks.spawn(task).detach();
    }

    /// Uploads a piece, again until the store has taken it, and returns that attempt.
    ///
    /// # Errors
    /// Errors of a log that has ended.
    async fn upload_piece(self: &Rc<Self>, mut name: PieceName, ended: &Rc<EndedPiece>) -> Result<Attempt> {
        let mut pause = Pause::new();
        loop {
            self.log.check()?;
            let slot = self.uploads.slots.acquire(1).await;
            self.log.check()?;
            // The piece of a zone that was reset isn't needed.
            if Rc::strong_count(ended) == 1 {
                return Err(Error::cancelled("the zone was reset"));
            }
            let attempt = self.attempt();
            name.serial = attempt.serial;
            let Err(failure) = self.put_piece(&name, ended).await else {
                self.uploads.failures.ended("uploading pieces");
                return Ok(attempt);
            };
            drop(slot);
            // It may be written or not; the next attempt has another name.
            self.garbage.add([Name::Piece(name)]);
            drop(attempt);
            self.uploads.failures.failed(format!("uploading pieces: {failure}"));
            pause.wait().await;
        }
    }

    /// Begins an attempt to store a piece.
    pub(super) fn attempt(self: &Rc<Self>) -> Attempt {
        let serial = self.uploads.next.replace(self.uploads.next.get() + 1);
        self.uploads.attempts.borrow_mut().push(serial);
        Attempt { core: self.clone(), serial }
    }

    /// First serial number of the pieces that may be in no manifest yet. Earlier ones of this epoch are in
    /// the table, in changes that the log has, or garbage.
    pub(super) fn oldest_attempt(&self) -> u64 {
        let attempts = self.uploads.attempts.borrow().iter().copied().min();
        let zones = self.zones.borrow();
        let pending = zones.iter().flat_map(|zone| &zone.pending);
        let pending = pending.filter(|piece| piece.ended.is_none()).map(|piece| piece.serial).min();
        attempts.into_iter().chain(pending).min().unwrap_or(self.uploads.next.get())
    }

    /// Uploads a piece by one attempt. After an error it may be stored or not, so the attempt's name is
    /// garbage.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn put_piece(&self, name: &PieceName, ended: &EndedPiece) -> Result<()> {
        let key = self.manifests.names.key(Name::Piece(*name));
        let (volume, parts) = (&self.log.identity().volume, (ended.index.as_ref(), &ended.chunks[..]));
        let body = piece_object(volume, name, ended.length, parts, self.keys.is_some());
        match self.manifests.store.put(&key, body, &Condition::Absent).await? {
            Put::Written(_) => Ok(()),
            Put::ConditionFailed => Err(Error::already_exists(format!("object {key}"))),
        }
    }

    fn end_upload(self: &Rc<Self>, mut name: PieceName, ended: Rc<EndedPiece>, stored: Result<Attempt>) {
        let length = ended.length;
        self.uploads.in_flight.set(self.uploads.in_flight.get() - length);
        let is_stored = stored.is_ok();
        if let Ok(attempt) = stored {
            let serial = attempt.serial;
            name.serial = serial;
            let mut zones = self.zones.borrow_mut();
            let is_it =
                |piece: &&mut Pending| piece.ended.as_ref().is_some_and(|known| Rc::ptr_eq(known, &ended));
            let zone = &mut zones[name.zone as usize];
            match zone.pending.iter_mut().find(is_it) {
                Some(piece) => (piece.serial, piece.ended) = (serial, None),
                None => self.garbage.add([Name::Piece(name)]),
            }
            zone.notify_flushes();
        }
        // Releases the memory, unless a zone whose log has failed still has it.
        drop(ended);
        if self.log.check().is_err() {
            self.discard_all();
            self.changed.notify_all();
        }
        if self.uploads.waiting.get() > 0 {
            self.upload_longest();
        }
        if is_stored {
            self.uploaded(length);
        }
    }

    /// Discards bytes that will never be uploaded, so that appends that wait for memory end.
    fn discard_all(&self) {
        for zone in self.zones.borrow_mut().iter_mut() {
            zone.pending.iter_mut().for_each(|piece| piece.ended = None);
            zone.notify_flushes();
        }
    }

    /// Whether the last upload failed.
    pub fn is_waiting_for_store(&self) -> bool {
        self.uploads.failures.count() > 0 || self.log.is_waiting_for_store()
    }
}
