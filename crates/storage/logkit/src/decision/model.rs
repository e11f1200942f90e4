//! An abstract log driven by [`next`]: zones with numbers of live blocks, users that write and wait, tasks
//! that end after some steps or fail. Blocks have no identity: an overwrite kills any live block that has
//! committed. `progress.rs` runs it.
//!
//! A step is the code between two awaits of the real log: an action of the cleaner, an append or a commit of
//! users, a part of a task. Wakeups are as in the real log: a waiter that isn't woken waits, and
//! [`Model::drain`] reports it.

use super::tests::{Random, check};
use super::*;

mod world;

/// A decision function: [`next`], or one that is broken on purpose.
pub type Decide = fn(&State) -> Action;

/// Blocks of a zone.
const BLOCKS: u8 = 4;
/// Zones that only the cleaner takes.
const CLEANER_ZONES: u32 = 3;
/// Zones that only checkpoints take.
const CHECKPOINT_ZONES: u32 = 2;
/// Streams of users and of the cleaner.
const USERS: usize = 0;
const MOVES: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Usage {
    Free,
    Open,
    Full,
    Cleaning,
    Dead,
}

#[derive(Debug, Clone, Copy)]
struct Zone {
    usage: Usage,
    of_checkpoint: bool,
    written: u8,
    live: u8,
    /// Last record of each stream in it.
    last: [u32; 2],
}

const EMPTY: Zone = Zone { usage: Usage::Free, of_checkpoint: false, written: 0, live: 0, last: [0; 2] };

/// One task of users' appends.
#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    zone: Option<usize>,
    /// The lane waits for a zone, and hasn't been woken.
    waits: bool,
}

/// State of the cleaner's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    Runs,
    Waits { until_timeout: bool },
    Stopped,
}

/// Progress of a background task.
#[derive(Debug, Clone, Copy, Default)]
struct Aside {
    progress: Progress,
    part: u8,
    has_failed: bool,
}

#[derive(Debug, Clone)]
pub struct Model {
    decide: Decide,
    /// First wrong decision found.
    mistake: Option<String>,
    random: Random,
    zones: Vec<Zone>,
    lanes: [Lane; 2],
    queued: u32,
    /// Appends of users that haven't committed: zone of each, the oldest first.
    in_flight: std::collections::VecDeque<usize>,
    /// Zones whose summaries are being written.
    sealing: Vec<usize>,
    committed: [u32; 2],
    covered: [u32; 2],
    /// Records that the running checkpoint will cover.
    cut: [u32; 2],
    since_checkpoint: u32,
    checkpoint_zone: Option<usize>,
    /// Zone of each page of the durable checkpoint.
    pages: [Option<usize>; 3],
    /// Zone of each page that the running checkpoint has written.
    written: [Option<usize>; 3],
    dead: Vec<usize>,
    /// Dead zones that a reset has taken: `ready` will be reset, `taken` can't be yet.
    ready: Vec<usize>,
    taken: Vec<usize>,
    deleted: u32,
    /// Free zones that need a reservation, and the one that is being reserved.
    unreserved: u32,
    reserving: Option<usize>,
    tasks: [Aside; 3],
    victim: Option<usize>,
    own: Option<usize>,
    driver: Driver,
    is_woken: bool,
    wakes_at: u32,
    failures: u32,
    has_just_failed: bool,
    stuck: bool,
    is_closing: bool,
    has_failed: bool,
    has_versions: bool,
    /// Number of failures still to be injected.
    faults: u32,
    most_live: u32,
    in_vain: u32,
    pub counts: Counts,
}

/// Totals over a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    pub actions: u64,
    pub moves: u64,
    pub refusals: u64,
    pub failures: u64,
    /// Zones that users got.
    pub given: u64,
    /// Moves that found no zone although no task had failed.
    pub without_zone: u64,
}

const TASKS: [Task; 3] = [Task::Reset, Task::Checkpoint, Task::Reserve];

