//! Commit of the writes of a shard: queued writes become entries of the log, which take effect when their
//! records commit.

use super::staging::Staging;
use super::{Core, WRITE_CLASS, add, zones_of_buffered};
use crate::batch::Batch;
use crate::log_entry::{Body, EntryContent, KvEntry, Part, decode_parts, encode_parts};
use crate::settings::Acknowledge;
use crate::tree::manifest::write_stream;
use block::{Error, Result};
use logkit::{Appender, Owner, flusher, lane};
use runtime::sync::Notify;
use runtime::{RequestKey, Requests};
use smallvec::SmallVec;
use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum bytes of writes that are acknowledged or queued before they are in a record.
const MAX_PENDING: usize = 4 << 20;
/// Maximum bytes of acknowledged writes, and longest delay, after which these are put into a record: the
/// headers of smaller records would be larger than the writes.
const BUFFERED_BYTES: usize = 256 << 10;
const BUFFERED_TIME: Duration = Duration::from_millis(10);
/// Longest wait of an opening for space for the staged writes of an earlier run, and the interval of its
/// checks.
const STAGED_PATIENCE: Duration = Duration::from_secs(30);
const STAGED_LOOK: Duration = Duration::from_millis(20);

/// Writes queued for the next record.
#[derive(Debug, Default)]
struct Pending {
    /// Encoded writes.
    bytes: Vec<u8>,
    /// Requests to complete.
    requests: SmallVec<[RequestKey; 8]>,
    /// Whether all of the writes are in the memtable and were acknowledged.
    is_applied: bool,
    /// Whether all of the writes are deletes.
    frees: bool,
    /// Time of the first acknowledged write.
    since: Option<runtime::Instant>,
}

/// An entry in several records, the last of which hasn't committed.
struct Incomplete {
    body: Rc<Body>,
    /// Number of the entry's first record.
    record: u64,
    /// Zones of the entry's parts.
    zones: SmallVec<[u32; 2]>,
}

/// Commit of the writes of a shard.
pub(crate) struct Commit {
    pub appender: Appender<KvEntry>,
    /// Requests that wait for their entries.
    pub requests: Requests,
    pending: RefCell<Pending>,
    has_pending: Notify,
    /// Entry whose last part hasn't committed.
    incomplete: RefCell<Option<Incomplete>>,
    /// Bytes of the entries of writes in flight.
    unwritten: Cell<u64>,
    /// Numbers of entries of writes that were submitted, and that have ended.
    submitted: Cell<u64>,
    ended: Cell<u64>,
    /// Notified when an entry of writes has ended.
    progress: Notify,
    /// Staged writes; `None` where writes can't be staged.
    staging: Option<Staging>,
    /// Bytes of acknowledged writes after which these are put into a record.
    record_bytes: usize,
}

impl Commit {
    /// Returns the state without writes.
    pub fn new(appender: Appender<KvEntry>, staging: Option<Staging>) -> Self {
        let staged = staging.as_ref().map_or(BUFFERED_BYTES, Staging::record_bytes);
        Commit {
            appender,
            requests: Requests::default(),
            pending: RefCell::default(),
            has_pending: Notify::new(),
            incomplete: RefCell::default(),
            unwritten: Cell::new(0),
            submitted: Cell::new(0),
            ended: Cell::new(0),
            progress: Notify::new(),
            staging,
            record_bytes: staged.min(BUFFERED_BYTES),
        }
    }

    /// Staged writes; `None` where writes can't be staged.
    pub fn staging(&self) -> Option<&Staging> {
        self.staging.as_ref()
    }

