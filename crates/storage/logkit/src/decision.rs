//! Decision of the cleaner: [`next`] maps a [`State`] of plain numbers to one [`Action`]. It is a pure
//! function without access to zones, maps and records, so its tests run every small state
//! (`decision/tests.rs`) and an abstract log (`decision/progress.rs`) without I/O.
//!
//! A *pass* begins with the registration for the cleaner's wakeup. In a pass the cleaner observes a state,
//! carries out the action, and repeats this until an action ends the pass. A decision to wait is therefore
//! based on a state at least as new as the registration, and a wakeup between the two isn't lost.
//!
//! Two inputs of the decision take time or have side effects: the policy's choice and the pace. They are
//! requested by [`Action::Choose`] and [`Action::AskPace`]. The answers are part of the state until the pass
//! ends. Another shard may take zones of the same pool after an answer, so an answer given while there were
//! enough zones doesn't count once users wait: it is requested again.
//!
//! Actions are in order of priority: the largest gain at the least cost first. Blocks of deleted versions are
//! freed before a victim is moved, because that makes moves unnecessary. A reset precedes the checkpoint that
//! covers further zones. Both run concurrently with the moves.

use std::time::Duration;

/// Number of dead zones that are reset together if no zone is needed soon: they share a flush and a grace
/// period.
pub const RESET_TOGETHER: u32 = 4;
/// Largest number of records' worth of blocks in one [`Action::Move`].
pub const MAX_RECORDS: u32 = 4;
/// Number of consecutive failures after which writers that wait for a zone are refused.
pub const MAX_FAILURES: u32 = 3;
/// Pause after a failure. Wakeups during it are ignored, since the failed attempt itself caused some.
pub const REST: Duration = Duration::from_millis(10);
/// Longest wait before the next attempt after the first failure; it doubles with each further one,
/// [`MAX_DOUBLINGS`] times. Writes that failed for lack of a free zone don't wake the cleaner.
pub const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);
/// Most doublings of [`BETWEEN_ATTEMPTS`].
pub const MAX_DOUBLINGS: u32 = 6;

/// State of a background task of the cleaner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Progress {
    /// Not begun.
    #[default]
    Idle,
    /// Running; its end wakes the cleaner.
    Running,
    /// Ended; its outcome hasn't been collected.
    Ended,
}

impl Progress {
    /// Whether the task has begun and its outcome hasn't been collected.
    fn is_busy(self) -> bool {
        self != Progress::Idle
    }
}

/// Background tasks of the cleaner, at most one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Resets the dead zones that the durable checkpoint covers.
    Reset,
    /// Writes a checkpoint.
    Checkpoint,
    /// Reserves space of the underlying device for a free zone.
    Reserve,
}

/// Zone that is being cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Victim {
    /// No zone is being cleaned.
    #[default]
    None,
    /// Live blocks are left to move.
    Moves,
    /// No live block is left to move.
    Moved,
}

/// Answer of the policy to [`Action::Choose`] if it chose no victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// Not asked in this pass.
    #[default]
    NotAsked,
    /// Zones are needed, and none is worth cleaning.
    Nothing,
    /// Zones weren't needed when the policy was asked.
    Unneeded,
    /// Zones are needed, and those worth cleaning have records that haven't committed.
    Uncommitted,
}

/// Answer of the pace to [`Action::AskPace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admission {
    /// Not asked in this pass.
    #[default]
    NotAsked,
    /// Blocks may be moved now.
    Now {
        /// Number of blocks to move per block that users write, rounded up; `None` is without limit.
        per_write: Option<u32>,
    },
    /// Users' commits wake the cleaner once blocks may be moved. Asked again if users wait for a zone.
    Later,
}

