//! An underlying device that runs out of space: a sparse file on a full file system, a thin volume.
//!
//! The log has free zones, but an append to one of them fails with ENOSPC because the device allocates space at the first write of
//! a block. Zones that were filled once, or reserved ([`block::Zones::reserve`]), are *backed*: seven eighths of their blocks keep
//! their space when the zone is reset, and only these are used while there is no space. The log continues with backed zones:
//! - Space is reserved in advance for the zones that are kept for the cleaner and checkpoints ([`Kit::back_reserve`]).
//! - After ENOSPC only backed zones count as free and are taken. Cleaning, checkpoints and resets work, and a log with
//!   nothing to clean refuses writes with ENOSPC as any full log does ([`pace`](crate::pace)).
//! - The record that failed keeps its number, which must be filled: replay ends at a missing number. Its writes are refused. Its
//!   changes without data, such as discards, are written under that number to a zone of their own, the *filler*; so are later
//!   discards. If no change is left, an empty record is written.
//! - If no zone takes that record either, it is retried ten times a second. Until it is written all changes are refused,
//!   and records that follow it wait. Requests that wait for one of these records get ENOSPC; the record takes effect later or
//!   never, as a failed write may.
//! - Writes that were acknowledged from the buffer can't be refused: they go to the cleaner's zones. No further write is
//!   acknowledged from the buffer.
//! - After a second all free zones are used again, so the next write finds new space. Once a record has been written then, writes
//!   are acknowledged from the buffer again.

use crate::entry::{Batch, Entry, Frozen};
use crate::kit::Kit;
use crate::lane::{Number, append, completed, freeze, written};
use crate::owner::Owner;
use crate::zone_writer::ZoneWriter;
use block::{Error, Result, ZoneIndex};
use runtime::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Time after ENOSPC in which only backed zones count as free.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time between attempts to fill the number of a record.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);
/// Largest number of zones that are tried for a reservation before it waits [`LOOK_AGAIN`].
const MOST_RESERVED_IN_VAIN: usize = 16;
/// Largest number of attempts to append a record before it waits [`BETWEEN_ATTEMPTS`].
const MOST_ATTEMPTS: usize = 4;

/// State of the underlying device's space. Belongs to the home shard.
#[derive(Debug)]
pub struct Space {
    /// Error for changes that find no space, and the time of the last ENOSPC; `None` while there may be space.
    short: RefCell<Option<(Error, runtime::Instant)>>,
    /// Set by ENOSPC, cleared by the first record that is written once all free zones count again.
    is_doubtful: Cell<bool>,
    /// Number of records that no zone has taken so far.
    unfilled: Cell<u32>,
    /// Open zone for records without data.
    filler: RefCell<Option<ZoneWriter>>,
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
    /// Returns whether only backed zones are used, because the device below had no space.
    pub fn is_short(&self) -> bool {
        self.short.borrow().is_some()
    }

    /// Returns whether the device below had no space, and no record has been written since all free zones count again.
    pub fn is_doubtful(&self) -> bool {
        self.is_doubtful.get()
    }

    /// Returns the error for changes that find no space; `None` while there may be space.
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
            _ => Err(self
                .error()
                .unwrap_or_else(|| Error::no_space("the device below the log has no space; give it more"))),
        }
    }
}

impl Kit {
    /// Notes that an append has failed. If the device below has no space, only backed zones count as free from now on.
    pub fn note_no_space(&self, error: &Error) {
        if !matches!(error, Error::NoSpace(_)) {
            return;
        }
        if !self.space.is_short() {
            tracing::warn!("log: the device below has no space: {error}");
        }
        let told =
            error.in_context("the device below the log has no space; discard some data, or give it more");
        *self.space.short.borrow_mut() = Some((told, runtime::now()));
        self.space.is_doubtful.set(true);
        self.pool.set_only_backed(true);
        self.events.cleaner.notify_all();
    }

    /// Lets all free zones count again a second after the last ENOSPC: there may be space by now.
    pub fn look_for_space(&self) {
        let is_over =
            self.space.short.borrow().as_ref().is_some_and(|(_, since)| since.elapsed() >= LOOK_AGAIN);
        if is_over && self.space.unfilled.get() == 0 {
            *self.space.short.borrow_mut() = None;
            self.pool.set_only_backed(false);
        }
    }

    /// Notes that a lane or the cleaner has written a record.
    pub fn note_space(&self) {
        if self.space.is_doubtful.get() && !self.space.is_short() {
            self.space.is_doubtful.set(false);
        }
    }

    /// Returns whether a zone should be reserved now: fewer free zones are backed than users leave to the cleaner and
    /// to checkpoints.
    pub fn wants_reserve(&self, kept_zones: u32) -> bool {
        let wanted = kept_zones.min(self.pool.all_free());
        let was_in_vain = self.space.reserved_in_vain.get().is_some_and(|at| at.elapsed() < LOOK_AGAIN);
        !was_in_vain && self.pool.free_backed() < wanted
    }

    /// Reserves space for one of the kept zones. Returns false if there was no zone, or no space for several of them. The zones that
    /// were reset last are tried first, because most of their space is still allocated.
    pub async fn back_reserve(&self) -> bool {
        let bytes = u64::from(self.layout.backed_blocks()) << self.layout.block_size.shift();
        for _ in 0..MOST_RESERVED_IN_VAIN {
            let Some(zone) = self.pool.begin_reserving() else { return false };
            let outcome = self.zones.reserve(ZoneIndex(zone), bytes).await;
            self.pool.end_reserving(zone, outcome.is_ok());
            match outcome {
                Ok(()) => return true,
                Err(error) => tracing::warn!("no space could be reserved for zone {zone}: {error}"),
            }
        }
        self.space.reserved_in_vain.set(Some(runtime::now()));
        false
    }

