//! The uploader: applies the pending operations at the origin, in batches, in the order of the log.
//!
//! Steps:
//! 1. It waits until an upload is due: by size, by age, when users are idle, or on demand.
//! 2. The log is made durable on the fast device: the origin is never ahead of it.
//! 3. After an open and after an error, the origin is compared with the cut, and zones are rewound.
//! 4. The appends of a batch are sent (`sending`), and one flush of the origin makes them durable. A finish
//!    or a reset is a batch of its own. If changes of the origin become durable in the order in which they
//!    begin ([`block::ZonesPart::keep_order`]), they are in the batch of the appends, and further batches are
//!    sent meanwhile.
//! 5. The cut moves, and the tail in the superblock with it.
//! 6. From time to time the cut is written as a checkpoint, which frees space of the ring.
//!
//! After an error of the origin what was sent is awaited and, after a pause, repeated, without end. What no
//! repetition can mend ends the uploads: an origin that has another writer or was changed by one, a zone
//! whose medium has failed, and data in the log that is damaged.

use crate::checkpoint;
use crate::core::Core;
use crate::counters::count;
use crate::format::{Action, Entry, Superblock};
use crate::pending::{Batch, BatchLimits, MAX_PENDING};
use crate::reconcile::{check_media, reconcile};
use crate::sending::Appends;
use block::{EraseGuarantee, Error, Result, ZoneChange, ZoneIndex};
use runtime::JoinHandle;
use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

/// Limit of the appended bytes of a batch: a quarter of the limit of the lag, within these bounds. Each piece
/// of a zone in a bucket ends with the batch, and the lag falls when all of a batch is durable.
const MIN_BATCH_BYTES: u64 = 8 << 20;
const MAX_BATCH_BYTES: u64 = 64 << 20;
/// Limits of the batches that are sent and not durable at the origin: their number, and the appended bytes at
/// which no other is sent. What is sent is repeated after an error; the origin limits the memory of appends.
const MAX_SENT: usize = 64;
const MAX_SENT_BYTES: u64 = 256 << 20;
/// Pending bytes at which an upload begins, unless a quarter of the limit of the lag is less; a half while
/// others are in progress. Small batches make small objects in a bucket.
const UPLOAD_BYTES: u64 = 32 << 20;
/// Limits of the pause after an error of the origin.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// Time for which a close waits for requests to the origin in flight.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Uploads until the cache is closed.
pub async fn run(core: Rc<Core>) {
    let sent = VecDeque::new();
    let mut uploader = Uploader { core, sent, needs_reconcile: true, has_failed: false, pause: PAUSE.0 };
    while uploader.pass().await {}
    uploader.end().await;
}

/// A batch that was sent, and isn't known to be durable at the origin.
struct Sent {
    operations: usize,
    bytes: u64,
    /// Zones that it finishes or resets: nothing else of them is sent meanwhile.
    changes: Vec<ZoneIndex>,
    /// Whether nothing is sent meanwhile: the origin may refuse it when later changes would be durable.
    is_alone: bool,
    durable: JoinHandle<Result<()>>,
}

/// Outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Done,
    /// The cache is being closed.
    Closed,
}

/// The task that uploads.
struct Uploader {
    core: Rc<Core>,
    /// In the order of the log, from the oldest pending operation on. Several only over an origin whose
    /// changes become durable in order.
    sent: VecDeque<Sent>,
    needs_reconcile: bool,
    /// Whether a batch has failed since the last comparison: a part of it may be at the origin.
    has_failed: bool,
    pause: Duration,
}

impl Uploader {
    /// Notes what has become durable, and sends a batch or waits. Returns false once the cache is being
    /// closed.
    async fn pass(&mut self) -> bool {
        let core = self.core.clone();
        let collected = self.collect().await;
        let step = match collected {
            Err(error) => Err(error),
            Ok(()) if core.health.is_closing() => return false,
            Ok(()) if core.health.check_conflict().is_err() => {
                core.demand.changed.notified().await;
                return true;
            }
            Ok(()) => {
                let due = self.due_in();
                match self.next(due).await {
                    Some(batch) => self.send(batch).await,
                    None => {
                        self.wait(due).await;
                        Ok(Step::Done)
                    }
                }
            }
        };
        match step {
            Ok(step) => step == Step::Done,
            Err(error) => self.failed(error).await,
        }
    }

