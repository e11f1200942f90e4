//! Cleaning: what is live in a zone is written elsewhere, so that the zone can be reset; and resetting zones.
//!
//! A move is a record like any other, of the cleaner's own stream, so users' writes never wait for one. It takes effect
//! when it commits, and only for blocks that are still where they were: a write that came in between wins.
//!
//! The cleaner's task gathers a small state, asks [`decision::next`] for the action that helps most, and carries it out. The pace
//! of the moves is `pace.rs`'s, with the argument why no writer waits for ever. What to read of a victim is decided by
//! [`zones::cleaning::read_plan`].
//!
//! A zone is reset when nothing in it is live, and only after what made it so is durable, a durable checkpoint covers
//! all its records, and everybody who may be reading from it has finished.

use crate::commit::Effect;
use crate::core::{Core, Group, Item, count};
use crate::decision::{self, Action, Admission, Cause, Choice, Progress, State, Task};
use crate::format::{CLEANER, Change, EXTENT, REPLAYED, USER, VersionId};
use crate::lane::{Scratch, write_group};
use crate::open_zone::OpenZone;
use crate::scan::{self, Found};
use crate::table::{CHECKPOINT_CLASS, Usage};
use block::{Buffer, Data, Error, Payload, Result, ZoneIndex};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use zones::cleaning::{Arrival, Candidate, ReadCost, read_plan};
use zones::record::sum_of;

/// What a read of a victim costs beside its bytes, in bytes that could have been read meanwhile. fio, randread, direct,
/// iodepth=8, on a virtual SSD, 2026-11-21: 45 800 reads of 4 KiB a second or 1568 of 1 MiB, so 19 µs per request and
/// 2.5 µs per 4 KiB.
const REQUEST_BYTES: usize = 32 << 10;
/// The longest read of a victim, in bytes.
const LARGEST_READ: usize = 1 << 20;
/// How many reads of a victim are on their way at a time.
const READS: usize = 8;

/// A run of live blocks in the zone that is being cleaned.
#[derive(Debug, Clone, Copy)]
struct Run {
    position: u32,
    count: u32,
    version: VersionId,
    block: u64,
    /// Which record, and which of its data blocks: for the checksums.
    record: usize,
    first: u32,
}

impl Run {
    /// Some of its blocks, counted from its first.
    fn part(&self, from: u32, count: u32) -> Run {
        Run {
            position: self.position + from,
            count,
            version: self.version,
            block: self.block + u64::from(from),
            record: self.record,
            first: self.first + from,
        }
    }
}

/// The zone that is being cleaned.
#[derive(Debug)]
struct Victim {
    zone: u32,
    class: u8,
    opened: u64,
    records: Vec<Found>,
    /// What was live in it when it was chosen, by position; from `next` on it hasn't been moved.
    runs: Vec<Run>,
    next: usize,
}

impl Victim {
    /// Whether live blocks are left to move.
    fn has_moves(&self, core: &Core) -> bool {
        self.next < self.runs.len() && core.table.get(self.zone).live > 0
    }
}

/// Answers to the questions of this pass.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    choice: Choice,
    pace: Admission,
}

/// What came of [`Action::Choose`].
#[derive(Debug, Clone, Copy)]
enum Chosen {
    /// The policy chose no victim.
    Nothing(Choice),
    /// There is a victim.
    Victim,
    /// The victim could not be read, and isn't cleaned again before the log is reopened.
    Unreadable,
}

/// Something that a task of its own does, and how that ended: moves needn't wait for a flush or a checkpoint.
#[derive(Debug, Default)]
struct Aside(Option<Rc<RefCell<Option<Result<()>>>>>);

impl Aside {
    /// Its state, as the decision sees it.
    fn progress(&self) -> Progress {
        match &self.0 {
            None => Progress::Idle,
            Some(ended) if ended.borrow().is_none() => Progress::Running,
            Some(_) => Progress::Ended,
        }
    }