impl Model {
    /// Creates a log in a random state that users and the cleaner may leave, with the free zones that are
    /// reserved for the cleaner.
    pub fn any(seed: u64, decide: Decide) -> Self {
        let mut random = Random(seed);
        let zones = 11 + random.below(6) as usize;
        let committed = [10 + random.below(10), 10 + random.below(10)];
        let mut model = Model {
            decide,
            mistake: None,
            random,
            zones: vec![EMPTY; zones],
            lanes: [Lane::default(); 2],
            queued: random.below(12),
            in_flight: Default::default(),
            sealing: Vec::new(),
            committed,
            covered: committed.map(|last| last - random.below(4) * 3),
            cut: [0; 2],
            since_checkpoint: random.below(8),
            checkpoint_zone: None,
            pages: [None; 3],
            written: [None; 3],
            dead: Vec::new(),
            ready: Vec::new(),
            taken: Vec::new(),
            deleted: random.of(&[0, 0, 1, 4]),
            unreserved: random.below(2),
            reserving: None,
            tasks: [Aside::default(); 3],
            victim: None,
            own: None,
            driver: Driver::Runs,
            is_woken: false,
            wakes_at: u32::MAX,
            failures: 0,
            has_just_failed: false,
            stuck: false,
            is_closing: false,
            has_failed: false,
            has_versions: random.once_in(2),
            faults: random.of(&[0, 0, 1, 2, 6]),
            most_live: (zones as u32 - 8) * u32::from(BLOCKS),
            in_vain: 0,
            counts: Counts::default(),
        };
        let free = 5 + model.random.below(3) as usize;
        let in_flight = model.random.below(4);
        for number in 0..zones - free {
            let last = committed.map(|last| last - model.random.below(9));
            let live = model.random.below(u32::from(BLOCKS) + 1) as u8;
            model.zones[number] = Zone { usage: Usage::Full, written: BLOCKS, live, last, ..EMPTY };
        }
        for _ in 0..in_flight {
            let zone = model.random.below((zones - free) as u32) as usize;
            model.zones[zone].live = model.zones[zone].live.min(BLOCKS - 1);
            model.in_flight.push_back(zone);
            model.zones[zone].last[USERS] = committed[USERS] + model.in_flight.len() as u32;
        }
        if model.random.once_in(2) {
            // Zones of a checkpoint, with one live page or none.
            for number in 0..model.random.below(3) as usize {
                model.zones[number] = Zone { usage: Usage::Full, of_checkpoint: true, live: 1, ..EMPTY };
                model.in_flight.retain(|zone| *zone != number);
                model.pages[number] = Some(number);
            }
        }
        // Records are renumbered, as zones may have been removed.
        let in_flight: Vec<usize> = model.in_flight.iter().copied().collect();
        for (number, zone) in in_flight.into_iter().enumerate() {
            model.zones[zone].last[USERS] = committed[USERS] + number as u32 + 1;
        }
        for zone in 0..zones {
            if model.zones[zone].usage == Usage::Full {
                model.set_full(zone);
            }
        }
        model
    }

    fn free(&self) -> u32 {
        let free = self.zones.iter().filter(|zone| zone.usage == Usage::Free).count() as u32;
        free - u32::from(self.reserving.is_some())
    }

    fn kept(&self) -> u32 {
        CLEANER_ZONES + CHECKPOINT_ZONES
    }

    fn issued(&self) -> u32 {
        self.committed[USERS] + self.in_flight.len() as u32
    }

    fn is_before(&self, zone: usize, last: [u32; 2]) -> bool {
        self.zones[zone].last.iter().zip(last).all(|(own, last)| *own <= last)
    }

    fn is_coverable(&self, zone: usize) -> bool {
        self.is_before(zone, self.committed) && !self.is_before(zone, self.covered)
    }

    fn take(&mut self, keep: u32) -> Option<usize> {
        if self.free() <= keep {
            return None;
        }
        let taken = (0..self.zones.len())
            .find(|zone| self.zones[*zone].usage == Usage::Free && self.reserving != Some(*zone))?;
        self.zones[taken] = Zone { usage: Usage::Open, ..EMPTY };
        Some(taken)
    }

    fn wake_cleaner(&mut self) {
        self.is_woken = true;
    }

