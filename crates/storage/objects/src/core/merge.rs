//! Merging: small pieces of a zone are read, written again as one piece, and replaced by one change.
//!
//! # Promises
//! - A merge begins only after an upload that a user has waited for has ended, at the expense of its budget:
//!   an idle volume ends the merge that has begun, and sends nothing then.
//! - One zone is merged at a time. The bytes of one merged piece are in memory, as a part of `memory`.
//! - Uploads go first: a merge takes no slot of theirs, and leaves them connections. It waits while appends
//!   wait for memory, and ends without a change if that lasts. It ends as well when the store fails or asks
//!   for fewer requests, and nothing begins until [`QUIET`] later.
//! - The pieces are replaced by one manifest, and deleted a grace later. A read that has their names looks
//!   again. A reset cancels the merge of its zone.
//!
//! Left to others: which pieces are merged, and how much (`merging`).

use super::Core;
use crate::gather::{Gather, Sealed};
use crate::merging::{self, Budget, Candidates, Job, Run};
use crate::names::{Name, PieceName};
use crate::table::{Change, Piece, Table};
use block::{Buffer, Error, Result, ZoneIndex};
use runtime::Instant;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
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
/// Longest wait for users' uploads; then the merge ends.
const PATIENCE: Duration = Duration::from_secs(60);
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

    /// Notes that a zone has other pieces, or is finished.
    pub(super) fn note(&self, zone: ZoneIndex) {
        let (pieces, bytes) = self.log.with_table(|table| {
            let entry = &table.zones[zone.0 as usize];
            (entry.pieces.len(), entry.end())
        });
        self.merging.candidates.borrow_mut().note(zone.0, pieces, bytes, self.merging.target);
    }

    /// Notes that a user's piece was uploaded, and begins to merge if that pays.
    pub(super) fn uploaded(self: &Rc<Self>, bytes: u64) {
        let pieces = self.log.with_table(|table| table.stored().0);
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
                let merge = Merge { core: &own, job, resets };
                let merged = merge.run().await;
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
                Ok(zone) => zone,
                Err(true) => {
                    self.note_all();
                    continue;
                }
                Err(false) => return None,
            };
            let resets = {
                let zone = &self.zones.borrow()[zone as usize];
                (!zone.is_owned).then_some(zone.resets)
            };
            // A finish, a reset or a rewind is in progress.
            let Some(resets) = resets else {
                self.merging.candidates.borrow_mut().remove(zone);
                continue;
            };
            let job = self.log.with_table(|table| {
                let budget = &mut self.merging.budget.borrow_mut();
                merging::job(budget, zone, &table.zones[zone as usize], self.merging.target)
            });
            match job {
                Ok(job) => return Some((job, resets)),
                Err(true) => return None,
                Err(false) => self.merging.candidates.borrow_mut().remove(zone),
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

impl Merge<'_> {
    async fn run(self) -> Result<()> {
        let mut merged = Vec::new();
        let mut outcome = Ok(());
        for run in &self.job.runs {
            match self.merge(run).await {
                Ok(serial) => merged.push((*run, serial)),
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
    fn check_runs(&self, merged: &[(Run, u64)]) -> Result<()> {
        self.check()?;
        let has_run = |run: &Run, table: &Table| table.has_run(self.job.zone, run.offset, run.length as u32);
        match self.core.log.with_table(|table| merged.iter().all(|(run, _)| has_run(run, table))) {
            true => Ok(()),
            false => Err(cancelled("the zone has other pieces")),
        }
    }

    /// Waits until no append waits for memory, and `memory` bytes are free.
    async fn turn(&self, memory: u64) -> Result<()> {
        let end = runtime::now() + PATIENCE;
        loop {
            self.check()?;
            if !self.core.is_quiet() {
                return Err(cancelled("the object store fails, or asks for fewer requests"));
            }
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

    /// Merges a run, and returns the serial number of its piece.
    async fn merge(&self, run: &Run) -> Result<u64> {
        let core = self.core;
        // Twice the length, so that appends needn't wait for it.
        self.turn(2 * run.length).await?;
        let permit = core.memory.try_acquire(run.length as usize);
        let permit = Rc::new(permit.ok_or_else(|| cancelled("appends need the memory"))?);
        let merging = &core.merging;
        merging.held.set(merging.held.get() + run.length);
        let _held = Held(core, run.length);
        let mut gather = Gather::new(run.offset);
        gather.keep(permit);
        self.read(run, &mut gather).await?;
        let sealed = gather.seal();
        if sealed.length != run.length {
            return Err(cancelled("the zone has other pieces"));
        }
        self.turn(0).await?;
        self.upload(run, &sealed).await
    }

    /// Name of a piece of the zone.
    fn name(&self, piece: &Piece) -> PieceName {
        PieceName {
            zone: self.job.zone,
            generation: self.job.generation,
            epoch: piece.epoch,
            offset: piece.offset,
            serial: piece.serial,
        }
    }

    async fn read(&self, run: &Run, gather: &mut Gather) -> Result<()> {
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
            self.turn(0).await?;
            let reading = runtime::join_limited(READERS, group.into_iter().map(|read| self.read_one(read)));
            let read = runtime::timeout(LIMIT, reading).await;
            for buffer in read.map_err(|_| cancelled("the object store is slow"))? {
                let buffer = buffer?;
                let mut bytes = buffer.filled();
                while !bytes.is_empty() {
                    bytes = &bytes[gather.push(bytes, u64::MAX)..];
                }
            }
        }
        Ok(())
    }

    async fn read_one(&self, (piece, wanted): (Piece, Range<u64>)) -> Result<Buffer> {
        let mut buffer = Buffer::new((wanted.end - wanted.start) as usize);
        self.core.read_stored(&self.name(&piece), piece.length.into(), wanted, &mut buffer).await?;
        Ok(buffer)
    }

    /// Uploads the merged piece by one attempt, and returns its serial number.
    async fn upload(&self, run: &Run, sealed: &Sealed) -> Result<u64> {
        let (core, epoch) = (self.core, self.core.log.identity().epoch);
        let piece =
            Piece { offset: run.offset, length: run.length as u32, epoch, serial: core.next_serial() };
        let name = self.name(&piece);
        // Of a slow connection 1 MB/s.
        let limit = LIMIT + Duration::from_micros(run.length);
        let stored = match runtime::timeout(limit, core.put_piece(&name, sealed)).await {
            Ok(stored) => stored,
            Err(_) => Err(cancelled("the object store is slow")),
        };
        if stored.is_err() {
            // It may be written or not.
            core.garbage.add([Name::Piece(name)]);
        }
        stored.map(|()| piece.serial)
    }

    /// Replaces the pieces of the runs by those with the serial numbers, by one manifest.
    async fn commit(&self, merged: &[(Run, u64)]) -> Result<()> {
        let (core, zone) = (self.core, self.job.zone);
        let change = |(run, serial): &(Run, u64)| Change::Merge {
            zone,
            offset: run.offset,
            length: run.length as u32,
            serial: *serial,
        };
        let changes: Vec<Change> = merged.iter().map(change).collect();
        if let Err(error) = self.check_runs(merged) {
            let epoch = core.log.identity().epoch;
            let unused = merged.iter().map(|(run, serial)| {
                let piece = Piece { offset: run.offset, length: run.length as u32, epoch, serial: *serial };
                Name::Piece(self.name(&piece))
            });
            core.garbage.add(unused);
            return Err(error);
        }
        // A reset that comes now is a later change.
        let batch = core.log.push(changes);
        core.log.durable(batch).await?;
        let merging = &core.merging;
        merging.changes.set(merging.changes.get() + 1);
        let (pieces, bytes) =
            merged.iter().fold((0, 0), |sum, (run, _)| (sum.0 + run.pieces, sum.1 + run.length));
        merging.replaced.set(merging.replaced.get() + pieces as u64);
        merging.moved.set(merging.moved.get() + bytes);
        core.note(ZoneIndex(zone));
        Ok(())
    }
}
