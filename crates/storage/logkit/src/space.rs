//! Space of the device below the log, which may run out: a sparse file on a full file system, a thin volume.
//!
//! An append to a free zone may fail with ENOSPC because the device allocates space at the first write of a
//! block. Blocks of a zone that were once written or reserved ([`block::Zones::reserve`]) keep their space
//! when the zone is reset; only these are used while the device has no other space. A zone with space for
//! seven eighths of its blocks is *backed*. The log continues with the known space of zones:
//! - Space is reserved in advance for the zones that are kept for the cleaner and checkpoints, and for the
//!   filler ([`Kit::back_reserve`]).
//! - After ENOSPC free zones are counted by their known space, and are written only that far. No space is
//!   lost if zones end early, because a reset keeps the space of all written blocks. Cleaning, checkpoints
//!   and resets continue, and a log with nothing to clean refuses writes with ENOSPC as any full log does
//!   ([`pace`](crate::pace)).
//! - The record that failed keeps its number, which must be filled because replay ends at a missing number.
//!   Its writes are refused. Its changes without data, such as discards, are written under that number to a
//!   zone of their own, the *filler*; so are later discards. If no change is left, an empty record is
//!   written. The filler leaves free zones to checkpoints, because a checkpoint frees earlier fillers: a full
//!   filler is dead once a checkpoint covers it. Until then a new filler waits for the cleaner.
//! - If no zone takes that record either, it is retried ten times a second. An append that fails although its
//!   space is reserved costs the zone until the record is written; after such failures the time between
//!   attempts doubles, up to 30 s. Until the record is written all changes are refused, and later records
//!   wait. Requests that wait for one of these records get ENOSPC; the record takes effect later or never, as
//!   a failed write may.
//! - Writes that were acknowledged from the buffer can't be refused: they go to the cleaner's zones. No
//!   further write is acknowledged from the buffer.
//! - A second after ENOSPC, and once the cleaner has nothing to free, all free zones are used again, so the
//!   next write finds new space. Once a record has been written, writes are acknowledged from the buffer
//!   again.
//!
//! All shards share this state, as they share the zones. A record that waits for space on one shard may be a
//! member of a stream of another shard, whose later records can't commit either. At each notification, that
//! shard refuses changes and answers requests like the shard that writes the record.

use crate::entry::{Batch, Entry, Frozen};
use crate::kit::Kit;
use crate::lane::{Number, append_frozen, note_end_of_append, note_written, number_and_freeze};
use crate::owner::Owner;
use crate::seals;
use crate::shared;
use crate::zone_writer::ZoneWriter;
use block::{Error, Result, ZoneIndex};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Least time after ENOSPC in which only the known space of zones is used.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time between attempts to fill the number of a record.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(100);
/// Largest number of zones that are tried for a reservation before it waits [`LOOK_AGAIN`].
const MAX_RESERVED_IN_VAIN: usize = 16;
/// Largest number of attempts to append a record before it waits [`BETWEEN_ATTEMPTS`].
const MAX_ATTEMPTS: usize = 4;
/// Longest time between attempts that each cost a zone.
const MAX_BETWEEN_ZONES: Duration = Duration::from_secs(30);
/// Longest time that a record waits for the cleaner to free a zone, before changes are refused.
const MAX_PATIENCE: Duration = Duration::from_secs(1);
/// Number of zones for which space is reserved in addition to those that users leave to others: the filler.
const FILLERS: u32 = 1;

impl Kit {
    /// Notes that an append has failed. After ENOSPC free zones are counted by their known space.
    pub fn note_no_space(&self, error: &Error) {
        if !matches!(error, Error::NoSpace(_)) {
            return;
        }
        self.marks.turn_off();
        let space = self.space.shared();
        let told =
            error.in_context("the device below the log has no space; discard some data, or give it more");
        if !space.set_short(space.short(), Some(told), &self.pool) {
            tracing::warn!("log: the device below has no space: {error}");
        }
        space.is_doubtful.store(true, Ordering::Release);
        self.events.cleaner.notify_all();
    }

    /// Counts all free zones again if the last ENOSPC was at least a second ago and the cleaner can free
    /// none, since the device may have space now. Returns whether all are counted again.
    pub fn look_for_space(&self) -> bool {
        if !self.space.is_short() || self.space.has_unfilled() || !self.is_stuck() {
            return false;
        }
        let space = self.space.shared();
        let short = space.short();
        let is_over = short.as_ref().is_some_and(|(_, since)| since.elapsed() >= LOOK_AGAIN);
        is_over && space.set_short(short, None, &self.pool)
    }

