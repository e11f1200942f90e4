//! Every small state: the action never breaks its precondition, and no wait is left without a wakeup.

use super::*;

/// Random numbers: splitmix64.
#[derive(Debug, Clone, Copy)]
pub struct Random(pub u64);

impl Random {
    /// Number below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((((bits ^ (bits >> 31)) >> 32) * u64::from(end)) >> 32) as u32
    }

    /// True once in `count` times.
    pub fn once_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    /// Returns one of these values at random.
    pub fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u32) as usize]
    }
}

/// Panics if the action of a state breaks its precondition.
pub fn check(state: &State, action: Action) {
    let all_idle = [state.reset, state.checkpoint, state.reserve].iter().all(|task| *task == Progress::Idle);
    let any_running = [state.reset, state.checkpoint, state.reserve].contains(&Progress::Running);
    let progress = |task: Task| match task {
        Task::Reset => state.reset,
        Task::Checkpoint => state.checkpoint,
        Task::Reserve => state.reserve,
    };
    let is_over = state.has_failed || state.is_closing && !state.has_queued;
    // Whether a reset or a checkpoint would free zones and can begin now.
    let can_reset = state.has_covered && state.reset == Progress::Idle;
    let can_cover =
        state.has_coverable && state.reset == Progress::Idle && state.checkpoint == Progress::Idle;
    let is_right = match action {
        Action::Stop => is_over,
        Action::FreePiece => state.has_deleted,
        Action::Collect(task) => progress(task) == Progress::Ended,
        Action::Begin(task) => {
            progress(task) == Progress::Idle
                && match task {
                    Task::Reset => state.dead > 0 && state.has_covered,
                    Task::Checkpoint => {
                        state.wants_checkpoint
                            || state.is_urgent() && (state.has_coverable || state.frees_pages)
                    }
                    Task::Reserve => state.wants_reserve,
                }
        }
        Action::Choose => {
            let is_outdated = state.choice == Choice::Unneeded && state.is_short();
            state.victim == Victim::None && (state.choice == Choice::NotAsked || is_outdated)
        }
        Action::AskPace => {
            let is_outdated = state.pace == Admission::Later && state.users_wait();
            let is_needed = state.pace == Admission::NotAsked || is_outdated;
            state.victim == Victim::Moves && is_needed && !state.is_blocked
        }
        Action::Move { records } => {
            state.victim == Victim::Moves
                && matches!(state.pace, Admission::Now { .. })
                && !state.is_blocked
                && (1..=MAX_RECORDS).contains(&records)
        }
        Action::EndVictim => state.victim == Victim::Moved,
        Action::Wait { cause, until_commit } => {
            let has_wakeup = match cause {
                Cause::Pace => {
                    state.pace == Admission::Later && state.victim == Victim::Moves && !state.users_wait()
                }
                Cause::Checkpoint => state.is_blocked && state.victim == Victim::Moves,
                Cause::Commit => state.choice == Choice::Uncommitted && until_commit,
                Cause::Task => any_running && state.victim == Victim::None,
                // A wait without a timeout: users get zones anyway, or dead zones wait for a commit.
                Cause::Change => {
                    all_idle
                        && state.victim == Victim::None
                        && !(state.is_urgent() && state.frees_pages)
                        && (!state.users_wait() || state.dead > 0 && until_commit)
                }
            };
            has_wakeup && !state.has_deleted && !(state.is_urgent() && (can_reset || can_cover))
        }
        Action::Refuse { until_commit } => {
            state.users_wait()
                && state.is_short()
                && state.victim == Victim::None
                && state.choice == Choice::Nothing
                && all_idle
                && !state.has_deleted
                && !state.has_covered
                && !state.has_coverable
                && !state.frees_pages
                && until_commit == (state.dead > 0)
        }
        Action::Retry { refuse, limit } => {
            state.has_just_failed
                && refuse == (state.failures >= MAX_FAILURES && state.users_wait())
                && limit <= BETWEEN_ATTEMPTS * (1 << MAX_DOUBLINGS)
                && (limit > Duration::ZERO) != state.is_closing
        }
    };
    assert!(is_right, "{action:?} in {state:?}");
    assert_eq!(matches!(action, Action::Retry { .. }), state.has_just_failed, "{action:?} in {state:?}");
    assert!(
        state.has_just_failed || is_over == (action == Action::Stop),
        "{action:?} in {state:?}: a log that has failed or is closed has no cleaner"
    );
}

const PROGRESS: [Progress; 3] = [Progress::Idle, Progress::Running, Progress::Ended];

/// Zones, as (free, kept, lanes).
fn zones() -> impl Iterator<Item = (u32, u32, u32)> + Clone {
    (0..=4).flat_map(|free| (0..=3).flat_map(move |kept| (0..=2).map(move |lanes| (free, kept, lanes))))
}

/// Dead zones, as (dead, covered, coverable): a zone is covered, coverable, or neither.
fn dead() -> impl Iterator<Item = (u32, bool, bool)> + Clone {
    let all = [0, 1, 2, RESET_TOGETHER].into_iter();
    let kinds = [(false, false), (true, false), (false, true), (true, true)];
    all.flat_map(move |dead| kinds.map(|(covered, coverable)| (dead, covered, coverable)))
        .filter(|(dead, covered, coverable)| *dead >= u32::from(*covered) + u32::from(*coverable))
}

