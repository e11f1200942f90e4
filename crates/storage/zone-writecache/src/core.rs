//! State of a write cache of zones on its home shard, and the calls of its users.
//!
//! Steps of an append:
//! 1. It waits while the lag is at its limit, or while too many bytes wait for the fast device
//!    ([`Core::append`]).
//! 2. It reserves its offset in the local table and joins the `queue`. From here on its order is fixed.
//! 3. The `writer` forms a record of the queue and writes it to the fast device.
//! 4. The operations of the record enter the index and the pending list, and the calls complete.
//! 5. A flush waits until a flush of the fast device covers the record ([`Core::flush`]).
//! 6. The uploader (`upload`) applies the pending operations at the origin, in order, and moves the tail.
//!
//! Steps of a read ([`Core::read`]):
//! 1. The index divides the range into pieces in the log and others.
//! 2. Pieces in the log are read from the fast device, while the writer doesn't overwrite them.
//! 3. The others are read through the read cache (`cached_reads`), or from the origin.

use crate::counters::{Counters, count};
use crate::format::{Action, Entry, Superblock};
use crate::index::{Index, Piece};
use crate::layout::Layout;
use crate::log::Log;
use crate::pending::{MAX_CHANGES, MAX_PENDING, PendingList};
use crate::queue::Queue;
use crate::read_cache::ReadCache;
use crate::readers::Readers;
use crate::settings::{Ack, MaxLag};
use crate::table::ZoneTable;
use crate::upload_progress::UploadProgress;
use crate::waiting::{WaitingAppend, WaitingAppends};
use block::{
    Buffer, Data, Device, Error, Payload, ReadOutcome, Result, ZoneAddress, ZoneGeometry, ZoneIndex,
    ZoneReport, ZoneState, Zones,
};
use runtime::sync::{Notify, oneshot};
use runtime::{Instant, TaskGroup};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use zones::errors;
use zones::record::keyed_sum;

/// Limit of the bytes of appends that wait for the fast device, and of the record in flight.
const QUEUE_BYTES: u64 = 8 << 20;

/// Failures that end changes, and the begin of a close.
#[derive(Debug, Default)]
pub struct Health {
    /// Error of the fast device.
    failed: RefCell<Option<Error>>,
    /// Error of the last attempt at the origin; `None` after a success.
    pub origin_error: RefCell<Option<Error>>,
    /// Error that ended the uploads: the origin has another writer, was changed by one, or can't take what is
    /// pending.
    conflict: RefCell<Option<Error>>,
    is_closing: Cell<bool>,
}

impl Health {
    /// Notes that the fast device failed.
    pub fn fail(&self, error: &Error) {
        self.failed.borrow_mut().get_or_insert_with(|| error.in_context("the fast device failed"));
    }

    /// Notes that no upload is possible any more: the origin has another writer or was changed by one, one of
    /// its zones has failed, or data to upload is damaged.
    pub fn set_conflict(&self, error: &Error) {
        self.conflict.borrow_mut().get_or_insert_with(|| error.clone());
    }

    /// Returns the error of the fast device.
    pub fn check_device(&self) -> Result<()> {
        self.failed.borrow().clone().map_or(Ok(()), Err)
    }

    /// Returns the error that ended the uploads.
    pub fn check_conflict(&self) -> Result<()> {
        self.conflict.borrow().clone().map_or(Ok(()), Err)
    }

    /// Refuses changes of a cache that is closed or can't keep them.
    pub fn check(&self) -> Result<()> {
        if self.is_closing.get() {
            return Err(Error::closed("the write cache of zones is closed"));
        }
        self.check_device()?;
        self.check_conflict()
    }

    /// Notes that the cache is being closed.
    pub fn set_closing(&self) {
        self.is_closing.set(true);
    }

    /// Whether the cache is being closed.
    pub fn is_closing(&self) -> bool {
        self.is_closing.get()
    }
}

/// Requests to the uploader.
#[derive(Debug, Default)]
pub struct Demand {
    /// Wakes the uploader.
    pub changed: Notify,
    /// Number of a record up to which everything is to be uploaded now.
    pub target: Cell<u64>,
    /// Ends the uploader's pause after an error of the origin.
    pub urgent: Notify,
    /// Whether the writer waits for space in the ring.
    pub needs_space: Cell<bool>,
    /// Whether the cache is drained before it is closed.
    pub on_close: Cell<bool>,
    /// Time of the last append.
    pub last_append: Cell<Option<Instant>>,
}

