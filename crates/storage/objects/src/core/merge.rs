//! Merging: small pieces of a zone are read, written again as one piece, and replaced by one change.
//!
//! # Promises
//! - A merge begins only after an upload that a user has waited for has ended, at the expense of its budget:
//!   an idle volume ends the merge that has begun, and sends nothing then.
//! - One zone is merged at a time. The bytes of one merged piece are in memory, as a part of `memory`.
//! - Uploads go first: a merge takes no slot of theirs, and leaves them connections. It begins when no append
//!   waits for memory, and ends without a change, and releases its own, when appends wait for [`PATIENCE`].
//!   It ends as well when the store fails or asks for fewer requests; nothing begins until [`QUIET`] later.
//! - The pieces are replaced by one manifest, and deleted a grace later. A read that has their names looks
//!   again. A reset cancels the merge of its zone.
//!
//! Left to others: which pieces are merged, and how much (`merging`).

use super::Core;
use super::upload::Attempt;
use crate::merging::{self, Budget, Candidate, Candidates, Decision, Job, Run};
use crate::names::{Name, PieceName};
use crate::open_piece::{EndedPiece, OpenPiece};
use crate::seal::Sealer;
use crate::table::{Change, Piece, Table};
use block::{Buffer, Error, Result, ZoneIndex};
use runtime::Instant;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Requests of a merge at the same time: with those of uploads fewer than the connections of a client.
const READERS: usize = 8;
/// Most bytes of a piece that are read with one request, a multiple of a chunk.
const MAX_READ: u64 = 256 << 10;
/// Most reads, and bytes, between which a merge looks whether it may continue.
const GROUP: (usize, u64) = (64, 2 << 20);
/// Time limit of the reads of a group, and of an upload without its transfer.
const LIMIT: Duration = Duration::from_secs(30);
/// Time without a failure of the store after which a merge may begin.
const QUIET: Duration = Duration::from_secs(10);
/// Longest wait of a merge for free memory.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Time for which appends wait until a merge that has memory ends.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most zones that are looked at to find one whose pieces are worth merging.
const MAX_LOOKS: usize = 16;
/// Pause before another look.
const PAUSE: Duration = Duration::from_millis(50);

/// State of merging.
pub(crate) struct Merging {
    is_enabled: bool,
    /// Largest merged piece.
    target: u64,
    candidates: RefCell<Candidates>,
    budget: RefCell<Budget>,
    is_running: Cell<bool>,
    /// Number of durable merges of zones: a read that fails looks whether it has changed.
    pub changes: Cell<u64>,
    /// Memory that a merge has.
    pub held: Cell<u64>,
    /// Number of failures of the store that were seen, and the time of the last one.
    failures: Cell<(u64, Option<Instant>)>,
    /// Number of objects that were replaced, and bytes that were written again.
    pub replaced: Cell<u64>,
    pub moved: Cell<u64>,
}

/// A merge in progress.
struct Merge<'c> {
    core: &'c Rc<Core>,
    job: Job,
    /// Number of resets of the zone when it began.
    resets: u64,
    /// Key of the job's generation, which a reset destroys on a key store: never that of the zone as it is.
    key: Option<Rc<Sealer>>,
}

/// A run whose merged piece is stored.
struct Merged {
    run: Run,
    attempt: Attempt,
    /// Bytes of the object of a compressed piece; else 0.
    compressed: u32,
}

/// Memory of a merged piece, which isn't that of appends.
struct Held<'c>(&'c Core, u64);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.merging.held.set(self.0.merging.held.get() - self.1);
    }
}

fn cancelled(why: &str) -> Error {
    Error::cancelled(format!("merging pieces: {why}"))
}

impl Merging {
    pub fn new(settings: &super::Settings) -> Merging {
        Merging {
            is_enabled: settings.merge,
            target: merging::target(settings.piece_size, settings.memory),
            candidates: RefCell::default(),
            budget: RefCell::default(),
            is_running: Cell::new(false),
            changes: Cell::new(0),
            held: Cell::new(0),
            failures: Cell::new((0, None)),
            replaced: Cell::new(0),
            moved: Cell::new(0),
        }
    }

    /// Notes that a zone was reset.
    pub fn forget(&self, zone: ZoneIndex) {
        self.candidates.borrow_mut().forget(zone.0);
    }
}