/// Inputs of the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// The log takes no more writes.
    pub has_failed: bool,
    /// The log is being closed.
    pub is_closing: bool,
    /// Users' changes are queued. They may need zones even while the log is being closed.
    pub has_queued: bool,
    /// The previous action failed, and [`Action::Retry`] hasn't been carried out since.
    pub has_just_failed: bool,
    /// Number of consecutive failures.
    pub failures: u32,
    /// A deleted version has blocks that haven't been freed.
    pub has_deleted: bool,
    /// State of [`Task::Reset`].
    pub reset: Progress,
    /// State of [`Task::Checkpoint`].
    pub checkpoint: Progress,
    /// State of [`Task::Reserve`].
    pub reserve: Progress,
    /// A free zone should get its space reserved.
    pub wants_reserve: bool,
    /// Enough has been written since the last checkpoint to pay for another.
    pub wants_checkpoint: bool,
    /// Number of free zones; while the underlying device has no space, only those with reserved space.
    pub free: u32,
    /// Number of free zones that are reserved for the cleaner and for checkpoints.
    pub kept: u32,
    /// Number of zones that users may open at the same time.
    pub lanes: u32,
    /// Number of dead zones that wait to be reset, without those that a reset has taken.
    pub dead: u32,
    /// Number of dead zones that the running reset has taken and hasn't reset yet.
    pub resetting: u32,
    /// Number of zones that are being opened ahead, and so aren't free; the end of opening one wakes the
    /// cleaner.
    pub preparing: u32,
    /// The durable checkpoint covers a zone of `dead`.
    pub has_covered: bool,
    /// A new checkpoint would cover a zone of `dead` that the durable one doesn't.
    pub has_coverable: bool,
    /// No zone of `dead` is covered or coverable although every record has committed: none can be reset
    /// before the owner writes more.
    pub is_dead_pinned: bool,
    /// A new checkpoint would free pages of the previous one. Only known after the policy chose no victim.
    pub frees_pages: bool,
    /// Zone that is being cleaned.
    pub victim: Victim,
    /// Answer of the policy.
    pub choice: Choice,
    /// Moves wait for the end of the running checkpoint.
    pub is_blocked: bool,
    /// Answer of the pace.
    pub pace: Admission,
}

impl State {
    /// Whether all free zones are reserved, so that users that need one wait.
    pub fn users_wait(&self) -> bool {
        self.free <= self.kept
    }

    /// Whether users wait for zones, or will when each lane needs one.
    pub fn is_urgent(&self) -> bool {
        self.free <= self.kept.saturating_add(self.lanes)
    }

    /// Whether users would wait even after all dead zones that aren't pinned are reset, and all zones that
    /// are being opened ahead are free again.
    pub fn is_short(&self) -> bool {
        let dead = if self.is_dead_pinned { 0 } else { self.dead };
        let soon = dead.saturating_add(self.resetting).saturating_add(self.preparing);
        self.free.saturating_add(soon) <= self.kept
    }

    /// Whether a background task has begun and its outcome hasn't been collected, or a zone is being opened
    /// ahead; its end wakes the cleaner.
    fn has_task(&self) -> bool {
        self.preparing > 0 || [self.reset, self.checkpoint, self.reserve].iter().any(|task| task.is_busy())
    }
}

/// Event that ends a wait of the cleaner. A user that begins to wait for a zone ends any wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Users have written as much as [`Admission::Later`] asked for.
    Pace,
    /// The running checkpoint has ended, so moves may continue.
    Checkpoint,
    /// A record has committed.
    Commit,
    /// A task has ended, or a zone was opened ahead.
    Task,
    /// Any change: a zone was taken or sealed, a version deleted, or the log is being closed. The cleaner has
    /// nothing to do.
    Change,
}

/// Action of the cleaner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Frees a piece of a deleted version. Ends the pass and resets the count of failures.
    FreePiece,
    /// Collects the outcome of a task that has ended. Ends the pass and, if the task succeeded, resets the
    /// count of failures.
    Collect(Task),
    /// Begins a background task.
    Begin(Task),
    /// Asks the policy for a victim, and finds its live blocks. The answer is in [`State::victim`] or
    /// [`State::choice`].
    Choose,
    /// Asks the pace whether blocks may be moved. The answer is in [`State::pace`].
    AskPace,
    /// Moves live blocks of the victim, followed by [`Action::EndVictim`] if none is left. Ends the pass and,
    /// on success, resets the count of failures.
    Move {
        /// Number of records' worth of single blocks that are read together.
        records: u32,
    },
    /// Makes the victim dead, so that it is reset. Ends the pass and resets the count of failures.
    EndVictim,
    /// Waits to be woken; ends the pass. Writers are refused only after consecutive failures;
    /// [`Cause::Change`] resets their count.
    Wait {
        /// Event that ends the wait.
        cause: Cause,
        /// Whether the next commit wakes the cleaner.
        until_commit: bool,
    },
    /// Refuses the writers that wait for a zone, because no zone can be freed, and waits to be woken. Ends
    /// the pass and resets the count of failures.
    Refuse {
        /// Whether the next commit wakes the cleaner.
        until_commit: bool,
    },
    /// Pauses for [`REST`], then waits to be woken. Ends the pass.
    Retry {
        /// Whether writers that wait for a zone are refused until then.
        refuse: bool,
        /// Longest wait after the pause.
        limit: Duration,
    },
    /// Ends the cleaner. The victim's state is unchanged.
    Stop,
}

