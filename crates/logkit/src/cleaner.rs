//! Cleaning: what is live in a zone is written elsewhere, so that the zone can be reset; and resetting zones.
//!
//! A move is a record like any other, of the cleaner's own stream, so users' writes never wait for one. It takes effect
//! when it commits, and only for blocks that are still where they were: a write that came in between wins.
//!
//! The cleaner's task does one small thing after another ([`Cleaner::step`]), the one that helps most first: giving up a
//! piece of a version that was deleted, resetting what is dead, a checkpoint, one record's worth of moves. How fast it
//! moves is `pace.rs`'s; there is also why nobody waits for ever. What to read of a victim is decided by
//! [`logkit::cleaning::read_plan`].
//!
//! A zone is reset when nothing in it is live, and only after what made it so is durable, a durable checkpoint covers
//! all its records, and everybody who may be reading from it has finished.

use crate::cleaning::{Arrival, Candidate};
use crate::kit::{Kit, count};
use crate::mover::{Mover, moves_wait};
use crate::owner::Owner;
use crate::pace::{self, Admission};
use crate::pool::{CHECKPOINT_CLASS, Usage};
use crate::reset::{has_coverable, has_resettable, reset_dead};
use crate::space::seal_filler;
use crate::victim::{Piece, Victim};
use block::{Error, Result};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

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

/// Work in a task of its own, and its outcome: moves needn't wait for a flush or a checkpoint.
#[derive(Debug, Default)]
struct BackgroundTask(Option<Rc<RefCell<Option<Result<()>>>>>);

impl BackgroundTask {
    /// Whether it goes on, or has ended and nobody has asked how.
    fn is_running(&self) -> bool {
        self.0.is_some()
    }

    /// Begins it, unless it runs. The cleaner is woken at its end.
    fn begin<O: Owner, F: Future<Output = Result<()>> + 'static>(
        &mut self,
        owner: &Rc<O>,
        work: impl FnOnce(Rc<O>) -> F,
    ) {
        if self.is_running() {
            return;
        }
        let ended = Rc::new(RefCell::new(None));
        self.0 = Some(ended.clone());
        let (kit, work) = (owner.kit().clone(), work(owner.clone()));
        let task = async move {
            let outcome = work.await;
            *ended.borrow_mut() = Some(outcome);
            kit.events.freed.notify_all();
            kit.events.cleaner.notify_all();
        };
        owner.kit().tasks.spawn(task).detach();
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
}

/// A victim with its pieces, of which those from `next` on haven't been moved.
#[derive(Debug)]
struct InHand<N> {
    victim: Victim,
    /// What was live in it when it was chosen, by position.
    pieces: Vec<Piece<N>>,
    next: usize,
}

/// The cleaner's task.
struct Cleaner<O: Owner> {
    owner: Rc<O>,
    mover: Mover,
    in_hand: Option<InHand<O::Name>>,
    /// What goes on beside cleaning.
    checkpoint: BackgroundTask,
    reset: BackgroundTask,
    reserve: BackgroundTask,
    /// Whether zones were short when a candidate was last looked for.
    was_short: bool,
}

/// Starts the cleaner.
pub fn start<O: Owner>(owner: &Rc<O>) {
    let classes = owner.kit().policy.borrow().classes();
    let cleaner = Cleaner {
        owner: owner.clone(),
        mover: Mover::new(classes),
        in_hand: None,
        checkpoint: BackgroundTask::default(),
        reset: BackgroundTask::default(),
        reserve: BackgroundTask::default(),
        was_short: false,
    };
    owner.kit().tasks.spawn(cleaner.run()).detach();
}

impl<O: Owner> Cleaner<O> {
    async fn run(mut self) {
        let owner = self.owner.clone();
        let kit = owner.kit();
        let mut failures = 0_u32;
        loop {
            let kicked = kit.events.cleaner.notified();
            // What is queued when the log is closed may still need zones.
            if kit.failure().is_some() || kit.is_closing() && owner.appender().queued() == 0 {
                break;
            }
            match self.step().await {
                Ok(Step::Done) => {
                    failures = 0;
                    kit.set_stuck(None);
                    kit.events.freed.notify_all();
                    runtime::yield_now().await;
                }
                Ok(Step::Later) => {
                    if failures == 0 {
                        kit.set_stuck(None);
                    }
                    tell_writers(&*owner);
                    kicked.await;
                }
                Ok(Step::Nothing) => {
                    // Writers that wait for a zone are told.
                    failures = 0;
                    let is_short = pace::is_short(&*owner);
                    if is_short && !self.was_short {
                        // It became so while something else was done.
                        continue;
                    }
                    kit.set_stuck(is_short.then(|| {
                        kit.space.error().unwrap_or_else(|| Error::no_space(
                            "the log has no free zone and nothing to clean: discard some data, or delete snapshots",
                        ))
                    }));
                    tell_writers(&*owner);
                    kicked.await;
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    if failures.is_power_of_two() {
                        tracing::warn!("cleaning failed {failures} times in a row: {error}");
                    }
                    // Dead zones don't help as long as they can't be reset.
                    let is_stuck = failures >= MOST_FAILURES && kit.pool.free() <= owner.kept_zones();
                    kit.set_stuck(is_stuck.then(|| error.in_context("no zone can be freed")));
                    kit.events.freed.notify_all();
                    // What the attempt itself has set off doesn't count, or it would be repeated at once.
                    let kicked = kit.events.cleaner.notified();
                    runtime::sleep(AFTER_A_FAILURE).await;
                    // The log may have begun to close during the attempt.
                    if !kit.is_closing() {
                        let limit = BETWEEN_ATTEMPTS * (1 << (failures - 1).min(MOST_DOUBLINGS));
                        let _woken = runtime::timeout(limit, kicked).await;
                    }
                }
            }
        }
        self.release_victim();
        // A lane that waits for a zone looks again whether anything is queued.
        kit.events.freed.notify_all();
        self.mover.close(&*owner).await;
        seal_filler(kit).await;
    }

