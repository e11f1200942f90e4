//! Progress of the uploads: since when a step isn't durable, and failures.

use block::Error;
use runtime::Instant;
use std::cell::Cell;
use std::mem::{Discriminant, discriminant};
use std::time::Duration;

/// Progress of the uploads.
#[derive(Debug, Default)]
pub struct Standing {
    /// Beginning of the step that isn't durable yet; repetitions belong to it.
    step: Cell<Option<Instant>>,
    /// Failures since the last success, and the kind of the last one.
    failures: Cell<u64>,
    kind: Cell<Option<Discriminant<Error>>>,
}

impl Standing {
    /// Notes that a step begins, or is repeated.
    pub fn begin_step(&self) {
        self.step.set(self.step.get().or_else(|| Some(runtime::now())));
    }

    /// Notes that a step is durable, and logs that after failures.
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
    fn failures_are_told_once_for_each_kind() {
        let run = || async {
            let standing = Standing::default();
            standing.begin_step();
            let (gone, full) = (Error::disconnected("away"), Error::no_space("quota"));
            assert!(standing.note_failure(&gone) && !standing.note_failure(&gone));
            assert!(standing.note_failure(&full) && !standing.note_failure(&full));
            runtime::sleep(Duration::from_secs(7)).await;
            standing.begin_step();
            assert_eq!(standing.awaited(), Duration::from_secs(7), "a repetition belongs to the step");
            standing.end_step();
            assert_eq!(standing.awaited(), Duration::ZERO);
            assert!(standing.note_failure(&full));
        };
        runtime::simulate(runtime::Simulation::new(1), run).expect("it ends");
    }
}
