//! A device below that runs out of space: a file with holes on a full file system, a thin volume.
//!
//! The log has free zones, and an append to one of them fails with ENOSPC because the device takes space when a block is
//! first written. Zones that were filled once, or reserved ([`block::Zones::reserve`]), are *backed*: they keep their space when they
//! are reset. So the log goes on with these:
//! - The zones that users leave to the cleaner and to checkpoints are kept backed beforehand ([`Core::back_reserve`]).
//! - After ENOSPC only backed zones count as free and are taken. Cleaning, checkpoints and resets work, and a log with
//!   nothing to clean refuses writes with ENOSPC as any full log does ([`pace`](crate::pace)).
//! - The record that failed keeps its number, which must be filled. Its writes are refused; what needs no data, such as
//!   discards, is written under that number to a zone of its own, the *filler*, as are discards from then on. A record that
//!   nothing is left of is empty.
//! - Where no zone takes even that record, it is tried again, ten times a second. Until then all changes are refused, and
//!   records that follow it wait; who waits for one of them gets ENOSPC, and it takes effect later or never, as a failed
//!   write may.
//! - Writes that were acknowledged from the buffer can't be refused: they go to the cleaner's zones. No more are acknowledged from
//!   the buffer until one has been written.
//! - After a second all free zones count again, so that new space is found by the next write.

use crate::core::{Core, Group, Item};
use crate::format::{Change, USER};
use crate::lane::{Scratch, append};
use crate::open_zone::OpenZone;
use block::{Error, Result, ZoneIndex};
use runtime::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use zones::record::StreamIndex;

/// How long only backed zones count as free after ENOSPC.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Between attempts to fill the number of a record.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);
/// After so many failed appends of one record, it waits.
const MOST_ATTEMPTS: usize = 4;

/// What is known of the space of the device below. Belongs to the home shard.
#[derive(Debug)]
pub struct Space {
    /// Why there is none, and since when; `None` while there may be some.
    short: RefCell<Option<(Error, runtime::Instant)>>,
    /// There was none, and no write of data has succeeded since.
    is_doubtful: Cell<bool>,
    /// Number of records that no zone takes.
    unfilled: Cell<u32>,
    /// The zone for records without data.
    filler: RefCell<Option<OpenZone>>,
    /// One record at a time goes there.
    filling: Rc<Semaphore>,
    /// When space was last reserved in vain.
    reserved_in_vain: Cell<Option<runtime::Instant>>,
}

impl Default for Space {
    fn default() -> Self {
        Space {
            short: RefCell::default(),
            is_doubtful: Cell::new(false),
            unfilled: Cell::new(0),
            filler: RefCell::default(),
            filling: Semaphore::new(1),
            reserved_in_vain: Cell::new(None),
        }
    }
}

impl Space {
    /// Whether the device below had no space a moment ago.
    pub fn is_short(&self) -> bool {
        self.short.borrow().is_some()
    }

    /// Whether it had none, and nothing has shown since that it has some.
    pub fn is_doubtful(&self) -> bool {
        self.is_doubtful.get()
    }

    /// Why it has no space, if that is so.
    pub fn error(&self) -> Option<Error> {
        self.short.borrow().as_ref().map(|(error, _)| error.clone())
    }

    /// Refuses what can't commit: a record before it has no place.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn check(&self) -> Result<()> {
        match self.unfilled.get() {
            0 => Ok(()),
            _ => {
                Err(self.error().unwrap_or_else(|| Error::no_space("the device below the log has no space")))
            }
        }
    }
}

/// Whether a change only takes away.
fn takes_away(change: &Change) -> bool {
    matches!(change, Change::Unmap { .. } | Change::Delete { .. })
}

impl Core {
    /// An append has failed: if for want of space below, only backed zones are free from now on.
    pub fn note_no_space(&self, error: &Error) {
        if !matches!(error, Error::NoSpace(_)) {
            return;
        }
        if !self.space.is_short() {
            tracing::warn!("the device below the log has no space: {error}");
        }
        let told =
            error.in_context("the device below the log has no space: discard some data, or give it more");
        *self.space.short.borrow_mut() = Some((told, runtime::now()));
        self.space.is_doubtful.set(true);
        self.table.set_only_backed(true);
        self.cleaner.notify_all();
    }

    /// Lets all free zones count again once that has been so for a while: there may be space by now.
    pub fn look_for_space(&self) {
        let is_over =
            self.space.short.borrow().as_ref().is_some_and(|(_, since)| since.elapsed() >= LOOK_AGAIN);
        if is_over && self.space.unfilled.get() == 0 {
            *self.space.short.borrow_mut() = None;
            self.table.set_only_backed(false);
        }
    }

    /// A record of users' data was written.
    pub fn note_space(&self) {
        if self.space.is_doubtful.get() && !self.space.is_short() {
            self.space.is_doubtful.set(false);
        }
    }

