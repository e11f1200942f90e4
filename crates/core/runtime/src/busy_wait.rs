//! Busy waits of tasks for what peers write to shared memory.

use crate::clock::Instant;
use crate::polling::LIMIT;

/// Busy wait of a task for what a peer writes to shared memory, so that the peer needs no system call to
/// announce it.
///
/// The task looks into the memory. While there is nothing and [`again`](Self::again) returns true, it wakes
/// itself and looks again in the shard's next turn; other tasks and completions run in between. Otherwise it
/// asks the peer for a notification and waits. It polls by the rules of the shard's own polling.
#[derive(Debug, Default)]
pub struct BusyWait {
    /// Start of the wait; `None` between waits.
    since: Option<Instant>,
    expects_short_wait: bool,
}

impl BusyWait {
    /// Whether to look again in the next turn, because the wait is expected to be short. The first call
    /// begins the wait.
    #[inline]
    pub fn again(&mut self) -> bool {
        let now = crate::now();
        let since = *self.since.get_or_insert(now);
        self.expects_short_wait && now - since < LIMIT
    }

    /// Ends the wait: there was something.
    #[inline]
    pub fn end(&mut self) {
        if let Some(since) = self.since.take() {
            self.expects_short_wait = since.elapsed() < LIMIT && crate::shard::may_poll();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_wait_follows_a_short_one_where_the_shard_may_poll() {
        for polls in [true, false] {
            let config = crate::Config { poll: polls, ..crate::Config::default() };
            // A machine with one processor never polls.
            let may_poll = polls && std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
            crate::run(config, move || async move {
                let mut wait = BusyWait::default();
                assert!(!wait.again(), "nothing is known yet");
                wait.end();
                // The thread may lose its processor in a short wait.
                let is_short = (0..100).any(|_| {
                    wait.again();
                    wait.end();
                    wait.again()
                });
                assert_eq!(is_short, may_poll);
                let end = crate::now() + LIMIT;
                while crate::now() < end {}
                assert!(!wait.again(), "the limit has passed");
                wait.end();
                assert!(!wait.again(), "the last wait was long");
            })
            .unwrap();
        }
    }
}
