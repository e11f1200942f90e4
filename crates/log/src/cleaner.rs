//! Cleaning: what is live in a zone is written elsewhere, so that the zone can be reset; and resetting zones.
//!
//! A move is a record like any other, of the cleaner's own stream, so users' writes never wait for one. It takes effect
//! when it commits, and only for blocks that are still where they were: a write that came in between wins.
//!
//! The cleaner's task does one small thing after another ([`Cleaner::step`]), the one that helps most first: giving up a
//! piece of a version that was deleted, resetting what is dead, a checkpoint, one record's worth of moves. How fast it
//! moves is `pace.rs`'s; there is also why nobody waits for ever. What to read of a victim is decided by
//! [`zones::cleaning::read_plan`].
//!
//! A zone is reset when nothing in it is live, and only after what made it so is durable, a durable checkpoint covers
//! all its records, and everybody who may be reading from it has finished.

use crate::commit::Effect;
use crate::core::{Core, Group, Item, count};
use crate::decision::{self, Action, Cause, Choice, Progress, State, Task};
use crate::format::{CLEANER, Change, EXTENT, REPLAYED, USER, VersionId};
use crate::lane::{Scratch, write_group};
use crate::open_zone::OpenZone;
use crate::pace::Admission;
use crate::scan::{self, Found};
use crate::table::{CHECKPOINT_CLASS, Usage};
use block::{Buffer, Data, Error, Payload, Result, ZoneIndex};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
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
/// How many records' worth is read at once at most.
const MOST_RECORDS: u32 = 4;
/// How many dead zones are reset together, if there is no hurry: they share a flush and a grace period.
const RESET_TOGETHER: u32 = 4;
/// After so many failures in a row, writers that wait for a zone are told.
const MOST_FAILURES: u32 = 3;
/// How long the cleaner rests after something went wrong: what failed may fail again at once.
const AFTER_A_FAILURE: Duration = Duration::from_millis(10);
/// Longest wait before the cleaner retries after the first failure; it doubles with each further one, [`MOST_DOUBLINGS`] times.
/// Writes that failed for lack of a free zone don't wake the cleaner.
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);
const MOST_DOUBLINGS: u32 = 6;

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

/// What a step of the cleaner came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Something was done.
    Done,
    /// There is something to do, when users have written more.
    Later,
    /// There was nothing to do.
    Nothing,
}

/// Something that a task of its own does, and how that ended: moves needn't wait for a flush or a checkpoint.
#[derive(Debug, Default)]
struct Aside(Option<Rc<RefCell<Option<Result<()>>>>>);

impl Aside {
    /// Whether it goes on, or has ended and nobody has asked how.
    fn is_running(&self) -> bool {
        self.0.is_some()
    }

    /// Begins it, unless it runs. The cleaner is woken at its end.
    fn begin<Fut: Future<Output = Result<()>> + 'static>(
        &mut self,
        core: &Rc<Core>,
        work: impl FnOnce(Rc<Core>) -> Fut,
    ) {
        if self.is_running() {
            return;
        }
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

    /// Its state, as the decision sees it.
    fn progress(&self) -> Progress {
        match &self.0 {
            None => Progress::Idle,
            Some(ended) if ended.borrow().is_none() => Progress::Running,
            Some(_) => Progress::Ended,
        }
    }

    /// Whether it has ended since this was asked last.
    ///
    /// # Errors
    /// How it ended.
    fn has_ended(&mut self) -> Result<bool> {
        let outcome = self.0.as_ref().and_then(|ended| ended.borrow_mut().take());
        let Some(outcome) = outcome else { return Ok(false) };
        self.0 = None;
        outcome.map(|()| true)
    }

    /// Waits until it has ended.
    async fn wait(&self, core: &Core) {
        while self.0.as_ref().is_some_and(|ended| ended.borrow().is_none()) {
            core.freed.notified().await;
        }
    }
}