    /// Begins it. Its end wakes the cleaner.
    fn begin<Fut: Future<Output = Result<()>> + 'static>(
        &mut self,
        core: &Rc<Core>,
        work: impl FnOnce(Rc<Core>) -> Fut,
    ) {
        let ended = Rc::new(RefCell::new(None));
        self.0 = Some(ended.clone());
        let (own, work) = (core.clone(), work(core.clone()));
        let task = async move {
            let outcome = work.await;
            *ended.borrow_mut() = Some(outcome);
            own.freed.notify_all();
            own.cleaner.notify_all();
        };
        core.tasks.spawn(task).detach();
    }

    /// Takes the outcome of a task that has ended; the next one may begin.
    ///
    /// # Errors
    /// The failure of the task.
    fn collect(&mut self) -> Result<()> {
        let outcome = self.0.take().and_then(|ended| ended.borrow_mut().take());
        outcome.unwrap_or(Ok(()))
    }

    /// Waits until it has ended.
    async fn wait(&self, core: &Core) {
        while self.0.as_ref().is_some_and(|ended| ended.borrow().is_none()) {
            core.freed.notified().await;
        }
    }
}

/// The cleaner's task.
pub struct Cleaner {
    core: Rc<Core>,
    zones: Vec<Option<OpenZone>>,
    scratch: Scratch,
    victim: Option<Victim>,
    /// What goes on beside cleaning.
    checkpoint: Aside,
    reset: Aside,
    reserve: Aside,
    /// Number of failures in a row.
    failures: u32,
    /// Error of the last action, until the cleaner has rested.
    error: Option<Error>,
}

/// Starts the cleaner.
pub fn start(core: &Rc<Core>) -> runtime::JoinHandle<()> {
    let classes = usize::from(core.policy.borrow().classes());
    let cleaner = Cleaner {
        core: core.clone(),
        zones: (0..classes).map(|_| None).collect(),
        scratch: Scratch::default(),
        victim: None,
        checkpoint: Aside::default(),
        reset: Aside::default(),
        reserve: Aside::default(),
        failures: 0,
        error: None,
    };
    core.tasks.spawn(cleaner.run())
}

impl Cleaner {
    async fn run(mut self) {
        while self.pass().await {}
        self.let_go();
        // A lane that waits for a zone looks again whether anything is queued.
        self.core.freed.notify_all();
        for zone in self.zones.iter_mut().filter_map(Option::take) {
            self.core.seal_now(zone).await;
        }
        self.core.seal_filler().await;
    }

    /// Carries out actions up to one that ends the pass. Returns false when the cleaner is to end.
    async fn pass(&mut self) -> bool {
        let core = self.core.clone();
        let woken = core.cleaner.notified();
        let mut answers = Answers::default();
        loop {
            let state = self.gather(answers);
            debug_assert!(state.pace != Admission::Later || !state.users_wait(), "the pace: {state:?}");
            match decision::next(&state) {
                Action::Begin(task) => {
                    self.begin(task);
                    continue;
                }
                Action::AskPace => {
                    answers.pace = core.admit_moves();
                    continue;
                }
                Action::Choose => match self.choose().await {
                    Chosen::Nothing(choice) => {
                        answers.choice = choice;
                        continue;
                    }
                    // Time has passed: the decision is for a new state.
                    Chosen::Victim => continue,
                    Chosen::Unreadable => self.done().await,
                },
                Action::FreePiece => {
                    core.give_up_some();
                    self.done().await;
                }
                Action::Collect(task) => {
                    let outcome = self.aside(task).collect();
                    self.ended(outcome).await;
                }
                Action::Move { records } => {
                    let outcome = self.clean_some(records).await;
                    self.ended(outcome).await;
                }
                Action::EndVictim => {
                    self.end_victim();
                    self.done().await;
                }
                Action::Wait { cause, until_commit } => {
                    if cause == Cause::Change {
                        self.failures = 0;
                    }
                    if self.failures == 0 {
                        *core.stuck.borrow_mut() = None;
                    }
                    self.wait(woken, until_commit).await;
                }
                Action::Refuse { until_commit } => {
                    self.failures = 0;
                    *core.stuck.borrow_mut() = Some(core.space.error().unwrap_or_else(nothing_to_clean));
                    self.wait(woken, until_commit).await;
                }
                Action::Retry { refuse, limit } => {
                    let error = self.error.take().filter(|_| refuse);
                    *core.stuck.borrow_mut() = error.map(|error| error.in_context("no zone can be freed"));
                    core.freed.notify_all();
                    let woken = core.cleaner.notified();
                    runtime::sleep(decision::REST).await;
                    if !limit.is_zero() {
                        let _woken = runtime::timeout(limit, woken).await;
                    }
                }
                Action::Stop => return false,
            }
            return true;
        }
    }

