//! A device below that runs out of space: a file with holes on a full file system, a thin volume.
//!
//! The log has free zones, and an append to one of them fails with ENOSPC because the device takes space when a block is
//! first written. Zones that were filled once, or reserved ([`block::Zones::reserve`]), are *backed*: seven eighths of their blocks keep
//! their space when they are reset, and no more of them is used while there is no space. So the log goes on with backed zones:
//! - Space is reserved beforehand for the zones that users leave to the cleaner and to checkpoints ([`Core::back_reserve`]).
//! - After ENOSPC only backed zones count as free and are taken. Cleaning, checkpoints and resets work, and a log with
//!   nothing to clean refuses writes with ENOSPC as any full log does ([`pace`](crate::pace)).
//! - The record that failed keeps its number, which must be filled: replay ends at a missing number. Its writes are refused. Its
//!   changes without data, such as discards, are written under that number to a zone of their own, the *filler*; so are later
//!   discards. If no change is left, an empty record is written.
//! - Where no zone takes that record either, it is tried again ten times a second. Until it is written all changes are refused,
//!   and records that follow it wait. Requests that wait for one of these records get ENOSPC; the record takes effect later or
//!   never, as a failed write may.
//! - Writes that were acknowledged from the buffer can't be refused: they go to the cleaner's zones. No further write is
//!   acknowledged from the buffer.
//! - After a second all free zones count again, so the next write finds new space. Once a record has been written then, writes
//!   are acknowledged from the buffer again.

use crate::core::{Core, Group, Item};
use crate::format::{Change, USER};
use crate::lane::{Scratch, append};
use crate::open_zone::OpenZone;
use block::{Error, Result, ZoneIndex};
use runtime::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use logkit::record::StreamIndex;

/// Time after ENOSPC in which only backed zones count as free.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time between attempts to fill the number of a record.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);
/// Most zones that are tried for a reservation before it waits [`LOOK_AGAIN`].
const MOST_RESERVED_IN_VAIN: usize = 16;
/// Most attempts to append a record before it waits [`BETWEEN_ATTEMPTS`].
const MOST_ATTEMPTS: usize = 4;

/// State of the space of the device below. Belongs to the home shard.
#[derive(Debug)]
pub struct Space {
    /// Error for changes that find no space, and the time of the last ENOSPC; `None` while there may be space.
    short: RefCell<Option<(Error, runtime::Instant)>>,
    /// Set by ENOSPC, cleared by the first record that is written once all free zones count again.
    is_doubtful: Cell<bool>,
    /// Number of records that no zone has taken so far.
    unfilled: Cell<u32>,
    /// Open zone for records without data.
    filler: RefCell<Option<OpenZone>>,
    /// Held by the record that is being written to the filler.
    filling: Rc<Semaphore>,
    /// Time of the last reservation that failed.
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
    /// Whether only backed zones are used, because the device below had no space.
    pub fn is_short(&self) -> bool {
        self.short.borrow().is_some()
    }

    /// Whether the device below had no space, and no record has been written since all free zones count again.
    pub fn is_doubtful(&self) -> bool {
        self.is_doubtful.get()
    }

    /// Error for changes that find no space; `None` while there may be space.
    pub fn error(&self) -> Option<Error> {
        self.short.borrow().as_ref().map(|(error, _)| error.clone())
    }

    /// Refuses changes while a record waits for space, because no later record can commit.
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

/// Whether a change only frees blocks.
fn takes_away(change: &Change) -> bool {
    matches!(change, Change::Unmap { .. } | Change::Delete { .. })
}

impl Core {
    /// Notes that an append has failed. If the device below has no space, only backed zones count as free from now on.
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

    /// Lets all free zones count again a second after the last ENOSPC: there may be space by now.
    pub fn look_for_space(&self) {
        let is_over =
            self.space.short.borrow().as_ref().is_some_and(|(_, since)| since.elapsed() >= LOOK_AGAIN);
        if is_over && self.space.unfilled.get() == 0 {
            *self.space.short.borrow_mut() = None;
            self.table.set_only_backed(false);
        }
    }

    /// Notes that a lane or the cleaner has written a record.
    pub fn note_space(&self) {
        if self.space.is_doubtful.get() && !self.space.is_short() {
            self.space.is_doubtful.set(false);
        }
    }

    /// Whether a zone should be reserved now: fewer free zones are backed than users leave to the cleaner and to checkpoints.
    pub fn wants_reserve(&self) -> bool {
        let wanted = self.kept_zones().min(self.table.all_free());
        let was_in_vain = self.space.reserved_in_vain.get().is_some_and(|at| at.elapsed() < LOOK_AGAIN);
        !was_in_vain && self.table.free_backed() < wanted
    }

    /// Reserves space for one of the zones that users leave. Returns false if there was no zone, or no space for several of them. The
    /// zones that were reset last are tried first, since most of their space was taken before.
    pub async fn back_reserve(&self) -> bool {
        let bytes = u64::from(self.layout.backed_blocks()) << self.layout.block_size.shift();
        for _ in 0..MOST_RESERVED_IN_VAIN {
            let Some(zone) = self.table.begin_reserving() else { return false };
            let outcome = self.zones.reserve(ZoneIndex(zone), bytes).await;
            self.table.end_reserving(zone, outcome.is_ok());
            match outcome {
                Ok(()) => return true,
                Err(error) => tracing::warn!("no space could be reserved for zone {zone}: {error}"),
            }
        }
        self.space.reserved_in_vain.set(Some(runtime::now()));
        false
    }

    /// Refuses the writes of a record that found no space, and writes the rest of it to the filler, under its number.
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

    /// Refuses the changes queued under this class, except those that only free blocks: these go to the filler.
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

    /// Writes a record without data to the filler, and tries again until a zone takes it, the log fails or is closed.
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
            // The record before it may wait for space: the requests of this one are answered meanwhile.
            if self.space.unfilled.get() > 0 {
                group.items.iter_mut().for_each(|item| self.answer(item, error));
            }
        };
        scratch.prepare(&group, self.layout.block_bytes());
        let mut is_unfilled = false;
        let mut failures = 0;
        loop {
            for _ in 0..MOST_ATTEMPTS {
                let Some(mut zone) = self.filler_zone().await else { break };
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
                        self.note_no_space(&error);
                        failures += usize::from(!matches!(error, Error::NoSpace(_)));
                        if failures >= MOST_ATTEMPTS {
                            self.fail(&error.in_context(format!("record {sequence} can't be written")));
                        }
                    }
                }
                if self.failure().is_some() {
                    break;
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

    /// Takes the filler, or opens one. Where only backed zones are used and none is left, one is reserved first: a zone that is
    /// opened in vain can't be reset before the record is written elsewhere.
    async fn filler_zone(&self) -> Option<OpenZone> {
        let open = self.space.filler.borrow_mut().take();
        if let Some(zone) = open.or_else(|| self.try_open_zone(0, 0)) {
            return Some(zone);
        }
        match self.back_reserve().await {
            true => self.try_open_zone(0, 0),
            false => None,
        }
    }

    /// Seals the filler if it is open.
    pub async fn seal_filler(self: &Rc<Self>) {
        let filler = self.space.filler.borrow_mut().take();
        if let Some(zone) = filler {
            self.seal_now(zone).await;
        }
    }
}
