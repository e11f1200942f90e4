//! The cleaner: appends the live data of a zone elsewhere, so that the zone can be reset.
//!
//! A move is a record of the cleaner's own stream, so users' writes never wait for one. It takes effect when
//! it commits, and only for blocks whose location hasn't changed: a write that committed in between takes
//! precedence.
//!
//! The cleaner's task observes a small state, gets the next action from [`decision::next`], and carries it
//! out. [`pace`] sets the speed of the moves; its module documentation shows why no writer waits forever.
//!
//! Left to others: reading a victim (`victim`), appending moves (`mover`), resetting zones (`reset`), the
//! choice of a victim (the policy), and finding live data (the owner).

use crate::cleaning::{Arrival, Candidate};
use crate::decision::{self, Action, Admission, Cause, Choice, Progress, State, Task};
use crate::kit::{Kit, count};
use crate::mover::Mover;
use crate::moves::moves_wait;
use crate::owner::Owner;
use crate::pace;
use crate::pool::{CHECKPOINT_CLASS, Usage};
use crate::reset::{has_coverable, has_resettable, reset_dead};
use crate::seals;
use crate::space::seal_filler;
use crate::victim::{Piece, Victim};
use block::{Error, Result};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Victim in progress with its pieces; the first `next` of them have been moved.
#[derive(Debug)]
struct InHand<N> {
    victim: Victim,
    /// Pieces that were live when the victim was chosen, by position.
    pieces: Vec<Piece<N>>,
    next: usize,
}

impl<N> InHand<N> {
    /// Whether the victim has live blocks that haven't been moved.
    fn has_moves(&self, kit: &Kit) -> bool {
        self.next < self.pieces.len() && kit.pool.live(self.victim.zone()) > 0
    }
}

/// Answers of the policy and the pace in this pass.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    choice: Choice,
    pace: Admission,
}

/// Outcome of [`Action::Choose`].
#[derive(Debug, Clone, Copy)]
enum Chosen {
    /// The policy chose no victim.
    Nothing(Choice),
    /// The policy chose a victim, whose live pieces are known.
    Victim,
    /// The victim couldn't be read; it isn't cleaned again until the log is opened again.
    Unreadable,
}

/// Work in a task of its own with its outcome, so that moves don't wait for a flush or a checkpoint.
#[derive(Debug, Default)]
struct BackgroundTask(Option<Rc<RefCell<Option<Result<()>>>>>);

impl BackgroundTask {
    /// State of the task, as an input of the decision.
    fn progress(&self) -> Progress {
        match &self.0 {
            None => Progress::Idle,
            Some(ended) if ended.borrow().is_none() => Progress::Running,
            Some(_) => Progress::Ended,
        }
    }

    /// Begins the task. Its end wakes the cleaner.
    fn begin<O: Owner, F: Future<Output = Result<()>> + 'static>(
        &mut self,
        owner: &Rc<O>,
        work: impl FnOnce(Rc<O>) -> F,
    ) {
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

    /// Takes the outcome of a task that has ended; the next one may begin.
    ///
    /// # Errors
    /// The failure of the task.
    fn collect(&mut self) -> Result<()> {
        let outcome = self.0.take().and_then(|ended| ended.borrow_mut().take());
        outcome.unwrap_or(Ok(()))
    }
}

/// The cleaner's task.
struct Cleaner<O: Owner> {
    owner: Rc<O>,
    mover: Mover,
    in_hand: Option<InHand<O::Name>>,
    checkpoint: BackgroundTask,
    reset: BackgroundTask,
    reserve: BackgroundTask,
    /// Number of failures in a row.
    failures: u32,
    /// Error of the last action, until the pause after it.
    error: Option<Error>,
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
        failures: 0,
        error: None,
    };
    owner.kit().tasks.spawn(cleaner.run()).detach();
}