    /// What the decision depends on, at the moment.
    fn gather(&self, answers: Answers) -> State {
        let core = &self.core;
        // Counting the zones of checkpoints takes time, so it is left out while another action may be better.
        let frees_pages = || core.since_checkpoint.get() > 0 && core.has_superseded();
        State {
            has_failed: core.failure().is_some(),
            is_closing: core.is_closing.get(),
            has_queued: core.has_work(),
            has_just_failed: self.error.is_some(),
            failures: self.failures,
            has_deleted: !core.versions.borrow().dying.is_empty(),
            reset: self.reset.progress(),
            checkpoint: self.checkpoint.progress(),
            reserve: self.reserve.progress(),
            wants_reserve: core.wants_reserve(),
            wants_checkpoint: core.wants_checkpoint(),
            free: core.table.free(),
            kept: core.kept_zones(),
            lanes: core.settings.appends_in_flight,
            dead: core.table.dead(),
            resetting: core.table.resetting(),
            has_covered: core.has_resettable(),
            has_coverable: core.has_coverable(),
            frees_pages: answers.choice == Choice::Nothing && frees_pages(),
            victim: match &self.victim {
                None => decision::Victim::None,
                Some(victim) if victim.has_moves(core) => decision::Victim::Moves,
                Some(_) => decision::Victim::Moved,
            },
            choice: answers.choice,
            is_blocked: core.moves_wait(),
            pace: answers.pace,
        }
    }

    fn aside(&mut self, task: Task) -> &mut Aside {
        match task {
            Task::Reset => &mut self.reset,
            Task::Checkpoint => &mut self.checkpoint,
            Task::Reserve => &mut self.reserve,
        }
    }

    fn begin(&mut self, task: Task) {
        let core = self.core.clone();
        self.aside(task).begin(&core, async move |core| match task {
            Task::Reset => core.reset_dead().await.map(|_| ()),
            Task::Checkpoint => core.take_checkpoint(false).await,
            Task::Reserve => {
                core.back_reserve().await;
                Ok(())
            }
        });
    }

    /// An action has succeeded: the failures in a row end, and writers look for a zone again.
    async fn done(&mut self) {
        self.failures = 0;
        *self.core.stuck.borrow_mut() = None;
        self.core.freed.notify_all();
        runtime::yield_now().await;
    }

    /// An action has succeeded or failed.
    async fn ended(&mut self, outcome: Result<()>) {
        let Err(error) = outcome else { return self.done().await };
        self.failures = self.failures.saturating_add(1);
        if self.failures.is_power_of_two() {
            tracing::warn!("cleaning failed {} times in a row: {error}", self.failures);
        }
        self.error = Some(error);
    }

    /// Tells waiting writers, and waits to be woken.
    async fn wait(&self, woken: impl Future<Output = ()>, until_commit: bool) {
        if until_commit {
            self.core.wake_cleaner_with_next_commit();
        }
        self.core.tell_writers();
        woken.await;
    }

