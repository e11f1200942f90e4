//! Helpers of both suites: seeds, time limits, calls that are dropped before they end.

use block::{Call, Error};
use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Time limit of a section. It turns a call that never returns into a failure with a message.
const PATIENCE: Duration = Duration::from_secs(120);

/// Result of a check: the error names the broken promise and its place.
pub(crate) type Check<T = ()> = Result<T, String>;

/// Default seed: a run without other settings is deterministic.
const USUAL_SEED: u64 = 1;

/// Seed of this run: from the environment, from the options, or the default.
pub(crate) fn seed(asked: Option<u64>, suite: &str) -> Check<u64> {
    let seed = match (std::env::var("SILTSTONE_SEED"), asked) {
        (_, Some(seed)) => seed,
        (Ok(text), None) => {
            text.trim().parse().map_err(|_| format!("SILTSTONE_SEED={text}: expected a number"))?
        }
        (Err(_), None) => USUAL_SEED,
    };
    println!("conformance of {suite}: SILTSTONE_SEED={seed}");
    Ok(seed)
}

/// Runs a section with a time limit; its failure has the section's name.
pub(crate) async fn section<T>(name: &str, seed: u64, checks: impl Future<Output = Check<T>>) -> Check<T> {
    match runtime::timeout(PATIENCE, checks).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(broken)) => Err(format!("{name}: {broken} (SILTSTONE_SEED={seed})")),
        Err(_) => Err(format!("{name}: a call doesn't return within {PATIENCE:?} (SILTSTONE_SEED={seed})")),
    }
}

/// Value of a call that has to succeed.
pub(crate) fn succeeds<T>(outcome: block::Result<T>, what: impl Display) -> Check<T> {
    outcome.map_err(|error| format!("{what}: expected success, got: {error}"))
}

/// Checks that a call failed with the expected kind of error.
pub(crate) fn fails<T>(outcome: block::Result<T>, expected: &Error, what: impl Display) -> Check {
    match outcome {
        Ok(_) => Err(format!("{what}: expected an error ({}), got success", expected.detail())),
        Err(error) if std::mem::discriminant(&error) == std::mem::discriminant(expected) => Ok(()),
        Err(error) => Err(format!("{what}: expected an error ({}), got: {error}", expected.detail())),
    }
}

/// Expected error of this kind; its text is for messages.
pub(crate) fn invalid() -> Error {
    Error::invalid("Error::Invalid")
}

pub(crate) fn read_only() -> Error {
    Error::read_only("Error::ReadOnly")
}

pub(crate) fn unsupported() -> Error {
    Error::unsupported("Error::Unsupported")
}

/// Polls a call once, then drops it. Returns its value if the first poll completed it.
pub(crate) async fn begin_and_drop<T>(call: Call<'_, T>) -> Option<T> {
    let mut call = Some(call);
    poll_fn(|context| {
        let polled = call.as_mut().map(|call| Pin::new(call).poll(context));
        call = None;
        match polled {
            Some(Poll::Ready(value)) => Poll::Ready(Some(value)),
            _ => Poll::Ready(None),
        }
    })
    .await
}

/// Returns `Err` with this text unless the condition holds.
pub(crate) fn ensure(condition: bool, broken: impl FnOnce() -> String) -> Check {
    if condition { Ok(()) } else { Err(broken()) }
}
