//! Requests to the cache, step by step.
//!
//! A step of the cache is short, and reports its progress. The remaining ranges are requested again, until
//! everything is done, the cache has no space for more, or a stop is requested. So a stop takes effect at
//! once.

use crate::arguments::WhichCache;
use crate::control::protocol::{Recipient, Request};
use crate::control::reach::Session;
use crate::failure::Failure;
use crate::warm_verb::saved::HotRange;
use cache::Heat;
use runtime::StopSignals;
use serde_json::Value;
use std::collections::VecDeque;
use std::fmt::Write;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// Kind of the parts of this verb.
const KIND: &str = "cache";
/// Longest message, in bytes: a request over the control socket is limited to 64 KiB.
const LONGEST: usize = 32 << 10;

type Stop = Pin<Box<dyn Future<Output = block::Result<()>>>>;

/// Cache, with the state of a requested stop.
pub struct Cache<'a> {
    session: &'a mut Session,
    to: Recipient,
    stop: Stop,
    is_stopped: bool,
}

/// Results of all steps, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Requested and completed.
    pub done: u64,
    /// Fetched.
    pub fetched: u64,
    /// Already cached.
    pub present: u64,
    /// Not cached, and not to be fetched.
    pub absent: u64,
    /// Not fetched, for lack of space in the cache.
    pub no_room: u64,
    /// In use by clients.
    pub busy: u64,
    /// Not readable, or not writable to the cache.
    pub failed: u64,
    /// After the end of the origin.
    pub past_end: u64,
    /// Evicted.
    pub evicted: u64,
    /// Dirty, and therefore kept.
    pub dirty: u64,
}

impl Sums {
    fn all(&mut self) -> [(&'static str, &mut u64); 10] {
        [
            ("done", &mut self.done),
            ("fetched", &mut self.fetched),
            ("present", &mut self.present),
            ("absent", &mut self.absent),
            ("no_room", &mut self.no_room),
            ("busy", &mut self.busy),
            ("failed", &mut self.failed),
            ("past_end", &mut self.past_end),
            ("evicted", &mut self.evicted),
            ("dirty", &mut self.dirty),
        ]
    }

    fn add(&mut self, answer: &Value) {
        for (key, sum) in self.all() {
            *sum = sum.saturating_add(answer[key].as_u64().unwrap_or(0));
        }
    }
}

/// Outcome of steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Sums.
    pub sums: Sums,
    /// Whether the cache has no space for more.
    pub is_full: bool,
    /// Whether a stop was requested.
    pub is_stopped: bool,
    /// First error.
    pub error: Option<String>,
}

/// Action of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Fetch blocks.
    Fetch,
    /// Set the heat of cached blocks.
    Heat,
    /// Evict blocks.
    Evict,
}

impl Doing {
    fn word(self) -> &'static str {
        match self {
            Doing::Fetch => "fetch",
            Doing::Heat => "heat",
            Doing::Evict => "evict",
        }
    }
}

/// Returns when a stop is requested. Signals are caught from the first step; before it there is nothing to
/// finish.
async fn stop_requested() -> block::Result<()> {
    StopSignals::catch_first()?.next().await
}