    /// Lets the policy choose a victim, and finds what is live in it.
    async fn choose(&mut self) -> Chosen {
        let core = self.core.clone();
        // On a full host zones are filled only as far as they are backed. A victim that fills such a zone again gains nothing, and would
        // be moved for ever.
        let unused = match core.table.is_only_backed() {
            true => core.layout.zone_blocks - core.layout.backed_blocks(),
            false => 0,
        };
        let mut candidates = core.table.candidates(core.layout.data_blocks().saturating_sub(unused));
        // What is live in it can still grow: then not all of it would be found.
        let all = candidates.len();
        candidates.retain(|candidate| core.has_committed(candidate.zone.0));
        let (pressure, now) = (core.pressure(), core.clock.get());
        let chosen = core.policy.borrow_mut().choose(&mut candidates.iter().copied(), pressure, now);
        let Some(candidate) = chosen.and_then(|zone| candidates.iter().find(|other| other.zone == zone))
        else {
            let has_uncommitted = candidates.len() < all;
            return Chosen::Nothing(match has_uncommitted && pressure.is_urgent() {
                true => Choice::Uncommitted,
                false => Choice::Nothing,
            });
        };
        core.policy.borrow_mut().cleaned(*candidate, now);
        core.pace.begin(candidate);
        let zone = candidate.zone.0;
        core.table.change(zone, |entry| entry.usage = Usage::Cleaning);
        match find_live(&core, candidate).await {
            Ok(victim) => {
                core.pace.pass(Some(0));
                self.victim = Some(victim);
                Chosen::Victim
            }
            Err(error) => {
                leave_as_it_is(&core, zone, &error);
                Chosen::Unreadable
            }
        }
    }

    /// Moves a few records' worth of the victim, and ends it if nothing is left to move.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where no zone takes the moves: the victim is a zone like any other again.
    async fn clean_some(&mut self, records: u32) -> Result<()> {
        let core = self.core.clone();
        let Some(mut victim) = self.victim.take() else { return Ok(()) };
        let outcome = self.move_some(&mut victim, records).await;
        let zone = victim.zone;
        match outcome {
            Ok(()) if victim.has_moves(&core) => {
                let passed = u64::from(victim.runs[victim.next].position);
                let blocks = u64::from(core.layout.data_blocks());
                core.pace.pass(Some(passed * blocks / u64::from(core.layout.zone_blocks)));
                self.victim = Some(victim);
            }
            Ok(()) => {
                self.victim = Some(victim);
                self.end_victim();
            }
            Err(error) => {
                core.pace.pass(None);
                if matches!(error, Error::NoSpace(_)) {
                    core.table.set_full(zone);
                    return Err(error);
                }
                leave_as_it_is(&core, zone, &error);
            }
        }
        Ok(())
    }

    /// Nothing of the victim is left to move, so it can be reset; unless something in it could not be read.
    fn end_victim(&mut self) {
        let core = &self.core;
        let Some(Victim { zone, .. }) = self.victim.take() else { return };
        match core.table.get(zone).live {
            // Users' overwrites and our moves together leave nothing.
            0 => {
                core.table.set_full(zone);
                count(&core.counters.cleaned_zones, 1);
            }
            left => {
                tracing::error!("zone {zone}: {left} live blocks can't be moved; the zone is left as it is");
                core.set_damaged(zone);
            }
        }
        core.pace.pass(None);
    }

    /// The victim, if there is one, is a zone like any other again.
    fn let_go(&mut self) {
        if let Some(victim) = self.victim.take() {
            self.core.table.set_full(victim.zone);
            self.core.pace.pass(None);
        }
    }

    /// Moves what is still live of the next runs, as much as so many records of single blocks take.
    async fn move_some(&mut self, victim: &mut Victim, records: u32) -> Result<()> {
        let core = self.core.clone();
        let mut runs: Vec<Run> = Vec::new();
        let mut gathered = 0;
        while gathered < records * core.layout.single_blocks()
            && let Some(run) = victim.runs.get(victim.next)
        {
            victim.next += 1;
            let at = core.layout.physical(victim.zone, run.position);
            core.versions.borrow().live(run.block, u64::from(run.count), at, &mut |offset, length| {
                runs.push(run.part(offset as u32, length as u32));
                gathered += length as u32;
            });
        }
        let pieces = self.read(victim, &runs).await?;
        self.write(victim, pieces).await
    }