/// The state of a write cache of zones.
pub struct Core {
    pub(crate) geometry: ZoneGeometry,
    pub(crate) layout: Layout,
    pub(crate) max_lag: MaxLag,
    pub(crate) ack: Ack,
    pub(crate) fast: Rc<dyn Device>,
    pub(crate) origin: Rc<dyn Zones>,
    /// Whether the origin makes the appends of a flush durable together.
    pub(crate) flushes_atomically: bool,
    /// Whether changes of the origin become durable in the order in which they begin.
    pub(crate) changes_in_order: bool,
    pub(crate) local: RefCell<ZoneTable>,
    pub(crate) cut: RefCell<ZoneTable>,
    pub(crate) superblock: Cell<Superblock>,
    pub(crate) log: Log,
    pub(crate) queue: Queue,
    pub(crate) pending: RefCell<PendingList>,
    pub(crate) index: RefCell<Index>,
    pub(crate) readers: Readers,
    pub(crate) read_cache: ReadCache,
    /// Progress of the uploader or the writer, for calls that wait for space.
    pub(crate) progress: Notify,
    pub(crate) waiting: WaitingAppends,
    /// Number of flushes that wait until everything before them is durable at the origin.
    pub(crate) waiting_flushes: Cell<usize>,
    /// Wall-clock time at which the cache was opened.
    pub(crate) opened: Duration,
    pub(crate) demand: Demand,
    pub(crate) health: Health,
    pub(crate) upload_progress: UploadProgress,
    pub(crate) counters: Counters,
    /// Whether a request to the origin was still in flight at the end of a close.
    pub(crate) is_stalled: Arc<AtomicBool>,
    pub(crate) tasks: TaskGroup,
}

impl Core {
    fn check_zone(&self, zone: ZoneIndex) -> Result<()> {
        self.geometry.check_zone(zone)
    }

    /// Age of the oldest operation that isn't at the origin, in this process.
    pub fn age(&self) -> Duration {
        let pending = self.pending.borrow();
        pending.oldest().map_or(Duration::ZERO, |oldest| oldest.since.elapsed())
    }

    /// Number of operations that the origin lacks.
    fn operations(&self) -> usize {
        self.pending.borrow().len() + self.queue.len()
    }

    /// Whether an append of this length has to wait: for the fast device, or at the limit of the lag.
    fn must_wait(&self, length: u64) -> bool {
        let pending = self.pending.borrow().bytes();
        let queued = self.queue.bytes();
        queued > 0 && queued + length > QUEUE_BYTES
            || pending + queued > 0 && pending + queued + length > self.max_lag.bytes
            || self.operations() >= MAX_PENDING
            || pending > 0 && self.age() >= self.max_lag.age
    }

    /// Waits until the lag permits an append, and no earlier append waits.
    async fn admit(&self, zone: ZoneIndex, length: u64) -> Result<()> {
        let mut waiting: Option<WaitingAppend<'_>> = None;
        loop {
            self.health.check()?;
            self.local.borrow().check_append(zone)?;
            let is_first = match &waiting {
                Some(waiting) => waiting.is_first(),
                None => self.waiting.len() == 0,
            };
            if is_first && !self.must_wait(length) {
                return Ok(());
            }
            if waiting.is_none() {
                count(&self.counters.waits, 1);
                waiting = Some(self.waiting.add(zone, &self.progress));
            }
            self.demand.changed.notify_all();
            self.progress.notified().await;
        }
    }

    /// Puts an operation into the queue, and waits until it is written to the fast device.
    async fn submit(&self, entry: Entry, payload: Payload) -> Result<()> {
        let (done, mut completed) = oneshot();
        self.queue.push(entry, payload, done);
        completed
            .receive()
            .await
            .unwrap_or_else(|| Err(Error::cancelled("the write cache of zones has ended")))
    }

    /// Queues the first operation of an epoch: begun zones are interrupted, or open ones are closed after a
    /// clean stop. So replays agree, and the uploader closes the zones that the pending operations of earlier
    /// epochs open at the origin. No call waits for it: the local table has its effect already, and it is in
    /// the log before all operations of users.
    pub fn note_start(&self, is_unclean: bool) {
        let action = if is_unclean { Action::Unclean } else { Action::Clean };
        let (done, _) = oneshot();
        self.queue.push(Entry::of(action, ZoneIndex(0), 0), Payload::new(), done);
    }