    /// Encoded writes that are queued for the next entry.
    pub fn pending(&self) -> Ref<'_, Vec<u8>> {
        Ref::map(self.pending.borrow(), |pending| &pending.bytes)
    }

    /// Whether writes are queued, and they are of this kind.
    fn has_pending_of(&self, is_of_kind: impl Fn(&Pending) -> bool) -> bool {
        let pending = self.pending.borrow();
        !pending.bytes.is_empty() && is_of_kind(&pending)
    }

    /// Number of entries of writes in flight.
    fn in_flight(&self) -> u64 {
        self.submitted.get() - self.ended.get()
    }

    /// Notes an entry of writes that is pushed to the lanes.
    pub fn pushed(&self, bytes: u64) {
        add(&self.unwritten, bytes);
    }

    /// Wakes the task that submits entries, and tasks that wait for their end.
    pub fn wake(&self) {
        self.has_pending.notify_one();
        self.progress.notify_all();
    }

    /// Whether no entry is committed in part.
    pub fn is_complete(&self) -> bool {
        self.incomplete.borrow().is_none()
    }

    /// Last committed record of the shard's writes that replay doesn't need for an entry that is committed in
    /// part: such an entry is replayed as a whole.
    pub fn last_complete_record(&self, shard: u16) -> u64 {
        let incomplete = self.incomplete.borrow().as_ref().map(|incomplete| incomplete.record - 1);
        incomplete.unwrap_or_else(|| self.appender.committed(write_stream(shard)))
    }

    /// Visits the zones of the entry that is committed in part.
    pub fn for_each_incomplete_zone(&self, visit: impl FnMut(u32)) {
        let incomplete = self.incomplete.borrow();
        incomplete.iter().flat_map(|incomplete| incomplete.zones.iter().copied()).for_each(visit);
    }

    /// Forgets the committed parts of an entry, of which another part was refused.
    pub fn forget_parts(&self, log_entry: &KvEntry) {
        drop(self.incomplete.borrow_mut().take_if(|known| Rc::ptr_eq(&known.body, &log_entry.body)));
    }

    /// Adds writes to those queued for the next record.
    fn add(&self, bytes: &[u8], frees: bool, is_applied: bool, request: Option<RequestKey>) {
        let mut pending = self.pending.borrow_mut();
        pending.frees = frees && (pending.bytes.is_empty() || pending.frees);
        pending.is_applied = is_applied;
        pending.bytes.extend_from_slice(bytes);
        pending.requests.extend(request);
        let is_due = pending.bytes.len() >= self.record_bytes;
        let is_told = is_applied && pending.since.is_some() && !is_due;
        if is_applied {
            pending.since.get_or_insert_with(runtime::now);
        }
        drop(pending);
        if !is_told {
            self.has_pending.notify_one();
        }
    }
}

impl Core {
    /// Writes to this shard; all writes of the batch take effect atomically. Returns when they have reached
    /// the state `acknowledge`.
    pub(crate) async fn write(self: &Rc<Self>, batch: Batch, acknowledge: Acknowledge) -> Result<()> {
        self.check_open()?;
        let held = self.gate.enter(&batch).await;
        let written = self.write_entered(batch, acknowledge).await;
        drop(held);
        written?;
        self.flush_for(acknowledge).await
    }

    /// Makes written changes durable if that is how they are acknowledged.
    pub(crate) async fn flush_for(self: &Rc<Self>, acknowledge: Acknowledge) -> Result<()> {
        match acknowledge {
            Acknowledge::Flushed => flusher::flush(&**self).await,
            _ => Ok(()),
        }
    }

    /// Writes to this shard without a flush; the caller has entered the gate.
    pub(crate) async fn write_entered(self: &Rc<Self>, batch: Batch, acknowledge: Acknowledge) -> Result<()> {
        let frees = batch.only_deletes();
        self.until_there_is_space(frees, async || self.write_once(&batch, frees, acknowledge).await).await
    }

    async fn write_once(&self, batch: &Batch, frees: bool, acknowledge: Acknowledge) -> Result<()> {
        self.stall(frees, batch.bytes().len()).await?;
        while self.commit.pending.borrow().bytes.len() >= MAX_PENDING {
            self.check_open()?;
            self.commit.progress.notified().await;
            if !frees {
                self.admit_puts(batch.bytes().len()).await?;
            }
        }
        self.check_open()?;
        // An entry has no puts together with deletes if only deletes may take the last zones. The queued
        // writes are submitted before this one takes effect: it would count as one of them.
        if self.commit.has_pending_of(|pending| pending.frees != frees) && self.is_low() {
            self.submit();
        }
        // A write isn't acknowledged early while an earlier one hasn't taken effect: both may change the same
        // key, and replay has them in this order.
        let is_alone = self.commit.requests.is_empty() && !self.gate.has_batches();
        let is_early = is_alone && self.takes_effect_early(batch, acknowledge)?;
        if is_early {
            self.apply_early(batch.bytes())?;
            if let Some(staging) = self.commit.staging().filter(|_| acknowledge == Acknowledge::Buffered) {
                staging.note_unstaged(self.buffers.sequence());
            }
        }
        // An entry has either acknowledged or waiting writes. None waits if this one has taken effect.
        if self.commit.has_pending_of(|pending| pending.is_applied != is_early) {
            self.submit();
        }
        let request = (!is_early).then(|| self.commit.requests.begin(1, None));
        self.commit.add(batch.bytes(), frees, is_early, request);
        match request {
            Some(request) => self.commit.requests.wait(request).await,
            None => Ok(()),
        }
    }