    /// Reads runs, whole or with what is between them, whichever is cheaper; checks every block.
    async fn read(&self, victim: &Victim, runs: &[Run]) -> Result<Vec<(Run, Data)>> {
        let core = &self.core;
        let block = core.layout.block_bytes();
        let blocks_of = |run: &Run| u64::from(run.position)..u64::from(run.position + run.count);
        let plan = read_plan(runs.iter().map(blocks_of), read_cost(block));
        let mut data: Vec<(Range<u64>, Data)> = Vec::with_capacity(plan.len());
        for requests in plan.chunks(READS) {
            let reads = requests.iter().map(|range| {
                let buffer = Buffer::new((range.end - range.start) as usize * block);
                core.zones.read(core.layout.address(victim.zone, range.start as u32), buffer)
            });
            for (range, (outcome, buffer)) in requests.iter().zip(runtime::join_all(reads).await) {
                outcome?;
                data.push((range.clone(), buffer.freeze()));
            }
        }
        let mut pieces = Vec::with_capacity(runs.len());
        let mut data = data.into_iter().peekable();
        for run in runs {
            let mut from = 0;
            while from < run.count
                && let Some((range, bytes)) = data.peek()
            {
                let start = u64::from(run.position + from);
                if start >= range.end {
                    data.next();
                    continue;
                }
                let end = blocks_of(run).end.min(range.end);
                let part = run.part(from, (end - start) as u32);
                let at = |position: u64| (position - range.start) as usize * block;
                let bytes = bytes.slice(at(start)..at(end));
                check(victim, &part, &bytes, block)?;
                pieces.push((part, bytes));
                from += part.count;
            }
        }
        Ok(pieces)
    }

    /// Writes pieces that were read, in the order of the volume, as few records as they fit into.
    async fn write(&mut self, victim: &Victim, mut pieces: Vec<(Run, Data)>) -> Result<()> {
        let core = self.core.clone();
        let age = core.clock.get().saturating_sub(victim.opened);
        let class = core.policy.borrow().place(Arrival::Moved { age, class: victim.class });
        pieces.sort_by_key(|(run, _)| (run.version, run.block));
        let block = core.layout.block_bytes();
        let mut rest = pieces.into_iter().peekable();
        while rest.peek().is_some() {
            let zone = match self.zones[usize::from(class)].take() {
                Some(zone) => zone,
                None => self.open_zone(class).await?,
            };
            let mut group = Group::default();
            let (mut blocks, mut meta) = (0, 0);
            while let Some((run, data)) = rest.peek_mut() {
                let room = zone.room(&core.layout, blocks + run.count, |_| meta + EXTENT);
                let taken = room.saturating_sub(blocks);
                if taken == 0 {
                    break;
                }
                let from = core.layout.physical(victim.zone, run.position);
                group.items.push(Item {
                    change: Change::Move { version: run.version, block: run.block, count: taken, from },
                    payload: Payload::from(data.slice(0..taken as usize * block)),
                    request: None,
                    growth: 0,
                    ticket: 0,
                });
                blocks += taken;
                meta += EXTENT;
                if taken == run.count {
                    rest.next();
                } else {
                    *data = data.slice(taken as usize * block..data.len());
                    *run = run.part(taken, run.count - taken);
                }
            }
            if group.items.is_empty() {
                core.seal(zone).await;
                continue;
            }
            let moving = core.begin_moves().await;
            core.pace.moved(blocks);
            let written = write_group(&core, CLEANER, group, zone, &mut self.scratch).await;
            self.zones[usize::from(class)] = written.zone;
            drop(moving);
            if let Some(error) = written.refused {
                return Err(error.in_context("what the cleaner moves"));
            }
            if let Some(error) = core.failure() {
                return Err(error);
            }
            runtime::yield_now().await;
        }
        Ok(())
    }

    /// Opens a zone for what is moved. The last free zones are for this.
    async fn open_zone(&self, class: u8) -> Result<OpenZone> {
        let keep = self.core.zones_for_checkpoint();
        if let Some(zone) = self.core.try_open_zone(class, keep) {
            return Ok(zone);
        }
        // What was cleaned before may be waiting to be reset.
        self.reset.wait(&self.core).await;
        if !self.core.reset_dead().await? {
            self.core.take_checkpoint(false).await?;
            self.core.reset_dead().await?;
        }
        self.core
            .try_open_zone(class, self.core.zones_for_checkpoint())
            .ok_or_else(|| Error::no_space("no zone is free for what the cleaner moves"))
    }
}

