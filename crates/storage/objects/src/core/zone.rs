//! A zone in memory: its state, its lock, and the calls that change the state alone.
//!
//! # Promises
//! - A zone is locked by one finish, reset or rewind at a time, once the appends to it that have begun have
//!   ended. Other changes of the zone wait for the lock.
//! - Every wait ends with the log.
//!
//! Left to others: bytes (`append`), and what makes changes durable (`commit`).

use super::Core;
use crate::compression::Size;
use crate::open_piece::{EndedPiece, OpenPiece};
use crate::table::{Entry, State};
use block::{Result, ZoneIndex, ZoneState};
use runtime::sync::Notify;
use std::collections::VecDeque;
use std::rc::Rc;
use zones::errors::wrong_state;

/// A piece that isn't in a durable manifest yet.
pub(super) struct Pending {
    pub offset: u64,
    pub length: u64,
    /// Bytes of its object if it is compressed; else 0.
    pub compressed: u32,
    /// Bytes of the piece, until it is stored.
    pub ended: Option<Rc<EndedPiece>>,
    /// Serial number under which it is stored.
    pub serial: u64,
    /// Whether a batch of changes has it.
    pub is_queued: bool,
}

impl Pending {
    pub fn size(&self) -> Size {
        Size { length: self.length, compressed: self.compressed }
    }
}

/// A zone.
pub(super) struct Zone {
    pub state: ZoneState,
    pub generation: u64,
    /// Whether a finish, a reset or a rewind has locked it: other changes wait.
    pub is_locked: bool,
    /// Appends that have begun, such as those that wait for memory: a lock waits for their end.
    pub appending: usize,
    pub write_pointer: u64,
    /// End of the bytes that are there: after a rewind they continue after the write pointer.
    pub end: u64,
    /// Number of resets of this writer: a flush that waits for pieces of an earlier generation ends.
    pub resets: u64,
    pub open_piece: Option<Box<OpenPiece>>,
    /// In the order of their offsets, after those in the table.
    pub pending: VecDeque<Pending>,
    /// Batch of the last change.
    pub batch: u64,
    /// Notified when a piece was stored, for flushes that wait for that: the number of others costs nothing.
    pub stored: Option<Rc<Notify>>,
}

/// An append that has begun.
pub(super) struct Appending<'c> {
    core: &'c Core,
    index: ZoneIndex,
}

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        let is_awaited = {
            let zone = &mut self.core.zones.borrow_mut()[self.index.0 as usize];
            zone.appending -= 1;
            zone.is_locked
        };
        if is_awaited {
            self.core.changed.notify_all();
        }
    }
}

impl Zone {
    /// Wakes flushes that wait for its pieces.
    pub fn notify_flushes(&self) {
        self.stored.iter().for_each(|stored| stored.notify_all());
    }

    pub fn new(entry: &Entry) -> Zone {
        let state = match entry.state {
            State::Empty => ZoneState::Empty,
            State::Begun => ZoneState::Closed,
            State::Full => ZoneState::Full,
            State::Interrupted => ZoneState::Interrupted,
        };
        Zone {
            state,
            generation: entry.generation,
            is_locked: false,
            appending: 0,
            write_pointer: entry.end(),
            end: entry.end(),
            resets: 0,
            open_piece: None,
            pending: VecDeque::new(),
            batch: 0,
            stored: None,
        }
    }
}

impl Core {
    /// Waits until a zone isn't locked, and runs on it.
    ///
    /// # Errors
    /// Errors of [`check`](Core::check).
    pub(super) async fn with_unlocked_zone<R>(
        &self,
        zone: ZoneIndex,
        act: impl FnOnce(&mut Zone) -> R,
    ) -> Result<R> {
        let mut act = Some(act);
        loop {
            self.check()?;
            {
                let mut zones = self.zones.borrow_mut();
                let zone = &mut zones[zone.0 as usize];
                if let Some(act) = act.take_if(|_| !zone.is_locked) {
                    return Ok(act(zone));
                }
            }
            self.changed.notified().await;
        }
    }

    /// Begins an append to a zone: a finish, a reset or a rewind waits until it is dropped.
    ///
    /// # Errors
    /// Errors of [`check`](Core::check).
    pub(super) async fn begin_append(&self, index: ZoneIndex) -> Result<Appending<'_>> {
        self.with_unlocked_zone(index, |zone| zone.appending += 1).await?;
        Ok(Appending { core: self, index })
    }

    /// Locks a zone, and waits until the appends to it that have begun have ended; false, without a lock, if
    /// it is in the state `done` then. Appends that wait for memory get it by uploads alone, or end with the
    /// log.
    ///
    /// # Errors
    /// Errors of [`check`](Core::check).
    pub(super) async fn lock_zone(&self, index: ZoneIndex, done: Option<ZoneState>) -> Result<bool> {
        self.with_unlocked_zone(index, |zone| zone.is_locked = true).await?;
        let state = loop {
            let (state, appending) = {
                let zone = &self.zones.borrow()[index.0 as usize];
                (zone.state, zone.appending)
            };
            if appending == 0 {
                break state;
            }
            self.changed.notified().await;
        };
        let is_done = Some(state) == done;
        if is_done {
            self.unlock_zone(index, |_| ());
        }
        Ok(!is_done)
    }

    /// Changes a locked zone, and unlocks it.
    pub(super) fn unlock_zone(&self, index: ZoneIndex, change: impl FnOnce(&mut Zone)) {
        let mut zones = self.zones.borrow_mut();
        let zone = &mut zones[index.0 as usize];
        let before = zone.state;
        change(zone);
        zone.is_locked = false;
        self.limits.moved(before, zone.state);
        drop(zones);
        self.changed.notify_all();
    }

    /// Zones that were begun, and that take appends.
    pub(super) fn begun(&self) -> Vec<ZoneIndex> {
        let is_begun = |state: ZoneState| state.is_active() && state != ZoneState::Interrupted;
        let zones = self.zones.borrow();
        let begun = (0..).zip(&*zones).filter(|(_, zone)| is_begun(zone.state));
        begun.map(|(index, _)| ZoneIndex(index)).collect()
    }

    pub(super) fn open_zone_as(&self, zone: &mut Zone, index: ZoneIndex, to: ZoneState) -> Result<()> {
        // A zone whose key is unknown stays as it is.
        self.zone_key(index, zone.generation)?;
        let opened = self.limits.open_one(zone.state);
        opened.map_err(|busy| busy.in_context(format!("opening zone {index}")))?;
        zone.state = to;
        Ok(())
    }

    /// Opens a zone explicitly.
    pub async fn open(self: Rc<Self>, index: ZoneIndex) -> Result<()> {
        let open = |zone: &mut Zone| match zone.state {
            ZoneState::Empty | ZoneState::Closed => self.open_zone_as(zone, index, ZoneState::ExplicitlyOpen),
            state if state.is_open() => {
                zone.state = ZoneState::ExplicitlyOpen;
                Ok(())
            }
            state => Err(wrong_state(index, state)),
        };
        self.with_unlocked_zone(index, open).await?
    }

    /// Closes an open zone, and ends its open piece: its memory is released by an upload.
    pub async fn close_zone(self: Rc<Self>, index: ZoneIndex) -> Result<()> {
        let close = |zone: &mut Zone| match zone.state {
            ZoneState::Closed => Ok(()),
            state if state.is_open() => {
                zone.state = ZoneState::Closed;
                self.limits.moved(state, ZoneState::Closed);
                self.upload(zone, index);
                Ok(())
            }
            state => Err(wrong_state(index, state)),
        };
        self.with_unlocked_zone(index, close).await?
    }
}