    /// Whether a write takes effect and is acknowledged before its record is written: with `Buffered`, and
    /// with `Written` once it is staged.
    fn takes_effect_early(&self, batch: &Batch, acknowledge: Acknowledge) -> Result<bool> {
        let may_be_staged = acknowledge == Acknowledge::Written && self.commit.staging.is_some();
        if !(acknowledge == Acknowledge::Buffered || may_be_staged) || !self.has_zones(batch.bytes().len()) {
            return Ok(false);
        }
        let known = self.kit.check_known_space(self.kept_zones());
        match acknowledge {
            Acknowledge::Buffered => known.map(|()| true),
            _ => Ok(known.is_ok() && self.stage(batch)),
        }
    }

    /// Puts writes into the log that an earlier epoch had staged, and makes them durable. Runs before the
    /// store takes writes of clients.
    ///
    /// # Errors
    /// Errors of the log: the writes are still staged then.
    pub(crate) async fn log_staged(self: &Rc<Self>, entries: Vec<Vec<u8>>) -> Result<()> {
        for writes in &entries {
            self.apply_early(writes)?;
            self.commit.add(writes, false, true, None);
            if self.commit.pending().len() >= BUFFERED_BYTES {
                self.settle_staged().await?;
            }
        }
        self.settle_staged().await?;
        flusher::flush(&**self).await
    }

    /// Waits until earlier writes are in records, also while the device below has no space for these: the
    /// cleaner may free some.
    async fn settle_staged(&self) -> Result<()> {
        let begin = runtime::now();
        loop {
            let settled = self.settle().await;
            let Err(error @ Error::NoSpace(_)) = settled else { return settled };
            if self.kit.failure().is_some() || begin.elapsed() >= STAGED_PATIENCE {
                return Err(error.in_context(format!(
                    "shard {}: writes of an earlier run that are staged found no space in the log; they stay staged: give the \
                     device below more space and open the store again, or read them with the key salvage",
                    self.peers.shard
                )));
            }
            self.freeze_for_space();
            self.kit.look_again();
            runtime::sleep(STAGED_LOOK).await;
        }
    }

    /// Refuses queued writes, unless they were acknowledged, when earlier records find no space on the device
    /// below.
    pub(super) fn refuse_pending(&self, error: &Error) {
        if !self.commit.pending.borrow().is_applied {
            let Pending { requests, .. } = self.commit.pending.take();
            let outcome = Err(error.clone());
            requests.into_iter().for_each(|request| self.commit.requests.item_ended(request, &outcome));
        }
        self.commit.progress.notify_all();
        self.events.changed.notify_all();
    }

    /// Submits the queued writes as one entry.
    pub(crate) fn submit(&self) {
        let Pending { mut bytes, requests, is_applied, frees, .. } = self.commit.pending.take();
        if bytes.is_empty() {
            return;
        }
        debug_assert!(
            self.buffers.has_queued(if is_applied { &bytes } else { &[] }),
            "an entry has all writes that have taken effect and are in none"
        );
        let body = encode_parts([Part { shard: self.peers.shard, bytes: &bytes }].into_iter());
        add(&self.commit.submitted, 1);
        self.commit.pushed(body.len() as u64);
        let log_entry =
            KvEntry::writes(body, SmallVec::new(), requests, is_applied, self.kit.layout.block_bytes())
                .freeing(frees);
        // The allocation is reused.
        bytes.clear();
        self.commit.pending.borrow_mut().bytes = bytes;
        if is_applied {
            self.buffers.early_submitted(&log_entry.body);
        }
        lane::push(self, WRITE_CLASS, log_entry);
        self.kit.events.work.notify_one();
    }

    /// Notes that an entry of writes needs no zones of the log any more.
    fn written(&self, bytes: u64) {
        self.commit.unwritten.set(self.commit.unwritten.get().saturating_sub(bytes));
        self.note_unwritten(0);
    }

    /// Notes the end of an entry of this shard's writes.
    pub(crate) fn submitted_ended(&self, bytes: u64) {
        self.written(bytes);
        add(&self.commit.ended, 1);
        self.commit.wake();
    }

    /// Time until the queued writes are put into an entry; `None` if that is now.
    fn wait_of_pending(&self) -> Option<Duration> {
        let pending = self.commit.pending.borrow();
        let since = pending
            .since
            .filter(|_| pending.bytes.len() < self.commit.record_bytes && !self.kit.is_closing())?;
        BUFFERED_TIME.checked_sub(since.elapsed()).filter(|wait| !wait.is_zero())
    }

