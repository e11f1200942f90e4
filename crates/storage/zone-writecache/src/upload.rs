//! The uploader: applies the pending operations at the origin, in batches, in the order of the log.
//!
//! Steps:
//! 1. It waits until an upload is due: by size, by age, when users are idle, or on demand.
//! 2. The log is made durable on the fast device: the origin is never ahead of it.
//! 3. After an open and after an error, the origin is compared with the cut, and zones are rewound.
//! 4. The appends of a batch are sent, and one flush of the origin makes them durable. A finish or a reset is
//!    a batch of its own.
//! 5. The cut moves, and the tail in the superblock with it.
//! 6. From time to time the cut is written as a checkpoint, which frees space of the ring.
//!
//! An error of the origin repeats the batch after a pause, without end. What no repetition can mend ends the
//! uploads: an origin that has another writer or was changed by one, a zone whose medium has failed, and data
//! in the log that is damaged.

use crate::checkpoint;
use crate::core::Core;
use crate::counters::count;
use crate::format::{Action, Entry, Superblock};
use crate::pending::{Batch, BatchLimits, MAX_PENDING, Pending};
use crate::reconcile::{check_media, reconcile};
use block::{EraseGuarantee, Error, Payload, Result, ZoneAddress, ZoneIndex, ZoneReport};
use runtime::JoinHandle;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Limit of the appended bytes of a batch.
const BATCH_BYTES: u64 = 16 << 20;
/// Pending bytes at which an upload begins, unless a quarter of the limit of the lag is less.
const UPLOAD_BYTES: u64 = 8 << 20;
/// Limit of an append to the origin that joins several appends of users, in bytes.
const MAX_JOINED: u64 = 1 << 20;
/// Number of zones that are appended to at a time.
const MAX_ZONES_AT_ONCE: usize = 4;
/// Limits of the pause after an error of the origin.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// Time for which a close waits for a request to the origin in flight.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// Number of zones that are reported with one call.
const ZONES_OF_REPORT: u32 = 4096;

