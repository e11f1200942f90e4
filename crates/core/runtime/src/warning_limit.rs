//! Limit of the rate of warnings that strangers can cause.

use crate::{Instant, now};
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Logs at most one warning in an interval, with the number of those that it left out. Shards share it.
#[derive(Debug)]
pub struct WarningLimit {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    logged: Option<Instant>,
    hidden: u64,
}

impl WarningLimit {
    /// Returns a limit of one warning in each `interval`.
    pub fn new(interval: Duration) -> Self {
        WarningLimit { interval, state: Mutex::default() }
    }

    /// Logs a warning, or counts it if the last one was logged less than an interval ago.
    pub fn warn(&self, what: impl Display) {
        match self.admit() {
            Some(0) => tracing::warn!("{what}"),
            Some(hidden) => tracing::warn!("{what}; {hidden} warnings like this before weren't logged"),
            None => {}
        }
    }

    /// Returns the number of earlier warnings that weren't logged; `None` if this one isn't to be logged.
    fn admit(&self) -> Option<u64> {
        let now = now();
        // Nothing panics while the lock is held.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.logged.is_some_and(|logged| now - logged < self.interval) {
            state.hidden += 1;
            return None;
        }
        state.logged = Some(now);
        Some(std::mem::take(&mut state.hidden))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Simulation, simulate, sleep};

    #[test]
    fn one_warning_in_an_interval_and_the_number_of_the_others() {
        let test = || async {
            let limit = WarningLimit::new(Duration::from_secs(1));
            assert_eq!([limit.admit(), limit.admit(), limit.admit()], [Some(0), None, None]);
            sleep(Duration::from_millis(900)).await;
            assert_eq!(limit.admit(), None);
            sleep(Duration::from_millis(200)).await;
            assert_eq!([limit.admit(), limit.admit()], [Some(3), None]);
            sleep(Duration::from_secs(5)).await;
            assert_eq!(limit.admit(), Some(1));
        };
        simulate(Simulation::new(1), test).expect("a simulation");
    }
}