    /// Makes entries of queued writes: group commit, with two entries in flight.
    pub(crate) async fn run_commits(self: Rc<Self>) {
        loop {
            let has_bytes = !self.commit.pending.borrow().bytes.is_empty();
            if has_bytes && self.commit.in_flight() < 2 && self.kit.failure().is_none() {
                match self.wait_of_pending() {
                    // Further writes end the wait early.
                    Some(wait) => drop(runtime::timeout(wait, self.commit.has_pending.notified()).await),
                    None => self.submit(),
                }
                continue;
            }
            if self.kit.failure().is_some() {
                let Pending { requests, .. } = self.commit.pending.take();
                let error = self.kit.failure().unwrap_or_else(|| Error::closed("the store is closed"));
                requests
                    .into_iter()
                    .for_each(|request| self.commit.requests.item_ended(request, &Err(error.clone())));
                self.commit.progress.notify_all();
                return;
            }
            if self.kit.is_closing() && !has_bytes && self.commit.in_flight() == 0 {
                return;
            }
            self.commit.has_pending.notified().await;
            // Writes that other clients submit in the same turn join the entry.
            runtime::yield_now().await;
        }
    }

    /// Waits until every write that is acknowledged or queued at the call has taken effect. Entries end in
    /// the order of their submission.
    pub(crate) async fn settle(&self) -> Result<()> {
        self.submit();
        let last = self.commit.submitted.get();
        while self.commit.ended.get() < last {
            if let Some(error) = self.kit.failure() {
                return Err(error);
            }
            self.kit.space.check()?;
            self.commit.progress.notified().await;
        }
        // The log has failed if it refuses acknowledged writes.
        self.kit.failure().map_or(Ok(()), Err)
    }

    /// Whether enough zones are free for all acknowledged and earlier writes of all shards that aren't in
    /// records yet, and for a further one of `more` bytes: the log can't refuse these.
    fn has_zones(&self, more: usize) -> bool {
        let space = &self.peers.space;
        self.note_unwritten(more);
        // Compactions may fill the zones that they have claimed.
        let claimed = space.claimed.load(Ordering::Acquire);
        let needed = zones_of_buffered(&self.kit.layout, self.peers.shards, space.unwritten_bytes());
        self.kit.pool.free() > self.kept_by_records() + claimed + needed
    }

    /// Notes how many bytes of this shard's writes still take zones, with `more` bytes that are about to be
    /// queued: each takes the log and then a table.
    pub(crate) fn note_unwritten(&self, more: usize) {
        let unlogged = self.commit.unwritten.get() + (self.commit.pending().len() + more) as u64;
        // Flushes take zones before they free those of the log.
        let bytes = 2 * unlogged + self.buffers.bytes() as u64;
        self.peers.space.set_unwritten(self.peers.shard, bytes);
    }

    /// Completes the requests and jobs that wait for an entry.
    pub(super) fn end(&self, log_entry: &KvEntry, outcome: &Result<()>) {
        let EntryContent::Writes { requests, others, is_applied } = &log_entry.content else { return };
        if *is_applied {
            self.buffers.early_committed();
        }
        requests.iter().for_each(|request| self.commit.requests.item_ended(*request, outcome));
        let bytes = log_entry.body.bytes.len() as u64;
        match others.is_empty() {
            true => self.submitted_ended(bytes),
            false => self.written(bytes),
        }
        if outcome.is_err() {
            // A compaction may free space.
            self.events.changed.notify_all();
        }
    }

    /// Applies writes when the last part of their entry commits.
    pub(super) fn commit_writes(&self, log_entry: &KvEntry, zone: u32) -> Result<()> {
        self.may_be_reclaimed();
        self.buffers.note_zone(zone);
        if log_entry.is_part() {
            self.note_part(log_entry, zone);
        }
        if !log_entry.is_last_part() || log_entry.body.is_refused.get() {
            return Ok(());
        }
        if !matches!(log_entry.content, EntryContent::Writes { is_applied: true, .. }) {
            decode_parts(&log_entry.body.bytes, |part| match part.shard == self.peers.shard {
                true => self.apply(part.bytes),
                false => Ok(()),
            })?;
        }
        Ok(())
    }

    /// Notes a committed part of an entry in several records: its first record is needed until the last one
    /// has committed.
    fn note_part(&self, log_entry: &KvEntry, zone: u32) {
        let mut incomplete = self.commit.incomplete.borrow_mut();
        if log_entry.is_last_part() {
            if let Some(done) = incomplete.take_if(|known| Rc::ptr_eq(&known.body, &log_entry.body)) {
                done.zones.into_iter().for_each(|zone| self.buffers.note_old_zone(zone));
            }
            return;
        }
        let record = self.commit.appender.committed(write_stream(self.peers.shard));
        match &mut *incomplete {
            Some(known) if Rc::ptr_eq(&known.body, &log_entry.body) => known.zones.push(zone),
            other => {
                *other = Some(Incomplete {
                    body: log_entry.body.clone(),
                    record,
                    zones: SmallVec::from_slice(&[zone]),
                })
            }
        }
    }
}