/// Uploads until the cache is closed.
pub async fn run(core: Rc<Core>) {
    let mut needs_reconcile = true;
    let mut pause = PAUSE.0;
    while core.wait_until_due().await {
        // After a failure of the fast device the durable records are uploaded.
        let _ = core.make_durable(core.log.completed.get()).await;
        let limits = core.batch_limits();
        let batch = core.pending.borrow().next_batch(limits, core.log.durable.get());
        let Some(batch) = batch else {
            if core.health.is_closing() {
                break;
            }
            if core.pending.borrow().len() > 0 || !core.checkpoint_if_needed().await {
                core.demand.changed.notified().await;
            }
            continue;
        };
        core.upload_progress.begin_step();
        let step = runtime::spawn(core.clone().step(batch, needs_reconcile));
        match core.unless_closed(step).await {
            None => break,
            Some(Ok(done)) => {
                needs_reconcile &= done.is_found;
                pause = PAUSE.0;
                core.health.origin_error.replace(None);
                core.upload_progress.end_step();
                core.advance(done.operations).await;
            }
            Some(Err(error)) => {
                needs_reconcile = true;
                // Other final errors are those of a step that has ended the uploads itself.
                if is_final(&error) {
                    core.end_uploads(&error);
                } else if core.health.check_conflict().is_ok() {
                    core.note_error(error);
                }
                if core.health.is_closing() {
                    break;
                }
                let _ = runtime::timeout(pause, core.demand.urgent.notified()).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}

/// Whether no repetition can succeed after this error: the origin takes no writes any more. That is the error
/// of an object store whose volume another writer has claimed.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::ReadOnly(_))
}

/// Result of a step.
struct Done {
    /// Number of operations that are durable at the origin.
    operations: usize,
    /// Whether the comparison found them there, and nothing was sent.
    is_found: bool,
}

impl Core {
    fn batch_limits(&self) -> BatchLimits {
        BatchLimits {
            bytes: BATCH_BYTES,
            joins_epochs: self.flushes_atomically,
            closes: self.geometry.max_open != 0,
        }
    }

    /// Time until an upload is due; zero if it is.
    fn due_in(&self) -> Duration {
        let pending = self.pending.borrow();
        let Some(oldest) = pending.oldest() else { return Duration::MAX };
        let is_due = oldest.record <= self.demand.target.get()
            || self.demand.needs_space.get()
            || self.waiting.len() > 0
            || pending.len() >= MAX_PENDING / 2
            || pending.bytes() >= UPLOAD_BYTES.min(self.max_lag.bytes / 4);
        let Some(last_append) = self.demand.last_append.get().filter(|_| !is_due) else {
            return Duration::ZERO;
        };
        let by_age = (self.max_lag.age / 2).saturating_sub(oldest.since.elapsed());
        let idle = (self.max_lag.age / 5).saturating_sub(last_append.elapsed());
        by_age.min(idle)
    }

    /// Waits until an upload or a checkpoint is due. Returns false once the cache is being closed.
    async fn wait_until_due(&self) -> bool {
        loop {
            if self.health.is_closing() {
                return false;
            }
            if self.health.check_conflict().is_err() {
                self.demand.changed.notified().await;
                continue;
            }
            match self.due_in() {
                Duration::ZERO => {
                    // Everything that is pending now is uploaded without further waits.
                    self.demand.target.set(self.demand.target.get().max(self.log.completed.get()));
                    return true;
                }
                Duration::MAX if self.demand.needs_space.get() => return true,
                Duration::MAX => self.demand.changed.notified().await,
                wait => drop(runtime::timeout(wait, self.demand.changed.notified()).await),
            }
        }
    }

    /// Waits for a task that uses the origin; `None` if the cache is being closed and the task doesn't end
    /// within [`CLOSE_LIMIT`]. Such a task is detached, and its result isn't recorded.
    pub async fn unless_closed<T: 'static>(&self, step: JoinHandle<T>) -> Option<T> {
        let mut step = step;
        while !self.health.is_closing() {
            match runtime::timeout(Duration::from_secs(1), &mut step).await {
                Ok(outcome) => return Some(outcome),
                Err(_elapsed) => {}
            }
        }
        let outcome = runtime::timeout(CLOSE_LIMIT, &mut step).await.ok();
        if outcome.is_none() {
            self.is_stalled.store(true, std::sync::atomic::Ordering::Release);
            step.detach();
        }
        outcome
    }

    fn note_error(&self, error: Error) {
        count(&self.counters.origin_errors, 1);
        if self.upload_progress.note_failure(&error) {
            tracing::warn!(
                "uploading from a write cache of zones: {error}; it is repeated until it succeeds, and appends wait at max_lag"
            );
        }
        self.health.origin_error.replace(Some(error));
        self.progress.notify_all();
    }

    /// Ends the uploads for good: changes and flushes fail with this error from now on.
    fn end_uploads(&self, error: &Error) {
        count(&self.counters.origin_errors, 1);
        let error = error.in_context("the origin of the write cache of zones takes no more writes");
        tracing::error!("{error}; what isn't uploaded stays on the fast device");
        self.health.set_conflict(&error);
        self.wake_all();
    }

    /// Carries out one batch.
    async fn step(self: Rc<Self>, batch: Batch, needs_reconcile: bool) -> Result<Done> {
        if needs_reconcile {
            let found = self.reconcile().await?;
            if found > 0 {
                return Ok(Done { operations: found, is_found: true });
            }
        }
        match batch {
            Batch::Appends(operations) => {
                self.upload(operations).await?;
                Ok(Done { operations, is_found: false })
            }
            Batch::Barrier => {
                let first = self.pending.borrow().oldest().map(|oldest| oldest.entry);
                if let Some(entry) = first {
                    self.change_origin(entry).await?;
                }
                Ok(Done { operations: 1, is_found: false })
            }
        }
    }

    /// Reports of all zones of the origin.
    ///
    /// # Errors
    /// Errors of the origin.
    pub async fn origin_reports(origin: &dyn block::Zones) -> Result<Vec<ZoneReport>> {
        let zones = origin.geometry().zones;
        let mut reports = Vec::with_capacity(zones as usize);
        while (reports.len() as u32) < zones {
            let some = origin.report(ZoneIndex(reports.len() as u32), ZONES_OF_REPORT).await?;
            if some.is_empty() {
                break;
            }
            reports.extend(some);
        }
        Ok(reports)
    }

    /// Compares the origin with the cut. Returns the number of pending operations that it has already. If
    /// there are none, rewinds the zones whose appends have to be repeated.
    async fn reconcile(&self) -> Result<usize> {
        let reports = Self::origin_reports(&*self.origin).await?;
        let found = reconcile(&self.cut.borrow(), self.pending.borrow().iter(), &reports);
        let found = found.and_then(|found| {
            let pending = self.pending.borrow();
            check_media(pending.iter().skip(found.done), &reports).map(|()| found)
        });
        let found = found.inspect_err(|error| self.end_uploads(error))?;
        if found.done == 0 {
            for at in found.rewinds {
                self.origin.rewind(at).await?;
            }
        }
        Ok(found.done)
    }

    /// Sends the appends among the first operations, and makes them durable at the origin.
    async fn upload(&self, operations: usize) -> Result<()> {
        let mut zones = BTreeMap::<ZoneIndex, Vec<Pending>>::new();
        for pending in self.pending.borrow().iter().take(operations) {
            if pending.entry.action == Action::Append {
                zones.entry(pending.entry.zone).or_default().push(*pending);
            }
        }
        if zones.is_empty() {
            return Ok(());
        }
        let list: Vec<ZoneIndex> = zones.keys().copied().collect();
        let uploads = zones.into_values().map(|appends| self.upload_zone(appends));
        runtime::join_limited(MAX_ZONES_AT_ONCE, uploads).await.into_iter().collect::<Result<()>>()?;
        count(&self.counters.origin_flushes, 1);
        self.origin.flush(&list).await
    }

    /// Sends the appends of one zone, which are consecutive.
    async fn upload_zone(&self, appends: Vec<Pending>) -> Result<()> {
        let geometry = self.origin.geometry();
        let unit = u64::from(geometry.append_granularity).max(1);
        let most = (MAX_JOINED.min(geometry.max_append) / unit * unit).max(unit);
        let mut rest = appends.as_slice();
        while let Some(first) = rest.first() {
            let mut bytes = 0;
            let joined = rest.iter().take_while(|append| {
                bytes += append.entry.length();
                bytes <= most
            });
            let (chunk, others) = rest.split_at(joined.count().max(1));
            rest = others;
            let mut payload = Payload::new();
            for append in chunk {
                payload.push(self.read_append(append).await?);
            }
            self.send(ZoneAddress::new(first.entry.zone.0, first.entry.offset), payload, most as usize)
                .await?;
        }
        Ok(())
    }

    /// Appends to the origin, in pieces of at most `most` bytes: one append of a user may be longer.
    async fn send(&self, at: ZoneAddress, payload: Payload, most: usize) -> Result<()> {
        let mut sent = 0;
        while sent < payload.len() {
            let end = payload.len().min(sent + most);
            let place = ZoneAddress::new(at.zone.0, at.offset.0 + sent as u64);
            self.origin.append_at(place, payload.slice(sent..end)).await?;
            count(&self.counters.origin_appends, 1);
            count(&self.counters.uploaded_bytes, (end - sent) as u64);
            sent = end;
        }
        Ok(())
    }

    /// Reads the data of an append from the log, and verifies it.
    async fn read_append(&self, append: &Pending) -> Result<block::Data> {
        let data = self.read_log(append.data, append.entry.length()).await?;
        if self.sum_of(std::slice::from_ref(&data)) == append.entry.sum {
            return Ok(data);
        }
        let Entry { zone, offset, .. } = append.entry;
        let error = Error::corrupt(format!(
            "data of zone {zone} byte {offset} in the log of the write cache of zones, at address {}: wrong checksum: the fast \
             device has damaged it, and it isn't uploaded; expected the bytes that were appended; restore the device",
            append.data
        ));
        // A repetition would read the same bytes.
        self.end_uploads(&error);
        Err(error)
    }

    /// Finishes, resets or closes a zone of the origin; the first operation of an epoch closes all open ones.
    async fn change_origin(&self, entry: Entry) -> Result<()> {
        let Entry { action, zone, generation, .. } = entry;
        count(&self.counters.origin_changes, 1);
        match action {
            Action::Finish => self.origin.finish(zone).await,
            Action::Reset => {
                self.read_cache.wait_until_fetches_ended(zone).await;
                let erase = self.origin.geometry().erase.min(EraseGuarantee::Deallocated);
                let raised = self.origin.reset(zone, erase).await?;
                match raised == generation + 1 {
                    true => Ok(()),
                    false => {
                        let error = Error::protocol(format!(
                            "zone {zone} of the origin has generation {raised} after a reset; expected {}: another \
                             writer uses the origin",
                            generation + 1
                        ));
                        self.end_uploads(&error);
                        Err(error)
                    }
                }
            }
            Action::Unclean | Action::Clean => {
                let reports = Self::origin_reports(&*self.origin).await?;
                for report in reports.iter().filter(|report| report.state.is_open()) {
                    self.origin.close(report.zone).await?;
                }
                Ok(())
            }
            _ => {
                // A zone that was only opened locally, or was rewound, isn't open at the origin.
                let report = self.origin.report(zone, 1).await?;
                match report.first().is_some_and(|report| report.state.is_open()) {
                    true => self.origin.close(zone).await,
                    false => Ok(()),
                }
            }
        }
    }

    /// Moves the cut and the tail past the first operations, which are durable at the origin.
    async fn advance(&self, operations: usize) {
        let mut tail = self.superblock.get().tail;
        for _ in 0..operations {
            let Some(pending) = self.pending.borrow_mut().pop() else { break };
            tail = pending.end;
            if let Err(error) = self.cut.borrow_mut().apply(&pending.entry) {
                self.health.set_conflict(&error);
            }
        }
        let written = self.write_superblock(|superblock| superblock.tail = tail).await;
        if let Err(error) = written {
            self.fail(&error);
        }
        self.checkpoint_if_needed().await;
        self.progress.notify_all();
    }

    /// Writes a checkpoint if the log after the last one is long, or the writer waits for its space. Returns
    /// whether it was written.
    async fn checkpoint_if_needed(&self) -> bool {
        let Superblock { tail, checkpoint_at, .. } = self.superblock.get();
        let length = tail.address - checkpoint_at.address;
        let is_needed =
            length > self.layout.checkpoint_distance() || length > 0 && self.demand.needs_space.get();
        if !is_needed {
            return false;
        }
        self.demand.needs_space.set(false);
        if let Err(error) = checkpoint::write(self).await {
            self.fail(&error);
        }
        self.progress.notify_all();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_origin_that_takes_no_writes_ends_the_uploads() {
        assert!(is_final(&Error::read_only("fenced: this writer was replaced")));
        for passing in [
            Error::disconnected("away"),
            Error::timed_out("slow"),
            Error::no_space("quota"),
            Error::io("500"),
            Error::corrupt("a zone is offline"),
            Error::busy("too many open zones"),
        ] {
            assert!(!is_final(&passing), "{passing}");
        }
    }
}