    fn wake_writers(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.waits = false);
    }

    fn look_again(&mut self) {
        self.stuck = false;
        self.wake_cleaner();
    }

    fn gained(&mut self) {
        self.in_vain = 0;
    }

    fn set_full(&mut self, zone: usize) {
        self.zones[zone].usage = Usage::Full;
        if self.zones[zone].live == 0 {
            self.bury(zone);
        }
    }

    fn bury(&mut self, zone: usize) {
        self.zones[zone].usage = Usage::Dead;
        self.dead.push(zone);
        self.gained();
    }

    /// A block of the zone has died.
    fn kill(&mut self, zone: usize) {
        self.zones[zone].live -= 1;
        if self.zones[zone].live == 0 && self.zones[zone].usage == Usage::Full {
            self.bury(zone);
        }
        if self.stuck {
            self.look_again();
        }
    }

    /// Kills a block of users' data, if there is one.
    fn kill_any(&mut self) {
        let first = self.random.below(self.zones.len() as u32) as usize;
        let all = (0..self.zones.len()).map(|number| (first + number) % self.zones.len());
        let holds_data = |zone: &usize| self.zones[*zone].live > 0 && !self.zones[*zone].of_checkpoint;
        if let Some(zone) = all.into_iter().find(holds_data) {
            self.kill(zone);
        }
    }

    fn fails(&mut self) -> bool {
        let fails = self.faults > 0 && self.random.once_in(2);
        self.faults -= u32::from(fails);
        fails
    }

    /// Notes that a block was appended to an open zone; a full zone is sealed.
    fn appended(&mut self, zone: usize, stream: usize, sequence: u32) -> bool {
        let entry = &mut self.zones[zone];
        (entry.written, entry.last[stream]) = (entry.written + 1, entry.last[stream].max(sequence));
        let is_full = entry.written == BLOCKS;
        self.since_checkpoint += 1;
        if is_full {
            self.sealing.push(zone);
        }
        is_full
    }

    // -------------------------------------------------------------------------------------------------------
    // users

    fn can_append(&self, lane: usize) -> bool {
        self.queued > 0 && !self.lanes[lane].waits
    }

    fn append(&mut self, lane: usize) {
        if self.lanes[lane].zone.is_none() {
            if let Some(zone) = self.take(self.kept()) {
                self.lanes[lane].zone = Some(zone);
                self.counts.given += 1;
                self.wake_cleaner();
            } else if self.stuck {
                self.counts.refusals += 1;
                self.queued = 0;
                self.queue_ended();
            } else {
                self.lanes[lane].waits = true;
                self.wake_cleaner();
            }
            return;
        }
        let Some(zone) = self.lanes[lane].zone else { return };
        self.queued -= 1;
        self.in_flight.push_back(zone);
        if self.appended(zone, USERS, self.issued()) {
            self.lanes[lane].zone = None;
        }
        self.queue_ended();
    }

    /// Wakes lanes that wait, so that they check their queues; during a close the cleaner may end.
    fn queue_ended(&mut self) {
        if self.queued == 0 {
            self.wake_writers();
            if self.is_closing {
                self.wake_cleaner();
            }
        }
    }

    fn commit(&mut self) {
        let Some(zone) = self.in_flight.pop_front() else { return };
        self.committed[USERS] += 1;
        let live: u32 =
            self.zones.iter().filter(|zone| !zone.of_checkpoint).map(|zone| u32::from(zone.live)).sum();
        if live >= self.most_live || self.random.once_in(2) {
            self.kill_any();
        }
        self.zones[zone].live += 1;
        self.gained();
        if self.committed[USERS] >= self.wakes_at {
            self.wakes_at = u32::MAX;
            self.wake_cleaner();
        }
    }

    fn seal(&mut self) {
        if let Some(zone) = self.sealing.pop() {
            self.set_full(zone);
            self.look_again();
        }
    }

    // -------------------------------------------------------------------------------------------------------
    // tasks

    /// Begins a checkpoint: sets the records that it covers.
    fn begin_cut(&mut self) {
        self.cut = self.committed;
        self.since_checkpoint = 0;
        self.written = [None; 3];
    }

    fn write_page(&mut self, page: usize) -> Result<(), ()> {
        if self.checkpoint_zone.is_none() {
            self.checkpoint_zone = self.take(0);
            if self.checkpoint_zone.is_none() {
                self.reset_now();
                self.checkpoint_zone = self.take(0);
            }
        }
        let Some(zone) = self.checkpoint_zone else { return Err(()) };
        self.zones[zone].of_checkpoint = true;
        self.zones[zone].written += 1;
        self.zones[zone].live += 1;
        self.written[page] = Some(zone);
        if self.zones[zone].written == BLOCKS {
            self.checkpoint_zone = None;
            self.set_full(zone);
            self.look_again();
        }
        Ok(())
    }

    /// Ends a checkpoint. With a durable root the pages of the previous one die, after a failure the new
    /// pages.
    fn end_checkpoint(&mut self, succeeded: bool) {
        for page in 0..self.pages.len() {
            let Some(written) = self.written[page] else { continue };
            let gone = if succeeded { self.pages[page].replace(written) } else { Some(written) };
            if let Some(zone) = gone {
                self.kill(zone);
            }
        }
        if succeeded {
            self.covered = self.cut;
            self.gained();
        } else {
            self.since_checkpoint += 1;
        }
        self.wake_cleaner();
    }

    fn has_superseded(&self) -> bool {
        self.zones.iter().filter(|zone| zone.of_checkpoint && zone.usage == Usage::Full).count() > 1
    }

    /// Whether a checkpoint writes this page: it is dirty, or the pages are spread over several zones.
    fn is_dirty(&mut self, page: usize) -> bool {
        page == 0 || self.has_superseded() || self.random.once_in(2)
    }

    /// Takes a whole checkpoint, as the cleaner does for a zone of its own.
    fn take_checkpoint(&mut self) -> Result<(), ()> {
        self.begin_cut();
        let written = (0..self.pages.len()).try_for_each(|page| match self.is_dirty(page) {
            true => self.write_page(page),
            false => Ok(()),
        });
        self.end_checkpoint(written.is_ok());
        written
    }

    /// Takes the dead zones; those with live blocks become full zones again.
    fn take_dead(&mut self) {
        for zone in std::mem::take(&mut self.dead) {
            match self.is_before(zone, self.covered) {
                true if self.zones[zone].live > 0 => self.zones[zone].usage = Usage::Full,
                true => self.ready.push(zone),
                false => self.taken.push(zone),
            }
        }
    }

    /// Resets one of the taken zones; false if none is left.
    fn reset_one(&mut self) -> bool {
        let Some(zone) = self.ready.pop() else { return false };
        assert!(self.zones[zone].live == 0 && !self.in_flight.contains(&zone), "zone {zone} in use is reset");
        self.zones[zone] = EMPTY;
        self.gained();
        true
    }

    fn return_dead(&mut self) {
        self.dead.append(&mut self.taken);
        self.dead.append(&mut self.ready);
        self.wake_writers();
    }

    /// Resets all dead zones that can be reset, concurrently with a task that does the same.
    fn reset_now(&mut self) -> bool {
        let others = (std::mem::take(&mut self.ready), std::mem::take(&mut self.taken));
        self.take_dead();
        let any = !self.ready.is_empty();
        while self.reset_one() {}
        self.return_dead();
        (self.ready, self.taken) = others;
        any
    }

    fn advance(&mut self, task: usize) {
        let part = self.tasks[task].part;
        self.tasks[task].part += 1;
        let ended = match (TASKS[task], part) {
            (Task::Reset, 0) => {
                self.take_dead();
                None
            }
            (Task::Reset, 1) if self.fails() => Some(false),
            (Task::Reset, _) => (!self.reset_one()).then_some(true),
            (Task::Checkpoint, 0) => {
                self.begin_cut();
                None
            }
            (Task::Checkpoint, 1..=3) => {
                let page = usize::from(part - 1);
                let is_written = !self.is_dirty(page) || self.write_page(page).is_ok();
                (!is_written).then_some(false)
            }
            (Task::Checkpoint, _) => Some(!self.fails()),
            (Task::Reserve, 0) => {
                self.reserving = (0..self.zones.len()).rfind(|zone| self.zones[*zone].usage == Usage::Free);
                None
            }
            (Task::Reserve, _) => {
                (self.reserving, self.unreserved) = (None, self.unreserved.saturating_sub(1));
                Some(true)
            }
        };
        let Some(succeeded) = ended else { return };
        match TASKS[task] {
            Task::Reset => self.return_dead(),
            Task::Checkpoint => self.end_checkpoint(succeeded),
            Task::Reserve => {}
        }
        self.tasks[task] = Aside { progress: Progress::Ended, part: 0, has_failed: !succeeded };
        self.wake_writers();
        self.wake_cleaner();
    }

    fn finish(&mut self, task: usize) {
        while self.tasks[task].progress == Progress::Running {
            self.advance(task);
        }
    }

    // -----------------------------------------------------------------------------------------------------
    // cleaner

    fn gather(&self, choice: Choice, pace: Admission) -> State {
        let has_covered = self.dead.iter().any(|zone| self.is_before(*zone, self.covered));
        let has_coverable = self.dead.iter().any(|zone| self.is_coverable(*zone));
        State {
            has_failed: self.has_failed,
            is_closing: self.is_closing,
            has_queued: self.queued > 0,
            has_just_failed: self.has_just_failed,
            failures: self.failures,
            has_deleted: self.deleted > 0,
            reset: self.tasks[0].progress,
            checkpoint: self.tasks[1].progress,
            reserve: self.tasks[2].progress,
            wants_reserve: self.unreserved > 0 && self.free() > 0,
            wants_checkpoint: self.since_checkpoint > 20,
            free: self.free(),
            kept: self.kept(),
            lanes: self.lanes.len() as u32,
            dead: self.dead.len() as u32,
            resetting: (self.ready.len() + self.taken.len()) as u32,
            preparing: 0,
            has_covered,
            has_coverable,
            is_dead_pinned: !has_covered && !has_coverable && self.in_flight.is_empty(),
            frees_pages: choice == Choice::Nothing && self.since_checkpoint > 0 && self.has_superseded(),
            victim: match self.victim {
                None => Victim::None,
                Some(zone) if self.zones[zone].live > 0 => Victim::Moves,
                Some(_) => Victim::Moved,
            },
            choice,
            is_blocked: self.has_versions
                && self.tasks[1].progress == Progress::Running
                && self.tasks[1].part > 0,
            pace,
        }
    }

    fn candidates(&self) -> impl Iterator<Item = usize> + '_ {
        let worth = |zone: &Zone| zone.usage == Usage::Full && !zone.of_checkpoint && zone.live < BLOCKS;
        (0..self.zones.len()).filter(move |zone| worth(&self.zones[*zone]))
    }

    /// The cleaner's pass up to the next await.
    fn clean(&mut self) {
        let (mut choice, mut pace) = (Choice::NotAsked, Admission::NotAsked);
        // Wakeups are counted from here.
        self.is_woken = false;
        loop {
            let state = self.gather(choice, pace);
            let action = (self.decide)(&state);
            if action == next(&state) {
                check(&state, action);
            }
            self.counts.actions += 1;
            self.in_vain += 1;
            match action {
                Action::Begin(task) => {
                    let number = TASKS.iter().position(|other| *other == task).unwrap();
                    self.tasks[number] = Aside { progress: Progress::Running, ..Aside::default() };
                }
                Action::Choose => {
                    let is_committed = |zone: &usize| self.is_before(*zone, self.committed);
                    let is_wanted =
                        state.users_wait() || state.free + state.dead + state.resetting <= state.kept + 2;
                    let chosen =
                        self.candidates().filter(is_committed).min_by_key(|zone| self.zones[*zone].live);
                    if let Some(zone) = chosen.filter(|_| is_wanted || self.random.0 & 64 > 0) {
                        self.zones[zone].usage = Usage::Cleaning;
                        self.victim = Some(zone);
                        return;
                    }
                    let has_uncommitted = self.candidates().any(|zone| !is_committed(&zone));
                    choice = match is_wanted {
                        true if has_uncommitted => Choice::Uncommitted,
                        true => Choice::Nothing,
                        false => Choice::Unneeded,
                    };
                }
                Action::AskPace => {
                    pace = match state.users_wait() || self.random.once_in(2) {
                        true => Admission::Now { per_write: (!state.users_wait()).then_some(1) },
                        false => Admission::Later,
                    };
                    if pace == Admission::Later {
                        self.wakes_at = self.committed[USERS] + 1 + self.random.below(3);
                    }
                }
                last => return self.end_pass(last, &state),
            }
        }
    }

    fn done(&mut self) {
        (self.failures, self.stuck) = (0, false);
        self.wake_writers();
    }

    fn failed(&mut self) {
        (self.failures, self.has_just_failed) = (self.failures + 1, true);
        self.counts.failures += 1;
    }

    fn wait(&mut self, until_commit: bool, until_timeout: bool) {
        if until_commit {
            self.wakes_at = self.committed[USERS] + 1;
        }
        if self.stuck || self.free() > self.kept() {
            self.wake_writers();
        }
        self.driver = Driver::Waits { until_timeout };
    }

    fn end_pass(&mut self, action: Action, state: &State) {
        match action {
            Action::FreePiece => {
                self.deleted -= 1;
                (0..2).for_each(|_| self.kill_any());
                self.gained();
                self.done();
            }
            Action::Collect(task) => {
                let number = TASKS.iter().position(|other| *other == task).unwrap();
                match std::mem::take(&mut self.tasks[number]).has_failed {
                    true => self.failed(),
                    false => self.done(),
                }
            }
            Action::Move { records } => match (0..records).try_for_each(|_| self.move_one()) {
                Ok(()) => self.done(),
                Err(()) => {
                    self.counts.without_zone += u64::from(self.faults == 0);
                    self.end_victim();
                    self.failed();
                }
            },
            Action::EndVictim => {
                self.end_victim();
                self.done();
            }
            Action::Wait { cause, until_commit } => {
                if cause == Cause::Change {
                    self.failures = 0;
                }
                if self.failures == 0 {
                    self.stuck = false;
                }
                self.wait(until_commit, false);
            }
            Action::Refuse { until_commit } => {
                self.check_refusal(state);
                (self.failures, self.stuck) = (0, true);
                self.wait(until_commit, false);
            }
            Action::Retry { refuse, limit } => {
                (self.has_just_failed, self.stuck) = (false, refuse);
                self.wake_writers();
                // Wakeups caused by the failed attempt are ignored.
                self.is_woken = false;
                if limit > Duration::ZERO {
                    self.driver = Driver::Waits { until_timeout: true };
                }
                self.gained();
            }
            Action::Stop => {
                self.end_victim();
                self.wake_writers();
                self.driver = Driver::Stopped;
            }
            other => panic!("{other:?} doesn't end a pass"),
        }
    }

    fn end_victim(&mut self) {
        if let Some(zone) = self.victim.take() {
            self.set_full(zone);
        }
    }

    fn move_one(&mut self) -> Result<(), ()> {
        let Some(victim) = self.victim else { return Ok(()) };
        if self.zones[victim].live > 0 {
            let own = match self.own {
                Some(own) => own,
                None => self.open_own()?,
            };
            self.own = Some(own);
            self.committed[MOVES] += 1;
            self.zones[own].live += 1;
            self.zones[victim].live -= 1;
            if self.appended(own, MOVES, self.committed[MOVES]) {
                self.own = None;
            }
            self.counts.moves += 1;
            self.gained();
        }
        if self.zones[victim].live == 0 {
            self.end_victim();
        }
        Ok(())
    }

    fn open_own(&mut self) -> Result<usize, ()> {
        if let Some(zone) = self.take(CHECKPOINT_ZONES) {
            return Ok(zone);
        }
        self.finish(0);
        if !self.reset_now() {
            self.finish(1);
            self.take_checkpoint()?;
            self.reset_now();
        }
        self.take(CHECKPOINT_ZONES).ok_or(())
    }

    /// Notes a mistake if writers are refused although a zone could have been freed.
    fn check_refusal(&mut self, state: &State) {
        let committed = |zone: usize| self.is_before(zone, self.committed);
        let is_dead_for_good = self.dead.iter().all(|zone| !committed(*zone));
        let is_clean = self.candidates().all(|zone| !committed(zone));
        let is_right =
            self.deleted == 0 && self.victim.is_none() && is_dead_for_good && is_clean && state.users_wait();
        if !is_right {
            self.mistake = Some(format!("writers are refused, and zones could be freed: {state:?}"));
        }
    }
}