    /// Takes the filler, or opens one. If only backed zones are used and none is left, a zone is reserved first: a zone whose first
    /// append failed can't be reset before the record is written elsewhere.
    async fn filler_zone(&self) -> Option<ZoneWriter> {
        let open = self.space.filler.borrow_mut().take();
        if let Some(zone) = open.or_else(|| self.try_open_zone(0, 0)) {
            return Some(zone);
        }
        match self.back_reserve().await {
            true => self.try_open_zone(0, 0),
            false => None,
        }
    }
}

/// Seals the filler if it is open.
pub(crate) async fn seal_filler(kit: &Kit) {
    let filler = kit.space.filler.borrow_mut().take();
    if let Some(zone) = filler {
        kit.seal_now(zone).await;
    }
}

/// Refuses the data of a record that found no space, and writes the rest of it to the filler, under its number.
pub(crate) async fn refuse_record<O: Owner>(
    owner: &Rc<O>,
    number: Number,
    mut batch: Batch<O::Entry>,
    frozen: &mut Frozen,
    error: &Error,
) {
    for entry in batch.entries.extract_if(.., |entry| entry.blocks() > 0) {
        owner.refuse(&entry, error);
    }
    frozen.refreeze(&batch.entries, owner.kit().layout.block_bytes());
    fill(owner, number, batch, frozen, error).await;
}

/// Refuses the entries queued under this class, except those that only free blocks: these go to the filler.
pub(crate) async fn write_without_data<O: Owner>(
    owner: &Rc<O>,
    class: u8,
    frozen: &mut Frozen,
    error: &Error,
) {
    let appender = owner.appender();
    let (batch, refused) =
        appender.take_without_data(class, |entry| entry.only_frees() && entry.joins().is_empty());
    refused.iter().for_each(|entry| owner.refuse(entry, error));
    if batch.entries.is_empty() {
        return appender.recycle(batch.entries);
    }
    let entries = batch.entries.len();
    appender.submitted(entries);
    let stream = owner.kit().settings.user_stream;
    let number = freeze(&**owner, stream, &batch, class, frozen);
    fill(owner, number, batch, frozen, error).await;
    completed(&**owner, entries);
}

/// Refuses all queued entries that were not acknowledged, and answers the requests of records that can't commit because an
/// earlier record is missing.
fn refuse_waiting<O: Owner>(owner: &O, error: &Error) {
    let appender = owner.appender();
    let refused = appender.take_refused(None, Entry::is_acknowledged);
    refused.iter().for_each(|entry| owner.refuse(entry, error));
    appender.for_each_waiting(|entry| owner.answer(entry, error));
    owner.kit().events.committed.notify_all();
    owner.kit().events.settled.notify_all();
    owner.kit().events.freed.notify_all();
}

/// Writes a record without data to the filler, and tries again until a zone takes it, the log fails or is closed.
async fn fill<O: Owner>(
    owner: &Rc<O>,
    number: Number,
    mut batch: Batch<O::Entry>,
    frozen: &mut Frozen,
    error: &Error,
) {
    let sequence = number.sequence;
    let kit = owner.kit();
    let space = &kit.space;
    let _alone = loop {
        if let Ok(alone) = runtime::timeout(BETWEEN_ATTEMPTS, space.filling.acquire(1)).await {
            break alone;
        }
        // The record before it may wait for space: the requests of this one are answered meanwhile.
        if space.unfilled.get() > 0 {
            batch.entries.iter_mut().for_each(|entry| owner.answer(entry, error));
        }
    };
    let mut is_unfilled = false;
    let mut failures = 0;
    loop {
        for _ in 0..MOST_ATTEMPTS {
            let Some(mut zone) = kit.filler_zone().await else { break };
            if !zone.takes(&kit.layout, 0, frozen.meta_length()) {
                kit.seal(zone).await;
                continue;
            }
            let position = zone.position() + 1;
            match append(&**owner, &number, &batch, &mut zone, frozen).await {
                Ok(()) => {
                    (batch.zone, batch.position, batch.is_unordered) = (zone.zone(), position, true);
                    *space.filler.borrow_mut() = Some(zone);
                    if is_unfilled {
                        space.unfilled.set(space.unfilled.get() - 1);
                    }
                    return written(&**owner, number, batch);
                }
                Err(error) => {
                    tracing::warn!("record {sequence} could not be filled: {error}");
                    kit.abandon(zone.zone(), zone.position()).await;
                    kit.note_no_space(&error);
                    failures += usize::from(!matches!(error, Error::NoSpace(_)));
                    if failures >= MOST_ATTEMPTS {
                        owner.fail(&error.in_context(format!("record {sequence} can't be written")));
                    }
                }
            }
            if kit.failure().is_some() {
                break;
            }
        }
        if let Some(failure) = kit.failure() {
            batch.entries.iter().for_each(|entry| owner.refuse(entry, &failure));
            return;
        }
        if kit.is_closing() {
            batch.entries.iter().for_each(|entry| owner.refuse(entry, error));
            return owner.fail(&error.in_context(format!("record {sequence} can't be written")));
        }
        if !std::mem::replace(&mut is_unfilled, true) {
            space.unfilled.set(space.unfilled.get() + 1);
        }
        batch.entries.iter_mut().for_each(|entry| owner.answer(entry, error));
        refuse_waiting(&**owner, error);
        runtime::sleep(BETWEEN_ATTEMPTS).await;
    }
}