    /// Does what is most needed.
    async fn step(&mut self) -> Result<Step> {
        let owner = self.owner.clone();
        let kit = owner.kit();
        if owner.free_piece() {
            return Ok(Step::Done);
        }
        if self.reset.has_ended()? || self.checkpoint.has_ended()? || self.reserve.has_ended()? {
            return Ok(Step::Done);
        }
        if kit.wants_reserve(owner.kept_zones()) {
            self.reserve.begin(&owner, async |owner| {
                owner.kit().back_reserve().await;
                Ok(())
            });
        }
        let is_urgent = pace::needs_zones_soon(&*owner);
        let has_dead = kit.pool.dead() >= if is_urgent { 1 } else { RESET_TOGETHER };
        if has_dead && has_resettable(&*owner) {
            self.reset.begin(&owner, async |owner| reset_dead(&owner).await.map(|_| ()));
        }
        // It lets zones be reset that it covers.
        let is_waited_for = is_urgent && !self.reset.is_running() && has_coverable(&*owner);
        if owner.wants_checkpoint() || is_waited_for {
            self.begin_checkpoint();
        }
        if self.in_hand.is_none() {
            // Zones were taken meanwhile.
            self.was_short = pace::is_short(&*owner);
            if let Some(outcome) = self.choose().await? {
                return Ok(outcome);
            }
        }
        if self.in_hand.is_some() {
            return self.clean_some().await;
        }
        // It makes pages of the one before free.
        if pace::needs_zones_soon(&*owner) && has_superseded(kit) && kit.since_checkpoint() > 0 {
            self.begin_checkpoint();
        }
        if kit.pool.dead() > 0 {
            // It may be what keeps a zone from being reset.
            kit.wake_cleaner_with_next_commit();
        }
        let waits = self.checkpoint.is_running() || self.reset.is_running() || self.reserve.is_running();
        Ok(if waits { Step::Later } else { Step::Nothing })
    }

    fn begin_checkpoint(&mut self) {
        self.checkpoint.begin(&self.owner, async |owner| owner.take_checkpoint(false).await);
    }

    /// Lets the policy choose a victim, if it wants one, and finds what is live in it.
    async fn choose(&mut self) -> Result<Option<Step>> {
        let owner = self.owner.clone();
        let kit = owner.kit();
        // On a full host zones are filled only as far as they are backed. A victim that fills such a zone again gains nothing, and
        // would be moved for ever.
        let unused = match kit.pool.is_only_backed() {
            true => kit.layout.zone_blocks - kit.layout.backed_blocks(),
            false => 0,
        };
        let data_blocks = kit.settings.data_blocks.saturating_sub(unused);
        let (candidates, has_uncommitted) = kit.pool.candidates(data_blocks, &kit.streams.all_committed());
        let (pressure, now) = (pace::pressure(&*owner), kit.clock());
        let chosen = kit.policy.borrow_mut().choose(&mut candidates.iter().copied(), pressure, now);
        let Some(candidate) = chosen.and_then(|zone| candidates.iter().find(|other| other.zone == zone))
        else {
            if has_uncommitted && pressure.is_urgent() {
                kit.wake_cleaner_with_next_commit();
                return Ok(Some(Step::Later));
            }
            return Ok(None);
        };
        kit.policy.borrow_mut().cleaned(*candidate, now);
        kit.pace.begin(candidate);
        let zone = candidate.zone.0;
        kit.pool.begin_cleaning(zone);
        match self.find_live(candidate).await {
            Ok(in_hand) => {
                kit.pace.pass(Some(0));
                self.in_hand = Some(in_hand);
            }
            Err(error) => {
                leave_as_it_is(kit, zone, &error);
                return Ok(Some(Step::Done));
            }
        }
        Ok(None)
    }

