//! What both suites share: seeds, time limits, calls that are dropped in the middle.

use block::{Call, Error};
use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// How long a section may take. It is there to turn a call that never returns into a failure that says so.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a check returns: nothing, or which promise was broken where.
pub(crate) type Check<T = ()> = Result<T, String>;

/// The seed where nobody names one: a run without further word is the same every time.
const USUAL_SEED: u64 = 1;

/// The seed of this run: the one that was asked for, that of the environment, or the usual one.
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

/// Runs a section, names it in its failure, and doesn't wait for ever.
pub(crate) async fn section<T>(name: &str, seed: u64, checks: impl Future<Output = Check<T>>) -> Check<T> {
    match runtime::timeout(PATIENCE, checks).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(broken)) => Err(format!("{name}: {broken} (SILTSTONE_SEED={seed})")),
        Err(_) => Err(format!("{name}: a call doesn't return within {PATIENCE:?} (SILTSTONE_SEED={seed})")),
    }
}

/// The value of a call that has to succeed.
pub(crate) fn succeeds<T>(outcome: block::Result<T>, what: impl Display) -> Check<T> {
    outcome.map_err(|error| format!("{what}: expected success, got: {error}"))
}

/// Checks that a call failed with the kind of error that is promised.
pub(crate) fn fails<T>(outcome: block::Result<T>, expected: &Error, what: impl Display) -> Check {
    match outcome {
        Ok(_) => Err(format!("{what}: expected an error ({}), got success", expected.detail())),
        Err(error) if std::mem::discriminant(&error) == std::mem::discriminant(expected) => Ok(()),
        Err(error) => Err(format!("{what}: expected an error ({}), got: {error}", expected.detail())),
    }
}

/// The errors that are expected, by their kind; their text is for messages.
pub(crate) fn invalid() -> Error {
    Error::invalid("Error::Invalid")
}

pub(crate) fn read_only() -> Error {
    Error::read_only("Error::ReadOnly")
}

pub(crate) fn unsupported() -> Error {
    Error::unsupported("Error::Unsupported")
}

/// Polls a call once, then drops it. Says whether it had ended by then.
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

/// `Err` with this text unless the condition holds.
pub(crate) fn ensure(condition: bool, broken: impl FnOnce() -> String) -> Check {
    if condition { Ok(()) } else { Err(broken()) }
}