    /// Appends, at byte `wanted` if that is given.
    ///
    /// # Errors
    /// Errors of [`Zones::append_at`], and of the fast device.
    pub async fn append(
        &self,
        zone: ZoneIndex,
        wanted: Option<u64>,
        payload: Payload,
    ) -> Result<ZoneAddress> {
        let length = payload.len() as u64;
        self.admit(zone, length).await?;
        let sum = self.sum_of(payload.slices());
        let entry = {
            let mut local = self.local.borrow_mut();
            let offset = local.append(zone, wanted, length)?;
            let generation = local.zone(zone).generation;
            Entry { action: Action::Append, zone, generation, offset, length: length as u32, sum }
        };
        self.demand.last_append.set(Some(runtime::now()));
        self.submit(entry, payload).await?;
        Ok(ZoneAddress::new(zone.0, entry.offset))
    }

    /// Checksum of appended data.
    pub fn sum_of(&self, slices: &[Data]) -> u32 {
        let key = self.superblock.get().identity.key;
        match slices {
            [one] => keyed_sum(key, &[one]),
            _ => keyed_sum(key, &slices.iter().map(|slice| &**slice).collect::<Vec<_>>()),
        }
    }

    /// Waits until the earlier appends to a zone are in the queue.
    async fn wait_for_earlier_appends(&self, zone: ZoneIndex) -> Result<()> {
        self.check_zone(zone)?;
        let ticket = self.waiting.ticket();
        while self.waiting.has_before(zone, ticket) {
            self.health.check()?;
            self.progress.notified().await;
        }
        Ok(())
    }

    /// Makes a change of a zone without data, if `change` finds that there is one.
    async fn change(
        &self,
        zone: ZoneIndex,
        action: Action,
        change: impl FnOnce(&mut ZoneTable) -> Result<bool>,
    ) -> Result<()> {
        self.check_zone(zone)?;
        self.health.check()?;
        while self.operations() >= MAX_CHANGES {
            self.progress.notified().await;
            self.health.check()?;
        }
        let generation = self.local.borrow().zone(zone).generation;
        let is_changed = change(&mut self.local.borrow_mut())?;
        match is_changed {
            true => self.submit(Entry::of(action, zone, generation), Payload::new()).await,
            false => Ok(()),
        }
    }

    /// Opens a zone explicitly.
    ///
    /// # Errors
    /// Errors of [`Zones::open`], and of the fast device.
    pub async fn open_zone(&self, zone: ZoneIndex) -> Result<()> {
        self.change(zone, Action::Open, |table| table.open(zone)).await
    }

    /// Closes a zone.
    ///
    /// # Errors
    /// Errors of [`Zones::close`], and of the fast device.
    pub async fn close_zone(&self, zone: ZoneIndex) -> Result<()> {
        self.change(zone, Action::Close, |table| table.close(zone)).await
    }

    /// Finishes a zone. It is durable on the fast device when this returns.
    ///
    /// # Errors
    /// Errors of [`Zones::finish`], and of the fast device.
    pub async fn finish_zone(&self, zone: ZoneIndex) -> Result<()> {
        self.wait_for_earlier_appends(zone).await?;
        self.change(zone, Action::Finish, |table| table.finish(zone)).await?;
        // Also for a zone that is full already: the finish of another call may not be durable yet.
        self.wait_until_written().await?;
        self.flush().await
    }

    /// Waits until the operations that are queued now are written.
    async fn wait_until_written(&self) -> Result<()> {
        let target = self.queue.pushed();
        while !self.queue.has_completed(target) {
            self.health.check_device()?;
            self.progress.notified().await;
        }
        Ok(())
    }

    /// Resets a zone. The new generation is durable on the fast device when this returns.
    ///
    /// # Errors
    /// Errors of [`Zones::reset`], and of the fast device.
    pub async fn reset_zone(&self, zone: ZoneIndex) -> Result<u64> {
        self.wait_for_earlier_appends(zone).await?;
        let mut generation = 0;
        self.change(zone, Action::Reset, |table| {
            let before = table.zone(zone);
            generation = table.reset(zone)?;
            self.read_cache.forget_zone(zone, before.generation, before.write_pointer);
            Ok(true)
        })
        .await?;
        self.flush().await?;
        Ok(generation)
    }

