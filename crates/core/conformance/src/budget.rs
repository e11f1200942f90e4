//! A budget of time for tests that try many seeds or power cuts.
//!
//! The whole suite has [`SECONDS`] for them, or `SILTSTONE_TEST_SECONDS`; `SILTSTONE_TEST_SECONDS=long` is no
//! limit. These are seconds of real time in each test, added up over all tests: tests that run side by side
//! need less of the clock. The time is divided into [`SHARES`]; a test takes some with [`Budget::of`] and
//! tries the cases that fit. A slow machine tries fewer cases and doesn't fail for that; the first case is
//! always tried. Each budget prints how many cases were tried when it is dropped. `scripts/test` adds these
//! lines up, and fails if the shares of all tests are not [`SHARES`].
//!
//! The caller chooses the seeds, which must be the same in every run.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Default time of all budgets together, in seconds.
pub const SECONDS: u32 = 50;
/// Number of shares of all tests of the workspace together.
pub const SHARES: u32 = 280;

/// Time that one test has for its seeds or cuts.
#[derive(Debug)]
pub struct Budget {
    name: String,
    shares: u32,
    begun: Instant,
    /// Limit; `None` is no limit.
    time: Option<Duration>,
    offered: AtomicU64,
    tried: AtomicU64,
}

/// Time for a number of shares, by the text of the environment variable; `None` is no limit.
fn time_of(shares: u32, asked: Option<&str>) -> Option<Duration> {
    let seconds = match asked.map(str::trim) {
        Some("long") => return None,
        Some(text) => text.parse().unwrap_or_else(|_| {
            panic!("SILTSTONE_TEST_SECONDS={text}: expected a whole number of seconds, or long")
        }),
        None => SECONDS,
    };
    Some(Duration::from_secs(seconds.into()) * shares / SHARES)
}

/// Environment variable with the time of all budgets together, in seconds.
const VARIABLE: &str = "SILTSTONE_TEST_SECONDS";

/// Whether the calling test is left out: a long test, whose subject a shorter one covers too, runs only with
/// `SILTSTONE_TEST_SECONDS=long`. Reports a test that is left out as skipped.
pub fn is_left_out() -> bool {
    if !is_long() {
        println!("SKIPPED: {}: takes long; scripts/test --long runs it", test_name());
    }
    !is_long()
}

/// Whether there is no limit of time (`SILTSTONE_TEST_SECONDS=long`).
pub fn is_long() -> bool {
    time_of(1, std::env::var(VARIABLE).ok().as_deref()).is_none()
}

/// Name of the calling test: the test harness gives it to the thread.
fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

#[expect(clippy::disallowed_methods, reason = "real time, also where the test's own clock is simulated")]
fn now() -> Instant {
    Instant::now()
}

impl Budget {
    /// Takes a number of the [`SHARES`] for the calling test. The time begins with this call.
    ///
    /// # Panics
    /// `SILTSTONE_TEST_SECONDS` is neither a whole number nor `long`.
    pub fn of(shares: u32) -> Self {
        Budget::new(test_name(), shares, time_of(shares, std::env::var(VARIABLE).ok().as_deref()))
    }

    /// Budget without a limit, which prints nothing: every case is tried.
    pub fn unlimited() -> Self {
        Budget::new(String::new(), 0, None)
    }

    fn new(name: String, shares: u32, time: Option<Duration>) -> Self {
        let (offered, tried) = (AtomicU64::new(0), AtomicU64::new(0));
        Budget { name, shares, begun: now(), time, offered, tried }
    }

    /// Whether the time has passed.
    pub fn is_over(&self) -> bool {
        self.time.is_some_and(|time| self.begun.elapsed() >= time)
    }

    /// Whether case `number` of `count` is tried: true while the share of the time that has passed is at most
    /// `number / count`. The cases that are tried are therefore spread evenly over all of them.
    pub fn allows(&self, number: u64, count: u64) -> bool {
        let spent = self.begun.elapsed().as_secs_f64();
        let fits = self.time.is_none_or(|time| spent * count as f64 <= time.as_secs_f64() * number as f64);
        self.offered.fetch_add(1, Relaxed);
        let allowed = fits || self.tried.load(Relaxed) == 0;
        self.tried.fetch_add(allowed.into(), Relaxed);
        allowed
    }

    /// Whether another one of `count` equal cases is tried: at least one is, and none after the time is over.
    pub fn allows_more(&self, count: u64) -> bool {
        self.offered.store(count, Relaxed);
        let tried = self.tried.load(Relaxed);
        let allowed = tried < count && (tried == 0 || !self.is_over());
        self.tried.fetch_add(allowed.into(), Relaxed);
        allowed
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        if self.shares == 0 {
            return;
        }
        let (name, shares, tried, offered) =
            (&self.name, self.shares, self.tried.load(Relaxed), self.offered.load(Relaxed));
        let time = self.time.map_or("no limit".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()));
        let spent = self.begun.elapsed().as_secs_f64();
        println!(
            "BUDGET: {shares} of {SHARES} shares: {name}: tried {tried} of {offered} in {spent:.1} s ({time})"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_divide_the_time() {
        assert_eq!(time_of(SHARES, None), Some(Duration::from_secs(SECONDS.into())));
        assert_eq!(time_of(SHARES, Some("10")), Some(Duration::from_secs(10)));
        assert!(time_of(SHARES / 2, Some("10")).is_some_and(|half| half <= Duration::from_secs(5)));
        assert_eq!(time_of(1, Some("long")), None);
    }

    #[test]
    fn without_time_the_first_case_alone_is_tried() {
        let budget = Budget::new(String::new(), 0, Some(Duration::ZERO));
        let tried: Vec<u64> = (0..10).filter(|number| budget.allows(*number, 10)).collect();
        assert_eq!(tried, [0]);
        let budget = Budget::new(String::new(), 0, Some(Duration::ZERO));
        assert!(budget.allows_more(5));
        assert!(!budget.allows_more(5));
    }

    #[test]
    fn without_a_limit_every_case_is_tried() {
        let budget = Budget::unlimited();
        assert_eq!((0..10).filter(|number| budget.allows(*number, 10)).count(), 10);
        let budget = Budget::unlimited();
        assert_eq!((0..10).filter(|_| budget.allows_more(5)).count(), 5);
    }
}
