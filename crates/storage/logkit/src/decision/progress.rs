//! Progress from every state in which a zone can be freed: a waiting writer gets a zone or an error. The
//! abstract log runs from random starts, with [`next`] and with decisions that are broken on purpose, which
//! must be found.

use super::model::{Counts, Decide, Model};
use super::*;

/// Runs logs from random starts: first writers wait until the log is at rest, then users write for a while,
/// and so on.
fn run(logs: u64, decide: Decide) -> Result<Counts, String> {
    let mut all = Counts::default();
    for seed in 1..=logs {
        let mut model = Model::any(seed, decide);
        for round in 0..6 {
            for _ in 0..40 * u32::from(round > 0) {
                model.disturb();
                let _ran = model.step() && model.step() && model.step();
            }
            model.drain().map_err(|error| format!("seed {seed}, round {round}: {error}"))?;
            if model.has_ended() {
                break;
            }
        }
        let Counts { actions, moves, refusals, failures, given, without_zone } = model.counts;
        all.actions += actions;
        all.moves += moves;
        all.refusals += refusals;
        all.failures += failures;
        all.given += given;
        all.without_zone += without_zone;
    }
    Ok(all)
}

#[test]
fn a_writer_that_waits_is_given_a_zone_or_refused() {
    let logs = if conformance::budget::is_long() { 200_000 } else { 1500 };
    let counts = run(logs, next).unwrap_or_else(|error| panic!("{error}"));
    println!("{counts:?}");
    // Such a move is retried, and the writers still got a zone or an error.
    assert!(counts.without_zone <= counts.moves / 100_000, "moves without a zone are rare: {counts:?}");
    assert!(counts.moves > 0 && counts.refusals > 0 && counts.failures > 0 && counts.given > 0, "{counts:?}");
}

/// Decisions that are wrong on purpose, each with the error that the model must find.
const BROKEN: [(&str, Decide, &str); 7] = [
    ("no reset while users wait", |state| next(&State { has_covered: false, ..*state }), "waits for ever"),
    (
        "no checkpoint for dead zones",
        |state| next(&State { has_coverable: false, ..*state }),
        "waits for ever",
    ),
    ("a wait in place of a refusal", never_refuse, "waits for ever"),
    ("a refusal while a task runs", refuse_early, "refused"),
    ("no moves while users wait", stay, "waits for ever"),
    ("no wakeup by the commit that dead zones wait for", forget_commits, "waits for ever"),
    ("no end of the log", |state| next(&State { is_closing: false, ..*state }), "ends with the log"),
];

fn never_refuse(state: &State) -> Action {
    match next(state) {
        Action::Refuse { until_commit } => Action::Wait { cause: Cause::Change, until_commit },
        action => action,
    }
}

fn refuse_early(state: &State) -> Action {
    match next(state) {
        Action::Wait { cause: Cause::Task, until_commit } if state.users_wait() => {
            Action::Refuse { until_commit }
        }
        action => action,
    }
}

fn stay(state: &State) -> Action {
    match next(state) {
        Action::Move { .. } if state.users_wait() => Action::Wait { cause: Cause::Pace, until_commit: false },
        action => action,
    }
}

fn forget_commits(state: &State) -> Action {
    match next(state) {
        Action::Wait { cause, .. } => Action::Wait { cause, until_commit: false },
        action => action,
    }
}

#[test]
fn wrong_decisions_are_found() {
    for (name, decide, found) in BROKEN {
        match run(1000, decide) {
            Err(error) => assert!(error.contains(found), "{name}: {error}"),
            Ok(counts) => panic!("not found: {name}: {counts:?}"),
        }
    }
}