/// Victims with answers of the policy and the pace, as (victim, choice, blocked, pace, frees pages).
fn answers() -> Vec<(Victim, Choice, bool, Admission, bool)> {
    let mut all = vec![
        (Victim::None, Choice::NotAsked, false, Admission::NotAsked, false),
        (Victim::None, Choice::Uncommitted, false, Admission::NotAsked, false),
        (Victim::None, Choice::Nothing, false, Admission::NotAsked, false),
        (Victim::None, Choice::Nothing, true, Admission::NotAsked, false),
        (Victim::None, Choice::Nothing, false, Admission::NotAsked, true),
        (Victim::None, Choice::Unneeded, false, Admission::NotAsked, false),
        (Victim::None, Choice::Unneeded, false, Admission::NotAsked, true),
        (Victim::Moves, Choice::NotAsked, true, Admission::NotAsked, false),
        (Victim::Moves, Choice::NotAsked, false, Admission::NotAsked, false),
        (Victim::Moves, Choice::NotAsked, false, Admission::Later, false),
        (Victim::Moved, Choice::NotAsked, false, Admission::NotAsked, false),
        (Victim::Moved, Choice::NotAsked, true, Admission::NotAsked, false),
    ];
    for per_write in [None, Some(0), Some(3), Some(MAX_RECORDS + 1)] {
        all.push((Victim::Moves, Choice::NotAsked, false, Admission::Now { per_write }, false));
    }
    all
}

/// Calls `visit` for every state with these numbers that can occur while the log is open.
fn visit_all(visit: &mut impl FnMut(&State)) {
    let tasks = PROGRESS.iter().flat_map(|reset| {
        PROGRESS.iter().flat_map(move |checkpoint| PROGRESS.iter().map(move |it| (*reset, *checkpoint, *it)))
    });
    let answers = answers();
    for (free, kept, lanes) in zones() {
        for (reset, checkpoint, reserve) in tasks.clone() {
            let taken = if reset == Progress::Running { 1 } else { 0 };
            for (dead, has_covered, has_coverable) in dead() {
                for resetting in 0..=taken {
                    for wants in 0..8 {
                        let state = State {
                            has_deleted: wants == 7,
                            wants_reserve: wants & 1 > 0,
                            wants_checkpoint: wants & 2 > 0,
                            has_queued: wants & 4 > 0,
                            ..State { reset, checkpoint, reserve, free, kept, lanes, ..State::default() }
                        };
                        let state = State { dead, resetting, has_covered, has_coverable, ..state };
                        for &(victim, choice, is_blocked, pace, frees_pages) in &answers {
                            visit(&State { victim, choice, is_blocked, pace, frees_pages, ..state });
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn no_action_breaks_its_precondition() {
    let mut visited = 0_u64;
    let mut random = Random(1);
    visit_all(&mut |state| {
        check(state, next(state));
        visited += 1;
        // The same states with failures and a close.
        let failures = random.below(4);
        let has_just_failed = failures > 0 && random.once_in(4);
        let (has_failed, is_closing) = (random.once_in(8), random.once_in(2));
        let state = State { failures, has_just_failed, has_failed, is_closing, ..*state };
        check(&state, next(&state));
        visited += 1;
    });
    assert!(visited > 4_000_000, "{visited} states");
}

/// Between an answer and the next observation, another shard took the last zones.
#[test]
fn answers_given_while_there_were_enough_zones_do_not_count_once_users_wait() {
    let enough = State { free: 4, kept: 3, choice: Choice::Unneeded, ..State::default() };
    assert_eq!(next(&enough), Action::Wait { cause: Cause::Change, until_commit: false });
    assert_eq!(next(&State { free: 3, ..enough }), Action::Choose);
    assert_eq!(
        next(&State { free: 3, choice: Choice::Nothing, ..enough }),
        Action::Refuse { until_commit: false }
    );
    let paced = State { victim: Victim::Moves, pace: Admission::Later, ..enough };
    assert_eq!(next(&paced), Action::Wait { cause: Cause::Pace, until_commit: false });
    assert_eq!(next(&State { free: 3, ..paced }), Action::AskPace);
}

#[test]
fn pauses_after_failures_double_up_to_a_limit() {
    let limit = |failures| {
        let state = State { has_just_failed: true, failures, free: 1, ..State::default() };
        match next(&state) {
            Action::Retry { refuse: false, limit } => limit.as_secs(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([1, 2, 3, 6, 7, 8, u32::MAX].map(limit), [1, 2, 4, 32, 64, 64, 64]);
}

#[test]
fn dead_zones_are_reset_together_unless_zones_are_needed_soon() {
    let state = State { free: 9, kept: 3, lanes: 2, dead: RESET_TOGETHER - 1, ..State::default() };
    let state = State { has_covered: true, ..state };
    assert_eq!(next(&state), Action::Choose);
    assert_eq!(next(&State { dead: RESET_TOGETHER, ..state }), Action::Begin(Task::Reset));
    assert_eq!(next(&State { free: 5, dead: 1, ..state }), Action::Begin(Task::Reset));
}

#[test]
fn no_writer_is_refused_while_a_zone_is_being_opened_ahead() {
    let state = State { free: 3, kept: 3, lanes: 2, choice: Choice::Nothing, ..State::default() };
    assert_eq!(next(&state), Action::Refuse { until_commit: false });
    let preparing = State { preparing: 1, ..state };
    assert_eq!(next(&preparing), Action::Wait { cause: Cause::Task, until_commit: false });
}

#[test]
fn pinned_dead_zones_are_not_waited_for() {
    let state = State { free: 3, kept: 3, dead: 4, lanes: 2, choice: Choice::Nothing, ..State::default() };
    assert_eq!(next(&state), Action::Wait { cause: Cause::Change, until_commit: true });
    assert_eq!(next(&State { is_dead_pinned: true, ..state }), Action::Refuse { until_commit: true });
    let enough = State { free: 9, is_dead_pinned: true, ..state };
    assert_eq!(next(&enough), Action::Wait { cause: Cause::Change, until_commit: true });
}
