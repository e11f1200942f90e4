//! Samples of a server at an interval.
//!
//! A server counts calls only for some time after each request, so it is asked at least every [`KEEP`], also
//! when the interval is longer.

use super::link::{Heard, Link};
use super::sample::Sample;
use crate::control::protocol::Request;
use crate::failure::Failure;
use runtime::Instant;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

/// Longest time between two requests, well below that for which a server counts.
const KEEP: Duration = Duration::from_secs(10);
/// Delay after which a missing answer is reported.
const LATE: Duration = Duration::from_secs(2);

/// Source of samples.
pub struct Sampler {
    link: Link,
    interval: Duration,
    /// Time of the last request.
    asked: Option<Instant>,
    /// Time of the request for the next sample.
    due: Instant,
    /// Whether the answer to the request in flight is a sample.
    is_sample: bool,
}

/// Result of a turn.
#[derive(Debug)]
pub enum News {
    /// Nothing.
    Nothing,
    /// The next sample.
    Sample(Box<Sample>),
    /// The server is asked again at the next interval; the text says why.
    Refused(String),
}

impl Sampler {
    /// Creates a source that begins at once.
    pub fn new(path: PathBuf, interval: Duration) -> Sampler {
        let (link, due) = (Link::new(path, Request::Observe), runtime::now());
        Sampler { link, interval, asked: None, due, is_sample: false }
    }

    /// Returns the interval.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Changes the interval, from now on.
    pub fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
        self.hasten(interval);
    }

    /// Takes the next sample within this time.
    pub fn hasten(&mut self, time: Duration) {
        self.due = (runtime::now() + time).min(self.due);
    }

    /// Seconds for which the server hasn't answered, if it is late.
    pub fn late(&self) -> Option<u64> {
        let waited = self.link.asked()?.elapsed();
        (waited >= LATE).then_some(waited.as_secs())
    }

    /// Returns the connection, for poll(2).
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.link.descriptor()
    }

    /// Returns the time of the next turn.
    pub fn wake_at(&self) -> Instant {
        let retry = self.link.retry_at();
        match self.link.asked() {
            Some(_) => retry.unwrap_or_else(|| runtime::now() + LATE),
            None => self.ask_at(),
        }
    }

    fn ask_at(&self) -> Instant {
        self.asked.map_or(self.due, |asked| (asked + KEEP).min(self.due))
    }

    /// Asks if it is time, and takes an answer if there is one.
    ///
    /// # Errors
    /// The server has ended, or answers with something else.
    pub fn turn(&mut self) -> Result<News, Failure> {
        let now = runtime::now();
        if self.link.asked().is_none() && now >= self.ask_at() {
            self.is_sample = now >= self.due;
            if self.is_sample {
                self.due = (self.due + self.interval).max(now);
            }
            self.asked = Some(now);
            self.link.ask();
        }
        match self.link.turn()? {
            Heard::Answer(answer) if self.is_sample => {
                self.is_sample = false;
                let sample = Sample::parse(answer).map_err(|what| {
                    Failure::World(format!("control socket {}: {what}", self.link.path().display()))
                })?;
                Ok(News::Sample(Box::new(sample)))
            }
            Heard::Answer(_) | Heard::Nothing => Ok(News::Nothing),
            Heard::Refused(why) => Ok(News::Refused(why)),
            Heard::Ended => Err(Failure::World(format!(
                "control socket {}: the server has ended; siltstone serve starts it again",
                self.link.path().display()
            ))),
        }
    }
}
