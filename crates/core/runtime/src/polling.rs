//! Decides when a shard polls before it sleeps.
//!
//! The wake-up of a sleeping thread takes 20 to 40 µs on a virtual machine, several times as long as a
//! request from memory. A client with one request at a time pays it for each, and shards that ask each other
//! pay it twice. So a shard whose last wait was short polls for that time before it sleeps. A wait that
//! exceeds the limit ends the polling until a wait is short again, or a reply is written to a device of
//! messages: a shard without work uses no processor time.

use std::time::Duration;

/// Longest time of polling.
pub(crate) const LIMIT: Duration = Duration::from_micros(50);

/// Cause of the end of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// A message of another shard.
    Message,
    /// Anything else: a completion, or a timer.
    Other,
}

/// Expectation of a shard about its next wait.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    /// Whether the shard polls for any event.
    is_allowed: bool,
    /// Whether the shard polls for messages of other shards.
    is_allowed_for_messages: bool,
    expects_short_wait: bool,
}

impl Polling {
    /// Polling for any event is allowed, where it is wanted, if there are more processors than shards:
    /// clients need one to send the next request. Polling for messages is allowed if each shard has a
    /// processor: the sender needs no other one.
    pub(crate) fn new(is_wanted: bool, shards: usize, processors: usize) -> Polling {
        Polling {
            is_allowed: is_wanted && shards < processors,
            is_allowed_for_messages: shards > 1 && shards <= processors,
            expects_short_wait: false,
        }
    }

    /// Longest time to poll before the next wait, which ends after `limit`; `None` to sleep at once.
    #[inline]
    pub(crate) fn time(&self, limit: impl FnOnce() -> Option<Duration>) -> Option<Duration> {
        self.expects_short_wait.then(|| limit().map_or(LIMIT, |limit| limit.min(LIMIT)))
    }

    /// Whether the shard may poll for any event.
    pub(crate) fn is_allowed_for_any(&self) -> bool {
        self.is_allowed
    }

    /// Whether the lengths of waits are used.
    #[inline]
    pub(crate) fn is_allowed(&self) -> bool {
        self.is_allowed || self.is_allowed_for_messages
    }

    /// Expects a short wait, where polling for any event is allowed: a client that has got a reply often
    /// sends its next request at once.
    #[inline]
    pub(crate) fn expect_request(&mut self) {
        self.expects_short_wait |= self.is_allowed;
    }

    /// Records the length of a wait, polling included.
    #[inline]
    pub(crate) fn waited(&mut self, time: Duration, ended_by: EndedBy) {
        let is_allowed = self.is_allowed || self.is_allowed_for_messages && ended_by == EndedBy::Message;
        self.expects_short_wait = is_allowed && time < LIMIT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);

    #[test]
    fn a_short_wait_is_followed_by_polling_and_a_long_one_by_sleep() {
        let mut polling = Polling::new(true, 1, 2);
        assert_eq!(polling.time(|| None), None, "nothing is known yet");
        polling.waited(SHORT, EndedBy::Other);
        assert_eq!(polling.time(|| None), Some(LIMIT));
        assert_eq!(polling.time(|| Some(SHORT)), Some(SHORT), "a timer is due before");
        polling.waited(LIMIT, EndedBy::Other);
        assert_eq!(polling.time(|| None), None);
        polling.expect_request();
        assert_eq!(polling.time(|| None), Some(LIMIT));
        polling.waited(LIMIT, EndedBy::Other);
        assert_eq!(polling.time(|| None), None);
        let mut polling = Polling::new(false, 1, 2);
        polling.expect_request();
        assert_eq!(polling.time(|| None), None, "not allowed");
    }

    #[test]
    fn shards_that_have_all_processors_poll_for_messages_of_each_other_only() {
        for (is_wanted, shards, processors, after_message) in
            [(true, 2, 2, true), (false, 2, 2, true), (true, 3, 2, false), (false, 1, 2, false)]
        {
            let mut polling = Polling::new(is_wanted, shards, processors);
            polling.waited(SHORT, EndedBy::Other);
            assert_eq!(polling.time(|| None), None, "{shards} shards, {processors} processors");
            polling.waited(SHORT, EndedBy::Message);
            assert_eq!(
                polling.time(|| None).is_some(),
                after_message,
                "{shards} shards, {processors} processors"
            );
            polling.waited(LIMIT, EndedBy::Message);
            assert_eq!(polling.time(|| None), None, "{shards} shards, {processors} processors");
        }
    }
}
