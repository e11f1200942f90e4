//! Decides when a shard polls before it sleeps.
//!
//! The wake-up of a sleeping thread takes 20 to 40 µs on a virtual machine, several times as long as a
//! request from memory. A client with one request at a time pays it for each, and shards that ask each other
//! pay it twice. So a shard whose last wait of the same kind was short polls for that time before it
//! sleeps. A wait that exceeds the limit ends the polling until such a wait is short again, or a reply is
//! written to a device of messages: a shard without work uses no processor time.
//!
//! Waits for storage and waits for peers alone are expected apart: a disk takes longer than the limit, while
//! the client that has got its reply sends the next request at once.

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

/// Kind of a wait, by the operations in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitFor {
    /// Some are operations of files.
    Storage,
    /// All depend on peers, or there is none.
    Peers,
}

/// Expectation of a shard about its next wait.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    /// Whether the shard polls for any event.
    is_allowed: bool,
    /// Whether the shard polls for messages of other shards.
    is_allowed_for_messages: bool,
    /// Whether the next wait for storage, and the next one for peers, is expected to be short.
    expects_short_wait: [bool; 2],
}

impl Polling {
    /// Polling for any event is allowed, where it is wanted, if there are more processors than shards:
    /// clients need one to send the next request. Polling for messages is allowed if each shard has a
    /// processor: the sender needs no other one.
    pub(crate) fn new(is_wanted: bool, shards: usize, processors: usize) -> Polling {
        Polling {
            is_allowed: is_wanted && shards < processors,
            is_allowed_for_messages: shards > 1 && shards <= processors,
            expects_short_wait: [false; 2],
        }
    }

    /// Longest time to poll before the next wait, which ends after `limit`; `None` to sleep at once.
    #[inline]
    pub(crate) fn time(
        &self,
        wait_for: WaitFor,
        limit: impl FnOnce() -> Option<Duration>,
    ) -> Option<Duration> {
        self.expects_short_wait[wait_for as usize].then(|| limit().map_or(LIMIT, |limit| limit.min(LIMIT)))
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
        self.expects_short_wait[WaitFor::Peers as usize] |= self.is_allowed;
    }

    /// Records the length of a wait, polling included.
    #[inline]
    pub(crate) fn waited(&mut self, wait_for: WaitFor, time: Duration, ended_by: EndedBy) {
        let is_allowed = self.is_allowed || self.is_allowed_for_messages && ended_by == EndedBy::Message;
        self.expects_short_wait[wait_for as usize] = is_allowed && time < LIMIT;
    }
}

#[cfg(test)]
mod tests {
    use super::WaitFor::{Peers, Storage};
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);

    #[test]
    fn a_short_wait_is_followed_by_polling_and_a_long_one_by_sleep() {
        let mut polling = Polling::new(true, 1, 2);
        assert_eq!(polling.time(Peers, || None), None, "nothing is known yet");
        polling.waited(Peers, SHORT, EndedBy::Other);
        assert_eq!(polling.time(Peers, || None), Some(LIMIT));
        assert_eq!(polling.time(Peers, || Some(SHORT)), Some(SHORT), "a timer is due before");
        polling.waited(Peers, LIMIT, EndedBy::Other);
        assert_eq!(polling.time(Peers, || None), None);
        polling.expect_request();
        assert_eq!(polling.time(Peers, || None), Some(LIMIT));
        polling.waited(Peers, LIMIT, EndedBy::Other);
        assert_eq!(polling.time(Peers, || None), None);
        let mut polling = Polling::new(false, 1, 2);
        polling.expect_request();
        assert_eq!(polling.time(Peers, || None), None, "not allowed");
    }

    #[test]
    fn shards_that_have_all_processors_poll_for_messages_of_each_other_only() {
        for (is_wanted, shards, processors, after_message) in
            [(true, 2, 2, true), (false, 2, 2, true), (true, 3, 2, false), (false, 1, 2, false)]
        {
            let mut polling = Polling::new(is_wanted, shards, processors);
            polling.waited(Peers, SHORT, EndedBy::Other);
            assert_eq!(polling.time(Peers, || None), None, "{shards} shards, {processors} processors");
            polling.waited(Peers, SHORT, EndedBy::Message);
            assert_eq!(
                polling.time(Peers, || None).is_some(),
                after_message,
                "{shards} shards, {processors} processors"
            );
            polling.waited(Peers, LIMIT, EndedBy::Message);
            assert_eq!(polling.time(Peers, || None), None, "{shards} shards, {processors} processors");
        }
    }

    #[test]
    fn a_long_wait_for_storage_does_not_end_polling_for_peers() {
        let mut polling = Polling::new(true, 1, 2);
        for _ in 0..2 {
            polling.waited(Peers, SHORT, EndedBy::Other);
            polling.waited(Storage, LIMIT, EndedBy::Other);
            assert_eq!(polling.time(Peers, || None), Some(LIMIT));
            assert_eq!(polling.time(Storage, || None), None);
        }
        polling.waited(Storage, SHORT, EndedBy::Other);
        polling.waited(Peers, LIMIT, EndedBy::Other);
        assert_eq!(polling.time(Storage, || None), Some(LIMIT));
        assert_eq!(polling.time(Peers, || None), None);
    }
}