    /// Moves the cut past the batches that have become durable.
    ///
    /// # Errors
    /// That of the first batch that failed; those before it are noted.
    async fn collect(&mut self) -> Result<()> {
        let (mut operations, mut outcome) = (0, Ok(()));
        while outcome.is_ok() && self.sent.front().is_some_and(|first| first.durable.is_finished()) {
            let Some(first) = self.sent.pop_front() else { break };
            outcome = first.durable.await;
            operations += if outcome.is_ok() { first.operations } else { 0 };
        }
        self.advance(operations).await;
        outcome
    }

    /// Notes that the first operations are durable at the origin.
    async fn advance(&mut self, operations: usize) {
        if operations == 0 {
            return;
        }
        self.pause = PAUSE.0;
        self.core.health.origin_error.replace(None);
        self.core.upload_progress.end_step();
        if !self.sent.is_empty() {
            self.core.upload_progress.begin_step();
        }
        self.core.advance(operations).await;
    }

    /// Number of operations that are sent, and their appended bytes.
    fn sent(&self) -> (usize, u64) {
        self.sent
            .iter()
            .fold((0, 0), |(operations, bytes), sent| (operations + sent.operations, bytes + sent.bytes))
    }

    /// Whether a batch may be sent now, whatever it is.
    fn may_send(&self) -> bool {
        self.sent.is_empty()
            || self.core.changes_in_order
                && self.sent.len() < MAX_SENT
                && self.sent().1 < MAX_SENT_BYTES
                && !self.sent.iter().any(|sent| sent.is_alone)
    }

    /// Time until an upload is due; without end while no batch may be sent.
    fn due_in(&self) -> Duration {
        let (operations, bytes) = self.sent();
        if self.may_send() { self.core.due_in(operations, bytes) } else { Duration::MAX }
    }

    /// Returns the next batch if it is due and may be sent.
    async fn next(&self, due: Duration) -> Option<Batch> {
        let core = &self.core;
        if !due.is_zero() {
            return None;
        }
        if self.sent.is_empty() {
            // Everything that is pending now is uploaded without further waits.
            core.demand.target.set(core.demand.target.get().max(core.log.completed()));
        }
        let completed = core.log.completed();
        // A flush would be in vain while nothing may be sent.
        self.batch(completed)?;
        // After a failure of the fast device the durable records are uploaded.
        let _ = core.make_durable(completed).await;
        self.batch(core.log.durable())
    }

    /// Returns the next batch that may be sent, of the records up to `last`.
    fn batch(&self, last: u64) -> Option<Batch> {
        let core = &self.core;
        let skip = self.sent().0;
        let changing: BTreeSet<ZoneIndex> =
            self.sent.iter().flat_map(|sent| &sent.changes).copied().collect();
        let limits = core.batch_limits();
        let is_free = |entry: &Entry| {
            !changing.contains(&entry.zone) && (skip == 0 || !limits.is_barrier(entry.action))
        };
        core.pending.borrow().next_batch(limits, last, skip, is_free)
    }

    /// Sends a batch.
    ///
    /// # Errors
    /// Errors of the origin. The batch isn't among those that were sent then.
    async fn send(&mut self, batch: Batch) -> Result<Step> {
        let core = self.core.clone();
        core.upload_progress.begin_step();
        if self.needs_reconcile {
            let reconciling = core.clone();
            let reconciled = runtime::spawn(async move { reconciling.reconcile().await });
            let Some(found) = core.unless_closed(reconciled).await else { return Ok(Step::Closed) };
            let found = found?;
            if found > 0 {
                self.advance(found).await;
                return Ok(Step::Done);
            }
            (self.needs_reconcile, self.has_failed) = (false, false);
        }
        match batch {
            Batch::Joined(operations) => self.send_joined(operations).await,
            Batch::Barrier => self.send_change().await,
        }
    }