/// Error of writers that wait for a zone where none can be freed.
fn nothing_to_clean() -> Error {
    Error::no_space("the log has no free zone and nothing to clean: discard some data, or delete snapshots")
}

/// What reading of a victim costs, in blocks.
fn read_cost(block: usize) -> ReadCost {
    let request = (REQUEST_BYTES / block) as u64;
    ReadCost { request, largest_gap: request, largest_request: (LARGEST_READ / block).max(1) as u64 }
}

/// Checks every block of a run.
fn check(victim: &Victim, run: &Run, bytes: &[u8], block: usize) -> Result<()> {
    let sums = &victim.records[run.record].sums[run.first as usize..];
    for (number, (bytes, sum)) in bytes.chunks_exact(block).zip(sums).enumerate() {
        if sum_of(bytes) != *sum {
            return Err(Error::corrupt(format!(
                "block {} of the volume is damaged: zone {}, block {}",
                run.block + number as u64,
                victim.zone,
                run.position + number as u32
            )));
        }
    }
    Ok(())
}

/// Something in the zone can't be read: it isn't cleaned again before the log is reopened.
fn leave_as_it_is(core: &Core, zone: u32, error: &Error) {
    tracing::error!("zone {zone} can't be cleaned and is left as it is: {error}");
    core.set_damaged(zone);
}

/// Finds what is live in a zone.
async fn find_live(core: &Core, candidate: &Candidate) -> Result<Victim> {
    let zone = candidate.zone.0;
    let report = core.zones.report(candidate.zone, 1).await?;
    let report = report.first().ok_or_else(|| Error::invalid(format!("zone {zone} isn't there")))?;
    let scanned = scan::headers(&*core.zones, &core.layout, &core.identity, report).await?;
    let mut runs = live_runs(core, zone, &scanned.records)?;
    runs.sort_unstable_by_key(|run| run.position);
    let Candidate { class, opened, .. } = *candidate;
    Ok(Victim { zone, class, opened, records: scanned.records, runs, next: 0 })
}

/// The live blocks of a zone, run by run.
fn live_runs(core: &Core, zone: u32, records: &[Found]) -> Result<Vec<Run>> {
    let versions = core.versions.borrow();
    let mut runs = Vec::new();
    for (record, found) in records.iter().enumerate() {
        let mut first = 0;
        for change in Change::decode_all(&found.meta)? {
            let (Change::Write { version, block, count } | Change::Move { version, block, count, .. }) =
                change
            else {
                continue;
            };
            let position = found.header.position + 1 + first;
            let at = core.layout.physical(zone, position);
            versions.live(block, u64::from(count), at, &mut |offset, length| {
                runs.push(Run {
                    position: position + offset as u32,
                    count: length as u32,
                    version,
                    block: block + offset,
                    record,
                    first: first + offset as u32,
                });
            });
            first += count;
        }
    }
    Ok(runs)
}

impl Core {
    /// Wakes whoever waits for a zone, if there is one, or there won't be. Else they would ask for what is on its way
    /// already, over and over.
    fn tell_writers(&self) {
        if self.stuck.borrow().is_some() || self.table.free() > self.kept_zones() {
            self.freed.notify_all();
        }
    }

    /// Gives up the next piece of what was deleted. Returns whether there was any.
    pub fn give_up_some(&self) -> bool {
        if self.versions.borrow().dying.is_empty() {
            return false;
        }
        let mut versions = self.versions.borrow_mut();
        versions
            .give_up(self.settings.blocks_at_once, &mut |physical| self.account(Effect::Dead(physical, 1)))
    }

    /// Whether a checkpoint would make pages free.
    pub fn has_superseded(&self) -> bool {
        self.table.count(|zone| zone.class == CHECKPOINT_CLASS && zone.usage == Usage::Full) > 1
    }

