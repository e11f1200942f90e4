//! Repeated attempts: at requests that the store doesn't answer, and at reads that another writer overtakes.
//!
//! Left to callers: which errors a further attempt may mend, and the limit of the whole time.

use block::{Error, Result};
use std::time::Duration;

/// Pause before the second attempt.
const MIN_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Pause before the next attempt at a request: 250 ms, then twice as long after each attempt, up to 5 s.
#[derive(Debug)]
pub(crate) struct Pause(Duration);

impl Pause {
    /// Returns the pause before the second attempt.
    pub fn new() -> Pause {
        Pause(MIN_PAUSE)
    }

    /// Length of the next pause.
    pub fn length(&self) -> Duration {
        self.0
    }

    /// Waits for the pause.
    pub async fn wait(&mut self) {
        runtime::sleep(self.0).await;
        self.0 = (self.0 * 2).min(MAX_PAUSE);
    }
}

/// Makes up to `attempts` attempts, as long as they fail with an error that `is_overtaken` takes for the work
/// of another writer, such as a manifest that it has deleted since the listing. `attempt` gets its number,
/// from 1 on.
///
/// # Errors
/// Any other error of an attempt, and each error of the last one.
pub(crate) async fn while_overtaken<T>(
    attempts: u32,
    is_overtaken: impl Fn(&Error) -> bool,
    mut attempt: impl AsyncFnMut(u32) -> Result<T>,
) -> Result<T> {
    let mut number = 1;
    loop {
        match attempt(number).await {
            Err(error) if number < attempts && is_overtaken(&error) => number += 1,
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_seconds() {
        let test = || async {
            let (mut pause, begun) = (Pause::new(), runtime::now());
            for _ in 0..7 {
                pause.wait().await;
            }
            assert_eq!(
                runtime::now() - begun,
                Duration::from_millis(250 + 500 + 1000 + 2000 + 4000 + 10_000)
            );
            assert_eq!(pause.length(), MAX_PAUSE);
        };
        runtime::simulate(runtime::Simulation::new(1), test).unwrap();
    }

    #[test]
    fn attempts_end_with_a_success_another_error_or_their_number() {
        let test = || async {
            let is_overtaken = |error: &Error| matches!(error, Error::Corrupt(_));
            let outcomes = async |outcomes: [Result<u32>; 3]| {
                let mut outcomes = outcomes.into_iter();
                while_overtaken(3, is_overtaken, async |_| outcomes.next().unwrap()).await
            };
            let (lost, failed) = (Err(Error::corrupt("lost")), Err(Error::io("failed")));
            assert_eq!(outcomes([lost.clone(), Ok(2), Ok(3)]).await, Ok(2));
            assert_eq!(outcomes([lost.clone(), failed.clone(), Ok(3)]).await, failed);
            assert_eq!(outcomes([lost.clone(), lost.clone(), lost.clone()]).await, lost);
        };
        runtime::simulate(runtime::Simulation::new(1), test).unwrap();
    }
}