    async fn send_joined(&mut self, operations: usize) -> Result<Step> {
        let core = self.core.clone();
        let (mut appends, mut changes, mut bytes) = (Appends::new(), Vec::new(), 0);
        for pending in core.pending.borrow().iter().skip(self.sent().0).take(operations) {
            match pending.entry.action {
                Action::Append => {
                    bytes += pending.entry.length();
                    appends.entry(pending.entry.zone).or_default().push(*pending);
                }
                Action::Finish => changes.push(ZoneChange::Finish(pending.entry.zone)),
                Action::Reset => changes.push(ZoneChange::Reset(pending.entry.zone)),
                _ => {}
            }
        }
        let zones: Vec<ZoneIndex> = appends.keys().copied().collect();
        let (sending, sent_changes) = (core.clone(), changes.clone());
        let send = async move {
            sending.send_appends(appends).await?;
            sending.wait_until_unread(&sent_changes).await;
            Ok(())
        };
        if self.meanwhile(send).await? == Step::Closed {
            return Ok(Step::Closed);
        }
        let changing = changes.iter().map(|change| change.zone()).collect();
        let making = core.clone();
        let durable = begin(&core, async move { making.make_durable_at_origin(zones, changes).await }).await;
        self.sent.push_back(Sent { operations, bytes, changes: changing, is_alone: false, durable });
        Ok(Step::Done)
    }

    async fn send_change(&mut self) -> Result<Step> {
        let core = self.core.clone();
        let next = { core.pending.borrow().iter().nth(self.sent().0).map(|next| next.entry) };
        let Some(entry) = next else { return Ok(Step::Done) };
        if entry.action == Action::Reset {
            let waiting = core.clone();
            let ended = async move {
                waiting.wait_until_unread(&[ZoneChange::Reset(entry.zone)]).await;
                Ok(())
            };
            if self.meanwhile(ended).await? == Step::Closed {
                return Ok(Step::Closed);
            }
        }
        let changing = core.clone();
        let durable = begin(&core, async move { changing.change_origin(entry).await }).await;
        self.sent.push_back(Sent { operations: 1, bytes: 0, changes: Vec::new(), is_alone: true, durable });
        Ok(Step::Done)
    }

    /// Waits for a part of a step, and notes what becomes durable in the meantime.
    ///
    /// # Errors
    /// Errors of the part, and of batches in flight, once the part has ended.
    async fn meanwhile(&mut self, part: impl Future<Output = Result<()>> + 'static) -> Result<Step> {
        let core = self.core.clone();
        let part = begin(&core, part).await;
        let mut collected = Ok(());
        loop {
            if collected.is_ok() {
                collected = self.collect().await;
            }
            if part.is_finished() || core.health.is_closing() {
                break;
            }
            core.demand.changed.notified().await;
        }
        let ended = core.unless_closed(part).await;
        collected?;
        ended.map_or(Ok(Step::Closed), |ended| ended.map(|()| Step::Done))
    }

    /// Waits for an event, or until an upload is `due`. One that is due and can't be sent waits for an event,
    /// such as the end of a batch in flight.
    async fn wait(&self, due: Duration) {
        let core = &self.core;
        if core.health.is_closing() || self.sent.front().is_some_and(|first| first.durable.is_finished()) {
            return;
        }
        if core.pending.borrow().len() == 0
            && core.demand.needs_space.get()
            && core.checkpoint_if_needed().await
        {
            return;
        }
        match due {
            Duration::ZERO | Duration::MAX => core.demand.changed.notified().await,
            due => drop(runtime::timeout(due, core.demand.changed.notified()).await),
        }
    }

    /// Waits for the end of all batches that were sent, and pauses. The origin is compared with the cut
    /// before the next one. Returns false once the cache is being closed.
    async fn failed(&mut self, error: Error) -> bool {
        let core = self.core.clone();
        (self.needs_reconcile, self.has_failed) = (true, true);
        if !self.end_sent().await {
            return false;
        }
        // Other final errors are those of a step that has ended the uploads itself.
        if is_final(&error) {
            core.end_uploads(&error);
        } else if core.health.check_conflict().is_ok() {
            core.note_error(error);
        }
        if core.health.is_closing() {
            return false;
        }
        let _ = runtime::timeout(self.pause, core.demand.urgent.notified()).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
        true
    }

