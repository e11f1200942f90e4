//! Table of the timers of one shard.

use crate::clock::Instant;
use std::collections::BTreeMap;
use std::task::Waker;

/// Wakers of timers, in order of time and then of arrival.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: BTreeMap<(Instant, u64), Waker>,
    arrivals: u64,
}

impl Timers {
    /// Number for a new timer.
    #[inline]
    pub(crate) fn arrive(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    #[inline]
    pub(crate) fn insert(&mut self, deadline: Instant, arrival: u64, waker: Waker) {
        self.waiting.insert((deadline, arrival), waker);
    }

    #[inline]
    pub(crate) fn remove(&mut self, deadline: Instant, arrival: u64) -> Option<Waker> {
        self.waiting.remove(&(deadline, arrival))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.keys().next().map(|key| key.0)
    }

    /// Removes one timer that is due.
    #[inline]
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Waker> {
        let entry = self.waiting.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }
}
