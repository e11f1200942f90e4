//! Progress of the uploads: the time since which a step isn't durable, and its failures.

use block::Error;
use runtime::Instant;
use std::cell::Cell;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

/// Progress of the uploads.
#[derive(Debug, Default)]
pub struct UploadProgress {
    /// Beginning of the step that isn't durable yet; repetitions belong to it.
    step: Cell<Option<Instant>>,
    /// Number of failures since the last success.
    failures: Cell<u64>,
    /// Kind of the last failure.
    kind: Cell<Option<Discriminant<Error>>>,
}

impl UploadProgress {
    /// Notes that a step begins, or is repeated.
    pub fn begin_step(&self) {
        self.step.set(self.step.get().or_else(|| Some(runtime::now())));
    }

    /// Notes that a step is durable; logs the end of its failures, if it had some.
    pub fn end_step(&self) {
        let since = self.step.take();
        self.kind.set(None);
        match self.failures.take() {
            0 => {}
            failures => tracing::warn!(
                "the origin of a write cache of zones takes uploads again, after {failures} failures in {:.1} s",
                since.map_or(0.0, |since| since.elapsed().as_secs_f64())
            ),
        }
    }

    /// Notes a failure of a step. Returns whether it is to be logged: the first one, and one of another kind.
    pub fn note_failure(&self, error: &Error) -> bool {
        self.failures.set(self.failures.get() + 1);
        let kind = Some(discriminant(error));
        self.kind.replace(kind) != kind
    }

    /// Whether an attempt has failed since the last success.
    pub fn has_failed(&self) -> bool {
        self.failures.get() > 0
    }

    /// Time since the beginning of the step that isn't durable yet.
    pub fn awaited(&self) -> Duration {
        self.step.get().map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_logged_once_for_each_kind() {
        let run = || async {
            let upload_progress = UploadProgress::default();
            upload_progress.begin_step();
            let (lost, full) = (Error::disconnected("no answer"), Error::no_space("quota"));
            assert!(upload_progress.note_failure(&lost) && !upload_progress.note_failure(&lost));
            assert!(upload_progress.note_failure(&full) && !upload_progress.note_failure(&full));
            runtime::sleep(Duration::from_secs(7)).await;
            upload_progress.begin_step();
            assert_eq!(upload_progress.awaited(), Duration::from_secs(7), "a repetition belongs to the step");
            upload_progress.end_step();
            assert_eq!(upload_progress.awaited(), Duration::ZERO);
            assert!(upload_progress.note_failure(&full));
        };
        runtime::simulate(runtime::Simulation::new(1), run).expect("it ends");
    }
}