    /// Makes everything durable that completed before this call: on the fast device, and with `ack =
    /// "origin"` at the origin as well.
    ///
    /// # Errors
    /// Errors of the fast device; the error that ended the uploads, after which the origin never gets what is
    /// durable on the fast device.
    pub async fn flush(&self) -> Result<()> {
        let record = self.flush_fast().await?;
        match self.ack {
            Ack::Fast => Ok(()),
            Ack::Origin => self.wait_until_uploaded(record).await,
        }
    }

    /// Makes everything durable on the fast device that completed before this call. Returns the number of its
    /// last record.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub async fn flush_fast(&self) -> Result<u64> {
        self.health.check_conflict()?;
        self.log.end_epoch();
        count(&self.counters.flushes, 1);
        let record = self.log.completed();
        self.make_durable(record).await?;
        self.health.check_conflict().map(|()| record)
    }

    /// Waits until the records up to this one are durable at the origin; the uploader begins at once. One
    /// upload serves all calls that wait when it begins. Errors of the origin don't end the wait.
    ///
    /// # Errors
    /// Errors of the fast device; the error that ended the uploads; [`Error::Closed`] at a close.
    async fn wait_until_uploaded(&self, record: u64) -> Result<()> {
        self.waiting_flushes.set(self.waiting_flushes.get() + 1);
        self.demand.target.set(self.demand.target.get().max(record));
        self.demand.changed.notify_all();
        let outcome = loop {
            if self.is_at_origin(record) {
                break Ok(());
            }
            if let Err(error) = self.health.check() {
                break Err(error);
            }
            self.progress.notified().await;
        };
        self.waiting_flushes.set(self.waiting_flushes.get() - 1);
        outcome
    }

    /// Whether all operations of the records up to this one are durable at the origin.
    fn is_at_origin(&self, record: u64) -> bool {
        self.pending.borrow().oldest().is_none_or(|oldest| oldest.record > record)
    }

    /// Makes the records up to this one durable. One flush of the fast device serves all earlier calls.
    ///
    /// # Errors
    /// Errors of the fast device.
    pub async fn make_durable(&self, record: u64) -> Result<()> {
        loop {
            self.health.check_device()?;
            if self.log.durable() >= record {
                return Ok(());
            }
            if self.log.is_flushing.get() {
                self.log.flushed.notified().await;
                continue;
            }
            self.log.is_flushing.set(true);
            let covered = self.log.completed();
            let outcome = match self.fast.geometry().volatile_cache {
                true => self.fast.flush().await,
                false => Ok(()),
            };
            count(&self.counters.fast_flushes, 1);
            self.log.is_flushing.set(false);
            match outcome {
                Ok(()) => self.log.note_durable(covered),
                // The data of a failed flush may be lost, whatever a later flush returns.
                Err(error) => self.fail(&error.in_context("flushing it")),
            }
            self.log.flushed.notify_all();
            self.demand.changed.notify_all();
        }
    }

    /// Refuses further changes: the fast device failed.
    pub fn fail(&self, error: &Error) {
        self.health.fail(error);
        self.wake_all();
    }

    /// Wakes everything that waits.
    pub fn wake_all(&self) {
        self.progress.notify_all();
        self.queue.wake();
        self.demand.changed.notify_all();
        self.demand.urgent.notify_all();
        self.log.flushed.notify_all();
    }

    /// Uploads everything that is completed now, and waits until it is durable at the origin.
    ///
    /// # Errors
    /// The first error of the origin since the call began; errors that end the uploads.
    pub async fn drain(&self) -> Result<()> {
        let target = self.log.completed();
        self.demand.target.set(self.demand.target.get().max(target));
        self.health.origin_error.replace(None);
        self.demand.changed.notify_all();
        self.demand.urgent.notify_all();
        loop {
            if self.is_at_origin(target) {
                return Ok(());
            }
            self.health.check()?;
            if let Some(error) = self.health.origin_error.borrow().clone() {
                return Err(error.in_context("uploading to the origin"));
            }
            self.progress.notified().await;
        }
    }

    /// Reads bytes of a zone: from the log where it has them, and otherwise through the read cache.
    pub async fn read(self: &Rc<Self>, at: ZoneAddress, mut buffer: Buffer) -> ReadOutcome {
        buffer.clear();
        let length = buffer.len();
        if let Err(error) = self.check_read(at, length) {
            return (Err(error), buffer);
        }
        let pieces = self.index.borrow().pieces(at, length as u64);
        if let [only] = pieces.as_slice()
            && only.address.is_none()
        {
            return self.read_through_cache(at, buffer).await;
        }
        match self.read_pieces(at, &pieces).await {
            Ok(parts) => {
                parts.iter().for_each(|data| buffer.append(data));
                (Ok(()), buffer)
            }
            Err(error) => (Err(error), buffer),
        }
    }

    /// Reads the pieces of a range that begins at `at`, in two passes. The first one reads the log, and the
    /// writer waits for it before it overwrites these bytes; so only the second one waits for the origin.
    async fn read_pieces(self: &Rc<Self>, at: ZoneAddress, pieces: &[Piece]) -> Result<Vec<Data>> {
        let mut of_log = VecDeque::new();
        let oldest = pieces.iter().filter_map(|piece| piece.address).min();
        let reader = oldest.map(|address| self.readers.begin(address));
        for Piece { length, address } in pieces {
            if let Some(address) = address {
                of_log.push_back(self.read_log(*address, *length).await?);
            }
        }
        drop(reader);
        let mut parts = Vec::with_capacity(pieces.len());
        let mut offset = at.offset.0;
        for Piece { length, address } in pieces {
            match address {
                Some(_) => parts.extend(of_log.pop_front()),
                None => {
                    let place = ZoneAddress::new(at.zone.0, offset);
                    let (outcome, buffer) =
                        self.read_through_cache(place, Buffer::new(*length as usize)).await;
                    outcome?;
                    parts.push(buffer.freeze());
                }
            }
            offset += length;
        }
        Ok(parts)
    }

    fn check_read(&self, at: ZoneAddress, length: usize) -> Result<()> {
        self.geometry.check_read(at, length)?;
        let zone = self.local.borrow().zone(at.zone);
        if zone.state == ZoneState::Offline {
            return Err(Error::corrupt(format!("zone {} is offline", at.zone)));
        }
        match at.offset.0 + length as u64 <= zone.write_pointer {
            true => Ok(()),
            false => Err(errors::exceeds_write_pointer(at, length, zone.write_pointer)),
        }
    }

    /// Reads from the origin. A close ends the wait: an origin that never answers must not delay it.
    pub async fn read_origin(&self, at: ZoneAddress, buffer: Buffer) -> ReadOutcome {
        count(&self.counters.origin_reads, 1);
        let (origin, length) = (self.origin.clone(), buffer.len());
        let read = runtime::spawn(async move { origin.read(at, buffer).await });
        self.unless_closed(read).await.unwrap_or_else(|| {
            let error = "reading from the origin: the write cache of zones was closed meanwhile";
            (Err(Error::closed(error)), Buffer::new(length))
        })
    }

    /// Reads bytes of the log. The caller has begun a read of [`Core::readers`], or the bytes are pending.
    ///
    /// # Errors
    /// Errors of the fast device.
    pub async fn read_log(&self, address: u64, length: u64) -> Result<Data> {
        count(&self.counters.log_reads, 1);
        let block = self.layout.block_size;
        let start = address / block * block;
        let skipped = address - start;
        let whole = (skipped + length).next_multiple_of(block);
        let (outcome, buffer) =
            self.fast.read(self.layout.log_block(start), Buffer::new(whole as usize)).await;
        outcome.map_err(|error| error.in_context("reading the log of the write cache of zones"))?;
        Ok(buffer.freeze().slice(skipped as usize..(skipped + length) as usize))
    }

    /// Reports the local state of zones.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a first zone after the last one.
    pub fn report(&self, first: ZoneIndex, count: u32) -> Result<Vec<ZoneReport>> {
        if first.0 > self.geometry.zones {
            return self.geometry.check_zone(first).map(|()| Vec::new());
        }
        let end = first.0.saturating_add(count).min(self.geometry.zones);
        let local = self.local.borrow();
        Ok((first.0..end).map(|zone| local.report(ZoneIndex(zone))).collect())
    }
}