/// Answers to the questions of this pass.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    choice: Choice,
    pace: decision::Admission,
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
    /// Whether zones were short when a candidate was last looked for.
    was_short: bool,
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
        was_short: false,
    };
    core.tasks.spawn(cleaner.run())
}

impl Cleaner {
    async fn run(mut self) {
        let mut failures = 0_u32;
        loop {
            let core = self.core.clone();
            let kicked = core.cleaner.notified();
            // What is queued when the log is closed may still need zones.
            if core.failure().is_some() || core.is_closing.get() && !core.has_work() {
                break;
            }
            match self.step().await {
                Ok(Step::Done) => {
                    failures = 0;
                    *core.stuck.borrow_mut() = None;
                    core.freed.notify_all();
                    runtime::yield_now().await;
                }
                Ok(Step::Later) => {
                    if failures == 0 {
                        *core.stuck.borrow_mut() = None;
                    }
                    core.tell_writers();
                    kicked.await;
                }
                Ok(Step::Nothing) => {
                    // Whoever waits for a zone is told.
                    failures = 0;
                    let is_short = core.is_short();
                    if is_short && !self.was_short {
                        // It became so while something else was done.
                        continue;
                    }
                    *core.stuck.borrow_mut() = is_short.then(|| {
                        core.space.error().unwrap_or_else(|| Error::no_space(
                            "the log has no free zone and nothing to clean: discard some data, or delete snapshots",
                        ))
                    });
                    core.tell_writers();
                    kicked.await;
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    if failures.is_power_of_two() {
                        tracing::warn!("cleaning failed {failures} times in a row: {error}");
                    }
                    // What is dead doesn't help as long as it can't be reset.
                    let is_stuck = failures >= MOST_FAILURES && core.table.free() <= core.kept_zones();
                    *core.stuck.borrow_mut() = is_stuck.then(|| error.in_context("no zone can be freed"));
                    core.freed.notify_all();
                    // What the attempt itself has set off doesn't count, or it would be repeated at once.
                    let kicked = core.cleaner.notified();
                    runtime::sleep(AFTER_A_FAILURE).await;
                    // What a close has to say may have been said during the attempt.
                    if !core.is_closing.get() {
                        let limit = BETWEEN_ATTEMPTS * (1 << (failures - 1).min(MOST_DOUBLINGS));
                        let _woken = runtime::timeout(limit, kicked).await;
                    }
                }
            }
        }
        self.let_go();
        // A lane that waits for a zone looks again whether anything is queued.
        self.core.freed.notify_all();
        for zone in self.zones.iter_mut().filter_map(Option::take) {
            self.core.seal_now(zone).await;
        }
        self.core.seal_filler().await;
    }

    /// Does what is most needed.
    async fn step(&mut self) -> Result<Step> {
        let core = self.core.clone();
        if core.give_up_some() {
            return Ok(Step::Done);
        }
        if self.reset.has_ended()? || self.checkpoint.has_ended()? || self.reserve.has_ended()? {
            return Ok(Step::Done);
        }
        if core.wants_reserve() {
            self.reserve.begin(&core, async |core| {
                core.back_reserve().await;
                Ok(())
            });
        }
        let is_urgent = core.needs_zones_soon();
        let has_dead = core.table.dead() >= if is_urgent { 1 } else { RESET_TOGETHER };
        if has_dead && core.has_resettable() {
            self.reset.begin(&core, async |core| core.reset_dead().await.map(|_| ()));
        }
        // It lets zones be reset that it covers.
        let is_waited_for = is_urgent && !self.reset.is_running() && core.has_coverable();
        if core.wants_checkpoint() || is_waited_for {
            self.begin_checkpoint();
        }
        if self.victim.is_none() {
            // Zones were taken meanwhile.
            self.was_short = core.is_short();
            if let Some(outcome) = self.choose().await? {
                return Ok(outcome);
            }
        }
        if self.victim.is_some() {
            return self.clean_some().await;
        }
        // It makes pages of the one before free.
        if core.needs_zones_soon() && core.has_superseded() && core.since_checkpoint.get() > 0 {
            self.begin_checkpoint();
        }
        if core.table.dead() > 0 {
            // It may be what keeps a zone from being reset.
            core.wake_cleaner_with_next_commit();
        }
        let waits = self.checkpoint.is_running() || self.reset.is_running() || self.reserve.is_running();
        Ok(if waits { Step::Later } else { Step::Nothing })
    }