/// Returns the cleaner's action in a state.
pub fn next(state: &State) -> Action {
    if state.has_just_failed {
        return retry(state);
    }
    if state.has_failed || state.is_closing && !state.has_queued {
        return Action::Stop;
    }
    if state.has_deleted {
        return Action::FreePiece;
    }
    let tasks =
        [(state.reset, Task::Reset), (state.checkpoint, Task::Checkpoint), (state.reserve, Task::Reserve)];
    if let Some((_, task)) = tasks.into_iter().find(|(progress, _)| *progress == Progress::Ended) {
        return Action::Collect(task);
    }
    if let Some(task) = task_to_begin(state) {
        return Action::Begin(task);
    }
    match state.victim {
        Victim::Moved => Action::EndVictim,
        Victim::Moves => move_some(state),
        Victim::None => match state.choice {
            Choice::NotAsked => Action::Choose,
            Choice::Uncommitted => Action::Wait { cause: Cause::Commit, until_commit: true },
            Choice::Unneeded if state.is_short() => Action::Choose,
            Choice::Nothing | Choice::Unneeded => without_victim(state),
        },
    }
}

/// Returns the background task to begin, independent of the victim.
fn task_to_begin(state: &State) -> Option<Task> {
    if state.wants_reserve && !state.reserve.is_busy() {
        return Some(Task::Reserve);
    }
    let enough = if state.is_urgent() { 1 } else { RESET_TOGETHER };
    if state.dead >= enough && state.has_covered && !state.reset.is_busy() {
        return Some(Task::Reset);
    }
    // A running reset may free enough zones without a checkpoint.
    let is_waited_for = state.is_urgent() && state.has_coverable && !state.reset.is_busy();
    let is_wanted = state.wants_checkpoint || is_waited_for;
    (is_wanted && !state.checkpoint.is_busy()).then_some(Task::Checkpoint)
}

/// Returns the move of live blocks, if the checkpoint and the pace allow it.
fn move_some(state: &State) -> Action {
    if state.is_blocked {
        return Action::Wait { cause: Cause::Checkpoint, until_commit: false };
    }
    match state.pace {
        Admission::NotAsked => Action::AskPace,
        Admission::Later if state.users_wait() => Action::AskPace,
        Admission::Later => Action::Wait { cause: Cause::Pace, until_commit: false },
        // The higher the pace, the more reads and writes are in flight together.
        Admission::Now { per_write } => {
            Action::Move { records: per_write.map_or(MAX_RECORDS, |moves| moves.clamp(1, MAX_RECORDS)) }
        }
    }
}

/// Returns the action if no zone is worth cleaning: a checkpoint that frees zones of the previous one, a wait
/// for running work, or the refusal of writers.
fn without_victim(state: &State) -> Action {
    if state.is_urgent() && state.frees_pages && !state.checkpoint.is_busy() {
        return Action::Begin(Task::Checkpoint);
    }
    // A dead zone can't be reset while a record in it hasn't committed.
    let until_commit = state.dead > 0;
    if state.has_task() {
        Action::Wait { cause: Cause::Task, until_commit }
    } else if state.is_short() {
        Action::Refuse { until_commit }
    } else {
        Action::Wait { cause: Cause::Change, until_commit }
    }
}

/// Returns the wait after a failure. Dead zones aren't counted as free here: they may not be resettable.
fn retry(state: &State) -> Action {
    let doublings = state.failures.saturating_sub(1).min(MAX_DOUBLINGS);
    Action::Retry {
        refuse: state.failures >= MAX_FAILURES && state.users_wait(),
        limit: if state.is_closing { Duration::ZERO } else { BETWEEN_ATTEMPTS * (1 << doublings) },
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod progress;
#[cfg(test)]
mod tests;