impl Core {
    /// Notes all zones as they are.
    pub(super) fn note_all(&self) {
        let count = self.geometry.zones;
        (0..count).for_each(|zone| self.note(ZoneIndex(zone)));
    }

    /// Notes that a zone has other pieces.
    pub(super) fn note(&self, zone: ZoneIndex) {
        let (pieces, bytes) = self.log.with_table(|table| {
            let entry = &table.zones[zone.0 as usize];
            (entry.pieces.len(), entry.end())
        });
        self.merging.candidates.borrow_mut().note(zone.0, pieces, bytes, self.merging.target);
    }

    /// Notes that a zone is finished: the pieces at its end can be merged.
    pub(super) fn note_finished(&self, zone: ZoneIndex) {
        self.merging.candidates.borrow_mut().reconsider(zone.0);
        self.note(zone);
    }

    /// Notes that a user's piece was uploaded, and begins to merge if that pays.
    pub(super) fn uploaded(self: &Rc<Self>, bytes: u64) {
        let pieces = self.log.with_table(|table| table.stored().pieces);
        self.merging.budget.borrow_mut().earn(bytes, pieces, self.merging.target);
        self.start_merging();
    }

    fn start_merging(self: &Rc<Self>) {
        if !self.merging.is_enabled
            || self.merging.is_running.get()
            || !self.merging.budget.borrow().is_ready()
        {
            return;
        }
        let Some(job) = self.is_quiet().then(|| self.next_job()).flatten() else { return };
        self.merging.is_running.set(true);
        let own = self.clone();
        let task = async move {
            let mut next = Some(job);
            while let Some((job, resets)) = next.take() {
                let merged = own.merge(job, resets).await;
                // What has failed is tried again after another upload, when the store is well.
                let may_continue = own.is_quiet() && own.merging.budget.borrow().is_ready();
                if merged.is_ok() && may_continue {
                    next = own.next_job();
                }
            }
            own.merging.is_running.set(false);
        };
        runtime::spawn(task).detach();
    }

    /// The job that saves most objects for the bytes that it moves, and the zone's number of resets.
    fn next_job(&self) -> Option<(Job, u64)> {
        for _ in 0..MAX_LOOKS {
            let first = self.merging.candidates.borrow_mut().first();
            let zone = match first {
                Candidate::Zone(zone) => zone,
                Candidate::Dropped => {
                    self.note_all();
                    continue;
                }
                Candidate::None => return None,
            };
            let resets = {
                let zone = &self.zones.borrow()[zone as usize];
                (!zone.is_locked).then_some(zone.resets)
            };
            // A finish, a reset or a rewind is in progress.
            let Some(resets) = resets else {
                self.merging.candidates.borrow_mut().remove(zone);
                continue;
            };
            let (pieces, decision) = self.log.with_table(|table| {
                let (budget, entry) = (&mut self.merging.budget.borrow_mut(), &table.zones[zone as usize]);
                (entry.pieces.len(), merging::decide(budget, zone, entry, self.merging.target))
            });
            match decision {
                Decision::Merge(job) => return Some((job, resets)),
                Decision::Wait => return None,
                Decision::Pass => self.merging.candidates.borrow_mut().pass(zone, pieces),
            }
        }
        None
    }

    /// Whether the store has taken all requests for a while.
    fn is_quiet(&self) -> bool {
        let (counts, now) = (self.counts(), runtime::now());
        let failures = counts.slow_downs + counts.timeouts + counts.retries;
        let (known, mut last) = self.merging.failures.get();
        if failures != known || self.is_waiting_for_store() {
            last = Some(now);
            self.merging.failures.set((failures, last));
        }
        last.is_none_or(|last| now - last >= QUIET)
    }
}

impl Core {
    async fn merge(self: &Rc<Self>, job: Job, resets: u64) -> Result<()> {
        let key = match self.zone_key(ZoneIndex(job.zone), job.generation) {
            // The secret is lost.
            Err(Error::Corrupt(_)) => {
                self.merging.candidates.borrow_mut().refuse(job.zone);
                return Err(cancelled("the zone has no key"));
            }
            key => key?,
        };
        Merge { core: self, job, resets, key }.run().await
    }
}