    /// Refuses changes that take effect before they are written, while the device below has no space and
    /// users find no zone with known space. Wakes the cleaner, which may free a zone.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub fn check_known_space(&self, kept_zones: u32) -> Result<()> {
        match self.space.error() {
            Some(error) if self.pool.free() <= kept_zones && !self.look_for_space() => {
                self.events.cleaner.notify_all();
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Notes that a lane or the cleaner has written a record: the device below has space, unless free zones
    /// are counted by their known space.
    pub fn note_space(&self) {
        if self.space.is_doubtful() && !self.space.is_short() {
            self.space.shared().is_doubtful.store(false, Ordering::Release);
        }
    }

    /// Returns whether space should be reserved now: fewer free zones have known space than users leave to
    /// the cleaner, to checkpoints and to the filler, and than lanes need while there is no other space.
    pub fn wants_reserve(&self, kept_zones: u32) -> bool {
        let lanes = if self.space.is_short() { self.settings.appends_in_flight } else { 0 };
        let wanted = (kept_zones + FILLERS + lanes).min(self.pool.all_free());
        let was_in_vain = self.space.reserved_in_vain.get().is_some_and(|at| at.elapsed() < LOOK_AGAIN);
        !was_in_vain && self.pool.free_known() < wanted
    }

    /// Reserves space for a free zone: enough to make it backed or, failing that, half as much. Returns false
    /// if all free zones are backed, or after 16 zones without space. Zones that were reset last are tried
    /// first, because most of their space is still allocated.
    pub async fn back_reserve(&self) -> bool {
        let backed = self.layout.backed_blocks();
        for _ in 0..MAX_RESERVED_IN_VAIN {
            let Some(zone) = self.pool.begin_reserving() else { return false };
            let known = self.pool.get(zone).space;
            let mut reserved = 0;
            for blocks in [backed, backed.div_ceil(2)].into_iter().filter(|blocks| *blocks > known) {
                let bytes = u64::from(blocks) << self.layout.block_size.shift();
                match self.zones.reserve(ZoneIndex(zone), bytes).await {
                    Ok(()) => {
                        reserved = blocks;
                        break;
                    }
                    Err(error) => tracing::debug!("zone {zone}: no space could be reserved: {error}"),
                }
            }
            self.pool.end_reserving(zone, reserved);
            if reserved > 0 {
                return true;
            }
        }
        tracing::warn!("no space could be reserved for any of {MAX_RESERVED_IN_VAIN} zones");
        self.space.reserved_in_vain.set(Some(runtime::now()));
        false
    }

    /// Takes the filler, or opens one if more than `keep` zones are free. If no free zone has known space,
    /// space is reserved first: a zone whose first append failed can't be reset before the record is written
    /// elsewhere.
    async fn filler_zone(&self, keep: u32, held: &mut [Option<ZoneWriter>]) -> Option<ZoneWriter> {
        let open = self.space.filler.borrow_mut().take();
        if open.is_some() {
            return open;
        }
        if let Some(zone) = self.open_zone_beside(0, keep, held).await {
            return Some(zone);
        }
        match self.back_reserve().await {
            true => self.open_zone_beside(0, keep, held).await,
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

/// Seals the filler if it is open and a task asked for it.
pub(crate) async fn answer_with_filler(kit: &Kit) {
    let filler = kit.space.filler.borrow_mut().take_if(|zone| seals::time_left(kit, zone, false).is_some());
    if let Some(zone) = filler {
        kit.seal_now(zone).await;
    }
}

/// Refuses the data of a record that found no space, and writes its other entries to the filler, under its
/// number.
pub(crate) async fn refuse_record<O: Owner>(
    owner: &Rc<O>,
    number: Number,
    mut batch: Batch<O::Entry>,
    frozen: &mut Frozen,
    error: &Error,
    held: &mut [Option<ZoneWriter>],
) {
    for entry in batch.entries.extract_if(.., |entry| entry.blocks() > 0) {
        owner.refuse(&entry, error);
    }
    frozen.refreeze(&batch.entries, owner.kit().layout.block_bytes());
    fill(owner, number, batch, frozen, error, held).await;
}

/// Refuses the queued entries of a class, except those that only free blocks: they go to the filler.
pub(crate) async fn write_without_data<O: Owner>(
    owner: &Rc<O>,
    class: u8,
    frozen: &mut Frozen,
    error: &Error,
    held: &mut [Option<ZoneWriter>],
) {
    let appender = owner.appender();
    let (batch, refused) =
        appender.take_without_data(class, |entry| entry.only_frees() && entry.joins().is_empty());
    refused.iter().for_each(|entry| owner.refuse(entry, error));
    if batch.entries.is_empty() {
        return appender.recycle(batch.entries);
    }
    let entries = batch.entries.len();
    appender.note_append(entries);
    let stream = owner.kit().settings.user_stream;
    let number = number_and_freeze(&**owner, stream, &batch, class, frozen);
    fill(owner, number, batch, frozen, error, held).await;
    note_end_of_append(&**owner, entries);
}

/// Refuses all entries queued on this shard that weren't acknowledged, and answers the requests of records
/// that can't commit because an earlier record is missing.
pub(crate) fn refuse_waiting<O: Owner>(owner: &O, error: &Error) {
    let appender = owner.appender();
    let refused = appender.take_refused(None, Entry::is_acknowledged);
    refused.iter().for_each(|entry| owner.refuse(entry, error));
    appender.for_each_waiting(|entry| owner.answer(entry, error));
    owner.kit().events.committed.notify_all();
    owner.kit().events.settled.notify_all();
    owner.kit().events.freed.notify_all();
}

/// Writes a record without data to the filler. Retries until a zone takes it, or the log fails or is closed.
async fn fill<O: Owner>(
    owner: &Rc<O>,
    number: Number,
    mut batch: Batch<O::Entry>,
    frozen: &mut Frozen,
    error: &Error,
    held: &mut [Option<ZoneWriter>],
) {
    let sequence = number.sequence;
    let kit = owner.kit();
    let space = &kit.space;
    let _alone = loop {
        if let Ok(alone) = runtime::timeout(BETWEEN_ATTEMPTS, space.filling.acquire(1)).await {
            break alone;
        }
        seals::answer_idle(kit, held).await;
        // An earlier record may wait for space: the requests of this one are answered meanwhile.
        if space.has_unfilled() {
            batch.entries.iter_mut().for_each(|entry| owner.answer(entry, error));
        }
    };
    let mut is_unfilled = false;
    let mut failures = 0;
    let mut is_patient = true;
    let since = runtime::now();
    // After an attempt that cost a zone: time of the next attempt, and the pause after that.
    let (mut next_zone, mut between_zones) = (since, BETWEEN_ATTEMPTS);
    loop {
        seals::answer_idle(kit, held).await;
        // Checkpoints lose a zone only if the cleaner can't continue before this record has committed.
        let keep = if is_patient { owner.checkpoint_zones() } else { 0 };
        let attempts = match (runtime::now() < next_zone, between_zones > BETWEEN_ATTEMPTS) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => MAX_ATTEMPTS,
        };
        for _ in 0..attempts {
            let Some(mut zone) = kit.filler_zone(keep, held).await else { break };
            if !zone.takes(&kit.layout, 0, frozen.meta_length()) {
                kit.seal(zone).await;
                continue;
            }
            let position = zone.position() + 1;
            match append_frozen(&**owner, &number, &batch, &mut zone, frozen, held).await {
                Ok(()) => {
                    (batch.zone, batch.position, batch.is_unordered) = (zone.zone(), position, true);
                    *space.filler.borrow_mut() = Some(zone);
                    // A request may have come while the filler was in use.
                    answer_with_filler(kit).await;
                    if is_unfilled {
                        space.shared().unfilled.fetch_sub(1, Ordering::AcqRel);
                    }
                    return note_written(&**owner, number, batch);
                }
                Err(error) => {
                    tracing::warn!("record {sequence} could not be written to the filler: {error}");
                    let was_refused = zone.was_refused(&error);
                    kit.abandon_after(&error, &zone).await;
                    drop(zone);
                    // A zone that the cleaner frees wouldn't have space either.
                    is_patient = false;
                    next_zone = runtime::now() + between_zones;
                    between_zones = (between_zones * 2).min(MAX_BETWEEN_ZONES);
                    failures += usize::from(!matches!(error, Error::NoSpace(_)));
                    if failures >= MAX_ATTEMPTS || was_refused {
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
            // A mark that no record of users or the cleaner follows is dropped: the next epoch issues its
            // number again, as that of a record that was cut off. If another task has numbered a later
            // record, the log fails.
            let is_droppable =
                batch.entries.is_empty() && number.is_alone() && owner.appender().queued() == 0;
            if is_droppable && kit.streams.end_before(number.stream, sequence) {
                if is_unfilled {
                    space.shared().unfilled.fetch_sub(1, Ordering::AcqRel);
                }
                return;
            }
            batch.entries.iter().for_each(|entry| owner.refuse(entry, error));
            return owner.fail(&error.in_context(format!("record {sequence} can't be written")));
        }
        if is_patient {
            let freed = kit.events.freed.notified();
            kit.events.cleaner.notify_all();
            is_patient = since.elapsed() < MAX_PATIENCE && !kit.is_stuck();
            if is_patient {
                let _woken = runtime::timeout(BETWEEN_ATTEMPTS, freed).await;
            }
            continue;
        }
        if !std::mem::replace(&mut is_unfilled, true) {
            space.shared().unfilled.fetch_add(1, Ordering::AcqRel);
        }
        batch.entries.iter_mut().for_each(|entry| owner.answer(entry, error));
        refuse_waiting(&**owner, error);
        // Other shards do the same for later records of the streams that a joint record is a member of.
        kit.member().notify_others(shared::SHORT);
        runtime::sleep(BETWEEN_ATTEMPTS).await;
    }
}