impl<'a> Cache<'a> {
    /// Returns the cache of this name; `None` for the only one.
    pub fn new(session: &'a mut Session, name: Option<String>) -> Cache<'a> {
        let to = name.map_or_else(|| Recipient::Kind(KIND.into()), Recipient::Part);
        Cache { session, to, stop: Box::pin(stop_requested()), is_stopped: false }
    }

    /// Sends a message to the cache.
    ///
    /// # Errors
    /// Errors of the cache and of the connection; [`Failure::World`] for an answer that isn't JSON.
    pub async fn ask(&mut self, text: &str) -> Result<Value, Failure> {
        let request = Request::Message { to: self.to.clone(), text: text.to_owned() };
        let answer = self.session.ask(&request).await?;
        let text = answer.as_str().unwrap_or_default();
        serde_json::from_str(text).map_err(|_| {
            let start: String = text.chars().take(200).collect();
            Failure::World(format!(
                "the part answered something that is no JSON: {}",
                crate::table::plain(&start)
            ))
        })
    }

    /// Applies the action to all ranges, at most `rate` bytes per second, and reports the completed bytes to
    /// `progress`.
    ///
    /// # Errors
    /// Errors of `ranges`; the cache's error for a step.
    pub async fn steps(
        &mut self,
        doing: Doing,
        mut ranges: impl FnMut() -> Result<Option<HotRange>, Failure>,
        rate: Option<u64>,
        progress: &dyn Fn(u64),
    ) -> Result<Outcome, Failure> {
        let mut waiting: VecDeque<HotRange> = VecDeque::new();
        let mut outcome = Outcome { sums: Sums::default(), is_full: false, is_stopped: false, error: None };
        // A low rate needs small steps: four per second.
        let most = rate.map_or(u64::MAX, |rate| (rate / 4).max(1));
        let began = runtime::now();
        loop {
            while waiting.len() < LONGEST / 64 {
                let Some(range) = ranges()? else { break };
                waiting.push_back(range);
            }
            if waiting.is_empty() {
                return Ok(outcome);
            }
            if self.wants_stop().await {
                return Ok(Outcome { is_stopped: true, ..outcome });
            }
            let answer = self.ask(&message(doing, &waiting, most)).await?;
            let done = answer["done"].as_u64().unwrap_or(0);
            if done == 0 || !take(&mut waiting, done) {
                return Err(Failure::World(format!(
                    "the cache answered to \"warm {}\": {answer}",
                    doing.word()
                )));
            }
            outcome.sums.add(&answer);
            outcome.error = outcome.error.or_else(|| answer["error"].as_str().map(str::to_owned));
            progress(outcome.sums.done);
            // The remaining ranges are no hotter, so the cache has no space for them either.
            let step = |key: &str| answer[key].as_u64().unwrap_or(0);
            if doing == Doing::Fetch && step("no_room") > 0 && step("fetched") + step("present") == 0 {
                return Ok(Outcome { is_full: true, ..outcome });
            }
            if let Some(rate) = rate.filter(|_| doing == Doing::Fetch) {
                let due = Duration::from_secs_f64(outcome.sums.fetched as f64 / rate as f64);
                self.pause(due.saturating_sub(began.elapsed())).await;
            }
        }
    }

    /// Whether a stop is requested.
    async fn wants_stop(&mut self) -> bool {
        if !self.is_stopped {
            let stop = &mut self.stop;
            let is_asked = poll_fn(|context| Poll::Ready(stop.as_mut().poll(context).is_ready())).await;
            self.is_stopped = is_asked;
        }
        self.is_stopped
    }

    /// Waits for `time`, or until a stop is requested.
    async fn pause(&mut self, time: Duration) {
        if !time.is_zero() && !self.is_stopped {
            self.is_stopped = runtime::timeout(time, &mut self.stop).await.is_ok();
        }
    }
}

/// Returns the message for the first ranges, limited to `most` bytes of them and to [`LONGEST`].
fn message(doing: Doing, waiting: &VecDeque<HotRange>, most: u64) -> String {
    let mut text = format!("warm {}", doing.word());
    let mut heat: Option<Heat> = None;
    let mut left = most;
    for (its, range) in waiting {
        let length = (range.end - range.start).min(left);
        if length == 0 || text.len() > LONGEST {
            break;
        }
        // Writing to a string doesn't fail.
        if doing != Doing::Evict && heat != Some(*its) {
            heat = Some(*its);
            let _ = write!(text, " {its}");
        }
        let _ = write!(text, " {}+{length}", range.start);
        left -= length;
    }
    text
}

/// Removes the first `bytes` bytes; returns false if there are fewer.
fn take(waiting: &mut VecDeque<HotRange>, mut bytes: u64) -> bool {
    while bytes > 0 {
        let Some((_, range)) = waiting.front_mut() else { return false };
        let taken = bytes.min(range.end - range.start);
        range.start += taken;
        bytes -= taken;
        if range.is_empty() {
            waiting.pop_front();
        }
    }
    true
}

/// Runs `work` with a cache.
///
/// # Errors
/// A wrong stack or part; errors of `work`.
pub fn with_cache<T: Send + 'static>(
    which: WhichCache,
    work: impl AsyncFnOnce(&mut Cache<'_>) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let WhichCache { operated, cache } = which;
    crate::control::reach::converse(&operated, &crate::kinds::registry(), async move |session| {
        work(&mut Cache::new(session, cache)).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hot(text: &str, from: u64, to: u64) -> HotRange {
        (Heat::parse(text).unwrap(), from..to)
    }

    #[test]
    fn messages_are_short_and_what_is_done_is_taken_off() {
        let mut waiting: VecDeque<HotRange> =
            [hot("main/3/1", 0, 10), hot("main/3/1", 20, 30), hot("small/0/2", 50, 60)].into();
        assert_eq!(
            message(Doing::Fetch, &waiting, u64::MAX),
            "warm fetch main/3/1 0+10 20+10 small/0/2 50+10"
        );
        assert_eq!(message(Doing::Fetch, &waiting, 15), "warm fetch main/3/1 0+10 20+5");
        assert_eq!(message(Doing::Evict, &waiting, 20), "warm evict 0+10 20+10");
        assert!(take(&mut waiting, 15));
        assert_eq!(message(Doing::Heat, &waiting, u64::MAX), "warm heat main/3/1 25+5 small/0/2 50+10");
        assert!(!take(&mut waiting, 16), "more than there is");
        let many =
            (0..100_000).map(|number| hot("main/3/1", u64::MAX - 2 * number - 1, u64::MAX - 2 * number));
        assert!(message(Doing::Fetch, &many.collect(), u64::MAX).len() < LONGEST + 100);
    }
}
