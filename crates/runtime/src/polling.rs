//! When a shard polls its ring before it sleeps.
//!
//! The wake-up of a sleeping thread takes 20 to 40 µs on a virtual machine, several times as long as a request from memory. A client with
//! one request at a time pays it for each. So a shard whose last wait was short polls for that time before it sleeps. A wait that exceeds
//! the limit ends the polling until a wait is short again: a shard without work uses no processor time.

use std::time::Duration;

/// Longest time of polling.
pub(crate) const LIMIT: Duration = Duration::from_micros(50);

/// Expectation of a shard about its next wait.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    is_allowed: bool,
    expects_short_wait: bool,
}

impl Polling {
    /// Polling is allowed if the shards leave a processor to others: their clients need one to send the next request.
    pub(crate) fn new(is_wanted: bool, shards: usize, processors: usize) -> Polling {
        Polling { is_allowed: is_wanted && shards < processors, expects_short_wait: false }
    }

    /// Longest time to poll before the next wait, which ends after `limit`; `None` to sleep at once.
    #[inline]
    pub(crate) fn time(&self, limit: Option<Duration>) -> Option<Duration> {
        self.expects_short_wait.then(|| limit.map_or(LIMIT, |limit| limit.min(LIMIT)))
    }

    /// Whether the lengths of waits matter.
    #[inline]
    pub(crate) fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// Records the length of a wait, polling included.
    #[inline]
    pub(crate) fn waited(&mut self, time: Duration) {
        self.expects_short_wait = self.is_allowed && time < LIMIT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);

    #[test]
    fn a_short_wait_is_followed_by_polling_and_a_long_one_by_sleep() {
        let mut polling = Polling::new(true, 1, 2);
        assert_eq!(polling.time(None), None, "nothing is known yet");
        polling.waited(SHORT);
        assert_eq!(polling.time(None), Some(LIMIT));
        assert_eq!(polling.time(Some(SHORT)), Some(SHORT), "a timer is due before");
        polling.waited(LIMIT);
        assert_eq!(polling.time(None), None);
    }

    #[test]
    fn shards_that_have_all_processors_sleep() {
        for (is_wanted, shards, processors) in [(true, 2, 2), (true, 3, 2), (false, 1, 2)] {
            let mut polling = Polling::new(is_wanted, shards, processors);
            polling.waited(SHORT);
            assert_eq!(polling.time(None), None, "{shards} shards, {processors} processors");
        }
    }
}