    /// What the decision depends on, at the moment.
    fn gather(&self, failures: u32, has_just_failed: bool, answers: Answers) -> State {
        let core = &self.core;
        // Counting the zones of checkpoints takes time, so it is left out unless nothing is worth cleaning.
        let frees_pages = || core.since_checkpoint.get() > 0 && core.has_superseded();
        State {
            has_failed: core.failure().is_some(),
            is_closing: core.is_closing.get(),
            has_queued: core.has_work(),
            has_just_failed,
            failures,
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

    fn begin_checkpoint(&mut self) {
        self.checkpoint.begin(&self.core, async |core| core.take_checkpoint(false).await);
    }

    /// Lets the policy choose a victim, if it wants one, and finds what is live in it.
    async fn choose(&mut self) -> Result<Option<Step>> {
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
            if has_uncommitted && pressure.is_urgent() {
                core.wake_cleaner_with_next_commit();
                return Ok(Some(Step::Later));
            }
            return Ok(None);
        };
        core.policy.borrow_mut().cleaned(*candidate, now);
        core.pace.begin(candidate);
        let zone = candidate.zone.0;
        core.table.change(zone, |entry| entry.usage = Usage::Cleaning);
        match find_live(&core, candidate).await {
            Ok(victim) => {
                core.pace.pass(Some(0));
                self.victim = Some(victim);
            }
            Err(error) => {
                leave_as_it_is(&core, zone, &error);
                return Ok(Some(Step::Done));
            }
        }
        Ok(None)
    }

    /// Moves a record's worth of the victim, if it is time.
    async fn clean_some(&mut self) -> Result<Step> {
        let core = self.core.clone();
        let Some(mut victim) = self.victim.take() else { return Ok(Step::Nothing) };
        let zone = victim.zone;
        let has_moves = victim.next < victim.runs.len() && core.table.get(zone).live > 0;
        if has_moves && (core.moves_wait() || core.admit_moves() == Admission::Later) {
            self.victim = Some(victim);
            return Ok(Step::Later);
        }
        // The faster it has to be, the more is on its way together.
        let records =
            core.moves_per_write().map_or(MOST_RECORDS, |rate| (rate.ceil() as u32).clamp(1, MOST_RECORDS));
        let outcome = if has_moves { self.move_some(&mut victim, records).await } else { Ok(()) };
        match outcome {
            Ok(()) if victim.next < victim.runs.len() && core.table.get(zone).live > 0 => {
                let passed = u64::from(victim.runs[victim.next].position);
                let blocks = u64::from(core.layout.data_blocks());
                core.pace.pass(Some(passed * blocks / u64::from(core.layout.zone_blocks)));
                self.victim = Some(victim);
                return Ok(Step::Done);
            }
            // Users' overwrites and our moves together leave nothing; unless something could not be read.
            Ok(()) if core.table.get(zone).live == 0 => {
                core.table.set_full(zone);
                count(&core.counters.cleaned_zones, 1);
            }
            Ok(()) => {
                let left = core.table.get(zone).live;
                tracing::error!("zone {zone}: {left} live blocks can't be moved; the zone is left as it is");
                core.set_damaged(zone);
            }
            Err(error @ Error::NoSpace(_)) => {
                core.table.set_full(zone);
                core.pace.pass(None);
                return Err(error);
            }
            Err(error) => leave_as_it_is(&core, zone, &error),
        }
        core.pace.pass(None);
        Ok(Step::Done)
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