    /// Resets dead zones that may be: those that the durable checkpoint covers. Returns whether any was.
    ///
    /// # Errors
    /// What flushing says.
    pub async fn reset_dead(self: &Rc<Self>) -> Result<bool> {
        let mut dead = self.table.take_dead();
        if dead.is_empty() {
            return Ok(false);
        }
        let outcome = self.reset_zones(&mut dead).await;
        self.table.return_dead(dead);
        outcome
    }

    fn ends_before(&self, zone: u32, last: [u64; REPLAYED]) -> bool {
        self.table.get(zone).last.iter().zip(last).all(|(own, last)| *own <= last)
    }

    fn is_covered(&self, zone: u32) -> bool {
        self.ends_before(zone, self.checkpoint.borrow().root.covered)
    }

    /// Whether all records of a zone have committed: what is live in it can only die.
    fn has_committed(&self, zone: u32) -> bool {
        self.ends_before(zone, [USER, CLEANER].map(|it| self.streams[usize::from(it.0)].borrow().committed()))
    }

    /// Whether the durable checkpoint covers any dead zone.
    fn has_resettable(&self) -> bool {
        self.table.any_dead(|zone| self.is_covered(zone))
    }

    /// Whether a checkpoint would cover any dead zone that the durable one doesn't.
    fn has_coverable(&self) -> bool {
        self.table.any_dead(|zone| self.has_committed(zone) && !self.is_covered(zone))
    }

    async fn reset_zones(self: &Rc<Self>, dead: &mut Vec<u32>) -> Result<bool> {
        // After a failed root it is unknown which one recovery finds: a zone may be dead for one of them only.
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        // A zone may be full before its last record has committed, behind one that took longer: it looked dead, and has
        // come to life since. Once all its records are covered, all of them have committed, and what is live can only die.
        dead.retain(|zone| {
            let is_alive = self.is_covered(*zone) && self.table.get(*zone).live > 0;
            if is_alive {
                self.table.set_full(*zone);
            }
            !is_alive
        });
        self.table.note_resetting(dead.len());
        let ready: Vec<u32> = dead.iter().copied().filter(|zone| self.is_covered(*zone)).collect();
        if ready.is_empty() {
            return Ok(false);
        }
        // What made these zones dead has committed; from here on it is durable.
        self.flush().await?;
        self.demand_home().await?;
        let maps: Vec<_> = self.versions.borrow().list.iter().map(|version| version.map.clone()).collect();
        let graces: Vec<u64> = maps.iter().map(|map| map.begin_grace()).collect();
        self.readers.grace().await?;
        maps.iter().zip(graces).for_each(|(map, grace)| map.end_grace(grace));
        for zone in ready {
            dead.retain(|other| *other != zone);
            self.table.note_resetting(dead.len());
            match self.zones.reset(ZoneIndex(zone), block::EraseGuarantee::None).await {
                Ok(generation) => {
                    self.table.set_reset(zone, generation);
                    count(&self.counters.reset_zones, 1);
                }
                Err(error) => {
                    tracing::warn!(
                        "resetting zone {zone}: {error}; it isn't used again before the log is reopened"
                    );
                    self.set_damaged(zone);
                }
            }
        }
        self.freed.notify_all();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a zone of 1024 blocks of which each `of`th is live.
    fn reads(of: usize) -> Vec<u64> {
        let live = (0..1024).step_by(of).map(|block| block..block + 1);
        read_plan(live, read_cost(4096)).iter().map(|range| range.end - range.start).collect()
    }

    #[test]
    fn a_victim_is_read_whole_or_in_fragments_by_what_that_costs() {
        assert_eq!(reads(1), [256; 4], "all of it, in reads of 1 MiB");
        assert_eq!(reads(4).len(), 4, "gaps of 3 blocks are read through");
        assert_eq!(reads(9).len(), 4, "gaps of 8 cost as much as a request");
        assert_eq!(reads(10), [1; 103], "gaps of 9 cost more");
    }
}