    async fn find_live(&self, candidate: &Candidate) -> Result<InHand<O::Name>> {
        let victim = Victim::find(self.owner.kit(), candidate).await?;
        let mut pieces = self.owner.live(&victim).await?;
        pieces.sort_unstable_by_key(|piece| piece.position);
        Ok(InHand { victim, pieces, next: 0 })
    }

    /// Moves a record's worth of the victim, if it is time.
    async fn clean_some(&mut self) -> Result<Step> {
        let owner = self.owner.clone();
        let kit = owner.kit();
        let Some(mut in_hand) = self.in_hand.take() else { return Ok(Step::Nothing) };
        let zone = in_hand.victim.zone();
        let has_moves = in_hand.next < in_hand.pieces.len() && kit.pool.live(zone) > 0;
        if has_moves && (moves_wait(&*owner) || pace::admit_moves(&*owner) == Admission::Later) {
            self.in_hand = Some(in_hand);
            return Ok(Step::Later);
        }
        // The faster it has to be, the more is in flight together.
        let records = pace::moves_per_write(&*owner)
            .map_or(MOST_RECORDS, |rate| (rate.ceil() as u32).clamp(1, MOST_RECORDS));
        let outcome = if has_moves { self.move_some(&mut in_hand, records).await } else { Ok(()) };
        match outcome {
            Ok(()) if in_hand.next < in_hand.pieces.len() && kit.pool.live(zone) > 0 => {
                let passed = u64::from(in_hand.pieces[in_hand.next].position);
                let blocks = u64::from(kit.settings.data_blocks);
                kit.pace.pass(Some(passed * blocks / u64::from(kit.layout.zone_blocks)));
                self.in_hand = Some(in_hand);
                return Ok(Step::Done);
            }
            // Users' overwrites and our moves together leave nothing; unless something could not be read.
            Ok(()) if kit.pool.live(zone) == 0 => {
                kit.pool.set_full(zone);
                count(&kit.counters.cleaned_zones, 1);
            }
            Ok(()) => {
                let left = kit.pool.live(zone);
                tracing::error!("zone {zone}: {left} live blocks can't be moved; the zone is left as it is");
                kit.set_damaged(zone);
            }
            Err(error @ Error::NoSpace(_)) => {
                kit.pool.set_full(zone);
                kit.pace.pass(None);
                return Err(error);
            }
            Err(error) => leave_as_it_is(kit, zone, &error),
        }
        kit.pace.pass(None);
        Ok(Step::Done)
    }

    /// Makes the victim, if there is one, a zone like any other again.
    fn release_victim(&mut self) {
        if let Some(in_hand) = self.in_hand.take() {
            self.owner.kit().pool.set_full(in_hand.victim.zone());
            self.owner.kit().pace.pass(None);
        }
    }

    /// Moves what is still live of the next pieces, as much as so many records of single blocks take.
    async fn move_some(&mut self, in_hand: &mut InHand<O::Name>, records: u32) -> Result<()> {
        let owner = self.owner.clone();
        let kit = owner.kit();
        let most = records * kit.settings.record_blocks;
        let (mut pieces, mut blocks) = (Vec::new(), 0);
        while blocks < most
            && let Some(piece) = in_hand.pieces.get(in_hand.next)
        {
            in_hand.next += 1;
            owner.still_live(&in_hand.victim, piece, &mut |offset, count| {
                pieces.push(piece.part(offset, count));
                blocks += count;
            });
        }
        let pieces = in_hand.victim.read(kit, &pieces).await?;
        let age = kit.clock().saturating_sub(in_hand.victim.opened());
        let arrival = Arrival::Moved { age, class: in_hand.victim.class() };
        let class = kit.policy.borrow().place(arrival);
        owner.relocate(&in_hand.victim, class, pieces, &mut self.mover).await
    }
}

/// Leaves a zone in which something can't be read: it isn't cleaned again before the log is reopened.
fn leave_as_it_is(kit: &Kit, zone: u32, error: &Error) {
    tracing::error!("zone {zone} can't be cleaned and is left as it is: {error}");
    kit.set_damaged(zone);
}

/// Wakes writers that wait for a zone, if there is one, or there won't be. Else they would ask for what is in flight
/// already, over and over.
fn tell_writers<O: Owner>(owner: &O) {
    let kit = owner.kit();
    if kit.is_stuck() || kit.pool.free() > owner.kept_zones() {
        kit.events.freed.notify_all();
    }
}

/// Whether a checkpoint would make pages of the one before free.
fn has_superseded(kit: &Kit) -> bool {
    kit.pool.count(|zone| zone.class == CHECKPOINT_CLASS && zone.usage == Usage::Full) > 1
}