    /// Waits for all batches in flight, and notes those that have become durable before the first that
    /// hasn't, where a repetition begins. Returns false if the cache is being closed and they don't end in
    /// time.
    async fn end_sent(&mut self) -> bool {
        let (operations, calls): (Vec<_>, Vec<_>) =
            self.sent.drain(..).map(|sent| (sent.operations, sent.durable)).unzip();
        if calls.is_empty() {
            return true;
        }
        let ended = self.core.unless_closed(runtime::spawn(runtime::join_all(calls))).await;
        let Some(outcomes) = ended else { return false };
        let durable = outcomes.iter().zip(operations).take_while(|(outcome, _)| outcome.is_ok());
        let durable = durable.map(|(_, operations)| operations).sum();
        self.advance(durable).await;
        true
    }

    /// Ends the uploads at a close.
    async fn end(&mut self) {
        if !self.core.is_stalled.load(Ordering::Acquire) {
            self.end_sent().await;
        }
        // A clean close of the origin would make the appends of a batch that was sent in part durable.
        if self.has_failed && self.core.flushes_atomically {
            self.core.is_stalled.store(true, Ordering::Release);
        }
    }
}

/// Begins a call of the origin before this returns, so that the calls begin in the order of the log. A task
/// carries it on, and wakes the uploader at its end.
async fn begin(core: &Rc<Core>, call: impl Future<Output = Result<()>> + 'static) -> JoinHandle<Result<()>> {
    let mut call = Box::pin(call);
    let first = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
    let core = core.clone();
    runtime::spawn(async move {
        let outcome = match first {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => call.await,
        };
        core.demand.changed.notify_all();
        outcome
    })
}

/// Whether no repetition can succeed after this error: the origin takes no writes any more. That is the error
/// of an object store whose volume another writer has claimed.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::ReadOnly(_))
}

impl Core {
    fn batch_limits(&self) -> BatchLimits {
        BatchLimits {
            bytes: MAX_BATCH_BYTES.min(self.max_lag.bytes / 4).max(MIN_BATCH_BYTES),
            joins_epochs: self.flushes_atomically,
            joins_finishes: self.changes_in_order,
            // A reset that destroys a key isn't one call: it may be refused when the others are durable.
            joins_resets: self.changes_in_order && self.origin.geometry().erase != EraseGuarantee::Key,
            closes: self.geometry.max_open != 0,
        }
    }

    /// Time until an upload is due of the operations after the first `sent`, whose appends have `sent_bytes`;
    /// zero if it is. While those are being uploaded, it is due by its size: small ones wait, and become a
    /// larger one.
    fn due_in(&self, sent: usize, sent_bytes: u64) -> Duration {
        let pending = self.pending.borrow();
        let Some(next) = pending.iter().nth(sent) else { return Duration::MAX };
        let large = UPLOAD_BYTES.min(self.max_lag.bytes / if sent > 0 { 2 } else { 4 });
        let is_large = pending.len() - sent >= MAX_PENDING / 2 || pending.bytes() - sent_bytes >= large;
        let is_due = is_large || self.demand.needs_space.get();
        if sent > 0 {
            return if is_due { Duration::ZERO } else { Duration::MAX };
        }
        if is_due || next.record <= self.demand.target.get() || self.waiting.len() > 0 {
            return Duration::ZERO;
        }
        let last_append = self.demand.last_append.get();
        let Some(last_append) = last_append else { return Duration::ZERO };
        let by_age = (self.max_lag.age / 2).saturating_sub(next.since.elapsed());
        let idle = (self.max_lag.age / 5).saturating_sub(last_append.elapsed());
        by_age.min(idle)
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
            self.is_stalled.store(true, Ordering::Release);
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
    pub fn end_uploads(&self, error: &Error) {
        count(&self.counters.origin_errors, 1);
        let error = error.in_context("the origin of the write cache of zones takes no more writes");
        tracing::error!("{error}; what isn't uploaded stays on the fast device");
        self.health.set_conflict(&error);
        self.wake_all();
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

    /// Moves the cut and the tail past the first operations, which are durable at the origin.
    async fn advance(&self, operations: usize) {
        let mut tail = self.superblock.get().tail;
        for _ in 0..operations {
            let Some(pending) = self.pending.borrow_mut().pop() else { break };
            tail = pending.end;
            if let Err(error) = self.cut.borrow_mut().apply(&pending.entry) {
                self.end_uploads(
                    &error.in_context("an operation of the log doesn't fit the zones at the origin"),
                );
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