impl Merge<'_> {
    async fn run(self) -> Result<()> {
        let mut merged = Vec::new();
        let mut outcome = Ok(());
        for run in &self.job.runs {
            match self.merge_run(run).await {
                Ok(stored) => merged.push(stored),
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        if let Err(error @ (Error::Corrupt(_) | Error::NotFound(_))) = &outcome
            && self.check().is_ok()
        {
            tracing::warn!("merging pieces of zone {}: {error}; they are left as they are", self.job.zone);
            self.core.merging.candidates.borrow_mut().refuse(self.job.zone);
        }
        if merged.is_empty() {
            return outcome;
        }
        self.commit(&merged).await.and(outcome)
    }

    /// Ends the merge of a zone that was reset, and of zones that were closed or fenced.
    fn check(&self) -> Result<()> {
        self.core.check()?;
        match self.core.zones.borrow()[self.job.zone as usize].resets == self.resets {
            true => Ok(()),
            false => Err(cancelled("the zone was reset")),
        }
    }

    /// As [`check`](Self::check), and ends the merge of a zone with other pieces.
    fn check_runs(&self, merged: &[Merged]) -> Result<()> {
        self.check()?;
        let has_run = |run: &Run, table: &Table| table.has_run(self.job.zone, run.offset, run.length as u32);
        match self.core.log.with_table(|table| merged.iter().all(|merged| has_run(&merged.run, table))) {
            true => Ok(()),
            false => Err(cancelled("the zone has other pieces")),
        }
    }

    /// Ends the merge of zones that were reset or closed, and when the store isn't well.
    fn check_store(&self) -> Result<()> {
        self.check()?;
        match self.core.is_quiet() {
            true => Ok(()),
            false => Err(cancelled("the object store fails, or asks for fewer requests")),
        }
    }

    /// Waits until no append waits for memory, and `memory` bytes are free.
    async fn wait_for_memory(&self, memory: u64) -> Result<()> {
        let end = runtime::now() + MAX_WAIT;
        loop {
            self.check_store()?;
            let is_free =
                self.core.uploads.waiting.get() == 0 && self.core.memory.available() as u64 >= memory;
            if is_free {
                return Ok(());
            }
            if runtime::now() >= end {
                return Err(cancelled("appends need the memory"));
            }
            runtime::sleep(PAUSE).await;
        }
    }

    /// Returns when appends have waited for memory for a while.
    async fn wait_until_appends_starve(&self) {
        let mut since = None;
        loop {
            let (now, is_waiting) = (runtime::now(), self.core.uploads.waiting.get() > 0);
            since = is_waiting.then(|| since.unwrap_or(now));
            if since.is_some_and(|since| now - since >= PATIENCE) {
                return;
            }
            runtime::sleep(PAUSE).await;
        }
    }

    /// Merges a run, and stores its piece.
    async fn merge_run(&self, run: &Run) -> Result<Merged> {
        let core = self.core;
        // Twice the length, so that appends needn't wait for it.
        self.wait_for_memory(2 * run.length).await?;
        let permit = core.memory.try_acquire(run.length as usize);
        let permit = Rc::new(permit.ok_or_else(|| cancelled("appends need the memory"))?);
        let merging = &core.merging;
        merging.held.set(merging.held.get() + run.length);
        let _held = Held(core, run.length);
        let (attempt, is_begun) = (core.attempt(), Cell::new(false));
        let name = self.merged_name(run, attempt.serial);
        // Before the reads: what they return isn't sealed with a later key.
        let sealer = core.sealer(name, self.key.as_ref());
        let work = async {
            let mut piece = core.new_piece(run.offset, sealer);
            piece.keep(permit);
            self.read(run, &mut piece).await?;
            let ended = piece.end();
            if ended.length != run.length {
                return Err(cancelled("the zone has other pieces"));
            }
            self.check_store()?;
            is_begun.set(true);
            self.upload(&name, &ended).await.map(|()| ended.compressed)
        };
        let merged = {
            let (mut work, mut appends_starve) = (pin!(work), pin!(self.wait_until_appends_starve()));
            poll_fn(|context| match appends_starve.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Err(cancelled("appends need the memory"))),
                Poll::Pending => work.as_mut().poll(context),
            })
            .await
        };
        if merged.is_err() && is_begun.get() {
            // It may be written or not.
            core.garbage.add([Name::Piece(name)]);
        }
        merged.map(|compressed| Merged { run: *run, attempt, compressed })
    }

    /// Name of the piece that replaces a run.
    fn merged_name(&self, run: &Run, serial: u64) -> PieceName {
        let epoch = self.core.log.identity().epoch;
        self.name_of(epoch, run.offset, serial)
    }

    /// Name of a piece of the zone.
    fn name_of(&self, epoch: u32, offset: u64, serial: u64) -> PieceName {
        PieceName { zone: self.job.zone, generation: self.job.generation, epoch, offset, serial }
    }

    async fn read(&self, run: &Run, piece: &mut OpenPiece) -> Result<()> {
        // Only this merge and a reset change the pieces that a zone has.
        let pieces = self.core.log.with_table(|table| {
            let pieces = &table.zones[self.job.zone as usize].pieces;
            pieces.get(run.first..run.first + run.pieces).map(<[Piece]>::to_vec)
        });
        let pieces = pieces.ok_or_else(|| cancelled("the zone was reset"))?;
        let reads = pieces.iter().flat_map(|piece| {
            let length = u64::from(piece.length);
            let ranges = (0..length).step_by(MAX_READ as usize);
            ranges.map(move |from| (*piece, from..length.min(from + MAX_READ)))
        });
        let mut reads = reads.peekable();
        while reads.peek().is_some() {
            let (mut group, mut bytes) = (Vec::new(), 0);
            while group.len() < GROUP.0 && bytes < GROUP.1 {
                let Some((piece, wanted)) = reads.next() else { break };
                bytes += wanted.end - wanted.start;
                group.push((piece, wanted));
            }
            self.check_store()?;
            let reading = runtime::join_limited(READERS, group.into_iter().map(|read| self.read_one(read)));
            let read = runtime::timeout(LIMIT, reading).await;
            for buffer in read.map_err(|_| cancelled("the object store is slow"))? {
                let buffer = buffer?;
                let mut bytes = buffer.filled();
                while !bytes.is_empty() {
                    bytes = &bytes[piece.push(bytes, u64::MAX)..];
                }
            }
        }
        Ok(())
    }

    async fn read_one(&self, (piece, wanted): (Piece, Range<u64>)) -> Result<Buffer> {
        let mut buffer = Buffer::new((wanted.end - wanted.start) as usize);
        let name = self.name_of(piece.epoch, piece.offset, piece.serial);
        let key = self.key.as_deref();
        self.core.read_stored(&name, key, piece.size(), wanted, &mut buffer).await?;
        Ok(buffer)
    }

    /// Uploads the merged piece by one attempt.
    async fn upload(&self, name: &PieceName, ended: &EndedPiece) -> Result<()> {
        // Of a slow connection 1 MB/s.
        let limit = LIMIT + Duration::from_micros(ended.length);
        match runtime::timeout(limit, self.core.put_piece(name, ended)).await {
            // Damage on this way isn't that of the pieces.
            Ok(stored) => stored.map_err(|error| cancelled(&format!("the upload failed: {error}"))),
            Err(_) => Err(cancelled("the object store is slow")),
        }
    }

    /// Replaces the pieces of the runs by those of the attempts, by one manifest.
    async fn commit(&self, merged: &[Merged]) -> Result<()> {
        let (core, zone) = (self.core, self.job.zone);
        let change = |Merged { run, attempt, compressed }: &Merged| Change::Merge {
            zone,
            offset: run.offset,
            length: run.length as u32,
            compressed: *compressed,
            serial: attempt.serial,
        };
        let changes: Vec<Change> = merged.iter().map(change).collect();
        if let Err(error) = self.check_runs(merged) {
            let name = |of: &Merged| Name::Piece(self.merged_name(&of.run, of.attempt.serial));
            core.garbage.add(merged.iter().map(name));
            return Err(error);
        }
        // A reset that comes now is a later change.
        let batch = core.log.push(changes);
        core.log.wait_until_durable(batch).await?;
        let merging = &core.merging;
        merging.changes.set(merging.changes.get() + 1);
        let (pieces, bytes) =
            merged.iter().fold((0, 0), |sum, of| (sum.0 + of.run.pieces, sum.1 + of.run.length));
        merging.replaced.set(merging.replaced.get() + pieces as u64);
        merging.moved.set(merging.moved.get() + bytes);
        core.note(ZoneIndex(zone));
        Ok(())
    }
}