    /// Whether a zone should be reserved now, so that users leave zones that are backed.
    pub fn wants_reserve(&self) -> bool {
        let wanted = self.kept_zones().min(self.table.all_free());
        let was_in_vain = self.space.reserved_in_vain.get().is_some_and(|at| at.elapsed() < LOOK_AGAIN);
        !was_in_vain && self.table.free_backed() < wanted
    }

    /// Reserves space for one of the zones that users leave. Returns whether there was any.
    pub async fn back_reserve(&self) -> bool {
        let Some(zone) = self.table.begin_reserving() else { return false };
        let bytes = u64::from(self.layout.zone_blocks) << self.layout.block_size.shift();
        let outcome = self.zones.reserve(ZoneIndex(zone), bytes).await;
        self.table.end_reserving(zone, outcome.is_ok());
        if let Err(error) = outcome {
            tracing::warn!("no space could be reserved for zone {zone}: {error}");
            self.space.reserved_in_vain.set(Some(runtime::now()));
            return false;
        }
        true
    }

    /// A record found no space: its writes are refused, and the rest of it is written to the filler, under its number.
    pub async fn refuse_record(
        self: &Rc<Self>,
        stream: StreamIndex,
        sequence: u64,
        mut group: Group,
        scratch: &mut Scratch,
        error: &Error,
    ) {
        for item in group.items.extract_if(.., |item| item.change.data_blocks() > 0) {
            self.item_done(&item, Err(error.clone()));
        }
        self.fill(stream, sequence, group, scratch, error).await;
    }

    /// Refuses what is queued under this class, but for what only takes away: that goes to the filler.
    pub async fn write_without_data(self: &Rc<Self>, class: u8, scratch: &mut Scratch, error: &Error) {
        let group = self.take_without_data(class, error, |item: &Item| takes_away(&item.change));
        if group.items.is_empty() {
            return self.recycle(group.items);
        }
        let items = group.items.len();
        self.took_off(items);
        let sequence = self.streams[usize::from(USER.0)].borrow_mut().issue();
        self.fill(USER, sequence, group, scratch, error).await;
        self.landed(items);
    }

    /// Writes a record without data to the filler, as soon as that can be.
    async fn fill(
        self: &Rc<Self>,
        stream: StreamIndex,
        sequence: u64,
        mut group: Group,
        scratch: &mut Scratch,
        error: &Error,
    ) {
        let _alone = loop {
            if let Ok(alone) = runtime::timeout(BETWEEN_ATTEMPTS, self.space.filling.acquire(1)).await {
                break alone;
            }
            // The record before it may wait for space: nobody waits with it.
            if self.space.unfilled.get() > 0 {
                group.items.iter_mut().for_each(|item| self.answer(item, error));
            }
        };
        scratch.prepare(&group, self.layout.block_bytes());
        let mut is_unfilled = false;
        loop {
            for _ in 0..MOST_ATTEMPTS {
                let Some(mut zone) = self.filler_zone() else { break };
                if !zone.takes(&self.layout, 0, scratch.meta_length()) {
                    self.seal(zone).await;
                    continue;
                }
                let position = zone.position + 1;
                match append(self, stream, sequence, &group, &mut zone, scratch).await {
                    Ok(()) => {
                        (group.zone, group.position) = (zone.zone, position);
                        *self.space.filler.borrow_mut() = Some(zone);
                        if is_unfilled {
                            self.space.unfilled.set(self.space.unfilled.get() - 1);
                        }
                        return self.written(stream, sequence, group);
                    }
                    Err(error) => {
                        tracing::warn!("record {sequence} could not be filled: {error}");
                        self.abandon(zone.zone, zone.position).await;
                    }
                }
            }
            if let Some(failure) = self.failure() {
                group.items.iter().for_each(|item| self.item_done(item, Err(failure.clone())));
                return;
            }
            if self.is_closing.get() {
                group.items.iter().for_each(|item| self.item_done(item, Err(error.clone())));
                return self.fail(&error.in_context(format!("record {sequence} can't be written")));
            }
            if !std::mem::replace(&mut is_unfilled, true) {
                self.space.unfilled.set(self.space.unfilled.get() + 1);
            }
            group.items.iter_mut().for_each(|item| self.answer(item, error));
            self.refuse_waiting(error);
            runtime::sleep(BETWEEN_ATTEMPTS).await;
        }
    }

    /// The zone for records without data: backed, if there is such a zone.
    fn filler_zone(&self) -> Option<OpenZone> {
        let open = self.space.filler.borrow_mut().take();
        open.or_else(|| self.try_open_zone(0, 0)).or_else(|| {
            self.table.set_only_backed(false);
            let zone = self.try_open_zone(0, 0);
            self.table.set_only_backed(self.space.is_short());
            zone
        })
    }

    /// Seals the filler, if there is one.
    pub async fn seal_filler(self: &Rc<Self>) {
        let filler = self.space.filler.borrow_mut().take();
        if let Some(zone) = filler {
            self.seal_now(zone).await;
        }
    }
}