impl<O: Owner> Cleaner<O> {
    async fn run(mut self) {
        while self.pass().await {}
        self.release_victim();
        // Lanes that wait for a zone check their queues again.
        let owner = self.owner.clone();
        owner.kit().events.freed.notify_all();
        self.mover.close(&*owner).await;
        seal_filler(owner.kit()).await;
    }

    /// Carries out actions up to one that ends the pass. Returns false if the cleaner has to end.
    async fn pass(&mut self) -> bool {
        let owner = self.owner.clone();
        let kit = owner.kit();
        let woken = kit.events.cleaner.notified();
        self.mover.answer_between(&*owner, self.in_hand.is_some()).await;
        let mut answers = Answers::default();
        loop {
            let state = self.observe(answers);
            match decision::next(&state) {
                Action::Begin(task) => {
                    self.begin(task);
                    continue;
                }
                Action::AskPace => {
                    answers.pace = pace::admit_moves(&*owner);
                    continue;
                }
                // The state may have changed during the action, so the next decision observes it again.
                Action::Choose => match self.choose().await {
                    Chosen::Nothing(choice) => {
                        answers.choice = choice;
                        continue;
                    }
                    Chosen::Victim => continue,
                    Chosen::Unreadable => self.done().await,
                },
                Action::FreePiece => {
                    owner.free_piece();
                    self.done().await;
                }
                Action::Collect(task) => {
                    let outcome = self.task(task).collect();
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
                        kit.set_stuck(None);
                    }
                    self.wait(woken, until_commit).await;
                }
                Action::Refuse { until_commit } => {
                    self.failures = 0;
                    let error = kit.space.error().unwrap_or_else(|| nothing_to_clean(owner.space_advice()));
                    kit.set_stuck(Some(error));
                    self.wait(woken, until_commit).await;
                }
                Action::Retry { refuse, limit } => self.rest(refuse, limit).await,
                Action::Stop => return false,
            }
            return true;
        }
    }

    /// Rests after a failure, up to `limit` beyond the minimum; `refuse` is whether users get the error.
    async fn rest(&mut self, refuse: bool, limit: Duration) {
        let owner = self.owner.clone();
        let kit = owner.kit();
        let error = self.error.take().filter(|_| refuse);
        kit.set_stuck(error.map(|error| error.in_context("cleaning failed, so no zone can be freed")));
        kit.events.freed.notify_all();
        let woken = kit.events.cleaner.notified();
        self.mover.answer(&*owner).await;
        runtime::sleep(decision::REST).await;
        if !limit.is_zero() {
            let _woken = runtime::timeout(limit, woken).await;
        }
    }

    /// Collects the state on which the decision depends.
    fn observe(&self, answers: Answers) -> State {
        let owner = &*self.owner;
        let kit = owner.kit();
        let kept = owner.kept_zones();
        // Read before the coverage below: a commit on another shard in between must not make a zone look
        // pinned.
        let has_uncommitted = kit.streams.has_uncommitted();
        let state = State {
            has_failed: kit.failure().is_some(),
            is_closing: kit.is_closing(),
            has_queued: owner.appender().queued() > 0,
            has_just_failed: self.error.is_some(),
            failures: self.failures,
            has_deleted: owner.has_pieces(),
            reset: self.reset.progress(),
            checkpoint: self.checkpoint.progress(),
            reserve: self.reserve.progress(),
            wants_reserve: kit.wants_reserve(kept),
            wants_checkpoint: owner.wants_checkpoint(),
            free: kit.pool.free(),
            kept,
            lanes: kit.settings.appends_in_flight,
            dead: kit.pool.dead(),
            resetting: kit.pool.resetting(),
            preparing: kit.pool.preparing(),
            has_covered: has_resettable(owner),
            has_coverable: has_coverable(owner),
            is_dead_pinned: false,
            frees_pages: false,
            victim: match &self.in_hand {
                None => decision::Victim::None,
                Some(in_hand) if in_hand.has_moves(kit) => decision::Victim::Moves,
                Some(_) => decision::Victim::Moved,
            },
            choice: answers.choice,
            is_blocked: moves_wait(owner),
            pace: answers.pace,
        };
        // Counting the zones of checkpoints takes time, so it is done only where the decision depends on it.
        let frees_pages = state.is_urgent()
            && matches!(answers.choice, Choice::Nothing | Choice::Unneeded)
            && kit.since_checkpoint() > 0
            && has_superseded(kit);
        let is_dead_pinned = !state.has_covered && !state.has_coverable && !has_uncommitted;
        State { is_dead_pinned, frees_pages, ..state }
    }

    fn task(&mut self, task: Task) -> &mut BackgroundTask {
        match task {
            Task::Reset => &mut self.reset,
            Task::Checkpoint => &mut self.checkpoint,
            Task::Reserve => &mut self.reserve,
        }
    }

    fn begin(&mut self, task: Task) {
        let owner = self.owner.clone();
        self.task(task).begin(&owner, async move |owner| match task {
            Task::Reset => reset_dead(&owner).await.map(|_| ()),
            Task::Checkpoint => owner.take_checkpoint(false).await,
            Task::Reserve => {
                owner.kit().back_reserve().await;
                Ok(())
            }
        });
    }

    /// Resets the count of consecutive failures after a success, and wakes writers that wait for a zone.
    async fn done(&mut self) {
        self.failures = 0;
        self.owner.kit().set_stuck(None);
        self.owner.kit().events.freed.notify_all();
        runtime::yield_now().await;
    }

    /// Notes the outcome of an action: a failure is counted and kept for the decision.
    async fn ended(&mut self, outcome: Result<()>) {
        let Err(error) = outcome else { return self.done().await };
        self.failures = self.failures.saturating_add(1);
        if self.failures.is_power_of_two() {
            tracing::warn!("cleaning failed, consecutive failures: {}: {error}", self.failures);
        }
        self.error = Some(error);
    }

    /// Waits to be woken. Before that, wakes waiting writers if a zone is free or none can be freed.
    /// Otherwise the writers would only request the same work again.
    async fn wait(&mut self, woken: impl Future<Output = ()>, until_commit: bool) {
        let owner = self.owner.clone();
        let kit = owner.kit();
        if until_commit {
            kit.wake_cleaner_with_next_commit();
        }
        if kit.is_stuck() || kit.pool.free() > self.owner.kept_zones() {
            kit.events.freed.notify_all();
        }
        let kept = self.mover.answer_between(&*owner, self.in_hand.is_some()).await;
        seals::until(kept, woken).await;
    }

    /// Lets the policy choose a victim, and finds its live pieces.
    async fn choose(&mut self) -> Chosen {
        let owner = self.owner.clone();
        let kit = owner.kit();
        let blocks = (kit.settings.data_blocks, kit.layout.zone_blocks);
        let (pressure, now) = (pace::pressure(&*owner), kit.clock());
        let choose = |candidates: &mut dyn Iterator<Item = Candidate>| {
            kit.policy.borrow_mut().choose(candidates, pressure, now)
        };
        let (chosen, has_uncommitted) = kit.pool.choose(blocks, &kit.streams.all_committed(), choose);
        let Some(candidate) = &chosen else {
            return Chosen::Nothing(match pressure.is_urgent() {
                true if has_uncommitted => Choice::Uncommitted,
                true => Choice::Nothing,
                false => Choice::Unneeded,
            });
        };
        kit.policy.borrow_mut().cleaned(*candidate, now);
        kit.pace.begin(candidate);
        match self.find_live(candidate).await {
            Ok(in_hand) => {
                kit.pace.pass(Some(0));
                self.in_hand = Some(in_hand);
                Chosen::Victim
            }
            Err(error) => {
                exclude(kit, candidate.zone.0, &error);
                Chosen::Unreadable
            }
        }
    }

    async fn find_live(&self, candidate: &Candidate) -> Result<InHand<O::Name>> {
        let victim = Victim::find(self.owner.kit(), candidate).await?;
        let mut pieces = self.owner.live(&victim).await?;
        pieces.sort_unstable_by_key(|piece| piece.position);
        Ok(InHand { victim, pieces, next: 0 })
    }

    /// Moves up to `records` records' worth of the victim's blocks, and ends the victim if none is left.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no zone takes the moves: the victim is released, and may be chosen again.
    async fn clean_some(&mut self, records: u32) -> Result<()> {
        let owner = self.owner.clone();
        let kit = owner.kit();
        let Some(mut in_hand) = self.in_hand.take() else { return Ok(()) };
        let zone = in_hand.victim.zone();
        match self.move_some(&mut in_hand, records).await {
            Ok(()) if in_hand.has_moves(kit) => {
                let passed = u64::from(in_hand.pieces[in_hand.next].position);
                let blocks = u64::from(kit.settings.data_blocks);
                kit.pace.pass(Some(passed * blocks / u64::from(kit.layout.zone_blocks)));
                self.in_hand = Some(in_hand);
            }
            Ok(()) => {
                self.in_hand = Some(in_hand);
                self.end_victim();
            }
            Err(error) => {
                kit.pace.pass(None);
                if matches!(error, Error::NoSpace(_)) {
                    kit.pool.set_full(zone);
                    return Err(error);
                }
                exclude(kit, zone, &error);
            }
        }
        Ok(())
    }

    /// Ends the victim: without live blocks it becomes dead, and is reset; with unreadable live blocks it is
    /// excluded from cleaning.
    fn end_victim(&mut self) {
        let kit = self.owner.kit();
        let Some(InHand { victim, .. }) = self.in_hand.take() else { return };
        let zone = victim.zone();
        // Users' overwrites and the moves have freed all blocks. Dying blocks become dead when their records
        // commit; until then the zone isn't chosen again.
        match kit.pool.end_cleaning(zone) {
            0 => count(&kit.counters.cleaned_zones, 1),
            left => {
                tracing::error!(
                    "zone {zone}: {left} live blocks can't be moved; it is excluded until the log is opened again"
                );
                kit.set_damaged(zone);
            }
        }
        kit.pace.pass(None);
    }

    /// Releases the victim, so that it may be chosen again.
    fn release_victim(&mut self) {
        if let Some(in_hand) = self.in_hand.take() {
            self.owner.kit().pool.set_full(in_hand.victim.zone());
            self.owner.kit().pace.pass(None);
        }
    }

    /// Moves the live blocks of the next pieces, at most `records` records' worth.
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
        let bytes = u64::from(blocks) * kit.layout.block_size.bytes();
        let pieces = owner.read_to_move(bytes, in_hand.victim.read(kit, &pieces)).await?;
        let age = kit.clock().saturating_sub(in_hand.victim.opened());
        let arrival = Arrival::Moved { age, class: in_hand.victim.class() };
        let class = kit.policy.borrow().place(arrival);
        owner.relocate(&in_hand.victim, class, pieces, &mut self.mover).await
    }
}

/// Error for writers while no zone can be freed.
fn nothing_to_clean(advice: &str) -> Error {
    Error::no_space(format!("the log has no free zone, and no zone is worth cleaning; {advice}"))
}

/// Excludes a zone with unreadable blocks from cleaning until the log is opened again.
fn exclude(kit: &Kit, zone: u32, error: &Error) {
    tracing::error!("zone {zone} can't be cleaned, and is excluded until the log is opened again: {error}");
    kit.set_damaged(zone);
}

/// Whether a new checkpoint would free pages of the previous one.
fn has_superseded(kit: &Kit) -> bool {
    kit.pool.count(|zone| zone.class == CHECKPOINT_CLASS && zone.usage == Usage::Full) > 1
}
